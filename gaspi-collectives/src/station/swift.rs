//! Blocking operations on one node, as far as nothing is in their way.
//!
//! An operation is either done completely, or nothing has happened, or it is under way like any
//! other, for the same call to continue: `None`. What is here has no error paths, reads no clock
//! and allocates nothing unless it hands over. All-reduces, reductions, broadcasts and barriers of
//! one arrival are done without their steps: the same on the same lines, so members that do it this
//! way and members that do not get along. For all others a task runs the steps.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gaspi_core::sync::epoch;
use gaspi_core::sync::line::Look;
use gaspi_core::{Channel, Error, Rank, Result};

use super::{Operation, REMEMBERED, State, Station};
use crate::algorithms::{Algorithm, Collective};
use crate::datatype::{DataType, Operation as Reduction};
use crate::fingerprint::mix;
use crate::kernel::{Source, Target};
use crate::once::{MANY, Once, Origin};
use crate::operation::is_in_place;
use crate::plan::Plan;
use crate::print;
use crate::request::{Combination, Request};
use crate::steps::Step;
use crate::task::{self, Arithmetic, Buffers, Task};

/// Operations that are remembered.
const RECENT: usize = 16;
/// Bytes of an input or output at most: what is longer pays for the general way.
const LONGEST: u64 = 1 << 20;

/// A request of the simple kind: without blocks that differ, elements of a built-in type.
#[derive(Clone, Copy, Debug)]
pub struct Brief {
    /// Which operation.
    pub collective: Collective,
    /// As in [`Request`].
    pub send: *const u8,
    /// As in [`Request`].
    pub receive: *mut u8,
    /// Elements.
    pub count: u64,
    /// Their type.
    pub ty: DataType,
    /// How they are combined.
    pub op: Reduction,
    /// The rank that has or gets everything.
    pub root: Rank,
    /// The algorithm; `None` leaves the choice to the library.
    pub algorithm: Option<Algorithm>,
}

impl Brief {
    /// `None` if the request is not of this kind.
    #[inline]
    pub fn of(request: &Request) -> Option<Brief> {
        let Request { collective, send, receive, count, root, algorithm, .. } = *request;
        let Combination::BuiltIn(ty, op) = request.combination else { return None };
        let whole = request.blocks.is_empty();
        whole.then_some(Brief { collective, send, receive, count, ty, op, root, algorithm })
    }

    /// All but the buffers and the count.
    #[inline]
    fn kind(&self) -> u64 {
        self.collective as u64
            | (self.ty as u64) << 8
            | (self.op as u64) << 16
            | self.algorithm.map_or(0, |algorithm| 1 + algorithm as u64) << 24
            | u64::from(self.root.0) << 32
    }
}

/// What is remembered of an operation.
#[derive(Debug)]
pub(super) struct Recent {
    kind: u64,
    count: u64,
    print: u64,
    plan: Arc<Plan>,
    op: Reduction,
    ty: DataType,
    /// The same in short, and the step that waits, where it is of one arrival.
    once: Option<(Once, usize)>,
}

impl Recent {
    /// `None` if it may take longer.
    fn of(brief: &Brief, plan: &Arc<Plan>, print: u64, channel: &Channel) -> Option<Recent> {
        let Brief { count, ty, op, .. } = *brief;
        let small = plan.own.into_iter().all(|bytes| bytes <= LONGEST);
        if !plan.algorithm.requires_one_node() || !small {
            return None;
        }
        let once = once(brief, plan, channel);
        let plan = Arc::clone(plan);
        Some(Recent { kind: brief.kind(), count, print, plan, op, ty, once })
    }

    /// The memory of a request; `None` if something is wrong with it, or it needs other memory.
    ///
    /// # Safety
    /// That of [`start`](crate::start).
    #[inline]
    unsafe fn buffers(&self, brief: &Brief) -> Option<Buffers<'static>> {
        let Brief { collective, send, receive, .. } = *brief;
        let [input, output] = self.plan.own;
        if send.is_null() && input > 0 || receive.is_null() && output > 0 {
            return None;
        }
        if input > 0 && output > 0 {
            let (a, b) = (send as u64, receive as u64);
            let disjoint = a + input <= b || b + output <= a;
            let suits = collective != Collective::Alltoall
                && is_in_place(collective, [input, output], self.plan.before, send, receive);
            if !disjoint && !suits {
                return None;
            }
        }
        // SAFETY: as the caller promises.
        let input = unsafe { Source::new(send, input as usize) };
        // SAFETY: as above.
        let output = unsafe { Target::new(receive, output as usize) };
        Some(Buffers { input, output })
    }
}

