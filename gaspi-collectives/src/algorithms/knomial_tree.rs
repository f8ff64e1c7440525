//! K-nomial tree, by messages, n members, m pieces: for up to 16 members a star, of which member 0 is
//! the middle. For short data where members share cores.
//!
//! - all-reduce: each member combines what its children send, sends that to its parent, and hands
//!   the result on: n - 1 messages up and n - 1 down for each piece, no piece before the one ahead of
//!   it is done. Bytes: a member sends its data up once, and down as often as it has children.
//! - barrier: the same with empty messages ([`told`]), along the tree of gaspi_barrier.
//!
//! No algorithm has fewer messages, and most members wait once for each piece: so few context
//! switches are made.
//!
//! Contributions are combined in order, at one member, and copied: equal bits for all. What comes
//! down shows that all have sent something.

use gaspi_core::knomial_tree::KnomialTree;
use gaspi_core::schedule::Pattern;

use super::blocks::Part;
use super::program::{Program, Team, scratch};
use super::told;
use crate::collective::Collective;
use crate::steps::{Shape, Step};

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let mut program = Program::new(shape)?;
    match collective {
        Collective::Allreduce => {
            let whole = Part { offset: 0, bytes: shape.bytes() };
            let pieces: Vec<Part> = whole.pieces(program.piece_bytes).collect();
            for (number, piece) in pieces.into_iter().enumerate() {
                // Whoever has the result of one piece has heard of all.
                allreduce(&mut program, shape, piece, shape.agreed || number > 0);
            }
        }
        Collective::Barrier => told::barrier(&mut program, &Team::all(shape), Pattern::Tree),
        _ => return None,
    }
    Some(program.into_steps())
}

/// What a member does for a piece. What it has combined is in scratch unless all are known to take
/// part; there it stays until the result has come, which is made of it.
fn allreduce(program: &mut Program, shape: &Shape, piece: Part, all_are_known: bool) {
    let tree = KnomialTree::of(shape.size as usize);
    let (parent, me) = (tree.parent(shape.me as usize), shape.me as usize);
    let children: Vec<u32> = tree.children(me).map(|child| child as u32).collect();
    let (own, result) = (program.input(piece), program.output(piece));
    let partial = if all_are_known { result } else { scratch(Part { offset: 0, ..piece }) };
    let mut sum = own;
    for (number, from) in children.iter().copied().enumerate() {
        // The last message to the root tells of the last member.
        let is_last = parent.is_none() && number + 1 == children.len();
        let dst = if is_last { result } else { partial };
        program.push(Step::ReceiveReduce { from, dst, with: sum, theirs_first: false });
        sum = dst;
    }
    match parent.map(|parent| parent as u32) {
        Some(parent) => {
            program.push(Step::Send { to: parent, src: sum, copied: false });
            program.push(Step::Receive { from: parent, dst: result });
        }
        None => {
            if sum != result {
                program.copy(result, sum);
            }
            program.finish(result);
        }
    }
    // The largest subtree has the longest way to go.
    let down = children.into_iter().rev();
    program.extend(down.map(|to| Step::Send { to, src: result, copied: false }));
}
