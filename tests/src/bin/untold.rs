//! A rank of the test of messages that are lost behind their sender's back: `untold FILE`.
//!
//! Of two ranks, rank 0 begins an all-reduce, whose message comes. Rank 1 stops it, shuts its own
//! connections with it down for sending, and takes part: its message is lost, and its part is done.
//! Then it calls nothing before FILE is gone. Rank 0 has to learn that nothing comes.

use std::collections::HashSet;
use std::path::Path;
use std::process::ExitCode;

use gaspi::collectives::{Operation, TypedRequest, start};
use gaspi::{
    Config, GroupId, Init, Job, NotificationId, PendingInit, QueueId, Rank, Result, Runtime,
    SegmentId, Timeout,
};
use gaspi_tests::run_rank;

/// A guard: nothing may take longer.
const GUARD: Timeout = Timeout::Millis(60_000);
/// Long enough for a message to be sent, and to be seen.
const PART: Timeout = Timeout::Millis(50);
const SEGMENT: SegmentId = SegmentId(0);
const BEGUN: NotificationId = NotificationId(0);

fn main() -> ExitCode {
    run_rank("untold FILE", |arguments| match arguments {
        [file] => Some(run(Path::new(file))),
        _ => None,
    })
}

fn run(file: &Path) -> Result<()> {
    let rt = PendingInit::new(Job::from_environment()?, Config::default())?.wait(GUARD)?;
    rt.segment_create(SEGMENT, 64, GroupId::ALL, GUARD, Init::Zeroed)?;
    let own = if rt.rank() == Rank(0) { u64::from(std::process::id()) } else { 0 };
    let pid = start(&rt, GroupId::ALL, sum_of(own), GUARD)?.wait(GUARD)?[0];
    rt.barrier(GroupId::ALL, GUARD)?;
    if rt.rank() == Rank(0) {
        match awaited_sum(&rt) {
            Ok(()) => println!("the sum came"),
            Err(error) => println!("learned: {error}"),
        }
    } else {
        lose_a_message(&rt, pid)?;
    }
    while file.exists() {
        std::thread::yield_now();
    }
    rt.term(GUARD)
}

fn sum_of(own: u64) -> TypedRequest<'static, u64> {
    TypedRequest::allreduce_in_place(Operation::Sum, vec![own])
}

/// Rank 0: begins an all-reduce, says so, and waits for its end.
fn awaited_sum(rt: &Runtime) -> Result<()> {
    let mut sum = start(rt, GroupId::ALL, sum_of(1), GUARD)?;
    match sum.wait(PART) {
        Err(error) if error.is_timeout() => {}
        other => panic!("rank 1 has not begun: {other:?}"),
    }
    rt.notify(Rank(1), SEGMENT, BEGUN, 1, QueueId(0), GUARD)?;
    rt.wait(QueueId(0), GUARD)?;
    sum.wait(GUARD).map(drop)
}

/// Rank 1: takes part without being heard.
fn lose_a_message(rt: &Runtime, pid: u64) -> Result<()> {
    rt.notify_waitsome(SEGMENT, BEGUN.0, 1, GUARD)?;
    signal(pid, libc::SIGSTOP);
    let stat = format!("/proc/{pid}/stat");
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") T ")) {
        std::thread::yield_now();
    }
    let cut = connections_with(pid).into_iter().filter(|fd| {
        // SAFETY: no memory is passed.
        unsafe { libc::shutdown(*fd, libc::SHUT_WR) == 0 }
    });
    println!("cut {}", cut.count());
    let mut sum = start(rt, GroupId::ALL, sum_of(1), GUARD)?;
    let ended = sum.wait(GUARD).map(<[u64]>::to_vec);
    signal(pid, libc::SIGCONT);
    assert_eq!(ended?, [2], "the message of rank 0 is there");
    println!("done");
    Ok(())
}

fn signal(pid: u64, signal: libc::c_int) {
    // SAFETY: no memory is passed.
    assert_eq!(unsafe { libc::kill(pid as libc::pid_t, signal) }, 0, "rank 0 is there");
}

/// The descriptors of this process of connections with another one of this machine.
fn connections_with(pid: u64) -> Vec<libc::c_int> {
    let theirs: HashSet<String> = sockets(&pid.to_string()).into_iter().map(|(_, id)| id).collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let rows: Vec<Vec<&str>> =
        table.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
    let is_with_it = |id: &String| {
        let own = rows.iter().find(|row| row.get(9) == Some(&id.as_str()));
        let other = |own: &&Vec<&str>| {
            rows.iter().any(|row| {
                row[1] == own[2]
                    && row[2] == own[1]
                    && theirs.contains(row.get(9).copied().unwrap_or_default())
            })
        };
        own.filter(other).is_some()
    };
    let own = sockets("self").into_iter().filter(|(_, id)| is_with_it(id));
    own.map(|(descriptor, _)| descriptor).collect()
}

/// The sockets of a process: descriptors and inodes.
fn sockets(process: &str) -> Vec<(libc::c_int, String)> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return Vec::new() };
    let socket = |entry: std::fs::DirEntry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let id = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
        Some((entry.file_name().to_str()?.parse().ok()?, id))
    };
    entries.flatten().filter_map(socket).collect()
}
