//! Where things lie in the memory that all ranks of a node map, in bytes.
//!
//! The server of an exchange makes that memory, ranks and observers map it, each perhaps from a
//! build of its own: like frames, the layout is a format that processes agree on. It is a leaf, so
//! that whatever makes the memory need not know what lies there; the types are those of
//! [`crate::transport::shm::area`], which asserts that they fit. For `n` ranks of which `p` are of
//! the node, and `g` groups:
//!
//! ```text
//! liveness         n * 4
//! deaths           4                      0, or a count of news of them
//! departures       4                      a count
//! watchers         n * 8                  by the number of the node that is watched
//! order of ends    n * 4                  0, or where the end of a rank stands in the log, from 1
//! log of ends      n * 4                  0, or a rank and 1, in the order of the ends
//! numbers          n * 4                  0, or the number on the node, from 1, of who maps it
//! parts of ranks   (1 + p) * (4096 + g * 256), each at a multiple of 4096
//!   control page   4096
//!   arrival slots  g * 2 * 64
//!   progress marks g * 128
//! passive slots    p * p * 64             by receiver, then sender
//! passive outbox   p * 64 * 65536         by sender
//! staging          p * g * 2 * 16384
//! lines            p * 2 * (g - 1) * max(min(n, 64) * 2048, n * 48), and for the group of all
//!                  p * 2 * min(n * 2048, 65535 * 48) in front of each rank's
//! arenas           p * 4102 MiB or more   behind the rest for p = n
//! ```
//!
//! What comes first is kept of all ranks of the job, and takes 24 bytes for each. The rest, 13 MiB
//! for a rank of the node, lies there by its number among those of the node ([`Place`]). What tools
//! look at lies where it would for any number of these, and the numbers tell them whose it is. The
//! first part of a rank is nobody's: it stays zero, and stands for ranks that are not of the node.
//! The file may be larger than a layout: where it is made it is not always known how many ranks of
//! the node there will be. It may also end before the arenas, which are then files of their own.

use crate::ids::Rank;
use crate::os::memory::{HUGE_PAGE, PAGE};

/// What /proc/PID/maps shows of it in each process that maps it.
pub(crate) const AREA_PATH: &str = "/memfd:gaspi-node";

/// Bytes of the control page of a rank.
pub(crate) const CONTROL_PAGE_BYTES: usize = 4096;
/// Bytes of an arrival slot.
pub(crate) const ARRIVAL_SLOT_BYTES: usize = 64;
/// Bytes of a progress mark.
pub(crate) const MARK_BYTES: usize = 128;
/// Bytes of the slot for passive messages of one rank to another.
pub(crate) const PASSIVE_SLOT_BYTES: usize = 64;
/// Bytes of the word that tells where a rank is in its life, of those that count deaths and
/// departures, and of those that tell in which order ranks have ended, or which number they have
/// on their node.
pub(crate) const LIVENESS_BYTES: usize = 4;
/// Ranks of a node that watch another node, each on behalf of all of its own: one may be stopped.
pub(crate) const WATCHERS: usize = 2;
/// Bytes of staging for one step of a collective.
pub const STAGE_BYTES: usize = 16384;
/// Bytes of a member's line that there is room for: 255 elements of the standard's all-reduces.
const LINE_BYTES: usize = 2048;
/// Members for which there is room for lines of that size, where a group is not that of all; more
/// have shorter ones.
const LINES_MEMBERS: usize = 64;
/// Bytes of a member's line that there is room for in any job: the words of an arrival slot.
const SHORT_LINE_BYTES: usize = 48;
/// Ranks of a job at most.
const RANKS_MAX: usize = u16::MAX as usize;
/// Bytes of the lines of a step at most.
pub(crate) const LINES_BYTES_MAX: usize = RANKS_MAX * SHORT_LINE_BYTES;

/// Bytes of the lines of a step that there is room for in a group of a job of so many ranks. The
/// first one, of all, is there from the start.
pub(crate) fn lines_bytes(ranks: usize, group: usize) -> usize {
    let members = if group == 0 { ranks } else { ranks.min(LINES_MEMBERS) };
    (members * LINE_BYTES).min(LINES_BYTES_MAX).max(ranks * SHORT_LINE_BYTES)
}

