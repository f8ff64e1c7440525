//! Devices that fail, and messages that they carry.

use super::budgets::until_by_device;
use super::verbs::{LARGE, LIMIT_OF_CHANGE, NO_ANSWER, exchange};
use super::*;
use crate::ranks::{run_with_devices, run_with_prepared, run_without_messages};
use gaspi_mock_card::Fabric;
use std::sync::Barrier;

/// Two ranks whose devices carry messages.
fn run_with_messages(body: impl Fn(&Runtime, &Fabric) + Sync) {
    run_with_messages_on("", body);
}

/// The same with these options of the devices.
fn run_with_messages_on(devices: &str, body: impl Fn(&Runtime, &Fabric) + Sync) {
    let options = (devices, &Config::default());
    let by_device = |choice: &mut DeviceChoice| choice.messages = MessageCarrier::Device;
    run_with_prepared(2, options, |_| (), by_device, body);
}

/// Adds to a word of the other rank until a device has carried the message, or until it was done.
fn add_by_device(rt: &Runtime, fabric: &Fabric) {
    let (peer, device) = (Rank(1 - rt.rank().0), rt.rank().0.into());
    within(LIMIT_OF_CHANGE, "messages by the device", || {
        loop {
            let before = fabric.counter(device, "solicited");
            let added = rt.atomic_fetch_add(S0, 0, peer, 1, LIMIT);
            if added.is_ok() && fabric.counter(device, "solicited") > before {
                break;
            }
        }
    });
}

fn messages_go_by_devices() {
    run_with_messages(|rt, fabric| {
        make(rt, S0, 8192);
        add_by_device(rt, fabric);
        meet(rt);
        let device = rt.rank().0.into();
        let before = fabric.counter(device, "solicited");
        for _ in 0..100 {
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        }
        let sent = fabric.counter(device, "solicited") - before;
        assert!(sent >= 100, "{sent} messages for 100 barriers");
        meet(rt);
    });
}

/// The answer is the last that comes by the device, as its rank does nothing else.
fn a_read_of_nothing_is_over_though_nothing_follows_its_answer() {
    let (quiet, id) = (std::sync::Barrier::new(2), NotificationId(1));
    run_with_messages_on("max_registered=15000000", |rt, fabric| {
        make(rt, S0, 8192);
        // No device takes it, so that reads go by the connection, which a device carries.
        make(rt, S1, LARGE);
        add_by_device(rt, fabric);
        meet(rt);
        if rt.rank() == Rank(0) {
            let nothing = Transfer { local: S1, remote: S1, size: 0, ..eight(Rank(1)) };
            let before = fabric.counter(1, "solicited");
            for round in 0..2000 {
                // Reads of nothing are carried out at once unless they follow another request. That
                // has often been answered before this one comes.
                rt.notify(Rank(1), S1, id, 1, Q0, LIMIT).expect("posted");
                (0..round % 100 * 20).for_each(|_| std::hint::spin_loop());
                rt.read_notify(&nothing, id, Q0, LIMIT).expect("posted");
                rt.wait(Q0, LIMIT).expect("wait");
                assert_eq!(rt.notify_reset(S1, id), Ok(1));
            }
            let answers = fabric.counter(1, "solicited") - before;
            assert!(answers > 0, "the device carried no answer");
        }
        quiet.wait();
        meet(rt);
    });
}

fn messages_survive_pairs_that_fail() {
    let done = std::sync::Barrier::new(2);
    run_with_messages(|rt, fabric| {
        make(rt, S0, 8192);
        meet(rt);
        if rt.rank() == Rank(0) {
            let add = || rt.atomic_fetch_add(S0, 0, Rank(1), 1, LIMIT);
            for _ in 0..3 {
                add_by_device(rt, fabric);
                fabric.fail(0, 0, 1, NO_ANSWER);
                within(LIMIT_OF_CHANGE, "a message behind it", || while add().is_err() {});
            }
            // From then on TCP has them.
            let before = fabric.counter(0, "solicited");
            for _ in 0..50 {
                add().expect("by TCP");
            }
            assert_eq!(fabric.counter(0, "solicited"), before, "pairs that will fail too");
        }
        done.wait();
        meet(rt);
    });
}

