//! What the rules found, one line each, counted per rule.

use std::collections::BTreeMap;

/// Violations of the rules, in the order in which they were found.
#[derive(Default)]
pub(super) struct Report {
    violations: Vec<String>,
    counts: BTreeMap<&'static str, usize>,
    /// Facts worth a line although nothing is wrong.
    pub(super) notes: Vec<String>,
}

impl Report {
    /// What a rule finds.
    #[cfg(test)]
    pub(super) fn of(check: impl FnOnce(&mut Report)) -> Vec<String> {
        let mut report = Report::default();
        check(&mut report);
        report.violations
    }

    /// Notes that a rule was looked at, so that it is listed although it found nothing.
    pub(super) fn rule(&mut self, rule: &'static str) {
        self.counts.entry(rule).or_default();
    }

    /// `what` says what is wrong and, behind a semicolon, what to do about it.
    pub(super) fn add(&mut self, rule: &'static str, path: &str, line: u32, what: &str) {
        *self.counts.entry(rule).or_default() += 1;
        self.violations.push(format!("{path}:{line}: {what}"));
    }

    pub(super) fn violations(&self) -> &[String] {
        &self.violations
    }

    /// How many violations each rule has, in one line.
    pub(super) fn summary(&self) -> String {
        let counts: Vec<String> =
            self.counts.iter().map(|(rule, count)| format!("{rule} {count}")).collect();
        format!("house rules: {}", counts.join(", "))
    }
}
