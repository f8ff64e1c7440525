//! Selection of an algorithm: a table by operation, place, members and bytes.
//!
//! It depends only on what all members know, so that all select the same. The first row that fits
//! and has steps for the shape is taken. Each operation ends with a row that serves every shape.
//!
//! Some rows depend on cores. In [`Mode::Stable`] cores only choose among algorithms that combine
//! in the same order.

use std::fmt;

use gaspi_core::schedule::Pattern;

use crate::algorithms::Algorithm;
use crate::collective::Collective;
use crate::mode::Mode;
use crate::steps::Shape;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    collective: Collective,
    algorithm: Algorithm,
    place: Place,
    /// Fewest and most members.
    size_min: u32,
    size_max: u32,
    /// Most bytes, see [`bytes`].
    bytes_max: u64,
}

/// Where the members are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// All share memory.
    OneNode,
    /// Several nodes, one of which at least has several members.
    SharedNodes,
    /// A node for each member, all on one machine.
    OneMachine,
    /// Where members share cores: those without data tell each other along a tree.
    Tree,
    /// Any.
    Any,
}

const ALL: u64 = u64::MAX;

const fn row(
    collective: Collective,
    algorithm: Algorithm,
    place: Place,
    size_min: u32,
    bytes_max: u64,
) -> Row {
    Row { collective, algorithm, place, size_min, size_max: u32::MAX, bytes_max }
}

/// A row for at most so many members, anywhere.
const fn few(size_max: u32, collective: Collective, algorithm: Algorithm, bytes_max: u64) -> Row {
    Row { collective, algorithm, place: Place::Any, size_min: 1, size_max, bytes_max }
}

/// A row for at most so many members, each a node of the same machine.
const fn beside(size_max: u32, collective: Collective, algorithm: Algorithm) -> Row {
    let place = Place::OneMachine;
    Row { collective, algorithm, place, size_min: 1, size_max, bytes_max: ALL }
}

const KIB: u64 = 1 << 10;

/// Up to this size, two copies through a stage cost less than a second arrival. Measured for two
/// members: break-even at 2 KiB (all-reduce) to 4 KiB (broadcast).
const STAGED: u64 = 3 * KIB / 2;

/// The same where ranks share cores, so that a second arrival takes as many context switches as
/// there are members on a core. Measured for 4, 8, 16, 32 and 64 members on two cores.
pub(super) const fn staged_sharing(collective: Collective, members: u64) -> u64 {
    // Each member reads from the stages of all.
    let from_all = 320 * KIB / members;
    match collective {
        C::Allreduce => min(24 * KIB, from_all),
        C::ReduceScatter | C::Alltoall => min(32 * KIB, from_all),
        // The root alone reads them.
        C::Reduce => min(32 * KIB, 2048 * KIB / members),
        C::Gather => 128 * KIB,
        C::Allgather => 64 * KIB,
        // There is one stage, of this size.
        C::Broadcast | C::Scatter | C::Barrier => 64 * KIB,
    }
}

const fn min(a: u64, b: u64) -> u64 {
    if a < b { a } else { b }
}

/// Up to this size, the fewest messages take the least time where members share cores, though all
/// data goes through one of them.
const FEW_MESSAGES: u64 = 64 * KIB;
/// The same for many members, with whom the messages of others grow. Measured for 8 and 16.
const FEW_MESSAGES_OF_MANY: u64 = 512 * KIB;

/// Up to this size, two copies through stages cost less than one by the kernel, which looks up
/// every page. Measured.
const UNMAPPED: u64 = 64 * KIB;

/// The same for two members that reduce, as long as much of the data stays in their caches.
const UNMAPPED_TWO_MEMBERS: u64 = 4096 * KIB;

use Algorithm as A;
use Collective as C;
use Place::{Any, OneNode, SharedNodes, Tree};

