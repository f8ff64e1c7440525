//! How pairs of RDMA devices are made, end and are counted.

use super::verbs::{LIMIT_OF_CHANGE, NO_ANSWER, exchange};
use super::*;
use crate::ranks::{run_owned_with_devices, run_with_devices, run_without_messages};
use gaspi_core::Pairs;
use gaspi_mock_card::Fabric;

fn pairs_are_counted_for_tools() {
    run_without_messages(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        assert!(rt.pairs().is_none(), "{:?}", rt.pairs());
        meet(rt);
        exchange(rt, 2);
        let two = Pairs { up: 2, being_made: 0, failed: 0, messages: None };
        assert!(rt.pairs() == Some(two), "{:?}", rt.pairs());
        meet(rt);
        if rt.rank() == Rank(0) {
            fabric.fail(0, 0, 1, NO_ANSWER);
            let _ = rt.write(&eight(Rank(1)), Q0, LIMIT);
            fails!(rt.wait(Q0, LIMIT), Error::RequestFailed { queue: Q0, .. });
            rt.queue_purge(Q0, LIMIT).expect("purge");
        }
        meet(rt);
        // One end has failed, and the other one has heard of it.
        within(LIMIT_OF_CHANGE, "the failure counts at both ends", || {
            while rt.pairs().is_none_or(|pairs| pairs.failed == 0) {
                meet_or_look(rt);
            }
        });
        meet(rt);
        exchange(rt, 2);
        let pairs = rt.pairs().expect("pairs");
        assert!(pairs == Pairs { failed: 1, ..two }, "{pairs:?}");
        meet(rt);
    });
}

/// Has the rank look at what has come.
fn meet_or_look(rt: &Runtime) {
    let _ = rt.notify_waitsome(S0, 65_000, 1, Timeout::Test);
}

fn registrations_that_run_out_after_init_cost_what_needs_them() {
    run_with_devices(2, "", |rt, fabric| {
        let device = rt.rank().0.into();
        make(rt, S0, 8192);
        meet(rt);
        fabric.set(device, &format!("max_mr={}", fabric.live(device).regions));
        meet(rt);
        let made = rt.segment_create(S1, 4096, GroupId::ALL, LIMIT, Init::Zeroed);
        let reason = made.expect_err("no registration is left").to_string();
        assert!(reason.contains("cannot register"), "{reason}");
        meet(rt);
        if rt.rank() == Rank(0) {
            // A pair that is made now needs none of its own.
            rt.write(&eight(Rank(1)), Q1, LIMIT).expect("posted");
            rt.wait(Q1, LIMIT).expect("the read behind the write");
        }
        meet(rt);
        fabric.set(device, "max_mr=1000");
        meet(rt);
        make(rt, S1, 4096);
        exchange(rt, 2);
    });
}

fn a_receive_queue_that_runs_dry_holds_senders_back_and_loses_nothing() {
    const EACH: u32 = 400;
    let dry = run_with_devices(2, "max_srq_wr=16", |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, 1);
        for round in 1..=20 {
            if rt.rank() == Rank(0) {
                for id in 0..EACH {
                    rt.notify(Rank(1), S0, NotificationId(id), round, Q0, LIMIT).expect("posted");
                }
                rt.wait(Q0, LIMIT).expect("wait");
            }
            meet(rt);
            if rt.rank() == Rank(1) {
                for id in 0..EACH {
                    assert_eq!(rt.notify_waitsome(S0, id, 1, LIMIT), Ok(Some(NotificationId(id))));
                    assert_eq!(rt.notify_reset(S0, NotificationId(id)), Ok(round));
                }
            }
            meet(rt);
        }
        fabric.counter(0, "not_ready") + fabric.counter(1, "not_ready")
    });
    assert_ne!(dry[0], 0, "it was never empty");
}

/// How far a pair of two ranks is when one of them ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Ends of it that both devices have, beside those of other pairs.
    ends: u64,
    /// So much later.
    spins: u64,
    messages: MessageCarrier,
}

impl Moment {
    /// At once; with the end of one rank; with both; and later: beside no other pairs, and while
    /// those for messages are made.
    pub(crate) fn all() -> impl Iterator<Item = Moment> {
        let of = |messages| {
            let of = move |spins| (0..3).map(move |ends| Moment { ends, spins, messages });
            [0, 300, 1000, 10_000].into_iter().flat_map(of)
        };
        of(MessageCarrier::Tcp).chain(of(MessageCarrier::Device).take(3))
    }

    pub(crate) fn ask(self, choice: &mut DeviceChoice) {
        choice.messages = self.messages;
    }

    /// Ends of pairs that both devices have.
    pub(crate) fn ends(fabric: &Fabric) -> u64 {
        fabric.live(0).pairs + fabric.live(1).pairs
    }

    /// Waits for it, where there were so many ends before.
    pub(crate) fn wait(self, fabric: &Fabric, before: u64) {
        soon("an end of a pair", || Moment::ends(fabric) >= before + self.ends);
        (0..self.spins).for_each(|_| std::hint::spin_loop());
    }
}

