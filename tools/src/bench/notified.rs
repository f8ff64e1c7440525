//! gaspi_write_notify from one rank to the other and back, and the calls of notifications alone.

use crate::arguments::{Notified, Paired, Plain, Sizes};
use crate::baseline;
use crate::failure::{Failure, Result};
use crate::job::{Job, LIMIT_MS, micros};
use crate::library::{SUCCESS, TEST, TIMEOUT};
use crate::measure::{Batch, Lane, Schedule, interleave, timed};
use crate::pair::{Pair, SEGMENT, for_each_size};
use crate::report::{Layout, Report};
use crate::row::Row;
use crate::shm_baseline::{self, Taken};
use std::hint::black_box;
use std::time::{Duration, Instant};

const SIZES: [usize; 8] = [8, 64, 1 << 10, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20];
const SIZES_ASLEEP: [usize; 2] = [8, 4 << 10];
/// Messages of a batch that sleeps before each.
const BATCH_ASLEEP: usize = 10;
/// From here on rows say how fast the target takes the data over.
const TAKEN_FROM: usize = 4 << 10;
const QUEUE: u8 = 0;
const VALUE: u32 = 1;
/// The notification of data.
pub(crate) const ARRIVED: u32 = 0;
/// One that no rank sets.
const UNSET: u32 = 1000;
/// Ends the attendance of a target.
pub(crate) const DONE: u32 = 1001;
/// The first of those that rows of gaspi_notify set.
const FIRST: u32 = 2000;

/// Data with a notification to the peer.
fn send(pair: &Pair<'_>, offset: usize) -> Result<()> {
    let (id, to) = (SEGMENT, (pair.inbox_offset + offset) as u64);
    let size = pair.size() as u64;
    let write_notify = pair.job.procedures.write_notify;
    // SAFETY: no pointers.
    let status = unsafe {
        write_notify(
            id,
            offset as u64,
            pair.peer as u16,
            id,
            to,
            size,
            ARRIVED,
            VALUE,
            QUEUE,
            LIMIT_MS,
        )
    };
    pair.job.call("gaspi_write_notify", status)
}

/// Waits for the notification of data, and takes it.
fn receive(pair: &Pair<'_>) -> Result<()> {
    await_notification(pair, ARRIVED)
}

/// Waits for a notification, and takes it.
pub(crate) fn await_notification(pair: &Pair<'_>, id: u32) -> Result<()> {
    let (p, mut first, mut value) = (&pair.job.procedures, 0, 0);
    // SAFETY: writes the number that it is given.
    let status = unsafe { (p.notify_waitsome)(SEGMENT, id, 1, &raw mut first, LIMIT_MS) };
    pair.job.call("gaspi_notify_waitsome", status)?;
    // SAFETY: writes the number that it is given.
    let status = unsafe { (p.notify_reset)(SEGMENT, first, &raw mut value) };
    pair.job.call("gaspi_notify_reset", status)?;
    if value == VALUE { Ok(()) } else { Err(wrong_value(VALUE, value)) }
}

#[cold]
fn wrong_value(wanted: u32, found: u32) -> Failure {
    Failure::run(format!("gaspi_notify_reset returned the value {found} instead of {wanted}"))
}

fn there_and_back<'a>(
    pair: &'a Pair<'a>,
    size: usize,
    taken: Taken,
    asleep: Option<Duration>,
) -> Lane<'a> {
    let mut out = pair.rotation();
    let mut incoming = out;
    let send = move |step| {
        let offset = out.offset();
        shm_baseline::mark(pair.source, offset, size, step);
        send(pair, offset)
    };
    let receive = move |step| {
        receive(pair)?;
        shm_baseline::take(pair.job, pair.inbox, incoming.offset(), size, step, taken);
        Ok(())
    };
    let mut lane = match asleep {
        Some(delay) => shm_baseline::in_turn_asleep(pair, delay, send, receive),
        None => shm_baseline::in_turn(pair, send, receive),
    };
    Lane::new(move |batch: Batch| {
        let us = lane.run(batch)?;
        pair.job.wait(QUEUE)?;
        Ok(us)
    })
}

