//! One stream to a peer, as far as sending goes: frames, descriptors and payloads out.
//!
//! Between nodes it carries the requests of both sides, and the answers to them; within a node it
//! carries requests of the side that opened it. Puts are acknowledged on the stream that they came on.
//!
//! Frames that belong to no queue go first, in order. Requests travel in lanes, one for each queue:
//! a lane keeps its order, lanes take turns, and a large transfer goes out in chunks, so that a small
//! request of another queue waits for a chunk at most. Small frames share a system call. Whoever
//! posts sends at once what the socket takes; whoever drives the sockets later sends the rest.
//! Nothing here waits.

use super::frame::{Frame, Lane, Place, Put};
use crate::ids::{QueueId, Rank};
use crate::os::event::Poll;
use crate::os::socket::{self, Piece};
use crate::segment::Segment;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
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
/// Payloads from this size on are bulk data.
pub(crate) const BULK: u64 = 64 * 1024;
/// Bytes of small frames that share a system call.
const BATCH: usize = 64 * 1024;
/// Requests that follow each other within this time are in quick succession.
const CLOSE_NS: u64 = 1500;
/// Requests that follow each other within this time are posted all the time.
const SOON_NS: u64 = 100_000;
/// Who answers at intervals below this is likely to answer again soon.
const RIDE_NS: u64 = 2_000_000;
/// How many have to follow each other like this before some are held back: a few are sent at once.
const STREAK: u32 = 6;
/// How long requests are held back at most while others follow, and how many bytes of them.
const HOLD_NS: u64 = 50_000;
const HOLD_BYTES: usize = 8 * 1024;
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

/// Whether more may be sent.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Ending {
    #[default]
    No,
    /// Neither side uses the stream any more.
    LetGo,
    /// This rank leaves the job: its goodbye goes behind all that waits.
    Goodbye,
    /// The goodbye is on the wire.
    Said,
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
    /// Puts of the peer that have been completed, and how many of them it has been told of.
    completed: u64,
    told: u64,
    /// Whether nothing has been posted since the last of them; whether their acknowledgements go along
    /// with requests that are posted soon; and whether one has waited for that at a tick.
    fresh: bool,
    rides: bool,
    waited: bool,
    /// Whether whoever drives waits for room.
    armed: bool,
    ending: Ending,
    /// This rank asks for nothing more.
    released: bool,
    broken: bool,
    /// When a request was posted last, how many have followed each other closely, and since when some
    /// are held back.
    posted_ns: u64,
    streak: u32,
    held_since_ns: Option<u64>,
    /// Whether the progress thread has been told that some are.
    told_held: bool,
    /// Nobody looks after it any more.
    forgotten: bool,
    /// This rank has asked for something on it.
    asked: bool,
}

impl Out {
    /// Takes note of a request. Whether it may wait a moment for others: it is small, and requests
    /// come so quickly that a system call for each would be what takes the time. And whether it comes
    /// soon after the one before.
    fn follows(&mut self, item: &Item) -> (bool, bool) {
        let now_ns = monotonic_ns();
        let distance_ns = now_ns.saturating_sub(self.posted_ns);
        self.posted_ns = now_ns;
        self.streak = if distance_ns < CLOSE_NS { self.streak.saturating_add(1) } else { 0 };
        let soon = distance_ns < SOON_NS;
        if std::mem::take(&mut self.fresh) {
            self.rides = distance_ns < RIDE_NS;
            self.waited = false;
        }
        let small = matches!(item, Item::Put { put, .. } if put.size <= SMALL);
        if !small || self.streak < STREAK || self.armed {
            return (false, soon);
        }
        let since_ns = *self.held_since_ns.get_or_insert(now_ns);
        let few = self.wire.len() - self.sent < HOLD_BYTES;
        (few && now_ns - since_ns < HOLD_NS, soon)
    }

    fn is_idle(&self) -> bool {
        self.wire.is_empty() && self.control.is_empty() && self.lanes.is_empty()
    }

    /// Whether no request of this rank is under way.
    fn asks_nothing(&self) -> bool {
        self.control.is_empty() && self.lanes.is_empty() && self.unacknowledged.is_empty()
    }

    /// Whether requests have to go by another stream.
    fn is_let_go(&self) -> bool {
        self.released || self.ending == Ending::LetGo
    }

