//! Takes completions from a device's queues.

use super::device::Device;
use super::work::{BATCH, Completion, Outcome};
use crate::sync::Ordering;
use libibverbs_sys as sys;
use libibverbs_sys::inline;
use std::ptr::NonNull;

impl Device {
    /// Takes completions of sent requests.
    pub(super) fn poll_sent<'a>(&self, completions: &'a mut [Completion]) -> &'a [Completion] {
        let mut taken = 0;
        for sent in self.handles.sent.lock().iter() {
            if taken == completions.len() {
                break;
            }
            taken += self.poll(sent.queue, &mut completions[taken..]);
        }
        &completions[..taken]
    }

    /// Takes messages that have come.
    pub(super) fn poll_received<'a>(&self, completions: &'a mut [Completion]) -> &'a [Completion] {
        let taken = self.poll(self.handles.received, completions);
        &completions[..taken]
    }

    fn poll(&self, queue: NonNull<sys::ibv_cq>, completions: &mut [Completion]) -> usize {
        let taken = poll(queue, completions);
        if taken < 0 {
            self.is_blind.store(true, Ordering::Relaxed);
        }
        usize::try_from(taken).unwrap_or(0)
    }

    /// Whether a completion queue has failed since this was asked.
    pub(super) fn take_blindness(&self) -> bool {
        self.is_blind.load(Ordering::Relaxed) && self.is_blind.swap(false, Ordering::Relaxed)
    }
}

/// Takes completions of a queue; below 0 if the device cannot tell any more what has completed.
fn poll(queue: NonNull<sys::ibv_cq>, into: &mut [Completion]) -> i32 {
    // SAFETY: plain numbers.
    let mut found: [sys::ibv_wc; BATCH] = unsafe { std::mem::zeroed() };
    let room = into.len().min(BATCH) as i32;
    // SAFETY: there is room for so many.
    let taken = unsafe { inline::ibv_poll_cq(queue.as_ptr(), room, found.as_mut_ptr()) };
    let found = &found[..usize::try_from(taken).unwrap_or(0)];
    for (completion, found) in into.iter_mut().zip(found) {
        let outcome = match found.status {
            sys::IBV_WC_SUCCESS => Outcome::Done,
            status => Outcome::Failed { status, vendor: found.vendor_err },
        };
        let goes_along = found.opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM;
        // SAFETY: what such a completion has there.
        let immediate =
            goes_along.then(|| u32::from_be(unsafe { found.__bindgen_anon_1.imm_data }));
        let (id, number, bytes) = (found.wr_id, found.qp_num, found.byte_len);
        *completion = Completion { id, number, bytes, immediate, outcome };
    }
    taken
}
