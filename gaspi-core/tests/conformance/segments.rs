//! Segments (GASPI 17.1, 7).

use super::*;
use ranks::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

fn alloc_is_local_zeroed_and_page_aligned() {
    run(2, |rt| {
        if rt.rank() == Rank(0) {
            for (id, size) in [(0, 1), (1, 4096), (2, 5 << 20), (254, 77)] {
                rt.segment_alloc(SegmentId(id), size, Init::Zeroed).expect("alloc");
                let pointer = rt.segment_ptr(SegmentId(id)).expect("pointer");
                assert_eq!(pointer as usize % 4096, 0);
                let mut bytes = vec![1; size as usize];
                rt.segment_read(SegmentId(id), 0, &mut bytes).expect("inside");
                assert!(bytes.iter().all(|byte| *byte == 0));
                let first = rt.notify_waitsome(SegmentId(id), 0, 65536, Timeout::Test);
                assert!(first.expect_err("none is set").is_timeout());
                assert_eq!(rt.segment_size(SegmentId(id), Rank(0)), Ok(size));
            }
            assert_eq!(rt.segment_num(), 4);
            assert_eq!(rt.segment_list(), [0, 1, 2, 254].map(SegmentId));
            assert_eq!(rt.segment_avail_local(), Ok(SegmentId(3)));
        }
        meet(rt);
    });
}

fn wrong_arguments_are_errors() {
    let config = Config { segment_max: 3, ..Config::default() };
    run_with(2, &config, |rt| {
        assert_eq!(rt.segment_max(), 3);
        fails!(rt.segment_alloc(S0, 0, Init::Zeroed), Error::SegmentSize { size: 0, .. });
        fails!(rt.segment_alloc(S0, u64::MAX, Init::Zeroed), Error::SegmentSize { .. });
        fails!(rt.segment_alloc(S0, 1 << 60, Init::Uninitialized), Error::Memory { .. });
        fails!(rt.segment_alloc(SegmentId(3), 8, Init::Zeroed), Error::InvalidSegment { .. });
        fails!(rt.segment_alloc(SegmentId(255), 8, Init::Zeroed), Error::InvalidSegment { .. });
        fails!(rt.segment_delete(S0), Error::InvalidSegment { .. });
        fails!(rt.segment_ptr(S0), Error::InvalidSegment { .. });
        fails!(rt.segment_ptr(SegmentId(255)), Error::InvalidSegment { .. });
        fails!(rt.segment_register(S0, Rank(1), LIMIT), Error::InvalidSegment { .. });
        fails!(rt.segment_size(S0, Rank(1)), Error::InvalidSegment { .. });
        rt.segment_alloc(S0, 8, Init::Zeroed).expect("alloc");
        fails!(rt.segment_alloc(S0, 8, Init::Zeroed), Error::InvalidSegment { .. });
        fails!(rt.segment_size(S0, Rank(2)), Error::InvalidRank { .. });
        fails!(rt.segment_register(S0, Rank(2), LIMIT), Error::InvalidRank { .. });
        rt.segment_alloc(S1, 8, Init::Zeroed).expect("alloc");
        rt.segment_alloc(S2, 8, Init::Zeroed).expect("alloc");
        fails!(rt.segment_avail_local(), Error::TooManySegments { limit: 3 });
        rt.segment_delete(S1).expect("delete");
        assert_eq!(rt.segment_avail_local(), Ok(S1));
        assert_eq!(rt.segment_list(), [S0, S2]);
        meet(rt);
    });
}

fn create_checks_its_arguments() {
    run(1, |rt| {
        let create = |id, size, group| rt.segment_create(id, size, group, LIMIT, Init::Zeroed);
        fails!(create(S0, 0, GroupId::ALL), Error::SegmentSize { .. });
        fails!(create(S0, 8, GroupId(3)), Error::InvalidGroup { .. });
        fails!(create(SegmentId(255), 8, GroupId::ALL), Error::InvalidSegment { .. });
        create(S0, 8, GroupId::ALL).expect("create");
        fails!(create(S0, 8, GroupId::ALL), Error::InvalidSegment { .. });
        meet(rt);
    });
}