/// Compares all of one message in each direction.
fn check(pair: Option<&Pair<'_>>, participants: usize, round: u64) -> Result<u64> {
    let Some(pair) = pair else { return Ok(0) };
    let size = pair.size();
    pair.source.fill(0, size, round);
    send(pair, 0)?;
    receive(pair)?;
    let errors = pair.inbox.errors(0, size, round);
    pair.job.wait(QUEUE)?;
    // The next message overwrites what was compared.
    pair.job.meet(participants)?;
    Ok(errors)
}

pub(crate) fn latency(job: &Job, notified: &Notified, report: &mut Report) -> Result<()> {
    let paired = &notified.paired;
    if let Some(us) = notified.sleeping {
        return asleep(job, paired, Duration::from_micros(us.into()), report);
    }
    for_each_size(job, paired, &SIZES, |ground, pair, size| {
        let bulk = size >= TAKEN_FROM;
        let mut lanes = Vec::new();
        if let Some(pair) = pair {
            lanes.push(baseline::notified(pair, size, Taken::Last));
            lanes.push(there_and_back(pair, size, Taken::Last, None));
            if bulk {
                lanes.push(baseline::notified(pair, size, Taken::All));
                lanes.push(there_and_back(pair, size, Taken::All, None));
            } else {
                lanes.extend(baseline::write_polled(pair, size));
            }
        }
        let schedule = Schedule::of_size(&paired.sizes.plain, size);
        let participants = ground.participants();
        let measured = interleave(job, participants, schedule, &mut lanes, |round| {
            check(pair, participants, round)
        })?;
        let [limit, operation, taken @ ..] = &measured.samples[..] else { return Ok(()) };
        let row = Row::new("write-notify-lat", "notified", operation.clone())
            .size(size)
            .limit(measured.name(0), limit.median())
            .at_once(paired.pairs)
            .errors(measured.errors);
        report.row(Layout::Latency, &row)?;
        if let [limit] = taken {
            let row = Row::new("write-notify-lat", "notified, beside a write", operation.clone())
                .size(size)
                .limit(measured.name(2), limit.median())
                .at_once(paired.pairs);
            return report.row(Layout::Latency, &row);
        }
        let [limit, operation] = taken else { return Ok(()) };
        let row = Row::new("write-notify-lat", "taken", operation.clone())
            .size(size)
            .limit(measured.name(2), limit.median())
            .share()
            .at_once(paired.pairs);
        report.row(Layout::Latency, &row)
    })
}

/// Each message comes so late that the target sleeps.
fn asleep(job: &Job, paired: &Paired, delay: Duration, report: &mut Report) -> Result<()> {
    for_each_size(job, paired, &SIZES_ASLEEP, |ground, pair, size| {
        let mut lanes = pair.map_or_else(Vec::new, |pair| {
            vec![
                baseline::notified_asleep(pair, size, delay),
                there_and_back(pair, size, Taken::Last, Some(delay)),
            ]
        });
        let schedule = Schedule::of_long(&paired.sizes.plain, BATCH_ASLEEP);
        let participants = ground.participants();
        let measured = interleave(job, participants, schedule, &mut lanes, |round| {
            check(pair, participants, round)
        })?;
        let Some([limit, operation]) = measured.of() else { return Ok(()) };
        let row = Row::new("write-notify-lat", "notified, asleep", operation.clone())
            .size(size)
            .limit(measured.name(0), limit.median())
            .at_once(paired.pairs)
            .errors(measured.errors);
        report.row(Layout::Latency, &row)
    })
}

/// gaspi_notify, behind what was written to that rank by the queue.
pub(crate) fn notify(pair: &Pair<'_>, rank: usize, id: u32, queue: u8) -> Result<()> {
    // SAFETY: no pointers.
    let status =
        unsafe { (pair.job.procedures.notify)(SEGMENT, rank as u16, id, VALUE, queue, LIMIT_MS) };
    pair.job.call("gaspi_notify", status)
}

