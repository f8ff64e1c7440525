//! Ranks that die or leave, before, in the middle of, and after operations.

use super::{ALL, Dice, Memory, SOON, call, group_of, ranks, serves, sum_of_all};
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::{Request, Started, prepare_raw, start_raw};
use gaspi_core::{Config, Error, Rank, Result, Runtime, State, Timeout};
use std::sync::Barrier;
use std::time::Instant;

const SIZE: u32 = 4;
/// In several messages, which do not fit between two ranks at once.
const LARGE: usize = 400_000;
const SMALL: usize = 500;

/// Elements of an operation whose blocks add up to so many.
fn count_of(collective: Collective, elements: usize) -> u64 {
    match collective {
        Collective::Allreduce | Collective::Reduce | Collective::Broadcast => elements as u64,
        _ => elements as u64 / u64::from(SIZE),
    }
}

fn names(error: &Error, dead: Rank) -> bool {
    matches!(error, Error::RankDied { rank, .. } if *rank == dead)
}

/// Any operation by any algorithm that serves it.
fn any_request(memory: &mut Memory, dice: &mut Dice) -> Request {
    let (collective, algorithm) = loop {
        let collective = Collective::ALL[dice.below(9) as usize];
        let algorithm = Algorithm::ALL[dice.below(Algorithm::ALL.len() as u64) as usize];
        if serves(algorithm, collective, SIZE) {
            break (collective, algorithm);
        }
    };
    let elements = [SMALL, LARGE][dice.below(2) as usize];
    let mut request = memory.request(collective, count_of(collective, elements));
    request.algorithm = Some(algorithm);
    request.root = Rank(dice.below(u64::from(SIZE)) as u16);
    request
}

/// Runs operations until one fails.
fn until_it_fails(rt: &Runtime, memory: &mut Memory, seed: u64, dead: Rank) -> Result<()> {
    let mut dice = Dice(seed);
    for _ in 0..200 {
        let request = any_request(memory, &mut dice);
        // SAFETY: the buffers live until the job has ended.
        let begun = unsafe { start_raw(rt, ALL, &request, Timeout::Block) };
        if matches!(begun, Err(Error::Unsupported { .. })) {
            continue;
        }
        let begin = Instant::now();
        let outcome = begun.and_then(|mut started| started.wait(Timeout::Block).map(drop));
        if let Err(error) = outcome {
            let Request { collective, algorithm, root, .. } = request;
            let what = format!("{collective} by {algorithm:?} from {root}");
            assert!(names(&error, dead), "{what}: {} is told: {error}", rt.rank());
            assert!(begin.elapsed() < 3 * SOON, "{what}: {:?}", begin.elapsed());
            return Err(error);
        }
    }
    Ok(())
}

fn whoever_survives_is_told_and_goes_on_in_a_new_group() {
    for seed in 1..=6 {
        let dead = Rank((seed % 4) as u16);
        // It dies while others are in the middle of something.
        let operations = Dice(seed * 77).below(12);
        let met = Barrier::new(SIZE as usize);
        ranks::run_owned(SIZE, &Config::default(), |rt| {
            let mut memory = Memory::new(rt.rank(), LARGE);
            let pair = [Rank(0), Rank(1), Rank(2), Rank(3)].into_iter().filter(|r| *r != dead);
            let untouched = (rt.rank() != dead).then(|| group_of(&rt, pair.clone()));
            if let Some(group) = untouched {
                sum_of_all(&rt, group, SMALL);
            }
            met.wait();
            if rt.rank() == dead {
                let mut dice = Dice(seed);
                let begun: Vec<_> = (0..operations)
                    .filter_map(|_| begin_and_wait(&rt, &mut memory, &mut dice))
                    .collect();
                ranks::die(rt);
                // Before, it would be given up, which the others would be told first.
                drop(begun);
                return;
            }
            let outcome = until_it_fails(&rt, &mut memory, seed, dead);
            assert!(outcome.is_err(), "{dead} has died");
            sum_of_all(&rt, untouched.expect("a survivor"), SMALL);
            let next = group_of(&rt, pair);
            sum_of_all(&rt, next, LARGE);
            let again = call(&rt, ALL, &memory.request(Collective::Barrier, 0), Timeout::Block);
            assert!(again.as_ref().is_err_and(|error| names(error, dead)), "{again:?}");
            rt.barrier(next, ranks::LIMIT).expect("barrier");
            rt.term(ranks::LIMIT).expect("term");
        });
    }
}

