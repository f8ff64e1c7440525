//! Ranks that call everything at random while one of them dies, is stopped, or loses a connection:
//! the C program of `soak/`, once per seed.
//!
//! The seed in the name of a test decides everything but moments; `GASPI_TEST_SEED=N` starts
//! elsewhere, and the long tier runs 25 times as many. With GASPI_TEST_NODES=verbs those over TCP
//! run over RDMA devices that tests/mock-card plays, with fewer seeds.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gaspi_tests::victims::{Enduring, Killed, random_moment};
use gaspi_tests::{
    Job, Linkage, Outcome, Result, Seed, base_seed, build_directory, c_compiler, is_full,
    is_over_devices, link, root, run_trials,
};
use libtest_mimic::{Arguments, Trial};

/// Within this time every survivor has to know of a death: ten times what is promised.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);
/// After this a job hangs. The program itself complains of a call after 10 s, and makes up to some
/// thousands.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a rank is kept busy.
const BUSY: Duration = Duration::from_secs(10);
/// Jobs at a time: one fills the machine only for moments.
const JOBS: usize = 2;

/// A scenario, its transport, how many seeds it has, and what the test does in it.
struct Series {
    scenario: &'static str,
    transport: &'static str,
    seeds: u64,
    run: fn(&Soak, u64) -> Result<()>,
}

const SERIES: [Series; 21] = [
    // The longest first, beside all others.
    series("busy", "shm", 1, busy),
    series("busy", "tcp", 1, busy),
    series("come-and-go", "shm", 1, busy),
    series("come-and-go", "tcp", 1, busy),
    series("cut", "tcp", 20, cut),
    series("die", "shm", 50, die),
    series("die", "tcp", 50, die),
    series("exit", "shm", 15, exit),
    series("exit", "tcp", 15, exit),
    series("threads", "shm", 10, die),
    series("threads", "tcp", 10, die),
    series("groups", "shm", 20, die),
    series("groups", "tcp", 20, die),
    series("stop", "shm", 15, stop),
    series("stop", "tcp", 15, stop),
    series("fusion", "shm", 20, die),
    series("fusion", "tcp", 20, die),
    series("fusion-exit", "shm", 15, exit),
    series("fusion-exit", "tcp", 15, exit),
    series("fusion-stop", "shm", 8, stop),
    series("fusion-stop", "tcp", 8, stop),
];

/// Scenarios that take their time whatever the seed.
const WITHOUT_DEVICES: [&str; 2] = ["busy", "come-and-go"];

/// A series in CI.
const fn series(
    scenario: &'static str,
    transport: &'static str,
    seeds: u64,
    run: fn(&Soak, u64) -> Result<()>,
) -> Series {
    Series { scenario, transport, seeds, run }
}

/// The program in a scenario.
struct Soak {
    scenario: &'static str,
    transport: &'static str,
    program: Arc<OnceLock<Result<PathBuf>>>,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(JOBS);
    run_trials(arguments, build_directory().and_then(|_| Ok(trials(is_over_devices()?))))
}

fn trials(over_devices: bool) -> Vec<Trial> {
    let program = Arc::new(OnceLock::new());
    let mut trials = Vec::new();
    for Series { scenario, mut transport, mut seeds, run } in SERIES {
        if over_devices {
            if transport != "tcp" || WITHOUT_DEVICES.contains(&scenario) {
                continue;
            }
            (transport, seeds) = ("verbs", seeds.div_ceil(15));
        }
        let seeds = if is_full() { 25 * seeds } else { seeds };
        for seed in base_seed()..base_seed() + seeds {
            let soak = Soak { scenario, transport, program: Arc::clone(&program) };
            let name = format!("{scenario}/{transport}/seed-{seed}");
            trials.push(Trial::test(name, move || run(&soak, seed).map_err(Into::into)));
        }
    }
    trials
}

/// Compiles the program against the release build.
fn compile() -> Result<PathBuf> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soak");
    let mut command = c_compiler(false);
    command.arg("-I").arg(root().join("include"));
    for source in ["main", "base", "mix", "die", "groups", "stop", "cut", "busy", "fusion"] {
        command.arg(root().join(format!("tests/soak/{source}.c")));
    }
    link(&mut command, &program, Linkage::Shared)?;
    Ok(program)
}

