//! Binomial tree, by messages, in pieces that follow each other down or up the tree: n members, any
//! number of them, ceil(log2 n) levels.
//!
//! - broadcast, reduce: each member but the root receives, or sends, the data once; the root sends
//!   or receives it log2 n times.
//! - all-reduce: reduce to member 0 and broadcast, a piece being on its way down while the next
//!   ones go up.
//! - gather, scatter: what a subtree has goes over each edge in one; the root receives or sends
//!   (n - 1)/n of the data, its children up to half of it.
//!
//! Places are counted from the root, as in gaspi-core's tree. The children of place v are v + 1,
//! v + 2, v + 4, ... up to the lowest bit of v; the subtree of v + 2^k has the 2^k places from
//! there on. Children are combined in that order, each behind what there is: in order where the
//! root is member 0.

use gaspi_core::knomial_tree::KnomialTree;

use super::blocks::{Blocks, Part};
use super::program::{Program, Team, pieces, scratch};
use crate::collective::Collective;
use crate::steps::{Place, Shape, Span, Step};

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let mut program = Program::new(shape)?;
    let team = Team::from_root(shape);
    let whole = Part { offset: 0, bytes: shape.bytes() };
    let (input, output) = (program.input(whole), program.output(whole));
    match collective {
        Collective::Broadcast if team.me == 0 => {
            program.copy(output, input);
            broadcast(&mut program, &team, input);
        }
        Collective::Broadcast => broadcast(&mut program, &team, output),
        Collective::Reduce => {
            for part in whole.pieces(program.piece_bytes) {
                let (own, result) = (program.input(part), program.output(part));
                let to = (team.me == 0).then_some(result);
                up(&mut program, &team, own, to);
                to.into_iter().for_each(|result| program.finish(result));
            }
        }
        Collective::Allreduce => allreduce(&mut program, &Team::all(shape), input, output),
        Collective::Gather => gather(&mut program, shape, &team),
        Collective::Scatter => scatter(&mut program, shape, &team),
        _ => return None,
    }
    Some(program.into_steps())
}

/// The parent and the children of a place.
pub(super) struct Family {
    pub(super) parent: Option<u32>,
    /// From the nearest and smallest to the farthest.
    pub(super) children: Vec<u32>,
}

impl Family {
    pub(super) fn of(place: u32, size: u32) -> Family {
        let (tree, place) = (KnomialTree::binomial(size as usize), place as usize);
        Family {
            parent: tree.parent(place).map(|parent| parent as u32),
            children: tree.children(place).map(|child| child as u32).collect(),
        }
    }
}

/// How many places the subtree of a place has.
pub(super) fn subtree(place: u32, size: u32) -> u32 {
    KnomialTree::binomial(size as usize).subtree(place as usize) as u32
}

/// Sends what the first of the team has in `data` into the `data` of the others.
pub(super) fn broadcast(program: &mut Program, team: &Team, data: Span) {
    for piece in pieces(data, program.piece_bytes) {
        down(program, team, piece);
    }
}

/// A piece from the parent to the children.
pub(super) fn down(program: &mut Program, team: &Team, piece: Span) {
    let family = Family::of(team.me, team.size());
    if let Some(parent) = family.parent {
        program.extend(program.receives(team.member(parent), piece));
    }
    // The largest subtree has the longest way to go.
    for child in family.children.into_iter().rev() {
        program.extend(program.sends(team.member(child), piece));
    }
}

/// A piece of the children, combined with the own one, to the parent. The sum is in `to`, if there
/// is one, else in scratch for one message, which the next piece uses too; says where.
pub(super) fn up(program: &mut Program, team: &Team, own: Span, to: Option<Span>) -> Span {
    let family = Family::of(team.me, team.size());
    let sum = to.unwrap_or(scratch(Part { offset: 0, bytes: own.bytes }));
    let mut with = own;
    for child in family.children {
        program.extend(program.receives_reduced(team.member(child), sum, with, false));
        with = sum;
    }
    match family.parent {
        Some(parent) if with.place == Place::Scratch => {
            program.extend(program.sends_copied(team.member(parent), with));
        }
        Some(parent) => program.extend(program.sends(team.member(parent), with)),
        None if to.is_some() && with != sum => {
            program.copy(sum, with);
            with = sum;
        }
        None => (),
    }
    with
}

