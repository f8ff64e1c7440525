//! The manual pages. Those of the tools are made from what each says to `--help`, those of the
//! procedures from the comments of the headers, so that neither can drift; gaspi(7) is written by
//! hand, and [`check`] compares the variables that it tells with those that the sources read.

mod headers;
mod procedures;
mod roff;
mod tools;

use std::collections::BTreeSet;
use std::path::Path;

use crate::suite::Count;
use crate::tree::Tree;
use crate::{Result, names, symbols, workspace};

/// The page that tells what all procedures share, and all variables of the environment.
const OVERVIEW: &str = "packaging/man/gaspi.7.in";

/// Puts all pages into the tree.
pub(crate) fn pages(tree: &mut Tree) -> Result<()> {
    for (tool, page) in tools::pages()? {
        tree.write(&format!("share/man/man1/{tool}.1"), &page)?;
    }
    let chapters = headers::read()?;
    for (name, page) in procedures::pages(&chapters)? {
        tree.write(&format!("share/man/man3/{name}.3"), &page)?;
        tree.write(&format!("share/man/man3/p{name}.3"), &format!(".so man3/{name}.3\n"))?;
    }
    let values = [
        ("VERSION", names::VERSION),
        ("CONVENTIONS", &procedures::conventions()?),
        ("PROCEDURES", &procedures::list(&chapters)),
    ];
    tree.write("share/man/man7/gaspi.7", &workspace::filled(OVERVIEW, &values)?)
}

/// Every procedure has a page, and every variable that the sources read is in gaspi(7).
pub(crate) fn check() -> Result<Count> {
    let mut problems = Vec::new();
    let described: BTreeSet<String> =
        procedures::pages(&headers::read()?)?.into_iter().map(|(name, _)| name).collect();
    let procedures = symbols::procedures()?;
    for name in procedures.difference(&described) {
        problems.push(format!("no header has a comment that begins a manual page of {name}"));
    }
    for name in described.difference(&procedures) {
        problems.push(format!("{name} has a manual page but no row in docs/conformance.md"));
    }
    let overview = workspace::filled(OVERVIEW, &[])?;
    let told: BTreeSet<&str> = overview
        .split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))
        .filter(|word| word.starts_with("GASPI_"))
        .collect();
    let mut read = BTreeSet::new();
    for package in ["gaspi-core", "gaspi-collectives", "gaspi-ffi", "gaspi", "tools"] {
        variables(&workspace::root().join(package).join("src"), &mut read);
    }
    for name in &read {
        if !told.contains(name.as_str()) {
            problems.push(format!("the sources know {name}, {OVERVIEW} does not tell it"));
        }
    }
    for problem in &problems {
        println!("{problem}");
    }
    println!("{} procedures, {} variables", described.len(), read.len());
    let passed = described.len() + read.len();
    Ok(Count { passed: passed.saturating_sub(problems.len()), failed: problems.len() })
}

/// The variables of the environment that Rust code below `directory` names: what stands as
/// `"GASPI_..."` in it and is not a constant of the C interface.
fn variables(directory: &Path, found: &mut BTreeSet<String>) {
    let constants = std::fs::read_to_string(workspace::root().join("include/GASPI_types.h"))
        .unwrap_or_default();
    let constants: BTreeSet<&str> =
        constants.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    let mut files = Vec::new();
    workspace::files_below(directory, &["rs"], &mut files);
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        for literal in text.split('"').filter(|word| word.starts_with("GASPI_")) {
            let is_name = literal.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            // Tests of the harness have their own.
            if is_name && !literal.starts_with("GASPI_TEST_") && !constants.contains(literal) {
                found.insert(literal.to_owned());
            }
        }
    }
}
