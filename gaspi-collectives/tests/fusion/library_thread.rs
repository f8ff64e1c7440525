//! What the thread of the library does in functions of the program that it calls.

use super::*;
use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::handles;
use gaspi_collectives::{Combination, Reduce, Reducer, Request};
use gaspi_core::sync::Mutex;
use gaspi_core::{Rank, Result, Timeout};
use std::ptr;
use std::sync::{Arc, Barrier, mpsc};

const COUNT: usize = 100;

fn is_of_library() -> bool {
    std::thread::current().name().is_some_and(|name| name == "gaspi-collective")
}

/// Sums of bytes; notes whether the library's thread calls it.
fn noting(callers: Arc<Mutex<Vec<bool>>>) -> Arc<Reduce> {
    Arc::new(move |one: &[u8], two: &[u8], to: &mut [u8], _| {
        callers.lock().push(is_of_library());
        for ((one, two), to) in one.iter().zip(two).zip(to) {
            *to = one.wrapping_add(*two);
        }
        Ok(())
    })
}

/// A reduction is called by threads of the program only, unless it allows others, also where the
/// program tests its operation in a function that the library's thread calls.
fn it_calls_no_private_reduction_from_within_a_function() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let fusion = create(rt, &floats(&[10]), &Options::default());
        let callers: Arc<Mutex<Vec<bool>>> = Arc::default();
        let reduce = noting(Arc::clone(&callers));
        let reducer = Reducer { reduce, element_bytes: 1, ordered: false, background: false };
        let mut bytes = vec![me as u8 + 1; COUNT];
        let start: *mut u8 = bytes.as_mut_ptr();
        let request = Request {
            collective: Collective::Allreduce,
            send: start,
            receive: start,
            count: COUNT as u64,
            blocks: Vec::new(),
            combination: Combination::User(reducer),
            root: Rank(0),
            algorithm: None,
            mode: None,
            background: false,
        };
        // SAFETY: the bytes live until it has ended.
        let prepared = unsafe { handles::prepare(rt, ALL, &request, LIMIT) }.expect("prepared");
        handles::restart(rt, prepared).expect("started");
        let (tell, told) = mpsc::channel();
        let (rank, looked) = (ptr::from_ref(rt).expose_provenance(), Arc::clone(&callers));
        let function = move |_: usize, outcome: Result<()>| {
            // SAFETY: the rank outlives the function.
            let rt = unsafe { &*ptr::with_exposed_provenance::<gaspi_core::Runtime>(rank) };
            let mut has_ended = false;
            for _ in 0..1000 {
                has_ended |= handles::wait(rt, prepared, Timeout::Test).is_ok();
            }
            let called = looked.lock().clone();
            let _ = tell.send((outcome, is_of_library(), has_ended, called));
        };
        fusion.on_end(Some(Arc::new(function))).expect("a function");
        if me == 1 {
            // Its message, or its arrival, is there before the function is called.
            assert!(handles::wait(rt, prepared, Timeout::Millis(20)).is_err());
        }
        rt.barrier(ALL, LIMIT).expect("barrier");
        if me == 0 {
            submit(&fusion, 0, &[1.0; 10]);
        }
        rt.barrier(ALL, LIMIT).expect("barrier");
        if me == 1 {
            submit(&fusion, 0, &[1.0; 10]);
        }
        let (outcome, by_library, has_ended, called) = told.recv().expect("it is called");
        outcome.expect("a sum");
        if me == 0 {
            // Nobody else carries it on here.
            assert!(by_library, "the thread of the program does nothing");
            assert!(!called.contains(&true) && !has_ended, "it is private: {called:?}");
        }
        rt.barrier(ALL, LIMIT).expect("barrier");
        handles::wait(rt, prepared, LIMIT).expect("a sum");
        assert_eq!(bytes, vec![3; COUNT]);
        let called = callers.lock().clone();
        assert!(!called.contains(&true), "{called:?}");
        fusion.on_end(None).expect("no function");
        handles::free(rt, prepared).expect("freed");
    });
}

/// A program that has always waited soon behind what it submits need not do so for ever: the other
/// ranks wait for what this one leaves to the library's thread.
fn it_carries_on_what_a_program_that_used_to_wait_leaves() {
    const COUNTS: [usize; 3] = [20_000, 500, 300_000];
    const RANKS: usize = 3;
    let meeting = Barrier::new(RANKS);
    ranks::run(RANKS as u32, |rt| {
        let me = rt.rank().index();
        let options = Options { threshold: 0, ..Options::default() };
        let fusion = create(rt, &floats(&COUNTS), &options);
        for step in 0..200 {
            let leaves = step % 40 == 39;
            // The others come once the first one waits, or has left.
            if me > 0 {
                meeting.wait();
            }
            for (tensor, count) in COUNTS.into_iter().enumerate() {
                submit(&fusion, tensor, &contribution(me, tensor, step, count));
            }
            if me == 0 {
                meeting.wait();
            }
            if leaves && me == 0 {
                meeting.wait();
            }
            for (tensor, count) in COUNTS.into_iter().enumerate() {
                assert_eq!(wait(&fusion, tensor, count), sum(RANKS, tensor, step, count));
            }
            if leaves && me > 0 {
                meeting.wait();
            }
        }
    });
}

tests! {
    REAL:
        it_carries_on_what_a_program_that_used_to_wait_leaves,
        it_calls_no_private_reduction_from_within_a_function;
}
