//! How the members of a large group find out that all have arrived without looking at all.
//!
//! Up to [`TEAM`] neighbours form a team, up to [`TEAM`] teams a team of the next level, and so on
//! up to the one team of all. A member that arrives publishes its arrival slot and looks at those
//! of its team. If all are there it says so in the word of the team, and looks at the words of the
//! teams beside it; the word of the last level says that all have arrived. Nobody has a special
//! part: whoever finds a team complete says so, so no step waits for a member that sleeps, and the
//! word grows only, so it may be said twice.
//!
//! Invariant: of the members that complete a team at least one finds it complete: each publishes,
//! executes a full fence, and looks.

use super::arrival_slot::{ArrivalSlot, Poll};
use super::{Ordering, Word64};

/// Members of a team, and teams of a team of the next level.
pub const TEAM: usize = 16;

/// Levels that there can be: enough for 65,536 members.
pub const LEVELS: usize = 4;

/// How many levels so many members have, in teams of this size.
pub fn levels(members: usize, team: usize) -> usize {
    let mut levels = 1;
    while levels < LEVELS && team.pow(levels as u32) < members {
        levels += 1;
    }
    levels
}

/// What a member finds that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// All have arrived, and it is the first one to say so.
    All,
    /// Some are missing, as far as it sees, or another one has said that none are.
    Some,
    /// A member has another signature, or has gone on already.
    Difference,
}

/// The members of a group, by their index, as one of them sees them.
pub trait Members<W> {
    /// How many form a team; models have fewer.
    const TEAM: usize = TEAM;
    /// How many there are.
    fn count(&self) -> usize;
    /// The arrival slot of a member for the step.
    fn slot(&self, member: usize) -> &ArrivalSlot<W>;
    /// The word of the team of this level that begins with a member.
    fn word(&self, member: usize, level: usize) -> &W;
    /// A full fence.
    fn fence(&self);
}

/// What member `me` does once its arrival slot is published.
pub fn ascend<W: Word64, M: Members<W>>(
    members: &M,
    me: usize,
    (step, signature): (u64, u64),
) -> Found {
    let (count, top) = (members.count(), levels(members.count(), M::TEAM) - 1);
    let mut unit = 1;
    for level in 0..=top {
        // What this rank has published is seen by whoever looks after this, or this rank sees what
        // that one has published.
        members.fence();
        let size = unit * M::TEAM;
        let first = me / size * size;
        let mut complete = true;
        for member in (first..count.min(first + size)).step_by(unit) {
            // Acquire: pairs with `raise`; the arrival of each of the team is seen.
            if level > 0 && members.word(member, level - 1).load(Ordering::Acquire) != step {
                complete = false;
                continue;
            }
            // All of a complete team have the signature of its first member.
            match members.slot(member).poll(step) {
                Poll::Arrived(found) if found == signature => {}
                Poll::Missing => complete = false,
                Poll::Arrived(_) | Poll::Passed => return Found::Difference,
            }
        }
        if !complete {
            return Found::Some;
        }
        let is_first = raise(members.word(first, level), step);
        if level == top && is_first {
            return Found::All;
        }
        unit = size;
    }
    Found::Some
}

/// Makes the word at least `step`; whether this call did.
pub fn raise<W: Word64>(word: &W, step: u64) -> bool {
    let mut found = word.load(Ordering::Acquire);
    while found < step {
        // Release: what this rank has seen of its team is seen by those that read the word.
        match word.compare_exchange(found, step, Ordering::AcqRel) {
            Ok(_) => return true,
            Err(other) => found = other,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;
    use std::cell::Cell;

    struct Group {
        slots: Vec<ArrivalSlot<AtomicU64>>,
        words: Vec<[AtomicU64; LEVELS]>,
        /// How many slots and words were looked at.
        looks: Cell<usize>,
    }

    impl Group {
        fn new(members: usize) -> Group {
            let slots = (0..members).map(|_| ArrivalSlot::default()).collect();
            let words = (0..members).map(|_| Default::default()).collect();
            Group { slots, words, looks: Cell::new(0) }
        }

        fn arrive(&self, me: usize, step: u64, signature: u64) -> Found {
            self.slots[me].publish(step, signature, &[]);
            ascend(self, me, (step, signature))
        }

        fn have_all(&self, step: u64) -> bool {
            let top = levels(self.slots.len(), TEAM) - 1;
            self.words[0][top].load(Ordering::Relaxed) == step
        }
    }

    impl Members<AtomicU64> for Group {
        fn count(&self) -> usize {
            self.slots.len()
        }

        fn slot(&self, member: usize) -> &ArrivalSlot<AtomicU64> {
            self.looks.set(self.looks.get() + 1);
            &self.slots[member]
        }

        fn word(&self, member: usize, level: usize) -> &AtomicU64 {
            self.looks.set(self.looks.get() + 1);
            &self.words[member][level]
        }

        fn fence(&self) {}
    }

    #[test]
    fn levels_hold_all_members() {
        let sizes = [2, 16, 17, 256, 257, 4096, 4097, 65_536];
        let of = sizes.map(|members| levels(members, TEAM));
        assert_eq!(of, [1, 1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn the_last_one_finds_that_all_have_arrived_in_whatever_order() {
        for members in [2, 16, 17, 31, 32, 33, 255, 256, 257, 512, 1000] {
            let group = Group::new(members);
            // Coprime with all of these numbers, so that each member comes once.
            for (step, stride) in [(1, 1), (2, 7919), (3, 104_729)] {
                for at in 0..members {
                    let found = group.arrive((at * stride + 5) % members, step, 7);
                    let last = at + 1 == members;
                    assert_eq!(found == Found::All, last, "member {at} of {members}");
                    assert_eq!(group.have_all(step), last);
                }
            }
        }
    }

    #[test]
    fn no_member_looks_at_more_than_its_teams() {
        let group = Group::new(512);
        let mut most = 0;
        for me in 0..512 {
            let before = group.looks.get();
            group.arrive(me, 1, 7);
            most = most.max(group.looks.get() - before);
        }
        // 16 slots, and 16 words with a slot each on two more levels, and the words it writes.
        assert!(most <= 16 + 2 * 32 + 3, "{most} looks");
        assert!(group.looks.get() < 512 * 24, "{} looks of all", group.looks.get());
    }

    #[test]
    fn a_difference_is_seen_within_a_team_and_between_teams() {
        let within = Group::new(40);
        assert_eq!(within.arrive(3, 1, 7), Found::Some);
        assert_eq!(within.arrive(9, 1, 8), Found::Difference);
        let between = Group::new(32);
        let found = |me| between.arrive(me, 1, if me < 16 { 7 } else { 8 });
        let all: Vec<Found> = (0..32).map(found).collect();
        assert!(all[..31].iter().all(|found| *found == Found::Some));
        assert_eq!(all[31], Found::Difference);
        let ahead = Group::new(32);
        ahead.arrive(1, 3, 7);
        assert_eq!(ahead.arrive(0, 1, 7), Found::Difference);
    }
}
