//! Keepalive connections: idle connections whose end tells that a host is gone, or a rank.
//!
//! The kernel asks the other one each second whether it is there. One serves both ranks, and each
//! rank has one with each node of other machines. A rank of the same machine needs none while there
//! is a connection with it, whose end tells as much; it is watched before that one is let go. A
//! rank that leaves says so on all of them, and nothing else is ever said.

use super::{Again, ConnectPurpose, Connector};
use crate::ids::Rank;
use crate::os::socket::{self, Piece};
use crate::os::tcp;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::dialing::Watch;
use crate::transport::tcp::poll_sets::KEEPALIVES;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// What a rank says that leaves, to those who watch it.
const FAREWELL: u8 = 2;

/// How long who was connected to leaves it to the other side to make the keepalive connection.
const GRACE: Duration = Duration::from_secs(1);

/// A connection whose end tells something.
#[derive(Debug)]
pub(super) struct Keepalive {
    pub(super) fd: OwnedFd,
    /// The rank on the other side.
    pub(super) rank: Rank,
}

/// What one keepalive connection is enough for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Watched {
    /// One of another machine.
    Node(u64),
    /// One of this machine.
    Rank(Rank),
}

impl Tcp<'_> {
    /// What a keepalive connection with `rank` watches.
    pub(super) fn watched_by(self, rank: Rank) -> Watched {
        if self.up.ranks().shares_machine(rank) {
            Watched::Rank(rank)
        } else {
            Watched::Node(self.up.ranks().cards[rank.index()].node)
        }
    }

    /// The ranks of the machine of `rank`.
    fn of_machine(self, rank: Rank) -> impl Fn(Rank) -> bool {
        let cards = &self.up.ranks().cards;
        let machine = cards[rank.index()].machine;
        move |peer: Rank| cards[peer.index()].machine == machine
    }
}

impl Connector {
    /// Whether there is a keepalive connection that watches what one with `rank` would.
    pub(super) fn has_keepalive(&self, tcp: Tcp<'_>, rank: Rank) -> bool {
        self.watched.contains_key(&tcp.watched_by(rank))
    }

    /// Has the host of `rank` watched, with which a connection is made: at once, or after the rank
    /// has had time to see to that itself.
    pub(super) fn watch_host(&mut self, tcp: Tcp<'_>, rank: Rank, at_once: bool) {
        if tcp.up.ranks().shares_machine(rank) || self.has_keepalive(tcp, rank) {
            return;
        }
        let purpose = ConnectPurpose::Keepalive;
        if at_once {
            self.begin(tcp, rank, purpose);
        } else {
            let now = Instant::now();
            self.again.push(Again { at: now + GRACE, rank, purpose, since: now });
        }
    }

    /// A keepalive connection with `rank` has been made, by either side.
    pub(super) fn keep_watch(&mut self, tcp: Tcp<'_>, fd: OwnedFd, rank: Rank) {
        let token = KEEPALIVES + self.number();
        if tcp.table.sets.poll.add(fd.as_fd(), token).is_err() {
            if tcp.up.ranks().shares_machine(rank) && !self.has_keepalive(tcp, rank) {
                tcp.table.watch_settled(tcp.up, rank, Watch::Unavailable);
            }
            return;
        }
        *self.watched.entry(tcp.watched_by(rank)).or_default() += 1;
        self.keepalives.insert(token, Keepalive { fd, rank });
        if tcp.up.ranks().shares_machine(rank) {
            tcp.table.watch_settled(tcp.up, rank, Watch::Made);
        }
    }

    /// One has ended.
    fn end_watch(&mut self, tcp: Tcp<'_>, token: u64) -> Option<Rank> {
        let Keepalive { fd, rank } = self.keepalives.remove(&token)?;
        tcp.table.sets.poll.remove(fd.as_fd());
        let watched = tcp.watched_by(rank);
        if let Some(count) = self.watched.get_mut(&watched) {
            *count -= 1;
            if *count == 0 {
                self.watched.remove(&watched);
                tcp.table.dialing.unwatched(rank);
            }
        }
        Some(rank)
    }

    /// Something came on a keepalive connection: a farewell, or its end.
    pub(super) fn serve_keepalive(&mut self, tcp: Tcp<'_>, token: u64) {
        let Some(keepalive) = self.keepalives.get(&token) else { return };
        let error = tcp::outcome(keepalive.fd.as_fd()).err();
        let said = hear(keepalive.fd.as_fd());
        if said == Heard::Farewell {
            tcp.up.ranks().note_goodbye(keepalive.rank);
        }
        if error.is_none() && said != Heard::End {
            return;
        }
        let Some(rank) = self.end_watch(tcp, token) else { return };
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
        let mut keepalives = self.keepalives.values().filter(|keepalive| keepalive.rank == rank);
        if keepalives.any(|keepalive| hear(keepalive.fd.as_fd()) == Heard::Farewell) {
            tcp.up.ranks().note_goodbye(rank);
        }
    }

    /// A keepalive connection to the host of `rank` has not heard anything. It only asks now and
    /// then; where the host was heard meanwhile on another connection, it is watched again.
    pub(super) fn fell_silent(&mut self, tcp: Tcp<'_>, rank: Rank) {
        let (interval_s, probes) = probes(tcp.table.identity.dead_after);
        let limit = Duration::from_secs(u64::from(interval_s) * u64::from(probes));
        if tcp.table.connections.heard_last(tcp.of_machine(rank)).is_some_and(|ago| ago < limit) {
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
        for keepalive in self.keepalives.values() {
            let pieces = [Piece::of(&[FAREWELL]), Piece::of(&[])];
            // SAFETY: a slice that lives across the call. Who has gone needs to be told nothing;
            // for all others there is room, since nothing else is ever sent.
            let _ = unsafe { socket::send(keepalive.fd.as_fd(), pieces, &[]) };
        }
    }

    /// Watches another rank of the same node, if there is one that is connected.
    fn open_another_keepalive(&mut self, tcp: Tcp<'_>, than: Rank) {
        let ranks = tcp.up.ranks();
        if ranks.shares_machine(than) || self.has_keepalive(tcp, than) {
            return;
        }
        let other = ranks.all().find(|rank| {
            *rank != than
                && tcp.watched_by(*rank) == tcp.watched_by(than)
                && ranks.liveness(*rank) == liveness::JOINED
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
        let host = &self.up.ranks().cards[rank.index()].host;
        log::warn!(
            "host {host} has not answered for {} s",
            self.table.identity.dead_after.as_secs()
        );
        let of_it = self.of_machine(rank);
        for rank in self.up.ranks().all().filter(|rank| of_it(*rank)) {
            self.up.ended(rank);
        }
    }
}

#[cfg(test)]
mod tests;
