//! What is known of the commits of each group: lists that came, this rank's own commit, and the
//! messages that are due.
//!
//! A list may come from its sender, or as a digest by leaders. Either is the same announcement: it
//! has the number of the sender's commit, and counts once. Whoever waits for long asks those whose
//! messages it awaits. Who commits the same sends again what it has sent, and asks in its turn, so
//! that somebody asks each member that is missing. Who commits another list sends that to its
//! members, whether the one that asks is one of them or not: they may be members of both lists. Who
//! sees that another one commits something else, or that a member has left, sends its list itself;
//! so does each member that hears such a list while others may still know its own by leaders only.
//!
//! Invariant: **a member gets the announcements of another one in their order.** Lists that the
//! sender itself sends come in order, and so do digests of commits of the same list. Of two commits
//! in a row that do not both go by leaders with the same list, the second one goes by leaders only
//! if all of its members have seen the ends of all before: else it could overtake them. What
//! announces the end of a commit follows its list from the same sender.

mod own;
mod questions;

pub(super) use own::Outbound;

use super::{Abort, DEATH_LIMIT, list};
use crate::control::leaders::route::{COMMIT_TAGS, QUESTION, Route};
use crate::error::Error;
use crate::ids::{GroupId, Rank};
use crate::os::clock;
use crate::wire::hash::hash;
use crate::wire::message::{Announce, Commit, Digest, GroupMessage};
use own::{Attempt, Exchange, Own};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// A list that came from another rank.
#[derive(Debug)]
struct Entry {
    announce: Announce,
    /// Whether its sender sent it itself.
    direct: bool,
    /// Why its sender gave up, once it did.
    aborted: Option<Abort>,
}

/// What a rank has announced for a group.
#[derive(Debug, Default)]
struct Announced {
    queue: VecDeque<Entry>,
    /// The number of the last commit that has come.
    last: u64,
    /// Lists with a lower incarnation belong to a commit of this rank that failed.
    floor: u32,
    /// Digests by their tag, unless they belong to commits up to this number, which have ended. One
    /// that came twice stays until then.
    digests: BTreeMap<u8, VecDeque<Digest>>,
    ended: u64,
    /// The number of the commit for which it has asked this rank, and the hash of its list.
    asked: Option<(u64, u64)>,
}

impl Announced {
    fn hear(&mut self, announce: Announce, direct: bool) {
        if announce.attempt <= self.last {
            // Sent again, since a connection broke, or also by leaders.
            return;
        }
        self.last = announce.attempt;
        // Below the floor its sender has been told that this round failed, and fails too.
        if announce.incarnation >= self.floor {
            self.queue.push_back(Entry { announce, direct, aborted: None });
        }
    }

    /// Where nothing else is known of it, counts on the last commit of a peer that has left, if it
    /// is that of these ranks.
    fn hear_last(
        &mut self,
        group: GroupId,
        last_commit: impl FnOnce() -> Option<(Commit, u64)>,
        ranks: &[Rank],
    ) {
        if self.queue.is_empty()
            && let Some((Commit { attempt, incarnation }, digest)) = last_commit()
            && attempt > 0
            && digest == digest_of(ranks)
        {
            let ranks = ranks.to_vec();
            self.hear(Announce { group, attempt, incarnation, ranks }, false);
        }
    }

    /// Whether the peer has begun to commit these ranks.
    fn commits(&self, ranks: &[Rank]) -> bool {
        let digest = digest_of(ranks);
        let lists = self.queue.front().is_some_and(|first| *first.announce.ranks == *ranks);
        let asks = self.asked.is_some_and(|(_, asked)| asked == digest);
        let mut digests = self.digests.values().flatten();
        lists || asks || digests.any(|told| told.digest == digest)
    }

    /// The peer's commit of this number has ended.
    fn end(&mut self, attempt: u64) {
        self.ended = self.ended.max(attempt);
        self.asked.take_if(|(asked, _)| *asked <= attempt);
        for digests in self.digests.values_mut() {
            digests.retain(|digest| digest.attempt > attempt);
        }
    }
}

/// How a commit stands.
pub(super) enum Standing {
    Waiting(Vec<Rank>),
    /// All agree on this incarnation.
    Agreed(u32),
    /// A list differs, as this rank sees it.
    Differs(String),
    /// A member gave up and said why.
    Aborted(Abort),
    /// A member cannot be sent the list.
    Unreachable(Error),
}

/// By what members compare their lists.
fn digest_of(ranks: &[Rank]) -> u64 {
    hash(ranks.iter().map(|rank| rank.0.into()))
}

