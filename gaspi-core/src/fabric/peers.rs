//! Connections to the libraries of other ranks, and requests that they have not answered yet.

use super::connecting::Aim;
use super::connection::{Broken, Connection, Item, Outgoing};
use super::debt::Debt;
use super::drive::Drive;
use super::frame::{AtomicOperation, Frame, Lane, Place};
use crate::error::{Error, Result};
use crate::ids::{GroupId, NotificationId, QueueId, Rank, SegmentId};
use crate::node::life;
use crate::os::event::{Bell, Poll};
use crate::os::socket;
use crate::runtime::Inner;
use crate::segment::Segment;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::timeout::Deadline;
use crate::wait::{Call, Waiting};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Names of the poll sets: pidfds carry their rank, connections count from a base.
pub(crate) const LISTENER: u64 = 0;
pub(crate) const BELL: u64 = 1;
pub(crate) const LAUNCHER: u64 = 2;
pub(crate) const DATA: u64 = 3;
pub(crate) const DOORBELL: u64 = 4;
pub(crate) const PROCESSES: u64 = 1 << 32;
pub(crate) const ATTEMPTS: u64 = 1 << 33;
pub(crate) const STRANGERS_FROM: u64 = 1 << 40;
pub(crate) const WATCHES: u64 = 1 << 41;
pub(crate) const ENDPOINTS: u64 = 1 << 42;
pub(crate) const CONNECTIONS: u64 = 1 << 43;

/// How long a broken connection may stay unexplained: the process descriptor tells soon after.
const EXPLAIN: Duration = Duration::from_secs(1);

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection ended before the answer.
    Lost,
    /// The peer says why.
    Refused(String),
}

/// A call that can be continued after a timeout by calling again with the same arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CallKey {
    Register { segment: SegmentId, generation: u32, rank: Rank },
    Ping { rank: Rank },
    Atomic { place: Place, rank: Rank, operation: AtomicOperation },
    Passive { rank: Rank, segment: SegmentId, offset: u64, size: u64 },
}

/// A call under way.
#[derive(Debug, Default)]
pub(crate) struct PendingCall {
    outcome: OnceLock<Result<u64, Failure>>,
    /// The number of its request.
    pub(crate) request: AtomicU64,
}

/// Where the bytes of an answer go.
#[derive(Debug, Clone)]
pub(crate) struct Landing {
    pub(crate) segment: Arc<Segment>,
    /// Bytes.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) notify: Option<(Arc<Segment>, NotificationId)>,
}

/// What an answer completes.
#[derive(Debug)]
pub(crate) enum Request {
    Call(Arc<PendingCall>),
    Get { queue: QueueId, generation: u32, landing: Landing },
}

/// Who looks after the sockets while no caller does.
pub(crate) mod watch {
    /// The progress thread sleeps until something comes.
    pub(crate) const ARMED: u32 = 0;
    /// Callers come back all the time: the progress thread only looks whether they still do.
    pub(crate) const TICKING: u32 = 1;
    /// A caller sleeps on the sockets itself; whoever wakes has to call the progress thread.
    pub(crate) const RELIEVED: u32 = 2;
}