/// Limits between algorithms of messages: another round takes some microseconds and saves bytes, of
/// which a second moves some gigabytes.
static TABLE: &[Row] = &[
    row(C::Barrier, A::Inline, OneNode, 1, ALL),
    row(C::Barrier, A::Hierarchical, SharedNodes, 1, ALL),
    row(C::Barrier, A::KnomialTree, Tree, 1, ALL),
    row(C::Barrier, A::Dissemination, Any, 1, ALL),
    row(C::Allreduce, A::Inline, OneNode, 1, ALL),
    row(C::Allreduce, A::CopyInCopyOut, OneNode, 1, STAGED),
    row(C::Allreduce, A::SingleCopy, OneNode, 1, ALL),
    // A ring crosses between nodes as rarely, and each member carries its share.
    row(C::Allreduce, A::Hierarchical, SharedNodes, 4, 256 * KIB),
    // Fewest messages, of which each delays another member.
    row(C::Allreduce, A::KnomialTree, Tree, 8, FEW_MESSAGES_OF_MANY),
    row(C::Allreduce, A::KnomialTree, Tree, 1, FEW_MESSAGES),
    // For two members as many bytes as a ring, in one round; for four a third more, in two rounds
    // instead of four.
    few(2, C::Allreduce, A::RecursiveDoubling, 512 * KIB),
    few(3, C::Allreduce, A::RecursiveDoubling, 128 * KIB),
    few(4, C::Allreduce, A::RecursiveDoubling, 64 * KIB),
    row(C::Allreduce, A::RecursiveDoubling, Any, 1, 8 * KIB),
    row(C::Allreduce, A::HalvingDoubling, Any, 4, 1024 * KIB),
    row(C::Allreduce, A::Ring, Any, 1, ALL),
    row(C::Reduce, A::Inline, OneNode, 1, ALL),
    row(C::Reduce, A::CopyInCopyOut, OneNode, 1, STAGED),
    row(C::Reduce, A::SingleCopy, OneNode, 1, ALL),
    row(C::Reduce, A::Hierarchical, SharedNodes, 4, 1024 * KIB),
    row(C::Reduce, A::BinomialTree, Any, 1, 64 * KIB),
    row(C::Reduce, A::DoubleTree, Any, 3, ALL),
    row(C::Reduce, A::BinomialTree, Any, 1, ALL),
    row(C::Broadcast, A::Inline, OneNode, 1, ALL),
    row(C::Broadcast, A::CopyInCopyOut, OneNode, 1, STAGED),
    row(C::Broadcast, A::SingleCopy, OneNode, 1, ALL),
    row(C::Broadcast, A::Hierarchical, SharedNodes, 4, 1024 * KIB),
    // The root sends zero-copy; a member that passes data on copies it once more. Measured for
    // three to eight members on two cores.
    beside(8, C::Broadcast, A::Linear),
    row(C::Broadcast, A::BinomialTree, Any, 1, 64 * KIB),
    row(C::Broadcast, A::DoubleTree, Any, 3, ALL),
    row(C::Broadcast, A::BinomialTree, Any, 1, ALL),
    row(C::ReduceScatter, A::Inline, OneNode, 1, ALL),
    row(C::ReduceScatter, A::CopyInCopyOut, OneNode, 1, STAGED),
    row(C::ReduceScatter, A::SingleCopy, OneNode, 1, ALL),
    row(C::ReduceScatter, A::Pairwise, Any, 1, 64 * KIB),
    row(C::ReduceScatter, A::Ring, Any, 1, ALL),
    row(C::Allgather, A::Inline, OneNode, 1, ALL),
    row(C::Allgather, A::CopyInCopyOut, OneNode, 1, STAGED),
    row(C::Allgather, A::SingleCopy, OneNode, 1, ALL),
    row(C::Allgather, A::Hierarchical, SharedNodes, 4, 256 * KIB),
    row(C::Allgather, A::Dissemination, Any, 1, 64 * KIB),
    row(C::Allgather, A::Ring, Any, 1, ALL),
    row(C::Gather, A::Inline, OneNode, 1, ALL),
    row(C::Gather, A::CopyInCopyOut, OneNode, 1, STAGED),
    row(C::Gather, A::SingleCopy, OneNode, 1, ALL),
    row(C::Gather, A::BinomialTree, Any, 4, 32 * KIB),
    row(C::Gather, A::Linear, Any, 1, ALL),
    row(C::Scatter, A::Inline, OneNode, 1, ALL),
    row(C::Scatter, A::CopyInCopyOut, OneNode, 1, STAGED),
    row(C::Scatter, A::SingleCopy, OneNode, 1, ALL),
    row(C::Scatter, A::BinomialTree, Any, 4, 32 * KIB),
    row(C::Scatter, A::Linear, Any, 1, ALL),
    row(C::Alltoall, A::Inline, OneNode, 1, ALL),
    row(C::Alltoall, A::CopyInCopyOut, OneNode, 1, STAGED),
    row(C::Alltoall, A::SingleCopy, OneNode, 1, ALL),
    row(C::Alltoall, A::Pairwise, Any, 1, ALL),
];

