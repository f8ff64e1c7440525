//! What is bound, asserted by a C compiler: sizes, alignments, offsets and types of all records and
//! fields, values of all constants, and the declarations of all functions.
//!
//! The list comes from the committed file, so nothing can be left out of it. A program that is
//! linked with the crate writes what the Rust compiler makes of that list as assertions of C, and
//! the C compiler holds them against the header. Types are compared by their names in C.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::parse::{self, Item, Record};
use super::{COMMITTED, includes, write};
use crate::suite::Count;
use crate::{Result, process, workspace};

const CRATE: &str = "libibverbs-sys";

/// What the assertions need before them. The last one is of `inline.rs`.
const HEAD: &str = r#"#include <infiniband/verbs.h>
#define HAS_TYPE(expression, ...) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(expression), __VA_ARGS__), #expression)
_Static_assert((uintptr_t)__VERBS_ABI_IS_EXTENDED == UINTPTR_MAX, "__VERBS_ABI_IS_EXTENDED");
"#;

/// Compiles the assertions; counts them.
pub(super) fn check(unpacked: &Path) -> Result<Count> {
    let items = parse::parsed(&workspace::source(COMMITTED)?)?;
    let directory = workspace::scratch("layout");
    workspace::remove(&directory)?;
    workspace::make_directory(&directory)?;
    let program = directory.join("layout.rs");
    write(&program, &Names::of(&items).program(&items)?)?;
    let text = process::output(&mut Command::new(compiled(&program)?))?;
    let c = directory.join("layout.c");
    write(&c, &text)?;
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-fsyntax-only", "-Wall", "-Werror"]).args(includes(unpacked)?).arg(&c);
    process::output(&mut cc).map_err(|errors| {
        format!(
            "{COMMITTED} is not as the header has it; assertions are in {}\n{errors}",
            c.display()
        )
    })?;
    let assertions = text.lines().count() - HEAD.lines().count() + 1;
    println!("{assertions} assertions of {COMMITTED} hold");
    Ok(Count { passed: assertions, ..Count::default() })
}

/// The program, linked with the crate as cargo builds it.
fn compiled(program: &Path) -> Result<PathBuf> {
    process::run(workspace::cargo().args(["build", "--quiet", "-p", CRATE]))?;
    let built = workspace::target().join("debug");
    let crate_file = built.join(format!("lib{}.rlib", CRATE.replace('-', "_")));
    let file = program.with_extension("");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.current_dir(workspace::root()).args(["--edition", "2024", "-o"]).arg(&file).arg(program);
    rustc.arg("--extern").arg(format!("libibverbs_sys={}", crate_file.display()));
    rustc.arg("-L").arg(format!("dependency={}", built.join("deps").display()));
    process::output(&mut rustc)?;
    Ok(file)
}

/// The items by their names.
struct Names<'a> {
    records: HashMap<&'a str, &'a Record>,
    /// Types of constants.
    enumerations: HashSet<&'a str>,
    aliases: HashSet<&'a str>,
}

impl<'a> Names<'a> {
    fn of(items: &'a [Item]) -> Self {
        let mut names = Names {
            records: HashMap::new(),
            enumerations: HashSet::new(),
            aliases: HashSet::new(),
        };
        for item in items {
            match item {
                Item::Constant(_, of) => drop(names.enumerations.insert(of)),
                Item::Alias(name, _) => drop(names.aliases.insert(name)),
                Item::Record(record) => drop(names.records.insert(&record.name, record)),
            }
        }
        names
    }

    /// The program that writes the C file.
    fn program(&self, items: &[Item]) -> Result<String> {
        let mut lines = Vec::new();
        let mut parts = HashSet::new();
        for item in items {
            match item {
                Item::Constant(name, _) => lines.push(format!(
                    "println!(\"_Static_assert({name} == {{}}, \\\"{name}\\\");\", b::{name});"
                )),
                Item::Alias(name, of) => lines.push(self.alias(name, of)?),
                Item::Record(record) if record.is_opaque || is_part(&record.name) => {}
                Item::Record(record) => self.record(record, &mut lines, &mut parts)?,
            }
        }
        let all = self.records.keys().filter(|name| is_part(name));
        if let Some(name) = all.into_iter().find(|name| !parts.contains(**name)) {
            return Err(format!("{name} is part of nothing"));
        }
        let mut text = String::from(
            "use libibverbs_sys as b;\nuse std::mem::{align_of, offset_of, size_of};\n\
             fn size<R, F>(_: fn(*const R) -> *const F) -> usize { size_of::<F>() }\n",
        );
        // One function for each, because a long one takes the compiler long.
        for (number, line) in lines.iter().enumerate() {
            let _ = writeln!(text, "fn f{number}() {{ {line} }}");
        }
        let _ = writeln!(text, "fn main() {{ print!({HEAD:?});");
        for number in 0..lines.len() {
            let _ = writeln!(text, "f{number}();");
        }
        Ok(text + "}\n")
    }

    /// A function, or the size and sign of a number.
    fn alias(&self, name: &str, of: &str) -> Result<String> {
        if of.starts_with("unsafe extern") {
            let (result, arguments) = self.function(of)?;
            let declared = format!("extern {result} ({name})({arguments});");
            return Ok(format!("println!({declared:?});"));
        }
        let c = self.c_type(name)?;
        Ok(format!(
            "println!(\"_Static_assert(sizeof({c}) == {{}} && (({c})-1 > 0) == {{}}, \
             \\\"{c}\\\");\", size_of::<b::{name}>(), i32::from(b::{name}::MIN == 0));"
        ))
    }