#[derive(Debug)]
pub(super) struct Board {
    me: Rank,
    announced: HashMap<(GroupId, Rank), Announced>,
    own: Vec<Own>,
    commits: u64,
}

impl Board {
    pub(super) fn new(me: Rank, groups: usize) -> Board {
        let own = (0..groups).map(|id| Own::new(id, me)).collect();
        Board { me, announced: HashMap::new(), own, commits: 0 }
    }

    fn own(&mut self, group: GroupId) -> &mut Own {
        &mut self.own[group.index()]
    }

    /// A message that is due, for a thread that sends messages one after the other, unless another
    /// one does.
    pub(super) fn next_due(&mut self, group: GroupId, goes_on: bool) -> Option<Outbound> {
        let own = self.own(group);
        if own.is_sending && !goes_on {
            return None;
        }
        let next = own.due.pop_front();
        own.is_sending = next.is_some();
        next
    }

    /// The commit of this rank that members may count on once it has left, and the hash of its
    /// list; of number 0 if there is none.
    pub(super) fn last_commit(&self, group: GroupId) -> (Commit, u64) {
        let own = &self.own[group.index()];
        let agreed = own.past.as_ref().filter(|past| past.agreed.is_some());
        let of_past = agreed.map(|past| (past.number, past.proposed, &past.ranks));
        let of_attempt = own.attempt.as_ref().map(|own| (own.number, own.incarnation, &own.ranks));
        of_attempt.or(of_past).map_or_else(Default::default, |(attempt, incarnation, ranks)| {
            (Commit { attempt, incarnation }, digest_of(ranks))
        })
    }

    /// The use of this incarnation, which this rank did not commit by messages, is there.
    pub(super) fn initial(&mut self, group: GroupId) {
        self.own(group).fresh += 1;
    }

    /// All members of the use of this incarnation are known to have committed it.
    pub(super) fn all_know(&mut self, group: GroupId, incarnation: u32) {
        let Own { past, unaware, .. } = self.own(group);
        if let Some(past) = past.as_ref().filter(|past| past.agreed == Some(incarnation)) {
            past.ranks.iter().for_each(|rank| {
                unaware.remove(rank);
            });
        }
    }

    /// The commit of this rank: continues the one under way, or begins one, which replaces one of
    /// other members.
    pub(super) fn begin(
        &mut self,
        group: GroupId,
        ranks: &[Rank],
        route: impl FnOnce() -> Option<Route>,
    ) {
        if self.own(group).attempt.as_ref().is_some_and(|attempt| *attempt.ranks == *ranks) {
            return;
        }
        self.withdraw(group);
        self.commits += 1;
        let (number, me) = (self.commits, self.me);
        let says_directly = |rank: &Rank| {
            let announced = self.announced.get(&(group, *rank));
            announced.is_some_and(|announced| announced.queue.iter().any(|entry| entry.direct))
        };
        let digest = digest_of(ranks);
        // Whoever has asked lists this rank, and may list others of this list.
        let asks_otherwise = self.announced.iter().any(|((id, _), announced)| {
            *id == group && announced.asked.is_some_and(|(_, other)| other != digest)
        });
        let is_heard = asks_otherwise || ranks.iter().any(says_directly);
        let own = self.own(group);
        let incarnation = own.fresh;
        let in_a_row = own.is_next_in_a_row(ranks);
        let may_overtake = !in_a_row && ranks.iter().any(|rank| own.unaware.contains(rank));
        let route = if is_heard || may_overtake { None } else { route() };
        if !in_a_row {
            own.tell_past();
        }
        let exchange = route.map(|route| {
            let mut commits = vec![Commit { attempt: 0, incarnation: 0 }; ranks.len()];
            if let Ok(me) = ranks.binary_search(&me) {
                commits[me] = Commit { attempt: number, incarnation };
            }
            Exchange { route, digest, commits, ready: 0, sent: 0, since: clock::now() }
        });
        let goes_directly = exchange.is_none();
        own.attempt = Some(Attempt {
            number,
            ranks: ranks.into(),
            seen: BTreeMap::new(),
            incarnation,
            exchange,
            asked: None,
            told_all: false,
            unreachable: None,
            failed: None,
            failed_round: 0,
            lacks_since: None,
        });
        if goes_directly {
            own.tell_all();
        } else {
            self.advance(group);
        }
    }

