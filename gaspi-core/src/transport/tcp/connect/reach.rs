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

    /// Whether these ranks of other nodes are connected; connects to those that are not: to the
    /// higher ones at once, to the lower ones if they have not done so [some time](PATIENCE) after
    /// this rank began, and it is `impatient`. That any rank has died ends the start.
    pub(crate) fn reached(self, wanted: &[Rank], impatient: bool) -> Option<Result<()>> {
        let mut all = true;
        // Each begins with another one, so that they do not all come to the same at once.
        let ranks = self.up.ranks();
        let me = ranks.me.index();
        let others = ranks.all().skip(me).chain(ranks.all().take(me));
        let others = others.filter(|rank| !ranks.is_local(*rank));
        for rank in others {
            let host = ranks.host_of(rank);
            match ranks.liveness(rank) {
                liveness::DEAD => {
                    let trouble = self.table.dialing.last_error(rank);
                    let why = trouble.map_or(String::new(), |why| format!(" ({why})"));
                    let reason = format!("{rank} on {host} died while joining{why}");
                    return Some(Err(Error::Meeting { reason }));
                }
                // It has joined, and left already.
                liveness::LEFT => continue,
                _ if !wanted.contains(&rank) => continue,
                _ if self.table.connections.is_established(rank) => continue,
                _ => {}
            }
            if let Some(reason) = self.table.dialing.last_error(rank) {
                let reason = format!("{rank} on {host} cannot be reached: {reason}");
                return Some(Err(Error::Meeting { reason }));
            }
            all = false;
            if rank < self.up.ranks().me && !impatient {
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
