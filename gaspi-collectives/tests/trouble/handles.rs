//! Handles of operations: started, tested, waited for and freed by many, and misused.

use super::{ALL, Memory, call, check_sum, ranks, ranks_below, sum_of_all};
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::handles::{
    Handle, free, prepare, restart, start, start_broadcast_list, test, wait,
};
use gaspi_collectives::{BroadcastList, DataType, Piece, Request};
use gaspi_core::{Error, Rank, Runtime, State, Timeout};
use std::sync::Barrier;

fn prepared(rt: &Runtime, request: &Request) -> Handle {
    // SAFETY: the tests keep buffers until the handle is free, or the job has ended.
    unsafe { prepare(rt, ALL, request, ranks::LIMIT) }.expect("prepare")
}

fn started(rt: &Runtime, request: &Request) -> Handle {
    // SAFETY: the tests keep buffers until the handle is free, or the job has ended.
    unsafe { start(rt, ALL, request, ranks::LIMIT) }.expect("start")
}

fn is_misuse<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::InvalidOperation { .. }))
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("descriptors").count()
}

fn many_prepared_operations_run_thousands_of_times() {
    const MANY: usize = 50;
    let meet = Barrier::new(2);
    ranks::run(2, |rt| {
        let mut all: Vec<Memory> = (0..MANY).map(|n| Memory::new(rt.rank(), 1 + n * 40)).collect();
        let handles: Vec<Handle> = all
            .iter_mut()
            .map(|memory| {
                let count = memory.input.len() as u64;
                prepared(rt, &memory.request(Collective::Allreduce, count))
            })
            .collect();
        let mut before = (0, 0);
        for round in 0..60 {
            if round == 10 {
                meet.wait();
                before = (resident_kib(), descriptors());
                meet.wait();
            }
            for turn in 0..MANY {
                // In another order on each rank.
                let index = (turn * 7 + usize::from(rt.rank().0) * 11 + round) % MANY;
                restart(rt, handles[index]).expect("restart");
            }
            for handle in &handles {
                wait(rt, *handle, ranks::LIMIT).expect("wait");
            }
        }
        meet.wait();
        let after = (resident_kib(), descriptors());
        // Other tests run in this process at the same time: what 5000 operations would leave shows.
        assert!(after.0 < before.0 + (400 << 10), "memory of {before:?} has become {after:?}");
        for memory in &all {
            check_sum(&memory.output, &[Rank(0), Rank(1)]);
        }
        for handle in handles {
            free(rt, handle).expect("free");
        }
    });
}

fn prepared_operations_give_back_what_they_take() {
    // All of them together would not fit into the memory of channels.
    ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), 64);
        let request = memory.request(Collective::Allreduce, 64);
        for _ in 0..700 {
            let handle = prepared(rt, &request);
            restart(rt, handle).expect("restart");
            wait(rt, handle, ranks::LIMIT).expect("wait");
            free(rt, handle).expect("free");
        }
    });
}

fn what_is_under_way_cannot_be_freed_or_started_again() {
    let meet = Barrier::new(2);
    ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), 100);
        let request = memory.request(Collective::Allreduce, 100);
        let handle = prepared(rt, &request);
        assert_eq!(test(rt, handle), Ok(true), "it is not under way");
        wait(rt, handle, Timeout::Test).expect("it is not under way");
        if rt.rank() == Rank(0) {
            restart(rt, handle).expect("restart");
            assert!(is_misuse(&restart(rt, handle)));
            assert!(is_misuse(&free(rt, handle)));
            assert_eq!(test(rt, handle), Ok(false));
        }
        meet.wait();
        if rt.rank() == Rank(1) {
            restart(rt, handle).expect("restart");
        }
        wait(rt, handle, ranks::LIMIT).expect("wait");
        check_sum(&memory.output, &[Rank(0), Rank(1)]);
        free(rt, handle).expect("free");
        for gone in [handle, Handle(0), Handle(u64::MAX), Handle(handle.0 + (1 << 32))] {
            assert!(is_misuse(&restart(rt, gone)), "{gone:?}");
            assert!(is_misuse(&free(rt, gone)), "{gone:?}");
            assert!(is_misuse(&test(rt, gone)), "{gone:?}");
            assert!(is_misuse(&wait(rt, gone, Timeout::Test)), "{gone:?}");
        }
        let once = started(rt, &request);
        assert!(is_misuse(&restart(rt, once)), "it runs once");
        wait(rt, once, ranks::LIMIT).expect("wait");
        assert!(is_misuse(&wait(rt, once, ranks::LIMIT)), "its handle is free");
    });
}

