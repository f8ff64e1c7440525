//! Ranks that are killed or stopped at random moments: the others know, go on, and never hang.
//!
//! Every random choice comes from a seed in the name of the test; `GASPI_TEST_SEED=N` starts
//! elsewhere, and the long tier runs more of them. The programs are `src/bin/victim.rs`, for
//! collective operations of all kinds `src/bin/member.rs`, for stall warnings `src/bin/stalled.rs`,
//! and for a lost message `src/bin/untold.rs`. With GASPI_TEST_NODES=verbs data goes
//! by RDMA devices that tests/mock-card plays.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gaspi_tests::victims::{DIE, Enduring, Killed, STOP, Stopped, random_moment};
use gaspi_tests::{
    Job, Outcome, Result, Seed, base_seed, build_directory, is_full, is_over_devices, run_trials,
};
use libtest_mimic::{Arguments, Trial};
use tempfile::NamedTempFile;

/// Within this time every survivor has to know of a death: ten times what is promised.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

/// How the ranks of collective operations reach each other: as GASPI_TRANSPORT says it, or two and
/// two by shared memory.
const LINKS: [&str; 3] = ["shm", "tcp", "pairs"];

/// So many nodes, of so many ranks together.
const NODES: [(&str, usize); 3] = [("2", 6), ("9", 18), ("24", 48)];

/// What carries bytes between the ranks of a job, as GASPI_TRANSPORT says it.
const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One at a time: the times that are checked are those of a machine that is not overloaded.
    arguments.test_threads.get_or_insert(1);
    run_trials(arguments, build_directory().and_then(|_| Ok(trials(is_over_devices()?))))
}

fn victim() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_victim"))
}

fn trials(over_devices: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    let first = base_seed();
    let by_devices: &[&str] = &["verbs"];
    for transport in if over_devices { by_devices } else { &TRANSPORTS } {
        let seeds = if is_full() { 20 } else { 1 };
        for seed in first..first + seeds {
            for operation in DIE {
                let name = format!("kill/{transport}/{operation}/seed-{seed}");
                trials.push(trial(name, move || kill(transport, operation, seed)));
            }
            for operation in STOP {
                let name = format!("stop/{transport}/{operation}/seed-{seed}");
                trials.push(trial(name, move || stop(transport, operation, seed)));
            }
        }
        for seed in first..first + 5 * seeds {
            let name = format!("kill/{transport}/init/seed-{seed}");
            trials.push(trial(name, move || kill_in_init(transport, seed)));
        }
    }
    if !over_devices {
        trials.push(trial("those-who-watch-a-rank-leave".to_owned(), those_who_watch_leave));
    }
    for transport in TRANSPORTS.iter().filter(|_| !over_devices) {
        for of in 0..3 {
            let name = format!("fusion/stopped/{transport}/rank-{of}");
            trials.push(trial(name, move || stopped_in_a_step(transport, of)));
        }
    }
    if !over_devices {
        trials.push(trial("a-lost-message-is-told".to_owned(), a_lost_message_is_told));
    }
    for operation in CROWD_DIES.iter().filter(|_| !over_devices) {
        for seed in first..first + if is_full() { 10 } else { 1 } {
            let name = format!("kill-in-a-crowd/{operation}/seed-{seed}");
            trials.push(trial(name, move || kill_in_a_crowd(operation, seed)));
        }
    }
    for links in if over_devices { by_devices } else { &LINKS } {
        let seeds = if is_full() { 40 } else { 3 };
        for seed in first..first + seeds {
            let name = format!("collectives/kill/{links}/seed-{seed}");
            trials.push(trial(name, move || kill_member(links, None, seed, false)));
        }
        for seed in first..first + seeds.div_ceil(3) {
            let name = format!("collectives/kill-beside-a-stopped-one/{links}/seed-{seed}");
            trials.push(trial(name, move || kill_member(links, None, seed, true)));
            let name = format!("collectives/stop/{links}/seed-{seed}");
            trials.push(trial(name, move || stop_member(links, None, seed)));
        }
    }
    if !over_devices {
        trials.extend(over_nodes(first));
    }
    trials
}

/// The same where several ranks share each of several nodes.
fn over_nodes(first: u64) -> Vec<Trial> {
    let mut trials = Vec::new();
    let (nodes, seeds) = if is_full() { (&NODES[..], 10) } else { (&NODES[..2], 1) };
    for (nodes, ranks) in nodes {
        for seed in first..first + seeds {
            for beside in [false, true] {
                let what = if beside { "kill-beside-a-stopped-one" } else { "kill" };
                let name = format!("collectives/{what}/{nodes}-nodes/seed-{seed}");
                trials.push(trial(name, move || kill_member(nodes, Some(*ranks), seed, beside)));
            }
            let name = format!("collectives/stop/{nodes}-nodes/seed-{seed}");
            trials.push(trial(name, move || stop_member(nodes, Some(*ranks), seed)));
        }
    }
    trials
}

