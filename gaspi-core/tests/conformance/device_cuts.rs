//! What comes between devices: cuts, other networks, and ends of what requests are on their way to.

use super::budgets::{carried, goes_by_device, pairs_of, until_by_device};
use super::device_pairs::Moment;
use super::device_returns::{failed, link, while_cut};
use super::verbs::{LIMIT_OF_CHANGE, exchange};
use super::*;
use crate::ranks::{
    others, run_owned_with_devices, run_with_devices, run_with_prepared, run_without_messages,
};
use gaspi_mock_card::Fabric;
use std::net::Ipv4Addr;
use std::sync::Barrier;

/// Time passes only as tests say.
const OWN_TIME: &str = "time_scale=0";
const SECOND_NS: u64 = 1_000_000_000;

fn a_cut_that_retries_outlast_costs_nothing() {
    let cut = Barrier::new(2);
    run_without_messages(2, OWN_TIME, |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, 1);
        for round in 1..=10u64 {
            cut.wait();
            if rt.rank() == Rank(0) {
                fabric.link(0, 1, 0);
                put_u64(rt, S0, 0, round);
                rt.write_notify(&eight(Rank(1)), NotificationId(1), 1, Q0, LIMIT).expect("posted");
                // Less than half of GASPI_DEAD_AFTER, which all tries together outlast.
                for _ in 0..2 {
                    fabric.advance(SECOND_NS);
                    fabric.settle();
                    fails!(rt.wait(Q0, Timeout::Test), Error::Timeout { .. });
                }
                fabric.link(0, 1, 1);
                fabric.advance(30 * SECOND_NS);
                rt.wait(Q0, LIMIT).expect("tried again");
            } else {
                rt.notify_waitsome(S0, 1, 1, LIMIT).expect("it comes after the cut");
                assert_eq!(rt.notify_reset(S0, NotificationId(1)), Ok(1));
                assert_eq!(get_u64(rt, S0, 8), round);
            }
        }
        meet(rt);
    });
}

fn a_longer_cut_costs_what_was_under_way_there() {
    let cut = Barrier::new(3);
    run_without_messages(3, OWN_TIME, |rt, fabric| {
        make(rt, S0, 8192);
        for peer in others(rt) {
            rt.write(&eight(peer), Q0, LIMIT).expect("posted");
        }
        rt.wait(Q0, LIMIT).expect("wait");
        meet(rt);
        for _ in 0..5 {
            if rt.rank() == Rank(0) {
                fabric.link(0, 1, 0);
                rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
                rt.write(&eight(Rank(2)), Q0, LIMIT).expect("posted");
                // As often as there are tries, each with its own limit.
                for _ in 0..20 {
                    fabric.advance(100 * SECOND_NS);
                }
                let done = rt.wait(Q0, LIMIT);
                let Err(Error::RequestFailed { queue: Q0, failed: 1 | 2, reason, .. }) = done
                else {
                    panic!("{done:?}");
                };
                assert!(reason.contains("rank 1") && reason.contains("answer"), "{reason}");
                rt.queue_purge(Q0, LIMIT).expect("purge");
                fabric.link(0, 1, 1);
            }
            cut.wait();
            meet(rt);
            for peer in others(rt) {
                rt.write(&eight(peer), Q0, LIMIT).expect("posted");
            }
            rt.wait(Q0, LIMIT).expect("all are reached again");
            meet(rt);
        }
    });
}

/// TCP has the data meanwhile. Nothing but time tells that the cut is over, and only rank 0 uses
/// the queue, whichever rank has found that there is no answer.
fn a_queue_comes_back_after_a_cut_that_has_refused_its_pair() {
    run_without_messages(2, OWN_TIME, |rt, fabric| {
        make(rt, S0, 8192);
        for finder in 0..2 {
            meet(rt);
            if rt.rank() != Rank(0) {
                continue;
            }
            until_by_device(rt, Rank(1), Q0);
            let before = failed(rt);
            let fails = |what, count| {
                soon(what, || {
                    goes_by_device(rt, Rank(1), Q0);
                    failed(rt) >= before + count
                });
            };
            while_cut(
                rt,
                fabric,
                (link, 0),
                || (),
                || {
                    fails("the pair", 1);
                    // The other one polls nothing.
                    fabric.stop(1 - finder, 1);
                    fails("an attempt at the next one", 2);
                    fabric.stop(1 - finder, 0);
                },
            );
            fabric.link(0, 1, 1);
            let write = || rt.write(&eight(Rank(1)), Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT));
            let carried_before = carried(rt);
            within(LIMIT_OF_CHANGE, "a pair", || {
                while carried(rt) == carried_before {
                    write().expect("by TCP, or by the device");
                }
            });
        }
        meet(rt);
    });
}

