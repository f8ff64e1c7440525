//! Dissemination, by messages, n members, any number of them: ceil(log2 n) rounds.
//!
//! - barrier: in round k each member sends an empty message to the member 2^k behind it, and takes
//!   one from the member 2^k before it.
//! - all-gather (as Bruck does it, without his rotation): in round k each has the 2^k blocks from
//!   its own on, sends them to the member 2^k before it, and gets the next 2^k from the member 2^k
//!   behind it, the last time only those that are missing. Bytes sent by each: (n - 1)/n of the
//!   output.
//!
//! Blocks go straight to their place in the output. They go round its end as two ranges, the same
//! ones for sender and receiver.

use super::blocks::{Blocks, Part};
use super::program::{Program, Team};
use crate::collective::Collective;
use crate::steps::{Shape, Step};

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let mut program = Program::new(shape)?;
    let team = Team::all(shape);
    match collective {
        Collective::Barrier => barrier(&mut program, &team),
        Collective::Allgather => allgather(&mut program, shape, &team),
        _ => return None,
    }
    Some(program.into_steps())
}

fn distances(size: u32) -> impl Iterator<Item = u32> {
    (0..32).map(|round| 1 << round).take_while(move |distance| *distance < size)
}

/// Nobody leaves before all have come.
pub(super) fn barrier(program: &mut Program, team: &Team) {
    for distance in distances(team.size()) {
        let (to, from) = (team.behind(distance), team.before(distance));
        program.extend([program.signal(to), program.awaited(from)]);
    }
}

fn allgather(program: &mut Program, shape: &Shape, team: &Team) {
    let blocks = Blocks::of_members(shape);
    let size = team.size();
    let mine = blocks.block(team.me);
    let input = program.input(Part { offset: 0, bytes: mine.bytes });
    program.copy(program.output(mine), input);
    for distance in distances(size) {
        let len = distance.min(size - distance);
        let (to, from) = (team.before(distance), team.behind(distance));
        let sent = blocks.cyclic(team.me, len);
        let sends = sent.flat_map(|part| program.sends(to, program.output(part))).collect();
        let got = blocks.cyclic(team.me + distance, len);
        let receives = got.flat_map(|part| program.receives(from, program.output(part))).collect();
        program.exchange(sends, receives);
    }
}
