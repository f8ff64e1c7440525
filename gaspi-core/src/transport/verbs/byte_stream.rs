//! The bytes of a connection, by a device: messages of groups, atomics, passive messages, messages
//! of channels, and what devices do not carry.
//!
//! A lane of its own carries them, one connection at a time. Its messages hold bytes as a socket
//! would, behind a number that tells which connection they belong to: the peer has said it on the
//! socket ([`Frame::Switch`](crate::wire::frame::Frame)). So the order of a connection holds,
//! whatever carries it. A pair that ends hands the connections that it has carried
//! [back](super::going_back) to their sockets, or breaks them.
//!
//! Invariant: bytes of a number are handled only once the socket has brought the number, and in
//! their order.

use super::kept::{DataAhead, KeptBytes};
use super::lane::Lane;
use super::queue_pair::STREAM_HEAD;
use super::receives::Receives;
use super::{STREAM, Verbs};
use crate::ids::Rank;
use crate::policy::acknowledge::{Batch, Flush};
use crate::policy::owner::PollOwner;
use crate::policy::pair_failures::PairFailures;
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, fence};
use crate::transport::numbers::NumberMap;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::connection::{Broken, Connection};
use crate::transport::tcp::connections::Owner;
use crate::transport::tcp::receive::Incoming;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// What may not have arrived of the bytes of a connection whose pair is no more.
pub(super) type KeptPlace = Mutex<Option<KeptBytes>>;

/// Who sends by a lane.
#[derive(Debug, Default)]
pub(super) struct Sender {
    /// The name of the connection.
    pub(super) token: Option<u64>,
    /// The same of one whose pair is no more, and that goes on by the next one.
    pub(super) continues: Option<u64>,
    /// That of its bytes, or of the last ones that there were.
    pub(super) number: u32,
    /// Of its carrier, which may be gone.
    pub(super) kept: Weak<KeptPlace>,
}

/// Which connection sends by a lane.
#[derive(Debug, Default)]
pub(super) struct StreamUser {
    pub(super) of: Mutex<Sender>,
    /// What the next pair writes before it carries the connection that continues.
    pub(super) ahead: DataAhead,
    /// Whether it waits for room, or until all has arrived.
    waits: AtomicBool,
    /// Of its pairs: after too many, connections stay with their sockets.
    pub(super) failures: Mutex<PairFailures>,
    /// The last attempt whose pair connections have left for their sockets.
    left: AtomicU32,
    /// Whether another pair is to be tried once the peer's end of the last one is gone too.
    tries_again: AtomicBool,
    /// Whether one may be tried by time.
    pub(super) retries: AtomicBool,
}

impl StreamUser {
    /// Whether it waits for room, or until all has arrived.
    pub(super) fn waits(&self) -> bool {
        self.waits.load(Ordering::SeqCst)
    }

    /// It waits from now on; whether it has before.
    pub(super) fn wait(&self) -> bool {
        self.waits.swap(true, Ordering::SeqCst)
    }

    /// Whether connections have left the pair of this attempt, or a later one.
    pub(super) fn has_left(&self, attempt: u32) -> bool {
        self.left.load(Ordering::Relaxed) >= attempt
    }

    /// Whether another pair is to be tried once the peer's end of the last one is gone.
    pub(super) fn try_again_later(&self, again: bool) {
        self.tries_again.store(again, Ordering::Relaxed);
    }

    /// Whether it is, now.
    pub(super) fn takes_try(&self) -> bool {
        self.tries_again.swap(false, Ordering::Relaxed)
    }

    /// The pair of this attempt is no more, and what may not have arrived goes by the socket, or by
    /// the next pair.
    pub(super) fn keep(&self, attempt: u32, kept: Option<KeptBytes>, by_next: bool) {
        let mut of = self.of.lock();
        // A pair that was not used has none, and those of the one before may not be told of yet.
        let kept = kept.filter(|kept| kept.number == of.number);
        if let Some(place) = of.kept.upgrade().filter(|_| kept.is_some()) {
            *place.lock() = kept;
        }
        let token = of.token.take();
        of.continues = token.or(of.continues).filter(|_| by_next);
        drop(of);
        self.left.store(attempt, Ordering::Relaxed);
        // Nothing ends any more that it could wait for.
        self.waits.store(false, Ordering::SeqCst);
    }
}

/// A message in a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    pub(super) place: usize,
    pub(super) len: u32,
}

