//! What this rank does for others: frames handled, the receiving thread.
//!
//! Here the library is the network card: segment, generation and range of every access are checked.
//! Nothing here waits, since the receiving thread may hold or be inside anything, and nothing calls
//! the program. [`may_wait`](crate::sync::epoch::may_wait) holds that.

use crate::config::CHANNELS;
use crate::ids::{QueueId, Rank};
use crate::policy::acknowledge::Completed;
use crate::segment::{ARENA, Segment};
use crate::sync::slots;
use crate::transport::RequestFailure;
use crate::transport::posted_receives::ReceiveTarget;
use crate::transport::software_target;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::connection::{Broken, Connection};
use crate::transport::tcp::payload::{Payload, is_awaited};
use crate::transport::tcp::receive::Incoming;
use crate::transport::tcp::requests::GetTarget;
use crate::transport::tcp::requests::finish;
use crate::transport::tcp::send_queue::Item;
use crate::wire::frame::Frame;
use crate::wire::message::{Put, RemoteAddress, Stream};
use std::sync::Arc;

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

impl<'a> Tcp<'a> {
    /// Where the rest of a payload goes if it is the data of a message that is expected.
    pub(super) fn receive_target(
        self,
        peer: Rank,
        body: &IncomingBody,
    ) -> Option<ReceiveTarget<'a>> {
        let Sink::Put { segment, put } = &body.sink else { return None };
        if put.stream.queue != CHANNELS || segment.id != ARENA {
            return None;
        }
        let slot = segment.pointer().wrapping_add(put.remote.offset as usize);
        // SAFETY: the range was checked when the frame came, and is written here only.
        unsafe { self.table.posted_receives.target(peer, put, body.offset, slot) }
    }

    /// Where a payload goes; nowhere if nobody wants it any more.
    pub(crate) fn wanted(self, sink: &Sink) -> Option<&Arc<Segment>> {
        match sink {
            Sink::Put { segment, .. } => Some(segment),
            // After a purge the place may serve another purpose.
            Sink::Get { queue, generation, get_target, .. } => {
                let stream = Stream { queue: *queue, generation: *generation };
                let expected = self.up.expects(stream);
                expected.then_some(&get_target.segment)
            }
            Sink::Refuse { .. } | Sink::Nobody => None,
        }
    }

    /// Puts payload that came along with its frame into its place.
    pub(crate) fn store(self, body: &mut IncomingBody, bytes: &[u8]) {
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
                    // SAFETY: checked range, kept alive by the lock.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
                }
            }
        }
        body.offset += bytes.len() as u64;
        body.left -= bytes.len() as u64;
    }

    /// A payload is complete.
    pub(crate) fn arrived(
        self,
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
                let Some(request) = self.table.requests.answered(request, peer) else {
                    return Ok(());
                };
                let expected = self.up.expects(Stream { queue, generation });
                if let Some((segment, id)) = get_target.notify.filter(|_| expected) {
                    slots::set(segment.notification(id.index()), 1);
                }
                finish(self.up, peer, request, Ok(0));
                self.table.let_go(connection);
            }
            Sink::Refuse { put, reason } => self.refuse(connection, incoming, &put, reason),
            Sink::Nobody => {}
        }
        Ok(())
    }

    /// A put has been completed, unless an earlier part of it was refused.
    fn complete(
        self,
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
        software_target::notify(segment, put);
        let notified = put.value != 0;
        let generation = put.stream.generation;
        incoming.completed.add(if put.stream.queue == CHANNELS {
            // Channels go by their own counts, but for memory in flight; see [`crate::channel`].
            let (in_flight, awaited) = (generation != 0, is_awaited(generation));
            Completed::OfChannel { notified, in_flight, awaited }
        } else {
            Completed::OfQueue { notified, size: put.size }
        });
    }

    /// A put cannot be carried out; said once for all its parts.
    fn refuse(self, connection: &Connection, incoming: &mut Incoming, put: &Put, reason: String) {
        let refusals = &mut incoming.refusals;
        if !put.last {
            refusals.entry(put.stream.queue.0).or_insert(reason);
            return;
        }
        let reason = refusals.remove(&put.stream.queue.0).unwrap_or(reason);
        incoming.completed.add(Completed::Refused);
        connection.answer(&self.table.sets.data, &Frame::Refused { stream: put.stream, reason });
    }

    fn reply(self, connection: &Connection, request: u64, outcome: Result<u64, String>) {
        connection.answer(&self.table.sets.data, &Frame::Reply { request, outcome });
    }

    /// Handles a frame and gives the bytes of payload that follow it.
    pub(crate) fn handle(
        self,
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
            Frame::Ack { puts } => self.table.acknowledged(self.up, connection, puts),
            Frame::Refused { stream, reason } => self.up.refused(peer, stream, &reason),
            Frame::Get { request, stream, remote, size } => {
                self.get(connection, request, stream, remote, size);
            }
            Frame::Atomic { request, remote, operation } => {
                self.reply(
                    connection,
                    request,
                    software_target::execute(self.up.memory(), remote, operation),
                );
            }
            Frame::Hello { .. } => return Err(Broken),
            frame => self.handle_rare(connection, incoming, peer, frame)?,
        }
        Ok(0)
    }

    fn handle_rare(
        self,
        connection: &Connection,
        incoming: &mut Incoming,
        peer: Rank,
        frame: Frame,
    ) -> Result<(), Broken> {
        match frame {
            Frame::Reply { request, outcome } => {
                if let Some(request) = self.table.requests.answered(request, peer) {
                    finish(self.up, peer, request, outcome.map_err(RequestFailure::Refused));
                    self.table.let_go(connection);
                }
            }
            Frame::Register(register) => {
                let descriptors = std::mem::take(&mut incoming.descriptors);
                let outcome = self.up.import(peer, &register, &descriptors);
                self.reply(connection, register.request, outcome);
            }
            Frame::Ping { request } => self.reply(connection, request, Ok(0)),
            Frame::Passive { request, message } => {
                self.up.passive(peer, connection.token, request, message);
            }
            Frame::Goodbye => {
                self.up.ranks().note_goodbye(peer);
                // Nothing follows on this stream; there may be another one that is not at its end.
                return Err(Broken);
            }
            Frame::TurnedAway { reason } => {
                self.table.dialing.set_last_error(peer, reason);
                return Err(Broken);
            }
            Frame::Epoch { count } => {
                return self.table.note_epoch(self.up, connection, peer, count);
            }
            Frame::Release => {
                connection.note_release();
                self.table.let_go(connection);
            }
            Frame::Message(message) => self.up.message(peer, message),
            _ => {}
        }
        Ok(())
    }

    fn greet(self, connection: &Connection, frame: &Frame) -> Result<(), Broken> {
        match frame {
            Frame::Hello { rank, token }
                if u32::from(rank.0) < self.up.ranks().size
                    && *token == self.table.identity.token =>
            {
                connection.set_peer(*rank);
                Ok(())
            }
            _ => Err(Broken),
        }
    }

    fn put(self, connection: &Connection, incoming: &mut Incoming, put: Put) {
        let found = software_target::find_for_put(self.up.memory(), &put);
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
        self,
        connection: &Connection,
        request: u64,
        stream: Stream,
        remote: RemoteAddress,
        size: u64,
    ) {
        let item = match software_target::find(self.up.memory(), remote, size) {
            Ok(segment) => {
                Item::Data { request, size, payload: Payload::new(segment, remote.offset) }
            }
            Err(reason) => Item::Frame(Frame::Reply { request, outcome: Err(reason) }),
        };
        connection.answer_in_stream(&self.table.sets.data, stream.queue, item);
    }

    fn data(
        self,
        incoming: &mut Incoming,
        peer: Rank,
        request: u64,
        size: u64,
    ) -> Result<(), Broken> {
        // It stays a request until all is here: the peer may end in the middle.
        let (sink, offset) = match self.table.requests.get_target(request, peer) {
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
}
