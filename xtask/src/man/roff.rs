//! Writing pages in the man macros: escaping, and plain text of comments turned into paragraphs,
//! lists and definitions.

use crate::names::VERSION;

/// The line that opens a page. No date: the same sources give the same page.
pub(super) fn title(name: &str, section: u8, manual: &str) -> String {
    format!(".TH \"{}\" {section} \"\" \"gaspi {VERSION}\" \"{manual}\"\n", literal(name))
}

/// Text that has to come out character by character: commands, options, declarations.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            _ => out.push(character),
        }
    }
    guarded(out)
}

/// Prose: what stands in backticks or is a name of GASPI is set in bold.
pub(super) fn prose(text: &str) -> String {
    let mut out = String::new();
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 1 {
            out.push_str(&format!("\\fB{}\\fR", unguarded(part)));
            continue;
        }
        for piece in part.split_inclusive(|c: char| !is_word(c)) {
            let word = piece.trim_end_matches(|c: char| !is_word(c));
            let rest = &piece[word.len()..];
            let is_name = ["gaspi_", "pgaspi_", "GASPI_"]
                .iter()
                .any(|start| word.len() > start.len() && word.starts_with(start));
            if is_name {
                out.push_str(&format!("\\fB{}\\fR", unguarded(word)));
            } else {
                out.push_str(&unguarded_prose(word));
            }
            out.push_str(&unguarded_prose(rest));
        }
    }
    guarded(out)
}

/// Lines of a comment: paragraphs, `- ` lists, definitions, which are indented and have two spaces
/// between the term and its text, and examples between `@code` and `@endcode`.
pub(super) fn block(lines: &[impl AsRef<str>]) -> String {
    let mut out = String::new();
    // Whether the next line of text begins a paragraph.
    let mut is_new = true;
    let mut is_code = false;
    for line in lines.iter().map(AsRef::as_ref) {
        let text = line.trim();
        let indent = line.len() - line.trim_start().len();
        if text == "@code" || text == "@endcode" {
            is_code = text == "@code";
            is_new = !is_code;
            out.push_str(if is_code { ".PP\n.nf\n" } else { ".fi\n" });
        } else if is_code {
            out.push_str(&format!("{}\n", literal(line)));
        } else if text.is_empty() {
            is_new = true;
        } else if let Some(item) = text.strip_prefix("- ") {
            out.push_str(&format!(".IP \\(bu 2\n{}\n", prose(item)));
            is_new = false;
        } else if let Some((term, meaning)) =
            text.split_once("  ").filter(|_| (2..8).contains(&indent))
        {
            out.push_str(&format!(".TP\n{}\n{}\n", prose(term), prose(meaning.trim())));
            is_new = false;
        } else {
            if is_new || indent == 0 && is_list(&out) {
                out.push_str(".PP\n");
            }
            out.push_str(&format!("{}\n", prose(text)));
            is_new = false;
        }
    }
    out
}

/// Lines that come out as they are.
pub(super) fn verbatim(lines: &[impl AsRef<str>]) -> String {
    let lines = lines.iter().map(|line| format!("{}\n", literal(line.as_ref())));
    format!(".nf\n{}.fi\n", lines.collect::<String>())
}

/// Takes empty lines away from the end.
pub(super) fn trim_end(lines: &mut Vec<String>) {
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
}

/// Whether the last thing in `page` is a list item, which text at the margin ends.
fn is_list(page: &str) -> bool {
    page.lines()
        .rev()
        .find(|line| line.starts_with('.'))
        .is_some_and(|line| line.starts_with(".IP") || line.starts_with(".TP"))
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

fn unguarded(text: &str) -> String {
    let text = literal(text);
    text.strip_prefix("\\&").map(str::to_owned).unwrap_or(text)
}

fn unguarded_prose(text: &str) -> String {
    text.replace('\\', "\\e").replace('^', "\\(ha").replace('~', "\\(ti")
}

/// A dot or quote at the start of a line would be a request.
fn guarded(text: String) -> String {
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_roff_would_take_for_its_own_is_escaped() {
        assert_eq!(literal(".so a\\b --x '~'"), "\\&.so a\\eb \\-\\-x \\(aq\\(ti\\(aq");
        assert_eq!(prose(".hidden"), "\\&.hidden");
        assert_eq!(prose("'quoted'"), "\\&'quoted'");
        assert_eq!(prose("modulo 2^64"), "modulo 2\\(ha64");
    }

    #[test]
    fn names_are_bold_and_prefixes_are_not() {
        assert_eq!(prose("see gaspi_wait, then"), "see \\fBgaspi_wait\\fR, then");
        assert_eq!(prose("room for `num` ids"), "room for \\fBnum\\fR ids");
        assert_eq!(prose("all of gaspi_"), "all of gaspi_");
    }

    #[test]
    fn examples_keep_their_lines() {
        let page = block(&["Example:", "", "@code", "int a;", "  f(\"\\n\");", "@endcode", "End."]);
        assert_eq!(page, ".PP\nExample:\n.PP\n.nf\nint a;\n  f(\"\\en\");\n.fi\n.PP\nEnd.\n");
    }

    #[test]
    fn comments_become_lists_and_paragraphs() {
        let page =
            block(&["Two parts.", "", " - one", "   goes on", "  term   what it is", "End."]);
        assert_eq!(
            page,
            ".PP\nTwo parts.\n.IP \\(bu 2\none\ngoes on\n.TP\nterm\nwhat it is\n.PP\nEnd.\n"
        );
    }
}
