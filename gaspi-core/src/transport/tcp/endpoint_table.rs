//! Connections to the libraries of other ranks: which there are, which are used, how they end.

mod posting;

use crate::bootstrap::KEY_BYTES;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::event::{Epoll, Wakeup};
use crate::os::socket;
use crate::policy::acknowledge::Flush;
use crate::policy::owner::PollOwner;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::transport::Upcalls;
use crate::transport::posted_receives::PostedReceives;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::connect::ConnectPurpose;
use crate::transport::tcp::connection::{Broken, Connection};
use crate::transport::tcp::connection_epoch::{ConnectionEpochs, fail_puts};
use crate::transport::tcp::pipes::Pipes;
use crate::transport::tcp::receive::Receiver;
use crate::transport::tcp::requests::{Asked, PendingCall, RequestKey};
use crate::transport::tcp::send_queue::Outgoing;
use crate::wire::frame::Frame;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Names of the poll sets: pidfds carry their rank, connections count from a base.
pub(crate) const LISTENER: u64 = 0;
pub(crate) const WAKEUP: u64 = 1;
pub(crate) const LAUNCHER: u64 = 2;
pub(crate) const DATA: u64 = 3;
pub(crate) const WAKEUP_SOCKET: u64 = 4;
pub(crate) const PROCESSES: u64 = 1 << 32;
pub(crate) const ATTEMPTS: u64 = 1 << 33;
pub(crate) const UNAUTHENTICATED_FROM: u64 = 1 << 40;
pub(crate) const KEEPALIVES: u64 = 1 << 41;
pub(crate) const REMOTE_LISTENERS: u64 = 1 << 42;
pub(crate) const CONNECTIONS: u64 = 1 << 43;

/// What connections between nodes are made with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    /// Names the job.
    pub(crate) token: [u8; 16],
    /// Both sides prove to know it.
    pub(crate) key: [u8; KEY_BYTES],
    /// How long a silent host is waited for.
    pub(crate) dead_after: Duration,
}

/// The connections of one rank.
#[derive(Debug)]
pub(crate) struct EndpointTable {
    /// What the progress thread sleeps on; it contains `data`.
    pub(crate) poll: Epoll,
    /// The sockets of established connections, and this rank's wakeup socket.
    pub(crate) data: Epoll,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) identity: Identity,
    wakeup_socket: Option<OwnedFd>,
    pub(crate) listener: Option<OwnedFd>,
    /// Listeners for ranks of other nodes.
    pub(crate) remote_listeners: Vec<OwnedFd>,
    pub(crate) stop: AtomicBool,
    /// Held by whoever looks after the sockets.
    pub(crate) receiver: Mutex<Receiver>,
    /// How often callers have looked after them.
    pub(crate) caller_polls: AtomicU64,
    /// When a call that may not wait looked after them last.
    pub(crate) looked_ns: AtomicU64,
    /// Whether a caller that posts all the time should.
    pub(crate) look_due: AtomicBool,
    /// Whether a caller would look after them if the progress thread did not.
    pub(crate) receiver_wanted: AtomicBool,
    /// Whether a caller sleeps on them.
    pub(crate) sleeper: AtomicBool,
    /// Whether a caller has found soon what it waited for, since the progress thread looked last.
    pub(crate) brief: AtomicBool,
    /// Whether acknowledgements wait for something to go along with, so that the progress thread
    /// has to tick on; changed with the receiver.
    pub(crate) acks_delayed: AtomicBool,
    /// Whether one of them is out of `data`, which somebody has to look at by himself.
    pub(crate) direct_poll: AtomicBool,
    /// A [`PollOwner`] as a word; changed while `poll_owner_lock` is held, together with what
    /// `poll` listens to.
    poll_owner: AtomicU32,
    pub(crate) poll_owner_lock: Mutex<()>,
    /// Whether its ticks are so far apart that it has to be called for what is held back.
    pub(crate) ticks_slowly: AtomicBool,
    /// Whether there are ranks of other nodes, so that callers look after the sockets.
    pub(crate) remote: bool,
    /// The connections on which this rank asks for something, by peer. Between nodes it does not
    /// matter which side has opened one.
    pub(super) active: Box<[Mutex<Option<Arc<Connection>>>]>,
    /// The way of large payloads to ranks of other nodes.
    pub(super) pipes: Arc<Pipes>,
    /// By peer.
    pub(super) epochs: Box<[ConnectionEpochs]>,
    /// Connections on which something is held back, and whether there are any.
    corked: Mutex<Vec<Arc<Connection>>>,
    any_corked: AtomicBool,
    /// Connections to ranks of other nodes that have to be made.
    wanted: Mutex<Vec<(Rank, ConnectPurpose)>>,
    /// How ranks of other nodes are reached.
    addresses: Mutex<HashMap<Rank, SocketAddr>>,
    /// Why they cannot be reached.
    last_errors: Mutex<HashMap<Rank, String>>,
    /// Held while a descriptor for a connection with a rank of this node is made: else one thread
    /// would take the last one that another has just given up for something.
    making: Mutex<()>,
    pub(super) connections: Mutex<HashMap<u64, Arc<Connection>>>,
    /// Whether connections were dropped that the receiving thread may hold something of.
    dropped: AtomicBool,
    pub(super) requests: Mutex<HashMap<u64, Asked>>,
    /// Calls whose timeout ran out, to be continued.
    pub(super) timed_out: Mutex<HashMap<RequestKey, Vec<Arc<PendingCall>>>>,
    /// Messages of channels whose data has a place already.
    pub(crate) posted_receives: PostedReceives,
    pub(super) next_request: AtomicU64,
    next_token: AtomicU64,
}

