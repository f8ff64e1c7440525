//! Many long buckets at once, of which only some are under way: the others wait for their turn.

use super::*;
use gaspi_collectives::algorithms::Algorithm;
use gaspi_collectives::fusion::handles as fused;
use gaspi_core::sync::{Condvar, Mutex};
use gaspi_core::{Config, Error, Rank, Result};
use std::sync::Arc;
use std::time::Duration;

/// Elements of a tensor, a bucket of its own. More of them than may be under way at once.
const COUNT: usize = 70_000;
const TENSORS: usize = 32;
const FEW: usize = 12;
/// How long a rank waits to be told of an end.
const TOLD_LIMIT: Duration = Duration::from_secs(30);

/// How a rank hears of ends.
#[derive(Clone, Copy, Debug)]
enum Way {
    Wait,
    Next,
    Test,
    /// It is told by the library's thread, and calls nothing.
    Told,
}

fn long(rt: &Runtime, tensors: usize) -> Fusion<'_> {
    let options = Options { threshold: 0, ..Options::default() };
    create(rt, &floats(&vec![COUNT; tensors]), &options)
}

fn has_ended(fusion: &Fusion<'_>, tensor: usize) -> bool {
    // SAFETY: nothing is written.
    unsafe { fusion.test(tensor, std::ptr::null_mut()) }.expect("no error")
}

/// Steps in which each rank submits in an order of its own.
fn steps(ranks: u32, way: Way) {
    ranks::run(ranks, |rt| {
        let me = rt.rank().index();
        let fusion = long(rt, TENSORS);
        let mut random = Random(me as u64 * 77 + 5);
        let told: Arc<(Mutex<usize>, Condvar)> = Arc::default();
        if let Way::Told = way {
            let told = Arc::clone(&told);
            let function = move |_: usize, outcome: Result<()>| {
                outcome.expect("no error");
                *told.0.lock() += 1;
                told.1.notify_one();
            };
            fusion.on_end(Some(Arc::new(function))).expect("a function");
        }
        for step in 0..4 {
            for tensor in random.order(TENSORS) {
                submit(&fusion, tensor, &contribution(me, tensor, step, COUNT));
            }
            match way {
                Way::Wait => {}
                Way::Next => {
                    for _ in 0..TENSORS {
                        fusion.next(LIMIT).expect("a bucket ends");
                    }
                }
                Way::Test => {
                    for tensor in random.order(TENSORS) {
                        while !has_ended(&fusion, tensor) {
                            std::thread::yield_now();
                        }
                    }
                }
                Way::Told => {
                    let mut count = told.0.lock();
                    while *count < TENSORS {
                        count = told.1.wait(count);
                    }
                    *count = 0;
                }
            }
            for tensor in random.order(TENSORS) {
                assert_eq!(wait(&fusion, tensor, COUNT), sum(ranks as usize, tensor, step, COUNT));
            }
        }
        fusion.on_end(None).expect("no function");
    });
}

fn buckets_in_any_order_are_waited_for() {
    [2, 4].into_iter().for_each(|ranks| steps(ranks, Way::Wait));
}

fn buckets_in_any_order_are_fetched() {
    steps(3, Way::Next);
}

fn buckets_in_any_order_are_tested() {
    steps(2, Way::Test);
}

fn buckets_in_any_order_are_told() {
    steps(3, Way::Told);
}

/// By algorithms that fold ranks which are no power of two.
fn buckets_of_any_number_of_ranks_are_waited_for() {
    for (ranks, algorithm) in [
        (3, Algorithm::HalvingDoubling),
        (5, Algorithm::RecursiveDoubling),
        (6, Algorithm::HalvingDoubling),
    ] {
        ranks::run(ranks, |rt| {
            let me = rt.rank().index();
            let algorithm = Some(algorithm);
            let options = Options { threshold: 0, algorithm, ..Options::default() };
            let fusion = create(rt, &floats(&[COUNT; FEW]), &options);
            let mut random = Random(me as u64 * 77 + 5);
            for step in 0..4 {
                for tensor in random.order(FEW) {
                    submit(&fusion, tensor, &contribution(me, tensor, step, COUNT));
                }
                for tensor in random.order(FEW) {
                    let found = wait(&fusion, tensor, COUNT);
                    assert_eq!(found, sum(ranks as usize, tensor, step, COUNT));
                }
            }
        });
    }
}

