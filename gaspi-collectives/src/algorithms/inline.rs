//! Everything of at most [`LINE_BYTES`] a member, on one node: the input rides in the line of the
//! arrival, everybody takes what it needs out of the lines.
//!
//! Steps: 1 arrival. Bytes: each member writes one cache line and reads at most n of them.
//!
//! ```text
//! arrive with the input; await; output = what belongs there, combined in the order of the lines
//! ```

use super::blocks::{Blocks, Part};
use super::program::{Program, all, one};
use crate::collective::Collective;
use crate::steps::{Carry, Kind, LINE_BYTES, Shape, Step};

/// Whether nobody's input is too long.
pub(super) fn fits(collective: Collective, shape: &Shape) -> bool {
    let blocks = || Blocks::of_members(shape);
    let longest = match collective {
        Collective::Barrier => 0,
        Collective::Allreduce | Collective::Reduce | Collective::Broadcast => shape.bytes(),
        Collective::Allgather | Collective::Gather => blocks().longest_bytes(),
        Collective::Scatter | Collective::ReduceScatter | Collective::Alltoall => {
            blocks().whole().bytes
        }
    };
    longest <= LINE_BYTES
}

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let Shape { me, root, .. } = *shape;
    let mut program = Program::new(shape)?;
    let blocks = Blocks::of_members(shape);
    let whole = blocks.whole().bytes;
    let mine = blocks.block(me);
    let carried = match collective {
        Collective::Barrier => 0,
        Collective::Broadcast | Collective::Scatter if me != root => 0,
        Collective::Allreduce | Collective::Reduce | Collective::Broadcast => shape.bytes(),
        Collective::Allgather | Collective::Gather => mine.bytes,
        Collective::Scatter | Collective::ReduceScatter | Collective::Alltoall => whole,
    };
    let input = program.input(Part { offset: 0, bytes: carried });
    program.meet(if carried > 0 { Carry::Data(input) } else { Carry::Nothing });
    let output = |offset| one(me, Kind::Output, offset);
    match collective {
        Collective::Barrier => (),
        Collective::Allreduce => program.reduce(output(0), all(Kind::Line, 0), carried),
        Collective::Reduce if me == root => {
            program.reduce(output(0), all(Kind::Line, 0), carried);
        }
        Collective::ReduceScatter => {
            program.reduce(output(0), all(Kind::Line, mine.offset), mine.bytes);
        }
        Collective::Broadcast => {
            program.reduce(output(0), one(root, Kind::Line, 0), shape.bytes());
        }
        Collective::Scatter => {
            program.reduce(output(0), one(root, Kind::Line, mine.offset), mine.bytes);
        }
        Collective::Gather if me != root => (),
        Collective::Gather | Collective::Allgather => {
            for member in 0..shape.size {
                let Part { offset, bytes } = blocks.block(member);
                program.reduce(output(offset), one(member, Kind::Line, 0), bytes);
            }
        }
        Collective::Alltoall => {
            for member in 0..shape.size {
                let Part { offset, bytes } = blocks.block(member);
                program.reduce(output(offset), one(member, Kind::Line, mine.offset), bytes);
            }
        }
        Collective::Reduce => (),
    }
    Some(program.into_steps())
}
