//! Requests that wait behind a device for the stream, and what else waits with them.

use super::verbs::until_carried;
use super::*;
use crate::ranks::run_without_messages;
use gaspi_mock_card::Fabric;
use std::sync::Barrier;

/// Two ranks with a pair for the first queue, messages by TCP, and a segment S2 that no device
/// takes.
fn run_with_memory_of_streams(body: impl Fn(&Runtime, &Fabric) + Sync) {
    run_without_messages(2, "", |rt, fabric| {
        let device = rt.rank().0.into();
        make(rt, S0, 8192);
        make(rt, S1, 8192);
        until_carried(rt, true);
        meet(rt);
        fabric.set(device, &format!("max_mr={}", fabric.live(device).regions));
        make(rt, S2, 8192);
        body(rt, fabric);
        fabric.set(device, "max_mr=1000");
        meet(rt);
    });
}

/// What the device has under way, and behind that what goes by the stream, until it goes on.
fn hold_with_diverted(rt: &Runtime, fabric: &Fabric) {
    fabric.hold(rt.rank().0.into(), 1);
    let peer = Rank(1 - rt.rank().0);
    rt.write(&eight(peer), Q0, LIMIT).expect("posted");
    rt.write(&Transfer { local: S2, remote_offset: 4096, ..eight(peer) }, Q0, LIMIT)
        .expect("posted");
}

fn a_refusal_behind_what_goes_by_the_stream_is_told() {
    let both = Barrier::new(2);
    run_with_memory_of_streams(|rt, fabric| {
        meet(rt);
        if rt.rank() == Rank(1) {
            // It does not hear of the delete before it has notified.
            fabric.keep(1, 1);
            both.wait();
            both.wait();
            // It goes as a message, which the library of rank 0 has to refuse.
            rt.notify(Rank(0), S1, NotificationId(1), 1000, Q0, LIMIT).expect("posted");
            fabric.keep(1, 0);
            rt.wait(Q0, LIMIT).expect("the device of rank 0 has it");
        } else {
            both.wait();
            rt.segment_delete(S1).expect("delete");
            hold_with_diverted(rt, fabric);
            both.wait();
        }
        meet(rt);
        if rt.rank() == Rank(0) {
            for _ in 0..10 {
                fails!(rt.notify_waitsome(S0, 0, 1, Timeout::Test), Error::Timeout { .. });
            }
            fabric.hold(0, 0);
            rt.wait(Q0, LIMIT).expect("wait");
            rt.disconnect(Rank(1), LIMIT).expect("nothing is left in the lane");
        } else {
            soon("the refusal", || rt.wait(Q0, Timeout::Test).is_err());
            rt.queue_purge(Q0, LIMIT).expect("purge");
        }
        meet(rt);
    });
}

fn what_is_purged_before_its_turn_is_not_sent() {
    run_with_memory_of_streams(|rt, fabric| {
        if rt.rank() == Rank(0) {
            put_u64(rt, S2, 0, 77);
            hold_with_diverted(rt, fabric);
            ranks::scope(|scope| {
                scope.spawn(|| {
                    soon("the queue is purged", || rt.queue_size(Q0) == Ok(0));
                    fabric.hold(0, 0);
                });
                rt.queue_purge(Q0, LIMIT).expect("purge");
            });
            put_u64(rt, S2, 0, 0);
            rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
            rt.wait(Q0, LIMIT).expect("the queue can be used again");
        }
        meet(rt);
        assert_eq!(get_u64(rt, S0, 4096), 0, "what was forgotten has come");
        meet(rt);
    });
}

tests! {
    VERBS_PAIRS:
        a_refusal_behind_what_goes_by_the_stream_is_told,
        what_is_purged_before_its_turn_is_not_sent;
}
