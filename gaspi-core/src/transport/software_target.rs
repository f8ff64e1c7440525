//! What the library of a target does where no card does, whichever transport has carried the
//! request: segment, generation, range and notification of every access are checked; of arenas,
//! whose generation says under which number a range is lent, that it still is.
//!
//! Driven by decoded messages. Nothing here waits or sends: the carrier gets an [`Action`], and has
//! no other way to be called back. It also moves the payload, to where an [`IncomingBody`] says.

use crate::config::CHANNELS;
use crate::ids::{NotificationId, Rank, SegmentId};
use crate::policy::acknowledge::{Batch, Completed};
use crate::segment::leases::Lent;
use crate::segment::own::Memory;
use crate::segment::{ARENA, Segment};
use crate::sync::{AtomicU64, Ordering, slots};
use crate::transport::payload::{Payload, is_awaited};
use crate::transport::posted_receives::{HEAD_BYTES, PostedReceives, ReceiveTarget};
use crate::transport::requests::{GetTarget, PendingRequests, finish};
use crate::transport::{RequestFailure, Upcalls};
use crate::wire::frame::Frame;
use crate::wire::message::{AtomicOperation, Message, Put, RemoteAddress, Stream};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a message asks its carrier to do.
#[derive(Debug)]
pub(crate) enum Action {
    Nothing,
    /// So many bytes of payload follow, for the body that is now expected.
    Receive(u64),
    /// To answer the peer.
    Answer(Frame),
    /// The same with a value of the program's memory.
    Value(Frame),
    /// To answer with data, in the peer's stream.
    Data {
        stream: Stream,
        request: u64,
        size: u64,
        payload: Payload,
    },
    /// The same where there is no such data.
    Refuse {
        stream: Stream,
        answer: Frame,
    },
    /// A request of this rank has been answered.
    Answered,
    /// The peer does not keep to the protocol.
    Abort,
    /// It concerns the carrier alone.
    Own(Frame),
}

/// What to do with the payload that is arriving.
#[derive(Debug)]
enum Sink {
    Put {
        segment: Arc<Segment>,
        put: Put,
    },
    Get {
        request: u64,
        stream: Stream,
        get_target: GetTarget,
    },
    /// A put that is refused, and why.
    Refuse {
        put: Put,
        reason: String,
    },
    /// The answer to a request that has failed meanwhile.
    Nobody,
}

/// A payload that is arriving.
#[derive(Debug)]
pub(crate) struct IncomingBody {
    sink: Sink,
    /// Bytes: where the next ones go, and how many are still to come.
    pub(crate) offset: u64,
    pub(crate) left: u64,
}

impl IncomingBody {
    /// Whether it is the payload of a put by a channel.
    pub(crate) fn is_of_channel(&self) -> bool {
        matches!(&self.sink, Sink::Put { put, .. } if put.stream.queue == CHANNELS)
    }

    /// So many bytes of it have come.
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.offset += bytes;
        self.left -= bytes;
    }
}

/// What a target keeps of the requests that one carrier brings from one peer.
#[derive(Debug, Default)]
pub(crate) struct Served {
    pub(crate) body: Option<IncomingBody>,
    /// Puts completed since the carrier has acknowledged some.
    pub(crate) completed: Batch,
    /// Why an earlier part of a large put was refused, by queue of the sender.
    refusals: HashMap<u8, String>,
    /// What came along with the next message.
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Where the bytes of a connection stand that another carrier goes on with.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) served: Served,
    /// A part of a frame.
    pub(crate) partial: Vec<u8>,
}

impl Served {
    /// Another carrier goes on here with what it has brought.
    pub(crate) fn continue_from(&mut self, other: Served) {
        (self.body, self.refusals) = (other.body, other.refusals);
    }
}

/// A rank as the target of what a carrier brings.
#[derive(Clone, Copy)]
pub(crate) struct SoftwareTarget<'a> {
    pub(crate) up: &'a dyn Upcalls,
    pub(crate) requests: &'a PendingRequests,
    pub(crate) posted_receives: &'a PostedReceives,
}

