//! Lengths of the members' inputs and outputs.

use crate::collective::Collective;
use crate::steps::Shape;

/// Bytes of input and output of every member.
pub(super) fn extents(collective: Collective, shape: &Shape) -> Vec<[u64; 2]> {
    let whole = shape.bytes();
    let blocks = |member: u32| {
        let counts = shape.counts.get(member as usize);
        counts.copied().unwrap_or(shape.count) * shape.element_bytes
    };
    let all: u64 = (0..shape.size).map(blocks).sum();
    let at_root = |member: u32, bytes: u64| if member == shape.root { bytes } else { 0 };
    let of = |member: u32| match collective {
        Collective::Allreduce => [whole, whole],
        Collective::Reduce => [whole, at_root(member, whole)],
        Collective::Broadcast => [at_root(member, whole), whole],
        Collective::ReduceScatter => [all, blocks(member)],
        Collective::Allgather => [blocks(member), all],
        Collective::Gather => [blocks(member), at_root(member, all)],
        Collective::Scatter => [at_root(member, all), blocks(member)],
        Collective::Alltoall if shape.sends.is_empty() => [all, all],
        Collective::Alltoall => {
            let bytes = |counts: &[u64]| counts.iter().sum::<u64>() * shape.element_bytes;
            [bytes(&shape.sends), bytes(&shape.receives)]
        }
        Collective::Barrier => [0, 0],
    };
    (0..shape.size).map(of).collect()
}

/// Bytes of the blocks before the one of this member.
pub(super) fn before(shape: &Shape) -> u64 {
    let elements: u64 = match shape.counts.is_empty() {
        true => u64::from(shape.me) * shape.count,
        false => shape.counts[..shape.me as usize].iter().sum(),
    };
    elements * shape.element_bytes
}
