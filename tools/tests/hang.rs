//! The hang table and `--timeout` of the real gaspi_run.
//!
//! The ranks are this test program itself: `as_a_rank` plays the part that GASPI_TEST_PART names.

mod harness;

use gaspi_collectives::{TypedRequest, start};
use gaspi_core::{Config, GroupId, Init, Job, PendingInit, Rank, Runtime, SegmentId, Timeout};
use harness::{GUARD, Outcome, Run, ended, gaspi_run, run};
use std::process::{Command, Stdio};
use std::time::Instant;

const PART: &str = "GASPI_TEST_PART";
const TITLE: &str = "gaspi_run: what the ranks are doing:";
/// What is asked for in vain.
const FOREVER: Timeout = Timeout::Block;

fn join() -> Runtime {
    let job = Job::from_environment().expect("job");
    PendingInit::new(job, Config::default()).expect("joining").wait(FOREVER).expect("runtime")
}

/// Does nothing until the job is ended.
fn idle() -> ! {
    loop {
        std::thread::park();
    }
}

#[test]
#[ignore = "the part of a rank, played when another test starts this program"]
fn as_a_rank() {
    let part = std::env::var(PART).expect("started by another test");
    let rank: u16 = std::env::var("GASPI_RANK").expect("rank").parse().expect("rank");
    match part.as_str() {
        "init" if rank == 1 => idle(),
        "init" => drop(join()),
        "barrier" | "dead" | "stopped" | "left" if rank != 1 => {
            let runtime = join();
            // In one part that rank has ended; then no rank is to blame for the next barrier.
            let _ = runtime.barrier(GroupId::ALL, FOREVER);
            idle();
        }
        "barrier" => {
            let _runtime = join();
            idle();
        }
        "dead" => {
            let runtime = join();
            // All are through their init, which a death would end.
            runtime.barrier(GroupId::ALL, FOREVER).expect("barrier");
            // SAFETY: ends this process.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        "stopped" => {
            let _runtime = join();
            // SAFETY: stops this process.
            unsafe { libc::raise(libc::SIGSTOP) };
            idle();
        }
        "left" => {
            join().term(FOREVER).expect("term");
            idle();
        }
        "objects" => objects(&join(), rank),
        "long" => wait_long(&join(), rank),
        other => panic!("unknown part {other}"),
    }
}

/// Three ranks that wait in different calls, rank 2 for ranks 0 and 1.
fn objects(runtime: &Runtime, rank: u16) {
    let segment = SegmentId(9);
    runtime.segment_create(segment, 64, GroupId::ALL, FOREVER, Init::Zeroed).expect("segment");
    match rank {
        0 => std::thread::scope(|scope| {
            scope.spawn(|| runtime.notify_waitsome(segment, 0, 1, FOREVER));
            scope.spawn(|| runtime.passive_receive(segment, 0, 8, FOREVER));
        }),
        1 => {
            let pair = runtime.group_create().expect("group");
            runtime.group_add(pair, Rank(1)).expect("add");
            runtime.group_add(pair, Rank(2)).expect("add");
            runtime.group_commit(pair, FOREVER).expect("commit");
            runtime.barrier(pair, FOREVER).expect("barrier");
        }
        _ => {
            let pair = runtime.group_create().expect("group");
            runtime.group_add(pair, Rank(1)).expect("add");
            runtime.group_add(pair, Rank(2)).expect("add");
            runtime.group_commit(pair, FOREVER).expect("commit");
            let all = runtime.group_create().expect("group");
            for rank in 0..3 {
                runtime.group_add(all, Rank(rank)).expect("add");
            }
            runtime.group_commit(all, FOREVER).expect("commit");
        }
    }
}

/// Writes what the library warns of to standard error.
struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("{}", record.args());
        }
    }

    fn flush(&self) {}
}

fn group_of(runtime: &Runtime, ranks: &[u16]) -> GroupId {
    let group = runtime.group_create().expect("group");
    for rank in ranks {
        runtime.group_add(group, Rank(*rank)).expect("add");
    }
    group
}

