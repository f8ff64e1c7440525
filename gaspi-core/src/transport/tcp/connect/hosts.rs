//! Which hosts this rank watches, on behalf of all ranks of its node, and which others watch.
//!
//! Ranks of a node share what they know of ends, so that few keepalive connections between two
//! nodes are enough for all of both. A rank that gets a connection with a node that less than
//! [`WATCHERS`](crate::wire::shared_layout::WATCHERS) of its own watch says in the shared area that
//! it does, and makes a keepalive connection. Neighbours in the tree of news have theirs anyway,
//! and are the first to say so. Whenever an end is known each rank looks at the nodes that it is
//! connected with, and takes the place of a watcher that has ended.
//!
//! A rank that is to watch and gets no answer asks anew each second. Where that has been so for as
//! long as silent hosts are waited for, the host is gone, as if a connection had fallen silent.
//!
//! Invariant: whoever is named in the area has such a connection, is about to make one, or finds
//! out what became of the other side; if it can do neither it hands over, and others look anew.

use super::dials::Dial;
use super::news::Record;
use super::{Again, ConnectPurpose, Connector, GRACE, is_keepalive};
use crate::ids::Rank;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::Tcp;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// How long an attempt to watch may take, and how far apart their beginnings are: as the kernel
/// asks on a connection. Within an attempt it asks ever more rarely.
const ASK: Duration = Duration::from_secs(1);

/// What is known of hosts that are watched, or to be watched.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    /// The nodes that this rank is connected with, or watches for others of its own.
    wanted: BTreeSet<usize>,
    /// As of these [`known_ends`](Record::known_ends).
    seen: Option<(u64, u64)>,
    /// Attempts since there was an answer, by node.
    asked: HashMap<usize, Asked>,
}

/// Attempts one after the other that nothing has answered; none where this rank could not try.
#[derive(Debug, Clone, Copy)]
struct Asked {
    since: Instant,
    last: Instant,
    count: u32,
}

impl Asked {
    fn none(now: Instant) -> Asked {
        Asked { since: now, last: now, count: 0 }
    }
}

impl Hosts {
    /// An attempt begins.
    fn ask(&mut self, node: usize, now: Instant) {
        let asked = self.asked.entry(node).or_insert(Asked::none(now));
        let since = if asked.count == 0 { now } else { asked.since };
        *asked = Asked { since, last: now, count: asked.count + 1 };
    }

    /// When to ask a node anew that has not answered; `None` once it was asked for so long. This
    /// rank itself may have been stopped for most of that time.
    fn again(&self, node: usize, dead_after: Duration, now: Instant) -> Option<Instant> {
        let Asked { since, last, count } = *self.asked.get(&node)?;
        let early = ASK * count < dead_after || now < since + dead_after;
        early.then_some(now.max(last + ASK))
    }
}

impl Connector {
    /// The number of the node of `rank`, if that is on another machine.
    fn node_elsewhere(&self, tcp: Tcp<'_>, rank: Rank) -> Option<usize> {
        let ends = self.ends.as_ref()?;
        (!tcp.up.ranks().shares_machine(rank)).then(|| ends.tree().order().node_of(rank))
    }

    /// Has the host of `rank` watched, with which a connection is made: at once, or after the rank
    /// has had time to see to that itself.
    pub(super) fn watch_host(&mut self, tcp: Tcp<'_>, rank: Rank, at_once: bool) {
        let Some(node) = self.node_elsewhere(tcp, rank) else { return };
        self.hosts.wanted.insert(node);
        if self.has_keepalive(tcp, rank) || tcp.up.ranks().area.is_watched_by_others(node) {
            return;
        }
        if at_once {
            self.begin(tcp, rank, ConnectPurpose::Keepalive);
        } else {
            self.watch_later(rank, GRACE);
        }
    }

