//! What only ranks with RDMA devices have: their limits and failures, and when a write is done.

use super::*;
use crate::ranks::{run_with_devices, run_with_prepared};

/// Bytes in flight both ways on every queue; all of them are checked.
pub(crate) fn exchange(rt: &Runtime, rounds: u64) {
    let (me, peer) = (u64::from(rt.rank().0), Rank(1 - rt.rank().0));
    for round in 1..=rounds {
        for queue in [Q0, Q1] {
            let at = 2048 * u64::from(queue.0);
            put_u64(rt, S0, at, round * 16 + me);
            let t = Transfer {
                local: S0,
                local_offset: at,
                rank: peer,
                remote: S0,
                remote_offset: 4096 + at,
                size: 1000,
            };
            let id = NotificationId(queue.0.into());
            rt.write_notify(&t, id, round as u32, queue, LIMIT).expect("posted");
        }
        for queue in [Q0, Q1] {
            let id = u32::from(queue.0);
            rt.notify_waitsome(S0, id, 1, LIMIT).expect("notified");
            assert_eq!(rt.notify_reset(S0, NotificationId(id)), Ok(round as u32));
            let came = get_u64(rt, S0, 4096 + 2048 * u64::from(queue.0));
            assert_eq!(came, round * 16 + (1 - me), "data comes before its notification");
            rt.wait(queue, LIMIT).expect("wait");
        }
        meet(rt);
    }
}

fn a_device_with_the_smallest_limits_carries_everything() {
    for options in [
        "max_qp_wr=1,max_inline=0",
        "max_qp_wr=2,max_inline=1,max_msg_sz=256",
        "max_qp_wr=3,max_msg_sz=300,max_qp_rd_atom=1,max_qp_init_rd_atom=1",
        "max_srq_wr=1024,max_cqe=1024,max_sge=1,mtu=1",
    ] {
        run_with_devices(2, options, |rt, _| {
            make(rt, S0, 8192);
            exchange(rt, 20);
        });
    }
}

fn a_write_and_a_small_notification_are_one_request() {
    let id = NotificationId(65_535);
    run_with_devices(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, 2);
        for (value, together) in [(1, 10), (255, 10), (256, 0), (u32::MAX, 0)] {
            if rt.rank() == Rank(0) {
                let before = fabric.counter(0, "write_imm");
                for _ in 0..10 {
                    rt.write_notify(&eight(Rank(1)), id, value, Q0, LIMIT).expect("posted");
                }
                rt.wait(Q0, LIMIT).expect("wait");
                assert_eq!(fabric.counter(0, "write_imm") - before, together, "{value}");
            }
            meet(rt);
            if rt.rank() == Rank(1) {
                assert_eq!(rt.notify_reset(S0, id), Ok(value));
            }
            meet(rt);
        }
    });
}

fn a_notification_that_came_for_a_deleted_segment_does_not_reach_the_next_one() {
    let written = std::sync::Barrier::new(2);
    run_with_devices(2, "", |rt, _| {
        for _ in 0..100 {
            make(rt, S0, 8192);
            meet(rt);
            if rt.rank() == Rank(0) {
                for id in (0..20).map(NotificationId) {
                    rt.write_notify(&eight(Rank(1)), id, 1, Q0, LIMIT).expect("posted");
                }
                rt.wait(Q0, LIMIT).expect("wait");
            }
            // They have arrived, and as a rule nobody has looked at all of them.
            written.wait();
            if rt.rank() == Rank(1) {
                rt.segment_delete(S0).expect("delete");
                rt.segment_alloc(S0, 8192, Init::Zeroed).expect("alloc");
                for _ in 0..10 {
                    fails!(rt.notify_waitsome(S0, 0, 20, Timeout::Test), Error::Timeout { .. });
                }
            }
            meet(rt);
            rt.segment_delete(S0).expect("delete");
            meet(rt);
        }
    });
}

fn a_wait_ends_when_the_data_is_in_the_memory_of_the_target() {
    // Bytes stay in the device until something has it place them; a barrier by streams does not.
    run_with_devices(2, "placement=2", |rt, _| {
        make(rt, S0, 8192);
        for round in 1..=50 {
            if rt.rank() == Rank(0) {
                put_u64(rt, S0, 0, round);
                rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
                rt.wait(Q0, LIMIT).expect("wait");
            }
            meet(rt);
            if rt.rank() == Rank(1) {
                assert_eq!(get_u64(rt, S0, 8), round);
            }
            meet(rt);
        }
    });
}