impl EndpointTable {
    pub(crate) fn new(
        listener: Option<OwnedFd>,
        wakeup_socket: Option<OwnedFd>,
        remote_listeners: Vec<OwnedFd>,
        size: u32,
        identity: Identity,
    ) -> Result<EndpointTable> {
        let (poll, data) = (Epoll::new()?, Epoll::new()?);
        let wakeup = Arc::new(Wakeup::new()?);
        poll.add(wakeup.as_fd(), WAKEUP)?;
        poll.add(data.as_fd(), DATA)?;
        if let Some(listener) = &listener {
            poll.add(listener.as_fd(), LISTENER)?;
        }
        if let Some(wakeup_socket) = &wakeup_socket {
            data.add(wakeup_socket.as_fd(), WAKEUP_SOCKET)?;
        }
        for (token, endpoint) in (REMOTE_LISTENERS..).zip(&remote_listeners) {
            poll.add(endpoint.as_fd(), token)?;
        }
        Ok(EndpointTable {
            poll,
            data,
            wakeup,
            identity,
            remote: wakeup_socket.is_some(),
            wakeup_socket,
            listener,
            remote_listeners,
            stop: AtomicBool::new(false),
            receiver: Mutex::new(Receiver::new()),
            caller_polls: AtomicU64::new(0),
            looked_ns: AtomicU64::new(0),
            look_due: AtomicBool::new(false),
            receiver_wanted: AtomicBool::new(false),
            sleeper: AtomicBool::new(false),
            brief: AtomicBool::new(false),
            acks_delayed: AtomicBool::new(false),
            direct_poll: AtomicBool::new(false),
            poll_owner: AtomicU32::new(PollOwner::Thread as u32),
            poll_owner_lock: Mutex::default(),
            ticks_slowly: AtomicBool::new(false),
            active: (0..size).map(|_| Mutex::default()).collect(),
            pipes: Arc::default(),
            epochs: (0..size).map(|_| ConnectionEpochs::new()).collect(),
            corked: Mutex::default(),
            any_corked: AtomicBool::new(false),
            wanted: Mutex::default(),
            addresses: Mutex::default(),
            last_errors: Mutex::default(),
            making: Mutex::default(),
            connections: Mutex::default(),
            dropped: AtomicBool::new(false),
            requests: Mutex::default(),
            timed_out: Mutex::default(),
            posted_receives: PostedReceives::default(),
            next_request: AtomicU64::new(1),
            next_token: AtomicU64::new(CONNECTIONS),
        })
    }

    pub(crate) fn clear_wakeup_socket(&self) {
        if let Some(wakeup_socket) = &self.wakeup_socket {
            socket::clear(wakeup_socket.as_fd());
        }
    }

    /// Who looks after the sockets while no caller does.
    #[inline]
    pub(crate) fn poll_owner(&self) -> PollOwner {
        PollOwner::of_word(self.poll_owner.load(Ordering::Relaxed))
    }

    /// Changes that, and returns who did before; with `poll_owner_lock` held.
    pub(crate) fn swap_poll_owner(&self, next: PollOwner) -> PollOwner {
        PollOwner::of_word(self.poll_owner.swap(next as u32, Ordering::Relaxed))
    }

