//! Recent operations that the fast path may carry out.

use std::sync::Arc;

use gaspi_core::Channel;

use super::buffers::{Buffers, is_in_place};
use super::single_phase::MANY;
use crate::algorithms::Algorithm;
use crate::collective::Collective;
use crate::datatype::{DataType, Operation};
use crate::kernel::{Source, Target};
use crate::plan::Plan;
use crate::plan::single_phase::{Origin, SinglePhase};
use crate::request::SimpleRequest;
use crate::steps::Step;

/// Largest input or output: for longer ones the slow path costs little in comparison.
const LONGEST: u64 = 1 << 20;
/// The same of operations by messages, which take longer.
const LONGEST_BY_MESSAGES: u64 = 64 << 10;

/// A recent operation, with its plan.
#[derive(Debug)]
pub(super) struct Recent {
    pub(super) kind: u64,
    pub(super) count: u64,
    pub(super) signature: u64,
    pub(super) plan: Arc<Plan>,
    pub(super) op: Operation,
    pub(super) ty: DataType,
    /// Whether members send each other messages.
    pub(super) by_messages: bool,
    /// Its single phase, and the step that waits, where it is of one arrival.
    pub(super) single_phase: Option<(SinglePhase, usize)>,
}

impl Recent {
    /// `None` if the fast path does not serve it.
    pub(super) fn of(
        simple: &SimpleRequest,
        plan: &Arc<Plan>,
        signature: u64,
        channel: &Channel,
    ) -> Option<Recent> {
        let SimpleRequest { count, ty, op, .. } = *simple;
        let by_messages = plan.is_of_messages();
        let longest = if by_messages { LONGEST_BY_MESSAGES } else { LONGEST };
        let small = plan.own.into_iter().all(|bytes| bytes <= longest);
        if !small || !plan.zero_copy.lasts.is_empty() {
            return None;
        }
        let single_phase = single_phase(simple, plan, channel);
        let plan = Arc::clone(plan);
        Some(Recent {
            kind: simple.kind(),
            count,
            signature,
            plan,
            op,
            ty,
            by_messages,
            single_phase,
        })
    }

    /// The memory of a request; `None` if it is invalid or needs packing.
    ///
    /// # Safety
    /// That of [`start`](crate::start).
    #[inline]
    pub(super) unsafe fn buffers(&self, simple: &SimpleRequest) -> Option<Buffers<'static>> {
        let SimpleRequest { collective, send, receive, .. } = *simple;
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
        // SAFETY: the caller promises that the request's memory is readable.
        let input = unsafe { Source::new(send, input as usize) };
        // SAFETY: the caller promises that the request's memory is writable.
        let output = unsafe { Target::new(receive, output as usize) };
        Some(Buffers { input, output })
    }
}

/// The single phase of a plan of one arrival, and the step that waits; `None` for other plans.
fn single_phase(
    simple: &SimpleRequest,
    plan: &Plan,
    channel: &Channel,
) -> Option<(SinglePhase, usize)> {
    let staged = match plan.algorithm {
        Algorithm::Inline => false,
        Algorithm::CopyInCopyOut => true,
        _ => return None,
    };
    let mut awaits = plan.steps.iter().enumerate().filter(|(_, step)| **step == Step::AwaitAll);
    let (await_at, _) = awaits.next()?;
    if awaits.next().is_some() || channel.ranks().len() > MANY {
        return None;
    }
    let root = channel.ranks().iter().position(|rank| *rank == simple.root);
    let from = match simple.collective {
        Collective::Barrier => Origin::Nothing,
        Collective::Allreduce => Origin::All,
        Collective::Reduce if root == Some(channel.me()) => Origin::All,
        Collective::Reduce => Origin::Nothing,
        Collective::Broadcast => Origin::Member(root?),
        _ => return None,
    };
    Some((SinglePhase { staged, from }, await_at))
}
