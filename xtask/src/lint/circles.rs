//! Circles: files that import each other can only be understood together, so a circle is small.

use super::accepted::CIRCLES as CRATES;
use super::modules::{Crate, name};
use super::report::Report;
use super::source::Tree;

const RULE: &str = "circles";

/// So many names of a circle are printed.
const SHOWN: usize = 40;

pub(super) fn check(tree: &Tree, report: &mut Report) {
    check_against(tree, &CRATES, report);
}

/// `crates` has the root of each crate and the largest circle that it may have.
fn check_against(tree: &Tree, crates: &[(&str, usize)], report: &mut Report) {
    report.rule(RULE);
    for (root, limit) in crates {
        let Some(found) = Crate::read(tree, root) else {
            report.add(RULE, root, 1, "no such file; correct xtask/src/lint/accepted.rs");
            continue;
        };
        let largest = largest(&found);
        let size = largest.len();
        let mut names: Vec<String> =
            largest.iter().take(SHOWN).map(|file| name(&found.files[*file].module)).collect();
        if size > SHOWN {
            names.push("...".to_owned());
        }
        let names = names.join(", ");
        if size > 1 {
            report.notes.push(format!("{root}: largest import circle: {size} files: {names}"));
        }
        if size > *limit {
            let what = format!(
                "an import circle of {size} files, of at most {limit}: {names}; cut an import, \
                 or move what both sides need below them"
            );
            report.add(RULE, root, 1, &what);
        }
    }
}

/// Entries for `accepted.rs` as the tree is.
pub(super) fn list(tree: &Tree) -> Vec<String> {
    let crates = CRATES.iter().filter_map(|(root, _)| Some((root, Crate::read(tree, root)?)));
    crates.map(|(root, found)| format!("    ({root:?}, {}),", largest(&found).len())).collect()
}

/// The files of the largest strongly connected component of the imports.
fn largest(found: &Crate) -> Vec<usize> {
    let onward: Vec<Vec<usize>> = found
        .files
        .iter()
        .map(|file| file.imports.iter().map(|import| import.file).collect())
        .collect();
    let mut backward = vec![Vec::new(); onward.len()];
    for (from, targets) in onward.iter().enumerate() {
        for target in targets {
            backward[*target].push(from);
        }
    }
    // Kosaraju's algorithm: last finished first, against the direction of the imports.
    let mut order = Vec::new();
    let mut seen = vec![false; onward.len()];
    for file in 0..onward.len() {
        visit(file, &onward, &mut seen, &mut order);
    }
    let mut best = Vec::new();
    let mut seen = vec![false; onward.len()];
    for file in order.into_iter().rev() {
        let mut component = Vec::new();
        visit(file, &backward, &mut seen, &mut component);
        if component.len() > best.len() {
            best = component;
        }
    }
    best.sort_unstable();
    best
}

/// Adds to `order` what can be reached from `file` and was not seen, each after what it leads to.
fn visit(file: usize, edges: &[Vec<usize>], seen: &mut [bool], order: &mut Vec<usize>) {
    if std::mem::replace(&mut seen[file], true) {
        return;
    }
    for target in &edges[file] {
        visit(*target, edges, seen, order);
    }
    order.push(file);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: [(&str, &str); 5] = [
        ("c/lib.rs", "mod a; mod b; mod d; mod e;"),
        ("c/a.rs", "use crate::b::B;"),
        ("c/b.rs", "fn f() { crate::d::f() }"),
        ("c/d.rs", "use super::a::A; use super::e::E;"),
        ("c/e.rs", "#[cfg(test)] mod tests { use crate::a::A; }"),
    ];

    fn found(limit: usize) -> Report {
        let mut report = Report::default();
        check_against(&Tree::of(&TREE), &[("c/lib.rs", limit)], &mut report);
        report
    }

    #[test]
    fn a_circle_above_the_limit_is_refused() {
        let refused = found(2);
        assert_eq!(refused.violations().len(), 1);
        let text = "c/lib.rs:1: an import circle of 3 files, of at most 2: a, b, d;";
        assert!(refused.violations()[0].starts_with(text), "{}", refused.violations()[0]);
    }

    #[test]
    fn the_largest_circle_is_told() {
        let allowed = found(3);
        assert!(allowed.violations().is_empty());
        assert_eq!(allowed.notes, ["c/lib.rs: largest import circle: 3 files: a, b, d"]);
    }

    #[test]
    fn a_missing_crate_is_named() {
        let mut report = Report::default();
        check_against(&Tree::of(&TREE), &[("x/lib.rs", 1)], &mut report);
        assert!(report.violations()[0].contains("no such file"));
    }
}
