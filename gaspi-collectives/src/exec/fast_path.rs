//! The fast path of short blocking operations.
//!
//! It either completes an operation, or does nothing, or leaves the operation in the queue for the
//! same call to continue; the last two return `None`. It has no error paths, reads no clock and,
//! but for a result that is kept back, allocates nothing unless it hands over. All-reduces,
//! reductions, broadcasts and barriers of one arrival run without their steps: they publish and
//! read the same lines, so members on either path work together. For all others a task runs the
//! steps: those by messages look after the sockets meanwhile.

use std::sync::Arc;

use gaspi_core::Channel;
use gaspi_core::sync::arrival_slot::Poll;
use gaspi_core::sync::epoch;

use super::blocking::arguments_hash;
use super::buffers::{Arithmetic, Buffers};
use super::executor::{BlockingCall, Executor, REMEMBERED, State};
use super::pack::PackBuffers;
use super::recent::Recent;
use super::task::{self, Task};
use crate::plan::Plan;
use crate::request::SimpleRequest;

/// Number of operations that are remembered.
const RECENT: usize = 16;

/// How a task has ended; an error is found anew.
type Outcome = std::result::Result<(), ()>;

impl Executor {
    /// Carries out an operation, see the module.
    ///
    /// # Safety
    /// That of [`run`](crate::run), which has to be called after `None`.
    #[inline]
    pub(crate) unsafe fn try_run_fast(&self, simple: &SimpleRequest, no_wait: bool) -> Option<()> {
        let mut state = self.state.try_lock()?;
        let state = &mut *state;
        // SAFETY: the caller makes the promises of `run`.
        let (at, buffers) = unsafe { self.begin_recent(state, simple, false) }?;
        let (sequence, recent) = (state.sequence, &state.recents[at]);
        let Some((form, await_at)) = recent.single_phase else {
            return self.run_task_fast(state, at, simple, buffers, |channel, look| {
                if no_wait { look() } else { channel.poll_briefly(look) }
            });
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

    /// The same of one by messages. It looks after the sockets, so not inside of an epoch; where
    /// ranks share cores it does nothing, since whoever waits there has to give way.
    ///
    /// # Safety
    /// That of [`run`](crate::run), which has to go on after `None`.
    pub(crate) unsafe fn try_run_by_messages(&self, simple: &SimpleRequest) -> Option<()> {
        if !self.channel.has_own_core() {
            return None;
        }
        let mut state = self.held(self.state.try_lock()?);
        let state = &mut *state;
        // What members have failed in before is told by the slow path.
        let is_well = self.channel.check().is_ok() && self.channel.notice_count() == state.notices;
        if !is_well {
            return None;
        }
        // SAFETY: the caller makes the promises of `run`.
        let (at, mut buffers) = unsafe { self.begin_recent(state, simple, true) }?;
        let mut packed = None;
        if state.recents[at].plan.buffers_output && !buffers.output.is_empty() {
            let kept = packed.insert(PackBuffers::default());
            buffers.output = kept.take_output(vec![buffers.output]);
            kept.pack();
        }
        let end = self.run_task_fast(state, at, simple, buffers, |channel, look| {
            channel.poll_peers_briefly(look)
        });
        if end.is_none() {
            if let Some(call) = &mut state.blocking {
                call.packed = packed;
            }
            return None;
        }
        if let Some(mut packed) = packed {
            packed.unpack();
        }
        if let Some(task) = &state.spare {
            task.performed.count(&self.channel);
        }
        Some(())
    }

    /// Begins an operation like one that is remembered, if nothing else is under way: which one,
    /// and its memory.
    ///
    /// # Safety
    /// That of [`run`](crate::run).
    #[inline]
    unsafe fn begin_recent(
        &self,
        state: &mut State,
        simple: &SimpleRequest,
        by_messages: bool,
    ) -> Option<(usize, Buffers<'static>)> {
        let kind = simple.kind();
        let is_it = |recent: &Recent| recent.kind == kind && recent.count == simple.count;
        let at = state.recents.iter().position(is_it)?;
        let recent = &state.recents[at];
        if recent.by_messages != by_messages {
            return None;
        }
        // SAFETY: the caller makes the promises of `run`.
        let buffers = unsafe { recent.buffers(simple) }?;
        // A thread that waits has to drive the operations of all channels. After a death nothing
        // begins.
        let others = self.all.operations() > 0;
        if !state.is_idle() || others || !self.channel.all_live() {
            return None;
        }
        let signature = recent.signature;
        state.sequence += 1;
        state.signatures[state.sequence as usize % REMEMBERED] = signature;
        Some((at, buffers))
    }

    /// The same by running its steps, for as long as `poll` tries.
    #[inline(never)]
    fn run_task_fast(
        &self,
        state: &mut State,
        at: usize,
        simple: &SimpleRequest,
        buffers: Buffers<'static>,
        poll: impl FnOnce(&Channel, &mut dyn FnMut() -> Option<Outcome>) -> Option<Outcome>,
    ) -> Option<()> {
        let mut task = self.recent_task(state, at, buffers);
        // An error occurs again when the slow path continues.
        let mut look = || match task.advance(&mut &self.channel, &mut state.counters) {
            Ok(None) => Some(Ok(())),
            Ok(Some(_)) => None,
            Err(_) => Some(Err(())),
        };
        if poll(&self.channel, &mut look) == Some(Ok(())) {
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
        state.blocking = Some(BlockingCall { arguments, completion, continued_by, packed: None });
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
