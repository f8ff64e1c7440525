//! Freeing memory that other threads of this process may be using, without an atomic per use.
//!
//! A thread brackets each use with [`enter`]: two plain stores to a slot of its own. Whoever has
//! unlinked something calls [`synchronize`], which returns once every thread that was inside has
//! come out, and then frees. The slots belong to the threads of the process, which is why they are
//! the one process-wide structure of this crate; a slot also holds the thread's statistics.
//!
//! Invariant: nothing waits for another rank while it is inside.

use super::membarrier::{heavy_private, light_private};
use super::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Statistics counters of a thread's slot.
pub const COUNTERS: usize = 32;

/// What one thread owns.
#[derive(Debug)]
#[repr(align(128))]
pub struct Slot {
    /// Odd while the thread is inside. Written by the owner only.
    sequence: AtomicU64,
    /// How deeply the owner is nested. Touched by the owner only.
    depth: AtomicU32,
    /// The owner, to find out whether it still lives.
    thread: AtomicI32,
    /// The runtime whose statistics are counted here, 0 for none.
    owner: AtomicU64,
    /// Counters, written by the owner only.
    counters: [AtomicU64; COUNTERS],
}

static SLOTS: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());

thread_local! {
    // Constant and without a destructor, so that it works in destructors that run after main.
    static SLOT: Cell<Option<&'static Slot>> = const { Cell::new(None) };
}

fn slots() -> MutexGuard<'static, Vec<&'static Slot>> {
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A slot whose thread has ended may serve another one.
fn abandoned(slot: &Slot) -> bool {
    // SAFETY: tgkill with signal 0 only asks whether the thread exists.
    let alive = unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), slot.thread.load(Ordering::Relaxed), 0)
    };
    alive != 0 && slot.sequence.load(Ordering::Acquire).is_multiple_of(2)
}

#[cold]
fn register() -> &'static Slot {
    let mut slots = slots();
    // SAFETY: gettid has no arguments.
    let thread = unsafe { libc::gettid() };
    // Looking for slots to reuse costs a system call each: do it when the list is about to grow.
    let full = slots.len() == slots.capacity();
    let slot = if let Some(slot) = slots.iter().find(|slot| full && abandoned(slot)) {
        slot
    } else {
        let slot: &'static Slot = Box::leak(Box::new(Slot {
            sequence: AtomicU64::new(0),
            depth: AtomicU32::new(0),
            thread: AtomicI32::new(thread),
            owner: AtomicU64::new(0),
            counters: [const { AtomicU64::new(0) }; COUNTERS],
        }));
        slots.push(slot);
        slot
    };
    slot.thread.store(thread, Ordering::Relaxed);
    slot.depth.store(0, Ordering::Relaxed);
    SLOT.set(Some(slot));
    slot
}

#[inline]
fn current() -> &'static Slot {
    SLOT.get().unwrap_or_else(register)
}

/// While it lives, nothing that this thread can reach is freed. Not to be held while waiting.
#[derive(Debug)]
pub struct Guard {
    slot: &'static Slot,
    // The slot belongs to this thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

/// Enters; nests.
#[inline]
pub fn enter() -> Guard {
    let slot = current();
    let depth = slot.depth.load(Ordering::Relaxed);
    slot.depth.store(depth + 1, Ordering::Relaxed);
    if depth == 0 {
        let sequence = slot.sequence.load(Ordering::Relaxed);
        slot.sequence.store(sequence + 1, Ordering::Relaxed);
        // Orders the store before the reads that follow; pairs with `heavy_private`.
        light_private();
    }
    Guard { slot, _not_send: std::marker::PhantomData }
}

impl Guard {
    /// Adds to a statistics counter of runtime `owner`, false if the slot counts for another one.
    #[inline]
    pub(crate) fn count(&self, owner: u64, counter: usize, amount: u64) -> bool {
        let slot = self.slot;
        if slot.owner.load(Ordering::Relaxed) != owner && !claim(slot, owner) {
            return false;
        }
        let value = slot.counters[counter].load(Ordering::Relaxed);
        slot.counters[counter].store(value.wrapping_add(amount), Ordering::Relaxed);
        true
    }
}

#[cold]
fn claim(slot: &Slot, owner: u64) -> bool {
    // Under the lock, so that `release_counters` cannot miss it.
    let _slots = slots();
    if slot.owner.load(Ordering::Relaxed) != 0 {
        return false;
    }
    slot.owner.store(owner, Ordering::Relaxed);
    true
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        let depth = self.slot.depth.load(Ordering::Relaxed) - 1;
        self.slot.depth.store(depth, Ordering::Relaxed);
        if depth == 0 {
            let sequence = self.slot.sequence.load(Ordering::Relaxed);
            // Release: the uses end before it; pairs with the Acquire in `synchronize`.
            self.slot.sequence.store(sequence + 1, Ordering::Release);
        }
    }
}

/// Returns once every thread that was inside when it was called has come out. What was unlinked
/// before the call may then be freed.
pub fn synchronize() {
    heavy_private();
    let inside: Vec<(&Slot, u64)> = slots()
        .iter()
        .map(|slot| (*slot, slot.sequence.load(Ordering::Acquire)))
        .filter(|(_, sequence)| sequence % 2 == 1)
        .collect();
    for (slot, sequence) in inside {
        debug_assert!(
            !SLOT.get().is_some_and(|own| std::ptr::eq(own, slot)),
            "synchronize called from inside"
        );
        // Uses last as long as one copy, so yielding is enough.
        while slot.sequence.load(Ordering::Acquire) == sequence {
            std::thread::yield_now();
        }
    }
}

/// The sum of a counter over the threads that count for `owner`.
pub(crate) fn counted(owner: u64, counter: usize) -> u64 {
    slots()
        .iter()
        .filter(|slot| slot.owner.load(Ordering::Relaxed) == owner)
        .map(|slot| slot.counters[counter].load(Ordering::Relaxed))
        .fold(0, u64::wrapping_add)
}

/// Gives the slots that count for `owner` free for another runtime.
pub(crate) fn release_counters(owner: u64) {
    for slot in slots().iter().filter(|slot| slot.owner.load(Ordering::Relaxed) == owner) {
        for counter in &slot.counters {
            counter.store(0, Ordering::Relaxed);
        }
        slot.owner.store(0, Ordering::Relaxed);
    }
}
