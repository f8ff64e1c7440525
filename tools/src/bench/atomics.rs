//! Atomics on memory of a peer, by one rank alone and by both on the same word.

use crate::arguments::{Paired, Plain, Sizes};
use crate::baseline;
use crate::failure::Result;
use crate::job::{Job, LIMIT_MS};
use crate::measure::{Batch, Lane, Schedule, interleave, timed};
use crate::one_sided::attended;
use crate::pair::{Pair, SEGMENT, for_each_size};
use crate::report::{Layout, Report};
use crate::row::Row;
use crate::shm_baseline;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Words in the inbox of the target, each on a line of its own.
const ALONE: usize = 0;
const SWAPPED: usize = 64;
const TOGETHER: usize = 128;
const AWAY: usize = 192;
const BYTES: usize = 256;

/// Adds 1 to a word of the target, and returns what was there.
fn add(pair: &Pair<'_>, target: usize, word: usize) -> Result<u64> {
    let (offset, mut old) = ((pair.inbox_offset + word) as u64, 0);
    // SAFETY: writes the number that it is given.
    let status = unsafe {
        let add = pair.job.procedures.atomic_fetch_add;
        add(SEGMENT, offset, target as u16, 1, &raw mut old, LIMIT_MS)
    };
    pair.job.call("gaspi_atomic_fetch_add", status)?;
    Ok(old)
}

fn compare_swap(pair: &Pair<'_>, comparator: u64, new: u64) -> Result<u64> {
    let (offset, mut old) = ((pair.inbox_offset + SWAPPED) as u64, 0);
    // SAFETY: writes the number that it is given.
    let status = unsafe {
        let swap = pair.job.procedures.atomic_compare_swap;
        swap(SEGMENT, offset, pair.peer as u16, comparator, new, &raw mut old, LIMIT_MS)
    };
    pair.job.call("gaspi_atomic_compare_swap", status)?;
    Ok(old)
}

/// One rank alone: each addition has to find what the one before left.
fn adds<'a>(pair: &'a Pair<'a>, word: usize) -> Lane<'a> {
    let mut expected = 0;
    shm_baseline::alone(pair, move || {
        let old = add(pair, pair.peer, word)?;
        pair.job.add_errors_if(old != expected);
        expected += 1;
        Ok(())
    })
}

/// One rank alone: each swap has to succeed.
fn swaps<'a>(pair: &'a Pair<'a>) -> Lane<'a> {
    let mut value = 0;
    shm_baseline::alone(pair, move || {
        let old = compare_swap(pair, value, value + 1)?;
        pair.job.add_errors_if(old != value);
        value += 1;
        Ok(())
    })
}

/// Both ranks at once on a word of the target.
fn adds_together<'a>(pair: &'a Pair<'a>, made: &'a Cell<u64>) -> Lane<'a> {
    let target = if pair.is_initiator() { pair.peer } else { pair.job.rank };
    Lane::new(move |batch: Batch| {
        let us = timed(batch, || add(pair, target, TOGETHER).map(drop))?;
        made.set(made.get() + batch.all() as u64);
        Ok(Some(us))
    })
}

/// No addition of the two ranks was lost.
fn check(pair: Option<&Pair<'_>>, participants: usize, made: &Cell<u64>) -> Result<u64> {
    let Some(pair) = pair else { return Ok(0) };
    let job = pair.job;
    job.tell(made.get());
    job.meet(participants)?;
    let sum = job.told(0) + job.told(1);
    let found = pair.inbox.word(TOGETHER).load(Ordering::Relaxed);
    job.meet(participants)?;
    Ok(u64::from(!pair.is_initiator() && found != sum))
}

pub(crate) fn run(job: &Job, plain: &Plain, report: &mut Report) -> Result<()> {
    let paired = Paired { sizes: Sizes::default_with(plain, false), pairs: 1 };
    for_each_size(job, &paired, &[BYTES], |ground, pair, _| {
        let made = Cell::new(0);
        let mut lanes = Vec::new();
        if let Some(pair) = pair {
            lanes = vec![
                baseline::atomic_attended(pair),
                attended(pair, adds(pair, ALONE)),
                attended(pair, swaps(pair)),
                baseline::atomic_by_both(pair),
                adds_together(pair, &made),
            ];
            if pair.is_remote() {
                lanes.extend([baseline::atomic(pair), adds(pair, AWAY)]);
            }
        }
        let participants = ground.participants();
        let schedule = Schedule::of_size(plain, 8);
        let measured = interleave(job, participants, schedule, &mut lanes, |_| {
            check(pair, participants, &made)
        })?;
        let rows = [
            ("fetch_add", 1, 0),
            ("compare_swap", 2, 0),
            ("fetch_add by both", 4, 3),
            ("fetch_add, away", 6, 5),
        ];
        let lanes = measured.samples.len();
        for (variant, lane, limit) in rows.into_iter().filter(|(_, lane, _)| *lane < lanes) {
            let row = Row::new("atomic-lat", variant, measured.samples[lane].clone())
                .limit(measured.name(limit), measured.samples[limit].median())
                .errors(measured.errors);
            report.row(Layout::Rate, &row)?;
        }
        Ok(())
    })
}
