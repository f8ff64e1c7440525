//! Imports are found however they are written, and nothing else is taken for one.

use super::modules::{Crate, name};
use super::source::Tree;

/// The modules that `module` imports in a crate of these files.
fn imports(module: &str, files: &[(&str, &str)]) -> Vec<String> {
    let tree = Tree::of(files);
    let found = Crate::read(&tree, "c/lib.rs").expect("a root");
    let file = found.files.iter().find(|file| name(&file.module) == module).expect("a module");
    let mut names: Vec<String> =
        file.imports.iter().map(|import| name(&found.files[import.file].module)).collect();
    names.sort();
    names.dedup();
    names
}

/// The imports of module `m` with this text, beside modules a, b (a facade), b::x, b::y and m::n.
fn of_m(text: &str) -> Vec<String> {
    imports(
        "m",
        &[
            ("c/lib.rs", "mod a; mod b; mod m; pub use b::X;"),
            ("c/a.rs", ""),
            ("c/b/mod.rs", "mod x; pub(crate) mod y; pub(crate) use x::{X, make as build};"),
            ("c/b/x.rs", ""),
            ("c/b/y.rs", ""),
            ("c/m.rs", text),
            ("c/m/n.rs", ""),
        ],
    )
}

#[test]
fn declarations_with_braces_are_followed() {
    assert_eq!(of_m("use crate::{a::{self, f}, b::{y::{Y as Z}}};"), ["a", "b::y"]);
    assert_eq!(of_m("use super::a; use self::n::N; mod n;"), ["a", "m::n"]);
    assert_eq!(of_m("use crate::b::y::*;"), ["b::y"]);
}

#[test]
fn paths_in_code_are_imports() {
    assert_eq!(of_m("fn f() { crate::a::f(); super::b::y::g::<u8>(); }"), ["a", "b::y"]);
    assert_eq!(of_m("use crate::b; fn f() -> b::y::Y { b::own() }"), ["b", "b::y"]);
    assert_eq!(of_m("mod n; fn f() { n::f() }"), ["m::n"]);
}

#[test]
fn a_name_passed_on_leads_to_its_definition() {
    assert_eq!(of_m("use crate::X;"), ["b::x"]);
    assert_eq!(of_m("use crate::b::{X, build};"), ["b::x"]);
    assert_eq!(of_m("fn f() { crate::b::X::new() }"), ["b::x"]);
    assert_eq!(of_m("use crate::b::own;"), ["b"]);
}

#[test]
fn declaring_and_passing_on_children_is_no_import() {
    assert!(of_m("mod n; pub use n::N;").is_empty());
    assert_eq!(of_m("mod n; use n::N;"), ["m::n"]);
}

#[test]
fn tests_comments_and_strings_are_no_imports() {
    assert!(of_m("#[cfg(test)]\nmod tests { use crate::a; }").is_empty());
    assert!(of_m("#[cfg(test)] #[allow(unused)] use crate::a;").is_empty());
    assert!(of_m("/// crate::a::f()\nfn f() { let _ = \"crate::a::f()\"; }").is_empty());
    assert!(of_m("use std::a; use log::b; fn f() { std::a::f() }").is_empty());
    assert_eq!(of_m("#[cfg(not(test))] use crate::a;"), ["a"]);
}

#[test]
fn modules_inside_a_file_are_that_file() {
    assert_eq!(of_m("mod inner { use super::super::a; use super::f; }"), ["a"]);
    let files = [
        ("c/lib.rs", "mod a; mod m;"),
        ("c/a.rs", "pub mod inner { pub struct S; }"),
        ("c/m.rs", "use crate::a::inner::S;"),
    ];
    assert_eq!(imports("m", &files), ["a"]);
}

#[test]
fn a_path_attribute_names_the_file() {
    let files = [
        ("c/lib.rs", "#[path = \"other.rs\"] mod a; mod m;"),
        ("c/other.rs", ""),
        ("c/m.rs", "use crate::a::S;"),
    ];
    assert_eq!(imports("m", &files), ["a"]);
}