const FIRST_TOLD: u32 = 1000;
/// As verbs number it: retries exceeded.
pub(crate) const NO_ANSWER: u32 = 12;

fn threads_that_write_and_wait_at_once_leave_nothing_under_way() {
    const EACH: u64 = 10_000;
    run_with_devices(3, "", |rt, _| {
        make(rt, S0, 64);
        make(rt, S1, 64);
        if rt.rank() == Rank(0) {
            // Each wait ends what both have posted, and each write may be the first one behind it.
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    scope.spawn(move || {
                        let at = 8 * thread;
                        for value in 1..=EACH {
                            let peer = Rank(1 + (value % 2) as u16);
                            put_u64(rt, S0, at, value);
                            let (local_offset, remote_offset) = (at, at);
                            let t =
                                Transfer { remote: S1, local_offset, remote_offset, ..eight(peer) };
                            rt.write(&t, Q0, LIMIT).expect("posted");
                            rt.wait(Q0, LIMIT).expect("wait");
                        }
                    });
                }
            });
            assert_eq!(rt.queue_size(Q0), Ok(0));
            rt.wait(Q0, Timeout::Test).expect("nothing is left");
        }
        meet(rt);
        let last = [0, EACH, EACH - 1][usize::from(rt.rank().0)];
        for thread in 0..2 {
            assert_eq!(get_u64(rt, S1, 8 * thread), last);
        }
        meet(rt);
    });
}

fn a_request_that_the_device_fails_costs_its_queue_and_target_only() {
    let told = std::sync::Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, 3);
        for round in 1..=20 {
            if rt.rank() == Rank(1) {
                // They have arrived, and nobody has looked at them.
                for id in FIRST_TOLD..FIRST_TOLD + 100 {
                    rt.notify(Rank(0), S0, NotificationId(id), round, Q0, LIMIT).expect("posted");
                }
                rt.wait(Q0, LIMIT).expect("wait");
            }
            told.wait();
            if rt.rank() == Rank(0) {
                fabric.fail(0, 0, 1, NO_ANSWER);
                // Whichever request the device fails, both ends of its pair know it.
                let t = Transfer { size: 1024, remote_offset: 2048, ..eight(Rank(1)) };
                rt.write(&t, Q0, LIMIT).expect("posted");
                match rt.wait(Q0, LIMIT) {
                    Err(Error::RequestFailed { queue: Q0, reason, .. }) => {
                        assert!(reason.contains("rank 1"), "{reason}");
                        assert!(reason.contains("does not answer"), "{reason}");
                    }
                    other => panic!("{other:?}"),
                }
                rt.queue_purge(Q0, LIMIT).expect("purge");
                for id in FIRST_TOLD..FIRST_TOLD + 100 {
                    let came = rt.notify_reset(S0, NotificationId(id));
                    assert_eq!(came, Ok(round), "of the other direction nothing is lost");
                }
            }
            meet(rt);
            // The next requests make a new pair; the other queue has lost nothing.
            exchange(rt, 2);
        }
    });
}

fn a_queue_without_a_pair_is_an_error_and_no_hang() {
    // One pair, which the first queue has with one peer.
    let options = ("max_qp=1", &Config::default());
    run_with_prepared(
        3,
        options,
        |_| (),
        |choice| (choice.pairs, choice.messages) = (Some(100), MessageCarrier::Tcp),
        |rt, _| {
            make(rt, S0, 8192);
            if rt.rank() == Rank(1) {
                rt.write(&eight(Rank(0)), Q0, LIMIT).expect("posted");
                rt.wait(Q0, LIMIT).expect("the first pair");
            }
            meet(rt);
            // Refused when it is posted, or by the peer's word.
            if rt.rank() != Rank(1) {
                let t = eight(Rank(2 - rt.rank().0));
                let refused = rt.write(&t, Q1, LIMIT).and_then(|()| rt.wait(Q1, LIMIT));
                let refused = refused.expect_err("no pair with it, and none to share");
                assert!(refused.to_string().contains("the device has no more pairs"), "{refused}");
                rt.queue_purge(Q1, LIMIT).expect("purge");
            }
            meet(rt);
            if rt.rank() != Rank(2) {
                let t = eight(Rank(1 - rt.rank().0));
                for queue in [Q0, Q1] {
                    rt.write(&t, queue, LIMIT).expect("posted");
                    rt.wait(queue, LIMIT).expect("the first pair still works, for both queues");
                }
            }
            meet(rt);
        },
    );
}

