//! What verbs give two processes, measured without the library: the lanes that operations by verbs
//! are compared with, as perftest has them.
//!
//! Data is written straight from the source into the peer's raw memory: memory files, as segments
//! are, of the same sizes. Both ends ask their completion queues or look at memory, without sleep,
//! unless a lane says so. `cargo xtask rxe one/bench` runs perftest beside them.

use crate::failure::Result;
use crate::job::micros;
use crate::measure::{Batch, Lane};
use crate::memory::Region;
use crate::pair::Pair;
use crate::raw_verbs::{SLOT, Verbs, Work};
use crate::shm_baseline::{self, Taken, mark, take};
use crate::sockets::Waiting;
use std::time::{Duration, Instant};

/// After each batch waits for the end of all that it has posted.
fn settled<'a>(pair: &'a Pair<'a>, verbs: &'a Verbs<'a>, mut lane: Lane<'a>) -> Lane<'a> {
    Lane::new(move |batch| {
        let us = lane.run(batch)?;
        verbs.end.settle(pair.job)?;
        Ok(us)
    })
}

/// Writes to and fro, each seen by a target that looks at its memory: the time of one way, as
/// ib_write_lat shows it.
pub(crate) fn write_polled<'a>(pair: &'a Pair<'a>, verbs: &'a Verbs<'a>, size: usize) -> Lane<'a> {
    let mut out = pair.rotation();
    let mut incoming = out;
    let send = move |step| {
        let offset = out.offset();
        mark(pair.source, offset, size, step);
        verbs.end.post(pair.job, [verbs.write(offset, size)], false)
    };
    let receive = move |step| {
        let offset = incoming.offset();
        pair.job.spin("a raw write", || pair.raw_in.last(offset, size) == step)
    };
    settled(pair, verbs, shm_baseline::in_turn(pair, send, receive))
}

/// Whether data of so many bytes goes inside of a message. Otherwise it is written, and a message
/// follows.
fn rides(verbs: &Verbs<'_>, size: usize) -> bool {
    size <= verbs.end.inline()
}

/// The two halves of a turn.
fn turn<'a>(
    pair: &'a Pair<'a>,
    verbs: &'a Verbs<'a>,
    (size, rides): (usize, bool),
    taken: Taken,
    waiting: Waiting,
) -> (impl FnMut(u64) -> Result<()> + 'a, impl FnMut(u64) -> Result<()> + 'a) {
    let mut out = pair.rotation();
    let mut incoming = out;
    let send = move |step| {
        let offset = out.offset();
        mark(pair.source, offset, size, step);
        if rides {
            return verbs.end.post(pair.job, [verbs.message(offset, size)], false);
        }
        verbs.end.post(pair.job, [verbs.write_notified(offset, size)], false)
    };
    let receive = move |step| {
        let offset = incoming.offset();
        let (slot, length) = await_message(pair, verbs, waiting)?;
        pair.job.add_errors_if(length != if rides { size } else { size.min(SLOT) });
        let (memory, at) = if rides { (slot, 0) } else { (pair.raw_in, offset) };
        take(pair.job, memory, at, size, step, taken);
        Ok(())
    };
    (send, receive)
}

fn await_message<'a>(
    pair: &Pair<'_>,
    verbs: &Verbs<'a>,
    waiting: Waiting,
) -> Result<(Region<'a>, usize)> {
    match waiting {
        Waiting::Spinning => verbs.end.await_message(pair.job),
        Waiting::Blocking => verbs.end.await_message_asleep(pair.job),
    }
}

/// Messages to and fro: the time of one way, as ib_send_lat shows it.
pub(crate) fn message<'a>(pair: &'a Pair<'a>, verbs: &'a Verbs<'a>, size: usize) -> Lane<'a> {
    let (send, receive) = turn(pair, verbs, (size, true), Taken::Last, Waiting::Spinning);
    settled(pair, verbs, shm_baseline::in_turn(pair, send, receive))
}

/// Writes, of each of which the target is told by immediate data.
pub(crate) fn write_notified<'a>(
    pair: &'a Pair<'a>,
    verbs: &'a Verbs<'a>,
    size: usize,
) -> Lane<'a> {
    let (send, receive) = turn(pair, verbs, (size, false), Taken::Last, Waiting::Spinning);
    settled(pair, verbs, shm_baseline::in_turn(pair, send, receive))
}

