//! Where data lies in the shared area.

use super::{OUTBOX_BUFFERS, PassiveSlot, SharedArea};
use crate::ids::Rank;

impl SharedArea {
    /// Staging of `rank` in `group` for steps of this parity, STAGE_BYTES long.
    pub(crate) fn stage(&self, rank: Rank, group: usize, parity: usize) -> *mut u8 {
        let offset = self.layout.stage(rank, group, parity);
        self.mapping.as_ptr().wrapping_add(offset as usize)
    }

    /// Where `rank`, as a leader, publishes lines of `group` at steps of this parity.
    pub(crate) fn lines(&self, rank: Rank, group: usize, parity: usize) -> *mut u8 {
        let offset = self.layout.lines(rank, group, parity);
        self.mapping.as_ptr().wrapping_add(offset as usize)
    }

    /// The slot of messages from `sender` to `receiver`.
    pub(crate) fn passive_slot(&self, receiver: Rank, sender: Rank) -> &PassiveSlot {
        self.at(self.layout.passive_slot(receiver, sender))
    }

    /// A buffer of `sender`'s outbox, OUTBOX_BYTES long.
    pub(crate) fn outbox(&self, sender: Rank, buffer: usize) -> *mut u8 {
        debug_assert!(buffer < OUTBOX_BUFFERS);
        let offset = self.layout.outbox(sender, buffer);
        self.mapping.as_ptr().wrapping_add(offset as usize)
    }
}
