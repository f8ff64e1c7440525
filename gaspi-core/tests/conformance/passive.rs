//! Passive messages (GASPI 17.1, 9).

use super::*;
use ranks::Barrier;

fn arguments_are_checked() {
    let config = Config { passive_transfer_size_max: 100, ..Config::default() };
    run_with(2, &config, |rt| {
        rt.segment_alloc(S0, 64, Init::Zeroed).expect("alloc");
        rt.segment_alloc(S1, 1024, Init::Zeroed).expect("alloc");
        fails!(rt.passive_send(S2, 0, Rank(1), 8, LIMIT), Error::InvalidSegment { .. });
        fails!(rt.passive_send(S0, 64, Rank(1), 8, LIMIT), Error::LocalOffset { .. });
        fails!(rt.passive_send(S0, 60, Rank(1), 8, LIMIT), Error::CommSize { .. });
        fails!(rt.passive_send(S1, 0, Rank(1), 101, LIMIT), Error::CommSize { .. });
        fails!(rt.passive_send(S1, 0, Rank(1), u64::MAX, LIMIT), Error::CommSize { .. });
        fails!(rt.passive_send(S1, 0, Rank(2), 8, LIMIT), Error::InvalidRank { .. });
        fails!(rt.passive_receive(S2, 0, 8, LIMIT), Error::InvalidSegment { .. });
        fails!(rt.passive_receive(S0, 64, 8, LIMIT), Error::LocalOffset { .. });
        fails!(rt.passive_receive(S0, 60, 8, LIMIT), Error::CommSize { .. });
        fails!(rt.passive_receive(S1, 0, 1024, Timeout::Test), Error::Timeout { .. });
        meet(rt);
    });
}

fn everybody_sends_to_one_receiver() {
    for size in ranks::sizes(&SIZES) {
        run(size, |rt| {
            rt.segment_alloc(S0, 65536, Init::Zeroed).expect("alloc");
            rt.segment_alloc(S1, 65536, Init::Zeroed).expect("alloc");
            let me = u64::from(rt.rank().0);
            ranks::scope(|scope| {
                scope.spawn(|| {
                    for message in 0..20 {
                        put_u64(rt, S0, 0, me * 1000 + message);
                        let bytes = 8 + 97 * message;
                        rt.passive_send(S0, 0, Rank(0), bytes, LIMIT).expect("send");
                    }
                });
                if me == 0 {
                    let mut next = vec![0; size as usize];
                    for _ in 0..20 * size {
                        let from = rt.passive_receive(S1, 0, 65536, LIMIT).expect("receive");
                        let expected = u64::from(from.0) * 1000 + next[from.index()];
                        assert_eq!(get_u64(rt, S1, 0), expected, "in order, once");
                        next[from.index()] += 1;
                    }
                }
            });
            meet(rt);
        });
    }
}

fn a_send_returns_only_after_the_receive() {
    let (sent, received) = (Barrier::new(2), std::sync::atomic::AtomicBool::new(false));
    run(2, |rt| {
        use std::sync::atomic::Ordering;
        rt.segment_alloc(S0, 64, Init::Zeroed).expect("alloc");
        if rt.rank() == Rank(0) {
            let test =
                within(AT_ONCE, "TEST", || rt.passive_send(S0, 0, Rank(1), 8, Timeout::Test));
            fails!(test, Error::Timeout { .. });
            let short = rt.passive_send(S0, 0, Rank(1), 8, Timeout::Millis(30));
            fails!(short, Error::Timeout { .. });
            sent.wait();
            rt.passive_send(S0, 0, Rank(1), 8, LIMIT).expect("continued");
            assert!(received.load(Ordering::SeqCst));
        } else {
            sent.wait();
            received.store(true, Ordering::SeqCst);
            assert_eq!(rt.passive_receive(S0, 0, 8, LIMIT), Ok(Rank(0)));
            let again = rt.passive_receive(S0, 0, 8, Timeout::Millis(20));
            fails!(again, Error::Timeout { .. });
        }
        meet(rt);
    });
}

