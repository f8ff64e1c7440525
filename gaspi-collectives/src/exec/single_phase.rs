//! Operations of one arrival, without walking their steps. For small data the walk would take as
//! long as the transfer. Lines and stages are used as the steps would, so members of both kinds
//! work together.

use super::buffers::Buffers;
use super::substrate::Substrate;
use crate::datatype::{DataType, Operation};
use crate::kernel::{self, Source, Target};
use crate::plan::single_phase::{Origin, SinglePhase};
use crate::steps::{LINE_BYTES, PASS_SOURCES};

/// Members whose contributions are combined in one pass. A small array on the stack saves time for
/// few members.
pub(super) const FEW: usize = 4;
pub(super) const MANY: usize = PASS_SOURCES;
/// Bytes of each stage that are prefetched while lines are awaited. Later bytes arrive while the
/// first ones are used.
const PREFETCH_BYTES: u64 = 2048;

impl SinglePhase {
    /// Publishes the input with an arrival.
    #[inline]
    pub(crate) fn publish(
        self,
        on: &mut impl Substrate,
        arrival: u64,
        stamp: u64,
        input: Source<'_>,
    ) {
        let mut words = [0u64; LINE_BYTES as usize / size_of::<u64>()];
        let mut used = 0;
        if self.staged {
            if !input.is_empty() {
                let bytes = input.len() as u64;
                let stage = Target::of_peer(on.stage(on.me(), arrival));
                kernel::copy(stage.part(0, bytes), input);
                on.stage_used(bytes, true);
            }
        } else if input.len() == size_of::<u64>() {
            (words[0], used) = (input.word(), 1);
        } else if !input.is_empty() {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            kernel::copy(Target::of(&mut bytes[..input.len()]), input);
            used = input.len().div_ceil(size_of::<u64>());
        }
        on.arrive(arrival, stamp, &words[..used]);
    }

    /// Prefetches the stages of the other members.
    #[inline]
    pub(crate) fn prefetch(self, on: &impl Substrate, arrival: u64, bytes: u64) {
        if !self.staged {
            return;
        }
        for member in (0..on.ranks().len()).filter(|member| *member != on.me()) {
            let stage = Source::of_peer(on.stage(member, arrival));
            kernel::prefetch(stage.part(0, bytes.min(PREFETCH_BYTES)));
        }
    }

    /// Makes the result of what all members have published.
    #[inline]
    pub(crate) fn collect(
        self,
        on: &impl Substrate,
        arrival: u64,
        (op, ty): (Operation, DataType),
        buffers: Buffers<'_>,
    ) {
        let Buffers { input, output } = buffers;
        let bytes = output.len() as u64;
        let published = |member: usize| {
            let memory = match self.staged {
                true => on.stage(member, arrival),
                false => on.carried(member, arrival),
            };
            Source::of_peer(memory).part(0, bytes)
        };
        match self.from {
            Origin::Nothing => {}
            Origin::Member(member) if member == on.me() => {
                if !input.is_at(output) {
                    kernel::copy(output, input);
                }
            }
            Origin::Member(member) => kernel::copy(output, published(member)),
            Origin::All => {
                let members = on.ranks().len();
                // The own stage may still be in the store buffer, in pieces of other sizes: loading
                // it would stall.
                let source = |member| if member == on.me() { input } else { published(member) };
                if members <= FEW {
                    fold::<FEW>((op, ty), output, members, source);
                } else if members <= MANY {
                    fold::<MANY>((op, ty), output, members, source);
                } else {
                    // In place, the first pass overwrites the input.
                    fold::<MANY>((op, ty), output, members, published);
                }
                if op == Operation::Average {
                    kernel::divide(ty, output, members as u32);
                }
            }
        }
    }
}

/// Combines what all members have published, in their order, `N` in a pass.
#[inline]
fn fold<'a, const N: usize>(
    (op, ty): (Operation, DataType),
    output: Target<'_>,
    members: usize,
    published: impl Fn(usize) -> Source<'a>,
) {
    let mut sources: [Source<'_>; N] = [Source::of(&[]); N];
    let first = members.min(N);
    for (member, source) in sources[..first].iter_mut().enumerate() {
        *source = published(member);
    }
    kernel::fold(op, ty, &[output], &sources[..first]);
    for member in N..members {
        kernel::accumulate(op, ty, output, &[published(member)]);
    }
}
