//! Queues above the budget of a rank share the pair of another queue to the same peer.

use super::budgets::{carried, goes_by_device, pairs_of, run_with_pairs, until_by_device};
use super::verbs::exchange;
use super::*;
use std::sync::Barrier;

const Q2: QueueId = QueueId(2);
const Q3: QueueId = QueueId(3);
const ALL: [QueueId; 4] = [Q0, Q1, Q2, Q3];

/// The queues that a test uses beside the first one.
fn make_queues(rt: &Runtime) {
    while rt.queue_num() < ALL.len() as u32 {
        rt.queue_create(LIMIT).expect("a queue");
    }
}

fn all_queues_to_a_peer_share_one_pair() {
    run_with_pairs((2, 1), "", |rt, fabric| {
        make(rt, S0, 8192);
        make_queues(rt);
        let peer = Rank(1 - rt.rank().0);
        ALL.iter().for_each(|queue| until_by_device(rt, peer, *queue));
        meet(rt);
        let before = carried(rt);
        exchange(rt, 50);
        // Two writes in each round, and all of them by the device.
        assert!(carried(rt) - before >= 100, "{} of 100", carried(rt) - before);
        assert_eq!(pairs_of(rt, fabric), 1);
        meet(rt);
    });
}

fn a_wait_for_a_queue_that_shares_covers_its_writes() {
    // Bytes stay in the device until something has it place them; a barrier by streams does not.
    run_with_pairs((2, 1), "placement=2", |rt, _| {
        make(rt, S0, 8192);
        let peer = Rank(1 - rt.rank().0);
        [Q0, Q1].iter().for_each(|queue| until_by_device(rt, peer, *queue));
        meet(rt);
        for round in 1..=100u64 {
            // Writes of both under way; only one queue is waited for, in turn.
            let (last, other) = if round % 2 == 0 { (Q0, Q1) } else { (Q1, Q0) };
            put_u64(rt, S0, 0, round);
            let t = Transfer { remote_offset: 4096, ..eight(peer) };
            rt.write(&t, other, LIMIT).expect("posted");
            rt.write(&eight(peer), last, LIMIT).expect("posted");
            rt.wait(last, LIMIT).expect("wait");
            meet(rt);
            assert_eq!(get_u64(rt, S0, 8), round);
            rt.wait(other, LIMIT).expect("wait");
            meet(rt);
            assert_eq!(get_u64(rt, S0, 4096), round);
            meet(rt);
        }
    });
}

fn threads_with_a_queue_each_share_a_pair() {
    const ROUNDS: u64 = 300;
    run_with_pairs((2, 1), "", |rt, fabric| {
        make(rt, S0, 8192);
        make_queues(rt);
        let peer = Rank(1 - rt.rank().0);
        ALL.iter().for_each(|queue| until_by_device(rt, peer, *queue));
        meet(rt);
        let place = |queue: QueueId| 64 * (1 + u64::from(queue.0));
        ranks::scope(|scope| {
            for queue in ALL {
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        put_u64(rt, S0, place(queue), round);
                        let at = place(queue);
                        let t =
                            Transfer { local_offset: at, remote_offset: 4096 + at, ..eight(peer) };
                        let id = NotificationId(queue.0.into());
                        rt.write_notify(&t, id, 1 + round as u32 % 200, queue, LIMIT)
                            .expect("posted");
                        rt.wait(queue, LIMIT).expect("wait");
                    }
                });
            }
        });
        meet(rt);
        for queue in ALL {
            assert_eq!(get_u64(rt, S0, 4096 + place(queue)), ROUNDS, "{queue}");
        }
        assert_eq!(pairs_of(rt, fabric), 1);
        meet(rt);
    });
}

