//! Keepalive connections: idle connections whose end tells that a host is gone, or a rank.
//!
//! The kernel asks the other one each second whether it is there, but not while something that was
//! said is not acknowledged: that it says again, ever more rarely. Then the progress thread judges
//! (`look_for_silence`). One connection serves both ranks. Two ranks of a node have one with each
//! node of other machines that ranks of theirs are connected with ([`hosts`](super::hosts)), and
//! neighbours of the tree of news have them. A rank of the same machine needs none while there is a
//! connection with it, whose end tells as much; it is watched before that one is let go. A rank
//! that leaves says so on all of them. Else only ends are told ([`ends`](super::ends)).

use super::conversation::Conversation;
use super::news::Ends;
use super::{AGAIN, Again, ConnectPurpose, Connector};
use crate::ids::Rank;
use crate::os::socket::{self, Piece};
use crate::os::tcp;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::dialing::Watch;
use crate::transport::tcp::poll_sets::KEEPALIVES;
use crate::wire::keepalive::KeepaliveMessage;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A connection whose end tells something.
#[derive(Debug)]
pub(super) struct Keepalive {
    pub(super) fd: OwnedFd,
    pub(super) conversation: Conversation,
    /// Something was said that the other kernel may not have acknowledged.
    unacknowledged: bool,
}

impl Keepalive {
    pub(super) fn new(fd: OwnedFd, rank: Rank) -> Keepalive {
        // The last bytes of the handshake may be on their way, as long as which the kernel does not
        // ask.
        Keepalive { fd, conversation: Conversation::new(rank), unacknowledged: true }
    }

    /// Sends as much as there is room for. Who has gone needs to be told nothing.
    fn flush(&mut self) {
        let outgoing = self.conversation.outgoing();
        while !outgoing.is_empty() {
            let (pointer, len) = (outgoing.as_mut_ptr(), outgoing.len());
            let pieces = [Piece { pointer, len }, Piece::of(&[])];
            // SAFETY: a buffer that lives across the call.
            match unsafe { socket::send(self.fd.as_fd(), pieces, &[]) } {
                Ok(sent) => {
                    outgoing.drain(..sent);
                    self.unacknowledged = true;
                }
                Err(error) if socket::is_full(&error) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => outgoing.clear(),
            }
        }
    }

    /// Whether all has been sent and acknowledged.
    fn is_settled(&self) -> bool {
        self.conversation.is_sent() && !self.unacknowledged
    }

    /// What has come, and whether the other side has closed.
    fn hear(&mut self) -> (Vec<KeepaliveMessage>, bool) {
        let (mut all, mut bytes) = (Vec::new(), [0u8; 1024]);
        loop {
            let piece = Piece { pointer: bytes.as_mut_ptr(), len: bytes.len() };
            // SAFETY: the array is writable.
            let len = match unsafe { socket::receive_bytes(self.fd.as_fd(), piece) } {
                Ok(0) => return (all, true),
                Ok(len) => len,
                Err(error) => {
                    let open = matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    );
                    return (all, !open);
                }
            };
            // Whoever says other things is not listened to any more.
            if self.conversation.take(&bytes[..len], &mut all).is_err() {
                return (all, true);
            }
        }
    }
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
            Watched::Node(self.up.ranks().cards.at(rank).node())
        }
    }

    /// The ranks of the machine of `rank`.
    fn of_machine(self, rank: Rank) -> impl Fn(Rank) -> bool {
        let cards = &self.up.ranks().cards;
        let machine = cards.at(rank).machine();
        move |peer: Rank| cards.at(peer).machine() == machine
    }
}

impl Connector {
    /// Whether there is a keepalive connection that watches what one with `rank` would. Where this
    /// rank leaves it is to be heard by `rank` itself.
    pub(super) fn has_keepalive(&self, tcp: Tcp<'_>, rank: Rank) -> bool {
        match self.leaves {
            true => self.conversations().any(|of| of.reaches(rank)),
            false => self.watched.contains_key(&tcp.watched_by(rank)),
        }
    }

    /// Makes a keepalive connection with `rank` after some time unless there is one then.
    pub(super) fn watch_later(&mut self, rank: Rank, patience: Duration) {
        let (now, purpose) = (Instant::now(), ConnectPurpose::Keepalive);
        self.again.push(Again { at: now + patience, rank, purpose, since: now });
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
        self.is_watching(tcp, rank);
        let mut keepalive = Keepalive::new(fd, rank);
        if let Some(ends) = &self.ends {
            keepalive.conversation.say(ends.told());
            if self.leaves {
                let before = ends.is_before(rank);
                keepalive.conversation.take_leave(&tcp.own_steps(), before, ends.told());
            }
        }
        self.keepalives.insert(token, keepalive);
        self.flush(token);
        if tcp.up.ranks().shares_machine(rank) {
            tcp.table.watch_settled(tcp.up, rank, Watch::Made);
        }
    }

