//! What is given up in a function of the program that may not wait, and so is ended later: by the
//! background thread, or with the rank.
//!
//! Invariant: nothing here waits, but for the end of the rank, which waits for a limited time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gaspi_core::sync::Mutex;

use super::operation::FINISH_LIMIT;
use super::{Operation, Shared};

/// How often it is looked after.
pub(super) const LOOK: Duration = Duration::from_millis(10);
/// The same at the end of the rank, and how long that waits for it. What has not ended by then
/// stays for ever, with its memory.
const LAST_LOOK: Duration = Duration::from_millis(1);
const LAST_LIMIT: Duration = Duration::from_secs(6);

/// Something that was given up and is not ended yet.
pub(crate) trait GivenUp: fmt::Debug + Send {
    /// Carries it on without a wait, so long after the first time. True at its end.
    fn carry_on(&mut self, shared: &Shared, since: Duration) -> bool;
}

/// One of all.
#[derive(Debug)]
struct Entry {
    /// When it was looked at first: a function of the program that runs on may put that off.
    begin: Option<Instant>,
    given_up: Box<dyn GivenUp>,
}

/// All that was given up.
#[derive(Debug, Default)]
pub(super) struct AllGivenUp {
    left: Mutex<Vec<Entry>>,
    is_any: AtomicBool,
}

impl AllGivenUp {
    #[inline]
    pub(super) fn is_any(&self) -> bool {
        // Relaxed: who adds something wakes the thread by a lock.
        self.is_any.load(Ordering::Relaxed)
    }

    fn add(&self, given_up: Box<dyn GivenUp>) {
        let mut left = self.left.lock();
        left.push(Entry { begin: None, given_up });
        // Relaxed: changed under the lock.
        self.is_any.store(true, Ordering::Relaxed);
    }

    /// Carries all of it on.
    fn carry_on(&self, shared: &Shared) {
        if !self.is_any() {
            return;
        }
        // Without the lock: what ends may own things of the program, which may give up others.
        let mut all = std::mem::take(&mut *self.left.lock());
        all.retain_mut(|entry| {
            let begin = entry.begin.get_or_insert_with(Instant::now);
            !entry.given_up.carry_on(shared, begin.elapsed())
        });
        let mut left = self.left.lock();
        left.append(&mut all);
        self.is_any.store(!left.is_empty(), Ordering::Relaxed);
    }
}

impl Shared {
    /// Has something ended later.
    #[cold]
    pub(crate) fn end_later(&self, given_up: Box<dyn GivenUp>) {
        self.given_up.add(given_up);
        self.work.lock().told = true;
        self.started.notify_one();
        if let Some(executor) = self.background_executor() {
            executor.channel.wake_waiters();
        }
    }

    /// Carries on what was given up.
    pub(super) fn carry_given_up_on(&self) {
        self.given_up.carry_on(self);
    }

    /// Ends what was given up. The thread that did so has ended.
    pub(super) fn end_given_up(&self) {
        let begin = Instant::now();
        loop {
            self.carry_given_up_on();
            if !self.given_up.is_any() {
                return;
            }
            if begin.elapsed() > LAST_LIMIT {
                break;
            }
            drop(self.started.wait_at_most(self.work.lock(), LAST_LOOK));
        }
        std::mem::forget(std::mem::take(&mut *self.given_up.left.lock()));
    }
}

/// An operation that was given up, with its memory.
#[derive(Debug)]
pub(crate) struct OperationGivenUp<M> {
    pub(crate) operation: Arc<Operation>,
    /// None once it stays for ever.
    pub(crate) memory: Option<M>,
    pub(crate) is_cancelled: bool,
}

impl<M: fmt::Debug + Send> GivenUp for OperationGivenUp<M> {
    fn carry_on(&mut self, shared: &Shared, since: Duration) -> bool {
        let operation = &self.operation;
        operation.carry_on();
        if since >= FINISH_LIMIT && !self.is_cancelled {
            operation.cancel_at_once();
            self.is_cancelled = true;
        }
        if operation.needs_memory(self.is_cancelled) {
            return false;
        }
        if operation.is_prepared() {
            shared.close(&operation.executor);
        }
        if operation.is_still_used() {
            std::mem::forget(self.memory.take());
        }
        true
    }
}
