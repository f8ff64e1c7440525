//! Real processes that meet: under gaspi_run, and started by hand.
//!
//! The ranks are this test program itself: `as_a_rank` plays the part that GASPI_TEST_PART names.

mod harness;

use gaspi_core::bootstrap::{Card, Client, LauncherEvent, Table};
use gaspi_core::{Config, Error, Job, PendingInit, Result, Timeout};
use harness::far::Far;
use harness::{GUARD, Outcome, Run, gaspi_run};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

const PART: &str = "GASPI_TEST_PART";
/// Far beyond what a meeting takes.
const LIMIT: Timeout = Timeout::Millis(30_000);

fn gathering(config: &Config) -> Result<Client> {
    let job = Job::from_environment()?;
    let pid = std::process::id() as i32;
    let card = Card {
        rank: job.rank,
        pid,
        start_time: gaspi_core::os::process::start_time(pid).expect("own process"),
        instance: 1,
        node: 0,
        machine: 0,
        endpoints: Vec::new(),
        host: job.hosts[job.rank.index()].clone(),
        cpus: [1].into(),
        networks: [].into(),
    };
    Client::new(&job, config, card)
}

fn meet(config: &Config, timeout: Timeout) -> Result<Table> {
    gathering(config)?.poll(timeout.deadline())
}

/// Says how a meeting ended, on a line of its own.
fn say(rank: &str, met: &Result<Table>) {
    match met {
        Ok(table) => println!("rank {rank} met {} ranks", table.cards.len()),
        Err(error) => println!("rank {rank} failed: {error}"),
    }
}

#[test]
#[ignore = "the part of a rank, played when another test starts this program"]
fn as_a_rank() {
    let part = std::env::var(PART).expect("started by another test");
    let rank = std::env::var("GASPI_RANK").unwrap_or_else(|_| "none".to_owned());
    // The test framework has begun a line.
    println!();
    match part.as_str() {
        "meet" => say(&rank, &meet(&Config::default(), LIMIT)),
        "block" => say(&rank, &meet(&Config::default(), Timeout::Block)),
        "again" => {
            for _ in 0..10 {
                meet(&Config::default(), LIMIT).expect("table");
            }
            say(&rank, &meet(&Config::default(), LIMIT));
        }
        "differ" => {
            let queue_num = if rank == "2" { 3 } else { 8 };
            say(&rank, &meet(&Config { queue_num, ..Config::default() }, LIMIT));
        }
        "patient" => {
            let mut gathering = gathering(&Config::default()).expect("gathering");
            let mut last = String::new();
            loop {
                match gathering.poll(Timeout::Millis(5).deadline()) {
                    Err(Error::Timeout { pending }) if pending == last => {}
                    Err(Error::Timeout { pending }) => {
                        println!("rank {rank} waits for {pending}");
                        last = pending;
                    }
                    met => return say(&rank, &met),
                }
            }
        }
        "end-before" if rank == "1" => std::process::exit(3),
        "end-before" => say(&rank, &meet(&Config::default(), Timeout::Block)),
        "kill" => {
            let table = meet(&Config::default(), LIMIT).expect("table");
            if rank == "0" {
                table.membership.request_kill(gaspi_core::Rank(1)).expect("request");
            } else {
                std::thread::sleep(std::time::Duration::from_secs(1000));
            }
        }
        "die" => {
            let table = meet(&Config::default(), LIMIT).expect("table");
            if rank == "1" {
                // SAFETY: ends this process.
                unsafe { libc::raise(libc::SIGKILL) };
            }
            println!("rank {rank} heard that {}", news(table));
        }
        "runtime" => {
            let job = Job::from_environment().expect("job");
            let mut joining = PendingInit::new(job, Config::default()).expect("joining");
            let runtime = joining.wait(LIMIT).expect("runtime");
            runtime.barrier(gaspi_core::GroupId::ALL, LIMIT).expect("barrier");
            println!("rank {} of {} is through", runtime.rank().0, runtime.size());
            runtime.term(LIMIT).expect("term");
        }
        other => panic!("unknown part {other}"),
    }
}