fn register_gives_access_and_may_be_repeated() {
    run(3, |rt| {
        if rt.rank() == Rank(1) {
            rt.segment_alloc(S0, 64, Init::Zeroed).expect("alloc");
            put_u64(rt, S0, 8, 4711);
            for _ in 0..3 {
                rt.segment_register(S0, Rank(2), LIMIT).expect("register");
                rt.segment_register(S0, Rank(1), LIMIT).expect("to oneself");
            }
        } else {
            rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
        }
        meet(rt);
        let t = Transfer { local: S1, ..eight(Rank(1)) };
        match rt.rank() {
            Rank(0) => {
                // It was not told.
                fails!(rt.write(&t, Q0, LIMIT), Error::InvalidSegment { .. });
                fails!(rt.segment_size(S0, Rank(1)), Error::InvalidSegment { .. });
            }
            Rank(2) => {
                assert_eq!(rt.segment_size(S0, Rank(1)), Ok(64));
                rt.read(&t, Q0, LIMIT).expect("read");
                rt.wait(Q0, LIMIT).expect("wait");
                assert_eq!(get_u64(rt, S1, 0), 4711);
            }
            _ => {}
        }
        meet(rt);
    });
}

fn sizes_may_differ_between_ranks() {
    for size in ranks::sizes(&SIZES) {
        run(size, |rt| {
            let bytes = |rank: Rank| 16 + 8 * u64::from(rank.0);
            make(rt, S0, bytes(rt.rank()));
            for rank in all(rt) {
                assert_eq!(rt.segment_size(S0, rank), Ok(bytes(rank)));
                let last = Transfer { remote_offset: bytes(rank) - 8, ..eight(rank) };
                rt.write(&last, Q0, LIMIT).expect("the last 8 bytes");
                let beyond = Transfer { remote_offset: bytes(rank), ..eight(rank) };
                fails!(rt.write(&beyond, Q0, LIMIT), Error::RemoteOffset { .. });
            }
            rt.wait(Q0, LIMIT).expect("wait");
            meet(rt);
        });
    }
}

fn a_rank_that_cannot_make_its_segment_is_named() {
    for size in ranks::sizes(&[3]) {
        run(size, |rt| {
            let size = if rt.rank() == Rank(1) { 1 << 60 } else { 64 };
            let error = rt
                .segment_create(S0, size, GroupId::ALL, LIMIT, Init::Uninitialized)
                .expect_err("no machine has an exabyte");
            if rt.rank() == Rank(1) {
                assert!(matches!(error, Error::Memory { .. }), "{error}");
            } else {
                assert!(error.to_string().contains("rank 1"), "{error}");
            }
            assert_eq!(rt.segment_num(), 0, "none keeps it");
            make(rt, S0, 64);
            meet(rt);
        });
    }
}

/// What ranks are about to allocate counts for the others of their node, but not what nobody can.
fn what_no_machine_has_keeps_nobody_from_its_memory() {
    run(2, |rt| {
        for _ in 0..300 {
            if rt.rank() == Rank(0) {
                fails!(rt.segment_alloc(S1, 1 << 50, Init::Zeroed), Error::Memory { .. });
            } else {
                rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
                rt.segment_delete(S1).expect("delete");
            }
        }
        meet(rt);
    });
}

fn a_deleted_id_serves_again_at_once_and_others_see_the_new_one() {
    run(2, |rt| {
        let (me, peer) = (rt.rank(), Rank(1 - rt.rank().0));
        rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
        for round in 0..200u64 {
            let size = 64 + 8 * (round % 5);
            rt.segment_create(S0, size, GroupId::ALL, LIMIT, Init::Zeroed)
                .unwrap_or_else(|e| panic!("round {round}: {e}"));
            assert_eq!(rt.segment_size(S0, peer), Ok(size));
            assert_eq!(get_u64(rt, S0, 16), 0, "memory of the new segment");
            put_u64(rt, S0, 16, 1);
            put_u64(rt, S1, 0, round * 2 + u64::from(me.0));
            let t = Transfer { local: S1, ..eight(peer) };
            rt.write_notify(&t, NotificationId(3), 1, Q0, LIMIT).expect("write");
            rt.notify_waitsome(S0, 0, 8, LIMIT).expect("notified");
            assert_eq!(get_u64(rt, S0, 8), round * 2 + u64::from(peer.0));
            rt.wait(Q0, LIMIT).expect("wait");
            meet(rt);
            rt.segment_delete(S0).expect("delete");
        }
        meet(rt);
    });
}

