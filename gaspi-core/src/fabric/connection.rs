//! One stream to a peer, as far as sending goes: frames, descriptors and payloads out.
//!
//! Frames that belong to no queue go first, in order. Requests travel in lanes, one for each queue:
//! a lane keeps its order, lanes take turns, and a large transfer goes out in chunks, so that a small
//! request of another queue waits for a chunk at most. Small frames share a system call. Whoever
//! posts sends at once what the socket takes; whoever drives the sockets later sends the rest.
//! Nothing here waits.

use super::debt::Debt;
use super::frame::{Frame, Lane, Put};
use crate::ids::{QueueId, Rank};
use crate::os::event::Poll;
use crate::os::socket::{self, Piece};
use crate::segment::Segment;
use crate::sync::{AtomicU32, Ordering};
use crate::wait::monotonic_ns;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Who is on the other side, before it has said so.
const UNKNOWN: u32 = u32::MAX;
/// Bytes of a part of a large transfer.
pub(crate) const CHUNK: u64 = 1024 * 1024;
/// Payloads up to this size are copied behind their frame.
const SMALL: u64 = 2048;
/// Bytes of small frames that share a system call.
const BATCH: usize = 64 * 1024;
/// Requests that follow each other within this time are in quick succession.
const CLOSE_NS: u64 = 1500;
/// How many have to follow each other like this before some are held back: a few are sent at once.
const STREAK: u32 = 6;
/// How long requests are held back at most while others follow.
const HOLD_NS: u64 = 10_000;
/// Bytes of memory that a stream keeps for its next frames.
const KEEP: usize = 4096;

/// Bytes of a segment that go out behind a frame.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    segment: Arc<Segment>,
    /// Bytes.
    offset: u64,
}

impl Payload {
    /// What begins at `offset` of `segment`; the caller has checked the range.
    pub(crate) fn new(segment: Arc<Segment>, offset: u64) -> Payload {
        Payload { segment, offset }
    }

    fn pointer(&self, skip: u64) -> *mut u8 {
        self.segment.pointer().wrapping_add((self.offset + skip) as usize)
    }
}

/// What travels in a lane.
#[derive(Debug)]
pub(crate) enum Item {
    /// A frame that keeps its place among the requests.
    Frame(Frame),
    /// A put of any size, and where its payload lies if it has one.
    Put { put: Put, payload: Option<Payload>, sent: u64 },
    /// The answer to a get.
    Data { request: u64, size: u64, payload: Payload },
}

impl Item {
    /// A put that has not been sent yet.
    pub(crate) fn put(put: Put, payload: Option<Payload>) -> Item {
        Item::Put { put, payload, sent: 0 }
    }
}

/// A frame that belongs to no lane.
#[derive(Debug)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Outgoing {
    pub(crate) fn new(frame: &Frame) -> Outgoing {
        let mut bytes = Vec::new();
        frame.append_to(&mut bytes);
        Outgoing { bytes, descriptors: Vec::new() }
    }

    pub(crate) fn with_descriptors(
        frame: &Frame,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Outgoing> {
        let descriptors: io::Result<_> =
            descriptors.iter().map(BorrowedFd::try_clone_to_owned).collect();
        Ok(Outgoing { descriptors: descriptors?, ..Outgoing::new(frame) })
    }
}

/// The payload that follows the bytes on the wire.
#[derive(Debug)]
struct Body {
    payload: Payload,
    /// Bytes: how many have been sent, and of how many.
    sent: u64,
    size: u64,
}

/// Stands for a payload whose memory is gone.
static ZEROES: [u8; 4096] = [0; 4096];

#[derive(Debug, Default)]
struct Out {
    /// Frames on the wire: nothing can come before the rest of them.
    wire: Vec<u8>,
    sent: usize,
    /// What goes along with the first byte of `wire`.
    descriptors: Vec<OwnedFd>,
    body: Option<Body>,
    control: VecDeque<Outgoing>,
    /// The next one first.
    lanes: VecDeque<(QueueId, VecDeque<Item>)>,
    /// Puts that are on the wire and not acknowledged, in order; neighbours of a lane together.
    unacknowledged: VecDeque<(Lane, u32)>,
    /// Puts acknowledged so far.
    acknowledged: u64,
    /// Whether whoever drives waits for room.
    armed: bool,
    /// Nothing more is to be sent.
    closing: bool,
    broken: bool,
    /// When a request was posted last, how many have followed each other closely, and since when some
    /// are held back.
    posted_ns: u64,
    streak: u32,
    held_since_ns: Option<u64>,
    /// Nobody looks after it any more.
    forgotten: bool,
}

