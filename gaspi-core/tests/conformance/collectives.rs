//! Barrier, and the steps that collectives are built on (GASPI 17.1, 11).

use super::*;
use gaspi_core::sync::arrival_slot::PAYLOAD_WORDS;
use ranks::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

fn describe(signature: u64) -> String {
    format!("test call {signature}")
}

fn key(arguments: u64, signature: u64) -> CallKey {
    CallKey { kind: CallKind::Allreduce, arguments, signature, describe }
}

fn nobody_passes_a_barrier_before_all_have_come() {
    for size in ranks::sizes(&SIZES) {
        let arrived = AtomicU32::new(0);
        run(size, |rt| {
            for round in 1..=50 {
                arrived.fetch_add(1, Ordering::SeqCst);
                meet(rt);
                assert!(arrived.load(Ordering::SeqCst) >= round * size);
            }
        });
    }
}

fn a_barrier_that_timed_out_continues() {
    for size in ranks::sizes(&[3]) {
        let (last, late) = (Rank(size as u16 - 1), Barrier::new(size as usize));
        run(size, |rt| {
            if rt.rank() != last {
                let error = within(AT_ONCE, "TEST", || rt.barrier(GroupId::ALL, Timeout::Test));
                assert!(error.expect_err("one waits").is_timeout());
                // It alone is certain to be missing after the others had their time.
                let error = rt.barrier(GroupId::ALL, Timeout::Millis(50)).expect_err("one waits");
                assert!(error.is_timeout(), "{error}");
                let named = error.to_string().contains(&last.0.to_string());
                assert!(named || size > 3, "{error}");
            }
            late.wait();
            rt.barrier(GroupId::ALL, LIMIT).expect("continued");
            meet(rt);
        });
    }
}

fn one_collective_is_active_per_group() {
    let late = Barrier::new(2);
    run(2, |rt| {
        if rt.rank() == Rank(0) {
            fails!(rt.barrier(GroupId::ALL, Timeout::Test), Error::Timeout { .. });
            let create = rt.segment_create(S0, 8, GroupId::ALL, LIMIT, Init::Zeroed);
            fails!(create, Error::ActiveCollective { .. });
            fails!(rt.group_commit(GroupId::ALL, LIMIT), Error::ActiveCollective { .. });
            fails!(rt.group_call(GroupId::ALL, key(1, 2)), Error::ActiveCollective { .. });
            assert_eq!(rt.segment_num(), 0);
        }
        late.wait();
        rt.barrier(GroupId::ALL, LIMIT).expect("the barrier continues");
        make(rt, S0, 8);
    });
}

fn a_continued_call_has_to_have_the_same_arguments() {
    let late = Barrier::new(2);
    run(2, |rt| {
        if rt.rank() == Rank(0) {
            let create =
                |size| rt.segment_create(S0, size, GroupId::ALL, Timeout::Millis(30), Init::Zeroed);
            fails!(create(64), Error::Timeout { .. });
            fails!(create(128), Error::ActiveCollective { .. });
            fails!(rt.barrier(GroupId::ALL, Timeout::Test), Error::ActiveCollective { .. });
        }
        late.wait();
        let size = if rt.rank() == Rank(0) { 64 } else { 32 };
        rt.segment_create(S0, size, GroupId::ALL, LIMIT, Init::Zeroed).expect("continued");
        assert_eq!(rt.segment_size(S0, Rank(0)), Ok(64));
        assert_eq!(rt.segment_size(S0, Rank(1)), Ok(32));
        meet(rt);
    });
}

fn a_second_thread_is_told_that_the_group_is_busy() {
    let (inside, tried) = (Barrier::new(2), Barrier::new(2));
    run(2, |rt| {
        if rt.rank() == Rank(1) {
            tried.wait();
            return meet(rt);
        }
        ranks::scope(|scope| {
            scope.spawn(|| {
                inside.wait();
                // Until it is in, the other thread's look may be what keeps it out.
                while let Err(error) = rt.barrier(GroupId::ALL, LIMIT) {
                    assert!(matches!(error, Error::ActiveCollective { .. }), "{error}");
                }
            });
            inside.wait();
            loop {
                match rt.group_call(GroupId::ALL, key(5, 5)) {
                    Err(Error::ActiveCollective { .. }) => break,
                    Ok(call) => call.finish(),
                    Err(error) => panic!("{error}"),
                }
            }
            tried.wait();
        });
    });
}

