//! A value that one thread has at a time, and nobody waits for: who finds it claimed does something
//! else. So it costs less than a lock, which has to know of those that sleep.
//!
//! A panic of its holder gives it back, as it does with the locks of the library.

use super::{AtomicBool, Ordering};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};

/// A value that threads claim.
#[derive(Default)]
pub(crate) struct Claim<T> {
    is_claimed: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time gets to the value, and gives it on with a release.
unsafe impl<T: Send> Sync for Claim<T> {}
impl<T> UnwindSafe for Claim<T> {}
impl<T> RefUnwindSafe for Claim<T> {}

impl<T> fmt::Debug for Claim<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("is_claimed", &self.is_claimed).finish_non_exhaustive()
    }
}

impl<T> Claim<T> {
    /// The value, unless a thread has it.
    #[inline(always)]
    pub(crate) fn try_claim(&self) -> Option<Claimed<'_, T>> {
        // Acquire: pairs with the Release of the former holder.
        let is_free = !self.is_claimed.swap(true, Ordering::Acquire);
        is_free.then(|| Claimed { claim: self, _not_send: PhantomData })
    }

    /// The value, which nobody else refers to.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// A value that this thread has claimed. It gives it back when it drops this.
pub(crate) struct Claimed<'a, T> {
    claim: &'a Claim<T>,
    // As a lock's guard.
    _not_send: PhantomData<*const ()>,
}

impl<T: fmt::Debug> fmt::Debug for Claimed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Deref for Claimed<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this thread alone has claimed it.
        unsafe { &*self.claim.value.get() }
    }
}

impl<T> DerefMut for Claimed<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread alone has claimed it, and borrows what it has claimed it by.
        unsafe { &mut *self.claim.value.get() }
    }
}

impl<T> Drop for Claimed<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: the next one to claim it sees what this one did.
        self.claim.is_claimed.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_at_a_time_and_a_panic_gives_it_back() {
        let claim = Claim::<u32>::default();
        let mut claimed = claim.try_claim().expect("nobody has it");
        *claimed += 1;
        std::thread::scope(|scope| {
            assert!(scope.spawn(|| claim.try_claim().is_none()).join().expect("no panic"));
        });
        drop(claimed);
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _claimed = claim.try_claim().expect("nobody has it");
                panic!("on purpose");
            });
            assert!(panics.join().is_err());
        });
        assert_eq!(*claim.try_claim().expect("nobody has it"), 1);
    }

    #[test]
    fn what_one_holder_adds_the_next_one_sees() {
        const THREADS: usize = 4;
        const ADDED: u64 = 10_000;
        let mut claim = Claim::<u64>::default();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..ADDED {
                        loop {
                            if let Some(mut value) = claim.try_claim() {
                                *value += 1;
                                break;
                            }
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        assert_eq!(*claim.get_mut(), THREADS as u64 * ADDED);
    }
}
