//! Takes completions from a device's queues.

use super::device::Device;
use super::work::{Completion, Outcome};
use crate::sync::Ordering;
use libibverbs_sys as sys;
use libibverbs_sys::inline;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Completions taken from a queue at once.
const BATCH: usize = 16;

/// Completions that were taken. What lies behind them is not initialised, and they stay where they
/// are: a look that finds nothing writes no memory.
///
/// Invariant: the first `count` are what the device has written.
pub(super) struct Completions {
    found: [MaybeUninit<sys::ibv_wc>; BATCH],
    count: usize,
}

impl Completions {
    #[inline]
    pub(super) fn none() -> Completions {
        Completions { found: [const { MaybeUninit::uninit() }; BATCH], count: 0 }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Forgets them, so that there is room for others.
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Completion> + '_ {
        // SAFETY: by the invariant.
        self.found[..self.count].iter().map(|found| completion(unsafe { found.assume_init_ref() }))
    }

    /// Takes further ones off a queue, as many as there is room for; below 0 if the device cannot
    /// tell any more what has completed.
    fn take_from(&mut self, queue: NonNull<sys::ibv_cq>) -> i32 {
        let room = &mut self.found[self.count..];
        // SAFETY: there is room for so many.
        let taken = unsafe {
            inline::ibv_poll_cq(queue.as_ptr(), room.len() as i32, room.as_mut_ptr().cast())
        };
        self.count += usize::try_from(taken).unwrap_or(0).min(room.len());
        taken
    }
}

fn completion(found: &sys::ibv_wc) -> Completion {
    let outcome = match found.status {
        sys::IBV_WC_SUCCESS => Outcome::Done,
        status => Outcome::Failed { status, vendor: found.vendor_err },
    };
    let goes_along = found.opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM;
    // SAFETY: what such a completion has there.
    let immediate = goes_along.then(|| u32::from_be(unsafe { found.__bindgen_anon_1.imm_data }));
    let (id, number, bytes) = (found.wr_id, found.qp_num, found.byte_len);
    Completion { id, number, bytes, immediate, outcome }
}

impl Device {
    /// Takes completions of sent requests, as many as there is room for.
    pub(super) fn poll_sent(&self, completions: &mut Completions) {
        for sent in self.handles.sent.lock().iter() {
            if completions.count == BATCH {
                break;
            }
            self.poll(sent.queue, completions);
        }
    }

    /// Takes messages that have come, as many as there is room for.
    pub(super) fn poll_received(&self, completions: &mut Completions) {
        self.poll(self.handles.received, completions);
    }

    fn poll(&self, queue: NonNull<sys::ibv_cq>, completions: &mut Completions) {
        if completions.take_from(queue) < 0 {
            self.is_blind.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a completion queue has failed since this was asked.
    pub(super) fn take_blindness(&self) -> bool {
        self.is_blind.load(Ordering::Relaxed) && self.is_blind.swap(false, Ordering::Relaxed)
    }
}
