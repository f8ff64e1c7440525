//! All-reduces of the standard for whose data leaders of nodes have no room, so that it goes along
//! a chain of the members: how many messages that takes, and that results, errors and ends of ranks
//! are as anywhere else.

use super::nodes::{job_of, messages};
use super::ranks::{self, Tries, run_jobs};
use super::*;
use gaspi_core::State;
use gaspi_core::knomial_tree::KnomialTree;

/// Doubles of a chunk, and of a piece, behind which all meet.
const CHUNK: usize = 2048;
const PIECE: usize = 64 * CHUNK;

/// Runs `body` on the ranks of a job over so many nodes.
fn with_ranks<T: Send>(nodes: u32, size: u32, body: impl Fn(Runtime) -> T + Sync) -> Vec<T> {
    let config = Config { allreduce_elem_max: 1 << 24, ..Config::default() };
    run_jobs(size, &config, |id, rank| job_of(nodes, id, rank, size), body)
}

/// Messages by rank for a call, of the first try in which they are `few`: ranks that are late, on a
/// busy machine, have all tell all of their arrivals.
fn counted(
    (nodes, size): (u32, u32),
    few: impl Fn(&[u64]) -> bool + Sync,
    call: impl Fn(&Runtime) + Sync,
) -> Vec<u64> {
    let (tries, meet) = (Tries::new(size), Barrier::new(size as usize));
    with_ranks(nodes, size, |rt| {
        let count = || {
            let before = messages(&rt);
            call(&rt);
            // What is sent behind a call belongs to it.
            meet.wait();
            messages(&rt) - before
        };
        while !tries.are_over(rt.rank(), count(), &few) {}
        rt.term(GUARD).expect("term");
    });
    tries.counts()
}

/// One message up and one down for each member but one and each chunk, and what two barriers take.
fn assert_few(nodes: u32, size: u32) {
    let all = |found: &[u64]| found.iter().sum::<u64>();
    let rounds = u64::from(nodes.next_power_of_two().trailing_zeros());
    let few = |found: &[u64]| all(found) <= u64::from(nodes) * rounds;
    let barrier = counted((nodes, size), few, |rt| {
        rt.barrier(GroupId::ALL, GUARD).expect("all have come");
    });
    assert!(few(&barrier), "{barrier:?}");
    for chunks in [1, 3] {
        let chain = 2 * u64::from(size - 1) * chunks as u64;
        // A member sends up once and down twice at most, and leaders take part in two barriers.
        let of_root = KnomialTree::of(nodes as usize).children(0).count() as u64;
        let most = 3 * chunks as u64 + 2 * (2 * rounds).max(of_root);
        let few = |found: &[u64]| {
            (chain / 2 + 1..=2 * all(&barrier) + chain).contains(&all(found))
                && found.iter().all(|count| *count <= most)
        };
        let expected = vec![f64::from(size); chunks * CHUNK];
        let found = counted((nodes, size), few, |rt| {
            let mut data = vec![1.0_f64; chunks * CHUNK];
            allreduce_in_place(rt, &mut data, Operation::Sum, GroupId::ALL, GUARD).expect("sum");
            assert!(data == expected);
        });
        assert!(few(&found), "{nodes} nodes: {found:?}");
    }
}

fn few_messages_over_64_nodes() {
    assert_few(64, 64);
}

fn few_messages_over_16_nodes_of_three() {
    assert_few(16, 48);
}

/// In one chunk, in several, in several pieces, and beside calls that go otherwise.
fn sums_are_added_in_the_order_of_the_ranks() {
    for (nodes, size) in [(9, 9), (11, 11), (4, 4), (5, 15), (2, 7), (3, 10)] {
        let counts = [1, CHUNK, 300, 3 * CHUNK + 1, 2 * PIECE + 1, 7, PIECE, PIECE + 6];
        with_ranks(nodes, size, |rt| {
            for (call, count) in counts.into_iter().enumerate() {
                let data = input(rt.rank(), count, call);
                // One rank after the other is impatient.
                let timeout = if rt.rank().index() == call { Timeout::Test } else { GUARD };
                let in_place = call % 2 == 1;
                let mut sum = if in_place { data.clone() } else { vec![0.0; count] };
                let (op, group) = (Operation::Sum, GroupId::ALL);
                loop {
                    let summed = match in_place {
                        true => allreduce_in_place(&rt, &mut sum, op, group, timeout),
                        false => allreduce_slice(&rt, &data, &mut sum, op, group, timeout),
                    };
                    let Err(error) = summed else { break };
                    assert!(error.is_timeout(), "{error}");
                    std::thread::yield_now();
                }
                assert!(sum == expected(size, count, call), "{count} of {size}");
            }
            rt.term(GUARD).expect("term");
        });
    }
}

