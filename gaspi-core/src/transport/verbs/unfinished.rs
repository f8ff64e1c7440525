//! Peers to which a queue may have something that a wait for it has to end: a bit for each, so that
//! a wait looks at the lanes that were posted to, and not at all that have ever been used.

use crate::ids::Rank;
use crate::sync::{AtomicBool, AtomicU16, AtomicU64, Ordering};

const BITS: usize = u64::BITS as usize;

/// The peers of a queue.
#[derive(Debug)]
pub(super) struct Unfinished {
    any: AtomicBool,
    /// The one that was noted last.
    latest: AtomicU16,
    peers: Box<[AtomicU64]>,
}

impl Unfinished {
    pub(super) fn new(ranks: u32) -> Unfinished {
        let words = (ranks as usize).div_ceil(BITS);
        let peers = (0..words).map(|_| AtomicU64::new(0)).collect();
        Unfinished { any: AtomicBool::new(false), latest: AtomicU16::new(0), peers }
    }

    /// Something is about to be posted to a peer: with its lane's lock, or in a section of the
    /// thread that has the lane's bias. Whoever takes the peer waits for either.
    #[inline]
    pub(super) fn note(&self, peer: Rank) {
        let (word, bit) = (&self.peers[peer.index() / BITS], 1 << (peer.index() % BITS));
        // Relaxed: the lane's lock, or taking its bias, orders what is posted.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        // Relaxed: a hint.
        self.latest.store(peer.0, Ordering::Relaxed);
        // Release: pairs with the Acquire in `any`, behind which the bit is seen.
        self.any.store(true, Ordering::Release);
    }

    /// Whether there may be any since they were taken.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The peer that was noted last.
    #[inline]
    pub(super) fn latest(&self) -> Rank {
        Rank(self.latest.load(Ordering::Relaxed))
    }

    /// Takes all of them.
    pub(super) fn take(&self) -> impl Iterator<Item = Rank> {
        // Release: a peer that is noted from here on is there at the next look.
        self.any.swap(false, Ordering::AcqRel);
        self.peers.iter().enumerate().flat_map(|(nth, word)| {
            let bits = match word.load(Ordering::Relaxed) {
                0 => 0,
                _ => word.swap(0, Ordering::AcqRel),
            };
            ones(bits).map(move |bit| Rank((nth * BITS + bit) as u16))
        })
    }
}

/// The places of the bits that are set.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(lowest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_taken_once_each_time_that_they_are_noted() {
        let unfinished = Unfinished::new(200);
        assert!(!unfinished.any() && unfinished.take().next().is_none());
        for peer in [199, 0, 63, 64, 0] {
            unfinished.note(Rank(peer));
        }
        assert!(unfinished.any() && unfinished.latest() == Rank(0));
        let taken: Vec<u16> = unfinished.take().map(|rank| rank.0).collect();
        assert_eq!(taken, [0, 63, 64, 199]);
        assert!(!unfinished.any() && unfinished.take().next().is_none());
        unfinished.note(Rank(63));
        assert_eq!(unfinished.take().collect::<Vec<_>>(), [Rank(63)]);
    }
}
