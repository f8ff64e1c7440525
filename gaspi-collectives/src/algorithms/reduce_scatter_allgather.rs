//! Two halves, by messages, n members, n slices: scatter or reduce-scatter, then gather or
//! all-gather.
//!
//! - all-reduce: each sends slice p to member p and combines what comes for its own slice, then
//!   sends that to everybody: 2 (n - 1) messages, but only two after each other; 2 (n - 1)/n of the
//!   data.
//! - reduce: the same, but the slices go to the root only.
//! - broadcast: the root scatters slices down a binomial tree, each member the slices of its
//!   subtree; then they go round in a ring, but for those that a member has already: log2 n + n - 1
//!   rounds, at most twice the data in and out of each.
//!
//! Contributions are combined in the order in which members meet, the own one first: not in order,
//! but at one member, and copied: equal bits for all.

use super::binomial_tree::{Family, subtree};
use super::blocks::{Blocks, Part};
use super::program::{Program, Team, scratch};
use super::ring;
use crate::collective::Collective;
use crate::steps::{Shape, Step};

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let mut program = Program::new(shape)?;
    match collective {
        Collective::Allreduce | Collective::Reduce => reduce(&mut program, collective, shape),
        Collective::Broadcast => broadcast(&mut program, shape),
        _ => return None,
    }
    Some(program.into_steps())
}

fn reduce(program: &mut Program, collective: Collective, shape: &Shape) {
    let Shape { me, size, root, .. } = *shape;
    let slices = Blocks::slices(shape, shape.bytes(), size);
    let mine = slices.block(me);
    let partners = || (0..size).map(|round| (round + size - me) % size).filter(|peer| *peer != me);
    let at_all = collective == Collective::Allreduce;
    let sum = if at_all || me == root {
        program.output(mine)
    } else {
        scratch(Part { offset: 0, bytes: mine.bytes })
    };
    let mut with = program.input(mine);
    for peer in partners() {
        let sends = program.sends(peer, program.input(slices.block(peer)));
        let receives = program.receives_reduced(peer, sum, with, false);
        program.exchange(sends, receives);
        with = sum;
    }
    if with != sum {
        program.copy(sum, with);
    }
    program.finish(sum);
    for peer in partners() {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        if at_all || peer == root {
            sends = program.sends(peer, sum);
        }
        if at_all || me == root {
            receives = program.receives(peer, program.output(slices.block(peer)));
        }
        program.exchange(sends, receives);
    }
}

fn broadcast(program: &mut Program, shape: &Shape) {
    let team = Team::from_root(shape);
    let size = team.size();
    let slices = Blocks::slices(shape, shape.bytes(), size);
    let family = Family::of(team.me, size);
    let of_subtree = |place: u32| program.output(slices.range(place, subtree(place, size)));
    let mut steps = Vec::new();
    if let Some(parent) = family.parent {
        steps.extend(program.receives(team.member(parent), of_subtree(team.me)));
    }
    for child in family.children.into_iter().rev() {
        steps.extend(program.sends(team.member(child), of_subtree(child)));
    }
    if team.me == 0 {
        program.copy(program.output(slices.whole()), program.input(slices.whole()));
    }
    program.extend(steps);
    let has = |place: u32, slice: u32| (place..place + subtree(place, size)).contains(&slice);
    ring::allgather(program, &team, &slices, has);
}
