//! Ranks that call different things: all that called are told which ranks differ in what, before a
//! result of somebody else's reaches their memory.

use super::ranks::{self, LIMIT, Nodes};
use super::{ALL, Memory, SOON, UNTOUCHED, call, check_sum, within};
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::{Blocks, Combination, DataType, Mode, Operation, Request};
use gaspi_collectives::{prepare_raw, start_raw};
use gaspi_core::{Config, Error, Rank, Result, Runtime, Timeout};
use std::sync::Barrier;
use std::time::Instant;

const SIZE: u32 = 4;
const COUNT: u64 = 3000;

/// How a rank gets to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Blocking,
    /// By looking again and again.
    Tested,
    /// By waiting for a moment, again and again.
    Impatient,
}

/// Runs one operation in which rank 2 differs, then what every rank waits for.
fn outcome(rt: &Runtime, memory: &mut Memory, request: &Request, way: Way) -> Result<()> {
    let first = match way {
        Way::Tested => {
            // SAFETY: the buffers live until the job has ended.
            let mut started = unsafe { start_raw(rt, ALL, request, Timeout::Block) }?;
            loop {
                match started.test() {
                    Ok(None) => std::thread::yield_now(),
                    Ok(Some(_)) => break Ok(()),
                    Err(error) => break Err(error),
                }
            }
        }
        Way::Impatient => loop {
            match call(rt, ALL, request, Timeout::Millis(5)) {
                Err(error) if error.is_timeout() => {}
                outcome => break outcome,
            }
        },
        Way::Blocking => call(rt, ALL, request, Timeout::Block),
    };
    // A rank that only sends is done before any other can object.
    first?;
    let ways = [Algorithm::Ring, Algorithm::RecursiveDoubling];
    for algorithm in ways.into_iter().cycle().take(4) {
        let mut next = memory.request(Collective::Allreduce, COUNT);
        next.algorithm = Some(algorithm);
        call(rt, ALL, &next, Timeout::Block)?;
    }
    Ok(())
}

/// All ranks call what `ask` makes of a request, and all are told.
fn all_are_told(what: &str, way: Way, ask: impl Fn(&mut Request, bool) + Sync) {
    let errors = ranks::run(SIZE, |rt| {
        let mut memory = Memory::new(rt.rank(), (COUNT * 8) as usize);
        let odd = rt.rank() == Rank(2);
        // All are there, so that what follows is not the time to meet.
        rt.barrier(ALL, ranks::LIMIT).expect("barrier");
        let mut request = memory.request(Collective::Allreduce, COUNT);
        ask(&mut request, odd);
        let begin = Instant::now();
        let error = outcome(rt, &mut memory, &request, way).expect_err("nobody gets through");
        assert!(begin.elapsed() < SOON, "{what}: {:?}", begin.elapsed());
        // Nobody leaves before all have been told.
        let _ = rt.barrier(ALL, ranks::LIMIT);
        (error, memory.output)
    });
    for (rank, (error, _)) in errors.iter().enumerate() {
        let Error::Mismatch { difference, .. } = error else {
            panic!("{what}, {way:?}: rank {rank} is told: {error}");
        };
        assert!(difference.contains("rank "), "{difference}");
        assert!(difference.contains("called") || difference.contains("expects"), "{difference}");
        // The odd rank is among those named.
        assert!(difference.contains("rank 2"), "{what}, {way:?}: rank {rank}: {difference}");
    }
}

/// In one or the other way, and by an algorithm of messages where `by` names one.
fn for_all(what: &str, by: Option<Algorithm>, ask: impl Fn(&mut Request, bool) + Sync) {
    for way in [Way::Blocking, Way::Tested, Way::Impatient] {
        all_are_told(what, way, |request, odd| {
            request.algorithm = by;
            ask(request, odd);
        });
    }
}

fn of_kind() {
    for_all("kind", None, |request, odd| {
        if odd {
            request.collective = Collective::Allgather;
        }
    });
    for_all("barrier", None, |request, odd| {
        if odd {
            request.collective = Collective::Barrier;
        }
    });
}