/// Passive messages that one rank can have under way at once.
pub(crate) const OUTBOX_BUFFERS: usize = 64;
/// Bytes of one of them; at least passive_transfer_size_max.
pub(crate) const OUTBOX_BYTES: usize = 65536;

/// Bytes of the data of an arena, where channels lie, if there are addresses for all of the node.
pub(crate) const ARENA_BYTES: u64 = 4 << 30;
/// Words of its notification space.
pub(crate) const ARENA_WORDS: u32 = 1 << 20;

/// Parts of ranks begin at multiples of this.
const PART_ALIGNMENT: u64 = CONTROL_PAGE_BYTES as u64;

/// The number of a rank among those of its node, in the order of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u32);

/// The same from 1 on, or 0 for a rank of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) u32);

/// The layout for a number of ranks, of those of the node, and of groups that each can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedLayout {
    ranks: u64,
    groups: u64,
    locals: u64,
}

impl SharedLayout {
    /// For a node that may have all ranks of the job.
    pub(crate) const fn new(ranks: u32, group_max: u32) -> SharedLayout {
        SharedLayout { ranks: ranks as u64, groups: group_max as u64, locals: ranks as u64 }
    }

    /// The same for a node of so many ranks. What is kept of all ranks, and the parts of those of
    /// the node, stay where they are.
    pub(crate) const fn of_node(self, locals: u32) -> SharedLayout {
        SharedLayout { locals: locals as u64, ..self }
    }

    /// How many ranks it is for.
    #[inline]
    pub(crate) fn ranks(self) -> u32 {
        self.ranks as u32
    }

    /// How many groups each rank can have.
    pub(crate) fn groups(self) -> u32 {
        self.groups as u32
    }

    /// The size of all.
    pub(crate) fn bytes(self) -> u64 {
        let lines = self.locals * self.lines_of_rank();
        (self.all_lines() + lines).next_multiple_of(PAGE)
    }

    /// The size of all, with room for the arenas of the node's ranks.
    pub(crate) fn bytes_with_arenas(self) -> u64 {
        self.arenas() + self.locals * self.arena_bytes()
    }

    /// Where the arenas begin, however many ranks the node has.
    pub(crate) fn arenas(self) -> u64 {
        self.of_node(self.ranks()).bytes().next_multiple_of(HUGE_PAGE)
    }

    /// Bytes of an arena: its header, its notification space and its data, as a segment has them.
    pub(crate) fn arena_bytes(self) -> u64 {
        let header = (64 + self.ranks * 4).next_multiple_of(64);
        (header + u64::from(ARENA_WORDS) * 4).next_multiple_of(HUGE_PAGE) + ARENA_BYTES
    }

    /// Bytes of the part of a rank.
    pub(crate) fn part_bytes(self) -> u64 {
        let of_group = 2 * ARRIVAL_SLOT_BYTES + MARK_BYTES;
        let bytes = CONTROL_PAGE_BYTES as u64 + self.groups * of_group as u64;
        bytes.next_multiple_of(PART_ALIGNMENT)
    }

    /// Where the parts of ranks begin, with that of nobody.
    pub(crate) fn parts(self) -> u64 {
        let end = self.numbers() + self.ranks * LIVENESS_BYTES as u64;
        end.next_multiple_of(PART_ALIGNMENT)
    }

    /// Where those of all ranks of the node end.
    pub(crate) fn parts_end(self) -> u64 {
        self.parts() + (1 + self.locals) * self.part_bytes()
    }

    /// Where in its part the arrival slots of a rank for a group lie: two, one for each parity of a
    /// step.
    #[inline]
    pub(crate) fn arrival_slots_in_part(self, group: usize) -> u64 {
        (CONTROL_PAGE_BYTES + group * 2 * ARRIVAL_SLOT_BYTES) as u64
    }

