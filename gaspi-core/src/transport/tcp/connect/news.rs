//! What a rank knows and has told of ends, and with whom it keeps a connection for that: decisions
//! only. [`ends`](super::ends) carries them out; tests play jobs of any size with them.
//!
//! Invariant: a rank tells an end once to each with whom it has a keepalive connection, and its
//! connections are those of a tree, so that an end takes two messages for each rank.

use super::conversation::Conversation;
use super::{AGAIN, GRACE};
use crate::ids::Rank;
use crate::policy::rank_tree::RankTree;
use crate::ranks::{End, KnownEnds};
use crate::wire::keepalive::KeepaliveMessage;
use crate::wire::message::LastStep;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// How long the news may take that a rank has left which refuses a connection.
pub(super) const NEWS_LIMIT: Duration = Duration::from_millis(500);

/// How many ranks that refuse a connection one that leaves tries at once, and how many milliseconds
/// apart further ones. Where all leave one of them may be left that has heard of few: it misses
/// nobody in a job of this size, and does not take the whole second for it.
const TRIES: usize = 1_024;
const TRY_MS: u128 = 1;

/// How long a rank that is in the place of one that has ended may take to connect.
const REPLACED: Duration = Duration::from_millis(300);

/// The record of ends, which ranks of a node share in part.
pub(super) trait Record {
    /// Two numbers of which one is another one whenever there is a further end.
    fn known_ends(&self) -> (u64, u64);

    /// The others that are known to have ended and were not given as `known` already, in order.
    fn ended_since(&self, known: &mut KnownEnds) -> Vec<(Rank, End)>;

    /// Where a rank that leaves is in its groups.
    fn last_steps(&self, rank: Rank) -> Vec<LastStep>;

    /// Whether there is such a rank, of another node.
    fn is_remote(&self, rank: Rank) -> bool;

    /// Whether it takes part, as far as is known.
    fn takes_part(&self, rank: Rank) -> bool;
}

/// What is due at a time.
#[derive(Debug)]
pub(super) struct Due {
    /// To be said to all with whom there is a keepalive connection.
    pub(super) news: Vec<KeepaliveMessage>,
    /// With whom there should be one.
    pub(super) parent: Option<Rank>,
    /// Who should have made one with this rank that long from now.
    pub(super) children: Vec<(Rank, Duration)>,
}

/// What is to be believed of what another rank says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Died(Rank),
    Left(Rank),
    /// Where a rank that leaves is in a group.
    Step(Rank, LastStep),
}

impl Heard {
    /// Of what `of` says, what is neither nonsense nor known better here: of the ranks of its node
    /// each one knows by itself. That `of` leaves is for it to say.
    pub(super) fn of(of: Rank, said: KeepaliveMessage, record: &impl Record) -> Option<Heard> {
        let remote = |rank| Some(Rank(rank)).filter(|rank| record.is_remote(*rank));
        match said {
            KeepaliveMessage::Farewell => Some(Heard::Left(of)),
            KeepaliveMessage::Heard => None,
            KeepaliveMessage::Step(rank, last) => Some(Heard::Step(remote(rank)?, last)),
            KeepaliveMessage::Left(rank) => remote(rank).map(Heard::Left),
            KeepaliveMessage::Died(rank) => {
                remote(rank).filter(|rank| record.takes_part(*rank)).map(Heard::Died)
            }
        }
    }
}

/// What is known and told of ends.
#[derive(Debug)]
pub(super) struct Ends {
    me: Rank,
    size: usize,
    tree: RankTree,
    /// With whom this rank keeps a connection.
    parent: Option<Rank>,
    /// Who should have made one with this rank, until that is seen to.
    children: Vec<Rank>,
    /// As of these [`known_ends`](Record::known_ends).
    seen: Option<(u64, u64)>,
    known: KnownEnds,
    /// What has been told, in this order, and of whom.
    told: Vec<KeepaliveMessage>,
    is_told: HashMap<Rank, End>,
    /// The parent cannot be reached, and is tried again now and then.
    unreachable: bool,
    /// Since when ranks refuse connections. None of them is a parent.
    refusing: HashMap<Rank, Instant>,
    /// Since when this rank leaves.
    leaves_since: Option<Instant>,
    /// Who has ended a connection since then before anything was proved.
    turned_away_by: HashSet<Rank>,
    /// It leaves, and has had no parent.
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
    /// Nothing is known yet, in a job of so many.
    pub(super) fn new(me: Rank, size: usize, tree: RankTree) -> Ends {
        Ends {
            me,
            size,
            tree,
            parent: None,
            children: Vec::new(),
            seen: None,
            known: KnownEnds::default(),
            told: Vec::new(),
            is_told: HashMap::new(),
            unreachable: false,
            refusing: HashMap::new(),
            leaves_since: None,
            turned_away_by: HashSet::new(),
            search: None,
        }
    }

