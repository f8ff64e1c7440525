//! What this rank commits: the commit under way, the one before, and what is due for them.

use super::Entry;
use crate::control::leaders::route::Route;
use crate::error::Error;
use crate::group::{Abort, FIRST_INCARNATION};
use crate::ids::{GroupId, Rank};
use crate::wire::message::{Announce, Commit, GroupMessage};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// A commit of this rank that goes by leaders.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) route: Route,
    pub(super) digest: u64,
    /// The commits of members that are known, by their index.
    pub(super) commits: Vec<Commit>,
    /// Incoming messages that are in, and outgoing ones that are out.
    pub(super) ready: usize,
    pub(super) sent: usize,
    pub(super) since: Instant,
}

/// A commit of this rank that is under way.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) number: u64,
    pub(super) ranks: Arc<[Rank]>,
    /// Members whose list was the same: number of their commit and incarnation proposed.
    pub(super) seen: BTreeMap<Rank, (u64, u32)>,
    pub(super) incarnation: u32,
    pub(super) exchange: Option<Exchange>,
    /// When this rank has asked last those whose messages it awaits.
    pub(super) asked: Option<Instant>,
    /// Whether it has sent its list to all.
    pub(super) told_all: bool,
    /// Why a member could not be sent the list.
    pub(super) unreachable: Option<Error>,
    pub(super) failed: Option<Abort>,
    /// The largest incarnation in lists that made it fail.
    pub(super) failed_round: u32,
    /// Since when a list of a rank of another node is known to lack members of this one, or a rank
    /// of this node to have left without a list.
    pub(super) lacks_since: Option<Instant>,
}

impl Attempt {
    /// The largest incarnation that a member has proposed.
    pub(super) fn proposed(&self) -> u32 {
        self.seen.values().map(|seen| seen.1).fold(self.incarnation, u32::max)
    }

    /// Whether a list belongs to an earlier commit.
    pub(super) fn is_past(&self, entry: &Entry, is_dead: impl Fn(Rank) -> bool) -> bool {
        let Entry { announce, aborted, .. } = entry;
        let foreign = |rank: &Rank| self.ranks.binary_search(rank).is_err();
        let died = aborted.as_ref().and_then(|abort| abort.dead);
        aborted.is_some() && announce.incarnation < self.incarnation
            || died.is_some_and(|dead| foreign(&dead))
            || announce.ranks.iter().any(|rank| foreign(rank) && is_dead(*rank))
    }
}

/// The last commit of this rank that has ended.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) number: u64,
    pub(super) ranks: Arc<[Rank]>,
    /// What this rank proposed, and what was agreed, unless it failed.
    pub(super) proposed: u32,
    pub(super) agreed: Option<u32>,
    /// Whether this rank has sent its list to all.
    pub(super) told_all: bool,
}

/// A message of a commit that is due.
#[derive(Debug)]
pub(in crate::group) struct Outbound {
    pub(in crate::group) attempt: u64,
    pub(in crate::group) to: Arc<[Rank]>,
    pub(in crate::group) message: GroupMessage,
}

/// What this rank does with one id.
#[derive(Debug)]
pub(super) struct Own {
    id: GroupId,
    me: Rank,
    /// The lowest incarnation that is fresh for this rank.
    pub(super) fresh: u32,
    pub(super) attempt: Option<Attempt>,
    pub(super) past: Option<Past>,
    /// Members of ended commits that may not have heard of these ends yet.
    pub(super) unaware: BTreeSet<Rank>,
    /// Messages that are due, in order, and whether a thread is sending them.
    pub(super) due: VecDeque<Outbound>,
    pub(super) is_sending: bool,
}

impl Own {
    pub(super) fn new(id: usize, me: Rank) -> Own {
        Own {
            id: GroupId(id as u8),
            me,
            fresh: FIRST_INCARNATION,
            attempt: None,
            past: None,
            unaware: BTreeSet::new(),
            due: VecDeque::new(),
            is_sending: false,
        }
    }

    pub(super) fn send(&mut self, attempt: u64, to: &Arc<[Rank]>, message: GroupMessage) {
        self.due.push_back(Outbound { attempt, to: Arc::clone(to), message });
    }

    fn announce(&self, attempt: u64, incarnation: u32, ranks: &[Rank]) -> GroupMessage {
        let ranks = ranks.to_vec();
        GroupMessage::Announce(Announce { group: self.id, attempt, incarnation, ranks })
    }

    /// Sends all members the list of the last commit, if some may know of it by leaders only.
    pub(super) fn tell_past(&mut self) {
        let Some(past) = &mut self.past else { return };
        let is_settled =
            past.agreed.is_none() || !past.ranks.iter().any(|rank| self.unaware.contains(rank));
        if std::mem::replace(&mut past.told_all, true) || is_settled {
            return;
        }
        let (number, proposed, ranks) = (past.number, past.proposed, Arc::clone(&past.ranks));
        let message = self.announce(number, proposed, &ranks);
        self.send(number, &ranks, message);
    }

    /// Sends all members what they may know by leaders only, in order.
    pub(super) fn tell_all(&mut self) {
        self.tell_past();
        let Some(attempt) = &mut self.attempt else { return };
        if std::mem::replace(&mut attempt.told_all, true) {
            return;
        }
        let (number, proposed, ranks) =
            (attempt.number, attempt.incarnation, Arc::clone(&attempt.ranks));
        let message = self.announce(number, proposed, &ranks);
        self.send(number, &ranks, message);
    }

    /// Whether the last commit went by leaders, and had the same members.
    pub(super) fn is_next_in_a_row(&self, ranks: &[Rank]) -> bool {
        self.past
            .as_ref()
            .is_some_and(|past| past.agreed.is_some() && !past.told_all && *past.ranks == *ranks)
    }

    /// The commit under way has ended.
    pub(super) fn end(&mut self, attempt: &Attempt, agreed: Option<u32>) {
        let others = attempt.ranks.iter().filter(|rank| **rank != self.me);
        self.unaware.extend(others.copied());
        self.past = Some(Past {
            number: attempt.number,
            ranks: Arc::clone(&attempt.ranks),
            proposed: attempt.incarnation,
            agreed,
            told_all: attempt.told_all,
        });
    }

    /// What this rank has to do when `peer` sends its list itself; `is_over` where that commit has
    /// ended here.
    pub(super) fn hear_directly(&mut self, peer: Rank, ranks: &[Rank], is_over: bool) {
        if let Some(attempt) = self.attempt.as_ref().filter(|_| !is_over) {
            if attempt.ranks.binary_search(&peer).is_ok() {
                self.tell_all();
            }
        } else if self.past.as_ref().is_some_and(|past| *past.ranks == *ranks) {
            self.tell_past();
        }
    }
}
