//! Notifications (GASPI 17.1, 8.3).

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

const fn n(id: u32) -> NotificationId {
    NotificationId(id)
}

fn arguments_are_checked() {
    let config = Config { notification_num: 100, ..Config::default() };
    run_with(2, &config, |rt| {
        make(rt, S0, 64);
        let t = eight(Rank(1));
        fails!(rt.notify(Rank(1), S0, n(0), 0, Q0, LIMIT), Error::NotificationValue);
        fails!(rt.write_notify(&t, n(0), 0, Q0, LIMIT), Error::NotificationValue);
        for id in [100, u32::MAX] {
            fails!(rt.notify(Rank(1), S0, n(id), 1, Q0, LIMIT), Error::NotificationRange { .. });
            fails!(rt.write_notify(&t, n(id), 1, Q0, LIMIT), Error::NotificationRange { .. });
            fails!(rt.read_notify(&t, n(id), Q0, LIMIT), Error::NotificationRange { .. });
            fails!(rt.notify_reset(S0, n(id)), Error::NotificationRange { .. });
            fails!(rt.notify_waitsome(S0, id, 1, LIMIT), Error::NotificationRange { .. });
        }
        fails!(rt.notify_waitsome(S0, 99, 2, LIMIT), Error::NotificationRange { .. });
        fails!(rt.notify_waitsome(S0, 0, 101, LIMIT), Error::NotificationRange { .. });
        fails!(rt.notify_waitsome(S0, 1, u32::MAX, LIMIT), Error::NotificationRange { .. });
        fails!(rt.notify_waitsome(S1, 0, 1, LIMIT), Error::InvalidSegment { .. });
        fails!(rt.notify_reset(S1, n(0)), Error::InvalidSegment { .. });
        fails!(rt.notify(Rank(1), S1, n(0), 1, Q0, LIMIT), Error::InvalidSegment { .. });
        fails!(rt.notify(Rank(2), S0, n(0), 1, Q0, LIMIT), Error::InvalidRank { .. });
        fails!(rt.notify(Rank(1), S0, n(0), 1, QueueId(99), LIMIT), Error::InvalidQueue { .. });
        assert_eq!(rt.notify_waitsome(S0, 0, 0, Timeout::Block), Ok(None));
        meet(rt);
        rt.notify(Rank(1 - rt.rank().0), S0, n(99), u32::MAX, Q0, LIMIT).expect("the last one");
        assert_eq!(rt.notify_waitsome(S0, 0, 100, LIMIT), Ok(Some(n(99))));
        assert_eq!(rt.notify_reset(S0, n(99)), Ok(u32::MAX));
        meet(rt);
    });
}

fn a_job_may_do_without_notifications() {
    let config = Config { notification_num: 0, ..Config::default() };
    run_with(2, &config, |rt| {
        make(rt, S0, 64);
        make(rt, S1, 64);
        let t = Transfer {
            local: S0,
            local_offset: 0,
            rank: Rank(1 - rt.rank().0),
            remote: S1,
            remote_offset: 0,
            size: 8,
        };
        put_u64(rt, S0, 0, 7 + u64::from(rt.rank().0));
        meet(rt);
        rt.write(&t, Q0, LIMIT).expect("write");
        rt.wait(Q0, LIMIT).expect("wait");
        meet(rt);
        assert_eq!(get_u64(rt, S1, 0), 8 - u64::from(rt.rank().0));
        rt.read(&Transfer { remote: S0, local: S1, ..t }, Q0, LIMIT).expect("read");
        rt.wait(Q0, LIMIT).expect("wait");
        rt.atomic_fetch_add(S1, 8, t.rank, 1, LIMIT).expect("atomic");
        fails!(rt.notify(t.rank, S1, n(0), 1, Q0, LIMIT), Error::NotificationRange { .. });
        fails!(rt.write_notify(&t, n(0), 1, Q0, LIMIT), Error::NotificationRange { .. });
        fails!(rt.read_notify(&t, n(0), Q0, LIMIT), Error::NotificationRange { .. });
        fails!(rt.notify_waitsome(S0, 0, 1, LIMIT), Error::NotificationRange { .. });
        fails!(rt.notify_reset(S0, n(0)), Error::NotificationRange { .. });
        meet(rt);
    });
}