fn threads_use_different_groups_at_once() {
    run(2, |rt| {
        let groups: Vec<GroupId> = (0..4)
            .map(|_| {
                let group = rt.group_create().expect("create");
                all(rt).for_each(|rank| rt.group_add(group, rank).expect("add"));
                rt.group_commit(group, LIMIT).expect("commit");
                group
            })
            .collect();
        ranks::scope(|scope| {
            for group in groups {
                scope.spawn(move || {
                    for _ in 0..200 {
                        rt.barrier(group, LIMIT).expect("barrier");
                    }
                });
            }
        });
    });
}

fn lines_and_stages_carry_the_payload_of_their_step() {
    for size in ranks::sizes(&SIZES) {
        run(size, |rt| {
            let me = rt.rank().0;
            let mut call = rt.group_call(GroupId::ALL, key(1, 7)).expect("call");
            assert_eq!((call.ranks().len(), call.me()), (size as usize, me.into()));
            let words = |rank: u16, step: u64| -> Vec<u64> {
                let count = step as usize % (PAYLOAD_WORDS + 1);
                (0..count as u64).map(|at| at << 32 | u64::from(rank) << 8 | step).collect()
            };
            for step in 0..60 {
                // Long ones are sent to all, short ones are told by leaders where there are any.
                let bytes = [STAGE_BYTES, 0, 1, 500, 64][step as usize % 5];
                let stage = call.stage(call.me(), call.step() + 1);
                assert_eq!((stage.len(), stage.as_ptr() as usize % 64), (STAGE_BYTES, 0));
                // SAFETY: this rank's stage of the step to come, which nobody else touches.
                unsafe { stage.as_ptr().write_bytes(me as u8 ^ step as u8, bytes) };
                call.stage_used(bytes, step % 7 < 5);
                call.arrive(&words(me, step));
                assert_eq!(call.arrived(), call.step() + 1);
                call.await_all(LIMIT.deadline()).expect("all come");
                for rank in 0..size as u16 {
                    let sent = words(rank, step);
                    let received = call.payload(rank.into(), call.step());
                    assert_eq!(received[..sent.len()], sent);
                    let carried = call.carried(rank.into(), call.step());
                    let read = |at: usize| {
                        // SAFETY: published by the arrival just awaited.
                        unsafe { carried.as_ptr().cast::<u64>().add(at).read() }
                    };
                    assert!(carried.len() >= size_of_val(&sent[..]));
                    assert!((0..sent.len()).map(read).eq(sent.iter().copied()));
                    let theirs = call.stage(rank.into(), call.step());
                    assert!(theirs.len() >= bytes);
                    for at in [0, bytes / 2, bytes.saturating_sub(1)].into_iter().take(bytes) {
                        // SAFETY: published by the arrival just awaited.
                        let byte = unsafe { theirs.as_ptr().add(at).read() };
                        assert_eq!(byte, rank as u8 ^ step as u8);
                    }
                }
            }
            call.finish();
            meet(rt);
        });
    }
}

fn a_call_keeps_its_cursor_over_a_timeout() {
    for size in ranks::sizes(&[2]) {
        let late = Barrier::new(size as usize);
        run(size, |rt| {
            let mut call = rt.group_call(GroupId::ALL, key(3, 7)).expect("call");
            assert_eq!(call.cursor(), 0);
            let is_first = rt.rank() == Rank(0);
            if is_first {
                call.set_cursor(41);
                call.arrive(&[1]);
                assert!(call.await_all(Deadline::Now).expect_err("rank 1 waits").is_timeout());
                drop(call);
                fails!(rt.group_call(GroupId::ALL, key(4, 7)), Error::ActiveCollective { .. });
                fails!(rt.group_call(GroupId::ALL, key(3, 8)), Error::ActiveCollective { .. });
                call = rt.group_call(GroupId::ALL, key(3, 7)).expect("the same call");
                assert_eq!(call.cursor(), 41);
            }
            late.wait();
            call.arrive(&[if is_first { 2 } else { 1 }]);
            call.await_all(LIMIT.deadline()).expect("all come");
            // What arrived first counts, not what the continuation says.
            let first = |member: u32| call.payload(member as usize, call.step())[0];
            assert!((0..size).all(|member| first(member) == 1));
            call.finish();
            meet(rt);
        });
    }
}

