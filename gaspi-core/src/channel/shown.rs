//! Memory of the program that this rank's device knows, as its user has asked for.

use crate::segment::prepared::Prepared;
use crate::sync::{AtomicUsize, Mutex, Ordering};
use std::ops::Range;
use std::sync::Arc;

/// Memory of the program that the device knows.
#[derive(Debug, Default)]
pub(crate) struct ShownMemory {
    all: Mutex<Vec<Known>>,
    /// How much.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Known {
    /// Addresses.
    range: Range<u64>,
    memory: Arc<Prepared>,
}

/// Whether a part of the address space lies in a range of it.
pub(super) fn covers(range: &Range<u64>, part: &Range<u64>) -> bool {
    range.start <= part.start && part.end <= range.end
}

impl ShownMemory {
    /// From now on data is taken from there.
    pub(super) fn add(&self, range: Range<u64>, memory: &Arc<Prepared>) {
        let mut all = self.all.lock();
        all.push(Known { range, memory: Arc::clone(memory) });
        // Relaxed: whoever misses it has its data copied.
        self.count.store(all.len(), Ordering::Relaxed);
    }

    /// From now on none is; what is on its way goes on.
    pub(super) fn remove(&self, memory: &Arc<Prepared>) {
        let mut all = self.all.lock();
        all.retain(|known| !Arc::ptr_eq(&known.memory, memory));
        self.count.store(all.len(), Ordering::Relaxed);
    }

    /// What the device has made of the memory that a part lies in.
    pub(super) fn find(&self, part: &Range<u64>) -> Option<Arc<Prepared>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let all = self.all.lock();
        let known = all.iter().find(|known| covers(&known.range, part))?;
        Some(Arc::clone(&known.memory))
    }
}