fn after_a_delete_a_rank_may_still_use_the_others_segments() {
    run(2, |rt| {
        make(rt, S0, 64);
        rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
        if rt.rank() == Rank(0) {
            rt.segment_delete(S0).expect("delete");
            put_u64(rt, S1, 0, 5);
            let t = Transfer { local: S1, ..eight(Rank(1)) };
            rt.write_notify(&t, NotificationId(0), 1, Q0, LIMIT).expect("write");
            rt.wait(Q0, LIMIT).expect("wait");
        } else {
            rt.notify_waitsome(S0, 0, 1, LIMIT).expect("notified");
            assert_eq!(get_u64(rt, S0, 8), 5);
        }
        meet(rt);
    });
}

fn segments_are_deleted_while_others_write_to_them() {
    let done = AtomicBool::new(false);
    let (arrived, refused) = (AtomicU32::new(0), AtomicU32::new(0));
    run(3, |rt| {
        if rt.rank() == Rank(0) {
            let both = || [&arrived, &refused].iter().all(|it| it.load(Ordering::Relaxed) > 0);
            // Where cores are busy a write may come late for each segment of many.
            for _ in (0..10_000).take_while(|round| *round < 100 || !both()) {
                rt.segment_alloc(S0, 1 << 20, Init::Zeroed).expect("alloc");
                for rank in others(rt) {
                    rt.segment_register(S0, rank, LIMIT).expect("register");
                }
                ranks::pause();
                rt.segment_delete(S0).expect("delete");
            }
            done.store(true, Ordering::Relaxed);
            return meet(rt);
        }
        rt.segment_alloc(S1, 1 << 20, Init::Zeroed).expect("alloc");
        let t = Transfer { local: S1, size: 1 << 19, ..eight(Rank(0)) };
        while !done.load(Ordering::Relaxed) {
            let posted = match rt.write_notify(&t, NotificationId(1), 1, Q0, LIMIT) {
                Ok(()) => true,
                Err(Error::InvalidSegment { .. }) => false,
                Err(error) => panic!("{error}"),
            };
            match rt.wait(Q0, LIMIT) {
                Ok(()) => arrived.fetch_add(posted.into(), Ordering::Relaxed),
                Err(Error::RequestFailed { .. }) => {
                    refused.fetch_add(1, Ordering::Relaxed);
                    rt.queue_purge(Q0, LIMIT).expect("purge");
                    0
                }
                Err(error) => panic!("{error}"),
            };
            ranks::pause();
        }
        meet(rt);
    });
    let (arrived, refused) = (arrived.into_inner(), refused.into_inner());
    assert!(arrived > 0 && refused > 0, "{arrived} arrived, {refused} were refused");
}

fn a_write_that_comes_after_the_delete_always_fails() {
    // However soon it comes: the news of the delete need not have been told yet.
    let deleted = Barrier::new(2);
    run(2, |rt| {
        rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
        for round in 0..200 {
            if rt.rank() == Rank(1) {
                rt.segment_alloc(S0, 64, Init::Zeroed).expect("alloc");
                rt.segment_register(S0, Rank(0), LIMIT).expect("register");
                deleted.wait();
                rt.segment_delete(S0).expect("delete");
                deleted.wait();
            } else {
                let t = Transfer { local: S1, ..eight(Rank(1)) };
                deleted.wait();
                deleted.wait();
                rt.write_notify(&t, NotificationId(0), 1, Q0, LIMIT).expect("posted");
                match rt.wait(Q0, LIMIT) {
                    Err(Error::RequestFailed { reason, .. }) => {
                        assert!(reason.contains("deleted"), "{reason}");
                    }
                    other => panic!("round {round}: {other:?}"),
                }
                rt.queue_purge(Q0, LIMIT).expect("purge");
            }
            meet(rt);
        }
    });
}

