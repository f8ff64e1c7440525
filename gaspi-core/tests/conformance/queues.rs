//! Queues (GASPI 17.1, 8.6 and 5.6).

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn queues_come_and_go_within_the_limit() {
    let config = Config { queue_num: 3, ..Config::default() };
    run_with(2, &config, |rt| {
        assert_eq!((rt.queue_num(), rt.queue_max(), rt.queue_size_max()), (3, QUEUE_MAX, 1024));
        for id in 3..QUEUE_MAX {
            assert_eq!(rt.queue_create(LIMIT), Ok(QueueId(id as u8)));
        }
        fails!(rt.queue_create(LIMIT), Error::TooManyQueues { .. });
        assert_eq!(rt.queue_num(), QUEUE_MAX);
        rt.queue_delete(QueueId(5)).expect("delete");
        assert_eq!(rt.queue_num(), QUEUE_MAX - 1);
        for id in [5, 16, 255] {
            fails!(rt.queue_delete(QueueId(id)), Error::InvalidQueue { .. });
            fails!(rt.queue_size(QueueId(id)), Error::InvalidQueue { .. });
            fails!(rt.queue_purge(QueueId(id), LIMIT), Error::InvalidQueue { .. });
            fails!(rt.wait(QueueId(id), LIMIT), Error::InvalidQueue { .. });
        }
        assert_eq!(rt.queue_create(LIMIT), Ok(QueueId(5)));
        for _ in 0..3000 {
            rt.queue_delete(QueueId(7)).expect("delete");
            assert_eq!(rt.queue_create(LIMIT), Ok(QueueId(7)));
        }
    });
}

fn exactly_queue_size_max_fit_and_the_next_is_refused_at_once() {
    for limit in [1, 2, 7, 4096] {
        let config = Config { queue_size_max: limit, ..Config::default() };
        run_with(2, &config, |rt| {
            make(rt, S0, 64);
            let peer = Rank(1 - rt.rank().0);
            let posts: [&dyn Fn() -> Result<()>; 5] = [
                &|| rt.write(&eight(peer), Q0, Timeout::Block),
                &|| rt.read(&eight(peer), Q0, Timeout::Block),
                &|| rt.notify(peer, S0, NotificationId(0), 1, Q0, Timeout::Block),
                &|| rt.write_notify(&eight(peer), NotificationId(0), 1, Q0, Timeout::Block),
                &|| rt.read_notify(&eight(peer), NotificationId(0), Q0, Timeout::Block),
            ];
            for posted in 0..limit {
                assert_eq!(rt.queue_size(Q0), Ok(posted));
                posts[posted as usize % posts.len()]().expect("there is room");
            }
            for post in posts {
                let refused = within(AT_ONCE, "QUEUE_FULL", post);
                assert_eq!(refused, Err(Error::QueueFull { queue: Q0, limit }));
            }
            rt.write(&eight(peer), Q1, LIMIT).expect("another queue has room");
            rt.wait(Q0, LIMIT).expect("wait");
            assert_eq!((rt.queue_size(Q0), rt.queue_size(Q1)), (Ok(0), Ok(1)));
            rt.write(&eight(peer), Q0, LIMIT).expect("room again");
            // Between nodes it is done once the target has said so.
            let at_once = if Nodes::of_this_test() == Nodes::One { Timeout::Test } else { LIMIT };
            rt.wait(Q0, at_once).expect("done");
            meet(rt);
        });
    }
}