impl<'a> SoftwareTarget<'a> {
    /// Handles a message of `peer`, which a carrier of this name has brought.
    pub(crate) fn handle(
        self,
        peer: Rank,
        carrier: u64,
        served: &mut Served,
        message: Frame,
    ) -> Action {
        match message {
            Frame::Put(put) => self.put(peer, served, put),
            Frame::Data { request, size } => self.data(served, peer, request, size),
            Frame::Refused { stream, reason } => {
                self.up.refused(peer, stream, &reason);
                Action::Nothing
            }
            Frame::Get { request, stream, remote, size } => self.get(request, stream, remote, size),
            Frame::Atomic { request, remote, operation } => {
                let outcome = execute(self.up.memory(), remote, operation);
                Action::Value(Frame::Reply { request, outcome })
            }
            Frame::Reply { request, outcome } => match self.requests.answered(request, peer) {
                Some(request) => {
                    finish(self.up, peer, request, outcome.map_err(RequestFailure::Refused));
                    Action::Answered
                }
                None => Action::Nothing,
            },
            Frame::Register(register) => {
                let descriptors = std::mem::take(&mut served.descriptors);
                reply(register.request, self.up.import(peer, &register, &descriptors))
            }
            Frame::Ping { request } => reply(request, Ok(0)),
            Frame::Passive { request, message } => {
                self.up.passive(peer, carrier, request, message);
                Action::Nothing
            }
            Frame::Message(message) => {
                self.up.message(peer, message);
                Action::Nothing
            }
            own => Action::Own(own),
        }
    }

    /// Sets a notification of a segment, if it is still there, whose data is in its place; false if
    /// there can be no such notification.
    pub(crate) fn notify(self, segment: SegmentId, id: NotificationId, value: u32) -> bool {
        let memory = self.up.memory();
        if segment == ARENA || check_notification(memory, segment, id).is_err() {
            return false;
        }
        if let Some(segment) = memory.find(segment) {
            slots::set(segment.notification(id.index()), value);
        }
        true
    }

    fn put(self, peer: Rank, served: &mut Served, put: Put) -> Action {
        let found = find_target(self.up.memory(), &put);
        match found {
            Ok(segment) if put.size == 0 => complete(peer, served, &segment, &put),
            Err(reason) if put.size == 0 => refuse(served, &put, reason),
            found => {
                let sink = match found {
                    Ok(segment) => Sink::Put { segment, put },
                    Err(reason) => Sink::Refuse { put, reason },
                };
                let (offset, left) = (put.remote.offset, put.size);
                served.body = Some(IncomingBody { sink, offset, left });
                Action::Receive(put.size)
            }
        }
    }

    fn get(self, request: u64, stream: Stream, remote: RemoteAddress, size: u64) -> Action {
        match find(self.up.memory(), remote, size) {
            Ok(segment) => {
                let payload = Payload::new(segment, remote.offset);
                Action::Data { stream, request, size, payload }
            }
            Err(reason) => {
                Action::Refuse { stream, answer: Frame::Reply { request, outcome: Err(reason) } }
            }
        }
    }

    fn data(self, served: &mut Served, peer: Rank, request: u64, size: u64) -> Action {
        // It stays a request until all is here: the peer may end in the middle.
        let (sink, offset) = match self.requests.get_target(request, peer) {
            Some((stream, get_target)) if get_target.size == size => {
                let offset = get_target.offset;
                (Sink::Get { request, stream, get_target }, offset)
            }
            Some(_) => return Action::Abort,
            None => (Sink::Nobody, 0),
        };
        served.body = Some(IncomingBody { sink, offset, left: size });
        Action::Receive(size)
    }

