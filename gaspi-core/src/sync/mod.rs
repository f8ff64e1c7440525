//! The only importer of atomics, and the lock-free pieces built on them.
//!
//! The structures that processes share ([`eventcount`], [`slots`], [`mod@arrival_slot`]) are
//! generic over the words they live in, so that the same code runs on shared memory and under loom.
//! Process-wide state exists in one place only, the thread slots of [`epoch`]: they belong to
//! threads, not to ranks.

pub mod arrival_counts;
pub mod arrival_slot;
pub(crate) mod bias;
pub(crate) mod by_rank;
pub(crate) mod claim;
pub mod epoch;
pub mod eventcount;
pub mod holder;
pub mod in_flight;
pub mod lane;
mod lock;
pub mod membarrier;
pub(crate) mod once_arc;
pub mod sleepers;
pub mod slots;
pub mod teams;

pub use lock::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// A 32-bit atomic word: `std`'s in shared memory, loom's in its models.
pub trait Word32 {
    /// Atomic load.
    fn load(&self, order: Ordering) -> u32;
    /// Atomic store.
    fn store(&self, value: u32, order: Ordering);
    /// Atomic exchange.
    fn swap(&self, value: u32, order: Ordering) -> u32;
    /// Atomic wrapping addition, returns the former value.
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    /// Atomic disjunction, returns the former value.
    fn fetch_or(&self, value: u32, order: Ordering) -> u32;
}

/// A 64-bit atomic word: `std`'s in shared memory, loom's in its models.
pub trait Word64 {
    /// Atomic load.
    fn load(&self, order: Ordering) -> u64;
    /// Atomic store.
    fn store(&self, value: u64, order: Ordering);
    /// Atomic compare and exchange.
    ///
    /// # Errors
    /// The value found, where it is not `current`.
    fn compare_exchange(&self, current: u64, new: u64, order: Ordering) -> Result<u64, u64>;
    /// Adds, and gives what was there before.
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
}

impl Word32 for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }
    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }
    #[inline]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.swap(value, order)
    }
    #[inline]
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value, order)
    }
    #[inline]
    fn fetch_or(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_or(value, order)
    }
}

impl Word64 for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    #[inline]
    fn compare_exchange(&self, current: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        // Acquire on failure: the loser reads what the winner published.
        self.compare_exchange(current, new, order, Ordering::Acquire)
    }
    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }
}
