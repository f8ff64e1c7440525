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

use super::kept::KeptBytes;
use super::lane::{Lane, LaneState};
use super::queue_pair::{PostedBytes, STREAM_HEAD};
use super::receives::Receives;
use super::{STREAM, Verbs};
use crate::ids::Rank;
use crate::os::event::Wakeup;
use crate::os::socket::Piece;
use crate::policy::acknowledge::{Batch, Flush};
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering};
use crate::transport::numbers::NumberMap;
use crate::transport::payload::ChannelMessage;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::byte_carrier::{Ahead, ByteCarrier, Kept};
use crate::transport::tcp::connection::{Broken, Connection};
use crate::transport::tcp::connections::Owner;
use crate::transport::tcp::receive::Incoming;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};

/// Pairs with a peer that have failed before its connections stay with their sockets.
pub(super) const FAILURES: u32 = 3;

/// What may not have arrived of the bytes of a connection whose pair is no more.
type KeptPlace = Mutex<Option<KeptBytes>>;

/// Who sends by a lane.
#[derive(Debug, Default)]
struct Sender {
    /// The name of the connection.
    token: Option<u64>,
    /// That of its bytes, or of the last ones that there were.
    number: u32,
    /// Of its carrier, which may be gone.
    kept: Weak<KeptPlace>,
}

/// Which connection sends by a lane.
#[derive(Debug, Default)]
pub(super) struct StreamUser {
    of: Mutex<Sender>,
    /// Whether it waits for room, or until all has arrived.
    waits: AtomicBool,
    failures: AtomicU32,
    /// The last attempt whose pair connections have left for their sockets.
    left: AtomicU32,
    /// Whether another pair is to be tried once the peer's end of the last one is gone too.
    tries_again: AtomicBool,
}

impl StreamUser {
    /// Whether it waits for room, or until all has arrived.
    pub(super) fn waits(&self) -> bool {
        self.waits.load(Ordering::SeqCst)
    }

    /// The pair has failed; whether it was the last one for messages.
    pub(super) fn note_failure(&self) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed) + 1 == FAILURES
    }

    /// How many pairs have failed.
    pub(super) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether another pair is to be tried once the peer's end of the last one is gone.
    pub(super) fn try_again_later(&self, again: bool) {
        self.tries_again.store(again, Ordering::Relaxed);
    }

    /// Whether it is, now.
    pub(super) fn takes_try(&self) -> bool {
        self.tries_again.swap(false, Ordering::Relaxed)
    }

    /// The pair of this attempt is no more, and what may not have arrived goes by the socket.
    pub(super) fn keep(&self, attempt: u32, kept: Option<KeptBytes>) {
        let mut of = self.of.lock();
        if let Some(place) = of.kept.upgrade() {
            *place.lock() = kept.filter(|kept| kept.number == of.number);
        }
        of.token = None;
        drop(of);
        self.left.store(attempt, Ordering::Relaxed);
        // Nothing ends any more that it could wait for.
        self.waits.store(false, Ordering::SeqCst);
    }

    /// Pairs are tried again, however many have failed.
    pub(super) fn forget_failures(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }
}

/// The sending half of a connection.
#[derive(Debug)]
struct DeviceBytes {
    lane: Arc<Lane>,
    /// Of the pair: another one does not carry on.
    attempt: u32,
    number: u32,
    /// Of the progress thread, since nobody else may see when there is room.
    wakeup: Arc<Wakeup>,
    /// Of the device: whether somebody has to look at its lanes.
    has_stalled: Arc<AtomicBool>,
    kept: Arc<KeptPlace>,
}

impl DeviceBytes {
    /// Whether the pair is no more.
    fn is_gone(&self, state: &LaneState) -> bool {
        state.pair.is_none() || state.pairing.attempt() != self.attempt
    }

    /// The device has refused a request: the pair is to be taken down.
    fn fail(&self, state: &mut LaneState, reason: &str) {
        state.note_failure(reason, false);
        self.has_stalled.store(true, Ordering::Release);
        self.wakeup.wake();
    }

