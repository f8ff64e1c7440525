//! Operations that the library looks after.

use super::{ALL, Memory, SOON, check_sum, ranks, ranks_below, within};
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::{prepare_raw, start_raw};
use gaspi_core::{Error, Rank, Timeout};
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The last element of a buffer that others write meanwhile.
fn last(memory: &Memory) -> u64 {
    let place = &raw const memory.output[memory.output.len() - 1];
    // SAFETY: inside of the buffer, which lives.
    unsafe { place.read_volatile() }
}

fn they_end_without_anybody_looking() {
    const SIZE: u32 = 3;
    ranks::run(SIZE, |rt| {
        for algorithm in [None, Some(Algorithm::Ring), Some(Algorithm::RecursiveDoubling)] {
            let mut memory = Memory::new(rt.rank(), 100_000);
            let mut request = memory.request(Collective::Allreduce, 100_000);
            (request.background, request.algorithm) = (true, algorithm);
            // SAFETY: the buffers live until it has ended.
            let mut started = unsafe { start_raw(rt, ALL, &request, ranks::LIMIT) }.expect("start");
            let expected = super::sum(ranks_below(SIZE), 99_999);
            within(6 * SOON, "the result", || (last(&memory) == expected).then_some(()));
            started.wait(ranks::LIMIT).expect("wait");
            check_sum(&memory.output, &ranks_below(SIZE).collect::<Vec<_>>());
        }
    });
}

/// What each thread of this process that looks after operations has used of the processors, by its
/// number.
fn cpu_times() -> HashMap<OsString, Duration> {
    let mut times = HashMap::new();
    for thread in std::fs::read_dir("/proc/self/task").expect("threads").flatten() {
        // It may have ended meanwhile.
        let Ok(stat) = std::fs::read_to_string(thread.path().join("stat")) else { continue };
        let Some((name, rest)) = stat.rsplit_once(')') else { continue };
        if !name.contains("(gaspi-collectiv") {
            continue;
        }
        let field = |index: usize| -> u64 {
            rest.split_whitespace().nth(index).expect("a field").parse().expect("a number")
        };
        // utime and stime, of which the first field behind the name is the third, in hundredths of
        // a second.
        let used = Duration::from_millis((field(11) + field(12)) * 10);
        times.insert(thread.file_name(), used);
    }
    times
}

/// What those that are still there have used since. A number may be that of a new thread.
fn cpu_time_since(before: &HashMap<OsString, Duration>) -> Duration {
    let since = |(thread, used): (OsString, Duration)| {
        used.saturating_sub(before.get(&thread).copied().unwrap_or_default())
    };
    cpu_times().into_iter().map(since).sum()
}

fn waiting_long_costs_nothing() {
    let meet = Barrier::new(2);
    ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), 1000);
        let mut request = memory.request(Collective::Allreduce, 1000);
        request.background = true;
        // SAFETY: the buffers live until it has ended.
        let mut prepared =
            unsafe { prepare_raw(rt, ALL, &request, ranks::LIMIT) }.expect("prepare");
        let early = rt.rank() == Rank(0);
        if !early {
            meet.wait();
        }
        let mut started = prepared.start().expect("start");
        if early {
            let (begin, before) = (Instant::now(), cpu_times());
            std::thread::sleep(Duration::from_millis(1500));
            let (used, passed) = (cpu_time_since(&before), begin.elapsed());
            // Other tests have such threads at times as well; one that looks all the time uses all.
            assert!(used < passed / 2, "{used:?} of {passed:?} are used for waiting");
            meet.wait();
        }
        started.wait(ranks::LIMIT).expect("wait");
    });
}

fn they_find_out_that_ranks_do_not_agree() {
    ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), 1000);
        super::sum_of_all(rt, ALL, 3);
        let mut request = memory.request(Collective::Allreduce, 1000);
        request.background = true;
        // These two wait for nothing that the other one sends.
        request.collective = [Collective::Broadcast, Collective::Gather][rt.rank().index()];
        request.count = 500;
        request.algorithm = Some(Algorithm::Linear);
        request.root = Rank(1 - rt.rank().0);
        if rt.rank() == Rank(1) {
            request.root = Rank(1);
        }
        // SAFETY: the buffers live until the job has ended.
        let mut started = unsafe { start_raw(rt, ALL, &request, ranks::LIMIT) }.expect("start");
        std::thread::sleep(Duration::from_millis(1500));
        let begin = Instant::now();
        let outcome = started.wait(Timeout::Block);
        assert!(matches!(outcome, Err(Error::Mismatch { .. })), "{outcome:?}");
        assert!(begin.elapsed() < SOON);
        let _ = rt.barrier(ALL, ranks::LIMIT);
    });
}

fn a_rank_leaves_while_they_are_under_way() {
    let left = Barrier::new(2);
    ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), 1000);
        let mut request = memory.request(Collective::Allreduce, 1000);
        request.background = true;
        // SAFETY: the buffers live until the job has ended.
        let mut prepared =
            unsafe { prepare_raw(rt, ALL, &request, ranks::LIMIT) }.expect("prepare");
        rt.barrier(ALL, ranks::LIMIT).expect("barrier");
        if rt.rank() == Rank(0) {
            let mut started = prepared.start().expect("start");
            rt.term(ranks::LIMIT).expect("term");
            let outcome = started.wait(Timeout::Block);
            assert!(matches!(outcome, Err(Error::NotInitialised)), "{outcome:?}");
        }
        left.wait();
    });
}

tests! {
    DEVICES:
        they_end_without_anybody_looking,
        waiting_long_costs_nothing,
        they_find_out_that_ranks_do_not_agree,
        a_rank_leaves_while_they_are_under_way;
}
