//! `gaspi-bench info`: what this build is, what this machine offers, and why something is not
//! usable.
//!
//! gaspi-core does the checks; this module only shows them. No job is needed.

use crate::library::Library;
use gaspi_collectives::kernel;
use gaspi_core::diagnostics::{self, Check, CheckState};
use std::io::{self, Write};
use std::process::ExitCode;

/// Columns of the table.
const WIDTH: usize = 100;
/// Where the words of a finding begin.
const INDENT: usize = 37;

/// Prints everything, as a table or as one JSON object per line. Fails if ranks could not share
/// memory here, so that scripts can ask.
pub(crate) fn run(json: bool) -> ExitCode {
    let mut findings = build();
    findings.extend(diagnostics::run());
    findings.extend(gaspi_core::rdma_checks());
    let text = if json { json_lines(&findings) } else { table(&findings) };
    // A reader who has seen enough (head) is no failure.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    let shared = |finding: &Check| finding.topic == "shared memory";
    let usable = findings.iter().any(|found| shared(found) && found.state == CheckState::Usable);
    if usable { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What was built.
fn build() -> Vec<Check> {
    let fact = |topic, value: String| Check::new("build", topic, CheckState::Fact, value);
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let optimised = if cfg!(debug_assertions) { "with debug assertions" } else { "release" };
    vec![
        fact("version", format!("gaspi-bench {}", env!("CARGO_PKG_VERSION"))),
        library(),
        fact("target", format!("{target}, {optimised}")),
        fact("reductions", format!("instructions: {}", kernel::instruction_set()))
            .because("chosen for this processor when the program runs"),
    ]
}

/// The library that the other subcommands would measure.
fn library() -> Check {
    let finding = |state, value: String| Check::new("build", "library", state, value);
    let library = match Library::load() {
        Ok(library) => library,
        Err(failure) => {
            let reason = failure.message.lines().next().unwrap_or_default().to_owned();
            return finding(CheckState::Unusable, "not found".to_owned())
                .because(reason)
                .remedy("build or install it beside this program (cargo xtask install)");
        }
    };
    let mut interface = 0.0;
    // SAFETY: writes the number that it is given, and may be called before init.
    unsafe { (library.procedures.version)(&raw mut interface) };
    finding(CheckState::Usable, library.path.display().to_string())
        .because(format!("interface {interface:.1}"))
}

/// One object per line.
fn json_lines(findings: &[Check]) -> String {
    let line = |found: &Check| {
        let object = serde_json::json!({
            "area": found.area,
            "topic": found.topic,
            "state": found.state.name(),
            "value": found.value,
            "reason": found.reason,
            "remedy": found.remedy,
        });
        format!("{object}\n")
    };
    findings.iter().map(line).collect()
}

/// Rows under the heading of their area.
fn table(findings: &[Check]) -> String {
    let mut text = String::new();
    let mut area = "";
    for found in findings {
        if found.area != area {
            area = found.area;
            text.push_str(&format!("{}{area}\n", if text.is_empty() { "" } else { "\n" }));
        }
        let state = if found.state == CheckState::Fact { "" } else { found.state.name() };
        let mut start = format!("  {:<21}{state:<12}  ", found.topic);
        let remedy = match found.remedy.as_str() {
            "" => String::new(),
            remedy => format!("remedy: {remedy}"),
        };
        for words in [&found.value, &found.reason, &remedy] {
            for line in wrap(words, WIDTH - INDENT) {
                text.push_str(&format!("{start:<INDENT$}{line}\n"));
                start.clear();
            }
        }
    }
    text
}

/// Breaks a text between words; a word that is wider than a line gets one of its own.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Vec<Check> {
        vec![
            Check::new("kernel", "membarrier", CheckState::Usable, "global expedited"),
            Check::new("kernel", "cross-memory attach", CheckState::Limited, "refused")
                .because("a reason of so many words that they cannot all be in one line of a table")
                .remedy("say \"please\""),
            Check::new("transports", "verbs", CheckState::Unusable, "no device"),
        ]
    }

    #[test]
    fn columns_align_and_no_line_is_too_wide() {
        let text = table(&findings());
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        let column = |row: &str, word: &str| {
            let line = text.lines().find(|line| line.contains(row)).unwrap();
            line.find(word).unwrap()
        };
        assert_eq!(column("membarrier", "usable"), column("verbs", "not usable"), "{text}");
        assert_eq!(column("membarrier", "global"), INDENT, "{text}");
        assert_eq!(column("remedy:", "remedy:"), INDENT, "{text}");
        assert_eq!(text.lines().filter(|line| !line.starts_with(' ')).count(), 3, "{text}");
    }

    #[test]
    fn every_finding_is_a_json_object_of_its_own() {
        let text = json_lines(&findings());
        let objects: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(objects.len(), 3);
        assert_eq!(objects[1]["state"], "limited");
        assert_eq!(objects[1]["remedy"], "say \"please\"");
        assert_eq!(objects[2]["state"], "not usable");
    }

    #[test]
    fn long_words_stay_whole() {
        assert_eq!(wrap("a bb ccccccc d", 5), ["a bb", "ccccccc", "d"]);
        assert!(wrap("", 5).is_empty());
    }
}
