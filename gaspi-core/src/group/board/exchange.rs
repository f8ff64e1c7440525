//! Digests of the commit under way: those that come, those that are due then, and what is collected
//! from members whose message to this rank does not come.

use super::Board;
use super::own::{Attempt, Exchange};
use crate::ids::{GroupId, Rank};
use crate::wire::message::{Commit, Digest};
use std::sync::Arc;

impl Board {
    /// Takes the digests that have come for the commit under way, and passes on what is due then.
    pub(super) fn advance(&mut self, group: GroupId) {
        let me = self.me;
        let Board { announced, own, .. } = self;
        let own = &mut own[group.index()];
        let Some(Attempt { ranks, exchange: Some(exchange), number, .. }) = &mut own.attempt else {
            return;
        };
        for at in exchange.ready..exchange.route.incoming.len() {
            let next = &exchange.route.incoming[at];
            let from = announced.entry((group, next.from)).or_default();
            let Some(commits) = from.take(next.tag, exchange.digest, next.of.len()) else {
                continue;
            };
            let of = next.of.clone();
            for (member, commit) in of.into_iter().zip(commits) {
                let rank = ranks[member];
                if rank != me {
                    exchange.note(member, commit);
                    let peer = announced.entry((group, rank)).or_default();
                    peer.hear(Arc::clone(ranks), commit, false);
                }
            }
        }
        while let Some(next) = exchange.route.incoming.get(exchange.ready)
            && next.of.iter().all(|member| exchange.known[*member])
        {
            exchange.ready += 1;
        }
        let (attempt, digest) = (*number, exchange.digest);
        let mut due = Vec::new();
        while let Some(next) = exchange.route.outgoing.get(exchange.sent)
            && next.after <= exchange.ready
        {
            exchange.sent += 1;
            let commits = next.of.iter().map(|member| exchange.commits[*member]).collect();
            let message = Digest { group, attempt, previous: 0, tag: next.tag, digest, commits };
            due.push((Arc::clone(&next.to), message));
        }
        due.into_iter().for_each(|(to, message)| own.send_digest(&to, message));
    }

    /// A member has answered what this rank has asked: it has begun, or all have.
    pub(super) fn answered(&mut self, peer: Rank, answer: Digest) {
        let (me, group) = (self.me, answer.group);
        let Board { announced, own, .. } = self;
        let Some(attempt) = &mut own[group.index()].attempt else { return };
        let Attempt { ranks, exchange: Some(exchange), number, .. } = attempt else { return };
        let Ok(of) = ranks.binary_search(&peer) else { return };
        if answer.previous != *number || answer.digest != exchange.digest {
            // It belongs to a commit of this rank that was given up.
            return;
        }
        let of_all = answer.commits.len() == ranks.len();
        if !of_all && answer.commits.len() != 1 {
            return;
        }
        let first = if of_all { 0 } else { of };
        for (member, commit) in (first..).zip(answer.commits) {
            if ranks[member] != me && !exchange.known[member] {
                exchange.note(member, commit);
                let peer = announced.entry((group, ranks[member])).or_default();
                peer.hear(Arc::clone(ranks), commit, false);
            }
        }
        self.advance(group);
    }

    /// Whether the message of a member that has left is awaited, and tells of others whom this rank
    /// has not asked yet.
    pub(in crate::group) fn has_to_collect(
        &self,
        group: GroupId,
        has_left: impl Fn(Rank) -> bool,
    ) -> bool {
        !self.left_out(group, has_left).is_empty()
    }

    /// Asks the members for their commits of whom a member would have told that has left.
    pub(in crate::group) fn collect_of_left(
        &mut self,
        group: GroupId,
        has_left: impl Fn(Rank) -> bool,
    ) {
        let members = self.left_out(group, has_left);
        self.collect(group, members);
    }

    /// Asks all members for their commits that this rank does not know.
    pub(super) fn collect_all(&mut self, group: GroupId) {
        let attempt = self.own(group).attempt.as_ref();
        let exchange = attempt.and_then(|attempt| attempt.exchange.as_ref());
        let members = 0..exchange.map_or(0, |exchange| exchange.known.len());
        self.collect(group, members.collect());
    }

    fn left_out(&self, group: GroupId, has_left: impl Fn(Rank) -> bool) -> Vec<usize> {
        let attempt = self.own[group.index()].attempt.as_ref().filter(|own| !own.told_all);
        let Some(Attempt { exchange: Some(exchange), .. }) = attempt else { return Vec::new() };
        let Exchange { known, collected, .. } = exchange;
        let awaited = exchange.awaited().filter(|incoming| {
            let from = self.announced.get(&(group, incoming.from));
            has_left(incoming.from) && !from.is_some_and(|from| from.has_come(incoming.tag))
        });
        let members = awaited.flat_map(|incoming| incoming.of.iter().copied());
        members.filter(|member| !known[*member] && !collected.contains(member)).collect()
    }

    /// Asks these members for their commits, unless it knows them or has asked before.
    fn collect(&mut self, group: GroupId, members: Vec<usize>) {
        let me = self.me;
        let own = self.own(group);
        let attempt = own.attempt.as_mut().filter(|attempt| !attempt.told_all);
        let Some(Attempt { exchange: Some(exchange), ranks, number, .. }) = attempt else { return };
        let Exchange { known, collected, digest, .. } = exchange;
        let is_fresh =
            |member: &usize| ranks[*member] != me && !known[*member] && collected.insert(*member);
        let fresh: Vec<usize> = members.into_iter().filter(is_fresh).collect();
        let to = fresh.into_iter().map(|member| ranks[member]).collect();
        let question = super::questions::question(group, (*number, *digest), true);
        own.send_digest(&to, question);
    }

    /// Takes the commits of members over that are known otherwise, so that they are passed on.
    pub(super) fn take_over(&mut self, group: GroupId, known: Vec<(Rank, Commit)>) {
        let attempt = self.own(group).attempt.as_mut();
        let Some(Attempt { exchange: Some(exchange), ranks, .. }) = attempt else { return };
        for (rank, commit) in known {
            if let Ok(member) = ranks.binary_search(&rank) {
                exchange.note(member, commit);
            }
        }
        self.advance(group);
    }

    /// Whether messages of commits of a group are due.
    pub(in crate::group) fn has_due(&self, group: GroupId) -> bool {
        let own = &self.own[group.index()];
        !own.is_sending && !own.due.is_empty()
    }
}
