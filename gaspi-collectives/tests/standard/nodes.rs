//! All-reduces of the standard in groups of nodes with one rank, with some, and with uneven
//! numbers: how many messages they take, and that their bits and errors are those of one node.

use super::ranks::{self, Tries, run_jobs};
use super::*;
use gaspi_core::knomial_tree::KnomialTree;
use gaspi_core::{Job, State};

/// What the standard takes by default.
const COUNT: usize = 255;

/// A job of nodes with so many ranks each, whose numbers are scattered over the nodes.
pub(super) fn job_of(nodes: u32, id: &str, rank: Rank, size: u32) -> Job {
    Job::in_process(id, rank, size).on_node(u64::from(u32::from(rank.0) % nodes))
}

/// Runs `body` on the ranks of such a job.
fn with_ranks(nodes: u32, size: u32, body: impl Fn(Runtime) + Sync) {
    let job = |id: &str, rank| job_of(nodes, id, rank, size);
    run_jobs(size, &Config::default(), job, body);
}

pub(super) fn messages(rt: &Runtime) -> u64 {
    let is_it = |number: &u32| {
        Runtime::statistic_info(*number).expect("one").name == "NumberOfGroupMessages"
    };
    let number = (0..rt.statistic_num()).find(is_it).expect("a counter of that name");
    rt.statistic_get(number, 0).expect("counter")
}

/// Messages by rank for a call, of the first try in which they are `few`: ranks that are late, on a
/// busy machine, have all send to all.
fn counted(
    (nodes, size): (u32, u32),
    few: impl Fn(&[u64]) -> bool + Sync,
    call: impl Fn(&Runtime) + Sync,
) -> Vec<u64> {
    const CALLS: u64 = 5;
    let job = |id: &str, rank| job_of(nodes, id, rank, size);
    let tries = Tries::new(size);
    run_jobs(size, &Config::default(), job, |rt| {
        let counts = || {
            let before = messages(&rt);
            (0..CALLS).for_each(|_| call(&rt));
            (messages(&rt) - before).div_ceil(CALLS)
        };
        while !tries.are_over(rt.rank(), counts(), &few) {}
        rt.term(GUARD).expect("term");
    });
    tries.counts()
}

/// Whether messages of a call of so many steps go by the first members of nodes.
fn are_few(nodes: u32, steps: u64, found: &[u64]) -> bool {
    let (leaders, others) = found.split_at(nodes as usize);
    let rounds = u64::from(nodes.next_power_of_two().trailing_zeros());
    let of_root = KnomialTree::of(nodes as usize).children(0).count() as u64;
    let all: u64 = leaders.iter().sum();
    // What is sent behind a call may count for the next.
    others.iter().all(|count| *count == 0)
        && leaders.iter().all(|count| *count <= steps * rounds.max(of_root) + 1)
        && all <= steps * u64::from(nodes) * rounds.max(2)
        && all > 0
}

fn assert_few((nodes, size): (u32, u32), steps: u64, what: &str, call: impl Fn(&Runtime) + Sync) {
    let found = counted((nodes, size), |found| are_few(nodes, steps, found), call);
    assert!(are_few(nodes, steps, &found), "{what} of {nodes} nodes: {found:?}");
}

fn first_members_of_nodes_send_few_messages_and_others_none() {
    for (nodes, each) in [(24, 1), (8, 1), (5, 2), (8, 2), (4, 5), (2, 3)] {
        let size = nodes * each;
        let sum = |rt: &Runtime| {
            let mut data = [1.0_f64; COUNT];
            allreduce_in_place(rt, &mut data, Operation::Sum, GroupId::ALL, GUARD).expect("sum");
        };
        assert_few((nodes, size), 1, "an all-reduce", sum);
        let by_function = |rt: &Runtime| user_sum(rt, &mut [1; COUNT], false).expect("a sum");
        // A second step says whether the function has failed on a rank.
        assert_few((nodes, size), 2, "one by a function", by_function);
    }
}

