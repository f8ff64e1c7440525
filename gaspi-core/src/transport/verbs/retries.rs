//! Pairs that are tried again by time, since the reason for which they were refused may pass: the
//! peer's device has not answered, as while a link is cut.
//!
//! The lane of a queue is tried at its next request once that is due. That of messages is tried by
//! the progress thread while its connection is used, since what goes by the socket tells nobody
//! here.
//!
//! Invariant: nobody wakes, and nothing is tried, for a lane that nothing goes by.

use super::lane::{Lane, LaneState};
use super::{ATOMICS, DeviceTable, STREAM, Verbs};
use crate::ids::{QueueId, Rank};
use crate::os::clock::monotonic_ns;
use crate::sync::Ordering;

impl Verbs<'_> {
    /// A device does not answer the other one, which may pass: a lane whose attempt was refused for
    /// that is tried again. Not that of a queue whose refused requests are errors until its purge.
    pub(super) fn retry_later(self, lane: &Lane, state: &mut LaneState) {
        if self.table.forced && lane.queue.index() < STREAM.index() {
            return;
        }
        state.pairing.retry_later(monotonic_ns());
        if lane.queue == STREAM {
            // With the lane's lock, as where it is taken back.
            lane.user.retries.store(true, Ordering::Relaxed);
            self.stream.sets.wakeup.wake();
        }
    }

    /// For the progress thread: tries pairs for messages again that are due. When the next one will
    /// be for which the thread has to wake.
    pub(super) fn retry_messages(self) -> Option<u64> {
        let lanes = || self.table.used(Some(STREAM));
        if !lanes().any(|lane| lane.user.retries.load(Ordering::Relaxed)) {
            return None;
        }
        let now_ns = monotonic_ns();
        let mut next_ns = None;
        for lane in lanes().filter(|lane| lane.user.retries.load(Ordering::Relaxed)) {
            let mut state = lane.lock();
            let Some(retry) = state.pairing.retry() else {
                lane.user.retries.store(false, Ordering::Relaxed);
                continue;
            };
            if !retry.is_due(now_ns) {
                next_ns = next_ns.into_iter().chain(retry.wakes_ns()).min();
                continue;
            }
            let unused = self.stream.connections.used_last(lane.peer);
            let is_wanted = |unused_ns| retry.is_wanted(now_ns, unused_ns);
            if unused.is_some_and(|unused| is_wanted(unused.as_nanos() as u64))
                && self.could_carry(lane)
            {
                drop(state);
                self.begin_anew(lane);
            } else {
                state.pairing.postpone(now_ns);
            }
        }
        next_ns
    }

    /// Whether a pair for messages would be of use.
    fn could_carry(self, lane: &Lane) -> bool {
        let fails = lane.user.failures.lock().are_too_many();
        self.table.condition.is_usable() && !fails && !self.stream.is_suspected(lane.peer)
    }

    /// The pair of a lane has come up. With the lane's lock.
    pub(super) fn came_up(self, lane: &Lane, state: &mut LaneState) {
        self.show(lane, &state.pairing);
        // Requests up to this number have been acknowledged, the proof of this pair among them.
        lane.user.failures.lock().came_up(monotonic_ns(), state.direct.freed());
        if state.pairing.end_retries() {
            self.table.tell_of_return(lane.queue, lane.peer);
        }
    }
}

impl DeviceTable {
    /// What has gone by TCP, since there was no pair, does so no more.
    fn tell_of_return(&self, queue: QueueId, peer: Rank) {
        if let Some(trouble) = self.troubles.lock().get_mut(&peer) {
            // Another refusal is told anew.
            trouble.told = false;
        }
        let what = match queue {
            STREAM => "messages".to_owned(),
            ATOMICS => "atomic operations".to_owned(),
            _ => queue.to_string(),
        };
        log::info!("{what} to {peer} can go by the RDMA device again");
    }
}