/// A plan of one arrival, and the step that waits; `None` if it has another form.
fn once(brief: &Brief, plan: &Plan, channel: &Channel) -> Option<(Once, usize)> {
    let staged = match plan.algorithm {
        Algorithm::Line => false,
        Algorithm::Staged => true,
        _ => return None,
    };
    let mut awaits = plan.steps.iter().enumerate().filter(|(_, step)| **step == Step::AwaitAll);
    let (await_at, _) = awaits.next()?;
    if awaits.next().is_some() || channel.ranks().len() > MANY {
        return None;
    }
    let root = channel.ranks().iter().position(|rank| *rank == brief.root);
    let from = match brief.collective {
        Collective::Barrier => Origin::Nothing,
        Collective::Allreduce => Origin::All,
        Collective::Reduce if root == Some(channel.me()) => Origin::All,
        Collective::Reduce => Origin::Nothing,
        Collective::Broadcast => Origin::Member(root?),
        _ => return None,
    };
    Some((Once { staged, from }, await_at))
}

/// A blocking operation that has not ended, or whose end has not been reported.
#[derive(Debug)]
pub(super) struct Underway {
    /// A hash of its arguments.
    arguments: u64,
    operation: Arc<Operation>,
    /// The thread that is just about to continue it, 0 if any may.
    continued_by: usize,
}

impl State {
    /// Whether an operation may begin that is not put into the queue.
    #[inline]
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.blocking.is_none() && self.broken.is_none()
    }

    /// An operation, that of the last blocking one if that is over.
    fn operation(&mut self, print: u64) -> Arc<Operation> {
        if let Some(mut last) = self.idle.take()
            && let Some(own) = Arc::get_mut(&mut last)
        {
            own.print = print;
            return last;
        }
        Arc::new(Operation::new(print, false))
    }
}

impl Station {
    /// Carries out an operation. See the module.
    ///
    /// # Safety
    /// That of [`run`](crate::run), with which `None` has to be followed.
    #[inline]
    pub(crate) unsafe fn run_swiftly(&self, brief: &Brief, once: bool) -> Option<()> {
        let mut state = self.state.try_lock().ok()?;
        let state = &mut *state;
        let kind = brief.kind();
        let is_it = |recent: &Recent| recent.kind == kind && recent.count == brief.count;
        let at = state.recents.iter().position(is_it)?;
        // SAFETY: as the caller promises.
        let buffers = unsafe { state.recents[at].buffers(brief) }?;
        // Whoever waits carries on the operations of all channels; who knows of a death does not
        // begin.
        let others = self.of_all.load(Ordering::Relaxed) > 0;
        if !state.is_idle() || others || !self.channel.all_live() {
            return None;
        }
        state.sequence += 1;
        let sequence = state.sequence;
        let recent = &state.recents[at];
        state.prints[sequence as usize % REMEMBERED] = recent.print;
        let Some((form, await_at)) = recent.once else {
            return self.run_task_swiftly(state, at, brief, buffers, once);
        };
        let arrival = state.tally.arrive();
        let stamp = task::stamp(recent.print, sequence);
        form.publish(&mut &self.channel, arrival, stamp, buffers.input);
        let members = self.channel.ranks().len();
        let mut seen = 0;
        let mut look = || {
            while seen < members {
                if self.channel.look(seen, arrival) != Look::Arrived(stamp) {
                    return None;
                }
                seen += 1;
            }
            Some(())
        };
        let all = if once { look() } else { self.channel.briefly(look) };
        if all.is_none() {
            let mut task = self.recent_task(state, at, buffers);
            task.continue_at(await_at);
            self.hand_over(state, brief, task);
            return None;
        }
        form.collect(&&self.channel, arrival, (recent.op, recent.ty), buffers);
        Some(())
    }