/// A call with another signature on one rank than on the others.
fn expect_mismatch(rt: &Runtime, odd: u32) {
    let signature = if u32::from(rt.rank().0) == odd { 33 } else { 44 };
    let mut call = rt.group_call(GroupId::ALL, key(0, signature)).expect("call");
    call.arrive(&[]);
    match call.await_all(LIMIT.deadline()) {
        Err(Error::Mismatch { difference, .. }) => {
            let named = difference.contains(&format!("rank {odd}"));
            let texts = ["test call 33", "test call 44"];
            let both = texts.iter().all(|text| difference.contains(text));
            assert!(named && both, "{difference}");
        }
        other => panic!("{other:?}"),
    }
    call.finish();
}

fn a_mismatch_is_an_error_on_all_that_names_ranks_and_difference() {
    for size in ranks::sizes(&[2, 3, 5, 8]) {
        let failed = Barrier::new(size as usize);
        run(size, |rt| {
            for odd in 0..size {
                expect_mismatch(rt, odd);
                failed.wait();
                meet(rt);
                failed.wait();
            }
        });
    }
}

fn a_barrier_of_all_but_one_is_an_error_on_all() {
    for size in ranks::sizes(&[2, 3, 5, 8]) {
        let failed = Barrier::new(size as usize);
        run(size, |rt| {
            for odd in 0..size {
                let outcome = if u32::from(rt.rank().0) == odd {
                    let mut call = rt.group_call(GroupId::ALL, key(0, 33)).expect("call");
                    call.arrive(&[]);
                    call.await_all(LIMIT.deadline())
                } else {
                    rt.barrier(GroupId::ALL, LIMIT)
                };
                match outcome {
                    Err(Error::Mismatch { difference, .. }) => {
                        assert!(difference.contains(&format!("rank {odd} called")), "{difference}");
                    }
                    other => panic!("{other:?}"),
                }
                // Some are in the next one while others are still in this one.
                meet(rt);
                failed.wait();
            }
        });
    }
}

fn mismatches_in_a_row_are_found_by_all() {
    for size in ranks::sizes(&[3]) {
        run(size, |rt| {
            for round in 0..900 / size {
                expect_mismatch(rt, round % size);
                meet(rt);
            }
        });
    }
}

fn who_leaves_instead_of_coming_to_a_barrier_is_named_on_all_others() {
    let usual = [(3, 0), (3, 2), (5, 1), (8, 0), (8, 4), (8, 6), (8, 7)];
    // The first one of a node, one behind it, and the last of all.
    let several = |size| [0, size / 2, size - 1].map(|odd| (size, odd));
    let several: Vec<(u32, u32)> = ranks::sizes(&[]).into_iter().flat_map(several).collect();
    for (size, odd) in if several.is_empty() { usual.to_vec() } else { several } {
        run(size, |rt| {
            meet(rt);
            if u32::from(rt.rank().0) == odd {
                return rt.term(LIMIT).expect("term");
            }
            let outcome = within(Duration::from_secs(10), "the news of a farewell", || {
                rt.barrier(GroupId::ALL, Timeout::Block)
            });
            let expected =
                Error::RankLeft { rank: Rank(odd as u16), pending: "barrier".to_owned() };
            assert_eq!(outcome, Err(expected), "{}", rt.rank());
        });
    }
}

fn who_has_come_to_a_barrier_may_leave_before_the_others_have_heard() {
    let sizes = ranks::sizes(&[3, 4, 5, 6, 7, 8]);
    for round in 0..6 * sizes.len() {
        run(sizes[round % sizes.len()], |rt| {
            for _ in 0..round % 3 {
                rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            }
            rt.barrier(GroupId::ALL, LIMIT).expect("the last barrier");
        });
    }
}

