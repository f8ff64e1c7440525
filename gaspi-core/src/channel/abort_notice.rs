//! Abort notices: a few words of each member to all others, of which the latest counts.
//!
//! A member tells those of its node, and all others where no member has more than a few of them.
//! Else it tells those with whom it is connected. Any other one that waits for it asks: from then
//! on both are connected.
//!
//! A notice is one cache line that its writer overwrites while others may read it, or while it
//! travels. It carries a checksum, so that a mixture of two is not taken for either; no order of
//! its words is needed.

use super::fetched::Fetched;
use super::layout::LINE;
use super::messages::NO_WORD;
use super::{Channel, Member};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use crate::transport::endpoint::Departure;
use crate::transport::shm::area::wake_kind;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Words of a notice besides number and sum.
pub(super) const WORDS: usize = 6;
/// Members of other nodes that are told although no connection with them exists.
const FEW: usize = 16;
/// After how long a member that has told nothing is asked again: the connection by which it would
/// tell may have been lost.
const ASK_AGAIN: Duration = Duration::from_secs(5);
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

/// The notices of a channel: how many this rank has published, and those that it has asked for.
#[derive(Debug, Default)]
pub(super) struct Notices {
    published: Mutex<u64>,
    /// With the time of the question.
    asked: Mutex<BTreeMap<usize, (Instant, Asked)>>,
    /// Whether any have been asked for.
    has_asked: AtomicBool,
}

/// The answer of a member that was asked for its notice.
#[derive(Debug)]
enum Asked {
    Pending(Fetched),
    /// What it was, if there was one.
    Answered(Option<(u64, [u64; WORDS])>),
}

impl Asked {
    /// The number and words of the notice, once they have come, if there was one.
    fn notice(&mut self) -> Option<(u64, [u64; WORDS])> {
        if let Asked::Pending(fetched) = self {
            let notice = fetched.bytes()?.cast::<AbortNotice>();
            // SAFETY: memory of its own, of that size and longer, at the start of a page.
            *self = Asked::Answered(unsafe { &*notice }.read());
        }
        match self {
            Asked::Answered(notice) => *notice,
            Asked::Pending(_) => None,
        }
    }
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

    /// There is none. A former one of the same number must not be taken for the next one whose
    /// number alone has been written, so its sum goes too.
    pub(super) fn clear(&self) {
        self.number.store(0, Ordering::Relaxed);
        self.sum.store(0, Ordering::Relaxed);
    }

    /// Its number and its words.
    fn read(&self) -> Option<(u64, [u64; WORDS])> {
        for _ in 0..LOOKS {
            let number = self.number.load(Ordering::Relaxed);
            if number == 0 {
                return None;
            }
            let words = std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
            if self.sum.load(Ordering::Relaxed) == sum(number, words) {
                return Some((number, words));
            }
            std::hint::spin_loop();
        }
        // Its writer wakes when it is done.
        None
    }
}