/// Data that the target gets to know of, in the better of both ways, and how that is called.
pub(crate) fn notified<'a>(
    pair: &'a Pair<'a>,
    verbs: &'a Verbs<'a>,
    size: usize,
    taken: Taken,
) -> Lane<'a> {
    let rides = rides(verbs, size);
    let (send, receive) = turn(pair, verbs, (size, rides), taken, Waiting::Spinning);
    let name = match (rides, taken) {
        (true, Taken::Last) => "raw message",
        (true, Taken::All) => "raw message, data read",
        (false, Taken::Last) => "raw write with immediate",
        (false, Taken::All) => "raw write with immediate, data read",
    };
    settled(pair, verbs, shm_baseline::in_turn(pair, send, receive)).named(name)
}

/// The same with a receiver that sleeps: each is sent `delay` after the one before.
pub(crate) fn notified_asleep<'a>(
    pair: &'a Pair<'a>,
    verbs: &'a Verbs<'a>,
    size: usize,
    delay: Duration,
) -> Lane<'a> {
    let rides = rides(verbs, size);
    let (send, receive) = turn(pair, verbs, (size, rides), Taken::Last, Waiting::Blocking);
    let lane = shm_baseline::in_turn_asleep(pair, delay, send, receive);
    settled(pair, verbs, lane).named("raw message, receiver asleep")
}

/// A message and the answer to it; the initiator spins.
pub(crate) fn round_trip<'a>(
    pair: &'a Pair<'a>,
    verbs: &'a Verbs<'a>,
    size: usize,
    target: Waiting,
) -> Lane<'a> {
    let acts = pair.is_initiator();
    let waiting = if acts { Waiting::Spinning } else { target };
    let size = size.min(verbs.end.inline());
    let send = move || verbs.end.post(pair.job, [verbs.message(0, size)], false);
    let receive = move || {
        let (_, length) = await_message(pair, verbs, waiting)?;
        pair.job.add_errors_if(length != size);
        Ok(())
    };
    settled(pair, verbs, shm_baseline::there_and_back(pair, send, receive))
}

/// A message of each rank to the other, both at once, as in a barrier of two.
pub(crate) fn crossing<'a>(pair: &'a Pair<'a>, verbs: &'a Verbs<'a>, size: usize) -> Lane<'a> {
    let size = size.min(verbs.end.inline());
    let lane = shm_baseline::by_both(move || {
        verbs.end.post(pair.job, [verbs.message(0, size)], false)?;
        let (_, length) = await_message(pair, verbs, Waiting::Spinning)?;
        pair.job.add_errors_if(length != size);
        Ok(())
    });
    settled(pair, verbs, lane)
}

/// One request after another, each with its completion.
fn completed<'a, const N: usize>(
    pair: &'a Pair<'a>,
    verbs: &'a Verbs<'a>,
    work: impl Fn(usize) -> [Work; N] + 'a,
) -> Lane<'a> {
    let mut rotation = pair.rotation();
    shm_baseline::alone(pair, move || {
        verbs.end.post(pair.job, work(rotation.offset()), true)?;
        verbs.end.await_sent(pair.job)
    })
}

/// A write and its completion: the peer's device has the data.
pub(crate) fn write_completed<'a>(
    pair: &'a Pair<'a>,
    verbs: &'a Verbs<'a>,
    size: usize,
) -> Lane<'a> {
    completed(pair, verbs, move |offset| [verbs.write(offset, size)])
}

/// A write, and a read behind it: the peer's memory has the data.
pub(crate) fn write_read_behind<'a>(
    pair: &'a Pair<'a>,
    verbs: &'a Verbs<'a>,
    size: usize,
) -> Lane<'a> {
    let both = move |offset| [verbs.write(offset, size), verbs.read_behind(offset, size)];
    completed(pair, verbs, both)
}

/// A read and its completion, as ib_read_lat shows it.
pub(crate) fn read<'a>(pair: &'a Pair<'a>, verbs: &'a Verbs<'a>, size: usize) -> Lane<'a> {
    completed(pair, verbs, move |offset| [verbs.read(offset, size)])
}

