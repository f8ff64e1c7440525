//! The connections that a rank has, and which of them it asks on.
//!
//! Invariants: a connection that is asked on is begun with the count of lost ones as it is then
//! (see [`connection_epoch`](crate::transport::tcp::connection_epoch)); the poll set holds the
//! socket of a connection only while the connection is here.

use crate::error::Result;
use crate::ids::Rank;
use crate::os::event::Epoll;
use crate::os::tcp;
use crate::sync::by_rank::ByRank;
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::transport::numbers::NumberMap;
use crate::transport::tcp::connection::{Broken, Connection};
use crate::transport::tcp::connections::open::Open;
use crate::transport::tcp::pipes::Pipes;
use crate::transport::tcp::poll_sets::CONNECTIONS;
use crate::transport::tcp::send_queue::Withheld;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

mod open;

/// How many connections with a peer have been lost.
#[derive(Debug, Default)]
struct ConnectionEpochs {
    /// By this rank.
    own: AtomicU64,
    /// By the peer, as far as it has said so.
    of_peer: AtomicU64,
}

/// Whose bytes come otherwise than by the socket of the connection.
#[derive(Debug, Default)]
struct Switched {
    /// The names of the connections, by peer and by the number of the bytes.
    tokens: Mutex<NumberMap<Rank, BTreeMap<u32, u64>>>,
    /// Whether there are connections, or ways for them, that nobody has looked at.
    news: AtomicBool,
    /// How often it may have changed whose bytes are.
    changes: AtomicU64,
}

/// Where bytes of a peer belong that have come otherwise than by a socket.
#[derive(Debug)]
pub(crate) enum Owner {
    Connection(Arc<Connection>),
    /// The peer has not said it on the socket yet.
    Unknown,
    /// A connection that has ended.
    Gone,
}

/// The connections of one rank.
#[derive(Debug)]
pub(crate) struct Connections {
    open: Mutex<Open>,
    next_token: AtomicU64,
    /// Whether connections were dropped that the receiving thread may hold something of.
    dropped: AtomicBool,
    switched: Switched,
    /// The connections on which this rank asks for something, by peer. Between nodes it does not
    /// matter which side has opened one.
    active: Box<[Mutex<Option<Arc<Connection>>>]>,
    /// By peer.
    epochs: ByRank<ConnectionEpochs>,
    /// The way of large payloads to ranks of other nodes.
    pipes: Arc<Pipes>,
    /// How much data waits on them for another carrier than their sockets, where it has to.
    withheld: Option<Arc<AtomicU64>>,
    /// Held while a descriptor for a connection with a rank of this node is made: else one thread
    /// would take the last one that another has just given up for something.
    making: Mutex<()>,
}

impl Connections {
    /// No connection yet with any of `size` ranks.
    pub(super) fn new(size: u32) -> Connections {
        Connections {
            open: Mutex::default(),
            next_token: AtomicU64::new(CONNECTIONS),
            dropped: AtomicBool::new(false),
            switched: Switched::default(),
            active: (0..size).map(|_| Mutex::default()).collect(),
            epochs: ByRank::new(size),
            pipes: Arc::default(),
            withheld: None,
            making: Mutex::default(),
        }
    }

