//! Any number of members as a power of two: of the first members, each two neighbours count as one.
//!
//! With n = p + rest members, p a power of two, the members 0, 2, 4, ... below 2 rest are *folded*
//! into their neighbours behind. The p others are *active* and numbered in their order, so an
//! active member stands for one or two members that are neighbours, and a range of active members
//! for a range of members.

use super::program::{Program, Team};
use crate::steps::{Shape, Step};

/// What a member of a team does in a folded algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Is represented by the member at that place of the team.
    Folded {
        /// Which.
        by: u32,
    },
    /// Takes part.
    Active {
        /// Its number among the active ones.
        number: u32,
        /// The place of the member that it represents besides itself.
        folded: Option<u32>,
    },
}

/// The steps of a folded algorithm with a message without data, first of all, from each active
/// member to the one that it stands for. That one hears otherwise of nothing but the result, and
/// so not that others have begun.
pub(crate) fn telling_of_begin(shape: &Shape, mut steps: Vec<Step>) -> Vec<Step> {
    let (team, Some(program)) = (Team::all(shape), Program::new(shape)) else { return steps };
    match Fold::new(&team).part(team.me) {
        Part::Active { folded: Some(place), .. } => {
            steps.insert(0, program.signal(team.member(place)));
        }
        Part::Active { .. } => {}
        Part::Folded { by } => {
            let result = steps.iter().position(|step| matches!(step, Step::Receive { .. }));
            let result = result.unwrap_or(steps.len());
            steps.insert(result, program.awaited(team.member(by)));
        }
    }
    steps
}

/// A team folded to a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fold {
    /// Active members.
    pub(super) active: u32,
    /// Folded members.
    rest: u32,
}

impl Fold {
    pub(super) fn new(team: &Team) -> Fold {
        let size = team.size();
        let active = 1 << size.ilog2();
        Fold { active, rest: size - active }
    }

    /// What the member at that place does.
    pub(super) fn part(&self, place: u32) -> Part {
        if place >= 2 * self.rest {
            return Part::Active { number: place - self.rest, folded: None };
        }
        if place.is_multiple_of(2) {
            return Part::Folded { by: place + 1 };
        }
        Part::Active { number: place / 2, folded: Some(place - 1) }
    }

    /// The place of an active member.
    pub(super) fn place(&self, number: u32) -> u32 {
        if number < self.rest { 2 * number + 1 } else { number + self.rest }
    }

    /// The places that the active members from `number` on stand for: the first, and how many.
    pub(super) fn stands_for(&self, number: u32, len: u32) -> (u32, u32) {
        let first = |number: u32| if number < self.rest { 2 * number } else { number + self.rest };
        (first(number), first(number + len) - first(number))
    }
}
