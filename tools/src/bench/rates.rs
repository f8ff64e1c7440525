//! Writes per second: of one thread, and of several threads of a rank on queues of their own.

use crate::arguments::Rate;
use crate::baseline;
use crate::failure::{Failure, Result};
use crate::job::{Job, micros};
use crate::measure::{Batch, Lane, Schedule, interleave};
use crate::memory::APART;
use crate::one_sided::check_writes;
use crate::pair::{Ground, Pair, TARGET_BELL};
use crate::report::{Layout, Report};
use crate::row::Row;
use crate::system;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SIZES: [usize; 3] = [8, 64, 1 << 10];
/// Writes of a thread in a batch: long beside the moment when threads begin and end.
const BATCH: usize = 20_000;
const BATCH_BYTES: usize = 16 << 20;
/// Writes between two waits, below the 1024 that fit into a queue.
const BETWEEN_WAITS: usize = 512;
/// Looks at the clock of a sleeper.
const NAP: Duration = Duration::from_millis(20);

/// A thread's place: its queue, and its buffers in the halves of the segment.
#[derive(Debug, Clone, Copy)]
struct Place {
    queue: u8,
    offset: usize,
    core: Option<usize>,
}

/// Queues beyond those that a job begins with.
#[derive(Debug)]
struct Queues<'a> {
    job: &'a Job,
    made: Vec<u8>,
}

impl<'a> Queues<'a> {
    fn at_least(job: &'a Job, count: usize) -> Result<Queues<'a>> {
        let (p, mut queues) = (job.procedures, Queues { job, made: Vec::new() });
        let mut there = 0;
        // SAFETY: writes the number that it is given.
        job.call("gaspi_queue_num", unsafe { (p.queue_num)(&raw mut there) })?;
        for _ in there as usize..count {
            let mut queue = 0;
            // SAFETY: writes the number that it is given.
            let status = unsafe { (p.queue_create)(&raw mut queue, crate::job::LIMIT_MS) };
            job.call("gaspi_queue_create", status)
                .map_err(|failure| failure.within(&format!("{count} threads need a queue each")))?;
            queues.made.push(queue);
        }
        Ok(queues)
    }

    fn delete(self) -> Result<()> {
        for queue in self.made {
            // SAFETY: no pointers.
            let status = unsafe { (self.job.procedures.queue_delete)(queue) };
            self.job.call("gaspi_queue_delete", status)?;
        }
        Ok(())
    }
}

/// Writes of one thread.
fn write(pair: &Pair<'_>, place: Place, size: usize, count: usize) -> Result<()> {
    let to = pair.inbox_offset + place.offset;
    let mut left = count;
    while left > 0 {
        let now = left.min(BETWEEN_WAITS);
        for _ in 0..now {
            pair.segment.write(place.offset, pair.peer, to, size, place.queue)?;
        }
        pair.job.wait(place.queue)?;
        left -= now;
    }
    Ok(())
}

/// Threads that write at the same time: the time from the first's begin to the last's end.
fn threads(pair: &Pair<'_>, places: &[Place], size: usize, batch: Batch) -> Result<f64> {
    let ready = AtomicUsize::new(0);
    let spans: Result<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let running: Vec<_> = places
            .iter()
            .map(|place| {
                let ready = &ready;
                scope.spawn(move || {
                    let bound = place.core.map_or(Ok(()), |core| system::bind(&[core]));
                    let written = write(pair, *place, size, batch.before);
                    // Also after an error: the others wait for all.
                    ready.fetch_add(1, Ordering::AcqRel);
                    written?;
                    bound.map_err(|error| {
                        Failure::run(format!("cannot bind a thread to a core: {error}"))
                    })?;
                    pair.job.spin("the begin of all threads", || {
                        ready.load(Ordering::Acquire) == places.len()
                    })?;
                    let begin = Instant::now();
                    write(pair, *place, size, batch.operations)?;
                    Ok((begin, Instant::now()))
                })
            })
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Failure::run("a thread panicked"))))
            .collect()
    });
    let spans = spans?;
    let begin = spans.iter().map(|span| span.0).min();
    let end = spans.iter().map(|span| span.1).max();
    let all = (places.len() * batch.operations) as f64;
    Ok(begin.zip(end).map_or(0.0, |(begin, end)| micros(end - begin)) / all)
}

