//! The blocking operation of a group: begun by a call, continued by the same call after a timeout.

use std::sync::Arc;

use gaspi_core::sync::epoch;
use gaspi_core::{Error, Result};

use super::buffers::{Arithmetic, Buffers};
use super::completion::Completion;
use super::executor::{BlockingCall, Executor, State};
use super::pack::PackBuffers;
use crate::plan::Plan;
use crate::signature::{self, mix};

impl State {
    /// Whether an operation may begin without the queue.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.blocking.is_none() && self.broken.is_none()
    }

    /// A completion: the one of the last blocking operation, if it is free.
    pub(super) fn completion(&mut self, signature: u64) -> Arc<Completion> {
        if let Some(mut last) = self.idle.take()
            && let Some(own) = Arc::get_mut(&mut last)
        {
            own.signature = signature;
            return last;
        }
        Arc::new(Completion::new(signature, false))
    }
}

impl Executor {
    /// The blocking operation that this call continues, and where its output is kept back if the
    /// fast path has begun it; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::ActiveCollective`] if another one is active, or another thread is in it.
    pub(crate) fn continued(
        &self,
        arguments: u64,
    ) -> Result<Option<(Arc<Completion>, Option<PackBuffers>)>> {
        let mut state = self.hold();
        let Some(call) = &mut state.blocking else { return Ok(None) };
        let own = [0, epoch::thread_key()].contains(&call.continued_by);
        if own && call.arguments == arguments {
            call.continued_by = 0;
            return Ok(Some((Arc::clone(&call.completion), call.packed.take())));
        }
        Err(self.occupied(call, own))
    }

    #[cold]
    fn occupied(&self, call: &BlockingCall, own: bool) -> Error {
        let active = match own {
            true => signature::describe(call.completion.signature),
            false => "a collective of another thread".to_owned(),
        };
        Error::ActiveCollective { group: self.channel.group(), active }
    }

    /// Whether this thread has begun the blocking operation and is to continue it.
    pub(crate) fn is_own_call_active(&self) -> bool {
        let key = epoch::thread_key();
        self.hold().blocking.as_ref().is_some_and(|call| call.continued_by == key)
    }

    /// Starts a blocking operation.
    ///
    /// # Errors
    /// As [`start`](Executor::start), and [`Error::ActiveCollective`].
    pub(crate) fn block(
        &self,
        (arguments, signature): (u64, u64),
        plan: &Arc<Plan>,
        arithmetic: &Arithmetic,
        buffers: Buffers<'static>,
    ) -> Result<Arc<Completion>> {
        let mut state = self.hold();
        let state = &mut *state;
        if let Some(call) = &state.blocking {
            return Err(self.occupied(call, false));
        }
        let completion = state.completion(signature);
        self.start_locked(state, &completion, plan, arithmetic, buffers)?;
        let (active, continued_by) = (Arc::clone(&completion), 0);
        let call = BlockingCall { arguments, completion: active, continued_by, packed: None };
        state.blocking = Some(call);
        Ok(completion)
    }

    /// The end of the blocking operation has been reported.
    pub(crate) fn unblock(&self, completion: Arc<Completion>) {
        let mut state = self.hold();
        state.blocking = None;
        state.idle = Some(completion);
    }
}

/// A hash of what a continued call must have in common with the one before.
pub(crate) fn arguments_hash(signature: u64, send: *const u8, receive: *mut u8) -> u64 {
    mix(&[signature, send as u64, receive as u64])
}