    /// Has the connection flushed when something has ended.
    fn wait(&self) {
        if !self.lane.user.waits.swap(true, Ordering::SeqCst) {
            self.wakeup.wake();
        }
    }
}

impl ByteCarrier for DeviceBytes {
    fn number(&self) -> u32 {
        self.number
    }

    fn attempt(&self) -> u32 {
        self.attempt
    }

    unsafe fn send(&self, pieces: [Piece; 2]) -> io::Result<usize> {
        let full = || Err(io::Error::from_raw_os_error(libc::EAGAIN));
        let mut state = self.lane.lock();
        if !state.is_up_since(self.attempt) {
            if self.is_gone(&state) && self.lane.user.left.load(Ordering::Relaxed) < self.attempt {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            // Until the peer has said what it has handled.
            return full();
        }
        // SAFETY: as the caller says.
        let posted = unsafe { state.post_bytes(self.number, pieces) };
        if state.has_failed() {
            self.has_stalled.store(true, Ordering::Release);
            self.wakeup.wake();
        }
        match posted {
            Ok(0) => {
                // Where this fails the completion tells.
                let _ = state.signal();
                self.wait();
                full()
            }
            Ok(sent) => Ok(sent),
            Err(reason) => {
                self.fail(&mut state, &reason);
                full()
            }
        }
    }

    unsafe fn write_ahead(&self, message: &ChannelMessage<'_>) -> Ahead {
        if message.by_device.is_none() {
            return Ahead::GoesAlong;
        }
        let size = message.data.len as u64;
        let admitted = |state: &mut LaneState| {
            // What is wrong with the pair shows when the message is sent.
            let up = state.is_up_since(self.attempt);
            let admitted = if up { state.admits(size) } else { Ahead::GoesAlong };
            if admitted == Ahead::Waits {
                self.wait();
            }
            admitted
        };
        let first = admitted(&mut self.lane.lock());
        if first != Ahead::Written {
            return first;
        }
        // Held until it is posted: a delete of its segment waits for what is posted before.
        let in_place = message.in_place();
        // Copied without the lock.
        // SAFETY: as the caller says.
        let Some(data) = (unsafe { LaneState::data_of(self.number, message, in_place.as_ref()) })
        else {
            return Ahead::GoesAlong;
        };
        let mut state = self.lane.lock();
        match admitted(&mut state) {
            Ahead::Written => match state.post_data(data) {
                Ok(()) => Ahead::Written,
                Err(reason) => {
                    self.fail(&mut state, &reason);
                    Ahead::GoesAlong
                }
            },
            other => other,
        }
    }

    fn is_drained(&self) -> bool {
        let mut state = self.lane.lock();
        if self.is_gone(&state) {
            // What was posted and did not arrive goes by the socket, or never does.
            return self.kept.lock().as_ref().is_none_or(KeptBytes::is_empty);
        }
        let drained = state.has_ended_all();
        if !drained {
            let _ = state.signal();
            self.wait();
        }
        drained
    }

    fn take_back(&self, messages: u64) -> Option<Vec<Kept>> {
        match self.kept.lock().take() {
            Some(kept) => kept.behind(messages),
            // Nothing was posted.
            None => (messages == 0).then(Vec::new),
        }
    }
}

impl LaneState {
    /// Posts bytes of a connection, as many as there is room for; how many.
    ///
    /// # Errors
    /// What the device says.
    ///
    /// # Safety
    /// The pieces are readable.
    pub(super) unsafe fn post_bytes(
        &mut self,
        number: u32,
        mut pieces: [Piece; 2],
    ) -> Result<usize, String> {
        let mut sent = 0;
        while pieces[0].len + pieces[1].len > 0 && self.room() > 0 {
            let (id, freed) = (self.direct.next(), self.direct.freed());
            let signalled = self.is_signalled(self.room());
            let Some(pair) = &mut self.pair else { return Err("there is no pair".to_owned()) };
            let along = self.posted.along(id, pair.limits().depth);
            // SAFETY: as the caller says.
            let posted =
                unsafe { pair.post_bytes((id, freed), (number, pieces), signalled, along) };
            let PostedBytes { size, len, signalled, buffer } = match posted {
                Ok(Some(posted)) => posted,
                Ok(None) => break,
                // What was posted before is kept, as what is under way.
                Err(reason) if sent > 0 => {
                    self.note_failure(&reason, false);
                    break;
                }
                Err(reason) => return Err(reason),
            };
            self.direct.posted(signalled);
            self.posted.note(id, number, (len, buffer));
            sent += size;
            let first = size.min(pieces[0].len);
            pieces = [pieces[0].behind(first), pieces[1].behind(size - first)];
        }
        Ok(sent)
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
    /// Whose peers wait for acknowledgements.
    ack_due: Vec<Arc<Connection>>,
}

/// Sending.
impl Verbs<'_> {
    /// For the progress thread: has the device carry connections that it does not yet.
    pub(super) fn carry_connections(self) {
        let wanted = self.table.device.carries_messages() && self.table.condition.is_usable();
        if !wanted || !self.stream.connections.take_news() {
            return;
        }
        for connection in self.stream.remote(self.up) {
            let Some(peer) = connection.peer().map(Rank).filter(|_| connection.fd().is_some())
            else {
                continue;
            };
            let lane = self.table.lane(STREAM, peer);
            if self.stream.is_suspected(peer) {
                continue;
            }
            let failed = lane.user.failures() >= FAILURES;
            // What waits for a pair may use one that the peer has tried to make once more. Asked
            // before the lane is locked: who sends locks the connection first.
            let waits = failed && connection.withholds();
            let state = lane.lock();
            let attempt = state.pairing.attempt();
            if failed && !(state.pairing.is_up() && waits) {
                continue;
            }
            if state.pairing.is_up() && attempt <= lane.shown.attempts.lost() {
                // It went with an earlier connection, and is about to be taken down.
                self.stream.connections.note_news();
            } else if state.pairing.is_up() {
                drop(state);
                self.carry(&connection, peer, attempt);
            } else {
                self.begin(lane, state);
            }
        }
    }

