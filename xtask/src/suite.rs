//! What a stage is told and what it counts, and how it runs `cargo test`.

use std::ops::Add;
use std::process::Command;
use std::time::Duration;

use crate::process::{End, guarded};
use crate::result::Result;

/// Tests of a stage.
#[derive(Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

impl Count {
    pub(crate) const ONE: Count = Count { passed: 1, failed: 0 };
}

impl Add for Count {
    type Output = Count;

    fn add(self, other: Count) -> Count {
        Count { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

/// What a stage is told.
pub(crate) struct Context {
    /// More seeds, sizes and ranks.
    pub(crate) full: bool,
    /// What is missing may be installed.
    pub(crate) install: bool,
    /// After this a stage hangs.
    pub(crate) limit: Duration,
    /// Run only tests with one of these in their names; empty for all.
    pub(crate) filters: Vec<String>,
}

/// Runs `cargo test` and sums what its test programs report. `options` go to the test programs, and
/// so do `filters`, which the filters of the command line replace.
pub(crate) fn cargo_test(
    context: &Context,
    command: &mut Command,
    options: &[&str],
    filters: &[&str],
) -> Result<Count> {
    command.arg("--").args(options);
    if context.filters.is_empty() {
        command.args(filters);
    } else {
        command.args(&context.filters);
    }
    let mut count = Count::default();
    let end = guarded(command, context.limit, |line| {
        if let Some(found) = line.strip_prefix("test result: ") {
            count = count + result_line(found);
        }
    })?;
    match end {
        End::Failure(reason) if count.failed == 0 => Err(reason),
        // A stage of several runs may have the test in another one.
        _ if count.passed + count.failed == 0 && context.filters.is_empty() => Err(NO_TEST.into()),
        _ => Ok(count),
    }
}

pub(crate) const NO_TEST: &str = "no test ran";

/// How ranks are spread over nodes: the beginning of the names of tests (`shm/queues::...`).
pub(crate) const LAYOUTS: [&str; 8] =
    ["shm/", "tcp/", "mixed/", "several/", "faulty/", "twin/", "verbs/", "verbs-pairs/"];

/// Options of test programs by which they run one layout, beside tests that are of none.
pub(crate) fn only_layout(layout: &str) -> Vec<&'static str> {
    let others = LAYOUTS.into_iter().filter(|other| *other != layout);
    others.flat_map(|other| ["--skip", other]).collect()
}

/// `ok. 12 passed; 0 failed; 1 ignored; ...`
pub(crate) fn result_line(line: &str) -> Count {
    let number = |word: &str| {
        let mut before = "";
        for part in line.split([' ', ';']).filter(|part| !part.is_empty()) {
            if part == word {
                return before.parse().unwrap_or(0);
            }
            before = part;
        }
        0
    };
    Count { passed: number("passed"), failed: number("failed") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_result_lines() {
        let count = result_line("FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered");
        assert_eq!((count.passed, count.failed), (12, 3));
    }
}
