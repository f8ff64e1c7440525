//! The state vector (GASPI 17.1, 5.5), read from the record of the [ranks](crate::ranks).

use crate::error::Result;
use crate::ids::Rank;
pub use crate::ranks::State;
use crate::runtime::Runtime;

impl Runtime {
    /// The state of `rank`. Local: it tells what was seen so far, deaths included.
    ///
    /// # Errors
    /// [`Error::InvalidRank`](crate::Error::InvalidRank).
    pub fn state(&self, rank: Rank) -> Result<State> {
        self.inner().ranks.check_rank(rank)?;
        Ok(self.inner().ranks.state(rank))
    }

    /// Calls `f` with the state of every rank, in the order of the ranks.
    pub fn state_vector(&self, mut f: impl FnMut(Rank, State)) {
        for rank in self.inner().ranks.all() {
            f(rank, self.inner().ranks.state(rank));
        }
    }
}
