//! Where things lie in the memory that all ranks of a node map, in bytes.
//!
//! The server of an exchange makes that memory, ranks and observers map it, each perhaps from a
//! build of its own: like frames, the layout is a format that processes agree on. It is a leaf, so
//! that whatever makes the memory need not know what lies there; the types are those of
//! [`crate::transport::shm::area`], which asserts that they fit. For `n` ranks and `g` groups:
//!
//! ```text
//! control pages    n * 4096
//! arrival slots    n * g * 2 * 64
//! progress marks   n * g * 128
//! passive slots    n * n * 64             by receiver, then sender
//! passive outbox   n * 64 * 65536         by sender
//! staging          n * g * 2 * 16384
//! lines            n * g * 2 * min(n, 64) * 2048
//! liveness         n * 4
//! deaths           4                      0, or a count of news of them
//! departures       4                      a count
//! ```

use crate::ids::Rank;
use crate::os::memory::PAGE;

/// Bytes of the control page of a rank.
pub(crate) const CONTROL_PAGE_BYTES: usize = 4096;
/// Bytes of an arrival slot.
pub(crate) const ARRIVAL_SLOT_BYTES: usize = 64;
/// Bytes of a progress mark.
pub(crate) const MARK_BYTES: usize = 128;
/// Bytes of the slot for passive messages of one rank to another.
pub(crate) const PASSIVE_SLOT_BYTES: usize = 64;
/// Bytes of the word that tells where a rank is in its life, and of those that count deaths and
/// departures.
pub(crate) const LIVENESS_BYTES: usize = 4;
/// Bytes of staging for one step of a collective.
pub const STAGE_BYTES: usize = 16384;
/// Bytes of a member's line that there is room for: 255 elements of the standard's all-reduces.
const LINE_BYTES: usize = 2048;
/// Members for which there is room for lines of that size; more have shorter ones.
const LINES_MEMBERS: usize = 64;
/// Bytes of the lines of a step at most.
pub(crate) const LINES_BYTES_MAX: usize = LINES_MEMBERS * LINE_BYTES;

/// Bytes of the lines of a step that there is room for in a job of so many ranks.
pub(crate) const fn lines_bytes(ranks: usize) -> usize {
    (if ranks < LINES_MEMBERS { ranks } else { LINES_MEMBERS }) * LINE_BYTES
}

/// Passive messages that one rank can have under way at once.
pub(crate) const OUTBOX_BUFFERS: usize = 64;
/// Bytes of one of them; at least passive_transfer_size_max.
pub(crate) const OUTBOX_BYTES: usize = 65536;

/// The layout for a number of ranks and of groups that each can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedLayout {
    ranks: u64,
    groups: u64,
}

impl SharedLayout {
    pub(crate) const fn new(ranks: u32, group_max: u32) -> SharedLayout {
        SharedLayout { ranks: ranks as u64, groups: group_max as u64 }
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
        (self.departures() + LIVENESS_BYTES as u64).next_multiple_of(PAGE)
    }

    #[inline]
    pub(crate) fn control_page(self, rank: Rank) -> u64 {
        u64::from(rank.0) * CONTROL_PAGE_BYTES as u64
    }

    /// Two, one for each parity of a step.
    #[inline]
    pub(crate) fn arrival_slots(self, rank: Rank, group: usize) -> u64 {
        self.all_arrival_slots() + self.member(rank, group) * 2 * ARRIVAL_SLOT_BYTES as u64
    }

    #[inline]
    pub(crate) fn mark(self, rank: Rank, group: usize) -> u64 {
        self.marks() + self.member(rank, group) * MARK_BYTES as u64
    }

    #[inline]
    pub(crate) fn passive_slot(self, receiver: Rank, sender: Rank) -> u64 {
        let index = u64::from(receiver.0) * self.ranks + u64::from(sender.0);
        self.passive_slots() + index * PASSIVE_SLOT_BYTES as u64
    }

    #[inline]
    pub(crate) fn outbox(self, sender: Rank, buffer: usize) -> u64 {
        let index = u64::from(sender.0) * OUTBOX_BUFFERS as u64 + buffer as u64;
        self.outboxes() + index * OUTBOX_BYTES as u64
    }