/// An element as bytes: small numbers, whose sums and products are exact in all types.
fn element(ty: DataType, number: u8) -> Vec<u8> {
    let float = f32::from(number);
    match ty {
        DataType::F16 => f16::from_f32(float).to_ne_bytes().to_vec(),
        // The upper half of an f32.
        DataType::Bf16 => ((float.to_bits() >> 16) as u16).to_ne_bytes().to_vec(),
        DataType::F32 => float.to_ne_bytes().to_vec(),
        DataType::F64 => f64::from(number).to_ne_bytes().to_vec(),
        _ => u64::from(number).to_le_bytes()[..ty.bytes() as usize].to_vec(),
    }
}

/// As many as do not fill words, nor a whole number of chunks.
const ODD: usize = 16 * 1024 + 31;

/// What all operations on all types give on each rank of a job.
fn all_results(nodes: u32, size: u32) -> Vec<Vec<Vec<u8>>> {
    with_ranks(nodes, size, |rt| {
        let mut results = Vec::new();
        for ty in DataType::ALL {
            for op in Operation::ALL.into_iter().filter(|op| op.is_defined_for(ty)) {
                let number = |i: usize| 1 + (i as u8).wrapping_add(rt.rank().0 as u8) % 2;
                let send: Vec<u8> = (0..ODD).flat_map(|i| element(ty, number(i))).collect();
                let mut receive = vec![0_u8; send.len()];
                let (from, to) = (send.as_ptr(), receive.as_mut_ptr());
                let (count, group) = (ODD as u64, GroupId::ALL);
                // SAFETY: both have so many elements, and the call does not return before its end.
                unsafe { allreduce(&rt, from, to, count, op, ty, group, GUARD) }.expect("combined");
                results.push(receive);
            }
        }
        rt.term(GUARD).expect("term");
        results
    })
}

fn all_types_give_the_bits_of_one_node() {
    let size = 9;
    let one = all_results(1, size);
    for nodes in [size, 5] {
        let found = all_results(nodes, size);
        assert_eq!(found[0].len(), 12 * 8 - 4 * 3, "operations");
        assert!(found.iter().chain(&one).all(|of_rank| *of_rank == one[0]), "{nodes} nodes");
    }
}

/// Affine maps of as many elements, of 16 bytes each, as one rank has.
fn maps(rank: u16, count: usize) -> Vec<u64> {
    (0..2 * count as u64).map(|i| (i + 3).wrapping_mul(u64::from(rank) + 2)).collect()
}

fn compose_bytes(
    one: &[u8],
    two: &[u8],
    result: &mut [u8],
) -> std::result::Result<(), ReductionFailed> {
    assert_eq!((one.as_ptr() as usize | two.as_ptr() as usize) % 16, 0, "aligned");
    let words = |bytes: &[u8]| -> Vec<u64> {
        bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
    };
    let combined = compose(&words(one), &words(two));
    result.chunks_mut(8).zip(combined).for_each(|(to, word)| {
        to.copy_from_slice(&word.to_ne_bytes());
    });
    Ok(())
}

/// A function that does not commute, in one chunk and in several pieces, called again and again by
/// one rank after the other; also on elements that do not fill chunks.
fn functions_are_applied_in_the_order_of_the_ranks() {
    for (nodes, size) in [(9_u32, 9_u32), (5, 15), (2, 7)] {
        with_ranks(nodes, size, |rt| {
            let me = rt.rank().0;
            for (turn, (count, element_bytes)) in
                [(900, 16), (PIECE / 2 + 3000, 16), (1500, 48), (60, 16 * 313)]
                    .into_iter()
                    .enumerate()
            {
                let count = count * element_bytes as usize / 16;
                let mut data = maps(me, count);
                let impatient = usize::from(me) % 4 == turn;
                user_reduce(&rt, &mut data, element_bytes, &mut compose_bytes, impatient)
                    .expect("composed");
                let all = (1..size as u16)
                    .fold(maps(0, count), |one, rank| compose(&one, &maps(rank, count)));
                assert!(data == all, "{count} of {size}");
            }
            rt.term(GUARD).expect("term");
        });
    }
}