fn allreduce(program: &mut Program, team: &Team, input: Span, output: Span) {
    let piece_bytes = program.piece_bytes;
    let own: Vec<Span> = pieces(input, piece_bytes).collect();
    let results: Vec<Span> = pieces(output, piece_bytes).collect();
    // A piece is back as many pieces later as the tree has levels.
    let levels = team.size().next_power_of_two().ilog2() as usize;
    for turn in 0..own.len() + levels {
        if turn < own.len() {
            up(program, team, own[turn], Some(results[turn]));
            if team.me == 0 {
                program.finish(results[turn]);
            }
        }
        if let Some(result) = turn.checked_sub(levels).and_then(|turn| results.get(turn)) {
            down(program, team, *result);
        }
    }
}

/// The blocks of the subtree of a place: one range of the buffer, or two where it goes round its
/// end.
fn subtree_blocks(blocks: &Blocks, team: &Team, place: u32) -> Vec<Part> {
    blocks.cyclic(team.member(place), subtree(place, team.size())).collect()
}

/// Where the blocks of the subtree of `place` lie in the scratch of this member, which has those of
/// its own subtree one behind the other.
fn in_scratch(blocks: &Blocks, team: &Team, place: u32) -> Vec<Span> {
    let before = blocks.cyclic(team.member(team.me), place - team.me);
    let mut offset: u64 = before.map(|part| part.bytes).sum();
    let parts = subtree_blocks(blocks, team, place).into_iter();
    let placed = parts.map(|Part { bytes, .. }| {
        offset += bytes;
        scratch(Part { offset: offset - bytes, bytes })
    });
    placed.collect()
}

fn gather(program: &mut Program, shape: &Shape, team: &Team) {
    let blocks = Blocks::of_members(shape);
    let family = Family::of(team.me, team.size());
    let own = blocks.block(shape.me);
    let input = program.input(Part { offset: 0, bytes: own.bytes });
    let Some(parent) = family.parent else {
        program.copy(program.output(own), input);
        for child in family.children {
            for part in subtree_blocks(&blocks, team, child) {
                let into = program.output(part);
                program.extend(program.receives(team.member(child), into));
            }
        }
        return;
    };
    let parent = team.member(parent);
    if family.children.is_empty() {
        program.extend(program.sends(parent, input));
        return;
    }
    program.copy(scratch(Part { offset: 0, bytes: own.bytes }), input);
    for child in family.children {
        for part in in_scratch(&blocks, team, child) {
            program.extend(program.receives(team.member(child), part));
        }
    }
    for part in in_scratch(&blocks, team, team.me) {
        program.extend(program.sends(parent, part));
    }
}

fn scatter(program: &mut Program, shape: &Shape, team: &Team) {
    let blocks = Blocks::of_members(shape);
    let family = Family::of(team.me, team.size());
    let own = blocks.block(shape.me);
    let output = program.output(Part { offset: 0, bytes: own.bytes });
    let Some(parent) = family.parent else {
        for child in family.children.into_iter().rev() {
            for part in subtree_blocks(&blocks, team, child) {
                program.extend(program.sends(team.member(child), program.input(part)));
            }
        }
        program.copy(output, program.input(own));
        return;
    };
    let parent = team.member(parent);
    if family.children.is_empty() {
        program.extend(program.receives(parent, output));
        return;
    }
    for part in in_scratch(&blocks, team, team.me) {
        program.extend(program.receives(parent, part));
    }
    for child in family.children.into_iter().rev() {
        for part in in_scratch(&blocks, team, child) {
            program.extend(program.sends(team.member(child), part));
        }
    }
    program.copy(output, scratch(Part { offset: 0, bytes: own.bytes }));
}