    /// Whether the peer has not been told of all its puts that have been completed.
    fn owes(&self) -> bool {
        self.told != self.completed
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
        // Behind the news of puts that were refused, which are counted too.
        if self.owes() {
            self.told = self.completed;
            Frame::Ack { puts: self.told }.append_to(&mut self.wire);
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
        if self.ending == Ending::Goodbye && self.lanes.is_empty() && self.body.is_none() {
            self.ending = Ending::Said;
            Frame::Goodbye.append_to(&mut self.wire);
        }
    }

    /// Puts small requests of a lane on the wire, up to the first chunk of a large one.
    fn take_from(&mut self, items: &mut VecDeque<Item>) {
        while self.body.is_none() && self.wire.len() < BATCH {
            let Some(item) = items.front_mut() else { return };
            if !self.encode(item) {
                // The other lanes have their turn.
                return;
            }
            items.pop_front();
        }
    }

    /// Appends a request of a lane: to the wire if nothing is in the way.
    fn append_item(&mut self, queue: QueueId, mut item: Item) {
        let free = self.body.is_none() && self.control.is_empty() && self.lanes.is_empty();
        if free && self.wire.len() < BATCH && self.encode(&mut item) {
            return;
        }
        match self.lanes.iter_mut().find(|(lane, _)| *lane == queue) {
            Some((_, items)) => items.push_back(item),
            None => self.lanes.push_back((queue, VecDeque::from([item]))),
        }
    }

    /// Puts the next part of a request on the wire; true if that was the last one.
    fn encode(&mut self, item: &mut Item) -> bool {
        match item {
            Item::Frame(frame) => {
                frame.append_to(&mut self.wire);
                true
            }
            Item::Data { request, size, payload } => {
                Frame::Data { request: *request, size: *size }.append_to(&mut self.wire);
                self.append(payload, 0, *size);
                true
            }
            Item::Put { put, payload, sent } => {
                let (skip, size) = (*sent, (put.size - *sent).min(CHUNK));
                let last = skip + size == put.size;
                let place = Place { offset: put.place.offset + skip, ..put.place };
                Frame::Put(Put { place, size, last, ..*put }).append_to(&mut self.wire);
                *sent += size;
                if last {
                    match self.unacknowledged.back_mut() {
                        Some((back, count)) if *back == put.lane => *count += 1,
                        _ => self.unacknowledged.push_back((put.lane, 1)),
                    }
                }
                if let Some(payload) = payload {
                    self.append(payload, skip, size);
                }
                last
            }
        }
    }

    /// Appends a part of a payload: a small one to the wire, others as its body.
    fn append(&mut self, payload: &Payload, skip: u64, size: u64) {
        if size > SMALL {
            let segment = Arc::clone(&payload.segment);
            let payload = Payload { segment, offset: payload.offset + skip };
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
            unsafe { std::ptr::copy_nonoverlapping(payload.pointer(skip), to, size as usize) };
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
    peer: AtomicU32,
    /// The peer asks for nothing more on it.
    released: AtomicBool,
    /// How many connections with the peer this rank had lost before this one, and the peer.
    losses: u64,
    losses_of_peer: AtomicU64,
    out: Mutex<Out>,
}

/// The peer has not said yet how many connections it has lost.
const UNSAID: u64 = u64::MAX;

/// The stream has ended or failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

/// What became of a request.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Posted {
    /// Requests are held back from now on, in a quick succession of small ones that share system
    /// calls.
    pub(crate) held: bool,
    /// It followed soon after another one.
    pub(crate) soon: bool,
}

/// Why something was not sent.
#[derive(Debug)]
pub(crate) enum Unsent<T> {
    /// The stream has ended or failed; what was to be sent fails with the rest.
    Broken,
    /// The stream is not used any more: it has to go by another one.
    Closed(T),
}

impl Connection {
    /// A stream that a rank of the same node has opened; it says first who it is.
    pub(crate) fn accepted(fd: OwnedFd, token: u64) -> Connection {
        let connection = Connection::new(token, 0, true);
        connection.peer.store(UNKNOWN, Ordering::Relaxed);
        connection.established(fd);
        connection
    }

    /// A stream to `peer` that is being made; what is sent meanwhile waits.
    pub(crate) fn new(token: u64, peer: u16, local: bool) -> Connection {
        Connection {
            fd: OnceLock::new(),
            token,
            local,
            peer: AtomicU32::new(peer.into()),
            released: AtomicBool::new(false),
            losses: 0,
            losses_of_peer: AtomicU64::new(UNSAID),
            out: Mutex::default(),
        }
    }

    /// A stream to `peer`, of another node, with which this rank has lost so many before.
    pub(crate) fn between_nodes(token: u64, peer: u16, losses: u64) -> Connection {
        let mut out = Out::default();
        Frame::Losses { count: losses }.append_to(&mut out.wire);
        Connection { losses, out: Mutex::new(out), ..Connection::new(token, peer, false) }
    }

    /// The peer can be reached by this socket.
    pub(crate) fn established(&self, fd: OwnedFd) {
        // Whoever makes connections sees to it that there is only one.
        let _ = self.fd.set(fd);
    }

    /// The socket, once there is one.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.get().map(AsFd::as_fd)
    }

    pub(crate) fn peer(&self) -> Option<u16> {
        u16::try_from(self.peer.load(Ordering::Relaxed)).ok()
    }

    pub(crate) fn set_peer(&self, peer: Rank) {
        self.peer.store(peer.0.into(), Ordering::Relaxed);
    }

    /// The peer asks for nothing more on it.
    pub(crate) fn note_release(&self) {
        self.released.store(true, Ordering::Relaxed);
    }

    /// Whether the peer asks for nothing more on it.
    pub(crate) fn is_released_by_peer(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    /// How many connections with the peer this rank had lost before this one.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }

    /// How many the peer had lost before this one; `None` before it has said so.
    pub(crate) fn losses_of_peer(&self) -> Option<u64> {
        Some(self.losses_of_peer.load(Ordering::Relaxed)).filter(|count| *count != UNSAID)
    }

    /// The peer says how many it has lost.
    pub(crate) fn set_losses_of_peer(&self, count: u64) {
        self.losses_of_peer.store(count, Ordering::Relaxed);
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame that belongs to no lane, or leaves it to whoever drives.
    pub(crate) fn send(&self, poll: &Poll, item: Outgoing) -> Result<(), Unsent<Outgoing>> {
        let mut out = self.out();
        if out.is_let_go() {
            return Err(Unsent::Closed(item));
        }
        out.asked = true;
        self.send_locked(poll, &mut out, item).map_err(|Broken| Unsent::Broken)
    }

    /// The same for the answer to a frame that came on this stream; who leaves answers nobody.
    pub(crate) fn answer(&self, poll: &Poll, frame: &Frame) {
        // If the stream has broken, what came before its end is still to be read.
        let _ = self.send_locked(poll, &mut self.out(), Outgoing::new(frame));
    }

    fn send_locked(&self, poll: &Poll, out: &mut Out, item: Outgoing) -> Result<(), Broken> {
        if out.ending != Ending::No {
            return Ok(());
        }
        out.control.push_back(item);
        self.flush_unless_full(poll, out)
    }

    /// Sends a request, or leaves it to whoever drives.
    pub(crate) fn post(
        &self,
        poll: &Poll,
        queue: QueueId,
        item: Item,
    ) -> Result<Posted, Unsent<Item>> {
        let mut out = self.out();
        if out.is_let_go() {
            return Err(Unsent::Closed(item));
        }
        out.asked = true;
        let (hold, soon) = if self.local { (false, false) } else { out.follows(&item) };
        self.post_locked(poll, &mut out, queue, item, hold).map_err(|Broken| Unsent::Broken)?;
        if !hold && !self.local {
            out.posted_ns = monotonic_ns();
        }
        let held = hold && !std::mem::replace(&mut out.told_held, true);
        Ok(Posted { held, soon })
    }

    /// Sends what was held back.
    pub(crate) fn release_held(&self, poll: &Poll) -> Result<(), Broken> {
        let mut out = self.out();
        out.told_held = false;
        self.flush_locked(poll, &mut out)
    }

    /// Answers in a lane of the peer's.
    pub(crate) fn answer_in_lane(&self, poll: &Poll, queue: QueueId, item: Item) {
        // As with other answers.
        let _ = self.post_locked(poll, &mut self.out(), queue, item, false);
    }

    fn post_locked(
        &self,
        poll: &Poll,
        out: &mut Out,
        queue: QueueId,
        item: Item,
        hold: bool,
    ) -> Result<(), Broken> {
        if out.ending != Ending::No {
            return Ok(());
        }
        out.append_item(queue, item);
        if hold { Ok(()) } else { self.flush_unless_full(poll, out) }
    }

    /// Puts of the peer's have been completed, some of them by refusing them: their acknowledgement
    /// travels along with what is sent next.
    /// `answered`: as far as they have notifications, which are likely to be answered.
    pub(crate) fn owe(&self, puts: u64, answered: bool) {
        let mut out = self.out();
        out.completed += puts;
        out.fresh = answered;
        out.rides &= answered;
    }

    /// Whether an acknowledgement will go along with something soon, by all appearances: the last ones
    /// did, and it has not waited for that at a `tick` before.
    pub(crate) fn rides(&self, tick: bool) -> bool {
        let mut out = self.out();
        out.rides && out.owes() && !(tick && std::mem::replace(&mut out.waited, true))
    }

    /// Acknowledges what has been completed.
    pub(crate) fn pay(&self, poll: &Poll) -> Result<(), Broken> {
        let mut out = self.out();
        if !out.owes() {
            return Ok(());
        }
        (out.rides, out.waited) = (false, false);
        self.flush_unless_full(poll, &mut out)
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

    /// The same where something is to be sent in addition: once there is no room, whoever drives is
    /// told when there is.
    fn flush_unless_full(&self, poll: &Poll, out: &mut Out) -> Result<(), Broken> {
        if out.armed && !out.broken { Ok(()) } else { self.flush_locked(poll, out) }
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
        if !blocked && matches!(out.ending, Ending::LetGo | Ending::Said) {
            socket::end_sending(fd);
        }
        if blocked != out.armed && poll.change(fd, self.token, blocked).is_ok() {
            out.armed = blocked;
        }
        Ok(())
    }

    /// Says goodbye behind all that has been sent so far.
    pub(crate) fn say_goodbye(&self, poll: &Poll) {
        let mut out = self.out();
        if out.ending != Ending::No {
            return;
        }
        out.ending = Ending::Goodbye;
        // Where it is broken there is nobody to tell.
        let _ = self.flush_locked(poll, &mut out);
    }

    /// Says that this rank asks for nothing more, unless something is under way; whether it did.
    pub(crate) fn release(&self, poll: &Poll) -> bool {
        let mut out = self.out();
        if !out.asks_nothing() {
            return false;
        }
        out.released = true;
        // Should it have broken, its end is dealt with like any other's.
        let _ = self.send_locked(poll, &mut out, Outgoing::new(&Frame::Release));
        true
    }

    /// Ends sending if nothing is under way; whether it did.
    pub(crate) fn let_go(&self, poll: &Poll) -> bool {
        let mut out = self.out();
        if out.ending != Ending::No || !out.asks_nothing() {
            return false;
        }
        out.ending = Ending::LetGo;
        // Where it is broken it ends anyway.
        let _ = self.flush_locked(poll, &mut out);
        true
    }

    /// Whether this rank may ask for more on it.
    pub(crate) fn is_usable(&self) -> bool {
        let out = self.out();
        !out.broken && !out.is_let_go()
    }

    /// Whether one of both sides has done with it, so that its end is no surprise.
    pub(crate) fn is_over(&self) -> bool {
        let out = self.out();
        out.released || out.ending != Ending::No
    }

    /// Ends the stream for both sides; gives the lanes of puts that were not acknowledged.
    pub(crate) fn shut_down(&self) -> Vec<(Lane, u32)> {
        let mut out = self.out();
        out.broken = true;
        out.forgotten = true;
        // Behind that: a socket that comes later is found broken by whoever brings it.
        if let Some(fd) = self.fd() {
            socket::shut_down(fd);
        }
        out.give_up()
    }

    /// Whether this rank has asked for something on it, which may be late.
    pub(crate) fn has_asked(&self) -> bool {
        self.out().asked
    }

    /// Sends nothing more. What the peer has sent is still read, up to its end.
    pub(crate) fn give_up(&self) {
        self.out().broken = true;
        if let Some(fd) = self.fd() {
            socket::shut_down(fd);
        }
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
