//! Reading the headers: chapters with what is common to them, and the procedures with their
//! comments.
//!
//! A procedure's comment opens with `/**` and holds text, `@param NAME  TEXT` and `@return TEXT`. A
//! chapter opens with `/* ---- TITLE (SECTION OF THE STANDARD) ----`.

use super::roff;
use crate::{Result, workspace};

/// The headers that describe procedures, in the order of the overview.
const HEADERS: [(&str, &str); 4] = [
    ("GASPI.h", "Procedures"),
    ("GASPI_Ext.h", "Procedures beyond the standard"),
    ("gaspi_collectives.h", "Additions of this library"),
    ("GASPI_Threads.h", "Threads (deprecated)"),
];

/// A part of a header.
#[derive(Debug)]
pub(super) struct Chapter {
    pub(super) header: &'static str,
    pub(super) title: String,
    /// What holds for all its procedures.
    pub(super) text: Vec<String>,
    pub(super) procedures: Vec<Procedure>,
}

/// A procedure as its header declares and describes it.
#[derive(Debug, Default)]
pub(super) struct Procedure {
    pub(super) name: String,
    pub(super) declaration: Vec<String>,
    pub(super) text: Vec<String>,
    /// Names and meanings of the arguments that need words.
    pub(super) arguments: Vec<(String, String)>,
    pub(super) result: String,
}

/// All chapters of all headers that have procedures.
pub(super) fn read() -> Result<Vec<Chapter>> {
    let mut chapters = Vec::new();
    for (header, title) in HEADERS {
        chapters.extend(chapters_of(header, title, &text_of(header)?)?);
    }
    Ok(chapters)
}

/// The lines of the comment that opens a header, without the stars.
pub(super) fn opening(header: &str) -> Result<Vec<String>> {
    let text = text_of(header)?;
    let comment = text
        .strip_prefix("/*")
        .and_then(|rest| rest.split("*/").next())
        .ok_or(format!("include/{header} does not open with a comment"))?;
    Ok(plain(comment))
}

fn text_of(header: &str) -> Result<String> {
    workspace::source(&format!("include/{header}"))
}

fn chapters_of(header: &'static str, title: &str, text: &str) -> Result<Vec<Chapter>> {
    let new = |title: &str, text: Vec<String>| Chapter {
        header,
        title: title.to_owned(),
        text,
        procedures: Vec::new(),
    };
    let mut chapters = vec![new(title, Vec::new())];
    // Behind the opening comment.
    let mut rest = text.split_once("*/").map_or("", |(_, rest)| rest);
    while let Some((_, behind)) = rest.split_once("/*") {
        let (comment, after) =
            behind.split_once("*/").ok_or(format!("include/{header}: a comment has no end"))?;
        rest = after;
        if let Some(chapter) = comment.strip_prefix(" ---- ") {
            let (title, text) = chapter.split_once("----").unwrap_or((chapter, ""));
            let title = title.split(" (").next().unwrap_or(title);
            chapters.push(new(title.trim(), plain(text)));
        } else if let Some(comment) = comment.strip_prefix('*') {
            let declaration = after.split_once(';').map_or("", |(text, _)| text).trim();
            if let Some(procedure) = procedure(comment, declaration)
                && let Some(chapter) = chapters.last_mut()
            {
                chapter.procedures.push(procedure);
            }
        }
    }
    chapters.retain(|chapter| !chapter.procedures.is_empty());
    Ok(chapters)
}

/// The procedure of `declaration`, unless that is a macro, a type or a profiling name.
fn procedure(comment: &str, declaration: &str) -> Option<Procedure> {
    let name = declaration.split('(').next()?.split_whitespace().last()?;
    let name = name.trim_start_matches('*');
    let is_other = declaration.starts_with('#') || declaration.starts_with("typedef");
    if is_other || !name.starts_with("gaspi_") || !declaration.contains('(') {
        return None;
    }
    let mut procedure = Procedure { name: name.to_owned(), ..Procedure::default() };
    procedure.declaration = declared(declaration);
    // A comment of one line holds all of it.
    let comment = if comment.contains('\n') {
        comment.to_owned()
    } else {
        comment.replace(" @return ", "\n@return ")
    };
    let mut is_text = true;
    for line in plain(&comment) {
        let words = line.trim();
        if let Some(argument) = words.strip_prefix("@param ") {
            let (name, meaning) = argument.split_once(' ').unwrap_or((argument, ""));
            procedure.arguments.push((name.to_owned(), meaning.trim().to_owned()));
            is_text = false;
        } else if let Some(result) = words.strip_prefix("@return ") {
            procedure.result = result.to_owned();
            is_text = false;
        } else if is_text {
            procedure.text.push(line);
        } else if !procedure.result.is_empty() {
            procedure.result.push_str(&format!(" {words}"));
        } else if let Some((_, meaning)) = procedure.arguments.last_mut() {
            meaning.push_str(&format!(" {words}"));
        }
    }
    Some(procedure)
}

/// The lines of a declaration, up to its last argument.
fn declared(declaration: &str) -> Vec<String> {
    let mut depth = 0;
    let mut end = declaration.len();
    for (index, character) in declaration.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            end = index + 1;
            // The arguments of a function pointer are followed by more.
            break;
        }
    }
    format!("{};", &declaration[..end]).lines().map(str::to_owned).collect()
}

/// The lines of a comment without its stars, and without empty ones at both ends.
fn plain(comment: &str) -> Vec<String> {
    let mut lines: Vec<String> = comment
        .lines()
        .map(|line| {
            let line = line.trim_start();
            let line = line.strip_prefix('*').unwrap_or(line);
            line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned()
        })
        .collect();
    roff::trim_end(&mut lines);
    let empty = lines.iter().take_while(|line| line.is_empty()).count();
    lines.split_off(empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "/*\n * X.h: opening\n */\n#define X\n\
        /* ---- Queues (GASPI 17.1, Q) ----\n *\n * Common.\n */\n\n\
        /**\n * Does a thing.\n * Twice.\n * @param a  first\n *           part\n * @return 0\n \
        *         or 1\n */\n\
        gaspi_return_t gaspi_thing(void *(*f)(void *),\n                           int a) \
        ATTRIBUTE(1);\n\n\
        /** One line. @return 2 */\nint gaspi_line(void);\n/** A macro. */\n#define Y 1\n\
        /** A type. */\ntypedef gaspi_return_t (*gaspi_f)(int);\n\
        /** Again. */\nint pgaspi_line(void);\n";

    #[test]
    fn chapters_and_procedures_are_found() {
        let chapters = chapters_of("GASPI.h", "All", HEADER).expect("chapters");
        assert_eq!(chapters.len(), 1, "{chapters:?}");
        assert_eq!(chapters[0].title, "Queues");
        assert_eq!(chapters[0].text, ["Common."]);
        let [thing, line] = chapters[0].procedures.as_slice() else { panic!("{chapters:?}") };
        assert_eq!(thing.name, "gaspi_thing");
        assert_eq!(
            thing.declaration,
            [
                "gaspi_return_t gaspi_thing(void *(*f)(void *),",
                "                           int a);"
            ]
        );
        assert_eq!(thing.text, ["Does a thing.", "Twice."]);
        assert_eq!(thing.arguments, [("a".to_owned(), "first part".to_owned())]);
        assert_eq!(thing.result, "0 or 1");
        assert_eq!(line.text, ["One line."]);
        assert_eq!(line.result, "2");
    }
}