    /// Whether this rank, which has no keepalive connection with the node of `rank`, is to make one
    /// now; from then on it says so.
    pub(super) fn is_to_watch(&mut self, tcp: Tcp<'_>, rank: Rank) -> bool {
        let Some(node) = self.node_elsewhere(tcp, rank) else { return true };
        if self.hosts.asked.contains_key(&node) && self.will_ask(tcp, rank) {
            return false;
        }
        let ends = self.ends.as_ref();
        let tells = ends.is_some_and(|ends| ends.is_neighbour(rank) || ends.has_refused(rank));
        if !self.leaves && !tcp.up.ranks().area.claim_watch(node) && !tells {
            return false;
        }
        self.hosts.wanted.insert(node);
        self.hosts.ask(node, Instant::now());
        true
    }

    /// Whether the node of `rank` will be asked anew.
    fn will_ask(&self, tcp: Tcp<'_>, rank: Rank) -> bool {
        let (watched, soon) = (tcp.watched_by(rank), Instant::now() + ASK);
        let lives = |rank| tcp.up.ranks().liveness(rank) == liveness::JOINED;
        let of_it =
            |again: &Again| is_keepalive(&again.purpose) && tcp.watched_by(again.rank) == watched;
        self.again.iter().any(|again| again.at <= soon && of_it(again) && lives(again.rank))
    }

    /// Whether nothing has answered of what was tried in vain. An answer ends a series of attempts
    /// without one.
    pub(super) fn is_silent(&mut self, tcp: Tcp<'_>, dial: &Dial) -> bool {
        let silent = !dial.answered && !dial.lacking;
        let goes_on = silent && matches!(dial.purpose, ConnectPurpose::Keepalive);
        if is_keepalive(&dial.purpose)
            && !goes_on
            && let Some(node) = self.node_elsewhere(tcp, dial.rank)
        {
            self.hosts.asked.remove(&node);
        }
        silent
    }

    /// There is a keepalive connection with `rank`, made by either side.
    pub(super) fn is_watching(&mut self, tcp: Tcp<'_>, rank: Rank) {
        let Some(node) = self.node_elsewhere(tcp, rank) else { return };
        self.hosts.asked.remove(&node);
        if !self.leaves && tcp.up.ranks().area.claim_watch(node) {
            self.hosts.wanted.insert(node);
        }
    }

    /// No keepalive connection with `rank` could be made that was begun then, and `silent` says
    /// that nothing has answered. Whether that has been seen to: it is tried again, or the host is
    /// gone.
    pub(super) fn is_asked_again(
        &mut self,
        tcp: Tcp<'_>,
        rank: Rank,
        (since, silent): (Instant, bool),
    ) -> bool {
        let Some(node) = self.node_elsewhere(tcp, rank) else { return false };
        let (ranks, now) = (tcp.up.ranks(), Instant::now());
        if self.has_keepalive(tcp, rank) || ranks.liveness(rank) != liveness::JOINED {
            self.hosts.asked.remove(&node);
            self.watch_node(tcp, node, None);
            return true;
        }
        if !silent {
            self.cannot_watch_host(tcp, rank, node);
            return false;
        }
        if let Some(at) = self.hosts.again(node, tcp.table.identity.dead_after, now) {
            self.again.push(Again { at, rank, purpose: ConnectPurpose::Keepalive, since });
            return true;
        }
        self.hosts.asked.remove(&node);
        if self.leaves || ranks.area.is_watched_by_others(node) {
            // It may be this rank only that finds no way there.
            return false;
        }
        self.fell_silent(tcp, rank);
        true
    }

    /// This rank cannot watch `node` now, for a reason that says nothing of its host.
    fn cannot_watch_host(&mut self, tcp: Tcp<'_>, rank: Rank, node: usize) {
        let area = &tcp.up.ranks().area;
        let is_neighbour = self.ends.as_ref().is_some_and(|ends| ends.is_neighbour(rank));
        if self.leaves || !(is_neighbour || area.is_watcher(node)) {
            return;
        }
        self.hosts.asked.insert(node, Asked::none(Instant::now()));
        self.watch_later(rank, GRACE);
        area.hand_over_watch(node);
    }

