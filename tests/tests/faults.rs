//! Ranks that are killed or stopped at random moments: the others know, go on, and never hang.
//!
//! Every random choice comes from a seed in the name of the test; `GASPI_TEST_SEED=N` starts
//! elsewhere, and the long tier runs more of them. The programs are `src/bin/victim.rs`, for
//! collective operations of all kinds `src/bin/member.rs`, for stall warnings `src/bin/stalled.rs`,
//! for a lost message `src/bin/untold.rs`, for whom errors name, and for processes that run another
//! program, `src/bin/first.rs`, for pairs that are being made `src/bin/paired.rs`, and for one that
//! leaves `src/bin/departing.rs`. With GASPI_TEST_NODES=verbs data goes by RDMA devices that
//! tests/mock-card plays, with `verbs-pairs` between nodes of two ranks.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gaspi_tests::victims::{DIE, Enduring, Killed, STOP, Stopped, random_moment};
use gaspi_tests::{
    DeviceNodes, Failed, Job, NODES, Outcome, Process, Result, Running, Seed, Shape, base_seed,
    build_directory, device_nodes, is_full, run_trials,
};
use libtest_mimic::{Arguments, Trial};
use tempfile::{NamedTempFile, TempPath};

/// Within this time every survivor has to know of a death: ten times what is promised.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

