//! What libgaspi exports, compared with the table of `docs/conformance.md`: every procedure there
//! in both names, and nothing that is not there; and that it does not call these names itself.

use std::collections::BTreeSet;
use std::process::Command;

use crate::suite::Count;
use crate::{Result, process, workspace};

/// Libraries that libgaspi.so may depend on: those that every Linux system has.
const SYSTEM_LIBRARIES: [&str; 8] =
    ["libc.", "libm.", "libgcc_s.", "libpthread.", "libdl.", "librt.", "libutil.", "ld-linux"];

/// The procedures of the conformance table, with the prefix `gaspi_`.
pub(crate) fn procedures() -> Result<BTreeSet<String>> {
    const TABLE: &str = "docs/conformance.md";
    let found: BTreeSet<String> = workspace::source(TABLE)?
        .lines()
        .filter_map(|line| line.strip_prefix("| `gaspi_"))
        .filter_map(|rest| rest.split('`').next())
        .map(|name| format!("gaspi_{name}"))
        .collect();
    if found.is_empty() {
        return Err(format!("{TABLE} lists no procedure"));
    }
    Ok(found)
}

pub(crate) fn check() -> Result<Count> {
    let procedures = procedures()?;
    let library = workspace::release().join("libgaspi.so");
    let table = process::output(Command::new("nm").args(["-D", "--defined-only"]).arg(&library))?;
    let exported: BTreeSet<&str> =
        table.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let mut count = Count::default();
    let mut complain = |problems: Vec<String>, right: usize| {
        for problem in &problems {
            println!("{problem}");
        }
        count.failed += problems.len();
        count.passed += right;
    };
    let mut lacking = Vec::new();
    for name in &procedures {
        for symbol in [name.clone(), format!("p{name}")] {
            if !exported.contains(symbol.as_str()) {
                lacking.push(format!("{symbol} is in docs/conformance.md but not exported"));
            }
        }
    }
    let right = 2 * procedures.len() - lacking.len();
    complain(lacking, right);
    let strange: Vec<String> = exported
        .iter()
        .filter(|symbol| {
            let name = symbol.split('@').next().unwrap_or(symbol);
            let name =
                name.strip_prefix('p').filter(|rest| rest.starts_with("gaspi_")).unwrap_or(name);
            !procedures.contains(name)
        })
        .map(|symbol| format!("{symbol} is exported but not in docs/conformance.md"))
        .collect();
    complain(strange, 1);
    let dynamic = process::output(Command::new("readelf").arg("-d").arg(&library))?;
    let foreign: Vec<String> = dynamic
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split('[').nth(1)?.split(']').next())
        .filter(|name| !SYSTEM_LIBRARIES.iter().any(|known| name.starts_with(known)))
        .map(|name| format!("libgaspi.so needs {name}, which not every system has"))
        .collect();
    complain(foreign, 1);
    let soname = if dynamic.contains("[libgaspi.so.1]") {
        Vec::new()
    } else {
        vec!["the soname of libgaspi.so is not libgaspi.so.1".to_owned()]
    };
    complain(soname, 1);
    let relocations = process::output(Command::new("readelf").arg("-rW").arg(&library))?;
    let through_names: Vec<String> = relocations
        .lines()
        .filter_map(|line| line.split_whitespace().nth(4))
        .filter(|name| name.starts_with("gaspi_") || name.starts_with("pgaspi_"))
        .map(|name| format!("libgaspi.so calls {name} by its name, where a profiler may be"))
        .collect();
    complain(through_names, 1);
    println!("{} procedures, {} exported symbols", procedures.len(), exported.len());
    Ok(count)
}

/// The C names that `archive` defines.
pub(crate) fn exported(archive: &std::path::Path) -> Result<BTreeSet<String>> {
    let table =
        process::output(Command::new("nm").args(["--defined-only", "--extern-only"]).arg(archive))?;
    let names: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .filter(|name| name.starts_with("gaspi_") || name.starts_with("pgaspi_"))
        .map(str::to_owned)
        .collect();
    if names.is_empty() {
        return Err(format!("{} defines no gaspi_* symbol", archive.display()));
    }
    Ok(names)
}
