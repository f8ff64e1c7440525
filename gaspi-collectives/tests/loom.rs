//! The countdown of a bucket, and the list of executors, under loom: see gaspi-core's models for
//! what that means.
//!
//! Tensors and their sum lie in memory whose accesses loom checks. The twins weaken the orderings
//! of one kind of the countdown's words at a time, or let go of the list before what a thread does
//! with it has ended.

#[path = "../../gaspi-core/tests/loom/model.rs"]
mod model;

use gaspi_collectives::fusion::countdown::{Claim, Countdown, Refusal};
use gaspi_collectives::listed::{Exclusive, Listed, Shared};
use loom::sync::{Arc, Mutex};
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
            match self.countdown.claim(self.countdown.tensor(nth)) {
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
        if self.countdown.finish(self.countdown.tensor(nth), claim) {
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
    let tensor = bucket.countdown.tensor(0);
    if let Ok(claim) = bucket.countdown.claim(tensor) {
        bucket.countdown.renounce(tensor, claim);
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

/// A list of executors, which are numbers here, and how many threads read it. It does not change
/// while some do: until they have ended, or have copied it if it is let go of `EARLY`. Loom's own
/// lock has a thread wait that only tries to write.
#[derive(Default)]
struct List<const EARLY: bool>(Mutex<(Vec<u64>, usize)>);

impl<const EARLY: bool> List<EARLY> {
    fn let_go(&self) {
        self.0.lock().expect("no thread panics").1 -= 1;
    }
}

impl<const EARLY: bool> Shared<Vec<u64>> for List<EARLY> {
    fn read<R>(&self, act: impl FnOnce(&Vec<u64>) -> R) -> R {
        let mut held = self.0.lock().expect("no thread panics");
        held.1 += 1;
        let list = held.0.clone();
        drop(held);
        if EARLY {
            self.let_go();
            return act(&list);
        }
        let result = act(&list);
        self.let_go();
        result
    }

    fn write<R>(&self, act: impl FnOnce(&mut Vec<u64>) -> R) -> R {
        let mut act = Some(act);
        loop {
            if let Some(result) = self.try_write(|list| act.take().map(|act| act(list))) {
                return result.expect("it is done once");
            }
            loom::thread::yield_now();
        }
    }

    fn try_write<R>(&self, act: impl FnOnce(&mut Vec<u64>) -> R) -> Option<R> {
        let mut held = self.0.lock().expect("no thread panics");
        (held.1 == 0).then(|| act(&mut held.0))
    }
}

#[derive(Default)]
struct Newcomers(Mutex<Vec<u64>>);

impl Exclusive<Vec<u64>> for Newcomers {
    fn locked<R>(&self, act: impl FnOnce(&mut Vec<u64>) -> R) -> R {
        act(&mut self.0.lock().expect("no thread panics"))
    }
}

type Executors<const EARLY: bool> = Listed<u64, List<EARLY>, Newcomers, W32<AS_WRITTEN>>;

/// A thread adds an executor and looks for it, while another one goes through all, which keeps the
/// first from the list, and then moves what was added there.
fn an_executor_that_moves<const EARLY: bool>() {
    let executors = Arc::new(Executors::<EARLY>::default());
    executors.add(1);
    let other = spawn(&executors, |executors| {
        for _ in 0..2 {
            let mut seen = 0;
            let _ = executors.find(|_| {
                seen += 1;
                None::<()>
            });
            assert!((1..=2).contains(&seen), "each is looked at once: {seen}");
        }
    });
    executors.add(2);
    assert!(executors.find(|found| (*found == 2).then_some(())).is_some(), "it was added before");
    other.join().expect("the other thread");
}

#[test]
fn executors() {
    holds(an_executor_that_moves::<false>);
}

#[test]
fn executors_let_go_of_early() {
    breaks(an_executor_that_moves::<true>);
}