/// All ranks but one wait without a limit, each in another call.
fn wait_long(runtime: &Runtime, rank: u16) {
    log::set_logger(&Warnings).expect("no other logger");
    log::set_max_level(log::LevelFilter::Warn);
    let collective = |group| {
        let mut barrier = start(runtime, group, TypedRequest::barrier(), FOREVER).expect("start");
        barrier.wait(FOREVER).expect("wait");
    };
    // Ids are counted by each rank, and have to be the same on all members.
    let groups = [[0, 1], [0, 3], [0, 4]].map(|ranks| group_of(runtime, &ranks));
    let commit = |group| runtime.group_commit(group, FOREVER).expect("commit");
    match rank {
        0 => {
            commit(groups[1]);
            commit(groups[2]);
            collective(groups[1]);
            idle();
        }
        1 => commit(groups[0]),
        2 => runtime.barrier(GroupId::ALL, FOREVER).expect("barrier"),
        3 => {
            commit(groups[1]);
            collective(groups[1]);
            collective(groups[1]);
        }
        4 => {
            commit(groups[2]);
            collective(groups[2]);
        }
        _ => {
            let segment = SegmentId(9);
            runtime.segment_alloc(segment, 64, Init::Zeroed).expect("segment");
            let _ = runtime.notify_waitsome(segment, 0, 1, FOREVER);
        }
    }
}

/// gaspi_run with this program as the ranks.
fn playing(part: &str, options: &[&str]) -> Command {
    let program = std::env::current_exe().expect("own path");
    let mut command = gaspi_run(options);
    command.arg(program).args(["--exact", "as_a_rank", "--ignored", "--nocapture", "--quiet"]);
    command.env(PART, part);
    command
}

/// A job whose standard error is looked through for tables.
struct Watched {
    run: Run,
    ranks: usize,
    text: String,
}

impl Watched {
    fn start(part: &str, ranks: usize) -> Watched {
        let mut run = Run::start(playing(part, &["-n", &ranks.to_string()]));
        // gaspi_run takes signals by the time that a rank has said something.
        run.lines(1);
        Watched { run, ranks, text: String::new() }
    }

    /// Asks for tables until one is as expected, and returns its lines without title and heads.
    fn table(&mut self, expected: impl Fn(&[Vec<String>]) -> bool) -> Vec<Vec<String>> {
        let deadline = Instant::now() + GUARD;
        loop {
            self.text.clear();
            self.run.signal("USR1");
            while !self.is_whole() {
                let left = deadline.saturating_duration_since(Instant::now());
                match self.run.stderr.recv_timeout(left) {
                    Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                    Err(error) => panic!("{error}: no table as expected: {}", self.text),
                }
            }
            let rows = self.rows();
            if expected(&rows) {
                return rows;
            }
            assert!(Instant::now() < deadline, "no table as expected: {}", self.text);
        }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let lines = self.text.lines().skip_while(|line| *line != TITLE).skip(2);
        let cells = |line: &str| {
            line.trim()
                .split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .map(str::to_owned)
                .collect()
        };
        lines.map(cells).collect()
    }

    fn is_whole(&self) -> bool {
        let last = (self.ranks - 1).to_string();
        self.text.ends_with('\n') && self.rows().iter().any(|row| row[0] == last)
    }

    fn end(self) -> Outcome {
        self.run.signal("TERM");
        let outcome = self.run.finish();
        // Not one of the ranks got SIGUSR1, which would have killed it.
        assert!(!outcome.stderr.contains("SIGUSR1"), "{}", outcome.stderr);
        outcome
    }
}

/// The cell of a row, empty if there is none.
fn cell(row: &[String], column: usize) -> &str {
    row.get(column).map_or("", String::as_str)
}

/// Whether the row's cells from the third on are these, whatever the time is.
fn shows(row: &[String], state: &str, call: &str, object: &str, awaited: &str) -> bool {
    let time = cell(row, 5);
    (cell(row, 2), cell(row, 3), cell(row, 4)) == (state, call, object)
        && time.ends_with('s')
        && cell(row, 6) == awaited
}

#[test]
fn ranks_that_never_join() {
    let line = ["-n", "2", "sh", "-c", "echo $$; exec sleep 1000"];
    let mut run = Run::start(gaspi_run(&line));
    let mut pids = run.lines(2);
    let mut job = Watched { run, ranks: 2, text: String::new() };
    let rows = job.table(|_| true);
    for (rank, row) in rows.iter().enumerate() {
        assert_eq!(cell(row, 0), rank.to_string());
        assert_eq!((cell(row, 2), cell(row, 3)), ("not joined", "has not called proc_init"));
    }
    let mut shown: Vec<String> = rows.iter().map(|row| row[1].clone()).collect();
    shown.sort_unstable();
    pids.sort_unstable();
    assert_eq!(shown, pids);
    assert_eq!(job.end().code, Some(143));
}

