//! The countdown of a bucket: which of its tensors have been submitted in this step. Without a
//! lock: threads that submit different tensors do not wait for each other.
//!
//! Steps are counted from 1. Step `s` begins with the first submit behind the end of step `s - 1`,
//! and its all-reduce with the last one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use gaspi_core::sync::{Word32, Word64};

/// The word of a tensor: the step of its last contribution, how many it has made in it, and
/// whether a thread is just making one.
const BUSY: u64 = 1;
const CONTRIBUTIONS_SHIFT: u32 = 1;
const CONTRIBUTION_BITS: u32 = 15;
const STEP_SHIFT: u32 = CONTRIBUTIONS_SHIFT + CONTRIBUTION_BITS;

/// Most contributions to a tensor in a step.
pub(super) const CONTRIBUTIONS_MAX: u32 = (1 << CONTRIBUTION_BITS) - 1;

fn word(step: u64, contributions: u64) -> u64 {
    step << STEP_SHIFT | contributions << CONTRIBUTIONS_SHIFT
}

/// The right to write a contribution to a tensor's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The step that it belongs to.
    pub step: u64,
    /// Whether it is the first one to this tensor in this step: it stores, others are added.
    pub is_first: bool,
    contributions: u64,
}

/// Why a tensor cannot be submitted now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It has been in this step.
    TooOften,
    /// Another thread is just submitting it.
    Busy,
}

/// Which tensors of a bucket have been submitted.
///
/// Its words are of three types, so that a model can weaken the orderings of each.
#[derive(Debug)]
pub struct Countdown<R = AtomicU32, E = AtomicU64, T = AtomicU64> {
    /// Steps that have ended.
    ended: E,
    /// Contributions that this step waits for.
    remaining: R,
    /// By tensor of the bucket.
    tensors: Box<[T]>,
    contributions: u64,
}

impl<R: Word32 + Default, E: Word64 + Default, T: Word64 + Default> Countdown<R, E, T> {
    /// For so many tensors, each of which is submitted `contributions` times in a step. The product
    /// fits into an u32.
    pub fn new(tensors: usize, contributions: u32) -> Countdown<R, E, T> {
        let countdown = Countdown {
            ended: E::default(),
            remaining: R::default(),
            tensors: (0..tensors).map(|_| T::default()).collect(),
            contributions: contributions.into(),
        };
        countdown.remaining.store(countdown.all(), Ordering::Relaxed);
        countdown
    }

    /// Contributions of a step.
    fn all(&self) -> u32 {
        self.tensors.len() as u32 * self.contributions as u32
    }

    /// Steps that have ended.
    #[inline]
    pub fn ended(&self) -> u64 {
        // Acquire: the sums are seen; pairs with the Release in `end`.
        self.ended.load(Ordering::Acquire)
    }

    /// The step in which a tensor was submitted last, 0 for none.
    #[inline]
    pub fn submitted(&self, nth: usize) -> u64 {
        // Relaxed: who waits for a tensor has submitted it, or has been told so.
        self.tensors[nth].load(Ordering::Relaxed) >> STEP_SHIFT
    }

    /// Whether a tensor has all its contributions in this step, or more.
    pub fn is_complete(&self, nth: usize, step: u64) -> bool {
        self.tensors[nth].load(Ordering::Relaxed) & !BUSY >= word(step, self.contributions)
    }

    /// The word of a tensor, for those who contribute to it.
    #[inline(always)]
    pub fn tensor(&self, nth: usize) -> &T {
        &self.tensors[nth]
    }

