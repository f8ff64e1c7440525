//! C programs under valgrind's memcheck: on the least number of ranks above one that they name.
//!
//! All of them in the long tier; the quick one leaves out those that do thousands of rounds.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use gaspi_tests::{Product, Program, Result, is_full, run_trials};
use libtest_mimic::{Arguments, Trial};

/// Each chapter is there; cycles, threads and the like would take minutes.
const QUICK: [&str; 14] = [
    "coll_user",
    "errors",
    "environment",
    "fusion",
    "fusion_clients",
    "groups",
    "notifications",
    "onesided",
    "passive",
    "process",
    "queues",
    "segments",
    "single",
    "statistics",
];

/// Programs whose subject valgrind changes: it needs memory itself for what was allocated (cycles
/// measures growth), and in a forked child it sees lost what threads of the parent owned (fork).
const UNSUITED: [&str; 2] = ["cycles", "fork"];

/// Also with data that goes by RDMA devices, which tests/mock-card plays.
const OVER_DEVICES: [&str; 1] = ["onesided"];

fn main() -> ExitCode {
    run_trials(Arguments::from_args(), trials())
}

fn trials() -> Result<Vec<Trial>> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("valgrind");
    std::fs::create_dir_all(&directory)?;
    let mut trials = Vec::new();
    for program in Program::all("tests/c", &["c", "cpp"])? {
        let is_plain = program.links.is_empty() && program.preload.is_none();
        let is_chosen = is_full() || QUICK.contains(&program.name.as_str());
        let is_suited = !UNSUITED.contains(&program.name.as_str());
        if program.product != Product::Program || !is_plain || !is_chosen || !is_suited {
            continue;
        }
        let ranks = program.ranks.iter().copied().filter(|ranks| *ranks > 1).min().unwrap_or(1);
        let (program, directory) = (Arc::new(program), directory.clone());
        let name = format!("{}/{ranks}", program.name);
        if OVER_DEVICES.contains(&program.name.as_str()) {
            let (program, directory) = (Arc::clone(&program), directory.clone());
            trials.push(Trial::test(format!("verbs/{name}"), move || {
                let binary = program.compiled(&directory)?;
                let job = program.job(&binary, ranks, &valgrind())?.over_devices()?;
                program.run_job(job, ranks).map(drop).map_err(Into::into)
            }));
        }
        trials.push(Trial::test(name, move || {
            let binary = program.compiled(&directory)?;
            program.run(&binary, ranks, &valgrind()).map(drop).map_err(Into::into)
        }));
    }
    Ok(trials)
}

fn valgrind() -> Vec<String> {
    let prefix = [
        "/usr/bin/valgrind",
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--show-leak-kinds=definite",
        "--errors-for-leak-kinds=definite",
        // Ranks take turns instead of one thread of each starving the others.
        "--fair-sched=try",
    ];
    prefix.map(str::to_owned).to_vec()
}
