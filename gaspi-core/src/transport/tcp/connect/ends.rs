//! News of ends in a job whose ranks are not all connected: who has died, and who has left.
//!
//! Each rank keeps a keepalive connection with its parent in a tree of the ranks
//! ([`RankTree`]), which it chooses anew after each end. It tells all with whom it has a keepalive
//! connection of each end that it learns of, once, and those with whom it gets one of all ends that
//! it knows. A rank that leaves says so to its neighbours in the tree, and waits until they have
//! heard it. Where several leave at once, each waits for those behind it in the tree, so that one
//! that stays hears of all.
//!
//! Invariant: the death of a rank is believed whoever tells it, since death is final for the job. A
//! rank that refuses a connection may have left: the news of that have [`NEWS_LIMIT`] to come.

use super::{Again, ConnectPurpose, Connector, GRACE, is_keepalive};
use crate::ids::Rank;
use crate::policy::rank_tree::RankTree;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::Tcp;
use crate::wire::keepalive::KeepaliveMessage;
use crate::wire::message::{GroupMessage, Message};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long the news may take that a rank has left which refuses a connection.
const NEWS_LIMIT: Duration = Duration::from_millis(500);

/// How many ranks that refuse a connection one that leaves tries at once, and how many milliseconds
/// apart further ones while it waits for others to connect to it: so many that it misses none in a
/// job of this size, and in a larger one no more than it costs where all leave on few cores.
const TRIES: usize = 64;
const TRY_MS: u128 = 10;

/// How long a rank that is in the place of one that has ended may take to connect.
const REPLACED: Duration = Duration::from_millis(300);

/// What is known and told of ends.
#[derive(Debug)]
pub(super) struct Ends {
    tree: RankTree,
    /// With whom this rank keeps a connection.
    parent: Option<Rank>,
    /// Who should have made one with this rank, until that is seen to.
    children: Vec<Rank>,
    /// As of these [`known_ends`](crate::ranks::Ranks::known_ends).
    seen: Option<(u64, u64)>,
    /// What has been told, in this order, and of whom.
    told: Vec<KeepaliveMessage>,
    is_told: Vec<bool>,
    /// Of how many that is.
    ended: usize,
    /// The parent cannot be reached, and is tried again now and then.
    unreachable: bool,
    /// Since when ranks refuse connections. None of them is a parent.
    refusing: HashMap<Rank, Instant>,
    /// This rank leaves, and has had no parent.
    search: Option<Search>,
}

/// How a rank that leaves finds one that it can tell so.
#[derive(Debug)]
struct Search {
    since: Instant,
    /// Whom it tries, those first that wait for most others when they leave.
    order: Vec<Rank>,
}

impl Ends {
    /// Nothing is known yet.
    pub(super) fn new(tcp: Tcp<'_>) -> Ends {
        let ranks = tcp.up.ranks();
        let node_of: Vec<u64> = ranks.cards.iter().map(|card| card.node()).collect();
        Ends {
            tree: RankTree::new(ranks.me, &node_of),
            parent: None,
            children: Vec::new(),
            seen: None,
            told: Vec::new(),
            is_told: vec![false; node_of.len()],
            ended: 0,
            unreachable: false,
            refusing: HashMap::new(),
            search: None,
        }
    }

    /// All that has been told, for those who have not heard it.
    pub(super) fn told(&self) -> &[KeepaliveMessage] {
        &self.told
    }

    /// Takes note of what has changed, which is to be told from now on.
    fn learn(&mut self, tcp: Tcp<'_>) -> Vec<KeepaliveMessage> {
        let ranks = tcp.up.ranks();
        let known = ranks.known_ends();
        if self.seen == Some(known) {
            return Vec::new();
        }
        self.seen = Some(known);
        let mut news = Vec::new();
        for rank in ranks.all().filter(|rank| *rank != ranks.me) {
            let end = match ranks.liveness(rank) {
                liveness::DEAD => KeepaliveMessage::Died(rank.0),
                liveness::LEFT => KeepaliveMessage::Left(rank.0),
                _ if ranks.is_leaving(rank) => KeepaliveMessage::Left(rank.0),
                _ => continue,
            };
            if std::mem::replace(&mut self.is_told[rank.index()], true) {
                continue;
            }
            self.ended += 1;
            if end == KeepaliveMessage::Left(rank.0) {
                let steps = tcp.up.last_steps(rank).into_iter();
                news.extend(steps.map(|last| KeepaliveMessage::Step(rank.0, last)));
            }
            news.push(end);
        }
        self.told.extend_from_slice(&news);
        self.choose_parent();
        news
    }

    /// Whether rank `a` comes before `b`.
    pub(super) fn is_before(&self, a: Rank, b: Rank) -> bool {
        self.tree.is_before(a, b)
    }

    /// Whether some live, as far as is known, and may be connected with.
    pub(super) fn others_live(&self) -> bool {
        let refusing = self.refusing.keys().filter(|rank| !self.is_told[rank.index()]).count();
        self.ended + refusing + 1 < self.is_told.len() && !self.unreachable
    }

    /// Whom this rank, which leaves, tells so where it has no parent.
    fn first_that_lives(&mut self, me: Rank) -> Option<Rank> {
        let begin = || Search { since: Instant::now(), order: self.tree.highest_first() };
        let search = self.search.get_or_insert_with(begin);
        let further = search.since.elapsed().as_millis() / TRY_MS;
        if self.refusing.len() >= TRIES + further as usize {
            return None;
        }
        let may_live = |rank: &&Rank| {
            **rank != me && !self.is_told[rank.index()] && !self.refusing.contains_key(rank)
        };
        search.order.iter().find(may_live).copied()
    }

