//! Who looks after the sockets of a rank, and what callers and the progress thread tell each other
//! about it.
//!
//! Everything here is a hint, but for the owner: it changes together with what the progress thread
//! sleeps on, under a lock. Where a hint must not be missed, both sides have a fence between what
//! they say and what they look at; the fence stands where the two are.

use crate::policy::owner::{PollOwner, polls_behind_post, polls_in_test};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::transport::tcp::poll_sets::PollSets;

/// Who polls the sockets, and when.
#[derive(Debug)]
pub(crate) struct Polling {
    /// A [`PollOwner`] as a word; changed with the lock, together with what the thread sleeps on.
    owner: AtomicU32,
    owner_lock: Mutex<()>,
    /// How often callers have looked after the sockets.
    caller_polls: AtomicU64,
    /// When a call that may not wait looked after them last.
    looked_ns: AtomicU64,
    /// Whether a caller that posts all the time should.
    look_due: AtomicBool,
    /// Whether a caller would look after them if the progress thread did not.
    receiver_wanted: AtomicBool,
    /// Whether a caller sleeps on them.
    sleeper: AtomicBool,
    /// Whether a caller has found soon what it waited for, since the progress thread looked last.
    brief: AtomicBool,
    /// Whether acknowledgements wait for something to go along with, so that the progress thread
    /// has to tick on; changed with the receiver.
    acks_delayed: AtomicBool,
    /// The same of what a device has brought; changed with its receive queue.
    device_acks_delayed: AtomicBool,
    /// Whether a socket is out of the set, which somebody has to look at by himself; changed with
    /// the receiver.
    direct_poll: AtomicBool,
    /// Whether the thread's ticks are so far apart that it has to be called for what is held back.
    ticks_slowly: AtomicBool,
    /// Whether the progress thread is to end.
    stop: AtomicBool,
}

impl Polling {
    pub(super) fn new() -> Polling {
        Polling {
            owner: AtomicU32::new(PollOwner::Thread as u32),
            owner_lock: Mutex::default(),
            caller_polls: AtomicU64::new(0),
            looked_ns: AtomicU64::new(0),
            look_due: AtomicBool::new(false),
            receiver_wanted: AtomicBool::new(false),
            sleeper: AtomicBool::new(false),
            brief: AtomicBool::new(false),
            acks_delayed: AtomicBool::new(false),
            device_acks_delayed: AtomicBool::new(false),
            direct_poll: AtomicBool::new(false),
            ticks_slowly: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }
}

/// The owner.
impl Polling {
    /// Who looks after the sockets while no caller does.
    #[inline]
    pub(crate) fn owner(&self) -> PollOwner {
        PollOwner::of_word(self.owner.load(Ordering::Relaxed))
    }

    /// Settles who looks after the sockets while no caller does.
    pub(crate) fn set_owner(&self, sets: &PollSets, next: PollOwner) {
        let _owned = self.owner_lock.lock();
        self.set_owner_locked(sets, next);
    }

    /// The same unless somebody else has settled it meanwhile.
    pub(crate) fn change_owner(&self, sets: &PollSets, before: PollOwner, next: PollOwner) {
        if self.owner() != before {
            return;
        }
        let _owned = self.owner_lock.lock();
        if self.owner() == before {
            self.set_owner_locked(sets, next);
        }
    }

    fn set_owner_locked(&self, sets: &PollSets, next: PollOwner) {
        let before = PollOwner::of_word(self.owner.swap(next as u32, Ordering::Relaxed));
        let (armed, arm) = (before == PollOwner::Thread, next == PollOwner::Thread);
        if armed != arm {
            sets.listen_to_data(arm);
        }
    }
}

/// What callers say.
impl Polling {
    /// A caller looks after the sockets, or will soon. Should two do so at once, one may not be
    /// counted.
    #[inline]
    pub(crate) fn note_caller_poll(&self) {
        let caller_polls = self.caller_polls.load(Ordering::Relaxed).wrapping_add(1);
        self.caller_polls.store(caller_polls, Ordering::Relaxed);
    }

