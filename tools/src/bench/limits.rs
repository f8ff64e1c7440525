//! What the hardware gives these two processes, without the library.

use crate::arguments::Sizes;
use crate::failure::Result;
use crate::job::Job;
use crate::measure::{Lane, Schedule, interleave};
use crate::pair::{Ground, on_ground};
use crate::report::{Layout, Report};
use crate::row::Row;
use crate::samples::Samples;
use crate::shm_baseline::{self, Taken};
use crate::sockets::Waiting::{Blocking, Spinning};
use crate::tcp_baseline;
use crate::verbs_baseline;
use std::time::Duration;

/// The transport of a job whose ranks all reach rank 0 by verbs, and sizes of its transfers.
const BY_VERBS: &str = "verbs";
const SIZES_VERBS: [usize; 3] = [64 << 10, 1 << 20, 8 << 20];
const SIZES: [usize; 6] = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 16 << 20];
/// What waits for the kernel takes microseconds.
const BATCH_SLOW: usize = 50;
/// Messages to and fro over TCP.
const BATCH_TURNS: usize = 100;
/// Over TCP with a receiver that sleeps: the time between two messages, and messages of a batch.
const ASLEEP: Duration = Duration::from_micros(400);
const BATCH_ASLEEP: usize = 10;

pub(crate) fn run(job: &Job, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let sizes_asked = sizes.sizes(&SIZES)?;
    if job.links.transport == BY_VERBS {
        on_ground(job, 8, false, |ground| requests(job, ground, sizes, report))?;
        for size in sizes.sizes(&SIZES_VERBS)? {
            on_ground(job, size, sizes.cold, |ground| transfers(job, ground, sizes, report))?;
        }
        return Ok(());
    }
    if !job.links.one_memory {
        on_ground(job, 8, false, |ground| messages(job, ground, sizes, report))?;
        for size in sizes_asked {
            on_ground(job, size, sizes.cold, |ground| streams(job, ground, sizes, report))?;
        }
        return Ok(());
    }
    on_ground(job, 8, false, |ground| lines(job, ground, sizes, report))?;
    if job.ranks > 1 {
        on_ground(job, 8, false, |ground| kernel(job, ground, sizes, report))?;
    }
    for size in sizes_asked {
        on_ground(job, size, sizes.cold, |ground| copies(job, ground, sizes, report))?;
    }
    Ok(())
}

/// Measures lanes of a pair and writes a row for each.
fn rows<'a>(
    job: &Job,
    ground: &Ground<'_>,
    schedule: Schedule,
    size: Option<usize>,
    lanes: impl IntoIterator<Item = (&'static str, Lane<'a>)>,
    report: &mut Report,
) -> Result<()> {
    rows_of(job, ground, schedule, (size, 1), lanes, |_| Ok(0), report)
}

/// The same where `at_once` ranks move data at the same time.
fn rows_of<'a>(
    job: &Job,
    ground: &Ground<'_>,
    schedule: Schedule,
    (size, at_once): (Option<usize>, usize),
    lanes: impl IntoIterator<Item = (&'static str, Lane<'a>)>,
    check: impl FnMut(u64) -> Result<u64>,
    report: &mut Report,
) -> Result<()> {
    ground.demand_limits()?;
    let (names, mut lanes): (Vec<_>, Vec<_>) = lanes.into_iter().unzip();
    let measured = interleave(job, ground.participants(), schedule, &mut lanes, check)?;
    for (name, samples) in names.into_iter().zip(&measured.samples) {
        let mut row = Row::new("limits", name, Samples::clone(samples))
            .at_once(at_once)
            .errors(measured.errors);
        row.size = size;
        report.row(Layout::Limits, &row)?;
    }
    Ok(())
}

/// Single lines.
fn lines(job: &Job, ground: &Ground<'_>, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let pair = ground.pair();
    let mut lanes = Vec::new();
    if let Some(pair) = &pair {
        lanes.push(("atomic add", shm_baseline::atomic_add(pair)));
        if job.ranks > 1 {
            lanes.push(("atomic add by both", shm_baseline::contended_add(pair)));
            lanes.push(("line hand-over", shm_baseline::hand_over(pair)));
            lanes.push(("data and flag", shm_baseline::notified(pair, 8, Taken::Last)));
        }
    }
    let schedule = Schedule::of_size(&sizes.plain, 8);
    rows(job, ground, schedule, None, lanes, report)
}

/// What the scheduler does.
fn kernel(job: &Job, ground: &Ground<'_>, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let pair = ground.pair();
    let mut lanes = Vec::new();
    if let Some(pair) = &pair {
        lanes.push(("yield switch", shm_baseline::yield_switch(job, ground.words(), pair.other())));
        lanes.push(("futex wake", shm_baseline::futex_wake(pair)));
    }
    let schedule = Schedule::of_batches(&sizes.plain, BATCH_SLOW);
    rows(job, ground, schedule, None, lanes, report)
}

/// Copies and additions of one size.
fn copies(job: &Job, ground: &Ground<'_>, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let (pair, size) = (ground.pair(), ground.size());
    let mut lanes = Vec::new();
    if let Some(pair) = &pair {
        lanes.push(("memcpy", shm_baseline::copy_out(pair, size)));
        if job.ranks > 1 {
            lanes.push(("memcpy of dirty lines", shm_baseline::copy_dirty(pair, size)));
        }
        let acts = pair.is_initiator();
        lanes.push(("float add", shm_baseline::float_add(pair.source, pair.inbox, size, acts)));
    }
    let schedule = Schedule::of_size(&sizes.plain, size);
    rows(job, ground, schedule, Some(size), lanes, report)
}