fn bound_memory_may_be_shared_between_segments() {
    run(2, |rt| {
        let mut memory = vec![0u64; 64];
        let pointer = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the memory outlives the segments, and is not touched through references.
        unsafe {
            rt.segment_use(S0, pointer, 512, GroupId::ALL, LIMIT).expect("use");
            rt.segment_bind(S1, pointer.add(64), 128).expect("bind");
            fails!(rt.segment_bind(S1, pointer, 128), Error::InvalidSegment { .. });
            fails!(rt.segment_bind(S2, pointer, 0), Error::SegmentSize { .. });
            fails!(rt.segment_bind(S2, pointer, 1 << 46), Error::SegmentSize { .. });
        }
        assert_eq!(rt.segment_ptr(S0), Ok(pointer));
        assert_eq!(rt.segment_ptr(S1), Ok(pointer.wrapping_add(64)));
        for rank in all(rt) {
            rt.segment_register(S1, rank, LIMIT).expect("register");
        }
        meet(rt);
        let peer = Rank(1 - rt.rank().0);
        put_u64(rt, S0, 0, 99 + u64::from(peer.0));
        let t = Transfer { remote: S1, ..eight(peer) };
        rt.write(&t, Q0, LIMIT).expect("write");
        rt.wait(Q0, LIMIT).expect("wait");
        meet(rt);
        assert_eq!(get_u64(rt, S0, 64 + 8), 99 + u64::from(rt.rank().0));
        assert_eq!(get_u64(rt, S1, 8), 99 + u64::from(rt.rank().0));
        meet(rt);
        rt.segment_delete(S1).expect("delete");
        assert_eq!(get_u64(rt, S0, 72), 99 + u64::from(rt.rank().0));
        rt.segment_delete(S0).expect("delete");
    });
}

fn a_create_of_one_group_does_not_concern_the_others() {
    run(3, |rt| {
        let pair = rt.group_create().expect("create");
        rt.group_add(pair, Rank(0)).expect("add");
        rt.group_add(pair, Rank(2)).expect("add");
        if rt.rank() != Rank(1) {
            rt.group_commit(pair, LIMIT).expect("commit");
            rt.segment_create(S0, 64, pair, LIMIT, Init::Zeroed).expect("create");
        }
        meet(rt);
        for rank in [Rank(0), Rank(2)] {
            let known = rt.segment_size(S0, rank);
            assert_eq!(known.is_ok(), rt.rank() != Rank(1), "{known:?}");
        }
        meet(rt);
    });
}

fn register_with_a_rank_that_died_or_left_is_an_error() {
    let ready = Barrier::new(3);
    run_owned(3, &Config::default(), |rt| {
        rt.segment_alloc(S0, 64, Init::Zeroed).expect("alloc");
        rt.segment_register(S0, Rank(0), LIMIT).expect("register");
        // Nobody is still on the way when one of them ends.
        ready.wait();
        match rt.rank() {
            Rank(1) => die(rt),
            Rank(2) => rt.term(LIMIT).expect("term"),
            _ => {
                // Both ends are known to the barrier once it fails; then to everything else.
                fails!(
                    rt.barrier(GroupId::ALL, LIMIT),
                    Error::RankDied { .. } | Error::RankLeft { .. }
                );
                let register = |rank| loop {
                    // Until the end is known a register may still succeed.
                    if let Err(error) = rt.segment_register(S0, rank, LIMIT) {
                        break error;
                    }
                };
                let died = register(Rank(1));
                assert!(matches!(died, Error::RankDied { rank: Rank(1), .. }), "{died}");
                let left = register(Rank(2));
                assert!(matches!(left, Error::RankLeft { rank: Rank(2), .. }), "{left}");
                assert_eq!(rt.state(Rank(1)), Ok(State::Corrupt));
                assert_eq!(rt.state(Rank(2)), Ok(State::Healthy));
                // Neither has deleted its segment.
                for (rank, end) in [(Rank(1), "has died on "), (Rank(2), "has left the job")] {
                    match rt.segment_size(S0, rank) {
                        Err(Error::InvalidSegment { reason, .. }) => {
                            assert!(reason.contains(end), "{reason}");
                        }
                        other => panic!("{rank}: {other:?}"),
                    }
                }
            }
        }
    });
}

/// More than map each other's segments while they make them.
const MANY: u32 = 18;

