//! One queue and several threads, in whatever order.

use super::*;
use std::sync::Barrier;
use std::sync::atomic::AtomicU32 as Count;

const LIMIT: u32 = 1000;

fn queue() -> Queue {
    let [queue, ..] = queues(1, 1);
    queue
}

/// A request that takes one slot, in the way that comes first.
fn post(queue: &Queue, limit: u32) -> bool {
    let fast = epoch::enter_fast().and_then(|section| queue.reserve_fast(section.slot(), 1, limit));
    fast.unwrap_or_else(|| queue.reserve(&epoch::enter(), 1, limit))
}

/// Posts until the queue is full, and says how often that went.
fn fill(queue: &Queue) -> u32 {
    (0..).take_while(|_| post(queue, LIMIT)).count() as u32
}

#[test]
fn as_many_requests_fit_as_one_thread_could_post() {
    for threads in [1, 2, 5] {
        for round in 0..50 {
            let queue = queue();
            let start = Barrier::new(threads);
            let sum: u32 = std::thread::scope(|scope| {
                let fill = || {
                    start.wait();
                    fill(&queue)
                };
                let all: Vec<_> = (0..threads).map(|_| scope.spawn(fill)).collect();
                all.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(sum, LIMIT, "{threads} threads, round {round}");
            assert_eq!(queue.posted.load(Ordering::SeqCst), LIMIT);
        }
    }
}

#[test]
fn a_thread_that_comes_second_takes_over_what_the_first_has_counted() {
    let queue = queue();
    assert!((0..10).all(|_| post(&queue, LIMIT)));
    for moves in 1..=MOVES_MAX + 1 {
        // Threads that have ended, at the same address or not, among them.
        let added = std::thread::scope(|scope| scope.spawn(|| post(&queue, LIMIT)).join().unwrap());
        assert!(added);
        assert!(post(&queue, LIMIT));
        assert_eq!(queue.posted.load(Ordering::SeqCst), 10 + 2 * moves);
    }
    assert_eq!(queue.owner.load(Ordering::SeqCst), EVERYBODY, "it has moved often enough");
    assert_eq!(fill(&queue), LIMIT - 10 - 2 * (MOVES_MAX + 1));
}

/// Two threads that use two queues in opposite order, while a third waits for both: nobody holds
/// one while he takes the other.
#[test]
fn threads_that_take_each_others_queues_do_not_wait_for_each_other() {
    for _ in 0..200 {
        let [one, two, ..] = queues(2, 1);
        let start = Barrier::new(3);
        std::thread::scope(|scope| {
            for pair in [[&one, &two], [&two, &one]] {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..30 {
                        assert!(pair.iter().all(|queue| post(queue, u32::MAX / 2)));
                    }
                });
            }
            scope.spawn(|| {
                start.wait();
                for queue in [&one, &two] {
                    queue.share();
                }
            });
        });
        for queue in [&one, &two] {
            assert_eq!(queue.posted.load(Ordering::SeqCst), 60);
        }
    }
}

/// Others empty the queue all the time: never do more fit than the limit, and in the end the count
/// is what was posted since.
#[test]
fn a_queue_that_is_waited_for_and_purged_meanwhile_counts_on() {
    for purge in [false, true] {
        let (queue, ended) = (queue(), Count::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        post(&queue, 8);
                        assert!(queue.posted.load(Ordering::SeqCst) <= 8);
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
            while ended.load(Ordering::SeqCst) < 2 {
                if purge {
                    queue.purge();
                } else {
                    queue.reset(&epoch::enter());
                }
            }
        });
        queue.purge();
        assert_eq!((0..20).filter(|_| post(&queue, 8)).count(), 8);
    }
}

#[test]
fn nobody_takes_a_slot_of_a_deleted_queue_and_nobody_hangs() {
    let queue = queue();
    assert!(post(&queue, LIMIT));
    queue.share();
    queue.owner.store(DELETED, Ordering::SeqCst);
    let deleted = || {
        assert!(!post(&queue, LIMIT));
        queue.reset(&epoch::enter());
        queue.share();
        queue.purge();
        assert_eq!(queue.owner.load(Ordering::SeqCst), DELETED);
    };
    deleted();
    std::thread::scope(|scope| scope.spawn(deleted).join().unwrap());
}
