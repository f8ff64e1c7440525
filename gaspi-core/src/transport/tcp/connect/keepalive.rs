//! Keepalive connections: idle connections whose end tells that a host is gone, or a rank.
//!
//! The kernel asks the other one each second whether it is there. A rank that leaves says so on
//! those by which others watch it, and nothing else is ever said.

use super::{ConnectPurpose, Connector, Dial};
use crate::ids::Rank;
use crate::os::socket::{self, Piece};
use crate::os::tcp;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::Tcp;
use crate::wire::handshake::Purpose;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// What a rank says that leaves, to those who watch it.
const FAREWELL: u8 = 2;

/// A connection whose end tells something.
#[derive(Debug)]
pub(super) struct Keepalive {
    pub(super) fd: OwnedFd,
    /// Whom it watches; `None` for those by which others watch this rank.
    pub(super) rank: Option<Rank>,
}

impl Connector {
    /// Whether a rank of the same node is watched already.
    pub(super) fn has_keepalive(&self, tcp: Tcp<'_>, rank: Rank) -> bool {
        let node = tcp.up.ranks().cards[rank.index()].node;
        let of_node = |rank: Rank| tcp.up.ranks().cards[rank.index()].node == node;
        let watched = self.keepalives.values().filter_map(|keepalive| keepalive.rank).any(of_node);
        let about_to =
            |dial: &Dial| dial.purpose.on_wire() == Purpose::Keepalive && of_node(dial.rank);
        watched || self.dials.values().any(about_to)
    }

    /// Something came on a keepalive connection: a farewell, or its end.
    pub(super) fn serve_keepalive(&mut self, tcp: Tcp<'_>, token: u64) {
        let Some(keepalive) = self.keepalives.get(&token) else { return };
        let error = tcp::outcome(keepalive.fd.as_fd()).err();
        let said = hear(keepalive.fd.as_fd());
        if let (Heard::Farewell, Some(rank)) = (&said, keepalive.rank) {
            tcp.up.ranks().note_goodbye(rank);
        }
        if error.is_none() && said != Heard::End {
            return;
        }
        let Some(keepalive) = self.keepalives.remove(&token) else { return };
        tcp.table.sets.poll.remove(keepalive.fd.as_fd());
        let Some(rank) = keepalive.rank else { return };
        let silent = error.is_some_and(|error| {
            let silence = [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH];
            error.raw_os_error().is_some_and(|number| silence.contains(&number))
        });
        if silent {
            self.fell_silent(tcp, rank);
        } else {
            // Its goodbye may still be unread, on another connection.
            self.begin(tcp, rank, ConnectPurpose::Doubt);
            self.open_another_keepalive(tcp, rank);
        }
    }

    /// Hears what `rank` has said on a keepalive connection of it.
    pub(super) fn hear_farewell(&self, tcp: Tcp<'_>, rank: Rank) {
        let mut keepalives =
            self.keepalives.values().filter(|keepalive| keepalive.rank == Some(rank));
        if keepalives.any(|keepalive| hear(keepalive.fd.as_fd()) == Heard::Farewell) {
            tcp.up.ranks().note_goodbye(rank);
        }
    }

    /// A keepalive connection to the host of `rank` has not heard anything. It only asks now and
    /// then; where the host was heard meanwhile on another connection, it is watched again.
    pub(super) fn fell_silent(&mut self, tcp: Tcp<'_>, rank: Rank) {
        let node = tcp.up.ranks().cards[rank.index()].node;
        let of_node = |peer: Rank| tcp.up.ranks().cards[peer.index()].node == node;
        let (interval_s, probes) = probes(tcp.table.identity.dead_after);
        let limit = Duration::from_secs(u64::from(interval_s) * u64::from(probes));
        if tcp.table.connections.heard_last(of_node).is_some_and(|ago| ago < limit) {
            let host = &tcp.up.ranks().cards[rank.index()].host;
            log::info!("the watch of host {host} has broken, but the host answers elsewhere");
            self.begin(tcp, rank, ConnectPurpose::KeepaliveAgain);
        } else {
            tcp.host_vanished(rank);
        }
    }

    /// Tells those who watch this rank that it has left properly: some may have no other
    /// connection.
    pub(crate) fn say_farewell(&self) {
        for keepalive in self.keepalives.values().filter(|keepalive| keepalive.rank.is_none()) {
            let pieces = [Piece::of(&[FAREWELL]), Piece::of(&[])];
            // SAFETY: a slice that lives across the call. Who has gone needs to be told nothing;
            // for all others there is room, since nothing else is ever sent.
            let _ = unsafe { socket::send(keepalive.fd.as_fd(), pieces, &[]) };
        }
    }

    /// Watches another rank of the same node, if there is one that is connected.
    fn open_another_keepalive(&mut self, tcp: Tcp<'_>, than: Rank) {
        let node = tcp.up.ranks().cards[than.index()].node;
        let other = (0..tcp.up.ranks().size).map(|rank| Rank(rank as u16)).find(|rank| {
            let same = tcp.up.ranks().cards[rank.index()].node == node && *rank != than;
            same && tcp.up.ranks().liveness(*rank) == liveness::JOINED
                && tcp.table.connections.is_established(*rank)
        });
        if let Some(other) = other {
            self.begin(tcp, other, ConnectPurpose::Keepalive);
        }
    }
}

/// What the other side of a connection says on which nothing has to be said.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// Nothing, or what nobody expects.
    Nothing,
    /// That its rank has left the job.
    Farewell,
    /// It has closed.
    End,
}

fn hear(fd: BorrowedFd<'_>) -> Heard {
    let mut byte = [0u8; 1];
    let piece = Piece { pointer: byte.as_mut_ptr(), len: byte.len() };
    // SAFETY: the array is writable.
    match unsafe { socket::receive_bytes(fd, piece) } {
        Ok(0) => Heard::End,
        Ok(_) if byte == [FAREWELL] => Heard::Farewell,
        Ok(_) => Heard::Nothing,
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Heard::Nothing,
            _ => Heard::End,
        },
    }
}

/// Whether the other side has closed.
pub(super) fn has_ended(fd: BorrowedFd<'_>) -> bool {
    hear(fd) == Heard::End
}

/// The kernel asks so often at most.
const PROBES_MAX: u64 = 127;

/// How many seconds apart, and how often, a host that is silent is asked before it counts as gone:
/// within a time of which the first second passes before the first question, and some before all
/// ranks know.
pub(super) fn probes(dead_after: Duration) -> (u16, u8) {
    let span_s = dead_after.as_secs().saturating_sub(2).max(1);
    let interval_s = span_s.div_ceil(PROBES_MAX);
    (interval_s as u16, (span_s / interval_s) as u8)
}

impl Tcp<'_> {
    /// The host of `rank` does not answer any more.
    fn host_vanished(self, rank: Rank) {
        let (node, host) =
            (self.up.ranks().cards[rank.index()].node, &self.up.ranks().cards[rank.index()].host);
        log::warn!(
            "host {host} has not answered for {} s",
            self.table.identity.dead_after.as_secs()
        );
        for card in self.up.ranks().cards.iter().filter(|card| card.node == node) {
            self.up.ended(card.rank);
        }
    }
}

#[cfg(test)]
mod tests;
