//! What a member that waits for long asks others, and what those do who are asked.

use super::own::{Attempt, Exchange};
use super::{Board, digest_of};
use crate::control::leaders::route::{COLLECT, QUESTION};
use crate::ids::{GroupId, Rank};
use crate::os::clock;
use crate::wire::message::{Commit, Digest};
use std::collections::BTreeSet;
use std::time::Duration;

/// Between two questions of a commit at least: an answer may be lost.
const AGAIN: Duration = Duration::from_secs(1);

/// Between the first two, in times of what a member waits before the first: whoever has been asked
/// twice by a rank that its list lacks asks all whether their lists are the same.
const SECOND: u32 = 8;

/// A question of a commit of this number, whose list has this digest.
pub(super) fn question(group: GroupId, (attempt, digest): (u64, u64), collects: bool) -> Digest {
    let tag = if collects { COLLECT } else { QUESTION };
    Digest { group, attempt, previous: 0, tag, digest, commits: vec![] }
}

impl Board {
    /// How long this rank still waits before it asks; `None` if it has, or has sent its list to
    /// all, or has no commit under way.
    pub(in crate::group) fn patience(&mut self, group: GroupId) -> Option<Duration> {
        let waits = |attempt: &&Attempt| !attempt.told_all && attempt.asked.is_none();
        let attempt = self.own(group).attempt.as_ref().filter(waits)?;
        let Exchange { route, since, .. } = attempt.exchange.as_ref()?;
        Some(route.patience.saturating_sub(clock::since(*since)))
    }

    /// How long until it asks again; `None` if it has not asked, or has sent its list to all.
    pub(in crate::group) fn next_question(&mut self, group: GroupId) -> Option<Duration> {
        let attempt = self.own(group).attempt.as_ref().filter(|attempt| !attempt.told_all)?;
        let patience = attempt.exchange.as_ref()?.route.patience;
        let again = if attempt.questions == 1 { AGAIN.min(patience * SECOND) } else { AGAIN };
        Some(again.max(patience).saturating_sub(clock::since(attempt.asked?)))
    }

    /// Asks those whose messages this rank still awaits, unless it has done so just now.
    pub(in crate::group) fn ask(&mut self, group: GroupId) {
        if self.next_question(group).is_some_and(|left| !left.is_zero()) {
            return;
        }
        let own = self.own(group);
        let attempt = own.attempt.as_mut().filter(|attempt| !attempt.told_all);
        let Some(attempt) = attempt else { return };
        let Some(exchange) = &attempt.exchange else { return };
        let Exchange { digest, known, collected, .. } = exchange;
        attempt.asked = Some(clock::now());
        attempt.questions = attempt.questions.saturating_add(1);
        let awaited: BTreeSet<Rank> = exchange.awaited().map(|it| it.from).collect();
        let silent = collected.iter().filter(|member| !known[**member]);
        let silent = silent.map(|member| attempt.ranks[*member]).collect();
        let of = (attempt.number, *digest);
        own.send_digest(&awaited.into_iter().collect(), question(group, of, false));
        own.send_digest(&silent, question(group, of, true));
    }

    /// `peer` waits for this rank in a commit of a list with this hash. Whether what it has been
    /// sent has to be sent again: it may have been lost.
    pub(super) fn asked(&mut self, peer: Rank, question: &Digest) -> bool {
        let group = question.group;
        let announced = self.announced.entry((group, peer)).or_default();
        let own = &mut self.own[group.index()];
        if question.attempt <= announced.ended {
            return !own.answer_of_past(peer, question.attempt);
        }
        let is_next = announced.is_next(question.previous, question.attempt);
        let collects = question.tag == COLLECT;
        let times = announced.hear_question(question, collects);
        let Some(attempt) = &own.attempt else { return false };
        if !attempt.lists(peer) {
            // It may wait for a commit behind this one, or for one of members of both lists that
            // have to agree which of them comes first.
            if times > 1 {
                self.collect_all(group);
            }
            false
        } else if !is_next {
            // It has ended the commit under way, or one before.
            false
        } else if digest_of(&attempt.ranks) != question.digest {
            own.tell_all();
            false
        } else if collects {
            self.answer_own(peer, question.attempt, group);
            false
        } else {
            self.ask(group);
            true
        }
    }

    /// Answers a member that collects commits of the list of the one under way. If that does not go
    /// by digests the list has gone to all.
    pub(super) fn answer_own(&mut self, peer: Rank, asked: u64, group: GroupId) {
        let own = self.own(group);
        let Some(Attempt { number, incarnation, exchange: Some(exchange), .. }) = &own.attempt
        else {
            return;
        };
        let commit = Commit { attempt: *number, incarnation: *incarnation };
        let answer = (*number, exchange.digest, vec![commit]);
        own.answer(peer, asked, answer);
    }

    /// Members whose word is missing although this rank has sent them something.
    pub(in crate::group) fn silent(&self, group: GroupId) -> Vec<Rank> {
        let own = &self.own[group.index()];
        if own.is_sending || !own.due.is_empty() {
            return Vec::new();
        }
        let Some(attempt) = &own.attempt else { return Vec::new() };
        if attempt.told_all {
            let is_silent = |rank: &Rank| *rank != self.me && !attempt.seen.contains_key(rank);
            return attempt.ranks.iter().copied().filter(is_silent).collect();
        }
        match &attempt.exchange {
            Some(exchange) if attempt.asked.is_some() => {
                exchange.awaited().map(|incoming| incoming.from).collect()
            }
            _ => Vec::new(),
        }
    }
}