impl Out {
    /// Whether a request may wait a moment for others: it is small, and requests come so quickly that
    /// a system call for each would be what takes the time.
    fn may_hold(&mut self, item: &Item) -> bool {
        let now_ns = monotonic_ns();
        let close = now_ns.saturating_sub(self.posted_ns) < CLOSE_NS;
        self.posted_ns = now_ns;
        self.streak = if close { self.streak.saturating_add(1) } else { 0 };
        let small = matches!(item, Item::Put { put, .. } if put.size <= SMALL);
        if !small || self.streak < STREAK || self.armed {
            return false;
        }
        let since_ns = *self.held_since_ns.get_or_insert(now_ns);
        now_ns - since_ns < HOLD_NS
    }

    fn is_idle(&self) -> bool {
        self.wire.is_empty() && self.control.is_empty() && self.lanes.is_empty()
    }

    /// Puts the next frames on the wire, of which nothing has been sent.
    fn refill(&mut self) {
        while let Some(next) = self.control.front() {
            let alone = !next.descriptors.is_empty();
            if !self.wire.is_empty() && (alone || self.wire.len() + next.bytes.len() > BATCH) {
                return;
            }
            if let Some(next) = self.control.pop_front() {
                self.wire.extend(next.bytes);
                // Those of a frame that is on the wire already stay.
                self.descriptors.extend(next.descriptors);
            }
            if alone {
                return;
            }
        }
        for _ in 0..self.lanes.len() {
            if self.body.is_some() || self.wire.len() >= BATCH {
                break;
            }
            let Some((queue, mut items)) = self.lanes.pop_front() else { break };
            self.take_from(&mut items);
            if !items.is_empty() {
                self.lanes.push_back((queue, items));
            }
        }
    }

    /// Puts small requests of a lane on the wire, up to the first chunk of a large one.
    fn take_from(&mut self, items: &mut VecDeque<Item>) {
        while self.body.is_none() && self.wire.len() < BATCH {
            match items.front_mut() {
                None => return,
                Some(Item::Frame(frame)) => {
                    frame.append_to(&mut self.wire);
                    items.pop_front();
                }
                Some(Item::Data { request, size, payload }) => {
                    Frame::Data { request: *request, size: *size }.append_to(&mut self.wire);
                    let payload = payload.clone();
                    let size = *size;
                    items.pop_front();
                    self.append(payload, size);
                }
                Some(Item::Put { put, payload, sent }) => {
                    let size = (put.size - *sent).min(CHUNK);
                    let last = *sent + size == put.size;
                    let place =
                        super::frame::Place { offset: put.place.offset + *sent, ..put.place };
                    Frame::Put(Put { place, size, last, ..*put }).append_to(&mut self.wire);
                    let payload = payload.as_ref().map(|payload| Payload {
                        segment: Arc::clone(&payload.segment),
                        offset: payload.offset + *sent,
                    });
                    let lane = put.lane;
                    *sent += size;
                    if last {
                        items.pop_front();
                        match self.unacknowledged.back_mut() {
                            Some((back, count)) if *back == lane => *count += 1,
                            _ => self.unacknowledged.push_back((lane, 1)),
                        }
                    }
                    if let Some(payload) = payload {
                        self.append(payload, size);
                    }
                    if !last {
                        // The other lanes have their turn.
                        return;
                    }
                }
            }
        }
    }

    /// Appends a payload: small ones to the wire, others as its body.
    fn append(&mut self, payload: Payload, size: u64) {
        if size > SMALL {
            self.body = Some(Body { payload, sent: 0, size });
            return;
        }
        let start = self.wire.len();
        self.wire.resize(start + size as usize, 0);
        let accepts = payload.segment.accept();
        if *accepts {
            let to = self.wire[start..].as_mut_ptr();
            // SAFETY: the range was checked when it was posted, and the segment exists while the
            // lock is held.
            unsafe { std::ptr::copy_nonoverlapping(payload.pointer(0), to, size as usize) };
        }
    }

    /// The lanes of puts that have not been acknowledged, with how many; all are forgotten.
    fn give_up(&mut self) -> Vec<(Lane, u32)> {
        let mut lost: Vec<(Lane, u32)> = self.unacknowledged.drain(..).collect();
        for (_, items) in self.lanes.drain(..) {
            for item in items {
                if let Item::Put { put, .. } = item {
                    lost.push((put.lane, 1));
                }
            }
        }
        self.control.clear();
        self.wire = Vec::new();
        self.body = None;
        lost
    }
}