fn the_network_is_that_of_the_device() {
    for (link_layer, network) in [(1, Network::InfiniBand), (2, Network::Roce)] {
        let found = run_with_devices(2, &format!("link_layer={link_layer}"), |rt, _| rt.network());
        assert_eq!(found, [network; 2]);
    }
}

fn a_network_that_is_not_there_is_an_error_of_init() {
    let refused = |job: Job, network| {
        let config = Config { network: Some(network), ..Config::default() };
        match PendingInit::new(job, config) {
            Err(error @ Error::Config { field: "network", .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    run_with_devices(1, "link_layer=2", |rt, _| {
        let job = |transport| {
            let mut job = Job::in_process("asks", Rank(0), 2).on_node(0);
            (job.transport, job.device) = (transport, rt.job().device.clone());
            job
        };
        let with_device = Config { network: Some(Network::Roce), ..Config::default() };
        for transport in [Transport::Auto, Transport::Verbs] {
            let reason = refused(job(transport), Network::InfiniBand);
            assert!(reason.contains("InfiniBand") && reason.contains("is RoCE"), "{reason}");
            PendingInit::new(job(transport), with_device.clone()).expect("it is there");
            let mut missing = job(transport);
            missing.device.library = Some("/nowhere/libibverbs.so".into());
            let reason = refused(missing, Network::Roce);
            assert!(reason.contains("RoCE") && reason.contains("/nowhere/"), "{reason}");
        }
        let reason = refused(job(Transport::Verbs), Network::Ethernet);
        assert!(reason.contains("GASPI_TRANSPORT is verbs"), "{reason}");
        let reason = refused(job(Transport::Tcp), Network::Roce);
        assert!(reason.contains("GASPI_TRANSPORT is tcp"), "{reason}");
    });
}

fn memory_that_the_device_does_not_take_is_an_error_with_its_remedy() {
    // What messages need, and some segments.
    run_with_devices(2, "max_registered=6000000", |rt, _| {
        make(rt, S0, 8192);
        let made = rt.segment_create(S1, 16 << 20, GroupId::ALL, LIMIT, Init::Uninitialized);
        let reason = made.expect_err("more than the device takes").to_string();
        assert!(reason.contains("ulimit -l"), "{reason}");
        exchange(rt, 2);
        // Deleted memory is given back: this one fits again and again.
        for _ in 0..50 {
            make(rt, S2, 2 << 20);
            rt.segment_delete(S2).expect("delete");
            meet(rt);
        }
    });
}

fn segments_come_and_go_under_the_writes_of_a_peer() {
    run_with_devices(2, "", |rt, _| {
        make(rt, S0, 8192);
        for round in 0..300 {
            let t = Transfer { remote: S1, ..eight(Rank(1)) };
            if rt.rank() == Rank(1) {
                rt.segment_alloc(S1, 4096, Init::Zeroed).expect("alloc");
                rt.segment_register(S1, Rank(0), LIMIT).expect("register");
                meet(rt);
                rt.segment_delete(S1).expect("delete");
            } else {
                meet(rt);
                // It meets the segment, or its end.
                let posted = rt.write(&t, Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT));
                if let Err(error) = posted {
                    assert!(error.to_string().contains("deleted"), "round {round}: {error}");
                    rt.queue_purge(Q0, LIMIT).expect("purge");
                }
            }
            meet(rt);
        }
        exchange(rt, 2);
    });
}

/// Memory that a device with this option does not take, beside what it does.
const LITTLE: &str = "max_registered=6000000,placement=2";
pub(crate) const LARGE: u64 = 16 << 20;
const N1: NotificationId = NotificationId(1);

/// Requests that this rank's device has carried.
fn carried(rt: &Runtime) -> u64 {
    counted(rt, "NumberOfRequestsVerbs")
}

pub(crate) fn counted(rt: &Runtime, name: &str) -> u64 {
    let named = |counter: &u32| Runtime::statistic_info(*counter).is_some_and(|it| it.name == name);
    let counter = (0..rt.statistic_num()).find(named).expect("it is counted");
    rt.statistic_get(counter, 0).expect("counter")
}

/// Writes to the other rank and waits, again and again, until its device carries that, or does not
/// any more; what is lost on the way is an error of its queue.
pub(crate) fn until_carried(rt: &Runtime, by_device: bool) {
    let peer = Rank(1 - rt.rank().0);
    within(LIMIT_OF_CHANGE, "another carrier", || {
        let mut same = 0;
        while same < 3 {
            let before = carried(rt);
            let done = rt.write(&eight(peer), Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT));
            if done.is_err() {
                rt.queue_purge(Q0, LIMIT).expect("purge");
            }
            let seen = (carried(rt) > before) == by_device && done.is_ok();
            same = if seen { same + 1 } else { 0 };
        }
    });
}

pub(crate) const LIMIT_OF_CHANGE: std::time::Duration = std::time::Duration::from_secs(60);

fn a_port_that_goes_leaves_data_to_streams_until_it_is_back() {
    run_with_devices(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        for _ in 0..3 {
            until_carried(rt, true);
            meet(rt);
            if rt.rank() == Rank(0) {
                fabric.port(0, 0);
                until_carried(rt, false);
            }
            meet(rt);
            if rt.rank() == Rank(0) {
                fabric.port(0, 1);
            }
            meet(rt);
        }
        until_carried(rt, true);
        meet(rt);
    });
}

fn a_device_that_fails_leaves_data_to_streams() {
    run_with_devices(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        until_carried(rt, true);
        meet(rt);
        if rt.rank() == Rank(0) {
            fabric.fatal(0, 0);
        }
        until_carried(rt, false);
        meet(rt);
        // Of one that works again nothing is expected.
        let peer = Rank(1 - rt.rank().0);
        for _ in 0..20 {
            rt.write(&eight(peer), Q1, LIMIT).expect("posted");
            rt.wait(Q1, LIMIT).expect("wait");
        }
        meet(rt);
    });
}

