//! What this rank commits: the commit under way, those before, and what is due for them.

use super::announced::Entry;
use super::digest_of;
use crate::control::leaders::route::{ANSWER, Route, RouteIn};
use crate::error::Error;
use crate::group::{Abort, FIRST_INCARNATION};
use crate::ids::{GroupId, Rank};
use crate::wire::message::{Announce, Commit, Digest, GroupMessage};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Commits that have succeeded, and of whose members some may not know that, are kept up to this
/// number. The lists of more of them are sent.
const PASTS_MAX: usize = 16;

/// A commit of this rank that goes by digests.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) route: Route,
    pub(super) digest: u64,
    /// The commits of members by their index, and which of them are known.
    pub(super) commits: Vec<Commit>,
    pub(super) known: Vec<bool>,
    /// Members that this rank asks for their commits itself.
    pub(super) collected: BTreeSet<usize>,
    /// Incoming messages that are in, or not needed, and outgoing ones that are out.
    pub(super) ready: usize,
    pub(super) sent: usize,
    pub(super) since: Instant,
}

impl Exchange {
    pub(super) fn note(&mut self, member: usize, commit: Commit) {
        (self.commits[member], self.known[member]) = (commit, true);
    }

    /// Messages that tell of members that this rank does not know of yet.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &RouteIn> {
        let incoming = self.route.incoming[self.ready..].iter();
        incoming.filter(|incoming| !incoming.of.iter().all(|member| self.known[*member]))
    }
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
    /// When this rank has asked last those whose messages it awaits, and how often it has.
    pub(super) asked: Option<Instant>,
    pub(super) questions: u32,
    /// Whether it has sent its list to all.
    pub(super) told_all: bool,
    /// Why a member could not be sent the list.
    pub(super) unreachable: Option<Error>,
    pub(super) failed: Option<Abort>,
    /// The largest incarnation in lists that made it fail.
    pub(super) failed_round: u32,
    /// Since when a list of a rank of another node is known to lack members of this one, or a rank
    /// that has left to have sent no list.
    pub(super) lacks_since: Option<Instant>,
}

impl Attempt {
    /// The largest incarnation that a member has proposed.
    pub(super) fn proposed(&self) -> u32 {
        self.seen.values().map(|seen| seen.1).fold(self.incarnation, u32::max)
    }

    pub(super) fn lists(&self, rank: Rank) -> bool {
        self.ranks.binary_search(&rank).is_ok()
    }

    /// Whether a list that came by a digest, or has the same members, is that of this commit.
    pub(super) fn has_same(&self, ranks: &Arc<[Rank]>) -> bool {
        Arc::ptr_eq(&self.ranks, ranks) || *self.ranks == **ranks
    }

    /// Takes what a member has announced, which is the same list. Gives its commit if digests of
    /// this rank may have to tell of it, and do not know it.
    pub(super) fn see(&mut self, rank: Rank, theirs: &Entry) -> Option<(Rank, Commit)> {
        let Entry { attempt, incarnation, direct, .. } = *theirs;
        self.seen.insert(rank, (attempt, incarnation));
        let member = self.ranks.binary_search(&rank).ok()?;
        let is_unknown = !direct && !self.exchange.as_ref()?.known[member];
        is_unknown.then_some((rank, Commit { attempt, incarnation }))
    }

    /// Whether a list belongs to an earlier commit.
    pub(super) fn is_past(&self, entry: &Entry, is_dead: impl Fn(Rank) -> bool) -> bool {
        let Entry { incarnation, ranks, aborted, .. } = entry;
        let foreign = |rank: &Rank| !self.lists(*rank);
        let died = aborted.as_ref().and_then(|abort| abort.dead);
        let lists_dead = || ranks.iter().any(|rank| foreign(rank) && is_dead(*rank));
        aborted.is_some() && *incarnation < self.incarnation
            || died.is_some_and(|dead| foreign(&dead))
            || !Arc::ptr_eq(&self.ranks, ranks) && lists_dead()
    }
}

/// A commit of this rank that has succeeded, and of whose members some may not know that.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) number: u64,
    pub(super) ranks: Arc<[Rank]>,
    digest: u64,
    /// Those of all members.
    commits: Box<[Commit]>,
    /// What this rank proposed.
    proposed: u32,
    /// Members that may wait in it for others still.
    unaware: BTreeSet<Rank>,
    /// Whether this rank has sent them its list.
    told_all: bool,
}

