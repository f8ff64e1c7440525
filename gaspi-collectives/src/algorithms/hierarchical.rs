//! Inside the nodes and between them, by messages: only the first member of each node, for rooted
//! operations the root in its node, talks to other nodes. With k nodes of up to l members:
//!
//! - all-reduce: up a binomial tree in each node, all-reduce of the k first ones (recursive
//!   doubling for little data, ring for much), down the tree. Between nodes: 2 (k - 1)/k of the
//!   data, by a ring.
//! - broadcast, reduce: a binomial tree of the first ones, and below each that of its node; pieces
//!   follow each other through both. Between nodes: the data k - 1 times in all.
//! - all-gather: blocks to the first one of each node, round a ring of these, down the trees.
//! - barrier: up the trees, between the first ones by the pattern that gaspi_barrier takes there,
//!   down the trees.
//!
//! Members of a node need not be neighbours: not in order.

use gaspi_core::schedule::Pattern;

use super::binomial_tree::{self, Family};
use super::blocks::{Blocks, Part};
use super::program::{Program, Team, pieces};
use super::{recursive_doubling, ring, told};
use crate::collective::Collective;
use crate::steps::{Shape, Span, Step};

/// Up to here first members double, above they form a ring.
const DOUBLING_BYTES_MAX: u64 = 8 << 10;

/// The members of each node, by what each does.
struct Nodes {
    /// Those of this node, its first one first.
    own: Team,
    /// The first ones, if this is one of them.
    first: Option<Team>,
    /// All members by node, in the order of the first ones.
    all: Vec<Vec<u32>>,
}

impl Nodes {
    /// The nodes and members from `root` on, in their order.
    fn from(shape: &Shape, root: u32) -> Nodes {
        let Shape { me, size, ref nodes, .. } = *shape;
        let mut all: Vec<Vec<u32>> = Vec::new();
        for member in (root..size).chain(0..root) {
            let node = nodes[member as usize];
            match all.iter_mut().find(|members| nodes[members[0] as usize] == node) {
                Some(members) => members.push(member),
                None => all.push(vec![member]),
            }
        }
        let own = all.iter().find(|members| members.contains(&me));
        let own = Team::of(own.cloned().unwrap_or_default(), me);
        let first = all.iter().map(|members| members[0]).collect();
        let first = (own.me == 0).then(|| Team::of(first, me));
        Nodes { own, first, all }
    }
}

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let mut program = Program::new(shape)?;
    let root = if collective.is_rooted() { shape.root } else { 0 };
    let nodes = Nodes::from(shape, root);
    let whole = Part { offset: 0, bytes: shape.bytes() };
    let (input, output) = (program.input(whole), program.output(whole));
    let is_root = shape.me == root;
    match collective {
        Collective::Allreduce => {
            let own = pieces(input, program.piece_bytes).zip(pieces(output, program.piece_bytes));
            for (own, sum) in own {
                binomial_tree::up(&mut program, &nodes.own, own, Some(sum));
            }
            match &nodes.first {
                Some(first) if whole.bytes <= DOUBLING_BYTES_MAX => {
                    recursive_doubling::allreduce(&mut program, first, output, output, output);
                }
                Some(first) => ring::allreduce(&mut program, shape, first, true),
                None => (),
            }
            binomial_tree::broadcast(&mut program, &nodes.own, output);
        }
        Collective::Broadcast => {
            if is_root {
                program.copy(output, input);
            }
            for piece in pieces(output, program.piece_bytes) {
                if let Some(first) = &nodes.first {
                    binomial_tree::down(&mut program, first, piece);
                }
                binomial_tree::down(&mut program, &nodes.own, piece);
            }
        }
        Collective::Reduce => {
            for part in whole.pieces(program.piece_bytes) {
                let to = is_root.then(|| program.output(part));
                let own = program.input(part);
                let sum = binomial_tree::up(&mut program, &nodes.own, own, to);
                if let Some(first) = &nodes.first {
                    binomial_tree::up(&mut program, first, sum, to);
                }
                to.into_iter().for_each(|result| program.finish(result));
            }
        }
        Collective::Allgather => allgather(&mut program, shape, &nodes),
        Collective::Barrier => barrier(&mut program, shape, &nodes),
        _ => return None,
    }
    Some(program.into_steps())
}

/// The blocks of some members, those of neighbours together.
fn runs(blocks: &Blocks, members: &[u32]) -> Vec<Part> {
    let neighbours = members.chunk_by(|before, member| before + 1 == *member);
    neighbours.map(|run| blocks.range(run[0], run.len() as u32)).collect()
}

fn allgather(program: &mut Program, shape: &Shape, nodes: &Nodes) {
    let blocks = Blocks::of_members(shape);
    let mine = blocks.block(shape.me);
    let input = program.input(Part { offset: 0, bytes: mine.bytes });
    let leader = nodes.own.member(0);
    if let Some(first) = &nodes.first {
        program.copy(program.output(mine), input);
        for place in 1..nodes.own.size() {
            let member = nodes.own.member(place);
            program.extend(program.receives(member, program.output(blocks.block(member))));
        }
        let spans = |program: &Program, node: u32| -> Vec<Span> {
            let parts = runs(&blocks, &nodes.all[node as usize]);
            parts.into_iter().map(|part| program.output(part)).collect()
        };
        let size = first.size();
        for round in 0..size - 1 {
            let sent = spans(program, (first.me + size - round) % size);
            let got = spans(program, (first.me + 2 * size - 1 - round) % size);
            let sends = sent.into_iter().flat_map(|span| program.sends(first.behind(1), span));
            let receives = got.into_iter().flat_map(|span| program.receives(first.before(1), span));
            let (sends, receives) = (sends.collect(), receives.collect());
            program.exchange(sends, receives);
        }
    } else {
        program.extend(program.sends(leader, input));
    }
    binomial_tree::broadcast(program, &nodes.own, program.output(blocks.whole()));
}

fn barrier(program: &mut Program, shape: &Shape, nodes: &Nodes) {
    let team = &nodes.own;
    let Family { parent, children } = Family::of(team.me, team.size());
    let parent = parent.map(|parent| team.member(parent));
    for child in &children {
        program.push(program.awaited(team.member(*child)));
    }
    if let Some(parent) = parent {
        program.extend([program.signal(parent), program.awaited(parent)]);
    }
    if let Some(first) = &nodes.first {
        let pattern = Pattern::of(first.size() as usize, || shape.shares_cores);
        told::barrier(program, first, pattern);
    }
    for child in children.iter().rev() {
        program.push(program.signal(team.member(*child)));
    }
}