/// The first news of a launcher.
fn news(mut table: Table) -> String {
    let deadline = Instant::now() + GUARD;
    loop {
        match table.membership.next_event() {
            Some(LauncherEvent::Died { rank, how }) => return format!("{rank} died: {how}"),
            Some(other) => return format!("{other:?}"),
            None => assert!(Instant::now() < deadline, "no news"),
        }
        std::thread::yield_now();
    }
}

/// This program as a rank.
fn rank_program() -> Vec<String> {
    let program = std::env::current_exe().expect("own path").to_string_lossy().into_owned();
    let arguments = ["--exact", "as_a_rank", "--ignored", "--nocapture", "--quiet"];
    std::iter::once(program).chain(arguments.map(str::to_owned)).collect()
}

fn launched(options: &[&str], part: &str) -> Outcome {
    let program = rank_program();
    let line: Vec<&str> =
        options.iter().copied().chain(program.iter().map(String::as_str)).collect();
    let mut command = gaspi_run(&line);
    command.env(PART, part);
    Run::start(command).finish()
}

/// Ranks 0, 1 and 4 on one host, 2 on this machine, 3 on another.
const HOSTS: &str = "240.0.0.1:2,127.0.0.1,240.0.0.2,240.0.0.1";

fn launched_over_hosts(far: &Far, options: &[&str], part: &str) -> Outcome {
    let program = rank_program();
    let words = ["--hosts", HOSTS].into_iter().chain(options.iter().copied());
    let line: Vec<&str> = words.chain(program.iter().map(String::as_str)).collect();
    let mut command = far.gaspi_run(&line);
    command.env(PART, part);
    Run::start(command).finish()
}