fn a_pair_that_breaks_fails_all_that_share_it_and_no_other() {
    const SECOND_NS: u64 = 1_000_000_000;
    // A pair of each rank with each other one; rank 0 writes to both others. Time passes only as
    // the test says.
    run_with_pairs((3, 2), "time_scale=0", |rt, fabric| {
        make(rt, S0, 8192);
        make_queues(rt);
        if rt.rank() == Rank(0) {
            until_by_device(rt, Rank(2), Q2);
            [Q0, Q1].iter().for_each(|queue| until_by_device(rt, Rank(1), *queue));
            assert_eq!(pairs_of(rt, fabric), 2);
        }
        meet(rt);
        for round in 1..=10u64 {
            if rt.rank() == Rank(0) {
                put_u64(rt, S0, 0, round);
                // Both are under way when the pair fails: else the second one may find it taken
                // down, and lose nothing.
                fabric.link(0, 1, 0);
                let order = if round % 2 == 0 { [Q0, Q1] } else { [Q1, Q0] };
                let posted = order.map(|queue| rt.write(&eight(Rank(1)), queue, LIMIT));
                // As often as there are tries, each with its own limit.
                for _ in 0..20 {
                    fabric.advance(100 * SECOND_NS);
                }
                fabric.link(0, 1, 1);
                let mut reasons = Vec::new();
                for (queue, posted) in order.into_iter().zip(posted) {
                    let Err(error) = posted.and_then(|()| rt.wait(queue, LIMIT)) else {
                        panic!("round {round}: {queue} has lost nothing");
                    };
                    reasons.push(error.to_string());
                    rt.queue_purge(queue, LIMIT).expect("purge");
                }
                for reason in &reasons {
                    let named = ["rank 1", "queue 0 and queue 1 share its pair"];
                    assert!(named.iter().all(|name| reason.contains(name)), "{reason}");
                }
                rt.write(&eight(Rank(2)), Q2, LIMIT).expect("posted");
                rt.wait(Q2, LIMIT).expect("another pair");
                [Q0, Q1].iter().for_each(|queue| until_by_device(rt, Rank(1), *queue));
            }
            meet(rt);
            let came = if rt.rank() == Rank(0) { round } else { get_u64(rt, S0, 8) };
            assert_eq!(came, round, "after the failure it goes on");
            meet(rt);
        }
        assert!(pairs_of(rt, fabric) <= 2);
        meet(rt);
    });
}

fn an_access_to_a_deleted_segment_costs_what_shares_the_pair() {
    run_with_pairs((2, 1), "", |rt, _| {
        make(rt, S0, 8192);
        let peer = Rank(1);
        if rt.rank() == Rank(0) {
            [Q0, Q1].iter().for_each(|queue| until_by_device(rt, peer, *queue));
        }
        make(rt, S1, 8192);
        meet(rt);
        if rt.rank() == Rank(1) {
            rt.segment_delete(S1).expect("delete");
        }
        meet(rt);
        if rt.rank() == Rank(0) {
            let t = Transfer { remote: S1, ..eight(peer) };
            let posted = rt.write(&t, Q1, LIMIT);
            let reason = posted.and_then(|()| rt.wait(Q1, LIMIT)).expect_err("it is gone");
            assert!(reason.to_string().contains("segment"), "{reason}");
            rt.queue_purge(Q1, LIMIT).expect("purge");
            let _ = rt.wait(Q0, LIMIT);
            rt.queue_purge(Q0, LIMIT).expect("purge");
            [Q0, Q1].iter().for_each(|queue| until_by_device(rt, peer, *queue));
            rt.segment_delete(S1).expect("delete");
        }
        meet(rt);
    });
}