/// A stream to a peer.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Set once the peer has proved who it is.
    fd: OnceLock<OwnedFd>,
    /// Its name in the poll set.
    pub(crate) token: u64,
    /// It leads to a rank of the same node, and carries descriptors.
    pub(crate) local: bool,
    /// Who has to be on the other side.
    pub(crate) expected: Option<Rank>,
    /// The how manieth connection to the peer it is, as its opener counts.
    stream: AtomicU32,
    peer: AtomicU32,
    /// What is owed to the peers for puts of theirs.
    debts: Arc<[Debt]>,
    out: Mutex<Out>,
}

/// The stream has ended or failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

impl Connection {
    /// A stream that a peer opened; it says first who it is, `expected` if that is known.
    pub(crate) fn accepted(
        fd: OwnedFd,
        token: u64,
        expected: Option<Rank>,
        debts: Arc<[Debt]>,
    ) -> Connection {
        // Ranks of other nodes have proved who they are.
        let local = expected.is_none();
        let connection = Connection { expected, ..Connection::opening(token, 0, 0, local, debts) };
        connection.set_peer(UNKNOWN, 0);
        // It is new.
        let _ = connection.fd.set(fd);
        connection
    }

    /// A stream that is being opened to `peer`; what is sent meanwhile waits.
    pub(crate) fn opening(
        token: u64,
        peer: u16,
        stream: u32,
        local: bool,
        debts: Arc<[Debt]>,
    ) -> Connection {
        Connection {
            fd: OnceLock::new(),
            token,
            local,
            expected: None,
            stream: AtomicU32::new(stream),
            peer: AtomicU32::new(peer.into()),
            debts,
            out: Mutex::default(),
        }
    }

    /// The peer can be reached by this socket.
    pub(crate) fn established(&self, fd: OwnedFd) {
        // Only one attempt succeeds.
        let _ = self.fd.set(fd);
    }

    /// The socket, once there is one.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.get().map(AsFd::as_fd)
    }

    pub(crate) fn peer(&self) -> Option<u16> {
        u16::try_from(self.peer.load(Ordering::Relaxed)).ok()
    }

    pub(crate) fn set_peer(&self, peer: u32, stream: u32) {
        self.stream.store(stream, Ordering::Relaxed);
        self.peer.store(peer, Ordering::Relaxed);
    }

    pub(crate) fn stream(&self) -> u32 {
        self.stream.load(Ordering::Relaxed)
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame that belongs to no lane, or leaves it to whoever drives.
    pub(crate) fn send(&self, poll: &Poll, item: Outgoing) -> Result<(), Broken> {
        let mut out = self.out();
        out.control.push_back(item);
        self.flush_locked(poll, &mut out)
    }

    /// Sends a request, or leaves it to whoever drives; true if it is held back for a moment, in a
    /// quick succession of small ones that share system calls.
    pub(crate) fn post(&self, poll: &Poll, queue: QueueId, item: Item) -> Result<bool, Broken> {
        let mut out = self.out();
        if out.is_idle() {
            self.pay(&mut out);
        }
        let hold = !self.local && out.may_hold(&item);
        match out.lanes.iter_mut().find(|(lane, _)| *lane == queue) {
            Some((_, items)) => items.push_back(item),
            None => out.lanes.push_back((queue, VecDeque::from([item]))),
        }
        if hold {
            return Ok(true);
        }
        self.flush_locked(poll, &mut out)?;
        if !self.local {
            out.posted_ns = monotonic_ns();
        }
        Ok(false)
    }

    /// An acknowledgement of the peer's puts travels along with what is sent anyway.
    fn pay(&self, out: &mut Out) {
        let debt = self.peer().and_then(|peer| self.debts.get(usize::from(peer)));
        if let Some(ack) = debt.and_then(Debt::pay_along) {
            ack.append_to(&mut out.wire);
        }
    }

    /// Takes note that `puts` puts of this stream have been completed in all; gives the lanes that
    /// they belong to.
    pub(crate) fn acknowledged(&self, puts: u64) -> Vec<(Lane, u32)> {
        let mut out = self.out();
        let mut left = puts.saturating_sub(out.acknowledged);
        out.acknowledged += left;
        let mut done = Vec::new();
        while left > 0 {
            let Some((lane, count)) = out.unacknowledged.front_mut() else { break };
            let taken = u64::from(*count).min(left) as u32;
            done.push((*lane, taken));
            *count -= taken;
            left -= u64::from(taken);
            if *count == 0 {
                out.unacknowledged.pop_front();
            }
        }
        done
    }

    /// Sends what there is room for.
    pub(crate) fn flush(&self, poll: &Poll) -> Result<(), Broken> {
        self.flush_locked(poll, &mut self.out())
    }

    fn flush_locked(&self, poll: &Poll, out: &mut Out) -> Result<(), Broken> {
        if out.broken {
            return Err(Broken);
        }
        let Some(fd) = self.fd() else { return Ok(()) };
        let mut blocked = false;
        out.held_since_ns = None;
        loop {
            if out.sent == 0 && out.body.is_none() {
                out.refill();
            }
            if blocked || out.wire.is_empty() {
                break;
            }
            match send(fd, out) {
                Ok(()) => {}
                Err(error) if socket::is_full(&error) => blocked = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    out.broken = true;
                    // So that whoever drives comes to its end, behind what was received.
                    socket::shut_down(fd);
                    return Err(Broken);
                }
            }
        }
        if !blocked && out.closing {
            socket::end_sending(fd);
        }
        if blocked != out.armed && poll.change(fd, self.token, blocked).is_ok() {
            out.armed = blocked;
        }
        Ok(())
    }

    /// After what has been sent so far nothing follows.
    pub(crate) fn end(&self, poll: &Poll, last: &Frame) {
        let mut out = self.out();
        if out.closing {
            return;
        }
        out.control.push_back(Outgoing::new(last));
        out.closing = true;
        // Where it is broken there is nobody to tell.
        let _ = self.flush_locked(poll, &mut out);
    }

    /// Ends the stream for both sides; gives the lanes of puts that were not acknowledged.
    pub(crate) fn shut_down(&self) -> Vec<(Lane, u32)> {
        if let Some(fd) = self.fd() {
            socket::shut_down(fd);
        }
        let mut out = self.out();
        out.broken = true;
        out.forgotten = true;
        out.give_up()
    }

    /// Whether its end has been dealt with.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.out().forgotten
    }

    /// Whether everything has been handed to the kernel.
    pub(crate) fn is_drained(&self) -> bool {
        self.out().is_idle()
    }
}

