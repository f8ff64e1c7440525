//! News of ends in a job whose ranks are not all connected: who has died, and who has left.
//!
//! Each rank keeps a keepalive connection with its parent in a tree of the ranks
//! ([`RankTree`](crate::policy::rank_tree::RankTree)), which it chooses anew after each end. It
//! tells all with whom it has a keepalive connection of each end that it learns of, once, and those
//! with whom it gets one of all ends that it knows. A rank that leaves says so to its neighbours in
//! the tree, and waits until they have heard it. Where several leave at once, each waits for those
//! behind it in the tree, so that one that stays hears of all.
//! [`conversation`](super::conversation) tells who counts on whom. [`news`](super::news) decides;
//! here is what that does to connections and to the record.
//!
//! Invariant: the death of a rank is believed whoever tells it, since death is final for the job. A
//! rank that refuses a connection may have left: the news of that have some time to come.

use super::news::{Due, Ends, Heard, NEWS_LIMIT, Record};
use super::{AGAIN, Again, ConnectPurpose, Connector, EARLIER, GRACE, is_keepalive};
use crate::ids::Rank;
use crate::policy::rank_tree::RankTree;
use crate::ranks::{End, KnownEnds};
use crate::transport::shm::area::liveness;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::dialing::Watch;
use crate::wire::keepalive::KeepaliveMessage;
use crate::wire::message::{GroupMessage, LastStep, Message};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Record for Tcp<'_> {
    fn known_ends(&self) -> (u64, u64) {
        self.up.ranks().known_ends()
    }

    fn ended_since(&self, known: &mut KnownEnds) -> Vec<(Rank, End)> {
        self.up.ranks().ended_since(known)
    }

    fn last_steps(&self, rank: Rank) -> Vec<LastStep> {
        self.up.last_steps(rank)
    }

    fn is_remote(&self, rank: Rank) -> bool {
        let ranks = self.up.ranks();
        u32::from(rank.0) < ranks.size && !ranks.is_local(rank)
    }

    fn takes_part(&self, rank: Rank) -> bool {
        let ranks = self.up.ranks();
        ranks.liveness(rank) == liveness::JOINED && !ranks.is_leaving(rank)
    }
}

impl Connector {
    /// Tells what is news, and sees to the connection with the parent.
    pub(super) fn tell_ends(&mut self, tcp: Tcp<'_>) {
        let Some(mut ends) = self.ends.take() else { return };
        let leaves = self.leaves.then(|| self.conversations());
        let Due { news, parent, children } = ends.due(&tcp, leaves, Instant::now());
        let ends = self.ends.insert(ends);
        let unreachable = ends.is_unreachable();
        for (child, patience) in children {
            // One that has ended before it could connect would be missed by nobody.
            if !self.has_keepalive(tcp, child) {
                self.watch_later(child, patience);
            }
        }
        self.say_to_all(&news);
        for end in news {
            if let KeepaliveMessage::Left(rank) = end {
                tcp.up.leaves(Rank(rank));
            }
        }
        match parent.filter(|_| !self.leaves || !self.is_heard()) {
            Some(parent) if !self.has_keepalive(tcp, parent) => {
                if !unreachable && !self.is_about_to_watch(tcp, parent) {
                    self.begin(tcp, parent, ConnectPurpose::Keepalive);
                }
                if !unreachable {
                    return;
                }
            }
            _ => {}
        }
        if tcp.table.dialing.set_hears_of_ends() {
            tcp.up.ranks().wake_own();
        }
    }

    /// Whether a keepalive connection with the node of `rank` will be tried again at once, with one
    /// that has not ended.
    fn is_about_to_watch(&self, tcp: Tcp<'_>, rank: Rank) -> bool {
        let (watched, soon) = (tcp.watched_by(rank), Instant::now() + AGAIN);
        let of_it = |again: &Again| {
            let lives = tcp.up.ranks().liveness(again.rank) == liveness::JOINED;
            is_keepalive(&again.purpose) && tcp.watched_by(again.rank) == watched && lives
        };
        let ends = self.ends.as_ref();
        let counts = |again: &Again| !ends.is_some_and(|ends| ends.is_from_before(again.since));
        self.again.iter().any(|again| of_it(again) && again.at <= soon && counts(again))
    }

    /// No keepalive connection with `rank` can be made, which has not ended.
    pub(super) fn cannot_watch(&mut self, tcp: Tcp<'_>, rank: Rank, reason: &str) {
        if tcp.up.ranks().shares_machine(rank) {
            tcp.table.watch_settled(tcp.up, rank, Watch::Unavailable);
        }
        let Some(ends) = &mut self.ends else { return };
        if !ends.has_parent(rank) {
            if ends.has_refused(rank) {
                // Who takes it for a parent no more has to find out what became of it.
                self.watch_later(rank, GRACE);
            }
            return;
        }
        if ends.set_unreachable() {
            let host = tcp.up.ranks().host_of(rank);
            log::warn!(
                "news of ends come late: {rank} on {host}, which is to tell them, cannot be \
                 reached: {reason}"
            );
        }
        if !self.again.iter().any(|again| again.rank == rank && is_keepalive(&again.purpose)) {
            self.watch_later(rank, GRACE);
        }
    }

    /// Whether `rank`, which has refused a keepalive connection that was begun then, is asked once
    /// more.
    pub(super) fn is_early(&self, rank: Rank, since: Instant) -> bool {
        let waited = since.elapsed();
        self.ends.as_ref().map_or(waited < AGAIN, |ends| ends.is_early(rank, waited))
    }

