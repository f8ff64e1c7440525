//! Which memory of this rank the requests of a send queue use, as a delete of a segment has to wait
//! for them.
//!
//! Runs are not noted one by one. The key of the memory that a thread posts from is kept as the
//! **current** one, so that to post from it again costs a comparison, in place of the one that asks
//! whether there is a key. Who posts from other memory notes first up to which request the current
//! one has been used. What is posted with the lane's lock notes each of its requests.
//!
//! Invariant: a request that names a key is below what is noted of that key, or the key is current.

use crate::sync::{AtomicU64, Mutex, Ordering};

/// The word of no key: that of a key has another bit set (`PreparedMemory::local_key_word`).
const NONE: u64 = 1;

#[derive(Debug)]
pub(super) struct MemoryInUse {
    /// The word of the key that runs use, or [`NONE`].
    current: AtomicU64,
    /// Keys, and below which number the requests are that use them.
    noted: Mutex<Vec<(u32, u64)>>,
}

impl Default for MemoryInUse {
    fn default() -> MemoryInUse {
        MemoryInUse { current: AtomicU64::new(NONE), noted: Mutex::default() }
    }
}

/// By who holds the bias of the lane, in a section, or has taken it, with the lane's lock.
impl MemoryInUse {
    /// Whether what is posted next may use this key without more ado.
    #[inline(always)]
    pub(super) fn is_current(&self, word: u64) -> bool {
        // Relaxed: written by who holds the bias, or has taken it.
        self.current.load(Ordering::Relaxed) == word
    }

    /// Requests from `next` on use a key, until another one is current; those below `freed` have
    /// ended.
    pub(super) fn make_current(&self, word: u64, next: u64, freed: u64) {
        self.settle(next, freed);
        // Release: who does not find the former key here finds it noted.
        self.current.store(word, Ordering::Release);
    }

    /// What is posted from `next` on is known to use other memory, or none.
    pub(super) fn settle(&self, next: u64, freed: u64) {
        let word = self.current.load(Ordering::Relaxed);
        if word != NONE {
            self.note(word as u32, next, freed);
            // Release: as in `make_current`.
            self.current.store(NONE, Ordering::Release);
        }
    }

    /// Requests below `next` may use a key; those below `freed` have ended.
    pub(super) fn note(&self, key: u32, next: u64, freed: u64) {
        let mut noted = self.noted.lock();
        noted.retain(|(other, below)| *other != key && *below > freed);
        noted.push((key, next));
    }

    /// Nothing is in the send queue any more.
    pub(super) fn clear(&self) {
        self.noted.lock().clear();
        self.current.store(NONE, Ordering::Release);
    }
}

impl MemoryInUse {
    /// Below which number the requests are that may use a key, which no thread finds any more;
    /// `next` is that of the next request of all.
    pub(super) fn below(&self, key: u32, next: u64) -> u64 {
        // Acquire: pairs with the Release behind what was noted.
        let current = self.current.load(Ordering::Acquire);
        if current != NONE && current as u32 == key {
            return next;
        }
        let noted = self.noted.lock();
        noted.iter().find(|(other, _)| *other == key).map_or(0, |(_, below)| *below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 1 << 32 | 7;
    const B: u64 = 1 << 32;

    fn below(memory: &MemoryInUse, word: u64, next: u64) -> u64 {
        memory.below(word as u32, next)
    }

    #[test]
    fn each_key_is_in_use_up_to_its_last_request() {
        let memory = MemoryInUse::default();
        assert!(!memory.is_current(0) && !memory.is_current(A) && below(&memory, A, 3) == 0);
        memory.make_current(A, 3, 0);
        assert!(memory.is_current(A) && !memory.is_current(B));
        assert_eq!((below(&memory, A, 5), below(&memory, B, 5)), (5, 0));
        memory.make_current(B, 5, 0);
        assert_eq!((below(&memory, A, 9), below(&memory, B, 9)), (5, 9));
        memory.make_current(A, 9, 0);
        assert_eq!((below(&memory, A, 11), below(&memory, B, 11)), (11, 9));
        memory.settle(11, 0);
        memory.note(B as u32, 12, 0);
        assert_eq!((below(&memory, A, 20), below(&memory, B, 20)), (11, 12));
    }

    #[test]
    fn what_has_ended_is_forgotten() {
        let memory = MemoryInUse::default();
        for key in 0..100u64 {
            memory.note(key as u32, key + 1, key);
        }
        assert_eq!(memory.noted.lock().len(), 1);
        memory.make_current(A, 100, 100);
        memory.clear();
        assert_eq!((below(&memory, A, 101), memory.below(99, 101)), (0, 0));
    }
}