    /// The same by its steps.
    #[inline(never)]
    fn run_task_swiftly(
        &self,
        state: &mut State,
        at: usize,
        brief: &Brief,
        buffers: Buffers<'static>,
        once: bool,
    ) -> Option<()> {
        let mut task = self.recent_task(state, at, buffers);
        // What goes wrong does so again when it is continued.
        let mut look = || match task.advance(&mut &self.channel, &mut state.tally) {
            Ok(None) => Some(Ok(())),
            Ok(Some(_)) => None,
            Err(_) => Some(Err(())),
        };
        let end = if once { look() } else { self.channel.briefly(look) };
        if end == Some(Ok(())) {
            state.spare = Some(task);
            return Some(());
        }
        self.hand_over(state, brief, task);
        None
    }

    /// The task of an operation that has got its number.
    fn recent_task(&self, state: &mut State, at: usize, buffers: Buffers<'static>) -> Box<Task> {
        let Recent { ref plan, print, op, ty, .. } = state.recents[at];
        let (plan, arithmetic) = (Arc::clone(plan), Arithmetic::BuiltIn(op, ty));
        let sequence = state.sequence;
        self.task(state, print, &plan, &arithmetic, buffers, sequence)
    }

    /// Puts an operation that has begun into the queue, for the same call to continue.
    #[cold]
    fn hand_over(&self, state: &mut State, brief: &Brief, task: Box<Task>) {
        let print = task.fingerprint;
        let operation = state.operation(print);
        self.enqueue(state, &operation, task);
        let arguments = arguments(print, brief.send, brief.receive);
        let continued_by = epoch::thread_key();
        state.blocking = Some(Underway { arguments, operation, continued_by });
    }

    /// Has operations like this one done swiftly from now on, if they can be.
    pub(crate) fn remember(&self, brief: &Brief, plan: &Arc<Plan>, print: u64) {
        let Some(recent) = Recent::of(brief, plan, print, &self.channel) else { return };
        let mut state = self.hold();
        if state.recents.iter().any(|r| r.kind == recent.kind && r.count == recent.count) {
            return;
        }
        state.recents.truncate(RECENT - 1);
        state.recents.insert(0, recent);
    }

    /// The blocking operation that this call continues; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::ActiveCollective`] if another one is under way, or another thread is in it.
    pub(crate) fn continued(&self, arguments: u64) -> Result<Option<Arc<Operation>>> {
        let mut state = self.hold();
        let Some(underway) = &mut state.blocking else { return Ok(None) };
        let own = [0, epoch::thread_key()].contains(&underway.continued_by);
        if own && underway.arguments == arguments {
            underway.continued_by = 0;
            return Ok(Some(Arc::clone(&underway.operation)));
        }
        Err(self.occupied(underway, own))
    }

    #[cold]
    fn occupied(&self, underway: &Underway, own: bool) -> Error {
        let active = match own {
            true => print::describe(underway.operation.print),
            false => "a collective of another thread".to_owned(),
        };
        Error::ActiveCollective { group: self.channel.group(), active }
    }

    /// Whether the blocking operation is one that this thread has begun and is to continue.
    pub(crate) fn is_own_underway(&self) -> bool {
        let key = epoch::thread_key();
        self.hold().blocking.as_ref().is_some_and(|underway| underway.continued_by == key)
    }

    /// Starts a blocking operation.
    ///
    /// # Errors
    /// As [`start`](Station::start), and [`Error::ActiveCollective`].
    pub(crate) fn block(
        &self,
        (arguments, print): (u64, u64),
        plan: &Arc<Plan>,
        arithmetic: &Arithmetic,
        buffers: Buffers<'static>,
    ) -> Result<Arc<Operation>> {
        let mut state = self.hold();
        let state = &mut *state;
        if let Some(underway) = &state.blocking {
            return Err(self.occupied(underway, false));
        }
        let operation = state.operation(print);
        self.start_locked(state, &operation, plan, arithmetic, buffers)?;
        let underway = Underway { arguments, operation: Arc::clone(&operation), continued_by: 0 };
        state.blocking = Some(underway);
        Ok(operation)
    }

    /// The end of the blocking operation has been reported.
    pub(crate) fn unblock(&self, operation: Arc<Operation>) {
        let mut state = self.hold();
        state.blocking = None;
        state.idle = Some(operation);
    }
}

/// A hash of what a continued call must have in common with the one before.
pub(crate) fn arguments(print: u64, send: *const u8, receive: *mut u8) -> u64 {
    mix(&[print, send as u64, receive as u64])
}