fn a_wait_for_a_notification_outlasts_a_pair_that_failed() {
    let broken = std::sync::Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, 2);
        for round in 1..=10 {
            if rt.rank() == Rank(0) {
                broken.wait();
                fabric.fail(0, 0, 1, NO_ANSWER);
                rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
                fails!(rt.wait(Q0, LIMIT), Error::RequestFailed { queue: Q0, .. });
                rt.queue_purge(Q0, LIMIT).expect("purge");
                rt.notify(Rank(1), S0, NotificationId(1), round, Q0, LIMIT).expect("posted");
                rt.wait(Q0, LIMIT).expect("wait");
            } else {
                // As over TCP: it waits for memory, and the other rank hears of the failure.
                broken.wait();
                assert_eq!(rt.notify_waitsome(S0, 1, 1, LIMIT), Ok(Some(NotificationId(1))));
                assert_eq!(rt.notify_reset(S0, NotificationId(1)), Ok(round));
            }
            meet(rt);
        }
    });
}

fn each_error_of_a_completion_costs_a_queue_and_names_the_peer() {
    run_with_devices(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, 1);
        // All but that of a flush, which follows another one.
        for status in [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 20, 21] {
            if rt.rank() == Rank(0) {
                fabric.fail(0, 0, 1, status);
                rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
                let Err(Error::RequestFailed { queue: Q0, reason, .. }) = rt.wait(Q0, LIMIT) else {
                    panic!("status {status} is no failure");
                };
                assert!(reason.contains("rank 1"), "{status}: {reason}");
                rt.queue_purge(Q0, LIMIT).expect("purge");
            }
            meet(rt);
            exchange(rt, 1);
        }
    });
}

/// Though the peer has told of the end before the rank has looked.
fn a_rank_hears_from_its_own_device_what_has_ended_a_pair() {
    let both = Barrier::new(2);
    run_with_messages(|rt, fabric| {
        make(rt, S0, 8192);
        let peer = Rank(1 - rt.rank().0);
        for round in 0..20 {
            until_by_device(rt, peer, Q0);
            make(rt, S1, 8192);
            meet(rt);
            if rt.rank() == Rank(1) {
                both.wait();
                rt.segment_delete(S1).expect("delete");
                // The access has the device flush this.
                fabric.hold(1, 1);
                rt.write(&eight(peer), Q0, LIMIT).expect("posted");
                both.wait();
                both.wait();
                fabric.hold(1, 0);
                // On a loaded machine the device may be done with it before the access comes.
                let outcome = rt.wait(Q0, LIMIT);
                let fits = matches!(outcome, Ok(()) | Err(Error::RequestFailed { .. }));
                assert!(fits, "{outcome:?}");
                both.wait();
            } else {
                // It hears neither of the delete nor of what its device tells.
                fabric.keep(0, 1);
                both.wait();
                both.wait();
                rt.write(&Transfer { remote: S1, ..eight(peer) }, Q0, LIMIT).expect("posted");
                both.wait();
                both.wait();
                fabric.keep(0, 0);
                let reason = rt.wait(Q0, LIMIT).expect_err("it is gone").to_string();
                assert!(reason.contains("refuses the access"), "round {round}: {reason}");
                rt.segment_delete(S1).expect("delete");
            }
            rt.queue_purge(Q0, LIMIT).expect("purge");
            meet(rt);
        }
    });
}

