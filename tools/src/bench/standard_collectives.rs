//! gaspi_barrier and gaspi_allreduce of all ranks, back to back.
//!
//! Their limit is one hand-over of a line where each rank has a core. Where ranks share cores each
//! has to run once: as many switches as ranks share a core.

use crate::arguments::{Plain, Sizes, Test};
use crate::baseline;
use crate::failure::Result;
use crate::job::{Job, LIMIT_MS, Segment};
use crate::measure::{Lane, Schedule, interleave, timed};
use crate::memory::{LINE, Region};
use crate::pair::{Ground, Pair, on_ground, rotation};
use crate::report::{Layout, Report};
use crate::row::Row;
use crate::samples::Samples;
use crate::shm_baseline;

const BATCH: usize = 800;
/// Where ranks share cores, one takes microseconds.
const BATCH_CROWDED: usize = 60;
pub(crate) const SIZES: [usize; 4] = [8, 64, 512, 2040];
pub(crate) const DOUBLE: usize = 8;
/// gaspi_allreduce takes these without being configured.
const ELEMENTS_DEFAULT: usize = 255;
const GROUP_ALL: u8 = 0;
const SUM: i32 = 2;
const TYPE_DOUBLE: i32 = 3;

/// What allreduce_elem_max has to be for the sizes of a test, if not what it is by default.
pub(crate) fn elements(test: &Test) -> Result<Option<u32>> {
    let Test::AllreduceStandard(sizes) = test else { return Ok(None) };
    let most = sizes.sizes(&SIZES)?.into_iter().max().map_or(0, |size| size / DOUBLE);
    Ok((most > ELEMENTS_DEFAULT).then_some(u32::try_from(most).unwrap_or(u32::MAX)))
}

/// What the ranks of a job need at least to hear of each other.
fn meeting<'a>(
    job: &'a Job,
    ground: &'a Ground<'_>,
    pair: Option<&'a Pair<'a>>,
    size: usize,
) -> Lane<'a> {
    if job.crowded() && job.links.one_memory {
        return shm_baseline::yield_switch(job, ground.words(), partner(job));
    }
    let has_limit = |pair: &&Pair<'_>| job.ranks > 1 && (job.links.one_memory || pair.is_remote());
    match pair.filter(has_limit) {
        Some(pair) => baseline::meeting(pair, size, job.crowded()),
        None => Lane::new(|_| Ok(None)),
    }
}

/// The first rank that shares a core with rank 0.
fn partner(job: &Job) -> usize {
    let core = job.core_of(0);
    let other = (1..job.ranks).find(|rank| core.is_some() && job.core_of(*rank) == core);
    other.unwrap_or(1)
}

/// Name and time of the limit, from the samples of `meeting`.
fn limit(job: &Job, name: &str, meeting: &Samples) -> Option<(String, f64)> {
    if job.ranks == 1 || meeting.median() == 0.0 {
        return None;
    }
    if !job.links.one_memory {
        // As many messages one after another as a value needs to reach all ranks.
        let steps = job.ranks.next_power_of_two().ilog2();
        let name = if steps == 1 { name.to_owned() } else { format!("{steps} x {name}") };
        return Some((name, f64::from(steps) * meeting.median()));
    }
    if job.crowded() {
        let ranks = job.ranks_per_core();
        return Some((format!("{ranks} x yield switch"), ranks as f64 * meeting.median()));
    }
    Some((name.to_owned(), meeting.median()))
}

pub(crate) fn schedule(job: &Job, plain: &Plain, size: usize) -> Schedule {
    if job.crowded() {
        return Schedule::of_batches(plain, BATCH_CROWDED.min((1 << 24) / size).max(1));
    }
    if size <= LINE { Schedule::of_batches(plain, BATCH) } else { Schedule::of_size(plain, size) }
}

pub(crate) fn barrier(job: &Job, plain: &Plain, report: &mut Report) -> Result<()> {
    on_ground(job, DOUBLE, false, |ground| barrier_row(job, plain, ground, report))
}