/// How the ranks of a job reach each other.
#[derive(Clone, Copy)]
enum Links {
    /// As GASPI_TRANSPORT says it.
    Transport(&'static str),
    /// By RDMA devices that are mocked.
    Devices,
    /// Two and two by shared memory.
    Pairs,
    /// The same, with such devices between.
    DevicePairs,
    /// As many as it says on each of several nodes.
    Nodes(Shape),
}

const SHM: Links = Links::Transport("shm");
const TCP: Links = Links::Transport("tcp");

impl Links {
    /// A job of a program. Its ranks are `drawn`, where the links do not say how many there are.
    fn job(self, program: &Path, drawn: usize, limit_s: u64) -> Result<(Job, usize)> {
        let ranks = match self {
            Links::Nodes(shape) => shape.ranks(),
            _ => drawn,
        };
        let job = Job::launched(ranks as u32, program)?.limit(Duration::from_secs(limit_s));
        let job = match self {
            Links::Transport(transport) => job.env("GASPI_TRANSPORT", transport),
            Links::Devices => job.over_devices()?,
            Links::Pairs => job.env(NODES, "pairs"),
            Links::DevicePairs => {
                job.over_devices()?.env("GASPI_TRANSPORT", "auto").env(NODES, "pairs")
            }
            Links::Nodes(shape) => job.env(NODES, shape.nodes.to_string()),
        };
        Ok((job, ranks))
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Links::Transport(transport) => f.write_str(transport),
            Links::Devices => f.write_str("verbs"),
            Links::Pairs => f.write_str("pairs"),
            Links::DevicePairs => f.write_str("verbs-pairs"),
            Links::Nodes(shape) => write!(f, "{}-nodes", shape.nodes),
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One at a time: the times that are checked are those of a machine that is not overloaded.
    arguments.test_threads.get_or_insert(1);
    run_trials(arguments, build_directory().and_then(|_| Ok(trials(device_nodes()?))))
}

fn victim() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_victim"))
}

fn trials(devices: Option<DeviceNodes>) -> Vec<Trial> {
    let mut trials = Vec::new();
    let first = base_seed();
    let (plain, mixed) = match devices {
        None => (&[SHM, TCP][..], &[SHM, TCP, Links::Pairs][..]),
        Some(DeviceNodes::Each) => (&[Links::Devices][..], &[Links::Devices][..]),
        Some(DeviceNodes::Pairs) => (&[Links::DevicePairs][..], &[Links::DevicePairs][..]),
    };
    for links in plain {
        let seeds = if is_full() { 20 } else { 1 };
        for seed in first..first + seeds {
            trials.extend(suffers(*links, seed));
        }
        trials.extend((first..first + 5 * seeds).map(|seed| dies_in_init(*links, seed)));
    }
    for links in mixed {
        let seeds = if is_full() { 40 } else { 3 };
        for seed in first..first + seeds {
            trials.extend(members_suffer(*links, seed, (seed - first).is_multiple_of(3)));
        }
    }
    match devices {
        Some(DeviceNodes::Each) => trials.extend(while_a_pair_is_made(first)),
        Some(DeviceNodes::Pairs) => {}
        None => {
            trials.extend(of_one_kind(first));
            trials.extend(over_nodes(first));
        }
    }
    trials
}

/// Tests that need certain links.
fn of_one_kind(first: u64) -> Vec<Trial> {
    let mut trials = vec![
        trial("those-who-watch-a-rank-leave".to_owned(), those_who_watch_leave),
        trial("a-lost-message-is-told".to_owned(), a_lost_message_is_told),
    ];
    for transport in ["shm", "tcp"] {
        for of in 0..3 {
            let name = format!("fusion/stopped/{transport}/rank-{of}");
            trials.push(trial(name, move || stopped_in_a_step(transport, of)));
        }
    }
    for links in [SHM, TCP, Links::Pairs, Links::Nodes(Shape { nodes: 2, each: 4 })] {
        for of in [7, 4, 0] {
            let name = format!("first/{links}/rank-{of}");
            trials.push(trial(name, move || errors_name_the_first(links, of)));
        }
    }
    for links in [SHM, TCP, Links::Pairs] {
        trials.push(trial(format!("execve/{links}"), move || runs_another_program(links)));
    }
    for operation in CROWD_DIES {
        for seed in first..first + if is_full() { 10 } else { 1 } {
            let name = format!("kill-in-a-crowd/{operation}/seed-{seed}");
            trials.push(trial(name, move || kill_in_a_crowd(operation, seed)));
        }
    }
    trials
}

/// A peer is stopped, and may be killed then, before it has heard of a pair, and at random moments.
fn while_a_pair_is_made(first: u64) -> Vec<Trial> {
    let mut trials = vec![
        trial("pair/shown".to_owned(), pairs_are_shown),
        trial("pair/stop/unheard".to_owned(), || stop_in_pairing(false)),
        trial("pair/kill/unheard".to_owned(), || stop_in_pairing(true)),
    ];
    for (kind, what) in [("write", "1 request"), ("passive", "messages"), ("purged", "messages")] {
        // A purge waits some seconds for what the device is about to write.
        if kind != "purged" || is_full() {
            let name = format!("pair/leave/{kind}");
            trials.push(trial(name, move || leave_beside_a_stopped_one(kind, what)));
        }
    }
    for seed in first..first + if is_full() { 40 } else { 3 } {
        let name = format!("pair/stop/seed-{seed}");
        trials.push(trial(name, move || stop_within_pairing(seed)));
    }
    trials
}

/// Faults where several ranks share each of several nodes.
fn over_nodes(first: u64) -> Vec<Trial> {
    let mut trials = Vec::new();
    for shape in Shape::all() {
        let links = Links::Nodes(*shape);
        for seed in first..first + if is_full() { 2 } else { 1 } {
            trials.extend(suffers(links, seed));
            trials.push(dies_in_init(links, seed));
        }
        for seed in first..first + if is_full() { 10 } else { 1 } {
            trials.extend(members_suffer(links, seed, true));
        }
    }
    trials
}

/// A rank dies in each operation, and is stopped in each.
fn suffers(links: Links, seed: u64) -> Vec<Trial> {
    let mut trials = Vec::new();
    for operation in DIE {
        let name = format!("kill/{links}/{operation}/seed-{seed}");
        trials.push(trial(name, move || kill(links, operation, seed)));
    }
    for operation in STOP {
        let name = format!("stop/{links}/{operation}/seed-{seed}");
        trials.push(trial(name, move || stop(links, operation, seed)));
    }
    trials
}

fn dies_in_init(links: Links, seed: u64) -> Trial {
    trial(format!("kill/{links}/init/seed-{seed}"), move || kill_in_init(links, seed))
}

/// A member of collective operations dies, and in more tests is stopped too.
fn members_suffer(links: Links, seed: u64, more: bool) -> Vec<Trial> {
    let name = |what| format!("collectives/{what}/{links}/seed-{seed}");
    let mut trials = vec![trial(name("kill"), move || kill_member(links, seed, false))];
    if more {
        let beside = move || kill_member(links, seed, true);
        trials.push(trial(name("kill-beside-a-stopped-one"), beside));
        trials.push(trial(name("stop"), move || stop_member(links, seed)));
    }
    trials
}

fn trial(name: String, run: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, move || run().map_err(Into::into))
}

/// A job of the program `victim`, the number of its ranks, and the one that suffers.
fn job(links: Links, seed: &mut Seed) -> Result<(Job, usize, usize)> {
    let drawn = [2, 3, 4, 8][seed.below(4) as usize];
    let (job, ranks) = links.job(&victim(), drawn, 60)?;
    let of = seed.below(ranks as u64) as usize;
    Ok((job.device_seed(seed.below(1 << 32)), ranks, of))
}

