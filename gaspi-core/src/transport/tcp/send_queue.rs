//! What a connection to a peer has to send: frames, streams of requests, payloads.
//!
//! Frames that belong to no queue go first, in order. Requests travel in streams, one for each
//! queue: a stream keeps its order, streams take turns, and a large transfer goes out in chunks, so
//! that a small request of another queue waits for a chunk at most. Small frames share a system
//! call. Nothing here waits.

mod carrying;
mod going_back;
mod purged;
mod room;
mod unacknowledged;
mod usage;
mod withheld;

use crate::ids::QueueId;
use crate::os::clock::monotonic_ns;
use crate::os::socket::{self, Piece};
use crate::os::splice;
use crate::policy::acknowledge::AckDelay;
use crate::policy::coalesce::{Coalescing, Decision, Post};
use crate::transport::CHUNK;
use crate::transport::payload::{ChannelMessage, Payload};
use crate::transport::tcp::pipes::{PipeGuard, Pipes};
pub(crate) use crate::wire::frame::Encode;
use crate::wire::frame::Frame;
use crate::wire::message::{Put, RemoteAddress, Stream};
pub(super) use carrying::Carrying;
use going_back::GoingBack;
pub(crate) use purged::Dropped;
use room::Room;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use unacknowledged::Unacknowledged;
use usage::Usage;
pub(crate) use withheld::Withheld;

/// Payloads up to this size are copied behind their frame.
pub(super) const SMALL: u64 = 2048;
/// Payloads from this size on are handed to the kernel page by page, so that only the receiver
/// copies.
const PIPED: u64 = 32 * 1024;
/// Of larger requests every second chunk is: what the caches do not hold takes one core longer than
/// two.
const PIPED_ALL: u64 = 4 * 1024 * 1024;
/// Bytes of small frames that share a system call.
const BATCH: usize = 64 * 1024;
/// Bytes of memory that a connection keeps for its next frames.
const KEEP: usize = 4096;
/// Bytes that most frames do not exceed.
const USUAL_FRAME: usize = 128;

/// What travels in a stream.
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

/// A frame that belongs to no stream.
#[derive(Debug)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// Whether it carries data of the program, which sockets may not have to.
    has_data: bool,
}

impl Outgoing {
    pub(crate) fn new(frame: &impl Encode) -> Outgoing {
        let mut bytes = Vec::with_capacity(USUAL_FRAME);
        frame.append_to(&mut bytes);
        Outgoing { bytes, descriptors: Vec::new(), has_data: false }
    }

    /// The same of a frame that carries data of the program, or speaks of a frame that does.
    pub(crate) fn with_data(frame: &impl Encode) -> Outgoing {
        Outgoing::new(frame).of_data()
    }

    /// The same, as one that carries data of the program.
    pub(crate) fn of_data(self) -> Outgoing {
        Outgoing { has_data: true, ..self }
    }

