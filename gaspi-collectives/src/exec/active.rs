//! The executors of a rank on which operations are active: what there is to drive. A look at them
//! costs the same, however many others there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gaspi_core::sync::Mutex;

use super::executor::Executor;

/// The executors of a rank that have, or had lately, active operations.
#[derive(Debug, Default)]
pub(crate) struct ActiveExecutors {
    /// Active operations of the rank.
    operations: AtomicUsize,
    /// Replaced as a whole while others read it, in the order in which they became active.
    list: Mutex<Arc<Vec<Arc<Executor>>>>,
}

impl ActiveExecutors {
    /// Number of active operations.
    #[inline]
    pub(crate) fn operations(&self) -> usize {
        self.operations.load(Ordering::Relaxed)
    }

    /// Counts an operation that begins.
    pub(super) fn begin(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts operations that have ended.
    pub(super) fn end(&self, operations: usize) {
        self.operations.fetch_sub(operations, Ordering::Relaxed);
    }

    /// The executors, as of now.
    pub(crate) fn listed(&self) -> Arc<Vec<Arc<Executor>>> {
        Arc::clone(&self.list.lock())
    }

    /// Adds an executor, whose flag says that it is listed.
    pub(super) fn add(&self, executor: Arc<Executor>) {
        Arc::make_mut(&mut self.list.lock()).push(executor);
    }

    /// Removes an executor on which no operation will be started any more.
    pub(crate) fn remove(&self, executor: &Arc<Executor>) {
        let mut list = self.list.lock();
        Arc::make_mut(&mut list).retain(|other| !Arc::ptr_eq(other, executor));
    }

    /// Removes executors without active operations.
    #[cold]
    pub(crate) fn sweep(&self) {
        let mut list = self.list.lock();
        // Those that others are just driving stay; an executor is dropped after the lock.
        let removed: Vec<Arc<Executor>> = Arc::make_mut(&mut list)
            .extract_if(.., |executor| executor.active() == 0 && executor.unlist())
            .collect();
        drop(list);
        drop(removed);
    }

    /// Forgets all executors, which know this list.
    pub(crate) fn clear(&self) {
        *self.list.lock() = Arc::default();
    }
}
