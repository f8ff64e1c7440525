//! Connections to the libraries of other ranks: which there are, which are used, how they end.

mod asking;
mod posting;

use crate::bootstrap::KEY_BYTES;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::socket;
use crate::policy::acknowledge::Flush;
use crate::sync::Mutex;
use crate::transport::posted_receives::PostedReceives;
use crate::transport::requests::PendingRequests;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::connection::{Broken, Connection};
use crate::transport::tcp::connection_epoch::fail_puts;
use crate::transport::tcp::connections::Connections;
use crate::transport::tcp::corked::Corked;
use crate::transport::tcp::dialing::{ConnectPurpose, Dialing, Watch};
use crate::transport::tcp::poll_sets::PollSets;
use crate::transport::tcp::polling::Polling;
use crate::transport::tcp::receive::Receiver;
use crate::transport::tcp::send_queue::Outgoing;
use crate::transport::{ConnectionLoss, Upcalls};
use crate::wire::frame::Frame;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

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

/// All that a rank has to do with the libraries of other ranks by streams.
#[derive(Debug)]
pub(crate) struct EndpointTable {
    pub(crate) sets: PollSets,
    pub(crate) polling: Polling,
    /// Held by whoever looks after the sockets.
    pub(crate) receiver: Mutex<Receiver>,
    pub(crate) connections: Connections,
    corked: Corked,
    pub(crate) dialing: Dialing,
    pub(crate) requests: Arc<PendingRequests>,
    pub(crate) posted_receives: Arc<PostedReceives>,
    pub(crate) identity: Identity,
    /// Peers whose connection has broken, and of which it is not known yet whether they live.
    suspected: Mutex<HashSet<Rank>>,
    /// Whether there are ranks of other nodes, so that callers look after the sockets, and ends are
    /// told along a tree of ranks.
    pub(crate) remote: bool,
}

impl EndpointTable {
    pub(crate) fn new(
        listener: Option<OwnedFd>,
        wakeup_socket: Option<OwnedFd>,
        remote_listeners: Vec<OwnedFd>,
        size: u32,
        identity: Identity,
    ) -> Result<EndpointTable> {
        let remote = wakeup_socket.is_some();
        Ok(EndpointTable {
            sets: PollSets::new(listener, wakeup_socket, remote_listeners)?,
            polling: Polling::new(),
            receiver: Mutex::new(Receiver::new()),
            connections: Connections::new(size),
            corked: Corked::default(),
            dialing: Dialing::default(),
            requests: Arc::default(),
            posted_receives: Arc::default(),
            identity,
            suspected: Mutex::default(),
            remote,
        })
    }

    /// Takes a connection that a rank of the same node has opened.
    pub(crate) fn accepted(&self, fd: OwnedFd) -> Result<()> {
        self.connections
            .adopt(&self.sets.data, &Arc::new(Connection::accepted(fd, self.connections.token())))
    }

    /// Takes a connection that `peer`, of another node, has opened: this rank uses it too, unless
    /// it has another one.
    pub(crate) fn admitted(&self, up: &dyn Upcalls, fd: OwnedFd, peer: Rank) {
        let connection = {
            let mut active = self.connections.active(peer);
            match active.as_ref() {
                // It was being made.
                Some(waiting) if waiting.fd().is_none() => Arc::clone(waiting),
                Some(_) => self.connections.between_nodes(peer),
                None => Arc::clone(active.insert(self.connections.between_nodes(peer))),
            }
        };
        self.made(up, &connection, fd);
    }

    /// A connection with a rank of another node has been made. Only one thread makes them.
    pub(crate) fn made(&self, up: &dyn Upcalls, connection: &Arc<Connection>, fd: OwnedFd) {
        // Ahead of a goodbye.
        let peer = connection.peer().map(Rank);
        if let Some(peer) = peer.filter(|peer| self.dialing.take_unsent_as_connected(*peer)) {
            up.send_again(peer);
        }
        let established = self.establish(up, connection, fd);
        // Without a place for it the peer sees it end, as does one that nobody wants any more, or
        // that says too little of what was lost.
        if established.is_err()
            || connection.is_forgotten()
            || self.connections.is_stale(connection)
        {
            self.drop_with_doubt(up, connection);
        } else if let Some(peer) = connection.peer() {
            up.connected(Rank(peer));
        }
        if up.ranks().liveness(up.ranks().me) == liveness::LEFT {
            // It was not there yet when this was said on the others.
            connection.say_goodbye(&self.sets.data, &up.last_steps(up.ranks().me));
        }
    }

    fn want(&self, rank: Rank, purpose: ConnectPurpose) {
        self.dialing.want(rank, purpose);
        self.sets.wakeup.wake();
    }

