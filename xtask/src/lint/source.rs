//! Source files as tokens: enough of Rust's lexical rules that comments, strings and character
//! literals are never mistaken for code. It knows no grammar beyond brackets and attributes.

use std::path::Path;

use crate::workspace;

/// The folders whose files are ours to keep in order.
const FOLDERS: [&str; 10] = [
    "gaspi-core",
    "gaspi-collectives",
    "gaspi-ffi",
    "gaspi",
    "libibverbs-sys",
    "tools",
    "tests",
    "fuzz",
    "include",
    "xtask",
];

/// Made by `cargo xtask bindings`: the rules are for what people write.
const GENERATED: &str = "libibverbs-sys/src/bindings.rs";

/// Most rules look at Rust only; C has sizes.
const EXTENSIONS: [&str; 3] = ["rs", "c", "h"];

/// The folders of the training layer, and what is read there: only lines are looked at.
const TRAINING: ([&str; 2], [&str; 4]) = (["python", "tarantella-tf"], ["py", "cc", "h", "sh"]);

/// All files of the checkout that the rules look at.
pub(super) struct Tree {
    pub(super) files: Vec<Source>,
    /// Paths and texts of other languages.
    pub(super) others: Vec<(String, String)>,
}

/// One file.
pub(super) struct Source {
    /// Below the root of the checkout, with slashes.
    pub(super) path: String,
    pub(super) text: String,
    /// Without comments.
    pub(super) tokens: Vec<Token>,
    /// Comments that are no documentation, each with all of its lines.
    pub(super) comments: Vec<Comment>,
}

/// A piece of code, as a range of the text of its file.
#[derive(Clone, Copy)]
pub(super) struct Token {
    pub(super) kind: Kind,
    start: u32,
    end: u32,
    pub(super) line: u32,
}

/// A comment: lines that follow each other, or what stands between `/*` and `*/`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Comment {
    /// The first line.
    pub(super) line: u32,
    pub(super) lines: u32,
    /// Without slashes; lines are joined by blanks.
    pub(super) text: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Identifiers, keywords and numbers.
    Word,
    /// One character, or the two of `::`.
    Sign,
    /// Strings, characters and lifetimes.
    Literal,
}

impl Tree {
    /// Reads the checkout below `root`. A folder that does not exist is named by the error.
    pub(super) fn read(root: &Path) -> crate::Result<Self> {
        let files = read_below(root, &FOLDERS, &EXTENSIONS)?;
        let files = files.into_iter().map(|(path, text)| Source::new(&path, text)).collect();
        let (folders, extensions) = TRAINING;
        Ok(Self { files, others: read_below(root, &folders, &extensions)? })
    }

    /// A tree that exists in memory only.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| Source::new(path, (*text).to_owned()));
        Self { files: files.collect(), others: Vec::new() }
    }

    pub(super) fn rust(&self) -> impl Iterator<Item = &Source> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }
}

/// Paths and texts of the files below folders, sorted.
fn read_below(
    root: &Path,
    folders: &[&str],
    extensions: &[&str],
) -> crate::Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for folder in folders {
        let directory = root.join(folder);
        if !directory.is_dir() {
            return Err(format!("{folder}: no such folder; correct xtask/src/lint/source.rs"));
        }
        let mut paths = Vec::new();
        workspace::files_below(&directory, extensions, &mut paths);
        paths.retain(|path| !path.ends_with(GENERATED));
        for path in paths {
            let text = workspace::read(&path)?;
            let path = path.strip_prefix(root).unwrap_or(&path);
            files.push((path.to_string_lossy().into_owned(), text));
        }
    }
    files.sort();
    Ok(files)
}

impl Source {
    pub(super) fn new(path: &str, text: String) -> Self {
        let (tokens, comments) = tokens(&text);
        Self { path: path.to_owned(), text, tokens, comments }
    }

    /// The text of the token with this index; empty beyond the last.
    pub(super) fn at(&self, index: usize) -> &str {
        match self.tokens.get(index) {
            Some(token) => &self.text[token.start as usize..token.end as usize],
            None => "",
        }
    }

    /// Whether the token with this index is an identifier, a keyword or a number.
    pub(super) fn is_word(&self, index: usize) -> bool {
        self.tokens.get(index).is_some_and(|token| token.kind == Kind::Word)
    }