/// What the ranks said, sorted.
fn said(text: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        text.lines().filter(|line| line.starts_with("rank ")).map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn ranks_meet_under_gaspi_run() {
    for (part, ranks) in [("meet", 1), ("meet", 5), ("again", 4)] {
        let outcome = launched(&["-n", &ranks.to_string()], part).success();
        let expected: Vec<String> =
            (0..ranks).map(|rank| format!("rank {rank} met {ranks} ranks")).collect();
        assert_eq!(said(&outcome.stdout), expected);
    }
}

#[test]
fn the_library_joins_under_gaspi_run() {
    let outcome = launched(&["-n", "4"], "runtime").success();
    let expected: Vec<String> = (0..4).map(|rank| format!("rank {rank} of 4 is through")).collect();
    assert_eq!(said(&outcome.stdout), expected);
}

#[test]
fn a_difference_is_told_to_all() {
    let outcome = launched(&["-n", "3"], "differ").success();
    let lines = said(&outcome.stdout);
    assert_eq!(lines.len(), 3, "{}", outcome.stdout);
    for line in lines {
        assert!(line.contains("queue_num is 8 on rank 0 and 3 on rank 2"), "{line}");
    }
}

#[test]
fn a_rank_that_never_joins_ends_the_init_of_all() {
    let outcome = launched(&["-n", "3"], "end-before");
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    let lines = said(&outcome.stdout);
    assert_eq!(lines.len(), 2, "{}", outcome.stdout);
    for line in lines {
        assert!(
            line.contains("rank 1 has ended before it joined the job (exit status 3)"),
            "{line}"
        );
    }
}

#[test]
fn a_rank_can_have_another_killed() {
    let outcome = launched(&["-n", "2"], "kill");
    assert_eq!(outcome.code, Some(137), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("gaspi_run: rank 1 (pid "), "{}", outcome.stderr);
    // Under a script it is the program that is killed, not the shell.
    let program = rank_program();
    let script = "\"$@\"; echo rank $GASPI_RANK ended with $?; exit 0";
    let mut line = vec!["-n", "2", "sh", "-c", script, "sh"];
    line.extend(program.iter().map(String::as_str));
    let mut command = gaspi_run(&line);
    command.env(PART, "kill");
    let outcome = Run::start(command).finish().success();
    assert_eq!(said(&outcome.stdout), ["rank 0 ended with 0", "rank 1 ended with 137"]);
}

#[test]
fn ranks_meet_over_hosts() {
    let far = Far::new();
    for part in ["meet", "again"] {
        let outcome = launched_over_hosts(&far, &[], part).success();
        let expected: Vec<String> = (0..5).map(|rank| format!("rank {rank} met 5 ranks")).collect();
        assert_eq!(said(&outcome.stdout), expected);
        assert_eq!(outcome.stderr, "");
    }
    let outcome = launched_over_hosts(&far, &[], "differ").success();
    let lines = said(&outcome.stdout);
    assert_eq!(lines.len(), 5, "{}", outcome.stdout);
    for line in lines {
        assert!(line.contains("queue_num is 8 on rank 0 and 3 on rank 2"), "{line}");
    }
}

#[test]
fn a_rank_that_never_joins_ends_the_init_on_all_hosts() {
    let outcome = launched_over_hosts(&Far::new(), &[], "end-before");
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    let lines = said(&outcome.stdout);
    assert_eq!(lines.len(), 4, "{}", outcome.stdout);
    let how = "rank 1 on 240.0.0.1 has ended before it joined the job (exit status 3)";
    assert!(lines.iter().all(|line| line.contains(how)), "{lines:?}");
}

#[test]
fn ranks_on_other_hosts_are_killed_and_die() {
    let far = Far::new();
    // Rank 0, elsewhere, asks for the end of rank 1; all others sleep until then.
    let outcome = launched_over_hosts(&far, &["--kill-on-failure"], "kill");
    assert_eq!(outcome.code, Some(137), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("rank 1 failed: ending the job"), "{}", outcome.stderr);
    // A death is news on every host.
    let outcome = launched_over_hosts(&far, &[], "die");
    assert_eq!(outcome.code, Some(137), "{}", outcome.stderr);
    let heard = |rank| format!("rank {rank} heard that rank 1 died: killed by signal 9, SIGKILL");
    assert_eq!(said(&outcome.stdout), [0, 2, 3, 4].map(heard));
}

#[test]
fn the_library_joins_on_one_other_host() {
    let far = Far::new();
    let program = rank_program();
    let line: Vec<&str> =
        ["--hosts", "240.0.0.1:3"].into_iter().chain(program.iter().map(String::as_str)).collect();
    let mut command = far.gaspi_run(&line);
    command.env(PART, "runtime");
    let outcome = Run::start(command).finish().success();
    assert_eq!(said(&outcome.stdout), [0, 1, 2].map(|rank| format!("rank {rank} of 3 is through")));
}

/// Ranks started by hand, one process each.
fn by_hand(part: &str, environments: &[&[(&str, &str)]]) -> Vec<Outcome> {
    let program = rank_program();
    let start = |environment: &&[(&str, &str)]| {
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).env(PART, part).stdin(Stdio::null()).process_group(0);
        for name in ["GASPI_RANK", "GASPI_NRANKS", "GASPI_SOCKET", "GASPI_MFILE", "GASPI_JOB_ID"] {
            command.env_remove(name);
        }
        Run::start(command_with(command, environment))
    };
    let runs: Vec<Run> = environments.iter().map(start).collect();
    runs.into_iter().map(Run::finish).collect()
}

fn command_with(mut command: Command, environment: &[(&str, &str)]) -> Command {
    command.envs(environment.iter().copied());
    command
}

#[test]
fn ranks_started_by_hand_meet() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("hosts");
    std::fs::write(&path, "localhost\r\n127.0.0.1\r\n::1").expect("write");
    let file = path.to_string_lossy().into_owned();
    for part in ["meet", "again", "runtime"] {
        let ranks: Vec<[(&str, &str); 4]> = ["0", "1", "2"]
            .map(|rank| {
                let mfile = ("GASPI_MFILE", file.as_str());
                [("GASPI_RANK", rank), ("GASPI_NRANKS", "3"), ("GASPI_SOCKET", rank), mfile]
            })
            .to_vec();
        let ranks: Vec<&[(&str, &str)]> = ranks.iter().map(|rank| &rank[..]).collect();
        for outcome in by_hand(part, &ranks) {
            let outcome = outcome.success();
            let lines = said(&outcome.stdout);
            assert!(lines.len() == 1 && !lines[0].contains("failed"), "{}", outcome.stdout);
        }
    }
}

