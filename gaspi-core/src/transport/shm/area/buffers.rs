//! Where data lies in the shared area.

use super::{OUTBOX_BUFFERS, PassiveSlot, SharedArea};
use crate::ids::Rank;
use crate::wire::shared_layout::Place;

impl SharedArea {
    /// Where `rank` is among those of this node.
    #[inline]
    pub(super) fn place(&self, rank: Rank) -> Place {
        let number = self.parts.number(rank).0;
        debug_assert!(number != 0, "{rank} is of another node");
        Place(number.saturating_sub(1))
    }

    /// Staging of `rank` in `group` for steps of this parity, STAGE_BYTES long.
    pub(crate) fn stage(&self, rank: Rank, group: usize, parity: usize) -> *mut u8 {
        let offset = self.layout.stage(self.place(rank), group, parity);
        self.mapping.as_ptr().wrapping_add(offset as usize)
    }

    /// Where `rank`, as a leader, publishes lines of `group` at steps of this parity.
    pub(crate) fn lines(&self, rank: Rank, group: usize, parity: usize) -> *mut u8 {
        let offset = self.layout.lines(self.place(rank), group, parity);
        self.mapping.as_ptr().wrapping_add(offset as usize)
    }

    /// The slot of messages from `sender` to `receiver`.
    pub(crate) fn passive_slot(&self, receiver: Rank, sender: Rank) -> &PassiveSlot {
        self.at(self.layout.passive_slot(self.place(receiver), self.place(sender)))
    }

    /// A buffer of `sender`'s outbox, OUTBOX_BYTES long.
    pub(crate) fn outbox(&self, sender: Rank, buffer: usize) -> *mut u8 {
        debug_assert!(buffer < OUTBOX_BUFFERS);
        let offset = self.layout.outbox(self.place(sender), buffer);
        self.mapping.as_ptr().wrapping_add(offset as usize)
    }
}