    pub(crate) fn with_descriptors(
        frame: &impl Encode,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Outgoing> {
        let descriptors: io::Result<_> =
            descriptors.iter().map(BorrowedFd::try_clone_to_owned).collect();
        Ok(Outgoing { descriptors: descriptors?, ..Outgoing::new(frame) })
    }
}

/// The payload that follows the bytes on the wire.
#[derive(Debug)]
pub(super) struct OutgoingBody {
    payload: Payload,
    /// Bytes: how many have been sent, and of how many.
    sent: u64,
    size: u64,
    /// Whether its pages may be handed over instead of copied.
    piped: bool,
}

impl OutgoingBody {
    /// What has not been sent.
    fn rest(&self) -> Piece {
        let pointer = self.payload.pointer(self.sent);
        Piece { pointer, len: (self.size - self.sent) as usize }
    }
}

/// The way of payloads that go page by page, and what is on it.
#[derive(Debug, Default)]
pub(super) struct ByPage {
    pipes: Option<Arc<Pipes>>,
    pipe: Option<PipeGuard>,
}

impl ByPage {
    /// Nothing is on its way through one of these yet.
    pub(super) fn through(pipes: &Arc<Pipes>) -> ByPage {
        ByPage { pipes: Some(Arc::clone(pipes)), pipe: None }
    }
}

/// Stands for a payload whose memory is gone.
static ZEROES: [u8; 4096] = [0; 4096];

#[derive(Debug, Default)]
pub(super) struct SendQueue {
    /// Frames on the wire: nothing can come before the rest of them.
    pub(super) wire: Vec<u8>,
    pub(super) sent: usize,
    /// What goes along with the first byte of `wire`.
    pub(super) descriptors: Vec<OwnedFd>,
    pub(super) body: Option<OutgoingBody>,
    pub(super) control: VecDeque<Outgoing>,
    /// The next one first.
    pub(super) streams: VecDeque<(QueueId, VecDeque<Item>)>,
    pub(super) unacknowledged: Unacknowledged,
    /// What this rank acknowledges, and when.
    pub(super) acks: AckDelay,
    pub(super) room: Room,
    pub(super) usage: Usage,
    /// When requests are held back.
    pub(super) coalescing: Coalescing,
    pub(super) by_page: ByPage,
    pub(super) carrying: Carrying,
    pub(super) withheld: Withheld,
    pub(super) going_back: GoingBack,
}

impl SendQueue {
    /// Tells the peer that another carrier follows, once nothing is on the way of which a part has
    /// been sent; or puts on the wire what is sent again.
    pub(super) fn begin_switch(&mut self) {
        if !matches!(self.carrying, Carrying::Next(_)) {
            return self.refill_again();
        }
        let is_begun = |item: &Item| matches!(item, Item::Put { sent, .. } if *sent > 0);
        let begun = |items: &VecDeque<Item>| items.front().is_some_and(is_begun);
        let whole = self.wire.is_empty() && self.body.is_none() && self.by_page.pipe.is_none();
        if !whole || self.streams.iter().any(|(_, items)| begun(items)) {
            return;
        }
        match std::mem::take(&mut self.carrying) {
            Carrying::Next(carrier) => {
                let (attempt, number) = (carrier.attempt(), carrier.number());
                Frame::Switch { attempt, number, continues: 0 }.append_to(&mut self.wire);
                self.carrying = Carrying::Switching(carrier);
            }
            carrying => self.carrying = carrying,
        }
    }

    /// Whether the next bytes are the first that go by another carrier.
    pub(super) fn has_switched(&mut self) -> bool {
        let Carrying::Switching(carrier) = &self.carrying else { return false };
        if !self.wire.is_empty() {
            return false;
        }
        self.carrying = Carrying::Other(Arc::clone(carrier));
        let mut frames = self.withheld.take();
        frames.append(&mut self.control);
        self.control = frames;
        true
    }

    /// Queues a frame that belongs to no stream.
    pub(super) fn push_control(&mut self, frame: Outgoing) {
        let waits = frame.has_data && self.withheld.withholds();
        if waits && self.carrying.other().is_none() {
            self.withheld.push(frame);
        } else {
            self.control.push_back(frame);
        }
    }

    /// Whether nothing may be put on the wire, since the peer is told of another carrier, or hears
    /// once more what another one has not brought.
    pub(super) fn is_switching(&self) -> bool {
        let by_socket = matches!(self.carrying, Carrying::Switching(_) | Carrying::Again(_));
        by_socket || self.carrying.is_held()
    }

    /// Puts what comes next on the wire, if nothing is there of which a part has been sent.
    pub(super) fn fill_wire(&mut self) {
        if self.sent == 0 && self.body.is_none() {
            self.begin_switch();
            if !self.is_switching() {
                self.refill();
            }
        }
    }

    /// Takes note of a request. Whether it is held back, and the time if it comes soon after the
    /// one before.
    pub(super) fn note_post(&mut self, small: bool) -> (bool, Option<u64>) {
        let now_ns = monotonic_ns();
        let queued_bytes = self.wire.len() - self.sent;
        let post = Post { now_ns, small, blocked: self.room.awaited, queued_bytes };
        let Decision { cork, soon, interval_ns } = self.coalescing.on_post(post);
        self.acks.on_post(interval_ns);
        (cork, soon.then_some(now_ns))
    }