    /// The same of its progress mark.
    #[inline]
    pub(crate) fn mark_in_part(self, group: usize) -> u64 {
        self.arrival_slots_in_part(self.groups as usize) + (group * MARK_BYTES) as u64
    }

    #[inline]
    pub(crate) fn passive_slot(self, receiver: Place, sender: Place) -> u64 {
        let index = u64::from(receiver.0) * self.locals + u64::from(sender.0);
        self.passive_slots() + index * PASSIVE_SLOT_BYTES as u64
    }

    #[inline]
    pub(crate) fn outbox(self, sender: Place, buffer: usize) -> u64 {
        let index = u64::from(sender.0) * OUTBOX_BUFFERS as u64 + buffer as u64;
        self.outboxes() + index * OUTBOX_BYTES as u64
    }

    #[inline]
    pub(crate) fn stage(self, place: Place, group: usize, parity: usize) -> u64 {
        self.stages() + self.of_step(place, group, parity) * STAGE_BYTES as u64
    }

    /// Where a leader publishes the lines of all members at a step.
    #[inline]
    pub(crate) fn lines(self, place: Place, group: usize, parity: usize) -> u64 {
        let before = match group {
            0 => 0,
            _ => 2 * self.lines_bytes(0) + 2 * (group as u64 - 1) * self.lines_bytes(group),
        };
        let of_parity = parity as u64 * self.lines_bytes(group);
        self.all_lines() + u64::from(place.0) * self.lines_of_rank() + before + of_parity
    }

    fn lines_bytes(self, group: usize) -> u64 {
        lines_bytes(self.ranks as usize, group) as u64
    }

    /// Bytes of the lines that a rank publishes as a leader.
    pub(crate) fn lines_of_rank(self) -> u64 {
        2 * (self.lines_bytes(0) + (self.groups - 1) * self.lines_bytes(1))
    }

    #[inline]
    pub(crate) fn liveness(self, rank: Rank) -> u64 {
        u64::from(rank.0) * LIVENESS_BYTES as u64
    }

    #[inline]
    pub(crate) fn deaths(self) -> u64 {
        self.ranks * LIVENESS_BYTES as u64
    }

    /// How many ranks of the node have left, or have given up watching another node.
    #[inline]
    pub(crate) fn departures(self) -> u64 {
        self.deaths() + LIVENESS_BYTES as u64
    }

    /// One word for each of the [`WATCHERS`] of a node, by its number among those of the job.
    #[inline]
    pub(crate) fn watchers(self, node: usize) -> u64 {
        self.departures() + LIVENESS_BYTES as u64 + (node * WATCHERS * LIVENESS_BYTES) as u64
    }

    /// One word for each rank.
    pub(crate) fn end_order(self) -> u64 {
        self.watchers(self.ranks as usize)
    }

    /// One word for each end.
    pub(crate) fn ends_log(self) -> u64 {
        self.end_order() + self.ranks * LIVENESS_BYTES as u64
    }

    /// One word for each rank.
    pub(crate) fn numbers(self) -> u64 {
        self.ends_log() + self.ranks * LIVENESS_BYTES as u64
    }

    #[inline]
    fn of_step(self, place: Place, group: usize, parity: usize) -> u64 {
        (u64::from(place.0) * self.groups + group as u64) * 2 + parity as u64
    }

    #[inline]
    fn passive_slots(self) -> u64 {
        self.parts_end()
    }

    #[inline]
    fn outboxes(self) -> u64 {
        let slots = self.locals * self.locals * PASSIVE_SLOT_BYTES as u64;
        (self.passive_slots() + slots).next_multiple_of(PAGE)
    }

    #[inline]
    fn stages(self) -> u64 {
        self.outboxes() + self.locals * (OUTBOX_BUFFERS * OUTBOX_BYTES) as u64
    }