fn of_count() {
    for by in [None, Some(Algorithm::Ring)] {
        for_all("count", by, |request, odd| request.count -= u64::from(odd));
    }
}

fn of_type_and_operation() {
    for_all("type", None, |request, odd| {
        if odd {
            request.combination = Combination::BuiltIn(DataType::I64, Operation::Sum);
        }
    });
    for_all("operation", Some(Algorithm::RecursiveDoubling), |request, odd| {
        if odd {
            request.combination = Combination::BuiltIn(DataType::U64, Operation::Max);
        }
    });
}

fn of_root() {
    for collective in [Collective::Broadcast, Collective::Reduce] {
        for by in [None, Some(Algorithm::BinomialTree), Some(Algorithm::Linear)] {
            for_all("root", by, |request, odd| {
                request.collective = collective;
                request.root = Rank(if odd { 3 } else { 1 });
            });
        }
    }
}

fn of_algorithm() {
    // Those two do not even exchange messages of the same pairs.
    for_all("algorithm", None, |request, odd| {
        request.algorithm =
            Some(if odd { Algorithm::BinomialTree } else { Algorithm::RecursiveDoubling });
    });
    // Reads as an algorithm of lines on one node, and one of messages.
    for_all("line", None, |request, odd| {
        request.count = 1;
        request.algorithm = odd.then_some(Algorithm::Ring);
    });
}

/// The error says who asked for which mode.
fn of_mode() {
    for by in [None, Some(Algorithm::Ring)] {
        for_all("mode", by, |request, odd| {
            request.mode = Some(if odd { Mode::Stable } else { Mode::Fast });
        });
    }
    let errors = ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), (COUNT * 8) as usize);
        let mut request = memory.request(Collective::Allreduce, COUNT);
        // The default is the fast one.
        request.mode = (rt.rank() == Rank(1)).then_some(Mode::Stable);
        let error = call(rt, ALL, &request, LIMIT).expect_err("the modes differ");
        let _ = rt.barrier(ALL, LIMIT);
        error.to_string()
    });
    for (rank, error) in errors.into_iter().enumerate() {
        let name = |rank| if rank == 0 { "fast" } else { "stable" };
        let (own, other) = (name(rank), name(1 - rank));
        let words = format!("rank {rank} asks for mode {own}, rank {} for {other}", 1 - rank);
        let turned = format!("rank {} asks for mode {other}, rank {rank} for {own}", 1 - rank);
        assert!(error.contains(&words) || error.contains(&turned), "{error}");
    }
}

fn of_counts_of_blocks() {
    for_all("counts", None, |request, odd| {
        request.collective = Collective::Allgather;
        let counts = vec![5, 6 + u64::from(odd), 7, 8];
        request.blocks = vec![Blocks { counts, displacements: Vec::new() }];
    });
    // What two exchange: the sum is right everywhere.
    all_are_told("exchange", Way::Blocking, |request, odd| {
        request.collective = Collective::Alltoall;
        let of = |counts| Blocks { counts, displacements: Vec::new() };
        let sends = if odd { vec![6, 6, 6, 9] } else { vec![6; 4] };
        request.blocks = vec![of(sends), of(vec![6; 4])];
        request.algorithm = Some(Algorithm::Pairwise);
    });
}

fn of_one_that_is_ahead() {
    let errors = ranks::run(SIZE, |rt| {
        let mut memory = Memory::new(rt.rank(), COUNT as usize);
        rt.barrier(ALL, ranks::LIMIT).expect("barrier");
        let begin = Instant::now();
        // What its root only has to send: it is done, and one ahead.
        let mut apart = Memory::new(rt.rank(), 1);
        let mut ahead = apart.request(Collective::Broadcast, 1);
        ahead.root = Rank(2);
        ahead.algorithm = Some(Algorithm::Linear);
        let same = memory.request(Collective::Allreduce, COUNT);
        let mut outcome = Ok(());
        if rt.rank() == Rank(2) {
            outcome = call(rt, ALL, &ahead, Timeout::Block);
        }
        let outcome = outcome.and_then(|()| call(rt, ALL, &same, Timeout::Block));
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        let _ = rt.barrier(ALL, ranks::LIMIT);
        (outcome, memory)
    });
    for (rank, (outcome, memory)) in errors.iter().enumerate() {
        assert!(matches!(outcome, Err(Error::Mismatch { .. })), "rank {rank}: {outcome:?}");
        // In rounds of messages, those who agree get as far as they can.
        let one_node = ranks::Nodes::of_this_test() == ranks::Nodes::One;
        assert!(!one_node || memory.has_nothing_of_others(), "rank {rank}");
    }
}