    fn choose_parent(&mut self) {
        let lives = |rank: Rank| !self.is_told[rank.index()] && !self.refusing.contains_key(&rank);
        self.parent = self.tree.parent(lives);
        self.children = self.tree.children(lives);
        self.unreachable = false;
    }
}

impl Connector {
    /// Tells what is news, and sees to the connection with the parent.
    pub(super) fn tell_ends(&mut self, tcp: Tcp<'_>) {
        let Some(ends) = &mut self.ends else { return };
        let news = ends.learn(tcp);
        let (parent, unreachable) = (ends.parent, ends.unreachable);
        let parent = match parent {
            None if self.leaves => ends.first_that_lives(tcp.up.ranks().me),
            parent => parent,
        };
        let children = std::mem::take(&mut ends.children);
        let patience = if ends.told.is_empty() { GRACE } else { REPLACED };
        for child in children {
            // One that has ended before it could connect would be missed by nobody.
            if !self.leaves && !self.has_keepalive(tcp, child) {
                self.watch_later(child, patience);
            }
        }
        self.say_to_all(&news);
        for end in news {
            if let KeepaliveMessage::Left(rank) = end {
                tcp.up.leaves(Rank(rank));
            }
        }
        match parent.filter(|_| !self.leaves || !self.is_heard(tcp)) {
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

    /// Whether `rank` comes before this one in the tree.
    pub(super) fn is_before(&self, tcp: Tcp<'_>, rank: Rank) -> bool {
        self.ends.as_ref().is_some_and(|ends| ends.is_before(rank, tcp.up.ranks().me))
    }

    /// Whether a keepalive connection with `rank` will be tried again at once.
    fn is_about_to_watch(&self, tcp: Tcp<'_>, rank: Rank) -> bool {
        let (watched, soon) = (tcp.watched_by(rank), Instant::now() + super::AGAIN);
        let of_it =
            |again: &Again| is_keepalive(&again.purpose) && tcp.watched_by(again.rank) == watched;
        self.again.iter().any(|again| of_it(again) && again.at <= soon)
    }

    /// No keepalive connection with `rank` can be made, which has not ended.
    pub(super) fn cannot_watch(&mut self, tcp: Tcp<'_>, rank: Rank, reason: &str) {
        let Some(ends) = &mut self.ends else { return };
        if ends.parent != Some(rank) {
            if ends.refusing.contains_key(&rank) {
                // Who takes it for a parent no more has to find out what became of it.
                self.watch_later(rank, GRACE);
            }
            return;
        }
        if !std::mem::replace(&mut ends.unreachable, true) {
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

    /// Whether `rank` has refused a connection, and nothing has been heard of it since.
    pub(super) fn has_refused(&self, rank: Rank) -> bool {
        self.ends.as_ref().is_some_and(|ends| ends.refusing.contains_key(&rank))
    }

    /// Whether `rank`, which refuses a connection, may have left without that having been told yet.
    pub(super) fn may_have_left(&mut self, tcp: Tcp<'_>, rank: Rank) -> bool {
        let Some(ends) = &mut self.ends else { return false };
        let ranks = tcp.up.ranks();
        if ranks.liveness(rank) != liveness::JOINED || ranks.is_leaving(rank) {
            return false;
        }
        if let Some(since) = ends.refusing.get(&rank) {
            let may = since.elapsed() < NEWS_LIMIT;
            if !may {
                ends.refusing.remove(&rank);
            }
            return may;
        }
        ends.refusing.insert(rank, Instant::now());
        ends.choose_parent();
        true
    }

    /// `rank` refuses a connection of this one, which leaves: it has left too, or died, so that it
    /// needs not hear of it.
    pub(super) fn needs_not_hear(&mut self, rank: Rank) {
        if let Some(ends) = &mut self.ends {
            ends.refusing.insert(rank, Instant::now());
            ends.choose_parent();
        }
    }

    /// `rank` has been reached.
    pub(super) fn does_not_refuse(&mut self, rank: Rank) {
        if let Some(ends) = &mut self.ends
            && ends.refusing.remove(&rank).is_some()
        {
            ends.choose_parent();
        }
    }

    /// `of` has said something about a rank, or about itself.
    pub(super) fn heard(&mut self, tcp: Tcp<'_>, of: Rank, said: KeepaliveMessage) {
        let ranks = tcp.up.ranks();
        let known = |rank: u16| {
            let rank = Rank(rank);
            let other = u32::from(rank.0) < ranks.size && rank != ranks.me;
            // Of the ranks of its node each one knows by itself.
            (other && !ranks.is_local(rank)).then_some(rank)
        };
        match said {
            KeepaliveMessage::Farewell => tcp.has_left(of, self.ends.is_some()),
            _ if self.ends.is_none() => {}
            KeepaliveMessage::Step(rank, last) => {
                if let Some(rank) = known(rank) {
                    let leaving = GroupMessage::Leaving(last);
                    tcp.up.message(rank, Message::Group(leaving));
                }
            }
            KeepaliveMessage::Left(rank) => {
                if let Some(rank) = known(rank) {
                    tcp.has_left(rank, true);
                }
            }
            KeepaliveMessage::Died(rank) => {
                if let Some(rank) = known(rank)
                    && ranks.liveness(rank) == liveness::JOINED
                    && !ranks.is_leaving(rank)
                {
                    log::info!("{of} tells that {rank} on {} has died", ranks.host_of(rank));
                    tcp.up.ended(rank);
                }
            }
        }
    }
}

impl Tcp<'_> {
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
