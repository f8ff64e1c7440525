//! How the last of many members that arrive is found, to wake those that sleep.
//!
//! The members of a team count their arrivals, of all steps together. Who makes the count of a step
//! full counts for its team in the same way, and the last team's finds that all have arrived.
//!
//! A member may go on to the next step, and count there, before another one that has arrived has
//! counted. Then the former makes the count of the step full.
//!
//! Invariant: **of each step exactly one member finds that all have arrived, and they have**: a
//! member counts behind its arrival, and for the next step only when it has seen all arrivals.

use super::{Ordering, Word64};

/// The counts that lie with each member.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ArrivalCounts<W> {
    /// Arrivals of the members of the team that begins with this member.
    pub of_team: Count<W>,
    /// Complete teams, with the first member of all.
    pub of_teams: Count<W>,
}

/// A count that only grows.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Count<W>(W);

impl<W: Word64> Count<W> {
    /// Counts one: whether the count of a step is full with it, where it has so many. Who finds
    /// that sees what all that have counted did before.
    #[inline]
    pub fn add(&self, members: u64) -> bool {
        // AcqRel: each hands on what those before it have handed on.
        (self.0.fetch_add(1, Ordering::AcqRel) + 1).is_multiple_of(members)
    }
}