fn nothing_of_others_is_written() {
    for by in [None, Some(Algorithm::RecursiveDoubling)] {
        let all = ranks::run(2, |rt| {
            let mut memory = Memory::new(rt.rank(), COUNT as usize);
            let mut request = memory.request(Collective::Allreduce, COUNT);
            request.algorithm = by;
            request.count -= u64::from(rt.rank().0);
            let outcome = call(rt, ALL, &request, Timeout::Block);
            let _ = rt.barrier(ALL, ranks::LIMIT);
            (outcome, memory)
        });
        for (outcome, memory) in all {
            assert!(matches!(outcome, Err(Error::Mismatch { .. })), "{outcome:?}");
            assert!(memory.has_nothing_of_others(), "{by:?}");
        }
    }
}

fn of_prepared_operations() {
    let errors = ranks::run(3, |rt| {
        let mut memory = Memory::new(rt.rank(), COUNT as usize);
        let mut request = memory.request(Collective::Allreduce, COUNT);
        request.count -= u64::from(rt.rank() == Rank(2));
        // SAFETY: the buffers live until the job has ended.
        let mut prepared =
            unsafe { prepare_raw(rt, ALL, &request, ranks::LIMIT) }.expect("prepare");
        let mut started = prepared.start().expect("start");
        let outcome = started.wait(Timeout::Block).map(drop);
        assert_eq!(started.wait(Timeout::Block).map(drop), outcome, "it stays so");
        drop(started);
        assert!(prepared.start().is_err(), "its channel is of no use any more");
        // Others are not concerned.
        super::sum_of_all(rt, ALL, 100);
        outcome
    });
    for outcome in errors {
        let Err(Error::Mismatch { difference, .. }) = outcome else { panic!("{outcome:?}") };
        let names = |rank: &str| difference.contains(rank);
        assert!(names("rank 2 called allreduce of 2999 x u64 sum"), "{difference}");
        assert!(names("called allreduce of 3000 x u64 sum"), "{difference}");
    }
}

fn of_one_that_prepares_what_others_run() {
    let errors = ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), 8);
        let request = memory.request(Collective::Allreduce, 8);
        let error = if rt.rank() == Rank(0) {
            // SAFETY: the buffers live until the job has ended.
            unsafe { prepare_raw(rt, ALL, &request, ranks::LIMIT) }.err()
        } else {
            call(rt, ALL, &request, ranks::LIMIT).err()
        };
        error.expect("it is refused")
    });
    for error in errors {
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }
}

fn nothing_at_all_is_written_where_everybody_depends_on_everybody() {
    use Collective::{Allgather, Allreduce, Alltoall, ReduceScatter};
    // Kept apart until all is there, or begun when all have met; or written by steps that know.
    for count in [700, 40_000] {
        for collective in [Allreduce, ReduceScatter, Allgather, Alltoall] {
            let messages = |a: &&Algorithm| a.serves(collective) && !a.requires_one_node();
            for algorithm in Algorithm::ALL.iter().filter(messages) {
                let what = format!("{collective} of {count} by {algorithm}");
                let all = ranks::run(SIZE, |rt| {
                    let mut memory = Memory::new(rt.rank(), SIZE as usize * count);
                    let mut request = memory.request(collective, count as u64);
                    request.algorithm = Some(*algorithm);
                    request.count -= u64::from(rt.rank() == Rank(2));
                    let outcome = call(rt, ALL, &request, Timeout::Block);
                    let _ = rt.barrier(ALL, ranks::LIMIT);
                    (outcome, memory.output)
                });
                for (rank, (outcome, output)) in all.iter().enumerate() {
                    let told = matches!(outcome, Err(Error::Mismatch { .. }));
                    assert!(told, "{what}: rank {rank}: {outcome:?}");
                    let untouched = output.iter().all(|element| *element == UNTOUCHED);
                    assert!(untouched, "{what}: rank {rank} has a part of a result");
                }
            }
        }
    }
}