fn a_queue_that_shares_is_purged_and_deleted_alone() {
    run_with_pairs((2, 1), "", |rt, fabric| {
        make(rt, S0, 1 << 16);
        make_queues(rt);
        let peer = Rank(1 - rt.rank().0);
        ALL.iter().for_each(|queue| until_by_device(rt, peer, *queue));
        meet(rt);
        for round in 1..=20u64 {
            put_u64(rt, S0, 0, round);
            // The one that has the pair, and one that shares it, in turn.
            let (purged, kept) = if round % 2 == 0 { (Q0, Q3) } else { (Q3, Q0) };
            let long = Transfer { size: 4000, remote_offset: 1 << 15, ..eight(peer) };
            for _ in 0..20 {
                rt.write(&eight(peer), kept, LIMIT).expect("posted");
                rt.write(&long, purged, LIMIT).expect("posted");
                let read = Transfer { local_offset: 8192, ..long };
                rt.read(&read, purged, LIMIT).expect("posted");
            }
            rt.queue_purge(purged, LIMIT).expect("purge");
            rt.wait(kept, LIMIT).expect("the other queue has lost nothing");
            assert_eq!(rt.queue_size(purged), Ok(0));
            // What a forgotten read would still write has arrived.
            put_u64(rt, S0, 8192, 1 << 40 | round);
            rt.write(&eight(peer), purged, LIMIT).expect("posted");
            rt.wait(purged, LIMIT).expect("it can be used again");
            meet(rt);
            assert_eq!((get_u64(rt, S0, 8192), get_u64(rt, S0, 8)), (1 << 40 | round, round));
            meet(rt);
        }
        // The queue that has the pair goes, with requests of another one under way.
        for _ in 0..20 {
            rt.write(&eight(peer), Q1, LIMIT).expect("posted");
        }
        rt.queue_delete(Q0).expect("delete");
        rt.wait(Q1, LIMIT).expect("wait");
        assert!(goes_by_device(rt, peer, Q1));
        assert_eq!(rt.queue_create(LIMIT), Ok(Q0));
        assert!(goes_by_device(rt, peer, Q0), "the pair is still there");
        assert_eq!(pairs_of(rt, fabric), 1);
        meet(rt);
    });
}

fn a_purge_waits_for_the_reads_of_a_queue_that_shares() {
    const MARK: u64 = 1 << 40;
    run_with_pairs((2, 1), "time_scale=1", |rt, fabric| {
        make(rt, S0, 16_384);
        if rt.rank() == Rank(0) {
            [Q0, Q1].iter().for_each(|queue| until_by_device(rt, Rank(1), *queue));
        }
        meet(rt);
        for _ in 0..10 {
            if rt.rank() == Rank(0) {
                fabric.link(0, 1, 0);
                let t = Transfer { local_offset: 4096, size: 4000, ..eight(Rank(1)) };
                rt.read(&t, Q1, LIMIT).expect("posted");
                ranks::scope(|scope| {
                    scope.spawn(|| {
                        while rt.queue_size(Q1) != Ok(0) {
                            std::thread::yield_now();
                        }
                        fabric.link(0, 1, 1);
                    });
                    rt.queue_purge(Q1, LIMIT).expect("purge");
                    put_u64(rt, S0, 4096, MARK);
                });
                // Behind the read, on the pair of both.
                rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
                rt.wait(Q0, LIMIT).expect("wait");
                assert_eq!(get_u64(rt, S0, 4096), MARK, "what was forgotten came later");
            }
            meet(rt);
        }
    });
}

fn memory_that_the_device_does_not_take_keeps_the_order_of_a_queue_that_shares() {
    run_with_pairs((2, 1), "", |rt, fabric| {
        let device = rt.rank().0.into();
        make(rt, S0, 8192);
        let peer = Rank(1 - rt.rank().0);
        [Q0, Q1].iter().for_each(|queue| until_by_device(rt, peer, *queue));
        meet(rt);
        fabric.set(device, &format!("max_mr={}", fabric.live(device).regions));
        make(rt, S1, 8192);
        for round in 1..=50u64 {
            // From memory that it takes, from memory that it does not, and again, to one place.
            for (nth, segment) in [S0, S1, S0, S1, S0].into_iter().enumerate() {
                let value = round * 8 + nth as u64;
                let at = 16 + 8 * nth as u64;
                put_u64(rt, segment, at, value);
                for (queue, to) in [(Q0, 4096), (Q1, 4104)] {
                    let t = Transfer {
                        local: segment,
                        local_offset: at,
                        remote_offset: to,
                        ..eight(peer)
                    };
                    rt.write(&t, queue, LIMIT).expect("posted");
                }
            }
            for (queue, id) in [(Q0, 0), (Q1, 1)] {
                let value = round as u32;
                rt.notify(peer, S0, NotificationId(id), value, queue, LIMIT).expect("posted");
            }
            for id in 0..2 {
                rt.notify_waitsome(S0, id, 1, LIMIT).expect("notified");
                assert_eq!(rt.notify_reset(S0, NotificationId(id)), Ok(round as u32));
                let came = get_u64(rt, S0, 4096 + 8 * u64::from(id));
                assert_eq!(came, round * 8 + 4, "round {round}, queue {id}");
            }
            [Q0, Q1].iter().for_each(|queue| rt.wait(*queue, LIMIT).expect("wait"));
            meet(rt);
        }
        fabric.set(device, "max_mr=1000");
        meet(rt);
    });
}

