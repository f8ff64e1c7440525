//! The countdown of a bucket under loom: see gaspi-core's models for what that means.
//!
//! Tensors and their sum lie in memory whose accesses loom checks. The twins weaken the orderings
//! of one kind of the countdown's words at a time.

#[path = "../../gaspi-core/tests/loom/model.rs"]
mod model;

use gaspi_collectives::fusion::countdown::{Claim, Countdown, Refusal};
use loom::sync::Arc;
use model::*;

/// A bucket of so many tensors, each of so many contributions in a step. The orderings of what is
/// left to come, of the ends of steps and of the tensors are those of `R`, `E` and `T`.
struct Bucket<const R: u8, const E: u8, const T: u8> {
    countdown: Countdown<W32<R>, W64<E>, W64<T>>,
    tensors: Vec<Payload>,
    sum: Payload,
}

impl<const R: u8, const E: u8, const T: u8> Bucket<R, E, T> {
    fn new(tensors: usize, contributions: u32) -> Arc<Bucket<R, E, T>> {
        let countdown = Countdown::new(tensors, contributions);
        let tensors = (0..tensors).map(|_| Payload::default()).collect();
        Arc::new(Bucket { countdown, tensors, sum: Payload::default() })
    }

    /// The right to contribute; waits for a thread that is just contributing.
    fn claim(&self, nth: usize) -> Claim {
        loop {
            match self.countdown.claim(nth) {
                Ok(claim) => return claim,
                Err(Refusal::Busy) => loom::thread::yield_now(),
                Err(Refusal::TooOften) => panic!("it is not too often"),
            }
        }
    }

    /// As a submit does it. The last one stands for the all-reduce.
    fn submit(&self, nth: usize, value: u64) {
        let claim = self.claim(nth);
        let before = if claim.is_first { 0 } else { self.tensors[nth].read() };
        self.tensors[nth].write(before + value);
        if self.countdown.finish(nth, claim) {
            self.sum.write(self.tensors.iter().map(Payload::read).sum());
            self.countdown.end();
        }
    }

    /// Waits for the end of a step.
    fn wait(&self, step: u64) -> u64 {
        until(|| self.countdown.ended() >= step);
        self.sum.read()
    }
}

/// Two threads submit a tensor each. One of them reads the sum, and takes the next step alone.
fn two_tensors<const R: u8, const E: u8, const T: u8>() {
    let bucket = Bucket::<R, E, T>::new(2, 1);
    let other = spawn(&bucket, |bucket| bucket.submit(1, 11));
    bucket.submit(0, 10);
    assert_eq!(bucket.wait(1), 21);
    bucket.submit(1, 21);
    bucket.submit(0, 20);
    assert_eq!(bucket.wait(2), 41);
    other.join().expect("the other thread");
}

/// Two threads contribute to one tensor; one of them finds at first that it cannot.
fn two_contributions<const R: u8, const E: u8, const T: u8>() {
    let bucket = Bucket::<R, E, T>::new(1, 2);
    let other = spawn(&bucket, |bucket| bucket.submit(0, 3));
    if let Ok(claim) = bucket.countdown.claim(0) {
        bucket.countdown.renounce(0, claim);
    }
    bucket.submit(0, 4);
    assert_eq!(bucket.wait(1), 7);
    other.join().expect("the other thread");
}

#[test]
fn countdown() {
    holds(two_tensors::<AS_WRITTEN, AS_WRITTEN, AS_WRITTEN>);
    holds(two_contributions::<AS_WRITTEN, AS_WRITTEN, AS_WRITTEN>);
}

#[test]
fn countdown_weakened() {
    breaks(two_tensors::<NO_RELEASE, AS_WRITTEN, AS_WRITTEN>);
    breaks(two_tensors::<NO_ACQUIRE, AS_WRITTEN, AS_WRITTEN>);
    breaks(two_tensors::<AS_WRITTEN, NO_RELEASE, AS_WRITTEN>);
    breaks(two_tensors::<AS_WRITTEN, NO_ACQUIRE, AS_WRITTEN>);
    breaks(two_contributions::<AS_WRITTEN, AS_WRITTEN, NO_RELEASE>);
    breaks(two_contributions::<AS_WRITTEN, AS_WRITTEN, NO_ACQUIRE>);
}