fn a_failure_is_told_once_by_a_wait_and_forgotten_by_a_purge() {
    run(2, |rt| {
        make(rt, S0, 64);
        make(rt, S1, 64);
        rt.segment_alloc(S2, 64, Init::Zeroed).expect("alloc");
        if rt.rank() == Rank(1) {
            rt.segment_delete(S0).expect("delete");
        }
        meet(rt);
        if rt.rank() == Rank(0) {
            let gone = Transfer { local: S2, ..eight(Rank(1)) };
            let there = Transfer { remote: S1, ..gone };
            for purged in [false, true, false] {
                rt.write(&gone, Q0, LIMIT).expect("posted");
                rt.write(&there, Q0, LIMIT).expect("posted");
                rt.write_notify(&gone, NotificationId(1), 1, Q0, LIMIT).expect("posted");
                rt.wait(Q1, LIMIT).expect("other queues are not concerned");
                if purged {
                    rt.queue_purge(Q0, LIMIT).expect("purge");
                } else {
                    fails!(rt.wait(Q0, LIMIT), Error::RequestFailed { queue: Q0, .. });
                    // Between nodes the second failure may come behind the first wait.
                    let end = ranks::now() + std::time::Duration::from_secs(10);
                    while rt.wait(Q0, LIMIT).is_err() {
                        assert!(ranks::now() < end, "wait fails for ever");
                    }
                    assert_eq!(rt.state(Rank(1)), Ok(State::Corrupt));
                }
                assert_eq!(rt.state(Rank(0)), Ok(State::Healthy));
                assert_eq!(rt.queue_size(Q0), Ok(0));
                rt.wait(Q0, LIMIT).expect("clean");
                // CORRUPT stops nothing.
                rt.write_notify(&there, NotificationId(2), 1, Q0, LIMIT).expect("posted");
                rt.wait(Q0, LIMIT).expect("as if nothing had failed");
                rt.ping(Rank(1), LIMIT).expect("ping");
            }
        }
        meet(rt);
    });
}

fn many_threads_post_to_one_queue() {
    const EACH: u64 = 500;
    run(2, |rt| {
        make(rt, S0, 8 * 64);
        make(rt, S1, 8 * 64);
        let peer = Rank(1 - rt.rank().0);
        ranks::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    let at = 8 * thread;
                    for value in 1..=EACH {
                        put_u64(rt, S0, at, value);
                        let t = Transfer {
                            local: S0,
                            local_offset: at,
                            rank: peer,
                            remote: S1,
                            remote_offset: at,
                            size: 8,
                        };
                        while let Err(error) = rt.write(&t, Q0, LIMIT) {
                            assert!(matches!(error, Error::QueueFull { .. }), "{error}");
                            rt.wait(Q0, LIMIT).expect("wait");
                        }
                    }
                });
            }
        });
        rt.wait(Q0, LIMIT).expect("wait");
        assert_eq!(rt.queue_size(Q0), Ok(0));
        meet(rt);
        for thread in 0..4 {
            assert_eq!(get_u64(rt, S1, 8 * thread), EACH);
        }
        meet(rt);
    });
}

/// A rank that posts all the time.
#[derive(Default)]
struct Poster {
    over: AtomicBool,
    /// The longest time between two posts since somebody reset it, in microseconds.
    gap_us: AtomicU64,
}

impl Poster {
    /// Posts at short intervals, into all queues by turns, and waits only when all are full.
    fn run(&self, rt: &Runtime) {
        let queues = || (0..rt.config().queue_num as u8).map(QueueId);
        let mut last = ranks::now();
        while !self.over.load(Ordering::Acquire) {
            for queue in queues() {
                while !self.over.load(Ordering::Acquire)
                    && rt.write(&eight(Rank(1)), queue, LIMIT).is_ok()
                {
                    self.gap_us
                        .fetch_max((ranks::now() - last).as_micros() as u64, Ordering::Relaxed);
                    last = ranks::now();
                    while ranks::now() - last < Duration::from_micros(20) {
                        std::hint::spin_loop();
                    }
                }
            }
            self.gap_us.store(u64::MAX, Ordering::Relaxed);
            queues().for_each(|queue| rt.wait(queue, LIMIT).expect("wait"));
        }
    }