fn a_queue_stays_in_order_when_it_comes_to_a_pair_of_its_own() {
    for _ in 0..10 {
        let (shares, done) = (Barrier::new(3), Barrier::new(2));
        // Rank 1 has both others on another node.
        run_with_pairs((3, 2), "", |rt, fabric| {
            make(rt, S0, 1 << 16);
            meet(rt);
            let me = rt.rank();
            if me == Rank(1) {
                until_by_device(rt, Rank(2), Q0);
                [Q0, Q1].iter().for_each(|queue| until_by_device(rt, Rank(0), *queue));
            }
            meet(rt);
            shares.wait();
            if me == Rank(0) {
                // Each notification finds at least its data, and none overtakes another one.
                let (mut last, mut values) = (0, 0);
                while last < ROUNDS {
                    rt.notify_waitsome(S0, 0, 1, LIMIT).expect("notified");
                    let told = u64::from(rt.notify_reset(S0, NotificationId(0)).expect("reset"));
                    let data = get_u64(rt, S0, 8 * told);
                    assert!(told == 0 || told > last && data == told, "{told}, {last}, {data}");
                    last = last.max(told);
                    values += 1;
                }
                assert!(values > 1, "they came at once");
                done.wait();
            } else if me == Rank(1) {
                let mut own = 0;
                for round in 1..=ROUNDS {
                    let at = 8 * round;
                    put_u64(rt, S0, at, round);
                    let t = Transfer { local_offset: at, remote_offset: at, ..eight(Rank(0)) };
                    rt.write(&t, Q1, LIMIT).expect("posted");
                    rt.notify(Rank(0), S0, NotificationId(0), round as u32, Q1, LIMIT)
                        .expect("posted");
                    if round % 8 == 0 {
                        rt.wait(Q1, LIMIT).expect("wait");
                    }
                    own += u64::from(pairs_of(rt, fabric) == 2);
                }
                rt.wait(Q1, LIMIT).expect("wait");
                assert!(own > 0);
                done.wait();
            }
            // Rank 2 leaves at once, and gives rank 1 a pair.
        });
    }
}

/// Values that a queue writes while its carrier changes.
const ROUNDS: u64 = 2000;

fn what_waits_for_a_pair_that_the_peer_does_not_have_shares_another_one() {
    // Rank 1 has its two pairs with one queue of each other rank.
    run_with_pairs((3, 2), "", |rt, fabric| {
        make(rt, S0, 8192);
        make_queues(rt);
        meet(rt);
        if rt.rank() != Rank(1) {
            rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
            rt.wait(Q0, LIMIT).expect("wait");
        }
        meet(rt);
        if rt.rank() == Rank(0) {
            // This rank has one more, rank 1 has not: what waits for it is not lost.
            put_u64(rt, S0, 0, 77);
            for (nth, queue) in [Q1, Q2, Q3].into_iter().enumerate() {
                let to = 4096 + 8 * nth as u64;
                let t = Transfer { remote_offset: to, ..eight(Rank(1)) };
                rt.write(&t, queue, LIMIT).expect("posted");
            }
            for queue in [Q1, Q2, Q3] {
                rt.wait(queue, LIMIT).expect("it shares the first pair");
            }
        }
        meet(rt);
        if rt.rank() == Rank(1) {
            assert_eq!(pairs_of(rt, fabric), 2);
            for nth in 0..3 {
                assert_eq!(get_u64(rt, S0, 4096 + 8 * nth), 77);
            }
        }
        meet(rt);
    });
}