fn writes_beyond_the_send_queue_need_no_further_call() {
    let arrived = std::sync::Barrier::new(2);
    run_with_devices(2, "", |rt, _| {
        make(rt, S0, 8192);
        // The pair is up.
        exchange(rt, 2);
        for round in 1..=20 {
            let last = round * 1000 + 500;
            if rt.rank() == Rank(0) {
                for place in 0..500 {
                    let offset = 4096 + 8 * (place % 8);
                    put_u64(rt, S0, offset, round * 1000 + place);
                    let t =
                        Transfer { local_offset: offset, remote_offset: offset, ..eight(Rank(1)) };
                    rt.write(&t, Q0, LIMIT).expect("posted");
                }
                put_u64(rt, S0, 0, last);
                rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
            } else {
                // Nobody makes a call that would look after the device.
                within(LIMIT_OF_CHANGE, "the last write", || {
                    while get_u64(rt, S0, 8) != last {
                        std::thread::yield_now();
                    }
                });
            }
            arrived.wait();
            rt.wait(Q0, LIMIT).expect("wait");
            meet(rt);
        }
    });
}

fn a_rank_that_computes_holds_no_sender_of_notifications_back() {
    let sent = std::sync::Barrier::new(2);
    run_with_devices(2, "", |rt, _| {
        make(rt, S0, 8192);
        for _ in 0..3 {
            if rt.rank() == Rank(0) {
                // More than there are buffers for.
                for _ in 0..4 {
                    for value in 1..=1000 {
                        rt.notify(Rank(1), S0, N1, value, Q0, LIMIT).expect("posted");
                    }
                    rt.wait(Q0, LIMIT).expect("the other rank makes no call");
                }
            }
            // Without a call of the library.
            sent.wait();
            meet(rt);
        }
    });
}

fn what_the_device_does_not_carry_goes_by_the_stream_in_its_turn() {
    run_with_devices(2, LITTLE, |rt, _| {
        let peer = Rank(1 - rt.rank().0);
        make(rt, S0, 1 << 16);
        // Its memory is known to no device, at neither end.
        make(rt, S1, LARGE);
        meet(rt);
        for round in 1..=200u64 {
            let me = u64::from(rt.rank().0);
            for at in 0..8 {
                put_u64(rt, S0, at * 4096, round * 100 + at * 10 + me);
                put_u64(rt, S1, at * 4096, round * 100 + at * 10 + me);
            }
            // By turns, one behind the other, to places of both kinds.
            for at in 0..8 {
                let (local, remote) = match (round + at) % 4 {
                    0 => (S0, S1),
                    1 => (S1, S0),
                    2 => (S1, S1),
                    _ => (S0, S0),
                };
                let (local_offset, remote_offset) = (at * 4096, 32768 + at * 4096);
                let size = if at % 3 == 0 { 8 } else { 3000 };
                let t = Transfer { local, local_offset, rank: peer, remote, remote_offset, size };
                if at == 7 {
                    rt.write_notify(&t, N1, round as u32, Q0, LIMIT).expect("posted");
                } else {
                    rt.write(&t, Q0, LIMIT).expect("posted");
                }
            }
            let of = if (round + 7) % 4 == 1 || (round + 7) % 4 == 3 { S0 } else { S1 };
            rt.notify_waitsome(of, 1, 1, LIMIT).expect("notified");
            assert_eq!(rt.notify_reset(of, N1), Ok(round as u32));
            for at in 0..8 {
                let to = if matches!((round + at) % 4, 1 | 3) { S0 } else { S1 };
                let came = get_u64(rt, to, 32768 + at * 4096);
                assert_eq!(came, round * 100 + at * 10 + (1 - me), "round {round}, place {at}");
            }
            if round % 3 == 0 {
                rt.wait(Q0, LIMIT).expect("wait");
            }
            meet(rt);
        }
        rt.wait(Q0, LIMIT).expect("wait");
        meet(rt);
        let carried = carried(rt);
        assert!(carried > 10, "the device has carried {carried} requests");
    });
}

