//! Tables that are read on every write and changed a few times in a job.
//!
//! A reader is inside an epoch and pays one load; whoever replaces an entry waits until all readers
//! that may have seen the old one have come out.

use crate::ids::SegmentId;
use crate::sync::epoch::{self, Guard};
use crate::sync::{AtomicPtr, Ordering};
use std::ptr;
use std::sync::Arc;

/// Ids that a type of one byte can name.
const IDS: usize = 256;

/// Entries by segment id, shared by all threads of a rank.
#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: [AtomicPtr<T>; IDS],
}

impl<T> Table<T> {
    pub(crate) fn new() -> Table<T> {
        Table { entries: [const { AtomicPtr::new(ptr::null_mut()) }; IDS] }
    }

    /// The entry, valid while the guard lives.
    #[inline(always)]
    pub(crate) fn get<'g>(&self, id: SegmentId, _inside: &'g Guard) -> Option<&'g T> {
        // Acquire: the entry's contents were written before it was published.
        let entry = self.entries[usize::from(id.0)].load(Ordering::Acquire);
        // SAFETY: `replace` drops an entry only after every guard that was alive when it was
        // unlinked has ended.
        unsafe { entry.as_ref() }
    }

    /// The entry, to be kept.
    pub(crate) fn get_arc(&self, id: SegmentId) -> Option<Arc<T>> {
        let _inside = epoch::enter();
        let entry = self.entries[id.index()].load(Ordering::Acquire);
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
    pub(crate) fn replace(&self, id: SegmentId, entry: Option<Arc<T>>) -> Option<Arc<T>> {
        let new = entry.map_or(ptr::null_mut(), |entry| Arc::into_raw(entry).cast_mut());
        // AcqRel: publishes the new entry's contents, and takes over the old one's.
        let old = self.entries[id.index()].swap(new, Ordering::AcqRel);
        if old.is_null() {
            return None;
        }
        epoch::synchronize();
        // SAFETY: the pointer came from Arc::into_raw, and the swap gave its count to us alone.
        Some(unsafe { Arc::from_raw(old) })
    }

    /// The entries that exist, ascending.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SegmentId> + '_ {
        let exists = |(_, entry): &(u8, &AtomicPtr<T>)| !entry.load(Ordering::Relaxed).is_null();
        (0..=u8::MAX).zip(&self.entries).filter(exists).map(|(id, _)| SegmentId(id))
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for id in self.ids().collect::<Vec<_>>() {
            self.replace(id, None);
        }
    }
}