/// Each rank has begun what the other one submits only behind the end of a bucket whose turn has
/// not come on either.
fn a_bucket_ends_though_all_that_began_before_it_cannot() {
    for way in [Way::Next, Way::Test, Way::Told] {
        ranks::run(2, move |rt| {
            let me = rt.rank().index();
            let fusion = long(rt, 2 * TENSORS + 1);
            let last = 2 * TENSORS;
            let bucket = fusion.bucket(last).expect("it has elements");
            let told: Arc<(Mutex<bool>, Condvar)> = Arc::default();
            let teller = Arc::clone(&told);
            let function = move |ended: usize, outcome: Result<()>| {
                outcome.expect("no error");
                *teller.0.lock() |= ended == bucket;
                teller.1.notify_one();
            };
            if let Way::Told = way {
                fusion.on_end(Some(Arc::new(function))).expect("a function");
            }
            let submit_half = |half: usize| {
                for tensor in half * TENSORS..(half + 1) * TENSORS {
                    submit(&fusion, tensor, &contribution(me, tensor, 0, COUNT));
                }
            };
            submit_half(me);
            submit(&fusion, last, &contribution(me, last, 0, COUNT));
            match way {
                // The other rank may have gone on already, and others may have ended since.
                Way::Next => while fusion.next(LIMIT).expect("a bucket ends") != bucket {},
                Way::Told => {
                    let mut has_ended = told.0.lock();
                    while !*has_ended {
                        has_ended = told.1.wait(has_ended);
                    }
                }
                Way::Test | Way::Wait => {
                    while !has_ended(&fusion, last) {
                        std::thread::yield_now();
                    }
                }
            }
            submit_half(1 - me);
            for tensor in 0..=last {
                assert_eq!(wait(&fusion, tensor, COUNT), sum(2, tensor, 0, COUNT));
            }
            fusion.on_end(None).expect("no function");
        });
    }
}

/// What waits for its turn is part of what is freed, whoever is about to begin it: the other rank
/// ends, or gets an error.
fn a_fused_buffer_is_freed_while_buckets_wait() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        for round in 0..12 {
            let fusion = long(rt, TENSORS);
            if me == 0 {
                (0..TENSORS).for_each(|t| submit(&fusion, t, &contribution(0, t, 0, COUNT)));
                for _ in 0..round / 3 {
                    // Some end before, well or not.
                    drop(fusion.next(LIMIT));
                }
                drop(fusion);
                continue;
            }
            let mut submitted = Vec::new();
            for tensor in (0..TENSORS).rev() {
                let data = contribution(me, tensor, 0, COUNT);
                // SAFETY: as many elements as the tensor has.
                match unsafe { fusion.submit(tensor, data.as_ptr().cast(), 1.0) } {
                    Ok(()) => submitted.push(tensor),
                    Err(error) => assert!(!error.is_timeout(), "{error}"),
                }
            }
            for tensor in submitted {
                let mut found = vec![f32::NAN; COUNT];
                // SAFETY: as many elements as the tensor has.
                match unsafe { fusion.wait(tensor, found.as_mut_ptr().cast(), LIMIT) } {
                    Ok(()) => assert_eq!(found, sum(2, tensor, 0, COUNT)),
                    Err(error) => assert!(!error.is_timeout(), "{error}"),
                }
            }
        }
        let fusion = long(rt, 2);
        (0..2).for_each(|tensor| submit(&fusion, tensor, &contribution(me, tensor, 1, COUNT)));
        (0..2).for_each(|tensor| {
            assert_eq!(wait(&fusion, tensor, COUNT), sum(2, tensor, 1, COUNT));
        });
    });
}

/// All are told of a death: those that are under way, and those that wait.
fn a_death_ends_what_waits() {
    let (pending, parted) = (ranks::Barrier::new(2), ranks::Barrier::new(2));
    ranks::run_owned(2, &Config::default(), |rt| {
        if rt.rank() == Rank(1) {
            let options = Options { threshold: 0, ..Options::default() };
            let made = fused::create(&rt, &floats(&[COUNT; TENSORS]), ALL, &options, LIMIT);
            made.expect("a fused buffer");
            pending.wait();
            ranks::die(rt);
            parted.wait();
            return;
        }
        let fusion = long(&rt, TENSORS);
        let (tell, heard) = std::sync::mpsc::channel();
        let function = move |bucket: usize, outcome: Result<()>| {
            let _ = tell.send((bucket, outcome));
        };
        fusion.on_end(Some(Arc::new(function))).expect("a function");
        (0..TENSORS).for_each(|t| submit(&fusion, t, &contribution(0, t, 0, COUNT)));
        pending.wait();
        let mut failed: Vec<usize> = (0..TENSORS)
            .map(|_| {
                let (bucket, outcome) = heard.recv().expect("a bucket fails");
                let error = outcome.expect_err("a rank has died");
                assert!(matches!(error, Error::RankDied { rank: Rank(1), .. }), "{error}");
                bucket
            })
            .collect();
        failed.sort_unstable();
        assert!(failed.into_iter().eq(0..TENSORS), "each is told once");
        fusion.on_end(None).expect("no function");
        drop(fusion);
        parted.wait();
        rt.term(LIMIT).expect("term");
    });
}