/// It only flushes the requests, which alone tells of no failure of its own.
fn a_failure_of_a_pair_that_the_device_reports_is_the_reason_of_what_it_flushes() {
    let done = Barrier::new(2);
    run_without_messages(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        let peer = Rank(1);
        if rt.rank() == Rank(0) {
            for _ in 0..20 {
                until_by_device(rt, peer, Q0);
                fabric.hold(0, 1);
                rt.write(&eight(peer), Q0, LIMIT).expect("posted");
                fabric.break_told(0, 1);
                fabric.hold(0, 0);
                let reason = rt.wait(Q0, LIMIT).expect_err("it is flushed").to_string();
                let told = reason.contains("reports a failure of the queue pair");
                assert!(told && !reason.contains("other end"), "{reason}");
                rt.queue_purge(Q0, LIMIT).expect("purge");
            }
        }
        done.wait();
        meet(rt);
    });
}

fn a_post_that_the_device_refuses_costs_its_queue_only() {
    run_without_messages(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, 1);
        for nth in 1..=20 {
            if rt.rank() == Rank(0) {
                until_by_device(rt, Rank(1), Q0);
                fabric.refuse(0, "post_send", nth, 12);
                let mut posted = Ok(());
                for _ in 0..30 {
                    let t = Transfer { size: 1000, remote_offset: 2048, ..eight(Rank(1)) };
                    posted = posted.and_then(|()| rt.write(&t, Q0, LIMIT));
                }
                let done = posted.and_then(|()| rt.wait(Q0, LIMIT));
                fails!(done, Error::RequestFailed { queue: Q0, .. });
                rt.queue_purge(Q0, LIMIT).expect("purge");
            }
            meet(rt);
            exchange(rt, 1);
        }
    });
}

fn a_post_that_is_refused_is_never_lost_in_silence() {
    run_without_messages(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, 1);
        if rt.rank() == Rank(0) {
            // Whatever is posted behind it, and whoever looks when.
            for round in 0..3000u64 {
                rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
                rt.wait(Q0, LIMIT).expect("a pair that is up");
                fabric.refuse(0, "post_send", round % 8 + 1, 12);
                let write = || rt.write(&eight(Rank(1)), Q0, LIMIT);
                let posted = (0..8).try_for_each(|_| write());
                let done = posted.and_then(|()| rt.wait(Q0, LIMIT));
                assert!(matches!(done, Err(Error::RequestFailed { .. })), "{round}: {done:?}");
                rt.queue_purge(Q0, LIMIT).expect("purge");
            }
        }
        meet(rt);
    });
}

/// Until a call has told of the loss, or a purge has forgotten it, nothing arrives that was posted
/// behind it.
fn what_is_posted_behind_a_loss_does_not_arrive_before_that_was_told() {
    let id = NotificationId(9);
    run_without_messages(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        meet(rt);
        for round in 1..=10 {
            if rt.rank() == Rank(0) {
                until_by_device(rt, Rank(1), Q0);
                fabric.fail(0, 0, 1, NO_ANSWER);
                rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
                soon("its pair is taken down", || {
                    // Every second time the progress thread does that.
                    if round % 2 == 0 {
                        fails!(rt.notify_waitsome(S0, 0, 1, Timeout::Test), Error::Timeout { .. });
                    }
                    rt.pairs().is_some_and(|pairs| pairs.failed == round)
                });
                // It is refused, or fails with the other one.
                let _ = rt.notify(Rank(1), S0, id, 7, Q0, LIMIT);
                fails!(rt.wait(Q0, LIMIT), Error::RequestFailed { queue: Q0, .. });
                rt.queue_purge(Q0, LIMIT).expect("purge");
            }
            meet(rt);
            if rt.rank() == Rank(1) {
                assert_eq!(rt.notify_reset(S0, id), Ok(0), "behind what was lost");
            }
            meet(rt);
            if rt.rank() == Rank(0) {
                rt.notify(Rank(1), S0, id, 8, Q0, LIMIT).expect("posted");
                rt.wait(Q0, LIMIT).expect("wait");
            } else {
                rt.notify_waitsome(S0, id.0, 1, LIMIT).expect("notified");
                assert_eq!(rt.notify_reset(S0, id), Ok(8));
            }
        }
        meet(rt);
    });
}

