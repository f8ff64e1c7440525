//! gaspi_write and gaspi_read between pairs: how long they take, and how much they move.

use crate::arguments::Paired;
use crate::failure::Result;
use crate::job::{Job, micros};
use crate::measure::{Batch, Lane, Schedule, interleave, timed};
use crate::memory::LINE;
use crate::pair::{Ground, Pair, for_each_size};
use crate::raw;
use crate::report::{Layout, Report, Row};
use std::time::Instant;

const LATENCY_SIZES: [usize; 7] = [1, 8, 64, 512, 4 << 10, 32 << 10, 256 << 10];
const BANDWIDTH_SIZES: [usize; 7] =
    [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
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
        job.wait(QUEUE)?;
    }
    job.meet(participants)?;
    let errors = if pair.is_initiator() { 0 } else { pair.inbox.errors(0, size, round) };
    // The next round changes what is compared here.
    job.meet(participants)?;
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

/// The limit of a request that moves up to a line is an atomic addition, else the copy.
fn limit_name(size: usize) -> &'static str {
    if size <= LINE { "atomic add" } else { "memcpy" }
}

pub(crate) fn write_latency(job: &Job, paired: &Paired, report: &mut Report) -> Result<()> {
    for_each_size(job, paired, &LATENCY_SIZES, |ground, pair, size| {
        let mut lanes = Vec::new();
        if let Some(pair) = pair {
            let limit =
                if size <= LINE { raw::atomic_add(pair) } else { raw::copy_out(pair, size) };
            lanes = vec![limit, posts(pair, false, write), posts_and_waits(pair, write)];
        }
        let schedule = Schedule::of_size(&paired.sizes.plain, size);
        let participants = ground.participants();
        let measured = interleave(job, participants, schedule, &mut lanes, |round| {
            check_writes(pair, participants, round)
        })?;
        let Some([limit, post, both]) = measured.of() else { return Ok(()) };
        for (variant, samples) in [("post", post), ("post+wait", both)] {
            let row = Row::new("write-lat", variant, samples.clone())
                .size(size)
                .limit(limit_name(size), limit.median())
                .at_once(paired.pairs)
                .errors(measured.errors);
            report.row(Layout::Latency, &row)?;
        }
        Ok(())
    })
}

pub(crate) fn read_latency(job: &Job, paired: &Paired, report: &mut Report) -> Result<()> {
    for_each_size(job, paired, &LATENCY_SIZES, |ground, pair, size| {
        let mut lanes = Vec::new();
        if let Some(pair) = pair {
            let limit = if size <= LINE { raw::atomic_add(pair) } else { raw::copy_in(pair, size) };
            lanes = vec![limit, posts_and_waits(pair, read)];
        }
        let schedule = Schedule::of_size(&paired.sizes.plain, size);
        let participants = ground.participants();
        let measured = interleave(job, participants, schedule, &mut lanes, |round| {
            check_reads(pair, participants, round)
        })?;
        let Some([limit, both]) = measured.of() else { return Ok(()) };
        let row = Row::new("read-lat", "read+wait", both.clone())
            .size(size)
            .limit(limit_name(size), limit.median())
            .at_once(paired.pairs)
            .errors(measured.errors);
        report.row(Layout::Latency, &row)
    })
}

type Check = fn(Option<&Pair<'_>>, usize, u64) -> Result<u64>;

fn bandwidth_row(
    job: &Job,
    ground: &Ground<'_>,
    pair: Option<&Pair<'_>>,
    paired: &Paired,
    lanes: &mut [Lane<'_>],
    check: Check,
) -> Result<Option<Row>> {
    let size = ground.size();
    let schedule = Schedule::of_size(&paired.sizes.plain, size);
    let participants = ground.participants();
    let measured =
        interleave(job, participants, schedule, lanes, |round| check(pair, participants, round))?;
    let Some([limit, operation]) = measured.of() else { return Ok(None) };
    let row = Row::new("", "", operation.clone())
        .size(size)
        .limit("memcpy", limit.median())
        .share()
        .at_once(paired.pairs)
        .errors(measured.errors);
    Ok(Some(row))
}

pub(crate) fn write_bandwidth(job: &Job, paired: &Paired, report: &mut Report) -> Result<()> {
    for_each_size(job, paired, &BANDWIDTH_SIZES, |ground, pair, size| {
        let mut lanes = pair.map_or_else(Vec::new, |pair| {
            vec![raw::copy_out(pair, size), posts(pair, true, write)]
        });
        let row = bandwidth_row(job, ground, pair, paired, &mut lanes, check_writes)?;
        let Some(mut row) = row else { return Ok(()) };
        (row.test, row.variant) = ("write-bw", "write");
        report.row(Layout::Bandwidth, &row)
    })
}

pub(crate) fn read_bandwidth(job: &Job, paired: &Paired, report: &mut Report) -> Result<()> {
    for_each_size(job, paired, &BANDWIDTH_SIZES, |ground, pair, size| {
        let mut lanes = pair
            .map_or_else(Vec::new, |pair| vec![raw::copy_in(pair, size), posts(pair, true, read)]);
        let row = bandwidth_row(job, ground, pair, paired, &mut lanes, check_reads)?;
        let Some(mut row) = row else { return Ok(()) };
        (row.test, row.variant) = ("read-bw", "read");
        report.row(Layout::Bandwidth, &row)
    })
}
