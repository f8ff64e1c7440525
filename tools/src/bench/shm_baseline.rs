//! What the hardware gives, measured without the library: the lanes that operations are compared
//! with.

use crate::failure::{Failure, Result};
use crate::job::{Job, micros};
use crate::measure::{Batch, Lane, timed};
use crate::memory::{Region, publish, wanted};
use crate::pair::{BATON, COUNTER, INITIATOR_BELL, INITIATOR_FLAG, Pair, TARGET_BELL, TARGET_FLAG};
use crate::system;
use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Switches between looks at the clock.
const LOOK_AFTER: u32 = 256;

/// One rank acts while the other rests: the acting rank's time.
pub(crate) fn alone<'a>(
    pair: &'a Pair<'a>,
    mut operation: impl FnMut() -> Result<()> + 'a,
) -> Lane<'a> {
    let acts = pair.is_initiator();
    Lane::new(move |batch| acts.then(|| timed(batch, &mut operation)).transpose())
}

/// Both ranks do the same at once.
pub(crate) fn by_both<'a>(mut operation: impl FnMut() -> Result<()> + 'a) -> Lane<'a> {
    Lane::new(move |batch| timed(batch, &mut operation).map(Some))
}

/// Both ranks take turns, the initiator first; the time is that of one way.
pub(crate) fn in_turn<'a>(
    pair: &'a Pair<'a>,
    send: impl FnMut(u64) -> Result<()> + 'a,
    receive: impl FnMut(u64) -> Result<()> + 'a,
) -> Lane<'a> {
    turns(pair, 2.0, send, receive)
}

/// The same, with the time of both ways: a request and its answer.
pub(crate) fn there_and_back<'a>(
    pair: &'a Pair<'a>,
    mut send: impl FnMut() -> Result<()> + 'a,
    mut receive: impl FnMut() -> Result<()> + 'a,
) -> Lane<'a> {
    turns(pair, 1.0, move |_| send(), move |_| receive())
}

fn turns<'a>(
    pair: &'a Pair<'a>,
    divisor: f64,
    mut send: impl FnMut(u64) -> Result<()> + 'a,
    mut receive: impl FnMut(u64) -> Result<()> + 'a,
) -> Lane<'a> {
    let first = pair.is_initiator();
    Lane::new(move |batch: Batch| {
        let mut step = pair.steps(batch.all());
        let mut round = || {
            step += 1;
            if first {
                send(step)?;
                receive(step)
            } else {
                receive(step)?;
                send(step)
            }
        };
        let us = timed(batch, &mut round)?;
        Ok(first.then_some(us / divisor))
    })
}

/// The same with a receiver that sleeps meanwhile: the sender waits so long before each message.
pub(crate) fn in_turn_asleep<'a>(
    pair: &'a Pair<'a>,
    delay: Duration,
    mut send: impl FnMut(u64) -> Result<()> + 'a,
    mut receive: impl FnMut(u64) -> Result<()> + 'a,
) -> Lane<'a> {
    let first = pair.is_initiator();
    Lane::new(move |batch: Batch| {
        let step = pair.steps(batch.all());
        let mut measured = Duration::ZERO;
        for count in 0..batch.all() {
            let step = step + 1 + count as u64;
            if !first {
                receive(step)?;
                spend(delay);
                send(step)?;
                continue;
            }
            spend(delay);
            let begin = Instant::now();
            send(step)?;
            receive(step)?;
            if count >= batch.before {
                measured += begin.elapsed().saturating_sub(delay);
            }
        }
        Ok(first.then(|| micros(measured) / batch.operations as f64 / 2.0))
    })
}

/// Computes for so long: the core stays awake, as that of a program.
fn spend(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A line written by one core and seen by the other.
pub(crate) fn hand_over<'a>(pair: &'a Pair<'a>) -> Lane<'a> {
    let (own, others) = pair.words(INITIATOR_FLAG, TARGET_FLAG);
    in_turn(
        pair,
        |step| {
            publish(own, step);
            Ok(())
        },
        |step| pair.job.spin("the hand-over of a line", || wanted(others, step)),
    )
}

/// Whether the receiver looks at the end of the data or at all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Last,
    All,
}

