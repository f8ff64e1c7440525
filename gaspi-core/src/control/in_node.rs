//! Steps among the members of a node: whom an arrival wakes, and what a member that waits looks at.
//!
//! Up to 16 members look at each other's arrival slots, and each arrival wakes all. More form teams
//! ([`Teams`]): the last one to arrive wakes the others, or the leader of the node where the group
//! spans nodes, and nobody else is woken. All of that is a shortcut. An alarm ends it for a step:
//! from then on each arrival wakes all, and all look at all slots. A member raises it that sees
//! another signature, has failed in an earlier step of the group, tells of a failure, or waits for
//! 1 ms per member. Ends of ranks wake all in any case.

use super::call::{GroupCall, Scan};
use super::teams::Teams;
use crate::ids::Rank;
use crate::os::clock;
use crate::sync::teams::Found;
use crate::transport::shm::area::{liveness, wake_kind};
use std::time::Duration;

/// A member waits so long for each member before it raises the alarm.
const PATIENCE: Duration = Duration::from_millis(1);

impl GroupCall<'_> {
    /// The teams of the members, where all are of this node.
    #[inline]
    pub(super) fn local_teams(&self) -> Option<&Teams> {
        let committed = self.state.committed.as_ref()?;
        committed.teams.as_ref().filter(|_| !committed.remote)
    }

    /// Lets the members of this node know of this rank's arrival at `step`, which is published.
    pub(super) fn arrive_in_node(&mut self, step: u64) {
        let (area, me) = (&self.inner.ranks.area, self.inner.ranks.me);
        let wake = |rank: &Rank| area.wake_for(*rank, wake_kind::ARRIVAL);
        let Some(committed) = &self.state.committed else { return };
        let others = |ranks: &[Rank]| ranks.iter().filter(|rank| **rank != me).for_each(wake);
        let Some(teams) = &committed.teams else {
            let is_local = |rank: &&Rank| self.inner.ranks.is_local(**rank) && **rank != me;
            committed.ranks.iter().filter(is_local).for_each(wake);
            return;
        };
        let found = teams.ascend(area, self.group, (step, self.key.signature));
        let by_teams = !committed.remote || self.goes_by_leaders(step);
        if found == Found::Difference || committed.failed || !by_teams {
            teams.raise_alarm(area, self.group, step);
        }
        if teams.is_alarmed(area, self.group, step) {
            others(teams.locals());
        } else if found == Found::All {
            others(if committed.remote { &teams.locals()[..1] } else { teams.locals() });
        }
        if let Some(active) = &mut self.state.active {
            active.quiet_since = Some(clock::now());
        }
    }

    /// What is known of a step without a look at all members; `None` if that has to be.
    pub(super) fn look_at_teams(&self, step: u64) -> Option<Option<Scan>> {
        let teams = self.local_teams()?;
        let area = &self.inner.ranks.area;
        if teams.have_all(area, self.group, step) {
            return Some(Some(Scan::Done(Ok(()))));
        }
        let failed = self.state.committed.as_ref().is_none_or(|committed| committed.failed);
        if failed || teams.is_alarmed(area, self.group, step) || teams.may_have_ended(area) {
            return None;
        }
        let closed = self.inner.check_open().err();
        Some(closed.map(|error| Scan::Done(Err(error))))
    }

    /// Notes it if all members take part, so that the next look need not be at all of them. `ends`
    /// was read before all were looked at, and gave no other outcome.
    pub(super) fn note_none_ended(&self, ends: u64) {
        let Some(teams) = self.local_teams() else { return };
        let has_ended = |rank: &Rank| {
            matches!(self.inner.ranks.liveness(*rank), liveness::DEAD | liveness::LEFT)
        };
        if !teams.locals().iter().any(has_ended) {
            teams.note_none_ended(ends);
        }
    }

    /// How long this rank waits before it raises the alarm; `None` if that is so, or few wait.
    pub(super) fn patience_of_teams(&self, step: u64) -> Option<Duration> {
        let teams = self.local_teams()?;
        if teams.is_alarmed(&self.inner.ranks.area, self.group, step) {
            return None;
        }
        let since = self.state.active.as_ref()?.quiet_since?;
        let patience = PATIENCE * teams.locals().len() as u32;
        Some(patience.saturating_sub(clock::since(since)))
    }

    /// Ends the shortcut for a step: each arrival is told to all.
    #[cold]
    pub(super) fn lose_patience(&self, step: u64) {
        let Some(teams) = self.local_teams() else {
            return self.inner.tell_all_of_arrival(self.group, step);
        };
        let area = &self.inner.ranks.area;
        if teams.raise_alarm(area, self.group, step) {
            let others = teams.locals().iter().filter(|rank| **rank != self.inner.ranks.me);
            others.for_each(|rank| area.wake_for(*rank, wake_kind::ARRIVAL));
        }
    }
}