/// Fails in one call of the function, after so many.
struct FailsOnce(u32);

impl UserReduce for FailsOnce {
    fn reduce(
        &mut self,
        _: &[u8],
        _: &[u8],
        _: &mut [u8],
        _: u64,
    ) -> std::result::Result<(), ReductionFailed> {
        let fails = self.0 == 0;
        self.0 = self.0.wrapping_sub(1);
        if fails { Err(ReductionFailed) } else { Ok(()) }
    }
}

/// Functions fail on one rank after the other, in the first piece or a later one, also where that
/// rank is in the middle of many attempts: all name it, and the group goes on.
fn all_name_the_rank_whose_function_has_failed() {
    const SIZE: u16 = 9;
    with_ranks(9, 9, |rt| {
        let me = rt.rank().0;
        // The first rank calls no function here.
        for turn in 1..SIZE {
            for after in [0, 5, 70] {
                let mut data = vec![0_u64; 2 * PIECE];
                let calls = if me == turn { after } else { u32::MAX };
                // Some, or all.
                let impatient = (me + turn) % 3 == 0 || after == 5;
                let result = user_reduce(&rt, &mut data, 8, &mut FailsOnce(calls), impatient);
                assert_eq!(result, Err(Error::Reduction { rank: Rank(turn) }), "after {after}");
            }
            let mut data = vec![u64::from(me); CHUNK];
            user_sum(&rt, &mut data, false).expect("a sum");
            assert_eq!(data, [u64::from(SIZE * (SIZE - 1) / 2); CHUNK]);
        }
        rt.term(GUARD).expect("term");
    });
}

/// Where one calls with another length, operation or type: all are told, and nothing has changed.
fn other_arguments_are_named_on_all_ranks() {
    for (nodes, size) in [(9, 9), (4, 8)] {
        for odd in 0..size as usize {
            with_ranks(nodes, size, |rt| {
                let is_odd = rt.rank().index() == odd;
                // Some of them would go otherwise.
                let (other, op) =
                    [(1, "sum"), (CHUNK + 1, "sum"), (CHUNK, "max"), (250, "sum")][odd % 4];
                let count = if is_odd { other } else { CHUNK };
                let own = if is_odd && op == "max" { Operation::Max } else { Operation::Sum };
                let mut data = vec![1.0_f64; count];
                let summed = allreduce_in_place(&rt, &mut data, own, GroupId::ALL, GUARD);
                let Err(Error::Mismatch { difference, .. }) = summed else { panic!("{summed:?}") };
                let differs = format!(" of {other} x f64 {op}");
                for words in ["2048 x f64 sum", &differs, &format!("rank {odd} ")] {
                    assert!(difference.contains(words), "{difference}");
                }
                assert_eq!(data, vec![1.0; count]);
                let mut data = vec![1.0_f64; 3 * CHUNK];
                allreduce_in_place(&rt, &mut data, Operation::Sum, GroupId::ALL, GUARD)
                    .expect("the next call is not disturbed");
                assert!(data == vec![f64::from(size); 3 * CHUNK]);
                rt.term(GUARD).expect("term");
            });
        }
    }
}

/// Calls that one rank gives up in the middle of the second piece, when its function has been
/// called so often.
fn give_up_in_the_middle(rt: &Runtime, data: &mut [u64]) {
    let calls = std::cell::Cell::new(0);
    let mut counting = |_: &[u8], two: &[u8], result: &mut [u8]| {
        calls.set(calls.get() + 1);
        result.copy_from_slice(two);
        Ok(())
    };
    let (count, to): (u64, *mut u8) = (data.len() as u64, data.as_mut_ptr().cast());
    loop {
        let group = GroupId::ALL;
        // SAFETY: the slice has so many elements, and stays until the rank has ended.
        let tried =
            unsafe { allreduce_user(rt, to, to, count, 8, &mut counting, group, Timeout::Test) };
        assert!(tried.is_err_and(|error| error.is_timeout()), "it is given up before its end");
        if calls.get() >= 70 {
            return;
        }
        std::thread::yield_now();
    }
}

