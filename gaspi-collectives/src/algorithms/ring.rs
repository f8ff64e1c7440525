//! Ring, by messages between neighbours, segmented: n members, n slices, each in pieces of at most
//! a message.
//!
//! - reduce-scatter: n - 1 rounds; each member sends and receives (n - 1)/n of the input.
//! - all-gather: n - 1 rounds; each member sends and receives (n - 1)/n of the output.
//! - all-reduce: both, 2 (n - 1) rounds and 2 (n - 1)/n of the data each way: the least there can
//!   be.
//!
//! ```text
//! reduce-scatter:  in round r send block me - 1 - r to the next member, while block me - 2 - r
//!                  comes from the member before and is combined with the own one
//! all-gather:      in round r send block me - r, while block me - 1 - r comes
//! ```
//!
//! All-reduces of long data go round in parts, one behind the other, whose slices stay in the
//! caches between what comes and what is sent on.
//!
//! The pieces of a round follow those of the round before without a pause, so that as many messages
//! are under way as a block has pieces. Contributions to a block are combined from the member
//! behind its own onwards, at one member, and copied: equal bits for all, not in order.

use super::blocks::{Blocks, Part};
use super::program::{Program, Team, scratch};
use crate::collective::Collective;
use crate::steps::{Shape, Span, Step};

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let mut program = Program::new(shape)?;
    let team = Team::all(shape);
    match collective {
        Collective::Allreduce => allreduce(&mut program, shape, &team, false),
        Collective::ReduceScatter => reduce_scatter(&mut program, shape, &team),
        Collective::Allgather => {
            let blocks = Blocks::of_members(shape);
            let mine = blocks.block(team.me);
            let input = program.input(Part { offset: 0, bytes: mine.bytes });
            program.copy(program.output(mine), input);
            allgather(&mut program, &team, &blocks, |_, _| false);
        }
        _ => return None,
    }
    Some(program.into_steps())
}

/// Bytes of a slice of long data, whatever the room for messages, on which no bits may depend. Less
/// is in the caches too, but takes more messages. Measured for two and four members.
const SLICE_BYTES: u64 = 512 << 10;

/// All-reduce of a team, from the input or, `in_output`, from what the output holds. Long data goes
/// round in parts.
pub(super) fn allreduce(program: &mut Program, shape: &Shape, team: &Team, in_output: bool) {
    let parts = shape.bytes().div_ceil(SLICE_BYTES * u64::from(team.size())).max(1);
    let parts = Blocks::slices(shape, shape.bytes(), u32::try_from(parts).unwrap_or(u32::MAX));
    for part in parts.all() {
        allreduce_part(program, shape, team, (part, in_output));
    }
}

fn allreduce_part(
    program: &mut Program,
    shape: &Shape,
    team: &Team,
    (whole, in_output): (Part, bool),
) {
    let slices = Blocks::slices_of(shape, whole, team.size());
    let own = |part| if in_output { program.output(part) } else { program.input(part) };
    let contribution = |block: u32| own(slices.block(block));
    let partial = |block: u32| program.output(slices.block(block));
    let steps = reduction(program, team, &contribution, &partial);
    for (sends, receives) in steps {
        program.exchange(sends, receives);
    }
    let mine = slices.block(team.me);
    if team.size() == 1 && !in_output {
        program.copy(program.output(mine), program.input(mine));
    }
    program.finish(program.output(mine));
    allgather(program, team, &slices, |_, _| false);
}

fn reduce_scatter(program: &mut Program, shape: &Shape, team: &Team) {
    let blocks = Blocks::of_members(shape);
    let mine = blocks.block(team.me);
    let result = program.output(Part { offset: 0, bytes: mine.bytes });
    let contribution = |block: u32| program.input(blocks.block(block));
    let partial = |block: u32| {
        let bytes = blocks.block(block).bytes;
        if block == team.me { result } else { scratch(Part { offset: 0, bytes }) }
    };
    let steps = reduction(program, team, &contribution, &partial);
    for (sends, receives) in steps {
        // The next block's partial results follow in the same scratch.
        let copied = sends.into_iter().map(|step| match step {
            Step::Send { to, src, .. } => Step::Send { to, src, copied: true },
            other => other,
        });
        program.exchange(copied.collect(), receives);
    }
    if team.size() == 1 {
        program.copy(result, program.input(mine));
    }
    program.finish(result);
}

/// The messages of each round of a reduce-scatter.
fn reduction(
    program: &Program,
    team: &Team,
    contribution: &dyn Fn(u32) -> Span,
    partial: &dyn Fn(u32) -> Span,
) -> Vec<(Vec<Step>, Vec<Step>)> {
    let size = team.size();
    let (next, last) = (team.behind(1), team.before(1));
    let round = |round: u32| {
        let sent = (team.me + 2 * size - 1 - round) % size;
        let got = (team.me + 2 * size - 2 - round) % size;
        let source = if round == 0 { contribution(sent) } else { partial(sent) };
        let sends = program.sends(next, source);
        (sends, program.receives_reduced(last, partial(got), contribution(got), true))
    };
    (0..size - 1).map(round).collect()
}

/// All-gather of a team, whose members have their own block in their output. Member `m` of it has
/// those blocks that `has(m, block)` says as well, and does not get them.
pub(super) fn allgather(
    program: &mut Program,
    team: &Team,
    blocks: &Blocks,
    has: impl Fn(u32, u32) -> bool,
) {
    let size = team.size();
    for round in 0..size - 1 {
        let sent = (team.me + size - round) % size;
        let got = (team.me + 2 * size - 1 - round) % size;
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        if !has((team.me + 1) % size, sent) {
            sends = program.sends(team.behind(1), program.output(blocks.block(sent)));
        }
        if !has(team.me, got) {
            receives = program.receives(team.before(1), program.output(blocks.block(got)));
        }
        program.exchange(sends, receives);
    }
}