fn each_queue_ends_by_itself_where_what_waited_together_moves() {
    // As above. Rank 0 has two pairs, so that the second queue waits in the lane of the last one.
    let told = Barrier::new(3);
    run_with_pairs((3, 2), "", |rt, fabric| {
        make(rt, S0, 8192);
        make_queues(rt);
        meet(rt);
        if rt.rank() != Rank(1) {
            rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
            rt.wait(Q0, LIMIT).expect("wait");
        }
        meet(rt);
        told.wait();
        if rt.rank() == Rank(0) {
            // Rank 1 does not answer before both have been waited for.
            fabric.keep(1, 1);
            for queue in [Q3, Q1] {
                rt.write(&eight(Rank(1)), queue, LIMIT).expect("posted");
            }
            for queue in [Q1, Q3] {
                fails!(rt.wait(queue, Timeout::Test), Error::Timeout { .. });
            }
            fabric.keep(1, 0);
            for queue in [Q3, Q1] {
                rt.wait(queue, LIMIT).expect("it shares the first pair");
            }
        }
        told.wait();
        meet(rt);
    });
}

fn a_segment_is_deleted_while_queues_that_share_use_it() {
    run_with_pairs((2, 1), "", |rt, _| {
        make(rt, S0, 8192);
        let peer = Rank(1 - rt.rank().0);
        [Q0, Q1].iter().for_each(|queue| until_by_device(rt, peer, *queue));
        meet(rt);
        for round in 1..=50u64 {
            rt.segment_alloc(S1, 8192, Init::Zeroed).expect("alloc");
            put_u64(rt, S1, 0, round);
            for queue in [Q0, Q1] {
                let to = 4096 + 8 * u64::from(queue.0);
                let t = Transfer { local: S1, remote_offset: to, ..eight(peer) };
                for _ in 0..20 {
                    rt.write(&t, queue, LIMIT).expect("posted");
                }
            }
            // It waits for this rank's own requests on it.
            rt.segment_delete(S1).expect("delete");
            [Q0, Q1].iter().for_each(|queue| rt.wait(*queue, LIMIT).expect("wait"));
            meet(rt);
            for nth in 0..2 {
                assert_eq!(get_u64(rt, S0, 4096 + 8 * nth), round);
            }
            meet(rt);
        }
    });
}

fn the_smallest_send_queue_is_shared() {
    for options in ["max_qp_wr=1,max_inline=0", "max_qp_wr=2,max_inline=1,max_msg_sz=256"] {
        run_with_pairs((2, 1), options, |rt, fabric| {
            make(rt, S0, 8192);
            let peer = Rank(1 - rt.rank().0);
            [Q0, Q1].iter().for_each(|queue| until_by_device(rt, peer, *queue));
            meet(rt);
            exchange(rt, 20);
            assert_eq!(pairs_of(rt, fabric), 1);
            meet(rt);
        });
    }
}

tests! {
    BY_DEVICE:
        a_purge_waits_for_the_reads_of_a_queue_that_shares,
        a_queue_that_shares_is_purged_and_deleted_alone,
        a_segment_is_deleted_while_queues_that_share_use_it,
        a_wait_for_a_queue_that_shares_covers_its_writes,
        all_queues_to_a_peer_share_one_pair,
        an_access_to_a_deleted_segment_costs_what_shares_the_pair,
        the_smallest_send_queue_is_shared,
        threads_with_a_queue_each_share_a_pair;
    VERBS_PAIRS:
        a_queue_stays_in_order_when_it_comes_to_a_pair_of_its_own,
        memory_that_the_device_does_not_take_keeps_the_order_of_a_queue_that_shares;
    VERBS:
        a_pair_that_breaks_fails_all_that_share_it_and_no_other,
        each_queue_ends_by_itself_where_what_waited_together_moves,
        what_waits_for_a_pair_that_the_peer_does_not_have_shares_another_one;
}
