//! Fields: a struct with many is several things. Plain records are allowed by name.

use super::accepted::FIELDS as ACCEPTED;
use super::report::Report;
use super::source::{Source, Tree};

const RULE: &str = "fields";
const FIELDS: usize = 15;

/// Records that have no behaviour: (struct, why).
const RECORDS: [(&str, &str); 3] = [
    ("Config", "what a user can set, one field each"),
    ("gaspi_config_t", "the same in C, as the standard has it"),
    ("Arguments", "the options of a command, one field each"),
];

pub(super) fn check(tree: &Tree, report: &mut Report) {
    check_against(tree, ACCEPTED, report);
}

/// `accepted` says how many fields a struct may have until it is taken apart; exactly so many.
fn check_against(tree: &Tree, accepted: &[(&str, &str, usize)], report: &mut Report) {
    report.rule(RULE);
    let mut seen = Vec::new();
    for file in tree.rust() {
        for (index, name, count) in structs(file) {
            if count <= FIELDS || RECORDS.iter().any(|(record, _)| *record == name) {
                continue;
            }
            let known = accepted.iter().find(|entry| entry.0 == file.path && entry.1 == name);
            seen.extend(known.map(|entry| (entry.0, entry.1)));
            let what = match known {
                Some(entry) if entry.2 == count => continue,
                Some(entry) => format!(
                    "`{name}` has {count} fields, accepted are {}; take fields out of it, and \
                     correct xtask/src/lint/accepted.rs if there are fewer",
                    entry.2
                ),
                None => format!(
                    "`{name}` has {count} fields, of at most {FIELDS}; group what belongs together"
                ),
            };
            report.add(RULE, &file.path, file.line(index), &what);
        }
    }
    for (path, name, _) in accepted {
        if !seen.contains(&(path, name)) {
            let what = format!(
                "`{name}` has at most {FIELDS} fields now; remove it from \
                 xtask/src/lint/accepted.rs"
            );
            report.add(RULE, path, 1, &what);
        }
    }
}

/// Entries for `accepted.rs` as the tree is.
pub(super) fn list(tree: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    for file in tree.rust() {
        for (_, name, count) in structs(file) {
            if count > FIELDS && !RECORDS.iter().any(|(record, _)| *record == name) {
                lines.push(format!("    ({:?}, {name:?}, {count}),", file.path));
            }
        }
    }
    lines
}

/// The structs with named fields: index of the token, name, number of fields.
fn structs(file: &Source) -> Vec<(usize, &str, usize)> {
    let mut found = Vec::new();
    for index in 0..file.tokens.len() {
        if file.at(index) != "struct" || !file.is_word(index + 1) {
            continue;
        }
        let mut at = index + 2;
        if file.at(at) == "<" {
            at = after_generics(file, at);
        }
        if matches!(file.at(at), "(" | ";") {
            continue;
        }
        while !matches!(file.at(at), "{" | ";" | "") {
            at += 1;
        }
        if file.at(at) == "{" {
            found.push((index, file.at(index + 1), fields(file, at)));
        }
    }
    found
}

fn after_generics(file: &Source, open: usize) -> usize {
    let mut depth = 0_usize;
    for index in open..file.tokens.len() {
        match file.at(index) {
            "<" => depth += 1,
            ">" if file.at(index - 1) != "-" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    file.tokens.len()
}

/// The fields between the brace at `open` and its partner: a single `:` at their depth each, as
/// types hold one only inside brackets and paths are written with `::`.
fn fields(file: &Source, open: usize) -> usize {
    let close = file.close_of(open);
    let (mut count, mut at) = (0, open + 1);
    while at < close {
        match file.at(at) {
            "(" | "[" | "{" => at = file.close_of(at),
            ":" => count += 1,
            _ => {}
        }
        at += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, accepted: &[(&str, &str, usize)]) -> Vec<String> {
        Report::of(|report| check_against(&Tree::of(&[("a.rs", text)]), accepted, report))
    }

    fn record(name: &str, fields: usize) -> String {
        let fields: String = (0..fields)
            .map(|field| {
                format!("#[doc = \"x: y\"] pub(crate) f{field}: (std::vec::Vec<[u8; 3]>),")
            })
            .collect();
        format!("struct {name}<T: Fn() -> u8> where T: Copy {{ {fields} }} struct B(u8);")
    }

    #[test]
    fn structs_with_many_fields_are_refused() {
        assert!(found(&record("Big", 15), &[]).is_empty());
        let many = found(&record("Big", 16), &[]);
        assert_eq!(
            many,
            ["a.rs:1: `Big` has 16 fields, of at most 15; group what belongs together"]
        );
    }

    #[test]
    fn records_may_have_as_many_as_they_need() {
        assert!(found(&record("Config", 40), &[]).is_empty());
    }

    #[test]
    fn accepted_structs_can_only_shrink() {
        let accepted = [("a.rs", "Big", 20)];
        assert!(found(&record("Big", 20), &accepted).is_empty());
        assert!(found(&record("Big", 21), &accepted)[0].contains("accepted are 20"));
        assert!(found(&record("Big", 19), &accepted)[0].contains("accepted are 20"));
        assert!(found(&record("Big", 9), &accepted)[0].contains("remove it from"));
    }
}
