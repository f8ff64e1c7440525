//! Formatting, clippy, and the house rules that no compiler knows.

use crate::{Result, process, unknown, workspace};

/// A file much longer than this is a sign to look; twice as long fails.
const FILE_LINES: usize = 600;

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if let Some(argument) = arguments.first() {
        return Err(unknown(argument));
    }
    format_check()?;
    rules()?;
    clippy()
}

/// `cargo xtask fmt`.
pub(crate) fn format(arguments: &[String]) -> Result<()> {
    if let Some(argument) = arguments.first() {
        return Err(unknown(argument));
    }
    process::run(workspace::cargo().args(["fmt", "--all"]))
}

pub(crate) fn format_check() -> Result<()> {
    process::run(workspace::cargo().args(["fmt", "--all", "--check"]))
}

pub(crate) fn clippy() -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.args(["clippy", "--quiet", "--workspace", "--all-targets"]);
    if workspace::is_ci() {
        cargo.args(["--", "-D", "warnings"]);
    }
    process::run(&mut cargo)
}

/// Files have a reasonable length, open with what they are, and hold no marks of unfinished work.
pub(crate) fn rules() -> Result<()> {
    let root = workspace::root();
    let mut files = Vec::new();
    for package in [
        "gaspi-core",
        "gaspi-collectives",
        "gaspi-ffi",
        "gaspi",
        "tools",
        "tests",
        "fuzz",
        "xtask",
        "benches",
    ] {
        workspace::rust_files(&root.join(package), &mut files);
    }
    let mut complaints = Vec::new();
    for file in &files {
        let Ok(text) = std::fs::read_to_string(file) else { continue };
        let name = file.strip_prefix(&root).unwrap_or(file).display().to_string();
        if !text.starts_with("//!") {
            complaints.push(format!("{name}: does not open with //! and what it is"));
        }
        let lines = text.lines().count();
        if lines > 2 * FILE_LINES {
            complaints.push(format!("{name}: {lines} lines; split it"));
        } else if lines > FILE_LINES {
            println!("note: {name} has {lines} lines");
        }
        for (number, line) in text.lines().enumerate() {
            for mark in UNFINISHED {
                if line.contains(mark.concat().as_str()) {
                    let number = number + 1;
                    complaints.push(format!("{name}:{number}: {}", mark.concat()));
                }
            }
        }
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n")) }
}

/// In two parts each, so that this file does not find itself.
const UNFINISHED: [[&str; 2]; 4] = [["TO", "DO"], ["FIX", "ME"], ["todo", "!("], ["dbg", "!("]];