/// The bytes that the table compares: of one contribution (all-reduce, reduce, broadcast),
/// otherwise of all blocks.
fn bytes(collective: Collective, shape: &Shape) -> u64 {
    use Collective::{Allreduce, Barrier, Broadcast, Reduce};
    match collective {
        Allreduce | Reduce | Broadcast | Barrier => shape.bytes(),
        _ if shape.counts.is_empty() => shape.bytes().saturating_mul(u64::from(shape.size)),
        _ => shape.counts.iter().sum::<u64>().saturating_mul(shape.element_bytes),
    }
}

/// The reason why no algorithm was selected.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unserved {
    /// The algorithm that was asked for does not serve the operation.
    Operation(Algorithm, Collective),
    /// It needs all members on one node.
    NotOneNode(Algorithm),
    /// It serves the operation, but not that much data (or, all-to-all v, not blocks that differ).
    Amount(Algorithm, Collective),
    /// An element is longer than a message.
    Element(u64),
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unserved::Operation(algorithm, collective) => {
                write!(f, "algorithm {algorithm} does not serve {collective}; there are")?;
                let others = Algorithm::ALL.into_iter().filter(|a| a.serves(*collective));
                for (i, other) in others.enumerate() {
                    write!(f, "{}{other}", if i == 0 { " " } else { ", " })?;
                }
                Ok(())
            }
            Unserved::NotOneNode(algorithm) => {
                write!(f, "algorithm {algorithm} needs all members on one node")
            }
            Unserved::Amount(algorithm, collective) => {
                write!(f, "algorithm {algorithm} serves {collective}, but not blocks of that size")
            }
            Unserved::Element(bytes) => {
                write!(f, "an element of {bytes} bytes does not fit into a message")
            }
        }
    }
}

impl std::error::Error for Unserved {}

/// The algorithm for a shape: `wanted` if given, else that of the table. All members get the same.
///
/// # Errors
/// The reason why the wanted one cannot serve it.
pub fn choose(
    collective: Collective,
    shape: &Shape,
    wanted: Option<Algorithm>,
) -> Result<Algorithm, Unserved> {
    if let Some(algorithm) = wanted {
        return if !algorithm.serves(collective) {
            Err(Unserved::Operation(algorithm, collective))
        } else if algorithm.requires_one_node() && !shape.is_one_node() {
            Err(Unserved::NotOneNode(algorithm))
        } else if !algorithm.fits(collective, shape) {
            Err(Unserved::Amount(algorithm, collective))
        } else {
            Ok(algorithm)
        };
    }
    choose_where(collective, shape, |_| true)
}

/// The first algorithm of the table that serves the shape and that `may` allows; then all others
/// are tried. `may` excludes [`Algorithm::requires_reach`] for memory that members cannot reach,
/// and demands [`Algorithm::keeps_order`] for reductions that are not commutative. It has to return
/// the same on all members.
///
/// # Errors
/// If none does.
pub fn choose_where(
    collective: Collective,
    shape: &Shape,
    may: impl Fn(Algorithm) -> bool,
) -> Result<Algorithm, Unserved> {
    first_of(TABLE, collective, shape, may)
}

