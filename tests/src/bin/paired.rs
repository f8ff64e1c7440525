//! A rank of the test of peers that are stopped while a pair of queue pairs is made: `paired FILE`.
//!
//! Three ranks join. Once FILE is gone rank 0 writes to the others, for the first time, and waits
//! with short timeouts, until all has come or the wait tells why rank 1 gets nothing. Then it still
//! reaches rank 2. Each of the others says when its data has come.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gaspi::{
    Config, GroupId, Init, Job, NotificationId, PendingInit, QueueId, Rank, Result, Runtime,
    SegmentId, Timeout, Transfer,
};
use gaspi_tests::{monotonic_us, run_rank};

/// A guard: nothing may take longer.
const GUARD: Timeout = Timeout::Millis(20_000);
/// Of what may wait for the rank that is stopped.
const SHORT: Timeout = Timeout::Millis(50);
/// A guard for a call with that timeout.
const IN_TIME: Duration = Duration::from_secs(5);
const SEGMENT: SegmentId = SegmentId(0);
const BYTES: usize = 100_000;
const VICTIM: Rank = Rank(1);
const BYSTANDER: Rank = Rank(2);

fn main() -> ExitCode {
    run_rank("paired FILE", |arguments| match arguments {
        [file] => Some(run(Path::new(file))),
        _ => None,
    })
}

fn run(file: &Path) -> Result<()> {
    let rt = PendingInit::new(Job::from_environment()?, Config::default())?.wait(GUARD)?;
    rt.segment_create(SEGMENT, 3 * BYTES as u64, GroupId::ALL, GUARD, Init::Zeroed)?;
    let [with_victim, with_bystander] = [with_writer(&rt, VICTIM)?, with_writer(&rt, BYSTANDER)?];
    println!("ready {}", rt.rank().0);
    if rt.rank() == Rank(0) {
        while file.exists() {
            std::thread::yield_now();
        }
        write(&rt)?;
        // It may be dead.
        let _ = rt.barrier(with_victim, GUARD);
        rt.barrier(with_bystander, GUARD)?;
    } else {
        receive(&rt, 1)?;
        println!("received {}", rt.rank().0);
    }
    if rt.rank() == VICTIM {
        rt.barrier(with_victim, GUARD)?;
    } else if rt.rank() == BYSTANDER {
        receive(&rt, 2)?;
        rt.barrier(with_bystander, GUARD)?;
    }
    rt.term(GUARD)?;
    println!("finished {}", rt.rank().0);
    Ok(())
}

/// A group of rank 0 and another one, which meet before they leave: if one leaves as soon as its
/// data has come, the wait for that may not have ended, and fails.
fn with_writer(rt: &Runtime, other: Rank) -> Result<GroupId> {
    let group = rt.group_create()?;
    if [Rank(0), other].contains(&rt.rank()) {
        rt.group_add(group, Rank(0))?;
        rt.group_add(group, other)?;
        rt.group_commit(group, GUARD)?;
    }
    Ok(group)
}

/// Where the data of a round comes to.
fn place(round: u8) -> u64 {
    u64::from(round) * BYTES as u64
}

fn send(rt: &Runtime, rank: Rank, round: u8, queue: QueueId) -> Result<()> {
    rt.segment_write(SEGMENT, 0, &vec![round; BYTES])?;
    let t = Transfer {
        local: SEGMENT,
        local_offset: 0,
        rank,
        remote: SEGMENT,
        remote_offset: place(round),
        size: BYTES as u64,
    };
    rt.write_notify(&t, NotificationId(round.into()), 1, queue, GUARD)
}

fn receive(rt: &Runtime, round: u8) -> Result<()> {
    rt.notify_waitsome(SEGMENT, round.into(), 1, GUARD)?;
    let mut found = vec![0; BYTES];
    rt.segment_read(SEGMENT, place(round), &mut found)?;
    assert!(found == vec![round; BYTES], "data of round {round}");
    Ok(())
}

fn write(rt: &Runtime) -> Result<()> {
    let (shared, other) = (QueueId(0), QueueId(1));
    for rank in [VICTIM, BYSTANDER] {
        send(rt, rank, 1, shared)?;
    }
    let outcome = loop {
        let begun = Instant::now();
        let outcome = rt.wait(shared, SHORT);
        assert!(begun.elapsed() < IN_TIME, "a wait took {:?}", begun.elapsed());
        match outcome {
            Err(error) if error.is_timeout() => println!("waits 0"),
            outcome => break outcome,
        }
    };
    match outcome {
        Ok(()) => println!("wrote 0"),
        Err(error) => {
            println!("knows 0 {}", monotonic_us());
            println!("told: {error} ");
            rt.queue_purge(shared, GUARD)?;
        }
    }
    send(rt, BYSTANDER, 2, other)?;
    rt.wait(other, GUARD)?;
    println!("survived 0");
    Ok(())
}
