//! What tools see of a rank's pairs: words on its control page, changed as pairs are made and end.
//!
//! Invariant: the words are sums over the lanes of the rank, each lane counted once.

use super::pairing::PairState;
use crate::sync::{AtomicU8, AtomicU32, Ordering};
use crate::transport::shm::pairs::PairWords;

/// What is counted of a lane: nothing, a pair that is being made, or one that is up. Changed with
/// the lane's lock.
#[derive(Debug, Default)]
pub(super) struct Shown {
    counted: AtomicU8,
    pub(super) attempts: Attempts,
}

/// Attempts of a lane's pair, for threads without its lock.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// The last one; written with the lane's lock, before the peer can hear of it.
    last: AtomicU32,
    /// The last one that a lost connection concerns.
    lost: AtomicU32,
}

impl Attempts {
    /// The connection with the peer was lost: what had been begun by now is lost with it.
    pub(super) fn lose(&self) {
        self.lost.fetch_max(self.last.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// An attempt is noted, before the peer can hear of it.
    pub(super) fn note(&self, attempt: u32) {
        self.last.store(attempt, Ordering::SeqCst);
    }

    /// Whether this attempt went with a connection that was lost: those begun since did not.
    pub(super) fn is_lost(&self, attempt: u32) -> bool {
        attempt <= self.lost.load(Ordering::SeqCst)
    }
}

const NONE: u8 = 0;
const BEING_MADE: u8 = 1;
const UP: u8 = 2;

impl Shown {
    /// Whether the pair was up when it was counted last, for threads without the lane's lock.
    pub(super) fn is_up(&self) -> bool {
        self.counted.load(Ordering::Relaxed) == UP
    }

    /// The same of one that is being made.
    pub(super) fn is_being_made(&self) -> bool {
        self.counted.load(Ordering::Relaxed) == BEING_MADE
    }

    /// Counts a lane, whose lock the caller holds, as its pair is now, and notes its attempt. Lanes
    /// of messages are counted besides; `kind` is that of the words.
    pub(super) fn show(&self, pairing: &PairState, words: &PairWords, messages: bool, kind: u32) {
        self.attempts.note(pairing.attempt());
        let now = match (pairing.is_up(), pairing.is_being_made()) {
            (true, _) => UP,
            (_, true) => BEING_MADE,
            _ => NONE,
        };
        let before = self.counted.swap(now, Ordering::Relaxed);
        if before == now {
            return;
        }
        words.kind.store(kind, Ordering::Relaxed);
        let change = |counted: u8, by: &dyn Fn(&AtomicU32)| match counted {
            BEING_MADE => by(&words.being_made),
            UP => {
                by(&words.up);
                if messages {
                    by(&words.messages);
                }
            }
            _ => {}
        };
        change(before, &|word| {
            word.fetch_sub(1, Ordering::Relaxed);
        });
        change(now, &|word| {
            word.fetch_add(1, Ordering::Relaxed);
        });
    }
}