fn the_lowest_one_is_found_and_stays_set() {
    run(1, |rt| {
        make(rt, S0, 64);
        for id in [9, 4, 30] {
            rt.notify(Rank(0), S0, n(id), id, Q0, LIMIT).expect("notify");
        }
        for _ in 0..2 {
            assert_eq!(rt.notify_waitsome(S0, 0, 65536, LIMIT), Ok(Some(n(4))));
            assert_eq!(rt.notify_waitsome(S0, 5, 100, LIMIT), Ok(Some(n(9))));
            assert_eq!(rt.notify_waitsome(S0, 10, 21, LIMIT), Ok(Some(n(30))));
            fails!(rt.notify_waitsome(S0, 10, 20, Timeout::Test), Error::Timeout { .. });
            fails!(rt.notify_waitsome(S0, 0, 4, Timeout::Test), Error::Timeout { .. });
        }
        assert_eq!(rt.notify_reset(S0, n(4)), Ok(4));
        assert_eq!(rt.notify_reset(S0, n(4)), Ok(0));
        assert_eq!(rt.notify_waitsome(S0, 0, 65536, LIMIT), Ok(Some(n(9))));
    });
}

fn the_last_value_wins() {
    run(2, |rt| {
        make(rt, S0, 64);
        if rt.rank() == Rank(0) {
            for value in 1..=1000 {
                rt.notify(Rank(1), S0, n(3), value, Q0, LIMIT).expect("notify");
            }
            rt.wait(Q0, LIMIT).expect("wait");
        }
        meet(rt);
        let expected = if rt.rank() == Rank(1) { 1000 } else { 0 };
        assert_eq!(rt.notify_reset(S0, n(3)), Ok(expected));
    });
}

fn of_several_threads_exactly_one_gets_each_value() {
    const VALUES: u32 = 3000;
    let sum = AtomicU64::new(0);
    run(2, |rt| {
        make(rt, S0, 64);
        if rt.rank() == Rank(0) {
            for value in 1..=VALUES {
                rt.notify(Rank(1), S0, n(0), value, Q0, LIMIT).expect("notify");
                rt.notify_waitsome(S0, 1, 1, LIMIT).expect("answer");
                assert_eq!(rt.notify_reset(S0, n(1)), Ok(value), "seen by one thread, once");
                rt.wait(Q0, LIMIT).expect("wait");
            }
            rt.notify(Rank(1), S0, n(2), 1, Q0, LIMIT).expect("the end");
            rt.wait(Q0, LIMIT).expect("wait");
        } else {
            ranks::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        while rt.notify_waitsome(S0, 2, 1, Timeout::Test).is_err() {
                            let value = rt.notify_reset(S0, n(0)).expect("reset");
                            if value != 0 {
                                sum.fetch_add(value.into(), Ordering::Relaxed);
                                rt.notify(Rank(0), S0, n(1), value, Q1, LIMIT).expect("notify");
                                rt.wait(Q1, LIMIT).expect("wait");
                            } else {
                                // Devices of the mock need the cores that all this polling takes:
                                // without it each step waits until a time slice is over.
                                std::thread::yield_now();
                            }
                        }
                    });
                }
            });
        }
        meet(rt);
    });
    let all = u64::from(VALUES) * u64::from(VALUES + 1) / 2;
    assert_eq!(sum.into_inner(), all);
}

