//! Whether messages go by the device: to any peer, and to one, for data that may go by it alone.

use super::{DeviceTable, STREAM, Verbs};
use crate::ids::Rank;

impl DeviceTable {
    /// Whether there is a pair for messages with `peer`, by which something may come.
    pub(crate) fn has_message_pair(&self, peer: Rank) -> bool {
        let lane = self.lanes[STREAM.index()].get().and_then(|lanes| lanes[peer.index()].get());
        lane.is_some_and(|lane| lane.lock().pair.is_some())
    }

    /// Whether messages go by the device.
    pub(crate) fn carries_messages(&self) -> bool {
        self.device.carries_messages()
    }

    /// Whether data of channels may not go by streams.
    pub(crate) fn has_to_carry_messages(&self) -> bool {
        self.forced && self.device.carries_messages()
    }

    /// As if all pairs for messages had come up so much earlier.
    #[cfg(feature = "test-transports")]
    pub(crate) fn age_message_pairs(&self, by: std::time::Duration) {
        let age = |lane: &super::lane::Lane| lane.user.failures.lock().age(by.as_nanos() as u64);
        self.used(Some(STREAM)).for_each(age);
    }
}

impl Verbs<'_> {
    /// Has the device carry messages to `peer` as soon as it can. A pair that could not be made
    /// before is tried again.
    pub(crate) fn want_messages(self, peer: Rank) {
        if self.stream.connections.is_carried(peer) {
            return;
        }
        let lane = self.table.lane(STREAM, peer);
        lane.user.failures.lock().forget();
        self.begin_anew(lane);
        self.stream.connections.note_news();
        self.stream.sets.wakeup.wake();
    }

    /// Whether the device carries what is sent to `peer` from now on. Where there is no pair one is
    /// begun.
    ///
    /// # Errors
    /// In words, why there will be none.
    pub(crate) fn carries_messages_to(self, peer: Rank) -> Result<bool, String> {
        if self.stream.connections.is_carried(peer) {
            return Ok(true);
        }
        if self.table.condition.has_failed() {
            return Err("this rank's device has failed".to_owned());
        }
        let lane = self.table.lane(STREAM, peer);
        let state = lane.lock();
        if let Some(reason) = state.pairing.refused() {
            return Err(reason.to_owned());
        }
        if lane.user.failures.lock().are_too_many() {
            let why = self.table.last_error(peer).unwrap_or_default();
            return Err(format!("pairs for messages have failed again and again: {why}"));
        }
        if state.pairing.is_idle() && self.table.condition.is_usable() {
            self.begin(lane, state);
        }
        Ok(false)
    }

    /// An error has told why the device does not carry messages to `peer`: the next one that is to
    /// go there has it tried anew.
    pub(crate) fn forget_refusal(self, peer: Rank) {
        let lane = self.table.lane(STREAM, peer);
        lane.user.failures.lock().forget();
        lane.lock().pairing.forget_refusal();
        // The peer may have made one that was not used.
        self.stream.connections.note_news();
        self.stream.sets.wakeup.wake();
    }
}