fn reads_of_both_kinds_keep_their_turn() {
    run_with_devices(2, LITTLE, |rt, _| {
        let peer = Rank(1 - rt.rank().0);
        make(rt, S0, 1 << 16);
        make(rt, S1, LARGE);
        for round in 1..=100u64 {
            for segment in [S0, S1] {
                put_u64(rt, segment, 0, round * 10 + u64::from(segment.0));
            }
            meet(rt);
            for at in 0..4u64 {
                let (local, remote) = if at % 2 == 0 { (S0, S0) } else { (S0, S1) };
                let local_offset = 8192 + 4096 * at;
                let t = Transfer {
                    local,
                    local_offset,
                    rank: peer,
                    remote,
                    remote_offset: 0,
                    size: 4096,
                };
                rt.read(&t, Q0, LIMIT).expect("posted");
            }
            rt.wait(Q0, LIMIT).expect("wait");
            for at in 0..4u64 {
                let from = if at % 2 == 0 { S0 } else { S1 };
                let came = get_u64(rt, S0, 8192 + 4096 * at);
                assert_eq!(came, round * 10 + u64::from(from.0));
            }
            meet(rt);
        }
    });
}

fn requests_are_counted_where_they_went() {
    run_with_devices(2, LITTLE, |rt, _| {
        let peer = Rank(1 - rt.rank().0);
        make(rt, S0, 1 << 16);
        make(rt, S1, LARGE);
        until_carried(rt, true);
        let both = || [carried(rt), counted(rt, "NumberOfRequestsTcp")];
        let before = both();
        for _ in 0..50 {
            // The second one follows the first while that may be under way by the device.
            for segment in [S0, S1] {
                let t = Transfer { local: segment, remote: segment, ..eight(peer) };
                rt.write(&t, Q0, LIMIT).expect("posted");
            }
            rt.wait(Q0, LIMIT).expect("wait");
        }
        let after = both();
        let [by_device, by_stream] = [after[0] - before[0], after[1] - before[1]];
        assert_eq!(by_device + by_stream, 100);
        assert!(by_stream >= 50, "no device takes S1; {by_device} by it");
        meet(rt);
    });
}

tests! {
    VERBS_PAIRS:
        requests_are_counted_where_they_went,
        a_port_that_goes_leaves_data_to_streams_until_it_is_back,
        a_device_that_fails_leaves_data_to_streams,
        what_the_device_does_not_carry_goes_by_the_stream_in_its_turn,
        reads_of_both_kinds_keep_their_turn;
    VERBS:
        a_device_with_the_smallest_limits_carries_everything,
        a_notification_that_came_for_a_deleted_segment_does_not_reach_the_next_one,
        a_write_and_a_small_notification_are_one_request,
        a_network_that_is_not_there_is_an_error_of_init,
        a_queue_without_a_pair_is_an_error_and_no_hang,
        a_rank_that_computes_holds_no_sender_of_notifications_back,
        writes_beyond_the_send_queue_need_no_further_call,
        threads_that_write_and_wait_at_once_leave_nothing_under_way,
        a_request_that_the_device_fails_costs_its_queue_and_target_only,
        a_wait_ends_when_the_data_is_in_the_memory_of_the_target,
        memory_that_the_device_does_not_take_is_an_error_with_its_remedy,
        segments_come_and_go_under_the_writes_of_a_peer,
        the_network_is_that_of_the_device;
}