    /// Begins a contribution to a [tensor](Countdown::tensor). It has to be
    /// [finished](Countdown::finish).
    ///
    /// # Errors
    /// Why there is none to make.
    #[inline(always)]
    pub fn claim(&self, tensor: &T) -> Result<Claim, Refusal> {
        let step = self.ended() + 1;
        // Relaxed: the exchange looks again.
        let known = tensor.load(Ordering::Relaxed);
        if known & BUSY != 0 {
            return Err(Refusal::Busy);
        }
        let begun = word(step, 0);
        let contributions = if known < begun { 0 } else { (known - begun) >> CONTRIBUTIONS_SHIFT };
        if contributions >= self.contributions {
            return Err(Refusal::TooOften);
        }
        let next = word(step, contributions + 1);
        // Acquire: what earlier contributions have written is seen; pairs with the Release in
        // `finish`.
        let claimed = tensor.compare_exchange(known, next | BUSY, Ordering::Acquire);
        let claim = Claim { step, is_first: contributions == 0, contributions: contributions + 1 };
        claimed.map(|_| claim).map_err(|_| Refusal::Busy)
    }

    /// Whether a contribution is the last one to its tensor in its step.
    #[inline]
    pub fn completes_tensor(&self, claim: Claim) -> bool {
        claim.contributions == self.contributions
    }

    /// Takes a claim back: nothing has been written.
    pub fn renounce(&self, tensor: &T, claim: Claim) {
        let before = match claim.contributions - 1 {
            0 => word(claim.step - 1, self.contributions),
            contributions => word(claim.step, contributions),
        };
        // Release: as in `finish`.
        tensor.store(before, Ordering::Release);
    }

    /// Ends a contribution. True for the last one of the bucket: all of them have been written.
    #[inline(always)]
    pub fn finish(&self, tensor: &T, claim: Claim) -> bool {
        let now = word(claim.step, claim.contributions);
        // Release: the next contribution to this tensor reads what this one has written.
        tensor.store(now, Ordering::Release);
        // AcqRel: the last one sees what all have written.
        self.remaining.fetch_add(u32::MAX, Ordering::AcqRel) == 1
    }

    /// The all-reduce has ended: the next step may begin.
    pub fn end(&self) {
        // Relaxed: published by the next store.
        self.remaining.store(self.all(), Ordering::Relaxed);
        let ended = self.ended.load(Ordering::Relaxed) + 1;
        // Release: sums and countdown are seen by whoever sees the end.
        self.ended.store(ended, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_submit_of_a_step_is_the_last() {
        let countdown: Countdown = Countdown::new(3, 1);
        for step in 1..5 {
            let mut lasts = 0;
            for nth in [2, 0, 1] {
                let tensor = countdown.tensor(nth);
                let claim = countdown.claim(tensor).expect("it is due");
                assert_eq!((claim.step, claim.is_first), (step, true));
                assert_eq!(countdown.claim(tensor), Err(Refusal::Busy));
                lasts += u32::from(countdown.finish(tensor, claim));
                assert_eq!(countdown.claim(tensor), Err(Refusal::TooOften));
                assert!(countdown.is_complete(nth, step));
                assert!(!countdown.is_complete(nth, step + 1));
                assert_eq!(countdown.submitted(nth), step);
            }
            assert_eq!(lasts, 1);
            countdown.end();
            assert_eq!(countdown.ended(), step);
        }
    }

    #[test]
    fn contributions_are_counted_by_tensor() {
        let countdown: Countdown = Countdown::new(2, 3);
        for step in 1..4 {
            for turn in 0..3 {
                for nth in 0..2 {
                    let tensor = countdown.tensor(nth);
                    let renounced = countdown.claim(tensor).expect("it is due");
                    countdown.renounce(tensor, renounced);
                    let claim = countdown.claim(tensor).expect("it is due again");
                    assert_eq!(claim, renounced);
                    assert_eq!((claim.step, claim.is_first), (step, turn == 0));
                    let last = countdown.finish(tensor, claim);
                    assert_eq!(last, (turn, nth) == (2, 1));
                    assert_eq!(countdown.is_complete(nth, step), turn == 2);
                }
            }
            assert_eq!(countdown.claim(countdown.tensor(0)), Err(Refusal::TooOften));
            countdown.end();
        }
    }
}