fn trial(name: String, run: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, move || run().map_err(Into::into))
}

/// Numbers of ranks and the one that suffers.
fn choose(seed: &mut Seed) -> (usize, usize) {
    let ranks = [2, 3, 4, 8][seed.below(4) as usize];
    (ranks, seed.below(ranks as u64) as usize)
}

fn job(transport: &str, ranks: usize) -> Result<Job> {
    let job = Job::launched(ranks as u32, &victim())?.limit(Duration::from_secs(60));
    match transport {
        "verbs" => job.over_devices(),
        transport => Ok(job.env("GASPI_TRANSPORT", transport)),
    }
}

fn kill(transport: &str, operation: &str, seed: u64) -> Result<()> {
    let mut seed = Seed::new(seed ^ u64::from(operation.bytes().map(u32::from).sum::<u32>()));
    let (ranks, of) = choose(&mut seed);
    let job = job(transport, ranks)?.args(["die", operation]).arg(of.to_string()).start()?;
    job.lines("ready ", ranks)?;
    let killed = Killed::kill(&job, of, &mut seed)?;
    let outcome = job.wait()?;
    killed.expect_survivors(&outcome, ranks, KNOWN_WITHIN)?;
    expect_report(&outcome, of)
}

/// So many ranks of a node that each of them watches some of the others only.
const CROWD: usize = 24;
/// What they do.
const CROWD_DIES: [&str; 4] = ["barrier", "write", "segment", "idle"];
/// Starts them without gaspi_run, which would tell them of deaths.
const BY_HAND: &str = r#"
    rank=0
    while [ $rank -lt $GASPI_NRANKS ]; do
        GASPI_RANK=$rank "$@" &
        rank=$((rank + 1))
    done
    wait
"#;

fn crowd(id: &str) -> Job {
    Job::plain(&PathBuf::from("sh"))
        .env("GASPI_NRANKS", CROWD.to_string())
        .env("GASPI_JOB_ID", format!("crowd-{}-{id}", std::process::id()))
        .args(["-c", BY_HAND, "sh"])
        .arg(victim())
        .limit(Duration::from_secs(60))
}

/// Where all who watched a rank have left, somebody else does.
fn those_who_watch_leave() -> Result<()> {
    let go_on = tempfile::NamedTempFile::new()?.into_temp_path();
    // Not at a distance at which ranks watch each other in the beginning.
    let (of, survivor) = (4, 7);
    let job = crowd("left").args(["left", &survivor.to_string(), &of.to_string()]).arg(&go_on);
    let job = job.start()?;
    job.lines("ready ", CROWD)?;
    let process = job.rank(of as u16)?;
    let killed = Killed::now(of);
    process.signal(libc::SIGKILL)?;
    job.lines("survived ", 1)?;
    go_on.close()?;
    let outcome = job.wait()?;
    killed.expect_survivor(&outcome, survivor, KNOWN_WITHIN)
}

/// Nobody but those who watch a rank notices its death, and all know of it.
fn kill_in_a_crowd(operation: &str, seed: u64) -> Result<()> {
    let mut seed = Seed::new(seed ^ u64::from(operation.bytes().map(u32::from).sum::<u32>()));
    let of = seed.below(CROWD as u64) as usize;
    let job = crowd(operation).args(["die", operation]).arg(of.to_string()).start()?;
    job.lines("ready ", CROWD)?;
    let killed = Killed::kill(&job, of, &mut seed)?;
    let outcome = job.wait()?;
    killed.expect_survivors(&outcome, CROWD, KNOWN_WITHIN)
}

/// gaspi_run tells which rank died of what, and ends with a status that is not 0.
fn expect_report(outcome: &Outcome, of: usize) -> Result<()> {
    if outcome.status.success() {
        return Err(outcome.failure("gaspi_run ended with 0 although a rank was killed"));
    }
    if !outcome.left.is_empty() {
        return Err(outcome.failure("processes are left"));
    }
    outcome.clone().says(&format!("rank {of}")).map(drop)
}

fn kill_in_init(transport: &str, seed: u64) -> Result<()> {
    let mut seed = Seed::new(seed);
    let (ranks, of) = choose(&mut seed);
    let job = job(transport, ranks)?.args(["init", "none"]).arg(of.to_string()).start()?;
    let process = job.rank(of as u16)?;
    random_moment(&mut seed, Duration::from_millis(20));
    process.signal(libc::SIGKILL)?;
    let killed = Instant::now();
    let outcome = job.wait()?;
    let took = killed.elapsed();
    if took > KNOWN_WITHIN {
        return Err(outcome.failure(&format!("the others took {took:?} to hear of it")));
    }
    let ended = outcome
        .stdout
        .lines()
        .filter(|line| line.contains("refused ") || line.contains("joined "))
        .count();
    if ended != ranks - 1 || outcome.stderr.contains("FAILED") {
        let what = format!("{ended} of {} other ranks ended their start well", ranks - 1);
        return Err(outcome.failure(&what));
    }
    expect_report(&outcome, of)
}

