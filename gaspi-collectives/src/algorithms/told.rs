//! Messages that tell of members: without data, as in a barrier, or with their blocks, as in an
//! all-gather; and the steps of a team whose members tell each other by a schedule of gaspi-core,
//! that of gaspi_barrier.

use gaspi_core::schedule::{Incoming, Nodes, Outgoing, Pattern, Schedule};

use super::blocks::{Blocks, Part};
use super::program::{Program, Team};
use crate::steps::{Shape, Step};

/// What a message has of each member that it tells of.
pub(super) enum Told<'a> {
    Nothing,
    /// The blocks of members that are places of the team.
    Blocks(&'a Blocks),
}

impl Told<'_> {
    /// Tells a member of some members, around the end.
    pub(super) fn sends(&self, program: &Program, to: u32, (first, len): (u32, u32)) -> Vec<Step> {
        match self {
            Told::Nothing => vec![program.signal(to)],
            Told::Blocks(blocks) => {
                let parts = blocks.cyclic(first, len);
                parts.flat_map(|part| program.sends(to, program.output(part))).collect()
            }
        }
    }

    /// Hears from a member of some members, around the end.
    pub(super) fn receives(
        &self,
        program: &Program,
        from: u32,
        (first, len): (u32, u32),
    ) -> Vec<Step> {
        match self {
            Told::Nothing => vec![program.awaited(from)],
            Told::Blocks(blocks) => {
                let parts = blocks.cyclic(first, len);
                parts.flat_map(|part| program.receives(from, program.output(part))).collect()
            }
        }
    }
}

/// Nobody leaves before all have come.
pub(super) fn barrier(program: &mut Program, team: &Team, pattern: Pattern) {
    let schedule = pattern.schedule(team.size() as usize, team.me as usize);
    by_schedule(program, team, (pattern, &schedule), &Told::Nothing);
}

/// All get the blocks of all.
pub(super) fn allgather(program: &mut Program, shape: &Shape, pattern: Pattern) {
    let schedule = pattern.schedule(shape.size as usize, shape.me as usize);
    allgather_by(program, shape, (pattern, &schedule));
}

fn allgather_by(program: &mut Program, shape: &Shape, by: (Pattern, &Schedule)) {
    let blocks = Blocks::of_members(shape);
    let mine = blocks.block(shape.me);
    let input = program.input(Part { offset: 0, bytes: mine.bytes });
    program.copy(program.output(mine), input);
    by_schedule(program, &Team::all(shape), by, &Told::Blocks(&blocks));
}

fn by_schedule(
    program: &mut Program,
    team: &Team,
    (pattern, Schedule { incoming, outgoing }): (Pattern, &Schedule),
    told: &Told<'_>,
) {
    let places = |of: Nodes| (of.first as u32, of.count as u32);
    let member = |place: usize| team.member(place as u32);
    let (mut taken, mut sends) = (0, Vec::new());
    for next in outgoing.iter().map(Some).chain([None]) {
        let until = next.map_or(incoming.len(), |next| next.after);
        let receive = |incoming: &Incoming| {
            told.receives(program, member(incoming.from), places(incoming.of))
        };
        let receives: Vec<Step> = incoming[taken..until].iter().flat_map(receive).collect();
        taken = until;
        match pattern {
            // What comes may depend on what goes.
            Pattern::Tree => program.extend([sends, receives].concat()),
            // All send at once, so that all have to take something in between.
            Pattern::Dissemination => program.exchange(sends, receives),
        }
        let send = |next: &Outgoing| -> Vec<Step> {
            let to = next.to.iter().map(|to| member(*to));
            to.flat_map(|to| told.sends(program, to, places(next.of))).collect()
        };
        sends = next.map(send).unwrap_or_default();
    }
}

#[cfg(test)]
#[path = "told_tests.rs"]
mod tests;
