//! Requests: operation, buffers, counts, type.

use std::fmt;
use std::sync::Arc;

use gaspi_core::Rank;

use crate::algorithms::Algorithm;
use crate::collective::Collective;
use crate::datatype::{DataType, Operation};
use crate::mode::Mode;
use crate::user_reduction::{Function, ReductionFailed};

/// A reduction of the program: combines elements of the first and the second into the third; all
/// have the given number of elements, aligned to 16 bytes, and are copies that nobody else sees.
pub type Reduce =
    dyn Fn(&[u8], &[u8], &mut [u8], u64) -> std::result::Result<(), ReductionFailed> + Send + Sync;

/// A reduction defined by the program: associative, and commutative unless it is ordered.
#[derive(Clone)]
pub struct Reducer {
    /// The function. It may be called by any thread that waits for operations of this rank, tests
    /// them or opens a channel for one; it may not call procedures of this crate itself.
    pub reduce: Arc<Reduce>,
    /// Bytes of an element.
    pub element_bytes: u32,
    /// Combines in the order of the ranks.
    pub ordered: bool,
    /// Whether the background thread may call it.
    pub background: bool,
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reducer")
            .field("element_bytes", &self.element_bytes)
            .finish_non_exhaustive()
    }
}

impl Function for Reducer {
    fn element_bytes(&self) -> u64 {
        self.element_bytes.into()
    }

    fn apply(
        &self,
        one: &[u8],
        two: &[u8],
        result: &mut [u8],
        count: u64,
    ) -> std::result::Result<(), ReductionFailed> {
        (self.reduce)(one, two, result, count)
    }
}

/// The elements and the operation that combines them.
#[derive(Clone, Debug)]
pub enum Combination {
    /// Elements of a type, by a built-in operation. Where nothing is combined the operation does
    /// not matter.
    BuiltIn(DataType, Operation),
    /// Elements of the program's.
    User(Reducer),
}

/// Counts and displacements of blocks, in elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Elements of each member's block.
    pub counts: Vec<u64>,
    /// The first element of each block, any for one without elements; empty where they follow each
    /// other.
    pub displacements: Vec<u64>,
}

/// A collective operation as one rank asks for it. Elements are counted as in
/// [`Shape::count`](crate::steps::Shape).
#[derive(Clone, Debug)]
pub struct Request {
    /// Which operation.
    pub collective: Collective,
    /// The contribution of this rank; may be null if there is none.
    pub send: *const u8,
    /// The result of this rank; may be null if there is none. In place: the same memory as `send`
    /// (all-reduce, reduce, broadcast, all-to-all), or `send` lies where this rank's block is in
    /// `receive` (all-gather, gather), or `receive` where it is in `send` (scatter,
    /// reduce-scatter).
    pub receive: *mut u8,
    /// Elements.
    pub count: u64,
    /// All-gather of blocks that differ, the same on all ranks; all-to-all of blocks that differ:
    /// what this rank sends, then what it receives.
    pub blocks: Vec<Blocks>,
    /// What is combined, and how.
    pub combination: Combination,
    /// The rank that has or gets everything.
    pub root: Rank,
    /// The algorithm; `None` leaves the choice to the library.
    pub algorithm: Option<Algorithm>,
    /// What the bits may depend on; `None` is what GASPI_COLL_MODE says, else [`Mode::Fast`].
    pub mode: Option<Mode>,
    /// Whether a thread of the library drives it while no thread tests or waits.
    pub background: bool,
}

// SAFETY: the pointers are only used by the thread that runs the operation, under the promises of
// its start.
unsafe impl Send for Request {}
// SAFETY: the pointers are only used by the thread that runs the operation.
unsafe impl Sync for Request {}

impl Combination {
    /// Bytes of an element.
    pub fn element_bytes(&self) -> u64 {
        match self {
            Combination::BuiltIn(ty, _) => ty.bytes().into(),
            Combination::User(reducer) => reducer.element_bytes.into(),
        }
    }
}

/// A request of the simple kind: without blocks that differ, elements of a built-in type.
#[derive(Clone, Copy, Debug)]
pub struct SimpleRequest {
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
    pub op: Operation,
    /// The rank that has or gets everything.
    pub root: Rank,
    /// The algorithm; `None` leaves the choice to the library.
    pub algorithm: Option<Algorithm>,
    /// As in [`Request`].
    pub mode: Option<Mode>,
}

impl SimpleRequest {
    /// `None` if the request is not of this kind.
    #[inline]
    pub fn of(request: &Request) -> Option<SimpleRequest> {
        let Request { collective, send, receive, count, root, algorithm, mode, .. } = *request;
        let Combination::BuiltIn(ty, op) = request.combination else { return None };
        let whole = request.blocks.is_empty();
        whole.then_some(SimpleRequest {
            collective,
            send,
            receive,
            count,
            ty,
            op,
            root,
            algorithm,
            mode,
        })
    }

    /// All but the buffers and the count.
    #[inline]
    pub(crate) fn kind(&self) -> u64 {
        self.collective as u64
            | (self.ty as u64) << 8
            | (self.op as u64) << 16
            | self.algorithm.map_or(0, |algorithm| 1 + algorithm as u64) << 24
            | u64::from(self.root.0) << 32
            | self.mode.map_or(0, |mode| 1 + mode as u64) << 48
    }
}