fn a_peer_that_dies_while_a_pair_is_made_is_an_error_and_no_hang() {
    for moment in Moment::all() {
        let begun = std::sync::Barrier::new(2);
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
                    crate::ranks::die(rt);
                    return;
                }
                for _ in 0..5 {
                    let written = rt.write(&eight(Rank(1)), Q0, LIMIT);
                    let waited = rt.wait(Q0, LIMIT);
                    if written.and(waited).is_err() {
                        let _ = rt.queue_purge(Q0, LIMIT);
                    }
                }
                // The death shows, whichever carrier would have had the request.
                within(LIMIT_OF_CHANGE, "the death shows", || {
                    let write = || rt.write(&eight(Rank(1)), Q0, LIMIT);
                    while write().and_then(|()| rt.wait(Q0, LIMIT)).is_ok() {}
                });
                let _ = rt.queue_purge(Q0, LIMIT);
                let _ = rt.term(LIMIT);
            },
        );
    }
}

fn a_device_that_refuses_a_step_of_pairing_costs_its_queue_only() {
    // Setting up, connecting, making ready to send, at either end, and the write that proves the
    // way. The next queue has its pair, and after a purge the same one.
    let made = |device| [1, 2, 3].map(|nth| (device, "modify_qp", nth));
    for (device, call, nth) in [made(0), made(1)].concat().into_iter().chain([(0, "post_send", 1)])
    {
        run_without_messages(2, "", |rt, fabric| {
            make(rt, S0, 8192);
            meet(rt);
            if rt.rank() == Rank(0) {
                fabric.refuse(device, call, nth, 12);
                let written =
                    rt.write(&eight(Rank(1)), Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT));
                fails!(written, Error::RequestFailed { queue: Q0, .. });
                rt.queue_purge(Q0, LIMIT).expect("purge");
                rt.write(&eight(Rank(1)), Q1, LIMIT).expect("posted");
                rt.wait(Q1, LIMIT).expect("the other queue has a pair");
                rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
                rt.wait(Q0, LIMIT).expect("a pair that can be made now");
            }
            meet(rt);
        });
    }
}

fn thousands_of_segments_come_and_go_and_leave_no_object() {
    let rounds = if std::env::var_os("GASPI_TEST_FULL").is_some() { 5000 } else { 1000 };
    run_with_devices(2, "", |rt, fabric| {
        let device = rt.rank().0.into();
        make(rt, S0, 8192);
        exchange(rt, 1);
        // That for messages, with its buffers, may still be made else.
        within(LIMIT_OF_CHANGE, "all pairs", || {
            while rt.pairs().is_none_or(|pairs| pairs.up < 3 || pairs.being_made > 0) {
                meet_or_look(rt);
            }
        });
        for _ in 0..100 {
            meet(rt);
        }
        let before = fabric.live(device);
        for round in 0..rounds {
            make(rt, S1, 4096 + round % 3 * 4096);
            let t = Transfer { remote: S1, ..eight(Rank(1 - rt.rank().0)) };
            rt.write(&t, Q0, LIMIT).expect("posted");
            rt.wait(Q0, LIMIT).expect("wait");
            meet(rt);
            rt.segment_delete(S1).expect("delete");
        }
        assert_eq!(fabric.live(device), before, "after {rounds} segments");
        meet(rt);
    });
}

fn both_ranks_begin_the_pairs_of_all_queues_at_once() {
    let both = std::sync::Barrier::new(2);
    for _ in 0..10 {
        run_without_messages(2, "", |rt, fabric| {
            make(rt, S0, 8192);
            meet(rt);
            both.wait();
            let (me, peer) = (u64::from(rt.rank().0), Rank(1 - rt.rank().0));
            let queues: Vec<QueueId> = (0..rt.queue_num() as u8).map(QueueId).collect();
            for queue in &queues {
                let offset = 4096 + 8 * u64::from(queue.0);
                put_u64(rt, S0, offset, 1000 * (me + 1) + u64::from(queue.0));
                let t =
                    Transfer { local_offset: offset, remote_offset: offset - 2048, ..eight(peer) };
                rt.write(&t, *queue, LIMIT).expect("posted");
            }
            queues.iter().for_each(|queue| rt.wait(*queue, LIMIT).expect("wait"));
            meet(rt);
            for queue in &queues {
                let found = get_u64(rt, S0, 2048 + 8 * u64::from(queue.0));
                assert_eq!(found, 1000 * (2 - me) + u64::from(queue.0));
            }
            // One of each queue, and none of an attempt that was given up.
            let pairs = rt.pairs().expect("pairs");
            assert_eq!((pairs.up, pairs.being_made, pairs.failed), (queues.len() as u32, 0, 0));
            assert_eq!(fabric.live(rt.rank().0.into()).pairs, queues.len() as u64);
            meet(rt);
        });
    }
}

tests! {
    VERBS:
        both_ranks_begin_the_pairs_of_all_queues_at_once,
        a_device_that_refuses_a_step_of_pairing_costs_its_queue_only,
        a_peer_that_dies_while_a_pair_is_made_is_an_error_and_no_hang,
        a_receive_queue_that_runs_dry_holds_senders_back_and_loses_nothing,
        pairs_are_counted_for_tools,
        registrations_that_run_out_after_init_cost_what_needs_them,
        thousands_of_segments_come_and_go_and_leave_no_object;
}
