//! A right that one thread uses without a lock, until another one takes it: a biased lock.
//!
//! Its holder uses it in sections of its [slot](super::epoch::Slot), where it finds by a plain load
//! that it still has it. Everything else is done under a lock of the caller's: giving the right to
//! a thread, and taking it, which waits for the end of the holder's section and costs microseconds.
//!
//! A holder that has nothing to use it for lets the right **rest**: it does not have it until it
//! resumes, without the lock, and whoever takes it meanwhile waits for nothing.

use super::epoch::{self, Slot};
use super::holder::Holder;
use super::{AtomicU32, AtomicU64, Ordering};

/// Once another thread has taken the right, a thread that wants it asks so often before it gets it:
/// threads that take turns pay for the lock, not for taking.
const PATIENCE: u32 = 16;

/// Who holds the right, if anybody does.
#[derive(Debug, Default)]
pub(crate) struct Bias {
    /// By the addresses of threads' slots.
    holder: Holder<AtomicU64>,
    /// Who asked last, and how often in a row.
    asker: AtomicU64,
    asked: AtomicU32,
    /// Whether another thread has ever taken it from its holder.
    was_taken: AtomicU32,
}

impl Bias {
    /// Whether the thread of `slot` holds the right. Only in a section of it.
    #[inline(always)]
    pub(crate) fn is_held_by(&self, slot: &Slot) -> bool {
        self.holder.is(address(slot))
    }

    /// Gives the right to the thread of `slot`; false if another one holds it, from which it has to
    /// be taken, or if the thread is to ask again. Under the lock.
    pub(crate) fn give(&self, slot: &Slot) -> bool {
        if !self.holder.is_nobody() {
            return self.is_held_by(slot);
        }
        // Relaxed, here and below: the lock orders them.
        let order = Ordering::Relaxed;
        let again = self.asker.swap(address(slot), order) == address(slot);
        let asked = if again { self.asked.load(order).saturating_add(1) } else { 1 };
        self.asked.store(asked, order);
        let given = self.was_taken.load(order) == 0 || asked > PATIENCE;
        if given {
            self.holder.set(address(slot));
        }
        given
    }

    /// The holder gives the right back, in the section that it uses it in.
    pub(crate) fn give_back(&self) {
        self.holder.give_back();
    }

    /// The holder lets the right rest, at the end of what it uses it for in a section.
    #[inline]
    pub(crate) fn rest_in_section(&self, slot: &Slot) {
        self.holder.rest_in_section(address(slot));
    }

    /// Lets the right rest if the calling thread holds it, and takes it from any other. Under the
    /// lock, and not in a section of this thread that uses the right.
    pub(crate) fn rest(&self) {
        if !self.holder.rest(address(epoch::own_slot())) {
            self.take();
        }
    }

    /// Whether a right of the calling thread rests. Under the lock.
    pub(crate) fn rests(&self) -> bool {
        self.holder.rests(address(epoch::own_slot()))
    }

    /// Lets a right rest that the calling thread has taken from itself, under the same lock.
    pub(crate) fn rest_again(&self) {
        self.holder.set_resting(address(epoch::own_slot()));
    }

    /// Whether the thread of `slot` had a right that rested, which it holds from here on. In a
    /// section of it.
    #[inline]
    pub(crate) fn resume(&self, slot: &Slot) -> bool {
        self.holder.resume(address(slot))
    }

    /// Whether nobody has the right: what rests is taken. Under the lock.
    pub(crate) fn is_free(&self) -> bool {
        self.holder.take_resting()
    }

    /// Takes the right: when this returns nobody uses it, and nobody will before it is given again.
    /// Under the lock, and not in a section of this thread that uses the right.
    #[inline]
    pub(crate) fn take(&self) {
        self.holder.take(|holder| self.outlast(holder));
    }

    /// Waits for the section of a thread that the right was taken from.
    #[cold]
    fn outlast(&self, holder: u64) {
        if holder == address(epoch::own_slot()) {
            return;
        }
        self.was_taken.store(1, Ordering::Relaxed);
        // SAFETY: the address of a slot, and slots are never freed.
        unsafe { &*(holder as *const Slot) }.outlast_section();
    }
}

fn address(slot: &Slot) -> u64 {
    std::ptr::from_ref(slot) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicBool, AtomicU64, Mutex};

    /// A thread counts by plain stores where it has the right, which it may let rest behind each,
    /// and by the lock otherwise, while another one takes the right and counts too.
    fn nothing_is_lost(rests: bool) {
        const ROUNDS: u64 = 20_000;
        let (bias, lock) = (Bias::default(), Mutex::new(()));
        let (count, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let add = || count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let guard = epoch::enter();
                    let has = || bias.is_held_by(guard.slot()) || bias.resume(guard.slot());
                    let fast = guard.section(|| has().then(add).is_some());
                    if fast && !rests {
                        continue;
                    }
                    let _lock = lock.lock();
                    if !fast {
                        bias.take();
                        add();
                        bias.give(guard.slot());
                    }
                    if rests {
                        bias.rest();
                    }
                }
                done.store(true, Ordering::Release);
            });
            let mut taken = 0;
            while !done.load(Ordering::Acquire) {
                let _lock = lock.lock();
                bias.take();
                add();
                taken += 1;
            }
            assert_eq!(count.load(Ordering::Relaxed), ROUNDS + taken);
        });
    }

    #[test]
    fn what_its_holder_counts_by_plain_stores_is_not_lost_when_another_thread_takes_it() {
        nothing_is_lost(false);
    }

    #[test]
    fn a_right_that_is_resumed_again_and_again_is_never_used_by_two() {
        nothing_is_lost(true);
    }

    #[test]
    fn a_right_that_rests_is_resumed_unless_it_was_taken() {
        let bias = Bias::default();
        let own = epoch::own_slot();
        assert!(bias.give(own) && !bias.is_free() && !bias.resume(own), "it does not rest");
        bias.rest();
        assert!(!bias.is_held_by(own) && bias.resume(own) && bias.is_held_by(own));
        bias.rest();
        assert!(bias.rests());
        bias.take();
        assert!(!bias.rests() && !bias.resume(own));
        bias.rest_again();
        assert!(bias.resume(own));
        bias.rest_in_section(own);
        assert!(!bias.is_held_by(own) && bias.rests());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = epoch::own_slot();
                assert!(!bias.resume(other) && !bias.is_held_by(other), "it is the first one's");
                assert!(bias.is_free() && bias.give(other), "which nobody has used meanwhile");
            });
        });
        assert!(!bias.resume(own) && !bias.is_held_by(own));
        bias.rest();
        assert!(bias.is_free() && !bias.resume(own), "what is another one's is taken, not kept");
    }

    #[test]
    fn a_thread_that_comes_after_another_has_to_ask_for_some_time() {
        let bias = Bias::default();
        let own = epoch::own_slot();
        assert!(bias.give(own) && bias.is_held_by(own));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = epoch::own_slot();
                assert!(!bias.give(other) && !bias.is_held_by(other), "it is the first one's");
                bias.take();
                let asks = (1..).find(|_| bias.give(other));
                assert_eq!(asks, Some(PATIENCE + 1));
                bias.give_back();
            });
        });
        bias.take();
        assert!(!bias.is_held_by(own) && !bias.give(own));
    }
}
