//! One member after the other, by messages: the plain form of each operation, n members. Slow for
//! many, but the only one that combines in order for every root and for reduce-scatter.
//!
//! - broadcast, scatter: the root sends to one after the other; gather: it receives so.
//! - reduce, reduce-scatter: contributions come to each receiver in the order of the members.
//! - all-gather, all-to-all, all-to-all v: each exchanges with one after the other, in their order.
//! - all-reduce: along a chain, see [`chain`].
//!
//! Bytes: the root sends or receives n - 1 times the data or block; where there is no root, each
//! does. Reductions go piece by piece, through scratch of one message.

use super::blocks::{Blocks, Part};
use super::chain;
use super::program::{Program, pieces, scratch};
use crate::collective::Collective;
use crate::steps::{Shape, Span, Step};

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let Shape { me, size, root, .. } = *shape;
    let mut program = Program::new(shape)?;
    let blocks = Blocks::of_members(shape);
    let mine = blocks.block(me);
    let own_bytes = Part { offset: 0, bytes: mine.bytes };
    let whole = Part { offset: 0, bytes: shape.bytes() };
    let others = (0..size).filter(|member| *member != me);
    match collective {
        Collective::Broadcast if me == root => {
            let input = program.input(whole);
            program.copy(program.output(whole), input);
            for piece in pieces(input, program.piece_bytes) {
                others.clone().for_each(|to| program.extend(program.sends(to, piece)));
            }
        }
        Collective::Broadcast => program.extend(program.receives(root, program.output(whole))),
        Collective::Scatter if me == root => {
            for to in others {
                program.extend(program.sends(to, program.input(blocks.block(to))));
            }
            program.copy(program.output(own_bytes), program.input(mine));
        }
        Collective::Scatter => program.extend(program.receives(root, program.output(own_bytes))),
        Collective::Gather if me == root => {
            program.copy(program.output(mine), program.input(own_bytes));
            for from in others {
                program.extend(program.receives(from, program.output(blocks.block(from))));
            }
        }
        Collective::Gather => program.extend(program.sends(root, program.input(own_bytes))),
        Collective::Reduce if me == root => {
            for piece in whole.pieces(program.piece_bytes) {
                let (own, to) = (program.input(piece), program.output(piece));
                for from in 0..size {
                    combine_next(&mut program, size, from, own, to, me);
                }
                program.finish(to);
            }
        }
        Collective::Reduce => program.extend(program.sends(root, program.input(whole))),
        Collective::ReduceScatter => reduce_scatter(&mut program, shape, &blocks),
        Collective::Allgather => {
            program.copy(program.output(mine), program.input(own_bytes));
            for other in others {
                let sends = program.sends(other, program.input(own_bytes));
                let receives = program.receives(other, program.output(blocks.block(other)));
                program.exchange(sends, receives);
            }
        }
        Collective::Alltoall => alltoall(&mut program, shape, others),
        Collective::Allreduce => chain::steps(&mut program, shape),
        Collective::Barrier => return None,
    }
    Some(program.into_steps())
}

/// Exchanges with some members; they have to be named in an order that leads all through the pairs
/// without waiting for each other in a circle.
pub(super) fn alltoall(program: &mut Program, shape: &Shape, others: impl Iterator<Item = u32>) {
    let (to, from) = (Blocks::of_sends(shape), Blocks::of_receives(shape));
    program.copy(program.output(from.block(shape.me)), program.input(to.block(shape.me)));
    for other in others {
        // In place, what comes lies where that lay which goes.
        let sends = program.sends_copied(other, program.input(to.block(other)));
        let receives = program.receives(other, program.output(from.block(other)));
        program.exchange(sends, receives);
    }
}

/// Combines the piece of member `next` behind those of the members before it. In place the result
/// lies where the own contribution does: until that is in, and in order, the sum is in scratch.
fn combine_next(program: &mut Program, size: u32, next: u32, own: Span, to: Span, me: u32) {
    let sum = scratch(Part { offset: 0, bytes: own.bytes });
    let dst = if next + 1 == size { to } else { sum };
    if own.bytes == 0 {
        return;
    }
    program.push(match (next == me, next) {
        (true, 0) => Step::Copy { dst, src: own },
        (true, _) => Step::Combine { dst, left: sum, right: own },
        (false, 0) => Step::Receive { from: next, dst },
        (false, _) => Step::ReceiveReduce { from: next, dst, with: sum, theirs_first: false },
    });
}

/// For each piece of the blocks, members send in turn, so that all receive in order.
fn reduce_scatter(program: &mut Program, shape: &Shape, blocks: &Blocks) {
    let Shape { me, size, .. } = *shape;
    let longest = Part { offset: 0, bytes: blocks.longest_bytes() };
    let mine = blocks.block(me);
    for piece in longest.pieces(program.piece_bytes) {
        let of = |block: Part| {
            let start = piece.offset.min(block.bytes);
            let bytes = piece.bytes.min(block.bytes - start);
            Part { offset: block.offset + start, bytes }
        };
        let own = program.input(of(mine));
        let to = program.output(Part { offset: own.offset - mine.offset, bytes: own.bytes });
        for turn in 0..size {
            if turn == me {
                for other in (0..size).filter(|other| *other != me) {
                    let part = of(blocks.block(other));
                    program.extend(program.sends(other, program.input(part)));
                }
            }
            combine_next(program, size, turn, own, to, me);
        }
        program.finish(to);
    }
}
