//! Everything through staging, on one node: every member copies a chunk of its input to its stage,
//! everybody takes what it needs out of all stages.
//!
//! Steps: 1 arrival for each chunk. Bytes: each member copies its input once and reads what its
//! output is made of: n times its bytes for reductions, its output for the others. For memory that
//! the others cannot reach, as long as that is little or they are few.
//!
//! ```text
//! for each chunk c:  stage = input c; arrive; await
//!                    output c = what belongs there, combined in the order of the members
//! ```
//!
//! A chunk is `stage_bytes` of what each member has (all-reduce, reduce, broadcast, all-gather,
//! gather), or has for every member a piece of its block (reduce-scatter, scatter, all-to-all).
//! There are two stages at least, used in turn: a member writes stage c + 2 after it awaited
//! arrival c + 1, which every member makes after its last read of stage c. In place is right, since
//! what a chunk of output overwrites is the same chunk of input, which is staged.

use super::blocks::{Blocks, Part};
use super::program::{Program, all, one, span};
use crate::collective::Collective;
use crate::steps::{Carry, Kind, Place, Shape, Step};

/// Whether an element fits into a stage, or one for each member.
pub(super) fn fits(collective: Collective, shape: &Shape) -> bool {
    match collective {
        Collective::Barrier => true,
        Collective::ReduceScatter | Collective::Scatter | Collective::Alltoall => {
            piece_bytes(shape) > 0
        }
        _ => shape.element_bytes <= shape.stage_bytes,
    }
}

/// Bytes of a full piece of one member's block.
fn piece_bytes(shape: &Shape) -> u64 {
    let Shape { size, element_bytes, stage_bytes, .. } = *shape;
    stage_bytes / u64::from(size) / element_bytes * element_bytes
}

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let chunk_bytes = shape.stage_bytes / shape.element_bytes * shape.element_bytes;
    let mut program = Program::new(shape)?;
    match collective {
        Collective::Barrier => program.meet(Carry::Nothing),
        Collective::Allreduce | Collective::Reduce | Collective::Broadcast => {
            for chunk in (Part { offset: 0, bytes: shape.bytes() }).pieces(chunk_bytes) {
                same(&mut program, collective, shape, chunk);
            }
        }
        Collective::Allgather | Collective::Gather => {
            gathered(&mut program, collective, shape, chunk_bytes);
        }
        Collective::ReduceScatter | Collective::Scatter | Collective::Alltoall => {
            divided(&mut program, collective, shape);
        }
    }
    Some(program.into_steps())
}

/// A chunk of what has the same length at all members.
fn same(program: &mut Program, collective: Collective, shape: &Shape, chunk: Part) {
    let Shape { me, size, root, .. } = *shape;
    let Part { offset, bytes } = chunk;
    if collective != Collective::Broadcast || me == root {
        program.copy(program.stage(Part { offset: 0, bytes }), program.input(chunk));
    }
    program.meet(Carry::Nothing);
    let output = one(me, Kind::Output, offset);
    match collective {
        Collective::Broadcast if me == root => {
            program.copy(program.output(chunk), program.input(chunk));
        }
        Collective::Broadcast => program.reduce(output, one(root, Kind::Stage, 0), bytes),
        Collective::Reduce if me != root => (),
        Collective::Allreduce if size == 2 => {
            // Own input is nearer than what has been made of it for the other.
            let (mine, theirs) = (program.input(chunk), Part { offset: 0, bytes });
            let theirs = span(Place::Stage(1 - me), theirs);
            let (left, right) = if me == 0 { (mine, theirs) } else { (theirs, mine) };
            program.push(Step::Combine { dst: program.output(chunk), left, right });
            program.finish(program.output(chunk));
        }
        _ => program.reduce(output, all(Kind::Stage, 0), bytes),
    }
}

/// All chunks of blocks that end in one output.
fn gathered(program: &mut Program, collective: Collective, shape: &Shape, chunk_bytes: u64) {
    let Shape { me, size, root, .. } = *shape;
    let blocks = Blocks::of_members(shape);
    for start in (0..blocks.longest_bytes()).step_by(chunk_bytes as usize) {
        let mine = cut(blocks.block(me), start, chunk_bytes);
        program.copy(
            program.stage(Part { offset: 0, bytes: mine.bytes }),
            program.input(Part { offset: start, bytes: mine.bytes }),
        );
        program.meet(Carry::Nothing);
        if collective == Collective::Gather && me != root {
            continue;
        }
        for turn in 0..size {
            // Everyone begins with itself, so that they do not all read the same member at once.
            let member = (me + turn) % size;
            let theirs = cut(blocks.block(member), start, chunk_bytes);
            let staged = span(Place::Stage(member), Part { offset: 0, bytes: theirs.bytes });
            program.copy(program.output(theirs), staged);
        }
    }
}

/// All chunks of inputs that consist of a block for each member.
fn divided(program: &mut Program, collective: Collective, shape: &Shape) {
    let Shape { me, size, root, .. } = *shape;
    let piece_bytes = piece_bytes(shape);
    let blocks = Blocks::of_members(shape);
    let slot = |member: u32| u64::from(member) * piece_bytes;
    for start in (0..blocks.longest_bytes()).step_by(piece_bytes as usize) {
        if collective != Collective::Scatter || me == root {
            for member in 0..size {
                let piece = cut(blocks.block(member), start, piece_bytes);
                let staged = Part { offset: slot(member), bytes: piece.bytes };
                program.copy(program.stage(staged), program.input(piece));
            }
        }
        program.meet(Carry::Nothing);
        let mine = cut(blocks.block(me), start, piece_bytes);
        let staged = Part { offset: slot(me), bytes: mine.bytes };
        let output = Part { offset: start, bytes: mine.bytes };
        match collective {
            Collective::ReduceScatter => {
                let output = one(me, Kind::Output, start);
                program.reduce(output, all(Kind::Stage, slot(me)), mine.bytes);
            }
            Collective::Scatter => {
                program.copy(program.output(output), span(Place::Stage(root), staged));
            }
            _ => {
                for member in (me..size).chain(0..me) {
                    let piece = cut(blocks.block(member), start, piece_bytes);
                    program.copy(program.output(piece), span(Place::Stage(member), staged));
                }
            }
        }
    }
}

/// The bytes of a block from `start` on, at most so many.
fn cut(block: Part, start: u64, bytes: u64) -> Part {
    let start = start.min(block.bytes);
    Part { offset: block.offset + start, bytes: bytes.min(block.bytes - start) }
}
