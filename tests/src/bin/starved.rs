//! A rank of the tests of descriptors, and of processes: `starved init` or `starved CALL RANK`.
//!
//! - `init`: joins, meets the others in a barrier and leaves. Whatever ends that is printed as
//!   `refused`.
//! - `segment`, `commit`, `register`: all ranks join, RANK (for `all` every rank, for `rest` all
//!   but 0) opens files until there is no descriptor left, and all make a segment together, or
//!   commit a group, or each other rank registers a segment with RANK. Prints how each call ended,
//!   and after how many milliseconds.
//! - `meet RANK FILE`: all ranks disconnect from each other, RANK opens files until there is no
//!   descriptor left, arrives at a barrier, closes them once that has timed out, makes FILE, for
//!   which the others wait, and comes again. All print `met` behind the barrier.
//! - `map RANK`: all ranks make a segment together, RANK allows itself no more addresses and writes
//!   into the segment of the next rank, then allows itself all and does so again. Prints how each
//!   write ended.
//! - `background RANK`: all ranks join, RANK allows itself no more threads and prepares a sum that
//!   a thread of the library is to drive, prints how that ended and allows itself all again, and
//!   all ranks do it.
//! - `sum`: joins, adds up what all tell by a collective of the library, twice, and prints how many
//!   memory files of arenas it has mapped.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gaspi::collectives::{Operation, TypedRequest, prepare};
use gaspi::{
    Config, GroupId, Init, Job, PendingInit, QueueId, Rank, Runtime, SegmentId, Timeout, Transfer,
};

/// A guard: far above what any of this may take.
const GUARD: Timeout = Timeout::Millis(60_000);
const BYTES: u64 = 4096;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rank = std::env::var("GASPI_RANK").unwrap_or_default();
    let ended = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["init"] => join().and_then(|rt| {
            rt.barrier(GroupId::ALL, GUARD)?;
            println!("joined {rank}");
            rt.term(GUARD)
        }),
        ["sum"] => sum(&rank),
        ["map", who] => map(who),
        ["background", who] => background(who),
        ["meet", who, file] => meet(who, file.as_ref()),
        [call, who] => starve(call, who),
        _ => {
            eprintln!(
                "usage: starved init | sum | map|background RANK | \
                 segment|commit|register RANK|all|rest | meet RANK FILE"
            );
            return ExitCode::from(2);
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("refused {rank}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn join() -> gaspi::Result<Runtime> {
    PendingInit::new(Job::from_environment()?, Config::default())?.wait(GUARD)
}

/// Mappings of segments that are longer than any of a program here.
fn arenas_mapped() -> std::io::Result<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let is_arena = |line: &&str| {
        let range = line.split([' ', '-']).take(2).map(|end| u64::from_str_radix(end, 16));
        let ends: Vec<u64> = range.flatten().collect();
        line.contains("memfd:gaspi-segment") && ends[1] - ends[0] >= 64 << 20
    };
    Ok(maps.lines().filter(is_arena).count())
}

fn sum(rank: &str) -> gaspi::Result<()> {
    let rt = join()?;
    let mine: Vec<u64> = (0..1000).map(|index| index + u64::from(rt.rank().0)).collect();
    let ranks = u64::from(rt.size());
    let request = TypedRequest::allreduce(Operation::Sum, mine, vec![0; 1000]);
    let mut request = prepare(&rt, GroupId::ALL, request, GUARD)?;
    for _ in 0..2 {
        let sums = request.run(GUARD)?;
        let right =
            |(index, sum): (usize, &u64)| *sum == ranks * index as u64 + ranks * (ranks - 1) / 2;
        assert!(sums.iter().enumerate().all(right), "wrong sums");
    }
    drop(request);
    let files = arenas_mapped().expect("the mappings of this process");
    println!("summed {rank} {files}");
    // Those of ranks that have left may be mapped no more.
    rt.barrier(GroupId::ALL, GUARD)?;
    rt.term(GUARD)
}

/// Sets a limit, of addresses for example, and returns the one before.
fn set_limit(of: libc::__rlimit_resource_t, limit: libc::rlim_t) -> libc::rlim_t {
    let mut found = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills in the limit.
    assert_eq!(unsafe { libc::getrlimit(of, &raw mut found) }, 0);
    let new = libc::rlimit { rlim_cur: limit, ..found };
    // SAFETY: reads the limit.
    assert_eq!(unsafe { libc::setrlimit(of, &raw const new) }, 0);
    found.rlim_cur
}

/// Bytes of addresses that this process has.
fn addresses() -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    pages.map(|pages| pages * 4096).ok_or_else(|| std::io::Error::other("statm has no number"))
}