    pub(super) fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes an established connection into the poll set.
    pub(crate) fn adopt(&self, connection: &Arc<Connection>) -> Result<()> {
        let Some(fd) = connection.fd() else { return Ok(()) };
        self.connections.lock().insert(connection.token, Arc::clone(connection));
        self.data.add(fd, connection.token).inspect_err(|_| {
            self.connections.lock().remove(&connection.token);
        })
    }

    /// Takes a connection that a rank of the same node has opened.
    pub(crate) fn accepted(&self, fd: OwnedFd) -> Result<()> {
        self.adopt(&Arc::new(Connection::accepted(fd, self.token())))
    }

    /// Takes a connection that `peer`, of another node, has opened: this rank uses it too, unless
    /// it has another one.
    pub(crate) fn admitted(&self, up: &dyn Upcalls, fd: OwnedFd, peer: Rank) {
        let connection = {
            let mut active = self.active[peer.index()].lock();
            match active.as_ref() {
                // It was being made.
                Some(waiting) if waiting.fd().is_none() => Arc::clone(waiting),
                Some(_) => self.between_nodes(peer),
                None => Arc::clone(active.insert(self.between_nodes(peer))),
            }
        };
        self.made(up, &connection, fd);
    }

    /// A connection with a rank of another node has been made. Only one thread makes them.
    pub(crate) fn made(&self, up: &dyn Upcalls, connection: &Arc<Connection>, fd: OwnedFd) {
        let established = self.establish(up, connection, fd);
        // Without a place for it the peer sees it end, as does one that nobody wants any more, or
        // that says too little of what was lost.
        if established.is_err() || connection.is_forgotten() || self.is_stale(connection) {
            self.drop_with_doubt(up, connection);
        }
        if up.ranks().liveness(up.ranks().me) == liveness::LEFT {
            // It was not there yet when goodbye was said on the others.
            connection.say_goodbye(&self.data);
        }
    }

    /// What is to be connected to.
    pub(crate) fn take_wanted(&self) -> Vec<(Rank, ConnectPurpose)> {
        std::mem::take(&mut self.wanted.lock())
    }

    fn want(&self, rank: Rank, purpose: ConnectPurpose) {
        self.wanted.lock().push((rank, purpose));
        self.wakeup.wake();
    }

    /// A connection with `rank` has broken: does it live?
    pub(crate) fn suspect(&self, up: &dyn Upcalls, rank: Rank) {
        if up.ranks().liveness(rank) == liveness::JOINED && !up.ranks().is_local(rank) {
            self.want(rank, ConnectPurpose::Probe);
        }
    }

    /// It does.
    pub(crate) fn note_alive(&self, up: &dyn Upcalls, rank: Rank) {
        log::warn!(
            "the connection to {rank} on {} broke, but its process lives: requests that were under \
             way have failed",
            up.ranks().cards[rank.index()].host
        );
        up.lost(rank, true);
    }

    /// How `rank` is reached from now on.
    pub(crate) fn set_address(&self, rank: Rank, endpoint: SocketAddr) {
        self.addresses.lock().insert(rank, endpoint);
        self.last_errors.lock().remove(&rank);
    }

    /// How `rank` is reached.
    pub(crate) fn address(&self, rank: Rank) -> Option<SocketAddr> {
        self.addresses.lock().get(&rank).copied()
    }

    /// Why `rank` could not be reached.
    pub(crate) fn set_last_error(&self, rank: Rank, reason: String) {
        self.last_errors.lock().insert(rank, reason);
    }