fn who_has_come_and_gives_up_keeps_nobody_from_the_barrier() {
    for timeout in [Timeout::Test, Timeout::Millis(30)] {
        for leaves in [true, false] {
            let (gone, over) = (Barrier::new(2), Barrier::new(8));
            run(8, |rt| {
                meet(rt);
                match rt.rank().0 {
                    // The one above 5, 6 and 7, should they go along a tree.
                    4 => {
                        let error = rt.barrier(GroupId::ALL, timeout).expect_err("rank 1 is late");
                        assert!(error.is_timeout(), "{error}");
                        if leaves {
                            rt.term(LIMIT).expect("term");
                        }
                        gone.wait();
                    }
                    late => {
                        if late == 1 {
                            gone.wait();
                        }
                        rt.barrier(GroupId::ALL, LIMIT).expect("all have come");
                    }
                }
                over.wait();
            });
        }
    }
}

fn who_comes_late_hears_of_a_farewell_that_others_have_tried_to_ignore() {
    let (met, tried) = (Barrier::new(8), Barrier::new(7));
    run(8, |rt| {
        meet(rt);
        met.wait();
        let own = rt.rank().0;
        if own == 7 {
            return rt.term(LIMIT).expect("term");
        }
        let expect_left = || {
            let outcome = within(Duration::from_secs(10), "the news of a farewell", || {
                rt.barrier(GroupId::ALL, Timeout::Block)
            });
            // Or that it was rank 6 who has failed for it, on a node with that.
            match outcome {
                Err(
                    Error::RankLeft { rank: Rank(7), .. } | Error::Refused { rank: Rank(6), .. },
                ) => {}
                other => panic!("{other:?}"),
            }
        };
        if own == 6 {
            (0..3).for_each(|_| expect_left());
        }
        tried.wait();
        if own != 6 {
            expect_left();
        }
        tried.wait();
    });
}

fn a_mismatch_is_told_also_where_the_last_that_comes_leaves_for_it() {
    for last in [0, 1, 4] {
        let (others, over) = (Barrier::new(5), Barrier::new(4));
        run(5, |rt| {
            meet(rt);
            let own = u32::from(rt.rank().0);
            let other = || rt.group_call(GroupId::ALL, key(0, 33)).expect("call");
            let mut call = (own == 3).then(other);
            if let Some(call) = &mut call {
                call.arrive(&[]);
            } else if own != last {
                let outcome = rt.barrier(GroupId::ALL, Timeout::Millis(30));
                assert!(outcome.is_err_and(|error| error.is_timeout()));
            }
            others.wait();
            let outcome = match &mut call {
                Some(call) => call.await_all(LIMIT.deadline()),
                None => rt.barrier(GroupId::ALL, LIMIT),
            };
            fails!(outcome, Error::Mismatch { .. });
            drop(call);
            if own == last {
                return rt.term(LIMIT).expect("term");
            }
            over.wait();
        });
    }
}

fn a_rank_that_has_tried_a_barrier_once_is_named_to_those_in_another_call() {
    let told = Barrier::new(4);
    run(4, |rt| {
        meet(rt);
        if rt.rank() == Rank(2) {
            let outcome = rt.barrier(GroupId::ALL, Timeout::Test);
            assert!(outcome.is_err_and(|error| error.is_timeout()));
            told.wait();
        } else {
            told.wait();
            let mut call = rt.group_call(GroupId::ALL, key(0, 33)).expect("call");
            call.arrive(&[]);
            match within(Duration::from_secs(10), "a mismatch", || {
                call.await_all(Timeout::Block.deadline())
            }) {
                Err(Error::Mismatch { difference, .. }) => {
                    assert!(difference.contains("rank 2 called"), "{difference}");
                }
                other => panic!("{other:?}"),
            }
            call.finish();
        }
        told.wait();
        if rt.rank() == Rank(2) {
            fails!(rt.barrier(GroupId::ALL, LIMIT), Error::Mismatch { .. });
        }
        told.wait();
    });
}

