//! The executors of a rank on which operations are active: what there is to drive. A look at them
//! costs the same, however many others there are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use gaspi_core::sync::Mutex;

use super::executor::Executor;
use super::listed::Listed;
use super::turns::{TakesTurns, Turn, Turns};
use crate::kernel::Buffer;

/// Most buffers that are kept.
const KEPT: usize = 4;

/// Memory that operations use one after the other, so that it stays in the caches.
#[derive(Debug, Default)]
pub(super) struct SharedBuffers(Mutex<Vec<Buffer>>);

impl SharedBuffers {
    /// At least so many bytes, of any content.
    pub(super) fn take(&self, bytes: u64) -> Buffer {
        let mut kept = self.0.lock();
        let last = kept.iter().rposition(|buffer| buffer.len() >= bytes);
        let found = last.map(|at| kept.remove(at));
        drop(kept);
        found.unwrap_or_else(|| Buffer::new(bytes))
    }

    pub(super) fn give_back(&self, buffer: Buffer) {
        let mut kept = self.0.lock();
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(buffer);
    }
}

/// The executors of a rank that have, or had lately, active operations.
#[derive(Debug, Default)]
pub(crate) struct ActiveExecutors {
    /// Active operations of the rank, and those that wait for their turn.
    operations: AtomicUsize,
    pub(crate) turns: Turns,
    pub(super) work_memory: SharedBuffers,
    /// In the order in which they became active.
    list: Listed<Arc<Executor>>,
}

impl ActiveExecutors {
    /// Number of active operations, and of those that wait for their turn.
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

    /// Hands over an operation that takes turns: how many wait now, with this one, or `None` if the
    /// caller begins it now.
    pub(crate) fn hand_over(&self, turn: Turn) -> Option<usize> {
        self.begin();
        let waiting = self.turns.hand_over(turn);
        if waiting.is_none() {
            self.end(1);
        }
        waiting
    }

    /// Begins operations whose turn has come. The caller holds no lock.
    #[inline]
    pub(crate) fn begin_next(&self) {
        if self.turns.has_waiting() {
            self.begin_all(|| self.turns.begin_next());
        }
    }

    /// Begins an operation of somebody, or all of them, whatever is under way.
    pub(crate) fn begin_now(&self, of: &Weak<dyn TakesTurns>, index: Option<usize>) {
        if self.turns.has_waiting() {
            self.begin_all(|| self.turns.begin_now(of, index));
            self.begin_next();
        }
    }

    #[cold]
    fn begin_all(&self, begin: impl Fn() -> bool) {
        while begin() {
            // It counts as one that has begun.
            self.end(1);
        }
    }

    /// Gives up operations that wait for their turn, whose rank has left.
    pub(crate) fn give_turns_up(&self) {
        let waiting = self.turns.take_all();
        self.end(waiting.len());
        waiting.iter().for_each(Turn::give_up);
    }

    /// Adds an executor, whose flag says that it is listed. Waits for nobody who drives.
    pub(super) fn add(&self, executor: Arc<Executor>) {
        self.list.add(executor);
    }

    /// Calls `look` with each executor until it gives something. Those without active operations
    /// are removed at times.
    pub(crate) fn find<T>(&self, mut look: impl FnMut(&Arc<Executor>) -> Option<T>) -> Option<T> {
        let mut has_idle = false;
        let found = self.list.find(|executor| {
            has_idle |= executor.active() == 0;
            look(executor)
        });
        if has_idle {
            self.sweep();
        }
        found
    }

    /// Removes an executor on which no operation will be started any more.
    pub(crate) fn remove(&self, executor: &Arc<Executor>) {
        self.list.retain(|other| !Arc::ptr_eq(other, executor));
    }

    /// Removes executors without active operations, unless another thread drives them.
    #[cold]
    fn sweep(&self) {
        self.list.sweep(|executor| executor.active() == 0 && executor.unlist());
    }

    /// Forgets all executors, which know this list.
    pub(crate) fn clear(&self) {
        self.list.clear();
    }
}