/// The connections of one rank.
#[derive(Debug)]
pub(crate) struct Peers {
    /// What the progress thread sleeps on; it contains `data`.
    pub(crate) poll: Poll,
    /// The sockets of established connections, and this rank's doorbell.
    pub(crate) data: Poll,
    pub(crate) bell: Bell,
    doorbell: Option<OwnedFd>,
    pub(crate) listener: Option<OwnedFd>,
    /// Listeners for ranks of other nodes.
    pub(crate) endpoints: Vec<OwnedFd>,
    pub(crate) stop: AtomicBool,
    /// Held by whoever looks after the sockets.
    pub(crate) drive: Mutex<Drive>,
    /// How often callers have looked after them.
    pub(crate) drives: AtomicU64,
    /// When a call that may not wait looked after them last.
    pub(crate) looked_ns: AtomicU64,
    /// Whether a caller sleeps on them.
    pub(crate) sleeper: AtomicBool,
    /// One of [`watch`].
    pub(crate) watch: AtomicU32,
    /// Whether there are ranks of other nodes, so that callers look after the sockets.
    pub(crate) remote: bool,
    /// What is owed for puts, by rank.
    pub(crate) debts: Arc<[Debt]>,
    opened: Box<[Mutex<Option<Arc<Connection>>>]>,
    /// Connections on which something is held back, and whether there are any.
    held: Mutex<Vec<Arc<Connection>>>,
    holds: AtomicBool,
    /// Connections to ranks of other nodes that have to be made.
    wanted: Mutex<Vec<(Rank, Aim)>>,
    /// Ranks of other nodes that have said goodbye, and the number of their last stream to this one.
    leaving: Mutex<HashMap<Rank, u32>>,
    /// The last stream of other ranks that came to its end.
    ended: Mutex<HashMap<Rank, u32>>,
    /// How ranks of other nodes are reached.
    ways: Mutex<HashMap<Rank, SocketAddr>>,
    /// Why they cannot be reached.
    troubles: Mutex<HashMap<Rank, String>>,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    /// Whether connections were dropped that whoever drives may hold something of.
    dropped: AtomicBool,
    requests: Mutex<HashMap<u64, (Rank, Request)>>,
    /// Calls whose timeout ran out, to be continued.
    timed_out: Mutex<HashMap<CallKey, Vec<Arc<PendingCall>>>>,
    next_request: AtomicU64,
    next_token: AtomicU64,
    next_stream: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers {
    pub(crate) fn new(
        listener: Option<OwnedFd>,
        doorbell: Option<OwnedFd>,
        endpoints: Vec<OwnedFd>,
        size: u32,
    ) -> Result<Peers> {
        let (poll, data) = (Poll::new()?, Poll::new()?);
        let bell = Bell::new()?;
        poll.add(bell.as_fd(), BELL)?;
        poll.add(data.as_fd(), DATA)?;
        if let Some(listener) = &listener {
            poll.add(listener.as_fd(), LISTENER)?;
        }
        if let Some(doorbell) = &doorbell {
            data.add(doorbell.as_fd(), DOORBELL)?;
        }
        for (token, endpoint) in (ENDPOINTS..).zip(&endpoints) {
            poll.add(endpoint.as_fd(), token)?;
        }
        Ok(Peers {
            poll,
            data,
            bell,
            remote: doorbell.is_some(),
            doorbell,
            listener,
            endpoints,
            stop: AtomicBool::new(false),
            drive: Mutex::new(Drive::new()),
            drives: AtomicU64::new(0),
            looked_ns: AtomicU64::new(0),
            sleeper: AtomicBool::new(false),
            watch: AtomicU32::new(watch::ARMED),
            debts: (0..size).map(|_| Debt::default()).collect(),
            opened: (0..size).map(|_| Mutex::default()).collect(),
            held: Mutex::default(),
            holds: AtomicBool::new(false),
            wanted: Mutex::default(),
            leaving: Mutex::default(),
            ended: Mutex::default(),
            ways: Mutex::default(),
            troubles: Mutex::default(),
            connections: Mutex::default(),
            dropped: AtomicBool::new(false),
            requests: Mutex::default(),
            timed_out: Mutex::default(),
            next_request: AtomicU64::new(1),
            next_token: AtomicU64::new(CONNECTIONS),
            next_stream: AtomicU32::new(1),
        })
    }

    pub(crate) fn clear_doorbell(&self) {
        if let Some(doorbell) = &self.doorbell {
            socket::clear(doorbell.as_fd());
        }
    }

    fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes an established connection into the poll set.
    pub(crate) fn adopt(&self, connection: &Arc<Connection>) -> Result<()> {
        let Some(fd) = connection.fd() else { return Ok(()) };
        lock(&self.connections).insert(connection.token, Arc::clone(connection));
        self.data.add(fd, connection.token).inspect_err(|_| {
            lock(&self.connections).remove(&connection.token);
        })
    }

    /// Takes a connection that a peer has opened, which is known already where it had to prove it.
    pub(crate) fn accepted(&self, fd: OwnedFd, peer: Option<Rank>) -> Result<()> {
        let debts = Arc::clone(&self.debts);
        self.adopt(&Arc::new(Connection::accepted(fd, self.token(), peer, debts)))
    }

    /// What is to be connected to.
    pub(crate) fn take_wanted(&self) -> Vec<(Rank, Aim)> {
        std::mem::take(&mut lock(&self.wanted))
    }

    fn want(&self, rank: Rank, aim: Aim) {
        lock(&self.wanted).push((rank, aim));
        self.bell.ring();
    }

    /// A connection with `rank` has broken: does it live?
    pub(crate) fn suspect(&self, inner: &Inner, rank: Rank) {
        if inner.area.life(rank) == life::JOINED && !inner.is_local(rank) {
            self.want(rank, Aim::Probe);
        }
    }

    /// It does.
    pub(crate) fn note_alive(&self, inner: &Inner, rank: Rank) {
        log::warn!(
            "the connection to {rank} on {} broke, but its process lives: requests that were under \
             way have failed",
            inner.cards[rank.index()].host
        );
        inner.channels.lost(rank);
        inner.area.ring(inner.rank);
    }

    /// How `rank` is reached from now on.
    pub(crate) fn note_way(&self, rank: Rank, endpoint: SocketAddr) {
        lock(&self.ways).insert(rank, endpoint);
        lock(&self.troubles).remove(&rank);
    }

    /// How `rank` is reached.
    pub(crate) fn way(&self, rank: Rank) -> Option<SocketAddr> {
        lock(&self.ways).get(&rank).copied()
    }

    /// Why `rank` could not be reached.
    pub(crate) fn note_trouble(&self, rank: Rank, reason: String) {
        lock(&self.troubles).insert(rank, reason);
    }

    /// Why `rank` could not be reached last.
    pub(crate) fn trouble(&self, rank: Rank) -> Option<String> {
        lock(&self.troubles).get(&rank).cloned()
    }

    pub(crate) fn connection(&self, token: u64) -> Option<Arc<Connection>> {
        lock(&self.connections).get(&token).cloned()
    }

    /// Forgets a connection; what it owed answers for fails.
    pub(crate) fn drop_connection(&self, inner: &Inner, connection: &Arc<Connection>) {
        if let Some(fd) = connection.fd() {
            self.data.remove(fd);
        }
        let lost = connection.shut_down();
        lock(&self.connections).remove(&connection.token);
        self.dropped.store(true, Ordering::Release);
        self.bell.ring();
        let Some(peer) = connection.peer().map(Rank) else { return };
        let mut opened = lock(&self.opened[peer.index()]);
        if opened.as_ref().is_some_and(|own| own.token == connection.token) {
            *opened = None;
            drop(opened);
            self.fail_requests(inner, peer);
            self.acknowledge_again(inner, peer);
        }
        for (lane, count) in lost {
            inner.completed(peer, lane, count, Err(Failure::Lost));
        }
    }

    /// Sending has failed. What the peer has sent before is still to be read, its goodbye perhaps:
    /// the end belongs to whoever drives, who may also wait for other threads, unlike the caller.
    pub(crate) fn broke(&self, inner: &Inner, connection: &Arc<Connection>) {
        if connection.is_forgotten() {
            // What was posted to it since then fails too.
            self.drop_connection(inner, connection);
        }
    }

    /// A connection has ended by itself. Only with the drive.
    pub(crate) fn at_its_end(&self, inner: &Inner, connection: &Arc<Connection>) {
        self.drop_connection(inner, connection);
        let Some(peer) = connection.peer().map(Rank).filter(|peer| !inner.is_local(*peer)) else {
            return;
        };
        if connection.expected.is_some() {
            lock(&self.ended).insert(peer, connection.stream());
        }
        let Some(last) = lock(&self.leaving).get(&peer).copied() else {
            return self.suspect(inner, peer);
        };
        if self.has_connection(peer) {
            return;
        }
        if last == 0 || lock(&self.ended).get(&peer) == Some(&last) {
            inner.area.remote_left(peer);
            inner.peer_ended(peer);
        } else {
            // What it sent last is still to come, by a connection that is being made. Should that
            // not happen, nobody answers there any more.
            self.want(peer, Aim::Doubt);
        }
    }

    /// `peer` leaves the job. It has left when all connections with it are at their end, the stream
    /// that it opened last included.
    pub(crate) fn note_farewell(&self, peer: Rank, stream: u32) {
        lock(&self.leaving).insert(peer, stream);
    }

    /// Whether `peer` has said goodbye.
    pub(crate) fn is_leaving(&self, peer: Rank) -> bool {
        lock(&self.leaving).contains_key(&peer)
    }

    /// Whether a connection with `peer` has not come to its end.
    pub(crate) fn has_connection(&self, peer: Rank) -> bool {
        lock(&self.connections).values().any(|open| open.peer() == Some(peer.0))
    }

    /// Whether connections were dropped since the last call.
    pub(crate) fn take_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed) && self.dropped.swap(false, Ordering::AcqRel)
    }

    /// Ends all connections for the other side too, also where a forked child holds them.
    pub(crate) fn shut_down(&self) {
        for connection in lock(&self.connections).values() {
            connection.shut_down();
        }
    }

    /// Connections with ranks of other nodes.
    fn remote(&self, inner: &Inner) -> Vec<Arc<Connection>> {
        let is_remote =
            |open: &&Arc<Connection>| open.peer().is_some_and(|peer| !inner.is_local(Rank(peer)));
        lock(&self.connections).values().filter(is_remote).cloned().collect()
    }

    /// Says goodbye to the ranks of other nodes; what was posted before goes out first.
    pub(crate) fn say_goodbye(&self, inner: &Inner) {
        for connection in self.remote(inner) {
            let Some(peer) = connection.peer() else { continue };
            let opened = lock(&self.opened[usize::from(peer)]).clone();
            let stream = opened.map_or(0, |opened| opened.stream());
            connection.end(&self.data, &Frame::Goodbye { stream });
        }
    }

    /// Whether ranks of other nodes have not closed their side yet.
    pub(crate) fn has_remote(&self, inner: &Inner) -> bool {
        !self.remote(inner).is_empty()
    }

    /// Puts of this rank's stream to `peer` have been completed.
    pub(crate) fn acknowledged(&self, inner: &Inner, peer: Rank, stream: u32, puts: u64) {
        let connection = lock(&self.opened[peer.index()]).clone();
        let Some(connection) = connection.filter(|open| open.stream() == stream) else { return };
        for (lane, count) in connection.acknowledged(puts) {
            inner.completed(peer, lane, count, Ok(()));
        }
        inner.area.ring(inner.rank);
    }

    /// Acknowledgements may have been lost with a stream to `peer`: its own stream carries them again.
    fn acknowledge_again(&self, inner: &Inner, peer: Rank) {
        self.debts[peer.index()].tell_again();
        let of_peer = |open: &&Arc<Connection>| open.peer() == Some(peer.0);
        let others: Vec<_> = lock(&self.connections).values().filter(of_peer).cloned().collect();
        for connection in others {
            if let Some(ack) = self.debts[peer.index()].pay(connection.stream()) {
                self.answer(inner, &connection, &ack);
            }
        }
    }

    /// Sends a frame on a connection that a peer has opened.
    pub(crate) fn answer(&self, inner: &Inner, connection: &Arc<Connection>, frame: &Frame) {
        if connection.send(&self.data, Outgoing::new(frame)).is_err() {
            self.broke(inner, connection);
        }
    }

    /// Fails everything that `peer` has not answered.
    pub(crate) fn fail_requests(&self, inner: &Inner, peer: Rank) {
        let lost: Vec<Request> = {
            let mut requests = lock(&self.requests);
            let ids: Vec<u64> =
                requests.iter().filter(|(_, (to, _))| *to == peer).map(|(id, _)| *id).collect();
            ids.iter().filter_map(|id| requests.remove(id)).map(|(_, request)| request).collect()
        };
        for request in lost {
            finish(inner, peer, request, Err(Failure::Lost));
        }
    }

    /// Closes the connection opened to `rank`, if there is one.
    pub(crate) fn disconnect(&self, inner: &Inner, rank: Rank) {
        let connection = lock(&self.opened[rank.index()]).clone();
        if let Some(connection) = connection {
            self.drop_connection(inner, &connection);
        }
    }

    /// Whether everything posted to `rank` has been handed to the kernel.
    pub(crate) fn is_drained(&self, rank: Rank) -> bool {
        lock(&self.opened[rank.index()]).as_ref().is_none_or(|open| open.is_drained())
    }

    /// The connection opened to `rank`, made if there is none.
    pub(crate) fn open(&self, inner: &Inner, rank: Rank) -> Result<Arc<Connection>> {
        inner.check_alive(rank, "a connection to it")?;
        let mut opened = lock(&self.opened[rank.index()]);
        if let Some(connection) = opened.as_ref() {
            return Ok(Arc::clone(connection));
        }
        let stream = self.next_stream.fetch_add(1, Ordering::Relaxed);
        let debts = Arc::clone(&self.debts);
        let local = inner.is_local(rank);
        let connection = Connection::opening(self.token(), rank.0, stream, local, debts);
        let connection = Arc::new(connection);
        let hello = Frame::Hello { rank: inner.rank, token: inner.token, stream };
        // There is no socket yet that could be broken.
        let _ = connection.send(&self.data, Outgoing::new(&hello));
        if inner.is_local(rank) {
            let address = &inner.cards[rank.index()].address;
            let fd = socket::connect(address)
                .map_err(|error| Error::os(format!("connecting to {rank}"), &error))?;
            self.establish(inner, &connection, fd)?;
        } else {
            self.want(rank, Aim::Data(Arc::clone(&connection)));
        }
        *opened = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// A connection has got its socket: what waits goes out.
    pub(crate) fn establish(
        &self,
        inner: &Inner,
        connection: &Arc<Connection>,
        fd: OwnedFd,
    ) -> Result<()> {
        connection.established(fd);
        self.adopt(connection)?;
        // One that breaks at once is noticed by whoever drives.
        let _ = connection.flush(&self.data);
        inner.area.ring(inner.rank);
        Ok(())
    }

    /// Whether the connection opened to `rank` has been made.
    pub(crate) fn is_established(&self, rank: Rank) -> bool {
        lock(&self.opened[rank.index()]).as_ref().is_some_and(|open| open.fd().is_some())
    }

    /// Sends a frame to `rank`.
    pub(crate) fn send(
        &self,
        inner: &Inner,
        rank: Rank,
        item: Outgoing,
        deadline: Deadline,
    ) -> Result<()> {
        let connection = self.connected(inner, rank, deadline)?;
        if connection.send(&self.data, item).is_err() {
            self.broke(inner, &connection);
        }
        Ok(())
    }

    /// The connection opened to `rank`, for something that has to be sent.
    fn connected(&self, inner: &Inner, rank: Rank, deadline: Deadline) -> Result<Arc<Connection>> {
        let mut result = self.open(inner, rank);
        if matches!(result, Err(Error::System { .. })) {
            // Somebody who ends refuses connections a moment before his end is known.
            inner.explain(rank, deadline.at_most(EXPLAIN));
            inner.check_alive(rank, "a connection to it")?;
            result = self.open(inner, rank);
        }
        result
    }

    /// Posts a put or a get to `rank`.
    pub(crate) fn post(&self, inner: &Inner, rank: Rank, queue: QueueId, item: Item) -> Result<()> {
        let connection = self.connected(inner, rank, Deadline::Now)?;
        match connection.post(&self.data, queue, item) {
            Ok(false) => {}
            Ok(true) => self.hold(&connection),
            Err(Broken) => self.broke(inner, &connection),
        }
        Ok(())
    }

    /// Something is held back on a connection: the progress thread sends it should nobody else.
    fn hold(&self, connection: &Arc<Connection>) {
        let mut held = lock(&self.held);
        if !held.iter().any(|held| held.token == connection.token) {
            held.push(Arc::clone(connection));
            self.holds.store(true, Ordering::Relaxed);
            self.bell.ring();
        }
    }

    /// Sends what is held back.
    pub(crate) fn release(&self, inner: &Inner) {
        if !self.holds.load(Ordering::Relaxed) {
            return;
        }
        self.holds.store(false, Ordering::Relaxed);
        let held = std::mem::take(&mut *lock(&self.held));
        for connection in held {
            if connection.flush(&self.data).is_err() {
                self.broke(inner, &connection);
            }
        }
    }

    /// Posts a get, which is answered by data.
    pub(crate) fn post_get(
        &self,
        inner: &Inner,
        rank: Rank,
        lane: Lane,
        place: Place,
        landing: Landing,
    ) -> Result<()> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (queue, size) = (lane.queue, landing.size);
        let get = Request::Get { queue, generation: lane.generation, landing };
        lock(&self.requests).insert(request, (rank, get));
        let item = Item::Frame(Frame::Get { request, lane, place, size });
        self.post(inner, rank, queue, item).inspect_err(|_| {
            lock(&self.requests).remove(&request);
        })
    }

    /// Sends a frame that will be answered.
    pub(crate) fn request(
        &self,
        inner: &Inner,
        rank: Rank,
        request: Request,
        deadline: Deadline,
        item: impl FnOnce(u64) -> std::io::Result<Outgoing>,
    ) -> Result<()> {
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        if let Request::Call(call) = &request {
            call.request.store(id, Ordering::Relaxed);
        }
        let item = item(id).map_err(|error| Error::os("duplicating a descriptor", &error))?;
        lock(&self.requests).insert(id, (rank, request));
        self.send(inner, rank, item, deadline).inspect_err(|_| {
            lock(&self.requests).remove(&id);
        })
    }

    /// What answer `id` completes, if `from` was asked.
    pub(crate) fn answered(&self, id: u64, from: Rank) -> Option<Request> {
        let mut requests = lock(&self.requests);
        if requests.get(&id).is_some_and(|(to, _)| *to == from) {
            requests.remove(&id).map(|(_, request)| request)
        } else {
            None
        }
    }

    fn continued(&self, key: &CallKey) -> Option<Arc<PendingCall>> {
        let mut timed_out = lock(&self.timed_out);
        let calls = timed_out.get_mut(key)?;
        let call = calls.pop();
        if calls.is_empty() {
            timed_out.remove(key);
        }
        // An old answer says nothing about a peer that is asked whether it answers now.
        call.filter(|call| !matches!(key, CallKey::Ping { .. }) || call.outcome.get().is_none())
    }

    /// Gives a timed-out call up; the number of its request if it has not been answered.
    pub(crate) fn give_up(&self, key: &CallKey) -> Option<u64> {
        let call = self.continued(key)?;
        let request = call.request.load(Ordering::Relaxed);
        lock(&self.requests).remove(&request)?;
        Some(request)
    }

    /// Forgets timed-out registrations of a segment that no longer exists.
    pub(crate) fn forget_registrations(&self, gone: SegmentId, of: u32) {
        lock(&self.timed_out).retain(|key, _| {
            !matches!(key, CallKey::Register { segment, generation, .. }
                if *segment == gone && *generation == of)
        });
    }

    /// Where the answer to a get goes, if `from` was asked.
    pub(crate) fn landing(&self, id: u64, from: Rank) -> Option<(QueueId, u32, Landing)> {
        match lock(&self.requests).get(&id)? {
            (to, Request::Get { queue, generation, landing }) if *to == from => {
                Some((*queue, *generation, landing.clone()))
            }
            _ => None,
        }
    }

    /// Starts a call, or continues one whose timeout ran out.
    pub(crate) fn call(
        &self,
        inner: &Inner,
        key: CallKey,
        rank: Rank,
        deadline: Deadline,
        item: impl FnOnce(u64) -> std::io::Result<Outgoing>,
    ) -> Result<Arc<PendingCall>> {
        if let Some(call) = self.continued(&key) {
            return Ok(call);
        }
        let call = Arc::new(PendingCall::default());
        self.request(inner, rank, Request::Call(Arc::clone(&call)), deadline, item)?;
        Ok(call)
    }

    /// Waits for the answer to a call. A timeout leaves it under way.
    pub(crate) fn finish_call(
        &self,
        inner: &Inner,
        key: CallKey,
        rank: Rank,
        call: Arc<PendingCall>,
        deadline: Deadline,
        waiting: Waiting,
    ) -> Result<u64> {
        let outcome = inner.until(deadline, waiting, || {
            let answered = || call.outcome.get().cloned();
            // A forked child may hold the connection of somebody who has left.
            answered().or_else(|| match inner.check_alive(rank, "") {
                Ok(()) => None,
                Err(_) => Some(answered().unwrap_or(Err(Failure::Lost))),
            })
        });
        let Some(outcome) = outcome else {
            lock(&self.timed_out).entry(key).or_default().push(call);
            return Err(Error::Timeout { pending: format!("an answer of {rank}") });
        };
        match outcome {
            Ok(value) => Ok(value),
            Err(Failure::Refused(reason)) => Err(Error::Refused { rank, reason }),
            Err(Failure::Lost) => {
                inner.explain(rank, deadline.at_most(EXPLAIN));
                inner.check_alive(rank, waiting.call.name())?;
                Err(Error::Refused { rank, reason: "the connection to it broke".to_owned() })
            }
        }
    }
}

