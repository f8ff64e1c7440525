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
        self.table.has_unfinished[put.stream.queue.index()].store(true, Ordering::Relaxed);
        self.post(Request::Put { put, data: Some((self.local, self.remote)) })
    }

    /// Posts a get; false if some of it waits.
    #[inline]
    pub(crate) fn read(&mut self, stream: Stream, size: u64) -> bool {
        let (local, remote) = (self.local, self.remote);
        self.post(Request::Get { stream, local, remote, size, notify: None })
    }

    #[inline]
    fn post(&mut self, request: Request) -> bool {
        self.state.push(request);
        let pumped = self.state.pump();
        let waits = self.state.has_waiting() || pumped.is_err();
        if waits {
            // Whoever looks next goes on with it.
            if let Err(reason) = pumped {
                self.state.note_failure(&reason, false);
            }
            self.table.has_stalled.store(true, Ordering::Release);
        }
        !waits
    }
}
