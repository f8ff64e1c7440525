//! The algorithms: pure functions from a [`Shape`] to the steps of one member, each in its own
//! file.
//!
//! A file opens with its steps and its bytes on the wire. [`crate::proof`] proves them all,
//! [`crate::plan::select`] says which one is used where.

use std::fmt;
use std::str::FromStr;

pub use crate::collective::Collective;
use crate::steps::{Shape, Step};

mod binomial_tree;
mod blocks;
mod chain;
mod copy_in_copy_out;
mod dissemination;
mod double_tree;
pub(crate) mod fold;
mod halving_doubling;
mod hierarchical;
mod inline;
mod knomial_tree;
mod linear;
mod pairwise;
mod program;
mod recursive_doubling;
mod reduce_scatter_allgather;
mod ring;
mod single_copy;
mod sliced_copy;
mod told;

/// How contributions are combined. Algorithms of the same grouping give the same bits, which
/// [`crate::proof`] proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum Grouping {
    /// One member behind the other, in one pass: halves are rounded once.
    OnePass,
    /// Neighbours, then neighbouring pairs, and so on.
    Pairs,
    /// As no other algorithm does.
    Own(Algorithm),
}

/// How they do it. Names are stable: users write them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Algorithm {
    /// One node: everything in the lines of one arrival.
    Inline,
    /// One node: through staging, each takes what it needs.
    CopyInCopyOut,
    /// One node: through staging, each combines a slice.
    SlicedCopy,
    /// One node: straight out of all inputs into all outputs.
    SingleCopy,
    /// Segmented ring.
    Ring,
    /// Recursive doubling.
    RecursiveDoubling,
    /// Recursive halving, recursive doubling.
    HalvingDoubling,
    /// Reduce-scatter and all-gather (scatter and all-gather, reduce-scatter and gather).
    ReduceScatterAllgather,
    /// Binomial tree, pipelined.
    BinomialTree,
    /// Two binary trees, pipelined.
    DoubleTree,
    /// Pairwise exchange.
    Pairwise,
    /// Dissemination, Bruck's all-gather.
    Dissemination,
    /// One member after the other.
    Linear,
    /// Inside the nodes, between the nodes.
    Hierarchical,
    /// Tree of few levels.
    KnomialTree,
}

impl Algorithm {
    /// All there are.
    pub const ALL: [Algorithm; 15] = [
        Algorithm::Inline,
        Algorithm::CopyInCopyOut,
        Algorithm::SlicedCopy,
        Algorithm::SingleCopy,
        Algorithm::Ring,
        Algorithm::RecursiveDoubling,
        Algorithm::HalvingDoubling,
        Algorithm::ReduceScatterAllgather,
        Algorithm::BinomialTree,
        Algorithm::DoubleTree,
        Algorithm::Pairwise,
        Algorithm::Dissemination,
        Algorithm::Linear,
        Algorithm::Hierarchical,
        Algorithm::KnomialTree,
    ];