    /// One has ended.
    fn end_watch(&mut self, tcp: Tcp<'_>, token: u64) -> Option<Rank> {
        let Keepalive { fd, conversation: Conversation { rank, .. }, .. } =
            self.keepalives.remove(&token)?;
        self.unsettled.remove(&token);
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

    /// Something came on a keepalive connection: what is said, or its end.
    pub(super) fn serve_keepalive(&mut self, tcp: Tcp<'_>, token: u64) {
        let Some(keepalive) = self.keepalives.get_mut(&token) else { return };
        let error = tcp::outcome(keepalive.fd.as_fd()).err();
        let (rank, (said, ended)) = (keepalive.conversation.rank, keepalive.hear());
        if let Some(ends) = &self.ends {
            keepalive.conversation.hear(&said, ends.is_before(rank), ends.told().len());
        }
        let (over, leaves) = (error.is_some() || ended, keepalive.conversation.takes_leave);
        if over && leaves {
            // It may be told of others who leave, until this rank closes too.
            keepalive.conversation.closed = true;
            tcp.table.sets.poll.remove(keepalive.fd.as_fd());
        }
        self.flush(token);
        said.into_iter().for_each(|said| self.heard(tcp, rank, said));
        if !over || leaves {
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
            // Its goodbye may still be unread, on another connection, if it can have said it there.
            let elsewhere = self.ends.is_none() || tcp.is_connected(rank);
            let purpose = if elsewhere { ConnectPurpose::Doubt } else { ConnectPurpose::Probe };
            if elsewhere || tcp.up.ranks().liveness(rank) == liveness::JOINED {
                self.begin(tcp, rank, purpose);
            }
            self.watch_by_another(tcp, rank);
        }
    }

    /// Ends keepalive connections of which the other kernel does not acknowledge what was said.
    /// That of this machine needs not be asked.
    pub(super) fn look_for_silence(&mut self, tcp: Tcp<'_>) {
        let (interval_s, probes) = probes(tcp.table.identity.dead_after);
        // As long as the kernel waits where nothing was said, the first second included.
        let patience = Duration::from_secs(1 + u64::from(interval_s) * u64::from(probes));
        let mut silent = Vec::new();
        self.unsettled.retain(|token| {
            let Some(keepalive) = self.keepalives.get_mut(token) else { return false };
            let (fd, of) = (keepalive.fd.as_fd(), &keepalive.conversation);
            keepalive.unacknowledged = !tcp.up.ranks().shares_machine(of.rank)
                && tcp::has_unacknowledged(fd).unwrap_or(false);
            // One that leaves waits for nobody for long.
            let judged = keepalive.unacknowledged && !of.takes_leave;
            if judged && tcp::is_unanswered(fd, patience).unwrap_or(false) {
                silent.push(*token);
            }
            !keepalive.is_settled()
        });
        for token in silent {
            if let Some(rank) = self.end_watch(tcp, token) {
                self.fell_silent(tcp, rank);
            }
        }
    }

    /// Hears what `rank` has said on a keepalive connection of it.
    pub(super) fn hear_farewell(&mut self, tcp: Tcp<'_>, rank: Rank) {
        let all = self.keepalives.values_mut();
        let mut all_said = Vec::new();
        for keepalive in all.filter(|keepalive| keepalive.conversation.rank == rank) {
            let (said, _) = keepalive.hear();
            if let Some(ends) = &self.ends {
                keepalive.conversation.hear(&said, ends.is_before(rank), ends.told().len());
            }
            all_said.extend(said);
        }
        all_said.into_iter().for_each(|said| self.heard(tcp, rank, said));
    }

    /// A keepalive connection to the host of `rank` has not heard anything. It only asks now and
    /// then; where the host was heard meanwhile on another connection, it is watched again.
    pub(super) fn fell_silent(&mut self, tcp: Tcp<'_>, rank: Rank) {
        let (interval_s, probes) = probes(tcp.table.identity.dead_after);
        let limit = Duration::from_secs(u64::from(interval_s) * u64::from(probes));
        if tcp.table.connections.heard_last(tcp.of_machine(rank)).is_some_and(|ago| ago < limit) {
            let host = tcp.up.ranks().host_of(rank);
            log::info!("the watch of host {host} has broken, but the host answers elsewhere");
            // Not at once: where there is no way, that is known before this returns.
            let (since, purpose) = (Instant::now(), ConnectPurpose::KeepaliveAgain);
            self.again.push(Again { at: since + AGAIN, rank, purpose, since });
        } else {
            tcp.host_vanished(rank);
        }
    }

    /// Tells those who watch this rank that it has left properly: some may have no other
    /// connection.
    pub(crate) fn say_farewell(&mut self, tcp: Tcp<'_>) {
        self.leaves = true;
        let steps = tcp.own_steps();
        let ends = self.ends.as_ref();
        let told = ends.map_or([].as_slice(), Ends::told);
        for Keepalive { conversation, .. } in self.keepalives.values_mut() {
            let before = ends.is_some_and(|ends| ends.is_before(conversation.rank));
            conversation.take_leave(&steps, before, told);
        }
        self.flush_all();
    }

    /// Tells all with whom there is a keepalive connection.
    pub(super) fn say_to_all(&mut self, what: &[KeepaliveMessage]) {
        if !what.is_empty() {
            self.keepalives.values_mut().for_each(|one| one.conversation.say(what));
            self.flush_all();
        }
        for token in self.unsettled.iter().copied().collect::<Vec<_>>() {
            self.flush(token);
        }
    }

    /// Ends all keepalive connections for the other side too, also where a forked child holds them.
    pub(crate) fn shut_down(&self) {
        self.keepalives.values().for_each(|keepalive| socket::shut_down(keepalive.fd.as_fd()));
    }

    fn flush_all(&mut self) {
        for token in self.keepalives.keys().copied().collect::<Vec<_>>() {
            self.flush(token);
        }
    }

    /// Sends as much as there is room for.
    fn flush(&mut self, token: u64) {
        let Some(keepalive) = self.keepalives.get_mut(&token) else { return };
        keepalive.flush();
        if keepalive.is_settled() {
            self.unsettled.remove(&token);
        } else {
            self.unsettled.insert(token);
        }
    }

    pub(super) fn conversations(&self) -> impl Iterator<Item = &Conversation> + Clone {
        self.keepalives.values().map(|keepalive| &keepalive.conversation)
    }

    /// Whether somebody has heard that this rank leaves who tells others.
    pub(super) fn is_heard(&self) -> bool {
        self.ends.as_ref().is_some_and(|ends| ends.is_heard(self.conversations()))
    }

    /// Whether this rank, which leaves, has to be heard by others, or to hear what those behind it
    /// say who leave too.
    pub(crate) fn has_to_stay(&self) -> bool {
        let Some(ends) = &self.ends else { return false };
        // Who has connected would take it for dead, and so would those that it has connected to.
        self.has_unauthenticated()
            || self.dials.watches_are_accepted()
            || ends.has_to_stay(self.conversations())
    }
}

/// Whether the other side of a connection on which nothing has to be said has closed.
pub(super) fn has_ended(fd: BorrowedFd<'_>) -> bool {
    let mut byte = [0u8; 1];
    let piece = Piece { pointer: byte.as_mut_ptr(), len: byte.len() };
    // SAFETY: the array is writable.
    match unsafe { socket::receive_bytes(fd, piece) } {
        Ok(len) => len == 0,
        Err(error) => {
            !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        }
    }
}

/// What the kernel can do for an attempt to connect with `rank`; one that cannot be had is done
/// without. An attempt ends where the other machine falls silent in the middle of the handshake,
/// which fits into any window.
pub(super) fn tune(fd: BorrowedFd<'_>, tcp: Tcp<'_>, rank: Rank) {
    let _ = tcp::set_no_delay(fd);
    if !tcp.up.ranks().shares_machine(rank) {
        let _ = tcp::limit_silence(fd, tcp.table.identity.dead_after);
    }
    have_asked(fd, tcp, rank);
}

/// Has the kernel ask whether the machine of `rank` is there, unless it is its own.
pub(super) fn have_asked(fd: BorrowedFd<'_>, tcp: Tcp<'_>, rank: Rank) {
    if !tcp.up.ranks().shares_machine(rank) {
        let (interval_s, probes) = probes(tcp.table.identity.dead_after);
        let _ = tcp::set_keepalive(fd, 1, interval_s, probes);
    }
}

/// The kernel asks so often at most.
const PROBES_MAX: u64 = 127;

/// How many seconds apart, and how often, a host that is silent is asked before it counts as gone:
/// within a time of which the first second passes before the first question, and some before all
/// ranks know.
fn probes(dead_after: Duration) -> (u16, u8) {
    let span_s = dead_after.as_secs().saturating_sub(2).max(1);
    let interval_s = span_s.div_ceil(PROBES_MAX);
    (interval_s as u16, (span_s / interval_s) as u8)
}

impl Tcp<'_> {
    /// Where this rank is in its groups.
    fn own_steps(self) -> Vec<KeepaliveMessage> {
        let me = self.up.ranks().me;
        let steps = self.up.last_steps(me).into_iter();
        steps.map(|last| KeepaliveMessage::Step(me.0, last)).collect()
    }

    /// The host of `rank` does not answer any more.
    fn host_vanished(self, rank: Rank) {
        let host = self.up.ranks().host_of(rank);
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