/// Whose bytes are, and what of them has come.
#[derive(Debug)]
pub(super) struct Known {
    connection: Weak<Connection>,
    /// As of these changes of connections.
    as_of: u64,
    pub(super) incoming: Incoming,
}

/// A peer, and the number of the bytes of one of its connections.
type Of = (Rank, u32);

/// What has come of connections.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) known: NumberMap<Of, Known>,
    /// Messages of which the socket has not told yet.
    pub(super) parked: VecDeque<(Rank, u32, Chunk)>,
    /// Those of which the peer has been told as handled, though their pair is no more.
    pub(super) counted: Vec<(Rank, u32)>,
    /// Whose puts have been completed, and not all acknowledged.
    ack_due: Vec<Arc<Connection>>,
}

/// Sending.
impl Verbs<'_> {
    /// Something has ended of what was posted; or the pair has come up.
    pub(super) fn go_on_with_stream(self, lane: &Lane, comes_up: bool) {
        if comes_up {
            self.stream.connections.note_news();
            self.stream.sets.wakeup.wake();
        }
        if !lane.user.waits.swap(false, Ordering::SeqCst) {
            return;
        }
        let token = lane.user.of.lock().token;
        let Some(connection) = token.and_then(|token| self.stream.connections.get(token)) else {
            return;
        };
        if connection.flush(&self.stream.sets.data) == Err(Broken) {
            self.stream.broke(self.up, &connection);
        }
        self.up.ranks().wake_own();
    }

    /// The pair of a lane has ended, and the connections that it has carried with it. With the
    /// lane's lock.
    pub(super) fn abort_connections(self, lane: &Lane) {
        let mut of = lane.user.of.lock();
        let senders = [of.token.take(), of.continues.take()];
        drop(of);
        lane.user.ahead.forget();
        let sender = |token: Option<u64>| self.stream.connections.get(token?);
        let receivers = self.stream.connections.switched_by(lane.peer);
        let senders = senders.into_iter().filter_map(sender);
        senders.chain(receivers).for_each(|connection| connection.abort());
    }
}

