//! Operations as values: used again, dropped in each state, leaked.

use super::{ALL, SOON, check_sum, group_of, ranks, ranks_below, sum_of_all, value};
use gaspi_collectives::algorithms::Algorithm;
use gaspi_collectives::{Operation, Prepared, TypedRequest, prepare, scope, start};
use gaspi_core::{Config, Error, Rank, Runtime, Timeout};
use ranks::Nodes;
use std::sync::Barrier;
use std::time::Instant;

const COUNT: usize = 3000;

fn input(rt: &Runtime) -> Vec<u64> {
    (0..COUNT).map(|index| value(rt.rank(), index)).collect()
}

/// A sum over u64.
fn sum(rt: &Runtime) -> TypedRequest<'static, u64> {
    TypedRequest::allreduce(Operation::Sum, input(rt), vec![0; COUNT])
}

fn prepared(rt: &Runtime, request: TypedRequest<'static, u64>) -> Prepared<'static, u64> {
    prepare(rt, ALL, request, ranks::LIMIT).expect("prepare")
}

fn all_collectives_on_owned_memory() {
    ranks::run(3, |rt| {
        let n = rt.size() as usize;
        let (me, root) = (u64::from(rt.rank().0), Rank(1));
        let is_root = rt.rank() == root;
        let finish = |request: TypedRequest<'static, u64>| {
            let mut started = start(rt, ALL, request, ranks::LIMIT).expect("start");
            started.wait(ranks::LIMIT).expect("wait");
            started.into_output()
        };
        let at_root = |elements: usize| vec![0; if is_root { elements } else { 0 }];
        let (op, own) = (Operation::Sum, || vec![me + 1; 4]);
        assert_eq!(finish(TypedRequest::allreduce_in_place(op, own())), [6; 4]);
        let reduced = finish(TypedRequest::reduce(op, root, own(), at_root(4)));
        assert_eq!(reduced, if is_root { vec![6; 4] } else { Vec::new() });
        assert_eq!(finish(TypedRequest::broadcast(root, own())), [2; 4]);
        let all = [[1; 4], [2; 4], [3; 4]].concat();
        assert_eq!(finish(TypedRequest::allgather(own(), vec![0; 4 * n])), all);
        let gathered = finish(TypedRequest::gather(root, own(), at_root(4 * n)));
        assert_eq!(gathered, if is_root { all.clone() } else { Vec::new() });
        let from = if is_root { all } else { Vec::new() };
        assert_eq!(finish(TypedRequest::scatter(root, from, vec![0; 4])), own());
        let scattered = finish(TypedRequest::reduce_scatter(op, vec![me; 2 * n], vec![0; 2]));
        assert_eq!(scattered, [3; 2]);
        let exchanged = finish(TypedRequest::alltoall(1, vec![me; n], vec![9; n]));
        assert_eq!(exchanged, [0, 1, 2]);
        let mut barrier = start(rt, ALL, TypedRequest::barrier(), ranks::LIMIT).expect("start");
        barrier.wait(ranks::LIMIT).expect("wait");
    });
}

fn memory_that_is_too_short_is_refused() {
    ranks::run(2, |rt| {
        let short = TypedRequest::allgather(vec![1u64; 4], vec![0; 7]);
        let refused = start(rt, ALL, short, ranks::LIMIT).expect_err("too short");
        assert!(matches!(refused.error, Error::Size { size: 56, .. }), "{refused}");
        let refused = prepare(rt, ALL, *refused.request, ranks::LIMIT).expect_err("too short");
        assert!(matches!(refused.error, Error::Size { .. }), "{refused}");
        sum_of_all(rt, ALL, 10);
    });
}

fn borrowed_memory_is_used_and_given_back() {
    ranks::run(2, |rt| {
        let (mut mine, mut total) = (input(rt), vec![0; COUNT]);
        scope(rt, |scope| {
            let request = TypedRequest::allreduce(Operation::Sum, &mut mine, &mut total);
            let request = request.background();
            let mut prepared = scope.prepare(ALL, request, ranks::LIMIT).expect("prepare");
            for _ in 0..20 {
                prepared.run(ranks::LIMIT).expect("run");
                check_sum(prepared.output(), &[Rank(0), Rank(1)]);
                prepared.output_mut().fill(0);
            }
            prepared.start().expect("start").wait(ranks::LIMIT).expect("wait");
        });
        check_sum(&total, &[Rank(0), Rank(1)]);
        assert_eq!(mine, input(rt));
    });
}