    /// A connection with `rank` has broken: does it live?
    pub(crate) fn suspect(&self, up: &dyn Upcalls, rank: Rank) {
        if up.ranks().liveness(rank) == liveness::JOINED && !up.ranks().is_local(rank) {
            self.suspected.lock().insert(rank);
            up.doubted(rank);
            self.want(rank, ConnectPurpose::Probe);
        }
    }

    /// Whether that is not known yet.
    pub(crate) fn is_suspected(&self, rank: Rank) -> bool {
        self.suspected.lock().contains(&rank)
    }

    /// It does.
    pub(crate) fn note_alive(&self, up: &dyn Upcalls, rank: Rank) {
        log::warn!(
            "the connection to {rank} on {} broke, but its process lives: requests that were under \
             way have failed",
            up.ranks().host_of(rank)
        );
        self.suspected.lock().remove(&rank);
        self.connections.note_news();
        up.lost(rank, ConnectionLoss::Broken);
    }

    /// Forgets a connection; what was under way on it fails. Says whether puts were.
    pub(crate) fn drop_connection(&self, up: &dyn Upcalls, connection: &Arc<Connection>) -> bool {
        let lost = connection.shut_down();
        // Behind that: nobody puts it back any more.
        if let Some(fd) = connection.fd() {
            self.sets.data.remove(fd);
        }
        self.connections.remove(connection);
        self.sets.wakeup.wake();
        let Some(peer) = connection.peer().map(Rank) else { return false };
        let has_lost = !lost.is_empty();
        // Before anything goes by another one.
        fail_puts(up, peer, lost);
        self.connections.use_another(peer, connection);
        // A rank that leaves may wait until it has sent all, or a call for a connection that a
        // device carries: behind that, so that they see it.
        up.ranks().wake_own();
        self.fail_requests(up, peer, connection.token);
        has_lost
    }

    /// The same where nobody else looks whether the peer lives: what was under way is lost if it
    /// does.
    fn drop_with_doubt(&self, up: &dyn Upcalls, connection: &Arc<Connection>) {
        let asks = !connection.asks_nothing();
        // Something may have been asked since.
        let asks = self.drop_connection(up, connection) || asks;
        let peer = connection.peer().map(Rank).filter(|peer| asks && !up.ranks().is_leaving(*peer));
        if let Some(peer) = peer {
            self.suspect(up, peer);
        } else if let Some(peer) = connection.peer().map(Rank).filter(|_| !connection.local) {
            self.keep_watched(up, peer);
        }
    }

