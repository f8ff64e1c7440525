//! Who of the job has ended, in the order in which the node has heard of it: a log that each rank
//! reads on from where it was, so that an end costs each one look.
//!
//! Whoever tells of an end writes it down before it shows in the liveness word. Entries are never
//! changed. The word of a rank tells where in the log it stands. A process may be killed between
//! the entry and that word: then the next one that writes an entry stores it.
//!
//! Invariant: each rank stands in the log once at most, so that there is room for all.

use super::{SharedArea, liveness};
use crate::ids::Rank;
use crate::sync::{AtomicU32, Ordering};
use crate::wire::shared_layout::LIVENESS_BYTES;

/// How far somebody has read the log.
#[derive(Debug, Default)]
pub(crate) struct ReadEnds {
    pub(crate) next: u32,
    /// Those whose end did not show yet: they are looked at again.
    unclear: Vec<Rank>,
    /// Looks at what is shared, for tests.
    #[cfg(test)]
    pub(crate) looks: usize,
}

impl ReadEnds {
    /// For tests.
    fn count_look(&mut self) {
        #[cfg(test)]
        {
            self.looks += 1;
        }
    }
}

impl SharedArea {
    pub(super) fn log_entry(&self, at: u32) -> &AtomicU32 {
        self.at(self.layout.ends_log() + u64::from(at) * LIVENESS_BYTES as u64)
    }

    fn end_order_word(&self, rank: Rank) -> &AtomicU32 {
        self.at(self.layout.end_order() + u64::from(rank.0) * LIVENESS_BYTES as u64)
    }

    /// The lower, the earlier this node has heard of the end of `rank`, which shows already.
    #[cold]
    pub(crate) fn end_order(&self, rank: Rank) -> u32 {
        // Relaxed: whoever has seen the end in the liveness word sees what was stored before it.
        self.end_order_word(rank).load(Ordering::Relaxed)
    }

    /// The rank of an entry, if it is one.
    fn rank_of(&self, entry: u32) -> Option<Rank> {
        let rank = entry.checked_sub(1).filter(|rank| *rank < self.layout.ranks());
        rank.map(|rank| Rank(rank as u16))
    }

    /// Writes down that `rank` ends, unless that has been done.
    pub(super) fn log_end(&self, rank: Rank) {
        let mut at = self.logged.load(Ordering::Relaxed);
        // Acquire: pairs with the Release below, of whoever has written it down. An entry is
        // written behind others only once their words are there, so that none is missed here.
        while self.end_order_word(rank).load(Ordering::Acquire) == 0 && at < self.layout.ranks() {
            let (new, order) = (u32::from(rank.0) + 1, Ordering::AcqRel);
            let written = self.log_entry(at).compare_exchange(0, new, order, Ordering::Acquire);
            let entry = written.map_or_else(|other| other, |_| new);
            if let Some(rank) = self.rank_of(entry) {
                let (word, order) = (self.end_order_word(rank), Ordering::Release);
                // Fails where whoever has written the entry has come so far.
                let _ = word.compare_exchange(0, at + 1, order, Ordering::Relaxed);
            }
            at += 1;
        }
        // Of two threads the one that has come less far may store last: then some are looked at
        // once more.
        self.logged.store(at, Ordering::Relaxed);
    }

    /// The ends that show and that this reader has not been given, with the liveness, in the order
    /// of the log but for those that it has come upon too early.
    pub(crate) fn ends_since(&self, read: &mut ReadEnds) -> Vec<(Rank, u32)> {
        let mut known = std::mem::take(&mut read.unclear);
        while read.next < self.layout.ranks() {
            read.count_look();
            let entry = self.log_entry(read.next).load(Ordering::Acquire);
            if entry == 0 {
                break;
            }
            known.extend(self.rank_of(entry));
            read.next += 1;
        }
        let mut ends = Vec::new();
        for rank in known {
            read.count_look();
            match self.liveness(rank) {
                life @ (liveness::DEAD | liveness::LEFT) => ends.push((rank, life)),
                _ => read.unclear.push(rank),
            }
        }
        ends
    }
}
