//! What the hardware gives these two processes, without the library.

use crate::arguments::Sizes;
use crate::failure::Result;
use crate::job::Job;
use crate::measure::{Lane, Samples, Schedule, interleave};
use crate::pair::{Ground, on_ground};
use crate::raw::{self, Taken};
use crate::report::{Layout, Report, Row};

const SIZES: [usize; 6] = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 16 << 20];
/// What waits for the kernel takes microseconds.
const BATCH_SLOW: usize = 50;

pub(crate) fn run(job: &Job, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let sizes_asked = sizes.sizes(&SIZES)?;
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
    let (names, mut lanes): (Vec<_>, Vec<_>) = lanes.into_iter().unzip();
    let measured = interleave(job, ground.participants(), schedule, &mut lanes, |_| Ok(0))?;
    for (name, samples) in names.into_iter().zip(&measured.samples) {
        let mut row = Row::new("limits", name, Samples::clone(samples)).errors(measured.errors);
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
        lanes.push(("atomic add", raw::atomic_add(pair)));
        if job.ranks > 1 {
            lanes.push(("atomic add by both", raw::contended_add(pair)));
            lanes.push(("line hand-over", raw::hand_over(pair)));
            lanes.push(("data and flag", raw::notified(pair, 8, Taken::Last)));
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
        lanes.push(("yield switch", raw::yield_switch(job, ground.words(), pair.other())));
        lanes.push(("futex wake", raw::futex_wake(pair)));
    }
    let schedule = Schedule::of_batches(&sizes.plain, BATCH_SLOW);
    rows(job, ground, schedule, None, lanes, report)
}

/// Copies and additions of one size.
fn copies(job: &Job, ground: &Ground<'_>, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let (pair, size) = (ground.pair(), ground.size());
    let mut lanes = Vec::new();
    if let Some(pair) = &pair {
        lanes.push(("memcpy", raw::copy_out(pair, size)));
        if job.ranks > 1 {
            lanes.push(("memcpy of dirty lines", raw::copy_dirty(pair, size)));
        }
        let acts = pair.is_initiator();
        lanes.push(("float add", raw::float_add(pair.source, pair.inbox, size, acts)));
    }
    let schedule = Schedule::of_size(&sizes.plain, size);
    rows(job, ground, schedule, Some(size), lanes, report)
}