/// Starts on one rank what the other one never starts, and drops it by `end`.
fn without_the_other(end: impl Fn(&Runtime, Prepared<'static, u64>) + Sync) {
    ranks::run(2, |rt| {
        let operation = prepared(rt, sum(rt));
        let begin = Instant::now();
        if rt.rank() == Rank(0) {
            end(rt, operation);
        } else {
            drop(operation);
        }
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        // Nothing else has suffered.
        sum_of_all(rt, ALL, 10);
    });
}

fn a_drop_while_the_peer_never_comes() {
    without_the_other(|_, mut operation| {
        drop(operation.start().expect("start"));
        // It has failed for good.
        assert!(operation.start().is_err());
        assert_eq!(operation.output(), [0; COUNT]);
    });
    without_the_other(|_, mut operation| {
        let mut started = operation.start().expect("start");
        assert!(started.test().expect("under way").is_none());
        drop(started);
    });
    without_the_other(|rt, mut operation| {
        std::mem::forget(operation.start().expect("start"));
        // The memory is this rank's again.
        operation.input_mut().fill(5);
        assert_eq!(operation.input()[0], 5);
        assert_eq!(operation.into_output().len(), COUNT, "{}", rt.rank());
    });
}

fn a_drop_in_the_background_and_in_a_scope() {
    ranks::run(2, |rt| {
        let mut data = input(rt);
        scope(rt, |scope| {
            let request = TypedRequest::allreduce_in_place(Operation::Sum, &mut data).background();
            let mut prepared = scope.prepare(ALL, request, ranks::LIMIT).expect("prepare");
            if rt.rank() == Rank(0) {
                std::mem::forget(prepared.start().expect("start"));
                std::mem::forget(prepared);
            }
        });
        data.fill(7);
        // Meanwhile a thread that still had the operation would have gone on with it.
        sum_of_all(rt, ALL, 10);
        assert!(data.iter().all(|element| *element == 7), "it was written to");
    });
}

fn one_that_is_dropped_ends_its_group_for_all() {
    let dropped = Barrier::new(2);
    ranks::run(2, |rt| {
        let group = group_of(rt, ranks_below(2));
        sum_of_all(rt, group, 1);
        let begin = |request| start(rt, group, request, ranks::LIMIT);
        let mut first = begin(sum(rt)).expect("start");
        if rt.rank() == Rank(0) {
            // Behind another one, which goes on.
            let second = begin(sum(rt)).expect("start");
            let third = begin(sum(rt)).expect("start");
            drop(second);
            dropped.wait();
            check_sum(first.wait(ranks::LIMIT).expect("wait"), &[Rank(0), Rank(1)]);
            let mut third = third;
            assert!(third.wait(Timeout::Block).is_err(), "the one before was given up");
            assert!(begin(sum(rt)).is_err());
        } else {
            dropped.wait();
            check_sum(first.wait(ranks::LIMIT).expect("wait"), &[Rank(0), Rank(1)]);
            let outcome = begin(sum(rt)).map_err(Error::from);
            let outcome = outcome.and_then(|mut second| second.wait(Timeout::Block).map(drop));
            assert!(matches!(outcome, Err(Error::Mismatch { .. })), "{outcome:?}");
        }
        sum_of_all(rt, ALL, 10);
    });
}

fn a_drop_after_a_death() {
    let (ready, died) = (Barrier::new(3), Barrier::new(3));
    ranks::run_over(Nodes::of_this_test(), 3, &Config::default(), |rt| {
        let mut operation = prepared(&rt, sum(&rt));
        if rt.rank() == Rank(2) {
            ready.wait();
            ranks::die(rt);
            died.wait();
            return;
        }
        let started = operation.start().expect("start");
        ready.wait();
        died.wait();
        let begin = Instant::now();
        drop(started);
        drop(operation);
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        rt.term(ranks::LIMIT).expect("term");
    });
}

fn the_memory_stays_while_the_others_use_it() {
    ranks::run_over(Nodes::One, 2, &Config::default(), |rt| {
        let mut data = input(&rt);
        let sum = |data| {
            let request = TypedRequest::allreduce_in_place(Operation::Sum, data);
            request.algorithm(Algorithm::SingleCopy)
        };
        scope(&rt, |scope| {
            let mut prepared = scope.prepare(ALL, sum(&mut data), ranks::LIMIT).expect("prepare");
            let mut started = prepared.start().expect("start");
            if rt.rank() == Rank(0) {
                // It may have ended, or not: the other one ends in either case.
                let _ = started.test();
                drop(started);
            } else {
                let _ = started.wait(Timeout::Block);
            }
        });
        data.fill(7);
        rt.barrier(ALL, ranks::LIMIT).expect("barrier");
        assert!(data.iter().all(|element| *element == 7), "it was written to");
        rt.term(ranks::LIMIT).expect("term");
    });
}

fn values_outlive_the_runtime() {
    let meet = Barrier::new(2);
    ranks::run_over(Nodes::of_this_test(), 2, &Config::default(), |rt| {
        let mut operation = prepared(&rt, sum(&rt).background());
        let started = (rt.rank() == Rank(0)).then(|| operation.start().expect("start"));
        rt.term(ranks::LIMIT).expect("term");
        drop(rt);
        let begin = Instant::now();
        started.into_iter().for_each(|mut started| {
            assert!(started.wait(Timeout::Millis(100)).is_err());
        });
        drop(operation);
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        meet.wait();
    });
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

fn thousands_of_cycles_leave_nothing() {
    ranks::run(2, |rt| {
        // All memory of the cycles together, of both ranks, would be a gigabyte.
        let request = || TypedRequest::allreduce_in_place(Operation::Sum, vec![1u64; 30_000]);
        let mut repeated = prepared(rt, sum(rt));
        let mut before = 0;
        for cycle in 0..2000 {
            if cycle == 200 {
                before = resident_kib();
            }
            let mut once = start(rt, ALL, request(), ranks::LIMIT).expect("start");
            let mut again = repeated.start().expect("start");
            assert_eq!(once.wait(ranks::LIMIT).expect("wait")[29_999], 2);
            again.wait(ranks::LIMIT).expect("wait");
            if cycle % 20 == 0 {
                drop(prepared(rt, sum(rt)));
            }
        }
        let after = resident_kib();
        // Other tests run in this process at the same time.
        assert!(after < before + (400 << 10), "{before} KiB have become {after} KiB");
    });
}

tests! {
    DEVICES:
        all_collectives_on_owned_memory,
        memory_that_is_too_short_is_refused,
        borrowed_memory_is_used_and_given_back,
        a_drop_while_the_peer_never_comes,
        one_that_is_dropped_ends_its_group_for_all,
        a_drop_after_a_death,
        values_outlive_the_runtime,
        thousands_of_cycles_leave_nothing;
    REAL:
        // It forgets what holds the rank, and with it its device.
        a_drop_in_the_background_and_in_a_scope;
    SHM:
        the_memory_stays_while_the_others_use_it;
}