/// The last commit of this rank that has ended.
#[derive(Debug)]
struct Last {
    commit: Commit,
    ranks: Arc<[Rank]>,
    agreed: Option<u32>,
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
    last: Option<Last>,
    pasts: VecDeque<Past>,
    /// The last commit that has ended and lists a rank.
    listed: HashMap<Rank, u64>,
    /// Members of commits that failed or were given up here, with whom there was no step since.
    unsettled: BTreeSet<Rank>,
    /// Whether members count on the lists that this rank has sent before it left only.
    counts_by_lists: bool,
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
            last: None,
            pasts: VecDeque::new(),
            listed: HashMap::new(),
            unsettled: BTreeSet::new(),
            counts_by_lists: false,
            due: VecDeque::new(),
            is_sending: false,
        }
    }

    pub(super) fn send(&mut self, attempt: u64, to: &Arc<[Rank]>, message: GroupMessage) {
        self.due.push_back(Outbound { attempt, to: Arc::clone(to), message });
    }

    /// Sends a digest of the commit under way, to each with the number of the commit before.
    pub(super) fn send_digest(&mut self, to: &Arc<[Rank]>, digest: Digest) {
        let previous = |rank: &Rank| self.listed.get(rank).copied().unwrap_or(0);
        let mut receivers: BTreeMap<u64, Vec<Rank>> = BTreeMap::new();
        for rank in to.iter() {
            receivers.entry(previous(rank)).or_default().push(*rank);
        }
        for (previous, to) in receivers {
            let message = GroupMessage::Digest(Digest { previous, ..digest.clone() });
            self.send(digest.attempt, &to.into(), message);
        }
    }

    /// Answers a member that waits in this commit of its, which has succeeded here. Whether it is
    /// known.
    pub(super) fn answer_of_past(&mut self, peer: Rank, attempt: u64) -> bool {
        let is_it = |past: &&Past| {
            let member = past.ranks.binary_search(&peer);
            member.is_ok_and(|member| past.commits[member].attempt == attempt)
        };
        let Some(past) = self.pasts.iter().find(is_it) else { return false };
        let (number, digest, commits) = (past.number, past.digest, past.commits.to_vec());
        self.answer(peer, attempt, (number, digest, commits));
        true
    }

    /// Answers a member that has asked in its commit of this number.
    pub(super) fn answer(
        &mut self,
        peer: Rank,
        asked: u64,
        (attempt, digest, commits): (u64, u64, Vec<Commit>),
    ) {
        let (group, previous, tag) = (self.id, asked, ANSWER);
        let answer = Digest { group, attempt, previous, tag, digest, commits };
        self.send(attempt, &[peer].into(), GroupMessage::Digest(answer));
    }

    fn announce(&self, attempt: u64, incarnation: u32, ranks: &[Rank]) -> GroupMessage {
        let ranks = ranks.to_vec();
        GroupMessage::Announce(Announce { group: self.id, attempt, incarnation, ranks })
    }

    /// Sends the list of a commit that has succeeded to the members that may not know that.
    fn tell(&mut self, past: &mut Past) {
        if std::mem::replace(&mut past.told_all, true) {
            return;
        }
        let message = self.announce(past.number, past.proposed, &past.ranks);
        self.send(past.number, &past.unaware.iter().copied().collect(), message);
    }

    /// The same for all such commits up to this number, in order.
    fn tell_pasts(&mut self, end: u64) {
        let mut pasts = std::mem::take(&mut self.pasts);
        pasts.iter_mut().filter(|past| past.number < end).for_each(|past| self.tell(past));
        self.pasts = pasts;
    }

    /// Sends all members what they may know by digests only, in order.
    pub(super) fn tell_all(&mut self) {
        self.tell_pasts(u64::MAX);
        let Some(attempt) = &mut self.attempt else { return };
        if std::mem::replace(&mut attempt.told_all, true) {
            return;
        }
        let (number, proposed, ranks) =
            (attempt.number, attempt.incarnation, Arc::clone(&attempt.ranks));
        let message = self.announce(number, proposed, &ranks);
        self.send(number, &ranks, message);
    }

    /// This rank leaves. A list that it has committed, and commits again, does not say which of
    /// both is the last: then all go to their members.
    pub(super) fn leave(&mut self) {
        let Some(attempt) = &self.attempt else {
            let last = self.last.as_ref().map_or(0, |last| last.commit.attempt);
            return self.tell_pasts(last);
        };
        if self.pasts.iter().any(|past| past.ranks == attempt.ranks) {
            self.counts_by_lists = true;
            return self.tell_all();
        }
        self.tell_pasts(attempt.number);
    }

    /// The last commit of this rank that has begun and not failed, and the digest of its list, by
    /// which members know it; 0 if they may not.
    pub(super) fn last_commit(&self) -> (Commit, u64) {
        if let Some(Attempt { number, incarnation, ranks, .. }) = &self.attempt {
            let commit = Commit { attempt: *number, incarnation: *incarnation };
            return (commit, if self.counts_by_lists { 0 } else { digest_of(ranks) });
        }
        let last = self.last.as_ref().filter(|last| last.agreed.is_some());
        last.map_or_else(Default::default, |last| (last.commit, digest_of(&last.ranks)))
    }

    /// Whether a commit of these ranks has to wait for lists: some may not know of the end of one
    /// that failed here, and of the commits that came before it.
    pub(super) fn has_unsettled(&self, ranks: &[Rank]) -> bool {
        ranks.iter().any(|rank| self.unsettled.contains(rank))
    }

    /// All members of the use of this incarnation are known to have committed it.
    pub(super) fn all_know(&mut self, incarnation: u32) {
        let last = self.last.as_ref().filter(|last| last.agreed == Some(incarnation));
        let Some(ranks) = last.map(|last| Arc::clone(&last.ranks)) else { return };
        ranks.iter().for_each(|rank| {
            self.unsettled.remove(rank);
        });
        self.note_aware(&ranks);
    }

    /// These know of the ends of all commits before.
    fn note_aware(&mut self, ranks: &[Rank]) {
        for past in &mut self.pasts {
            past.unaware.retain(|rank| ranks.binary_search(rank).is_err());
        }
        self.pasts.retain(|past| !past.unaware.is_empty());
    }

    /// The commit under way has ended.
    pub(super) fn end(&mut self, attempt: &Attempt, agreed: Option<u32>) {
        let Attempt { number, incarnation, ref ranks, .. } = *attempt;
        let own = Commit { attempt: number, incarnation };
        let others: BTreeSet<Rank> =
            ranks.iter().copied().filter(|rank| *rank != self.me).collect();
        self.listed.extend(others.iter().map(|rank| (*rank, number)));
        self.last = Some(Last { commit: own, ranks: Arc::clone(ranks), agreed });
        if agreed.is_none() {
            self.unsettled.extend(others);
            return;
        }
        // A member that has begun this commit has ended all before.
        self.note_aware(ranks);
        if others.is_empty() {
            return;
        }
        if self.pasts.len() == PASTS_MAX
            && let Some(mut past) = self.pasts.pop_front()
        {
            self.tell(&mut past);
        }
        let commit_of = |rank: &Rank| {
            let seen = attempt.seen.get(rank);
            seen.map_or(own, |(attempt, incarnation)| Commit {
                attempt: *attempt,
                incarnation: *incarnation,
            })
        };
        self.pasts.push_back(Past {
            number,
            ranks: Arc::clone(ranks),
            digest: digest_of(ranks),
            commits: ranks.iter().map(commit_of).collect(),
            proposed: incarnation,
            unaware: others,
            told_all: attempt.told_all,
        });
    }

    /// What this rank has to do when `peer` sends its list itself; `is_over` where that commit, of
    /// this number, has ended here.
    pub(super) fn hear_directly(&mut self, peer: Rank, number: u64, is_over: bool) {
        if !is_over {
            if self.attempt.as_ref().is_some_and(|attempt| attempt.lists(peer)) {
                self.tell_all();
            }
            return;
        }
        let is_it = |past: &&Past| {
            let member = past.ranks.binary_search(&peer);
            member.is_ok_and(|member| past.commits[member].attempt == number)
        };
        let past = self.pasts.iter().find(is_it).filter(|past| !past.told_all);
        if let Some(past) = past {
            let message = self.announce(past.number, past.proposed, &past.ranks);
            self.send(past.number, &[peer].into(), message);
        }
    }
}