    /// Size and alignment of a record, then all of its fields.
    fn record(
        &self,
        record: &'a Record,
        lines: &mut Vec<String>,
        parts: &mut HashSet<&'a str>,
    ) -> Result<()> {
        let name = &record.name;
        let c = self.c_type(name)?;
        lines.push(format!(
            "println!(\"_Static_assert(sizeof({c}) == {{}} && _Alignof({c}) == {{}}, \
             \\\"{c}\\\");\", size_of::<b::{name}>(), align_of::<b::{name}>());"
        ));
        self.fields(name, ("", ""), record, lines, parts)
    }

    /// The fields of a record which is reached from another one, the `top`, by the names in Rust
    /// and in C.
    fn fields(
        &self,
        top: &str,
        (rust, c): (&str, &str),
        record: &'a Record,
        lines: &mut Vec<String>,
        parts: &mut HashSet<&'a str>,
    ) -> Result<()> {
        for (name, of) in &record.fields {
            let rust = joined(rust, name);
            let is_anonymous = name.starts_with("__bindgen_anon_");
            let c = if is_anonymous { c.to_owned() } else { joined(c, c_name(name)) };
            if !is_anonymous {
                let c_top = self.c_type(top)?;
                let place = format!("(({c_top} *)0)->{c}");
                lines.push(format!(
                    "println!(\"_Static_assert(offsetof({c_top}, {c}) == {{}} && \
                     sizeof({place}) == {{}}, \\\"{top}.{c}\\\");\", offset_of!(b::{top}, {rust}), \
                     size(|r: *const b::{top}| unsafe {{ &raw const (*r).{rust} }}));"
                ));
                if !is_part(of) {
                    let line = format!("HAS_TYPE({place}, {});", self.c_type(of)?);
                    lines.push(format!("println!({line:?});"));
                }
            }
            if is_part(of) {
                let part = self.records.get(of.as_str()).ok_or_else(|| format!("no type {of}"))?;
                parts.insert(&part.name);
                self.fields(top, (&rust, &c), part, lines, parts)?;
            }
        }
        Ok(())
    }

    /// A type as C writes it; `*` and `const` stand behind what they belong to.
    fn c_type(&self, rust: &str) -> Result<String> {
        let rust = rust.trim();
        if let Some(to) = rust.strip_prefix("*mut ") {
            return Ok(format!("{} *", self.c_type(to)?));
        }
        if let Some(to) = rust.strip_prefix("*const ") {
            return Ok(format!("{} const *", self.c_type(to)?));
        }
        if let Some(array) = rust.strip_prefix('[').and_then(|array| array.strip_suffix(']')) {
            let (of, length) = array.split_once(';').ok_or_else(|| format!("no array: {array}"))?;
            let length = length.trim().trim_end_matches("usize");
            return Ok(format!("{}[{length}]", self.c_type(of)?));
        }
        if let Some(pointer) = rust.strip_prefix("Option<") {
            let (result, arguments) = self.function(pointer)?;
            return Ok(format!("{result} (*)({arguments})"));
        }
        if let Some(record) = self.records.get(rust) {
            return Ok(format!("{} {rust}", if record.is_union { "union" } else { "struct" }));
        }
        if self.enumerations.contains(rust) && self.aliases.contains(rust) {
            return Ok(format!("enum {rust}"));
        }
        if self.aliases.contains(rust) {
            return Ok(rust.to_owned());
        }
        let number = NUMBERS.iter().find(|(name, _)| *name == rust);
        number.map(|(_, c)| (*c).to_owned()).ok_or_else(|| format!("no type of C for {rust}"))
    }

    /// Result and arguments of `unsafe extern "C" fn(name: type, ...) -> type`.
    fn function(&self, rust: &str) -> Result<(String, String)> {
        let unknown = || format!("no function: {rust}");
        let rest = rust.split_once("fn(").ok_or_else(unknown)?.1;
        let (arguments, result) = rest.rsplit_once(')').ok_or_else(unknown)?;
        let mut types = Vec::new();
        for argument in parse::split(arguments) {
            types.push(self.c_type(argument.split_once(": ").ok_or_else(unknown)?.1)?);
        }
        if types.is_empty() {
            types.push("void".to_owned());
        }
        let result = match result.trim().strip_prefix("-> ") {
            Some(result) => self.c_type(result.trim_end_matches(['>', ',', ' ']))?,
            None => "void".to_owned(),
        };
        Ok((result, types.join(", ")))
    }
}

/// Types without a record or alias in the file.
const NUMBERS: [(&str, &str); 17] = [
    ("libc::c_char", "char"),
    ("libc::c_int", "int"),
    ("libc::c_long", "long"),
    ("libc::c_uchar", "unsigned char"),
    ("libc::c_uint", "unsigned int"),
    ("libc::c_ulong", "unsigned long"),
    ("libc::c_ulonglong", "unsigned long long"),
    ("libc::c_ushort", "unsigned short"),
    ("libc::c_void", "void"),
    ("isize", "ssize_t"),
    ("pthread_cond_t", "pthread_cond_t"),
    ("pthread_mutex_t", "pthread_mutex_t"),
    ("u16", "uint16_t"),
    ("u32", "uint32_t"),
    ("u64", "uint64_t"),
    ("u8", "uint8_t"),
    ("usize", "size_t"),
];

/// bindgen's name for a type that has none in C.
fn is_part(name: &str) -> bool {
    name.contains("__bindgen_ty_")
}

/// bindgen appends a line to words that Rust keeps to itself.
fn c_name(name: &str) -> &str {
    if matches!(name, "type_" | "priv_") { &name[..4] } else { name }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
