//! The buffers and the arithmetic of an operation.

use crate::collective::Collective;
use crate::datatype::{DataType, Operation};
use crate::kernel::{Source, Target};
use crate::request::Reducer;
use gaspi_core::{Channel, DeviceBuffer};

/// The caller's buffers: the same memory or disjoint, as the operation allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers<'a> {
    /// The contribution of this rank.
    pub(crate) input: Source<'a>,
    /// The result of this rank.
    pub(crate) output: Target<'a>,
}

impl<'a> Buffers<'a> {
    /// `bytes` of both, from `offset` on.
    pub(crate) fn part(self, offset: u64, bytes: u64) -> Buffers<'a> {
        Buffers { input: self.input.part(offset, bytes), output: self.output.part(offset, bytes) }
    }

    /// Makes them known to the device that sends from them, as far as there is one and that is of
    /// use.
    ///
    /// # Safety
    /// They stay until what this gives is dropped.
    pub(crate) unsafe fn show_to_device(self, channel: &Channel) -> Vec<DeviceBuffer> {
        let range = |memory: Source<'_>| (memory.start() as usize, memory.len());
        let (input, output) = (range(self.input), range(self.output.source()));
        let is_part = |(part, of): ((usize, usize), (usize, usize))| {
            part.0 >= of.0 && part.0 + part.1 <= of.0 + of.1
        };
        let mut wanted = vec![output];
        if is_part((output, input)) {
            wanted = vec![input];
        } else if !is_part((input, output)) {
            wanted.push(input);
        }
        // SAFETY: as the caller says.
        let show = |(start, len)| unsafe { channel.show_to_device(start as *const u8, len) };
        wanted.into_iter().filter_map(show).collect()
    }
}

/// How a reduction combines elements.
#[derive(Clone, Debug)]
pub(crate) enum Arithmetic<F = Reducer> {
    BuiltIn(Operation, DataType),
    User(F),
}

/// Whether input and output share memory in the way that the operation allows.
pub(crate) fn is_in_place(
    collective: Collective,
    own: [u64; 2],
    before: u64,
    send: *const u8,
    receive: *mut u8,
) -> bool {
    let (send, receive) = (send as u64, receive as u64);
    match (collective, own) {
        (_, [0, _] | [_, 0]) => true,
        (Collective::Allgather | Collective::Gather, _) => send == receive + before,
        (Collective::Scatter | Collective::ReduceScatter, _) => receive == send + before,
        (Collective::Alltoall, [input, output]) => send == receive && input == output,
        _ => send == receive,
    }
}
