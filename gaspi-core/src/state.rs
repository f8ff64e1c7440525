//! The state vector (GASPI 17.1, 5.5): to which ranks requests failed, and who has died.
//!
//! Invariant: when a call returns an error because of a rank, that rank is corrupt for this one
//! already. When a call has told of a death, the state vector included, no later call succeeds on
//! the dead.

use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::process;
use crate::runtime::{Inner, Runtime};
use crate::sync::{AtomicU8, Ordering};
use crate::timeout::Deadline;
use crate::transport::shm::area::liveness;
use std::time::Duration;

/// How a rank has been seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No request to it failed.
    Healthy,
    /// A request to it failed, or it has died.
    Corrupt,
}

/// How long a process may take to end once its memory and its descriptors are gone.
const END_LIMIT: Duration = Duration::from_millis(20);

/// Nothing has failed.
const HEALTHY: u8 = 0;
/// A request has failed.
const FAILED: u8 = 1;
/// The rank has died: final.
const DEAD: u8 = 2;

/// What this rank has seen of the others, one byte each.
#[derive(Debug)]
pub(crate) struct States(Box<[AtomicU8]>);

impl States {
    pub(crate) fn new(ranks: u32) -> States {
        States((0..ranks).map(|_| AtomicU8::new(HEALTHY)).collect())
    }

    /// A path to `rank` works again.
    pub(crate) fn mend(&self, rank: Rank) {
        // Fails where the rank has died.
        let order = Ordering::Relaxed;
        let _ = self.0[rank.index()].compare_exchange(FAILED, HEALTHY, order, order);
    }
}

impl Inner {
    fn state(&self, rank: Rank) -> State {
        match self.area.liveness(rank) {
            // Who reads it here has been told.
            liveness::DEAD => self.note_death(rank),
            // What failed may have been on its way when it left.
            liveness::LEFT => return State::Healthy,
            _ => {}
        }
        match self.states.0[rank.index()].load(Ordering::Relaxed) {
            HEALTHY => State::Healthy,
            _ => State::Corrupt,
        }
    }

    /// The first of `ranks` that has died.
    #[inline]
    pub(crate) fn dead_among(&self, ranks: &[Rank]) -> Option<Rank> {
        if self.area.all_live() { None } else { self.find_dead(ranks) }
    }

    #[cold]
    fn find_dead(&self, ranks: &[Rank]) -> Option<Rank> {
        ranks.iter().copied().find(|rank| self.area.liveness(*rank) == liveness::DEAD)
    }

    /// A call or request failed because of `rank`: to be said before the failure can be seen. One
    /// that has left is not at fault.
    pub(crate) fn set_corrupt(&self, rank: Rank) {
        match self.area.liveness(rank) {
            _ if rank == self.rank => return,
            liveness::LEFT => return,
            liveness::DEAD => return self.note_death(rank),
            _ => {}
        }
        // Fails where it is corrupt already, or has died.
        let order = Ordering::Relaxed;
        let _ = self.states.0[rank.index()].compare_exchange(HEALTHY, FAILED, order, order);
    }

    /// `rank` has not done what this rank needs, or cannot be reached.
    #[cold]
    pub(crate) fn refused(&self, rank: Rank, reason: impl Into<String>) -> Error {
        self.set_corrupt(rank);
        Error::Refused { rank, reason: reason.into() }
    }

    /// `rank` is known to have died: from now on no call of this rank succeeds on it. Does not
    /// wait.
    #[cold]
    pub(crate) fn note_death(&self, rank: Rank) {
        // Acquire: pairs with the Release below, also of another thread.
        if self.states.0[rank.index()].load(Ordering::Acquire) == DEAD {
            return;
        }
        self.forget_targets(rank);
        // Last: whoever sees it need not look whether anything of the dead can still be reached.
        self.states.0[rank.index()].store(DEAD, Ordering::Release);
    }

    /// Nothing of the memory of `rank` can be reached any more.
    pub(crate) fn forget_targets(&self, rank: Rank) {
        let _changes = self.targets.changes();
        for segment in self.targets_of(rank).ids().collect::<Vec<_>>() {
            self.forget_target(rank, segment, None);
        }
    }

    /// The process of `rank`, of this node, has ended: it is dead unless it left.
    pub(crate) fn process_has_ended(&self, rank: Rank) {
        self.area.mark_dead(rank);
    }

    /// The memory or a connection of `rank` is gone: most likely its process is ending, which its
    /// descriptor tells a moment later. A main thread may also end before others; then it lives.
    pub(crate) fn may_have_ended(&self, rank: Rank) {
        let Some(pidfd) = self.processes[rank.index()].get() else { return };
        let limit = Deadline::Never.at_most(END_LIMIT);
        loop {
            if process::has_ended(pidfd) {
                return self.process_has_ended(rank);
            }
            if limit.passed() || self.area.liveness(rank) != liveness::JOINED {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// `reporter` says that `rank`, which `pending` needs, has died. Death is final for the job, so
    /// that is true for this rank too, whose own connections may tell it later.
    #[cold]
    pub(crate) fn reported_death(&self, rank: Rank, reporter: Rank, pending: &str) -> Error {
        if rank == self.rank {
            return self.refused(reporter, "it takes this rank for dead");
        }
        if self.check_rank(rank).is_err() {
            return self.refused(reporter, "it reports the death of a rank that does not exist");
        }
        if self.endpoints.is_leaving(rank) {
            return Error::RankLeft { rank, pending: pending.to_owned() };
        }
        if self.area.liveness(rank) != liveness::LEFT && self.area.mark_dead(rank) {
            let host = &self.cards[rank.index()].host;
            log::warn!("{rank} on {host} has died, as {reporter} reports");
        }
        match self.check_alive(rank, pending) {
            Err(error) => error,
            // It was just about to leave.
            Ok(()) => self.refused(rank, format!("{reporter} reports that it has died")),
        }
    }
}

impl Runtime {
    /// The state of `rank`. Local: it tells what was seen so far, deaths included.
    ///
    /// # Errors
    /// [`Error::InvalidRank`](crate::Error::InvalidRank).
    pub fn state(&self, rank: Rank) -> Result<State> {
        self.inner().check_rank(rank)?;
        Ok(self.inner().state(rank))
    }

    /// Calls `f` with the state of every rank, in the order of the ranks.
    pub fn state_vector(&self, mut f: impl FnMut(Rank, State)) {
        for rank in (0..self.inner().size).map(|rank| Rank(rank as u16)) {
            f(rank, self.inner().state(rank));
        }
    }
}