    /// A name in the poll set that no other connection has.
    pub(super) fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps other threads from making connections with ranks of this node.
    pub(crate) fn making(&self) -> MutexGuard<'_, ()> {
        self.making.lock()
    }

    /// Takes an established connection into the poll set.
    pub(super) fn adopt(&self, data: &Epoll, connection: &Arc<Connection>) -> Result<()> {
        let Some(fd) = connection.fd() else { return Ok(()) };
        self.open.lock().insert(connection);
        data.add(fd, connection.token).inspect_err(|_| self.open.lock().remove(connection))
    }

    /// The connection of this name.
    #[inline]
    pub(crate) fn get(&self, token: u64) -> Option<Arc<Connection>> {
        self.open.lock().get(token).cloned()
    }

    /// The peer of a connection has said who it is.
    pub(super) fn set_peer(&self, connection: &Connection, peer: Rank) {
        self.open.lock().set_peer(connection, peer);
    }

    /// Takes a connection out, whose socket is out of the poll set already.
    pub(super) fn remove(&self, connection: &Connection) {
        self.open.lock().remove(connection);
        self.dropped.store(true, Ordering::Release);
        self.switched.changes.fetch_add(1, Ordering::Release);
        self.note_news();
    }

    /// Whether connections were dropped since the last call.
    #[inline]
    pub(super) fn take_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed) && self.dropped.swap(false, Ordering::AcqRel)
    }

    /// Whether a connection with `peer` has not come to its end.
    pub(crate) fn has(&self, peer: Rank) -> bool {
        self.open.lock().with(peer).next().is_some()
    }

    /// Whether there is no other connection with `peer` than this one.
    pub(super) fn is_last(&self, peer: Rank, connection: &Connection) -> bool {
        self.open.lock().with(peer).all(|open| open.token == connection.token)
    }

    /// Those with `peer`, of another node.
    pub(crate) fn with(&self, peer: Rank) -> Vec<Arc<Connection>> {
        self.open.lock().with(peer).filter(|open| !open.local).cloned().collect()
    }

    /// Those whose peer is known and wanted.
    pub(super) fn where_peer(&self, wanted: impl Fn(Rank) -> bool) -> Vec<Arc<Connection>> {
        let is_one = |open: &&Arc<Connection>| open.peer().is_some_and(|peer| wanted(Rank(peer)));
        self.open.lock().all().filter(is_one).cloned().collect()
    }

    /// How long ago something was heard on a connection with one of these ranks of other nodes.
    pub(super) fn heard_last(&self, of: impl Fn(Rank) -> bool) -> Option<Duration> {
        let is_one =
            |open: &&Arc<Connection>| !open.local && open.peer().is_some_and(|peer| of(Rank(peer)));
        let open = self.open.lock();
        let heard = |open: &Arc<Connection>| tcp::heard_last(open.fd()?).ok();
        open.all().filter(is_one).filter_map(heard).min()
    }

    /// How long ago data went or came on a connection with `peer`, of another node.
    pub(crate) fn used_last(&self, peer: Rank) -> Option<Duration> {
        let used = |open: Arc<Connection>| tcp::used_last(open.fd()?).ok();
        self.with(peer).into_iter().filter_map(used).min()
    }

    /// Ends all connections for the other side too, also where a forked child holds them.
    pub(crate) fn shut_down(&self) {
        for connection in self.open.lock().all() {
            connection.shut_down();
        }
    }
}

/// Which are carried otherwise than by their sockets.
impl Connections {
    /// `peer` says on a connection that what follows has this number.
    pub(super) fn switch(&self, peer: Rank, number: u32, connection: &Connection) {
        let mut tokens = self.switched.tokens.lock();
        let of_it = tokens.entry(peer).or_default();
        // What has a number below the highest one is known to be late.
        of_it.retain(|_, token| self.get(*token).is_some());
        of_it.insert(number, connection.token);
        self.switched.changes.fetch_add(1, Ordering::Release);
    }

    /// How often it may have changed whose bytes are: a count that has not is behind all that was
    /// found since.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.switched.changes.load(Ordering::Acquire)
    }

    /// `peer` says on a connection that what follows the bytes of this number comes by the socket.
    ///
    /// # Errors
    /// They are not those of the connection.
    pub(super) fn switch_back(
        &self,
        peer: Rank,
        number: u32,
        connection: &Connection,
    ) -> std::result::Result<(), Broken> {
        let mut tokens = self.switched.tokens.lock();
        let of_it = tokens.entry(peer).or_default();
        let known = of_it.get(&number) == Some(&connection.token);
        let removed = of_it.remove(&number).filter(|_| known);
        self.switched.changes.fetch_add(1, Ordering::Release);
        removed.map(|_| ()).ok_or(Broken)
    }

    /// The number of the bytes of a connection that come otherwise than by its socket.
    pub(crate) fn number_of(&self, peer: Rank, connection: &Connection) -> Option<u32> {
        let tokens = self.switched.tokens.lock();
        let mut of_it = tokens.get(&peer)?.iter();
        of_it.find(|(_, token)| **token == connection.token).map(|(number, _)| *number)
    }

    /// Whose bytes of this number are.
    pub(crate) fn owner(&self, peer: Rank, number: u32) -> Owner {
        let tokens = self.switched.tokens.lock();
        let Some(of_it) = tokens.get(&peer) else { return Owner::Unknown };
        match of_it.get(&number) {
            Some(token) => self.get(*token).map_or(Owner::Gone, Owner::Connection),
            None if of_it.keys().any(|known| *known > number) => Owner::Gone,
            None => Owner::Unknown,
        }
    }

    /// Those of `peer` whose bytes come otherwise.
    pub(crate) fn switched_by(&self, peer: Rank) -> Vec<Arc<Connection>> {
        let tokens = self.switched.tokens.lock();
        let of_it = tokens.get(&peer).into_iter().flat_map(BTreeMap::values);
        of_it.filter_map(|token| self.get(*token)).collect()
    }

    /// From now on data of the program waits until something else than a socket carries it.
    pub(crate) fn withhold_data(&mut self) {
        self.withheld = Some(Arc::default());
    }

    /// Whether some does.
    pub(crate) fn withhold_any(&self) -> bool {
        self.withheld.as_ref().is_some_and(|all| all.load(Ordering::Relaxed) > 0)
    }

    /// Whether some for `rank` does.
    pub(crate) fn withholds(&self, rank: Rank) -> bool {
        self.withhold_any() && self.active(rank).as_ref().is_some_and(|active| active.withholds())
    }

    /// There may be a connection that can be carried otherwise.
    pub(crate) fn note_news(&self) {
        self.switched.news.store(true, Ordering::Release);
    }

    /// Whether there may be, since the last call.
    pub(crate) fn take_news(&self) -> bool {
        self.switched.news.load(Ordering::Relaxed)
            && self.switched.news.swap(false, Ordering::AcqRel)
    }
}

