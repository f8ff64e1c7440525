//! Where things lie in a member's part of a channel: the same on all members.
//!
//! ```text
//! slot of even arrivals, slot of odd ones    128 bytes each
//! notice to all                              128 bytes
//! notices of members of other nodes          n * 64
//! if there are many, and room:
//!   counts of arrivals                       128 bytes
//!   slots of all members                     even ones n * 64, odd ones n * 64
//! staging, by turns of the arrivals
//! ```
//!
//! The slots of messages lie elsewhere in the member's range: see [`rings`](super::rings).
//!
//! Of more than [`TEAM`] members of one node the arrival slots of all lie in the part of the first
//! one: who looks at all of them touches a few pages, not one for each member. They lie close to
//! each other, since whoever reads one reads all.
//!
//! Slots and staging are skewed: lines at the same place of several of them would all share one set
//! of the caches.

use super::ChannelSpec;
use crate::sync::AtomicU64;
use crate::sync::arrival_slot::ArrivalSlot;
use crate::sync::teams::TEAM;
use std::ops::Range;

/// A cache line.
pub(super) const LINE: u64 = size_of::<ArrivalSlot<AtomicU64>>() as u64;
/// Neighbouring lines are fetched in pairs: what different ranks write lies in different pairs.
const PAIR: u64 = 2 * LINE;
/// What ranges of an arena are aligned to, and the distance at which caches begin again.
pub(super) const PAGE: u64 = 4096;
/// How staging of neighbouring members is shifted in a channel with room.
const SKEW: u64 = 5 * LINE;
/// Stages of a member. Two would do, but lines that are still in a reader's cache are slow to
/// write. After some megabytes they have left it: 64 KiB are written in 2 us instead of 7. Odd, so
/// that operations of two arrivals, one of them staged, go through all.
pub(super) const STAGES: u64 = 65;
/// The same for more than [`TEAM`] members. They write so much in each arrival that it has left the
/// caches after few, and each page of a stage costs every reader a page fault at first.
const STAGES_OF_MANY: u64 = 5;
/// Stages of a channel that lies close to others.
const COMPACT_STAGES: u64 = 2;
/// Words per member, in its own cache line while that is cheap.
const WORDS: u32 = 4;
const SPREAD_WORDS: u32 = (LINE / 4) as u32;
/// Members up to which each has a cache line for its words.
const SPREAD_MEMBERS: usize = 64;

/// The places in the parts of a channel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    slots: u64,
    /// From a slot to the next one.
    slot_stride: u64,
    /// From the slots of a member to those of the next.
    ring: u64,
    /// Bytes of the slots of all members, of one parity, where they lie together.
    slots_of_all: u64,
    stages: u64,
    stages_at: u64,
    stage_stride: u64,
    /// How staging of neighbouring members is shifted.
    skew: u64,
    /// Bytes of a part.
    bytes: u64,
    words_per_member: u32,
    words: u32,
}

impl Layout {
    /// For `members` members, with room where that makes it fast.
    pub(super) fn new(spec: ChannelSpec, members: usize) -> Layout {
        let spread = members <= SPREAD_MEMBERS;
        let words_per_member = if spread { SPREAD_WORDS } else { WORDS };
        // Stages of neighbours are apart by a page, and by lines beyond.
        let stage_stride = (spec.stage_bytes + PAGE).next_multiple_of(PAIR) + PAIR;
        let together = members > TEAM;
        let stages = if together { STAGES_OF_MANY } else { STAGES };
        Layout::with(spec, members, (stages, stage_stride, SKEW), PAGE, words_per_member, together)
    }

    /// The same in as few bytes as will do, for one of many that lie close to each other.
    pub(super) fn compact(spec: ChannelSpec, members: usize) -> Layout {
        let stage_stride = spec.stage_bytes.next_multiple_of(PAIR);
        Layout::with(spec, members, (COMPACT_STAGES, stage_stride, 0), PAIR, WORDS, false)
    }

    fn with(
        spec: ChannelSpec,
        members: usize,
        (stages, stage_stride, skew): (u64, u64, u64),
        align: u64,
        words_per_member: u32,
        together: bool,
    ) -> Layout {
        let (slots, n) = (u64::from(spec.slots), members as u64);
        // An odd number of lines, so that slots go through all sets.
        let slot_stride = (spec.slot_bytes().div_ceil(LINE) | 1) * LINE;
        let ring = (slots * slot_stride).next_multiple_of(PAIR);
        let slots_of_all = if together { n * LINE } else { 0 };
        let of_many = if together { PAIR + 2 * slots_of_all } else { 0 };
        let stages_at = (Layout::counts_at(n) + of_many).next_multiple_of(align);
        let bytes = (stages_at + stages * stage_stride).next_multiple_of(align);
        let words = words_per_member * members as u32;
        Layout {
            slots,
            slot_stride,
            ring,
            slots_of_all,
            stages,
            stages_at,
            stage_stride,
            skew,
            bytes,
            words_per_member,
            words,
        }
    }

