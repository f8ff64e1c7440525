//! Batches of an operation between batches of its limit, so that other load of the machine
//! affects both alike.
//!
//! The unit of a sample is the mean of one batch: single operations of nanoseconds are below what a
//! clock resolves. Percentiles are those of batches.

use crate::arguments::Plain;
use crate::failure::Result;
use crate::job::{Job, micros};
use crate::samples::Samples;
use std::time::Instant;

/// Operations of a batch for sizes that a few lines hold; below the 1024 requests of a queue,
/// together with those before it.
const SMALL_BATCH: usize = 800;
/// Bytes that a batch moves at most, apart from its first operation: some tens of microseconds, so
/// that most batches fit between two moments when the kernel lets others have the core.
const BATCH_BYTES: usize = 1 << 20;
/// Batches of a row.
const BATCHES: usize = 300;
const BATCHES_MIN: usize = 40;
/// Of operations of a millisecond.
const BATCHES_LONG: usize = 100;
/// Bytes that all batches of a row move, apart from the fewest that are made.
const ROW_BYTES: usize = 2 << 30;

/// What one batch does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch {
    /// Operations that are not measured: sleepers wake, caches fill again.
    pub(crate) before: usize,
    pub(crate) operations: usize,
}

impl Batch {
    /// All operations.
    pub(crate) fn all(self) -> usize {
        self.before + self.operations
    }
}

/// How a row is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    pub(crate) batch: Batch,
    batches: usize,
    warmup: usize,
    check: bool,
}

impl Schedule {
    /// For operations that move `size` bytes.
    pub(crate) fn of_size(plain: &Plain, size: usize) -> Schedule {
        let operations = (BATCH_BYTES / size.max(1)).clamp(1, SMALL_BATCH);
        let batches = (ROW_BYTES / (operations * size.max(1))).clamp(BATCHES_MIN, BATCHES);
        Schedule::new(plain, operations, batches)
    }

    /// For operations that are slow, or wait for others.
    pub(crate) fn of_batches(plain: &Plain, operations: usize) -> Schedule {
        Schedule::new(plain, operations, BATCHES)
    }

    /// For operations that take about a millisecond.
    pub(crate) fn of_long(plain: &Plain, operations: usize) -> Schedule {
        Schedule::new(plain, operations, BATCHES_LONG)
    }

    fn new(plain: &Plain, operations: usize, batches: usize) -> Schedule {
        let operations = plain.iterations.map_or(operations, |all| all.min(operations));
        let batches = plain.iterations.map_or(batches, |all| all.div_ceil(operations));
        let warmup = plain.warmup.map_or(batches / 10, |all| all.div_ceil(operations));
        let before = (operations / 8).max(1);
        Schedule { batch: Batch { before, operations }, batches, warmup, check: plain.check }
    }
}

/// One thing that is measured: runs a batch, and returns microseconds for an operation on the ranks
/// that measure it.
pub(crate) struct Lane<'a> {
    name: &'static str,
    run: Box<dyn FnMut(Batch) -> Result<Option<f64>> + 'a>,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(run: impl FnMut(Batch) -> Result<Option<f64>> + 'a) -> Lane<'a> {
        Lane { name: "", run: Box::new(run) }
    }

    /// Runs a batch.
    pub(crate) fn run(&mut self, batch: Batch) -> Result<Option<f64>> {
        (self.run)(batch)
    }

    /// The same with a name, which limits have.
    pub(crate) fn named(self, name: &'static str) -> Lane<'a> {
        Lane { name, ..self }
    }
}

impl std::fmt::Debug for Lane<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lane")
    }
}

/// Times a batch of operations of this rank.
#[inline(always)]
pub(crate) fn timed(batch: Batch, mut operation: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..batch.before {
        operation()?;
    }
    let begin = Instant::now();
    for _ in 0..batch.operations {
        operation()?;
    }
    Ok(micros(begin.elapsed()) / batch.operations as f64)
}

/// What a row came to.
#[derive(Debug)]
pub(crate) struct Measured {
    /// By lane; of the slowest rank in each batch.
    pub(crate) samples: Vec<Samples>,
    names: Vec<&'static str>,
    pub(crate) errors: u64,
}

impl Measured {
    /// The name of a lane.
    pub(crate) fn name(&self, lane: usize) -> &'static str {
        self.names.get(lane).copied().unwrap_or_default()
    }

    /// The samples of as many lanes as there were; none on ranks that measured nothing.
    pub(crate) fn of<const N: usize>(&self) -> Option<&[Samples; N]> {
        <&[Samples; N]>::try_from(&self.samples[..]).ok()
    }
}

/// Runs the lanes in turn, batch by batch, on the first `participants` ranks; the others wait.
/// `check` compares data and returns how much of it was wrong; it runs once, or after every round.
pub(crate) fn interleave(
    job: &Job,
    participants: usize,
    schedule: Schedule,
    lanes: &mut [Lane<'_>],
    mut check: impl FnMut(u64) -> Result<u64>,
) -> Result<Measured> {
    let mut samples = vec![Vec::with_capacity(schedule.batches); lanes.len()];
    if job.rank < participants {
        for round in 0..schedule.warmup + schedule.batches {
            for (lane, samples) in lanes.iter_mut().zip(&mut samples) {
                let us = run_together(job, participants, || lane.run(schedule.batch))?;
                if round >= schedule.warmup {
                    samples.extend(us);
                }
            }
            if schedule.check {
                job.add_errors(check(round as u64)?);
            }
        }
        job.add_errors(check(u64::MAX)?);
    }
    job.meet_all()?;
    let errors = if job.rank == 0 { job.take_errors() } else { 0 };
    // No rank adds errors of the next row before these are taken.
    job.meet_all()?;
    let names = lanes.iter().map(|lane| lane.name).collect();
    Ok(Measured { samples: samples.into_iter().map(Samples::new).collect(), names, errors })
}

/// Begins on all ranks at once, and returns the longest time that one of them took.
pub(crate) fn run_together(
    job: &Job,
    participants: usize,
    run: impl FnOnce() -> Result<Option<f64>>,
) -> Result<Option<f64>> {
    // Twice: the first wakes the sleepers, so that the second ends for all at the same moment.
    job.meet(participants)?;
    job.meet(participants)?;
    job.give_sample(run()?);
    job.meet(participants)?;
    // No rank gives the next one before the first meeting of the next batch.
    Ok(job.longest_sample(participants))
}
