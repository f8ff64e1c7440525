//! `libibverbs-sys/src/bindings.rs`: made anew from rdma-core's header and compared with what is
//! committed, and asserted piece by piece by a C compiler.
//!
//! bindgen, libclang and the header are Debian packages that are unpacked below the target
//! directory. With another version of rdma-core than the committed file names, the comparison
//! fails: what is committed changes on purpose only.

mod chosen;
mod layout;
mod parse;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::suite::Count;
use crate::{Result, debian, process, unknown, workspace};

/// What is committed.
const COMMITTED: &str = "libibverbs-sys/src/bindings.rs";
const PACKAGES: [&str; 3] = ["bindgen", "libclang1-14", "libibverbs-dev"];
const HEADER: &str = "usr/include/infiniband/verbs.h";
/// So many lines of a difference are shown.
const SHOWN: usize = 40;

/// `cargo xtask bindings`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments {
        [] => check().map(drop),
        [option] if option == "--write" => {
            let unpacked = unpacked()?;
            let file = workspace::root().join(COMMITTED);
            write(&file, &generated(&unpacked)?)?;
            println!("{COMMITTED} is made anew");
            layout::check(&unpacked).map(drop)
        }
        [argument, ..] => Err(unknown(argument)),
    }
}

/// Compares what is committed with what the header says, in both ways.
pub(crate) fn check() -> Result<Count> {
    let unpacked = unpacked()?;
    let assertions = layout::check(&unpacked)?;
    let committed = workspace::source(COMMITTED)?;
    let generated = generated(&unpacked)?;
    if committed != generated {
        let file = workspace::scratch("bindings.rs");
        write(&file, &generated)?;
        println!("{}", difference(&committed, &generated));
        return Err(format!(
            "{COMMITTED} is not what bindgen makes of the header, which is in {}; \
             `cargo xtask bindings --write` replaces it",
            file.display()
        ));
    }
    println!("{COMMITTED} is as bindgen makes it");
    Ok(assertions + Count::ONE)
}

fn unpacked() -> Result<PathBuf> {
    debian::provide("bindings", &PACKAGES)
}

/// The file as bindgen makes it, formatted.
fn generated(unpacked: &Path) -> Result<String> {
    let libraries = libraries(unpacked)?;
    let mut bindgen = Command::new(unpacked.join("usr/bin/bindgen"));
    bindgen.env("LD_LIBRARY_PATH", &libraries).env("LIBCLANG_PATH", libclang(&libraries)?);
    bindgen.args(chosen::arguments()).arg(unpacked.join(HEADER)).arg("--");
    bindgen.args(includes(unpacked)?);
    let text = adapted(&version(unpacked)?, &process::output(&mut bindgen)?)?;
    // rustfmt works on files; this one is of this process alone.
    let directory = workspace::scratch_of_process("bindings-new")?;
    let file = directory.join("bindings.rs");
    write(&file, &text)?;
    let mut rustfmt = Command::new("rustfmt");
    rustfmt.args(["--edition", "2024", "--config-path"]).arg(workspace::root()).arg(&file);
    process::output(&mut rustfmt)?;
    let formatted = workspace::read(&file)?;
    workspace::remove(&directory)?;
    Ok(formatted)
}

/// bindgen's text as the crate has it: functions are types of pointers to them, because they are
/// found at run time, and enumerations without a name are plain numbers.
fn adapted(version: &str, text: &str) -> Result<String> {
    let mut adapted = format!(
        "// Generated from infiniband/verbs.h of rdma-core {version} by `cargo xtask bindings \
         --write`.\n\nuse libc::{{pthread_cond_t, pthread_mutex_t}};\n\n"
    );
    for item in parse::items(text)? {
        // Numbers have names of Rust's own: u8 instead of __uint8_t.
        if ["pub type _bindgen_ty_", "pub type __u_", "pub type __uint", "pub type __int"]
            .iter()
            .any(|start| item.starts_with(start))
        {
            continue;
        }
        if let Some(functions) = item.strip_prefix("extern \"C\" {") {
            for function in functions.trim_end_matches('}').split(';') {
                adapted.push_str(&pointer(function)?);
            }
        } else {
            adapted.push_str(&item);
            adapted.push('\n');
        }
    }
    for name in chosen::OPAQUE {
        adapted.push_str(&format!("#[repr(C)]\npub struct {name} {{ _opaque: [u8; 0] }}\n"));
    }
    Ok(plain_numbers(&adapted).replace(":: core :: option :: Option", "Option"))
}

