//! Which thread may post to a lane without its lock.

use super::DeviceTable;
use super::direct::{DirectLane, Refused};
use super::work::{Local, Remote};
use crate::ids::{QueueId, Rank};
use crate::sync::Ordering;
use crate::sync::epoch::Slot;
use crate::sync::once_arc::OnceArc;

impl DeviceTable {
    /// The lane of a queue and a peer, if the thread of `slot` may post to it, and there is room.
    /// In a section of it.
    #[inline(always)]
    pub(crate) fn direct(
        &self,
        slot: &Slot,
        (queue, peer): (QueueId, Rank),
        local: Local,
        remote: Remote,
    ) -> Option<DirectLane<'_>> {
        let lane = self.lanes.get(queue.index())?.get()?.get(peer.index())?.get()?;
        let lane = &*lane.direct;
        lane.is_open_to(slot).then_some(DirectLane { lane, local, remote })
    }

    /// Lets a thread post to a lane without its lock from now on, unless something is in the way;
    /// whether that is new. It may post transfers of up to `size_max` bytes. What is posted is a
    /// run: `begin` has the queue count it and gives its generation, if it may. In a section of the
    /// thread; it waits for nothing.
    pub(crate) fn open(
        &self,
        slot: &Slot,
        (queue, peer): (QueueId, Rank),
        size_max: u64,
        begin: impl Fn() -> Option<u32>,
    ) -> bool {
        let found = self.lanes.get(queue.index()).and_then(OnceArc::get);
        let Some(lane) = found.and_then(|lanes| lanes.get(peer.index())?.get()) else {
            return false;
        };
        if lane.direct.is_held_by(slot) {
            return false;
        }
        // With the bias, in a section, or with the lane's lock, which is taken below.
        let begin = || {
            let generation = begin()?;
            self.note_unfinished(queue, peer);
            Some(generation)
        };
        if lane.direct.resume(slot, begin) {
            return true;
        }
        let usable = self.condition.is_usable() || self.forced;
        let Some(state) = lane.try_lock().filter(|state| usable && state.takes_more()) else {
            return false;
        };
        // Else its holder could open a run too.
        if !lane.direct.is_free() {
            return false;
        }
        let is_new = !lane.direct.has_run();
        if is_new {
            let Some(generation) = begin() else { return false };
            lane.direct.open_run(generation);
        }
        let is_first = is_new && state.has_ended_all();
        state.pair.as_ref().is_some_and(|pair| {
            lane.direct.give(slot, pair.poster(), pair.limits(), (size_max, is_first))
        })
    }

    /// The device has refused a request: the thread that looks next takes the pair down.
    pub(crate) fn note_refused(&self, _: Refused) {
        self.has_stalled.store(true, Ordering::Release);
    }
}