/// Of data that goes along with an arrival.
fn short_sums_over_64_nodes_take_few_messages() {
    const NODES: u32 = 64;
    let is_full = std::env::var_os("GASPI_TEST_FULL").is_some();
    for each in if is_full { vec![1, 2, 5] } else { vec![1] } {
        let sum = |rt: &Runtime| {
            let mut data = [1.0_f64; 1];
            allreduce_in_place(rt, &mut data, Operation::Sum, GroupId::ALL, GUARD).expect("sum");
            assert_eq!(data, [f64::from(NODES * each)]);
        };
        assert_few((NODES, NODES * each), 1, "a short all-reduce", sum);
    }
}

/// More ranks than groups have room for as long data of, but for that of all.
fn many_ranks_of_as_many_nodes_send_few_messages() {
    const MANY: u32 = 72;
    let sum = |rt: &Runtime| {
        let mut data = [1.0_f64; COUNT];
        allreduce_in_place(rt, &mut data, Operation::Sum, GroupId::ALL, GUARD).expect("sum");
        assert_eq!(data, [f64::from(MANY); COUNT]);
    };
    // Who waits for long passes on the arrivals of others, but a leaf of their tree its own only.
    let rounds = u64::from(MANY.next_power_of_two().trailing_zeros());
    let few = |found: &[u64]| {
        let few = found.iter().filter(|count| (rounds..2 * rounds).contains(count)).count();
        few >= found.len() / 2
    };
    let found = counted((MANY, MANY), few, sum);
    assert!(few(&found), "{found:?}, where one to each of the others is {}", MANY - 1);
}

/// Shorter and longer than what leaders carry, by sums whose bits depend on the order.
fn sums_are_added_in_the_order_of_the_ranks() {
    for (nodes, size) in [(7, 7), (12, 12), (5, 10), (4, 20), (3, 8), (72, 72)] {
        with_ranks(nodes, size, |rt| {
            for (call, count) in [1, 7, 64, 128, COUNT, 33, COUNT, 2].into_iter().enumerate() {
                let mut data = input(rt.rank(), count, call);
                // One rank after the other is impatient.
                let timeout = if rt.rank().index() == call { Timeout::Test } else { GUARD };
                let group = GroupId::ALL;
                while let Err(error) =
                    allreduce_in_place(&rt, &mut data, Operation::Sum, group, timeout)
                {
                    assert!(error.is_timeout(), "{error}");
                    std::thread::yield_now();
                }
                assert_eq!(data, expected(size, count, call), "{count} of {size}");
            }
            rt.term(GUARD).expect("term");
        });
    }
}

/// A function that does not commute, and one that fails on one rank after the other.
fn functions_are_applied_in_the_order_of_the_ranks() {
    let maps = |rank: u16| -> Vec<u64> {
        (0..COUNT as u64 - 1).map(|i| (i + 3).wrapping_mul(u64::from(rank) + 2)).collect()
    };
    for (nodes, size) in [(6, 6), (5, 10), (2, 7)] {
        with_ranks(nodes, size, |rt| {
            let mut function = |one: &[u8], two: &[u8], result: &mut [u8]| {
                assert_eq!((one.as_ptr() as usize | two.as_ptr() as usize) % 16, 0, "aligned");
                let words = |bytes: &[u8]| -> Vec<u64> {
                    bytes
                        .chunks(8)
                        .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
                        .collect()
                };
                let combined = compose(&words(one), &words(two));
                result.chunks_mut(8).zip(combined).for_each(|(to, word)| {
                    to.copy_from_slice(&word.to_ne_bytes());
                });
                Ok(())
            };
            let me = rt.rank().0;
            for turn in 0..size as u16 {
                let mut data = maps(me);
                user_reduce(&rt, &mut data, 16, &mut function, me == turn).expect("composed");
                let all = (1..size as u16).fold(maps(0), |one, rank| compose(&one, &maps(rank)));
                assert_eq!(data, all, "of {size}");
                let failed = user_sum(&rt, &mut [1; COUNT], me == turn);
                assert_eq!(failed, Err(Error::Reduction { rank: Rank(turn) }));
            }
            rt.term(GUARD).expect("term");
        });
    }
}