fn barrier_row(job: &Job, plain: &Plain, ground: &Ground<'_>, report: &mut Report) -> Result<()> {
    let pair = ground.pair();
    let mut lanes = [
        meeting(job, ground, pair.as_ref(), DOUBLE),
        Lane::new(|batch| timed(batch, || job.barrier()).map(Some)),
    ];
    let schedule = schedule(job, plain, DOUBLE);
    let measured = interleave(job, job.ranks, schedule, &mut lanes, |round| {
        check(job, &ground.segment, round)
    })?;
    if let Some([meeting, barrier]) = measured.of() {
        let mut row = Row::new("barrier", "barrier", barrier.clone()).errors(measured.errors);
        if let Some((name, us)) = limit(job, measured.name(0), meeting) {
            row = row.limit(name, us);
        }
        report.row(Layout::Latency, &row)?;
    }
    Ok(())
}

/// After a barrier data is there that another rank wrote before it.
fn check(job: &Job, segment: &Segment<'_>, round: u64) -> Result<u64> {
    segment.region.set_last(0, DOUBLE, round);
    segment.write(0, (job.rank + 1) % job.ranks, LINE, DOUBLE, 0)?;
    job.wait(0)?;
    job.barrier()?;
    let found = segment.region.last(LINE, DOUBLE);
    // The next round changes what is compared here.
    job.barrier()?;
    Ok(u64::from(found != round))
}

fn sum(job: &Job, send: Region<'_>, receive: Region<'_>, size: usize) -> Result<()> {
    let count = (size / DOUBLE) as u32;
    // SAFETY: both buffers have `size` bytes.
    let status = unsafe {
        (job.procedures.allreduce)(
            send.address().cast(),
            receive.address().cast(),
            count,
            SUM,
            TYPE_DOUBLE,
            GROUP_ALL,
            LIMIT_MS,
        )
    };
    job.call("gaspi_allreduce", status)
}

/// Sums of whole numbers are exact, whatever their order.
fn check_sums(
    job: &Job,
    send: Region<'_>,
    receive: Region<'_>,
    size: usize,
    round: u64,
) -> Result<u64> {
    let value =
        |rank: usize, index: usize| (rank + 1) as f64 * (index as f64 + (round % 97) as f64);
    for index in 0..size / DOUBLE {
        send.set_last(index * DOUBLE, DOUBLE, value(job.rank, index).to_bits());
    }
    sum(job, send, receive, size)?;
    let wrong = (0..size / DOUBLE).filter(|index| {
        let wanted: f64 = (0..job.ranks).map(|rank| value(rank, *index)).sum();
        receive.last(index * DOUBLE, DOUBLE) != wanted.to_bits()
    });
    Ok(wrong.count() as u64)
}

pub(crate) fn allreduce(job: &Job, sizes: &Sizes, report: &mut Report) -> Result<()> {
    for size in sizes.sizes(&SIZES)? {
        on_ground(job, size, sizes.cold, |ground| allreduce_row(job, sizes, ground, report))?;
    }
    Ok(())
}

fn allreduce_row(job: &Job, sizes: &Sizes, ground: &Ground<'_>, report: &mut Report) -> Result<()> {
    let (pair, size) = (ground.pair(), ground.size());
    let (send, receive) = ground.halves();
    let mut buffers = rotation(size, sizes.cold);
    let share = (size / job.ranks).max(DOUBLE);
    let add = match &pair {
        Some(pair) => shm_baseline::float_add(pair.raw_in, pair.raw_out, share, job.rank == 0),
        None => Lane::new(|_| Ok(None)),
    };
    let mut lanes = [
        meeting(job, ground, pair.as_ref(), size),
        add,
        Lane::new(move |batch| {
            let us = timed(batch, || {
                let at = buffers.offset();
                sum(job, send.part(at, size), receive.part(at, size), size)
            })?;
            Ok(Some(us))
        }),
    ];
    let schedule = schedule(job, &sizes.plain, size);
    let measured = interleave(job, job.ranks, schedule, &mut lanes, |round| {
        check_sums(job, send, receive, size, round)
    })?;
    let Some([meeting, add, operation]) = measured.of() else { return Ok(()) };
    let mut row = Row::new("allreduce-standard", "sum f64", operation.clone())
        .size(size)
        .errors(measured.errors);
    if let Some((name, us)) = limit(job, measured.name(0), meeting) {
        row = if size <= LINE || !job.links.one_memory {
            row.limit(name, us)
        } else {
            let adding = add.median() * if job.crowded() { job.ranks_per_core() } else { 1 } as f64;
            row.limit(format!("{name} + adding a share"), us + adding)
        };
    }
    report.row(Layout::Latency, &row)
}
