//! Threads that sleep until a device has done something.

use super::budgets::until_by_device;
use super::*;
use crate::ranks::{now, run_with_prepared, run_without_messages};
use gaspi_mock_card::Fabric;

/// Longer than a thread looks before it sleeps.
fn pass_time_to_sleep() {
    let until = now() + Duration::from_millis(20);
    while now() < until {
        std::thread::yield_now();
    }
}

/// One that has posted sleeps until its only request has ended, which `meanwhile` lets go on.
fn sleeps_on_one_write(meanwhile: impl Fn(&Runtime, &Fabric) + Sync) {
    let over = std::sync::Barrier::new(2);
    // So that nothing is posted behind the write.
    let ask = |choice: &mut DeviceChoice| {
        (choice.write_end, choice.messages) = (WriteEnd::Ack, MessageCarrier::Tcp);
    };
    run_with_prepared(
        2,
        ("", &Config::default()),
        |_| (),
        ask,
        |rt, fabric| {
            make(rt, S0, 64);
            if rt.rank() == Rank(0) {
                for queue in [Q0, Q1] {
                    until_by_device(rt, Rank(1), queue);
                }
                for _ in 0..10 {
                    fabric.hold(0, 1);
                    std::thread::scope(|scope| {
                        let sleeps = scope.spawn(|| {
                            // The first one has the thread post without a lock.
                            rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
                            within(AT_ONCE, "the wake", || rt.wait(Q0, LIMIT)).expect("wait");
                        });
                        pass_time_to_sleep();
                        assert!(!sleeps.is_finished(), "what is held has ended");
                        meanwhile(rt, fabric);
                        sleeps.join().expect("no panic");
                    });
                }
            }
            over.wait();
            meet(rt);
        },
    );
}

fn a_thread_that_sleeps_on_one_write_is_woken() {
    sleeps_on_one_write(|_, fabric| fabric.hold(0, 0));
}

/// Both pairs complete in one queue, from which another thread takes too.
fn a_thread_is_woken_whoever_takes_its_completion() {
    sleeps_on_one_write(|rt, fabric| {
        rt.write(&eight(Rank(1)), Q1, LIMIT).expect("posted");
        let waits = || rt.wait(Q1, Timeout::Test);
        fails!(waits(), Error::Timeout { .. });
        fabric.hold(0, 0);
        fabric.settle();
        soon("the other write has ended", || waits().is_ok());
    });
}

/// They are for the program, which looks when it wants to know.
fn notifications_wake_nobody_while_the_program_computes() {
    const WARM_UP: u32 = 4;
    const MORE: u32 = 10;
    let both = std::sync::Barrier::new(2);
    run_without_messages(2, "", |rt, fabric| {
        make(rt, S0, 64);
        if rt.rank() == Rank(0) {
            until_by_device(rt, Rank(1), Q0);
        }
        meet(rt);
        // From here on rank 1 computes.
        both.wait();
        if rt.rank() == Rank(0) {
            let notify = |id| {
                pass_time_to_sleep();
                let transfer = eight(Rank(1));
                rt.write_notify(&transfer, NotificationId(id), 1, Q0, LIMIT).expect("posted");
                rt.wait(Q0, LIMIT).expect("wait");
            };
            let woken = || fabric.counter(1, "events");
            // A thread that slept before may have asked for the next thing that comes.
            (0..WARM_UP).for_each(notify);
            let before = woken();
            (WARM_UP..WARM_UP + MORE).for_each(notify);
            assert_eq!(woken() - before, 0, "of {MORE} notifications");
        }
        both.wait();
        if rt.rank() == Rank(1) {
            for id in 0..WARM_UP + MORE {
                let came = rt.notify_waitsome(S0, id, 1, LIMIT).expect("it has come");
                assert_eq!(came, Some(NotificationId(id)));
            }
        }
        meet(rt);
    });
}

tests! {
    VERBS:
        notifications_wake_nobody_while_the_program_computes;
    BY_DEVICE:
        a_thread_is_woken_whoever_takes_its_completion,
        a_thread_that_sleeps_on_one_write_is_woken;
}
