//! The all-reduces of the standard over every kind of link, with the ranks of a job as threads.

#[macro_use]
#[path = "../../../gaspi-core/tests/ranks/mod.rs"]
mod ranks;

mod chained;
mod devices;
mod nodes;

use std::sync::Barrier;

use gaspi_collectives::{
    DataType, Operation, ReductionFailed, UserReduce, allreduce, allreduce_in_place,
    allreduce_slice, allreduce_user, f16,
};
use gaspi_core::{Config, Error, GroupId, Rank, Result, Runtime, Timeout};
use ranks::LIMIT as GUARD;

fn main() -> std::process::ExitCode {
    ranks::run_tests([tests(), chained::tests(), devices::tests(), nodes::tests()])
}

/// Runs `body` on every rank of a job; `meet` is a barrier of the threads, outside of the job.
fn job(size: u32, body: impl Fn(&Runtime, &Barrier) + Sync) {
    job_with(1 << 20, size, body);
}

/// The same where an all-reduce has that many elements at most.
fn job_with(elements: u32, size: u32, body: impl Fn(&Runtime, &Barrier) + Sync) {
    let config = Config { allreduce_elem_max: elements, ..Config::default() };
    let meet = Barrier::new(size as usize);
    ranks::run_owned(size, &config, |rt| {
        body(&rt, &meet);
        // Nobody leaves while others still talk.
        meet.wait();
        // A rank of the test may have left already.
        let left = rt.term(GUARD);
        assert!(matches!(left, Ok(()) | Err(Error::NotInitialised)), "{left:?}");
    });
}

fn input(rank: Rank, count: usize, call: usize) -> Vec<f64> {
    (0..count).map(|i| 1e15 / (1 + rank.0) as f64 + (i * 7 + call) as f64 * 0.1).collect()
}

fn expected(size: u32, count: usize, call: usize) -> Vec<f64> {
    let mut sum = input(Rank(0), count, call);
    for rank in 1..size {
        let more = input(Rank(rank as u16), count, call);
        sum.iter_mut().zip(more).for_each(|(sum, value)| *sum += value);
    }
    sum
}

fn sums_are_those_in_the_order_of_the_ranks() {
    for size in ranks::sizes(&[1, 2, 3, 5, 8]) {
        job(size, |rt, _| {
            let counts = [1, 6, 7, 255, 2048, 2049, 1, 20_000, 3, 100_003];
            for (call, count) in counts.into_iter().enumerate() {
                let mut data = input(rt.rank(), count, call);
                let mut sum = vec![0.0; count];
                let (op, group) = (Operation::Sum, GroupId::ALL);
                allreduce_slice(rt, &data, &mut sum, op, group, GUARD).unwrap();
                assert_eq!(sum, expected(size, count, call));
                if call % 3 == 0 {
                    rt.barrier(group, GUARD).unwrap();
                }
                allreduce_in_place(rt, &mut data, op, group, GUARD).unwrap();
                assert_eq!(data, sum);
            }
        });
    }
}

// Between nodes they would be thousands of connections, and the same code.
fn so_many_ranks_that_one_pass_does_not_combine_them_all() {
    job(67, |rt, _| {
        for (call, count) in [1, 6, 100].into_iter().enumerate() {
            let mut data = input(rt.rank(), count, call);
            let mut sum = vec![0.0; count];
            let (op, group) = (Operation::Sum, GroupId::ALL);
            allreduce_slice(rt, &data, &mut sum, op, group, GUARD).unwrap();
            assert_eq!(sum, expected(67, count, call));
            allreduce_in_place(rt, &mut data, op, group, GUARD).unwrap();
            assert_eq!(data, sum);
        }
    });
}

fn thousands_of_small_calls_stay_in_step() {
    job(3, |rt, _| {
        let sum = u64::from(rt.size() * (rt.size() - 1) / 2);
        for call in 0..5000_u64 {
            let mut data = [u64::from(rt.rank().0), call];
            allreduce_in_place(rt, &mut data, Operation::Sum, GroupId::ALL, GUARD).unwrap();
            assert_eq!(data, [sum, call * u64::from(rt.size())]);
            let mut data = [i32::from(rt.rank().0), -1];
            allreduce_in_place(rt, &mut data, Operation::Max, GroupId::ALL, GUARD).unwrap();
            assert_eq!(data, [rt.size() as i32 - 1, -1]);
        }
    });
}

