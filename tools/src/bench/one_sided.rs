//! gaspi_write and gaspi_read between pairs: how long they take, and how much they move.

use crate::arguments::{Bandwidth, Paired};
use crate::baseline;
use crate::failure::Result;
use crate::job::{Job, micros};
use crate::links::Link;
use crate::measure::{Batch, Lane, Measured, Schedule, interleave, timed};
use crate::notified::{ARRIVED, DONE, await_notification, notify};
use crate::pair::{Ground, Pair, for_each_size};
use crate::report::{Layout, Report};
use crate::row::Row;
use crate::shm_baseline;
use std::time::Instant;

const LATENCY_SIZES: [usize; 7] = [1, 8, 64, 512, 4 << 10, 32 << 10, 256 << 10];
const BANDWIDTH_SIZES: [usize; 7] =
    [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const BANDWIDTH_SIZES_TCP: [usize; 7] =
    [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Queue of every request.
const QUEUE: u8 = 0;

/// Data between the two ranks of a pair: writes.
pub(crate) fn check_writes(
    pair: Option<&Pair<'_>>,
    participants: usize,
    round: u64,
) -> Result<u64> {
    let Some(pair) = pair else { return Ok(0) };
    let (job, size) = (pair.job, pair.size());
    if pair.is_initiator() {
        pair.source.fill(0, size, round);
        pair.segment.write(0, pair.peer, pair.inbox_offset, size, QUEUE)?;
        notify(pair, pair.peer, ARRIVED, QUEUE)?;
        job.wait(QUEUE)?;
    }
    let mut errors = 0;
    if !pair.is_initiator() {
        await_notification(pair, ARRIVED)?;
        errors = pair.inbox.errors(0, size, round);
    }
    // The next round changes what is compared here.
    job.meet(participants)?;
    Ok(errors)
}

/// Data between the two ranks of a pair: writes of both at once, by each queue.
fn check_both_ways(
    pair: Option<&Pair<'_>>,
    participants: usize,
    round: u64,
    queues: u8,
) -> Result<u64> {
    let Some(pair) = pair else { return Ok(0) };
    let (job, size) = (pair.job, pair.size());
    // Other data for each direction and queue.
    let of = |initiates: bool, queue: u8| {
        round.wrapping_mul(512) + 2 * u64::from(queue) + u64::from(initiates)
    };
    let mut errors = 0;
    for queue in 0..queues {
        pair.source.fill(0, size, of(pair.is_initiator(), queue));
        pair.segment.write(0, pair.peer, pair.inbox_offset, size, queue)?;
        notify(pair, pair.peer, ARRIVED, queue)?;
        job.wait(queue)?;
        await_notification(pair, ARRIVED)?;
        errors += pair.inbox.errors(0, size, of(!pair.is_initiator(), queue));
        // The next writes change what is compared here.
        job.meet(participants)?;
    }
    Ok(errors)
}

/// Data between the two ranks of a pair: reads.
fn check_reads(pair: Option<&Pair<'_>>, participants: usize, round: u64) -> Result<u64> {
    let Some(pair) = pair else { return Ok(0) };
    let (job, size) = (pair.job, pair.size());
    if !pair.is_initiator() {
        pair.source.fill(0, size, round);
    }
    job.meet(participants)?;
    let mut errors = 0;
    if pair.is_initiator() {
        pair.segment.read(pair.inbox_offset, pair.peer, 0, size)?;
        job.wait(QUEUE)?;
        errors = pair.inbox.errors(0, size, round);
    }
    // The next round changes the source.
    job.meet(participants)?;
    Ok(errors)
}

/// Requests one after another, and gaspi_wait when the time has been taken, or inside of it.
fn posts<'a>(
    pair: &'a Pair<'a>,
    waits_inside: bool,
    mut post: impl FnMut(&Pair<'_>, usize) -> Result<()> + 'a,
) -> Lane<'a> {
    let mut rotation = pair.rotation();
    Lane::new(move |batch: Batch| {
        if !pair.is_initiator() {
            return Ok(None);
        }
        for _ in 0..batch.before {
            post(pair, rotation.offset())?;
        }
        pair.job.wait(QUEUE)?;
        let begin = Instant::now();
        for _ in 0..batch.operations {
            post(pair, rotation.offset())?;
        }
        if waits_inside {
            pair.job.wait(QUEUE)?;
        }
        let us = micros(begin.elapsed()) / batch.operations as f64;
        pair.job.wait(QUEUE)?;
        Ok(Some(us))
    })
}

/// Requests with a gaspi_wait after each.
fn posts_and_waits<'a>(
    pair: &'a Pair<'a>,
    mut post: impl FnMut(&Pair<'_>, usize) -> Result<()> + 'a,
) -> Lane<'a> {
    let mut rotation = pair.rotation();
    Lane::new(move |batch| {
        if !pair.is_initiator() {
            return Ok(None);
        }
        let us = timed(batch, || {
            post(pair, rotation.offset())?;
            pair.job.wait(QUEUE)
        })?;
        Ok(Some(us))
    })
}