fn many_senders_are_all_seen() {
    for size in ranks::sizes(&SIZES) {
        run(size, |rt| {
            make(rt, S0, 64);
            let me = u32::from(rt.rank().0);
            for round in 1..=30 {
                for rank in all(rt) {
                    rt.notify(rank, S0, n(me), round, Q0, LIMIT).expect("notify");
                }
                let mut missing = size;
                while missing > 0 {
                    let first = rt.notify_waitsome(S0, 0, size, LIMIT).expect("notified");
                    assert_eq!(rt.notify_reset(S0, first.expect("some")), Ok(round));
                    missing -= 1;
                }
                rt.wait(Q0, LIMIT).expect("wait");
                meet(rt);
            }
        });
    }
}

fn a_sleeper_is_woken() {
    // Each waits until the other has surely gone to sleep: longer than spinning and yielding last.
    run(2, |rt| {
        make(rt, S0, 64);
        let (me, peer) = (u32::from(rt.rank().0), Rank(1 - rt.rank().0));
        for round in 1..=20 {
            if (round + me) % 2 == 0 {
                fails!(rt.notify_waitsome(S0, 5, 1, Timeout::Millis(3)), Error::Timeout { .. });
                rt.notify(peer, S0, n(0), round, Q0, LIMIT).expect("notify");
                rt.wait(Q0, LIMIT).expect("wait");
            } else {
                within(Duration::from_secs(10), "waking", || {
                    rt.notify_waitsome(S0, 0, 1, Timeout::Block).expect("notified");
                });
                assert_eq!(rt.notify_reset(S0, n(0)), Ok(round));
            }
        }
        meet(rt);
    });
}

fn several_threads_sleep_and_all_are_woken() {
    run(2, |rt| {
        make(rt, S0, 64);
        if rt.rank() == Rank(1) {
            ranks::scope(|scope| {
                for id in 0..4 {
                    scope.spawn(move || {
                        rt.notify_waitsome(S0, id, 1, LIMIT).expect("notified");
                    });
                }
            });
        } else {
            fails!(rt.notify_waitsome(S0, 9, 1, Timeout::Millis(20)), Error::Timeout { .. });
            for id in 0..4 {
                rt.notify(Rank(1), S0, n(id), 1, Q0, LIMIT).expect("notify");
            }
            rt.wait(Q0, LIMIT).expect("wait");
        }
        meet(rt);
    });
}

fn read_notify_announces_data_that_has_arrived() {
    run(2, |rt| {
        make(rt, S0, 64);
        put_u64(rt, S0, 8, 70 + u64::from(rt.rank().0));
        meet(rt);
        for rank in all(rt) {
            rt.read_notify(&eight(rank), n(6), Q0, LIMIT).expect("read");
            assert_eq!(rt.notify_waitsome(S0, 6, 1, LIMIT), Ok(Some(n(6))));
            assert_eq!(rt.notify_reset(S0, n(6)), Ok(1));
            assert_eq!(get_u64(rt, S0, 0), 70 + u64::from(rank.0));
        }
        rt.wait(Q0, LIMIT).expect("wait");
        meet(rt);
    });
}

fn polling_one_notification_is_cheap() {
    run(2, |rt| {
        make(rt, S0, 64);
        // A guard against a wait or a system call per look, not a benchmark.
        within(AT_ONCE, "a million looks", || {
            for _ in 0..1_000_000 {
                assert!(rt.notify_waitsome(S0, 3, 1, Timeout::Test).is_err());
            }
        });
        meet(rt);
    });
}

tests! {
    EVERY:
        arguments_are_checked,
        a_job_may_do_without_notifications,
        the_lowest_one_is_found_and_stays_set,
        the_last_value_wins,
        of_several_threads_exactly_one_gets_each_value,
        many_senders_are_all_seen,
        a_sleeper_is_woken,
        several_threads_sleep_and_all_are_woken,
        read_notify_announces_data_that_has_arrived;
    REAL:
        polling_one_notification_is_cheap;
    SEVERAL:
        many_senders_are_all_seen;
}