fn a_call_that_timed_out_continues_and_nothing_else_does() {
    job(2, |rt, meet| {
        let count = 5000;
        let (op, group) = (Operation::Sum, GroupId::ALL);
        for call in 0..3 {
            let data = input(rt.rank(), count, call);
            let mut sum = vec![0.0; count];
            let late = rt.rank().index() == call % 2;
            if late {
                meet.wait();
            } else {
                let error = allreduce_slice(rt, &data, &mut sum, op, group, Timeout::Test);
                assert!(error.unwrap_err().is_timeout());
                let other = allreduce_slice(rt, &data, &mut sum, Operation::Min, group, GUARD);
                assert!(matches!(other, Err(Error::ActiveCollective { .. })), "{other:?}");
                let other = rt.barrier(group, GUARD);
                assert!(matches!(other, Err(Error::ActiveCollective { .. })), "{other:?}");
                let mut elsewhere = vec![0.0; count];
                let other = allreduce_slice(rt, &data, &mut elsewhere, op, group, GUARD);
                assert!(matches!(other, Err(Error::ActiveCollective { .. })), "{other:?}");
                let error = allreduce_slice(rt, &data, &mut sum, op, group, Timeout::Millis(5));
                assert!(error.unwrap_err().is_timeout());
                meet.wait();
            }
            // Many attempts, each of which may get a chunk further.
            let timeout = if call == 2 { GUARD } else { Timeout::Test };
            loop {
                match allreduce_slice(rt, &data, &mut sum, op, group, timeout) {
                    Err(error) if error.is_timeout() => std::thread::yield_now(),
                    result => break result.unwrap(),
                }
            }
            assert_eq!(sum, expected(2, count, call));
        }
    });
}

fn ranks_that_disagree_are_all_told_in_what() {
    job(3, |rt, _| {
        let count = if rt.rank().0 == 2 { 5 } else { 4 };
        let mut data = vec![1.0_f64; count];
        let result = allreduce_in_place(rt, &mut data, Operation::Sum, GroupId::ALL, GUARD);
        let Err(Error::Mismatch { group, difference }) = result else { panic!("{result:?}") };
        assert_eq!(group, GroupId::ALL);
        for words in ["allreduce of 4 x f64 sum", "allreduce of 5 x f64 sum", "rank 2"] {
            assert!(difference.contains(words), "{difference}");
        }
        assert_eq!(data, vec![1.0; count], "the data is touched only after all agree");
    });
}

fn a_barrier_against_an_allreduce_is_named() {
    job(2, |rt, _| {
        let result = if rt.rank().0 == 0 {
            rt.barrier(GroupId::ALL, GUARD)
        } else {
            allreduce_in_place(rt, &mut [1_u32; 4], Operation::Max, GroupId::ALL, GUARD)
        };
        let text = result.unwrap_err().to_string();
        assert!(text.contains("barrier"), "{text}");
        // gaspi-core does not know what an all-reduce is of.
        let allreduce = if rt.rank().0 == 0 { "allreduce" } else { "allreduce of 4 x u32 max" };
        assert!(text.contains(allreduce), "{text}");
    });
}

/// In the line, in the staging, and in several pieces.
fn averages_are_divided_once() {
    for size in ranks::sizes(&[1, 3]) {
        job(size, |rt, _| {
            for count in [1, 100, 50_000] {
                let rank = f32::from(rt.rank().0);
                let mut halves = vec![f16::from_f32(rank + 0.5); count];
                allreduce_in_place(rt, &mut halves, Operation::Average, GroupId::ALL, GUARD)
                    .unwrap();
                let mean = f16::from_f32((size - 1) as f32 / 2.0 + 0.5);
                assert!(halves.iter().all(|half| *half == mean), "{count} of {size}: {mean}");

                // Their sum fits their type.
                let of = |rank: u32| -((rank % 3) as i8) - 1;
                let mut bytes = vec![of(rt.rank().0.into()); count];
                allreduce_in_place(rt, &mut bytes, Operation::Average, GroupId::ALL, GUARD)
                    .unwrap();
                let mean = (0..size).map(of).sum::<i8>() / size as i8;
                assert!(bytes.iter().all(|byte| *byte == mean), "{count} of {size}: {mean}");
            }
        });
    }
}

