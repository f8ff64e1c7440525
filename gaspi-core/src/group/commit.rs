//! The commit of a group: what this rank says to the members, and waiting until all agree.

use super::{Abort, CallState, Committed, DEATH_LIMIT, Standing, first_step, list};
use crate::control::tree_barrier::Tree;
use crate::error::{Error, Result};
use crate::ids::{GroupId, Rank};
use crate::runtime::Inner;
use crate::sync::Ordering;
use crate::timeout::{Deadline, Timeout};
use crate::transport::shm::area::{WatchSteps, liveness};
use crate::wait::Call;
use crate::wait::waiting_group;
use crate::wire::message::GroupMessage;
use std::sync::Arc;

impl Inner {
    /// Tells the members of a commit under way that this rank no longer wants it.
    pub(super) fn withdraw(&self, group: GroupId) {
        if let Some((attempt, ranks)) = self.control.groups.withdraw(group) {
            self.tell_withdrawn(group, attempt, &ranks);
        }
    }

    fn tell_withdrawn(&self, group: GroupId, attempt: u64, ranks: &[Rank]) {
        let message = GroupMessage::Withdraw { group, attempt };
        // Who cannot be told any more does not wait any more.
        let _ = self.send_commit(attempt, group, ranks, message, Deadline::Now);
    }

    /// Tells the members of a commit under way that it has failed; `is_fresh` where it was to be
    /// the first of a group.
    fn abort(&self, group: GroupId, is_fresh: bool, error: &Error, reason: String) {
        let dead = match error {
            Error::RankDied { rank, .. } => Some(*rank),
            _ => None,
        };
        let failed = self.control.groups.board.lock().fail(group, dead);
        if let Some((attempt, ranks, round)) = failed {
            if is_fresh {
                // Others may have committed this use, and wait for it to be read.
                self.ranks.area.finish_step(group.index(), first_step(round.saturating_add(1)) - 1);
            }
            let message = GroupMessage::Abort { group, attempt, round, dead, reason };
            // As above.
            let _ = self.send_commit(attempt, group, &ranks, message, Deadline::Now);
        }
    }

    pub(super) fn commit(&self, group: GroupId, timeout: Timeout) -> Result<()> {
        self.check_open()?;
        let mut state = self.control.groups.claim(group)?;
        if state.active.is_some() {
            let active = "a collective that timed out".to_owned();
            return Err(Error::ActiveCollective { group, active });
        }
        let ranks = self.control.groups.members(group)?.ranks.clone();
        let Ok(me) = ranks.binary_search(&self.ranks.me) else {
            let reason = format!("{} is not a member of it", self.ranks.me);
            return Err(Error::InvalidGroup { group, reason });
        };
        let (announce, replaced) = self.control.groups.begin(group, &ranks);
        if let Some((attempt, ranks)) = replaced {
            self.tell_withdrawn(group, attempt, &ranks);
        }
        let deadline = timeout.deadline();
        if let Some(announce) = announce {
            let (attempt, message) = (announce.attempt, GroupMessage::Announce(announce));
            if let Err(error) = self.send_commit(attempt, group, &ranks, message, deadline) {
                self.abort(group, state.committed.is_none(), &error, error.to_string());
                return Err(error);
            }
        }
        self.ranks.area.set_members(group.index(), &ranks);
        // Committing again replaces what was committed, once the others have agreed to it.
        let former = state.former();
        let incarnation = match self.await_settled(group, &ranks, &former, deadline) {
            Some(Ok(incarnation)) => incarnation,
            Some(Err((error, reason))) => {
                self.abort(group, state.committed.is_none(), &error, reason);
                return Err(error);
            }
            None => return Err(self.commit_timed_out(group)),
        };
        self.note_committed(group, &mut state, ranks, me, incarnation)
    }

    /// Waits until the commit under way has come to an end, and the former members of the id need
    /// this rank's arrival slots no longer.
    #[allow(clippy::type_complexity, reason = "what `settled` gives")]
    fn await_settled(
        &self,
        group: GroupId,
        ranks: &[Rank],
        former: &Option<(Arc<[Rank]>, u64)>,
        deadline: Deadline,
    ) -> Option<Result<u32, (Error, String)>> {
        let waiting = waiting_group(Call::Commit, group);
        let slow: Vec<WatchSteps<'_>> = former
            .iter()
            .flat_map(|(ranks, _)| ranks.iter())
            .filter(|rank| self.ranks.is_local(**rank) && ranks.binary_search(*rank).is_err())
            .map(|rank| self.ranks.area.watch_steps(*rank, group.index()))
            .collect();
        let settled = || {
            self.settled(group, ranks)
                .filter(|settled| settled.is_err() || self.is_free(group, former, ranks))
        };
        // Nothing wakes this rank when a list has lacked members for long enough.
        let standing = self.until(deadline, waiting, || {
            settled().map(Some).or_else(|| self.control.groups.lacks_members(group).then_some(None))
        });
        let standing = match standing {
            Some(None) => self
                .until(deadline.at_most(DEATH_LIMIT), waiting, settled)
                .or_else(|| self.until(deadline, waiting, settled)),
            standing => standing.flatten(),
        };
        drop(slow);
        standing
    }