/// Writes to and fro, each seen by a target that looks at its memory: the time of one way.
fn seen_in_memory<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    let mut out = pair.rotation();
    let mut incoming = out;
    let send = move |step| {
        let offset = out.offset();
        shm_baseline::mark(pair.source, offset, size, step);
        write(pair, offset)
    };
    let receive = move |step| {
        let offset = incoming.offset();
        pair.job.spin("a write", || pair.inbox.last(offset, size) == step)
    };
    let mut lane = shm_baseline::in_turn(pair, send, receive);
    Lane::new(move |batch| {
        let us = lane.run(batch)?;
        pair.job.wait(QUEUE)?;
        Ok(us)
    })
}

#[inline(always)]
fn write(pair: &Pair<'_>, offset: usize) -> Result<()> {
    let to = pair.inbox_offset + offset;
    pair.segment.write(offset, pair.peer, to, pair.size(), QUEUE)
}

#[inline(always)]
fn read(pair: &Pair<'_>, offset: usize) -> Result<()> {
    let to = pair.inbox_offset + offset;
    pair.segment.read(to, pair.peer, offset, pair.size())
}

/// Runs a lane of the initiator while the target waits in the library: over TCP, and of atomics by
/// verbs, that makes the target answer; elsewhere it makes no difference.
pub(crate) fn attended<'a>(pair: &'a Pair<'a>, mut lane: Lane<'a>) -> Lane<'a> {
    if !pair.is_remote() {
        return lane;
    }
    Lane::new(move |batch| {
        let us = lane.run(batch)?;
        if pair.is_initiator() {
            notify(pair, pair.peer, DONE, QUEUE)?;
            pair.job.wait(QUEUE)?;
        } else {
            await_notification(pair, DONE)?;
        }
        Ok(us)
    })
}

