//! Posting in the fast path: to a lane in whose way is nothing.

use super::DeviceTable;
use super::lane::{LaneState, Request};
use super::work::{Local, Remote};
use crate::ids::{QueueId, Rank};
use crate::sync::{MutexGuard, Ordering};
use crate::wire::message::{Put, Stream};

/// A lane to which requests can be posted right now, and memory at both ends.
pub(crate) struct Ready<'a> {
    table: &'a DeviceTable,
    state: MutexGuard<'a, LaneState>,
    local: Local,
    remote: Remote,
}

impl DeviceTable {
    /// The lane of a queue and a peer, if its pair is up, nothing waits for it, and no other thread
    /// is posting to it. Memory of this rank is given by its address and its key.
    #[inline]
    pub(crate) fn ready(
        &self,
        queue: QueueId,
        peer: Rank,
        (address, key): (u64, u32),
        remote: Remote,
    ) -> Option<Ready<'_>> {
        let lane = self.lanes.get(queue.index())?.get()?.get(peer.index())?.get()?;
        let state = lane.try_lock()?;
        let local = Local { address, key: Some(key) };
        state.takes_more().then_some(Ready { table: self, state, local, remote })
    }
}

impl Ready<'_> {
    /// Posts a put; false if some of it waits.
    #[inline]
    pub(crate) fn write(&mut self, put: Put) -> bool {
        // A wait that clears it looks at the lane behind its lock, which this thread holds.
        let unfinished = &self.table.has_unfinished[put.stream.queue.index()];
        if !unfinished.load(Ordering::Relaxed) {
            unfinished.store(true, Ordering::Relaxed);
        }
        match self.state.post_at_once(&put, self.local, self.remote) {
            Ok(true) => true,
            Ok(false) => self.write_in_parts(put),
            Err(reason) => self.fail(&reason),
        }
    }

    #[cold]
    fn write_in_parts(&mut self, put: Put) -> bool {
        self.post(Request::Put { put, data: Some((self.local, self.remote)) })
    }

    /// Posts a get; false if some of it waits.
    #[inline]
    pub(crate) fn read(&mut self, stream: Stream, size: u64) -> bool {
        let (local, remote) = (self.local, self.remote);
        self.post(Request::Get { stream, local, remote, size, notify: None })
    }

    fn post(&mut self, request: Request) -> bool {
        self.state.push(request);
        match self.state.pump() {
            Ok(()) if !self.state.has_waiting() => true,
            Ok(()) => self.stall(),
            Err(reason) => self.fail(&reason),
        }
    }

    #[cold]
    fn fail(&mut self, reason: &str) -> bool {
        self.state.note_failure(reason, false);
        self.stall()
    }

    /// The thread that looks next goes on with the lane.
    #[cold]
    fn stall(&mut self) -> bool {
        self.table.has_stalled.store(true, Ordering::Release);
        false
    }
}