    /// Where the rest of a payload goes if it is the data of a message that is expected.
    pub(crate) fn receive_target(
        self,
        peer: Rank,
        body: &IncomingBody,
    ) -> Option<ReceiveTarget<'a>> {
        let Sink::Put { segment, put } = &body.sink else { return None };
        // What a channel expects that has come to use the slot since is not for this message.
        if put.stream.queue != CHANNELS || segment.id != ARENA || !is_current(segment, put) {
            return None;
        }
        let slot = segment.pointer().wrapping_add(put.remote.offset as usize);
        // SAFETY: the range was checked when the frame came, and is written here only.
        unsafe { self.posted_receives.target(peer, put, body.offset, slot) }
    }

    /// How many bytes of the head of a message have not come, if its data may be expected.
    pub(crate) fn left_of_head(self, body: &IncomingBody) -> Option<usize> {
        let Sink::Put { put, .. } = &body.sink else { return None };
        let may_be_expected = put.stream.queue == CHANNELS && self.posted_receives.has_any();
        let came = body.offset - put.remote.offset;
        (HEAD_BYTES as u64)
            .checked_sub(came)
            .filter(|left| may_be_expected && *left > 0)
            .map(|left| left as usize)
    }

    /// Where a payload goes; nowhere if nobody wants it any more.
    pub(crate) fn wanted(self, body: &IncomingBody) -> Option<&Arc<Segment>> {
        match &body.sink {
            Sink::Put { segment, .. } => Some(segment),
            // After a purge the place may serve another purpose.
            Sink::Get { stream, get_target, .. } => {
                self.up.expects(*stream).then_some(&get_target.segment)
            }
            Sink::Refuse { .. } | Sink::Nobody => None,
        }
    }

    /// Whether its place still serves the same purpose. The caller holds the lock of the segment,
    /// for which a purge waits.
    pub(crate) fn is_current(self, body: &IncomingBody) -> bool {
        match &body.sink {
            Sink::Put { segment, put } => is_current(segment, put),
            Sink::Get { stream, .. } => self.up.expects(*stream),
            Sink::Refuse { .. } | Sink::Nobody => true,
        }
    }

    /// Puts payload that came along with its frame into its place.
    pub(crate) fn store(self, body: &mut IncomingBody, bytes: &[u8]) {
        if let Some(segment) = self.wanted(body) {
            let accepts = segment.accept();
            if *accepts && self.is_current(body) {
                let to = segment.pointer().wrapping_add(body.offset as usize);
                if let (8, true) = (bytes.len(), to.cast::<u64>().is_aligned()) {
                    // As one word, since programs look at it as one.
                    // SAFETY: the range was checked when the frame came, and the segment exists
                    // while the lock is held.
                    unsafe {
                        to.cast::<u64>().write(bytes.as_ptr().cast::<u64>().read_unaligned())
                    };
                } else {
                    // SAFETY: checked range, kept alive by the lock.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
                }
            }
        }
        body.advance(bytes.len() as u64);
    }

    /// The payload that was expected is complete.
    pub(crate) fn arrived(self, peer: Rank, served: &mut Served) -> Action {
        let Some(IncomingBody { sink, .. }) = served.body.take() else { return Action::Nothing };
        match sink {
            Sink::Put { segment, put } => {
                // Members of a channel may not know yet that this rank has done its part and left.
                if segment.id != ARENA && !*segment.accept() {
                    let reason = format!("{} was deleted", segment.id);
                    refuse(served, &put, reason)
                } else if put.last {
                    complete(peer, served, &segment, &put)
                } else {
                    Action::Nothing
                }
            }
            Sink::Get { request, stream, get_target } => {
                // A purge waits for this lock, as long as the request is under way.
                let accepts = get_target.segment.accept();
                let is_asked = self.requests.get_target(request, peer).is_some();
                let expected = is_asked && self.up.expects(stream);
                if let Some((segment, id)) = get_target.notify.as_ref().filter(|_| expected) {
                    slots::set(segment.notification(id.index()), 1);
                }
                drop(accepts);
                let Some(request) = self.requests.answered(request, peer) else {
                    return Action::Nothing;
                };
                finish(self.up, peer, request, Ok(0));
                Action::Answered
            }
            Sink::Refuse { put, reason } => refuse(served, &put, reason),
            Sink::Nobody => Action::Nothing,
        }
    }
}

fn reply(request: u64, outcome: Result<u64, String>) -> Action {
    Action::Answer(Frame::Reply { request, outcome })
}

/// A put has been completed, unless an earlier part of it was refused.
fn complete(peer: Rank, served: &mut Served, segment: &Segment, put: &Put) -> Action {
    if !served.refusals.is_empty()
        && let Some(reason) = served.refusals.remove(&put.stream.queue.0)
    {
        return refuse(served, put, reason);
    }
    let (notified, answered) = notify(peer, segment, put);
    let generation = put.stream.generation;
    served.completed.add(if put.stream.queue == CHANNELS {
        // Channels go by their own counts, but for memory in flight; see [`crate::channel`].
        let (in_flight, awaited) = (generation != 0, is_awaited(generation));
        Completed::OfChannel { notified, in_flight, awaited }
    } else {
        Completed::OfQueue { notified: put.value != 0, size: put.size }
    });
    if answered {
        // In order with what this rank has put there by channels.
        return Action::Refuse { stream: put.stream, answer: closed(put) };
    }
    Action::Nothing
}

/// The answer to what was put into a range that is not lent any more, or not for long.
fn closed(put: &Put) -> Frame {
    Frame::Message(Message::Closed { lease: put.remote.generation })
}

/// Whether a place still serves the same purpose. The caller holds the lock of the segment.
fn is_current(segment: &Segment, put: &Put) -> bool {
    let RemoteAddress { generation, offset, .. } = put.remote;
    segment.id != ARENA || segment.leases.covers(generation, offset, put.size)
}