    /// How often callers have looked after the sockets.
    pub(crate) fn caller_polls(&self) -> u64 {
        self.caller_polls.load(Ordering::Relaxed)
    }

    /// Something was posted soon after something else.
    #[inline]
    pub(crate) fn note_posting(&self, now_ns: u64) {
        if polls_behind_post(now_ns, self.looked_ns.load(Ordering::Relaxed)) {
            self.look_due.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a caller that posts all the time should look after the sockets.
    #[inline]
    pub(crate) fn is_look_due(&self) -> bool {
        self.look_due.load(Ordering::Relaxed)
    }

    /// A caller that posts all the time looks.
    pub(crate) fn note_due_look(&self, now_ns: u64) {
        self.look_due.store(false, Ordering::Relaxed);
        self.looked_ns.store(now_ns, Ordering::Relaxed);
    }

    /// A call that may not wait looks, unless somebody did so just now; whether it does.
    pub(crate) fn note_test(&self, now_ns: u64) -> bool {
        let looks = polls_in_test(now_ns, self.looked_ns.load(Ordering::Relaxed));
        if looks {
            self.looked_ns.store(now_ns, Ordering::Relaxed);
        }
        looks
    }

    /// Whether a caller would look after the sockets if the progress thread did not.
    #[inline]
    pub(crate) fn set_receiver_wanted(&self, wanted: bool) {
        self.receiver_wanted.store(wanted, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_receiver_wanted(&self) -> bool {
        self.receiver_wanted.load(Ordering::Relaxed)
    }

    /// Whether a caller sleeps on the sockets.
    pub(crate) fn set_sleeper(&self, sleeps: bool) {
        self.sleeper.store(sleeps, Ordering::Relaxed);
    }

    pub(crate) fn has_sleeper(&self) -> bool {
        self.sleeper.load(Ordering::Relaxed)
    }

    /// A caller has found soon what it waited for.
    #[inline]
    pub(crate) fn note_brief(&self) {
        self.brief.store(true, Ordering::Relaxed);
    }

    /// Whether one has since the last call.
    pub(crate) fn take_brief(&self) -> bool {
        self.brief.swap(false, Ordering::Relaxed)
    }

    /// Whether that has not been asked for yet.
    #[cfg(test)]
    pub(crate) fn is_brief(&self) -> bool {
        self.brief.load(Ordering::Relaxed)
    }
}

/// What is left to the progress thread.
impl Polling {
    /// Whether acknowledgements wait for something to go along with. Only with the receiver.
    pub(crate) fn set_acks_delayed(&self, delayed: bool) {
        self.acks_delayed.store(delayed, Ordering::Relaxed);
    }

    /// The same of what a device has brought. Only with its receive queue.
    pub(crate) fn set_device_acks_delayed(&self, delayed: bool) {
        self.device_acks_delayed.store(delayed, Ordering::Relaxed);
    }

    /// Whether those do.
    pub(crate) fn are_device_acks_delayed(&self) -> bool {
        self.device_acks_delayed.load(Ordering::Relaxed)
    }

    /// Whether a socket is out of the set. Only with the receiver.
    pub(super) fn set_direct(&self, direct: bool) {
        self.direct_poll.store(direct, Ordering::Relaxed);
    }

    /// Whether somebody has to look at a socket by himself.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct_poll.load(Ordering::Relaxed)
    }

    /// Whether the thread has to tick on, since nothing would wake it for what is left to it.
    pub(crate) fn needs_timer(&self) -> bool {
        let delayed = [&self.acks_delayed, &self.device_acks_delayed];
        self.is_direct() || delayed.into_iter().any(|delayed| delayed.load(Ordering::Relaxed))
    }

    /// Whether the ticks are far apart from now on.
    pub(crate) fn set_ticks_slowly(&self, slowly: bool) {
        self.ticks_slowly.store(slowly, Ordering::Relaxed);
    }

    /// Whether the thread comes by itself, and soon.
    pub(super) fn ticks_soon(&self) -> bool {
        self.owner() == PollOwner::Timer && !self.ticks_slowly.load(Ordering::Relaxed)
    }

    /// The progress thread is to end; it has to be woken for that.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
