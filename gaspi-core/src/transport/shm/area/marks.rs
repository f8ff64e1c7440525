//! How far the ranks of a node have come in their groups.

use super::SharedArea;
use crate::ids::Rank;
use crate::sync::teams::LEVELS;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::wire::message::Commit;
use crate::wire::shared_layout::MARK_BYTES;

/// How far a rank has come in one group: written by the rank after each step, read by members that
/// want to use the group's id for other members.
#[repr(C, align(64))]
#[derive(Debug)]
struct Mark {
    /// The last step whose arrival slots the rank no longer needs.
    finished: AtomicU64,
    /// How many wait for it to advance.
    wanted: AtomicU32,
    /// The last incarnation of which the rank needs no arrival slots any more, whatever its steps.
    given_up: AtomicU32,
    /// The last step at which all members are known to have arrived, of a rank that leads its node.
    exchanged: AtomicU64,
    /// The members of its last commit, for tools.
    members: Runs,
    commit: LastCommit,
    teams: TeamWords,
}

/// The commit that a rank has announced last, read by others once it has left.
#[repr(C)]
#[derive(Debug)]
struct LastCommit {
    /// Its number, 0 if there is none.
    attempt: AtomicU64,
    /// The hash of its list.
    digest: AtomicU64,
    /// The incarnation that it has proposed.
    incarnation: AtomicU32,
}

/// What the members of a node say to each other in a large group, in the mark of the first of them.
/// Any of them writes, by single operations that make a number larger.
#[repr(C)]
#[derive(Debug)]
struct TeamWords {
    /// By level, of the teams whose first member this is: the last step at which all have arrived.
    arrived: [AtomicU64; LEVELS],
    /// The last step of which each arrival is told to all.
    alarm: AtomicU64,
}

/// A set of ranks as runs of neighbours: few suffice for nearly all groups.
#[repr(C)]
#[derive(Debug)]
struct Runs {
    /// Runs that are valid; more than there are if the set did not fit.
    count: AtomicU32,
    /// First and last rank, in the upper and lower half.
    runs: [AtomicU32; 9],
}

/// Keeps a rank telling that it has finished a step.
#[derive(Debug)]
pub(crate) struct WatchSteps<'a> {
    wanted: &'a AtomicU32,
}

impl Drop for WatchSteps<'_> {
    fn drop(&mut self) {
        self.wanted.fetch_sub(1, Ordering::Relaxed);
    }
}

// The layout gives each its place.
const _: () = assert!(size_of::<Mark>() == MARK_BYTES);

impl SharedArea {
    fn mark(&self, rank: Rank, group: usize) -> &Mark {
        self.in_part(self.parts.of(rank), self.layout.mark_in_part(group))
    }

    fn own_mark(&self, group: usize) -> &Mark {
        self.in_part(self.parts.own(), self.layout.mark_in_part(group))
    }

    /// This rank no longer needs arrival slots of `group` up to `step`.
    #[inline]
    pub(crate) fn finish_step(&self, group: usize, step: u64) {
        let mark = self.own_mark(group);
        // Release: the reads of the arrival slots stay before it; pairs with the Acquire in
        // `has_finished`.
        mark.finished.store(step, Ordering::Release);
        self.wake_watchers(mark);
    }

    #[inline]
    fn wake_watchers(&self, mark: &Mark) {
        self.light().fence();
        if mark.wanted.load(Ordering::Relaxed) != 0 {
            self.wake_all();
        }
    }

    /// This rank takes part in no more steps of this use of `group`'s id, finished or not.
    pub(crate) fn give_up(&self, group: usize, incarnation: u32) {
        let mark = self.own_mark(group);
        // Release: as in `finish_step`; pairs with the Acquire in `has_given_up`.
        mark.given_up.store(incarnation, Ordering::Release);
        self.wake_watchers(mark);
    }

    /// This rank takes part in no use of `group`'s id that there has been, nor in one that members
    /// may commit with it, until it [commits](SharedArea::take_part) again.
    pub(crate) fn give_up_all(&self, group: usize) {
        self.give_up(group, u32::MAX);
    }

    /// This rank commits `group`, and may take part in uses of its id from this one on. To be
    /// called before others can commit one with it.
    pub(crate) fn take_part(&self, group: usize, incarnation: u32) {
        let given_up = &self.own_mark(group).given_up;
        // Relaxed: only this rank changes it; what the others need for a commit follows by Release.
        let before = given_up.load(Ordering::Relaxed);
        given_up.store(before.min(incarnation - 1), Ordering::Relaxed);
    }

