//! Each header alone, twice and all together, through the C and C++ compilers with every warning.

use std::path::Path;
use std::process::Command;

use crate::stages::Count;
use crate::{Result, process, workspace};

const STANDARDS: [(&str, &str, &str); 3] =
    [("cc", "-std=c99", "c"), ("cc", "-std=c11", "c"), ("c++", "-std=c++17", "c++")];

pub(crate) fn check() -> Result<Count> {
    let include = workspace::root().join("include");
    let headers = workspace::files(&include, "h")?;
    if headers.is_empty() {
        return Err(format!("{} holds no header", include.display()));
    }
    let names: Vec<String> = headers
        .iter()
        .filter_map(|path| path.file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    let directory = workspace::scratch("headers");
    std::fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    let mut count = Count::default();
    let mut units: Vec<(String, Vec<&str>)> =
        names.iter().map(|name| (name.clone(), vec![name.as_str(), name.as_str()])).collect();
    units.push(("all".into(), names.iter().map(String::as_str).collect()));
    units.push(("all-reversed".into(), names.iter().rev().map(String::as_str).collect()));
    for (unit, includes) in &units {
        for (compiler, standard, language) in STANDARDS {
            match compile(&include, &directory, includes, compiler, standard, language) {
                Ok(()) => count.passed += 1,
                Err(reason) => {
                    println!("{unit} with {compiler} {standard}:\n{reason}");
                    count.failed += 1;
                }
            }
        }
    }
    println!("{} headers, {} compilations", names.len(), count.passed + count.failed);
    Ok(count)
}

fn compile(
    include: &Path,
    directory: &Path,
    includes: &[&str],
    compiler: &str,
    standard: &str,
    language: &str,
) -> Result<()> {
    let mut source: String = includes.iter().map(|name| format!("#include <{name}>\n")).collect();
    source.push_str("int main(void) { return 0; }\n");
    let file = directory.join(if language == "c" { "unit.c" } else { "unit.cc" });
    std::fs::write(&file, source).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut command = Command::new(compiler);
    command
        .args([standard, "-x", language, "-Wall", "-Wextra", "-pedantic", "-Werror"])
        .args(["-fsyntax-only", "-I"])
        .arg(include)
        .arg(&file);
    process::output(&mut command).map(drop)
}
