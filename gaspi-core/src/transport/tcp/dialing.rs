//! What is to be connected to, and what is known of the way there.
//!
//! Any thread asks for a connection; the progress thread makes it, and writes down by which address
//! a rank is reached, or why it is not.

use crate::ids::Rank;
use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::transport::tcp::connection::Connection;
use crate::wire::handshake::Purpose;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// What a connection is wanted for.
#[derive(Debug, Clone)]
pub(crate) enum ConnectPurpose {
    /// To carry frames.
    Data(Arc<Connection>),
    /// To be told by its end that the peer's host is gone.
    Keepalive,
    /// The same once the former keepalive connection has fallen silent, unlike others with that
    /// host.
    KeepaliveAgain,
    /// To find out whether the peer lives.
    Probe,
    /// The same, but not at once.
    Doubt,
    /// None yet: what nobody answers is sent again, which asks for one where there is something.
    Unsent,
}

impl ConnectPurpose {
    pub(super) fn on_wire(&self) -> Purpose {
        match self {
            ConnectPurpose::Data(_) | ConnectPurpose::Unsent => Purpose::Data,
            ConnectPurpose::Keepalive | ConnectPurpose::KeepaliveAgain => Purpose::Keepalive,
            ConnectPurpose::Probe | ConnectPurpose::Doubt => Purpose::Probe,
        }
    }
}

/// Connections to ranks of other nodes that have to be made, and how these ranks are reached.
#[derive(Debug, Default)]
pub(crate) struct Dialing {
    wanted: Mutex<Vec<(Rank, ConnectPurpose)>>,
    addresses: Mutex<HashMap<Rank, SocketAddr>>,
    /// Why ranks cannot be reached.
    last_errors: Mutex<HashMap<Rank, String>>,
    /// Ranks with which no connection could be made for what waited on it.
    unsent: Mutex<HashMap<Rank, Unsent>>,
    /// Ranks of this machine with which there is a keepalive connection, or, as yet, shall be one.
    watches: Mutex<HashMap<Rank, Watch>>,
    /// Whether this rank hears of ends along the tree, or cannot.
    hears_of_ends: AtomicBool,
}

/// What waited on connections that could not be made, since there was one last.
#[derive(Debug, Clone, Copy, Default)]
struct Unsent {
    /// It has not been sent again.
    waits: bool,
    failures: u32,
}

/// A keepalive connection with a rank of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    /// Nobody has asked for it before.
    New,
    Wanted,
    Made,
    /// This side lacks what it takes, or the peer does not answer.
    Unavailable,
}

impl Dialing {
    /// `rank` is to be connected to.
    pub(super) fn want(&self, rank: Rank, purpose: ConnectPurpose) {
        self.wanted.lock().push((rank, purpose));
    }

    /// What is to be connected to.
    pub(super) fn take_wanted(&self) -> Vec<(Rank, ConnectPurpose)> {
        std::mem::take(&mut self.wanted.lock())
    }

    /// What was to be sent to `rank` is lost with the attempt to connect to it. How many attempts
    /// have failed so since there was a connection.
    pub(super) fn note_unsent(&self, rank: Rank) -> u32 {
        let mut unsent = self.unsent.lock();
        let of_rank = unsent.entry(rank).or_default();
        of_rank.waits = true;
        of_rank.failures = of_rank.failures.saturating_add(1);
        of_rank.failures
    }

    /// Whether something was lost so since the last call.
    pub(super) fn take_unsent(&self, rank: Rank) -> bool {
        let mut unsent = self.unsent.lock();
        unsent.get_mut(&rank).is_some_and(|of_rank| std::mem::take(&mut of_rank.waits))
    }

    /// The same where there is a connection now.
    pub(super) fn take_unsent_as_connected(&self, rank: Rank) -> bool {
        self.unsent.lock().remove(&rank).is_some_and(|of_rank| of_rank.waits)
    }

    /// Asks whether `rank` is watched, and takes note that it shall be.
    pub(super) fn watch(&self, rank: Rank) -> Watch {
        let mut watches = self.watches.lock();
        let known = watches.get(&rank).copied().unwrap_or(Watch::New);
        if known == Watch::New {
            watches.insert(rank, Watch::Wanted);
        }
        known
    }

    /// `rank` is watched from now on, or cannot be.
    pub(super) fn settle_watch(&self, rank: Rank, watch: Watch) {
        self.watches.lock().insert(rank, watch);
    }

    /// `rank` is not watched, and has to be asked for again.
    pub(super) fn unwatched(&self, rank: Rank) {
        self.watches.lock().remove(&rank);
    }

    /// The connection by which this rank hears of ends is made, is not needed, or cannot be made;
    /// whether that is news.
    pub(super) fn set_hears_of_ends(&self) -> bool {
        !self.hears_of_ends.swap(true, Ordering::AcqRel)
    }

    /// Whether that has been settled.
    pub(crate) fn hears_of_ends(&self) -> bool {
        self.hears_of_ends.load(Ordering::Acquire)
    }

    /// How `rank` is reached from now on.
    pub(super) fn set_address(&self, rank: Rank, endpoint: SocketAddr) {
        self.addresses.lock().insert(rank, endpoint);
        self.forget_error(rank);
    }

    /// How `rank` is reached.
    pub(crate) fn address(&self, rank: Rank) -> Option<SocketAddr> {
        self.addresses.lock().get(&rank).copied()
    }

    /// Why `rank` could not be reached.
    pub(super) fn set_last_error(&self, rank: Rank, reason: String) {
        self.last_errors.lock().insert(rank, reason);
    }

    /// Whether some ranks could not be reached.
    pub(crate) fn has_errors(&self) -> bool {
        !self.last_errors.lock().is_empty()
    }

    /// Why `rank` could not be reached last.
    pub(crate) fn last_error(&self, rank: Rank) -> Option<String> {
        self.last_errors.lock().get(&rank).cloned()
    }

    /// `rank` has been reached, or is tried anew.
    pub(super) fn forget_error(&self, rank: Rank) {
        self.last_errors.lock().remove(&rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_until_there_is_a_connection() {
        let (dialing, rank) = (Dialing::default(), Rank(3));
        assert!(!dialing.take_unsent(rank) && !dialing.take_unsent_as_connected(rank));
        assert_eq!(dialing.note_unsent(rank), 1);
        assert!(dialing.take_unsent(rank) && !dialing.take_unsent(rank));
        assert_eq!([dialing.note_unsent(rank), dialing.note_unsent(Rank(4))], [2, 1]);
        assert!(dialing.take_unsent_as_connected(rank) && !dialing.take_unsent(rank));
        assert_eq!(dialing.note_unsent(rank), 1);
    }
}
