//! Tables that are read on every write and changed a few times in a job.
//!
//! A reader is inside an epoch and pays one load. A caller that replaces an entry waits until all
//! readers that may have seen the old one have come out. A handler of frames, which may not wait,
//! leaves the old one to be freed later.

use crate::ids::{Rank, SegmentId};
use crate::sync::epoch::{self, Guard, Retired};
use crate::sync::{AtomicPtr, Ordering};
use crate::sync::{Mutex, MutexGuard};
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
    pub(crate) const fn new() -> Table<T> {
        Table { entries: [const { AtomicPtr::new(ptr::null_mut()) }; IDS] }
    }

    /// The entry, valid while the guard lives.
    #[inline(always)]
    pub(crate) fn get<'g>(&self, id: SegmentId, _inside: &'g Guard) -> Option<&'g T> {
        // SAFETY: the guard says that the thread is inside.
        unsafe { self.get_inside(id) }
    }

    /// The entry.
    ///
    /// # Safety
    /// The calling thread is inside an epoch for as long as it uses the entry.
    #[inline(always)]
    pub(crate) unsafe fn get_inside<'g>(&self, id: SegmentId) -> Option<&'g T> {
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
        let old = self.swap(id, entry)?;
        epoch::synchronize();
        Some(old)
    }

    /// Unlinks an entry, which readers may still be using.
    fn swap(&self, id: SegmentId, entry: Option<Arc<T>>) -> Option<Arc<T>> {
        let new = entry.map_or(ptr::null_mut(), |entry| Arc::into_raw(entry).cast_mut());
        // AcqRel: publishes the new entry's contents, and takes over the old one's.
        let old = self.entries[id.index()].swap(new, Ordering::AcqRel);
        if old.is_null() {
            return None;
        }
        // SAFETY: the pointer came from Arc::into_raw, and the swap gave its count to us alone.
        Some(unsafe { Arc::from_raw(old) })
    }

    /// Replaces an entry and leaves the old one among those that will be freed; true if somebody
    /// has to be told that there are some. Does not wait.
    pub(crate) fn replace_later(
        &self,
        id: SegmentId,
        entry: Option<Arc<T>>,
        retired: &Retired,
    ) -> bool
    where
        T: Send + Sync + 'static,
    {
        self.swap(id, entry).is_some_and(|old| retired.leave(old))
    }

    /// The entries that exist, ascending.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SegmentId> + '_ {
        let exists = |(_, entry): &(u8, &AtomicPtr<T>)| !entry.load(Ordering::Relaxed).is_null();
        (0..=u8::MAX).zip(&self.entries).filter(exists).map(|(id, _)| SegmentId(id))
    }
}

/// A table for each rank, made when the first entry comes.
#[derive(Debug)]
pub(crate) struct Tables<T: 'static> {
    tables: Box<[AtomicPtr<Table<T>>]>,
    /// What a rank without entries has.
    empty: &'static Table<T>,
    changes: Mutex<()>,
}

impl<T> Tables<T> {
    pub(crate) fn new(ranks: u32, empty: &'static Table<T>) -> Tables<T> {
        let pointer = || ptr::from_ref(empty).cast_mut();
        let tables = (0..ranks).map(|_| AtomicPtr::new(pointer())).collect();
        Tables { tables, empty, changes: Mutex::default() }
    }

    /// Held while entries are added, or all those of a rank taken away: for moments, by handlers
    /// too.
    pub(crate) fn changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock()
    }

    /// The table of `rank`, to look up; `None` if there is no such rank.
    #[inline(always)]
    pub(crate) fn of(&self, rank: Rank) -> Option<&Table<T>> {
        // Acquire: the table was filled with nothing before it was published.
        let table = self.tables.get(usize::from(rank.0))?.load(Ordering::Acquire);
        // SAFETY: tables live as long as this.
        Some(unsafe { &*table })
    }

    /// The table of `rank`, which exists, to change.
    pub(crate) fn make(&self, rank: Rank) -> &Table<T> {
        let empty = ptr::from_ref(self.empty).cast_mut();
        let place = &self.tables[rank.index()];
        if place.load(Ordering::Acquire) == empty {
            let new = Box::into_raw(Box::new(Table::new()));
            let order = Ordering::AcqRel;
            if place.compare_exchange(empty, new, order, Ordering::Acquire).is_err() {
                // Another thread was faster.
                // SAFETY: made above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
        // SAFETY: tables live as long as this.
        unsafe { &*place.load(Ordering::Acquire) }
    }
}

impl<T> Drop for Tables<T> {
    fn drop(&mut self) {
        for place in &self.tables {
            let table = place.load(Ordering::Acquire);
            if !ptr::eq(table, self.empty) {
                // SAFETY: made in `make`, and nobody uses it any more.
                drop(unsafe { Box::from_raw(table) });
            }
        }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for id in self.ids().collect::<Vec<_>>() {
            // Nobody can be reading.
            drop(self.swap(id, None));
        }
    }
}
