//! Requests with their memory: what an operation of [`Prepared`](crate::Prepared) or
//! [`Started`](crate::Started) is made from.

use gaspi_core::Rank;

use super::operand::Operand;
use crate::algorithms::Algorithm;
use crate::collective::Collective;
use crate::datatype::{DataType, Element, Operation};
use crate::mode::Mode;
use crate::operations::MemoryTerms;
use crate::request::{Combination, Request};

/// The memory of an operation.
#[derive(Debug)]
pub(super) struct Operands<'b, T> {
    /// `None` in place.
    pub(super) send: Option<Operand<'b, T>>,
    pub(super) receive: Operand<'b, T>,
}

/// A collective operation as one rank asks for it, with the memory that it uses.
///
/// Memory that is too short for the group is refused when the operation is prepared or started.
#[derive(Debug)]
#[must_use = "a request does nothing until it is prepared or started"]
pub struct TypedRequest<'b, T> {
    pub(super) request: Request,
    pub(super) operands: Operands<'b, T>,
}

/// Those of the constructors that are not about elements.
fn request(collective: Collective, root: Rank, combination: Combination) -> Request {
    Request {
        collective,
        send: std::ptr::null(),
        receive: std::ptr::null_mut(),
        count: 0,
        blocks: Vec::new(),
        combination,
        root,
        algorithm: None,
        mode: None,
        background: false,
    }
}

impl<'b, T: Element> TypedRequest<'b, T> {
    fn new(
        collective: Collective,
        (op, root): (Operation, Rank),
        count: usize,
        send: Option<Operand<'b, T>>,
        receive: Operand<'b, T>,
    ) -> TypedRequest<'b, T> {
        let mut request = request(collective, root, Combination::BuiltIn(T::TYPE, op));
        request.count = count as u64;
        request.receive = receive.address();
        request.send = send.as_ref().unwrap_or(&receive).address();
        TypedRequest { request, operands: Operands { send, receive } }
    }

    /// All ranks get the sum, or what `op` says, of what all send.
    pub fn allreduce(
        op: Operation,
        send: impl Into<Operand<'b, T>>,
        receive: impl Into<Operand<'b, T>>,
    ) -> TypedRequest<'b, T> {
        let (send, receive) = (send.into(), receive.into());
        let count = send.len();
        Self::new(Collective::Allreduce, (op, Rank(0)), count, Some(send), receive)
    }

    /// The same in place: the result replaces the contribution.
    pub fn allreduce_in_place(
        op: Operation,
        data: impl Into<Operand<'b, T>>,
    ) -> TypedRequest<'b, T> {
        let data = data.into();
        Self::new(Collective::Allreduce, (op, Rank(0)), data.len(), None, data)
    }

    /// The root gets all contributions combined. On other ranks `receive` may be empty.
    pub fn reduce(
        op: Operation,
        root: Rank,
        send: impl Into<Operand<'b, T>>,
        receive: impl Into<Operand<'b, T>>,
    ) -> TypedRequest<'b, T> {
        let (send, receive) = (send.into(), receive.into());
        let count = send.len();
        Self::new(Collective::Reduce, (op, root), count, Some(send), receive)
    }

    /// All ranks get what the root has.
    pub fn broadcast(root: Rank, data: impl Into<Operand<'b, T>>) -> TypedRequest<'b, T> {
        let data = data.into();
        Self::new(Collective::Broadcast, (Operation::Sum, root), data.len(), None, data)
    }

    /// Each rank gets its block, as long as `receive`, of all contributions combined.
    pub fn reduce_scatter(
        op: Operation,
        send: impl Into<Operand<'b, T>>,
        receive: impl Into<Operand<'b, T>>,
    ) -> TypedRequest<'b, T> {
        let (send, receive) = (send.into(), receive.into());
        let count = receive.len();
        Self::new(Collective::ReduceScatter, (op, Rank(0)), count, Some(send), receive)
    }

    /// All ranks get the blocks of all, each as long as `send`.
    pub fn allgather(
        send: impl Into<Operand<'b, T>>,
        receive: impl Into<Operand<'b, T>>,
    ) -> TypedRequest<'b, T> {
        let (send, receive) = (send.into(), receive.into());
        let (count, by) = (send.len(), (Operation::Sum, Rank(0)));
        Self::new(Collective::Allgather, by, count, Some(send), receive)
    }

    /// The root gets the blocks of all. On other ranks `receive` may be empty.
    pub fn gather(
        root: Rank,
        send: impl Into<Operand<'b, T>>,
        receive: impl Into<Operand<'b, T>>,
    ) -> TypedRequest<'b, T> {
        let (send, receive) = (send.into(), receive.into());
        let count = send.len();
        Self::new(Collective::Gather, (Operation::Sum, root), count, Some(send), receive)
    }

    /// Each rank gets its block of what the root has. On other ranks `send` may be empty.
    pub fn scatter(
        root: Rank,
        send: impl Into<Operand<'b, T>>,
        receive: impl Into<Operand<'b, T>>,
    ) -> TypedRequest<'b, T> {
        let (send, receive) = (send.into(), receive.into());
        let count = receive.len();
        Self::new(Collective::Scatter, (Operation::Sum, root), count, Some(send), receive)
    }

    /// Each rank gets its block, of `count` elements, of what every rank has.
    pub fn alltoall(
        count: usize,
        send: impl Into<Operand<'b, T>>,
        receive: impl Into<Operand<'b, T>>,
    ) -> TypedRequest<'b, T> {
        let (send, receive, by) = (send.into(), receive.into(), (Operation::Sum, Rank(0)));
        Self::new(Collective::Alltoall, by, count, Some(send), receive)
    }
}

impl TypedRequest<'_, ()> {
    /// Nobody's ends before all ranks have started theirs.
    pub fn barrier() -> TypedRequest<'static, ()> {
        let combination = Combination::BuiltIn(DataType::U8, Operation::Sum);
        let request = request(Collective::Barrier, Rank(0), combination);
        let operands = Operands { send: None, receive: Operand::empty() };
        TypedRequest { request, operands }
    }
}

impl<T> TypedRequest<'_, T> {
    /// By this algorithm.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.request.algorithm = Some(algorithm);
        self
    }

    /// In this mode, which is the same on all ranks, in place of what GASPI_COLL_MODE says.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.request.mode = Some(mode);
        self
    }

    /// Driven by a thread of the library while no thread tests it or waits for it.
    pub fn background(mut self) -> Self {
        self.request.background = true;
        self
    }

    /// What is to hold for the memory: owned memory may be leaked, borrowed may not.
    pub(super) fn terms(&self) -> MemoryTerms {
        let Operands { send, receive } = &self.operands;
        let bytes = [send.as_ref().unwrap_or(receive).bytes(), receive.bytes()];
        let is_owned = |operand: &Operand<'_, T>| operand.is_empty() || operand.is_owned();
        let until_unused = !(is_owned(receive) && send.as_ref().is_none_or(is_owned));
        MemoryTerms { bytes: Some(bytes), until_unused }
    }
}
