//! All-reduce along a chain of the members, by messages, n members, m pieces: partial results go up
//! from one member to the next, in the order of the members; the result goes down a binary tree
//! whose root is the last member.
//!
//! Steps: n - 1 messages up and n - 1 down for each piece. A piece takes n - 1 hops up and
//! floor(log2 n) down; others follow it at once. Bytes: a member sends its data up once, and down
//! twice at most. Contributions are combined one behind the other, so the bits are those of a loop
//! over the members.
//!
//! ```text
//! for t in 0..m + lag:  receive piece t from member - 1, combine, send to member + 1   (t < m)
//!                       receive piece t - lag from the parent, send to the children    (t >= lag)
//! ```
//!
//! A member lags so many pieces as are on their way between what it sends up and what comes down,
//! but no more than the ring of a pair has slots: so no circle of members waits for room. What goes
//! down overwrites partial results which the next member has taken, since the result is made of
//! them.

use super::blocks::Part;
use super::program::Program;
use crate::steps::{Shape, Step};

/// The place of a member in the tree: 0 is the root, 2 p + 1 and 2 p + 2 are below p.
#[derive(Clone, Copy, Debug)]
struct Place {
    me: u32,
    size: u32,
}

impl Place {
    fn number(self) -> u64 {
        u64::from(self.size - 1 - self.me)
    }

    fn member(self, number: u64) -> Option<u32> {
        u32::try_from(number).ok().filter(|number| *number < self.size).map(|n| self.size - 1 - n)
    }

    fn parent(self) -> Option<u32> {
        self.number().checked_sub(1).and_then(|number| self.member(number / 2))
    }

    fn children(self) -> impl Iterator<Item = u32> {
        [1, 2].into_iter().filter_map(move |child| self.member(2 * self.number() + child))
    }

    /// Hops from this member up to the root and down to itself.
    fn hops(self) -> u64 {
        self.number() + u64::from((self.number() + 1).ilog2())
    }
}

pub(super) fn steps(program: &mut Program, shape: &Shape) {
    let Shape { me, size, .. } = *shape;
    let whole = Part { offset: 0, bytes: shape.bytes() };
    let pieces: Vec<Part> = whole.pieces(program.piece_bytes).collect();
    let place = Place { me, size };
    let lag = place.hops().min(u64::from(shape.slots)) as usize;
    for turn in 0..pieces.len() + lag {
        if let Some(piece) = pieces.get(turn) {
            up(program, place, *piece);
        }
        if let Some(piece) = turn.checked_sub(lag).and_then(|turn| pieces.get(turn)) {
            down(program, place, *piece);
        }
    }
}

/// Combines a piece of this member with those before it.
fn up(program: &mut Program, Place { me, size }: Place, piece: Part) {
    let (input, output) = (program.input(piece), program.output(piece));
    let mut partial = input;
    if me > 0 {
        partial = output;
        let (from, theirs_first) = (me - 1, true);
        program.push(Step::ReceiveReduce { from, dst: output, with: input, theirs_first });
    }
    if me + 1 < size {
        program.push(Step::Send { to: me + 1, src: partial, copied: false });
    } else {
        if me == 0 {
            program.copy(output, input);
        }
        program.push(Step::Finish { span: output });
    }
}

/// Hands a piece of the result on.
fn down(program: &mut Program, place: Place, piece: Part) {
    let output = program.output(piece);
    if let Some(from) = place.parent() {
        program.push(Step::Receive { from, dst: output });
    }
    program.extend(place.children().map(|to| Step::Send { to, src: output, copied: false }));
}
