//! PendingInit, leaving, dying, and what the others see of it (GASPI 17.1, 5.3 to 5.5).

use super::*;
use gaspi_core::PendingInit;

/// `id` tells this job from those of other tests and layouts.
fn joining(nodes: Nodes, id: &str, rank: u16, size: u32, config: &Config) -> PendingInit {
    let job = nodes.job(&format!("{id}-{nodes:?}"), Rank(rank), size);
    PendingInit::new(job, config.clone()).expect("joining")
}

fn every_rank_knows_itself_and_the_others() {
    for size in ranks::sizes(&SIZES) {
        run(size, |rt| {
            let neighbours = Nodes::of_this_test().neighbours(rt.rank(), size);
            assert_eq!((rt.size(), rt.local_size()), (size, neighbours));
            for rank in all(rt) {
                assert!(!rt.host_of(rank).expect("rank").is_empty());
                assert_eq!(rt.state(rank), Ok(State::Healthy));
            }
            let beyond = Rank(size as u16);
            fails!(rt.host_of(beyond), Error::InvalidRank { .. });
            fails!(rt.state(beyond), Error::InvalidRank { .. });
            let mut seen = Vec::new();
            rt.state_vector(|rank, state| seen.push((rank, state)));
            assert!(seen.into_iter().eq(all(rt).map(|rank| (rank, State::Healthy))));
            meet(rt);
        });
    }
}

fn connect_ping_and_kill_check_their_rank() {
    for size in ranks::sizes(&[2]) {
        run(size, |rt| {
            for peer in others(rt) {
                for _ in 0..3 {
                    rt.connect(peer, LIMIT).expect("connect");
                    rt.connect(rt.rank(), LIMIT).expect("to oneself");
                    rt.ping(peer, LIMIT).expect("ping");
                    rt.disconnect(peer, LIMIT).expect("disconnect");
                }
            }
            for rank in [Rank(size as u16), Rank(u16::MAX)] {
                fails!(rt.connect(rank, LIMIT), Error::InvalidRank { .. });
                fails!(rt.disconnect(rank, LIMIT), Error::InvalidRank { .. });
                fails!(rt.ping(rank, LIMIT), Error::InvalidRank { .. });
                fails!(rt.kill(rank, LIMIT), Error::InvalidRank { .. });
            }
            fails!(rt.kill(rt.rank(), LIMIT), Error::InvalidRank { .. });
            meet(rt);
        });
    }
}

fn a_start_that_timed_out_continues() {
    let nodes = Nodes::of_this_test();
    let config = Config::default();
    let mut first = joining(nodes, "late-start", 0, 2, &config);
    let error = within(AT_ONCE, "TEST", || first.wait(Timeout::Test)).expect_err("rank 1 is late");
    assert!(error.is_timeout(), "{error}");
    let error = first.wait(Timeout::Millis(30)).expect_err("rank 1 is late");
    assert!(error.is_timeout(), "{error}");
    ranks::scope(|scope| {
        scope.spawn(|| {
            let rt = joining(nodes, "late-start", 1, 2, &config).wait(LIMIT).expect("all meet");
            meet(&rt);
            rt.term(LIMIT).expect("term");
        });
        let rt = first.wait(LIMIT).expect("all meet");
        meet(&rt);
        rt.term(LIMIT).expect("term");
    });
}

fn init_after_term_works_again_and_again() {
    let nodes = Nodes::of_this_test();
    for size in ranks::sizes(&[3]) {
        for round in 0..5 {
            let config = Config::default();
            ranks::scope(|scope| {
                for rank in 0..size as u16 {
                    let config = &config;
                    scope.spawn(move || {
                        let mut joining = joining(nodes, "again", rank, size, config);
                        let rt = joining.wait(LIMIT).expect("all meet");
                        make(&rt, S0, 64);
                        assert_eq!(get_u64(&rt, S0, 0), 0, "round {round}");
                        put_u64(&rt, S0, 0, 1);
                        meet(&rt);
                        rt.term(LIMIT).expect("term");
                    });
                }
            });
        }
    }
}

fn differing_configurations_are_an_error_on_all() {
    let nodes = Nodes::of_this_test();
    for size in ranks::sizes(&[3]) {
        ranks::scope(|scope| {
            for rank in 0..size as u16 {
                scope.spawn(move || {
                    let queue_num = if rank == 1 { 7 } else { 8 };
                    let config = Config { queue_num, ..Config::default() };
                    let mut joining = joining(nodes, "configured", rank, size, &config);
                    let text = joining.wait(LIMIT).expect_err("differ").to_string();
                    for part in ["queue_num", "rank 1", "7", "8"] {
                        assert!(text.contains(part), "{text}");
                    }
                });
            }
        });
    }
}

