//! The members of a group that are of this node, where these are more than one team of
//! [`crate::sync::teams`]: what they say to each other in the shared area.
//!
//! The words of a team lie in the mark of its first member, so that groups which use the same id
//! have words of their own.

use crate::ids::{GroupId, Rank};
use crate::ranks::Ranks;
use crate::sync::arrival_slot::ArrivalSlot;
use crate::sync::teams::{Found, Members, TEAM, ascend, levels, raise};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::transport::shm::area::SharedArea;

/// The members of this node, and the place of this rank among them.
#[derive(Debug)]
pub(crate) struct Teams {
    locals: Box<[Rank]>,
    me: usize,
    /// The level of the team of all.
    top: usize,
    /// As of which [`ends`](SharedArea::ends) no member had died or left.
    none_ended: AtomicU64,
}

impl Teams {
    /// Those of the members of this rank's node, if these are many.
    pub(crate) fn of(ranks: &[Rank], job: &Ranks) -> Option<Teams> {
        let locals: Box<[Rank]> = ranks.iter().copied().filter(|r| job.is_local(*r)).collect();
        if locals.len() <= TEAM {
            return None;
        }
        let (me, top) = (locals.binary_search(&job.me).ok()?, levels(locals.len(), TEAM) - 1);
        // The area counts ends from 0.
        Some(Teams { locals, me, top, none_ended: AtomicU64::new(0) })
    }

    /// The members of this node, ascending.
    pub(super) fn locals(&self) -> &[Rank] {
        &self.locals
    }

    /// This rank has published its arrival: tells its teams.
    pub(super) fn ascend(
        &self,
        area: &SharedArea,
        group: GroupId,
        (step, signature): (u64, u64),
    ) -> Found {
        let members = OfStep { teams: self, area, group: group.index(), step };
        ascend(&members, self.me, (step, signature))
    }

    /// Whether all members of this node have arrived at `step`, with one signature.
    #[inline]
    pub(super) fn have_all(&self, area: &SharedArea, group: GroupId, step: u64) -> bool {
        let word = area.team_word(self.locals[0], group.index(), self.top);
        // Acquire: pairs with the Release in `raise`; the arrivals of all are seen.
        word.load(Ordering::Acquire) == step
    }

    /// Has each arrival at `step` be told to all from now on; whether it was not so before.
    pub(super) fn raise_alarm(&self, area: &SharedArea, group: GroupId, step: u64) -> bool {
        let is_first = raise(area.alarm_word(self.locals[0], group.index()), step);
        // Pairs with the fence of those that arrive: each sees the alarm, or is seen by whoever is
        // woken because of it.
        fence(Ordering::SeqCst);
        is_first
    }

    /// Whether each arrival at `step` is told to all.
    pub(super) fn is_alarmed(&self, area: &SharedArea, group: GroupId, step: u64) -> bool {
        area.alarm_word(self.locals[0], group.index()).load(Ordering::Acquire) >= step
    }

    /// Whether a member may have died or left since all were seen to take part.
    pub(super) fn may_have_ended(&self, area: &SharedArea) -> bool {
        area.ends() != self.none_ended.load(Ordering::Relaxed)
    }

    /// All members were seen to take part, after these ends.
    pub(super) fn note_none_ended(&self, ends: u64) {
        self.none_ended.store(ends, Ordering::Relaxed);
    }
}

/// The members at one step.
struct OfStep<'a> {
    teams: &'a Teams,
    area: &'a SharedArea,
    group: usize,
    step: u64,
}

impl Members<AtomicU64> for OfStep<'_> {
    fn count(&self) -> usize {
        self.teams.locals.len()
    }

    fn slot(&self, member: usize) -> &ArrivalSlot<AtomicU64> {
        let slots = self.area.arrival_slots(self.teams.locals[member], self.group);
        &slots[(self.step % 2) as usize]
    }

    fn word(&self, member: usize, level: usize) -> &AtomicU64 {
        self.area.team_word(self.teams.locals[member], self.group, level)
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}
