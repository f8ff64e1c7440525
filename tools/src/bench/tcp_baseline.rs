//! What TCP gives two processes, measured without the library: the lanes that operations over TCP
//! are compared with.
//!
//! Data is sent straight from the source and received straight into the target: memory files, as
//! segments are, of the same sizes. Measured beside other forms on this, so that the limit is the
//! best that a careful C program has: one call for all that is left instead of pieces; a sender
//! that sleeps in the call and a receiver that spins; no MSG_ZEROCOPY. sendfile is faster from some
//! MiB on and shown by `limits`, but what it sends may change on the way.

use crate::connections::Streams;
use crate::failure::{Failure, Result};
use crate::job::micros;
use crate::measure::{Batch, Lane, timed};
use crate::memory::{Region, Rotation, Shared};
use crate::pair::Pair;
use crate::shm_baseline::{self, Taken};
use crate::sockets::{Pause, Socket, Waiting};
use crate::system;
use std::time::{Duration, Instant};

/// Parts of one call, below the kernel's 1024.
const PARTS: usize = 64;
/// Bytes of one call where a process sends and receives: all while the caches hold the data, else
/// so little that what has been sent is not pushed out by what is received.
const CALL_IN_CACHE: usize = 4 << 20;
const CALL: usize = 256 << 10;

const MESSAGE: &str = "a raw message";
const STREAM: &str = "a raw stream";

/// Messages to and fro; the time of one way. The receiver has all of the data.
pub(crate) fn one_way<'a>(
    pair: &'a Pair<'a>,
    streams: &'a Streams,
    size: usize,
    taken: Taken,
    waiting: Waiting,
) -> Lane<'a> {
    let (send, receive) = turn(pair, streams, size, taken, waiting);
    shm_baseline::in_turn(pair, send, receive)
}

/// The same with a receiver that sleeps: each message is sent `delay` after the one before.
pub(crate) fn one_way_asleep<'a>(
    pair: &'a Pair<'a>,
    streams: &'a Streams,
    size: usize,
    delay: Duration,
) -> Lane<'a> {
    let (send, receive) = turn(pair, streams, size, Taken::Last, Waiting::Blocking);
    shm_baseline::in_turn_asleep(pair, delay, send, receive)
}

/// The two halves of a turn.
fn turn<'a>(
    pair: &'a Pair<'a>,
    streams: &'a Streams,
    size: usize,
    taken: Taken,
    waiting: Waiting,
) -> (impl FnMut(u64) -> Result<()> + 'a, impl FnMut(u64) -> Result<()> + 'a) {
    let mut out = pair.rotation();
    let mut incoming = out;
    let send = move |step| {
        let offset = out.offset();
        shm_baseline::mark(pair.source, offset, size, step);
        let from = pair.source.part(offset, size).address();
        streams.turns.send(pair.job, MESSAGE, from, size, waiting)
    };
    let receive = move |step| {
        let offset = incoming.offset();
        let to = pair.raw_in.part(offset, size).address();
        streams.turns.receive(pair.job, MESSAGE, to, size, waiting)?;
        shm_baseline::take(pair.job, pair.raw_in, offset, size, step, taken);
        Ok(())
    };
    (send, receive)
}

/// A request of `there` bytes and its answer of `back` bytes; the initiator spins.
pub(crate) fn round_trip<'a>(
    pair: &'a Pair<'a>,
    streams: &'a Streams,
    (there, back): (usize, usize),
    target: Waiting,
) -> Lane<'a> {
    let acts = pair.is_initiator();
    let (own, peers, waiting) =
        if acts { (there, back, Waiting::Spinning) } else { (back, there, target) };
    let from = pair.source.part(0, own).address();
    let to = pair.raw_in.part(0, peers).address();
    let send = move || streams.turns.send(pair.job, MESSAGE, from, own, waiting);
    let receive = move || streams.turns.receive(pair.job, MESSAGE, to, peers, waiting);
    shm_baseline::there_and_back(pair, send, receive)
}

/// A call of send() for each message, while the target receives; only the calls count.
pub(crate) fn sends<'a>(pair: &'a Pair<'a>, streams: &'a Streams, size: usize) -> Lane<'a> {
    let mut rotation = pair.rotation();
    Lane::new(move |batch: Batch| {
        if !pair.is_initiator() {
            // Buffers of the row may have room for several messages.
            let mut rotation = Rotation::warm(size);
            let mut left = Journey::new(pair.raw_in, &mut rotation, batch.all());
            left.receive(pair, &streams.there)?;
            return Ok(None);
        }
        let us = timed(batch, || {
            let from = pair.source.part(rotation.offset(), size).address();
            streams.there.send(pair.job, MESSAGE, from, size, Waiting::Blocking)
        })?;
        Ok(Some(us))
    })
}

