//! The buffers and the arithmetic of an operation.

use crate::collective::Collective;
use crate::datatype::{DataType, Operation};
use crate::kernel::{Source, Target};
use crate::request::Reducer;

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
