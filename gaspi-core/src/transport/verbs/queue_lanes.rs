//! What threads find of the lanes of a queue without locks, made when the first one is used: the
//! send queues that they post to, and which lanes a wait has to end something of.

use super::direct::Direct;
use super::unfinished::Unfinished;
use crate::ids::Rank;
use crate::sync::once_arc::OnceArc;
use std::sync::Arc;

/// The lanes of a queue, by rank.
#[derive(Debug)]
pub(super) struct QueueLanes {
    direct: Box<[OnceArc<Direct>]>,
    /// Those that may have runs, or writes that no read is behind.
    pub(super) unfinished: Unfinished,
}

impl QueueLanes {
    pub(super) fn new(ranks: u32) -> QueueLanes {
        let direct = (0..ranks).map(|_| OnceArc::new()).collect();
        QueueLanes { direct, unfinished: Unfinished::new(ranks) }
    }

    /// The send queue of a lane, if that has ever been used.
    #[inline(always)]
    pub(super) fn direct(&self, peer: Rank) -> Option<&Direct> {
        self.direct.get(peer.index())?.get()
    }

    /// The same for a rank of the job, which is not checked.
    ///
    /// # Safety
    /// `peer` is below the number of ranks.
    #[inline(always)]
    pub(super) unsafe fn direct_of(&self, peer: Rank) -> Option<&Direct> {
        // SAFETY: the caller's promise; there is a place for each rank.
        unsafe { self.direct.get_unchecked(peer.index()) }.get()
    }

    /// The send queue of a lane can be found from now on.
    pub(super) fn add(&self, peer: Rank, direct: &Arc<Direct>) {
        self.direct[peer.index()].get_or_init(|| Arc::clone(direct));
    }
}
