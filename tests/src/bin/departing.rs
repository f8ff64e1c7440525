//! A rank of the test of peers that are stopped when another one leaves: `departing KIND FILE`.
//!
//! Two ranks join, and write to each other, so that there is what carries data between them. Once
//! FILE is gone rank 0 begins a `write`, or one that is `purged`, or a `passive` message, for which
//! it waits for a short time, and leaves: first with a short timeout too, and then with a long one.

use std::path::Path;
use std::process::ExitCode;

use gaspi::{
    Config, GroupId, Init, Job, NotificationId, PendingInit, QueueId, Rank, Result, Runtime,
    SegmentId, Timeout, Transfer,
};

/// A guard: nothing may take longer.
const GUARD: Timeout = Timeout::Millis(20_000);
/// Of what waits for the rank that is stopped.
const SHORT: Timeout = Timeout::Millis(200);
const SEGMENT: SegmentId = SegmentId(0);
const QUEUE: QueueId = QueueId(0);
const BYTES: u64 = 100_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, file] = arguments.as_slice() else {
        eprintln!("usage: departing KIND FILE");
        return ExitCode::from(2);
    };
    match run(kind, Path::new(file)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(kind: &str, file: &Path) -> Result<()> {
    let rt = PendingInit::new(Job::from_environment()?, Config::default())?.wait(GUARD)?;
    rt.segment_create(SEGMENT, 2 * BYTES, GroupId::ALL, GUARD, Init::Zeroed)?;
    let peer = Rank(1 - rt.rank().0);
    write(&rt, peer)?;
    rt.wait(QUEUE, GUARD)?;
    rt.notify_waitsome(SEGMENT, 0, 1, GUARD)?;
    rt.barrier(GroupId::ALL, GUARD)?;
    println!("ready {}", rt.rank().0);
    while file.exists() {
        std::thread::yield_now();
    }
    if rt.rank() == Rank(1) {
        rt.term(GUARD)?;
        println!("finished 1");
        return Ok(());
    }
    let begun = match kind {
        "passive" => rt.passive_send(SEGMENT, 0, peer, 100, SHORT),
        _ => write(&rt, peer).and_then(|()| rt.wait(QUEUE, SHORT)),
    };
    begun.expect_err("its peer is stopped");
    if kind == "purged" {
        rt.queue_purge(QUEUE, GUARD)?;
    }
    match rt.term(SHORT) {
        Ok(()) => println!("left 0"),
        Err(error) => {
            println!("told: {error}");
            rt.term(GUARD)?;
        }
    }
    println!("finished 0");
    Ok(())
}

/// Data, and a notification behind it.
fn write(rt: &Runtime, rank: Rank) -> Result<()> {
    let t = Transfer {
        local: SEGMENT,
        local_offset: 0,
        rank,
        remote: SEGMENT,
        remote_offset: BYTES,
        size: BYTES,
    };
    rt.write_notify(&t, NotificationId(0), 1, QUEUE, GUARD)
}
