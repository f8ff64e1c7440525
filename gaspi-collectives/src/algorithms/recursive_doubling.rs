//! Recursive doubling, by messages, for any number of members (see [`super::fold`]).
//!
//! - all-reduce: log2 p rounds, in each of which all data goes both ways between two members; two
//!   more for folded members. Bytes sent by each: log2 p times the data.
//! - all-gather: log2 p rounds with 1, 2, 4, ... blocks; (p - 1)/p of the output.
//! - barrier: the same with empty messages.
//!
//! ```text
//! folded members send what they have to the member behind
//! for distance 1, 2, 4, ... below p:  exchange with active member number ^ distance, combine
//! folded members get the result
//! ```
//!
//! Both members of a pair combine the lower one's data first, which stands for the members just
//! below the higher one's: in order, with equal bits for all.

use super::blocks::{Blocks, Part};
use super::fold::{self, Fold};
use super::program::{Program, Team, scratch};
use super::told::Told;
use crate::collective::Collective;
use crate::steps::{Shape, Span, Step};

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let mut program = Program::new(shape)?;
    let team = Team::all(shape);
    match collective {
        Collective::Allreduce => {
            let whole = Part { offset: 0, bytes: shape.bytes() };
            let (own, sum) = (program.input(whole), program.output(whole));
            let partial = if shape.agreed { sum } else { scratch(whole) };
            allreduce(&mut program, &team, own, partial, sum);
        }
        Collective::Allgather => allgather(&mut program, shape, &team),
        Collective::Barrier => tell(&mut program, &team, &Told::Nothing),
        _ => return None,
    }
    Some(program.into_steps())
}

/// All-reduce of a team, by what lies in `partial` until it knows of all members.
pub(super) fn allreduce(
    program: &mut Program,
    team: &Team,
    mut own: Span,
    partial: Span,
    output: Span,
) {
    let fold = Fold::new(team);
    let (number, folded) = match fold.part(team.me) {
        fold::Part::Active { number, folded } => (number, folded.map(|place| team.member(place))),
        fold::Part::Folded { by } => {
            program.extend(program.sends(team.member(by), own));
            program.extend(program.receives(team.member(by), output));
            return;
        }
    };
    if let Some(peer) = folded {
        program.extend(program.receives_reduced(peer, partial, own, true));
        own = partial;
    }
    for distance in (0..fold.active.ilog2()).map(|round| 1 << round) {
        let peer = team.member(fold.place(number ^ distance));
        let theirs_first = number & distance != 0;
        let is_last = 2 * distance == fold.active;
        let sum = if is_last { output } else { partial };
        let receives = program.receives_reduced(peer, sum, own, theirs_first);
        program.exchange(program.sends_copied(peer, own), receives);
        own = sum;
    }
    if own != output {
        program.copy(output, own);
    }
    program.finish(output);
    if let Some(peer) = folded {
        program.extend(program.sends(peer, output));
    }
}

fn allgather(program: &mut Program, shape: &Shape, team: &Team) {
    let blocks = Blocks::of_members(shape);
    let mine = blocks.block(team.me);
    let input = program.input(Part { offset: 0, bytes: mine.bytes });
    program.copy(program.output(mine), input);
    tell(program, team, &Told::Blocks(&blocks));
}

/// All know of all, whatever is told of them.
fn tell(program: &mut Program, team: &Team, told: &Told<'_>) {
    let fold = Fold::new(team);
    let others = |place: u32| (place + 1, team.size() - 1);
    let (number, folded) = match fold.part(team.me) {
        fold::Part::Active { number, folded } => (number, folded),
        fold::Part::Folded { by } => {
            let peer = team.member(by);
            program.extend(told.sends(program, peer, (team.me, 1)));
            program.extend(told.receives(program, peer, others(team.me)));
            return;
        }
    };
    if let Some(place) = folded {
        program.extend(told.receives(program, team.member(place), (place, 1)));
    }
    for distance in (0..fold.active.ilog2()).map(|round| 1 << round) {
        let peer = number ^ distance;
        let window = |number: u32| fold.stands_for(number & !(distance - 1), distance);
        let member = team.member(fold.place(peer));
        let sends = told.sends(program, member, window(number));
        let receives = told.receives(program, member, window(peer));
        program.exchange(sends, receives);
    }
    if let Some(place) = folded {
        program.extend(told.sends(program, team.member(place), others(place)));
    }
}