/// Receiving.
impl Verbs<'_> {
    /// A message of a connection has come.
    pub(super) fn bytes_came(self, receives: &mut Receives, lane: &Lane, chunk: Chunk) {
        let peer = lane.peer;
        let head = receives.bytes(chunk.place, chunk.len).first_chunk::<STREAM_HEAD>();
        let Some(number) = head.map(|head| u32::from_le_bytes(*head)) else {
            receives.give_back(chunk.place);
            return self.fail(lane.lock(), "the peer does not keep to the protocol");
        };
        if receives.streams.parked.is_empty() && self.feed_known(receives, (peer, number), chunk) {
            return;
        }
        self.feed_parked(receives);
        let waits = |parked: &(Rank, u32, Chunk)| (parked.0, parked.1) == (peer, number);
        if receives.streams.parked.iter().any(waits) {
            return receives.streams.parked.push_back((peer, number, chunk));
        }
        // Before it is looked up whose it is.
        let changes = self.stream.connections.changes();
        match self.stream.connections.owner(peer, number) {
            Owner::Unknown => receives.streams.parked.push_back((peer, number, chunk)),
            Owner::Gone => receives.give_back(chunk.place),
            Owner::Connection(connection) => {
                self.feed(receives, (&connection, changes), (peer, number), chunk);
            }
        }
    }

    /// Whether the socket may still tell of a number that it has not told of. Without a pair it has
    /// ended before it could, unless the peer relies on what has come.
    fn may_be_told_of(self, receives: &Receives, peer: Rank, number: u32) -> bool {
        let counted = receives.streams.counted.contains(&(peer, number));
        (counted && !self.stream.connections.with(peer).is_empty())
            || self.table.lane(STREAM, peer).lock().pair.is_some()
    }

    /// Handles messages of which the socket has told meanwhile; how many.
    pub(super) fn feed_parked(self, receives: &mut Receives) -> usize {
        let mut fed = 0;
        // Of those that stay nothing goes ahead, though the socket may tell of them now.
        let mut kept = Vec::new();
        for _ in 0..receives.streams.parked.len() {
            let Some((peer, number, chunk)) = receives.streams.parked.pop_front() else { break };
            let changes = self.stream.connections.changes();
            match self.stream.connections.owner(peer, number) {
                _ if kept.contains(&(peer, number)) => {
                    receives.streams.parked.push_back((peer, number, chunk));
                }
                Owner::Connection(connection) => {
                    self.feed(receives, (&connection, changes), (peer, number), chunk);
                    fed += 1;
                }
                Owner::Unknown if self.may_be_told_of(receives, peer, number) => {
                    kept.push((peer, number));
                    receives.streams.parked.push_back((peer, number, chunk));
                }
                Owner::Unknown | Owner::Gone => receives.give_back(chunk.place),
            }
        }
        fed
    }

    /// Handles a message of a connection of which messages have come before, if no connection has
    /// come or gone since; whether that was so.
    #[inline]
    fn feed_known(self, receives: &mut Receives, of: Of, chunk: Chunk) -> bool {
        let changes = self.stream.connections.changes();
        let (bytes, streams) = receives.bytes_and_streams(chunk.place, chunk.len);
        let known = streams.known.get_mut(&of).filter(|known| known.as_of == changes);
        let found = known.and_then(|known| Some((known.connection.upgrade()?, known)));
        let Some((connection, known)) = found else { return false };
        let outcome = self.take_bytes(&connection, &mut known.incoming, bytes);
        self.fed(receives, (of, &connection), chunk, outcome);
        true
    }

    /// The same of any connection.
    fn feed(
        self,
        receives: &mut Receives,
        (connection, changes): (&Arc<Connection>, u64),
        of: Of,
        chunk: Chunk,
    ) {
        let (bytes, streams) = receives.bytes_and_streams(chunk.place, chunk.len);
        if !streams.known.contains_key(&of) {
            let gone =
                |peer, number| matches!(self.stream.connections.owner(peer, number), Owner::Gone);
            streams.known.retain(|(peer, number), _| !gone(*peer, *number));
        }
        let known = streams.known.entry(of).or_insert_with(|| Known {
            connection: Weak::new(),
            as_of: changes,
            incoming: Incoming::default(),
        });
        (known.connection, known.as_of) = (Arc::downgrade(connection), changes);
        let outcome = self.take_bytes(connection, &mut known.incoming, bytes);
        self.fed(receives, (of, connection), chunk, outcome);
    }

    fn take_bytes(
        self,
        connection: &Arc<Connection>,
        incoming: &mut Incoming,
        bytes: &[u8],
    ) -> (Result<(), Broken>, Batch) {
        incoming.messages += 1;
        let tcp = Tcp { table: self.stream, up: self.up };
        let feed = || incoming.feed(tcp, connection, &bytes[STREAM_HEAD..]);
        let result = self.table.looks.handing_on.during(feed);
        (result, incoming.take_completed())
    }

    /// A message of a connection has been handled, by which puts were completed.
    fn fed(
        self,
        receives: &mut Receives,
        (of, connection): (Of, &Arc<Connection>),
        chunk: Chunk,
        (result, completed): (Result<(), Broken>, Batch),
    ) {
        receives.give_back(chunk.place);
        if completed.puts > 0 {
            connection.delay_ack(completed);
            let due = &mut receives.streams.ack_due;
            if !due.iter().any(|due| due.token == connection.token) {
                due.push(Arc::clone(connection));
            }
        }
        if result.is_err() {
            receives.streams.known.remove(&of);
            // Its end belongs to whoever reads the socket.
            connection.abort();
        }
    }

    /// All that came together has been handled. Acknowledgements for which nobody waits are left to
    /// the progress thread, if it ticks, unless they go along with something else before.
    pub(super) fn end_of_bytes(self, receives: &mut Receives) {
        if receives.streams.ack_due.is_empty() {
            return;
        }
        let ticks = || self.stream.polling.owner() == PollOwner::Timer;
        if ticks() {
            self.send_acks(receives, Flush::Awaited);
            // The thread says that it ticks no longer and looks then whether some are delayed: one
            // of both sees the other.
            fence(Ordering::SeqCst);
        }
        if !ticks() {
            self.send_acks(receives, Flush::All);
        }
    }

    fn send_acks(self, receives: &mut Receives, flush: Flush) {
        let due = &mut receives.streams.ack_due;
        due.retain(|connection| self.stream.send_ack(self.up, connection, flush));
        self.stream.polling.set_device_acks_delayed(!due.is_empty());
    }

    /// For the progress thread: sends acknowledgements that are delayed, as far as `flush` says;
    /// whether some still are.
    pub(crate) fn flush_acks(self, flush: Flush) -> bool {
        if !self.stream.polling.are_device_acks_delayed() {
            return false;
        }
        let mut receives = self.table.receives.lock();
        if !receives.streams.ack_due.is_empty() {
            self.send_acks(&mut receives, flush);
        }
        !receives.streams.ack_due.is_empty()
    }
}