/// Rows of a limit and of the operation compared with it, in turn.
type Pairs = [(&'static str, usize, usize)];

/// Writes the rows of lanes: variant, its lane, and the lane of its limit.
fn latency_rows(
    test: &'static str,
    rows: &Pairs,
    (size, pairs): (usize, usize),
    measured: &Measured,
    report: &mut Report,
) -> Result<()> {
    for (variant, lane, limit) in rows {
        let (Some(samples), Some(limit_samples)) =
            (measured.samples.get(*lane), measured.samples.get(*limit))
        else {
            continue;
        };
        let row = Row::new(test, variant, samples.clone())
            .size(size)
            .limit(measured.name(*limit), limit_samples.median())
            .at_once(pairs)
            .errors(measured.errors);
        report.row(Layout::Latency, &row)?;
    }
    Ok(())
}

pub(crate) fn write_latency(job: &Job, paired: &Paired, report: &mut Report) -> Result<()> {
    for_each_size(job, paired, &LATENCY_SIZES, |ground, pair, size| {
        let mut lanes = Vec::new();
        if let Some(pair) = pair {
            lanes = vec![baseline::post(pair, size), posts(pair, false, write)];
            if pair.streams.is_some() {
                lanes.push(baseline::write_attended(pair, size));
            }
            lanes.push(attended(pair, posts_and_waits(pair, write)));
            if pair.streams.is_some() {
                lanes.push(baseline::write(pair, size));
                lanes.push(posts_and_waits(pair, write));
            }
            if pair.verbs.is_some() {
                lanes.insert(2, baseline::write(pair, size));
                if let Some(limit) = baseline::write_polled(pair, size) {
                    lanes.extend([limit, seen_in_memory(pair, size)]);
                }
            }
        }
        let schedule = Schedule::of_size(&paired.sizes.plain, size);
        let participants = ground.participants();
        let measured = interleave(job, participants, schedule, &mut lanes, |round| {
            check_writes(pair, participants, round)
        })?;
        let rows: &Pairs = match lanes.len() {
            3 => &[("post", 1, 0), ("post+wait", 2, 0)],
            4 => &[("post", 1, 0), ("post+wait", 3, 2)],
            _ if job.links.to_peer == Link::Verbs => {
                &[("post", 1, 0), ("post+wait", 3, 2), ("memory polled", 5, 4)]
            }
            _ => &[("post", 1, 0), ("post+wait", 3, 2), ("post+wait, away", 5, 4)],
        };
        latency_rows("write-lat", rows, (size, paired.pairs), &measured, report)
    })
}

pub(crate) fn read_latency(job: &Job, paired: &Paired, report: &mut Report) -> Result<()> {
    for_each_size(job, paired, &LATENCY_SIZES, |ground, pair, size| {
        let mut lanes = Vec::new();
        if let Some(pair) = pair {
            lanes.push(baseline::read_attended(pair, size));
            lanes.push(attended(pair, posts_and_waits(pair, read)));
            if pair.streams.is_some() {
                lanes.push(baseline::read(pair, size));
                lanes.push(posts_and_waits(pair, read));
            }
        }
        let schedule = Schedule::of_size(&paired.sizes.plain, size);
        let participants = ground.participants();
        let measured = interleave(job, participants, schedule, &mut lanes, |round| {
            check_reads(pair, participants, round)
        })?;
        let rows: &Pairs = &[("read+wait", 1, 0), ("read+wait, away", 3, 2)];
        latency_rows("read-lat", rows, (size, paired.pairs), &measured, report)
    })
}

fn bandwidth_sizes(job: &Job) -> &'static [usize] {
    if job.links.one_memory { &BANDWIDTH_SIZES } else { &BANDWIDTH_SIZES_TCP }
}

fn bandwidth_row(
    job: &Job,
    ground: &Ground<'_>,
    paired: &Paired,
    lanes: &mut [Lane<'_>],
    check: impl FnMut(u64) -> Result<u64>,
) -> Result<Option<Row>> {
    let size = ground.size();
    let schedule = Schedule::of_size(&paired.sizes.plain, size);
    let measured = interleave(job, ground.participants(), schedule, lanes, check)?;
    let Some([limit, operation]) = measured.of() else { return Ok(None) };
    let row = Row::new("", "", operation.clone())
        .size(size)
        .limit(measured.name(0), limit.median())
        .share()
        .at_once(paired.pairs)
        .errors(measured.errors);
    Ok(Some(row))
}

pub(crate) fn write_bandwidth(job: &Job, bandwidth: &Bandwidth, report: &mut Report) -> Result<()> {
    if bandwidth.both_ways {
        return write_both_ways(job, bandwidth, report);
    }
    let paired = &bandwidth.paired;
    for_each_size(job, paired, bandwidth_sizes(job), |ground, pair, size| {
        let mut lanes = pair.map_or_else(Vec::new, |pair| {
            vec![baseline::writes(pair, size), posts(pair, true, write)]
        });
        let row = bandwidth_row(job, ground, paired, &mut lanes, |round| {
            check_writes(pair, ground.participants(), round)
        })?;
        let Some(mut row) = row else { return Ok(()) };
        (row.test, row.variant) = ("write-bw", "write");
        report.row(Layout::Bandwidth, &row)
    })
}

/// Both ranks write at once, each through several queues in turn.
fn posts_both_ways<'a>(pair: &'a Pair<'a>, queues: u8) -> Lane<'a> {
    let mut rotation = pair.rotation();
    let mut run = move |count: usize| -> Result<()> {
        for request in 0..count {
            let (offset, queue) = (rotation.offset(), request % usize::from(queues));
            let to = pair.inbox_offset + offset;
            pair.segment.write(offset, pair.peer, to, pair.size(), queue as u8)?;
        }
        (0..queues).try_for_each(|queue| pair.job.wait(queue))
    };
    Lane::new(move |batch: Batch| {
        run(batch.before)?;
        let begin = Instant::now();
        run(batch.operations)?;
        Ok(Some(micros(begin.elapsed()) / batch.operations as f64))
    })
}

fn write_both_ways(job: &Job, bandwidth: &Bandwidth, report: &mut Report) -> Result<()> {
    let paired = &bandwidth.paired;
    for_each_size(job, paired, bandwidth_sizes(job), |ground, pair, size| {
        let mut lanes = pair.map_or_else(Vec::new, |pair| {
            vec![baseline::writes_both_ways(pair, size), posts_both_ways(pair, bandwidth.queues)]
        });
        let row = bandwidth_row(job, ground, paired, &mut lanes, |round| {
            check_both_ways(pair, ground.participants(), round, bandwidth.queues)
        })?;
        let Some(row) = row else { return Ok(()) };
        let mut row = row.at_once(2 * paired.pairs);
        (row.test, row.variant) = ("write-bw", "both ways");
        report.row(Layout::Bandwidth, &row)
    })
}

pub(crate) fn read_bandwidth(job: &Job, paired: &Paired, report: &mut Report) -> Result<()> {
    for_each_size(job, paired, bandwidth_sizes(job), |ground, pair, size| {
        let mut lanes = pair.map_or_else(Vec::new, |pair| {
            vec![baseline::reads(pair, size), posts(pair, true, read)]
        });
        let row = bandwidth_row(job, ground, paired, &mut lanes, |round| {
            check_reads(pair, ground.participants(), round)
        })?;
        let Some(mut row) = row else { return Ok(()) };
        (row.test, row.variant) = ("read-bw", "read");
        report.row(Layout::Bandwidth, &row)
    })
}