fn stop(transport: &str, operation: &str, seed: u64) -> Result<()> {
    let mut seed = Seed::new(seed);
    let (ranks, of) = choose(&mut seed);
    let job = Enduring::start(job(transport, ranks)?, ranks, ["stop", operation], of)?;
    job.stop_and_continue(of, &mut seed)?;
    job.finish()
}

/// A job of the program `member`.
fn members(links: &str, ranks: usize) -> Result<Job> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_member"));
    let job = Job::launched(ranks as u32, &program)?.limit(Duration::from_secs(100));
    match links {
        "verbs" => job.over_devices(),
        "shm" | "tcp" => Ok(job.env("GASPI_TRANSPORT", links)),
        nodes => Ok(job.env("GASPI_TEST_NODES", nodes)),
    }
}

/// One rank dies in the middle of collective operations; `beside` has another one stopped for a
/// while around that.
fn kill_member(links: &str, ranks: Option<usize>, seed: u64, beside: bool) -> Result<()> {
    let mut dice = Seed::new(seed ^ u64::from(links.bytes().map(u32::from).sum::<u32>()));
    let drawn = [3, 4, 5, 7][dice.below(4) as usize];
    let ranks = ranks.unwrap_or(drawn);
    let of = dice.below(ranks as u64) as usize;
    let arguments = ["die".to_owned(), dice.below(1 << 32).to_string(), of.to_string()];
    let job = members(links, ranks)?.args(arguments).start()?;
    job.lines("ready ", ranks)?;
    random_moment(&mut dice, Duration::from_millis(300));
    let other = job.rank(((of + 1) % ranks) as u16)?;
    let stopped = beside.then(|| Stopped::stop(&other)).transpose()?;
    let killed = Killed::kill(&job, of, &mut dice)?;
    if beside {
        random_moment(&mut dice, Duration::from_millis(600));
    }
    drop(stopped);
    let outcome = job.wait()?;
    killed.expect_survivors(&outcome, ranks, KNOWN_WITHIN)?;
    expect_report(&outcome, of)
}

fn stop_member(links: &str, ranks: Option<usize>, seed: u64) -> Result<()> {
    let mut dice = Seed::new(seed);
    let drawn = [3, 4, 5, 7][dice.below(4) as usize];
    let ranks = ranks.unwrap_or(drawn);
    let of = dice.below(ranks as u64) as usize;
    let operations = dice.below(1 << 32).to_string();
    let job = Enduring::start(members(links, ranks)?, ranks, ["stop", &operations], of)?;
    job.stop_and_continue(of, &mut dice)?;
    job.finish()
}

/// One rank is stopped before it submits: the others say what is known of it without its library,
/// and go on once it does.
fn stopped_in_a_step(transport: &str, of: usize) -> Result<()> {
    const RANKS: usize = 3;
    let go_on = NamedTempFile::new()?.into_temp_path();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_stalled"));
    let job = Job::launched(RANKS as u32, &program)?.limit(Duration::from_secs(60));
    let job = job.env("GASPI_TRANSPORT", transport).arg(of.to_string()).arg(&go_on).start()?;
    job.lines("ready ", RANKS)?;
    let process = job.rank(of as u16)?;
    let stopped = Stopped::stop(&process)?;
    // By shared memory its words are seen where they lie.
    let words = match transport {
        "tcp" => "does not answer",
        _ => "has not submitted tensors 0, 1",
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    // Sooner or later it is the only one.
    job.complains(&format!("step 2: rank {of} on {} {words}\n", host.trim()))?;
    drop(stopped);
    drop(go_on);
    job.wait()?.success()?;
    Ok(())
}

/// A message of a collective is lost once its sender has done its part, and calls nothing any more.
fn a_lost_message_is_told() -> Result<()> {
    let go_on = NamedTempFile::new()?.into_temp_path();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_untold"));
    let job = Job::launched(2, &program)?.limit(Duration::from_secs(60));
    let job = job.env("GASPI_TRANSPORT", "tcp").arg(&go_on).start()?;
    job.lines("done", 1)?;
    let learned = job.lines("learned: ", 1)?.remove(0);
    drop(go_on);
    let outcome = job.wait()?.success()?;
    match learned.contains("rank 1") && learned.contains("lost") {
        true => Ok(()),
        false => Err(outcome.failure("rank 0 was to learn that a message of rank 1 is lost")),
    }
}
