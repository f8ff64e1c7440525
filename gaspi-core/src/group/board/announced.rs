//! What another rank has said of its commits under one id.

use super::digest_of;
use crate::group::Abort;
use crate::ids::Rank;
use crate::wire::message::{Commit, Digest};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A list that came from another rank.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) attempt: u64,
    pub(super) incarnation: u32,
    /// That of this rank's own commit where it has come by a digest.
    pub(super) ranks: Arc<[Rank]>,
    /// Whether its sender sent it itself.
    pub(super) direct: bool,
    /// Why its sender gave up, once it did.
    pub(super) aborted: Option<Abort>,
}

/// What a rank waits for that has asked this one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) attempt: u64,
    pub(super) previous: u64,
    pub(super) digest: u64,
    /// How often it has asked.
    pub(super) times: u32,
    /// Whether it gets an answer once this rank has begun.
    pub(super) collects: bool,
}

/// What a rank has announced for a group.
#[derive(Debug, Default)]
pub(super) struct Announced {
    pub(super) queue: VecDeque<Entry>,
    /// The number of the last commit that has come.
    pub(super) last: u64,
    /// Lists with a lower incarnation belong to a commit of this rank that failed.
    pub(super) floor: u32,
    /// Digests by their tag, in the order of their commits, unless these have ended.
    digests: BTreeMap<u8, VecDeque<Digest>>,
    /// The number of the last commit that has ended here or there.
    pub(super) ended: u64,
    pub(super) asked: Option<Asked>,
}

impl Announced {
    pub(super) fn hear(&mut self, ranks: Arc<[Rank]>, commit: Commit, direct: bool) {
        let Commit { attempt, incarnation } = commit;
        if attempt <= self.last {
            // Sent again, since a connection broke, or also by leaders.
            return;
        }
        self.last = attempt;
        // Below the floor its sender has been told that this round failed, and fails too.
        if incarnation >= self.floor {
            self.queue.push_back(Entry { attempt, incarnation, ranks, direct, aborted: None });
        }
    }

    /// Where nothing else is known of it, counts on the last commit of a peer that has left, if it
    /// is that of these ranks.
    pub(super) fn hear_last(
        &mut self,
        last_commit: impl FnOnce() -> Option<(Commit, u64)>,
        ranks: &Arc<[Rank]>,
    ) {
        if self.queue.is_empty()
            && let Some((commit, digest)) = last_commit()
            && commit.attempt > 0
            && digest == digest_of(ranks)
        {
            self.hear(Arc::clone(ranks), commit, false);
        }
    }

    /// Whether a commit of the peer is its next one with this rank: it has not ended here, and all
    /// have that the peer has begun before, and whose lists have this rank.
    pub(super) fn is_next(&self, previous: u64, attempt: u64) -> bool {
        previous <= self.ended && self.ended < attempt
    }

    pub(super) fn keep(&mut self, digest: Digest) {
        if digest.attempt <= self.ended {
            return;
        }
        let digests = self.digests.entry(digest.tag).or_default();
        // What was lost and is sent again comes behind what was sent later.
        let at = digests.partition_point(|other| other.attempt < digest.attempt);
        if digests.get(at).is_none_or(|other| other.attempt > digest.attempt) {
            digests.insert(at, digest);
        }
    }

    /// Whether a message of this kind has come for the peer's next commit with this rank.
    pub(super) fn has_come(&self, tag: u8) -> bool {
        let first = self.digests.get(&tag).and_then(VecDeque::front);
        first.is_some_and(|first| self.is_next(first.previous, first.attempt))
    }

    /// Takes such a message, if it is of a list with this digest and of so many members.
    pub(super) fn take(&mut self, tag: u8, digest: u64, members: usize) -> Option<Vec<Commit>> {
        if !self.has_come(tag) {
            return None;
        }
        let digests = self.digests.get_mut(&tag)?;
        let is_it = |found: &Digest| found.digest == digest && found.commits.len() == members;
        if !digests.front().is_some_and(is_it) {
            return None;
        }
        digests.pop_front().map(|found| found.commits)
    }

    /// Whether its next commit with this rank is known to be of a list with another digest.
    pub(super) fn differs(&self, digest: u64) -> bool {
        let is_next = |of: &(u64, u64, u64)| self.is_next(of.0, of.1);
        let asked = self.asked.map(|asked| (asked.previous, asked.attempt, asked.digest));
        let first = self.digests.values().filter_map(VecDeque::front);
        let told = first.map(|told| (told.previous, told.attempt, told.digest));
        told.chain(asked).filter(is_next).any(|(.., other)| other != digest)
    }

    /// Whether the peer has begun to commit these ranks.
    pub(super) fn commits(&self, ranks: &[Rank]) -> bool {
        let digest = digest_of(ranks);
        let lists = self.queue.front().is_some_and(|first| *first.ranks == *ranks);
        let asks = self.asked.is_some_and(|asked| asked.digest == digest);
        let mut digests = self.digests.values().flatten();
        lists || asks || digests.any(|told| told.digest == digest)
    }

    /// Whether it has begun a commit, of whatever list.
    pub(super) fn has_begun(&self) -> bool {
        self.asked.is_some() || self.digests.values().any(|digests| !digests.is_empty())
    }

    /// The peer has asked this rank. How often so far for this commit.
    pub(super) fn hear_question(&mut self, question: &Digest, collects: bool) -> u32 {
        let Digest { attempt, previous, digest, .. } = *question;
        let before = self.asked.filter(|asked| asked.attempt == attempt);
        let times = before.map_or(0, |before| before.times).saturating_add(1);
        let collects = collects || before.is_some_and(|before| before.collects);
        self.asked = Some(Asked { attempt, previous, digest, times, collects });
        times
    }

    /// The peer's commit of this number has ended.
    pub(super) fn end(&mut self, attempt: u64) {
        self.ended = self.ended.max(attempt);
        self.asked.take_if(|asked| asked.attempt <= attempt);
        for digests in self.digests.values_mut() {
            digests.retain(|digest| digest.attempt > attempt);
        }
    }
}