    /// Its name, as in `GASPI_COLL_ALGORITHM`.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Inline => "inline",
            Algorithm::CopyInCopyOut => "copy_in_copy_out",
            Algorithm::SlicedCopy => "sliced_copy",
            Algorithm::SingleCopy => "single_copy",
            Algorithm::Ring => "ring",
            Algorithm::RecursiveDoubling => "recursive_doubling",
            Algorithm::HalvingDoubling => "halving_doubling",
            Algorithm::ReduceScatterAllgather => "reduce_scatter_allgather",
            Algorithm::BinomialTree => "binomial_tree",
            Algorithm::DoubleTree => "double_tree",
            Algorithm::Pairwise => "pairwise",
            Algorithm::Dissemination => "dissemination",
            Algorithm::Linear => "linear",
            Algorithm::Hierarchical => "hierarchical",
            Algorithm::KnomialTree => "knomial_tree",
        }
    }

    /// The name that it had in earlier versions, which is still accepted.
    const fn former_name(self) -> Option<&'static str> {
        match self {
            Algorithm::Inline => Some("line"),
            Algorithm::CopyInCopyOut => Some("staged"),
            Algorithm::SlicedCopy => Some("sliced"),
            Algorithm::SingleCopy => Some("direct"),
            _ => None,
        }
    }

    /// Whether there is a shape of that operation for which it has steps.
    pub const fn serves(self, collective: Collective) -> bool {
        use Collective::{
            Allgather, Allreduce, Alltoall, Barrier, Broadcast, Gather, Reduce, ReduceScatter,
            Scatter,
        };
        match self {
            Algorithm::Inline | Algorithm::CopyInCopyOut | Algorithm::SingleCopy => true,
            Algorithm::SlicedCopy => matches!(collective, Allreduce),
            Algorithm::Ring => matches!(collective, Allreduce | ReduceScatter | Allgather),
            Algorithm::RecursiveDoubling => matches!(collective, Allreduce | Allgather | Barrier),
            Algorithm::HalvingDoubling => matches!(collective, Allreduce),
            Algorithm::KnomialTree => matches!(collective, Allreduce | Barrier),
            Algorithm::ReduceScatterAllgather | Algorithm::DoubleTree => {
                matches!(collective, Allreduce | Reduce | Broadcast)
            }
            Algorithm::Hierarchical => {
                matches!(collective, Allreduce | Reduce | Broadcast | Allgather | Barrier)
            }
            Algorithm::BinomialTree => {
                matches!(collective, Allreduce | Reduce | Broadcast | Gather | Scatter)
            }
            Algorithm::Pairwise => matches!(collective, Alltoall | ReduceScatter),
            Algorithm::Dissemination => matches!(collective, Barrier | Allgather),
            Algorithm::Linear => !matches!(collective, Barrier),
        }
    }

    /// Whether all members have to be of one node, because it consists of lines.
    pub const fn requires_one_node(self) -> bool {
        use Algorithm::{CopyInCopyOut, Inline, SingleCopy, SlicedCopy};
        matches!(self, Inline | CopyInCopyOut | SlicedCopy | SingleCopy)
    }

    /// How its reductions group the contributions.
    pub(crate) const fn grouping(self) -> Grouping {
        match self {
            _ if self.requires_one_node() => Grouping::OnePass,
            Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling | Algorithm::KnomialTree => {
                Grouping::Pairs
            }
            _ => Grouping::Own(self),
        }
    }

    /// Whether members use each other's inputs and outputs, not only lines, stages and messages.
    pub const fn requires_reach(self) -> bool {
        matches!(self, Algorithm::SingleCopy)
    }

    /// Whether contributions are combined as they would be one after the other in the order of the
    /// members, but for parentheses: only neighbours, the lower ones' operand on the left.
    #[doc(hidden)]
    pub fn keeps_order(self, collective: Collective, shape: &Shape) -> bool {
        match self {
            Algorithm::Inline
            | Algorithm::CopyInCopyOut
            | Algorithm::SlicedCopy
            | Algorithm::SingleCopy => true,
            Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling => true,
            Algorithm::Linear | Algorithm::KnomialTree => true,
            Algorithm::BinomialTree | Algorithm::DoubleTree => {
                collective != Collective::Reduce || shape.root == 0
            }
            _ => !collective.reduces(),
        }
    }

    /// Whether any member may be the root of its tree ([`Shape::root`]), though the operation has
    /// none, with equal bits.
    #[doc(hidden)]
    pub const fn has_any_root(self, collective: Collective) -> bool {
        matches!((self, collective), (Algorithm::KnomialTree, Collective::Allreduce))
    }

    /// Whether its members write their outputs only where they have heard of all others, as long as
    /// the shape does not say that they know of each other. The same for all members.
    pub(crate) fn agrees(self, collective: Collective, shape: &Shape) -> bool {
        collective == Collective::Allreduce
            && match self {
                Algorithm::RecursiveDoubling | Algorithm::KnomialTree => true,
                Algorithm::HalvingDoubling => halving_doubling::agrees(shape),
                _ => false,
            }
    }

    /// Whether it serves that shape. The same for all members, since it depends on nothing but what
    /// they all know.
    #[doc(hidden)]
    pub fn fits(self, collective: Collective, shape: &Shape) -> bool {
        let v = !shape.sends.is_empty();
        let serves = match self {
            Algorithm::Inline => !v && inline::fits(collective, shape),
            Algorithm::CopyInCopyOut => !v && copy_in_copy_out::fits(collective, shape),
            Algorithm::SlicedCopy => sliced_copy::fits(shape),
            Algorithm::SingleCopy => !v,
            _ => true,
        };
        // Blocks that differ are all-to-all v, with `sends` and `receives`.
        let blocks = collective != Collective::Alltoall || shape.counts.is_empty();
        serves
            && blocks
            && self.serves(collective)
            && (shape.is_one_node() || !self.requires_one_node())
            && shape.element_bytes <= shape.message_bytes
    }

    /// The steps of one member; `None` where it does not serve the shape, see [`Algorithm::fits`].
    #[doc(hidden)]
    pub fn steps(self, collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
        if !self.fits(collective, shape) {
            return None;
        }
        match self {
            Algorithm::Inline => inline::steps(collective, shape),
            Algorithm::CopyInCopyOut => copy_in_copy_out::steps(collective, shape),
            Algorithm::SlicedCopy => sliced_copy::steps(shape),
            Algorithm::SingleCopy => single_copy::steps(collective, shape),
            Algorithm::Ring => ring::steps(collective, shape),
            Algorithm::RecursiveDoubling => recursive_doubling::steps(collective, shape),
            Algorithm::HalvingDoubling => halving_doubling::steps(shape),
            Algorithm::ReduceScatterAllgather => reduce_scatter_allgather::steps(collective, shape),
            Algorithm::BinomialTree => binomial_tree::steps(collective, shape),
            Algorithm::DoubleTree => double_tree::steps(collective, shape),
            Algorithm::Hierarchical => hierarchical::steps(collective, shape),
            Algorithm::Pairwise => pairwise::steps(collective, shape),
            Algorithm::Dissemination => dissemination::steps(collective, shape),
            Algorithm::Linear => linear::steps(collective, shape),
            Algorithm::KnomialTree => knomial_tree::steps(collective, shape),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no algorithm has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownAlgorithm(String);

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no algorithm is called \"{}\"; there are", self.0)?;
        for (i, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            write!(f, "{}{algorithm}", if i == 0 { " " } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownAlgorithm {}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Algorithm, UnknownAlgorithm> {
        let is_named = |algorithm: &Algorithm| {
            algorithm.name() == name || algorithm.former_name() == Some(name)
        };
        Algorithm::ALL.into_iter().find(is_named).ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_names_are_parsed() {
        let former = [
            ("line", Algorithm::Inline),
            ("staged", Algorithm::CopyInCopyOut),
            ("sliced", Algorithm::SlicedCopy),
            ("direct", Algorithm::SingleCopy),
        ];
        for (name, algorithm) in former {
            assert_eq!(name.parse(), Ok(algorithm));
            assert_ne!(algorithm.name(), name);
        }
    }
}