#[test]
fn a_rank_that_keeps_the_others_from_joining() {
    let mut job = Watched::start("init", 3);
    let rows = job.table(|rows| {
        let waits = |row: &[String]| {
            (cell(row, 2), cell(row, 3), cell(row, 5)) == ("not joined", "proc_init", "1")
                && cell(row, 4).ends_with('s')
        };
        waits(&rows[0]) && waits(&rows[2]) && rows.len() == 4
    });
    assert_eq!((cell(&rows[1], 2), cell(&rows[1], 3)), ("not joined", "has not called proc_init"));
    assert_eq!(rows[3].join(" "), "gaspi_run: rank 1: waited for, but does not wait");
    job.end();
}

#[test]
fn a_rank_that_does_not_come_to_the_barrier() {
    let mut job = Watched::start("barrier", 4);
    let rows = job.table(|rows| {
        let waits = |row: &[String]| shows(row, "joined", "barrier", "group 0", "1");
        waits(&rows[0]) && waits(&rows[2]) && waits(&rows[3]) && rows.len() == 5
    });
    assert_eq!(cell(&rows[1], 3), "computing, or in a call that does not sleep");
    assert_eq!(rows[4].join(" "), "gaspi_run: rank 1: waited for, but does not wait");
    job.end();
}

#[test]
fn a_stopped_rank_is_seen_and_can_be_ended() {
    let mut job = Watched::start("stopped", 3);
    job.table(|rows| {
        shows(&rows[0], "joined", "barrier", "group 0", "1")
            && cell(&rows[1], 2) == "joined, stopped"
    });
    assert_eq!(job.end().code, Some(143));
}

#[test]
fn ranks_that_died_or_left() {
    let mut job = Watched::start("dead", 2);
    job.table(|rows| {
        (cell(&rows[1], 2), cell(&rows[1], 3)) == ("dead", "killed by signal 9, SIGKILL")
    });
    job.end();
    let mut job = Watched::start("left", 2);
    job.table(|rows| (cell(&rows[1], 2), cell(&rows[1], 3)) == ("left", "has called proc_term"));
    job.end();
}

#[test]
fn calls_tell_their_objects_and_threads_have_lines_of_their_own() {
    let mut job = Watched::start("objects", 3);
    job.table(|rows| {
        let text = |row: usize| rows.get(row).map_or(String::new(), |row| row.join("|"));
        let calls = [text(0), text(1)].join("\n");
        calls.contains("notify_waitsome|segment 9|")
            && calls.contains("passive_receive|segment 9|")
            && rows.get(2).is_some_and(|row| shows(row, "joined", "barrier", "group 1", "2"))
            && rows.get(3).is_some_and(|row| shows(row, "joined", "group_commit", "group 2", "0-1"))
    });
    job.end();
}

#[test]
fn calls_that_wait_for_long_say_what_for() {
    for transport in ["shm", "tcp"] {
        let mut command = playing("long", &["-n", "6", "--label"]);
        command.env("GASPI_TRANSPORT", transport).env("GASPI_STALL_WARNING", "1");
        let mut run = Run::start(command);
        let mut said = String::new();
        for (rank, call, awaited) in [
            (1, "group_commit", "for ranks {0} to commit group 1"),
            (2, "barrier", "for ranks 0, 1, 3, 4, 5 to arrive at barrier of group 0"),
            (3, "a collective", "for rank 0 in barrier ("),
            (4, "a collective", "for rank 0 to arrive at a collective of group 3"),
            (5, "notify_waitsome", "for a notification of segment 9"),
        ] {
            let begin = format!("[{rank}] {call}: has waited ");
            let is_it = |line: &str| line.starts_with(&begin) && line.contains(awaited);
            // Each says it again, when it has waited twice as long.
            run.until_said(&mut said, &format!("{transport}: {begin}N s {awaited}"), is_it, 2);
        }
        // The table tells the time since the call began.
        let mut job = Watched { run, ranks: 6, text: String::new() };
        job.table(|rows| {
            let waited = |row: &Vec<String>| {
                let seconds = cell(row, 5).strip_suffix(" s").and_then(|time| time.parse().ok());
                seconds.is_some_and(|seconds: f64| seconds >= 2.0)
            };
            rows.len() >= 6 && rows[1..6].iter().all(waited)
        });
        job.run.signal("TERM");
        assert_eq!(job.run.finish().code, Some(143));
    }
}

