//! What a thread counts for each rank, in memory that only ranks which it talks to take.

use super::{AtomicU64, add};
use std::alloc::{Layout, handle_alloc_error};
use std::ops::Deref;
use std::{mem, ptr, slice};

/// Statistics counters of a thread's slot for each rank.
pub const PEER_COUNTERS: usize = 8;
/// The smallest size of a table for which the kernel may take a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// What a thread counts for one rank: one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct PeerCounters([AtomicU64; PEER_COUNTERS]);

impl PeerCounters {
    /// Adds to one of them; its thread only.
    #[inline(always)]
    pub(crate) fn add(&self, counter: usize, amount: u64) {
        add(&self.0[counter], amount);
    }

    /// One of them.
    pub(crate) fn counter(&self, counter: usize) -> &AtomicU64 {
        &self.0[counter]
    }
}

/// Counters of each rank. A page of memory is taken when one of its ranks is counted for.
#[derive(Debug)]
pub(crate) struct PeerTable {
    first: *mut PeerCounters,
    ranks: usize,
}

// SAFETY: it owns its memory, which holds atomics.
unsafe impl Send for PeerTable {}
// SAFETY: what is shared of it are atomics.
unsafe impl Sync for PeerTable {}

impl PeerTable {
    /// Zeroes for so many ranks. Ends the process where memory runs out, as allocations do.
    pub(crate) fn new(ranks: u32) -> PeerTable {
        let ranks = ranks as usize;
        let layout = Layout::array::<PeerCounters>(ranks.max(1)).expect("at most 65,536 ranks");
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), layout.size(), access, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            handle_alloc_error(layout);
        }
        if layout.size() >= HUGE_PAGE {
            // SAFETY: the range is mapped; the advice changes no contents and may be refused.
            unsafe { libc::madvise(mapped, layout.size(), libc::MADV_NOHUGEPAGE) };
        }
        PeerTable { first: mapped.cast(), ranks }
    }

    /// The first entry and their number, for [`PeerTable::from_raw`].
    pub(crate) fn into_raw(self) -> (*mut PeerCounters, usize) {
        let table = mem::ManuallyDrop::new(self);
        (table.first, table.ranks)
    }

    /// The table again.
    ///
    /// # Safety
    /// Both are of one [`PeerTable::into_raw`], and nobody uses its entries any more.
    pub(crate) unsafe fn from_raw(first: *mut PeerCounters, ranks: usize) -> PeerTable {
        PeerTable { first, ranks }
    }
}

impl Deref for PeerTable {
    type Target = [PeerCounters];

    fn deref(&self) -> &[PeerCounters] {
        // SAFETY: the mapping has so many entries, and zeroes are counters.
        unsafe { slice::from_raw_parts(self.first, self.ranks) }
    }
}

impl Drop for PeerTable {
    fn drop(&mut self) {
        let bytes = self.ranks.max(1) * mem::size_of::<PeerCounters>();
        // SAFETY: the mapping of `new`, which nobody uses any more.
        unsafe { libc::munmap(self.first.cast(), bytes) };
    }
}
