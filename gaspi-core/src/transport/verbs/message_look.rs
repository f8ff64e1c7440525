//! Looks of a thread that waits for a message: at what has come, and nothing else.

use super::Verbs;
use super::work::Completions;
use crate::sync::epoch;

/// Of so many looks one is at everything: requests that have ended, pairs that have failed.
const LOOKS: u32 = 8;

impl Verbs<'_> {
    /// Handles what has come from others, for a thread that waits for a message, unless another
    /// thread looks.
    pub(crate) fn look_for_message(self) {
        let Some(mut receives) = self.table.receives.try_lock() else { return };
        // Over all waits: each of many may find its message at its first look.
        receives.message_looks = receives.message_looks.wrapping_add(1);
        if receives.message_looks.is_multiple_of(LOOKS) {
            self.poll_with(receives);
            return;
        }
        let mut completions = Completions::none();
        self.table.device.poll_received(&mut completions);
        if completions.count() == 0 {
            return;
        }
        let _handling = epoch::handling();
        for completion in completions.iter() {
            self.received(&mut receives, &completion);
        }
        self.end_of_bytes(&mut receives);
        self.refill(&mut receives);
        self.up.ranks().wake_own();
    }
}