fn a_message_that_does_not_fit_is_left_for_a_larger_receive() {
    let posted = Barrier::new(3);
    run(3, |rt| {
        rt.segment_alloc(S0, 64, Init::Zeroed).expect("alloc");
        put_u64(rt, S0, 0, u64::from(rt.rank().0));
        match rt.rank() {
            Rank(0) => {
                posted.wait();
                // Rank 1's message of 32 bytes does not fit and does not hide rank 2's of 8.
                assert_eq!(rt.passive_receive(S0, 0, 8, LIMIT), Ok(Rank(2)));
                assert_eq!(get_u64(rt, S0, 0), 2);
                fails!(rt.passive_receive(S0, 0, 31, Timeout::Millis(20)), Error::Timeout { .. });
                assert_eq!(get_u64(rt, S0, 0), 2, "a receive that timed out writes nothing");
                assert_eq!(rt.passive_receive(S0, 0, 32, LIMIT), Ok(Rank(1)));
            }
            rank => {
                let size = if rank == Rank(1) { 32 } else { 8 };
                let send = |timeout| rt.passive_send(S0, 0, Rank(0), size, timeout);
                fails!(send(Timeout::Test), Error::Timeout { .. });
                posted.wait();
                send(LIMIT).expect("continued");
            }
        }
        meet(rt);
    });
}

fn a_receive_that_timed_out_never_writes_into_its_buffer() {
    let timed_out = Barrier::new(2);
    run(2, |rt| {
        rt.segment_alloc(S0, 64, Init::Zeroed).expect("alloc");
        rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
        if rt.rank() == Rank(0) {
            fails!(rt.passive_receive(S0, 0, 64, Timeout::Millis(10)), Error::Timeout { .. });
            timed_out.wait();
            assert_eq!(rt.passive_receive(S1, 0, 64, LIMIT), Ok(Rank(1)));
            assert_eq!((get_u64(rt, S0, 0), get_u64(rt, S1, 0)), (0, 6));
        } else {
            timed_out.wait();
            put_u64(rt, S0, 0, 6);
            rt.passive_send(S0, 0, Rank(0), 64, LIMIT).expect("send");
        }
        meet(rt);
    });
}

fn pending_messages_delay_no_other_traffic() {
    for size in ranks::sizes(&[3]) {
        run(size, |rt| {
            make(rt, S0, 64);
            if rt.rank() != Rank(0) {
                fails!(rt.passive_send(S0, 0, Rank(0), 8, Timeout::Test), Error::Timeout { .. });
            }
            for _ in 0..300 / size {
                for rank in all(rt) {
                    rt.write_notify(&eight(rank), NotificationId(0), 1, Q0, LIMIT).expect("write");
                    rt.atomic_fetch_add(S0, 16, rank, 1, LIMIT).expect("atomic");
                }
                rt.wait(Q0, LIMIT).expect("wait");
                meet(rt);
            }
            rt.passive_queue_purge(LIMIT).expect("purge");
            meet(rt);
            fails!(rt.passive_receive(S0, 0, 64, Timeout::Test), Error::Timeout { .. });
            meet(rt);
        });
    }
}

fn a_message_to_oneself_works_from_two_threads() {
    run(1, |rt| {
        rt.segment_alloc(S0, 64, Init::Zeroed).expect("alloc");
        rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
        ranks::scope(|scope| {
            scope.spawn(|| {
                for message in 0..200 {
                    put_u64(rt, S0, 0, message);
                    rt.passive_send(S0, 0, Rank(0), 8, LIMIT).expect("send");
                }
            });
            for message in 0..200 {
                assert_eq!(rt.passive_receive(S1, 0, 8, LIMIT), Ok(Rank(0)));
                assert_eq!(get_u64(rt, S1, 0), message);
            }
        });
    });
}