fn a_rank_that_gives_up_before_the_start_ends_it_for_all() {
    let nodes = Nodes::of_this_test();
    let config = Config::default();
    let mut waiting = [0, 1].map(|rank| joining(nodes, "deserted", rank, 4, &config));
    for waiting in &mut waiting {
        assert!(waiting.wait(Timeout::Test).expect_err("too few").is_timeout());
    }
    let mut deserter = joining(nodes, "deserted", 2, 4, &config);
    assert!(deserter.wait(Timeout::Millis(200)).expect_err("rank 3 is missing").is_timeout());
    drop(deserter);
    ranks::scope(|scope| {
        for mut waiting in waiting {
            scope.spawn(move || {
                let error = waiting.wait(LIMIT).map(|_| ()).expect_err("rank 2 gave up");
                assert!(error.to_string().contains("rank 2"), "{error}");
            });
        }
    });
}

/// Writes until that fails: an end that is only just known may leave the memory for a moment.
fn failing_write(rt: &Runtime, t: &Transfer) -> String {
    let started = ranks::now();
    loop {
        assert!(ranks::now() - started < Duration::from_secs(10), "writes to {} succeed", t.rank);
        rt.write(t, Q0, LIMIT).expect("posted");
        match rt.wait(Q0, LIMIT) {
            Ok(()) => ranks::pause(),
            Err(Error::RequestFailed { reason, .. }) => return reason,
            Err(error) => panic!("{error}"),
        }
    }
}

fn a_rank_leaves_and_the_others_go_on() {
    for size in ranks::sizes(&[3]) {
        run(size, |rt| others_go_on_without(rt, Rank(size as u16 - 1)));
    }
}

/// The last rank leaves.
fn others_go_on_without(rt: &Runtime, last: Rank) {
    make(rt, S0, 64);
    rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
    let rest = rt.group_create().expect("create");
    (0..last.0).for_each(|rank| rt.group_add(rest, Rank(rank)).expect("add"));
    if rt.rank() == last {
        meet(rt);
        return within(AT_ONCE, "term", || rt.term(LIMIT)).expect("term");
    }
    rt.group_commit(rest, LIMIT).expect("commit");
    meet(rt);
    let left = rt.barrier(GroupId::ALL, Timeout::Block);
    assert!(matches!(left, Err(Error::RankLeft { rank, .. }) if rank == last), "{left:?}");
    // Its segments are gone with it; it is not at fault.
    let t = Transfer { local: S1, ..eight(last) };
    let reason = failing_write(rt, &t);
    assert!(reason.contains(&format!("{last} has left")), "{reason}");
    rt.queue_purge(Q0, LIMIT).expect("purge");
    let add = rt.atomic_fetch_add(S0, 0, last, 1, LIMIT);
    assert!(matches!(add, Err(Error::RankLeft { rank, .. }) if rank == last), "{add:?}");
    fails!(rt.ping(last, LIMIT), Error::RankLeft { .. });
    fails!(rt.connect(last, LIMIT), Error::RankLeft { .. });
    assert_eq!(rt.state(last), Ok(State::Healthy));
    for _ in 0..10 {
        rt.barrier(rest, LIMIT).expect("barrier");
    }
    rt.write(&eight(Rank((rt.rank().0 + 1) % last.0)), Q0, LIMIT).expect("write");
    rt.wait(Q0, LIMIT).expect("wait");
    rt.barrier(rest, LIMIT).expect("barrier");
}

fn who_is_not_connected_any_more_learns_that_a_rank_has_left() {
    let apart = ranks::Barrier::new(2);
    run(2, |rt| {
        meet(rt);
        let other = Rank(1 - rt.rank().0);
        rt.ping(other, LIMIT).expect("ping");
        apart.wait();
        rt.disconnect(other, LIMIT).expect("disconnect");
        apart.wait();
        if rt.rank() == Rank(1) {
            rt.term(LIMIT).expect("term");
            apart.wait();
            return;
        }
        apart.wait();
        let started = ranks::now();
        let error = loop {
            match rt.ping(other, Timeout::Millis(20)) {
                Err(error) if !error.is_timeout() => break error,
                _ => assert!(ranks::now() - started < AT_ONCE, "nobody noticed the end"),
            }
            ranks::pause();
        };
        assert!(error.to_string().contains("rank 1 has left"), "{error}");
        assert_eq!(rt.state(other), Ok(State::Healthy));
    });
}

