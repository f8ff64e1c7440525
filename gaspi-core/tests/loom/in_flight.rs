//! The counts of requests under way: `gaspi_core::sync::in_flight` used as a queue uses it, with a
//! count for the queue and one for the lane to a target.
//!
//! The order of the two counts, and the lock that failures are kept under, are those of
//! `Queue` in `gaspi_core::queue`. The twins reverse the order, leave the check of the generation
//! out, or mark a failure too late.

use super::*;
use gaspi_core::sync::in_flight::InFlight;
use loom::sync::Mutex;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    AsWritten,
    QueueBeforeLane,
    AnyGeneration,
    MarkedLate,
}

/// A queue with one target.
struct Queue<const HOW: u8> {
    rule: Rule,
    requests: InFlight<W64<HOW>>,
    lane: InFlight<W64<HOW>>,
    failures: Mutex<u32>,
    /// What the requests have brought.
    brought: [Payload; 2],
}

impl<const HOW: u8> Queue<HOW> {
    fn new(rule: Rule) -> Arc<Queue<HOW>> {
        Arc::new(Queue {
            rule,
            requests: InFlight::default(),
            lane: InFlight::default(),
            failures: Mutex::new(0),
            brought: Default::default(),
        })
    }

    fn begin(&self) -> u32 {
        let generation = self.requests.begin();
        self.lane.begin_in(generation);
        generation
    }

    /// The requests under way in the lane, of the generation of the queue.
    fn pending(&self) -> u32 {
        self.lane.count_of(self.requests.generation())
    }

    fn complete(&self, generation: u32) {
        let generation = match self.rule {
            Rule::AnyGeneration => self.requests.generation(),
            _ => generation,
        };
        if self.rule == Rule::QueueBeforeLane {
            self.requests.complete(generation, 1);
            self.lane.complete(generation, 1);
        } else {
            self.lane.complete(generation, 1);
            self.requests.complete(generation, 1);
        }
    }

    fn complete_with_failure(&self, generation: u32) {
        let mut failures = self.failures.lock().unwrap();
        if self.rule != Rule::AnyGeneration && self.requests.generation() != generation {
            return;
        }
        if self.rule == Rule::MarkedLate {
            self.complete(generation);
        }
        *failures += 1;
        self.requests.mark_failed(true);
        if self.rule != Rule::MarkedLate {
            self.complete(generation);
        }
    }

    fn purge(&self) {
        let mut failures = self.failures.lock().unwrap();
        *failures = 0;
        self.requests.purge();
    }

    /// How many requests have failed; nothing while some are under way and none has failed.
    fn outcome(&self) -> Option<u32> {
        if !self.requests.is_busy() {
            return Some(0);
        }
        let mut failures = self.failures.lock().unwrap();
        if *failures == 0 {
            return (self.requests.count() == 0).then_some(0);
        }
        self.requests.mark_failed(false);
        Some(std::mem::take(&mut *failures))
    }

    fn wait(&self) -> u32 {
        let mut outcome = None;
        until(|| {
            outcome = self.outcome();
            outcome.is_some()
        });
        outcome.expect("an outcome")
    }
}

/// Two requests complete at once; a caller that finds the queue idle finds what they have brought,
/// and the lane idle too.
fn completed<const HOW: u8>(rule: Rule) {
    let queue = Queue::<HOW>::new(rule);
    let handlers = [0, 1].map(|request| {
        let generation = queue.begin();
        spawn(&queue, move |queue| {
            queue.brought[request].write(77);
            queue.complete(generation);
        })
    });
    until(|| !queue.requests.is_busy());
    assert_eq!([queue.brought[0].read(), queue.brought[1].read()], [77, 77]);
    assert_eq!(queue.pending(), 0, "the lane of an idle queue");
    for handler in handlers {
        handler.join().expect("handler");
    }
}

/// A purge at the same time as the completion of a request and the beginning of another one. A
/// third request begins behind the purge.
fn purged(rule: Rule) {
    let queue = Queue::<AS_WRITTEN>::new(rule);
    let first = queue.begin();
    let handler = spawn(&queue, move |queue| queue.complete(first));
    let purger = spawn(&queue, move |queue| {
        queue.purge();
        queue.begin()
    });
    let second = queue.begin();
    handler.join().expect("handler");
    let third = purger.join().expect("purger");
    assert_eq!(queue.requests.generation(), third);
    let left = 1 + u32::from(second == third);
    assert_eq!((queue.requests.count(), queue.pending()), (left, left), "of {third}");
    queue.complete(second);
    queue.complete(third);
    assert_eq!((queue.requests.is_busy(), queue.pending()), (false, 0));
}

/// One request fails, another one does not: a caller that waits hears of one failure.
fn failed(rule: Rule) {
    let queue = Queue::<AS_WRITTEN>::new(rule);
    let (first, second) = (queue.begin(), queue.begin());
    let other = spawn(&queue, move |queue| queue.complete(second));
    let failing = spawn(&queue, move |queue| queue.complete_with_failure(first));
    assert_eq!(queue.wait(), 1, "the failure is told");
    failing.join().expect("handler");
    other.join().expect("handler");
    assert_eq!((queue.wait(), queue.pending()), (0, 0), "the failure is told once");
}

/// A request fails while the queue is purged: nothing is left of it.
fn failed_and_purged(rule: Rule) {
    let queue = Queue::<AS_WRITTEN>::new(rule);
    let first = queue.begin();
    let failing = spawn(&queue, move |queue| queue.complete_with_failure(first));
    queue.purge();
    failing.join().expect("handler");
    assert_eq!((queue.requests.is_busy(), queue.pending()), (false, 0));
}

#[test]
fn requests_completed() {
    holds(|| completed::<AS_WRITTEN>(Rule::AsWritten));
}

#[test]
fn requests_purged() {
    holds(|| purged(Rule::AsWritten));
}

#[test]
fn requests_failed() {
    holds(|| failed(Rule::AsWritten));
}

#[test]
fn requests_failed_and_purged() {
    holds(|| failed_and_purged(Rule::AsWritten));
}

#[test]
fn requests_weakened() {
    breaks(|| completed::<NO_RELEASE>(Rule::AsWritten));
    breaks(|| completed::<NO_ACQUIRE>(Rule::AsWritten));
    breaks(|| completed::<AS_WRITTEN>(Rule::QueueBeforeLane));
    breaks(|| purged(Rule::AnyGeneration));
    breaks(|| failed(Rule::MarkedLate));
    breaks(|| failed_and_purged(Rule::AnyGeneration));
}
