//! Compares the public paths of this crate with those of `public_paths.txt`, so that none appears
//! or goes by accident.
//!
//! The list comes from the pages that rustdoc makes: every item has one, and its fields, variants
//! and inherent methods have anchors there. Implementations of traits are not listed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sections of a page that begin what does not count: implementations of traits.
const ENDS: [&str; 5] = [
    "id=\"trait-implementations\"",
    "id=\"synthetic-implementations\"",
    "id=\"blanket-implementations\"",
    "id=\"foreign-impls\"",
    "id=\"implementors\"",
];

/// Types of other packages: what they have is not decided here.
const FOREIGN: [&str; 2] = ["bf16", "f16"];

#[test]
fn public_paths_are_those_of_the_list() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = root.join("public_paths.txt");
    let found = paths(&documentation(root));
    if std::env::var_os("GASPI_TEST_RENEW").is_some() {
        let text: String = found.iter().map(|path| format!("{path}\n")).collect();
        std::fs::write(&list, text).expect("the list is written");
        return;
    }
    let text = std::fs::read_to_string(&list).expect("the list is readable");
    let listed: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    let added: Vec<&String> = found.difference(&listed).collect();
    let removed: Vec<&String> = listed.difference(&found).collect();
    assert!(
        added.is_empty() && removed.is_empty(),
        "the public paths of gaspi are not those of gaspi/public_paths.txt:\n\
         new: {added:#?}\ngone: {removed:#?}\n\
         If that is meant, renew the list and commit it, with a line in CHANGELOG.md:\n\
         GASPI_TEST_RENEW=1 cargo test -p gaspi --test public_paths"
    );
}

/// Makes the pages, without the network, and gives their directory.
fn documentation(root: &Path) -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    // target/PROFILE/deps/PROGRAM
    let target = program.ancestors().nth(3).expect("test programs lie below target");
    let cargo = Command::new(env!("CARGO"))
        .args(["doc", "--quiet", "--offline", "--no-deps", "-p", "gaspi", "--target-dir"])
        .arg(target)
        .current_dir(root)
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&cargo.stderr);
    assert!(cargo.status.success(), "cargo doc failed:\n{errors}");
    // A link that leads nowhere, for one.
    assert!(errors.is_empty(), "cargo doc has warnings:\n{errors}");
    target.join("doc/gaspi")
}

/// All public paths, by the overviews: pages of earlier versions may lie beside them.
fn paths(pages: &Path) -> BTreeSet<String> {
    let read = |page: &str| {
        std::fs::read_to_string(pages.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
    };
    let mut found = BTreeSet::new();
    let root = read("index.html");
    for module in attributes(&root, "href").filter_map(|link| link.strip_suffix("/index.html")) {
        if !module.starts_with('.') {
            found.insert(format!("mod gaspi::{module}"));
        }
    }
    for name in attributes(&root, "id").filter_map(|id| id.strip_prefix("reexport.")) {
        found.insert(format!("use gaspi::{name}"));
    }
    let all = read("all.html");
    for page in attributes(&all, "href").filter(|link| !link.starts_with(['.', '#'])) {
        let Some(item) = page.strip_suffix(".html") else { continue };
        let (module, item) =
            item.rsplit_once('/').map_or(("", item), |(module, item)| (module, item));
        let (kind, name) = item.split_once('.').expect("pages are named by kind and item");
        let parts = ["gaspi"].into_iter().chain(module.split('/')).filter(|part| !part.is_empty());
        let path = parts.chain([name]).collect::<Vec<_>>().join("::");
        if !FOREIGN.contains(&name) {
            let text = read(page);
            found.extend(members(&text).map(|member| format!("{kind} {path}::{member}")));
        }
        found.insert(format!("{kind} {path}"));
    }
    found
}

/// Fields, variants with their fields, inherent methods, and what a trait requires.
fn members(page: &str) -> impl Iterator<Item = String> {
    let end = ENDS.iter().filter_map(|end| page.find(end)).min().unwrap_or(page.len());
    attributes(&page[..end], "id").filter_map(|id| {
        let (kind, name) = id.split_once('.')?;
        match kind {
            "method" | "tymethod" | "structfield" | "associatedconstant" | "associatedtype" => {
                Some(name.to_owned())
            }
            "variant" => (!name.ends_with(".fields")).then(|| name.replace(".field.", "::")),
            _ => None,
        }
    })
}

/// The values of an attribute in a page.
fn attributes<'a>(page: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!("{name}=\"");
    let parts: Vec<&str> = page.split(&start).skip(1).collect();
    parts.into_iter().filter_map(|part| part.split('"').next())
}