fn what_was_purged_fails_in_silence() {
    run_without_messages(2, OWN_TIME, |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, 1);
        if rt.rank() == Rank(0) {
            until_by_device(rt, Rank(1), Q0);
            let pairs = pairs_of(rt, fabric);
            fabric.link(0, 1, 0);
            rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
            rt.queue_purge(Q0, LIMIT).expect("purge");
            for _ in 0..20 {
                fabric.advance(100 * SECOND_NS);
            }
            fabric.link(0, 1, 1);
            soon("its pair is taken down", || pairs_of(rt, fabric) < pairs);
            // What failed with a pair shows before another one is used.
            until_by_device(rt, Rank(1), Q0);
            assert_eq!(rt.state(Rank(1)), Ok(State::Healthy), "after a failure of nobody");
        }
        meet(rt);
    });
}

fn all_that_is_flushed_at_once_finds_room_in_the_completion_queues() {
    const QUEUES: std::ops::Range<u8> = 0..8;
    run_without_messages(2, "time_scale=0,max_cqe=256", |rt, fabric| {
        make(rt, S0, 8192);
        let write = |queue| rt.write(&eight(Rank(1)), QueueId(queue), LIMIT).expect("posted");
        if rt.rank() == Rank(0) {
            for queue in QUEUES {
                write(queue);
                rt.wait(QueueId(queue), LIMIT).expect("its pair is up");
            }
            fabric.link(0, 1, 0);
            for queue in QUEUES {
                (0..100).for_each(|_| write(queue));
            }
            // Nobody takes completions meanwhile.
            fabric.stop(0, 1);
            for _ in 0..20 {
                fabric.advance(100 * SECOND_NS);
            }
            fabric.link(0, 1, 1);
            fabric.stop(0, 0);
            for queue in QUEUES {
                let reason = rt.wait(QueueId(queue), LIMIT).expect_err("it was cut").to_string();
                assert!(reason.contains("answer"), "queue {queue}: {reason}");
                rt.queue_purge(QueueId(queue), LIMIT).expect("purge");
                write(queue);
                rt.wait(QueueId(queue), LIMIT).expect("it is reached again");
            }
        }
        meet(rt);
    });
}

fn a_segment_is_deleted_under_the_writes_of_several_peers() {
    let ready = Barrier::new(4);
    run_with_devices(4, "", |rt, _| {
        make(rt, S0, 8192);
        for round in 0..30 {
            if rt.rank() == Rank(0) {
                rt.segment_alloc(S1, 4096, Init::Zeroed).expect("alloc");
                for peer in others(rt) {
                    rt.segment_register(S1, peer, LIMIT).expect("register");
                }
                ready.wait();
                rt.segment_delete(S1).expect("delete");
            } else {
                ready.wait();
                let t = Transfer { remote: S1, ..eight(Rank(0)) };
                let mut done = Ok(());
                for _ in 0..50 {
                    done = done.and_then(|()| rt.write(&t, Q0, LIMIT));
                }
                if let Err(error) = done.and_then(|()| rt.wait(Q0, LIMIT)) {
                    let told = error.to_string();
                    assert!(told.contains("deleted"), "round {round}: {told}");
                    rt.queue_purge(Q0, LIMIT).expect("purge");
                }
            }
            ready.wait();
            // Between the writers nothing was lost.
            for peer in others(rt) {
                rt.write(&eight(peer), Q1, LIMIT).expect("posted");
            }
            rt.wait(Q1, LIMIT).expect("another queue");
            meet(rt);
        }
    });
}

fn a_queue_is_deleted_with_requests_under_way() {
    run_with_devices(2, "", |rt, _| {
        make(rt, S0, 1 << 16);
        let peer = Rank(1 - rt.rank().0);
        for _ in 0..30 {
            let queue = rt.queue_create(LIMIT).expect("create");
            for place in 0..40 {
                let offset = 16384 + 1024 * place;
                let t = Transfer { size: 1000, remote_offset: offset, ..eight(peer) };
                rt.write(&t, queue, LIMIT).expect("posted");
            }
            if let Err(error) = rt.queue_delete(queue) {
                assert!(error.to_string().contains("wait"), "{error}");
                rt.wait(queue, LIMIT).expect("wait");
                rt.queue_delete(queue).expect("nothing is under way");
            }
            meet(rt);
            exchange(rt, 1);
        }
    });
}