fn whoever_frees_early_is_found_out() {
    ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), 100);
        let handle = prepared(rt, &memory.request(Collective::Allreduce, 100));
        if rt.rank() == Rank(0) {
            free(rt, handle).expect("free");
        } else {
            restart(rt, handle).expect("restart");
            let outcome = wait(rt, handle, Timeout::Block);
            let Err(Error::Refused { rank, reason }) = outcome else { panic!("{outcome:?}") };
            assert!(rank == Rank(0) && reason.contains("freed"), "{rank}: {reason}");
            assert_eq!(rt.state(Rank(0)), Ok(State::Corrupt));
        }
        sum_of_all(rt, ALL, 10);
    });
}

/// The failure of an operation that the program asks for no more says nothing of a member.
fn what_nobody_asks_for_makes_nobody_corrupt() {
    let meet = Barrier::new(2);
    ranks::run(2, |rt| {
        let (mut one, mut two) = (Memory::new(rt.rank(), 100), Memory::new(rt.rank(), 10));
        let given_up = prepared(rt, &one.request(Collective::Allreduce, 100));
        let other = prepared(rt, &two.request(Collective::Allreduce, 10));
        if rt.rank() == Rank(1) {
            free(rt, given_up).expect("free");
            meet.wait();
            restart(rt, other).expect("restart");
        } else {
            restart(rt, given_up).expect("restart");
            restart(rt, other).expect("restart");
            // It fails while this thread waits for the other one.
            while free(rt, given_up).is_err() {
                let outcome = wait(rt, other, Timeout::Millis(20));
                assert!(outcome.as_ref().is_err_and(Error::is_timeout), "{outcome:?}");
            }
            assert_eq!(rt.state(Rank(1)), Ok(State::Healthy));
            meet.wait();
        }
        wait(rt, other, ranks::LIMIT).expect("wait");
        free(rt, other).expect("free");
    });
}

fn several_threads_wait_for_one_operation() {
    const THREADS: usize = 4;
    ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), 20_000);
        let handle = prepared(rt, &memory.request(Collective::Allreduce, 20_000));
        for _ in 0..50 {
            let begun = Barrier::new(THREADS);
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|_| {
                        scope.spawn(|| {
                            begun.wait();
                            // All but one come too late, unless it is over and starts again.
                            restart(rt, handle).is_ok()
                        })
                    })
                    .collect();
                let begun = threads.into_iter().filter_map(|thread| thread.join().ok());
                assert_eq!(begun.filter(|begun| *begun).count(), 1, "one of them starts it");
            });
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| wait(rt, handle, ranks::LIMIT).expect("wait"));
                }
            });
            check_sum(&memory.output, &[Rank(0), Rank(1)]);
        }
        free(rt, handle).expect("free");
    });
}

fn threads_mix_all_kinds() {
    ranks::run(3, |rt| {
        let members: Vec<Rank> = ranks_below(3).collect();
        let mut all: Vec<Memory> = (0..4).map(|_| Memory::new(rt.rank(), 3000)).collect();
        let handles: Vec<Handle> = all
            .iter_mut()
            .enumerate()
            .map(|(index, memory)| {
                let mut request = memory.request(Collective::Allreduce, 3000);
                request.background = index % 2 == 0;
                prepared(rt, &request)
            })
            .collect();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..100).for_each(|round| sum_of_all(rt, ALL, 1 + round * 30)));
            for handle in &handles {
                scope.spawn(move || {
                    for round in 0..100 {
                        restart(rt, *handle).expect("restart");
                        if (round + usize::from(rt.rank().0)) % 3 == 0 {
                            while !test(rt, *handle).expect("test") {
                                std::thread::yield_now();
                            }
                        } else {
                            wait(rt, *handle, ranks::LIMIT).expect("wait");
                        }
                    }
                });
            }
        });
        all.iter().for_each(|memory| check_sum(&memory.output, &members));
        handles.into_iter().for_each(|handle| free(rt, handle).expect("free"));
    });
}