#[test]
fn two_processes_with_one_rank() {
    let id = format!("claimed-twice-{}", std::process::id());
    let rank = |number| [("GASPI_RANK", number), ("GASPI_NRANKS", "2"), ("GASPI_JOB_ID", &*id)];
    // Two are rank 0, so one of them has to be refused; the other waits for rank 1, which comes
    // last.
    let program = rank_program();
    let start = |number| {
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).env(PART, "block").stdin(Stdio::null());
        Run::start(command_with(command, &rank(number)))
    };
    let (mut one, mut two) = (start("0"), start("0"));
    let refused = loop {
        if one.child.try_wait().expect("wait").is_some() {
            break std::mem::replace(&mut one, start("1"));
        }
        if two.child.try_wait().expect("wait").is_some() {
            break std::mem::replace(&mut two, start("1"));
        }
        std::thread::yield_now();
    };
    let lines = said(&refused.finish().stdout);
    assert!(lines[0].contains("already claimed by process"), "{lines:?}");
    let mut lines = [said(&one.finish().stdout), said(&two.finish().stdout)].concat();
    lines.sort_unstable();
    assert_eq!(lines, ["rank 0 met 2 ranks", "rank 1 met 2 ranks"]);
}

#[test]
fn environments_that_contradict_themselves() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("GASPI_RANK", "0")], "GASPI_NRANKS"),
        (&[("GASPI_RANK", "5"), ("GASPI_NRANKS", "2")], "ranks are 0 to 1"),
        (&[("GASPI_RANK", "0"), ("GASPI_NRANKS", "1"), ("GASPI_SOCKET", "z")], "GASPI_SOCKET"),
        (&[("GASPI_RANK", "0"), ("GASPI_NRANKS", "1"), ("GASPI_MFILE", "/none")], "/none"),
    ];
    for (environment, word) in cases {
        let outcome = by_hand("block", &[environment]).remove(0);
        let lines = said(&outcome.stdout);
        assert!(lines.len() == 1 && lines[0].contains(word), "{word}: {}", outcome.stdout);
    }
    let id = format!("sizes-{}", std::process::id());
    let two = [("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), ("GASPI_JOB_ID", &*id)];
    let three = [("GASPI_RANK", "1"), ("GASPI_NRANKS", "3"), ("GASPI_JOB_ID", &*id)];
    for outcome in by_hand("block", &[&two, &three]) {
        assert!(said(&outcome.stdout)[0].contains("GASPI_NRANKS"), "{}", outcome.stdout);
    }
}

#[test]
fn two_jobs_at_once_do_not_meet() {
    let runs: Vec<Run> = (0..4)
        .map(|_| {
            let program = rank_program();
            let line: Vec<&str> =
                ["-n", "3"].into_iter().chain(program.iter().map(String::as_str)).collect();
            let mut command = gaspi_run(&line);
            command.env(PART, "again");
            Run::start(command)
        })
        .collect();
    for run in runs {
        assert_eq!(said(&run.finish().success().stdout).len(), 3);
    }
}

#[test]
fn the_death_of_host_or_guest_during_init_is_told() {
    for victim in ["host", "guest"] {
        let id = format!("dies-{victim}-{}", std::process::id());
        let program = rank_program();
        let start = |number| {
            let rank = [("GASPI_RANK", number), ("GASPI_NRANKS", "3"), ("GASPI_JOB_ID", &*id)];
            let mut command = Command::new(&program[0]);
            command.args(&program[1..]).env(PART, "patient").stdin(Stdio::null());
            Run::start(command_with(command, &rank))
        };
        // The first takes the name and hosts; both say when they wait for rank 2 alone.
        let mut host = start("0");
        host.until("waits for ranks 1, 2");
        let mut guest = start("1");
        guest.until("waits for rank 2");
        let (killed, survivor) = if victim == "host" { (host, guest) } else { (guest, host) };
        let pid = killed.child.id();
        killed.signal("KILL");
        assert_eq!(killed.finish().signal, Some(9));
        let lines = said(&survivor.finish().stdout);
        let last = lines.iter().find(|line| line.contains("failed")).expect("failed");
        assert!(
            last.contains(&format!("process {pid}")) && last.contains("ended during init"),
            "{last}"
        );
    }
}
