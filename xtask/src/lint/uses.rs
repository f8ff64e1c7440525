//! Reads a file's modules, `use` declarations and inline paths from its tokens.

use super::source::{Kind, Source};

/// A module as the names on the way to it; the crate's root has none.
pub(super) type Module = Vec<String>;

/// A path as it was written.
pub(super) struct Path {
    /// The module that contains it.
    pub(super) inside: Module,
    pub(super) names: Vec<String>,
    /// What it is called from here on; `None` for paths that are no `use`, and for `*`.
    pub(super) alias: Option<String>,
    pub(super) is_public: bool,
    pub(super) is_use: bool,
    pub(super) line: u32,
}

/// What a file says.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) children: Vec<Child>,
    /// Modules written inside the file.
    pub(super) inline: Vec<Module>,
    pub(super) paths: Vec<Path>,
}

/// `mod name;`
pub(super) struct Child {
    pub(super) module: Module,
    /// Of a `#[path]` attribute.
    pub(super) path: Option<String>,
}

/// Reads `source`, which is `module`, without what is for tests.
pub(super) fn read(source: &Source, module: &Module) -> Seen {
    let mut seen = Seen::default();
    block(source, 0, source.tokens.len(), module, &mut seen);
    seen
}

/// The tokens from `from` to `to`, which are inside of `module`.
fn block(source: &Source, from: usize, to: usize, module: &Module, seen: &mut Seen) {
    let mut at = from;
    let (mut is_for_tests, mut is_public, mut path) = (false, false, None);
    while at < to {
        if let Some(end) = source.attribute(at) {
            is_for_tests |= source.is_test_attribute(at, end);
            if source.at(at + 2) == "path" {
                path = Some(source.at(at + 4).trim_matches('"').to_owned());
            }
            at = end + 1;
            continue;
        }
        if is_for_tests {
            at = source.end_of_item(at) + 1;
        } else {
            match source.at(at) {
                "pub" => {
                    is_public = true;
                    let is_restricted = source.at(at + 1) == "(";
                    at = if is_restricted { source.close_of(at + 1) + 1 } else { at + 1 };
                    continue;
                }
                "mod" if source.is_word(at + 1) => {
                    at = child(source, at, module, path.take(), seen);
                }
                "use" if source.tokens[at].kind == Kind::Word => {
                    let mut tree = UseTree { source, inside: module, is_public, seen };
                    at = tree.read(at + 1, &[]) + 1;
                }
                _ => at = inline_path(source, at, module, seen),
            }
        }
        (is_for_tests, is_public, path) = (false, false, None);
    }
}

/// A module declared or written at `at`; returns where to go on.
fn child(
    source: &Source,
    at: usize,
    module: &Module,
    path: Option<String>,
    seen: &mut Seen,
) -> usize {
    let mut name = module.clone();
    name.push(source.at(at + 1).to_owned());
    match source.at(at + 2) {
        ";" => {
            seen.children.push(Child { module: name, path });
            at + 3
        }
        "{" => {
            let close = source.close_of(at + 2);
            seen.inline.push(name.clone());
            block(source, at + 3, close, &name, seen);
            close + 1
        }
        _ => at + 1,
    }
}

/// A path in code: one that begins here and has at least two names.
fn inline_path(source: &Source, at: usize, module: &Module, seen: &mut Seen) -> usize {
    let begins = source.is_word(at) && source.at(at + 1) == "::";
    if !begins || (at > 0 && matches!(source.at(at - 1), "::" | ".")) {
        return at + 1;
    }
    let mut names = vec![source.at(at).to_owned()];
    let mut end = at + 1;
    while source.at(end) == "::" && source.is_word(end + 1) {
        names.push(source.at(end + 1).to_owned());
        end += 2;
    }
    let line = source.line(at);
    let inside = module.clone();
    let path = Path { inside, names, alias: None, is_public: false, is_use: false, line };
    seen.paths.push(path);
    end
}

/// The tree of one `use`.
struct UseTree<'a> {
    source: &'a Source,
    inside: &'a Module,
    is_public: bool,
    seen: &'a mut Seen,
}

impl UseTree<'_> {
    /// Reads a branch that continues `prefix`; returns the index of what ends it.
    fn read(&mut self, mut at: usize, prefix: &[String]) -> usize {
        let source = self.source;
        let mut names = prefix.to_vec();
        let line = source.line(at);
        let mut alias = None;
        loop {
            match source.at(at) {
                "{" => {
                    let close = source.close_of(at);
                    at += 1;
                    while at < close {
                        at = self.read(at, &names);
                        at += usize::from(source.at(at) == ",");
                    }
                    return close + 1;
                }
                "::" => at += 1,
                "*" => {
                    self.add(names, None, line);
                    return at + 1;
                }
                "as" => {
                    alias = Some(source.at(at + 1).to_owned());
                    at += 2;
                }
                // Inside braces `self` is what precedes them.
                "self" if !names.is_empty() => at += 1,
                name if source.is_word(at) => {
                    names.push(name.to_owned());
                    at += 1;
                }
                _ => break,
            }
        }
        let alias = alias.or_else(|| names.last().cloned());
        self.add(names, alias, line);
        at
    }

    fn add(&mut self, names: Vec<String>, alias: Option<String>, line: u32) {
        let (inside, is_public) = (self.inside.clone(), self.is_public);
        self.seen.paths.push(Path { inside, names, alias, is_public, is_use: true, line });
    }
}
