//! Two binary trees, by messages, in pieces that follow each other: each carries half of the data,
//! and who is an inner member of one is a leaf of the other (Sanders, Speck and Träff).
//!
//! - broadcast, reduce: about log2 n rounds, then a piece of either half in each; each member
//!   receives, or sends, the data once and sends, or receives, it at most about once: twice as fast
//!   as a single tree for large data, with far fewer rounds than a ring.
//! - all-reduce: reduce to member 0 and broadcast, a piece being on its way down while the next
//!   ones go up.
//!
//! Places are counted from the root, which is above both trees. The others are the places 1 to m
//! of the first tree and 2 to m + 1 of the second. In a range of places the one with the most zero
//! bits at the end is on top, those before it are on its left, those behind it on its right; so odd
//! places are leaves. What is on the left is combined before, what is on the right behind: in order
//! where the root is member 0.

use super::blocks::{Blocks, Part};
use super::program::{Program, Team, pieces, scratch};
use crate::collective::Collective;
use crate::steps::{Place, Shape, Span, Step};

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let mut program = Program::new(shape)?;
    let team = match collective {
        Collective::Allreduce => Team::all(shape),
        Collective::Broadcast | Collective::Reduce => Team::from_root(shape),
        _ => return None,
    };
    let halves = Blocks::slices(shape, shape.bytes(), 2);
    let of_half = |half: u32, span: &dyn Fn(Part) -> Span| -> Vec<Span> {
        pieces(span(halves.block(half)), program.piece_bytes).collect()
    };
    let both = |span: &dyn Fn(Part) -> Span| [0, 1].map(|half| of_half(half, span));
    let (inputs, outputs) = (both(&|part| program.input(part)), both(&|part| program.output(part)));
    let trees = [0, 1].map(|tree| Family::of(team.me, team.size(), tree));
    let count = inputs[0].len().max(inputs[1].len());
    // A piece is back as many pieces later as the trees have levels, and the root.
    let levels = match collective {
        Collective::Allreduce => team.size().ilog2() as usize + 2,
        _ => 0,
    };
    for turn in 0..count + levels {
        for tree in [0, 1] {
            let Some(input) = inputs[tree].get(turn) else { continue };
            let family = &trees[tree];
            match collective {
                Collective::Broadcast => {
                    down(&mut program, &team, family, outputs[tree][turn], *input);
                }
                _ => {
                    let is_result = collective == Collective::Allreduce || team.me == 0;
                    let to = is_result.then_some(outputs[tree][turn]);
                    up(&mut program, &team, family, *input, to);
                }
            }
        }
        for tree in [0, 1] {
            let back = turn.checked_sub(levels).filter(|_| levels > 0);
            if let Some(output) = back.and_then(|turn| outputs[tree].get(turn)) {
                down(&mut program, &team, &trees[tree], *output, *output);
            }
        }
    }
    Some(program.into_steps())
}

/// The parent and the children of a place in one of the trees.
struct Family {
    parent: Option<u32>,
    left: Option<u32>,
    right: Option<u32>,
}

impl Family {
    /// Of place `me` in the first tree, 0, or the second, 1.
    fn of(me: u32, size: u32, tree: u32) -> Family {
        let top = |(first, last): (u32, u32)| {
            let zeros = ((first - 1) ^ last).ilog2();
            last >> zeros << zeros
        };
        let shown = |range: (u32, u32)| (range.0 <= range.1).then(|| top(range) - tree);
        let mut range = (1 + tree, size - 1 + tree);
        if me == 0 {
            return Family { parent: None, left: None, right: shown(range) };
        }
        let mut parent = 0;
        loop {
            let top = top(range);
            let (left, right) = ((range.0, top - 1), (top + 1, range.1));
            if top == me + tree {
                return Family { parent: Some(parent), left: shown(left), right: shown(right) };
            }
            parent = top - tree;
            range = if me + tree < top { left } else { right };
        }
    }
}

/// A piece from the parent, or at the root from its input, to the children.
fn down(program: &mut Program, team: &Team, family: &Family, output: Span, input: Span) {
    let Family { parent, left, right } = *family;
    if let Some(parent) = parent {
        program.extend(program.receives(team.member(parent), output));
    } else if input != output {
        program.copy(output, input);
    }
    for child in [left, right].into_iter().flatten() {
        program.extend(program.sends(team.member(child), output));
    }
}

/// A piece of the children, combined with the own one, to the parent; at the root it is the result.
fn up(program: &mut Program, team: &Team, family: &Family, own: Span, to: Option<Span>) {
    let Family { parent, left, right } = *family;
    let sum = to.unwrap_or(scratch(Part { offset: 0, bytes: own.bytes }));
    let mut with = own;
    for (child, theirs_first) in [(left, true), (right, false)] {
        let Some(child) = child else { continue };
        program.extend(program.receives_reduced(team.member(child), sum, with, theirs_first));
        with = sum;
    }
    let Some(parent) = parent else {
        if with != sum {
            program.copy(sum, with);
        }
        program.finish(sum);
        return;
    };
    let parent = team.member(parent);
    if with.place == Place::Scratch {
        // The next piece follows in the same scratch.
        program.extend(program.sends_copied(parent, with));
    } else {
        program.extend(program.sends(parent, with));
    }
}