fn a_death_is_seen_without_a_call_and_is_final() {
    let ready = ranks::Barrier::new(3);
    run_owned(3, &Config::default(), |rt| {
        make(&rt, S0, 64);
        rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
        meet(&rt);
        // Nobody is still on the way when one of them ends.
        ready.wait();
        if rt.rank() == Rank(1) {
            return die(rt);
        }
        let started = ranks::now();
        while rt.state(Rank(1)) == Ok(State::Healthy) {
            assert!(ranks::now() - started < Duration::from_secs(10), "nobody noticed the death");
            ranks::pause();
        }
        let t = Transfer { local: S1, ..eight(Rank(1)) };
        let reason = failing_write(&rt, &t);
        assert!(reason.contains("rank 1 has died"), "{reason}");
        rt.queue_purge(Q0, LIMIT).expect("purge");
        fails!(
            rt.atomic_fetch_add(S0, 0, Rank(1), 1, LIMIT),
            Error::RankDied { rank: Rank(1), .. }
        );
        fails!(rt.ping(Rank(1), LIMIT), Error::RankDied { .. });
        fails!(rt.connect(Rank(1), LIMIT), Error::RankDied { .. });
        assert_eq!(rt.state(Rank(1)), Ok(State::Corrupt), "no connect heals a death");
        let peer = Rank(2 - rt.rank().0);
        assert_eq!(rt.state(peer), Ok(State::Healthy));
        rt.write_notify(&eight(peer), NotificationId(0), 1, Q0, LIMIT).expect("write");
        rt.notify_waitsome(S0, 0, 1, LIMIT).expect("the others go on");
        rt.wait(Q0, LIMIT).expect("wait");
        // Not to leave before the other has had its notification.
        rt.notify(peer, S0, NotificationId(1), 1, Q0, LIMIT).expect("notify");
        rt.notify_waitsome(S0, 1, 1, LIMIT).expect("done");
    });
}

fn configurations_out_of_range_are_refused() {
    let base = Config::default();
    let wrong = [
        Config { queue_size_max: 0, ..base.clone() },
        Config { queue_size_max: 4097, ..base.clone() },
        Config { queue_num: 17, ..base.clone() },
        Config { group_max: 256, ..base.clone() },
        Config { segment_max: 0, ..base.clone() },
        Config { transfer_size_max: (1 << 30) + 1, ..base.clone() },
        Config { notification_num: (1 << 20) + 1, ..base.clone() },
        Config { passive_transfer_size_max: 65536, ..base.clone() },
        Config { rw_list_elem_max: 256, ..base },
    ];
    for config in wrong {
        let refused = PendingInit::new(Job::in_process("refused", Rank(0), 1), config.clone());
        assert!(matches!(refused, Err(Error::Config { .. })), "{config:?}");
    }
}

fn leaving_ends_what_other_threads_of_the_rank_wait_for() {
    let done = ranks::Barrier::new(2);
    run_owned(2, &Config::default(), |rt| {
        meet(&rt);
        if rt.rank() == Rank(1) {
            // Does not come to the barrier, and stays until rank 0 has left.
            done.wait();
            return;
        }
        ranks::scope(|scope| {
            let waiting = scope.spawn(|| {
                loop {
                    match rt.barrier(GroupId::ALL, Timeout::Block) {
                        // The other thread is just looking.
                        Err(Error::ActiveCollective { .. }) => ranks::pause(),
                        ended => break ended,
                    }
                }
            });
            // Refused as soon as the thread is in the barrier.
            while !matches!(
                rt.barrier(GroupId::ALL, Timeout::Test),
                Err(Error::ActiveCollective { .. })
            ) {
                ranks::pause();
            }
            rt.term(LIMIT).expect("term");
            let ended = waiting.join().expect("thread");
            done.wait();
            assert_eq!(ended, Err(Error::NotInitialised));
        });
    });
}

fn ranks_share_the_cores_of_their_machine_whatever_node_they_are_of() {
    run(3, |rt| {
        let mode = rt.waiting_mode();
        assert!(mode.contains("(3 ranks "), "{mode}");
    });
}

tests! {
    EVERY:
        every_rank_knows_itself_and_the_others,
        connect_ping_and_kill_check_their_rank,
        a_start_that_timed_out_continues,
        init_after_term_works_again_and_again,
        differing_configurations_are_an_error_on_all,
        a_rank_that_gives_up_before_the_start_ends_it_for_all,
        a_rank_leaves_and_the_others_go_on,
        who_is_not_connected_any_more_learns_that_a_rank_has_left,
        a_death_is_seen_without_a_call_and_is_final,
        configurations_out_of_range_are_refused,
        leaving_ends_what_other_threads_of_the_rank_wait_for,
        ranks_share_the_cores_of_their_machine_whatever_node_they_are_of;
    SEVERAL:
        every_rank_knows_itself_and_the_others,
        connect_ping_and_kill_check_their_rank,
        init_after_term_works_again_and_again,
        differing_configurations_are_an_error_on_all,
        a_rank_leaves_and_the_others_go_on;
}
