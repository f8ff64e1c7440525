//! What holds for all procedures: timeouts, checks, threads (GASPI 17.1, 5.2).

use super::*;
use ranks::Barrier;

/// A call that has to fail, by name.
type Failing<'a> = (&'static str, Box<dyn Fn(Timeout) -> Error + 'a>);

/// Calls that cannot succeed while rank 1 does nothing.
fn waiting_calls(rt: &Runtime) -> Vec<Failing<'_>> {
    let group = rt.group_create().expect("create");
    for rank in all(rt) {
        rt.group_add(group, rank).expect("add");
    }
    vec![
        ("group_commit", Box::new(move |t| rt.group_commit(group, t).expect_err("alone"))),
        ("notify_waitsome", Box::new(|t| rt.notify_waitsome(S0, 0, 1, t).expect_err("none set"))),
        ("notify_waitsome of all", {
            Box::new(|t| rt.notify_waitsome(S0, 0, 65536, t).expect_err("none set"))
        }),
        ("passive_send", Box::new(|t| rt.passive_send(S0, 0, Rank(1), 8, t).expect_err("alone"))),
        ("passive_receive", Box::new(|t| rt.passive_receive(S0, 0, 8, t).expect_err("none"))),
        ("barrier", Box::new(|t| rt.barrier(GroupId::ALL, t).expect_err("alone"))),
    ]
}

/// How often this thread has gone to sleep. What else takes the processor from it does not count.
fn sleeps() -> i64 {
    // SAFETY: numbers only.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes the struct that it is given.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nvcsw
}

fn test_is_one_attempt_and_never_waits() {
    const ATTEMPTS: i64 = 1000;
    let done = Barrier::new(2);
    run(2, |rt| {
        make(rt, S0, 64);
        if rt.rank() == Rank(0) {
            for (name, call) in waiting_calls(rt) {
                let (slept, began) = (sleeps(), ranks::now());
                for _ in 0..ATTEMPTS {
                    let error = call(Timeout::Test);
                    assert!(error.is_timeout(), "{name}: {error}");
                }
                // A lock that another thread holds may cost a sleep now and then.
                if ranks::Nodes::of_this_test() == ranks::Nodes::Twin {
                    // Its threads take turns, which are sleeps; its clock shows no load.
                    let took = ranks::now() - began;
                    assert!(took < AT_ONCE, "{name}: {ATTEMPTS} attempts took {took:?}");
                } else {
                    let slept = sleeps() - slept;
                    assert!(slept < ATTEMPTS / 2, "{name}: {slept} sleeps");
                }
            }
        }
        done.wait();
        if rt.rank() == Rank(0) {
            rt.passive_queue_purge(LIMIT).expect("purge");
        }
        meet(rt);
    });
}

fn a_call_waits_for_its_timeout_and_not_longer() {
    let done = Barrier::new(2);
    run(2, |rt| {
        make(rt, S0, 64);
        if rt.rank() == Rank(0) {
            for (name, call) in waiting_calls(rt) {
                let started = ranks::now();
                let error = within(AT_ONCE, name, || call(Timeout::Millis(60)));
                assert!(error.is_timeout(), "{name}: {error}");
                let took = ranks::now() - started;
                assert!(took >= Duration::from_millis(60), "{name} gave up after {took:?}");
            }
        }
        done.wait();
        if rt.rank() == Rank(0) {
            rt.passive_queue_purge(LIMIT).expect("purge");
        }
        meet(rt);
    });
}

fn a_rank_that_waits_long_uses_no_processor() {
    fn spent() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes the struct that it is given.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
    run(2, |rt| {
        make(rt, S0, 64);
        let before = spent();
        fails!(rt.notify_waitsome(S0, 0, 1, Timeout::Millis(500)), Error::Timeout { .. });
        let used = spent() - before;
        assert!(used < Duration::from_millis(50), "{used:?} in a wait of 500 ms");
        meet(rt);
    });
}

fn after_term_every_call_says_so() {
    run(2, |rt| {
        make(rt, S0, 64);
        let group = rt.group_create().expect("create");
        meet(rt);
        rt.term(LIMIT).expect("term");
        let t = eight(rt.rank());
        let n = NotificationId(0);
        let results = [
            ("term", rt.term(LIMIT)),
            ("connect", rt.connect(Rank(1), LIMIT)),
            ("disconnect", rt.disconnect(Rank(1), LIMIT)),
            ("ping", rt.ping(Rank(1), LIMIT)),
            ("kill", rt.kill(Rank(1 - rt.rank().0), LIMIT)),
            ("group_create", rt.group_create().map(|_| ())),
            ("group_delete", rt.group_delete(group)),
            ("group_add", rt.group_add(group, Rank(0))),
            ("group_commit", rt.group_commit(group, LIMIT)),
            ("segment_alloc", rt.segment_alloc(S1, 8, Init::Zeroed)),
            ("segment_delete", rt.segment_delete(S0)),
            ("segment_register", rt.segment_register(S0, Rank(0), LIMIT)),
            ("segment_create", rt.segment_create(S1, 8, GroupId::ALL, LIMIT, Init::Zeroed)),
            ("segment_ptr", rt.segment_ptr(S0).map(|_| ())),
            ("write", rt.write(&t, Q0, LIMIT)),
            ("read", rt.read(&t, Q0, LIMIT)),
            ("notify_waitsome", rt.notify_waitsome(S0, 0, 1, LIMIT).map(|_| ())),
            ("notify_reset", rt.notify_reset(S0, n).map(|_| ())),
            ("passive_send", rt.passive_send(S0, 0, Rank(0), 8, LIMIT)),
            ("passive_receive", rt.passive_receive(S0, 0, 8, LIMIT).map(|_| ())),
            ("passive_queue_purge", rt.passive_queue_purge(LIMIT)),
            ("barrier", rt.barrier(GroupId::ALL, LIMIT)),
        ];
        for (name, result) in results {
            assert_eq!(result, Err(Error::NotInitialised), "{name}");
        }
    });
}

fn many_threads_use_all_of_it_at_once() {
    run(3, |rt| {
        make(rt, S0, 1 << 16);
        make(rt, S1, 1 << 16);
        ranks::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    let own = SegmentId(10 + thread);
                    let at = 4096 * u64::from(thread);
                    for round in 0..50 {
                        rt.segment_alloc(own, 4096, Init::Zeroed).expect("alloc");
                        for rank in all(rt) {
                            let t = Transfer {
                                local: S0,
                                local_offset: at,
                                rank,
                                remote: S1,
                                remote_offset: at,
                                size: 4096,
                            };
                            let id = NotificationId(u32::from(thread));
                            let queue = QueueId(thread);
                            rt.write_notify(&t, id, round + 1, queue, LIMIT).expect("write");
                            rt.read(&t, queue, LIMIT).expect("read");
                            rt.atomic_fetch_add(S1, 60_000, rank, 1, LIMIT).expect("atomic");
                            rt.segment_register(own, rank, LIMIT).expect("register");
                            rt.wait(queue, LIMIT).expect("wait");
                        }
                        rt.segment_delete(own).expect("delete");
                    }
                });
            }
        });
        meet(rt);
        assert_eq!(get_u64(rt, S1, 60_000), 4 * 50 * 3);
        meet(rt);
    });
}

tests! {
    EVERY:
        test_is_one_attempt_and_never_waits,
        a_call_waits_for_its_timeout_and_not_longer,
        a_rank_that_waits_long_uses_no_processor,
        after_term_every_call_says_so,
        many_threads_use_all_of_it_at_once;
}