    /// The line of the token with this index, counted from 1.
    pub(super) fn line(&self, index: usize) -> u32 {
        self.tokens.get(index).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    /// The index of the bracket that closes the one at `open`.
    pub(super) fn close_of(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for index in open..self.tokens.len() {
            if self.tokens[index].kind != Kind::Sign {
                continue;
            }
            match self.at(index) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => continue,
            }
            if depth == 0 {
                return index;
            }
        }
        self.tokens.len()
    }

    /// If an attribute begins at `index`, the index of its `]`.
    pub(super) fn attribute(&self, index: usize) -> Option<usize> {
        if self.at(index) != "#" {
            return None;
        }
        let open = if self.at(index + 1) == "!" { index + 2 } else { index + 1 };
        (self.at(open) == "[").then(|| self.close_of(open))
    }

    /// Whether the attribute from `from` to `to` keeps its item for tests.
    pub(super) fn is_test_attribute(&self, from: usize, to: usize) -> bool {
        let has = |word: &str| (from..to).any(|index| self.at(index) == word);
        self.at(from + 2) == "cfg" && has("test") && !has("not")
    }

    /// The index of the last token of the item that begins at `from`: its `;` or closing brace.
    pub(super) fn end_of_item(&self, from: usize) -> usize {
        let mut index = from;
        while index < self.tokens.len() {
            match self.at(index) {
                ";" => return index,
                "{" => {
                    let close = self.close_of(index);
                    // The braces of a `use` are followed by its semicolon.
                    return if self.at(close + 1) == ";" { close + 1 } else { close };
                }
                "(" | "[" => index = self.close_of(index) + 1,
                // What is around the item ends: it is a field or the like.
                ")" | "]" | "}" => return index.saturating_sub(1),
                _ => index += 1,
            }
        }
        index
    }
}

/// Cuts `text` into tokens and comments.
fn tokens(text: &str) -> (Vec<Token>, Vec<Comment>) {
    let bytes = text.as_bytes();
    let mut found = Vec::with_capacity(text.len() / 5);
    let mut comments = Vec::new();
    let (mut at, mut line) = (0, 1_u32);
    while at < bytes.len() {
        let (kind, end) = next(bytes, at);
        if let Some(kind) = kind {
            found.push(Token { kind, start: at as u32, end: end as u32, line });
        } else if bytes[at] == b'/' {
            let is_alone = found.last().is_none_or(|token: &Token| token.line < line);
            add_comment(&mut comments, &text[at..end], line, is_alone);
        }
        line += bytes[at..end].iter().filter(|byte| **byte == b'\n').count() as u32;
        at = end;
    }
    (found, comments)
}

/// Adds a comment that is no documentation, to the last one if it goes on with it. `is_alone` if
/// no code is before it on its line.
fn add_comment(comments: &mut Vec<Comment>, text: &str, line: u32, is_alone: bool) {
    let is_doc = ["///", "//!", "/**", "/*!"].iter().any(|mark| text.starts_with(mark));
    if is_doc {
        return;
    }
    let words = text.trim_start_matches(['/', '*']).trim_end_matches(['/', '*']).trim();
    let lines = text.lines().count() as u32;
    match comments.last_mut() {
        Some(last) if is_alone && text.starts_with("//") && last.line + last.lines == line => {
            last.lines += 1;
            last.text.push(' ');
            last.text.push_str(words);
        }
        _ => comments.push(Comment { line, lines, text: words.to_owned() }),
    }
}

