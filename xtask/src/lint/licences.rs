//! Licences, sources and duplicates of the packages that are linked, by `deny.toml`.
//!
//! These are the essentials of `cargo deny`, for machines without it. Where it is installed it runs
//! too, without the network.

use std::process::Command;

use super::report::Report;
use crate::{Result, process, workspace};

const RULE: &str = "licences";
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(super) fn check(report: &mut Report) -> Result<()> {
    let (deny, lock) = (workspace::source("deny.toml")?, workspace::source("Cargo.lock")?);
    let mut cargo = workspace::cargo();
    cargo.args(["tree", "--workspace", "--edges", "normal,build,dev", "--prefix", "none"]);
    // On a fresh machine this downloads the packages.
    let packages = process::output(cargo.args(["--locked", "--format", "{p}\t{l}"]))?;
    check_texts(&deny, &lock, &packages, report);
    Ok(())
}

/// `cargo deny`, if it is installed.
pub(super) fn cargo_deny() -> Result<()> {
    let mut version = workspace::cargo();
    if !version.args(["deny", "--version"]).output().is_ok_and(|output| output.status.success()) {
        println!("cargo-deny is not installed; xtask checks licences and duplicates by itself");
        return Ok(());
    }
    let mut deny: Command = workspace::cargo();
    process::run(deny.args(["deny", "--offline", "check", "bans", "licenses", "sources"]))
}

/// `packages` has a line `name vVERSION (PLACE)\tLICENCE` for each package of this platform.
fn check_texts(deny: &str, lock: &str, packages: &str, report: &mut Report) {
    report.rule(RULE);
    let allowed = strings(deny, "allow");
    // Of `name:versions` and `name@version` only the name counts.
    let skipped: Vec<&str> = strings(deny, "skip")
        .into_iter()
        .filter_map(|name| name.split([':', '@']).next())
        .collect();
    for line in lock.lines() {
        let Some(source) = line.strip_prefix("source = ") else { continue };
        if source.trim_matches('"') != REGISTRY {
            let what = format!("a package from {source}; use one of crates.io");
            report.add(RULE, "Cargo.lock", 1, &what);
        }
    }
    let mut versions: Vec<(&str, &str)> = Vec::new();
    for line in packages.lines() {
        let Some((package, licence)) = line.split_once('\t') else { continue };
        let mut words = package.split(' ');
        let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
        if versions.contains(&(name, version)) {
            continue;
        }
        versions.push((name, version));
        let licence = licence.trim_end_matches("(*)").trim();
        if !is_allowed(licence, &allowed) {
            let what = format!(
                "{name} has the licence {licence:?}; choose another package, or allow it in \
                 deny.toml"
            );
            report.add(RULE, "Cargo.lock", 1, &what);
        }
    }
    check_duplicates(&versions, &skipped, report);
}

fn check_duplicates(versions: &[(&str, &str)], skipped: &[&str], report: &mut Report) {
    let count = |name: &str| versions.iter().filter(|(other, _)| *other == name).count();
    for (index, (name, _)) in versions.iter().enumerate() {
        let is_first = versions[..index].iter().all(|(other, _)| other != name);
        if is_first && count(name) > 1 && !skipped.contains(name) {
            let what = format!(
                "{name} is there in {} versions; agree on one, or skip it in deny.toml",
                count(name)
            );
            report.add(RULE, "Cargo.lock", 1, &what);
        }
    }
}

/// The strings of the array `name = [...]` of a TOML file, whose lines may end with comments.
fn strings<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let is_key = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    let mut found = Vec::new();
    for line in text.lines().skip_while(|line| !is_key(line)) {
        let code = line.split('#').next().unwrap_or(line);
        found.extend(code.split('"').skip(1).step_by(2));
        if code.trim_end().ends_with(']') {
            break;
        }
    }
    found
}

/// Whether an SPDX expression can be met by what is allowed: all of its `AND` parts, each by one
/// of its `OR` parts. Brackets occur around alternatives only, so `AND` is what binds least.
fn is_allowed(licence: &str, allowed: &[&str]) -> bool {
    let alternatives = |part: &str| {
        let part = part.replace(['(', ')'], " ").replace('/', " OR ");
        part.split(" OR ").any(|one| allowed.contains(&one.trim()))
    };
    // Without brackets `AND` binds closer, so that one alternative has to be met as a whole.
    if !licence.contains('(') && licence.contains(" OR ") {
        return licence.split(" OR ").any(|one| one.split(" AND ").all(alternatives));
    }
    licence.split(" AND ").all(alternatives)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENY: &str = "[licenses]\nallow = [\n  \"MIT\", # as \"ours\"\n  \"Apache-2.0\",\n]\n\
                        [bans]\nskip = [\"two:1\"]\n";

    fn found(lock: &str, packages: &str) -> Vec<String> {
        Report::of(|report| check_texts(DENY, lock, packages, report))
    }

    #[test]
    fn licences_that_are_not_allowed_are_refused() {
        assert!(found("", "a v1.0.0\tMIT OR GPL-3.0\na v1.0.0\tMIT OR GPL-3.0 (*)").is_empty());
        let refused = found("", "a v1.0.0\tGPL-3.0");
        assert!(refused[0].contains("a has the licence \"GPL-3.0\""), "{refused:?}");
        assert!(found("", "a v1.0.0\t")[0].contains("licence \"\""));
    }

    #[test]
    fn expressions_are_understood() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
        assert!(is_allowed("Unlicense/MIT", &allowed));
        assert!(is_allowed("(GPL-3.0 OR MIT) AND Unicode-3.0", &allowed));
        assert!(is_allowed("GPL-3.0 AND BSD OR MIT", &allowed));
        assert!(!is_allowed("(MIT OR Apache-2.0) AND GPL-3.0", &allowed));
        assert!(!is_allowed("MIT AND GPL-3.0", &allowed));
    }

    #[test]
    fn two_versions_are_refused_unless_skipped() {
        assert!(found("", "two v1.0.0\tMIT\ntwo v2.0.0\tMIT").is_empty());
        let refused = found("", "a v1.0.0\tMIT\na v2.0.0\tMIT");
        assert!(refused[0].contains("a is there in 2 versions"), "{refused:?}");
    }

    #[test]
    fn sources_other_than_the_registry_are_refused() {
        assert!(found(&format!("source = \"{REGISTRY}\""), "").is_empty());
        let refused = found("source = \"git+https://example.org/a\"", "");
        assert!(refused[0].contains("use one of crates.io"), "{refused:?}");
    }
}
