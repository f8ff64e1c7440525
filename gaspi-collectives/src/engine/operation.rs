//! An operation that was started or prepared: what a number of the C layer or an owned value
//! stands for.

use std::sync::Arc;
use std::time::Duration;

use gaspi_core::sync::Mutex;
use gaspi_core::{Deadline, DeviceBuffer, Error, Result};

use super::Shared;
use crate::exec::buffers::{Arithmetic, Buffers};
use crate::exec::completion::Completion;
use crate::exec::executor::{Driver, Executor};
use crate::exec::pack::PackBuffers;
use crate::plan::Plan;

/// How long an operation that is given up may still end by itself.
pub(crate) const FINISH_LIMIT: Duration = Duration::from_millis(100);
/// How often a thread that waits for other members to let go of memory says so.
const REPORT: Duration = Duration::from_secs(5);

/// What a repeated start needs.
#[derive(Debug)]
pub(crate) struct Repeat {
    pub(crate) plan: Arc<Plan>,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) buffers: Buffers<'static>,
    /// Its memory, as the device knows it while the operation lives.
    pub(crate) _shown: Vec<DeviceBuffer>,
}

/// An operation that was started or prepared.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) completion: Arc<Completion>,
    pub(crate) executor: Arc<Executor>,
    /// `None` for an operation that runs once.
    repeat: Option<Repeat>,
    /// Memory for blocks that need packing. Held while the operation is started and while its
    /// result is unpacked.
    packed: Mutex<PackBuffers>,
    /// Whether there is a result to unpack.
    unpacks: bool,
    /// Operations that were started behind it and belong to it.
    rest: Vec<Operation>,
    /// Why one that belongs to it could not be started.
    not_started: Option<Error>,
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.completion.is_still_used() {
            let packed = self.packed.get_mut();
            std::mem::take(packed).abandon();
        }
    }
}

impl Operation {
    pub(crate) fn new(
        completion: Arc<Completion>,
        executor: Arc<Executor>,
        repeat: Option<Repeat>,
        packed: PackBuffers,
    ) -> Operation {
        let unpacks = packed.has_output();
        let (packed, rest) = (Mutex::new(packed), Vec::new());
        Operation { completion, executor, repeat, packed, unpacks, rest, not_started: None }
    }

    /// What belongs to it behind this could not be started: it fails when the rest has ended.
    pub(crate) fn fail(&mut self, error: Error) {
        self.not_started = Some(error);
    }

    /// Makes one that was started behind it a part of it.
    pub(crate) fn append(&mut self, next: Operation) {
        self.rest.push(next);
    }

    /// Whether other members may access its memory although it has ended.
    pub(crate) fn is_still_used(&self) -> bool {
        self.completion.is_still_used() || self.rest.iter().any(Operation::is_still_used)
    }

    /// Whether it can be started repeatedly, on a channel of its own.
    pub(crate) fn is_prepared(&self) -> bool {
        self.repeat.is_some()
    }