/// Whether no member, of which each is on one of these nodes, has more than a few others elsewhere.
pub(super) fn has_few_far(nodes: &[u32]) -> bool {
    let mut sizes: BTreeMap<u32, usize> = BTreeMap::new();
    for node in nodes {
        *sizes.entry(*node).or_default() += 1;
    }
    sizes.values().min().is_none_or(|smallest| nodes.len() - smallest <= FEW)
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

    /// Publishes a notice to all members that [hear of](Channel::is_in_touch) this rank. They may
    /// not have seen the one before. Others [ask](Channel::ask_for_notice).
    pub fn publish_notice(&self, words: [u64; WORDS]) {
        let mut published = self.notices.published.lock();
        *published += 1;
        self.notice(self.me).write(*published, words);
        for member in self.neighbours() {
            self.inner.ranks.area.wake_for(member.rank, wake_kind::ARRIVAL);
        }
        let far = self.members.iter().filter(|member| member.start.is_none());
        far.filter(|member| self.is_in_touch(member.index))
            .for_each(|member| self.tell_notice(member));
    }

    /// Whether this rank and a member hear of each other without being asked: they share a node, or
    /// are connected, or the members of other nodes are few.
    pub fn is_in_touch(&self, member: usize) -> bool {
        self.is_local(member)
            || self.bundle.has_few_far
            || self.bundle.is_in_touch(&self.members[member])
    }

    /// Sends this rank's notice to a member of another node.
    fn tell_notice(&self, member: &Member) {
        let places = (self.layout.notice(), self.layout.received_notice(self.me), LINE);
        // A member that cannot be told any more shows in `check`.
        let _ = self.put(member, places, NO_WORD, Departure::Now);
    }

    /// Has the last notice of a member come here that this rank waits for, whatever the member's
    /// program does, and tells it this rank's. It may not be connected with this rank, and so have
    /// told it nothing. Now and then: it tells this rank of the next ones.
    pub fn ask_for_notice(&self, member: usize) {
        let of = &self.members[member];
        if of.start.is_some() || self.bundle.has_few_far {
            return;
        }
        let mut asked = self.notices.asked.lock();
        let now = Instant::now();
        let is_known = |(at, answer): &(Instant, Asked)| {
            matches!(answer, Asked::Answered(Some(_))) || now - *at < ASK_AGAIN
        };
        if asked.get(&member).is_some_and(is_known) {
            return;
        }
        if *self.notices.published.lock() > 0 {
            self.tell_notice(of);
        }
        // One that cannot be asked shows in `check`.
        if let Ok(fetched) = Fetched::begin(&self.inner, of, self.layout.notice(), LINE) {
            asked.insert(member, (now, Asked::Pending(fetched)));
            self.notices.has_asked.store(true, Ordering::Relaxed);
        }
    }

    /// The number and words of the notice of a member that it has sent when it was asked.
    fn asked(&self, member: usize) -> Option<(u64, [u64; WORDS])> {
        // Relaxed: the map is looked at under its lock.
        if !self.notices.has_asked.load(Ordering::Relaxed) {
            return None;
        }
        self.notices.asked.lock().get_mut(&member)?.1.notice()
    }

    /// The number of notices of all members so far. Cheap: their lines are seldom written.
    #[inline]
    pub fn notice_count(&self) -> u64 {
        // Relaxed: readers of the words look at the notice itself.
        let told = |member| self.notice(member).number.load(Ordering::Relaxed);
        let all = (0..self.members.len()).map(told).fold(0, u64::wrapping_add);
        if !self.notices.has_asked.load(Ordering::Relaxed) {
            return all;
        }
        let mut asked = self.notices.asked.lock();
        let beyond = asked.iter_mut().map(|(member, (_, answer))| {
            answer.notice().map_or(0, |(number, _)| number.saturating_sub(told(*member)))
        });
        beyond.fold(all, u64::wrapping_add)
    }

    /// Whether a member's notice cannot be read yet, since a part of it is still to come.
    pub fn is_notice_incomplete(&self, member: usize) -> bool {
        let notice = self.notice(member);
        notice.number.load(Ordering::Relaxed) != 0 && notice.read().is_none()
    }

    /// The last notice of a member, if all of it has come.
    pub fn read_notice(&self, member: usize) -> Option<[u64; WORDS]> {
        let told = self.notice(member).read();
        let last = told.into_iter().chain(self.asked(member)).max_by_key(|(number, _)| *number);
        last.map(|(_, words)| words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_is_decided_alike_by_all() {
        let nodes = |sizes: &[usize]| {
            let all = sizes.iter().enumerate();
            all.flat_map(|(node, size)| vec![node as u32; *size]).collect::<Vec<_>>()
        };
        assert!(has_few_far(&nodes(&[40])) && has_few_far(&nodes(&[16, 1])));
        assert!(has_few_far(&[3; 0]) && has_few_far(&nodes(&[1; 17])));
        // Those of the first node have few elsewhere, but those of the other one have not.
        assert!(!has_few_far(&nodes(&[20, 12])) && !has_few_far(&nodes(&[17, 1])));
        assert!(!has_few_far(&nodes(&[1; 18])));
    }

    #[test]
    fn a_former_notice_is_none_while_the_next_one_is_written() {
        let notice = AbortNotice {
            number: AtomicU64::new(0),
            words: Default::default(),
            sum: AtomicU64::new(0),
        };
        notice.write(1, [1, 2, 3, 4, 5, 6]);
        notice.clear();
        assert_eq!(notice.read(), None);
        // As far as its writer may have come.
        notice.number.store(1, Ordering::Relaxed);
        assert_eq!(notice.read(), None);
        notice.words[0].store(7, Ordering::Relaxed);
        assert_eq!(notice.read(), None);
        notice.write(1, [7; WORDS]);
        assert_eq!(notice.read(), Some((1, [7; WORDS])));
    }

    #[test]
    fn half_a_notice_is_none() {
        let notice = AbortNotice {
            number: AtomicU64::new(0),
            words: Default::default(),
            sum: AtomicU64::new(0),
        };
        assert_eq!(notice.read(), None);
        notice.write(1, [1, 2, 3, 4, 5, 6]);
        assert_eq!(notice.read(), Some((1, [1, 2, 3, 4, 5, 6])));
        notice.words[3].store(0, Ordering::Relaxed);
        assert_eq!(notice.read(), None);
        notice.write(2, [0; WORDS]);
        assert_eq!(notice.read(), Some((2, [0; WORDS])));
    }
}
