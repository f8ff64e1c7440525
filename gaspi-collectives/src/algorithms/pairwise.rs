//! Pairwise exchange, by messages, n members: n rounds, in round r members whose numbers add up to
//! r modulo n exchange what they have for each other.
//!
//! - all-to-all, all-to-all v: each block goes once over the wire.
//! - reduce-scatter: likewise, each member combines what comes for it; (n - 1) blocks each way.
//!
//! A pair's blocks are exchanged piece by piece, in both directions at once. In a reduce-scatter
//! the own contribution is first, the others follow in the order of the rounds: not in the order of
//! the members.

use super::blocks::{Blocks, Part};
use super::linear;
use super::program::Program;
use crate::collective::Collective;
use crate::steps::{Shape, Step};

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let Shape { me, size, .. } = *shape;
    let mut program = Program::new(shape)?;
    let partners = (0..size).map(|round| (round + size - me) % size).filter(|peer| *peer != me);
    match collective {
        Collective::Alltoall => linear::alltoall(&mut program, shape, partners),
        Collective::ReduceScatter => {
            let blocks = Blocks::of_members(shape);
            let mine = blocks.block(me);
            let output = program.output(Part { offset: 0, bytes: mine.bytes });
            let mut with = program.input(mine);
            for peer in partners {
                let sends = program.sends(peer, program.input(blocks.block(peer)));
                let receives = program.receives_reduced(peer, output, with, false);
                program.exchange(sends, receives);
                with = output;
            }
            if with != output {
                program.copy(output, with);
            }
            program.finish(output);
        }
        _ => return None,
    }
    Some(program.into_steps())
}
