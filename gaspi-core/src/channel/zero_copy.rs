//! Memory of the program that messages to other nodes still read.
//!
//! A zero-copy message carries a number in place of its queue's generation. Its acknowledgement
//! brings the number back: the peer has received all of it, and the memory is the program's again.
//! A message that had to be copied nevertheless is acknowledged in the same way.

use crate::sync::{AtomicU32, AtomicUsize, Mutex, Ordering};
use crate::transport::payload::{AWAITED, UserBuffer};
use std::sync::Arc;

/// A zero-copy send that has not ended.
#[derive(Debug)]
struct InFlight {
    number: u32,
    /// Where the channel begins in the arena.
    channel: u64,
    member: usize,
    buffer: Arc<UserBuffer>,
    /// The message will not arrive, and does not use the memory any more.
    lost: bool,
}

/// The zero-copy sends of all channels of a rank.
#[derive(Debug, Default)]
pub(crate) struct ZeroCopySends {
    all: Mutex<Vec<InFlight>>,
    /// Their number.
    count: AtomicUsize,
    /// What the last one was given as its number.
    last: AtomicU32,
}

impl ZeroCopySends {
    /// Begins a zero-copy send of what begins at `start`.
    ///
    /// # Safety
    /// As [`UserBuffer::new`]; it is cancelled when it has been
    /// [acknowledged](ZeroCopySends::acknowledged) or [all of the channel
    /// is](ZeroCopySends::cancel).
    pub(super) unsafe fn begin(
        &self,
        (channel, member): (u64, usize),
        start: *const u8,
        awaited: bool,
    ) -> (u32, Arc<UserBuffer>) {
        // SAFETY: as the caller says.
        let buffer = Arc::new(unsafe { UserBuffer::new(start) });
        let next = |last: u32| Some(if last + 1 == AWAITED { 1 } else { last + 1 });
        // Relaxed: a number, which orders nothing.
        let order = Ordering::Relaxed;
        let last = self.last.fetch_update(order, order, next).unwrap_or_default();
        let number = next(last).unwrap_or_default() | if awaited { AWAITED } else { 0 };
        let mut all = self.all.lock();
        all.push(InFlight { number, channel, member, buffer: Arc::clone(&buffer), lost: false });
        // Relaxed: a thread that asks has begun the send, or was told of it by the one that has.
        self.count.store(all.len(), Ordering::Relaxed);
        (number, buffer)
    }

    /// A send has ended: acknowledged, or not begun after all. No effect on number 0, which stands
    /// for none.
    pub(crate) fn acknowledged(&self, number: u32) {
        if number != 0 {
            self.end(|send| send.number == number);
        }
    }

    /// The message of a send has been lost; see [`in_flight`](ZeroCopySends::in_flight).
    pub(crate) fn lost(&self, number: u32) {
        for send in self.all.lock().iter_mut().filter(|send| send.number == number) {
            send.buffer.revoke();
            send.lost = true;
        }
    }

    /// Cancels all sends of a channel: connections that have not sent all of one end.
    pub(super) fn cancel(&self, channel: u64) {
        self.end(|send| send.channel == channel);
    }

    fn end(&self, which: impl Fn(&InFlight) -> bool) {
        let mut all = self.all.lock();
        for send in all.extract_if(.., |send| which(send)) {
            send.buffer.revoke();
        }
        // Release: what was done before the end is seen by a thread that finds it ended.
        self.count.store(all.len(), Ordering::Release);
    }

    /// The members of a channel to which zero-copy sends have not ended, with whether the message
    /// is lost; [`Channel::check`](super::Channel::check) gives the reason.
    pub(super) fn in_flight(&self, channel: u64) -> Vec<(usize, bool)> {
        // Acquire: pairs with the Release in `end`.
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let all = self.all.lock();
        let of_it = all.iter().filter(|send| send.channel == channel);
        of_it.map(|send| (send.member, send.lost)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::payload::Payload;
    use crate::transport::payload::is_awaited;

    #[test]
    fn each_channel_knows_its_sends_until_they_end() {
        let (sends, data) = (ZeroCopySends::default(), [0u8; 8]);
        // SAFETY: nobody reads it.
        let begin = |channel, member, awaited| unsafe {
            sends.begin((channel, member), data.as_ptr(), awaited)
        };
        let (first, _) = begin(64, 1, false);
        let (second, other) = begin(64, 2, true);
        let (third, _) = begin(128, 1, true);
        assert!(!is_awaited(first) && is_awaited(second) && is_awaited(third));
        let in_flight = || [64, 128].map(|channel| sends.in_flight(channel));
        assert_eq!(in_flight(), [vec![(1, false), (2, false)], vec![(1, false)]]);
        sends.acknowledged(first);
        sends.acknowledged(0);
        sends.lost(third);
        assert_eq!(in_flight(), [vec![(2, false)], vec![(1, true)]]);
        let payload = Payload::of_user(other, 0);
        assert!(*payload.accept());
        sends.cancel(64);
        assert!(!*payload.accept(), "it was cancelled");
        sends.cancel(128);
        assert_eq!(in_flight(), [vec![], vec![]]);
    }

    #[test]
    fn numbers_begin_again_and_are_never_none() {
        let (sends, data) = (ZeroCopySends::default(), [0u8; 8]);
        sends.last.store(AWAITED - 2, Ordering::Relaxed);
        let numbers: Vec<u32> = (0..3)
            // SAFETY: nobody reads it.
            .map(|_| unsafe { sends.begin((0, 0), data.as_ptr(), false) }.0)
            .collect();
        assert_eq!(numbers, [AWAITED - 1, 1, 2]);
    }
}
