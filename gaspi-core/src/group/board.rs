//! What is known of the commits of each group: lists that came, this rank's own commit, and the
//! messages that are due.
//!
//! A list may come from its sender, or as a digest by leaders. Either is the same announcement: it
//! has the number of the sender's commit, and counts once. Whoever waits for long asks those whose
//! messages it awaits (`questions.rs`). Lists travel only where lists differ, a commit fails or is
//! given up: then all send theirs. docs/internals/collectives.md, "Commits", has the protocol.
//!
//! Invariant: **a member gets the announcements of another one in their order**, although an id has
//! other members again and again, and some are ahead of others.
//!
//! - A digest counts only for the next commit that its sender and its receiver have in common: it
//!   says which commit of the sender that lists the receiver came before, and that one has ended at
//!   the receiver, while this one has not ([`Announced::is_next`]). So it is neither an earlier use
//!   of the id nor a later one.
//! - What it tells of others is their next commit too: whoever has begun a later one than the
//!   receiver knows has ended the one before only once the sender of the digest had begun that, and
//!   then the digest is of a later commit of its sender.
//! - An answer names the commit of the asker that it is for.
//! - What a rank sends itself is complete and in order: in front of a list go those of its commits
//!   that have succeeded, to all that may not know that ([`Own::tell_all`]). What announces the end
//!   of a commit follows its list from the same sender.
//! - Behind a commit that failed or was given up the next ones go by lists alone, until there was a
//!   step with these members: digests could overtake what says how it ended.

mod announced;
mod exchange;
mod own;
mod questions;

pub(super) use own::Outbound;

use super::{Abort, DEATH_LIMIT, list};
use crate::control::leaders::route::{ANSWER, COLLECT, COMMIT_TAGS, QUESTION, Route};
use crate::error::Error;
use crate::ids::{GroupId, Rank};
use crate::os::clock;
use crate::wire::hash::hash;
use crate::wire::message::{Announce, Commit, Digest, GroupMessage};
use announced::{Announced, Entry};
use own::{Attempt, Exchange, Own};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

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

/// What could not be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsent {
    List,
    Digest,
    Question,
}

impl Unsent {
    /// A message that others await, if it is one.
    pub(super) fn of(message: &GroupMessage) -> Option<Unsent> {
        match message {
            GroupMessage::Announce(_) => Some(Unsent::List),
            GroupMessage::Digest(Digest { tag, .. }) if *tag < COMMIT_TAGS => Some(Unsent::Digest),
            GroupMessage::Digest(Digest { tag: QUESTION, .. }) => Some(Unsent::Question),
            _ => None,
        }
    }
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

    /// As if the id had been committed so often.
    #[cfg(test)]
    pub(super) fn set_fresh(&mut self, group: GroupId, incarnation: u32) {
        self.own(group).fresh = incarnation;
    }

    fn own(&mut self, group: GroupId) -> &mut Own {
        &mut self.own[group.index()]
    }

    /// The lowest incarnation of a use that this rank may commit.
    pub(super) fn fresh(&self, group: GroupId) -> u32 {
        self.own[group.index()].fresh
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
        self.own[group.index()].last_commit()
    }

    /// This rank leaves: sends the lists of commits that some members may not know to have
    /// succeeded here, but for the last, on which they count.
    pub(super) fn leave(&mut self, group: GroupId) {
        self.own(group).leave();
    }

    /// The use of this incarnation, which this rank did not commit by messages, is there.
    pub(super) fn initial(&mut self, group: GroupId) {
        self.own(group).fresh += 1;
    }

    /// All members of the use of this incarnation are known to have committed it.
    pub(super) fn all_know(&mut self, group: GroupId, incarnation: u32) {
        self.own(group).all_know(incarnation);
    }

    /// The commit of this rank: continues the one under way, or begins one, which replaces one of
    /// other members.
    pub(super) fn begin(&mut self, group: GroupId, ranks: &[Rank], route: impl FnOnce() -> Route) {
        if self.own(group).attempt.as_ref().is_some_and(|attempt| *attempt.ranks == *ranks) {
            return;
        }
        self.withdraw(group);
        self.commits += 1;
        let (number, me, digest) = (self.commits, self.me, digest_of(ranks));
        let (mut hears_lists, mut collects) = (false, Vec::new());
        for rank in ranks {
            let Some(announced) = self.announced.get(&(group, *rank)) else { continue };
            let is_direct = announced.queue.iter().any(|entry| entry.direct);
            hears_lists |= is_direct || announced.differs(digest);
            let asked = announced.asked.filter(|asked| asked.collects);
            let asked = asked.filter(|asked| announced.is_next(asked.previous, asked.attempt));
            collects.extend(asked.map(|asked| (*rank, asked.attempt)));
        }
        let own = self.own(group);
        let incarnation = own.fresh;
        let goes_directly = hears_lists || own.has_unsettled(ranks);
        let exchange = (!goes_directly).then(|| {
            let mut commits = vec![Commit { attempt: 0, incarnation: 0 }; ranks.len()];
            let mut known = vec![false; ranks.len()];
            if let Ok(me) = ranks.binary_search(&me) {
                (commits[me], known[me]) = (Commit { attempt: number, incarnation }, true);
            }
            let (collected, since) = (BTreeSet::new(), clock::now());
            let (route, ready, sent) = (route(), 0, 0);
            Exchange { route, digest, commits, known, collected, ready, sent, since }
        });
        own.attempt = Some(Attempt {
            number,
            ranks: ranks.into(),
            seen: BTreeMap::new(),
            incarnation,
            exchange,
            asked: None,
            questions: 0,
            told_all: false,
            unreachable: None,
            failed: None,
            failed_round: 0,
            lacks_since: None,
        });
        if goes_directly {
            own.tell_all();
            return;
        }
        self.advance(group);
        for (peer, asked) in collects {
            self.answer_own(peer, asked, group);
        }
    }