    /// Sending has failed. What the peer has sent before is still to be read, its goodbye perhaps:
    /// the end belongs to the receiving thread.
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
        // A device may have brought its last bytes before its socket has ended.
        up.catch_up();
        let peer = connection.peer().map(Rank).filter(|_| !connection.local);
        let last = |peer: &Rank| self.connections.is_last(*peer, connection);
        let left = peer.filter(|peer| last(peer) && up.ranks().is_leaving(*peer));
        if let Some(peer) = left {
            // First, so that what fails with the connection says so.
            up.ranks().area.remote_left(peer);
        }
        let broken = peer.filter(|peer| !up.ranks().is_leaving(*peer) && !connection.is_over());
        // Its requests have all been answered, but not what nobody answers.
        let stay = |peer: &Rank| {
            let ranks = up.ranks();
            ranks.liveness(ranks.me) == liveness::JOINED && !ranks.is_leaving(*peer)
        };
        let unread = peer.filter(|peer| stay(peer) && connection.may_lack_the_end());
        let asked = connection.has_asked() && !self.connections.is_stale(connection);
        if let Some(peer) = broken.filter(|_| asked) {
            self.advance_epoch(up, peer);
        }
        self.drop_connection(up, connection);
        if let Some(peer) = left {
            up.ended(peer);
        }
        if let Some(peer) = broken {
            self.suspect(up, peer);
        } else if let Some(peer) = peer.filter(|_| left.is_none()) {
            self.keep_watched(up, peer);
        }
        if let Some(peer) = unread {
            up.send_again(peer);
        }
    }

    /// Whether news of the end of `peer`, of another node, come without a connection for requests,
    /// as far as they can. If not, that is seen to.
    fn keep_watched(&self, up: &dyn Upcalls, peer: Rank) -> bool {
        // The hosts of others have been watched since there was a connection. A rank that leaves
        // watches nobody any more: those that stay close what it has said goodbye on.
        let (ranks, beside) = (up.ranks(), up.ranks().shares_machine(peer));
        let both_stay = [ranks.me, peer].map(|rank| ranks.liveness(rank)) == [liveness::JOINED; 2];
        if !beside || !both_stay || ranks.is_leaving(peer) {
            return true;
        }
        let watch = self.dialing.watch(peer);
        if watch == Watch::New {
            self.want(peer, ConnectPurpose::Keepalive);
        }
        matches!(watch, Watch::Made | Watch::Unavailable)
    }

    /// A rank of this machine is watched from now on, or cannot be: a connection that neither side
    /// uses may go.
    pub(super) fn watch_settled(&self, up: &dyn Upcalls, rank: Rank, watch: Watch) {
        self.dialing.settle_watch(rank, watch);
        for connection in self.connections.with(rank) {
            self.let_go(up, &connection);
        }
        up.ranks().wake_own();
    }

    /// Connections with ranks of other nodes.
    pub(crate) fn remote(&self, up: &dyn Upcalls) -> Vec<Arc<Connection>> {
        self.connections.where_peer(|peer| !up.ranks().is_local(peer))
    }

    /// Says goodbye to the ranks of other nodes, behind what was posted before.
    pub(crate) fn say_goodbye(&self, up: &dyn Upcalls) {
        let steps = up.last_steps(up.ranks().me);
        for connection in self.remote(up) {
            connection.say_goodbye(&self.sets.data, &steps);
        }
    }

    /// Forgets data that waits for other carriers than sockets, so that goodbyes behind it are
    /// said; whether there was any.
    pub(crate) fn forget_withheld(&self, up: &dyn Upcalls) -> bool {
        let forget = |had_any, connection: Arc<Connection>| {
            connection.forget_withheld(&self.sets.data) || had_any
        };
        self.remote(up).into_iter().fold(false, forget)
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
        self.let_go(up, connection);
    }

    /// Acknowledges what a peer has put here on a connection, if `flush` says so; whether that is
    /// delayed.
    pub(crate) fn send_ack(
        &self,
        up: &dyn Upcalls,
        connection: &Arc<Connection>,
        flush: Flush,
    ) -> bool {
        connection.send_ack(&self.sets.data, flush).unwrap_or_else(|Broken| {
            self.broke(up, connection);
            false
        })
    }

    /// Closes the connection for requests to `rank`, if there is one.
    pub(crate) fn disconnect(&self, up: &dyn Upcalls, rank: Rank) {
        let connection = self.connections.active(rank).clone();
        if let Some(connection) = connection {
            self.drop_connection(up, &connection);
        }
    }

    /// Stops using the connection with `rank`, which is closed once neither side does; false while
    /// requests are under way, or it is being made.
    pub(crate) fn release_connection(&self, up: &dyn Upcalls, rank: Rank) -> bool {
        let Some(connection) = self.connections.active(rank).clone() else { return true };
        let awaits_answers = || self.requests.has_any_on(connection.token);
        if connection.local {
            if awaits_answers() || !connection.is_drained() {
                return false;
            }
            self.drop_connection(up, &connection);
            return true;
        }
        if connection.fd().is_none() {
            // It is being made: the peer may use it already, and what waits on it goes out first.
            return false;
        }
        if !self.keep_watched(up, rank) {
            // With the connection the news of the peer's end would go.
            return false;
        }
        let released = connection.release(&self.sets.data, awaits_answers);
        if released {
            self.connections.use_another(rank, &connection);
        }
        released
    }

    /// Ends a connection that the peer has released, unless this rank has asked for something on it
    /// that is under way.
    pub(crate) fn let_go(&self, up: &dyn Upcalls, connection: &Connection) {
        let Some(peer) = connection.peer().filter(|_| connection.is_released_by_peer()) else {
            return;
        };
        if !connection.local && !self.keep_watched(up, Rank(peer)) {
            return;
        }
        let awaits_answers = || self.requests.has_any_on(connection.token);
        if connection.let_go(&self.sets.data, awaits_answers) {
            self.connections.use_another(Rank(peer), connection);
        }
    }

    /// The connection with `rank`, made if there is none.
    pub(crate) fn open(&self, up: &dyn Upcalls, rank: Rank) -> Result<Arc<Connection>> {
        up.ranks().check_alive(rank, "a connection to it")?;
        let mut active = self.connections.active(rank);
        if let Some(connection) = active.as_ref() {
            return Ok(Arc::clone(connection));
        }
        let local = up.ranks().is_local(rank);
        let connection = if local {
            Arc::new(Connection::new(self.connections.token(), rank.0, true))
        } else {
            self.connections.between_nodes(rank)
        };
        if local {
            let hello = Frame::Hello { rank: up.ranks().me, token: self.identity.token };
            // There is no socket yet that could be broken.
            let _ = connection.send(&self.sets.data, Outgoing::new(&hello), || ());
            let address = up.ranks().cards.at(rank).listener();
            self.dialing.forget_error(rank);
            let making = self.connections.making();
            let fd = socket::connect(&address)
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
        self.connections.adopt(&self.sets.data, connection)?;
        // One that breaks at once is noticed by the receiving thread.
        let _ = connection.flush(&self.sets.data);
        // A device may have a pair for it already.
        self.connections.note_news();
        self.sets.wakeup.wake();
        up.ranks().wake_own();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
