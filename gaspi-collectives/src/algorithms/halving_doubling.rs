//! All-reduce by recursive halving and doubling (Rabenseifner), by messages, for any number of
//! members (see [`super::fold`]): 2 log2 p rounds, two more for folded members.
//!
//! Bytes sent by each: 2 (p - 1)/p of the data, as in a ring, in far fewer rounds; where p is not
//! the number of members, folded ones and those that stand for them send all of it once more.
//!
//! ```text
//! folded members send what they have to the member behind
//! for distance 1, 2, 4, ... below p:   with active member number ^ distance: send it its half of
//!                                      the own window, keep and combine the other half
//! for distance p/2, ... 4, 2, 1:       exchange windows, which doubles them
//! folded members get the result
//! ```
//!
//! Partial results lie in memory of their own until the last round of halving, unless all members
//! are known to agree: who gets its message there has heard of all.
//!
//! Neighbours come first, with the most data, and the lower one's data is the left operand: in
//! order. The window of a member is then the slice whose number is its own with the bits reversed.
//! Each slice is combined at one member and copied: equal bits for all.

use super::blocks::{Blocks, Part};
use super::fold::{self, Fold};
use super::program::{Program, Team, scratch, span};
use crate::steps::{Place, Shape, Step};

/// Whether each member hears of all others before it writes its output: by the last message of the
/// halving, if no slice is empty.
pub(super) fn agrees(shape: &Shape) -> bool {
    let active = 1 << shape.size.ilog2();
    let slices = Blocks::slices(shape, shape.bytes(), active);
    (0..active).all(|slice| slices.block(slice).bytes > 0)
}

pub(super) fn steps(shape: &Shape) -> Option<Vec<Step>> {
    let mut program = Program::new(shape)?;
    let team = Team::all(shape);
    let whole = Part { offset: 0, bytes: shape.bytes() };
    let (input, output) = (program.input(whole), program.output(whole));
    let fold = Fold::new(&team);
    let (number, folded) = match fold.part(team.me) {
        fold::Part::Active { number, folded } => (number, folded.map(|place| team.member(place))),
        fold::Part::Folded { by } => {
            program.extend(program.sends(team.member(by), input));
            program.extend(program.receives(team.member(by), output));
            return Some(program.into_steps());
        }
    };
    let mut is_input = true;
    let partial =
        |part| if shape.agreed { span(Place::Output(shape.me), part) } else { scratch(part) };
    if let Some(peer) = folded {
        program.extend(program.receives_reduced(peer, partial(whole), input, true));
        is_input = false;
    }
    let slices = Blocks::slices(shape, whole.bytes, fold.active);
    let rounds = fold.active.ilog2();
    // The slices that this member, or one that differs in the bit of the round, keeps in a round.
    let window = |number: u32, round: u32| {
        let kept = number & ((2 << round) - 1);
        let len = fold.active >> (round + 1);
        slices.range((kept.reverse_bits() >> (31 - round)) * len, len)
    };
    for round in 0..rounds {
        let peer = number ^ (1 << round);
        let member = team.member(fold.place(peer));
        let (sent, kept) = (window(peer, round), window(number, round));
        let own = |part| if is_input { program.input(part) } else { partial(part) };
        let sends = program.sends(member, own(sent));
        let theirs_first = peer < number;
        let is_last = round + 1 == rounds;
        let sum = if is_last { program.output(kept) } else { partial(kept) };
        let receives = program.receives_reduced(member, sum, own(kept), theirs_first);
        program.exchange(sends, receives);
        is_input = false;
    }
    if is_input {
        program.copy(output, input);
    }
    let slice = if rounds == 0 { whole } else { window(number, rounds - 1) };
    program.finish(program.output(slice));
    for round in (0..rounds).rev() {
        let peer = number ^ (1 << round);
        let member = team.member(fold.place(peer));
        let sends = program.sends(member, program.output(window(number, round)));
        let receives = program.receives(member, program.output(window(peer, round)));
        program.exchange(sends, receives);
    }
    if let Some(peer) = folded {
        program.extend(program.sends(peer, output));
    }
    Some(program.into_steps())
}