fn arguments_are_checked_first() {
    job(1, |rt, _| {
        let (op, ty, group) = (Operation::Sum, DataType::F64, GroupId::ALL);
        let mut data = vec![0.0_f64; 8];
        let bytes: *mut u8 = data.as_mut_ptr().cast();
        let number = |count: u64| {
            // SAFETY: what is larger than the buffer is refused.
            let result = unsafe { allreduce(rt, bytes, bytes, count, op, ty, group, GUARD) };
            assert!(matches!(result, Err(Error::Number { number, .. }) if number == count));
        };
        number(0);
        number((1 << 20) + 1);
        number(u64::MAX);

        // SAFETY: both are inside of the buffer of 64 bytes.
        let result = unsafe { allreduce(rt, bytes, bytes.add(8), 4, op, ty, group, GUARD) };
        assert!(matches!(result, Err(Error::Size { size: 32, .. })), "{result:?}");
        // SAFETY: both are inside of the buffer of 64 bytes; the two halves do not overlap.
        unsafe { allreduce(rt, bytes, bytes.add(32), 4, op, ty, group, GUARD) }.unwrap();

        let mut function = |_: &[u8], _: &[u8], _: &mut [u8]| Err(ReductionFailed);
        for (count, element, good) in
            [(0, 8, false), (4, 0, false), (1, 1 << 15, false), (1 << 21, 8, false), (4, 8, true)]
        {
            // SAFETY: what is larger than the buffer is refused.
            let result = unsafe {
                allreduce_user(rt, bytes, bytes, count, element, &mut function, group, GUARD)
            };
            assert_eq!(result.is_ok(), good, "{count} x {element}: {result:?}");
        }
        let undefined = allreduce_in_place(rt, &mut [1.0_f32], Operation::Xor, group, GUARD);
        let text = undefined.unwrap_err().to_string();
        assert_eq!(text, "xor is not defined for f32, only for integers");
        let result = allreduce_slice(rt, &[1, 2], &mut [0], op, group, GUARD);
        assert!(matches!(result, Err(Error::Number { number: 2, .. })));
        let nowhere = allreduce_in_place(rt, &mut [1], op, GroupId(9), GUARD);
        assert!(matches!(nowhere, Err(Error::InvalidGroup { .. })), "{nowhere:?}");
    });
}

fn user_sum(rt: &Runtime, data: &mut [u64], fails: bool) -> Result<()> {
    let mut function = |one: &[u8], two: &[u8], result: &mut [u8]| {
        if fails {
            return Err(ReductionFailed);
        }
        for ((one, two), result) in one.chunks(8).zip(two.chunks(8)).zip(result.chunks_exact_mut(8))
        {
            let value = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
            result.copy_from_slice(&value(one).wrapping_add(value(two)).to_le_bytes());
        }
        Ok(())
    };
    let count = data.len() as u64;
    let data: *mut u8 = data.as_mut_ptr().cast();
    // SAFETY: the slice has `count` elements of 8 bytes and is borrowed for the call.
    unsafe { allreduce_user(rt, data, data, count, 8, &mut function, GroupId::ALL, GUARD) }
}

fn functions_of_the_caller_work_or_fail_together() {
    job(3, |rt, _| {
        for count in [1, 7, 2048, 5000] {
            let mut data: Vec<u64> = (0..count).map(|i| i + u64::from(rt.rank().0)).collect();
            user_sum(rt, &mut data, false).unwrap();
            assert!(data.iter().zip(0..).all(|(sum, i)| *sum == 3 * i + 3));

            let result = user_sum(rt, &mut data, rt.rank().0 == 1);
            assert_eq!(result, Err(Error::Reduction { rank: Rank(1) }));
        }
        rt.barrier(GroupId::ALL, GUARD).unwrap();
    });
}

/// An all-reduce by a function, in which the rank that is `impatient` makes many attempts.
fn user_reduce(
    rt: &Runtime,
    data: &mut [u64],
    element_bytes: u64,
    function: &mut dyn UserReduce,
    impatient: bool,
) -> Result<()> {
    let count = size_of_val(data) as u64 / element_bytes;
    let data: *mut u8 = data.as_mut_ptr().cast();
    let timeout = if impatient { Timeout::Test } else { GUARD };
    loop {
        let group = GroupId::ALL;
        // SAFETY: the slice has so many elements and is borrowed until the call has ended.
        let result = unsafe {
            allreduce_user(rt, data, data, count, element_bytes, function, group, timeout)
        };
        match result {
            Err(error) if error.is_timeout() => std::thread::yield_now(),
            result => return result,
        }
    }
}