    /// A message of a commit could not be sent to somebody. A list that goes by digests too may
    /// have come so. A digest that is not sent since this rank lacks descriptors is awaited in
    /// vain; any other receiver ends, or asks for it.
    pub(super) fn could_not_send(
        &mut self,
        group: GroupId,
        attempt: u64,
        what: Unsent,
        error: Error,
    ) {
        let lacks_descriptors = matches!(error, Error::TooManyFiles { .. });
        let is_vital = |own: &Attempt| match &own.exchange {
            None => what == Unsent::List,
            Some(_) if what == Unsent::List || own.told_all => false,
            Some(exchange) => {
                lacks_descriptors || what == Unsent::Digest && exchange.route.is_of_each
            }
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
            let announced = self.announced.entry((group, rank)).or_default();
            let (ranks, direct, aborted) = (Arc::clone(&ranks), false, None);
            announced.queue.push_front(Entry { attempt, incarnation, ranks, direct, aborted });
        }
    }

    /// Ends the commit under way as failed, and drops what its members have announced for it or
    /// will announce. Where a member has died, only lists with the dead are dropped: survivors may
    /// have begun the next use of the id. Without a reason all members come to the same by
    /// themselves, and nobody is told. Gives the incarnation of the failed round.
    pub(super) fn fail(
        &mut self,
        group: GroupId,
        dead: Option<Rank>,
        reason: Option<String>,
    ) -> Option<u32> {
        let own = self.own(group);
        own.attempt.as_ref()?;
        own.tell_all();
        let attempt = own.attempt.take()?;
        own.end(&attempt, None);
        let round = attempt.proposed().max(attempt.failed_round);
        own.fresh = own.fresh.max(round.saturating_add(1));
        let Attempt { number, ranks, .. } = attempt;
        if let Some(reason) = reason {
            let message = GroupMessage::Abort { group, attempt: number, round, dead, reason };
            own.send(number, &ranks, message);
        }
        for rank in ranks.iter() {
            let announced = self.announced.entry((group, *rank)).or_default();
            if dead.is_none() {
                announced.floor = round.saturating_add(1);
            }
            announced.queue.retain(|entry| match dead {
                Some(dead) => !entry.ranks.contains(&dead),
                None => entry.incarnation > round,
            });
        }
        Some(round)
    }

    /// A list of `peer` has come from itself.
    pub(super) fn announced(&mut self, peer: Rank, announce: Announce) {
        let Announce { group, attempt, incarnation, ranks } = announce;
        let announced = self.announced.entry((group, peer)).or_default();
        announced.hear(ranks.into(), Commit { attempt, incarnation }, true);
        // One that was sent again may belong to a commit that has ended here too.
        let is_over = attempt <= announced.ended;
        self.own(group).hear_directly(peer, attempt, is_over);
    }

    /// A digest has come from `peer`. Whether what it has been sent has to be sent again.
    pub(super) fn digested(&mut self, peer: Rank, digest: Digest) -> bool {
        match digest.tag {
            QUESTION | COLLECT => return self.asked(peer, &digest),
            ANSWER => self.answered(peer, digest),
            tag if tag < COMMIT_TAGS => {
                let group = digest.group;
                let announced = self.announced.entry((group, peer)).or_default();
                announced.keep(digest);
                let own = &mut self.own[group.index()];
                let attempt = own.attempt.as_ref().filter(|attempt| attempt.lists(peer));
                let exchange = attempt.and_then(|attempt| attempt.exchange.as_ref());
                if exchange.is_some_and(|exchange| announced.differs(exchange.digest)) {
                    own.tell_all();
                }
                self.advance(group);
            }
            _ => {}
        }
        false
    }

