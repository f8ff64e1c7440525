//! What this rank does for others: frames handled, whoever drives the sockets.
//!
//! Here the library is the network card: segment, generation and range of every access are checked.
//! Nothing here waits, since whoever drives may hold or be inside anything, and nothing calls the
//! program. [`may_wait`](crate::sync::epoch::may_wait) holds that.

use crate::channel::ReceiveTarget;
use crate::channel::zero_copy;
use crate::diagnostics;
use crate::group::Abort;
use crate::ids::{NotificationId, QueueId, Rank, SegmentId};
use crate::os::process;
use crate::policy::acknowledge::Completed;
use crate::queue::CHANNELS;
use crate::runtime::Inner;
use crate::segment::{ARENA, Segment, Target};
use crate::sync::{AtomicU64, Ordering, slots};
use crate::transport::shm::area::liveness;
use crate::transport::tcp::connection::{Broken, Connection};
use crate::transport::tcp::payload::Payload;
use crate::transport::tcp::receive::Incoming;
use crate::transport::tcp::requests::finish;
use crate::transport::tcp::requests::{GetTarget, RequestFailure};
use crate::transport::tcp::send_queue::Item;
use crate::wire::frame::{Announce, AtomicOperation, Frame, Put, Register, RemoteAddress, Stream};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Status of a process that proc_kill ended.
pub(crate) const KILLED: i32 = 255;

/// What to do with the payload that is arriving.
#[derive(Debug)]
pub(crate) enum Sink {
    Put {
        segment: Arc<Segment>,
        put: Put,
    },
    Get {
        request: u64,
        queue: QueueId,
        generation: u32,
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
    pub(crate) sink: Sink,
    /// Bytes: where the next ones go, and how many are still to come.
    pub(crate) offset: u64,
    pub(crate) left: u64,
}

impl IncomingBody {
    /// Whether it is the payload of a put by a channel.
    pub(super) fn is_of_channel(&self) -> bool {
        matches!(&self.sink, Sink::Put { put, .. } if put.stream.queue == CHANNELS)
    }
}

impl Inner {
    /// Where the rest of a payload goes if it is the data of a message that is expected.
    pub(super) fn receive_target(
        &self,
        peer: Rank,
        body: &IncomingBody,
    ) -> Option<ReceiveTarget<'_>> {
        let Sink::Put { segment, put } = &body.sink else { return None };
        if put.stream.queue != CHANNELS || segment.id != ARENA {
            return None;
        }
        let slot = segment.pointer().wrapping_add(put.remote.offset as usize);
        // SAFETY: the range was checked when the frame came, and is written here only.
        unsafe { self.channels.posted_receives.target(peer, put, body.offset, slot) }
    }

