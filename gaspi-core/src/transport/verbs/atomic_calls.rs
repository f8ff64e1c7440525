//! Atomic operations by devices: asking for them, of any rank, this one included.
//!
//! They have a lane of their own with each rank, whose pair is made at the first of them. Nothing
//! of it ever goes by another carrier: what is executed elsewhere would not be atomic with it.

use super::atomics::{AtomicReach, AtomicRequest};
use super::device::Handles;
use super::lane::Request;
use super::{ATOMICS, DeviceTable, Verbs};
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::clock::monotonic_ns;
use crate::segment::Segment;
use crate::transport::requests::{PendingCall, RequestKey};
use crate::transport::verbs::Remote;
use crate::wire::message::{AtomicOperation, RemoteAddress};
use libibverbs_sys as sys;
use std::sync::Arc;

impl Handles {
    /// The right that peers need for atomic operations, where devices execute them.
    pub(super) fn atomic_rights(&self) -> sys::ibv_access_flags {
        if self.atomics { sys::IBV_ACCESS_REMOTE_ATOMIC } else { 0 }
    }
}

impl DeviceTable {
    /// With what atomic operations are atomic, if devices execute them.
    pub(crate) fn atomics(&self) -> Option<AtomicReach> {
        self.device.atomics()
    }

    /// Where memory of this rank lies, for its own device.
    ///
    /// # Errors
    /// In words, why the device does not take it.
    pub(crate) fn own_place(
        &self,
        segment: &Segment,
        offset: u64,
    ) -> std::result::Result<Remote, String> {
        let key = self.prepare(segment)?;
        Ok(Remote { address: key.address + offset, key: key.key })
    }
}

impl Verbs<'_> {
    /// Where a word of another rank lies, for its device.
    ///
    /// # Errors
    /// The segment is no more, or the device of its owner does not know it.
    pub(crate) fn place_of_peer(self, peer: Rank, place: RemoteAddress) -> Result<Remote> {
        let found = self.remote(peer, place)?;
        found.ok_or_else(|| self.refused(peer, "its RDMA device does not know the segment"))
    }

    /// Starts an operation, or continues one whose timeout ran out.
    ///
    /// # Errors
    /// The peer has ended, its device cannot be reached, or the word is not aligned.
    pub(crate) fn atomic(
        self,
        key: &RequestKey,
        peer: Rank,
        remote: Remote,
        operation: AtomicOperation,
    ) -> Result<Arc<PendingCall>> {
        if let Some(call) = self.table.requests.continued(key) {
            return Ok(call);
        }
        // Bound memory may begin anywhere.
        if !remote.address.is_multiple_of(size_of::<u64>() as u64) {
            return Err(Error::Unaligned { offset: remote.address });
        }
        let lane = self.table.lane(ATOMICS, peer);
        let mut state = lane.lock();
        // With the lock: what is pushed before the peer's end is known is taken down behind it.
        self.up.ranks().check_alive(peer, "an atomic")?;
        let refused = state.pairing.refused_still(monotonic_ns);
        if let Some(reason) = refused.filter(|_| state.pair.is_none()) {
            return Err(self.refused(peer, reason));
        }
        let call = Arc::new(PendingCall::default());
        state.push(Request::Atomic(AtomicRequest::new(&call, remote, operation)));
        if state.pairing.is_up() {
            self.pump(lane, state);
        } else {
            self.begin(lane, state);
        }
        Ok(call)
    }
}