impl Soak {
    /// The job without its arguments, the number of its ranks, and the one that suffers.
    fn job(&self, dice: &mut Seed) -> Result<(Job, usize, usize)> {
        let program = self.program.get_or_init(compile).clone()?;
        let ranks = [2, 3, 4, 5, 8][dice.below(5) as usize];
        let victim = dice.below(ranks) as usize;
        let job = Job::launched(ranks as u32, &program)?.limit(LIMIT);
        let job = match self.transport {
            "verbs" => job.over_devices()?,
            transport => job.env("GASPI_TRANSPORT", transport),
        };
        Ok((job, ranks as usize, victim))
    }

    fn dice(&self, seed: u64) -> Seed {
        let names = self.scenario.bytes().chain(self.transport.bytes());
        Seed::new(
            seed ^ names.fold(0, |sum: u64, byte| sum.wrapping_mul(31) ^ u64::from(byte)) << 20,
        )
    }
}

/// gaspi_run tells which rank died, and nobody complained.
fn expect_death(outcome: &Outcome, of: usize) -> Result<()> {
    if outcome.status.success() {
        return Err(outcome.failure("gaspi_run ended with 0 although a rank died"));
    }
    if !outcome.left.is_empty() {
        return Err(outcome.failure("processes are left"));
    }
    outcome.clone().says(&format!("gaspi_run: rank {of} ")).map(drop)
}

fn die(soak: &Soak, seed: u64) -> Result<()> {
    let mut dice = soak.dice(seed);
    let (job, ranks, of) = soak.job(&mut dice)?;
    let job = job.args([soak.scenario, &seed.to_string(), &of.to_string()]).start()?;
    job.lines("ready ", ranks)?;
    random_moment(&mut dice, Duration::from_millis(50));
    let killed = Killed::kill(&job, of, &mut dice)?;
    let outcome = job.wait()?;
    killed.expect_survivors(&outcome, ranks, KNOWN_WITHIN)?;
    expect_death(&outcome, of)
}

fn exit(soak: &Soak, seed: u64) -> Result<()> {
    let (job, ranks, of) = soak.job(&mut soak.dice(seed))?;
    let job = job.args([soak.scenario, &seed.to_string(), &of.to_string()]).start()?;
    job.lines("ready ", ranks)?;
    let outcome = job.wait()?;
    let left = Killed::by_itself(&outcome, of)?;
    left.expect_survivors(&outcome, ranks, KNOWN_WITHIN)?;
    expect_death(&outcome, of)
}

fn stop(soak: &Soak, seed: u64) -> Result<()> {
    let mut dice = soak.dice(seed);
    let (job, ranks, of) = soak.job(&mut dice)?;
    let job = Enduring::start(job, ranks, [soak.scenario, &seed.to_string()], of)?;
    job.stop_and_continue(of, &mut dice)?;
    job.finish()
}

fn busy(soak: &Soak, seed: u64) -> Result<()> {
    let (job, ranks, _) = soak.job(&mut soak.dice(seed))?;
    let seconds = BUSY.as_secs().to_string();
    let job = job.limit(BUSY + LIMIT).args([soak.scenario, &seed.to_string(), &seconds]);
    expect_finish(&job.run()?, ranks)
}

fn cut(soak: &Soak, seed: u64) -> Result<()> {
    let (job, ranks, of) = soak.job(&mut soak.dice(seed))?;
    let job = job.args([soak.scenario, &seed.to_string(), &of.to_string()]);
    expect_finish(&job.run()?, ranks)
}

/// All ranks came to the end, and nobody complained.
fn expect_finish(outcome: &Outcome, ranks: usize) -> Result<()> {
    let outcome = outcome.clone().success()?;
    let finished = outcome.stdout.lines().filter(|line| line.contains("finished ")).count();
    if finished != ranks || outcome.stderr.contains("FAILED") {
        return Err(outcome.failure(&format!("{finished} of {ranks} ranks finished")));
    }
    Ok(())
}
