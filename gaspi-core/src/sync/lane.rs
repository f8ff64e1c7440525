//! Which carrier a lane has: one at a time, changed only while nothing of the lane is under way, so
//! that the order of a lane is that of its carrier.
//!
//! A word holds the carrier and how many requests it has not ended, purged ones among them.

use super::{Ordering, Word64};

/// Where the carrier begins.
const CARRIER_BIT: u32 = 56;
const COUNT: u64 = (1 << CARRIER_BIT) - 1;

/// The carrier of a lane.
#[derive(Debug, Default)]
pub struct LaneCarrier<W>(W);

impl<W: Word64> LaneCarrier<W> {
    /// Keeps it in this word.
    pub fn new(word: W) -> LaneCarrier<W> {
        LaneCarrier(word)
    }

    /// A request begins: the preferred carrier gets it where nothing is under way, else the one
    /// that has the others.
    #[inline]
    pub fn begin(&self, preferred: u8) -> u8 {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let idle = word & COUNT == 0;
            let new = if idle { u64::from(preferred) << CARRIER_BIT | 1 } else { word + 1 };
            // Acquire: pairs with the Release in `end`; what a former carrier has done comes before
            // anything of the next one.
            match self.0.compare_exchange(word, new, Ordering::AcqRel) {
                Ok(_) => return (new >> CARRIER_BIT) as u8,
                Err(found) => word = found,
            }
        }
    }

    /// The carrier of what is under way.
    pub fn current(&self) -> u8 {
        (self.0.load(Ordering::Acquire) >> CARRIER_BIT) as u8
    }

    /// Another carrier takes over what is under way, of which the former one has nothing left.
    pub fn hand_over(&self, to: u8) {
        let mut word = self.0.load(Ordering::Relaxed);
        // Release: as in `end`.
        while let Err(found) = self.0.compare_exchange(
            word,
            u64::from(to) << CARRIER_BIT | word & COUNT,
            Ordering::AcqRel,
        ) {
            word = found;
        }
    }

    /// So many requests have ended.
    #[inline]
    pub fn end(&self, requests: u32) {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let ended = u64::from(requests).min(word & COUNT);
            // Release: as above.
            match self.0.compare_exchange(word, word - ended, Ordering::AcqRel) {
                Ok(_) => return,
                Err(found) => word = found,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;

    #[test]
    fn a_carrier_changes_only_while_nothing_is_under_way() {
        let lane = LaneCarrier::<AtomicU64>::default();
        assert_eq!((lane.begin(2), lane.begin(1), lane.begin(0)), (2, 2, 2));
        lane.end(2);
        assert_eq!(lane.begin(1), 2, "one is left");
        lane.end(2);
        assert_eq!((lane.begin(1), lane.begin(2)), (1, 1));
        lane.end(5);
        assert_eq!(lane.begin(3), 3, "more ends than requests change no carrier");
    }

    #[test]
    fn what_is_under_way_can_be_handed_over() {
        let lane = LaneCarrier::<AtomicU64>::default();
        assert_eq!((lane.begin(2), lane.begin(1)), (2, 2));
        lane.hand_over(1);
        assert_eq!((lane.current(), lane.begin(2)), (1, 1));
        lane.end(3);
        assert_eq!(lane.begin(2), 2);
    }

    #[test]
    fn threads_that_want_different_carriers_agree_while_requests_are_under_way() {
        let (lane, carried) =
            (LaneCarrier::<AtomicU64>::default(), [(); 2].map(|()| AtomicU64::default()));
        std::thread::scope(|scope| {
            for preferred in [0, 1] {
                let (lane, carried) = (&lane, &carried);
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let carrier = usize::from(lane.begin(preferred));
                        carried[carrier].fetch_add(1, Ordering::SeqCst);
                        let other = carried[1 - carrier].load(Ordering::SeqCst);
                        assert_eq!(other, 0, "the other one has nothing under way");
                        carried[carrier].fetch_sub(1, Ordering::SeqCst);
                        lane.end(1);
                    }
                });
            }
        });
    }
}
