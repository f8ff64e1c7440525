//! Which thread may post to a lane without its lock.

use super::DeviceTable;
use super::direct::{DirectCounts, DirectLane, Refused};
use super::lane::Lane;
use super::queue_lanes::QueueLanes;
use crate::ids::{QueueId, Rank};
use crate::sync::Ordering;
use crate::sync::epoch::Slot;
use crate::sync::once_arc::OnceArc;
use std::sync::Arc;

impl DeviceTable {
    /// The lane of a queue and a peer, if it has ever been used.
    #[inline(always)]
    fn direct(&self, queue: QueueId, peer: Rank) -> Option<DirectLane<'_>> {
        self.of_queue(queue)?.direct(peer).map(DirectLane)
    }

    /// The same for a rank of the job, which is not checked.
    ///
    /// # Safety
    /// `peer` is below the number of ranks.
    #[inline(always)]
    pub(crate) unsafe fn direct_of(&self, queue: QueueId, peer: Rank) -> Option<DirectLane<'_>> {
        // SAFETY: the caller's promise.
        unsafe { self.of_queue(queue)?.direct_of(peer) }.map(DirectLane)
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
        let Some(DirectLane(direct)) = self.direct(queue, peer) else { return false };
        if direct.is_held_by(slot) {
            return false;
        }
        // With the bias, in a section, or with the lane's lock, which is taken below.
        let begin = || {
            let generation = begin()?;
            self.note_unfinished(queue, peer);
            Some(generation)
        };
        if direct.resume(slot, begin) {
            return true;
        }
        let lane = self.lane(queue, peer);
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
            let by = (pair.poster(), pair.completions());
            lane.direct.give(slot, by, pair.limits(), (size_max, is_first))
        })
    }

    /// The device has refused a request: the thread that looks next takes the pair down.
    pub(crate) fn note_refused(&self, _: Refused) {
        self.has_stalled.store(true, Ordering::Release);
    }
}

/// What is found without locks.
impl DeviceTable {
    /// What threads have posted to a rank without locks.
    pub(crate) fn direct_counts(&self, peer: Rank) -> DirectCounts {
        let lanes = self.of_queues.iter().filter_map(|queue| queue.get()?.direct(peer));
        lanes.fold(DirectCounts::default(), |sum, lane| sum.plus(lane.counts()))
    }

    /// What there is of a queue, if one of its lanes has ever been used.
    #[inline(always)]
    pub(super) fn of_queue(&self, queue: QueueId) -> Option<&QueueLanes> {
        self.of_queues.get(queue.index())?.get()
    }

    /// Makes a lane. Those of queues are found by threads that post from now on.
    #[cold]
    pub(super) fn make_lane<'a>(
        &self,
        place: &'a OnceArc<Lane>,
        queue: QueueId,
        peer: Rank,
    ) -> &'a Lane {
        let lane = place.get_or_init(|| Arc::new(Lane::new(queue, peer)));
        if let Some(of_queue) = self.of_queues.get(queue.index()) {
            let of_queue = of_queue.get_or_init(|| Arc::new(QueueLanes::new(self.ranks)));
            of_queue.add(peer, &lane.direct);
        }
        lane
    }

    /// Something is about to be posted that a wait for the queue has to end: see
    /// [`note`](super::unfinished::Unfinished::note).
    #[inline]
    pub(super) fn note_unfinished(&self, queue: QueueId, peer: Rank) {
        let none = || Arc::new(QueueLanes::new(self.ranks));
        self.of_queues[queue.index()].get_or_init(none).unfinished.note(peer);
    }
}