    /// Where a payload goes; nowhere if nobody wants it any more.
    pub(crate) fn wanted<'s>(&self, sink: &'s Sink) -> Option<&'s Arc<Segment>> {
        match sink {
            Sink::Put { segment, .. } => Some(segment),
            // After a purge the place may serve another purpose.
            Sink::Get { queue, generation, get_target, .. } => {
                let expected = self.queues[queue.index()].expects(*generation);
                expected.then_some(&get_target.segment)
            }
            Sink::Refuse { .. } | Sink::Nobody => None,
        }
    }

    /// Puts payload that came along with its frame into its place.
    pub(crate) fn store(&self, body: &mut IncomingBody, bytes: &[u8]) {
        if let Some(segment) = self.wanted(&body.sink) {
            let accepts = segment.accept();
            if *accepts {
                let to = segment.pointer().wrapping_add(body.offset as usize);
                if let (8, true) = (bytes.len(), to.cast::<u64>().is_aligned()) {
                    // As one word, since programs look at it as one.
                    // SAFETY: the range was checked when the frame came, and the segment exists
                    // while the lock is held.
                    unsafe {
                        to.cast::<u64>().write(bytes.as_ptr().cast::<u64>().read_unaligned())
                    };
                } else {
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
                }
            }
        }
        body.offset += bytes.len() as u64;
        body.left -= bytes.len() as u64;
    }

    /// A payload is complete.
    pub(crate) fn arrived(
        &self,
        connection: &Connection,
        incoming: &mut Incoming,
        sink: Sink,
    ) -> Result<(), Broken> {
        match sink {
            Sink::Put { segment, put } => {
                // Members of a channel may not know yet that this rank has done its part and left.
                if !*segment.accept() && segment.id != ARENA {
                    let reason = format!("{} was deleted", segment.id);
                    self.refuse(connection, incoming, &put, reason);
                } else if put.last {
                    self.complete(connection, incoming, &segment, &put);
                }
            }
            Sink::Get { request, queue, generation, get_target } => {
                let Some(peer) = connection.peer().map(Rank) else { return Err(Broken) };
                let Some(request) = self.endpoints.answered(request, peer) else { return Ok(()) };
                let expected = self.queues[queue.index()].expects(generation);
                if let Some((segment, id)) = get_target.notify.filter(|_| expected) {
                    slots::set(segment.notification(id.index()), 1);
                }
                finish(self, peer, request, Ok(0));
                self.endpoints.let_go(connection);
            }
            Sink::Refuse { put, reason } => self.refuse(connection, incoming, &put, reason),
            Sink::Nobody => {}
        }
        Ok(())
    }

    /// A put has been completed, unless an earlier part of it was refused.
    fn complete(
        &self,
        connection: &Connection,
        incoming: &mut Incoming,
        segment: &Segment,
        put: &Put,
    ) {
        if !incoming.refusals.is_empty()
            && let Some(reason) = incoming.refusals.remove(&put.stream.queue.0)
        {
            return self.refuse(connection, incoming, put, reason);
        }
        if put.value != 0 {
            slots::set(segment.notification(put.notification.index()), put.value);
        }
        let notified = put.value != 0;
        let generation = put.stream.generation;
        incoming.completed.add(if put.stream.queue == CHANNELS {
            // Channels go by their own counts, but for memory in flight; see [`crate::channel`].
            let (in_flight, awaited) = (generation != 0, zero_copy::is_awaited(generation));
            Completed::OfChannel { notified, in_flight, awaited }
        } else {
            Completed::OfQueue { notified, size: put.size }
        });
    }

    /// A put cannot be carried out; said once for all its parts.
    fn refuse(&self, connection: &Connection, incoming: &mut Incoming, put: &Put, reason: String) {
        let refusals = &mut incoming.refusals;
        if !put.last {
            refusals.entry(put.stream.queue.0).or_insert(reason);
            return;
        }
        let reason = refusals.remove(&put.stream.queue.0).unwrap_or(reason);
        incoming.completed.add(Completed::Refused);
        connection.answer(&self.endpoints.data, &Frame::Refused { stream: put.stream, reason });
    }

    fn reply(&self, connection: &Connection, request: u64, outcome: Result<u64, String>) {
        connection.answer(&self.endpoints.data, &Frame::Reply { request, outcome });
    }

    /// Handles a frame and gives the bytes of payload that follow it.
    pub(crate) fn handle(
        &self,
        connection: &Connection,
        incoming: &mut Incoming,
        frame: Frame,
    ) -> Result<u64, Broken> {
        // Ranks of the same node that have connected say first who they are.
        let Some(peer) = connection.peer().map(Rank) else {
            return self.greet(connection, &frame).map(|()| 0);
        };
        match frame {
            Frame::Put(put) => {
                self.put(connection, incoming, put);
                return Ok(put.size);
            }
            Frame::Data { request, size } => {
                self.data(incoming, peer, request, size)?;
                return Ok(size);
            }
            Frame::Ack { puts } => self.endpoints.acknowledged(self, connection, puts),
            Frame::Refused { stream, reason } => self.refused_put(peer, stream, &reason),
            Frame::Get { request, stream, remote, size } => {
                self.get(connection, request, stream, remote, size);
            }
            Frame::Atomic { request, remote, operation } => {
                self.reply(connection, request, self.execute(remote, operation));
            }
            Frame::Arrive(arrival) => {
                let (group, step) = (arrival.group, arrival.step);
                if group.index() < self.config.group_max as usize {
                    self.remote_arrivals.arrived(peer, arrival);
                    self.hear_of_arrival(group, step);
                    self.area.wake(self.rank);
                }
            }
            Frame::Barrier { group, step, message } => {
                self.hear_of_barrier(peer, group, step, message);
            }
            Frame::Hello { .. } => return Err(Broken),
            frame => self.handle_rare(connection, incoming, peer, frame)?,
        }
        Ok(0)
    }

    fn handle_rare(
        &self,
        connection: &Connection,
        incoming: &mut Incoming,
        peer: Rank,
        frame: Frame,
    ) -> Result<(), Broken> {
        match frame {
            Frame::Reply { request, outcome } => {
                if let Some(request) = self.endpoints.answered(request, peer) {
                    finish(self, peer, request, outcome.map_err(RequestFailure::Refused));
                    self.endpoints.let_go(connection);
                }
            }
            Frame::Register(register) => {
                let descriptors = std::mem::take(&mut incoming.descriptors);
                let outcome = self.import(peer, &register, &descriptors);
                self.reply(connection, register.request, outcome);
            }
            Frame::Revoke { segment, generation } => {
                self.forget_target(peer, segment, Some(generation));
            }
            Frame::Ping { request } => self.reply(connection, request, Ok(0)),
            Frame::Kill => process::exit_now(KILLED),
            Frame::Announce(announce) => self.announced(peer, announce),
            Frame::Withdraw { group, attempt } => self.groups.withdrawn(peer, group, attempt),
            Frame::Abort { group, attempt, round, dead, reason } => {
                let dead = dead.filter(|rank| self.check_rank(*rank).is_ok());
                let abort = Abort { reporter: peer, dead, reason };
                self.groups.aborted(peer, group, attempt, round, &abort);
                self.area.wake(self.rank);
            }
            Frame::Passive { request, message } => {
                self.mailbox.post(peer, connection.token, request, message);
                self.area.wake(self.rank);
            }
            Frame::Withhold { request } => self.mailbox.withhold(peer, request),
            Frame::Goodbye => {
                self.endpoints.note_farewell(peer);
                // Nothing follows on this stream; there may be another one that is not at its end.
                return Err(Broken);
            }
            Frame::TurnedAway { reason } => {
                self.endpoints.set_last_error(peer, reason);
                return Err(Broken);
            }
            Frame::Epoch { count } => {
                return self.endpoints.note_epoch(self, connection, peer, count);
            }
            Frame::Release => {
                connection.note_release();
                self.endpoints.let_go(connection);
            }
            _ => {}
        }
        Ok(())
    }

    fn greet(&self, connection: &Connection, frame: &Frame) -> Result<(), Broken> {
        match frame {
            Frame::Hello { rank, token }
                if u32::from(rank.0) < self.size && *token == self.token =>
            {
                connection.set_peer(*rank);
                Ok(())
            }
            _ => Err(Broken),
        }
    }

    fn announced(&self, peer: Rank, announce: Announce) {
        if usize::from(announce.group.0) < self.config.group_max as usize {
            self.groups.announced(peer, announce);
            self.area.wake(self.rank);
        }
    }

    /// A put of this rank was refused; its acknowledgement follows and completes it.
    fn refused_put(&self, peer: Rank, stream: Stream, reason: &str) {
        // Only what has not been purged.
        let is_under_way = match self.queues.get(stream.queue.index()) {
            Some(queue) => queue.expects(stream.generation),
            None => stream.queue == CHANNELS,
        };
        if is_under_way {
            // First: whoever waits for the queue may see the failure at once.
            self.request_failed(peer, stream, reason, true);
        }
        if let Some(queue) = self.queues.get(stream.queue.index()) {
            queue.fail_of(stream.generation, &format!("{peer} refused: {reason}"));
        }
        self.area.wake(self.rank);
    }

    fn import(
        &self,
        peer: Rank,
        register: &Register,
        descriptors: &[OwnedFd],
    ) -> Result<u64, String> {
        if register.segment == ARENA {
            return self.import_arena(peer, register, descriptors);
        }
        if u32::from(register.segment.0) >= self.config.segment_max {
            return Err(format!("{} is out of range", register.segment));
        }
        if self.target_generation(peer, register.segment) == Some(register.generation) {
            return Ok(0);
        }
        let target = if self.is_local(peer) {
            let pid = self.cards[peer.index()].pid;
            Target::import(register, pid, descriptors, self.shape)
                .map_err(|error| error.to_string())?
        } else {
            Target::remote(register)
        };
        log::debug!(
            "segment_register: {} of {peer} has {} and is {}",
            register.segment,
            diagnostics::bytes(register.size),
            target.reach.in_words()
        );
        // Whoever notes a death afterwards finds it; nobody is to reach the memory of the dead.
        let _changes = self.targets.changes();
        if self.area.liveness(peer) == liveness::DEAD {
            return Err(format!("{peer} has died"));
        }
        self.replace_target(peer, register.segment, target);
        Ok(0)
    }

    /// The segment that a peer's access is for, if the range lies inside.
    fn find(&self, remote: RemoteAddress, size: u64) -> Result<Arc<Segment>, String> {
        let SegmentId(id) = remote.segment;
        let segment = if remote.segment == ARENA {
            self.channels.arena().map(|arena| Arc::clone(&arena.segment))
        } else {
            self.segments.get_arc(remote.segment)
        };
        let segment =
            segment.filter(|segment| segment.generation == remote.generation).ok_or_else(|| {
                let RemoteAddress { offset, .. } = remote;
                format!("segment {id} was deleted; {size} bytes at offset {offset} were meant")
            })?;
        let fits = remote.offset.checked_add(size).is_some_and(|end| end <= segment.size);
        if !fits {
            let RemoteAddress { offset, .. } = remote;
            let limit = segment.size;
            return Err(format!(
                "{size} bytes at offset {offset} of segment {id}, which has {limit} bytes"
            ));
        }
        Ok(segment)
    }

    fn check_notification(&self, of: SegmentId, id: NotificationId) -> Result<(), String> {
        if id.0 >= self.shape.notifications_of(of) {
            return Err(format!("{id} is out of range"));
        }
        Ok(())
    }

    fn put(&self, connection: &Connection, incoming: &mut Incoming, put: Put) {
        let found = self.find(put.remote, put.size).and_then(|segment| {
            // One that is not to be set need not exist.
            let checked = match put.value {
                0 => Ok(()),
                _ => self.check_notification(segment.id, put.notification),
            };
            checked.map(|()| segment)
        });
        match found {
            Ok(segment) if put.size == 0 => {
                self.complete(connection, incoming, &segment, &put);
            }
            Err(reason) if put.size == 0 => self.refuse(connection, incoming, &put, reason),
            found => {
                let sink = match found {
                    Ok(segment) => Sink::Put { segment, put },
                    Err(reason) => Sink::Refuse { put, reason },
                };
                incoming.body =
                    Some(IncomingBody { sink, offset: put.remote.offset, left: put.size });
            }
        }
    }

    fn get(
        &self,
        connection: &Connection,
        request: u64,
        stream: Stream,
        remote: RemoteAddress,
        size: u64,
    ) {
        let item = match self.find(remote, size) {
            Ok(segment) => {
                Item::Data { request, size, payload: Payload::new(segment, remote.offset) }
            }
            Err(reason) => Item::Frame(Frame::Reply { request, outcome: Err(reason) }),
        };
        connection.answer_in_stream(&self.endpoints.data, stream.queue, item);
    }

    fn data(
        &self,
        incoming: &mut Incoming,
        peer: Rank,
        request: u64,
        size: u64,
    ) -> Result<(), Broken> {
        // It stays a request until all is here: the peer may end in the middle.
        let (sink, offset) = match self.endpoints.get_target(request, peer) {
            Some((queue, generation, get_target)) if get_target.size == size => {
                let offset = get_target.offset;
                (Sink::Get { request, queue, generation, get_target }, offset)
            }
            Some(_) => return Err(Broken),
            None => (Sink::Nobody, 0),
        };
        incoming.body = Some(IncomingBody { sink, offset, left: size });
        Ok(())
    }

    fn execute(&self, remote: RemoteAddress, operation: AtomicOperation) -> Result<u64, String> {
        let segment = self.find(remote, 8)?;
        if !remote.offset.is_multiple_of(8) {
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