fn several_threads_send_and_receive_and_none_is_lost_or_seen_twice() {
    const MESSAGES: u64 = 200;
    run(2, |rt| {
        rt.segment_alloc(S0, 1024, Init::Zeroed).expect("alloc");
        rt.segment_alloc(S1, 1024, Init::Zeroed).expect("alloc");
        let seen = std::sync::Mutex::new(Vec::new());
        ranks::scope(|scope| {
            for thread in 0..3u64 {
                let seen = &seen;
                scope.spawn(move || {
                    for message in 0..MESSAGES {
                        if rt.rank() == Rank(0) {
                            let at = 64 * thread;
                            put_u64(rt, S0, at, thread * MESSAGES + message);
                            rt.passive_send(S0, at, Rank(1), 8, LIMIT).expect("send");
                        } else {
                            let at = 64 * thread;
                            rt.passive_receive(S1, at, 64, LIMIT).expect("receive");
                            seen.lock().expect("lock").push(get_u64(rt, S1, at));
                        }
                    }
                });
            }
        });
        if rt.rank() == Rank(1) {
            let mut seen = seen.into_inner().expect("lock");
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..3 * MESSAGES));
        }
        meet(rt);
    });
}

fn a_message_to_a_rank_that_ended_is_an_error() {
    let ready = Barrier::new(3);
    run_owned(3, &Config::default(), |rt| {
        rt.segment_alloc(S0, 64, Init::Zeroed).expect("alloc");
        // Nobody is still on the way when one of them ends.
        ready.wait();
        match rt.rank() {
            Rank(1) => die(rt),
            Rank(2) => rt.term(LIMIT).expect("term"),
            _ => {
                let died = rt.passive_send(S0, 0, Rank(1), 8, Timeout::Block);
                fails!(died, Error::RankDied { rank: Rank(1), .. });
                let left = rt.passive_send(S0, 0, Rank(2), 8, Timeout::Block);
                fails!(left, Error::RankLeft { rank: Rank(2), .. });
                assert_eq!(rt.state(Rank(1)), Ok(State::Corrupt));
                assert_eq!(rt.state(Rank(2)), Ok(State::Healthy));
            }
        }
    });
}

fn more_messages_than_the_outbox_holds() {
    // 64 may be under way: further ones wait, and go once there is room.
    run(2, |rt| {
        rt.segment_alloc(S0, 64, Init::Zeroed).expect("alloc");
        for round in 0..200 {
            if rt.rank() == Rank(0) {
                put_u64(rt, S0, 0, round);
                fails!(rt.passive_send(S0, 0, Rank(1), 8, Timeout::Test), Error::Timeout { .. });
                rt.passive_queue_purge(LIMIT).expect("purge");
            }
        }
        meet(rt);
        fails!(rt.passive_receive(S0, 0, 64, Timeout::Test), Error::Timeout { .. });
        meet(rt);
    });
}

fn what_was_taken_back_is_received_by_nobody_who_hears_of_it() {
    run(3, |rt| {
        make(rt, S0, 64);
        let hear = || {
            rt.notify_waitsome(S0, 0, 1, LIMIT).expect("notified");
            rt.notify_reset(S0, NotificationId(0)).expect("reset");
        };
        let tell = |rank| {
            rt.notify(Rank(rank), S0, NotificationId(0), 1, Q0, LIMIT).expect("notify");
            rt.wait(Q0, LIMIT).expect("wait");
        };
        for _ in 0..100 {
            match rt.rank().0 {
                0 => {
                    let sent = rt.passive_send(S0, 0, Rank(1), 8, Timeout::Test);
                    fails!(sent, Error::Timeout { .. });
                    rt.passive_queue_purge(LIMIT).expect("purge");
                    // The news goes round by another rank.
                    tell(2);
                }
                1 => {
                    hear();
                    fails!(rt.passive_receive(S0, 0, 64, Timeout::Test), Error::Timeout { .. });
                }
                _ => {
                    hear();
                    tell(1);
                }
            }
            meet(rt);
        }
    });
}

tests! {
    EVERY:
        arguments_are_checked,
        everybody_sends_to_one_receiver,
        a_send_returns_only_after_the_receive,
        a_message_that_does_not_fit_is_left_for_a_larger_receive,
        a_receive_that_timed_out_never_writes_into_its_buffer,
        pending_messages_delay_no_other_traffic,
        a_message_to_oneself_works_from_two_threads,
        several_threads_send_and_receive_and_none_is_lost_or_seen_twice,
        a_message_to_a_rank_that_ended_is_an_error,
        more_messages_than_the_outbox_holds,
        what_was_taken_back_is_received_by_nobody_who_hears_of_it;
    SEVERAL:
        everybody_sends_to_one_receiver,
        pending_messages_delay_no_other_traffic;
}