/// One rank after the other ends in the middle of a call; the others are told its number, and go on
/// without it.
fn others_are_told_of(
    nodes: u32,
    size: u32,
    end: impl Fn(Runtime) + Sync,
    is_it: fn(&Error, Rank) -> bool,
) {
    for gone in 1..size as u16 {
        let gone = Rank(gone);
        with_ranks(nodes, size, |rt| {
            let mut data = vec![1_u64; 4 * PIECE];
            if rt.rank() == gone {
                give_up_in_the_middle(&rt, &mut data);
                return end(rt);
            }
            let begin = std::time::Instant::now();
            let summed = user_sum(&rt, &mut data, false);
            assert!(summed.as_ref().is_err_and(|error| is_it(error, gone)), "{gone}: {summed:?}");
            assert!(begin.elapsed() < GUARD_OF_ENDS, "{:?}", begin.elapsed());
            let group = rt.group_create().expect("group");
            let living = || (0..size as u16).map(Rank).filter(|rank| *rank != gone);
            living().for_each(|rank| rt.group_add(group, rank).expect("add"));
            rt.group_commit(group, GUARD).expect("the others commit");
            let mut data = vec![1.0_f64; 3 * CHUNK];
            allreduce_in_place(&rt, &mut data, Operation::Sum, group, GUARD).expect("sum");
            assert!(data == vec![f64::from(size - 1); 3 * CHUNK]);
            rt.term(GUARD).expect("term");
        });
    }
}

/// Ends are known within a second.
const GUARD_OF_ENDS: std::time::Duration = std::time::Duration::from_secs(20);

fn a_rank_that_dies_in_the_middle_is_named_and_the_others_go_on() {
    for (nodes, size) in [(9, 9), (3, 6)] {
        let is_it =
            |error: &Error, gone| matches!(error, Error::RankDied { rank, .. } if *rank == gone);
        others_are_told_of(nodes, size, ranks::die, is_it);
    }
}

fn a_rank_that_leaves_in_the_middle_is_named_and_the_others_go_on() {
    for (nodes, size) in [(9, 9), (3, 6)] {
        let is_it = |error: &Error, _| matches!(error, Error::RankLeft { .. });
        let leave = |rt: Runtime| rt.term(GUARD).expect("term");
        others_are_told_of(nodes, size, leave, is_it);
    }
}

/// Each leaves as soon as its own call is over.
fn who_leaves_behind_a_call_disturbs_nobody() {
    for (nodes, size) in [(9, 9), (3, 6), (12, 12)] {
        for round in 0..6 {
            with_ranks(nodes, size, |rt| {
                let count = [CHUNK, 3 * CHUNK, PIECE + 1][round % 3] + PIECE;
                let mut data = input(rt.rank(), count, round);
                let impatient = rt.rank().index() == round;
                let timeout = if impatient { Timeout::Test } else { GUARD };
                let (op, group) = (Operation::Sum, GroupId::ALL);
                while let Err(error) = allreduce_in_place(&rt, &mut data, op, group, timeout) {
                    assert!(error.is_timeout(), "{error}");
                    std::thread::yield_now();
                }
                assert!(rt.state(rt.rank()) == Ok(State::Healthy));
                assert!(data == expected(size, count, round), "{count} of {size}");
                rt.term(GUARD).expect("term");
            });
        }
    }
}

tests! {
    TCP:
        few_messages_over_64_nodes,
        few_messages_over_16_nodes_of_three,
        sums_are_added_in_the_order_of_the_ranks,
        all_types_give_the_bits_of_one_node,
        functions_are_applied_in_the_order_of_the_ranks,
        all_name_the_rank_whose_function_has_failed,
        other_arguments_are_named_on_all_ranks,
        a_rank_that_dies_in_the_middle_is_named_and_the_others_go_on,
        a_rank_that_leaves_in_the_middle_is_named_and_the_others_go_on,
        who_leaves_behind_a_call_disturbs_nobody;
    VERBS:
        sums_go_by_devices_too;
}

/// Where devices alone carry data.
fn sums_go_by_devices_too() {
    job(9, |rt, _| {
        for (call, count) in [CHUNK, 2 * PIECE + 5, 3 * CHUNK].into_iter().enumerate() {
            let mut data = input(rt.rank(), count, call);
            let (op, group) = (Operation::Sum, GroupId::ALL);
            allreduce_in_place(rt, &mut data, op, group, GUARD).expect("sum");
            assert!(data == expected(9, count, call), "{count}");
        }
    });
}
