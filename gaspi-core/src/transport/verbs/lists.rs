//! Posting what waits, and lists, whose elements are posted together.

use super::Verbs;
use super::chain::CHAIN_MAX;
use super::lane::{Lane, LaneState};
use crate::ids::{QueueId, Rank};
use crate::sync::Ordering;

impl LaneState {
    /// Posts what waits, as far as there is room. A request that does not fit the send queue as a
    /// whole is posted in parts, the first of which wait for nothing.
    ///
    /// # Errors
    /// What the device says: the pair has to be taken down.
    pub(super) fn pump(&mut self) -> Result<(), String> {
        if self.waiting.len() > 1 {
            self.assembly.open_chain();
        }
        let posted = self.post_waiting();
        let Some(mut chain) = self.assembly.close_chain() else { return posted };
        let handed_over = match (chain.take(), &self.pair) {
            // SAFETY: the memory of each stays until it has ended, as of those posted alone.
            (Some(first), Some(pair)) => unsafe { pair.post_chain(first) },
            _ => Ok(()),
        };
        chain.give_back();
        posted.and(handed_over)
    }
}

impl Lane {
    /// Whether what waits is posted by the end of a list.
    pub(super) fn gathers(&self, state: &LaneState) -> bool {
        self.lists.load(Ordering::Relaxed) > 0 && state.waiting.len() < CHAIN_MAX
    }
}

/// A list whose elements are being pushed. Its end posts them.
struct ListInHand<'a> {
    verbs: Verbs<'a>,
    own: &'a Lane,
}

impl Drop for ListInHand<'_> {
    fn drop(&mut self) {
        self.own.lists.fetch_sub(1, Ordering::Relaxed);
        let (lane, state, route) = self.verbs.carrier_of(self.own);
        drop(route);
        if state.pairing.is_up() {
            self.verbs.pump(lane, state);
        }
    }
}

impl<'a> Verbs<'a> {
    /// What is pushed to this lane until the value is dropped is posted together.
    pub(crate) fn gather(self, queue: QueueId, peer: Rank) -> impl Drop + use<'a> {
        let own = self.table.lane(queue, peer);
        own.lists.fetch_add(1, Ordering::Relaxed);
        ListInHand { verbs: self, own }
    }
}
