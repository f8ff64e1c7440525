//! Operations that fail on one member while another one may still use its buffers: the failed one
//! ends only when that one has let go of them.

use super::{ALL, Memory, SOON, UNTOUCHED, call, check_sum, ranks, sum_of_all};
use gaspi_collectives::Request;
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::handles::{Handle, start, test, wait};
use gaspi_core::{Config, Error, Rank, Runtime, Timeout};
use ranks::Nodes;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const SIZE: u32 = 3;
const COUNT: usize = 3000;
const DEAD: Rank = Rank(2);
/// What this rank writes into its result once it has it back.
const OWN: u64 = 0x5555_5555_5555_5555;

/// All-reduces straight out of everybody's memory into everybody's.
fn direct(memory: &mut Memory) -> Request {
    let mut request = memory.request(Collective::Allreduce, COUNT as u64);
    request.algorithm = Some(Algorithm::SingleCopy);
    request
}

/// Starts an operation, in which this rank arrives without getting any further.
fn arrive(rt: &Runtime, request: &Request) -> Handle {
    // SAFETY: the buffers live until the job has ended.
    let handle = unsafe { start(rt, ALL, request, ranks::LIMIT) }.expect("start");
    assert!(!test(rt, handle).expect("under way"), "others are missing");
    handle
}

fn names_the_dead(error: &Error) -> bool {
    matches!(error, Error::RankDied { rank, .. } if *rank == DEAD)
}

/// Ranks 1 and 0 arrive, rank 2 arrives, does its part, and dies; then rank 0 does its part, and
/// fails. `first` and `second` are what ranks 0 and 1 do then, meeting whenever they like.
fn with_one_that_dies(
    first: impl Fn(&Runtime, Handle, &mut Memory, &Barrier) + Sync,
    second: impl Fn(&Runtime, Handle, &mut Memory, &Barrier) + Sync,
) {
    let (turns, two) = (Barrier::new(SIZE as usize), Barrier::new(2));
    ranks::run_over(Nodes::One, SIZE, &Config::default(), |rt| {
        let mut memory = Memory::new(rt.rank(), COUNT);
        let request = direct(&mut memory);
        sum_of_all(&rt, ALL, COUNT);
        turns.wait();
        match rt.rank() {
            DEAD => {
                turns.wait();
                turns.wait();
                let _ = arrive(&rt, &request);
                ranks::die(rt);
                turns.wait();
            }
            Rank(1) => {
                let handle = arrive(&rt, &request);
                turns.wait();
                turns.wait();
                turns.wait();
                second(&rt, handle, &mut memory, &two);
                rt.term(ranks::LIMIT).expect("term");
            }
            _ => {
                turns.wait();
                let handle = arrive(&rt, &request);
                turns.wait();
                turns.wait();
                first(&rt, handle, &mut memory, &two);
                rt.term(ranks::LIMIT).expect("term");
            }
        }
    });
}

fn who_fails_keeps_its_buffers_until_others_have_let_go_of_them() {
    let first = |rt: &Runtime, handle, memory: &mut Memory, two: &Barrier| {
        // Rank 1 has arrived, and does not know yet.
        let early = wait(rt, handle, Timeout::Millis(300));
        assert!(early.as_ref().is_err_and(Error::is_timeout), "{early:?}");
        two.wait();
        let begin = Instant::now();
        let outcome = wait(rt, handle, Timeout::Block);
        assert!(outcome.as_ref().is_err_and(names_the_dead), "{outcome:?}");
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        memory.output.fill(OWN);
        two.wait();
    };
    let second = |rt: &Runtime, handle, _: &mut Memory, two: &Barrier| {
        two.wait();
        let outcome = wait(rt, handle, Timeout::Block);
        assert!(outcome.as_ref().is_err_and(names_the_dead), "{outcome:?}");
        two.wait();
    };
    with_one_that_dies(first, second);
}

fn who_does_not_let_go_for_long_is_named_and_touches_nothing_when_it_goes_on() {
    let first = |rt: &Runtime, handle, memory: &mut Memory, two: &Barrier| {
        let begin = Instant::now();
        let error = wait(rt, handle, Timeout::Block).expect_err("a rank has died");
        let took = begin.elapsed();
        assert!(names_the_dead(&error), "{error}");
        assert!(error.to_string().contains("rank 1 may still use them"), "{error}");
        assert!(took > Duration::from_millis(1900) && took < 2 * SOON, "{took:?}");
        memory.output.fill(OWN);
        two.wait();
        two.wait();
        assert!(memory.output.iter().all(|element| *element == OWN), "it was written to");
    };
    let second = |rt: &Runtime, handle, memory: &mut Memory, two: &Barrier| {
        two.wait();
        let outcome = wait(rt, handle, Timeout::Block);
        assert!(outcome.as_ref().is_err_and(names_the_dead), "{outcome:?}");
        // It has not done its part.
        assert!(memory.output.contains(&UNTOUCHED));
        two.wait();
    };
    with_one_that_dies(first, second);
}

