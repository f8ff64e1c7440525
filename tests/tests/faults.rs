//! Ranks that are killed or stopped at random moments: the others know, go on, and never hang.
//!
//! Every random choice comes from a seed in the name of the test; `GASPI_TEST_SEED=N` starts
//! elsewhere, and the long tier runs more of them. The victim program is `src/bin/victim.rs`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gaspi_tests::{
    Job, Outcome, Process, Result, Running, Seed, base_seed, build_directory, is_full,
    monotonic_us, run_trials,
};
use libtest_mimic::{Arguments, Failed, Trial};

/// Within this time every survivor has to know of a death.
const KNOWN_WITHIN_US: u64 = 1_000_000;

const DIE: [&str; 10] = [
    "barrier",
    "allreduce",
    "large-allreduce",
    "passive",
    "write",
    "atomic",
    "segment",
    "ping",
    "commit",
    "idle",
];
const STOP: [&str; 7] =
    ["barrier", "allreduce", "large-allreduce", "passive", "write", "atomic", "ping"];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One at a time: the times that are checked are those of a machine that is not overloaded.
    arguments.test_threads.get_or_insert(1);
    run_trials(arguments, build_directory().map(|_| trials()))
}

fn victim() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_victim"))
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let first = base_seed();
    let seeds = if is_full() { 20 } else { 2 };
    for seed in first..first + seeds {
        for operation in DIE {
            let name = format!("kill/{operation}/seed-{seed}");
            trials.push(Trial::test(name, move || kill(operation, seed)));
        }
        for operation in STOP {
            let name = format!("stop/{operation}/seed-{seed}");
            trials.push(Trial::test(name, move || stop(operation, seed)));
        }
    }
    for seed in first..first + 5 * seeds {
        trials.push(Trial::test(format!("kill/init/seed-{seed}"), move || kill_in_init(seed)));
    }
    trials
}

/// Numbers of ranks and the one that suffers.
fn choose(seed: &mut Seed) -> (u32, u16) {
    let ranks = [2, 3, 4, 8][seed.below(4) as usize];
    (ranks, seed.below(u64::from(ranks)) as u16)
}

fn start(program: &Path, scenario: &str, operation: &str, ranks: u32, of: u16) -> Result<Running> {
    Job::launched(ranks, program)?
        .args([scenario, operation])
        .arg(of.to_string())
        .limit(Duration::from_secs(45))
        .start()
}

/// Lets a random time pass. Not a synchronisation: any moment is as good as any other.
fn random_moment(seed: &mut Seed, below_us: u64) {
    let end = Instant::now() + Duration::from_micros(seed.below(below_us));
    while Instant::now() < end {
        std::thread::yield_now();
    }
}

fn kill(operation: &str, seed: u64) -> std::result::Result<(), Failed> {
    let mut seed = Seed::new(seed ^ u64::from(operation.bytes().map(u32::from).sum::<u32>()));
    let (ranks, of) = choose(&mut seed);
    let job = start(&victim(), "die", operation, ranks, of)?;
    job.lines("ready ", ranks as usize)?;
    let process = job.rank(of)?;
    random_moment(&mut seed, 30_000);
    let killed = monotonic_us();
    process.signal(libc::SIGKILL)?;
    let outcome = job.wait()?;
    let survivors = ranks as usize - 1;
    expect_lines(&outcome, "survived ", survivors)?;
    for line in outcome.stdout.lines().filter(|line| line.contains("knows ")) {
        let knew: u64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
        let took = knew.saturating_sub(killed);
        if took > KNOWN_WITHIN_US {
            return Err(outcome.failure(&format!("{line:?} is {took} us after the kill")).into());
        }
    }
    expect_report(&outcome, of)
}

/// gaspi_run tells which rank died of what, and ends with a status that is not 0.
fn expect_report(outcome: &Outcome, of: u16) -> std::result::Result<(), Failed> {
    if outcome.status.success() {
        return Err(outcome.failure("gaspi_run ended with 0 although a rank was killed").into());
    }
    if !outcome.left.is_empty() {
        return Err(outcome.failure("processes are left").into());
    }
    outcome.clone().says(&format!("rank {of}"))?;
    Ok(())
}

fn expect_lines(outcome: &Outcome, text: &str, count: usize) -> std::result::Result<(), Failed> {
    let found = outcome.stdout.lines().filter(|line| line.contains(text)).count();
    if found == count && !outcome.stderr.contains("FAILED") {
        return Ok(());
    }
    Err(outcome.failure(&format!("{found} of {count} lines with {text:?}")).into())
}

fn kill_in_init(seed: u64) -> std::result::Result<(), Failed> {
    let mut seed = Seed::new(seed);
    let (ranks, of) = choose(&mut seed);
    let job = start(&victim(), "init", "none", ranks, of)?;
    let process = job.rank(of)?;
    random_moment(&mut seed, 20_000);
    process.signal(libc::SIGKILL)?;
    let outcome = job.wait()?;
    let ended = outcome
        .stdout
        .lines()
        .filter(|line| line.contains("refused ") || line.contains("joined "))
        .count();
    if ended != ranks as usize - 1 || outcome.stderr.contains("FAILED") {
        let what = format!("{ended} of {} other ranks ended their start well", ranks - 1);
        return Err(outcome.failure(&what).into());
    }
    expect_report(&outcome, of)
}

/// Continues a stopped process when it goes out of scope, so that a failing test ends.
struct Stopped<'a>(&'a Process);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // If it has ended there is nothing to continue.
        let _ = self.0.signal(libc::SIGCONT);
    }
}

fn stop(operation: &str, seed: u64) -> std::result::Result<(), Failed> {
    let mut seed = Seed::new(seed);
    let (ranks, of) = choose(&mut seed);
    let job = start(&victim(), "stop", operation, ranks, of)?;
    job.lines("ready ", ranks as usize)?;
    let process = job.rank(of)?;
    for _ in 0..3 {
        random_moment(&mut seed, 100_000);
        if process.signal(libc::SIGSTOP).is_err() {
            break;
        }
        let stopped = Stopped(&process);
        random_moment(&mut seed, 200_000);
        drop(stopped);
    }
    let outcome = job.wait()?.success()?;
    expect_lines(&outcome, "finished ", ranks as usize)
}
