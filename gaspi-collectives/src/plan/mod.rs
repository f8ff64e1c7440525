//! Plans: the algorithm of an operation, its steps, and the steps around them.

mod agreement;
pub(crate) mod cache;
mod extents;
pub mod select;
pub(crate) mod single_phase;
pub(crate) mod standard;
mod zero_copy;

use std::sync::Arc;

use gaspi_core::{Error, Rank, Result};

use crate::algorithms::Algorithm;
use crate::collective::Collective;
use crate::mode::Mode;
use crate::steps::{Shape, Step, scratch_bytes};
use agreement::AgreementGuard;
use extents::{before, extents};
pub(crate) use zero_copy::{ZeroCopy, exceeds_caches};

/// Shorter buckets of fused buffers take no turns, and begin at once.
pub(crate) const TURN_BYTES_MIN: u64 = 64 << 10;

/// Steps that can be run again and again.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) algorithm: Algorithm,
    pub(crate) steps: Vec<Step>,
    pub(crate) scratch_bytes: u64,
    /// The plan that all members run where some memory is not mapped.
    pub(crate) fallback: Option<FallbackPlan>,
    /// Bytes of input and output by member, for single-copy plans; else empty.
    pub(crate) extents: Vec<[u64; 2]>,
    /// Bytes of this member's input and output, and of the blocks before its own.
    pub(crate) own: [u64; 2],
    pub(crate) before: u64,
    /// Whether receives are posted ahead.
    pub(crate) posts_receives: bool,
    /// Bytes of the largest message that is received apart and then combined, 0 for none.
    pub(crate) apart_bytes: u64,
    /// Which messages are sent without copying their data first.
    pub(crate) zero_copy: ZeroCopy,
    /// Whether the result is written only when all steps have been done.
    pub(crate) buffers_output: bool,
    /// Whether the steps write the result only where their member has heard of all others.
    pub(crate) agrees_by_steps: bool,
}

/// The plan that members run in place of a single-copy plan.
#[derive(Debug)]
pub(crate) struct FallbackPlan {
    pub(crate) plan: Arc<Plan>,
    /// Whether it is also faster than copies between processes by the kernel. Not if the call asks
    /// for single_copy, which some members may do alone; lines tell the others.
    pub(crate) always: bool,
}

impl Plan {
    /// Whether members communicate by messages only.
    pub(crate) fn is_of_messages(&self) -> bool {
        !self.algorithm.requires_one_node()
    }

    /// Whether members use each other's input or output.
    pub(crate) fn is_direct(&self) -> bool {
        !self.extents.is_empty()
    }
}

/// The key of a plan: all that it depends on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlanKey {
    pub(crate) collective: Collective,
    pub(crate) count: u64,
    pub(crate) element_bytes: u64,
    pub(crate) root: Rank,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) mode: Mode,
    /// Some if a function of the program combines; true if it needs the order of the members.
    pub(crate) user: Option<bool>,
    pub(crate) counts: Vec<u64>,
    pub(crate) receives: Vec<u64>,
    /// Whether it is one of several that follow each other and are too long for the caches in all.
    pub(crate) part_of_long: bool,
}

impl PlanKey {
    /// Chooses the algorithm and writes its steps.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: no algorithm serves.
    pub(crate) fn plan(&self, shape: &Shape, preferred: Option<Algorithm>) -> Result<Arc<Plan>> {
        self.plan_guarded(shape, preferred, AgreementGuard::of)
    }

    /// The same for members that have compared all their calls before.
    ///
    /// # Errors
    /// As [`plan`](PlanKey::plan).
    pub(crate) fn plan_among_agreed(
        &self,
        shape: &Shape,
        preferred: Option<Algorithm>,
    ) -> Result<Arc<Plan>> {
        self.plan_guarded(shape, preferred, |_, shape, algorithm, _| {
            AgreementGuard::among_agreed(shape, algorithm)
        })
    }