    #[inline]
    fn all_lines(self) -> u64 {
        self.stages() + self.locals * self.groups * 2 * STAGE_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::arrival_slot::PAYLOAD_WORDS;

    #[test]
    fn offsets_stay_the_same() {
        let layout = SharedLayout::new(70, 3).of_node(5);
        let (place, other) = (Place(4), Place(2));
        let offsets = [
            layout.liveness(Rank(64)),
            layout.deaths(),
            layout.departures(),
            layout.watchers(69),
            layout.end_order(),
            layout.ends_log(),
            layout.numbers(),
            layout.parts(),
            layout.part_bytes(),
            layout.arrival_slots_in_part(1),
            layout.mark_in_part(1),
            layout.passive_slot(place, other),
            layout.outbox(place, 63),
            layout.stage(place, 1, 1),
            layout.lines(place, 1, 1),
            layout.bytes(),
        ];
        let passive_slots = 4096 + 6 * 8192;
        let outboxes: u64 = 65_536;
        let stages = outboxes + 5 * 64 * 65536;
        let lines: u64 = stages + 5 * 3 * 2 * 16384;
        let of_rank = 2 * (143_360 + 2 * 131_072);
        let expected = [
            64 * 4,
            280,
            284,
            288 + 69 * 8,
            848,
            1128,
            1408,
            4096,
            8192,
            4096 + 128,
            4096 + 3 * 128 + 128,
            passive_slots + 22 * 64,
            outboxes + (4 * 64 + 63) * 65536,
            stages + 27 * 16384,
            lines + 4 * of_rank + 2 * 143_360 + 131_072,
            (lines + 5 * of_rank).next_multiple_of(65536),
        ];
        assert_eq!(offsets, expected);
    }

    #[test]
    fn a_node_takes_room_for_its_own_ranks() {
        let job = SharedLayout::new(65_535, 32);
        let node = job.of_node(64);
        // Little more than 24 bytes for each rank of the job, and for each of the node 13 MiB and
        // what lines of all take.
        let of_local = (13 << 20) + 64 * LINES_BYTES_MAX as u64;
        assert!(node.bytes() < 65_536 * 24 + 65 * of_local, "{}", node.bytes());
        assert!(node.parts_end() < 65_536 * 24 + 66 * (12 << 10), "{}", node.parts_end());
        assert!(node.bytes() < job.bytes() / 500);
        // What tools read lies where it would for all.
        assert_eq!((node.numbers(), node.parts()), (job.numbers(), job.parts()));
        assert_eq!(node.part_bytes(), job.part_bytes());
        let last = node.lines(Place(63), 31, 1) + node.lines_bytes(31);
        assert!(last <= node.bytes());
    }

    #[test]
    fn arenas_lie_behind_the_area_of_the_largest_node() {
        let job = SharedLayout::new(70, 3);
        for locals in [1, 17, 70] {
            let node = job.of_node(locals);
            assert_eq!(node.arenas(), job.bytes().next_multiple_of(2 << 20));
            // 4 GiB, 4 MiB of words and a header.
            let each = (4 << 30) + (6 << 20);
            assert_eq!(node.bytes_with_arenas(), node.arenas() + u64::from(locals) * each);
        }
    }

    #[test]
    fn there_is_room_for_short_lines_of_all_and_for_long_ones_of_many() {
        let of = |group| [1, 64, 65, 1535, 2731, 65_535].map(|ranks| lines_bytes(ranks, group));
        assert_eq!(of(1), [2048, 131_072, 131_072, 131_072, 131_088, 3_145_680]);
        assert_eq!(of(0), [2048, 131_072, 133_120, 3_143_680, 3_145_680, 3_145_680]);
        // Groups follow each other.
        let layout = SharedLayout::new(1000, 3);
        for (group, parity) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)] {
            let next = (group + parity, 1 - parity);
            let end = layout.lines(Place(5), group, parity) + layout.lines_bytes(group);
            assert_eq!(layout.lines(Place(5), next.0, next.1), end);
        }
        let end = layout.lines(Place(5), 2, 1) + layout.lines_bytes(2);
        assert_eq!(layout.lines(Place(6), 0, 0), end);
        assert_eq!(LINES_BYTES_MAX, 3_145_680);
        assert_eq!(SHORT_LINE_BYTES, PAYLOAD_WORDS * size_of::<u64>());
    }
}
