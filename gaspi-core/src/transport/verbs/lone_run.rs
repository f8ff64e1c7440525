//! The end of a run that alone is under way on its queue: most often one write or read, and the
//! wait for it.
//!
//! Where the last request of a run ends it, a wait posts nothing. The waiting thread takes what has
//! completed on the queue of that pair alone, and ends the run as it has begun it, by plain stores
//! in a section: what is under way is not noted, and the lane's lock is held for a moment only, as
//! its completion asks for. Whatever is not so ends by [`finish`](super::finish).

use super::direct::Direct;
use super::lane::{Lane, LaneState};
use super::work::{Completion, Completions, Outcome};
use super::{DeviceTable, Verbs};
use crate::ids::{QueueId, Rank};
use crate::sync::epoch::{self, Slot};
use libibverbs_sys::ibv_cq;
use std::ptr::NonNull;

/// A run that may be the only one of its queue: another thread may have taken it, or added to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoneRun<'a> {
    lane: &'a Lane,
    completions: NonNull<ibv_cq>,
}

impl LoneRun<'_> {
    pub(crate) fn peer(self) -> Rank {
        self.lane.peer
    }

    /// Whether a wait for it still posts nothing.
    #[inline]
    pub(crate) fn is_there(self) -> bool {
        self.direct().ends_by_itself().is_some()
    }

    /// Ends it if it is that of the thread of `slot`, all of it has been acknowledged, and `may`
    /// has nothing against it; the generation of the queue that it was counted in. In a section.
    #[inline]
    pub(crate) fn end(self, slot: &Slot, may: impl FnOnce(u32) -> bool) -> Option<u32> {
        self.direct().end_own_run(slot, may)
    }

    fn direct(&self) -> &Direct {
        &self.lane.direct
    }
}

impl DeviceTable {
    /// The run of a queue that was opened last, if a wait for it posts nothing.
    #[inline]
    pub(crate) fn lone_run(&self, queue: QueueId) -> Option<LoneRun<'_>> {
        let peer = self.of_queue(queue)?.unfinished.latest();
        let lane = self.lanes[queue.index()].get()?.get(peer.index())?.get()?;
        let completions = lane.direct.ends_by_itself()?;
        Some(LoneRun { lane, completions })
    }
}

impl Verbs<'_> {
    /// Takes what has completed where the completions of a run come, unless another thread looks.
    /// It does not look at what has come from others.
    pub(crate) fn look_at(self, run: LoneRun<'_>) {
        // Another thread that looks handles what it has taken before this one looks.
        let Some(_receives) = self.table.receives.try_lock() else { return };
        let _handling = epoch::handling();
        let mut completions = Completions::none();
        self.table.device.poll(run.completions, &mut completions);
        let mut of_others = false;
        for completion in completions.iter() {
            if !self.frees(run.lane, &completion) {
                of_others = true;
                self.sent(&completion);
            }
        }
        if of_others {
            self.up.ranks().wake_own();
        }
    }

    /// Whether a completion is of this lane and ends nothing but what was not noted.
    fn frees(self, lane: &Lane, completion: &Completion) -> bool {
        let state = lane.lock();
        let frees = state.frees(completion);
        if frees {
            self.pump(lane, state);
        }
        frees
    }
}

impl LaneState {
    /// Whether the pair is the one of this number.
    pub(super) fn has_pair(&self, number: u32) -> bool {
        self.pair.as_ref().is_some_and(|pair| pair.number() == number)
    }

    /// Whether a completion is of this lane and ends nothing that was noted; its places in the send
    /// queue can be used again then.
    fn frees(&self, completion: &Completion) -> bool {
        let ends_none = self.sent.front().is_none_or(|sent| sent.last > completion.id);
        let frees =
            self.is_told_by(completion) && ends_none && matches!(completion.outcome, Outcome::Done);
        if frees {
            self.direct.set_freed(completion.id + 1);
        }
        frees
    }
}