    /// How many calls were answered within 20 ms; `None` if the rank did something else than
    /// posting, or this one had no core for long.
    fn answers(&self, call: impl Fn()) -> Option<u32> {
        self.gap_us.store(0, Ordering::Relaxed);
        let (window, lacked) = (ranks::now(), lack_of_a_core());
        let mut answers = 0;
        while ranks::now() - window < Duration::from_millis(20) {
            call();
            answers += 1;
        }
        // Both were on their cores throughout, as far as this matters.
        let gap_us = self.gap_us.load(Ordering::Relaxed);
        let lacked = lack_of_a_core() - lacked;
        ((1..500).contains(&gap_us) && lacked < Duration::from_millis(5)).then_some(answers)
    }
}

/// How long this thread could have run and had no core for it, as far as the kernel tells.
fn lack_of_a_core() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = times.split_whitespace().nth(1).and_then(|waited| waited.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

fn who_posts_all_the_time_and_never_waits_answers_at_once() {
    let poster = Poster::default();
    let config = Config { queue_size_max: 4096, queue_num: 16, ..Config::default() };
    run_with(2, &config, |rt| {
        make(rt, S0, 64);
        meet(rt);
        if rt.rank() == Rank(0) {
            poster.run(rt);
        } else {
            let ping = || rt.ping(Rank(0), LIMIT).expect("ping");
            // This machine may have other things to do: then nothing is learnt. Who looks after
            // others each millisecond answers twenty times. One window is enough, so there may be
            // many: this rank may lack a core in most of them.
            let windows = (0..500).filter_map(|_| poster.answers(ping));
            let seen: Vec<u32> = windows
                .scan(false, |found, answers| {
                    (!std::mem::replace(found, answers > 40)).then_some(answers)
                })
                .collect();
            poster.over.store(true, Ordering::Release);
            eprintln!("answers within 20 ms each: {seen:?}");
            let found = seen.iter().any(|answers| *answers > 40);
            assert!(found || seen.len() < 20, "answers within 20 ms each: {seen:?}");
        }
        meet(rt);
    });
}

/// A program may purge again and again while its peer is slow: what waits for its turn then is
/// neither kept nor sent.
fn what_waits_for_its_turn_is_dropped_by_a_purge() {
    const ROUNDS: u32 = 20;
    const LEN: u64 = 1 << 20;
    run(2, |rt| {
        make(rt, S0, 2 * LEN);
        meet(rt);
        let n = |number: u32| NotificationId(number);
        if rt.rank() == Rank(0) {
            let (local_offset, remote_offset) = (0, LEN);
            let write = Transfer { local_offset, remote_offset, size: LEN, ..eight(Rank(1)) };
            for round in 0..ROUNDS {
                for _ in 0..256 {
                    rt.write(&write, Q0, LIMIT).expect("posted");
                }
                rt.notify(Rank(1), S0, n(round), 1, Q0, LIMIT).expect("posted");
                rt.queue_purge(Q0, LIMIT).expect("purge");
                assert_eq!((rt.queue_size(Q0), rt.wait(Q0, LIMIT)), (Ok(0), Ok(())));
            }
            rt.notify(Rank(1), S0, n(ROUNDS), 1, Q0, LIMIT).expect("posted");
            rt.wait(Q0, LIMIT).expect("the queue works");
        } else {
            let last = rt.notify_waitsome(S0, ROUNDS, 1, LIMIT);
            assert_eq!(last, Ok(Some(n(ROUNDS))));
            // What was posted before it would have arrived before it. A few may: who posts may lack
            // a core for as long as a round takes to be sent.
            let arrived = (0..ROUNDS).filter(|round| rt.notify_reset(S0, n(*round)) == Ok(1));
            let arrived = arrived.count();
            assert!(arrived < ROUNDS as usize / 2, "{arrived} of {ROUNDS} rounds have arrived");
        }
        meet(rt);
    });
}

tests! {
    TCP:
        what_waits_for_its_turn_is_dropped_by_a_purge;
    EVERY:
        queues_come_and_go_within_the_limit,
        exactly_queue_size_max_fit_and_the_next_is_refused_at_once,
        a_failure_is_told_once_by_a_wait_and_forgotten_by_a_purge,
        many_threads_post_to_one_queue;
    REAL:
        who_posts_all_the_time_and_never_waits_answers_at_once;
}