/// Which are asked on.
impl Connections {
    /// The one on which `rank` is asked; nobody changes which that is meanwhile.
    #[inline]
    pub(super) fn active(&self, rank: Rank) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.active[rank.index()].lock()
    }

    /// Those with ranks of other nodes that have no socket yet.
    pub(super) fn being_made(&self) -> Vec<Arc<Connection>> {
        let active = self.active.iter().filter_map(|active| active.lock().clone());
        active.filter(|connection| connection.fd().is_none()).collect()
    }

    /// Nothing more is asked for on a connection, but on another one with the same peer if there is
    /// one on which the peer has said something: else it may have given it up for the one that it
    /// took.
    pub(super) fn use_another(&self, peer: Rank, than: &Connection) {
        let mut active = self.active(peer);
        if active.as_ref().is_some_and(|active| active.token == than.token) {
            let usable =
                |open: &Arc<Connection>| open.epoch_of_peer().is_some() && open.is_usable();
            // Without the lock on all of them: who sends holds one, and may wait for a device.
            *active = self.with(peer).into_iter().find(usable);
        }
    }

    /// Whether there is a connection with `rank`.
    pub(crate) fn is_established(&self, rank: Rank) -> bool {
        self.active(rank).as_ref().is_some_and(|active| active.fd().is_some())
    }

    /// Whether what is asked of `rank` goes otherwise than by the socket of its connection.
    pub(crate) fn is_carried(&self, rank: Rank) -> bool {
        self.active(rank).as_ref().is_some_and(|active| active.is_carried())
    }

    /// Whether there is a connection for requests to `rank`, or one is being made.
    pub(crate) fn has_active(&self, rank: Rank) -> bool {
        self.active(rank).is_some()
    }

    /// Whether everything posted to `rank` has been handed to the kernel.
    pub(crate) fn is_drained(&self, rank: Rank) -> bool {
        self.active(rank).as_ref().is_none_or(|active| active.is_drained())
    }
}

/// How many were lost.
impl Connections {
    /// A connection with `peer`, of another node, that has no socket yet. Where it is to be used
    /// for requests, with the lock on what is used.
    pub(crate) fn between_nodes(&self, peer: Rank) -> Arc<Connection> {
        let epoch = self.epochs.of(peer.index()).own.load(Ordering::Acquire);
        let withheld = Withheld::new(self.withheld.clone());
        Arc::new(Connection::between_nodes(self.token(), peer.0, epoch, &self.pipes, withheld))
    }

    /// Whether this rank has lost a connection with the peer of this one since it was begun.
    pub(super) fn is_stale(&self, connection: &Connection) -> bool {
        let peer = connection.peer().filter(|_| !connection.local);
        peer.is_some_and(|peer| {
            self.epochs.of(peer.into()).own.load(Ordering::Acquire) != connection.epoch()
        })
    }

    /// This rank has lost a connection with `peer`. With the lock on what is used.
    pub(super) fn advance_epoch(&self, peer: Rank) {
        self.epochs.of(peer.index()).own.fetch_add(1, Ordering::AcqRel);
    }

    /// `peer` says how many it has lost; the most that it has said.
    pub(super) fn raise_epoch_of_peer(&self, peer: Rank, count: u64) -> u64 {
        self.epochs.of(peer.index()).of_peer.fetch_max(count, Ordering::AcqRel).max(count)
    }
}