/// A put cannot be carried out; said once for all its parts.
fn refuse(served: &mut Served, put: &Put, reason: String) -> Action {
    if !put.last {
        served.refusals.entry(put.stream.queue.0).or_insert(reason);
        return Action::Nothing;
    }
    let reason = served.refusals.remove(&put.stream.queue.0).unwrap_or(reason);
    served.completed.add(Completed::Refused);
    Action::Answer(Frame::Refused { stream: put.stream, reason })
}

/// The segment that a peer's access is for, if the range lies inside.
///
/// # Errors
/// In words, for the peer.
fn find(memory: &Memory, remote: RemoteAddress, size: u64) -> Result<Arc<Segment>, String> {
    let segment = find_for_put(memory, remote, size)?;
    let RemoteAddress { generation, offset, .. } = remote;
    if segment.id == ARENA && !segment.leases.covers(generation, offset, size) {
        return Err("the channel was closed".to_owned());
    }
    Ok(segment)
}

/// The same for a put, whose range of an arena is looked at when the data has come.
///
/// # Errors
/// In words, for the peer.
fn find_for_put(memory: &Memory, remote: RemoteAddress, size: u64) -> Result<Arc<Segment>, String> {
    let RemoteAddress { segment: id, generation, offset } = remote;
    let SegmentId(number) = id;
    let is_it = |segment: &Arc<Segment>| id == ARENA || segment.generation == generation;
    let segment = memory.find(id).filter(is_it);
    let segment = segment.ok_or_else(|| {
        format!("segment {number} was deleted; {size} bytes at offset {offset} were meant")
    })?;
    if offset.checked_add(size).is_some_and(|end| end <= segment.size) {
        return Ok(segment);
    }
    let limit = segment.size;
    Err(format!("{size} bytes at offset {offset} of segment {number}, which has {limit} bytes"))
}

/// The segment that a put goes to.
///
/// # Errors
/// In words, for the peer.
fn find_target(memory: &Memory, put: &Put) -> Result<Arc<Segment>, String> {
    let segment = find_for_put(memory, put.remote, put.size)?;
    // One that is not to be set need not exist.
    if put.value != 0 {
        check_notification(memory, segment.id, put.notification)?;
    }
    Ok(segment)
}

fn check_notification(memory: &Memory, of: SegmentId, id: NotificationId) -> Result<(), String> {
    if id.0 >= memory.shape.notifications_of(of) {
        return Err(format!("{id} is out of range"));
    }
    Ok(())
}

/// The data of a put is in its place: sets its notification; whether there is one, and whether the
/// put is answered since the range of an arena is closed. Where that is not lent any more nothing
/// is set.
#[inline]
fn notify(peer: Rank, segment: &Segment, put: &Put) -> (bool, bool) {
    let accepts = (segment.id == ARENA).then(|| segment.accept());
    let RemoteAddress { generation, offset, .. } = put.remote;
    let lent = match accepts {
        Some(_) => segment.leases.find(peer, generation, offset, put.size),
        None => Lent::Yes,
    };
    let notifies = put.value != 0 && lent != Lent::No;
    if notifies {
        slots::set(segment.notification(put.notification.index()), put.value);
    }
    (notifies, lent != Lent::Yes)
}

/// Carries out an atomic operation of a peer and returns the former value.
///
/// # Errors
/// In words, for the peer.
fn execute(
    memory: &Memory,
    remote: RemoteAddress,
    operation: AtomicOperation,
) -> Result<u64, String> {
    let segment = find(memory, remote, size_of::<u64>() as u64)?;
    if !remote.offset.is_multiple_of(size_of::<u64>() as u64) {
        return Err(format!("offset {} is not a multiple of 8", remote.offset));
    }
    let accepts = segment.accept();
    if !*accepts {
        return Err(format!("{} was deleted", segment.id));
    }
    let word = segment.pointer().wrapping_add(remote.offset as usize).cast::<AtomicU64>();
    if !word.is_aligned() {
        return Err(format!("{} is not aligned to 8 bytes", segment.id));
    }
    // SAFETY: inside of the segment, aligned, and the segment exists while the lock is held.
    let word = unsafe { &*word };
    Ok(apply(word, operation))
}

/// Carries out an atomic operation and returns the former value.
#[inline]
pub(crate) fn apply(word: &AtomicU64, operation: AtomicOperation) -> u64 {
    match operation {
        AtomicOperation::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
        AtomicOperation::CompareSwap { comparator, new } => {
            let order = Ordering::SeqCst;
            word.compare_exchange(comparator, new, order, order).unwrap_or_else(|found| found)
        }
    }
}
