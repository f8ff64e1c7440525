//! The fast path of blocking operations on one node.
//!
//! It either completes an operation, or does nothing, or leaves the operation in the queue for the
//! same call to continue; the last two return `None`. It has no error paths, reads no clock and
//! allocates nothing unless it hands over. All-reduces, reductions, broadcasts and barriers of one
//! arrival run without their steps: they publish and read the same lines, so members on either path
//! work together. For all others a task runs the steps.

use std::sync::Arc;

use gaspi_core::sync::arrival_slot::Poll;
use gaspi_core::sync::epoch;

use super::blocking::arguments_hash;
use super::buffers::{Arithmetic, Buffers};
use super::executor::{BlockingCall, Executor, REMEMBERED, State};
use super::recent::Recent;
use super::task::{self, Task};
use crate::plan::Plan;
use crate::request::SimpleRequest;

/// Number of operations that are remembered.
const RECENT: usize = 16;

impl Executor {
    /// Carries out an operation, see the module.
    ///
    /// # Safety
    /// That of [`run`](crate::run), which has to be called after `None`.
    #[inline]
    pub(crate) unsafe fn try_run_fast(&self, simple: &SimpleRequest, no_wait: bool) -> Option<()> {
        let mut state = self.state.try_lock()?;
        let state = &mut *state;
        let kind = simple.kind();
        let is_it = |recent: &Recent| recent.kind == kind && recent.count == simple.count;
        let at = state.recents.iter().position(is_it)?;
        // SAFETY: the caller makes the promises of `run`.
        let buffers = unsafe { state.recents[at].buffers(simple) }?;
        // A thread that waits has to drive the operations of all channels. After a death nothing
        // begins.
        let others = self.all.operations() > 0;
        if !state.is_idle() || others || !self.channel.all_live() {
            return None;
        }
        state.sequence += 1;
        let sequence = state.sequence;
        let recent = &state.recents[at];
        state.signatures[sequence as usize % REMEMBERED] = recent.signature;
        let Some((form, await_at)) = recent.single_phase else {
            return self.run_task_fast(state, at, simple, buffers, no_wait);
        };
        let arrival = state.counters.arrive();
        let stamp = task::stamp(recent.signature, sequence);
        form.publish(&mut &self.channel, arrival, stamp, buffers.input);
        let members = self.channel.ranks().len();
        let mut seen = 0;
        let mut look = || {
            while seen < members {
                if self.channel.poll(seen, arrival) != Poll::Arrived(stamp) {
                    return None;
                }
                seen += 1;
            }
            Some(())
        };
        let all = if no_wait { look() } else { self.channel.poll_briefly(look) };
        if all.is_none() {
            let mut task = self.recent_task(state, at, buffers);
            task.continue_at(await_at);
            self.hand_over(state, simple, task);
            return None;
        }
        form.collect(&&self.channel, arrival, (recent.op, recent.ty), buffers);
        Some(())
    }

    /// The same by running its steps.
    #[inline(never)]
    fn run_task_fast(
        &self,
        state: &mut State,
        at: usize,
        simple: &SimpleRequest,
        buffers: Buffers<'static>,
        no_wait: bool,
    ) -> Option<()> {
        let mut task = self.recent_task(state, at, buffers);
        // An error occurs again when the slow path continues.
        let mut look = || match task.advance(&mut &self.channel, &mut state.counters) {
            Ok(None) => Some(Ok(())),
            Ok(Some(_)) => None,
            Err(_) => Some(Err(())),
        };
        let end = if no_wait { look() } else { self.channel.poll_briefly(look) };
        if end == Some(Ok(())) {
            state.spare = Some(task);
            return Some(());
        }
        self.hand_over(state, simple, task);
        None
    }

    /// The task of an operation that has its sequence number.
    fn recent_task(&self, state: &mut State, at: usize, buffers: Buffers<'static>) -> Box<Task> {
        let Recent { ref plan, signature, op, ty, .. } = state.recents[at];
        let (plan, arithmetic) = (Arc::clone(plan), Arithmetic::BuiltIn(op, ty));
        let sequence = state.sequence;
        self.task(state, signature, &plan, &arithmetic, buffers, sequence)
    }

    /// Puts an operation that has begun into the queue, for the same call to continue.
    #[cold]
    fn hand_over(&self, state: &mut State, simple: &SimpleRequest, task: Box<Task>) {
        let signature = task.signature;
        let completion = state.completion(signature);
        self.enqueue(state, &completion, task);
        let arguments = arguments_hash(signature, simple.send, simple.receive);
        let continued_by = epoch::thread_key();
        state.blocking = Some(BlockingCall { arguments, completion, continued_by });
    }

    /// Lets the fast path carry out operations like this one, if it can.
    pub(crate) fn remember(&self, simple: &SimpleRequest, plan: &Arc<Plan>, signature: u64) {
        let Some(recent) = Recent::of(simple, plan, signature, &self.channel) else { return };
        let mut state = self.hold();
        if state.recents.iter().any(|r| r.kind == recent.kind && r.count == recent.count) {
            return;
        }
        state.recents.truncate(RECENT - 1);
        state.recents.insert(0, recent);
    }
}