/// A declaration as the type of a pointer to the function.
fn pointer(declaration: &str) -> Result<String> {
    let declaration = declaration.trim();
    if declaration.is_empty() {
        return Ok(String::new());
    }
    let parts = declaration.strip_prefix("pub fn ").and_then(|rest| rest.split_once('('));
    let (name, rest) = parts.ok_or_else(|| format!("no function: {declaration}"))?;
    Ok(format!("pub type {} = unsafe extern \"C\" fn({rest};\n", name.trim()))
}

/// bindgen numbers enumerations without a name, so that the number tells nothing.
fn plain_numbers(text: &str) -> String {
    let mut pieces = text.split("_bindgen_ty_");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        // `X__bindgen_ty_1` is a part of X.
        if plain.ends_with('_') {
            plain.push_str("_bindgen_ty_");
            plain.push_str(piece);
        } else {
            plain.push_str("libc::c_uint");
            plain.push_str(piece.trim_start_matches(|c: char| c.is_ascii_digit()));
        }
    }
    plain
}

/// Options that let a C compiler find the headers, clang's own from the machine's C compiler.
fn includes(unpacked: &Path) -> Result<[String; 2]> {
    let own = process::output(Command::new("cc").arg("-print-file-name=include"))?;
    Ok([format!("-I{}", unpacked.join("usr/include").display()), format!("-I{}", own.trim())])
}

/// The version of rdma-core, as libibverbs.pc has it behind that of the library: 1.14.44.0.
fn version(unpacked: &Path) -> Result<String> {
    let file = libraries(unpacked)?.join("pkgconfig/libibverbs.pc");
    let text = workspace::read(&file)?;
    let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
    let version = version.and_then(|version| version.trim().splitn(3, '.').nth(2));
    version.map(str::to_owned).ok_or_else(|| format!("{} has no version", file.display()))
}

/// usr/lib/x86_64-linux-gnu, or what it is called for another processor.
fn libraries(unpacked: &Path) -> Result<PathBuf> {
    let parent = unpacked.join("usr/lib");
    let found = workspace::entries(&parent)?
        .into_iter()
        .find(|path| path.join("pkgconfig/libibverbs.pc").is_file());
    found.ok_or_else(|| format!("{} has no libraries", parent.display()))
}

fn libclang(libraries: &Path) -> Result<PathBuf> {
    let found = workspace::entries(libraries)?
        .into_iter()
        .find(|path| path.file_name().is_some_and(|name| name == "libclang-14.so.1"));
    found.ok_or_else(|| format!("{} has no libclang", libraries.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

/// The lines that only one of both texts has.
fn difference(committed: &str, generated: &str) -> String {
    let only = |of: &str, other: &str, sign: char| -> Vec<String> {
        let known: std::collections::HashSet<&str> = other.lines().collect();
        let lines = of.lines().enumerate().filter(|(_, line)| !known.contains(line));
        lines.map(|(number, line)| format!("{sign} {}: {line}", number + 1)).collect()
    };
    let mut lines = only(committed, generated, '-');
    lines.extend(only(generated, committed, '+'));
    let more = lines.len().saturating_sub(SHOWN);
    lines.truncate(SHOWN);
    if lines.is_empty() {
        lines.push("the same lines, in another order or number".to_owned());
    }
    if more > 0 {
        lines.push(format!("and {more} lines more"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::{adapted, difference};

    #[test]
    fn functions_become_types() {
        let text = "extern \"C\" { pub fn a(x: u8) -> u8; }\nextern \"C\" { pub fn b(); }";
        let adapted = adapted("44.0", text).unwrap();
        assert!(adapted.contains("pub type a = unsafe extern \"C\" fn(x: u8) -> u8;\n"));
        assert!(adapted.contains("pub type b = unsafe extern \"C\" fn();\n"));
    }

    #[test]
    fn enumerations_without_a_name_are_numbers() {
        let text = "pub const A: _bindgen_ty_13 = 1;\npub type _bindgen_ty_13 = libc::c_uint;\n\
                    pub struct b { pub c: b__bindgen_ty_1 }";
        let adapted = adapted("44.0", text).unwrap();
        assert!(adapted.contains("pub const A: libc::c_uint = 1;\n"));
        assert!(adapted.contains("b__bindgen_ty_1"));
        assert!(!adapted.contains("pub type"));
    }

    #[test]
    fn differences_name_the_lines() {
        assert_eq!(difference("a\nb\n", "a\nc\n"), "- 2: b\n+ 2: c");
    }
}