/// Whoever it is, a leader or not: all are told both lengths, and nobody has changed anything.
fn other_lengths_are_named_on_all_ranks() {
    for (nodes, size) in [(6, 6), (5, 10), (2, 7)] {
        for odd in 0..size as usize {
            with_ranks(nodes, size, |rt| {
                // Those of a single word take another way.
                let other = if odd % 2 == 0 { 1 } else { COUNT - 1 };
                let count = if rt.rank().index() == odd { other } else { COUNT };
                let mut data = vec![1.0_f64; count];
                let summed =
                    allreduce_in_place(&rt, &mut data, Operation::Sum, GroupId::ALL, GUARD);
                let Err(Error::Mismatch { difference, .. }) = summed else { panic!("{summed:?}") };
                for words in ["255 x f64", &format!(" of {other} x f64"), &format!("rank {odd} ")] {
                    assert!(difference.contains(words), "{difference}");
                }
                assert_eq!(data, vec![1.0; count]);
                rt.term(GUARD).expect("term");
            });
        }
    }
}

/// Before it calls, after it has arrived, or after so many calls, by its number.
fn a_rank_that_dies_is_named_and_the_others_go_on() {
    for (nodes, size) in [(6_u32, 6_u32), (3, 6), (2, 5)] {
        for dead in 0..size as u16 {
            let ready = ranks::Barrier::new(size as usize);
            with_ranks(nodes, size, |rt| {
                // All have joined.
                ready.wait();
                let me = rt.rank().0;
                let sum = |call: usize, group, timeout| {
                    let mut data = input(rt.rank(), COUNT, call);
                    let summed = allreduce_in_place(&rt, &mut data, Operation::Sum, group, timeout);
                    summed.map(|()| data)
                };
                let calls = usize::from(dead) % 3;
                for call in 0..calls {
                    assert_eq!(sum(call, GroupId::ALL, GUARD), Ok(expected(size, COUNT, call)));
                }
                // A death also ends a call that the dead has left, where others are still in it.
                ready.wait();
                if me == dead {
                    if dead % 2 == 0 {
                        let tried = sum(calls, GroupId::ALL, Timeout::Test);
                        assert!(tried.is_ok() || tried.is_err_and(|error| error.is_timeout()));
                    }
                    return ranks::die(rt);
                }
                match sum(calls, GroupId::ALL, GUARD) {
                    Ok(data) => {
                        assert_eq!(dead % 2, 0, "it has not called");
                        assert_eq!(data, expected(size, COUNT, calls));
                    }
                    Err(Error::RankDied { rank, .. }) => assert_eq!(rank, Rank(dead)),
                    Err(error) => panic!("{error}"),
                }
                while rt.state(Rank(dead)) != Ok(State::Corrupt) {
                    std::thread::yield_now();
                }
                let group = rt.group_create().expect("group");
                let living = || (0..size as u16).filter(|rank| *rank != dead);
                living().for_each(|rank| rt.group_add(group, Rank(rank)).expect("add"));
                rt.group_commit(group, GUARD).expect("the others commit");
                let mut all = living().map(|rank| input(Rank(rank), COUNT, 9));
                let first = all.next().expect("one lives");
                let all = all.fold(first, |mut sum, more| {
                    sum.iter_mut().zip(more).for_each(|(sum, value)| *sum += value);
                    sum
                });
                assert_eq!(sum(9, group, GUARD), Ok(all));
                rt.barrier(group, GUARD).expect("barrier");
            });
        }
    }
}

tests! {
    TCP:
        first_members_of_nodes_send_few_messages_and_others_none,
        short_sums_over_64_nodes_take_few_messages,
        many_ranks_of_as_many_nodes_send_few_messages,
        sums_are_added_in_the_order_of_the_ranks,
        functions_are_applied_in_the_order_of_the_ranks,
        other_lengths_are_named_on_all_ranks,
        a_rank_that_dies_is_named_and_the_others_go_on;
}
