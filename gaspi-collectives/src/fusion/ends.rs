//! Who is told of buckets that have ended: callers of `next`, a descriptor, a function.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ThreadId};

use gaspi_core::os::event::Wakeup;
use gaspi_core::sync::{Condvar, Mutex, epoch};
use gaspi_core::{Error, Result};

/// A function that is told of the end of a bucket.
pub type OnEnd = dyn Fn(usize, Result<()>) + Send + Sync;

#[derive(Default)]
struct State {
    /// Buckets that have ended and were not fetched, each once.
    ended: VecDeque<usize>,
    is_queued: Vec<bool>,
    /// The error that has ended the fused buffer.
    failure: Option<Error>,
    /// Who is told of ends, and the ends that it was not told of.
    function: Option<Arc<OnEnd>>,
    untold: VecDeque<(usize, Result<()>)>,
    /// How often it was replaced, and threads that are in it, or in a former one: in which.
    replaced: u64,
    telling: Vec<(ThreadId, u64)>,
    descriptor: Option<Wakeup>,
}

impl State {
    /// Has the descriptor tell whether there is anything to fetch.
    fn signal(&self, before: bool) {
        let now = self.is_readable();
        let Some(descriptor) = self.descriptor.as_ref().filter(|_| before != now) else { return };
        if now { descriptor.wake() } else { descriptor.clear() }
    }

    fn is_readable(&self) -> bool {
        !self.ended.is_empty() || self.failure.is_some()
    }
}

/// The ends of the buckets of a fused buffer.
#[derive(Default)]
pub(super) struct Ends {
    state: Mutex<State>,
    /// A thread has left a function.
    told: Condvar,
    has_untold: AtomicBool,
    has_failed: AtomicBool,
    /// How many buckets have ended, in all steps.
    count: AtomicU64,
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ends").field("has_untold", &self.has_untold).finish_non_exhaustive()
    }
}

/// A thread that is telling the function of an end. It ends well if the function panics too.
struct Telling<'a>(&'a Ends, ThreadId);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let Telling(ends, own) = *self;
        let mut state = ends.state.lock();
        let at = state.telling.iter().position(|(thread, _)| *thread == own);
        let left = at.map(|at| state.telling.swap_remove(at).1);
        let is_former = left.is_some_and(|left| left < state.replaced);
        drop(state);
        if is_former {
            ends.told.notify_all();
        }
    }
}

/// Threads that are in a function of any fused buffer, and wait there until others have left one,
/// in the order in which they came.
static LEAVING: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

/// One of them. It does not wait for those that came before, so that no two wait for each other.
struct Leaving {
    own: ThreadId,
    before: Vec<ThreadId>,
}

impl Leaving {
    fn begin() -> Leaving {
        let own = thread::current().id();
        let mut leaving = LEAVING.lock();
        let before = leaving.clone();
        leaving.push(own);
        Leaving { own, before }
    }

    fn waits_for(&self, thread: ThreadId) -> bool {
        thread != self.own && !self.before.contains(&thread)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        LEAVING.lock().retain(|thread| *thread != self.own);
    }
}

impl Ends {
    pub(super) fn new(buckets: usize) -> Ends {
        let ends = Ends::default();
        ends.state.lock().is_queued = vec![false; buckets];
        ends
    }

    /// A bucket has ended. Nothing here waits or calls the program.
    pub(super) fn add(&self, bucket: usize, outcome: &Result<()>) {
        let mut state = self.state.lock();
        // Relaxed: it orders nothing.
        self.count.fetch_add(1, Ordering::Relaxed);
        let before = state.is_readable();
        if outcome.is_ok() && !std::mem::replace(&mut state.is_queued[bucket], true) {
            state.ended.push_back(bucket);
        }
        if let Err(error) = outcome {
            state.failure.get_or_insert_with(|| error.clone());
            // Release: pairs with the Acquire in `has_failed`.
            self.has_failed.store(true, Ordering::Release);
        }
        state.signal(before);
        if state.function.is_some() {
            state.untold.push_back((bucket, outcome.clone()));
            // Release: pairs with the Acquire in `has_untold`.
            self.has_untold.store(true, Ordering::Release);
        }
    }

    /// How many buckets have ended, in all steps.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The bucket that ended first of those that were not fetched.
    ///
    /// # Errors
    /// What has ended the fused buffer, once all that ended before have been fetched.
    pub(super) fn fetch(&self) -> Option<Result<usize>> {
        let mut state = self.state.lock();
        let before = state.is_readable();
        let Some(bucket) = state.ended.pop_front() else {
            return state.failure.clone().map(Err);
        };
        state.is_queued[bucket] = false;
        state.signal(before);
        Some(Ok(bucket))
    }

    /// What has ended the fused buffer.
    #[inline]
    pub(super) fn failure(&self) -> Option<Error> {
        self.has_failed().then(|| self.state.lock().failure.clone())?
    }

    /// Whether something has ended the fused buffer.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        // Acquire: pairs with the Release in `add`.
        self.has_failed.load(Ordering::Acquire)
    }

    /// A descriptor that is readable while there is something to fetch.
    pub(super) fn descriptor(&self) -> Result<RawFd> {
        let mut state = self.state.lock();
        if state.descriptor.is_none() {
            let made = Wakeup::new()?;
            if state.is_readable() {
                made.wake();
            }
            state.descriptor = Some(made);
        }
        Ok(state.descriptor.as_ref().map_or(-1, |made| made.as_fd().as_raw_fd()))
    }

    /// Has a function told of each end from now on. When this returns no thread is in a former one
    /// but this thread, and those that it does not wait for, see [`Leaving`].
    pub(super) fn set_function(&self, function: Option<Arc<OnEnd>>) {
        // Before it waits: those that come from now on do not wait for this one.
        let leaving = epoch::is_in_callback().then(Leaving::begin);
        let waits_for = |thread| leaving.as_ref().is_none_or(|leaving| leaving.waits_for(thread));
        let former = self.replace_function(function);
        let mut state = self.state.lock();
        let now = state.replaced;
        while state.telling.iter().any(|(thread, nth)| *nth < now && waits_for(*thread)) {
            state = self.told.wait(state);
        }
        drop(state);
        drop(former);
    }

    /// Does so and waits for nobody. Returns the former one, which the caller drops.
    pub(super) fn replace_function(&self, function: Option<Arc<OnEnd>>) -> Option<Arc<OnEnd>> {
        let mut state = self.state.lock();
        let former = std::mem::replace(&mut state.function, function);
        state.replaced += 1;
        if state.function.is_none() {
            state.untold.clear();
            // Relaxed: changed under the lock.
            self.has_untold.store(false, Ordering::Relaxed);
        }
        former
    }

    /// Whether the function is to be told of an end.
    #[inline]
    pub(super) fn has_untold(&self) -> bool {
        self.has_untold.load(Ordering::Acquire)
    }

    /// Tells the function of all ends. The caller holds no lock.
    pub(super) fn tell(&self) {
        while self.has_untold() {
            let mut state = self.state.lock();
            let next = state.untold.pop_front();
            // Relaxed: under the lock, and looked at again.
            self.has_untold.store(!state.untold.is_empty(), Ordering::Relaxed);
            let (Some((bucket, outcome)), Some(function)) = (next, state.function.clone()) else {
                continue;
            };
            let (own, nth) = (thread::current().id(), state.replaced);
            state.telling.push((own, nth));
            drop(state);
            let telling = Telling(self, own);
            function(bucket, outcome);
            drop(function);
            drop(telling);
        }
    }
}
