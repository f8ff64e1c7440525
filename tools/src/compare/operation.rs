//! What is compared: an operation, how much of it, and where its buffers lie.

use clap::ValueEnum;

/// Bytes of an element, a float.
pub(crate) const ELEMENT: usize = 4;

/// An operation that all libraries have, or most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// Without data
    Barrier,
    /// The sum, on all ranks
    Allreduce,
    /// The sum, on rank 0
    Reduce,
    /// From rank 0
    Broadcast,
    /// The sum, a block of it on each rank
    #[value(alias = "reduce_scatter")]
    ReduceScatter,
    /// A block of each rank, on all ranks
    Allgather,
    /// A block from each rank to each other
    Alltoall,
    /// A block of each rank, on rank 0
    Gather,
    /// A block to each rank, from rank 0
    Scatter,
}

impl Operation {
    /// As it is named on the command line and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Barrier => "barrier",
            Operation::Allreduce => "allreduce",
            Operation::Reduce => "reduce",
            Operation::Broadcast => "broadcast",
            Operation::ReduceScatter => "reduce-scatter",
            Operation::Allgather => "allgather",
            Operation::Alltoall => "alltoall",
            Operation::Gather => "gather",
            Operation::Scatter => "scatter",
        }
    }

    /// As library.h numbers it.
    pub(crate) fn code(self) -> u32 {
        match self {
            Operation::Barrier => 1,
            Operation::Allreduce => 2,
            Operation::Reduce => 3,
            Operation::Broadcast => 4,
            Operation::ReduceScatter => 5,
            Operation::Allgather => 6,
            Operation::Alltoall => 7,
            Operation::Gather => 8,
            Operation::Scatter => 9,
        }
    }

    /// Whether input and result are one buffer if that is asked for or not: a broadcast has only
    /// one, and some never share.
    pub(crate) fn is_in_place(self, asked: bool) -> bool {
        match self {
            Operation::Broadcast => true,
            Operation::Allreduce | Operation::Reduce | Operation::Allgather => asked,
            _ => false,
        }
    }

    /// Whether the larger buffer consists of a block for each rank.
    fn has_blocks(self) -> bool {
        matches!(
            self,
            Operation::ReduceScatter
                | Operation::Allgather
                | Operation::Alltoall
                | Operation::Gather
                | Operation::Scatter
        )
    }
}

/// Where the buffers of our library lie; other libraries know only one kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Memory {
    /// In segments, which ranks of a machine map
    Segment,
    /// In memory of the program
    Private,
}

impl Memory {
    /// As it is named on the command line and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Memory::Segment => "segment",
            Memory::Private => "private",
        }
    }

    /// As library.h numbers it.
    pub(crate) fn code(self) -> u32 {
        match self {
            Memory::Private => 0,
            Memory::Segment => 1,
        }
    }
}

/// An operation with everything that its calls have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) operation: Operation,
    /// Elements of the larger buffer.
    pub(crate) count: usize,
    pub(crate) memory: Memory,
    /// As the ranks do it, not as it was asked for.
    pub(crate) in_place: bool,
}

impl Shape {
    /// Of about so many bytes: elements are whole, and so are blocks. In place if that is asked for
    /// and possible.
    pub(crate) fn new(
        operation: Operation,
        bytes: usize,
        ranks: u32,
        memory: Memory,
        in_place: bool,
    ) -> Shape {
        let whole = if operation.has_blocks() { ranks as usize } else { 1 };
        let count = match operation {
            Operation::Barrier => 0,
            _ => bytes.div_ceil(ELEMENT).next_multiple_of(whole),
        };
        Shape { operation, count, memory, in_place: operation.is_in_place(in_place) }
    }

    /// Bytes of the larger buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.count * ELEMENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_elements_are_whole() {
        let count = |operation, bytes| Shape::new(operation, bytes, 3, Memory::Segment, true).count;
        assert_eq!(count(Operation::Allreduce, 8), 2);
        assert_eq!(count(Operation::Allreduce, 5), 2);
        assert_eq!(count(Operation::Allgather, 8), 3);
        assert_eq!(count(Operation::Alltoall, 24), 6);
        assert_eq!(count(Operation::Barrier, 8), 0);
    }

    #[test]
    fn only_what_works_in_place_is_said_to() {
        let in_place = |asked| {
            let shape = |operation: &Operation| {
                Shape::new(*operation, 64, 2, Memory::Segment, asked).in_place
            };
            let found = Operation::value_variants().iter().filter(|operation| shape(operation));
            found.map(|operation| operation.name()).collect::<Vec<_>>()
        };
        assert_eq!(in_place(true), ["allreduce", "reduce", "broadcast", "allgather"]);
        assert_eq!(in_place(false), ["broadcast"]);
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for operation in Operation::value_variants() {
            let value = operation.to_possible_value().unwrap();
            assert_eq!(value.get_name(), operation.name());
        }
        assert_eq!(Operation::from_str("reduce_scatter", false), Ok(Operation::ReduceScatter));
    }
}