/// Composition of affine maps x -> a x + b over 64-bit integers: associative, not commutative.
fn compose(one: &[u64], two: &[u64]) -> Vec<u64> {
    let map = |(one, two): (&[u64], &[u64])| {
        let factor = one[0].wrapping_mul(two[0]);
        [factor, one[0].wrapping_mul(two[1]).wrapping_add(one[1])]
    };
    one.chunks(2).zip(two.chunks(2)).flat_map(map).collect()
}

fn a_function_is_applied_in_the_order_of_the_ranks() {
    let words = |bytes: &[u8]| -> Vec<u64> {
        assert_eq!(bytes.as_ptr() as usize % 16, 0, "arguments are aligned to 16 bytes");
        bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
    };
    let maps = |rank: u16, count: u64| -> Vec<u64> {
        (0..count * 2).map(|i| (i + 3).wrapping_mul(u64::from(rank) + 2)).collect()
    };
    for size in ranks::sizes(&[1, 2, 3, 5]) {
        job(size, |rt, _| {
            let mut function = |one: &[u8], two: &[u8], result: &mut [u8]| {
                let combined = compose(&words(one), &words(two));
                result.chunks_mut(8).zip(combined).for_each(|(to, word)| {
                    to.copy_from_slice(&word.to_ne_bytes());
                });
                Ok(())
            };
            for count in [1, 10, 1024, 1025, 5000] {
                let mut data = maps(rt.rank().0, count);
                user_reduce(rt, &mut data, 16, &mut function, rt.rank().0 == 1).unwrap();
                let expected = (1..size as u16)
                    .fold(maps(0, count), |one, rank| compose(&one, &maps(rank, count)));
                assert_eq!(data, expected, "{count} of {size}");
            }
        });
    }
}

/// Fails from a given call of the function on.
struct FailsAfter(u32);

impl UserReduce for FailsAfter {
    fn reduce(
        &mut self,
        _: &[u8],
        _: &[u8],
        _: &mut [u8],
        count: u64,
    ) -> std::result::Result<(), ReductionFailed> {
        assert!(count > 0);
        self.0 = self.0.checked_sub(1).ok_or(ReductionFailed)?;
        Ok(())
    }
}

fn all_name_the_rank_that_failed_first() {
    // Two calls of the function for each of five chunks. Which ranks fail after how many, and
    // whom all of them name: who failed in the earliest chunk, of several the lowest.
    let cases = [
        ([0, 99, 99], 0),
        ([99, 99, 9], 2),
        ([99, 9, 8], 1),
        ([99, 4, 5], 1),
        ([6, 5, 99], 1),
        ([99, 99, 1], 2),
    ];
    job(3, |rt, _| {
        let me = rt.rank().index();
        for (fails_after, named) in cases {
            let mut data = vec![0; 5 * 2048];
            let mut function = FailsAfter(fails_after[me]);
            let result = user_reduce(rt, &mut data, 8, &mut function, me == 0);
            let rank = Rank(named);
            assert_eq!(result, Err(Error::Reduction { rank }), "{fails_after:?}");
            // The next call on the same group is not disturbed.
            user_reduce(rt, &mut data[..16], 8, &mut FailsAfter(99), false).unwrap();
        }
    });
}

fn long_calls_are_carried_out_piece_by_piece() {
    // Four members slice at most 32 MiB by one plan.
    let count = (4 << 20) + 200_000;
    let of = |rank: usize, i: usize| (i as u64).wrapping_mul(2 * rank as u64 + 3);
    job_with(count as u32, 4, |rt, meet| {
        let me = rt.rank().index();
        let mut data: Vec<u64> = (0..count).map(|i| of(me, i)).collect();
        let mut sum =
            |timeout| allreduce_in_place(rt, &mut data, Operation::Sum, GroupId::ALL, timeout);
        if me == 1 {
            assert!(sum(Timeout::Test).unwrap_err().is_timeout(), "nobody else has come");
        }
        meet.wait();
        let timeout = if me == 1 { Timeout::Test } else { GUARD };
        loop {
            match sum(timeout) {
                Err(error) if error.is_timeout() => std::thread::yield_now(),
                result => break result.unwrap(),
            }
        }
        let expected = |i| (0..4).fold(0, |sum: u64, rank| sum.wrapping_add(of(rank, i)));
        assert!(data.iter().enumerate().all(|(i, value)| *value == expected(i)));
    });
}