fn ranks_of_a_crowded_node_reach_each_other_by_every_procedure() {
    run(MANY, |rt| {
        let (me, size) = (u64::from(rt.rank().0), u64::from(MANY));
        let at = |distance: u64| Rank(((me + distance) % size) as u16);
        let from = |distance: u64| (me + size - distance) % size;
        rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
        for round in 1..4u64 {
            let size_of = |rank: Rank| 256 + 64 * round + u64::from(rank.0) * 8;
            rt.segment_create(S0, size_of(rt.rank()), GroupId::ALL, LIMIT, Init::Zeroed)
                .unwrap_or_else(|e| panic!("round {round}: {e}"));
            put_u64(rt, S0, 0, 1000 * round + me);
            meet(rt);
            // Each is the first access to its target.
            assert_eq!(rt.segment_size(S0, at(5)), Ok(size_of(at(5))));
            let outside = Transfer { remote_offset: size_of(at(6)), ..eight(at(6)) };
            fails!(rt.write(&outside, Q0, LIMIT), Error::RemoteOffset { .. });
            rt.write(&eight(at(1)), Q0, LIMIT).expect("write");
            rt.notify(at(2), S0, NotificationId(2), 2, Q0, LIMIT).expect("notify");
            let behind = Transfer { remote_offset: 16, ..eight(at(3)) };
            rt.write_notify(&behind, NotificationId(3), 3, Q0, LIMIT).expect("write_notify");
            rt.atomic_fetch_add(S0, 24, at(4), 4 + me, LIMIT).expect("fetch_add");
            let back = Transfer { local_offset: 32, remote_offset: 0, ..eight(at(7)) };
            rt.read(&back, Q0, LIMIT).expect("read");
            rt.wait(Q0, LIMIT).expect("wait");
            meet(rt);
            let found = [8, 16, 24, 32].map(|offset| get_u64(rt, S0, offset));
            let written = [1, 3].map(|distance| 1000 * round + from(distance));
            let read = 1000 * round + u64::from(at(7).0);
            assert_eq!(found, [written[0], written[1], 4 + from(4), read]);
            for id in [2, 3] {
                assert_eq!(rt.notify_reset(S0, NotificationId(id)), Ok(id));
            }
            rt.segment_delete(S0).expect("delete");
            meet(rt);
            // To a rank of another node the news travels beside the barrier.
            soon("the delete", || {
                let size = rt.segment_size(S0, at(1));
                matches!(size, Err(Error::InvalidSegment { .. }))
            });
            // No rank is told that has not accessed it: the next access tells.
            match rt.read(&Transfer { local: S1, ..eight(at(8)) }, Q0, LIMIT) {
                Ok(()) => {
                    fails!(rt.wait(Q0, LIMIT), Error::RequestFailed { .. });
                    rt.queue_purge(Q0, LIMIT).expect("purge");
                }
                Err(error) => assert!(matches!(error, Error::InvalidSegment { .. }), "{error}"),
            }
            meet(rt);
        }
    });
}

fn a_member_of_a_crowded_node_dies_before_it_was_accessed() {
    // All have ended the call before one dies.
    let (made, written) = (Barrier::new(MANY as usize), Barrier::new(MANY as usize - 1));
    run_owned(MANY, &Config::default(), |rt| {
        make(&rt, S0, 64);
        made.wait();
        if rt.rank() == Rank(3) {
            return die(rt);
        }
        soon("the death", || rt.state(Rank(3)) == Ok(State::Corrupt));
        let error = rt.segment_size(S0, Rank(3));
        fails!(error, Error::InvalidSegment { .. });
        let sent = rt.write(&eight(Rank(3)), Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT));
        assert!(sent.is_err(), "a write to the dead");
        rt.write(&eight(Rank(4)), Q0, LIMIT).expect("write to the living");
        rt.wait(Q0, LIMIT).expect("wait");
        written.wait();
    });
}

fn registering_again_maps_what_was_published() {
    run(MANY, |rt| {
        make(rt, S0, 64);
        for rank in others(rt) {
            rt.segment_register(S0, rank, LIMIT).expect("register");
        }
        meet(rt);
        for rank in others(rt) {
            assert_eq!(rt.segment_size(S0, rank), Ok(64));
        }
        meet(rt);
    });
}

tests! {
    EVERY:
        alloc_is_local_zeroed_and_page_aligned,
        wrong_arguments_are_errors,
        create_checks_its_arguments,
        register_gives_access_and_may_be_repeated,
        sizes_may_differ_between_ranks,
        a_rank_that_cannot_make_its_segment_is_named,
        what_no_machine_has_keeps_nobody_from_its_memory,
        a_deleted_id_serves_again_at_once_and_others_see_the_new_one,
        after_a_delete_a_rank_may_still_use_the_others_segments,
        segments_are_deleted_while_others_write_to_them,
        a_write_that_comes_after_the_delete_always_fails,
        bound_memory_may_be_shared_between_segments,
        a_create_of_one_group_does_not_concern_the_others,
        register_with_a_rank_that_died_or_left_is_an_error,
        ranks_of_a_crowded_node_reach_each_other_by_every_procedure,
        a_member_of_a_crowded_node_dies_before_it_was_accessed,
        registering_again_maps_what_was_published;
    SEVERAL:
        sizes_may_differ_between_ranks,
        a_rank_that_cannot_make_its_segment_is_named;
}