fn nothing_is_written_where_the_one_that_differs_comes_last() {
    // The others have sent each other what they can until then.
    const TESTS: u32 = 1000;
    let messages = |a: &&Algorithm| a.serves(Collective::Allreduce) && !a.requires_one_node();
    for (size, count) in [(3, 40_000), (SIZE, 40_000), (5, 130_000)] {
        for algorithm in Algorithm::ALL.iter().filter(messages) {
            let others_wait = Barrier::new(size as usize);
            let all = ranks::run(size, |rt| {
                let mut memory = Memory::new(rt.rank(), count as usize);
                // The first operation of a group waits for all.
                let meeting = memory.request(Collective::Barrier, 0);
                call(rt, ALL, &meeting, Timeout::Block).expect("all meet");
                let mut request = memory.request(Collective::Allreduce, count);
                request.algorithm = Some(*algorithm);
                let outcome = if rt.rank() == Rank(2) {
                    others_wait.wait();
                    request.count -= 1;
                    call(rt, ALL, &request, Timeout::Block)
                } else {
                    // SAFETY: the buffers live until the job has ended.
                    let mut started = unsafe { start_raw(rt, ALL, &request, Timeout::Block) }
                        .expect("nobody differs yet");
                    for _ in 0..TESTS {
                        assert_eq!(started.test().expect("nobody differs yet"), None);
                        std::thread::yield_now();
                    }
                    others_wait.wait();
                    started.wait(Timeout::Block).map(drop)
                };
                let _ = rt.barrier(ALL, ranks::LIMIT);
                (outcome, memory.output)
            });
            let what = format!("{count} elements of {size} ranks by {algorithm}");
            for (rank, (outcome, output)) in all.iter().enumerate() {
                let told = matches!(outcome, Err(Error::Mismatch { .. }));
                assert!(told, "{what}: rank {rank}: {outcome:?}");
                let untouched = output.iter().all(|element| *element == UNTOUCHED);
                assert!(untouched, "{what}: rank {rank} has a part of a result");
            }
        }
    }
}

fn of_roots_each_of_which_only_sends() {
    let errors = ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), COUNT as usize);
        let mut request = memory.request(Collective::Broadcast, COUNT);
        request.algorithm = Some(Algorithm::BinomialTree);
        request.root = rt.rank();
        let begin = Instant::now();
        // Both have done their part.
        call(rt, ALL, &request, Timeout::Block).expect("it only sends");
        let mut next = memory.request(Collective::Allreduce, COUNT);
        next.algorithm = Some(Algorithm::RecursiveDoubling);
        let error = call(rt, ALL, &next, Timeout::Block).expect_err("it is found out");
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        let _ = rt.barrier(ALL, ranks::LIMIT);
        assert!(memory.output.iter().all(|element| *element == UNTOUCHED || *element < 97 + 1000));
        error
    });
    for error in errors {
        let Error::Mismatch { difference, .. } = error else { panic!("{error}") };
        assert!(difference.contains("earlier operation"), "{difference}");
        for root in ["with root 0", "with root 1"] {
            assert!(difference.contains(root), "{difference}");
        }
    }
}