    fn carry(self, connection: &Arc<Connection>, peer: Rank, attempt: u32) {
        let new = || Arc::new(Lane::new(STREAM, peer));
        let lane = self.table.place(STREAM, peer).share_or_init(new);
        let mut of = lane.user.of.lock();
        if of.token.is_some_and(|token| self.stream.connections.get(token).is_some()) {
            // Once that has ended.
            return;
        }
        let (number, kept) = (of.number + 1, Arc::default());
        *of = Sender { token: Some(connection.token), number, kept: Arc::downgrade(&kept) };
        drop(of);
        let wakeup = Arc::clone(&self.stream.sets.wakeup);
        let has_stalled = Arc::clone(&self.table.has_stalled);
        let lane_of_it = Arc::clone(&lane);
        let bytes = DeviceBytes { lane: lane_of_it, attempt, number, wakeup, has_stalled, kept };
        if connection.carry_by(&self.stream.sets.data, Arc::new(bytes)) {
            let state = lane.lock();
            if state.pair.is_none() || state.pairing.attempt() != attempt {
                // Another pair may carry it, once it is back on its socket.
                lane.user.of.lock().token = None;
            }
            drop(state);
            // Messages may wait for that.
            self.up.ranks().wake_own();
        } else {
            lane.user.of.lock().token = None;
            if connection.is_sending_again() {
                // Once that has been sent.
                self.stream.connections.note_news();
            }
        }
    }

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
        let sender = lane.user.of.lock().token.take();
        let sender = sender.and_then(|token| self.stream.connections.get(token));
        let receivers = self.stream.connections.switched_by(lane.peer);
        sender.iter().chain(&receivers).for_each(|connection| connection.abort());
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
        let result = incoming.feed(tcp, connection, &bytes[STREAM_HEAD..]);
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

    /// All that came together has been handled.
    pub(super) fn end_of_bytes(self, receives: &mut Receives) {
        if receives.streams.ack_due.is_empty() {
            return;
        }
        for connection in std::mem::take(&mut receives.streams.ack_due) {
            self.stream.send_ack(self.up, &connection, Flush::All);
        }
    }
}
