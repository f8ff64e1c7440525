//! The state vector (GASPI 17.1, 5.5): to which ranks requests failed.

use crate::error::Result;
use crate::ids::Rank;
use crate::node::life;
use crate::runtime::{Inner, Runtime};
use crate::sync::Ordering;

/// How a rank has been seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No request to it failed.
    Healthy,
    /// A request to it failed, or it has died.
    Corrupt,
}

impl Inner {
    fn state(&self, rank: Rank) -> State {
        let failed = self.corrupt[rank.index()].load(Ordering::Relaxed) != 0;
        if failed || self.area.life(rank) == life::DEAD { State::Corrupt } else { State::Healthy }
    }

    /// The first of `ranks` that has died.
    #[inline]
    pub(crate) fn dead_among(&self, ranks: &[Rank]) -> Option<Rank> {
        if self.area.all_live() { None } else { self.find_dead(ranks) }
    }

    #[cold]
    fn find_dead(&self, ranks: &[Rank]) -> Option<Rank> {
        ranks.iter().copied().find(|rank| self.area.life(*rank) == life::DEAD)
    }

    /// A call that needed `rank` failed: unless it left, it is at fault.
    pub(crate) fn set_corrupt_if_dead(&self, rank: Rank) {
        if self.area.life(rank) == life::DEAD {
            self.set_corrupt(rank);
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