fn notifies<'a>(pair: &'a Pair<'a>) -> Lane<'a> {
    Lane::new(move |batch| {
        if !pair.is_initiator() {
            return Ok(None);
        }
        if !pair.is_remote() {
            let us = timed(batch, || notify(pair, pair.peer, ARRIVED, QUEUE))?;
            pair.job.wait(QUEUE)?;
            return Ok(Some(us));
        }
        // What has been posted is not there yet.
        (0..batch.before).try_for_each(|_| notify(pair, pair.peer, ARRIVED, QUEUE))?;
        pair.job.wait(QUEUE)?;
        let begin = Instant::now();
        (0..batch.operations).try_for_each(|_| notify(pair, pair.peer, ARRIVED, QUEUE))?;
        pair.job.wait(QUEUE)?;
        Ok(Some(micros(begin.elapsed()) / batch.operations as f64))
    })
}

/// Looks at one notification that is not set.
fn looks<'a>(pair: &'a Pair<'a>) -> Lane<'a> {
    let waitsome = pair.job.procedures.notify_waitsome;
    shm_baseline::alone(pair, move || {
        let mut first = 0;
        // SAFETY: writes the number that it is given.
        let status = unsafe { waitsome(SEGMENT, UNSET, 1, &raw mut first, TEST) };
        match black_box(status) {
            TIMEOUT => Ok(()),
            SUCCESS => Err(Failure::run(format!("notification {UNSET} is set, but nobody set it"))),
            other => pair.job.call("gaspi_notify_waitsome", other),
        }
    })
}

/// Resets notifications that are set.
fn resets<'a>(pair: &'a Pair<'a>) -> Lane<'a> {
    let reset = pair.job.procedures.notify_reset;
    Lane::new(move |batch: Batch| {
        if !pair.is_initiator() {
            return Ok(None);
        }
        let all = FIRST..FIRST + batch.all() as u32;
        for id in all.clone() {
            notify(pair, pair.job.rank, id, QUEUE)?;
        }
        pair.job.wait(QUEUE)?;
        let mut ids = all;
        let us = timed(batch, || {
            let (id, mut value) = (ids.next().unwrap_or(FIRST), 0);
            // SAFETY: writes the number that it is given.
            let status = unsafe { reset(SEGMENT, id, &raw mut value) };
            pair.job.call("gaspi_notify_reset", status)?;
            if value == VALUE { Ok(()) } else { Err(wrong_value(VALUE, value)) }
        })?;
        Ok(Some(us))
    })
}

/// A notification arrives, with its value.
fn check_notification(pair: Option<&Pair<'_>>, participants: usize) -> Result<u64> {
    let Some(pair) = pair else { return Ok(0) };
    if pair.is_initiator() {
        notify(pair, pair.peer, ARRIVED, QUEUE)?;
        pair.job.wait(QUEUE)?;
    } else {
        receive(pair)?;
    }
    // The next one has to find it taken.
    pair.job.meet(participants)?;
    Ok(0)
}

pub(crate) fn rate(job: &Job, plain: &Plain, report: &mut Report) -> Result<()> {
    let paired = Paired { sizes: Sizes::default_with(plain, false), pairs: 1 };
    for_each_size(job, &paired, &[8], |ground, pair, size| {
        let mut lanes = pair.map_or_else(Vec::new, |pair| {
            vec![
                baseline::request(pair, size),
                notifies(pair),
                shm_baseline::atomic_add(pair).named("atomic add"),
                looks(pair),
                resets(pair),
            ]
        });
        let schedule = Schedule::of_size(plain, size);
        let participants = ground.participants();
        let measured = interleave(job, participants, schedule, &mut lanes, |_| {
            check_notification(pair, participants)
        })?;
        let Some([request, notify, add, look, reset]) = measured.of() else { return Ok(()) };
        let rows = [
            ("notify", notify, (0, request)),
            ("waitsome-test", look, (2, add)),
            ("reset", reset, (2, add)),
        ];
        for (variant, samples, (lane, limit)) in rows {
            let row = Row::new("notify-rate", variant, samples.clone())
                .limit(measured.name(lane), limit.median())
                .errors(measured.errors);
            report.row(Layout::Rate, &row)?;
        }
        Ok(())
    })
}