fn a_rank_that_left_ends_the_calls_that_need_it() {
    job(3, |rt, _| {
        let mut data = [1_i64; 100];
        let (op, group) = (Operation::Sum, GroupId::ALL);
        allreduce_in_place(rt, &mut data, op, group, GUARD).unwrap();
        if rt.rank().0 == 2 {
            rt.term(GUARD).unwrap();
            return;
        }
        let result = allreduce_in_place(rt, &mut data, op, group, GUARD);
        assert!(
            matches!(result, Err(Error::RankLeft { rank: Rank(2), .. })),
            "a rank that left is named: {result:?}"
        );
        let rest = rt.group_create().unwrap();
        rt.group_add(rest, Rank(0)).unwrap();
        rt.group_add(rest, Rank(1)).unwrap();
        rt.group_commit(rest, GUARD).unwrap();
        allreduce_in_place(rt, &mut data, op, rest, GUARD).unwrap();
        assert_eq!(data, [6; 100]);
    });
}

/// A member gives a group up after it has arrived, and uses the id for others: what it publishes
/// there lies where those that still wait in the first group read.
fn data_of_another_group_is_no_result() {
    let reused = Barrier::new(2);
    job(4, |rt, meet| {
        for count in [1, 100] {
            let (op, me) = (Operation::Sum, rt.rank().0);
            let commit = |ranks: &[u16]| {
                let group = rt.group_create().unwrap();
                ranks.iter().for_each(|rank| rt.group_add(group, Rank(*rank)).unwrap());
                rt.group_commit(group, GUARD).unwrap();
                group
            };
            let mut data = vec![1; count];
            if me < 3 {
                let group = commit(&[0, 1, 2]);
                assert_eq!(group, GroupId(1));
                if me == 0 {
                    // Rank 1 counts it meanwhile.
                    let wait = Timeout::Millis(300);
                    let error = allreduce_in_place(rt, &mut data, op, group, wait).unwrap_err();
                    assert!(error.is_timeout(), "{error}");
                    rt.group_delete(group).unwrap();
                } else {
                    if me == 2 {
                        reused.wait();
                    }
                    let result = allreduce_in_place(rt, &mut data, op, group, GUARD);
                    let is_told = matches!(result, Err(Error::Mismatch { .. }));
                    assert!(is_told, "rank {me}: {result:?} {data:?}");
                    rt.group_delete(group).unwrap();
                }
            }
            if [0, 3].contains(&me) {
                let group = commit(&[0, 3]);
                assert_eq!(group, GroupId(1));
                let mut data = vec![1000; count];
                allreduce_in_place(rt, &mut data, op, group, GUARD).unwrap();
                assert_eq!(data, vec![2000; count]);
                if me == 0 {
                    reused.wait();
                }
                rt.group_delete(group).unwrap();
            }
            meet.wait();
        }
    });
}

tests! {
    DEVICES:
        sums_are_those_in_the_order_of_the_ranks,
        thousands_of_small_calls_stay_in_step,
        a_call_that_timed_out_continues_and_nothing_else_does,
        ranks_that_disagree_are_all_told_in_what,
        a_barrier_against_an_allreduce_is_named,
        averages_are_divided_once,
        arguments_are_checked_first,
        functions_of_the_caller_work_or_fail_together,
        a_function_is_applied_in_the_order_of_the_ranks,
        all_name_the_rank_that_failed_first,
        long_calls_are_carried_out_piece_by_piece,
        a_rank_that_left_ends_the_calls_that_need_it;
    SHM:
        data_of_another_group_is_no_result,
        so_many_ranks_that_one_pass_does_not_combine_them_all;
    SEVERAL:
        sums_are_those_in_the_order_of_the_ranks,
        averages_are_divided_once,
        a_function_is_applied_in_the_order_of_the_ranks;
}
