//! What a member that waits for long asks others, and what those do who are asked.

use super::own::{Attempt, Exchange};
use super::{Board, digest_of};
use crate::control::leaders::route::QUESTION;
use crate::ids::{GroupId, Rank};
use crate::os::clock;
use crate::wire::message::{Digest, GroupMessage};
use std::collections::BTreeSet;
use std::time::Duration;

/// Between two questions of a commit at least: an answer may be lost.
const AGAIN: Duration = Duration::from_secs(1);

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
        let again = AGAIN.max(attempt.exchange.as_ref()?.route.patience);
        Some(again.saturating_sub(clock::since(attempt.asked?)))
    }

    /// Asks those whose messages this rank still awaits, unless it has done so just now.
    pub(in crate::group) fn ask(&mut self, group: GroupId) {
        if self.next_question(group).is_some_and(|left| !left.is_zero()) {
            return;
        }
        let own = self.own(group);
        let attempt = own.attempt.as_mut().filter(|attempt| !attempt.told_all);
        let Some(attempt) = attempt else { return };
        let Some(Exchange { route, digest, ready, .. }) = &attempt.exchange else { return };
        attempt.asked = Some(clock::now());
        let awaited: BTreeSet<Rank> = route.incoming[*ready..].iter().map(|it| it.from).collect();
        let (attempt, digest) = (attempt.number, *digest);
        let question = Digest { group, attempt, tag: QUESTION, digest, commits: vec![] };
        own.send(attempt, &awaited.into_iter().collect(), GroupMessage::Digest(question));
    }

    /// `peer` waits for this rank in a commit of a list with this hash. Whether what it has been
    /// sent has to be sent again: it may have been lost.
    pub(super) fn asked(&mut self, peer: Rank, question: &Digest) -> bool {
        let group = question.group;
        let announced = self.announced.entry((group, peer)).or_default();
        if question.attempt <= announced.ended {
            return true;
        }
        let own = &mut self.own[group.index()];
        let lists_peer = |attempt: &Attempt| attempt.ranks.binary_search(&peer).is_ok();
        if !own.attempt.as_ref().is_some_and(lists_peer) {
            announced.asked = Some((question.attempt, question.digest));
        }
        match &own.attempt {
            Some(attempt) if digest_of(&attempt.ranks) == question.digest => {
                self.ask(group);
                true
            }
            Some(_) => {
                own.tell_all();
                false
            }
            None => false,
        }
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
            Some(Exchange { route, ready, .. }) if attempt.asked.is_some() => {
                route.incoming[*ready..].iter().map(|incoming| incoming.from).collect()
            }
            _ => Vec::new(),
        }
    }
}