    /// Keeps other threads from making connections with ranks of this node.
    pub(crate) fn making(&self) -> MutexGuard<'_, ()> {
        self.making.lock()
    }

    /// Why `rank` could not be reached last.
    pub(crate) fn last_error(&self, rank: Rank) -> Option<String> {
        self.last_errors.lock().get(&rank).cloned()
    }

    pub(crate) fn connection(&self, token: u64) -> Option<Arc<Connection>> {
        self.connections.lock().get(&token).cloned()
    }

    /// Forgets a connection; what was under way on it fails.
    pub(crate) fn drop_connection(&self, up: &dyn Upcalls, connection: &Arc<Connection>) {
        let lost = connection.shut_down();
        // Behind that: nobody puts it back any more.
        if let Some(fd) = connection.fd() {
            self.data.remove(fd);
        }
        self.connections.lock().remove(&connection.token);
        self.dropped.store(true, Ordering::Release);
        self.wakeup.wake();
        let Some(peer) = connection.peer().map(Rank) else { return };
        // Before anything goes by another one.
        fail_puts(up, peer, lost);
        self.use_another(peer, connection);
        self.fail_requests(up, peer, connection.token);
    }

    /// The same where nobody else looks whether the peer lives: what was under way is lost if it
    /// does.
    fn drop_with_doubt(&self, up: &dyn Upcalls, connection: &Arc<Connection>) {
        let asks = !connection.asks_nothing();
        self.drop_connection(up, connection);
        let peer = connection.peer().map(Rank).filter(|peer| asks && !up.ranks().is_leaving(*peer));
        if let Some(peer) = peer {
            self.suspect(up, peer);
        }
    }

    /// Nothing more is asked for on a connection, but on another one with the same peer if there is
    /// one on which the peer has said something: else it may have given it up for the one that it
    /// took.
    fn use_another(&self, peer: Rank, than: &Connection) {
        let mut active = self.active[peer.index()].lock();
        if active.as_ref().is_some_and(|active| active.token == than.token) {
            let usable = |open: &&Arc<Connection>| {
                let takes_it = open.epoch_of_peer().is_some() && open.is_usable();
                !open.local && open.peer() == Some(peer.0) && takes_it
            };
            *active = self.connections.lock().values().find(usable).cloned();
        }
    }

    /// Sending has failed. What the peer has sent before is still to be read, its goodbye perhaps:
    /// the end belongs to the receiving thread, who may also wait for other threads, unlike the
    /// caller.
    pub(crate) fn broke(&self, up: &dyn Upcalls, connection: &Arc<Connection>) {
        if connection.is_forgotten() {
            // What was posted to it since then fails too.
            self.drop_with_doubt(up, connection);
        }
    }

    /// A connection has ended by itself. Only with the receiver.
    pub(crate) fn at_its_end(&self, up: &dyn Upcalls, connection: &Arc<Connection>) {
        if connection.is_forgotten() {
            return;
        }
        let peer = connection.peer().map(Rank).filter(|_| !connection.local);
        let of_peer = |open: &Arc<Connection>| {
            open.peer() == peer.map(|peer| peer.0) && open.token != connection.token
        };
        let last = !self.connections.lock().values().any(of_peer);
        let left = peer.filter(|peer| last && up.ranks().is_leaving(*peer));
        if let Some(peer) = left {
            // First, so that what fails with the connection says so.
            up.ranks().area.remote_left(peer);
        }
        let broken = peer.filter(|peer| !up.ranks().is_leaving(*peer) && !connection.is_over());
        let asked = connection.has_asked() && !self.is_stale(connection);
        if let Some(peer) = broken.filter(|_| asked) {
            self.advance_epoch(up, peer);
        }
        self.drop_connection(up, connection);
        if let Some(peer) = left {
            up.ended(peer);
        }
        if let Some(peer) = broken {
            self.suspect(up, peer);
        }
    }

    /// Whether a connection with `peer` has not come to its end.
    pub(crate) fn has_connection(&self, peer: Rank) -> bool {
        self.connections.lock().values().any(|open| open.peer() == Some(peer.0))
    }

    /// Whether connections were dropped since the last call.
    pub(crate) fn take_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed) && self.dropped.swap(false, Ordering::AcqRel)
    }

    /// Ends all connections for the other side too, also where a forked child holds them.
    pub(crate) fn shut_down(&self) {
        for connection in self.connections.lock().values() {
            connection.shut_down();
        }
    }

    /// Connections with ranks of other nodes.
    fn remote(&self, up: &dyn Upcalls) -> Vec<Arc<Connection>> {
        let is_remote = |open: &&Arc<Connection>| {
            open.peer().is_some_and(|peer| !up.ranks().is_local(Rank(peer)))
        };
        self.connections.lock().values().filter(is_remote).cloned().collect()
    }

    /// Says goodbye to the ranks of other nodes, behind what was posted before.
    pub(crate) fn say_goodbye(&self, up: &dyn Upcalls) {
        for connection in self.remote(up) {
            connection.say_goodbye(&self.data);
        }
    }

    /// Whether ranks of other nodes have not closed their side yet.
    pub(crate) fn has_remote(&self, up: &dyn Upcalls) -> bool {
        !self.remote(up).is_empty()
    }

    /// Puts that this rank has sent on a connection have been completed.
    pub(crate) fn acknowledged(&self, up: &dyn Upcalls, connection: &Connection, puts: u64) {
        let Some(peer) = connection.peer().map(Rank) else { return };
        for (stream, count) in connection.acknowledged(puts) {
            up.completed(peer, stream, count, Ok(()));
        }
        up.ranks().wake_own();
        self.let_go(connection);
    }

    /// Acknowledges what a peer has put here on a connection, if `flush` says so; whether that is
    /// delayed.
    pub(crate) fn send_ack(
        &self,
        up: &dyn Upcalls,
        connection: &Arc<Connection>,
        flush: Flush,
    ) -> bool {
        connection.send_ack(&self.data, flush).unwrap_or_else(|Broken| {
            self.broke(up, connection);
            false
        })
    }

    /// Closes the connection for requests to `rank`, if there is one.
    pub(crate) fn disconnect(&self, up: &dyn Upcalls, rank: Rank) {
        let connection = self.active[rank.index()].lock().clone();
        if let Some(connection) = connection {
            self.drop_connection(up, &connection);
        }
    }

    /// Stops using the connection with `rank`, which is closed once neither side does; false while
    /// requests are under way, or it is being made.
    pub(crate) fn release_connection(&self, up: &dyn Upcalls, rank: Rank) -> bool {
        let Some(connection) = self.active[rank.index()].lock().clone() else { return true };
        if connection.local {
            self.drop_connection(up, &connection);
            return true;
        }
        if connection.fd().is_none() {
            // It is being made: the peer may use it already, and what waits on it goes out first.
            return false;
        }
        let released = connection.release(&self.data);
        if released {
            self.use_another(rank, &connection);
        }
        released
    }

    /// Ends a connection that the peer has released, unless this rank has asked for something on it
    /// that is under way.
    pub(crate) fn let_go(&self, connection: &Connection) {
        let Some(peer) = connection.peer().filter(|_| connection.is_released_by_peer()) else {
            return;
        };
        let let_go = {
            // Held until nothing can be asked for any more: who asks says on which connection
            // first.
            let requests = self.requests.lock();
            let asks = requests.values().any(|asked| asked.token == connection.token);
            !asks && connection.let_go(&self.data)
        };
        if let_go {
            self.use_another(Rank(peer), connection);
        }
    }

    /// Whether everything posted to `rank` has been handed to the kernel.
    pub(crate) fn is_drained(&self, rank: Rank) -> bool {
        self.active[rank.index()].lock().as_ref().is_none_or(|active| active.is_drained())
    }

    /// The connection with `rank`, made if there is none.
    pub(crate) fn open(&self, up: &dyn Upcalls, rank: Rank) -> Result<Arc<Connection>> {
        up.ranks().check_alive(rank, "a connection to it")?;
        let mut active = self.active[rank.index()].lock();
        if let Some(connection) = active.as_ref() {
            return Ok(Arc::clone(connection));
        }
        let local = up.ranks().is_local(rank);
        let connection = if local {
            Arc::new(Connection::new(self.token(), rank.0, true))
        } else {
            self.between_nodes(rank)
        };
        if local {
            let hello = Frame::Hello { rank: up.ranks().me, token: self.identity.token };
            // There is no socket yet that could be broken.
            let _ = connection.send(&self.data, Outgoing::new(&hello));
            let address = &up.ranks().cards[rank.index()].address;
            self.last_errors.lock().remove(&rank);
            let making = self.making();
            let fd = socket::connect(address)
                .map_err(|error| Error::os(format!("connecting to {rank}"), &error))?;
            drop(making);
            self.establish(up, &connection, fd)?;
        } else {
            self.want(rank, ConnectPurpose::Data(Arc::clone(&connection)));
        }
        *active = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// A connection has got its socket: what waits goes out.
    pub(crate) fn establish(
        &self,
        up: &dyn Upcalls,
        connection: &Arc<Connection>,
        fd: OwnedFd,
    ) -> Result<()> {
        connection.established(fd);
        self.adopt(connection)?;
        // One that breaks at once is noticed by the receiving thread.
        let _ = connection.flush(&self.data);
        up.ranks().wake_own();
        Ok(())
    }

    /// Whether there is a connection with `rank`.
    pub(crate) fn is_established(&self, rank: Rank) -> bool {
        self.active[rank.index()].lock().as_ref().is_some_and(|active| active.fd().is_some())
    }
}
