//! Whether the ranks of other nodes can be reached.

use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::Tcp;
use std::time::Duration;

/// How long the lower rank of two is left to connect to the other before init.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

impl Tcp<'_> {
    /// Nobody listens where `rank` did, or nothing answers there any more.
    pub(super) fn unreachable(self, rank: Rank, reason: &str) {
        if self.up.ranks().is_leaving(rank) {
            self.up.ranks().area.remote_left(rank);
        } else if self.up.ranks().liveness(rank) == liveness::JOINED {
            log::info!("{rank} on {} is gone: {reason}", self.up.ranks().host_of(rank));
        }
        self.up.ended(rank);
    }

    /// Whether the wanted ranks are connected; connects to those that are not: to the
    /// higher ones at once, to the lower ones if they have not done so [some time](PATIENCE) after
    /// this rank began, and it is `impatient`. That any rank has died ends the start.
    pub(crate) fn reached(self, wanted: &mut Wanted, impatient: bool) -> Option<Result<()>> {
        let ranks = self.up.ranks();
        let is_dead = |rank: Rank| !ranks.is_local(rank) && ranks.liveness(rank) == liveness::DEAD;
        if let Some(rank) = wanted.dead(ranks.area.death_news(), is_dead) {
            let trouble = self.table.dialing.last_error(rank);
            let why = trouble.map_or(String::new(), |why| format!(" ({why})"));
            let reason = format!("{rank} on {} died while joining{why}", ranks.host_of(rank));
            return Some(Err(Error::Meeting { reason }));
        }
        let mut all = true;
        for rank in wanted.ranks().iter().copied() {
            // One that has left already had joined.
            let has_left = ranks.liveness(rank) == liveness::LEFT;
            if has_left || self.table.connections.is_established(rank) {
                continue;
            }
            if let Some(reason) = self.table.dialing.last_error(rank) {
                let host = ranks.host_of(rank);
                let reason = format!("{rank} on {host} cannot be reached: {reason}");
                return Some(Err(Error::Meeting { reason }));
            }
            all = false;
            if rank < ranks.me && !impatient {
                continue;
            }
            match self.table.open(self.up, rank) {
                Ok(_) => {}
                // Since it was looked at above.
                Err(Error::RankLeft { .. }) => {}
                Err(error) => return Some(Err(error)),
            }
        }
        all.then_some(Ok(()))
    }
}

/// The ranks of other nodes with which init makes connections, of a job in which none has died.
///
/// Invariant: all ranks are looked at only where there is news of a death.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Each rank begins with another one, so that they do not all come to the same at once.
    ranks: Vec<Rank>,
    /// How many ranks there are.
    size: u32,
    /// The news of deaths for which all were looked at.
    seen: u32,
}

impl Wanted {
    /// What `me` wants, of so many ranks.
    pub(crate) fn new(mut ranks: Vec<Rank>, me: Rank, size: u32) -> Wanted {
        ranks.sort_unstable();
        let behind = ranks.partition_point(|rank| *rank < me);
        ranks.rotate_left(behind);
        Wanted { ranks, size, seen: 0 }
    }

    pub(crate) fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// One that has died, if there is other `news` of deaths than at the last look.
    fn dead(&mut self, news: u32, is_dead: impl Fn(Rank) -> bool) -> Option<Rank> {
        if news == self.seen {
            return None;
        }
        self.seen = news;
        (0..self.size).map(|rank| Rank(rank as u16)).find(|rank| is_dead(*rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_wake_looks_at_all_ranks_where_there_is_news_of_a_death_only() {
        let size = 65_535;
        let mut wanted = Wanted::new([3, 9, 40_000, 7].map(Rank).to_vec(), Rank(8), size);
        assert_eq!(wanted.ranks(), [9, 40_000, 3, 7].map(Rank));
        let (looks, dead) = (Cell::new(0_u32), Cell::new(None));
        let mut wake = |news| {
            let is_dead = |rank| {
                looks.set(looks.get() + 1);
                Some(rank) == dead.get()
            };
            (wanted.dead(news, is_dead), looks.take())
        };
        for _ in 0..1000 {
            assert_eq!(wake(0), (None, 0));
        }
        // Of a rank that had left.
        assert_eq!(wake(1), (None, size));
        for _ in 0..1000 {
            assert_eq!(wake(1), (None, 0));
        }
        dead.set(Some(Rank(99)));
        assert_eq!(wake(3), (Some(Rank(99)), 100));
    }
}