/// The same in a mode.
///
/// # Errors
/// As [`choose_where`].
pub(crate) fn choose_in(
    mode: Mode,
    collective: Collective,
    shape: &Shape,
    may: impl Fn(Algorithm) -> bool,
) -> Result<Algorithm, Unserved> {
    first_in(mode, TABLE, collective, shape, may)
}

/// The first of a table in a mode. In the stable one the table says without regard to cores how
/// contributions are grouped, and then with regard to them which algorithm of that grouping does
/// it.
fn first_in(
    mode: Mode,
    table: &[Row],
    collective: Collective,
    shape: &Shape,
    may: impl Fn(Algorithm) -> bool,
) -> Result<Algorithm, Unserved> {
    if mode == Mode::Fast || !collective.reduces() {
        return first_of(table, collective, shape, may);
    }
    let anywhere = Shape { shares_cores: false, one_machine: false, ..shape.clone() };
    let grouping = first_of(table, collective, &anywhere, &may)?.grouping();
    first_of(table, collective, shape, |algorithm| {
        algorithm.grouping() == grouping && may(algorithm)
    })
}

/// Whether gaspi_barrier of as many nodes goes along a tree.
fn by_tree(shape: &Shape) -> bool {
    Pattern::of(shape.size as usize, || shape.shares_cores) == Pattern::Tree
}

/// The algorithm of a barrier by messages, wherever the members are.
pub(super) fn meeting(shape: &Shape) -> Result<Algorithm, Unserved> {
    choose_where(Collective::Barrier, shape, |algorithm| !algorithm.requires_one_node())
}

fn first_of(
    table: &[Row],
    collective: Collective,
    shape: &Shape,
    may: impl Fn(Algorithm) -> bool,
) -> Result<Algorithm, Unserved> {
    let bytes = bytes(collective, shape);
    let one_node = shape.is_one_node();
    let nodes = shape.nodes.iter().max().map_or(0, |last| last + 1);
    let fits = |row: &&Row| {
        let is_there = match row.place {
            Place::OneNode => one_node,
            Place::SharedNodes => !one_node && nodes < shape.size,
            Place::OneMachine => shape.one_machine && nodes == shape.size,
            Place::Tree => by_tree(shape),
            Place::Any => true,
        };
        let is_for = row.collective == collective && is_there;
        let bytes_max = match row.algorithm {
            // Blocks that differ may take many arrivals: the longest one decides.
            A::CopyInCopyOut if shape.shares_cores && shape.counts.is_empty() => {
                row.bytes_max.max(staged_sharing(collective, u64::from(shape.size)))
            }
            _ => row.bytes_max,
        };
        is_for && (row.size_min..=row.size_max).contains(&shape.size) && bytes <= bytes_max
    };
    let listed = table.iter().filter(fits).map(|row| row.algorithm);
    listed
        .chain(Algorithm::ALL)
        .find(|algorithm| may(*algorithm) && algorithm.fits(collective, shape))
        .ok_or(Unserved::Element(shape.element_bytes))
}

/// The algorithm within a node where some memory is not mapped by all, in place of copies by the
/// kernel; `None` if those are faster. All members know of such memory before they select.
pub(crate) fn choose_unmapped(collective: Collective, shape: &Shape) -> Option<Algorithm> {
    let bytes = bytes(collective, shape);
    let allreduce = collective == Collective::Allreduce;
    let (algorithm, bytes_max) = match shape.size {
        2 if allreduce => (Algorithm::CopyInCopyOut, UNMAPPED_TWO_MEMBERS),
        // A slice for each member takes less work than all data for each, but more arrivals.
        3.. if allreduce && bytes > STAGED => (Algorithm::SlicedCopy, UNMAPPED),
        _ => (Algorithm::CopyInCopyOut, UNMAPPED),
    };
    (bytes <= bytes_max && algorithm.fits(collective, shape)).then_some(algorithm)
}

#[cfg(test)]
#[path = "select_tests.rs"]
mod tests;