/// The target sleeps, so that the threads of the initiator have its core, or over TCP and verbs the
/// library's own thread.
fn lane<'a>(pair: &'a Pair<'a>, places: &'a [Place], size: usize) -> Lane<'a> {
    let bell = pair.words.word32(TARGET_BELL);
    Lane::new(move |batch| {
        if pair.is_remote() {
            // The meeting at the end sleeps almost at once.
            return pair.is_initiator().then(|| threads(pair, places, size, batch)).transpose();
        }
        let step = pair.steps(1) as u32 + 1;
        if pair.is_initiator() {
            let us = threads(pair, places, size, batch)?;
            bell.store(step, Ordering::SeqCst);
            system::futex_wake(bell);
            return Ok(Some(us));
        }
        let mut patience = pair.job.patience("writes of the peer's threads");
        loop {
            let now = bell.load(Ordering::SeqCst);
            if now == step {
                return Ok(None);
            }
            system::futex_wait(bell, now, NAP);
            patience.check(pair.job)?;
        }
    })
}

/// Threads on the cores from the rank's own on, in turn.
fn places(job: &Job, threads: usize, stride: usize) -> Vec<Place> {
    let own = job.core_of(job.rank);
    let cores = own.map(|own| in_turn(own, &job.cores, &job.usable_cores()));
    let core = |thread: usize| cores.as_ref().map(|cores| cores[thread % cores.len()]);
    (0..threads)
        .map(|thread| Place { queue: thread as u8, offset: thread * stride, core: core(thread) })
        .collect()
}

/// The cores of a rank from its own on: those that it was given before those of the others.
fn in_turn(own: usize, given: &[usize], all: &[usize]) -> Vec<usize> {
    let mut cores: Vec<usize> = all.iter().copied().filter(|core| *core >= own).collect();
    cores.extend(all.iter().filter(|core| **core < own));
    cores.sort_by_key(|core| (*core != own, !given.contains(core)));
    if cores.is_empty() { vec![own] } else { cores }
}

pub(crate) fn run(job: &Job, rate: &Rate, report: &mut Report) -> Result<()> {
    let (paired, count) = (&rate.paired, rate.threads);
    let queues = Queues::at_least(job, count)?;
    for size in paired.sizes.sizes(&SIZES)? {
        let stride = size.next_multiple_of(APART);
        let ground = Ground::new(job, paired.pairs, stride * count, false)?;
        measure(job, rate, &ground, &places(job, count, stride), size, report)?;
        ground.delete()?;
    }
    queues.delete()
}

fn measure(
    job: &Job,
    rate: &Rate,
    ground: &Ground<'_>,
    places: &[Place],
    size: usize,
    report: &mut Report,
) -> Result<()> {
    let (pair, pairs) = (ground.pair(), rate.paired.pairs);
    let pair = pair.as_ref();
    let mut lanes = Vec::new();
    if let Some(pair) = pair {
        lanes = vec![baseline::request(pair, size), lane(pair, &places[..1], size)];
        if places.len() > 1 {
            lanes.push(lane(pair, places, size));
        }
    }
    let batch = (BATCH_BYTES / size).clamp(1, BATCH);
    let plain = &rate.paired.sizes.plain;
    let schedule = if job.links.one_memory {
        Schedule::of_batches(plain, batch)
    } else {
        Schedule::of_long(plain, batch)
    };
    let participants = ground.participants();
    let measured = interleave(job, participants, schedule, &mut lanes, |round| {
        check_writes(pair, participants, round)
    })?;
    let [limit, one, several @ ..] = &measured.samples[..] else { return Ok(()) };
    let row = Row::new("write-rate", "1 thread", one.clone())
        .size(size)
        .limit(measured.name(0), limit.median())
        .at_once(pairs)
        .errors(measured.errors);
    report.row(Layout::Rate, &row)?;
    let [several] = several else { return Ok(()) };
    // A sample is the time between two writes of any thread.
    let row = Row::new("write-rate", "threads", several.clone())
        .size(size)
        .limit(
            format!("{} x the rate of 1 thread", places.len()),
            one.median() / places.len() as f64,
        )
        .share()
        .at_once(pairs);
    report.row(Layout::Rate, &row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_begin_on_the_core_of_their_rank_and_keep_to_its_share() {
        assert_eq!(in_turn(2, &[2, 6], &[0, 1, 2, 3, 4, 5, 6, 7])[..3], [2, 6, 3]);
        assert_eq!(in_turn(1, &[1], &[0, 1, 2]), [1, 2, 0]);
        assert_eq!(in_turn(5, &[5], &[]), [5]);
    }
}
