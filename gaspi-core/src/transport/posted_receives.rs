//! Messages of other nodes whose data goes straight to where the program wants it.
//!
//! Whoever waits for a message says where its data is to go and what its head says. While the
//! message comes, the receiving thread receives from then on into that memory instead of the
//! slot: after the head, which goes to the slot, has been compared. Memory of the program is
//! written under the lock only, so that it is nobody's but the program's once
//! [`PostedReceives::cancel`] has returned.

use crate::ids::Rank;
use crate::sync::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::wire::message::Put;
use std::ops::Range;

/// What a message of a channel begins with.
pub type Head = [u64; HEAD_BYTES / size_of::<u64>()];
/// Bytes of that: a cache line.
pub(crate) const HEAD_BYTES: usize = 64;
/// Words of a head that are compared.
pub(crate) const COMPARED: usize = 3;

/// A message whose data has a destination.
#[derive(Debug)]
struct PostedReceive {
    from: Rank,
    /// Where its slot begins in the arena.
    slot: u64,
    head: [u64; COMPARED],
    to: *mut u8,
    len: u64,
    /// How many bytes of its data had come before it was expected; none while none have come since.
    before: Option<u64>,
}

// SAFETY: the memory may be written by any thread that holds the lock, by the promise of whoever
// expects the message.
unsafe impl Send for PostedReceive {}

/// The receives that are posted, of all channels of a rank.
#[derive(Debug, Default)]
pub(crate) struct PostedReceives {
    all: Mutex<Vec<PostedReceive>>,
    /// How many.
    count: AtomicUsize,
}

/// Memory for the next bytes of a message, as long as this is held.
pub(crate) struct ReceiveTarget<'a> {
    pub(crate) pointer: *mut u8,
    _all: MutexGuard<'a, Vec<PostedReceive>>,
}

impl PostedReceives {
    /// Posts a receive for a message in a slot of the arena.
    ///
    /// # Safety
    /// `len` bytes are writable until it has come or is cancelled, and nobody else uses them.
    pub(crate) unsafe fn post(
        &self,
        from: Rank,
        slot: u64,
        head: [u64; COMPARED],
        (to, len): (*mut u8, u64),
    ) {
        let mut all = self.all.lock();
        all.push(PostedReceive { from, slot, head, to, len, before: None });
        // Relaxed: who has not seen it yet receives into the slot.
        self.count.store(all.len(), Ordering::Relaxed);
    }

    /// Whether any is posted.
    pub(crate) fn has_any(&self) -> bool {
        // Relaxed: as in `post`.
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether a message of this rank has a destination of which nothing has come.
    pub(crate) fn expects(&self, from: Rank) -> bool {
        self.has_any() && self.all.lock().iter().any(|one| one.from == from && one.before.is_none())
    }

    /// The message in a slot has come, and is not expected any more. How many bytes at the begin of
    /// its data are in the slot, and not where it was to go; all if none.
    pub(crate) fn complete(&self, from: Rank, slot: u64) -> Option<u64> {
        // Relaxed: whoever takes messages has expected them, or another thread before, of which it
        // knows.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut all = self.all.lock();
        let found = all.iter().position(|one| (one.from, one.slot) == (from, slot))?;
        let found = all.swap_remove(found);
        self.count.store(all.len(), Ordering::Relaxed);
        found.before
    }

    /// No message in these slots is expected any more.
    pub(crate) fn cancel(&self, slots: Range<u64>) {
        let mut all = self.all.lock();
        all.retain(|one| !slots.contains(&one.slot));
        self.count.store(all.len(), Ordering::Relaxed);
    }

    /// Where the rest of a message is to go, of which the bytes before `next`, an offset of the
    /// arena, have come; `None` for its slot. Its head lies at `slot`.
    ///
    /// # Safety
    /// The head of a slot is readable at `slot`, with nobody writing there.
    pub(crate) unsafe fn target(
        &self,
        from: Rank,
        put: &Put,
        next: u64,
        slot: *const u8,
    ) -> Option<ReceiveTarget<'_>> {
        // Relaxed: as in `post`.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut all = self.all.lock();
        let begin = put.remote.offset;
        let one = all.iter_mut().find(|one| (one.from, one.slot) == (from, begin))?;
        let came = (next - begin).checked_sub(HEAD_BYTES as u64)?;
        if put.size != HEAD_BYTES as u64 + one.len {
            return None;
        }
        // SAFETY: as the caller says.
        let head = unsafe { slot.cast::<Head>().read() };
        if head[..COMPARED] != one.head {
            return None;
        }
        one.before.get_or_insert(came);
        let pointer = one.to.wrapping_add(came as usize);
        Some(ReceiveTarget { pointer, _all: all })
    }
}
