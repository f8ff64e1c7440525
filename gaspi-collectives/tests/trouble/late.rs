//! Ranks that come late: the others time out, are told whom they wait for, and go on with the same
//! call.

use super::{ALL, Memory, call, check_sum, ranks, ranks_below, serves};
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::{Blocks, start_raw};
use gaspi_core::{Error, Rank, Timeout};
use std::sync::Barrier;

const SIZE: u32 = 4;
const COUNT: usize = 5000;
/// Short, but long enough for ranks to tell what they wait in.
const SHORT: Timeout = Timeout::Millis(60);

fn a_timeout_names_who_is_missing_and_the_call_can_be_continued() {
    let meet = Barrier::new(SIZE as usize);
    // The first call opens the group's channel, the others find it, and may take a shorter way.
    for (algorithm, count) in [
        (None, COUNT),
        (None, 3),
        (None, 100),
        (Some(Algorithm::Ring), COUNT),
        (Some(Algorithm::RecursiveDoubling), COUNT),
    ] {
        ranks::run(SIZE, |rt| {
            for turn in 0..2 {
                let mut memory = Memory::new(rt.rank(), count);
                let mut request = memory.request(Collective::Allreduce, count as u64);
                request.algorithm = algorithm;
                let mut other = memory.request(Collective::Allreduce, count as u64 - 1);
                other.algorithm = algorithm;
                let late = rt.rank() == Rank(3);
                if !late {
                    let outcome = call(rt, ALL, &request, SHORT);
                    let Err(Error::Timeout { pending }) = outcome else { panic!("{outcome:?}") };
                    // At first they open a channel, for which they may wait for each other as well.
                    if turn > 0 {
                        assert!(pending.contains('3'), "{pending}");
                        let outcome = call(rt, ALL, &other, SHORT);
                        let active = matches!(outcome, Err(Error::ActiveCollective { .. }));
                        assert!(active, "{outcome:?}");
                    }
                }
                meet.wait();
                call(rt, ALL, &request, ranks::LIMIT).expect("it goes on");
                check_sum(&memory.output, &ranks_below(SIZE).collect::<Vec<_>>());
                meet.wait();
            }
        });
    }
}

fn a_call_with_other_counts_does_not_continue_it() {
    let meet = Barrier::new(2);
    ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), 8);
        let with = |memory: &mut Memory, counts: Vec<u64>| {
            let mut request = memory.request(Collective::Alltoall, 0);
            request.blocks = vec![Blocks { counts, displacements: Vec::new() }; 2];
            request
        };
        let own = u64::from(rt.rank().0);
        let request = with(&mut memory, vec![2 + own, 3 + own]);
        let other = with(&mut memory, vec![1, 1]);
        meet.wait();
        if rt.rank() == Rank(0) {
            let late = call(rt, ALL, &request, SHORT);
            assert!(late.as_ref().is_err_and(Error::is_timeout), "{late:?}");
            let refused = call(rt, ALL, &other, SHORT);
            // Where the channel is not open yet, nothing is under way.
            let told =
                matches!(refused, Err(Error::ActiveCollective { .. } | Error::Timeout { .. }));
            assert!(told, "{refused:?}");
        }
        meet.wait();
        call(rt, ALL, &request, ranks::LIMIT).expect("it goes on");
        meet.wait();
        if rt.rank() == Rank(0) {
            let late = call(rt, ALL, &request, SHORT);
            assert!(late.as_ref().is_err_and(Error::is_timeout), "{late:?}");
            let refused = call(rt, ALL, &other, SHORT);
            assert!(matches!(refused, Err(Error::ActiveCollective { .. })), "{refused:?}");
        }
        meet.wait();
        call(rt, ALL, &request, ranks::LIMIT).expect("it goes on");
    });
}