/// Data of the initiator one after another, at the end the target's acknowledgement.
pub(crate) fn stream_out<'a>(pair: &'a Pair<'a>, streams: &'a Streams) -> Lane<'a> {
    stream(pair, move |rotation, count| {
        if pair.is_initiator() {
            Journey::new(pair.source, rotation, count).send(pair, &streams.there)?;
            return receive_word(pair, &streams.there);
        }
        Journey::new(pair.raw_in, rotation, count).receive(pair, &streams.there)?;
        send_word(pair, &streams.there)
    })
}

/// The same by sendfile, from a file of its own with the data of this rank's source.
pub(crate) fn stream_of_file<'a>(pair: &'a Pair<'a>, streams: &'a Streams) -> Result<Lane<'a>> {
    let size = pair.size();
    let file = system::memory_file(size).map_err(|error| {
        Failure::run(format!("cannot make {size} bytes of memory to send from: {error}"))
    })?;
    let copy = Shared::map(&file, size)?;
    pair.source.copy(0, copy.region(), 0, size);
    Ok(stream(pair, move |rotation, count| {
        if pair.is_initiator() {
            for _ in 0..count {
                streams.there.send_file(pair.job, STREAM, &file, size)?;
            }
            return receive_word(pair, &streams.there);
        }
        Journey::new(pair.raw_in, rotation, count).receive(pair, &streams.there)?;
        send_word(pair, &streams.there)
    }))
}

/// Data of the target one after another, after the initiator's request.
pub(crate) fn stream_in<'a>(pair: &'a Pair<'a>, streams: &'a Streams) -> Lane<'a> {
    stream(pair, move |rotation, count| {
        if pair.is_initiator() {
            send_word(pair, &streams.back)?;
            return Journey::new(pair.raw_in, rotation, count).receive(pair, &streams.back);
        }
        receive_word(pair, &streams.back)?;
        Journey::new(pair.source, rotation, count).send(pair, &streams.back)
    })
}

fn stream<'a>(
    pair: &'a Pair<'a>,
    mut run: impl FnMut(&mut Rotation, usize) -> Result<()> + 'a,
) -> Lane<'a> {
    let mut rotation = pair.rotation();
    Lane::new(move |batch: Batch| {
        run(&mut rotation, batch.before)?;
        let begin = Instant::now();
        run(&mut rotation, batch.operations)?;
        let us = micros(begin.elapsed()) / batch.operations as f64;
        Ok(pair.is_initiator().then_some(us))
    })
}

/// Data of both at once, each with an acknowledgement: one thread of each process does it all.
pub(crate) fn streams_both_ways<'a>(pair: &'a Pair<'a>, streams: &'a Streams) -> Lane<'a> {
    let mut rotation = pair.rotation();
    let (out, into) = if pair.is_initiator() {
        (&streams.there, &streams.back)
    } else {
        (&streams.back, &streams.there)
    };
    Lane::new(move |batch: Batch| {
        let mut run = |count| {
            let mut incoming = rotation;
            let outgoing = Journey::new(pair.source, &mut rotation, count);
            Both { outgoing, incoming: Journey::new(pair.raw_in, &mut incoming, count) }
                .run(pair, out, into)
        };
        run(batch.before)?;
        let begin = Instant::now();
        run(batch.operations)?;
        Ok(Some(micros(begin.elapsed()) / batch.operations as f64))
    })
}

/// Two journeys at once.
struct Both {
    outgoing: Journey,
    incoming: Journey,
}

