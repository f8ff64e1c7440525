//! Tests over TCP whose threads are delayed at random around system calls (`delays.c`). That shows
//! races which an idle machine shows once in a million runs.
//!
//! Each seed runs all test programs, each with its own delays. The same seed delays the same calls
//! of the same threads again.

use crate::suite::{Context, Count, cargo_test, only_layout};
use crate::{Result, process, workspace};
use std::path::{Path, PathBuf};

/// Seeds of a run for which none is given.
const SEEDS: u64 = 20;

/// How many calls of a hundred are delayed and for how many microseconds at most; seeds take turns.
const SETTINGS: [(u32, u32); 2] = [(10, 300), (3, 2000)];

const PAIRS: (&str, &[&str]) = ("tcp/", &["-p", "gaspi-core", "--test", "pairs"]);

/// Test programs that run at once, by the layout of their ranks. Most faults so far
/// were of two threads that look after the sockets of a rank in turn, which `pairs` does most.
const PROGRAMS: [(&str, &[&str]); 8] = [
    PAIRS,
    PAIRS,
    PAIRS,
    PAIRS,
    PAIRS,
    ("tcp/", &["-p", "gaspi-core", "--test", "conformance"]),
    ("mixed/", &["-p", "gaspi-collectives", "--test", "operations", "--test", "trouble"]),
    ("tcp/", &["-p", "gaspi-collectives", "--test", "fusion"]),
];

/// Tests that are left out: of a time, or of so many round trips that delays make one of them.
const TOO_LONG: [&str; 5] = [
    "a_commit_that_one_is_late_for_costs_each_some_messages",
    "polling_one_notification_is_cheap",
    "they_are_atomic_against_the_owners_own_instructions",
    "a_pair_goes_round_its_slots_thousands_of_times",
    "who_posts_all_the_time_and_never_waits_answers_at_once",
];

/// Tests of a program that run at a time: they sleep most of the time.
const AT_A_TIME: &str = "8";

pub(crate) fn run(context: &Context) -> Result<Count> {
    let library = built()?;
    let seeds = match std::env::var("GASPI_TEST_SEED") {
        Ok(text) => {
            let seed = text.parse().map_err(|_| "GASPI_TEST_SEED has to be a number")?;
            seed..=seed
        }
        Err(_) => 1..=SEEDS,
    };
    let mut count = Count::default();
    for seed in seeds {
        let part = with(context, &library, seed)
            .inspect(|part| tell_if(part.failed > 0, seed))
            .inspect_err(|_| tell_if(true, seed))?;
        count = count + part;
    }
    Ok(count)
}

fn tell_if(failed: bool, seed: u64) {
    if failed {
        println!("with seed {seed}: GASPI_TEST_SEED={seed} cargo xtask test --full --only delays");
    }
}

/// Runs all programs once.
fn with(context: &Context, library: &Path, seed: u64) -> Result<Count> {
    let (percent, limit_us) = SETTINGS[seed as usize % SETTINGS.len()];
    println!("seed {seed}: {percent} of 100 calls take up to {limit_us} us longer");
    // Only the test programs are delayed, neither cargo nor the compiler.
    let runner = format!("target.'cfg(unix)'.runner = ['env', 'LD_PRELOAD={}']", library.display());
    let parts: Vec<Result<Count>> = std::thread::scope(|scope| {
        let mut own_seed = seed * PROGRAMS.len() as u64;
        let running = PROGRAMS.map(|(layout, programs)| {
            own_seed += 1;
            let mut cargo = workspace::cargo();
            cargo.args(["test", "--quiet", "--config", &runner, "--no-fail-fast"]).args(programs);
            cargo.env("GASPI_DELAYS_SEED", own_seed.to_string());
            cargo.env("GASPI_DELAYS_PERCENT", percent.to_string());
            cargo.env("GASPI_DELAYS_US", limit_us.to_string());
            let mut options = vec!["--test-threads", AT_A_TIME];
            options.extend(TOO_LONG.iter().flat_map(|name| ["--skip", name]));
            options.extend(only_layout(layout));
            scope.spawn(move || cargo_test(context, &mut cargo, &options, &[]))
        });
        let ended = running.map(|program| program.join());
        ended.into_iter().map(|end| end.unwrap_or_else(|_| Err("a thread fell".into()))).collect()
    });
    let mut count = Count::default();
    for part in parts {
        count = count + part?;
    }
    Ok(count)
}

/// Compiles the library that delays.
fn built() -> Result<PathBuf> {
    let directory = workspace::scratch_of_process("delays")?;
    let library = workspace::scratch("libdelays.so");
    let fresh = directory.join("libdelays.so");
    let mut cc = std::process::Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    cc.arg(&fresh).arg(workspace::root().join("xtask/src/delays.c")).arg("-ldl");
    process::run(&mut cc)?;
    // Whole at any time: another run may be using it.
    workspace::rename(&fresh, &library)?;
    workspace::remove(&directory)?;
    Ok(library)
}