fn kill(links: Links, operation: &str, seed: u64) -> Result<()> {
    let mut seed = Seed::new(seed ^ u64::from(operation.bytes().map(u32::from).sum::<u32>()));
    let (job, ranks, of) = job(links, &mut seed)?;
    let job = job.args(["die", operation]).arg(of.to_string()).start()?;
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
    let killed = Killed::now(&[of]);
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

fn kill_in_init(links: Links, seed: u64) -> Result<()> {
    let mut seed = Seed::new(seed);
    let (job, ranks, of) = job(links, &mut seed)?;
    let job = job.args(["init", "none"]).arg(of.to_string()).start()?;
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

fn stop(links: Links, operation: &str, seed: u64) -> Result<()> {
    let mut seed = Seed::new(seed);
    let (job, ranks, of) = job(links, &mut seed)?;
    let job = Enduring::start(job, ranks, ["stop", operation], of)?;
    job.stop_and_continue(of, &mut seed)?;
    job.finish()
}

/// A job of the program `member`, the number of its ranks, and the one that suffers.
fn members(links: Links, dice: &mut Seed) -> Result<(Job, usize, usize)> {
    let drawn = [3, 4, 5, 7][dice.below(4) as usize];
    let (job, ranks) = links.job(Path::new(env!("CARGO_BIN_EXE_member")), drawn, 100)?;
    let of = dice.below(ranks as u64) as usize;
    Ok((job.device_seed(dice.below(1 << 32)), ranks, of))
}

/// One rank dies in the middle of collective operations; `beside` has another one stopped for a
/// while around that.
fn kill_member(links: Links, seed: u64, beside: bool) -> Result<()> {
    let name = links.to_string();
    let mut dice = Seed::new(seed ^ u64::from(name.bytes().map(u32::from).sum::<u32>()));
    let (job, ranks, of) = members(links, &mut dice)?;
    let arguments = ["die".to_owned(), dice.below(1 << 32).to_string(), of.to_string()];
    let job = job.args(arguments).start()?;
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

fn stop_member(links: Links, seed: u64) -> Result<()> {
    let mut dice = Seed::new(seed);
    let (job, ranks, of) = members(links, &mut dice)?;
    let operations = dice.below(1 << 32).to_string();
    let job = Enduring::start(job, ranks, ["stop", &operations], of)?;
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

/// A rank dies, and others end because of it, each of which an error may name: the errors of a rank
/// tell of the same first one. Where ranks share memory it is the one that died first for all; else
/// it nearly always is, but nothing orders news that take longer than others on a busy machine.
fn errors_name_the_first(links: Links, of: usize) -> Result<()> {
    const RANKS: usize = 8;
    const LATE: usize = 4;
    let program = Path::new(env!("CARGO_BIN_EXE_first"));
    let (job, _) = links.job(program, RANKS, 60)?;
    let outcome = job.arg(of.to_string()).run()?;
    // By the rank that printed them.
    let errors_of = |what: &str| -> HashMap<&str, &str> {
        let lines = outcome.stdout.lines().filter(|line| line.starts_with(what));
        let errors = lines.filter_map(|line| line.split_once(" on ")?.1.split_once(": "));
        errors.collect()
    };
    let (barriers, pings) = (errors_of("barrier"), errors_of("ping"));
    if barriers.len() != RANKS - 1 || pings.len() != LATE {
        return Err(outcome.failure("each survivor was to print its errors"));
    }
    let is_shared = matches!(links, Links::Transport("shm"));
    let killed = format!("rank {of}");
    for (by, error) in &barriers {
        let Some((first, _)) = error.split_once(" has died on ") else {
            return Err(outcome.failure(&format!("the barrier of rank {by} names nobody")));
        };
        if is_shared && first != killed {
            return Err(outcome.failure(&format!("the barrier of rank {by} names {first}")));
        }
        let tells = |ping: &&str| {
            ping.contains(&format!(" ({first} died first); "))
                || ping.starts_with(&format!("{first} has died on ")) && !ping.contains(" first)")
        };
        if !pings.get(by).is_none_or(tells) {
            let what = format!("the ping of rank {by} does not tell that {first} died first");
            return Err(outcome.failure(&what));
        }
    }
    Ok(())
}

/// A rank has died whose process runs another program, though that process lives on. So others of
/// its host have to be told too, whom the end of a process would tell.
fn runs_another_program(links: Links) -> Result<()> {
    const RANKS: usize = 4;
    let (job, ranks) = links.job(Path::new(env!("CARGO_BIN_EXE_first")), RANKS, 60)?;
    let running = job.args(["1", "/bin/sleep", "600"]).start()?;
    let barriers = running.lines("barrier on ", ranks - 1)?;
    let names = |text: &str| barriers.iter().filter(|line| line.contains(text)).count();
    // Those that learn of it end, which others may hear first where they do not share memory.
    if names(" has died on ") != ranks - 1 || names(": rank 1 has died on ") == 0 {
        return Err(Failed(format!("the errors of barriers are {barriers:?}")));
    }
    Ok(())
}

/// A job of the program `paired` over devices with a seed, all of whose ranks are ready, and the
/// file that holds it back.
fn paired(seed: u64) -> Result<(Running, TempPath)> {
    let go_on = NamedTempFile::new()?.into_temp_path();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_paired"));
    let job = Job::launched(3, &program)?.limit(Duration::from_secs(60)).over_devices()?;
    let job = job.device_seed(seed).arg(&go_on).start()?;
    job.lines("ready ", 3)?;
    Ok((job, go_on))
}

/// Rank 1 is stopped before rank 0 begins a pair, which costs time only, or is `killed` then.
fn stop_in_pairing(killed: bool) -> Result<()> {
    let (job, go_on) = paired(base_seed())?;
    let process = job.rank(1)?;
    let stopped = Stopped::wholly(&process)?;
    go_on.close()?;
    // Several waits have ended in time, and the other peer has all.
    job.lines("waits 0", 3)?;
    job.lines("received 2", 1)?;
    if !killed {
        drop(stopped);
        let outcome = job.wait()?.success()?;
        return outcome.says("received 1")?.says("wrote 0").map(drop);
    }
    let killed = Killed::now(&[1]);
    process.signal(libc::SIGKILL)?;
    let outcome = job.wait()?;
    killed.expect_survivor(&outcome, 0, KNOWN_WITHIN)?;
    expect_report(&outcome, 1)?;
    let told = outcome.stdout.lines().find(|line| line.contains("told: "));
    match told.is_some_and(|line| line.contains("rank 1")) && outcome.stdout.contains("finished 2")
    {
        true => Ok(()),
        false => Err(outcome.failure("the wait was to name rank 1, and rank 2 to go on")),
    }
}

/// The table of gaspi_run has the pairs of each rank, those that are being made among them.
fn pairs_are_shown() -> Result<()> {
    let (job, go_on) = paired(base_seed())?;
    let process = job.rank(1)?;
    let stopped = Stopped::wholly(&process)?;
    go_on.close()?;
    // Rank 2 has been reached, and rank 1 makes no end.
    job.lines("waits 0", 3)?;
    job.lines("received 2", 1)?;
    Process::open(job.pid())?.signal(libc::SIGUSR1)?;
    job.complains("gaspi_run: rank 0: ")?;
    drop(stopped);
    let outcome = job.wait()?.success()?;
    let line = outcome.stderr.lines().find_map(|line| line.strip_prefix("gaspi_run: rank 0: "));
    let words: Vec<&str> = line.unwrap_or_default().split([' ', ',', ';']).collect();
    let number_before = |what: &[&str]| {
        let at = words.windows(what.len() + 1).find(|some| some[1..] == *what)?;
        at[0].parse::<u32>().ok()
    };
    let up = number_before(&["RDMA", "connection", "up"]);
    let up = up.or(number_before(&["RDMA", "connections", "up"]));
    match (up, number_before(&["being", "made"])) {
        (Some(1..), Some(1..)) => Ok(()),
        _ => Err(outcome.failure(&format!("the pairs of rank 0 are not shown: {line:?}"))),
    }
}

/// A rank leaves whose peer is stopped with its device: it is told what it waits for, and goes on.
fn leave_beside_a_stopped_one(kind: &str, what: &str) -> Result<()> {
    let go_on = NamedTempFile::new()?.into_temp_path();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_departing"));
    let job = Job::launched(2, &program)?.limit(Duration::from_secs(60)).over_devices()?;
    let job = job.arg(kind).arg(&go_on).start()?;
    job.lines("ready ", 2)?;
    let process = job.rank(1)?;
    let stopped = Stopped::wholly(&process)?;
    go_on.close()?;
    let told = job.lines("told: ", 1)?.remove(0);
    drop(stopped);
    let outcome = job.wait()?.success()?.says("finished 0")?.says("finished 1")?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    match told.ends_with(&format!(" waiting for {what} to rank 1 on {}", host.trim())) {
        true => Ok(()),
        false => Err(outcome.failure("it was to be told what it waits for")),
    }
}

/// Rank 1 is stopped a moment after rank 0 has begun a pair.
fn stop_within_pairing(seed: u64) -> Result<()> {
    let mut dice = Seed::new(seed);
    let (job, go_on) = paired(seed)?;
    let process = job.rank(1)?;
    go_on.close()?;
    random_moment(&mut dice, Duration::from_millis(3));
    // It may have received all, and ended.
    let stopped = Stopped::stop(&process).ok();
    job.lines("received 2", 1)?;
    random_moment(&mut dice, Duration::from_millis(300));
    drop(stopped);
    job.wait()?.success()?.says("received 1")?.says("wrote 0").map(drop)
}