    #[inline]
    pub(crate) fn stage(self, rank: Rank, group: usize, parity: usize) -> u64 {
        let index = self.member(rank, group) * 2 + parity as u64;
        self.stages() + index * STAGE_BYTES as u64
    }

    /// Where a leader publishes the lines of all members at a step.
    #[inline]
    pub(crate) fn lines(self, rank: Rank, group: usize, parity: usize) -> u64 {
        let index = self.member(rank, group) * 2 + parity as u64;
        self.all_lines() + index * self.lines_bytes()
    }

    #[inline]
    fn lines_bytes(self) -> u64 {
        lines_bytes(self.ranks as usize) as u64
    }

    /// One word for each rank.
    #[inline]
    pub(crate) fn liveness(self) -> u64 {
        self.all_lines() + self.ranks * self.groups * 2 * self.lines_bytes()
    }

    #[inline]
    pub(crate) fn deaths(self) -> u64 {
        self.liveness() + self.ranks * LIVENESS_BYTES as u64
    }

    /// How many ranks of the node have left.
    #[inline]
    pub(crate) fn departures(self) -> u64 {
        self.deaths() + LIVENESS_BYTES as u64
    }

    #[inline]
    fn member(self, rank: Rank, group: usize) -> u64 {
        u64::from(rank.0) * self.groups + group as u64
    }

    #[inline]
    fn all_arrival_slots(self) -> u64 {
        self.ranks * CONTROL_PAGE_BYTES as u64
    }

    #[inline]
    fn marks(self) -> u64 {
        self.all_arrival_slots() + self.ranks * self.groups * 2 * ARRIVAL_SLOT_BYTES as u64
    }

    #[inline]
    fn passive_slots(self) -> u64 {
        self.marks() + self.ranks * self.groups * MARK_BYTES as u64
    }

    #[inline]
    fn outboxes(self) -> u64 {
        let slots = self.ranks * self.ranks * PASSIVE_SLOT_BYTES as u64;
        (self.passive_slots() + slots).next_multiple_of(PAGE)
    }

    #[inline]
    fn stages(self) -> u64 {
        self.outboxes() + self.ranks * (OUTBOX_BUFFERS * OUTBOX_BYTES) as u64
    }

    #[inline]
    fn all_lines(self) -> u64 {
        self.stages() + self.ranks * self.groups * 2 * STAGE_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_stay_the_same() {
        let layout = SharedLayout::new(5, 3);
        let (rank, other) = (Rank(4), Rank(2));
        let offsets = [
            layout.control_page(rank),
            layout.arrival_slots(rank, 1),
            layout.mark(rank, 1),
            layout.passive_slot(rank, other),
            layout.outbox(rank, 63),
            layout.stage(rank, 1, 1),
            layout.lines(rank, 1, 1),
            layout.liveness(),
            layout.deaths(),
            layout.departures(),
            layout.bytes(),
        ];
        let arrival_slots = 5 * 4096;
        let marks = arrival_slots + 5 * 3 * 2 * 64;
        let passive_slots = marks + 5 * 3 * 128;
        let outboxes = 65536;
        let stages = outboxes + 5 * 64 * 65536;
        let lines = stages + 5 * 3 * 2 * 16384;
        let liveness: u64 = lines + 5 * 3 * 2 * 10240;
        let expected = [
            4 * 4096,
            arrival_slots + 13 * 2 * 64,
            marks + 13 * 128,
            passive_slots + 22 * 64,
            outboxes + (4 * 64 + 63) * 65536,
            stages + 27 * 16384,
            lines + 27 * 10240,
            liveness,
            liveness + 20,
            liveness + 24,
            (liveness + 28).next_multiple_of(65536),
        ];
        assert_eq!(offsets, expected);
    }
    #[test]
    fn room_for_lines_ends_at_64_ranks() {
        let bytes = [1, 63, 64, 65, 4000].map(lines_bytes);
        assert_eq!(bytes, [2048, 63 * 2048, 131_072, 131_072, 131_072]);
        assert_eq!(LINES_BYTES_MAX, 131_072);
    }
}
