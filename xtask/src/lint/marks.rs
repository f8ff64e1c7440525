//! Marks: files open with what they are, and hold no signs of unfinished work.

use super::report::Report;
use super::source::Tree;

const RULE: &str = "marks";

/// In two parts each, so that this file does not find itself.
const UNFINISHED: [[&str; 2]; 4] = [["TO", "DO"], ["FIX", "ME"], ["todo", "!("], ["dbg", "!("]];

pub(super) fn check(tree: &Tree, report: &mut Report) {
    report.rule(RULE);
    let marks = UNFINISHED.map(|mark| mark.concat());
    for file in tree.rust() {
        if !file.text.starts_with("//!") {
            report.add(RULE, &file.path, 1, "no //! comment at the top; say what the file is");
        }
        for mark in &marks {
            for (number, line) in (1..).zip(file.text.lines()) {
                if line.contains(mark.as_str()) {
                    let what = format!("{mark}; finish it, or open an issue");
                    report.add(RULE, &file.path, number, &what);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_work_and_missing_heads_are_refused() {
        let text = format!("//! A.\n// {}: later", UNFINISHED[0].concat());
        let files = [("a.rs", text.as_str()), ("b.rs", "fn f() {}"), ("c.rs", "//! C.\n")];
        let found = Report::of(|report| check(&Tree::of(&files), report));
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("a.rs:2: ") && found[1].starts_with("b.rs:1: "), "{found:?}");
    }
}