fn map(who: &str) -> gaspi::Result<()> {
    const LARGE: u64 = 256 << 20;
    let (rt, segment, queue) = (join()?, SegmentId(0), QueueId(0));
    rt.segment_create(segment, LARGE, GroupId::ALL, GUARD, Init::Uninitialized)?;
    let me = rt.rank().0;
    if who == me.to_string() {
        let next = Rank((me + 1) % rt.size() as u16);
        let (local, remote, local_offset, remote_offset) = (segment, segment, 0, 0);
        let transfer = Transfer { local, local_offset, rank: next, remote, remote_offset, size: 8 };
        let write = || rt.write(&transfer, queue, GUARD);
        // What the program has, and half a segment for what the library makes.
        let enough = addresses().expect("/proc") + LARGE / 2;
        let before = set_limit(libc::RLIMIT_AS, enough);
        let ended = write();
        set_limit(libc::RLIMIT_AS, before);
        println!("ended {me} {}", ended.map_or_else(|error| error.to_string(), |()| "well".into()));
        write()?;
        rt.wait(queue, GUARD)?;
        println!("written {me}");
    }
    rt.barrier(GroupId::ALL, GUARD)?;
    rt.term(GUARD)
}

fn background(who: &str) -> gaspi::Result<()> {
    let rt = join()?;
    let me = rt.rank().0;
    let prepared = || {
        let request = TypedRequest::allreduce(Operation::Sum, vec![1_u64], vec![0; 1]);
        prepare(&rt, GroupId::ALL, request.background(), GUARD)
    };
    if who == me.to_string() {
        let before = set_limit(libc::RLIMIT_NPROC, 1);
        let ended = prepared().map(drop);
        set_limit(libc::RLIMIT_NPROC, before);
        println!("ended {me} {}", ended.map_or_else(|error| error.to_string(), |()| "well".into()));
    }
    let mut request = prepared()?;
    println!("summed {me} {:?}", request.run(GUARD)?);
    drop(request);
    rt.barrier(GroupId::ALL, GUARD)?;
    rt.term(GUARD)
}

fn all_files() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

fn meet(who: &str, file: &Path) -> gaspi::Result<()> {
    let rt = join()?;
    let me = rt.rank().0;
    rt.barrier(GroupId::ALL, GUARD)?;
    for other in (0..rt.size() as u16).filter(|other| *other != me) {
        rt.disconnect(Rank(other), GUARD)?;
    }
    if who == me.to_string() {
        let files = all_files();
        // Long enough for attempts to connect to be given up.
        let ended = rt.barrier(GroupId::ALL, Timeout::Millis(500));
        drop(files);
        File::create(file).expect("the file");
        println!("ended {me} {}", ended.map_or_else(|error| error.to_string(), |()| "well".into()));
    }
    while !file.exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    rt.barrier(GroupId::ALL, GUARD)?;
    println!("met {me}");
    rt.term(GUARD)
}

fn commit(rt: &Runtime) -> gaspi::Result<()> {
    let group = rt.group_create()?;
    for rank in 0..rt.size() {
        rt.group_add(group, Rank(rank as u16))?;
    }
    rt.group_commit(group, GUARD)
}

fn starve(call: &str, who: &str) -> gaspi::Result<()> {
    let rt = join()?;
    let (me, own) = (rt.rank().0, SegmentId(1));
    rt.segment_alloc(own, BYTES, Init::Zeroed)?;
    rt.barrier(GroupId::ALL, GUARD)?;
    let poor = who == "all" || who == me.to_string() || (who == "rest" && me != 0);
    let files = if poor { all_files() } else { Vec::new() };
    rt.barrier(GroupId::ALL, GUARD)?;
    let begin = Instant::now();
    let ended = match call {
        "segment" => rt.segment_create(SegmentId(0), BYTES, GroupId::ALL, GUARD, Init::Zeroed),
        "commit" => commit(&rt),
        _ => match who.parse().map(Rank) {
            Ok(rank) if rank.0 != me => rt.segment_register(own, rank, GUARD),
            _ => Ok(()),
        },
    };
    let took_ms = begin.elapsed().as_millis();
    let ended = ended.map_or_else(|error| error.to_string(), |()| "well".to_owned());
    println!("ended {me} {took_ms} {ended}");
    rt.barrier(GroupId::ALL, GUARD)?;
    drop(files);
    // With descriptors it goes on where it stopped.
    rt.barrier(GroupId::ALL, GUARD)?;
    rt.segment_create(SegmentId(2), BYTES, GroupId::ALL, GUARD, Init::Zeroed)?;
    println!("recovered {me}");
    rt.term(GUARD)
}