/// Completes a request with the answer to it.
pub(crate) fn finish(inner: &Inner, peer: Rank, request: Request, outcome: Result<u64, Failure>) {
    match request {
        Request::Call(call) => {
            // Answered once only; nobody else sets it.
            let _ = call.outcome.set(outcome);
        }
        Request::Get { queue, generation, .. } => {
            let lane = Lane { queue, generation };
            inner.completed(peer, lane, 1, outcome.map(|_| ()));
        }
    }
    inner.area.ring(inner.rank);
}

impl Inner {
    /// Requests of a queue have ended.
    pub(crate) fn completed(
        &self,
        peer: Rank,
        lane: Lane,
        count: u32,
        outcome: Result<(), Failure>,
    ) {
        let lost = outcome == Err(Failure::Lost);
        let failed = outcome.err().map(|failure| match failure {
            Failure::Refused(reason) => format!("{peer} refused: {reason}"),
            Failure::Lost => match self.area.life(peer) {
                life::LEFT => format!("{peer} has left the job"),
                life::DEAD => format!("{peer} has died on {}", self.cards[peer.index()].host),
                _ => {
                    let host = &self.cards[peer.index()].host;
                    match self.peers.trouble(peer) {
                        Some(why) => format!("{peer} on {host} cannot be reached: {why}"),
                        None => format!("the connection to {peer} on {host} broke"),
                    }
                }
            },
        });
        let queue = &self.queues[lane.queue.index()];
        queue.complete(peer, lane.generation, count, failed.as_deref());
        if let Some(reason) = failed {
            self.request_failed(peer, lane, &reason, !lost);
        }
        self.area.ring(self.rank);
    }
}

/// How calls of this module appear while they wait.
pub(crate) fn waiting(call: Call, object: impl Into<u32>) -> Waiting {
    Waiting { call, object: object.into() }
}

/// The object of a group's call.
pub(crate) fn waiting_group(call: Call, group: GroupId) -> Waiting {
    waiting(call, group.0)
}