fn who_only_sends_is_told_by_its_next_call() {
    let errors = ranks::run(3, |rt| {
        let mut memory = Memory::new(rt.rank(), COUNT as usize);
        let mut request = memory.request(Collective::Broadcast, COUNT);
        request.algorithm = Some(Algorithm::Linear);
        request.count -= u64::from(rt.rank() == Rank(2));
        let first = call(rt, ALL, &request, Timeout::Block);
        // Rank 0 has sent, and rank 1 has got what it expected.
        assert_eq!(first.is_err(), rt.rank() == Rank(2), "{first:?}");
        let _ = rt.barrier(ALL, ranks::LIMIT);
        let mut outcome = first;
        // The news may take a moment.
        let error = within(SOON, "the news", || {
            if outcome.is_ok() {
                outcome = call(rt, ALL, &request, Timeout::Block);
            }
            outcome.clone().err()
        });
        let _ = rt.barrier(ALL, ranks::LIMIT);
        error
    });
    for (rank, error) in errors.iter().enumerate() {
        let Error::Mismatch { difference, .. } = error else { panic!("rank {rank}: {error}") };
        assert!(difference.contains("rank 2 called broadcast of 2999"), "{difference}");
        let earlier = difference.contains("earlier operation");
        assert_eq!(earlier, rank != 2, "rank {rank}: {difference}");
    }
}

fn what_the_library_would_choose_may_be_named_by_some_only() {
    // Memory that no other rank maps, so that there are two ways to carry it out; so much of it
    // that the library chooses the direct way, where ranks share cores too.
    for (size, counts) in [(2, [300, 1000, 8192]), (3, [4000, 5000, 8192]), (4, [4000, 5000, 8192])]
    {
        ranks::run_over(Nodes::One, size, &Config::default(), |rt| {
            for turn in 0..40 {
                let count = counts[turn % 3];
                let mut memory = Memory::new(rt.rank(), count);
                let mut request = memory.request(Collective::Allreduce, count as u64);
                let names = (turn / 3 + rt.rank().index()) % 2 == 0;
                request.algorithm = names.then_some(Algorithm::SingleCopy);
                call(&rt, ALL, &request, LIMIT).expect("allreduce");
                let members = rt.group_ranks(ALL).expect("members");
                check_sum(&memory.output, &members);
            }
            rt.term(LIMIT).expect("term");
        });
    }
}

fn of_an_operation_that_nobody_waits_for_yet() {
    ranks::run(2, |rt| {
        let mut all: Vec<Memory> = (0..2).map(|_| Memory::new(rt.rank(), 8)).collect();
        let [first, second] = &mut all[..] else { unreachable!("two of them") };
        let mut differs = first.request(Collective::Reduce, 8);
        // Each takes itself for the root, so that nobody sends.
        (differs.root, differs.algorithm) = (rt.rank(), Some(Algorithm::Linear));
        let agrees = second.request(Collective::Allreduce, 8);
        // SAFETY: the buffers live until the job has ended.
        let mut differs = unsafe { prepare_raw(rt, ALL, &differs, LIMIT) }.expect("prepare");
        // SAFETY: the buffers live until the job has ended.
        let mut agrees = unsafe { prepare_raw(rt, ALL, &agrees, LIMIT) }.expect("prepare");
        let mut differs = differs.start().expect("start");
        let begin = Instant::now();
        if rt.rank() == Rank(0) {
            // The other one comes to it only behind what differs.
            agrees.run(Timeout::Block).expect("both are in it");
        }
        let told = differs.wait(Timeout::Block);
        assert!(matches!(told, Err(Error::Mismatch { .. })), "{}: {told:?}", rt.rank());
        if rt.rank() == Rank(1) {
            agrees.run(Timeout::Block).expect("both are in it");
        }
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        rt.barrier(ALL, LIMIT).expect("barrier");
    });
}

tests! {
    DEVICES:
        of_kind,
        of_count,
        of_type_and_operation,
        of_root,
        of_algorithm,
        of_mode,
        of_counts_of_blocks,
        of_one_that_is_ahead,
        nothing_of_others_is_written,
        of_prepared_operations,
        of_one_that_prepares_what_others_run,
        nothing_at_all_is_written_where_everybody_depends_on_everybody,
        nothing_is_written_where_the_one_that_differs_comes_last,
        of_roots_each_of_which_only_sends,
        who_only_sends_is_told_by_its_next_call,
        of_an_operation_that_nobody_waits_for_yet;
    SHM:
        what_the_library_would_choose_may_be_named_by_some_only;
}