/// Writes until that is an error, of the device, and has the queue forget it.
fn until_the_device_has_failed(rt: &Runtime) {
    let write = || rt.write(&eight(Rank(1)), Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT));
    let mut done = Ok(());
    within(LIMIT_OF_CHANGE, "an error", || {
        while done.is_ok() {
            done = write();
        }
    });
    let reason = done.expect_err("it failed").to_string();
    assert!(reason.contains("this rank's device has failed"), "{reason}");
    rt.queue_purge(Q0, LIMIT).expect("purge");
}

fn a_device_whose_completions_cannot_be_had_has_failed() {
    run_without_messages(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        for _ in 0..5 {
            // Also by pairs that were made after the device has failed.
            exchange(rt, 1);
            if rt.rank() == Rank(0) {
                fabric.refuse(0, "poll_cq", 1, 5);
                until_the_device_has_failed(rt);
            }
            meet(rt);
            for queue in [Q0, Q1] {
                rt.queue_purge(queue, LIMIT).expect("purge");
            }
            meet(rt);
        }
    });
}

fn a_device_whose_completions_can_never_be_had_again_fails_each_request() {
    run_without_messages(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, 1);
        if rt.rank() == Rank(0) {
            for nth in 1..=100_000 {
                fabric.refuse(0, "poll_cq", nth, 5);
            }
            (0..5).for_each(|_| until_the_device_has_failed(rt));
        }
        meet(rt);
    });
}

fn a_queue_is_purged_with_requests_under_way() {
    run_with_devices(2, "", |rt, _| {
        make(rt, S0, 1 << 16);
        let peer = Rank(1 - rt.rank().0);
        for _ in 0..30 {
            // Both at once, and the first time while the pair is made.
            for place in 0..40 {
                let offset = 16384 + 1024 * place;
                let t = Transfer { size: 1000, remote_offset: offset, ..eight(peer) };
                rt.write(&t, Q0, LIMIT).expect("posted");
            }
            rt.queue_purge(Q0, LIMIT).expect("purge");
            assert_eq!(rt.queue_size(Q0), Ok(0));
            meet(rt);
            exchange(rt, 1);
        }
    });
}

fn memory_that_one_device_does_not_take_is_an_error_of_all_and_costs_one_segment() {
    let options = ("", &Config::default());
    let prepare = |fabric: &gaspi_mock_card::Fabric| fabric.set(1, "max_registered=6000000");
    run_with_prepared(
        2,
        options,
        prepare,
        |_| (),
        |rt, _| {
            make(rt, S0, 8192);
            let made = rt.segment_create(S1, LARGE, GroupId::ALL, LIMIT, Init::Uninitialized);
            let reason = made.expect_err("more than a device takes").to_string();
            assert!(reason.contains("ulimit -l"), "{reason}");
            meet(rt);
            make(rt, S2, 8192);
            exchange(rt, 2);
        },
    );
}

tests! {
    BY_DEVICE:
        a_failure_of_a_pair_that_the_device_reports_is_the_reason_of_what_it_flushes,
        what_is_posted_behind_a_loss_does_not_arrive_before_that_was_told;
    VERBS:
        a_device_whose_completions_can_never_be_had_again_fails_each_request,
        a_device_whose_completions_cannot_be_had_has_failed,
        a_post_that_is_refused_is_never_lost_in_silence,
        a_post_that_the_device_refuses_costs_its_queue_only,
        a_queue_is_purged_with_requests_under_way,
        a_rank_hears_from_its_own_device_what_has_ended_a_pair,
        a_wait_for_a_notification_outlasts_a_pair_that_failed,
        each_error_of_a_completion_costs_a_queue_and_names_the_peer,
        memory_that_one_device_does_not_take_is_an_error_of_all_and_costs_one_segment,
        messages_go_by_devices;
    VERBS_PAIRS:
        a_read_of_nothing_is_over_though_nothing_follows_its_answer,
        messages_survive_pairs_that_fail;
}
