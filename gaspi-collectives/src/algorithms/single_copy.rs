//! Everything straight out of all inputs into all outputs, on one node, for memory that the
//! members can reach at each other.
//!
//! Steps: 2 arrivals. Bytes: nothing is copied that need not be: with n members each reads 1/n of
//! all inputs and writes 1/n of all outputs. The second arrival says that nobody uses anybody's
//! memory any more.
//!
//! ```text
//! arrive; await;  all-reduce: slice me of all outputs = slice me of all inputs, combined
//!                 reduce: slice me of the root's output = slice me of all inputs, combined
//!                 broadcast: slice me of all outputs = slice me of the root's input
//!                 reduce-scatter: my output = my block of all inputs, combined
//!                 all-gather: block me of all outputs = my input; or slice me of them, where
//!                     blocks differ
//!                 gather: block me of the root's output = my input
//!                 scatter: my output = my block of the root's input
//!                 all-to-all: my share of the blocks between me and each other, see below
//! arrive; await
//! ```
//!
//! All-to-all in place replaces what others have yet to read. So the two members of a pair each
//! swap one half of the two blocks between them, through scratch of at most [`SWAP_BYTES`].

use super::blocks::{Blocks, Part};
use super::program::{Program, all, one, scratch, span};
use crate::collective::Collective;
use crate::steps::{Carry, Kind, Place, Shape, Step};

/// Bytes that are swapped at a time: they stay in the first-level cache.
const SWAP_BYTES: u64 = 16 << 10;

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let Shape { me, size, root, .. } = *shape;
    let mut program = Program::new(shape)?;
    let blocks = Blocks::of_members(shape);
    let mine = blocks.block(me);
    program.meet(Carry::Nothing);
    let Part { offset, bytes } = Blocks::slices(shape, shape.bytes(), size).block(me);
    match collective {
        Collective::Barrier => return Some(program.into_steps()),
        Collective::Allreduce => {
            program.reduce(all(Kind::Output, offset), all(Kind::Input, offset), bytes);
        }
        Collective::Reduce => {
            program.reduce(one(root, Kind::Output, offset), all(Kind::Input, offset), bytes);
        }
        Collective::Broadcast => {
            program.reduce(all(Kind::Output, offset), one(root, Kind::Input, offset), bytes);
        }
        Collective::ReduceScatter => {
            program.reduce(one(me, Kind::Output, 0), all(Kind::Input, mine.offset), mine.bytes);
        }
        Collective::Allgather if shape.counts.is_empty() => {
            program.reduce(all(Kind::Output, mine.offset), one(me, Kind::Input, 0), mine.bytes);
        }
        Collective::Allgather => gather_slice(&mut program, shape, &blocks),
        Collective::Gather => {
            let input = program.input(Part { offset: 0, bytes: mine.bytes });
            program.copy(span(Place::Output(root), mine), input);
        }
        Collective::Scatter => {
            let output = program.output(Part { offset: 0, bytes: mine.bytes });
            program.copy(output, span(Place::Input(root), mine));
        }
        Collective::Alltoall => swap(&mut program, shape, &blocks),
    }
    program.meet(Carry::Nothing);
    Some(program.into_steps())
}

/// All-gather of blocks that differ: this member's slice of all of them together.
fn gather_slice(program: &mut Program, shape: &Shape, blocks: &Blocks) {
    let slice = Blocks::slices(shape, blocks.whole().bytes, shape.size).block(shape.me);
    for member in 0..shape.size {
        let block = blocks.block(member);
        let start = slice.offset.max(block.offset);
        let end = (slice.offset + slice.bytes).min(block.offset + block.bytes);
        if start < end {
            let input = one(member, Kind::Input, start - block.offset);
            program.reduce(all(Kind::Output, start), input, end - start);
        }
    }
}

/// All-to-all: this member's half of the blocks between it and each other member.
fn swap(program: &mut Program, shape: &Shape, blocks: &Blocks) {
    let Shape { me, size, element_bytes, .. } = *shape;
    let mine = blocks.block(me);
    program.copy(program.output(mine), program.input(mine));
    let piece_bytes = (SWAP_BYTES / element_bytes).max(1) * element_bytes;
    let halves = Blocks::slices(shape, mine.bytes, 2);
    for other in (me + 1..size).chain(0..me) {
        let half = halves.block(u32::from(other < me));
        for piece in half.pieces(piece_bytes) {
            let at = |block: Part| Part { offset: block.offset + piece.offset, bytes: piece.bytes };
            let kept = scratch(Part { offset: 0, bytes: piece.bytes });
            program.copy(kept, span(Place::Input(me), at(blocks.block(other))));
            let theirs = span(Place::Input(other), at(mine));
            program.copy(span(Place::Output(me), at(blocks.block(other))), theirs);
            program.copy(span(Place::Output(other), at(mine)), kept);
        }
    }
}
