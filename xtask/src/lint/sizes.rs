//! Sizes: the width of lines, the length of functions and of files.

use super::report::Report;
use super::source::{Source, Tree};

/// Of comments too.
const COLUMNS: usize = 100;
/// From the name to the closing brace.
const FUNCTION_LINES: u32 = 70;
/// Not of C headers, which are the manual pages.
const FILE_LINES: usize = 600;

pub(super) fn check(tree: &Tree, report: &mut Report) {
    for rule in ["width", "function length", "file length"] {
        report.rule(rule);
    }
    for file in &tree.files {
        widths(&file.path, &file.text, report);
        functions(file, report);
        let lines = file.text.lines().count();
        if lines > FILE_LINES && !file.path.ends_with(".h") {
            let what = format!("{lines} lines, of at most {FILE_LINES}; split the file");
            report.add("file length", &file.path, 1, &what);
        }
    }
    for (path, text) in &tree.others {
        widths(path, text, report);
    }
}

fn widths(path: &str, text: &str, report: &mut Report) {
    for (number, line) in (1..).zip(text.lines()) {
        // Counting characters is needed only where the bytes are too many.
        if line.len() > COLUMNS && line.chars().count() > COLUMNS {
            let width = line.chars().count();
            let what = format!("{width} columns, of at most {COLUMNS}; wrap the line");
            report.add("width", path, number, &what);
        }
    }
}

fn functions(file: &Source, report: &mut Report) {
    if !file.path.ends_with(".rs") {
        return c_functions(file, report);
    }
    for index in 0..file.tokens.len() {
        // `fn(u8)` is a type, `fn $name` belongs to a macro.
        if file.at(index) == "fn" && file.is_word(index + 1) {
            function(file, index + 1, file.end_of_item(index), report);
        }
    }
}

/// In C the braces of a function follow the parentheses of its arguments, outside of all others.
fn c_functions(file: &Source, report: &mut Report) {
    let mut index = 0;
    let mut name = 0;
    while index < file.tokens.len() {
        match file.at(index) {
            "(" => {
                name = index.saturating_sub(1);
                index = file.close_of(index);
            }
            "{" if index > 0 && file.at(index - 1) == ")" => {
                let end = file.close_of(index);
                function(file, name, end, report);
                index = end;
            }
            // What is inside of `extern "C" { }` is outside of all others.
            "{" if index > 0 && file.at(index - 1) == "\"C\"" => {}
            "{" => index = file.close_of(index),
            _ => {}
        }
        index += 1;
    }
}

/// The function with its name at one token and its closing brace at another.
fn function(file: &Source, name: usize, end: usize, report: &mut Report) {
    let lines = file.line(end) + 1 - file.line(name);
    if lines > FUNCTION_LINES {
        let what = format!(
            "`{}` has {lines} lines, of at most {FUNCTION_LINES}; split the function",
            file.at(name)
        );
        report.add("function length", &file.path, file.line(name), &what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        Report::of(|report| check(&Tree::of(&[(path, text)]), report))
    }

    #[test]
    fn wide_lines_are_refused() {
        let line = format!("// {}", "ä".repeat(97));
        assert!(found("a.rs", &line).is_empty());
        let wide = found("a.c", &format!("\n{line}b"));
        assert_eq!(wide, ["a.c:2: 101 columns, of at most 100; wrap the line"]);
    }

    #[test]
    fn long_functions_are_refused() {
        let function = |lines: usize| {
            let body = "    let _ = (\"}\", '}'); // }\n".repeat(lines - 2);
            format!("struct A;\nfn long<'a>(_: [u8; 3]) {{\n{body}}}\nfn short() {{}}\n")
        };
        assert!(found("a.rs", &function(70)).is_empty());
        let long = found("a.rs", &function(71));
        assert_eq!(long, ["a.rs:2: `long` has 71 lines, of at most 70; split the function"]);
    }

    #[test]
    fn long_functions_of_c_are_refused() {
        let function = |lines: usize| {
            let body = "    if (a['}']) { puts(\"}\"); } /* } */\n".repeat(lines - 2);
            let structure = "struct a {\n    int x;\n};\n".repeat(30);
            format!("{structure}extern \"C\" {{\nstatic int f(int (*a)(void)) {{\n{body}}}\n}}\n")
        };
        assert!(found("a.c", &function(70)).is_empty());
        let long = found("a.c", &function(71));
        assert_eq!(long, ["a.c:92: `f` has 71 lines, of at most 70; split the function"]);
    }

    #[test]
    fn long_files_are_refused() {
        assert!(found("a.rs", &"\n".repeat(600)).is_empty());
        assert!(found("a.h", &"\n".repeat(601)).is_empty());
        let long = found("a.rs", &"\n".repeat(601));
        assert_eq!(long, ["a.rs:1: 601 lines, of at most 600; split the file"]);
    }
}