/// What begins at `at`, and where it ends; spaces and comments have no kind.
fn next(bytes: &[u8], at: usize) -> (Option<Kind>, usize) {
    let peek = |ahead: usize| bytes.get(at + ahead).copied().unwrap_or(0);
    match peek(0) {
        byte if byte.is_ascii_whitespace() => (None, at + 1),
        b'/' if peek(1) == b'/' => {
            let length = bytes[at..].iter().position(|byte| *byte == b'\n');
            (None, length.map_or(bytes.len(), |length| at + length))
        }
        b'/' if peek(1) == b'*' => (None, after_block_comment(bytes, at)),
        b'"' => (Some(Kind::Literal), after_quoted(bytes, at + 1, b'"')),
        b'\'' => (Some(Kind::Literal), after_apostrophe(bytes, at)),
        b'b' | b'c' if peek(1) == b'"' => (Some(Kind::Literal), after_quoted(bytes, at + 2, b'"')),
        b'b' if peek(1) == b'\'' => (Some(Kind::Literal), after_quoted(bytes, at + 2, b'\'')),
        b'b' | b'c' if peek(1) == b'r' && matches!(peek(2), b'"' | b'#') => raw(bytes, at, at + 2),
        b'r' if matches!(peek(1), b'"' | b'#') => raw(bytes, at, at + 1),
        byte if is_word(byte) => (Some(Kind::Word), after_word(bytes, at)),
        b':' if peek(1) == b':' => (Some(Kind::Sign), at + 2),
        _ => (Some(Kind::Sign), at + 1),
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn after_word(bytes: &[u8], at: usize) -> usize {
    let length = bytes[at..].iter().position(|byte| !is_word(*byte));
    length.map_or(bytes.len(), |length| at + length)
}

/// Block comments nest.
fn after_block_comment(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// Behind the closing `quote` of what is quoted from `at` on.
fn after_quoted(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// A character or a lifetime.
fn after_apostrophe(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at + 1..];
    let is_lifetime = match rest.first() {
        Some(byte) if is_word(*byte) && *byte < 0x80 => rest.get(1) != Some(&b'\''),
        _ => false,
    };
    if is_lifetime { after_word(bytes, at + 1) } else { after_quoted(bytes, at + 1, b'\'') }
}

/// A raw string whose hashes or quote begin at `hashes`, or a raw identifier.
fn raw(bytes: &[u8], at: usize, hashes: usize) -> (Option<Kind>, usize) {
    let count = bytes[hashes..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(hashes + count) != Some(&b'"') {
        // `r#type`: the `r#` is a word of its own, which harms nobody.
        return (Some(Kind::Word), at + 1);
    }
    let mut end = hashes + count + 1;
    while end < bytes.len() {
        let closes = bytes[end] == b'"'
            && bytes[end + 1..].iter().take(count).filter(|byte| **byte == b'#').count() == count;
        end += 1;
        if closes {
            return (Some(Kind::Literal), end + count);
        }
    }
    (Some(Kind::Literal), bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let source = Source::new("a.rs", text.to_owned());
        (0..source.tokens.len()).map(|index| source.at(index).to_owned()).collect()
    }

    #[test]
    fn comments_are_no_code() {
        assert_eq!(words("a // b\n/* c /* d */ e */ f /// g"), ["a", "f"]);
    }

    #[test]
    fn lines_of_comments_belong_together() {
        let text = "//! a\n/// b\n// c\n// d\nf(); // e\n// f\n\n/* g\nh */ x \"// i\"";
        let source = Source::new("a.rs", text.to_owned());
        let found: Vec<(u32, u32, &str)> =
            source.comments.iter().map(|one| (one.line, one.lines, one.text.as_str())).collect();
        assert_eq!(found, [(3, 2, "c d"), (5, 2, "e f"), (8, 2, "g\nh")]);
    }

    #[test]
    fn strings_characters_and_lifetimes_are_one_token() {
        assert_eq!(words(r#""{" b"}\"" '{' '\'' b'\\' x"#).len(), 6);
        assert_eq!(
            words("r#\"a\"b\"# br\"\\\" r#type"),
            ["r#\"a\"b\"#", "br\"\\\"", "r", "#", "type"]
        );
        assert_eq!(words("<'a, '_> 'ä' '\u{1F600}'").len(), 7);
        assert_eq!(words("'label: loop"), ["'label", ":", "loop"]);
    }

    #[test]
    fn lines_are_counted_through_strings_and_comments() {
        let source = Source::new("a.rs", "/*\n\n*/ \"\n\" a".to_owned());
        assert_eq!(source.line(1), 4);
    }

    #[test]
    fn brackets_and_items_have_ends() {
        let source =
            Source::new("a.rs", "fn f(a: [u8; 3]) { \"}\"; '}' } use a::{b}; x".to_owned());
        let item = source.end_of_item(0);
        assert_eq!(source.at(item), "}");
        let import = source.end_of_item(item + 1);
        assert_eq!((source.at(import), source.at(import + 1)), (";", "x"));
    }

    #[test]
    fn attributes_of_tests_are_known() {
        let is_test = |text: &str| {
            let source = Source::new("a.rs", text.to_owned());
            let end = source.attribute(0).expect("an attribute");
            source.is_test_attribute(0, end)
        };
        assert!(is_test("#[cfg(test)]"));
        assert!(is_test("#[cfg(any(test, fuzzing))]"));
        assert!(!is_test("#[cfg(not(test))]"));
        assert!(!is_test("#[cfg(unix)]"));
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = Tree::read(Path::new("/nonexistent")).err().expect("refused");
        assert!(error.contains("gaspi-core: no such folder"), "{error}");
    }
}
