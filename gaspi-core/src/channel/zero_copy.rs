//! Memory of the program that messages to other nodes take their data from while they are on their
//! way.
//!
//! A message that was lent its data carries a number in place of its queue's generation. Its
//! acknowledgement brings that back: the peer has received all of it, and the memory is the
//! program's. So does that of one that had to be copied nevertheless, and whoever waits knows that
//! it has arrived.

use super::arena::lock;
use crate::sync::{AtomicU32, AtomicUsize, Ordering};
use crate::transport::tcp::payload::Loan;
use std::sync::{Arc, Mutex};

/// The bit of a number that says that somebody waits for the acknowledgement.
const AWAITED: u32 = 1 << 31;

/// Memory that a message has not given back.
#[derive(Debug)]
struct Lent {
    number: u32,
    /// Where the channel begins in the arena.
    channel: u64,
    member: usize,
    loan: Arc<Loan>,
    /// The message will not arrive, and does not use the memory any more.
    lost: bool,
}

/// What has been lent to the messages of all channels of a rank.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    all: Mutex<Vec<Lent>>,
    /// How many.
    count: AtomicUsize,
    /// The number of the last one.
    last: AtomicU32,
}

/// Whether the acknowledgement of a put with this number, as its generation, is waited for.
pub(crate) fn is_awaited(number: u32) -> bool {
    number & AWAITED != 0
}

impl Loans {
    /// Lends what begins at `start` to a message of a channel.
    ///
    /// # Safety
    /// As [`Loan::new`]; it is called back when it has been [returned](Loans::returned) or
    /// [all of the channel is](Loans::call_back).
    pub(super) unsafe fn lend(
        &self,
        (channel, member): (u64, usize),
        start: *const u8,
        awaited: bool,
    ) -> (u32, Arc<Loan>) {
        // SAFETY: as the caller says.
        let loan = Arc::new(unsafe { Loan::new(start) });
        let next = |last: u32| Some(if last + 1 == AWAITED { 1 } else { last + 1 });
        // Relaxed: a number, which orders nothing.
        let order = Ordering::Relaxed;
        let last = self.last.fetch_update(order, order, next).unwrap_or_default();
        let number = next(last).unwrap_or_default() | if awaited { AWAITED } else { 0 };
        let mut all = lock(&self.all);
        all.push(Lent { number, channel, member, loan: Arc::clone(&loan), lost: false });
        // Relaxed: whoever asks has lent it, or knows of it from who has.
        self.count.store(all.len(), Ordering::Relaxed);
        (number, loan)
    }

    /// A message has given back what it was lent, or has not taken it. No effect on number 0, which
    /// stands for none.
    pub(crate) fn returned(&self, number: u32) {
        if number != 0 {
            self.end(|lent| lent.number == number);
        }
    }

    /// A message has been lost; see [`borrowers`](Loans::borrowers).
    pub(crate) fn lost(&self, number: u32) {
        for lent in lock(&self.all).iter_mut().filter(|lent| lent.number == number) {
            lent.loan.call_back();
            lent.lost = true;
        }
    }

    /// Calls back all that a channel has lent: connections end that have not sent all of it.
    pub(super) fn call_back(&self, channel: u64) {
        self.end(|lent| lent.channel == channel);
    }

    fn end(&self, which: impl Fn(&Lent) -> bool) {
        let mut all = lock(&self.all);
        for lent in all.extract_if(.., |lent| which(lent)) {
            lent.loan.call_back();
        }
        // Release: what was done before the memory came back is seen by who finds it returned.
        self.count.store(all.len(), Ordering::Release);
    }

    /// The members of a channel that have not received messages that were lent their data, with
    /// whether these are lost: whoever waits for one learns by other ways why.
    pub(super) fn borrowers(&self, channel: u64) -> Vec<(usize, bool)> {
        // Acquire: pairs with the Release in `end`.
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let all = lock(&self.all);
        let of_it = all.iter().filter(|lent| lent.channel == channel);
        of_it.map(|lent| (lent.member, lent.lost)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tcp::payload::Payload;

    #[test]
    fn each_channel_knows_what_it_has_lent_until_it_comes_back() {
        let (loans, data) = (Loans::default(), [0u8; 8]);
        // SAFETY: nobody reads it.
        let lend = |channel, member, awaited| unsafe {
            loans.lend((channel, member), data.as_ptr(), awaited)
        };
        let (first, _) = lend(64, 1, false);
        let (second, other) = lend(64, 2, true);
        let (third, _) = lend(128, 1, true);
        assert!(!is_awaited(first) && is_awaited(second) && is_awaited(third));
        let borrowers = || [64, 128].map(|channel| loans.borrowers(channel));
        assert_eq!(borrowers(), [vec![(1, false), (2, false)], vec![(1, false)]]);
        loans.returned(first);
        loans.returned(0);
        loans.lost(third);
        assert_eq!(borrowers(), [vec![(2, false)], vec![(1, true)]]);
        let payload = Payload::lent(other, 0);
        assert!(*payload.accept());
        loans.call_back(64);
        assert!(!*payload.accept(), "it was called back");
        loans.call_back(128);
        assert_eq!(borrowers(), [vec![], vec![]]);
    }

    #[test]
    fn numbers_begin_again_and_are_never_none() {
        let (loans, data) = (Loans::default(), [0u8; 8]);
        loans.last.store(AWAITED - 2, Ordering::Relaxed);
        let numbers: Vec<u32> = (0..3)
            // SAFETY: nobody reads it.
            .map(|_| unsafe { loans.lend((0, 0), data.as_ptr(), false) }.0)
            .collect();
        assert_eq!(numbers, [AWAITED - 1, 1, 2]);
    }
}
