//! Atomic operations that devices execute: what a lane keeps of each.
//!
//! Invariant: each call is completed once: by its result, or as lost when its request is dropped.

use super::work::{Local, Remote, WorkRequest};
use crate::transport::RequestFailure;
use crate::transport::requests::PendingCall;
use crate::wire::message::AtomicOperation;
use libibverbs_sys as sys;
use std::sync::Arc;

/// Operations of a lane that may be under way: each has a place for its result.
pub(super) const RESULTS: u64 = 32;

/// With what the atomic operations of a device are atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum AtomicReach {
    /// It has none.
    #[default]
    Nothing,
    /// Among each other.
    Device,
    /// With those of processors too.
    Processors,
}

impl AtomicReach {
    /// Of a device that reports this.
    pub(super) fn of(capability: sys::ibv_atomic_cap) -> AtomicReach {
        match capability {
            sys::IBV_ATOMIC_NONE => AtomicReach::Nothing,
            sys::IBV_ATOMIC_GLOB => AtomicReach::Processors,
            _ => AtomicReach::Device,
        }
    }
}

/// A call, which is lost where nothing else becomes of it.
#[derive(Debug)]
struct Asked(Arc<PendingCall>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.complete(Err(RequestFailure::Lost));
    }
}

/// An operation that waits for its pair.
#[derive(Debug)]
pub(super) struct AtomicRequest {
    asked: Asked,
    remote: Remote,
    operation: AtomicOperation,
}

impl AtomicRequest {
    pub(super) fn new(
        call: &Arc<PendingCall>,
        remote: Remote,
        operation: AtomicOperation,
    ) -> AtomicRequest {
        AtomicRequest { asked: Asked(Arc::clone(call)), remote, operation }
    }

    /// What the device is to do.
    pub(super) fn work(&self, local: Local) -> WorkRequest<'static> {
        WorkRequest::Atomic { local, remote: self.remote, operation: self.operation }
    }

    /// It has been posted, with this place for its result.
    pub(super) fn sent(self, local: Local) -> AtomicSent {
        AtomicSent { asked: self.asked, result: local.address }
    }
}

/// An operation that is under way.
#[derive(Debug)]
pub(super) struct AtomicSent {
    asked: Asked,
    result: u64,
}

impl AtomicSent {
    /// The device has written the result.
    ///
    /// # Safety
    /// The pair that it was posted to exists, and with it the place of the result.
    pub(super) unsafe fn finish(self) {
        // SAFETY: as the caller says; aligned. The device has written it before its completion.
        let value = unsafe { (self.result as *const u64).read_volatile() };
        self.asked.0.complete(Ok(value));
    }
}
