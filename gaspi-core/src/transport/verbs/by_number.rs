//! Lanes by the numbers of their queue pairs: each completion is looked up.

use crate::ids::{QueueId, Rank};
use crate::sync::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A queue and a peer.
type Of = (QueueId, Rank);

/// Whose a queue pair is, by its number.
#[derive(Debug, Default)]
pub(super) struct ByNumber(Mutex<HashMap<u32, Of, BuildHasherDefault<NumberHasher>>>);

impl ByNumber {
    pub(super) fn insert(&self, number: u32, of: Of) {
        self.0.lock().insert(number, of);
    }

    pub(super) fn remove(&self, number: u32) {
        self.0.lock().remove(&number);
    }

    pub(super) fn find(&self, number: u32) -> Option<Of> {
        self.0.lock().get(&number).copied()
    }
}

/// Spreads numbers in a few instructions. The device gives them: nobody can choose ones that
/// collide.
#[derive(Debug, Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        // The table takes bits from both ends.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}
