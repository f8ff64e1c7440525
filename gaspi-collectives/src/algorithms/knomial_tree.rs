//! K-nomial tree, by messages, n members, m pieces: for up to 16 members a star. For short data
//! where members share cores.
//!
//! - all-reduce: each member combines what its children send, sends that to its parent, and hands
//!   the result on: n - 1 messages up and n - 1 down for each piece, no piece before the one ahead
//!   of it is done. Bytes: a member sends its data up once, and down as often as it has children.
//! - barrier: the same with empty messages ([`told`]), along the tree of gaspi_barrier.
//!
//! No algorithm has fewer messages, and most members wait once for each piece: so few context
//! switches are made.
//!
//! Contributions are combined as recursive doubling does, but at one member, and copied: equal bits
//! for all, and those of that algorithm. For that each subtree of gaspi-core's tree stands for what
//! doubling combines as well, whatever the number of members, and a member with many children keeps
//! up to log2 n sums. What comes down shows that all have sent something.

use gaspi_core::knomial_tree::KnomialTree;
use gaspi_core::schedule::Pattern;

use super::blocks::Part;
use super::program::{Program, Team, scratch};
use super::told;
use crate::collective::Collective;
use crate::steps::{Shape, Span, Step};

/// Sums in scratch begin at multiples of this.
const LINE: u64 = 64;

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
    let (tree, me) =
        (KnomialTree::with_root(shape.size as usize, shape.root as usize), shape.me as usize);
    let children: Vec<usize> = tree.children(me).collect();
    let parent = tree.parent(me).map(|parent| parent as u32);
    let result = program.output(piece);
    let mut sums = Sums::new(tree, piece, all_are_known.then_some(result));
    sums.add(program.input(piece), tree.width(me));
    for child in &children {
        sums.receive(*child as u32, tree.span(*child));
    }
    let (mut steps, sum) = sums.finish();
    match parent {
        Some(to) => {
            program.extend(steps);
            program.push(Step::Send { to, src: sum, copied: false });
            program.push(Step::Receive { from: to, dst: result });
        }
        None => {
            // The last step knows of the last member.
            match steps.last_mut() {
                Some(Step::ReceiveReduce { dst, .. } | Step::Combine { dst, .. }) => *dst = result,
                _ => program.copy(result, sum),
            }
            program.extend(steps);
            program.finish(result);
        }
    }
    // The largest subtree has the longest way to go.
    let down = children.into_iter().rev();
    program.extend(down.map(|to| Step::Send { to: to as u32, src: result, copied: false }));
}

/// Sums of neighbouring members while they are combined: two of the same weight become one.
struct Sums {
    tree: KnomialTree,
    piece: Part,
    /// Where the first one may lie, if not in scratch.
    first: Option<Span>,
    /// Where they lie, and their weights.
    sums: Vec<(Span, usize)>,
    steps: Vec<Step>,
}

impl Sums {
    fn new(tree: KnomialTree, piece: Part, first: Option<Span>) -> Sums {
        Sums { tree, piece, first, sums: Vec::new(), steps: Vec::new() }
    }

    /// Where the sum with so many before it lies.
    fn place(&self, before: usize) -> Span {
        let stride = self.piece.bytes.next_multiple_of(LINE);
        let part = Part { offset: before as u64 * stride, bytes: self.piece.bytes };
        self.first.filter(|_| before == 0).unwrap_or_else(|| scratch(part))
    }

    /// What lies in a span comes next.
    fn add(&mut self, span: Span, weight: usize) {
        self.sums.push((span, weight));
        self.combine();
    }

    /// What a member sends comes next.
    fn receive(&mut self, from: u32, weight: usize) {
        match self.sums.pop() {
            Some((with, of)) if of == weight => {
                let dst = self.place(self.sums.len());
                let theirs_first = self.tree.is_turned(weight);
                self.steps.push(Step::ReceiveReduce { from, dst, with, theirs_first });
                self.add(dst, 2 * weight);
            }
            last => {
                self.sums.extend(last);
                let dst = self.place(self.sums.len());
                self.steps.push(Step::Receive { from, dst });
                self.add(dst, weight);
            }
        }
    }

    /// Combines the last two as long as they weigh the same.
    fn combine(&mut self) {
        while let [.., (first, one), (second, other)] = self.sums[..]
            && one == other
        {
            self.sums.truncate(self.sums.len() - 2);
            let dst = self.place(self.sums.len());
            let is_turned = self.tree.is_turned(one);
            let (left, right) = if is_turned { (second, first) } else { (first, second) };
            self.steps.push(Step::Combine { dst, left, right });
            self.sums.push((dst, 2 * one));
        }
    }

    /// The steps, and where the sum of all lies.
    fn finish(self) -> (Vec<Step>, Span) {
        (self.steps, self.sums[0].0)
    }
}