    /// Takes the digests that have come, as far as they are next, and passes on what is due then.
    pub(super) fn advance(&mut self, group: GroupId) {
        let me = self.me;
        let Board { announced, own, .. } = self;
        let own = &mut own[group.index()];
        let Some(Attempt { ranks, exchange: Some(exchange), number, .. }) = &mut own.attempt else {
            return;
        };
        let mut differs = false;
        while let Some(next) = exchange.route.incoming.get(exchange.ready) {
            let from = announced.entry((group, next.from)).or_default();
            let Some(digests) = from.digests.get_mut(&next.tag) else { break };
            let Some(found) = digests.pop_front() else { break };
            if found.digest != exchange.digest || found.commits.len() != next.of.len() {
                digests.push_front(found);
                differs = true;
                break;
            }
            exchange.ready += 1;
            for (member, commit) in next.of.iter().zip(found.commits) {
                let rank = ranks[*member];
                if rank != me {
                    exchange.commits[*member] = commit;
                    let Commit { attempt, incarnation } = commit;
                    let announce = Announce { group, attempt, incarnation, ranks: ranks.to_vec() };
                    announced.entry((group, rank)).or_default().hear(announce, false);
                }
            }
        }
        while let Some(next) = exchange.route.outgoing.get(exchange.sent) {
            if next.after > exchange.ready {
                break;
            }
            exchange.sent += 1;
            let commits = next.of.iter().map(|member| exchange.commits[*member]).collect();
            let (attempt, tag, digest) = (*number, next.tag, exchange.digest);
            let message = GroupMessage::Digest(Digest { group, attempt, tag, digest, commits });
            own.due.push_back(Outbound { attempt, to: Arc::clone(&next.to), message });
        }
        if differs {
            own.tell_all();
        }
    }

    /// Whether this rank has a commit under way of which others may know by leaders only.
    pub(super) fn has_to_tell(&self, group: GroupId) -> bool {
        let attempt = self.own[group.index()].attempt.as_ref();
        attempt.is_some_and(|attempt| !attempt.told_all)
    }

    /// Sends all members what they may know by leaders only.
    pub(super) fn tell_all(&mut self, group: GroupId) {
        self.own(group).tell_all();
    }

    /// The list of a commit could not be sent to all, or a digest to somebody. A list that goes by
    /// leaders too may have come so. A digest that is not sent since this rank lacks descriptors is
    /// awaited in vain; any other receiver ends, or asks for it.
    pub(super) fn could_not_announce(
        &mut self,
        group: GroupId,
        attempt: u64,
        is_list: bool,
        error: Error,
    ) {
        let lacks_descriptors = matches!(error, Error::TooManyFiles { .. });
        let is_vital = |own: &Attempt| match is_list {
            true => own.exchange.is_none(),
            false => lacks_descriptors && !own.told_all,
        };
        let is_it = |own: &&mut Attempt| own.number == attempt && is_vital(own);
        if let Some(own) = self.own(group).attempt.as_mut().filter(is_it) {
            own.unreachable.get_or_insert(error);
        }
    }

    /// Gives up the commit under way without a failure: what was taken from the others is put back,
    /// since it belongs to a commit that may still come.
    pub(super) fn withdraw(&mut self, group: GroupId) {
        let own = self.own(group);
        if own.attempt.is_none() {
            return;
        }
        own.tell_all();
        let Some(attempt) = own.attempt.take() else { return };
        own.end(&attempt, None);
        let Attempt { number, ranks, seen, .. } = attempt;
        own.send(number, &ranks, GroupMessage::Withdraw { group, attempt: number });
        for (rank, (attempt, incarnation)) in seen {
            let announce = Announce { group, attempt, incarnation, ranks: ranks.to_vec() };
            let announced = self.announced.entry((group, rank)).or_default();
            announced.queue.push_front(Entry { announce, direct: false, aborted: None });
        }
    }

    /// Ends the commit under way as failed, and drops what its members have announced for it or
    /// will announce. Where a member has died, only lists with the dead are dropped: survivors may
    /// have begun the next use of the id. Gives the incarnation of the failed round.
    pub(super) fn fail(
        &mut self,
        group: GroupId,
        dead: Option<Rank>,
        reason: String,
    ) -> Option<u32> {
        let own = self.own(group);
        own.attempt.as_ref()?;
        own.tell_all();
        let attempt = own.attempt.take()?;
        own.end(&attempt, None);
        let round = attempt.proposed().max(attempt.failed_round);
        own.fresh = own.fresh.max(round.saturating_add(1));
        let Attempt { number, ranks, .. } = attempt;
        let message = GroupMessage::Abort { group, attempt: number, round, dead, reason };
        own.send(number, &ranks, message);
        for rank in ranks.iter() {
            let announced = self.announced.entry((group, *rank)).or_default();
            if dead.is_none() {
                announced.floor = round.saturating_add(1);
            }
            announced.queue.retain(|Entry { announce, .. }| match dead {
                Some(dead) => !announce.lists(dead),
                None => announce.incarnation > round,
            });
        }
        Some(round)
    }