/// One operation of those of [`until_it_fails`]; the last ones are begun only.
fn begin_and_wait(rt: &Runtime, memory: &mut Memory, dice: &mut Dice) -> Option<Started<'static>> {
    let request = any_request(memory, dice);
    // SAFETY: the buffers live until the job has ended.
    let mut started = match unsafe { start_raw(rt, ALL, &request, Timeout::Block) } {
        Err(Error::Unsupported { .. }) => return None,
        begun => begun.expect("start"),
    };
    let outcome = started.wait(Timeout::Millis(3)).map(drop);
    // In the middle, where 3 ms are not enough.
    if outcome.is_err_and(|error| error.is_timeout()) && dice.0 & 1 == 0 {
        let _ = started.wait(ranks::LIMIT);
    }
    Some(started)
}

fn prepared_and_waiting_ones_are_told_as_well() {
    let ready = Barrier::new(3);
    ranks::run_owned(3, &Config::default(), |rt| {
        let mut all: Vec<Memory> = (0..4).map(|_| Memory::new(rt.rank(), SMALL)).collect();
        let mut prepared = Vec::new();
        for memory in &mut all {
            let mut request = memory.request(Collective::Allreduce, SMALL as u64);
            request.background = prepared.len() % 2 == 0;
            // SAFETY: the buffers live until the job has ended.
            prepared
                .push(unsafe { prepare_raw(&rt, ALL, &request, ranks::LIMIT) }.expect("prepare"));
        }
        // Nobody is still on the way when one of them ends.
        ready.wait();
        if rt.rank() == Rank(1) {
            return ranks::die(rt);
        }
        // A rank that already knows of it gets the error at the start.
        let begun: Vec<_> = prepared.iter_mut().map(|prepared| prepared.start()).collect();
        for begun in begun.into_iter().rev() {
            let outcome = begun.and_then(|mut started| started.wait(Timeout::Block).map(drop));
            assert!(outcome.as_ref().is_err_and(|e| names(e, Rank(1))), "{outcome:?}");
        }
        let next = group_of(&rt, [Rank(0), Rank(2)]);
        sum_of_all(&rt, next, SMALL);
        rt.barrier(next, ranks::LIMIT).expect("barrier");
        rt.term(ranks::LIMIT).expect("term");
    });
}

fn who_leaves_after_its_part_disturbs_only_whoever_needs_it() {
    let left = Barrier::new(3);
    ranks::run_owned(3, &Config::default(), |rt| {
        let mut memory = Memory::new(rt.rank(), 3 * SMALL);
        let mut gather = memory.request(Collective::Gather, SMALL as u64);
        gather.algorithm = Some(Algorithm::Linear);
        sum_of_all(&rt, ALL, SMALL);
        if rt.rank() == Rank(2) {
            // It has nothing to wait for.
            call(&rt, ALL, &gather, ranks::LIMIT).expect("gather");
            // Others are not there to say goodbye; what was sent is on its way.
            rt.term(ranks::LIMIT).expect("term");
            left.wait();
            return;
        }
        left.wait();
        call(&rt, ALL, &gather, ranks::LIMIT).expect("its part is there");
        let barrier = memory.request(Collective::Barrier, 0);
        let begin = Instant::now();
        let outcome = call(&rt, ALL, &barrier, Timeout::Block);
        let told = matches!(&outcome, Err(Error::RankLeft { rank, .. }) if *rank == Rank(2));
        assert!(told, "{}: {outcome:?}", rt.rank());
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        let next = group_of(&rt, [Rank(0), Rank(1)]);
        sum_of_all(&rt, next, SMALL);
        rt.barrier(next, ranks::LIMIT).expect("barrier");
        rt.term(ranks::LIMIT).expect("term");
    });
}

