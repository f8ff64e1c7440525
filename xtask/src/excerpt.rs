//! What of a command's output says why it failed, so that it can stand once more at the end, where
//! thousands of lines of other commands do not hide it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Lines that are kept of one command.
const LIMIT: usize = 60;

/// Lines before a program's end without a result, which hold its last words.
const BEFORE: usize = 12;

/// Lines behind it: cargo says there by which signal it ended.
const AFTER: usize = 4;

static FAILED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Follows the lines that a command prints.
#[derive(Default)]
pub(crate) struct Excerpt {
    kept: Vec<String>,
    /// The last lines that were not kept.
    recent: VecDeque<String>,
    /// So many of the lines to come are kept.
    following: usize,
}

impl Excerpt {
    pub(crate) fn line(&mut self, line: &str) {
        if line == "failures:" {
            // What the tests that failed have printed, until the result of their program.
            self.following = usize::MAX;
        } else if line.starts_with("test result: ") {
            self.following = 0;
        } else if line.starts_with("error: test failed") || line.starts_with("error: could not") {
            let recent = self.recent.drain(..);
            self.kept.extend(recent);
            self.following = 1 + AFTER;
        } else if line.ends_with(" ... FAILED") {
            self.following = self.following.max(1);
        }
        if self.following > 0 {
            self.following -= 1;
            self.kept.push(line.to_owned());
        } else {
            self.recent.push_back(line.to_owned());
            if self.recent.len() > BEFORE {
                self.recent.pop_front();
            }
        }
    }

    /// The command has failed.
    pub(crate) fn failed(mut self) {
        if self.kept.is_empty() {
            self.kept.extend(self.recent);
        }
        shorten(&mut self.kept);
        FAILED.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.kept);
    }
}

/// Leaves the middle of too many lines out: a job of many ranks prints a line for each, and behind
/// these what went wrong.
fn shorten(lines: &mut Vec<String>) {
    let more = lines.len().saturating_sub(LIMIT);
    if more > 0 {
        let head = LIMIT / 2;
        lines.splice(head..head + more, [format!("... {more} lines are left out ...")]);
    }
}

/// What commands that have failed since the last call printed.
pub(crate) fn take() -> Vec<String> {
    std::mem::take(&mut *FAILED.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Vec<String> {
        let mut excerpt = Excerpt::default();
        lines.iter().for_each(|line| excerpt.line(line));
        excerpt.kept
    }

    #[test]
    fn tests_that_failed_are_kept_with_what_they_printed() {
        let lines = ["test a ... ok", "test b ... FAILED", "", "failures:", "---- b ----"];
        let rest = ["assertion failed", "test result: FAILED. 1 passed; 1 failed", "test c ... ok"];
        let kept = of(&[&lines[..], &rest[..]].concat());
        assert_eq!(kept, ["test b ... FAILED", "failures:", "---- b ----", "assertion failed"]);
    }

    #[test]
    fn of_many_lines_the_first_and_the_last_are_kept() {
        let mut lines: Vec<String> = (0..LIMIT).map(|line| line.to_string()).collect();
        let whole = lines.clone();
        shorten(&mut lines);
        assert_eq!(lines, whole);
        lines.extend(["more".to_owned(), "the reason".to_owned()]);
        shorten(&mut lines);
        assert_eq!((lines.len(), &*lines[29]), (LIMIT + 1, "29"));
        assert_eq!(&lines[30..32], ["... 2 lines are left out ...", "32"]);
        assert_eq!(lines.last().map(String::as_str), Some("the reason"));
        // What a test prints is kept until the result of its program, however long that is.
        let many = vec!["a line"; 2 * LIMIT];
        assert_eq!(of(&[&["failures:"], &many[..], &["the reason"]].concat()).len(), 2 * LIMIT + 2);
    }

    #[test]
    fn the_last_words_of_a_program_without_a_result_are_kept() {
        let lines = ["test a ... ok", "a rank has fallen", "error: test failed, to rerun pass x"];
        let rest = ["", "Caused by:", "  signal: 6, SIGABRT", "", "running 3 tests", "..."];
        let kept = of(&[&lines[..], &rest[..]].concat());
        let expected = [&lines[..], &rest[..4]].concat();
        assert_eq!(kept, expected);
        assert!(of(&["test a ... ok", "test result: ok. 1 passed"]).is_empty());
    }
}