    /// Starts a prepared operation that is not active. The outer error says what is wrong with the
    /// call.
    ///
    /// # Errors
    /// Those of [`Executor::start`].
    pub(crate) fn start(&self, shared: &Shared) -> std::result::Result<Result<()>, &'static str> {
        let Some(Repeat { plan, arithmetic, buffers, .. }) = &self.repeat else {
            return Err("it was started once and cannot be started again");
        };
        // Another thread may be starting it.
        let Some(mut packed) = self.packed.try_lock() else {
            return Err("another thread is starting it");
        };
        if self.completion.is_active() {
            return Err("it is under way; wait for it, then start it again");
        }
        packed.pack();
        let started = self.executor.start(&self.completion, plan, arithmetic, *buffers);
        if started.is_ok() {
            shared.notify_started(&self.executor, self.completion.background);
        }
        Ok(started)
    }

    /// Waits until it has ended. One that was prepared and not started yet has ended.
    ///
    /// # Errors
    /// [`Error::Timeout`](gaspi_core::Error::Timeout): it goes on; and the error that
    /// ended it.
    pub(crate) fn wait(&self, shared: &Shared, deadline: Deadline) -> Result<()> {
        let mut outcome = self.wait_for_own(shared, deadline);
        for part in &self.rest {
            // After a failure too, until all parts have ended.
            if timed_out(&outcome) {
                break;
            }
            let waited = part.wait_for_own(shared, deadline);
            outcome = if timed_out(&waited) { waited } else { outcome.and(waited) };
        }
        outcome.and(self.not_started.clone().map_or(Ok(()), Err))
    }

    /// Does so for all but the rest.
    fn wait_for_own(&self, shared: &Shared, deadline: Deadline) -> Result<()> {
        if self.is_prepared() && self.completion.is_idle() {
            return Ok(());
        }
        let outcome = shared.wait(&self.executor, &self.completion, deadline);
        if outcome.is_ok() && self.unpacks {
            let mut packed = self.packed.lock();
            // Another thread that waited may have started the operation again.
            if !self.completion.is_active() {
                packed.unpack();
            }
        }
        outcome
    }

    /// Gives it up, unless it ends within a moment. Afterwards this rank touches its memory no
    /// more, and no other member does, except as [`Completion::is_still_used`] says. In a forked
    /// child it stays as it is.
    #[cold]
    pub(crate) fn give_up(&self, shared: &Shared) {
        if !self.is_active() || shared.is_of_parent() {
            return;
        }
        let begin = Deadline::Never.at_most(FINISH_LIMIT);
        if !std::thread::panicking() && !timed_out(&self.wait(shared, begin)) {
            return;
        }
        self.cancel(shared);
        self.rest.iter().for_each(|part| part.cancel(shared));
    }

    /// It and its parts.
    fn parts(&self) -> impl Iterator<Item = &Operation> {
        std::iter::once(self).chain(&self.rest)
    }

    /// Whether it or a part of it is active.
    pub(crate) fn is_active(&self) -> bool {
        self.parts().any(|part| part.completion.is_active())
    }

    /// Carries it on as far as it goes without waiting.
    #[cold]
    pub(super) fn carry_on(&self) {
        for part in self.parts().filter(|part| part.completion.is_active()) {
            part.executor.progress(Driver::Other);
            part.executor.look_around();
        }
    }

    /// Has it fail, as far as it has not ended, and waits for nothing: its memory may be used
    /// until it is no longer active.
    #[cold]
    pub(crate) fn cancel_at_once(&self) {
        self.parts().for_each(|part| part.executor.cancel(&part.completion));
    }

    /// Whether its memory may be used, by this rank or by others that let go of it. Behind others
    /// of its channel one that is cancelled does not use it.
    pub(super) fn needs_memory(&self, is_cancelled: bool) -> bool {
        self.parts().any(|part| {
            part.completion.is_active()
                && (!is_cancelled || part.executor.is_first(&part.completion))
        })
    }

    /// Has it fail, as far as it has not ended, and waits until its memory is free.
    fn cancel(&self, shared: &Shared) {
        if !self.completion.is_active() {
            return;
        }
        self.executor.cancel(&self.completion);
        let mut reported = false;
        // Behind others it is not touched: once it is the first one, it ends at once.
        while self.executor.is_first(&self.completion) {
            let limit = Deadline::Never.at_most(REPORT);
            if !timed_out(&shared.wait(&self.executor, &self.completion, limit)) {
                return;
            }
            if !std::mem::replace(&mut reported, true) {
                log::warn!(
                    "a collective of {} was given up; its memory stays borrowed until the other \
                     ranks no longer use it",
                    self.executor.channel.group()
                );
            }
        }
    }
}

fn timed_out(outcome: &Result<()>) -> bool {
    outcome.as_ref().is_err_and(gaspi_core::Error::is_timeout)
}