fn nobody_is_waited_for_where_nobody_can_get_to_the_buffers() {
    let (died, told) = (Barrier::new(SIZE as usize), Barrier::new(2));
    ranks::run_over(Nodes::One, SIZE, &Config::default(), |rt| {
        let mut memory = Memory::new(rt.rank(), COUNT);
        let request = direct(&mut memory);
        sum_of_all(&rt, ALL, COUNT);
        died.wait();
        if rt.rank() == DEAD {
            let _ = arrive(&rt, &request);
            died.wait();
            ranks::die(rt);
            died.wait();
            return;
        }
        let begun = (rt.rank() == Rank(0)).then(|| arrive(&rt, &request));
        died.wait();
        died.wait();
        if let Some(handle) = begun {
            let begin = Instant::now();
            let outcome = wait(&rt, handle, Timeout::Block);
            let took = begin.elapsed();
            assert!(outcome.as_ref().is_err_and(names_the_dead), "{outcome:?}");
            // Less than it would wait for others.
            assert!(took < Duration::from_millis(1500), "{took:?}");
            memory.output.fill(OWN);
        }
        told.wait();
        if rt.rank() == Rank(1) {
            // It comes late, and does not arrive.
            let outcome = call(&rt, ALL, &request, Timeout::Block);
            assert!(outcome.as_ref().is_err_and(names_the_dead), "{outcome:?}");
        }
        told.wait();
        if rt.rank() == Rank(0) {
            assert!(memory.output.iter().all(|element| *element == OWN), "it was written to");
        }
        rt.term(ranks::LIMIT).expect("term");
    });
}

/// Elements that go out in several messages, all of which a rank has room for.
const SEVERAL: usize = 1 << 17;

/// Rank 0 broadcasts, to rank 1 first.
fn broadcast(memory: &mut Memory) -> Request {
    let mut request = memory.request(Collective::Broadcast, SEVERAL as u64);
    request.algorithm = Some(Algorithm::Linear);
    request
}

fn a_root_over_tcp_has_its_buffer_back_before_the_others_have_come() {
    let told = Barrier::new(SIZE as usize);
    ranks::run_over(Nodes::Each, SIZE, &Config::default(), |rt| {
        let mut memory = Memory::new(rt.rank(), SEVERAL);
        let request = broadcast(&mut memory);
        sum_of_all(&rt, ALL, COUNT);
        for _ in 0..20 {
            if rt.rank() == Rank(0) {
                call(&rt, ALL, &request, ranks::LIMIT).expect("broadcast");
                memory.input.fill(OWN);
                memory.output.fill(OWN);
            }
            told.wait();
            if rt.rank() != Rank(0) {
                call(&rt, ALL, &request, ranks::LIMIT).expect("broadcast");
                check_sum(&memory.output, &[Rank(0)]);
                memory.output.fill(UNTOUCHED);
            }
            told.wait();
            memory.input.copy_from_slice(&Memory::new(rt.rank(), SEVERAL).input);
        }
        rt.term(ranks::LIMIT).expect("term");
    });
}

fn what_comes_for_an_operation_that_has_failed_touches_nothing() {
    let turns = Barrier::new(SIZE as usize);
    ranks::run_over(Nodes::Each, SIZE, &Config::default(), |rt| {
        let mut memory = Memory::new(rt.rank(), SEVERAL);
        let request = broadcast(&mut memory);
        sum_of_all(&rt, ALL, COUNT);
        turns.wait();
        match rt.rank() {
            DEAD => {
                ranks::die(rt);
                turns.wait();
                turns.wait();
                turns.wait();
            }
            Rank(1) => {
                turns.wait();
                // It says where the data is to go, and waits.
                let outcome = call(&rt, ALL, &request, Timeout::Block);
                assert!(outcome.as_ref().is_err_and(names_the_dead), "{outcome:?}");
                memory.output.fill(OWN);
                turns.wait();
                turns.wait();
                assert!(memory.output.iter().all(|element| *element == OWN), "it was written to");
                rt.term(ranks::LIMIT).expect("term");
            }
            _ => {
                turns.wait();
                turns.wait();
                let outcome = call(&rt, ALL, &request, Timeout::Block);
                assert!(outcome.as_ref().is_err_and(names_the_dead), "{outcome:?}");
                memory.input.fill(OWN);
                // What it has sent is there when this has been answered.
                rt.ping(Rank(1), ranks::LIMIT).expect("ping");
                turns.wait();
                rt.term(ranks::LIMIT).expect("term");
            }
        }
    });
}

tests! {
    SHM:
        who_fails_keeps_its_buffers_until_others_have_let_go_of_them,
        who_does_not_let_go_for_long_is_named_and_touches_nothing_when_it_goes_on,
        nobody_is_waited_for_where_nobody_can_get_to_the_buffers;
    TCP:
        a_root_over_tcp_has_its_buffer_back_before_the_others_have_come,
        what_comes_for_an_operation_that_has_failed_touches_nothing;
}
