//! What bindgen writes, as items: enough of Rust's grammar for that and no more. What it does not
//! know is an error, so that nothing is passed over.

use crate::Result;

/// An item of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A number: its name, and the name of its type.
    Constant(String, String),
    /// Another name for a type, which is the second.
    Alias(String, String),
    /// A struct or union.
    Record(Record),
}

/// A struct or union.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) is_union: bool,
    pub(super) name: String,
    /// Names and types, in their order. None where the header does not tell, or nobody needs to
    /// know.
    pub(super) fields: Vec<(String, String)>,
    /// It has private parts only: pointers to it are passed on.
    pub(super) is_opaque: bool,
}

/// The texts of the items, attributes included, with single blanks and without comments.
pub(super) fn items(text: &str) -> Result<Vec<String>> {
    let lines: Vec<&str> =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut items = Vec::new();
    let mut item = String::new();
    let mut depth = 0_usize;
    for word in lines.join(" ").split_whitespace() {
        if !item.is_empty() {
            item.push(' ');
        }
        for sign in word.chars() {
            item.push(sign);
            match sign {
                '{' | '(' | '[' => depth += 1,
                '}' | ')' | ']' => {
                    depth = depth.checked_sub(1).ok_or_else(|| format!("brackets: {item}"))?;
                }
                _ => {}
            }
            if depth == 0 && matches!(sign, ';' | '}') {
                // `use a::{b};` ends with the semicolon.
                if item.trim() == ";" {
                    item.clear();
                } else {
                    items.push(std::mem::take(&mut item).trim().to_owned());
                }
            }
        }
    }
    if item.trim().is_empty() { Ok(items) } else { Err(format!("unfinished: {item}")) }
}

/// All items but imports.
pub(super) fn parsed(text: &str) -> Result<Vec<Item>> {
    let items = items(text)?;
    items.iter().filter(|item| !item.starts_with("use ")).map(|item| one(item)).collect()
}

fn one(item: &str) -> Result<Item> {
    let unknown = || format!("xtask/src/bindings/parse.rs does not know this: {item}");
    let mut rest = item;
    while let Some(attribute) = rest.strip_prefix("#[") {
        rest = attribute.split_once(']').ok_or_else(unknown)?.1.trim_start();
    }
    let rest = rest.strip_prefix("pub ").ok_or_else(unknown)?;
    if let Some(rest) = rest.strip_prefix("const ") {
        let (name, rest) = rest.split_once(':').ok_or_else(unknown)?;
        let (of, _) = rest.split_once('=').ok_or_else(unknown)?;
        return Ok(Item::Constant(name.trim().into(), of.trim().into()));
    }
    if let Some(rest) = rest.strip_prefix("type ") {
        let (name, of) = rest.split_once('=').ok_or_else(unknown)?;
        return Ok(Item::Alias(name.trim().into(), of.trim_end_matches(';').trim().into()));
    }
    let is_union = rest.starts_with("union ");
    let rest = rest.strip_prefix("union ").or(rest.strip_prefix("struct ")).ok_or_else(unknown)?;
    let (name, body) = rest.split_once('{').ok_or_else(unknown)?;
    let body = body.strip_suffix('}').ok_or_else(unknown)?;
    let mut fields = Vec::new();
    let mut is_opaque = false;
    for field in split(body) {
        if let Some(field) = field.strip_prefix("pub ") {
            let (name, of) = field.split_once(':').ok_or_else(unknown)?;
            fields.push((name.trim().to_owned(), of.trim().to_owned()));
        } else {
            is_opaque = true;
        }
    }
    if is_opaque && !fields.is_empty() {
        return Err(unknown());
    }
    Ok(Item::Record(Record { is_union, name: name.trim().into(), fields, is_opaque }))
}

/// What commas divide outside of all brackets, without what is empty.
pub(super) fn split(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut depth, mut start, mut before) = (0_usize, 0, ' ');
    for (at, sign) in text.char_indices() {
        match sign {
            '(' | '[' | '{' | '<' => depth += 1,
            // Not that of `->`.
            '>' if before == '-' => {}
            ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                pieces.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        before = sign;
    }
    pieces.push(text[start..].trim());
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

#[cfg(test)]
mod tests {
    use super::{Item, Record, parsed, split};

    #[test]
    fn each_kind_of_item_is_read() {
        let text = "// By bindgen.\nuse libc::{size_t, ssize_t};\npub const A: e = 1;\n\
                    pub type f =\n    unsafe extern \"C\" fn(a: u8) -> u8;\n\
                    #[repr(C)]\n#[derive(Copy, Clone)]\npub union u {\n    pub a: [u8; 16usize],\n\
                    pub b: Option<unsafe extern \"C\" fn(x: u8, y: u8) -> u8>,\n}\n\
                    #[repr(C)]\npub struct o {\n    _opaque: [u8; 0],\n}\n";
        let fields =
            [("a", "[u8; 16usize]"), ("b", "Option<unsafe extern \"C\" fn(x: u8, y: u8) -> u8>")];
        let fields = fields.map(|(name, of)| (name.to_owned(), of.to_owned())).into();
        let expected = [
            Item::Constant("A".into(), "e".into()),
            Item::Alias("f".into(), "unsafe extern \"C\" fn(a: u8) -> u8".into()),
            Item::Record(Record { is_union: true, name: "u".into(), fields, is_opaque: false }),
            Item::Record(Record {
                is_union: false,
                name: "o".into(),
                fields: Vec::new(),
                is_opaque: true,
            }),
        ];
        assert_eq!(parsed(text).unwrap(), expected);
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        assert!(parsed("impl a { }").is_err());
        assert!(parsed("pub const A: u8 = 1").unwrap_err().starts_with("unfinished"));
        assert!(parsed("pub struct a { pub b: u8, c: u8 }").is_err());
    }

    #[test]
    fn commas_within_brackets_divide_nothing() {
        assert_eq!(
            split("a: fn(b, c) -> d<e, f>, g: [h; 2],"),
            ["a: fn(b, c) -> d<e, f>", "g: [h; 2]"]
        );
    }
}
