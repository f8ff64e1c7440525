//! Steps around those of an algorithm, so that a result is written only where all members agree.

use super::TURN_BYTES_MIN;
use super::extents::extents;
use super::select;
use crate::algorithms::{Algorithm, fold};
use crate::collective::Collective;
use crate::steps::{Shape, Step};

/// Largest result, of all members together, that is buffered until it is complete: copying more
/// takes longer than a barrier before. Measured for four members.
const BUFFERED_OUTPUT_MAX: u64 = 512 << 10;

/// Whether the result of each member depends on all.
pub(super) fn depends_on_all(collective: Collective) -> bool {
    use Collective::{Allgather, Allreduce, Alltoall, ReduceScatter};
    matches!(collective, Allreduce | ReduceScatter | Allgather | Alltoall)
}

/// Guards against results that are visible although the members disagree, or although a function of
/// the program fails on one of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AgreementGuard {
    /// A barrier before: a member that leaves it knows that all others are in the same operation.
    meets_before: bool,
    /// A barrier afterwards: each member learns of a reduction that has failed anywhere.
    meets_after: bool,
    /// The result is written when all steps have been done, which prove agreement as well.
    pub(super) buffers_output: bool,
    /// The steps write the result only where their member has heard of all others.
    pub(super) by_steps: bool,
    /// Each member hears by a message that another one has begun.
    tells_of_begin: bool,
}

impl AgreementGuard {
    pub(super) fn of(
        collective: Collective,
        shape: &Shape,
        algorithm: Algorithm,
        user: bool,
    ) -> AgreementGuard {
        // Lines bring all members together anyway.
        if algorithm.requires_one_node() {
            return AgreementGuard::default();
        }
        let meets_after = user && collective.reduces();
        // The first message between two members proves agreement. A member that only sends never
        // waits.
        if shape.size <= 2 || !depends_on_all(collective) {
            return AgreementGuard { meets_after, ..AgreementGuard::default() };
        }
        if !meets_after && algorithm.agrees(collective, shape) {
            return AgreementGuard { by_steps: true, ..AgreementGuard::default() };
        }
        // The other members do not know what a pair exchanges.
        let small = shape.sends.is_empty()
            && extents(collective, shape)
                .iter()
                .all(|[input, output]| input.max(output) <= &BUFFERED_OUTPUT_MAX);
        AgreementGuard {
            meets_before: !small,
            meets_after,
            buffers_output: small,
            ..AgreementGuard::default()
        }
    }

    /// For members that have compared all their calls before, and that begin long ones in turns.
    pub(super) fn among_agreed(shape: &Shape, algorithm: Algorithm) -> AgreementGuard {
        use Algorithm::{HalvingDoubling, RecursiveDoubling};
        let is_folded = matches!(algorithm, HalvingDoubling | RecursiveDoubling);
        let tells_of_begin = is_folded && shape.bytes() >= TURN_BYTES_MIN;
        AgreementGuard { tells_of_begin, ..AgreementGuard::default() }
    }

    /// The steps with the barriers before and after them.
    pub(super) fn around(self, shape: &Shape, steps: Vec<Step>) -> Vec<Step> {
        let steps = match self.tells_of_begin {
            true => fold::telling_of_begin(shape, steps),
            false => steps,
        };
        let meet = |wanted: bool| {
            let steps = || select::meeting(shape).ok()?.steps(Collective::Barrier, shape);
            wanted.then(steps).flatten().unwrap_or_default()
        };
        [meet(self.meets_before), steps, meet(self.meets_after)].concat()
    }
}
