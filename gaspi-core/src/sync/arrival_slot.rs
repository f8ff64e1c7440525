//! The arrival slot of one rank in one group: sequence, signature and a small payload in one cache
//! line.
//!
//! One writer, many readers. Two arrival slots alternate by the parity of the step: a rank writes
//! step k + 2 into the arrival slot of step k only after everybody arrived at k + 1, and a rank
//! arrives at k + 1 only after it read all arrival slots of step k. So an arrival slot is not
//! overwritten while it is read, unless its rank has given the group up and uses the id for others:
//! then it raises the sequence first, so that a second look tells.

use super::{Ordering, Word64, fence};

/// Words of payload that ride in an arrival slot.
pub const PAYLOAD_WORDS: usize = 6;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// One cache line of a collective.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ArrivalSlot<W> {
    /// Incarnation of the group and step: equal to what a reader expects once the rank arrived.
    pub sequence: W,
    /// What must be the same on all ranks.
    pub signature: W,
    /// A payload small enough to travel in the arrival slot.
    pub payload: [W; PAYLOAD_WORDS],
}

/// What a rank's arrival slot tells about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// The rank has not arrived.
    Missing,
    /// It has, with this signature.
    Arrived(u64),
    /// It has gone on to a later step, which it may only do early where this one failed for it.
    Passed,
}

impl<W: Word64> ArrivalSlot<W> {
    /// Publishes this rank's arrival at `sequence`.
    #[inline]
    pub fn publish(&self, sequence: u64, signature: u64, payload: &[u64]) {
        self.signature.store(signature, Ordering::Relaxed);
        for (word, value) in self.payload.iter().zip(payload) {
            word.store(*value, Ordering::Relaxed);
        }
        // Release: publishes the arrival slot and whatever was staged before; pairs with the
        // Acquire in `arrived`.
        self.sequence.store(sequence, Ordering::Release);
    }

    /// Whether the rank has arrived at `sequence`. Sequences only grow.
    #[inline]
    pub fn poll(&self, sequence: u64) -> Poll {
        // Acquire: pairs with the Release in `publish`.
        match self.sequence.load(Ordering::Acquire) {
            found if found == sequence => Poll::Arrived(self.signature.load(Ordering::Relaxed)),
            found if found > sequence => Poll::Passed,
            _ => Poll::Missing,
        }
    }

    /// Whether what has been read since the rank was seen to have arrived at `sequence`, here and
    /// in its staging, is of that step.
    #[inline]
    pub fn has_stayed(&self, sequence: u64) -> bool {
        // Acquire: what was read stays before this look; pairs with the Release fence of a rank
        // that uses the id of a group anew.
        fence(Ordering::Acquire);
        self.sequence.load(Ordering::Relaxed) == sequence
    }

    /// The payload, once the rank has arrived.
    #[inline]
    pub fn payload(&self) -> [u64; PAYLOAD_WORDS] {
        std::array::from_fn(|i| self.payload[i].load(Ordering::Relaxed))
    }
}