    /// All members agree.
    fn note_committed(
        &self,
        group: GroupId,
        state: &mut CallState,
        ranks: Vec<Rank>,
        me: usize,
        incarnation: u32,
    ) -> Result<()> {
        if let Some(attempt) = self.control.groups.agreed(group, incarnation) {
            self.control.resend_buffer.agreed(group, attempt);
        }
        self.control.remote_arrivals.committed(group, incarnation);
        log::debug!(
            "group_commit: {group} has ranks {}, use {incarnation} of its id",
            list(&ranks)
        );
        let step = first_step(incarnation);
        state.former = None;
        let remote = ranks.iter().any(|rank| !self.ranks.is_local(*rank));
        // Their lists have come by connections with all of them.
        let tree = Tree::of(&self.ranks.cards, &ranks, me).map(Arc::new);
        self.control.tree_barriers.committed(group, incarnation, tree.clone());
        state.committed = Some(Committed { ranks: ranks.into(), me, step, remote, tree });
        self.control.groups.members(group)?.committed = true;
        let incarnation = crate::remote_arrivals::incarnation(step);
        self.control.groups.cell(group)?.incarnation.store(incarnation, Ordering::Release);
        Ok(())
    }

    /// Whether the members of a former use of the id have read this rank's arrival slots. Those who
    /// commit the next use with it, and have said so, read them no more; they may never have
    /// committed the former.
    fn is_free(
        &self,
        group: GroupId,
        former: &Option<(Arc<[Rank]>, u64)>,
        members: &[Rank],
    ) -> bool {
        former.as_ref().is_none_or(|(ranks, step)| {
            // Others keep copies of this rank's arrival slots.
            let is_reader =
                |rank: &&Rank| self.ranks.is_local(**rank) && members.binary_search(*rank).is_err();
            let readers = ranks.iter().filter(is_reader);
            readers.into_iter().all(|rank| {
                self.ranks.area.has_finished(*rank, group.index(), *step)
                    || self.ranks.liveness(*rank) != liveness::JOINED
            })
        })
    }

    fn standing(&self, group: GroupId) -> Standing {
        let is_dead = |rank: Rank| {
            self.ranks.check_rank(rank).is_ok() && self.ranks.liveness(rank) == liveness::DEAD
        };
        self.control
            .groups
            .standing(group, self.ranks.me, is_dead, |rank| !self.ranks.is_local(rank))
    }

    /// The end of the commit under way, if it has one: the incarnation, or the error and what the
    /// other members should be told.
    #[allow(clippy::type_complexity, reason = "used once, right above")]
    fn settled(&self, group: GroupId, ranks: &[Rank]) -> Option<Result<u32, (Error, String)>> {
        if let Err(error) = self.check_open() {
            let text = error.to_string();
            return Some(Err((error, text)));
        }
        let standing = self.standing(group);
        if !matches!(standing, Standing::Agreed(_))
            && let Some(rank) = self.ranks.dead_among(ranks)
        {
            let error = self.ranks.died(rank, "group_commit");
            let text = error.to_string();
            return Some(Err((error, text)));
        }
        match standing {
            Standing::Agreed(incarnation) => Some(Ok(incarnation)),
            Standing::Differs(difference) => {
                let error = Error::Mismatch { group, difference: difference.clone() };
                Some(Err((error, difference)))
            }
            Standing::Aborted(Abort { reporter, dead: Some(dead), .. })
                if ranks.binary_search(&dead).is_ok() =>
            {
                let error = self.ranks.reported_death(dead, reporter, "group_commit");
                let text = error.to_string();
                Some(Err((error, text)))
            }
            Standing::Aborted(Abort { reason, .. }) => {
                let error = Error::Mismatch { group, difference: reason.clone() };
                Some(Err((error, reason)))
            }
            Standing::Waiting(missing) => missing.iter().find_map(|rank| {
                let error = self.ranks.check_alive(*rank, "group_commit").err()?;
                let text = error.to_string();
                Some(Err((error, text)))
            }),
        }
    }

    #[cold]
    fn commit_timed_out(&self, group: GroupId) -> Error {
        let pending = match self.standing(group) {
            Standing::Waiting(missing) => {
                let hint = self.control.groups.hint(group, self.ranks.me);
                format!("ranks {} to commit {group}{hint}", list(&missing))
            }
            _ => format!("ranks that used {group} before to finish their last collective there"),
        };
        Error::Timeout { pending }
    }
}