/// Sends once; what was sent whole is forgotten.
fn send(fd: BorrowedFd<'_>, out: &mut Out) -> io::Result<()> {
    let head = Piece::of(&out.wire[out.sent..]);
    // Memory of the program may be gone once its segment was deleted: what is left of the payload
    // then goes out as zeroes, so that the frames behind it arrive.
    let accepts = out.body.as_ref().map(|body| body.payload.segment.accept());
    let rest = match &out.body {
        None => Piece::of(&[]),
        Some(body) if accepts.as_ref().is_some_and(|accepts| **accepts) => Piece {
            pointer: body.payload.pointer(body.sent),
            len: (body.size - body.sent) as usize,
        },
        Some(body) => Piece::of(&ZEROES[..ZEROES.len().min((body.size - body.sent) as usize)]),
    };
    let descriptors: Vec<BorrowedFd<'_>> = out.descriptors.iter().map(AsFd::as_fd).collect();
    // SAFETY: the frames are owned here, the payload's segment accepts while its lock is held, the
    // zeroes are constant.
    let sent = unsafe { socket::send(fd, [head, rest], &descriptors) };
    drop(descriptors);
    drop(accepts);
    let sent = sent?;
    out.descriptors.clear();
    let of_wire = sent.min(head.len);
    out.sent += of_wire;
    let body_left = out.body.as_mut().map_or(0, |body| {
        body.sent += (sent - of_wire) as u64;
        body.size - body.sent
    });
    if out.sent == out.wire.len() && body_left == 0 {
        out.body = None;
        out.sent = 0;
        out.wire.clear();
        if out.wire.capacity() > KEEP && out.is_idle() {
            out.wire = Vec::new();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_stay_with_their_frame_while_others_queue_up_behind_it() {
        let descriptor = crate::os::event::Bell::new().expect("descriptor");
        let frame = Outgoing::with_descriptors(&Frame::Kill, &[descriptor.as_fd()]).expect("frame");
        let mut out = Out::default();
        out.control.push_back(frame);
        out.refill();
        // The socket was full, and another frame came.
        out.control.push_back(Outgoing::new(&Frame::Ping { request: 1 }));
        out.refill();
        assert_eq!(out.descriptors.len(), 1);
        let mut bytes = Vec::new();
        Frame::Kill.append_to(&mut bytes);
        Frame::Ping { request: 1 }.append_to(&mut bytes);
        assert_eq!(out.wire, bytes);
    }
}
