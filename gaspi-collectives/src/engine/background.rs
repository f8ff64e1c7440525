//! The background thread, which drives operations while no thread of the program does.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use gaspi_core::os::process;
use gaspi_core::{Deadline, Error, Result};

use super::{Engine, Shared, TellsEnds};
use crate::exec::executor::{Driver, Executor};

/// How long the background waits on a channel before it checks for other work.
const BACKGROUND_LIMIT: Duration = Duration::from_millis(250);

impl Engine {
    /// Starts the background thread, unless it runs.
    ///
    /// # Errors
    /// [`Error::System`]: it cannot be started.
    pub(crate) fn start_background_thread(&self) -> Result<()> {
        let mut background = self.background.lock();
        if background.is_none() {
            let shared = Arc::clone(&self.shared);
            // The thread inherits the mask of signals: none of the program's are delivered to it.
            let thread = process::with_signals_blocked(|| {
                std::thread::Builder::new()
                    .name("gaspi-collective".to_owned())
                    .spawn(move || shared.run_background())
            });
            *background = Some(thread.map_err(|error| Error::System {
                call: "starting the thread for operations in the background".to_owned(),
                reason: error.to_string(),
            })?);
        }
        Ok(())
    }
}

impl Shared {
    /// Tells the thread of a new operation on an executor.
    pub(crate) fn notify_background(&self, executor: &Executor) {
        *self.work.lock() = true;
        self.started.notify_one();
        // It may be waiting for something else.
        executor.channel.wake_waiters();
    }

    /// The same for an operation that has been carried on as far as it goes without waiting: a
    /// thread that drives others is woken by what this one waits for, and need not be told.
    pub(crate) fn notify_resting_background(&self, executor: &Executor) {
        // SeqCst: pairs with the fence in `rest`. Either the thread sees the operation, or this one
        // that it rests.
        fence(Ordering::SeqCst);
        if self.rests.load(Ordering::Relaxed) {
            self.notify_background(executor);
        }
    }

    /// Has the thread tell the program of ends.
    pub(crate) fn notify_ends(&self, executor: &Executor) {
        // Release: pairs with the swap in `tell_ends`.
        self.has_ends.store(true, Ordering::Release);
        self.notify_background(executor);
    }

    /// Has the thread call this one when there is something to tell, and now and then while it
    /// drives operations.
    pub(crate) fn register_ends(&self, teller: &Arc<dyn TellsEnds>) {
        let mut tellers = self.tellers.lock();
        tellers.retain(|known| known.strong_count() > 0);
        if !tellers.iter().any(|known| Weak::ptr_eq(known, &Arc::downgrade(teller))) {
            tellers.push(Arc::downgrade(teller));
        }
    }

    fn tell_ends(&self) {
        if self.has_ends.swap(false, Ordering::AcqRel) {
            let tellers: Vec<_> = self.tellers.lock().iter().filter_map(Weak::upgrade).collect();
            tellers.iter().for_each(|teller| teller.tell_ends());
        }
    }

    /// Has warned of what no thread of the program waits for.
    fn look_for_stalls(&self) {
        let tellers: Vec<_> = self.tellers.lock().iter().filter_map(Weak::upgrade).collect();
        tellers.iter().for_each(|teller| teller.look_for_stalls());
    }

    /// An executor with background operations.
    fn background_executor(&self) -> Option<Arc<Executor>> {
        self.active.find(|executor| executor.has_background().then(|| Arc::clone(executor)))
    }

    /// Waits until there may be work.
    fn rest(&self) {
        self.rests.store(true, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `notify_resting_background`.
        fence(Ordering::SeqCst);
        if self.background_executor().is_none() {
            let mut work = self.work.lock();
            while !*work && !self.ending.load(Ordering::Acquire) {
                work = self.started.wait(work);
            }
            *work = false;
        }
        self.rests.store(false, Ordering::Relaxed);
    }

    /// The loop of the background thread.
    fn run_background(&self) {
        let mut looked = Instant::now();
        while !self.ending.load(Ordering::Acquire) {
            self.tell_ends();
            let Some(executor) = self.background_executor() else {
                self.rest();
                continue;
            };
            if looked.elapsed() >= BACKGROUND_LIMIT {
                self.look_for_stalls();
                looked = Instant::now();
            }
            let limit = Deadline::Never.at_most(BACKGROUND_LIMIT);
            let ended = executor.channel.wait_in_background(limit, || {
                self.progress(Driver::Background, |executor| executor.has_background());
                let other_work =
                    self.has_ends.load(Ordering::Relaxed) || self.ending.load(Ordering::Acquire);
                (!executor.has_background() || other_work).then_some(())
            });
            if ended.is_none() {
                self.look_around(|executor| executor.has_background());
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let thread = self.background.lock().take();
        if self.process != std::process::id() {
            // A forked child: the thread is the parent's.
            std::mem::forget(thread);
            return;
        }
        if let Some(thread) = thread {
            self.shared.ending.store(true, Ordering::Release);
            drop(self.shared.work.lock());
            self.shared.started.notify_one();
            let executor = self.shared.background_executor();
            if let Some(executor) = executor {
                executor.channel.wake_waiters();
            }
            // It ends within its limit. A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}
