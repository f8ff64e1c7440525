//! Tables that are read on every write and changed a few times in a job.
//!
//! A reader is inside an epoch and pays one load; whoever replaces an entry waits until all readers
//! that may have seen the old one have come out.

use crate::sync::epoch::{self, Guard};
use crate::sync::{AtomicPtr, Ordering};
use std::ptr;
use std::sync::Arc;

/// Entries by index, shared by all threads of a rank.
#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: Box<[AtomicPtr<T>]>,
}

impl<T> Table<T> {
    pub(crate) fn new(len: usize) -> Table<T> {
        Table { entries: (0..len).map(|_| AtomicPtr::new(ptr::null_mut())).collect() }
    }

    /// The entry, valid while the guard lives.
    #[inline]
    pub(crate) fn get<'g>(&self, index: usize, _inside: &'g Guard) -> Option<&'g T> {
        // Acquire: the entry's contents were written before it was published.
        let entry = self.entries.get(index)?.load(Ordering::Acquire);
        // SAFETY: `replace` drops an entry only after every guard that was alive when it was
        // unlinked has ended.
        unsafe { entry.as_ref() }
    }

    /// The entry, to be kept.
    pub(crate) fn get_arc(&self, index: usize) -> Option<Arc<T>> {
        let _inside = epoch::enter();
        let entry = self.entries.get(index)?.load(Ordering::Acquire);
        if entry.is_null() {
            return None;
        }
        // SAFETY: the pointer came from Arc::into_raw and is alive while the guard is.
        unsafe { Arc::increment_strong_count(entry) };
        // SAFETY: the count just taken belongs to this Arc.
        Some(unsafe { Arc::from_raw(entry) })
    }

    /// Replaces an entry and returns the old one once no reader can be using it. Not to be called
    /// from inside an epoch.
    pub(crate) fn replace(&self, index: usize, entry: Option<Arc<T>>) -> Option<Arc<T>> {
        let new = entry.map_or(ptr::null_mut(), |entry| Arc::into_raw(entry).cast_mut());
        // AcqRel: publishes the new entry's contents, and takes over the old one's.
        let old = self.entries[index].swap(new, Ordering::AcqRel);
        if old.is_null() {
            return None;
        }
        epoch::synchronize();
        // SAFETY: the pointer came from Arc::into_raw, and the swap gave its count to us alone.
        Some(unsafe { Arc::from_raw(old) })
    }

    /// Indices of the entries that exist, ascending.
    pub(crate) fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| !entry.load(Ordering::Relaxed).is_null())
            .map(|(index, _)| index)
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for index in 0..self.entries.len() {
            self.replace(index, None);
        }
    }
}