    /// A list of `peer` has come from itself.
    pub(super) fn announced(&mut self, peer: Rank, announce: Announce) {
        let group = announce.group;
        // One that was sent again may belong to a commit that has ended here too.
        let ended = self.announced.get(&(group, peer)).map_or(0, |announced| announced.ended);
        self.own(group).hear_directly(peer, &announce.ranks, announce.attempt <= ended);
        self.announced.entry((group, peer)).or_default().hear(announce, true);
    }

    /// A digest has come from `peer`. Whether what it has been sent has to be sent again.
    pub(super) fn digested(&mut self, peer: Rank, digest: Digest) -> bool {
        let (group, number) = (digest.group, digest.attempt);
        if digest.tag == QUESTION {
            return self.asked(peer, &digest);
        }
        let announced = self.announced.entry((group, peer)).or_default();
        if digest.tag < COMMIT_TAGS && number > announced.ended {
            announced.digests.entry(digest.tag).or_default().push_back(digest);
            self.advance(group);
        }
        false
    }

    /// `peer` no longer waits for its commit to be answered.
    pub(super) fn withdrawn(&mut self, peer: Rank, group: GroupId, attempt: u64) {
        if let Some(announced) = self.announced.get_mut(&(group, peer)) {
            announced.end(attempt);
        }
        let own = self.own.get_mut(group.index()).and_then(|own| own.attempt.as_mut());
        if let Some(own) = own
            && own.seen.get(&peer).is_some_and(|(number, _)| *number == attempt)
        {
            own.seen.remove(&peer);
        } else if let Some(announced) = self.announced.get_mut(&(group, peer)) {
            announced.queue.retain(|entry| entry.announce.attempt != attempt);
        }
    }

    /// The commit of `peer` failed in this round. So does the one of this rank that belongs to it,
    /// under way or still to come.
    pub(super) fn aborted(
        &mut self,
        peer: Rank,
        group: GroupId,
        attempt: u64,
        round: u32,
        abort: &Abort,
    ) {
        let Some(own) = self.own.get_mut(group.index()) else { return };
        let mut announced = self.announced.get_mut(&(group, peer));
        if let Some(announced) = &mut announced {
            announced.end(attempt);
        }
        // A commit that is still to come belongs to this round, so it must not begin above it.
        let mut to_come = false;
        if let Some(own) = &mut own.attempt
            && own.seen.get(&peer).is_some_and(|(number, _)| *number == attempt)
        {
            own.failed = Some(abort.clone());
            own.failed_round = own.failed_round.max(round);
        } else if let Some(announced) = announced {
            let mut entries = announced.queue.iter_mut();
            if let Some(entry) = entries.find(|entry| entry.announce.attempt == attempt) {
                entry.aborted = Some(abort.clone());
                entry.announce.incarnation = entry.announce.incarnation.max(round);
                to_come = true;
            }
        }
        if !to_come {
            own.fresh = own.fresh.max(round.saturating_add(1));
        }
    }