    /// `peer` no longer waits for its commit to be answered.
    pub(super) fn withdrawn(&mut self, peer: Rank, group: GroupId, attempt: u64) {
        let Some(own) = self.own.get_mut(group.index()) else { return };
        let announced = self.announced.entry((group, peer)).or_default();
        announced.end(attempt);
        if let Some(own) = &mut own.attempt
            && own.seen.get(&peer).is_some_and(|(number, _)| *number == attempt)
        {
            own.seen.remove(&peer);
        } else {
            announced.queue.retain(|entry| entry.attempt != attempt);
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
        let announced = self.announced.entry((group, peer)).or_default();
        announced.end(attempt);
        // A commit that is still to come belongs to this round, so it must not begin above it.
        let mut to_come = false;
        if let Some(own) = &mut own.attempt
            && own.seen.get(&peer).is_some_and(|(number, _)| *number == attempt)
        {
            own.failed = Some(abort.clone());
            own.failed_round = own.failed_round.max(round);
        } else if let Some(entry) = announced.queue.iter_mut().find(|it| it.attempt == attempt) {
            entry.aborted = Some(abort.clone());
            entry.incarnation = entry.incarnation.max(round);
            to_come = true;
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
        let mut known = Vec::new();
        let standing = self.look(group, &is_dead, &is_remote, &last_commit, &mut known);
        if known.is_empty() {
            return standing;
        }
        self.take_over(group, known);
        self.look(group, is_dead, is_remote, last_commit, &mut Vec::new())
    }

    /// Also gives the commits that are known from those only that have left.
    fn look(
        &mut self,
        group: GroupId,
        is_dead: impl Fn(Rank) -> bool,
        is_remote: impl Fn(Rank) -> bool,
        last_commit: impl Fn(Rank) -> Option<(Commit, u64)>,
        known: &mut Vec<(Rank, Commit)>,
    ) -> Standing {
        let Board { me, announced, own, .. } = self;
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
        let ranks = Arc::clone(&attempt.ranks);
        for rank in ranks.iter().copied().filter(|rank| rank != me) {
            if attempt.seen.contains_key(&rank) {
                continue;
            }
            let announced = announced.entry((group, rank)).or_default();
            announced.hear_last(|| last_commit(rank), &attempt.ranks);
            let queue = &mut announced.queue;
            // Lists of failed commits, and lists with dead ranks.
            while queue.front().is_some_and(|entry| attempt.is_past(entry, &is_dead)) {
                queue.pop_front();
            }
            let Some(theirs) = queue.front() else {
                missing.push(rank);
                continue;
            };
            let has_same = attempt.has_same(&theirs.ranks);
            let lacks = || !attempt.ranks.iter().all(|rank| theirs.ranks.contains(rank));
            if is_remote(rank)
                && theirs.aborted.is_none()
                && (!has_same && lacks())
                && clock::since(*attempt.lacks_since.get_or_insert_with(clock::now)) < DEATH_LIMIT
            {
                missing.push(rank);
                continue;
            }
            attempt.failed_round = attempt.failed_round.max(theirs.incarnation);
            match &theirs.aborted {
                Some(abort) => {
                    bad = bad.or(Some(Standing::Aborted(abort.clone())));
                    queue.pop_front();
                }
                // The list stays: should this commit fail because of a death, it belongs to the
                // next one.
                None if !has_same => {
                    let (ours, theirs) = (list(&attempt.ranks), list(&theirs.ranks));
                    let difference = format!("{me} commits {ours}, {rank} commits {theirs}");
                    bad = bad.or(Some(Standing::Differs(difference)));
                }
                None => {
                    known.extend(attempt.see(rank, theirs));
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

    /// Whether a rank that has left has begun another commit than those that have come: then it has
    /// ended them, and what others tell of these may still come.
    pub(super) fn has_gone_on(&self, group: GroupId, rank: Rank, last_commit: u64) -> bool {
        let last = self.announced.get(&(group, rank)).map_or(0, |announced| announced.last);
        last_commit > last
    }

    /// How long a list that lacks members is still kept back, since a death may be the reason, or
    /// one that has not come is waited for, although its rank has left.
    pub(super) fn lack_ends_in(&mut self, group: GroupId) -> Option<Duration> {
        let since = self.own(group).attempt.as_ref()?.lacks_since?;
        DEATH_LIMIT.checked_sub(clock::since(since)).filter(|left| !left.is_zero())
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
        let mut others = self.announced.iter().filter(|((id, rank), announced)| {
            let has_begun = || !announced.queue.is_empty() || announced.has_begun();
            *id == group && *rank != self.me && !ranks.contains(rank) && has_begun()
        });
        let foreign = others.next().map(|((_, rank), announced)| {
            let first = announced.queue.front();
            let commits = first.map_or_else(|| "other ranks".to_owned(), |it| list(&it.ranks));
            format!("; {rank} commits {commits} under the same id")
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