fn while_a_call_is_under_way_another_thread_is_told_so() {
    const FEW: usize = 3;
    let meet = Barrier::new(2);
    ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), FEW);
        let request = memory.request(Collective::Allreduce, FEW as u64);
        for _ in 0..3 {
            call(rt, ALL, &request, ranks::LIMIT).expect("all are there");
        }
        if rt.rank() == Rank(0) {
            let outcome = call(rt, ALL, &request, Timeout::Test);
            assert!(outcome.as_ref().is_err_and(Error::is_timeout), "{outcome:?}");
            let told = std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let mut memory = Memory::new(rt.rank(), FEW - 1);
                    let request = memory.request(Collective::Allreduce, FEW as u64 - 1);
                    call(rt, ALL, &request, Timeout::Test)
                });
                other.join().expect("no panic")
            });
            assert!(matches!(told, Err(Error::ActiveCollective { .. })), "{told:?}");
            // Any thread may continue it.
            std::thread::scope(|scope| {
                let other = scope.spawn(|| call(rt, ALL, &request, Timeout::Test));
                let outcome = other.join().expect("no panic");
                assert!(outcome.as_ref().is_err_and(Error::is_timeout), "{outcome:?}");
            });
        }
        meet.wait();
        call(rt, ALL, &request, ranks::LIMIT).expect("it goes on");
        check_sum(&memory.output, &[Rank(0), Rank(1)]);
    });
}

fn many_that_wait_behind_a_late_one_are_not_taken_for_others() {
    // More than the prints that are remembered.
    const MANY: usize = 40;
    let meet = Barrier::new(2);
    ranks::run(2, |rt| {
        let mut all: Vec<Memory> = (1..=MANY).map(|n| Memory::new(rt.rank(), n * 10)).collect();
        super::sum_of_all(rt, ALL, 10);
        let requests: Vec<_> = all
            .iter_mut()
            .map(|memory| memory.request(Collective::Allreduce, memory.input.len() as u64))
            .collect();
        // SAFETY: the buffers live until all have ended.
        let begin = |request| unsafe { start_raw(rt, ALL, request, ranks::LIMIT) }.expect("start");
        let mut started = Vec::new();
        if rt.rank() == Rank(0) {
            started.extend(requests.iter().map(begin));
            let outcome = started[MANY - 1].wait(SHORT);
            assert!(outcome.as_ref().is_err_and(Error::is_timeout), "{outcome:?}");
            meet.wait();
        } else {
            // One after the other, in each of which it waits long enough to tell so.
            meet.wait();
            for request in &requests {
                started.push(begin(request));
            }
        }
        for mut started in started.into_iter().rev() {
            started.wait(ranks::LIMIT).expect("wait");
        }
        all.iter().for_each(|memory| check_sum(&memory.output, &[Rank(0), Rank(1)]));
    });
}

fn looking_again_and_again_leads_to_the_end() {
    ranks::run(3, |rt| {
        for collective in Collective::ALL {
            for algorithm in Algorithm::ALL.into_iter().filter(|a| serves(*a, collective, 3)) {
                let mut memory = Memory::new(rt.rank(), 3 * COUNT);
                let mut request = memory.request(collective, COUNT as u64);
                request.algorithm = Some(algorithm);
                let mut outcome = call(rt, ALL, &request, Timeout::Test);
                if matches!(outcome, Err(Error::Unsupported { .. })) {
                    continue;
                }
                let again = |outcome: &gaspi_core::Result<()>| {
                    let again = outcome.as_ref().is_err_and(Error::is_timeout);
                    assert!(again || outcome.is_ok(), "{collective}, {algorithm}: {outcome:?}");
                    again
                };
                while again(&outcome) {
                    std::thread::yield_now();
                    outcome = call(rt, ALL, &request, Timeout::Test);
                }
                // The channel is open now.
                // SAFETY: the buffers live until it has ended.
                let mut started =
                    unsafe { start_raw(rt, ALL, &request, Timeout::Test) }.expect("start");
                while started.test().expect("test").is_none() {
                    std::thread::yield_now();
                }
                if collective == Collective::Allreduce {
                    check_sum(&memory.output[..COUNT], &ranks_below(3).collect::<Vec<_>>());
                }
            }
        }
    });
}

tests! {
    DEVICES:
        a_timeout_names_who_is_missing_and_the_call_can_be_continued,
        a_call_with_other_counts_does_not_continue_it,
        while_a_call_is_under_way_another_thread_is_told_so,
        many_that_wait_behind_a_late_one_are_not_taken_for_others,
        looking_again_and_again_leads_to_the_end;
}