impl Both {
    fn run(mut self, pair: &Pair<'_>, out: &Socket, into: &Socket) -> Result<()> {
        let most = if pair.size() <= CALL_IN_CACHE { CALL_IN_CACHE } else { CALL };
        let (mut acknowledges, mut acknowledged) = (true, false);
        let mut pause = Pause::new(pair.job, STREAM, Waiting::Spinning);
        let mut word = [0u8; 8];
        while acknowledges || !acknowledged || !self.incoming.is_done() {
            let mut moved = 0;
            if !self.outgoing.is_done() {
                let sent = out.send_some(self.outgoing.parts(most), libc::MSG_DONTWAIT)?;
                self.outgoing.advance(sent);
                moved += sent;
            }
            if !self.incoming.is_done() {
                let got = into.receive_some(self.incoming.parts(most), libc::MSG_DONTWAIT)?;
                self.incoming.advance(got);
                moved += got;
            } else if acknowledges {
                send_word(pair, into)?;
                acknowledges = false;
            }
            if self.outgoing.is_done() && !acknowledged {
                let mut part = [libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: 8 }];
                acknowledged = out.receive_some(&mut part, libc::MSG_DONTWAIT)? > 0;
            }
            if moved == 0 {
                pause.take()?;
            }
        }
        Ok(())
    }
}

fn send_word(pair: &Pair<'_>, socket: &Socket) -> Result<()> {
    socket.send(pair.job, STREAM, [1u8; 8].as_ptr(), 8, Waiting::Spinning)
}

fn receive_word(pair: &Pair<'_>, socket: &Socket) -> Result<()> {
    socket.receive(pair.job, STREAM, [0u8; 8].as_mut_ptr(), 8, Waiting::Spinning)
}

/// Buffers that go through a connection one after another.
struct Journey {
    buffers: Vec<*mut u8>,
    size: usize,
    done: usize,
    parts: [libc::iovec; PARTS],
}

impl Journey {
    fn new(region: Region<'_>, rotation: &mut Rotation, count: usize) -> Journey {
        let size = rotation.size;
        let buffer = |_| region.part(rotation.offset(), size).address();
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Journey { buffers: (0..count).map(buffer).collect(), size, done: 0, parts: [none; PARTS] }
    }

    fn is_done(&self) -> bool {
        self.done == self.buffers.len() * self.size
    }

    fn advance(&mut self, bytes: usize) {
        self.done += bytes;
    }

    /// What comes next, up to `most` bytes.
    fn parts(&mut self, most: usize) -> &mut [libc::iovec] {
        let (mut first, mut within, mut left) =
            (self.done / self.size, self.done % self.size, most);
        let mut count = 0;
        while count < PARTS && left > 0 && first < self.buffers.len() {
            let bytes = (self.size - within).min(left);
            let base = self.buffers[first].wrapping_add(within).cast();
            self.parts[count] = libc::iovec { iov_base: base, iov_len: bytes };
            (first, within, left, count) = (first + 1, 0, left - bytes, count + 1);
        }
        &mut self.parts[..count]
    }

    /// Sleeps in the call.
    fn send(mut self, pair: &Pair<'_>, socket: &Socket) -> Result<()> {
        let mut pause = Pause::new(pair.job, STREAM, Waiting::Blocking);
        while !self.is_done() {
            match socket.send_some(self.parts(usize::MAX), 0)? {
                0 => pause.take()?,
                sent => self.advance(sent),
            }
        }
        Ok(())
    }

    /// Spins.
    fn receive(&mut self, pair: &Pair<'_>, socket: &Socket) -> Result<()> {
        let mut pause = Pause::new(pair.job, STREAM, Waiting::Spinning);
        while !self.is_done() {
            match socket.receive_some(self.parts(usize::MAX), libc::MSG_DONTWAIT)? {
                0 => pause.take()?,
                got => self.advance(got),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journeys_take_every_byte_once() {
        let mut bytes = vec![0u8; 300];
        // SAFETY: the vector lives to the end of the test.
        let region = unsafe { Region::new(bytes.as_mut_ptr(), bytes.len()) };
        for (size, count, most, steps) in
            [(100, 1, usize::MAX, 1000), (7, 200, usize::MAX, 10), (64, 3, 50, 50), (1, 100, 9, 4)]
        {
            let mut journey = Journey::new(region, &mut Rotation::warm(size), count);
            let mut seen = 0;
            while !journey.is_done() {
                let parts = journey.parts(most);
                let all: usize = parts.iter().map(|part| part.iov_len).sum();
                assert!(all > 0 && all <= most && parts.len() <= PARTS);
                let base = region.address().wrapping_add(seen % size);
                assert_eq!(parts[0].iov_base, base.cast());
                assert_eq!(parts[0].iov_len, (size - seen % size).min(most));
                let now = all.min(steps);
                journey.advance(now);
                seen += now;
            }
            assert_eq!(seen, size * count);
        }
    }
}