    /// Whether `rank` has refused a connection, and nothing has been heard of it since.
    pub(super) fn has_refused(&self, rank: Rank) -> bool {
        self.ends.as_ref().is_some_and(|ends| ends.has_refused(rank))
    }

    /// Whether `rank`, which refuses a connection, may have left without that having been told yet.
    pub(super) fn may_have_left(&mut self, tcp: Tcp<'_>, rank: Rank) -> bool {
        let ends = self.ends.as_mut();
        ends.is_some_and(|ends| ends.may_have_left(rank, &tcp, Instant::now()))
    }

    /// Tells that `rank` has died before this rank knows it: its program may end because of that at
    /// once, and those that hear of its own end are to know why.
    pub(crate) fn pass_on_death(&mut self, tcp: Tcp<'_>, rank: Rank) {
        let ranks = tcp.up.ranks();
        if ranks.liveness(rank) != liveness::JOINED || ranks.is_leaving(rank) {
            return;
        }
        if let Some(died) = self.ends.as_mut().and_then(|ends| ends.tell_early(rank)) {
            self.say_to_all(&[died]);
        }
    }

    /// Whether `rank`, which refuses a connection, may have ended because of a death that this rank
    /// has not heard of yet, which is to be known first: then it is probed again. Its process is
    /// gone, so that whoever started it, or the others, tell that as soon, and in order.
    pub(super) fn waits_for_earlier(&mut self, tcp: Tcp<'_>, rank: Rank, since: Instant) -> bool {
        let (ranks, now) = (tcp.up.ranks(), Instant::now());
        if self.leaves || ranks.is_leaving(rank) || ranks.liveness(rank) != liveness::JOINED {
            return false;
        }
        let waits = now - *self.untold.entry(rank).or_insert(now) < EARLIER;
        if waits {
            let purpose = ConnectPurpose::Probe;
            self.again.push(Again { at: now + EARLIER, rank, purpose, since });
        }
        waits
    }

    /// Finds out later what became of `rank`, which refuses a connection. One for keepalive is not
    /// tried again but probed: meanwhile others of its node are tried, of which one is enough.
    pub(super) fn find_out_later(&mut self, rank: Rank, purpose: ConnectPurpose, since: Instant) {
        let (purpose, time) = match purpose {
            ConnectPurpose::Data(_) => (purpose, AGAIN),
            _ => (ConnectPurpose::Probe, NEWS_LIMIT),
        };
        self.again.push(Again { at: Instant::now() + time, rank, purpose, since });
    }

    /// `rank` refuses a connection of this one, which leaves: it has left too, or died, so that it
    /// needs not hear of it.
    pub(super) fn needs_not_hear(&mut self, rank: Rank) {
        if let Some(ends) = &mut self.ends {
            ends.refuses(rank, Instant::now());
        }
    }

    /// After which time `rank` is tried again, which has ended a connection for this purpose before
    /// anything was proved.
    pub(super) fn pause_with(&mut self, rank: Rank, purpose: &ConnectPurpose) -> Duration {
        let ends = self.ends.as_mut().filter(|_| is_keepalive(purpose));
        ends.map_or(AGAIN, |ends| ends.pause_with(rank))
    }

    /// `rank` has been reached.
    pub(super) fn does_not_refuse(&mut self, rank: Rank) {
        self.untold.remove(&rank);
        if let Some(ends) = &mut self.ends {
            ends.does_not_refuse(rank);
        }
    }

    /// `of` has said something about a rank, or about itself.
    pub(super) fn heard(&mut self, tcp: Tcp<'_>, of: Rank, said: KeepaliveMessage) {
        let told = self.ends.is_some();
        if !told && said != KeepaliveMessage::Farewell {
            return;
        }
        match Heard::of(of, said, &tcp) {
            Some(Heard::Left(rank)) => tcp.has_left(rank, told),
            Some(Heard::Step(rank, last)) => {
                tcp.up.message(rank, Message::Group(GroupMessage::Leaving(last)));
            }
            Some(Heard::Died(rank)) => {
                let host = tcp.up.ranks().host_of(rank);
                log::info!("{of} tells that {rank} on {host} has died");
                self.pass_on_death(tcp, rank);
                tcp.up.ended(rank);
            }
            None => {}
        }
    }
}

impl Tcp<'_> {
    /// Nothing is known of ends yet.
    pub(super) fn no_ends(self) -> Ends {
        let ranks = self.up.ranks();
        let tree = RankTree::of(Arc::clone(ranks.order()), ranks.me);
        Ends::new(ranks.me, ranks.size as usize, tree)
    }

    /// `rank` leaves, as it has said itself, or others have. Where ends are `told`, one with which
    /// there is no connection has left: nothing comes from it any more.
    fn has_left(self, rank: Rank, told: bool) {
        let ranks = self.up.ranks();
        if ranks.is_local(rank) || ranks.liveness(rank) != liveness::JOINED {
            return;
        }
        ranks.note_goodbye(rank);
        if told && !self.is_connected(rank) {
            ranks.area.remote_left(rank);
            self.up.ended(rank);
        }
    }

    /// Whether there is a connection for requests with `rank`, or will be.
    pub(super) fn is_connected(self, rank: Rank) -> bool {
        let connections = &self.table.connections;
        connections.active(rank).is_some() || connections.has(rank)
    }
}