fn two_groups_at_once_and_threads_that_open_them() {
    ranks::run(4, |rt| {
        // The same ids everywhere, of which some ranks use one.
        let groups = [0..3, 1..4].map(|members: std::ops::Range<u16>| {
            let group = rt.group_create().expect("group_create");
            let own = members.contains(&rt.rank().0);
            for rank in members.filter(|_| own) {
                rt.group_add(group, Rank(rank)).expect("group_add");
            }
            own.then(|| {
                rt.group_commit(group, ranks::LIMIT).expect("group_commit");
                group
            })
        });
        std::thread::scope(|scope| {
            for group in groups.into_iter().flatten() {
                scope.spawn(move || (0..60).for_each(|round| sum_of_all(rt, group, round * 90)));
            }
            // The first operations of a group, by two threads: one of them opens its channel.
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut memory = Memory::new(rt.rank(), 10);
                    let handle = started(rt, &memory.request(Collective::Allreduce, 10));
                    wait(rt, handle, ranks::LIMIT).expect("wait");
                    check_sum(&memory.output, &ranks_below(4).collect::<Vec<_>>());
                });
            }
        });
    });
}

fn a_thread_that_opens_a_channel_carries_on_what_was_started() {
    ranks::run(2, |rt| {
        sum_of_all(rt, ALL, 1);
        let (mut one, mut two) = (Memory::new(rt.rank(), 50_000), Memory::new(rt.rank(), 10));
        let mut request = one.request(Collective::Allreduce, 50_000);
        request.algorithm = Some(gaspi_collectives::algorithms::Algorithm::RecursiveDoubling);
        let begun = started(rt, &request);
        if rt.rank() == Rank(1) {
            // The other one is in prepare meanwhile, or comes to it.
            wait(rt, begun, ranks::LIMIT).expect("wait");
        }
        let handle = prepared(rt, &two.request(Collective::Allreduce, 10));
        if rt.rank() == Rank(0) {
            wait(rt, begun, ranks::LIMIT).expect("wait");
        }
        check_sum(&one.output, &[Rank(0), Rank(1)]);
        free(rt, handle).expect("free");
        call(rt, ALL, &two.request(Collective::Barrier, 0), ranks::LIMIT).expect("barrier");
    });
}

/// One is under way until all its parts have ended.
fn a_list_of_which_parts_are_under_way_is_not_freed() {
    let meet = Barrier::new(2);
    ranks::run(2, |rt| {
        // Opens the channel, which holds less than all of it.
        sum_of_all(rt, ALL, 3);
        let mut memory = vec![vec![1_u8; 64 << 10]; 200];
        let pieces = memory.iter_mut().map(|memory| {
            let count = memory.len() as u64;
            Piece { data: memory.as_mut_ptr(), count, ty: DataType::U8 }
        });
        let (pieces, algorithm) = (pieces.collect(), Some(Algorithm::BinomialTree));
        let (root, background) = (Rank(0), false);
        let list = BroadcastList { pieces, root, algorithm, mode: None, background };
        if rt.rank() == Rank(1) {
            meet.wait();
        }
        // SAFETY: the pieces live until it has ended.
        let handle = unsafe { start_broadcast_list(rt, ALL, &list, ranks::LIMIT) }.expect("start");
        if rt.rank() == Rank(0) {
            // The first part needs nobody.
            for _ in 0..3 {
                assert!(!test(rt, handle).expect("test"));
            }
            let freed = free(rt, handle);
            assert!(is_misuse(&freed), "{freed:?}");
            meet.wait();
        }
        wait(rt, handle, ranks::LIMIT).expect("wait");
    });
}

tests! {
    DEVICES:
        a_list_of_which_parts_are_under_way_is_not_freed,
        many_prepared_operations_run_thousands_of_times,
        prepared_operations_give_back_what_they_take,
        what_is_under_way_cannot_be_freed_or_started_again,
        whoever_frees_early_is_found_out,
        what_nobody_asks_for_makes_nobody_corrupt,
        several_threads_wait_for_one_operation,
        threads_mix_all_kinds,
        two_groups_at_once_and_threads_that_open_them,
        a_thread_that_opens_a_channel_carries_on_what_was_started;
}