/// Data copied to the other core's memory, then a flag; the other looks at the data.
pub(crate) fn notified<'a>(pair: &'a Pair<'a>, size: usize, taken: Taken) -> Lane<'a> {
    let (own, others) = pair.words(INITIATOR_FLAG, TARGET_FLAG);
    let mut out = pair.rotation();
    let mut incoming = out;
    in_turn(
        pair,
        move |step| {
            let offset = out.offset();
            mark(pair.source, offset, size, step);
            pair.source.copy(offset, pair.raw_out, offset, size);
            publish(own, step);
            Ok(())
        },
        move |step| {
            pair.job.spin("the hand-over of data", || wanted(others, step))?;
            take(pair.job, pair.raw_in, incoming.offset(), size, step, taken);
            Ok(())
        },
    )
}

/// Writes the number of the step into the data that is to be sent.
#[inline(always)]
pub(crate) fn mark(source: Region<'_>, offset: usize, size: usize, step: u64) {
    if size >= 8 {
        source.set_last(offset, size, step);
    }
}

/// Looks at data that arrived: data of another step is an error.
#[inline(always)]
pub(crate) fn take(
    job: &Job,
    inbox: Region<'_>,
    offset: usize,
    size: usize,
    step: u64,
    taken: Taken,
) {
    if taken == Taken::All {
        black_box(inbox.sum(offset, size));
    }
    if size >= 8 && inbox.last(offset, size) != step {
        job.add_errors(1);
    }
}

/// An atomic addition in memory that the other core leaves alone.
pub(crate) fn atomic_add<'a>(pair: &'a Pair<'a>) -> Lane<'a> {
    let counter = pair.words.word(COUNTER);
    alone(pair, || {
        black_box(counter.fetch_add(1, Ordering::AcqRel));
        Ok(())
    })
}

/// Atomic additions by both cores at once.
pub(crate) fn contended_add<'a>(pair: &'a Pair<'a>) -> Lane<'a> {
    let counter = pair.words.word(COUNTER);
    Lane::new(move |batch| {
        let us = timed(batch, || {
            black_box(counter.fetch_add(1, Ordering::AcqRel));
            Ok(())
        })?;
        Ok(Some(us))
    })
}

/// memcpy from own memory into memory that the other maps.
pub(crate) fn copy_out<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    let mut rotation = pair.rotation();
    alone(pair, move || {
        let offset = rotation.offset();
        pair.source.copy(offset, pair.raw_out, offset, size);
        Ok(())
    })
}

/// memcpy into memory that the other maps, by both at once.
pub(crate) fn copy_both_ways<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    let mut rotation = pair.rotation();
    Lane::new(move |batch| {
        let us = timed(batch, || {
            let offset = rotation.offset();
            pair.source.copy(offset, pair.raw_out, offset, size);
            Ok(())
        })?;
        Ok(Some(us))
    })
}

/// memcpy from memory of the other into own memory.
pub(crate) fn copy_in<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    let mut rotation = pair.rotation();
    alone(pair, move || {
        let offset = rotation.offset();
        pair.raw_out.copy(offset, pair.inbox, offset, size);
        Ok(())
    })
}

/// memcpy of lines that the other core has just written.
pub(crate) fn copy_dirty<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    let (own, others) = pair.words(INITIATOR_FLAG, TARGET_FLAG);
    let mut rotation = pair.rotation();
    let first = pair.is_initiator();
    Lane::new(move |batch| {
        let step = pair.steps(batch.all());
        let mut measured = Duration::ZERO;
        for count in 0..batch.all() {
            let (step, offset) = (step + 1 + count as u64, rotation.offset());
            if first {
                pair.job.spin("the writing of lines", || wanted(others, step))?;
                let begin = Instant::now();
                pair.raw_in.copy(offset, pair.inbox, offset, size);
                if count >= batch.before {
                    measured += begin.elapsed();
                }
                publish(own, step);
            } else {
                mark(pair.source, offset, size, step);
                pair.source.copy(offset, pair.raw_out, offset, size);
                publish(own, step);
                pair.job.spin("the copying of lines", || wanted(others, step))?;
            }
        }
        Ok(first.then(|| micros(measured) / batch.operations as f64))
    })
}

