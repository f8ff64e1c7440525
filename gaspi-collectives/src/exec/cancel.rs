//! Operations that are given up before their end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gaspi_core::Error;

use super::completion::Completion;
use super::executor::{Executor, State};
use super::notice::Cause;
use crate::signature;

/// How long a rank that leaves waits for a thread in the middle of an operation. That may be in a
/// function of the program, which may even be the one that leaves.
const LEAVING_LIMIT: Duration = Duration::from_secs(5);

impl Executor {
    /// Gives an operation up: it fails as soon as it is the first of the channel, with all that
    /// follow, and the other members learn that this rank could not go on.
    #[cold]
    pub(crate) fn cancel(&self, completion: &Arc<Completion>) {
        let mut state = self.hold();
        if !completion.is_active() {
            return;
        }
        completion.cancelled.store(true, Ordering::Relaxed);
        self.cancelled.store(true, Ordering::Relaxed);
        self.abort_cancelled(&mut state);
    }

    /// Whether the operation is the first of the channel, so that its memory may be in use.
    #[cold]
    pub(crate) fn is_first(&self, completion: &Arc<Completion>) -> bool {
        self.hold().queue.front().is_some_and(|(first, _)| Arc::ptr_eq(first, completion))
    }

    /// Fails the first operation if it was given up; false if it was not.
    #[cold]
    pub(super) fn abort_cancelled(&self, state: &mut State) -> bool {
        let Some((first, _)) = state.queue.front() else { return false };
        if !first.cancelled.load(Ordering::Relaxed) {
            return false;
        }
        if state.trouble.quiescing.is_none() {
            let what = signature::describe(first.signature);
            let difference = format!("this rank gave up {what} before its end");
            let error = Error::Mismatch { group: self.channel.group(), difference };
            self.abort(state, error, Cause::default());
        }
        true
    }

    /// This rank has left, and its segments end: so do all operations, of which no thread runs a
    /// step behind this.
    #[cold]
    pub(crate) fn end_all(&self) {
        let end = Instant::now() + LEAVING_LIMIT;
        let mut state = loop {
            match self.try_hold() {
                Some(state) => break state,
                None if Instant::now() < end => std::thread::yield_now(),
                None => {
                    let group = self.channel.group();
                    log::error!(
                        "proc_term: a reduction of the program is still running in a collective of \
                         {group}; its memory must not be freed yet"
                    );
                    return;
                }
            }
        };
        let state = &mut *state;
        if state.trouble.quiescing.is_some() {
            return self.quiesce(state);
        }
        let cause = self.cause_of(&Error::NotInitialised);
        self.abort(state, Error::NotInitialised, cause);
    }
}