    /// All of the wire has been sent.
    #[inline]
    pub(super) fn forget_wire(&mut self) {
        self.sent = 0;
        self.wire.clear();
        self.going_back.has_data = false;
        if self.wire.capacity() > KEEP && self.is_idle() {
            self.wire = Vec::new();
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        let none_beside = !self.going_back.has_any_beside();
        let none_queued = self.control.is_empty() && self.streams.is_empty();
        self.wire.is_empty() && none_queued && none_beside
    }

    /// Whether no request of this rank is under way.
    pub(super) fn asks_nothing(&self) -> bool {
        let frames = !self.control.is_empty() || !self.withheld.is_empty();
        !frames && self.streams.is_empty() && self.unacknowledged.is_empty()
    }

    /// Puts the next frames on the wire, of which nothing has been sent.
    pub(super) fn refill(&mut self) {
        while let Some(next) = self.control.front() {
            let alone = !next.descriptors.is_empty();
            if !self.wire.is_empty() && (alone || self.wire.len() + next.bytes.len() > BATCH) {
                return;
            }
            if let Some(next) = self.control.pop_front() {
                self.wire.extend(next.bytes);
                self.going_back.has_data |= next.has_data;
                // Those of a frame that is on the wire already stay.
                self.descriptors.extend(next.descriptors);
            }
            if alone {
                return;
            }
        }
        self.acknowledge();
        for _ in 0..self.streams.len() {
            if self.body.is_some() || self.wire.len() >= BATCH {
                break;
            }
            let Some((queue, mut items)) = self.streams.pop_front() else { break };
            self.take_from(&mut items);
            if !items.is_empty() {
                self.streams.push_back((queue, items));
            }
        }
        let nothing_waits = self.streams.is_empty() && self.withheld.is_empty();
        if self.usage.is_goodbye_due() && nothing_waits && self.body.is_none() {
            self.usage.note_goodbye();
            Frame::Goodbye.append_to(&mut self.wire);
        }
    }

    /// Puts the acknowledgement of what has been completed on the wire, behind the news of puts
    /// that were refused, which are counted too.
    pub(super) fn acknowledge(&mut self) {
        if let Some(puts) = self.acks.take() {
            Frame::Ack { puts }.append_to(&mut self.wire);
        }
    }

    /// Puts small requests of a stream on the wire, up to the first chunk of a large one.
    fn take_from(&mut self, items: &mut VecDeque<Item>) {
        while self.body.is_none() && self.wire.len() < BATCH {
            let Some(item) = items.front_mut() else { return };
            if !self.encode(item) {
                // The other streams have their turn.
                return;
            }
            items.pop_front();
        }
    }

    /// Whether a request may go to the wire at once.
    fn is_free(&self) -> bool {
        let free = self.body.is_none() && self.control.is_empty() && self.streams.is_empty();
        free && !self.is_switching()
    }

    /// Whether a message has to wait for room, since it would have to be copied otherwise: once,
    /// until all that is in its way has been sent, and not behind what takes turns with it.
    pub(super) fn is_full(&mut self, message: &ChannelMessage<'_>) -> bool {
        let Put { size, stream, .. } = message.put;
        let in_the_way = self.room.awaited || !self.is_free();
        let alone = self.streams.iter().all(|(queue, _)| *queue == stream.queue);
        self.room.has_to_wait(size > SMALL && in_the_way && alone)
    }

    /// Sends as much of a message as there is room for, straight from where its data lies; what is
    /// left waits in its slot, or where it was lent. Whether something is left.
    ///
    /// # Safety
    /// The data is readable, and nobody else uses the slot.
    pub(super) unsafe fn send_message(
        &mut self,
        fd: Option<BorrowedFd<'_>>,
        cork: bool,
        message: ChannelMessage<'_>,
    ) -> bool {
        let ChannelMessage { put, head, mut data, ref slot, ref buffer, .. } = message;
        let direct = !cork
            && !self.room.awaited
            && !self.usage.is_broken()
            && self.is_free()
            && !self.going_back.has_any_beside()
            && put.size <= CHUNK;
        let Some(fd) = fd.filter(|_| direct) else {
            // SAFETY: as the caller says.
            unsafe { message.compose() };
            self.append_item(put.stream.queue, Item::put(put, Some(message.slot)));
            return true;
        };
        self.acknowledge();
        self.encode(&mut Item::put(put, None));
        self.wire.extend_from_slice(head);
        if let Some(buffer) = buffer {
            let (payload, size) = (Payload::of_user(Arc::clone(buffer), 0), data.len as u64);
            self.body = Some(OutgoingBody { payload, sent: 0, size, piped: true });
            return true;
        }
        if put.size <= SMALL {
            // SAFETY: as the caller says.
            self.wire.extend_from_slice(unsafe { data.bytes() });
            data = Piece::of(&[]);
        }
        let whole = data.len;
        while self.sent < self.wire.len() || data.len > 0 {
            let wire = Piece::of(&self.wire[self.sent..]);
            // SAFETY: the frames are owned here; the data is readable, as the caller says.
            match unsafe { self.carrying.send(fd, [wire, data], &[], true) } {
                Ok(sent) => {
                    let of_wire = sent.min(wire.len);
                    self.sent += of_wire;
                    data = data.behind(sent - of_wire);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What is wrong, if anything is, shows when the rest is sent.
                Err(_) => break,
            }
        }
        if data.len > 0 {
            let payload = slot.behind((head.len() + whole - data.len) as u64);
            // SAFETY: inside of the slot; otherwise as the caller says.
            unsafe { payload.pointer(0).copy_from_nonoverlapping(data.pointer, data.len) };
            let size = data.len as u64;
            self.body = Some(OutgoingBody { payload, sent: 0, size, piped: size >= PIPED });
            return true;
        }
        if self.sent < self.wire.len() {
            return true;
        }
        self.sent = 0;
        self.wire.clear();
        self.going_back.has_data = false;
        false
    }

    /// Appends a request of a stream: to the wire if nothing is in the way.
    pub(super) fn append_item(&mut self, queue: QueueId, mut item: Item) {
        let free = self.is_free();
        if free {
            // Before a payload of its own, behind which nothing shares its system call.
            self.acknowledge();
        }
        if free && self.wire.len() < BATCH && self.encode(&mut item) {
            return;
        }
        match self.streams.iter_mut().find(|(stream, _)| *stream == queue) {
            Some((_, items)) => items.push_back(item),
            None => self.streams.push_back((queue, VecDeque::from([item]))),
        }
    }

    /// Puts the next part of a request on the wire; true if that was the last one.
    fn encode(&mut self, item: &mut Item) -> bool {
        self.going_back.has_data |= !matches!(item, Item::Frame(_));
        match item {
            Item::Frame(frame) => {
                frame.append_to(&mut self.wire);
                true
            }
            Item::Data { request, size, payload } => {
                Frame::Data { request: *request, size: *size }.append_to(&mut self.wire);
                self.append(payload, 0, *size, *size);
                true
            }
            Item::Put { put, payload, sent } => {
                let (skip, size) = (*sent, (put.size - *sent).min(CHUNK));
                let last = skip + size == put.size;
                let remote = RemoteAddress { offset: put.remote.offset + skip, ..put.remote };
                Frame::Put(Put { remote, size, last, ..*put }).append_to(&mut self.wire);
                *sent += size;
                if last {
                    self.unacknowledged.push(put.stream);
                }
                if let Some(payload) = payload {
                    self.append(payload, skip, size, put.size);
                }
                last
            }
        }
    }

    /// Appends a part of a payload of `whole` bytes: a small one to the wire, others as its body.
    fn append(&mut self, payload: &Payload, skip: u64, size: u64, whole: u64) {
        if size > SMALL {
            let turn = whole <= PIPED_ALL || (skip / CHUNK).is_multiple_of(2);
            let piped = turn && size >= PIPED && payload.may_be_piped();
            self.body = Some(OutgoingBody { payload: payload.behind(skip), sent: 0, size, piped });
            return;
        }
        let start = self.wire.len();
        self.wire.resize(start + size as usize, 0);
        let accepts = payload.accept();
        if *accepts {
            let to = self.wire[start..].as_mut_ptr();
            // SAFETY: the range was checked when it was posted, and the segment exists while the
            // lock is held.
            unsafe { std::ptr::copy_nonoverlapping(payload.pointer(skip), to, size as usize) };
        }
    }

    /// The streams of puts that have not been acknowledged, with how many; all are forgotten.
    pub(super) fn give_up(&mut self) -> Vec<(Stream, u32)> {
        let mut lost = self.unacknowledged.give_up();
        for (_, items) in self.streams.drain(..) {
            for item in items {
                if let Item::Put { put, .. } = item {
                    lost.push((put.stream, 1));
                }
            }
        }
        self.control.clear();
        self.withheld.take();
        self.carrying.forget_again();
        self.wire = Vec::new();
        self.sent = 0;
        self.body = None;
        self.by_page.pipe = None;
        lost
    }
}

/// Sends once; what was sent whole is forgotten.
pub(super) fn send(fd: BorrowedFd<'_>, out: &mut SendQueue) -> io::Result<()> {
    let wire_left = out.wire.len() - out.sent;
    let by_socket = out.carrying.other().is_none();
    let by_page = if by_socket { send_by_page(fd, out)? } else { None };
    let sent = match by_page {
        Some(sent) => sent,
        None => send_copied(fd, out)?,
    };
    out.descriptors.clear();
    let of_wire = sent.min(wire_left);
    out.sent += of_wire;
    let body_left = out.body.as_mut().map_or(0, |body| {
        body.sent += (sent - of_wire) as u64;
        body.size - body.sent
    });
    if out.sent == out.wire.len() && body_left == 0 {
        out.body = None;
        out.forget_wire();
    }
    Ok(())
}

/// Sends frames and the payload behind them, which the kernel copies.
fn send_copied(fd: BorrowedFd<'_>, out: &SendQueue) -> io::Result<usize> {
    let head = Piece::of(&out.wire[out.sent..]);
    // Memory of the program may be gone once its segment was deleted: what is left of the payload
    // then goes out as zeroes, so that the frames behind it arrive. But where it was revoked.
    let accepts = out.body.as_ref().map(|body| body.payload.accept());
    let rest = match &out.body {
        None => Piece::of(&[]),
        Some(body) if accepts.as_ref().is_some_and(|accepts| **accepts) => body.rest(),
        Some(body) if body.payload.is_of_user() || out.carrying.is_sending_again() => {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Some(body) => Piece::of(&ZEROES[..ZEROES.len().min((body.size - body.sent) as usize)]),
    };
    let descriptors: Vec<BorrowedFd<'_>> = out.descriptors.iter().map(AsFd::as_fd).collect();
    // SAFETY: the frames are owned here, the payload's memory stays while its lock is held, the
    // zeroes are constant.
    unsafe { out.carrying.send(fd, [head, rest], &descriptors, out.going_back.has_data) }
}

/// Sends a large payload, and its frames before, without copying it into the kernel; `None` where
/// it has to be copied.
///
/// What is under way is not to be changed: a program that has posted it waits until the peer has
/// it.
fn send_by_page(fd: BorrowedFd<'_>, out: &mut SendQueue) -> io::Result<Option<usize>> {
    let Some(body) = out.body.as_ref().filter(|body| body.piped) else { return Ok(None) };
    let pipe = out.by_page.pipe.take().or_else(|| {
        out.by_page.pipes.as_ref().filter(|_| out.descriptors.is_empty()).and_then(Pipes::acquire)
    });
    let Some(mut pipe) = pipe else { return Ok(None) };
    if out.sent < out.wire.len() {
        return socket::send_more(fd, &out.wire[out.sent..]).map(Some);
    }
    if !pipe.is_used() {
        let accepts = body.payload.accept();
        if !*accepts {
            return Ok(None);
        }
        // SAFETY: the payload's memory stays while its lock is held.
        let filled = unsafe { pipe.fill(body.rest()) };
        drop(accepts);
        if let Err(error) = filled {
            pipe.refuse(&error);
            return Ok(None);
        }
    }
    match pipe.drain(fd) {
        Err(error) if splice::is_refused(&error) => {
            pipe.refuse(&error);
            Ok(None)
        }
        moved => {
            out.by_page.pipe = Some(pipe).filter(PipeGuard::is_used);
            moved.map(Some)
        }
    }
}

#[cfg(test)]
mod tests;
