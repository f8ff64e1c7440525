//! Each header alone, twice and all together, and the examples in their comments, through the C and
//! C++ compilers with every warning.

use std::path::Path;
use std::process::Command;

use crate::suite::Count;
use crate::{Result, process, workspace};

const STANDARDS: [(&str, &str, &str); 4] = [
    ("cc", "-std=c99", "c"),
    ("cc", "-std=c11", "c"),
    ("c++", "-std=c++11", "c++"),
    ("c++", "-std=c++17", "c++"),
];

/// What an example in a comment may use besides its header.
const EXAMPLE_HEADERS: [&str; 3] = ["stdint.h", "stdio.h", "stdlib.h"];

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
    workspace::make_directory(&directory)?;
    let mut count = Count::default();
    let mut units: Vec<(String, Vec<&str>)> =
        names.iter().map(|name| (name.clone(), vec![name.as_str(), name.as_str()])).collect();
    units.push(("all".into(), names.iter().map(String::as_str).collect()));
    units.push(("all-reversed".into(), names.iter().rev().map(String::as_str).collect()));
    let mut texts: Vec<(String, String)> = units
        .iter()
        .map(|(unit, includes)| {
            let text: String = includes.iter().map(|name| format!("#include <{name}>\n")).collect();
            (unit.clone(), text)
        })
        .collect();
    for (header, path) in names.iter().zip(&headers) {
        let text = workspace::read(path)?;
        let includes: String = EXAMPLE_HEADERS
            .into_iter()
            .chain([header.as_str()])
            .map(|name| format!("#include <{name}>\n"))
            .collect();
        for (number, example) in examples(&text)?.into_iter().enumerate() {
            texts
                .push((format!("example {} of {header}", number + 1), includes.clone() + &example));
        }
    }
    for (unit, text) in &texts {
        for (compiler, standard, language) in STANDARDS {
            match compile(&include, &directory, text, compiler, standard, language) {
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

/// What stands in the comments of a header between `@code` and `@endcode`.
fn examples(header: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for part in header.split("@code").skip(1) {
        let (example, _) = part.split_once("@endcode").ok_or("an @code without @endcode")?;
        let lines = example.lines().map(|line| line.trim_start().trim_start_matches('*'));
        found.push(lines.map(|line| format!("{line}\n")).collect());
    }
    Ok(found)
}

fn compile(
    include: &Path,
    directory: &Path,
    text: &str,
    compiler: &str,
    standard: &str,
    language: &str,
) -> Result<()> {
    let source = format!("{text}int main(void) {{ return 0; }}\n");
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

#[cfg(test)]
mod tests {
    use super::examples;

    #[test]
    fn examples_are_taken_out_of_comments() {
        let header = "/**\n * Text\n * @code\n * int a;\n *   int *b;\n * @endcode\n */\nint c;\n";
        let found = examples(header).expect("it ends");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("\n int a;\n   int *b;\n"), "{found:?}");
        assert!(!found[0].contains("int c"));
        assert!(examples("/* @code */").is_err());
    }
}
