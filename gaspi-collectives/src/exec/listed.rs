//! A list that threads go through while others add to it without a wait: what is added becomes one
//! of the list when nobody goes through it, and is looked at apart until then.
//!
//! Invariant: a look misses nothing that was added before it began, though another thread may move
//! it to the list meanwhile. So the list is held until what was added has been looked at.
//!
//! The locks are of types of their own, so that a model can let go of one too early.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use gaspi_core::sync::{Mutex, RwLock, Word32};

/// A lock of one thread at a time.
pub trait Exclusive<T> {
    /// Does something while the lock is held.
    fn locked<R>(&self, act: impl FnOnce(&mut T) -> R) -> R;
}

/// A lock of one thread that writes, or several that read.
pub trait Shared<T> {
    /// Does something while no thread writes.
    fn read<R>(&self, act: impl FnOnce(&T) -> R) -> R;

    /// Does something while no other thread reads or writes.
    fn write<R>(&self, act: impl FnOnce(&mut T) -> R) -> R;

    /// The same, unless another thread reads or writes.
    fn try_write<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R>;
}

impl<T> Exclusive<T> for Mutex<T> {
    #[inline]
    fn locked<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.lock())
    }
}

impl<T> Shared<T> for RwLock<T> {
    #[inline]
    fn read<R>(&self, act: impl FnOnce(&T) -> R) -> R {
        act(&RwLock::read(self))
    }

    #[inline]
    fn write<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut RwLock::write(self))
    }

    #[inline]
    fn try_write<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        RwLock::try_write(self).map(|mut list| act(&mut list))
    }
}

/// Such a list.
#[derive(Debug)]
pub struct Listed<T, L = RwLock<Vec<T>>, N = Mutex<Vec<T>>, F = AtomicU32> {
    /// In the order in which they were added. Threads that go through it hold it to read.
    list: L,
    /// Those that were added while threads held the list, and 1 if there are any.
    newcomers: N,
    has_newcomers: F,
    of: PhantomData<T>,
}

impl<T, L: Default, N: Default, F: Default> Default for Listed<T, L, N, F> {
    fn default() -> Listed<T, L, N, F> {
        let (list, newcomers) = (L::default(), N::default());
        Listed { list, newcomers, has_newcomers: F::default(), of: PhantomData }
    }
}

impl<T: Clone, L: Shared<Vec<T>>, N: Exclusive<Vec<T>>, F: Word32> Listed<T, L, N, F> {
    /// Adds one. Waits for nobody who goes through the list.
    pub fn add(&self, one: T) {
        self.newcomers.locked(|newcomers| {
            newcomers.push(one);
            // Release: pairs with the Acquire in `find`. Who looks later, by whatever tells it to,
            // sees this.
            self.has_newcomers.store(1, Ordering::Release);
        });
    }

    /// Calls `look` with each until it gives something.
    pub fn find<R>(&self, mut look: impl FnMut(&T) -> Option<R>) -> Option<R> {
        let has_newcomers = || self.has_newcomers.load(Ordering::Acquire) != 0;
        if has_newcomers() {
            self.list.try_write(|list| {
                self.newcomers.locked(|newcomers| {
                    list.append(newcomers);
                    self.has_newcomers.store(0, Ordering::Relaxed);
                });
            });
        }
        self.list.read(|list| {
            let found = list.iter().find_map(&mut look);
            if found.is_some() || !has_newcomers() {
                return found;
            }
            // Another thread goes through the list. Nobody becomes one of it meanwhile.
            let newcomers = self.newcomers.locked(|newcomers| newcomers.clone());
            newcomers.iter().find_map(look)
        })
    }

    /// Removes those that are not to stay.
    pub fn retain(&self, stays: impl Fn(&T) -> bool) {
        self.list.write(|list| list.retain(&stays));
        self.newcomers.locked(|newcomers| newcomers.retain(&stays));
    }

    /// Removes those of the list that are to go, unless another thread goes through it. They are
    /// dropped after the lock.
    pub fn sweep(&self, goes: impl FnMut(&mut T) -> bool) {
        drop(self.list.try_write(|list| list.extract_if(.., goes).collect::<Vec<T>>()));
    }

    /// Forgets all, which are dropped after the locks.
    pub fn clear(&self) {
        let list = self.list.write(std::mem::take);
        let newcomers = self.newcomers.locked(std::mem::take);
        drop((list, newcomers));
    }
}