/// A rank leaves while buckets wait, and frees them then.
fn a_rank_leaves_while_buckets_wait() {
    let (pending, parted) = (ranks::Barrier::new(2), ranks::Barrier::new(2));
    ranks::run_owned(2, &Config::default(), |rt| {
        let fusion = long(&rt, TENSORS);
        if rt.rank() == Rank(0) {
            (0..TENSORS).for_each(|t| submit(&fusion, t, &contribution(0, t, 0, COUNT)));
        }
        pending.wait();
        rt.term(LIMIT).expect("term");
        for tensor in 0..TENSORS {
            // SAFETY: nothing is written.
            let waited = unsafe { fusion.wait(tensor, std::ptr::null_mut(), LIMIT) };
            assert!(!waited.is_err_and(|error| error.is_timeout()));
        }
        drop(fusion);
        parted.wait();
    });
}

/// What has no room is begun though what is under way before ends by the program alone, which does
/// nothing for that until it is told.
fn a_bucket_begins_behind_others_that_only_the_program_carries_on() {
    const OTHERS: usize = 4;
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let options = Options { threshold: 0, background: false, ..Options::default() };
        let (others, fusion) = (create(rt, &floats(&[COUNT; OTHERS]), &options), long(rt, 1));
        let (tell, told) = std::sync::mpsc::channel();
        let function = move |_: usize, outcome: Result<()>| {
            let _ = tell.send(outcome);
        };
        fusion.on_end(Some(Arc::new(function))).expect("a function");
        let data: Vec<_> = (0..=OTHERS).map(|t| contribution(me, t, 0, COUNT)).collect();
        (0..OTHERS).for_each(|t| submit(&others, t, &data[t]));
        submit(&fusion, 0, &data[OTHERS]);
        told.recv_timeout(TOLD_LIMIT).expect("it is told").expect("no error");
        assert_eq!(wait(&fusion, 0, COUNT), sum(2, OTHERS, 0, COUNT));
        for t in 0..OTHERS {
            assert_eq!(wait(&others, t, COUNT), sum(2, t, 0, COUNT));
        }
        fusion.on_end(None).expect("no function");
    });
}

/// All are told that their rank has left: those that are under way, and those that wait.
fn a_function_is_told_of_what_waits_when_its_rank_leaves() {
    let (pending, parted) = (ranks::Barrier::new(2), ranks::Barrier::new(2));
    ranks::run_owned(2, &Config::default(), |rt| {
        let fusion = long(&rt, TENSORS);
        let (tell, told) = std::sync::mpsc::channel();
        let function = move |bucket: usize, outcome: Result<()>| {
            let _ = tell.send((bucket, outcome.is_err()));
        };
        fusion.on_end(Some(Arc::new(function))).expect("a function");
        if rt.rank() == Rank(0) {
            (0..TENSORS).for_each(|t| submit(&fusion, t, &contribution(0, t, 0, COUNT)));
        }
        pending.wait();
        rt.term(LIMIT).expect("term");
        if rt.rank() == Rank(0) {
            let one = |_| told.recv_timeout(TOLD_LIMIT).expect("a bucket fails");
            let mut failed: Vec<_> = (0..TENSORS).map(one).collect();
            failed.sort_unstable();
            let each = (0..TENSORS).map(|bucket| (bucket, true));
            assert!(failed.into_iter().eq(each), "each is told once");
        }
        drop(fusion);
        parted.wait();
    });
}

/// Slots for messages between all members fit, however many there are.
fn many_ranks_make_many_long_buckets() {
    let (ranks, tensors, count) = (12, 64, 1 << 20);
    ranks::run(ranks, |rt| {
        let me = rt.rank().index();
        let options = Options { threshold: 0, ..Options::default() };
        let fusion = create(rt, &floats(&vec![count; tensors]), &options);
        submit(&fusion, tensors - 1, &contribution(me, 1, 0, count));
        assert_eq!(wait(&fusion, tensors - 1, count), sum(ranks as usize, 1, 0, count));
    });
}

tests! {
    DEVICES:
    a_bucket_begins_behind_others_that_only_the_program_carries_on,
    a_function_is_told_of_what_waits_when_its_rank_leaves,
    buckets_in_any_order_are_waited_for,
    buckets_of_any_number_of_ranks_are_waited_for,
    buckets_in_any_order_are_fetched,
    buckets_in_any_order_are_tested,
    buckets_in_any_order_are_told,
    a_bucket_ends_though_all_that_began_before_it_cannot,
    a_fused_buffer_is_freed_while_buckets_wait,
    a_rank_leaves_while_buckets_wait,
    a_death_ends_what_waits;
    TCP:
    many_ranks_make_many_long_buckets;
}