fn those_who_wait_for_whom_it_fails_are_told_of_who_left() {
    ranks::run_owned(4, &Config::default(), |rt| {
        sum_of_all(&rt, ALL, SMALL);
        let rest = [Rank(0), Rank(1), Rank(2)];
        if rt.rank() == Rank(3) {
            rt.term(ranks::LIMIT).expect("term");
            return;
        }
        let group = group_of(&rt, rest);
        let mut memory = Memory::new(rt.rank(), SMALL);
        // Only its neighbour in the ring waits for the one that is gone.
        let mut request = memory.request(Collective::Allreduce, SMALL as u64);
        request.algorithm = Some(Algorithm::Ring);
        let outcome = call(&rt, ALL, &request, Timeout::Block);
        let told = matches!(&outcome, Err(Error::RankLeft { rank, .. }) if *rank == Rank(3));
        assert!(told, "{}: {outcome:?}", rt.rank());
        rt.barrier(group, ranks::LIMIT).expect("barrier");
        rt.term(ranks::LIMIT).expect("term");
    });
}

fn who_knows_of_a_death_is_told_of_that_whatever_the_others_are_in() {
    let died = Barrier::new(3);
    let dead = Rank(2);
    // Of one arrival, so that it is done swiftly once it is known, and in several steps.
    for (elements, algorithm) in [(SMALL, None), (LARGE, Some(Algorithm::SingleCopy))] {
        ranks::run_owned(3, &Config::default(), |rt| {
            let mut memory = Memory::new(rt.rank(), LARGE);
            let mut sum = memory.request(Collective::Allreduce, elements as u64);
            sum.algorithm = algorithm.filter(|_| ranks::Nodes::of_this_test() == ranks::Nodes::One);
            let gather = memory.request(Collective::Allgather, elements as u64 / 3);
            for _ in 0..3 {
                call(&rt, ALL, &sum, ranks::LIMIT).expect("sum");
            }
            died.wait();
            // One that lives and the one that dies begin something together.
            let begun = (rt.rank() != Rank(1)).then(|| {
                // SAFETY: the buffers live until the job has ended.
                let mut started =
                    unsafe { start_raw(&rt, ALL, &gather, ranks::LIMIT) }.expect("start");
                assert!(started.test().expect("under way").is_none(), "a rank is missing");
                started
            });
            died.wait();
            if rt.rank() == dead {
                ranks::die(rt);
                died.wait();
                died.wait();
                return;
            }
            let begin = Instant::now();
            while rt.state(dead).expect("state") != State::Corrupt {
                assert!(begin.elapsed() < 3 * SOON, "its death is not known");
                std::thread::yield_now();
            }
            died.wait();
            let outcome = match begun {
                None => call(&rt, ALL, &sum, Timeout::Block),
                Some(mut started) => started.wait(Timeout::Block).map(drop),
            };
            assert!(outcome.as_ref().is_err_and(|e| names(e, dead)), "{}: {outcome:?}", rt.rank());
            died.wait();
        });
    }
}

fn the_first_operation_of_a_group_tells_of_a_death_in_its_own_words() {
    let died = Barrier::new(SIZE as usize);
    let dead = Rank(1);
    ranks::run_owned(SIZE, &Config::default(), |rt| {
        // All have joined.
        died.wait();
        if rt.rank() == dead {
            ranks::die(rt);
            died.wait();
            died.wait();
            return;
        }
        died.wait();
        let mut memory = Memory::new(rt.rank(), SMALL);
        let request = memory.request(Collective::Allreduce, SMALL as u64);
        let error = call(&rt, ALL, &request, Timeout::Block).expect_err("a member is dead");
        assert!(names(&error, dead), "{error}");
        let text = error.to_string();
        assert!(text.contains("collective") && !text.contains("segment"), "{text}");
        // Nobody has left before all have been told.
        died.wait();
    });
}

tests! {
    DEVICES:
        whoever_survives_is_told_and_goes_on_in_a_new_group,
        prepared_and_waiting_ones_are_told_as_well,
        who_leaves_after_its_part_disturbs_only_whoever_needs_it,
        those_who_wait_for_whom_it_fails_are_told_of_who_left,
        who_knows_of_a_death_is_told_of_that_whatever_the_others_are_in,
        the_first_operation_of_a_group_tells_of_a_death_in_its_own_words;
}
