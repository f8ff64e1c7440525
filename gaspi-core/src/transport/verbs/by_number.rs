//! Lanes by the numbers of their queue pairs: each completion is looked up.

use crate::ids::{QueueId, Rank};
use crate::sync::Mutex;
use crate::transport::numbers::NumberMap;

/// A queue and a peer.
type Of = (QueueId, Rank);

/// Whose a queue pair is, by its number.
#[derive(Debug, Default)]
pub(super) struct ByNumber(Mutex<NumberMap<u32, Of>>);

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