/// Calls that post writes; only they count.
pub(crate) fn posts<'a>(pair: &'a Pair<'a>, verbs: &'a Verbs<'a>, size: usize) -> Lane<'a> {
    let mut rotation = pair.rotation();
    Lane::new(move |batch: Batch| {
        if !pair.is_initiator() {
            return Ok(None);
        }
        let mut post = || verbs.end.post(pair.job, [verbs.write(rotation.offset(), size)], false);
        (0..batch.before).try_for_each(|_| post())?;
        verbs.end.settle(pair.job)?;
        let begin = Instant::now();
        (0..batch.operations).try_for_each(|_| post())?;
        let us = micros(begin.elapsed()) / batch.operations as f64;
        verbs.end.settle(pair.job)?;
        Ok(Some(us))
    })
}

/// Requests of one rank one after another, and in the end the completion of all: `piece` makes
/// those of one buffer, of which a device may take less at once.
fn stream<'a>(
    pair: &'a Pair<'a>,
    verbs: &'a Verbs<'a>,
    acts: bool,
    piece: impl Fn(usize, usize) -> Work + 'a,
) -> Lane<'a> {
    let (size, longest) = (pair.size(), verbs.end.longest());
    let mut rotation = pair.rotation();
    let mut run = move |count: usize| -> Result<()> {
        for _ in 0..count {
            let offset = rotation.offset();
            for at in (0..size).step_by(longest) {
                let work = piece(offset + at, longest.min(size - at));
                verbs.end.post(pair.job, [work], false)?;
            }
        }
        verbs.end.settle(pair.job)
    };
    Lane::new(move |batch: Batch| {
        if !acts {
            return Ok(None);
        }
        run(batch.before)?;
        let begin = Instant::now();
        run(batch.operations)?;
        Ok(Some(micros(begin.elapsed()) / batch.operations as f64))
    })
}

/// Writes one after another, as ib_write_bw has them.
pub(crate) fn writes<'a>(pair: &'a Pair<'a>, verbs: &'a Verbs<'a>) -> Lane<'a> {
    stream(pair, verbs, pair.is_initiator(), |offset, size| verbs.write(offset, size))
}

/// Reads one after another, as ib_read_bw has them.
pub(crate) fn reads<'a>(pair: &'a Pair<'a>, verbs: &'a Verbs<'a>) -> Lane<'a> {
    stream(pair, verbs, pair.is_initiator(), |offset, size| verbs.read(offset, size))
}

/// Writes of both ranks at once.
pub(crate) fn writes_both_ways<'a>(pair: &'a Pair<'a>, verbs: &'a Verbs<'a>) -> Lane<'a> {
    stream(pair, verbs, true, |offset, size| verbs.write(offset, size))
}

/// Compares all bytes that raw requests move: written, read and sent.
pub(crate) fn check(pair: Option<&Pair<'_>>, participants: usize, round: u64) -> Result<u64> {
    let Some((pair, verbs)) = pair.and_then(|pair| Some((pair, pair.verbs?))) else {
        return Ok(0);
    };
    let (job, size, acts) = (pair.job, pair.size(), pair.is_initiator());
    let (longest, mut errors) = (verbs.end.longest(), 0);
    let whole = |piece: &dyn Fn(usize, usize) -> Work| -> Result<()> {
        for at in (0..size).step_by(longest) {
            verbs.end.post(job, [piece(at, longest.min(size - at))], false)?;
        }
        Ok(())
    };
    // A pattern of each rank: nothing of the other's serves.
    pair.source.fill(0, size, round ^ u64::from(acts));
    let of_peer = round ^ u64::from(!acts);
    if acts {
        whole(&|at, size| verbs.write(at, size))?;
        verbs.end.post(job, [verbs.read_behind(0, size)], true)?;
        verbs.end.await_sent(job)?;
    }
    job.meet(participants)?;
    if acts {
        whole(&|at, size| verbs.read(at, size))?;
        verbs.end.settle(job)?;
    }
    errors += pair.raw_in.errors(0, size, of_peer);
    let sent = size.min(verbs.end.inline());
    if acts {
        verbs.end.post(job, [verbs.message(0, sent)], true)?;
        verbs.end.await_sent(job)?;
    } else {
        let (slot, length) = verbs.end.await_message(job)?;
        errors += u64::from(length != sent) + slot.errors(0, length.min(sent), of_peer);
    }
    // The next round changes what is compared here.
    job.meet(participants)?;
    Ok(errors)
}
