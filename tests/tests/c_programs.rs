//! The C and C++ programs of `tests/c`, each on each number of ranks that it names; and those that
//! the guide shows. With GASPI_TEST_NODES=verbs data between ranks goes by RDMA devices that
//! tests/mock-card plays, as far as that makes a difference.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use gaspi_tests::{Failed, Product, Program, Result, is_full, is_over_devices, root, run_trials};
use libtest_mimic::{Arguments, Trial};

/// coll_errors wants what shared memory promises where ranks name different roots; by messages a
/// root that only sends is done before that is known.
const WITHOUT_DEVICES: [&str; 1] = ["coll_errors"];
/// Over devices on two ranks only, but in the long tier.
const LONG: [&str; 4] = ["coll_operations", "collectives", "cycles", "outlive"];

fn main() -> ExitCode {
    run_trials(Arguments::from_args(), trials())
}

/// Writes the programs of the guide to a folder, as `guide_c_1.c` and so on.
fn guide(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let text = std::fs::read_to_string(root().join("docs/collectives.md"))?;
    for ending in ["c", "cpp"] {
        let fence = format!("```{ending}\n");
        for (number, part) in text.split(fence.as_str()).skip(1).enumerate() {
            let (program, _) = part
                .split_once("```")
                .ok_or_else(|| Failed("docs/collectives.md: a program has no end".to_owned()))?;
            let file = folder.join(format!("guide_{ending}_{}.{ending}", number + 1));
            std::fs::write(file, format!("/* ranks: 1 2 4 */\n{program}"))?;
        }
    }
    Ok(())
}

fn trials() -> Result<Vec<Trial>> {
    let over_devices = is_over_devices()?;
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("c");
    std::fs::create_dir_all(&directory)?;
    let shown = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("guide");
    guide(&shown)?;
    let shown = Program::all(&shown.display().to_string(), &["c", "cpp"])?;
    let programs: HashMap<String, Arc<Program>> = Program::all("tests/c", &["c", "cpp"])?
        .into_iter()
        .chain(shown)
        .map(|program| (program.source.display().to_string(), Arc::new(program)))
        .collect();
    let libraries: HashMap<String, Arc<Program>> = programs
        .values()
        .filter(|program| program.product == Product::SharedLibrary)
        .map(|program| (program.name.clone(), Arc::clone(program)))
        .collect();
    let mut sorted: Vec<&Arc<Program>> = programs.values().collect();
    sorted.sort_by(|left, right| left.source.cmp(&right.source));
    let mut trials = Vec::new();
    for program in sorted {
        // Ways of linking that need the installed tree are tested in installed.rs.
        if program.links.iter().any(|link| link != "shared" && link != "static") {
            continue;
        }
        let file = program.source.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_single = program.ranks.iter().all(|ranks| *ranks == 1);
        if over_devices && (is_single || WITHOUT_DEVICES.contains(&program.name.as_str())) {
            continue;
        }
        if program.product != Product::Program {
            let (program, directory) = (Arc::clone(program), directory.clone());
            trials.push(Trial::test(format!("{file}/compiles"), move || {
                program.compiled(&directory).map(drop).map_err(Into::into)
            }));
            continue;
        }
        for ranks in program.ranks.clone() {
            let is_long = ranks > 2 && LONG.contains(&program.name.as_str()) && !is_full();
            if over_devices && (ranks == 1 || is_long) {
                continue;
            }
            let (program, directory) = (Arc::clone(program), directory.clone());
            let library = program.preload.as_ref().map(|name| libraries.get(name).cloned());
            trials.push(Trial::test(format!("{file}/{ranks}"), move || {
                let mut prefix = Vec::new();
                if let Some(library) = library {
                    let library = library.ok_or("the library to preload is not there")?;
                    let path = library.compiled(&directory)?;
                    // Into the ranks, not into gaspi_run.
                    let preload = format!("LD_PRELOAD={}", path.display());
                    prefix = vec!["/usr/bin/env".to_owned(), preload];
                }
                let binary = program.compiled(&directory)?;
                let job = program.job(&binary, ranks, &prefix)?;
                let job = if over_devices { job.over_devices()? } else { job };
                program.run_job(job, ranks).map(drop).map_err(Into::into)
            }));
        }
    }
    Ok(trials)
}