    /// Takes the places of watchers that have ended.
    pub(super) fn follow_watchers(&mut self, tcp: Tcp<'_>) {
        if self.ends.is_none() || self.leaves {
            return;
        }
        let known = tcp.known_ends();
        if self.hosts.seen == Some(known) {
            return;
        }
        self.hosts.seen = Some(known);
        for node in self.hosts.wanted.iter().copied().collect::<Vec<_>>() {
            self.watch_node(tcp, node, None);
        }
    }

    /// Watches another rank of the same node, if there is one that this rank is connected with, or
    /// others rely on it.
    pub(super) fn watch_by_another(&mut self, tcp: Tcp<'_>, than: Rank) {
        if let Some(node) = self.node_elsewhere(tcp, than).filter(|_| !self.leaves) {
            self.watch_node(tcp, node, Some(than));
        }
    }

    /// Watches a node unless enough others do, by a rank with which there is a connection, or,
    /// where others rely on it, any other `than` this.
    fn watch_node(&mut self, tcp: Tcp<'_>, node: usize, than: Option<Rank>) {
        let (Some(ends), ranks) = (&self.ends, tcp.up.ranks()) else { return };
        if ranks.area.is_watched_by_others(node) {
            return;
        }
        let stays =
            |rank: &Rank| ranks.liveness(*rank) == liveness::JOINED && !ranks.is_leaving(*rank);
        let all =
            ends.tree().order().of_node(node).iter().copied().filter(|rank| Some(*rank) != than);
        let mut staying = all.filter(stays);
        let connected = staying.clone().find(|rank| tcp.table.connections.is_established(*rank));
        let relied_on = ranks.area.is_watcher(node);
        match connected.or_else(|| staying.next().filter(|_| relied_on)) {
            Some(rank) => self.begin(tcp, rank, ConnectPurpose::Keepalive),
            // What became of that one is found out elsewhere.
            None if than.is_some() => {}
            None => {
                self.hosts.wanted.remove(&node);
                ranks.area.end_watch(node);
            }
        }
    }
}

/// How long an attempt may take until the host of `rank` answers.
pub(super) fn patience_with(purpose: &ConnectPurpose, tcp: Tcp<'_>, rank: Rank) -> Duration {
    match purpose {
        ConnectPurpose::Keepalive if !tcp.up.ranks().shares_machine(rank) => ASK,
        _ => tcp.table.identity.dead_after,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD_AFTER: Duration = Duration::from_secs(3);

    #[test]
    fn a_host_that_does_not_answer_is_asked_each_second_as_long_as_it_is_waited_for() {
        let (mut hosts, begin) = (Hosts::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        let mut again = |asked_ms, failed_ms| {
            hosts.ask(5, at(asked_ms));
            hosts.again(5, DEAD_AFTER, at(failed_ms))
        };
        // An attempt that fails at once is not repeated at once.
        assert_eq!(again(0, 1000), Some(at(1000)));
        assert_eq!(again(1000, 1010), Some(at(2000)));
        assert_eq!(again(2000, 2010), Some(at(3000)));
        assert_eq!(again(3000, 3010), None);
    }

    #[test]
    fn a_rank_that_was_stopped_itself_asks_as_often() {
        let (mut hosts, begin) = (Hosts::default(), Instant::now());
        let at = |s| begin + Duration::from_secs(s);
        for (asked_s, failed_s) in [(0, 60), (60, 61)] {
            hosts.ask(5, at(asked_s));
            assert_eq!(hosts.again(5, DEAD_AFTER, at(failed_s)), Some(at(failed_s)));
        }
        hosts.ask(5, at(61));
        assert_eq!(hosts.again(5, DEAD_AFTER, at(62)), None);
    }

    #[test]
    fn time_in_which_nothing_could_be_tried_does_not_count() {
        let (mut hosts, begin) = (Hosts::default(), Instant::now());
        hosts.asked.insert(5, Asked::none(begin));
        let later = begin + Duration::from_secs(60);
        hosts.ask(5, later);
        assert_eq!(hosts.again(5, DEAD_AFTER, later + ASK), Some(later + ASK));
        assert_eq!(hosts.asked[&5].since, later);
    }
}