    /// What is due now. `leaves` are all with whom this rank has keepalive connections where it
    /// leaves, none where it stays.
    pub(super) fn due<'a>(
        &mut self,
        record: &impl Record,
        leaves: Option<impl Iterator<Item = &'a Conversation>>,
        now: Instant,
    ) -> Due {
        let news = self.learn(record);
        let (parent, leaves) = match leaves {
            Some(all) => (self.next_to_tell(all, now), true),
            None => (self.parent, false),
        };
        let children = std::mem::take(&mut self.children).into_iter().filter(|_| !leaves);
        let children = children.map(|child| (child, self.patience(child))).collect();
        Due { news, parent, children }
    }

    /// How long a child may take to connect.
    fn patience(&self, child: Rank) -> Duration {
        match self.told.is_empty() {
            // All of its node may have ended: it may not be there to connect.
            _ if self.is_doubtful(child) => Duration::ZERO,
            true => GRACE,
            false => REPLACED,
        }
    }

    /// Whether another rank of its node refuses connections, and nobody has said why.
    fn is_doubtful(&self, rank: Rank) -> bool {
        let mut refusing = self.refusing.keys().filter(|other| !self.is_told.contains_key(*other));
        refusing.any(|other| *other != rank && self.tree.are_beside(*other, rank))
    }

    /// Whether `rank`, which has refused a connection that was begun so long ago, is asked once
    /// more: that may have been the one of a connection which is about to be used. Where others
    /// refuse too, and nobody has said why, each of them would take that time, and those that stay
    /// would find each other too late.
    pub(super) fn is_early(&self, rank: Rank, waited: Duration) -> bool {
        let mut others = self.refusing.keys().filter(|other| **other != rank);
        waited < AGAIN && others.all(|other| self.is_told.contains_key(other))
    }

    /// Takes note of what has changed, which is to be told from now on.
    fn learn(&mut self, record: &impl Record) -> Vec<KeepaliveMessage> {
        let known = record.known_ends();
        if self.seen == Some(known) {
            return Vec::new();
        }
        self.seen = Some(known);
        let mut news = Vec::new();
        for (rank, end) in record.ended_since(&mut self.known) {
            if self.is_told.contains_key(&rank) {
                continue;
            }
            self.is_told.insert(rank, end);
            news.extend(match end {
                End::Died => vec![KeepaliveMessage::Died(rank.0)],
                End::Left => {
                    let steps = record.last_steps(rank).into_iter();
                    let steps = steps.map(|last| KeepaliveMessage::Step(rank.0, last));
                    steps.chain([KeepaliveMessage::Left(rank.0)]).collect()
                }
            });
        }
        self.told.extend_from_slice(&news);
        self.choose_parent();
        news
    }

    /// `rank` is about to be known to have died: what is to be told before, unless it was.
    pub(super) fn tell_early(&mut self, rank: Rank) -> Option<KeepaliveMessage> {
        if self.is_told.contains_key(&rank) {
            return None;
        }
        self.is_told.insert(rank, End::Died);
        let died = KeepaliveMessage::Died(rank.0);
        self.told.push(died);
        Some(died)
    }

    /// All that has been told, for those who have not heard it.
    pub(super) fn told(&self) -> &[KeepaliveMessage] {
        &self.told
    }

    /// Whether `rank` comes before this one in the tree.
    pub(super) fn is_before(&self, rank: Rank) -> bool {
        self.tree.is_before(rank, self.me)
    }

    /// Whether some live, as far as is known, and may be connected with.
    fn others_live(&self) -> bool {
        let refusing = self.refusing.keys().filter(|rank| !self.is_told.contains_key(rank)).count();
        self.is_told.len() + refusing + 1 < self.size && !self.unreachable
    }

    /// With whom this rank, which leaves, is to be connected: with another one only once all with
    /// whom it is have ended that, or did not for some time. One of them may stay, or be a parent
    /// that leaves and takes the news along; and those behind it tell who else leaves, and needs
    /// not be tried. So if all leave but a few, the first one of all tells one of these of all.
    fn next_to_tell<'a>(
        &mut self,
        mut all: impl Iterator<Item = &'a Conversation>,
        now: Instant,
    ) -> Option<Rank> {
        let since = *self.leaves_since.get_or_insert(now);
        let waits = now.saturating_duration_since(since) < REPLACED && all.any(|of| !of.closed);
        match self.parent {
            _ if waits => None,
            None => self.first_that_lives(now),
            parent => parent,
        }
    }

    /// Whom this rank tries where it has no parent.
    fn first_that_lives(&mut self, now: Instant) -> Option<Rank> {
        let begin = || Search { since: now, order: self.tree.highest_first() };
        let search = self.search.get_or_insert_with(begin);
        let further = now.saturating_duration_since(search.since).as_millis() / TRY_MS;
        if self.refusing.len() >= TRIES + further as usize {
            return None;
        }
        let may_live = |rank: &&Rank| {
            **rank != self.me
                && !self.is_told.contains_key(*rank)
                && !self.refusing.contains_key(rank)
        };
        search.order.iter().find(may_live).copied()
    }

    /// Where the ranks are.
    pub(super) fn tree(&self) -> &RankTree {
        &self.tree
    }

    /// Whether this rank is to have a connection of its own with `rank`.
    pub(super) fn is_neighbour(&self, rank: Rank) -> bool {
        self.has_parent(rank) || self.tree.children(|rank| self.may_be_told(rank)).contains(&rank)
    }

    /// Whether `rank` lives, as far as is known, and does not refuse connections.
    fn may_be_told(&self, rank: Rank) -> bool {
        !self.is_told.contains_key(&rank) && !self.refusing.contains_key(&rank)
    }

    fn choose_parent(&mut self) {
        let parent = self.tree.parent(|rank| self.may_be_told(rank));
        let children = self.tree.children(|rank| self.may_be_told(rank));
        (self.parent, self.children) = (parent, children);
        self.unreachable = false;
    }

    /// Whether `rank` is the one with whom this rank keeps a connection.
    pub(super) fn has_parent(&self, rank: Rank) -> bool {
        self.parent == Some(rank)
    }

    /// Whether there can be no connection with the parent as yet.
    pub(super) fn is_unreachable(&self) -> bool {
        self.unreachable
    }

    /// The parent cannot be reached; whether that is news.
    pub(super) fn set_unreachable(&mut self) -> bool {
        !std::mem::replace(&mut self.unreachable, true)
    }

    /// Whether `rank` has refused a connection, and nothing has been heard of it since.
    pub(super) fn has_refused(&self, rank: Rank) -> bool {
        self.refusing.contains_key(&rank)
    }

    /// Whether `rank`, which refuses a connection, may have left without that having been told yet.
    pub(super) fn may_have_left(&mut self, rank: Rank, record: &impl Record, now: Instant) -> bool {
        if !record.takes_part(rank) {
            return false;
        }
        if let Some(since) = self.refusing.get(&rank) {
            let may = now.saturating_duration_since(*since) < NEWS_LIMIT;
            if !may {
                self.refusing.remove(&rank);
            }
            return may;
        }
        self.refuses(rank, now);
        true
    }

    /// `rank` refuses a connection.
    pub(super) fn refuses(&mut self, rank: Rank, now: Instant) {
        self.refusing.insert(rank, now);
        if self.search.is_none() {
            self.choose_parent();
        }
    }

    /// Whether what was begun then is from before this rank began to leave. It waits for no second
    /// try of that.
    pub(super) fn is_from_before(&self, begun: Instant) -> bool {
        self.leaves_since.is_some_and(|since| begun < since)
    }

    /// After which time a keepalive connection with `rank` is tried again, which has ended one
    /// before anything was proved. One that does so while this rank leaves has left too, as a rule,
    /// and refuses the next one.
    pub(super) fn pause_with(&mut self, rank: Rank) -> Duration {
        let is_first = self.leaves_since.is_some() && self.turned_away_by.insert(rank);
        if is_first { Duration::ZERO } else { AGAIN }
    }

    /// `rank` has been reached.
    pub(super) fn does_not_refuse(&mut self, rank: Rank) {
        if self.refusing.remove(&rank).is_some() {
            self.choose_parent();
        }
    }

    /// Whether somebody has heard that this rank leaves who tells others, of those with whom it has
    /// keepalive connections. What one has said that has died meanwhile does not count.
    pub(super) fn is_heard<'a>(&self, mut all: impl Iterator<Item = &'a Conversation>) -> bool {
        all.any(|of| of.is_heard() && self.is_told.get(&of.rank) != Some(&End::Died))
    }

    /// Whether this rank, which leaves, has to be heard by others, or to hear what those behind it
    /// say who leave too.
    pub(super) fn has_to_stay<'a>(
        &self,
        mut all: impl Iterator<Item = &'a Conversation> + Clone,
    ) -> bool {
        let unheard = !self.is_heard(all.clone()) && self.others_live();
        unheard || !all.all(Conversation::is_done)
    }
}

#[cfg(test)]
mod leaving_tests;
#[cfg(test)]
mod played;
#[cfg(test)]
mod scale_tests;