    fn plan_guarded(
        &self,
        shape: &Shape,
        preferred: Option<Algorithm>,
        guard: impl Fn(Collective, &Shape, Algorithm, bool) -> AgreementGuard,
    ) -> Result<Arc<Plan>> {
        let algorithm = choose(self, shape, preferred)?;
        let build = |algorithm: Algorithm, fallback| {
            let user = self.user.is_some();
            let guard = guard(self.collective, shape, algorithm, user);
            let agreed = Shape { agreed: !guard.by_steps, ..shape.clone() };
            let steps = algorithm.steps(self.collective, &agreed).ok_or_else(|| {
                let reason = format!("{algorithm} cannot carry out this {}", self.collective);
                Error::Unsupported { reason }
            })?;
            let steps = guard.around(shape, steps);
            let scratch_bytes = scratch_bytes(&steps);
            let zero_copy = zero_copy::sends(&steps, shape.one_machine, self.part_of_long);
            let by_messages = !algorithm.requires_one_node();
            let posts_receives = by_messages && steps.iter().any(|step| posted_bytes(step) > 0);
            let apart_bytes = if by_messages { apart_bytes(&steps) } else { 0 };
            let mut extents = extents(self.collective, shape);
            let own = extents[shape.me as usize];
            if !algorithm.requires_reach() {
                extents = Vec::new();
            }
            let before = before(shape);
            Ok(Arc::new(Plan {
                algorithm,
                steps,
                scratch_bytes,
                fallback,
                extents,
                own,
                before,
                posts_receives,
                apart_bytes,
                zero_copy,
                buffers_output: guard.buffers_output,
                agrees_by_steps: guard.by_steps,
            }))
        };
        let fallback = match (algorithm, select::choose_unmapped(self.collective, shape)) {
            (Algorithm::SingleCopy, Some(unmapped)) => {
                let always = self.algorithm.is_none();
                Some(FallbackPlan { plan: build(unmapped, None)?, always })
            }
            (Algorithm::SingleCopy, None) => {
                let plan = build(Algorithm::CopyInCopyOut, None).ok();
                plan.map(|plan| FallbackPlan { plan, always: false })
            }
            _ => None,
        };
        build(algorithm, fallback)
    }
}

/// The algorithm of the request, else the one that the environment prefers if it serves, else that
/// of the table.
fn choose(key: &PlanKey, shape: &Shape, preferred: Option<Algorithm>) -> Result<Algorithm> {
    let collective = key.collective;
    let may = |algorithm: Algorithm| match key.user {
        None => true,
        // Functions of the program get private copies of elements, as in messages.
        Some(ordered) => {
            !algorithm.requires_one_node() && (!ordered || algorithm.keeps_order(collective, shape))
        }
    };
    let unsupported = |reason: String| Error::Unsupported { reason };
    if let Some(wanted) = key.algorithm {
        if !may(wanted) {
            let reason = format!("{wanted} does not serve this reduction of the program");
            return Err(unsupported(reason));
        }
        return select::choose(collective, shape, Some(wanted))
            .map_err(|reason| unsupported(reason.to_string()));
    }
    let serves = |algorithm: Algorithm| {
        may(algorithm) && select::choose(collective, shape, Some(algorithm)).is_ok()
    };
    if let Some(preferred) = preferred.filter(|preferred| serves(*preferred)) {
        return Ok(preferred);
    }
    let chosen = select::choose_in(key.mode, collective, shape, may)
        .map_err(|reason| unsupported(reason.to_string()))?;
    if let Some(preferred) = preferred {
        log::info!(
            "{preferred}, which the environment prefers, cannot carry out this {collective} of {} \
             elements on {} ranks; {chosen} does",
            shape.count,
            shape.size
        );
    }
    Ok(chosen)
}

/// Receives are posted for data from this size on: less is copied as quickly.
const POSTED_BYTES_MIN: u64 = 8 << 10;
/// The same for data that is combined: it goes to memory that is in the caches, which slots, used
/// in turn, are not.
const POSTED_SUM_BYTES_MIN: u64 = 32 << 10;
/// The same where that is memory of its own, since the other operand lies where the sum goes.
const APART_BYTES_MIN: u64 = 128 << 10;

/// Bytes that a step receives where that is enough for its receive to be posted, else 0.
pub(crate) fn posted_bytes(step: &Step) -> u64 {
    match step {
        Step::Receive { dst, .. } if dst.bytes >= POSTED_BYTES_MIN => dst.bytes,
        Step::ReceiveReduce { dst, .. } if dst.bytes >= POSTED_SUM_BYTES_MIN => dst.bytes,
        _ => 0,
    }
}

/// Bytes of the largest message that may be received apart.
fn apart_bytes(steps: &[Step]) -> u64 {
    let of_step = |step: &Step| match step {
        Step::ReceiveReduce { dst, .. } if dst.bytes >= APART_BYTES_MIN => dst.bytes,
        _ => 0,
    };
    steps.iter().map(of_step).max().unwrap_or(0)
}

#[cfg(test)]
#[path = "stable_tests.rs"]
mod stable_tests;

#[cfg(test)]
#[path = "begin_tests.rs"]
mod begin_tests;