#[test]
fn two_hundred_ranks() {
    let mut job = Watched::start("barrier", 200);
    let rows = job.table(|rows| {
        rows[..200].iter().filter(|row| shows(row, "joined", "barrier", "group 0", "1")).count()
            == 199
    });
    assert_eq!(cell(&rows[1], 2), "joined");
    job.end();
}

#[test]
fn a_job_of_one_rank() {
    let mut run = Run::start(gaspi_run(&["-n", "1", "sh", "-c", "echo ready; exec sleep 1000"]));
    run.lines(1);
    let mut job = Watched { run, ranks: 1, text: String::new() };
    assert_eq!(job.table(|_| true).len(), 1);
    job.end();
}

/// A job that is ended by its time limit.
#[track_caller]
fn timed_out(outcome: &Outcome, who: &str) {
    assert_eq!(outcome.code, Some(124), "{}", outcome.stderr);
    let table = outcome.stderr.find(TITLE).unwrap_or_else(|| panic!("{}", outcome.stderr));
    let message = outcome.stderr.find(&format!("gaspi_run: {who} still running after "));
    assert!(message.is_some_and(|at| at > table), "{}", outcome.stderr);
}

#[test]
fn a_job_that_takes_too_long_is_ended() {
    let text = "[ $GASPI_RANK = 1 ] && exit 0; exec sleep 1000";
    let outcome = run(&["-n", "4", "--timeout", "0.5", "sh", "-c", text]);
    timed_out(&outcome, "ranks 0,2-3");
    assert!(outcome.stderr.contains("after 0.5 s (--timeout)"), "{}", outcome.stderr);
    assert!(outcome.stderr.ends_with("3 ranks were ended by gaspi_run\n"), "{}", outcome.stderr);
    // Also ranks that end well when they are asked to.
    let text = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    timed_out(&run(&["-n", "1", "--timeout", "0.2s", "sh", "-c", text]), "rank 0");
}

#[test]
fn a_job_within_its_time_is_left_alone() {
    let outcome = run(&["-n", "2", "--timeout", "1h30m", "sh", "-c", "exit 3"]);
    assert_eq!(outcome.code, Some(3));
    assert!(!outcome.stderr.contains(TITLE), "{}", outcome.stderr);
    for time in ["0", "5x", "-1"] {
        let outcome = run(&["-n", "2", &format!("--timeout={time}"), "true"]);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("1h30m"), "{}", outcome.stderr);
    }
}

#[test]
fn a_time_limit_holds_at_each_stage() {
    for (part, word) in
        [("init", "not joined"), ("barrier", "barrier"), ("stopped", "joined, stopped")]
    {
        // On a busy machine the ranks may take longer to get that far.
        let mut told = String::new();
        for time in ["2s", "10s", "40s"] {
            let outcome = Run::start(playing(part, &["-n", "2", "--timeout", time])).finish();
            timed_out(&outcome, "ranks 0-1");
            told = outcome.stderr;
            if told.contains(word) {
                break;
            }
        }
        assert!(told.contains(word), "{told}");
    }
}

#[test]
fn a_time_limit_ends_the_deaf_and_their_children() {
    let directory = tempfile::tempdir().expect("directory");
    let fifo = directory.path().join("alive");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let reader = Command::new("cat").arg(&fifo).stdout(Stdio::null()).spawn().expect("cat");
    let text = format!(
        "exec 3>{}; trap '' TERM; (sleep 1000; sleep 1000) & sleep 1000; sleep 1000",
        fifo.display()
    );
    timed_out(&run(&["-n", "2", "--timeout", "0.3", "sh", "-c", &text]), "ranks 0-1");
    // Its end comes when no process holds the FIFO any more.
    assert!(ended(reader).success());
}

#[test]
fn a_time_limit_does_not_wait_for_a_reader_that_does_not_read() {
    let mut command = gaspi_run(&["-n", "1", "--timeout", "0.5", "yes"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("gaspi_run");
    let unread = child.stdout.take().expect("stdout");
    assert_eq!(ended(child).code(), Some(124));
    drop(unread);
}
