//! Abort notices: a few words of each member to all others, of which the latest counts.
//!
//! A notice is one cache line that its writer overwrites while others may read it, or while it
//! travels. It carries a checksum, so that a mixture of two is not taken for either; no order of
//! its words is needed.

use super::Channel;
use super::layout::LINE;
use super::messages::NO_WORD;
use crate::sync::{AtomicU64, Ordering};
use crate::transport::endpoint::Departure;
use crate::transport::shm::area::wake_kind;

/// Words of a notice besides number and sum.
pub(super) const WORDS: usize = 6;
/// How often a reader looks before it takes a notice for one that is just being written.
const LOOKS: usize = 4;

/// A notice where it lies: its number (0 for none), its words, their checksum.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct AbortNotice {
    number: AtomicU64,
    words: [AtomicU64; WORDS],
    sum: AtomicU64,
}

fn sum(number: u64, words: [u64; WORDS]) -> u64 {
    words.iter().fold(number, |sum, word| {
        // An odd constant without a pattern: each word changes all bits above its own.
        (sum.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

impl AbortNotice {
    fn write(&self, number: u64, words: [u64; WORDS]) {
        // Relaxed: readers check the sum.
        self.number.store(number, Ordering::Relaxed);
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.sum.store(sum(number, words), Ordering::Relaxed);
    }

    fn read(&self) -> Option<[u64; WORDS]> {
        for _ in 0..LOOKS {
            let number = self.number.load(Ordering::Relaxed);
            if number == 0 {
                return None;
            }
            let words = std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
            if self.sum.load(Ordering::Relaxed) == sum(number, words) {
                return Some(words);
            }
            std::hint::spin_loop();
        }
        // Its writer wakes when it is done.
        None
    }
}

impl Channel {
    fn notice(&self, member: usize) -> &AbortNotice {
        let pointer = if self.is_local(member) {
            self.at(member, self.layout.notice())
        } else {
            self.at(self.me, self.layout.received_notice(member))
        };
        // SAFETY: inside of a part, aligned to a line, and made of atomics.
        unsafe { &*pointer.cast::<AbortNotice>() }
    }

    /// Publishes a notice to all members. They may not have seen the one before.
    pub fn publish_notice(&self, words: [u64; WORDS]) {
        let mut notices = self.notices.lock();
        *notices += 1;
        self.notice(self.me).write(*notices, words);
        for member in self.neighbours() {
            self.inner.ranks.area.wake_for(member.rank, wake_kind::ARRIVAL);
        }
        let places = (self.layout.notice(), self.layout.received_notice(self.me), LINE);
        for member in self.members.iter().filter(|member| member.start.is_none()) {
            // A member that cannot be told any more shows in `check`.
            let _ = self.put(member, places, NO_WORD, Departure::Now);
        }
    }

    /// The number of notices of all members so far. Cheap: their lines are seldom written.
    #[inline]
    pub fn notice_count(&self) -> u64 {
        // Relaxed: readers of the words look at the notice itself.
        let number = |member| self.notice(member).number.load(Ordering::Relaxed);
        (0..self.members.len()).map(number).fold(0, u64::wrapping_add)
    }

    /// Whether a member's notice cannot be read yet, since a part of it is still to come.
    pub fn is_notice_incomplete(&self, member: usize) -> bool {
        let notice = self.notice(member);
        notice.number.load(Ordering::Relaxed) != 0 && notice.read().is_none()
    }

    /// The last notice of a member, if all of it has come.
    pub fn read_notice(&self, member: usize) -> Option<[u64; WORDS]> {
        self.notice(member).read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_notice_is_none() {
        let notice = AbortNotice {
            number: AtomicU64::new(0),
            words: Default::default(),
            sum: AtomicU64::new(0),
        };
        assert_eq!(notice.read(), None);
        notice.write(1, [1, 2, 3, 4, 5, 6]);
        assert_eq!(notice.read(), Some([1, 2, 3, 4, 5, 6]));
        notice.words[3].store(0, Ordering::Relaxed);
        assert_eq!(notice.read(), None);
        notice.write(2, [0; WORDS]);
        assert_eq!(notice.read(), Some([0; WORDS]));
    }
}
