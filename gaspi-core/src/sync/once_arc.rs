//! A place for a shared value that is made once and stays: found by one load, where a lock that
//! opens once takes more.

use super::{AtomicPtr, Ordering};
use std::ptr;
use std::sync::Arc;

/// A place that is empty at first.
#[derive(Debug)]
pub(crate) struct OnceArc<T>(AtomicPtr<T>);

impl<T> OnceArc<T> {
    /// An empty place.
    pub(crate) const fn new() -> OnceArc<T> {
        OnceArc(AtomicPtr::new(ptr::null_mut()))
    }

    /// What is there.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&T> {
        // Acquire: pairs with the Release in `get_or_init`.
        // SAFETY: null or of an `Arc` that lives as long as the place.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// What is there, made if need be. Of threads that come at once one makes it.
    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> Arc<T>) -> &T {
        if let Some(found) = self.get() {
            return found;
        }
        let made = Arc::into_raw(make()).cast_mut();
        let empty = ptr::null_mut();
        // Release: publishes the value.
        match self.0.compare_exchange(empty, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it is kept from now on.
            Ok(_) => unsafe { &*made },
            Err(found) => {
                // SAFETY: made above, and nobody else has it; the other one is kept.
                unsafe {
                    drop(Arc::from_raw(made));
                    &*found
                }
            }
        }
    }

    /// A reference of its own to what is there, made if need be.
    pub(crate) fn share_or_init(&self, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let found = self.get_or_init(make);
        // SAFETY: of an `Arc`, of which this place has one reference.
        unsafe {
            Arc::increment_strong_count(found);
            Arc::from_raw(found)
        }
    }
}

impl<T> Drop for OnceArc<T> {
    fn drop(&mut self) {
        let found = *self.0.get_mut();
        if !found.is_null() {
            // SAFETY: of an `Arc`; the place's own reference ends once.
            drop(unsafe { Arc::from_raw(found) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_come_at_once_find_the_same_value_which_ends_with_the_place() {
        let place = OnceArc::new();
        assert!(place.get().is_none());
        let found: Vec<Arc<usize>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|nth| {
                    let place = &place;
                    scope.spawn(move || {
                        let shared = place.share_or_init(|| Arc::new(nth));
                        assert_eq!(place.get(), Some(&*shared));
                        shared
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("it ended well")).collect()
        });
        assert!(found.iter().all(|one| Arc::ptr_eq(one, &found[0])));
        drop(place);
        assert_eq!(Arc::strong_count(&found[0]), 4, "those of the threads");
    }
}