    /// Takes what the members have announced. A list with a dead rank belongs to a commit that
    /// fails everywhere, after which survivors go on to the next use of the id. A list that lacks
    /// members may do so because of a death, which ranks of other nodes learn at another time. Of a
    /// rank that has left `last_commit` tells which commit it has announced last: that may come
    /// from nobody else.
    pub(super) fn standing(
        &mut self,
        group: GroupId,
        is_dead: impl Fn(Rank) -> bool,
        is_remote: impl Fn(Rank) -> bool,
        last_commit: impl Fn(Rank) -> Option<(Commit, u64)>,
    ) -> Standing {
        let me = self.me;
        let Board { announced, own, .. } = self;
        let Some(attempt) = &mut own[group.index()].attempt else {
            return Standing::Waiting(Vec::new());
        };
        if let Some(abort) = &attempt.failed {
            return Standing::Aborted(abort.clone());
        }
        if let Some(error) = &attempt.unreachable {
            return Standing::Unreachable(error.clone());
        }
        let (mut missing, mut bad) = (Vec::new(), None);
        for rank in attempt.ranks.iter().copied().filter(|rank| *rank != me) {
            if attempt.seen.contains_key(&rank) {
                continue;
            }
            let announced = announced.entry((group, rank)).or_default();
            announced.hear_last(group, || last_commit(rank), &attempt.ranks);
            let queue = &mut announced.queue;
            // Lists of failed commits, and lists with dead ranks.
            while queue.front().is_some_and(|entry| attempt.is_past(entry, &is_dead)) {
                queue.pop_front();
            }
            let Some(Entry { announce: theirs, aborted, .. }) = queue.front() else {
                missing.push(rank);
                continue;
            };
            let lacks = || !attempt.ranks.iter().all(|rank| theirs.lists(*rank));
            if is_remote(rank)
                && aborted.is_none()
                && lacks()
                && clock::since(*attempt.lacks_since.get_or_insert_with(clock::now)) < DEATH_LIMIT
            {
                missing.push(rank);
                continue;
            }
            attempt.failed_round = attempt.failed_round.max(theirs.incarnation);
            match aborted {
                Some(abort) => {
                    bad = bad.or(Some(Standing::Aborted(abort.clone())));
                    queue.pop_front();
                }
                // The list stays: should this commit fail because of a death, it belongs to the
                // next one.
                None if *theirs.ranks != *attempt.ranks => {
                    let (ours, theirs) = (list(&attempt.ranks), list(&theirs.ranks));
                    let difference = format!("{me} commits {ours}, {rank} commits {theirs}");
                    bad = bad.or(Some(Standing::Differs(difference)));
                }
                None => {
                    attempt.seen.insert(rank, (theirs.attempt, theirs.incarnation));
                    queue.pop_front();
                }
            }
        }
        match bad {
            Some(bad) => bad,
            None if missing.is_empty() => Standing::Agreed(attempt.proposed()),
            None => Standing::Waiting(missing),
        }
    }

    /// Whether the list of a rank of this node that has left may still come: what it has sent
    /// before is on its way in sockets, its leave is seen at once.
    pub(super) fn may_still_come(&mut self, group: GroupId) -> bool {
        self.own(group).attempt.as_mut().is_some_and(|own| {
            clock::since(*own.lacks_since.get_or_insert_with(clock::now)) < DEATH_LIMIT
        })
    }

    /// Whether a list that lacks members is kept back, since a death may be the reason, or one that
    /// has not come is waited for, although its rank has left.
    pub(super) fn lacks_members(&mut self, group: GroupId) -> bool {
        self.own(group).attempt.as_ref().is_some_and(|own| own.lacks_since.is_some())
    }

    /// The commit under way has succeeded; its number.
    pub(super) fn agreed(&mut self, group: GroupId, incarnation: u32) -> Option<u64> {
        let own = self.own(group);
        own.fresh = incarnation.saturating_add(1);
        let attempt = own.attempt.take()?;
        own.end(&attempt, Some(incarnation));
        for (rank, (number, _)) in attempt.seen {
            if let Some(announced) = self.announced.get_mut(&(group, rank)) {
                announced.end(number);
            }
        }
        Some(attempt.number)
    }

    /// Those of whom nothing has come in the commit under way.
    pub(super) fn missing(&self, group: GroupId) -> Vec<Rank> {
        let Some(attempt) = &self.own[group.index()].attempt else { return Vec::new() };
        let listed = |rank: &Rank| {
            let announced = self.announced.get(&(group, *rank));
            announced.is_some_and(|announced| !announced.queue.is_empty())
        };
        let has_come = |rank: &Rank| attempt.seen.contains_key(rank) || listed(rank);
        let others = attempt.ranks.iter().copied().filter(|rank| *rank != self.me);
        others.filter(|rank| !has_come(rank)).collect()
    }

    /// What one of those that are `missing` in a commit does instead, or who commits other ranks
    /// under its id, where that is known.
    pub(super) fn hint(&self, group: GroupId, missing: &[Rank]) -> String {
        let own = self.own[group.index()].attempt.as_ref();
        let ranks = own.map_or(&[][..], |own| &own.ranks);
        let foreign = self.announced.iter().find_map(|((id, rank), announced)| {
            let first = announced.queue.front()?;
            let other = *id == group && *rank != self.me && !ranks.contains(rank);
            let commits = list(&first.announce.ranks);
            other.then(|| format!("; {rank} commits {commits} under the same id"))
        });
        let elsewhere = || {
            let mut others = self.announced.iter().filter(|((id, rank), announced)| {
                *id != group && missing.contains(rank) && announced.commits(ranks)
            });
            let ((id, rank), _) = others.next()?;
            Some(format!("; {rank} commits the same ranks as {id}: all have to use one id"))
        };
        foreign.or_else(elsewhere).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
