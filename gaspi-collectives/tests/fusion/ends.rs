//! Who is told of buckets that have ended.

use super::*;
use gaspi_core::sync::{Condvar, Mutex};
use gaspi_core::{Error, Result, Timeout};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Buckets of which a function was told.
type Told = Vec<(usize, Result<()>)>;

fn next_gives_each_bucket_once_in_a_step() {
    ranks::run(3, |rt| {
        let me = rt.rank().index();
        let counts = [9000, 100, 20_000, 3, 9000];
        let options = Options { threshold: 1000, ..Options::default() };
        let fusion = create(rt, &floats(&counts), &options);
        let mut random = Random(me as u64);
        assert!(fusion.next(Timeout::Test).expect_err("nothing has ended").is_timeout());
        for step in 0..10 {
            for tensor in random.order(counts.len()) {
                submit(&fusion, tensor, &contribution(me, tensor, step, counts[tensor]));
            }
            let mut ended = BTreeSet::new();
            while ended.len() < fusion.buckets() {
                let bucket = fusion.next(LIMIT).expect("a bucket ends");
                assert!(ended.insert(bucket), "bucket {bucket} was told twice");
                for (tensor, count) in counts.into_iter().enumerate() {
                    if fusion.bucket(tensor).expect("it has elements") == bucket {
                        let mut found = vec![0.0f32; count];
                        // SAFETY: as many elements as the tensor has.
                        let there = unsafe { fusion.test(tensor, found.as_mut_ptr().cast()) };
                        assert!(there.expect("no error"), "tensor {tensor} has ended");
                        assert_eq!(found, sum(3, tensor, step, count));
                    }
                }
            }
            assert!(fusion.next(Timeout::Test).expect_err("all were told").is_timeout());
        }
    });
}

fn a_function_is_told_of_each_bucket() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let counts = [9000, 100, 20_000];
        let options = Options { threshold: 0, ..Options::default() };
        let fusion = create(rt, &floats(&counts), &options);
        let told: Arc<(Mutex<Told>, Condvar)> = Arc::default();
        let teller = Arc::clone(&told);
        let function = move |bucket: usize, outcome: Result<()>| {
            teller.0.lock().push((bucket, outcome));
            teller.1.notify_one();
        };
        fusion.on_end(Some(Arc::new(function))).expect("a function");
        for step in 0..20 {
            for (tensor, count) in counts.into_iter().enumerate() {
                submit(&fusion, tensor, &contribution(me, tensor, step, count));
            }
            // Nobody waits: the thread of the library carries them on, and tells.
            let mut list = told.0.lock();
            while list.len() < counts.len() {
                list = told.1.wait(list);
            }
            let mut buckets: Vec<usize> = list
                .drain(..)
                .map(|(bucket, outcome)| {
                    outcome.expect("no failure");
                    bucket
                })
                .collect();
            drop(list);
            buckets.sort_unstable();
            assert_eq!(buckets, [0, 1, 2]);
            for (tensor, count) in counts.into_iter().enumerate() {
                assert_eq!(wait(&fusion, tensor, count), sum(2, tensor, step, count));
            }
        }
        fusion.on_end(None).expect("no function");
    });
}

/// The thread of the library rests while one of the program waits, at first briefly.
fn the_library_goes_on_behind_a_wait_that_timed_out() {
    for millis in [1, 2, 4, 50] {
        let timed_out = std::sync::Barrier::new(2);
        ranks::run(2, |rt| {
            let me = rt.rank().index();
            let options = Options { threshold: 0, ..Options::default() };
            let fusion = create(rt, &floats(&[70_000, 500]), &options);
            let submit_all = |step| {
                submit(&fusion, 0, &contribution(me, 0, step, 70_000));
                submit(&fusion, 1, &contribution(me, 1, step, 500));
            };
            let (ended, heard) = std::sync::mpsc::channel();
            let function = move |bucket: usize, outcome: Result<()>| {
                outcome.expect("no failure");
                let _ = ended.send(bucket);
            };
            fusion.on_end(Some(Arc::new(function))).expect("a function");
            for step in 0..10 {
                if me == 0 {
                    submit_all(step);
                    // SAFETY: the sum goes nowhere.
                    let waited =
                        unsafe { fusion.wait(0, std::ptr::null_mut(), Timeout::Millis(millis)) };
                    assert!(waited.expect_err("the other rank has not come").is_timeout());
                    timed_out.wait();
                } else {
                    timed_out.wait();
                    submit_all(step);
                }
                let mut buckets = [0, 0].map(|_| heard.recv().expect("the end of a bucket"));
                buckets.sort_unstable();
                assert_eq!(buckets, [0, 1]);
                assert_eq!(wait(&fusion, 1, 500), sum(2, 1, step, 500));
                assert_eq!(wait(&fusion, 0, 70_000), sum(2, 0, step, 70_000));
            }
            fusion.on_end(None).expect("no function");
        });
    }
}

fn a_descriptor_is_readable_while_next_has_something_to_tell() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let fusion =
            create(rt, &floats(&[500, 70_000]), &Options { threshold: 0, ..Options::default() });
        let descriptor = fusion.descriptor().expect("a descriptor");
        assert_eq!(fusion.descriptor().expect("the same"), descriptor);
        for step in 0..20 {
            assert!(!is_readable(descriptor, 0));
            submit(&fusion, 1, &contribution(me, 1, step, 70_000));
            submit(&fusion, 0, &contribution(me, 0, step, 500));
            for left in [1, 0] {
                assert!(is_readable(descriptor, 60_000), "something ends");
                fusion.next(Timeout::Test).expect("it is there");
                // The other one may not have ended yet.
                assert!(left == 1 || !is_readable(descriptor, 0));
            }
        }
    });
}

pub(crate) fn is_readable(descriptor: i32, millis: i32) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&raw mut poll, 1, millis) == 1 }
}

fn nobody_waits_in_a_function_that_is_told() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let fusion = Arc::new(create(
            rt,
            &floats(&[10, 10]),
            &Options { threshold: 0, ..Options::default() },
        ));
        let errors: Arc<(Mutex<Vec<Error>>, Condvar)> = Arc::default();
        // The fused buffer outlives its function, which it forgets before it ends.
        let (address, heard) = (Arc::as_ptr(&fusion) as usize, Arc::clone(&errors));
        let function = move |_: usize, _: Result<()>| {
            // SAFETY: see above.
            let fusion = unsafe { &*(address as *const Fusion<'_>) };
            let mut heard_now = heard.0.lock();
            heard_now.push(fusion.result(1, LIMIT).expect_err("it may not wait"));
            heard.1.notify_one();
        };
        fusion.on_end(Some(Arc::new(function))).expect("a function");
        submit(&fusion, 0, &contribution(me, 0, 0, 10));
        let mut list = errors.0.lock();
        while list.is_empty() {
            list = errors.1.wait(list);
        }
        assert!(list[0].to_string().contains("may not wait"), "{}", list[0]);
        drop(list);
        fusion.on_end(None).expect("no function");
        submit(&fusion, 1, &contribution(me, 1, 0, 10));
        assert_eq!(wait(&fusion, 1, 10), sum(2, 1, 0, 10));
    });
}

tests! {
    DEVICES:
        next_gives_each_bucket_once_in_a_step,
        a_function_is_told_of_each_bucket,
        the_library_goes_on_behind_a_wait_that_timed_out,
        a_descriptor_is_readable_while_next_has_something_to_tell,
        nobody_waits_in_a_function_that_is_told;
}
