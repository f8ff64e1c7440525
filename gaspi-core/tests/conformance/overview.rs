//! The usual ways through the interface, at several sizes.

use super::*;

fn every_rank_writes_to_every_rank() {
    for size in ranks::sizes(&SIZES) {
        run(size, |rt| {
            rt.segment_create(S0, 8 * 64, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
            rt.segment_create(S1, 8 * 64, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
            let me = u64::from(rt.rank().0);
            put_u64(rt, S0, 0, me + 1);
            for rank in (0..size).map(|rank| Rank(rank as u16)) {
                let t = Transfer {
                    local: S0,
                    local_offset: 0,
                    rank,
                    remote: S1,
                    remote_offset: me * 8,
                    size: 8,
                };
                rt.write_notify(&t, NotificationId(me as u32), me as u32 + 1, Q0, LIMIT)
                    .expect("write");
            }
            for sender in 0..size {
                let id = rt.notify_waitsome(S1, sender, 1, LIMIT).expect("notified");
                assert_eq!(id, Some(NotificationId(sender)));
                assert_eq!(rt.notify_reset(S1, NotificationId(sender)), Ok(sender + 1));
                assert_eq!(get_u64(rt, S1, u64::from(sender) * 8), u64::from(sender) + 1);
            }
            rt.wait(Q0, LIMIT).expect("wait");
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        });
    }
}

fn reads_see_what_was_written_before_a_barrier() {
    for size in ranks::sizes(&SIZES) {
        run(size, |rt| {
            rt.segment_create(S0, 1 << 20, GroupId::ALL, LIMIT, Init::Uninitialized)
                .expect("create");
            put_u64(rt, S0, 4096, 1000 + u64::from(rt.rank().0));
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            for rank in (0..size).map(|rank| Rank(rank as u16)) {
                let t = Transfer {
                    local: S0,
                    local_offset: 8,
                    rank,
                    remote: S0,
                    remote_offset: 4096,
                    size: 8,
                };
                rt.read_notify(&t, NotificationId(9), Q0, LIMIT).expect("read");
                rt.notify_waitsome(S0, 9, 1, LIMIT).expect("arrived");
                assert_eq!(rt.notify_reset(S0, NotificationId(9)), Ok(1));
                rt.wait(Q0, LIMIT).expect("wait");
                assert_eq!(get_u64(rt, S0, 8), 1000 + u64::from(rank.0));
            }
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        });
    }
}

fn bound_memory_is_reached_like_any_other() {
    for size in ranks::sizes(&SIZES) {
        run(size, |rt| {
            let mut memory = vec![0u64; 1024];
            let bytes = memory.as_mut_ptr().cast::<u8>();
            // SAFETY: the memory lives until the segment is deleted, and is read after a barrier.
            unsafe { rt.segment_use(S0, bytes, 8192, GroupId::ALL, LIMIT) }.expect("use");
            rt.segment_create(S1, 64, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
            let me = u64::from(rt.rank().0);
            put_u64(rt, S1, 0, me + 7);
            for rank in (0..size).map(|rank| Rank(rank as u16)) {
                let t = Transfer {
                    local: S1,
                    local_offset: 0,
                    rank,
                    remote: S0,
                    remote_offset: me * 8,
                    size: 8,
                };
                rt.write_notify(&t, NotificationId(me as u32), 1, Q0, LIMIT).expect("write");
                rt.atomic_fetch_add(S0, 4096, rank, 1, LIMIT).expect("atomic");
            }
            rt.wait(Q0, LIMIT).expect("wait");
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            for sender in 0..u64::from(size) {
                assert_eq!(get_u64(rt, S0, sender * 8), sender + 7);
            }
            assert_eq!(get_u64(rt, S0, 4096), u64::from(size));
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            rt.segment_delete(S0).expect("delete");
        });
    }
}

fn a_queue_takes_exactly_its_size() {
    let config = Config { queue_size_max: 3, ..Config::default() };
    run_with(2, &config, |rt| {
        rt.segment_create(S0, 64, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
        let t = Transfer {
            local: S0,
            local_offset: 0,
            rank: Rank(0),
            remote: S0,
            remote_offset: 8,
            size: 8,
        };
        for posted in 0..3 {
            assert_eq!(rt.queue_size(Q0), Ok(posted));
            rt.write(&t, Q0, LIMIT).expect("room");
        }
        let full = rt.write(&t, Q0, Timeout::Test).expect_err("full");
        assert_eq!(full, Error::QueueFull { queue: Q0, limit: 3 });
        rt.write(&Transfer { size: 0, ..t }, Q0, LIMIT).expect("nothing takes no slot");
        rt.wait(Q0, LIMIT).expect("wait");
        assert_eq!(rt.queue_size(Q0), Ok(0));
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
    });
}

fn passive_messages_go_round() {
    for size in ranks::sizes(&SIZES) {
        run(size, |rt| {
            rt.segment_alloc(S0, 65536, Init::Zeroed).expect("alloc");
            let me = rt.rank();
            put_u64(rt, S0, 0, u64::from(me.0) + 50);
            let next = Rank((me.0 + 1) % size as u16);
            ranks::scope(|scope| {
                scope.spawn(|| rt.passive_send(S0, 0, next, 65535, LIMIT).expect("send"));
                rt.segment_alloc(S1, 65536, Init::Zeroed).expect("alloc");
                let from = rt.passive_receive(S1, 0, 65536, LIMIT).expect("receive");
                assert_eq!(u32::from(from.0), (u32::from(me.0) + size - 1) % size);
                assert_eq!(get_u64(rt, S1, 0), u64::from(from.0) + 50);
            });
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        });
    }
}

fn a_passive_send_that_timed_out_continues_and_can_be_purged() {
    run(2, |rt| {
        rt.segment_alloc(S0, 64, Init::Zeroed).expect("alloc");
        if rt.rank() == Rank(0) {
            put_u64(rt, S0, 0, 1);
            assert!(
                rt.passive_send(S0, 0, Rank(1), 8, Timeout::Test).expect_err("nobody").is_timeout()
            );
            rt.passive_queue_purge(LIMIT).expect("purge");
            put_u64(rt, S0, 8, 2);
            assert!(
                rt.passive_send(S0, 8, Rank(1), 8, Timeout::Test).expect_err("nobody").is_timeout()
            );
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            rt.passive_send(S0, 8, Rank(1), 8, LIMIT).expect("continued");
        } else {
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            assert!(
                rt.passive_receive(S0, 0, 4, Timeout::Millis(20))
                    .expect_err("too large")
                    .is_timeout()
            );
            assert_eq!(rt.passive_receive(S0, 0, 64, LIMIT), Ok(Rank(0)));
            assert_eq!(get_u64(rt, S0, 0), 2);
            assert!(
                rt.passive_receive(S0, 0, 64, Timeout::Test).expect_err("one only").is_timeout()
            );
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
    });
}

/// Neither a passive message that nobody has received is lost with its connection, nor does it come
/// twice.
fn a_disconnect_waits_for_a_passive_send() {
    run(2, |rt| {
        rt.segment_alloc(S0, 64, Init::Zeroed).expect("alloc");
        if rt.rank() == Rank(0) {
            let send = |timeout| rt.passive_send(S0, 0, Rank(1), 8, timeout);
            put_u64(rt, S0, 0, 1);
            assert!(send(Timeout::Millis(20)).expect_err("nobody").is_timeout());
            // It needs no connection where the ranks share memory.
            let outcome = rt.disconnect(Rank(1), Timeout::Millis(20));
            assert!(matches!(outcome, Ok(()) | Err(Error::Timeout { .. })), "{outcome:?}");
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            send(LIMIT).expect("continued");
            rt.disconnect(Rank(1), LIMIT).expect("disconnect");
        } else {
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            assert_eq!(rt.passive_receive(S0, 0, 8, LIMIT), Ok(Rank(0)));
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        fails!(rt.passive_receive(S0, 0, 8, Timeout::Test), Error::Timeout { .. });
    });
}

fn groups_commit_among_their_members_and_ids_are_reused() {
    run(5, |rt| {
        let me = rt.rank().0;
        for round in 0..50 {
            let group = rt.group_create().expect("create");
            assert_eq!(group, GroupId(1));
            let members: Vec<u16> = if me % 2 == 0 { vec![0, 2, 4] } else { vec![1, 3] };
            for rank in members.iter().rev() {
                rt.group_add(group, Rank(*rank)).expect("add");
            }
            rt.group_commit(group, LIMIT).unwrap_or_else(|error| panic!("round {round}: {error}"));
            for _ in 0..3 {
                rt.barrier(group, LIMIT).unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
            rt.group_delete(group).expect("delete");
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
    });
}

fn differing_lists_are_an_error_on_all() {
    let errors = run(3, |rt| {
        let group = rt.group_create().expect("create");
        let members: &[u16] = if rt.rank().0 == 2 { &[1, 2] } else { &[0, 1, 2] };
        for rank in members {
            rt.group_add(group, Rank(*rank)).expect("add");
        }
        let error = rt.group_commit(group, LIMIT).expect_err("lists differ");
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        error
    });
    for error in errors {
        assert!(
            matches!(&error, Error::Mismatch { difference, .. } if difference.contains("{1, 2}")),
            "{error}"
        );
    }
}

fn different_collectives_are_an_error_on_all() {
    let errors = run(3, |rt| {
        let error = if rt.rank() == Rank(1) {
            rt.segment_create(S0, 64, GroupId::ALL, LIMIT, Init::Zeroed).expect_err("mismatch")
        } else {
            rt.barrier(GroupId::ALL, LIMIT).expect_err("mismatch")
        };
        rt.barrier(GroupId::ALL, LIMIT).expect("the group goes on");
        assert_eq!(rt.segment_num(), 0);
        error
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("segment_create of segment 0") && text.contains("barrier"), "{text}");
    }
}

fn an_access_after_the_delete_is_an_error_at_the_initiator() {
    run(2, |rt| {
        rt.segment_create(S0, 64, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
        rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        if rt.rank() == Rank(1) {
            rt.segment_delete(S0).expect("delete");
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        if rt.rank() == Rank(0) {
            let t = Transfer {
                local: S1,
                local_offset: 0,
                rank: Rank(1),
                remote: S0,
                remote_offset: 0,
                size: 8,
            };
            rt.write(&t, Q0, LIMIT).expect("posted");
            let error = rt.wait(Q0, LIMIT).expect_err("deleted");
            assert!(error.to_string().contains("deleted"), "{error}");
            assert_eq!(rt.state(Rank(1)), Ok(State::Corrupt));
            rt.queue_purge(Q0, LIMIT).expect("purge");
            rt.wait(Q0, LIMIT).expect("clean");
            rt.connect(Rank(1), LIMIT).expect("connect");
            assert_eq!(rt.state(Rank(1)), Ok(State::Healthy));
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
    });
}

fn a_rank_that_left_is_named_and_stays_healthy() {
    run(2, |rt| {
        if rt.rank() == Rank(1) {
            rt.term(LIMIT).expect("term");
            return;
        }
        let error = rt.barrier(GroupId::ALL, LIMIT).expect_err("rank 1 is not there");
        assert_eq!(error, Error::RankLeft { rank: Rank(1), pending: "barrier".to_owned() });
        assert_eq!(rt.state(Rank(1)), Ok(State::Healthy));
        assert!(matches!(rt.ping(Rank(1), LIMIT), Err(Error::RankLeft { .. })));
    });
}

fn atomics_count_exactly() {
    for size in ranks::sizes(&[4]) {
        run(size, |rt| {
            rt.segment_create(S0, 64, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
            for _ in 0..1000 {
                rt.atomic_fetch_add(S0, 16, Rank(2), 3, LIMIT).expect("add");
            }
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            if rt.rank() == Rank(2) {
                let sum = 3000 * u64::from(size);
                assert_eq!(get_u64(rt, S0, 16), sum);
                assert_eq!(rt.atomic_compare_swap(S0, 16, Rank(2), sum, 5, LIMIT), Ok(sum));
                assert_eq!(rt.atomic_compare_swap(S0, 16, Rank(2), sum, 6, LIMIT), Ok(5));
            }
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            for rank in others(rt) {
                rt.ping(rank, LIMIT).expect("ping");
            }
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        });
    }
}

fn segments_come_and_go_without_growth() {
    run(2, |rt| {
        for _ in 0..300 {
            rt.segment_create(S0, 65536, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
            rt.segment_delete(S0).expect("delete");
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
    });
}

tests! {
    EVERY:
        every_rank_writes_to_every_rank,
        reads_see_what_was_written_before_a_barrier,
        bound_memory_is_reached_like_any_other,
        a_queue_takes_exactly_its_size,
        passive_messages_go_round,
        a_passive_send_that_timed_out_continues_and_can_be_purged,
        a_disconnect_waits_for_a_passive_send,
        groups_commit_among_their_members_and_ids_are_reused,
        differing_lists_are_an_error_on_all,
        different_collectives_are_an_error_on_all,
        an_access_after_the_delete_is_an_error_at_the_initiator,
        a_rank_that_left_is_named_and_stays_healthy,
        atomics_count_exactly,
        segments_come_and_go_without_growth;
    SEVERAL:
        every_rank_writes_to_every_rank,
        reads_see_what_was_written_before_a_barrier,
        bound_memory_is_reached_like_any_other,
        passive_messages_go_round,
        atomics_count_exactly;
}