    /// Where counts of arrivals are, behind the notices.
    fn counts_at(members: u64) -> u64 {
        (3 * PAIR + members * LINE).next_multiple_of(PAIR)
    }

    /// Bytes of a member's part.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the slots between two members.
    pub(super) fn ring(&self) -> u64 {
        self.ring
    }

    /// Words of a member's part.
    pub(super) fn words(&self) -> u32 {
        self.words
    }

    /// A member's slot for arrivals of this parity.
    #[inline]
    pub(super) fn arrival_slot(&self, sequence: u64) -> u64 {
        (sequence % 2) * PAIR
    }

    /// A member's counts of arrivals, if members are many.
    #[inline]
    pub(super) fn arrival_counts(&self) -> Option<u64> {
        let members = self.slots_of_all / LINE;
        (members > 0).then(|| Layout::counts_at(members))
    }

    /// Where the slots of all members lie in the part of the first one, if they are many: the even
    /// ones, and behind them the odd ones.
    pub(super) fn slots_of_all(&self) -> Option<Range<u64>> {
        let start = self.arrival_counts()? + PAIR;
        Some(start..start + 2 * self.slots_of_all)
    }

    /// A member's notice.
    #[inline]
    pub(super) fn notice(&self) -> u64 {
        2 * PAIR
    }

    /// The copy of the notice of `from`, of another node.
    #[inline]
    pub(super) fn received_notice(&self, from: usize) -> u64 {
        3 * PAIR + from as u64 * LINE
    }

    /// Staging of `member` for an arrival.
    #[inline]
    pub(super) fn stage(&self, member: usize, sequence: u64) -> u64 {
        let skew = member as u64 * self.skew % PAGE;
        self.stages_at + (sequence % self.stages) * self.stage_stride + skew
    }

    /// The slot of message `index` in a ring.
    #[inline]
    pub(super) fn slot(&self, index: u64) -> u64 {
        let slot = if self.slots.is_power_of_two() {
            index & (self.slots - 1)
        } else {
            index % self.slots
        };
        slot * self.slot_stride
    }

    /// The word, among those of a member, that counts messages of `from`.
    #[inline]
    pub(super) fn received(&self, from: usize) -> u32 {
        from as u32 * self.words_per_member
    }

    /// The word, among those of a member, that counts its messages that `by` has taken.
    #[inline]
    pub(super) fn taken(&self, by: usize) -> u32 {
        self.received(by) + 1
    }

    /// The word, among those of a member, in which `by` says that it has closed its end.
    #[inline]
    pub(super) fn closed(&self, by: usize) -> u32 {
        self.received(by) + 2
    }

    /// The word, among those of a member, in which `by` says that messages of it are lost.
    #[inline]
    pub(super) fn lost(&self, by: usize) -> u32 {
        self.received(by) + 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_overlaps_and_all_lies_inside(
            slots in 1..9u32,
            message in 0..9000u64,
            stage in 0..9000u64,
            members in 1..90usize,
            compact in any::<bool>(),
        ) {
            let spec = ChannelSpec { slots, message_bytes: message, stage_bytes: stage }
                .rounded()
                .expect("a small one");
            let new = if compact { Layout::compact } else { Layout::new };
            let g = new(spec, members);
            let firsts = [g.arrival_slot(0), g.arrival_slot(1), g.notice()];
            let mut parts: Vec<(u64, u64)> = firsts.map(|first| (first, LINE)).into();
            parts.extend((0..members).map(|member| (g.received_notice(member), LINE)));
            let of_all = g.slots_of_all();
            prop_assert_eq!(of_all.is_some(), members > TEAM && !compact);
            parts.extend(g.arrival_counts().map(|counts| (counts, LINE)));
            parts.extend(of_all.clone().map(|slots| (slots.start, slots.end - slots.start)));
            prop_assert!(of_all.is_none_or(|it| it.end - it.start == 2 * members as u64 * LINE));
            // Each member has its own in its own part.
            let me = members / 2;
            parts.extend((0..g.stages).map(|turn| (g.stage(me, turn), spec.stage_bytes)));
            parts.sort_unstable();
            for pair in parts.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            }
            let last = parts.last().expect("some");
            prop_assert!(last.0 + last.1 <= g.bytes());
            prop_assert!(parts.iter().all(|part| part.0 % LINE == 0));
            prop_assert!(g.lost(members - 1) < g.words());
            let slots = u64::from(slots);
            for (one, next) in (0..slots).zip(1..slots) {
                prop_assert!(g.slot(one) + spec.slot_bytes() <= g.slot(next));
            }
            prop_assert!(g.slot(slots - 1) + spec.slot_bytes() <= g.ring());
            prop_assert_eq!(g.slot(slots * 3), g.slot(0));
        }
    }
}