/// Floats added to others, both in this rank's memory.
pub(crate) fn float_add<'a>(
    sum: Region<'a>,
    term: Region<'a>,
    size: usize,
    acts: bool,
) -> Lane<'a> {
    Lane::new(move |batch| {
        if !acts {
            return Ok(None);
        }
        let us = timed(batch, || {
            black_box(sum).add_floats(black_box(term), size);
            Ok(())
        })?;
        Ok(Some(us))
    })
}

/// Two processes on one core hand the core to each other.
pub(crate) fn yield_switch<'a>(job: &'a Job, words: Region<'a>, partner: usize) -> Lane<'a> {
    let baton = words.word(BATON);
    let me = match job.rank {
        0 => 0,
        rank if rank == partner => 1,
        _ => 2,
    };
    let core = job.core_of(0).or(job.usable_cores().first().copied()).unwrap_or(0);
    Lane::new(move |batch| {
        if me == 2 {
            return Ok(None);
        }
        let before = system::cores();
        bind(&[core])?;
        let mut tries = 0u32;
        let mut patience = job.patience("switches between two processes of a core");
        let us = timed(batch, || {
            while baton.load(Ordering::Acquire) != me {
                system::yield_now();
                tries += 1;
                // The clock would take a good part of a switch.
                if tries.is_multiple_of(LOOK_AFTER) {
                    patience.check(job)?;
                }
            }
            baton.store(1 - me, Ordering::Release);
            Ok(())
        })?;
        bind(&before)?;
        Ok((me == 0).then_some(us / 2.0))
    })
}

fn bind(cores: &[usize]) -> Result<()> {
    system::bind(cores)
        .map_err(|error| Failure::run(format!("cannot bind to cores {cores:?}: {error}")))
}

/// A process that sleeps is woken by one on another core, and wakes that in turn. Nothing but the
/// wake tells it that its turn has come, so each way is one sleep.
pub(crate) fn futex_wake<'a>(pair: &'a Pair<'a>) -> Lane<'a> {
    let (wake, sleep) = wakes(pair);
    in_turn(pair, wake, sleep)
}

/// The same with data that is copied before, `delay` after it was woken itself.
pub(crate) fn notified_asleep<'a>(pair: &'a Pair<'a>, size: usize, delay: Duration) -> Lane<'a> {
    let (mut wake, mut sleep) = wakes(pair);
    let mut out = pair.rotation();
    let mut incoming = out;
    in_turn_asleep(
        pair,
        delay,
        move |step| {
            let offset = out.offset();
            mark(pair.source, offset, size, step);
            pair.source.copy(offset, pair.raw_out, offset, size);
            wake(step)
        },
        move |step| {
            sleep(step)?;
            take(pair.job, pair.raw_in, incoming.offset(), size, step, Taken::Last);
            Ok(())
        },
    )
}

/// Waking the other, and sleeping until it does.
fn wakes<'a>(
    pair: &'a Pair<'a>,
) -> (impl FnMut(u64) -> Result<()> + 'a, impl FnMut(u64) -> Result<()> + 'a) {
    let (bell, peers) = (pair.words.word32(INITIATOR_BELL), pair.words.word32(TARGET_BELL));
    let (own, others) = if pair.is_initiator() { (bell, peers) } else { (peers, bell) };
    let wake = move |_| {
        let mut patience = pair.job.patience("the sleep of the peer");
        while !system::futex_wake(others) {
            patience.check(pair.job)?;
        }
        Ok(())
    };
    let sleep = move |_| {
        let mut patience = pair.job.patience("being woken");
        while !system::futex_wait(own, own.load(Ordering::Relaxed), Duration::from_millis(20)) {
            patience.check(pair.job)?;
        }
        Ok(())
    };
    (wake, sleep)
}