/// Messages over TCP.
fn messages(job: &Job, ground: &Ground<'_>, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let pair = ground.pair();
    let mut lanes = Vec::new();
    if let Some((pair, streams)) = pair.as_ref().and_then(|pair| Some((pair, pair.streams?))) {
        let one_way = |waiting| tcp_baseline::one_way(pair, streams, 8, Taken::Last, waiting);
        let round_trip = |target| tcp_baseline::round_trip(pair, streams, (8, 8), target);
        lanes.push(("raw one way", one_way(Spinning)));
        lanes.push(("raw one way, blocking", one_way(Blocking)));
        lanes.push(("raw round trip", round_trip(Spinning)));
        lanes.push(("raw round trip, target asleep", round_trip(Blocking)));
        lanes.push(("raw send()", tcp_baseline::sends(pair, streams, 8)));
    }
    let schedule = Schedule::of_batches(&sizes.plain, BATCH_TURNS);
    rows(job, ground, schedule, Some(8), lanes, report)?;
    let mut lanes = Vec::new();
    if let Some((pair, streams)) = pair.as_ref().and_then(|pair| Some((pair, pair.streams?))) {
        let asleep = tcp_baseline::one_way_asleep(pair, streams, 8, ASLEEP);
        lanes.push(("raw one way, receiver asleep", asleep));
    }
    let schedule = Schedule::of_long(&sizes.plain, BATCH_ASLEEP);
    rows(job, ground, schedule, Some(8), lanes, report)
}

/// Streams over TCP of one size.
fn streams(job: &Job, ground: &Ground<'_>, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let (pair, size) = (ground.pair(), ground.size());
    let schedule = Schedule::of_size(&sizes.plain, size);
    let mut lanes = Vec::new();
    let mut both = Vec::new();
    if let Some((pair, streams)) = pair.as_ref().and_then(|pair| Some((pair, pair.streams?))) {
        lanes.push(("raw stream", tcp_baseline::stream_out(pair, streams)));
        lanes.push(("raw stream, sendfile", tcp_baseline::stream_of_file(pair, streams)?));
        both.push(("raw streams both ways", tcp_baseline::streams_both_ways(pair, streams)));
    }
    rows(job, ground, schedule, Some(size), lanes, report)?;
    rows_of(job, ground, schedule, (Some(size), 2), both, |_| Ok(0), report)
}

/// Small requests by verbs.
fn requests(job: &Job, ground: &Ground<'_>, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let pair = ground.pair();
    let check = |round| verbs_baseline::check(pair.as_ref(), ground.participants(), round);
    let mut lanes = Vec::new();
    if let Some((pair, verbs)) = pair.as_ref().and_then(|pair| Some((pair, pair.verbs?))) {
        lanes.push(("raw write, memory polled", verbs_baseline::write_polled(pair, verbs, 8)));
        lanes.push(("raw message", verbs_baseline::message(pair, verbs, 8)));
        lanes.push(("raw write with immediate", verbs_baseline::write_notified(pair, verbs, 8)));
        lanes.push(("raw write and completion", verbs_baseline::write_completed(pair, verbs, 8)));
        lanes.push(("raw write, read behind", verbs_baseline::write_read_behind(pair, verbs, 8)));
        lanes.push(("raw read", verbs_baseline::read(pair, verbs, 8)));
        let there_and_back = verbs_baseline::round_trip(pair, verbs, 8, Spinning);
        lanes.push(("raw message there and back", there_and_back));
        lanes.push(("raw messages that cross", verbs_baseline::crossing(pair, verbs, 8)));
        lanes.push(("raw post", verbs_baseline::posts(pair, verbs, 8)));
    }
    let schedule = Schedule::of_batches(&sizes.plain, BATCH_TURNS);
    rows_of(job, ground, schedule, (Some(8), 1), lanes, check, report)?;
    let mut lanes = Vec::new();
    if let Some((pair, verbs)) = pair.as_ref().and_then(|pair| Some((pair, pair.verbs?))) {
        let asleep = verbs_baseline::notified_asleep(pair, verbs, 8, ASLEEP);
        lanes.push(("raw message, receiver asleep", asleep));
    }
    let schedule = Schedule::of_long(&sizes.plain, BATCH_ASLEEP);
    rows_of(job, ground, schedule, (Some(8), 1), lanes, check, report)
}

/// Transfers of one size by verbs.
fn transfers(job: &Job, ground: &Ground<'_>, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let (pair, size) = (ground.pair(), ground.size());
    let check = |round| verbs_baseline::check(pair.as_ref(), ground.participants(), round);
    let schedule = Schedule::of_size(&sizes.plain, size);
    let mut lanes = Vec::new();
    let mut both = Vec::new();
    if let Some((pair, verbs)) = pair.as_ref().and_then(|pair| Some((pair, pair.verbs?))) {
        lanes.push(("raw writes", verbs_baseline::writes(pair, verbs)));
        lanes.push(("raw reads", verbs_baseline::reads(pair, verbs)));
        both.push(("raw writes both ways", verbs_baseline::writes_both_ways(pair, verbs)));
    }
    rows_of(job, ground, schedule, (Some(size), 1), lanes, check, report)?;
    rows_of(job, ground, schedule, (Some(size), 2), both, check, report)
}
