//! Comments: why code is sound is said where it is needed, and briefly.
//!
//! How much there is of each crate that is not so yet is in `accepted.rs`.

use super::accepted::COMMENTS;
use super::report::Report;
use super::source::{Comment, Tree};

/// Of comments that are no documentation.
const LINES: u32 = 4;

/// What SAFETY comments may not say.
const VAGUE: [&str; 2] = ["as above", "as the caller promises"];

/// (rule, what is wrong with a comment if anything, and what to do about it).
type Rule = (&'static str, fn(&Comment) -> Option<String>);

const RULES: [Rule; 2] = [("safety", vague), ("comment length", long)];

fn vague(comment: &Comment) -> Option<String> {
    let said = comment.text.split_once("SAFETY:")?.1.to_lowercase();
    let phrase = VAGUE.iter().find(|phrase| said.contains(**phrase))?;
    Some(format!("SAFETY: `{phrase}`; say why it is sound"))
}

fn long(comment: &Comment) -> Option<String> {
    let lines = comment.lines;
    (lines > LINES).then(|| format!("a comment of {lines} lines, of at most {LINES}; shorten it"))
}

pub(super) fn check(tree: &Tree, report: &mut Report) {
    check_against(tree, COMMENTS, report);
}

/// `accepted` has (rule, folder, how many comments are against the rule).
fn check_against(tree: &Tree, accepted: &[(&str, &str, usize)], report: &mut Report) {
    for (rule, judge) in RULES {
        report.rule(rule);
        for folder in folders(tree) {
            let found = found(tree, folder, judge);
            let entry = accepted.iter().find(|entry| (entry.0, entry.1) == (rule, folder));
            let limit = entry.map_or(0, |entry| entry.2);
            if found.len() > limit {
                for (path, line, what) in &found {
                    let what = format!("{what} ({folder} has {}, of {limit})", found.len());
                    report.add(rule, path, *line, &what);
                }
            } else if found.len() < limit {
                let what = format!(
                    "{rule}: {} comments, not {limit}; correct xtask/src/lint/accepted.rs",
                    found.len()
                );
                report.add(rule, folder, 1, &what);
            }
        }
    }
}

/// Entries for `accepted.rs` as the tree is.
pub(super) fn list(tree: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    for (rule, judge) in RULES {
        for folder in folders(tree) {
            let count = found(tree, folder, judge).len();
            if count > 0 {
                lines.push(format!("    ({rule:?}, {folder:?}, {count}),"));
            }
        }
    }
    lines
}

/// The folders of the crates, in the order of the files.
fn folders(tree: &Tree) -> Vec<&str> {
    let mut folders: Vec<&str> =
        tree.rust().filter_map(|file| Some(file.path.split_once('/')?.0)).collect();
    folders.dedup();
    folders
}

/// The comments below `folder` that a rule is against: path, line, what is wrong.
fn found<'a>(
    tree: &'a Tree,
    folder: &str,
    judge: fn(&Comment) -> Option<String>,
) -> Vec<(&'a str, u32, String)> {
    let files = tree.rust().filter(|file| file.path.split('/').next() == Some(folder));
    files
        .flat_map(|file| {
            let of_file = move |one: &Comment| Some((file.path.as_str(), one.line, judge(one)?));
            file.comments.iter().filter_map(of_file)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "/// As above.\n// Why, as above.\n// SAFETY: the lock\n// is held.\nx";

    fn found(text: &str, accepted: &[(&str, &str, usize)]) -> Vec<String> {
        Report::of(|report| check_against(&Tree::of(&[("c/a.rs", text)]), accepted, report))
    }

    #[test]
    fn a_safety_comment_says_why() {
        assert!(found(SOUND, &[]).is_empty());
        let vague = found("x\n// SAFETY: as\n// above.\n", &[]);
        let text = "c/a.rs:2: SAFETY: `as above`; say why it is sound (c has 1, of 0)";
        assert_eq!(vague, [text]);
        assert_eq!(found("// SAFETY: valid, as the caller promises.\n", &[]).len(), 1);
    }

    #[test]
    fn a_comment_has_four_lines() {
        assert!(found(&"// a\n".repeat(4), &[]).is_empty());
        assert!(found(&"/// a\n".repeat(9), &[]).is_empty());
        let long = found(&"// a\n".repeat(5), &[]);
        let text = "c/a.rs:1: a comment of 5 lines, of at most 4; shorten it (c has 1, of 0)";
        assert_eq!(long, [text]);
        assert_eq!(found("/*\n\n\n\n*/", &[]).len(), 1);
    }

    #[test]
    fn accepted_numbers_are_exact() {
        let text = "// SAFETY: as above.\n";
        assert!(found(text, &[("safety", "c", 1)]).is_empty());
        let fewer = "c:1: safety: 1 comments, not 2; correct xtask/src/lint/accepted.rs";
        assert_eq!(found(text, &[("safety", "c", 2)]), [fewer]);
    }
}
