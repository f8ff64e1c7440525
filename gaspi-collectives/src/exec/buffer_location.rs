//! Locations of a member's buffers in the line of its first arrival: two words for the input, two
//! for the output.

use gaspi_core::{Channel, Location};

use super::buffers::Buffers;
use crate::kernel::Source;

/// Where both buffers of a member are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferLocation {
    pub(crate) input: Location,
    pub(crate) output: Location,
}

/// The location of memory of no bytes, which is never accessed.
const NOWHERE: Location = Location::Address(0);

impl BufferLocation {
    /// The locations of this rank's buffers.
    pub(crate) fn of(channel: &Channel, buffers: Buffers<'_>) -> BufferLocation {
        let find = |memory: Source<'_>| match memory.len() {
            0 => NOWHERE,
            len => channel.locate(memory.start(), len as u64),
        };
        let (input, output) = (buffers.input, buffers.output.source());
        let same = (output.start(), output.len()) == (input.start(), input.len());
        let found = find(input);
        BufferLocation { input: found, output: if same { found } else { find(output) } }
    }

    /// The words of a line. The member says too whether it `takes_fallback` where memory is not
    /// mapped.
    pub(crate) fn words(&self, takes_fallback: bool) -> [u64; 6] {
        let ([a, b], [c, d]) = (self.input.encode(), self.output.encode());
        [a, b, c, d, takes_fallback.into(), 0]
    }

    /// Whether the member of this line takes the fallback.
    pub(crate) fn takes_fallback([.., takes_fallback, _]: [u64; 6]) -> bool {
        takes_fallback != 0
    }

    /// The locations in a member's line.
    pub(crate) fn of_words([a, b, c, d, ..]: [u64; 6]) -> BufferLocation {
        BufferLocation { input: Location::decode([a, b]), output: Location::decode([c, d]) }
    }

    /// Whether both are found there as long as the channel exists.
    pub(crate) fn stay(&self) -> bool {
        let stays = |at: Location| at == NOWHERE || at.is_in_arena();
        stays(self.input) && stays(self.output)
    }

    /// Whether all members of the node can use both without the kernel's help.
    pub(crate) fn are_mapped(&self) -> bool {
        let mapped = |at: Location| at == NOWHERE || matches!(at, Location::Segment { .. });
        mapped(self.input) && mapped(self.output)
    }
}