fn a_rank_on_another_network_costs_the_requests_to_it() {
    let by_tcp = |choice: &mut DeviceChoice| choice.messages = MessageCarrier::Tcp;
    let options = ("link_layer=2", &Config::default());
    run_with_prepared(
        3,
        options,
        |fabric| fabric.set(2, "link_layer=1"),
        by_tcp,
        |rt, _| {
            make(rt, S0, 8192);
            let peer = Rank(if rt.rank() == Rank(0) { 1 } else { 0 });
            if rt.rank() == Rank(2) {
                let done = rt.write(&eight(peer), Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT));
                let reason = done.expect_err("there is no way").to_string();
                let words = ["rank 0", "InfiniBand", "RoCE"];
                assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
                rt.queue_purge(Q0, LIMIT).expect("purge");
            } else {
                rt.write(&eight(peer), Q0, LIMIT).expect("posted");
                rt.wait(Q0, LIMIT).expect("between the others there is one");
            }
            meet(rt);
        },
    );
}

/// The address of the only GID of rank 0's port, which no other device has.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 16, 98, 1);

/// The GID goes from its place, and comes back at the next one. Nothing fails meanwhile.
fn lose_gid(rt: &Runtime, fabric: &Fabric, [place, next]: [u32; 2]) {
    let carries_messages = || rt.pairs().and_then(|pairs| pairs.messages) == Some(1);
    until_by_device(rt, Rank(1), Q0);
    within(LIMIT_OF_CHANGE, "messages by the device", || {
        while !carries_messages() {
            rt.ping(Rank(1), LIMIT).expect("it answers");
        }
    });
    let before = failed(rt);
    fabric.gid(0, place, 2, None);
    within(LIMIT_OF_CHANGE, "it is noticed", || while carries_messages() {});
    let write = || {
        let before = carried(rt);
        rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
        rt.wait(Q0, LIMIT).expect("a write fails");
        carried(rt) > before
    };
    for _ in 0..10 {
        assert!(!write(), "by the device, without a GID");
    }
    fabric.gid(0, next, 2, Some(ADDRESS.to_ipv6_mapped().octets()));
    within(LIMIT_OF_CHANGE, "the device again", || while !write() {});
    // That for messages has ended with the GID; where that has moved, those of the queue and of the
    // rank with itself too.
    let ends = failed(rt) - before;
    assert!(ends <= if next == place { 1 } else { 3 }, "{ends} pairs have ended");
}

fn data_goes_by_tcp_while_the_port_has_no_gid() {
    const GIDS: u32 = 8;
    let gid = ADDRESS.to_ipv6_mapped().octets();
    let only = |fabric: &Fabric| {
        (0..GIDS).for_each(|at| fabric.gid(0, at, 2, Some(gid).filter(|_| at == 3)));
    };
    let ask = |choice: &mut DeviceChoice| choice.messages = MessageCarrier::Device;
    run_with_prepared(2, ("by_gid=1", &Config::default()), only, ask, |rt, fabric| {
        make(rt, S0, 8192);
        for places in [[3, 3], [3, 5], [5, 2]] {
            meet(rt);
            if rt.rank() == Rank(0) {
                lose_gid(rt, fabric, places);
            }
            meet(rt);
        }
    });
}

fn a_peer_that_leaves_while_a_pair_is_made_is_an_error_and_no_hang() {
    for moment in Moment::all() {
        let begun = Barrier::new(2);
        let options = ("", &Config::default());
        run_owned_with_devices(
            2,
            options,
            |_| (),
            |choice| moment.ask(choice),
            |rt, fabric| {
                make(&rt, S0, 8192);
                meet(&rt);
                let before = Moment::ends(fabric);
                begun.wait();
                if rt.rank() == Rank(1) {
                    moment.wait(fabric, before);
                    rt.term(LIMIT).expect("it leaves in order");
                    return;
                }
                within(LIMIT_OF_CHANGE, "its end shows", || {
                    let write = || rt.write(&eight(Rank(1)), Q0, LIMIT);
                    while write().and_then(|()| rt.wait(Q0, LIMIT)).is_ok() {}
                });
                let _ = rt.queue_purge(Q0, LIMIT);
                let _ = rt.term(LIMIT);
            },
        );
    }
}

tests! {
    VERBS:
        a_cut_that_retries_outlast_costs_nothing,
        a_longer_cut_costs_what_was_under_way_there,
        a_peer_that_leaves_while_a_pair_is_made_is_an_error_and_no_hang,
        a_queue_is_deleted_with_requests_under_way,
        a_rank_on_another_network_costs_the_requests_to_it,
        a_segment_is_deleted_under_the_writes_of_several_peers,
        all_that_is_flushed_at_once_finds_room_in_the_completion_queues,
        what_was_purged_fails_in_silence;
    VERBS_PAIRS:
        a_queue_comes_back_after_a_cut_that_has_refused_its_pair,
        data_goes_by_tcp_while_the_port_has_no_gid;
}
