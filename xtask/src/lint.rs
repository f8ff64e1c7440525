//! Formatting, clippy, and the house rules that no compiler knows.
//!
//! A rule reads the sources as tokens and names each violation with its remedy. What is not yet as
//! a rule wants it is listed exactly in `lint/accepted.rs`, so that the lists can only shrink.

mod accepted;
mod circles;
mod comments;
mod fields;
mod layers;
mod licences;
mod marks;
mod modules;
#[cfg(test)]
mod modules_tests;
mod report;
mod sizes;
mod source;
mod uses;
mod words;

use std::path::Path;

use crate::{Result, process, unknown, workspace};
use report::Report;
use source::Tree;

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments {
        [] => {
            format_check()?;
            rules()?;
            licences::cargo_deny()?;
            clippy()
        }
        [option, root] if option == "--root" => sources(Path::new(root), Report::default()),
        [option, root] if option == "--accepted" => list_accepted(Path::new(root)),
        [argument, ..] => Err(unknown(argument)),
    }
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

/// The rules for sources and for packages.
pub(crate) fn rules() -> Result<()> {
    let mut report = Report::default();
    licences::check(&mut report)?;
    sources(&workspace::root(), report)
}

/// The rules for sources, of the checkout at `root`.
fn sources(root: &Path, mut report: Report) -> Result<()> {
    let tree = Tree::read(root)?;
    for check in [
        marks::check,
        sizes::check,
        comments::check,
        words::check,
        fields::check,
        layers::check,
        circles::check,
    ] {
        check(&tree, &mut report);
    }
    for note in &report.notes {
        println!("note: {note}");
    }
    if report.violations().is_empty() {
        println!("{}", report.summary());
        return Ok(());
    }
    Err(format!("\n{}\n{}", report.violations().join("\n"), report.summary()))
}

/// Prints what belongs into `lint/accepted.rs` as the sources are.
fn list_accepted(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let (upward, doors) = layers::list(&tree);
    for (name, lines) in [
        ("CIRCLES", circles::list(&tree)),
        ("UPWARD", upward),
        ("DOORS", doors),
        ("FIELDS", fields::list(&tree)),
        ("COMMENTS", comments::list(&tree)),
    ] {
        println!("{name}\n{}", lines.join("\n"));
    }
    Ok(())
}