    /// Whether `rank` takes part in no more steps of this use of `group`'s id.
    pub(crate) fn has_given_up(&self, rank: Rank, group: usize, incarnation: u32) -> bool {
        self.mark(rank, group).given_up.load(Ordering::Acquire) >= incarnation
    }

    /// Whether `rank` no longer needs arrival slots of `group` up to `step`.
    pub(crate) fn has_finished(&self, rank: Rank, group: usize, step: u64) -> bool {
        self.mark(rank, group).finished.load(Ordering::Acquire) >= step
    }

    /// This rank has announced a commit of `group` whose list has this hash.
    pub(crate) fn set_commit(&self, group: usize, commit: Commit, digest: u64) {
        let Commit { attempt, incarnation } = commit;
        let commit = &self.own_mark(group).commit;
        // Who reads this has seen that this rank has left, which is published by a Release.
        commit.attempt.store(attempt, Ordering::Relaxed);
        commit.incarnation.store(incarnation, Ordering::Relaxed);
        commit.digest.store(digest, Ordering::Relaxed);
    }

    /// The commit of `group` that `rank`, which has left, has announced last, and the hash of its
    /// list.
    pub(crate) fn last_commit(&self, rank: Rank, group: usize) -> (Commit, u64) {
        let commit = &self.mark(rank, group).commit;
        let attempt = commit.attempt.load(Ordering::Relaxed);
        let incarnation = commit.incarnation.load(Ordering::Relaxed);
        (Commit { attempt, incarnation }, commit.digest.load(Ordering::Relaxed))
    }

    /// All members of `group` have arrived at `step`, as this rank knows, which leads its node.
    pub(crate) fn publish_exchanged(&self, group: usize, step: u64) {
        // Release: what leaders have told is seen; pairs with the Acquire in `has_exchanged`.
        self.own_mark(group).exchanged.store(step, Ordering::Release);
    }

    /// Whether all members of `group` have arrived at `step`, as `leader` knows, which may be a
    /// step ahead.
    #[inline]
    pub(crate) fn has_exchanged(&self, leader: Rank, group: usize, step: u64) -> bool {
        // Acquire: pairs with the Release in `publish_exchanged`.
        let exchanged = self.mark(leader, group).exchanged.load(Ordering::Acquire);
        // A step of a later use of the group is further ahead.
        exchanged.wrapping_sub(step) <= 1
    }

    /// The last step of `group` at which all of a team have arrived, by its first member.
    #[inline]
    pub(crate) fn team_word(&self, first: Rank, group: usize, level: usize) -> &AtomicU64 {
        &self.mark(first, group).teams.arrived[level]
    }

    /// The last step of `group` of which each arrival is told to all members of this node, of which
    /// `first` is the first one.
    pub(crate) fn alarm_word(&self, first: Rank, group: usize) -> &AtomicU64 {
        &self.mark(first, group).teams.alarm
    }

    /// While the value lives, `rank` wakes all when it finishes a step of `group`. A sleeper's
    /// fence orders it before his last look.
    pub(crate) fn watch_steps(&self, rank: Rank, group: usize) -> WatchSteps<'_> {
        let wanted = &self.mark(rank, group).wanted;
        wanted.fetch_add(1, Ordering::Relaxed);
        WatchSteps { wanted }
    }

    /// Tells tools with whom this rank commits `group`; the ranks ascend.
    pub(crate) fn set_members(&self, group: usize, ranks: &[Rank]) {
        let members = &self.own_mark(group).members;
        let mut count = 0;
        for run in ranks.chunk_by(|one, next| one.0 + 1 == next.0) {
            if let (Some(word), [first, ..], [.., last]) = (members.runs.get(count), run, run) {
                word.store(u32::from(first.0) << 16 | u32::from(last.0), Ordering::Relaxed);
            }
            count += 1;
        }
        // Release: pairs with the Acquire in `members`.
        members.count.store(count as u32, Ordering::Release);
    }

    /// With whom `rank` committed `group` last, and whether these are all.
    pub(crate) fn members(&self, rank: Rank, group: usize) -> (Vec<Rank>, bool) {
        if group == 0 {
            // It is there from the start, with everybody.
            return ((0..self.layout.ranks()).map(|rank| Rank(rank as u16)).collect(), true);
        }
        let members = &self.mark(rank, group).members;
        let count = members.count.load(Ordering::Acquire) as usize;
        let words = members.runs.iter().take(count).map(|word| word.load(Ordering::Relaxed));
        let exists = |rank: &u32| *rank < self.layout.ranks();
        let ranks = words.flat_map(|word| word >> 16..=word & 0xffff).filter(exists);
        (ranks.map(|rank| Rank(rank as u16)).collect(), count <= members.runs.len())
    }
}
