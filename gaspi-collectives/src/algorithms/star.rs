//! Star, by messages, n members, m pieces: all send what they have to member 0, which combines it
//! and sends the result to all.
//!
//! Steps: n - 1 messages in and n - 1 out for each piece, one hop each. Bytes: member 0 sends and
//! receives n - 1 times the data, each other member once. No algorithm has fewer messages, and in
//! each piece all but member 0 wait once: that counts where members share cores.
//!
//! ```text
//! member 0:  for each piece:       receive from 1, 2, ..., combine, send to 1, 2, ...
//! others:    for t in 0..m + 1:    send piece t      (t < m)
//!                                  receive piece t - 1   (t >= 1)
//! ```
//!
//! Contributions are combined one behind the other, at one member, and copied: in order, with equal
//! bits for all. What comes back shows that all have sent something.

use super::blocks::Part;
use super::program::{Program, scratch};
use crate::collective::Collective;
use crate::steps::{Shape, Step};

/// The member at which contributions meet.
const CENTER: u32 = 0;

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    if collective != Collective::Allreduce {
        return None;
    }
    let mut program = Program::new(shape)?;
    let whole = Part { offset: 0, bytes: shape.bytes() };
    let pieces: Vec<Part> = whole.pieces(program.piece_bytes).collect();
    if shape.me == CENTER {
        for (number, piece) in pieces.into_iter().enumerate() {
            combine(&mut program, shape.size, piece, shape.agreed || number > 0);
        }
    } else {
        hand_in(&mut program, &pieces);
    }
    Some(program.into_steps())
}

/// The sum of a piece, to all. It is in scratch until all others have been heard of, unless that is
/// known before.
fn combine(program: &mut Program, size: u32, piece: Part, all_are_known: bool) {
    let (own, sum) = (program.input(piece), program.output(piece));
    let partial = if all_are_known { sum } else { scratch(Part { offset: 0, ..piece }) };
    let mut with = own;
    for from in 1..size {
        let dst = if from + 1 == size { sum } else { partial };
        program.push(Step::ReceiveReduce { from, dst, with, theirs_first: false });
        with = dst;
    }
    if size == 1 {
        program.copy(sum, own);
    }
    program.finish(sum);
    program.extend((1..size).map(|to| Step::Send { to, src: sum, copied: false }));
}

/// What the others do. They are one piece ahead of the result, which overwrites what they have sent
/// where they reduce in place: it is made of that.
fn hand_in(program: &mut Program, pieces: &[Part]) {
    for turn in 0..=pieces.len() {
        if let Some(piece) = pieces.get(turn) {
            let src = program.input(*piece);
            program.push(Step::Send { to: CENTER, src, copied: false });
        }
        if let Some(piece) = turn.checked_sub(1).and_then(|turn| pieces.get(turn)) {
            let dst = program.output(*piece);
            program.push(Step::Receive { from: CENTER, dst });
        }
    }
}
