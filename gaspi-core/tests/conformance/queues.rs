//! Queues (GASPI 17.1, 8.6 and 5.6).

use super::*;

#[test]
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

#[test]
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
            let at_once = if Nodes::of_this_run() == Nodes::One { Timeout::Test } else { LIMIT };
            rt.wait(Q0, at_once).expect("done");
            meet(rt);
        });
    }
}

#[test]
fn a_failure_stays_until_the_purge() {
    run(2, |rt| {
        make(rt, S0, 64);
        rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
        if rt.rank() == Rank(1) {
            rt.segment_delete(S0).expect("delete");
        }
        meet(rt);
        if rt.rank() == Rank(0) {
            let t = Transfer { local: S1, ..eight(Rank(1)) };
            let posted = rt.write(&t, Q0, LIMIT);
            posted.expect("posted");
            for _ in 0..3 {
                fails!(rt.wait(Q0, LIMIT), Error::RequestFailed { queue: Q0, .. });
            }
            rt.wait(Q1, LIMIT).expect("other queues are not concerned");
            assert_eq!(rt.state(Rank(1)), Ok(State::Corrupt));
            assert_eq!(rt.state(Rank(0)), Ok(State::Healthy));
            rt.queue_purge(Q0, LIMIT).expect("purge");
            assert_eq!(rt.queue_size(Q0), Ok(0));
            rt.wait(Q0, LIMIT).expect("clean");
            // CORRUPT stops nothing.
            rt.ping(Rank(1), LIMIT).expect("ping");
        }
        meet(rt);
    });
}

#[test]
fn many_threads_post_to_one_queue() {
    const EACH: u64 = 500;
    run(2, |rt| {
        make(rt, S0, 8 * 64);
        make(rt, S1, 8 * 64);
        let peer = Rank(1 - rt.rank().0);
        std::thread::scope(|scope| {
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