fn a_death_ends_the_barrier_of_the_others_soon() {
    for size in ranks::sizes(&[5]) {
        let ready = Barrier::new(size as usize);
        run_owned(size, &Config::default(), |rt| {
            meet(&rt);
            // Nobody is still on the way when one of them ends.
            ready.wait();
            if rt.rank() == Rank(3) {
                return die(rt);
            }
            let barrier = within(Duration::from_secs(10), "the news of a death", || {
                rt.barrier(GroupId::ALL, Timeout::Block)
            });
            fails!(barrier, Error::RankDied { rank: Rank(3), .. });
            let group = rt.group_create().expect("create");
            for rank in all(&rt).filter(|rank| *rank != Rank(3)) {
                rt.group_add(group, rank).expect("add");
            }
            rt.group_commit(group, LIMIT).expect("commit");
            for _ in 0..10 {
                rt.barrier(group, LIMIT).expect("the survivors go on");
            }
            for rank in all(&rt) {
                let dead = rank == Rank(3);
                let expected = if dead { State::Corrupt } else { State::Healthy };
                assert_eq!(rt.state(rank), Ok(expected));
            }
            rt.barrier(group, LIMIT).expect("nobody leaves before the others have looked");
        });
    }
}

fn a_call_of_all_names_the_dead_member_and_not_who_left_before_it() {
    let barrier = |rt: &Runtime| rt.barrier(GroupId::ALL, LIMIT);
    let create =
        |rt: &Runtime| rt.segment_create(SegmentId(0), 64, GroupId::ALL, LIMIT, Init::Zeroed);
    let commit = |rt: &Runtime| {
        let group = rt.group_create()?;
        all(rt).try_for_each(|rank| rt.group_add(group, rank))?;
        rt.group_commit(group, LIMIT)
    };
    for call in [barrier, create, commit] {
        let (ready, left) = (Barrier::new(3), Barrier::new(3));
        run_owned(3, &Config::default(), |rt| {
            meet(&rt);
            // Nobody is still on the way when one of them ends.
            ready.wait();
            match rt.rank() {
                Rank(1) => {
                    left.wait();
                    die(rt);
                }
                Rank(2) => {
                    rt.term(LIMIT).expect("term");
                    left.wait();
                }
                _ => {
                    left.wait();
                    fails!(call(&rt), Error::RankDied { rank: Rank(1), .. });
                }
            }
        });
    }
}

tests! {
    EVERY:
        nobody_passes_a_barrier_before_all_have_come,
        a_barrier_that_timed_out_continues,
        one_collective_is_active_per_group,
        a_continued_call_has_to_have_the_same_arguments,
        a_second_thread_is_told_that_the_group_is_busy,
        threads_use_different_groups_at_once,
        lines_and_stages_carry_the_payload_of_their_step,
        a_call_keeps_its_cursor_over_a_timeout,
        a_mismatch_is_an_error_on_all_that_names_ranks_and_difference,
        a_barrier_of_all_but_one_is_an_error_on_all,
        mismatches_in_a_row_are_found_by_all,
        who_has_come_to_a_barrier_may_leave_before_the_others_have_heard,
        who_has_come_and_gives_up_keeps_nobody_from_the_barrier,
        who_comes_late_hears_of_a_farewell_that_others_have_tried_to_ignore,
        a_mismatch_is_told_also_where_the_last_that_comes_leaves_for_it,
        a_rank_that_has_tried_a_barrier_once_is_named_to_those_in_another_call,
        a_death_ends_the_barrier_of_the_others_soon,
        a_call_of_all_names_the_dead_member_and_not_who_left_before_it,
        who_leaves_instead_of_coming_to_a_barrier_is_named_on_all_others;
    SEVERAL:
        nobody_passes_a_barrier_before_all_have_come,
        a_barrier_that_timed_out_continues,
        a_call_keeps_its_cursor_over_a_timeout,
        mismatches_in_a_row_are_found_by_all,
        who_has_come_to_a_barrier_may_leave_before_the_others_have_heard,
        lines_and_stages_carry_the_payload_of_their_step,
        a_mismatch_is_an_error_on_all_that_names_ranks_and_difference,
        a_barrier_of_all_but_one_is_an_error_on_all,
        a_death_ends_the_barrier_of_the_others_soon,
        who_leaves_instead_of_coming_to_a_barrier_is_named_on_all_others;
}
