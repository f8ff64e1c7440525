//! The host's state machine: who is told what.

use super::*;
use crate::bootstrap::exchange::golden_tests::sample_card;

fn join_of(rank: u16, size: u32) -> Join {
    Join {
        job: "j".to_owned(),
        size,
        agreed: vec![("group_max".to_owned(), 32), ("queue_num".to_owned(), 8)],
        card: Card {
            rank: Rank(rank),
            pid: 1000 + i32::from(rank),
            host: "h".into(),
            ..sample_card()
        },
    }
}

fn done(joined: Joined) -> Vec<Action> {
    match joined {
        Joined::Done(actions) => actions,
        Joined::Claimed(by) => panic!("claimed by connection {by}"),
    }
}

/// A round of three ranks on connections of their own is completed.
fn assert_all_meet(server: &mut ServerState) {
    for rank in 0..2 {
        done(server.join(10 + u64::from(rank), join_of(rank, 3)));
    }
    assert!(matches!(done(server.join(12, join_of(2, 3)))[..], [Action::Table { .. }]));
}

fn failures(actions: &[Action]) -> Vec<(ConnectionId, String)> {
    let text = |action: &Action| match action {
        Action::Refuse(to, Message::Failed(failure)) => {
            (*to, crate::error::Error::from(failure.clone()).to_string())
        }
        other => panic!("not a failure: {other:?}"),
    };
    actions.iter().map(text).collect()
}

#[test]
fn all_meet_and_meet_again() {
    let mut server = ServerState::new("j", 2);
    for number in 0..3u64 {
        let (one, two) = (10 * number, 10 * number + 1);
        let first = done(server.join(one, join_of(1, 2)));
        let words = String::new();
        let missing = Message::Missing { count: 1, first: vec![Rank(0)], words };
        assert_eq!(first, [Action::Send(vec![one], missing)]);
        let second = done(server.join(two, join_of(0, 2)));
        let [Action::Table { connections, cards, group_max: 32 }] = &second[..] else {
            panic!("{second:?}");
        };
        assert_eq!(connections, &[two, one]);
        assert_eq!(cards.iter().map(|card| card.rank.0).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(server.closed(one), []);
        assert_eq!(server.closed(two), []);
        assert!(server.rounds.is_empty());
    }
}

#[test]
fn a_second_claim_is_refused_until_the_first_ends() {
    let mut server = ServerState::new("j", 2);
    done(server.join(1, join_of(1, 2)));
    assert_eq!(server.join(2, join_of(1, 2)), Joined::Claimed(1));
    let text = &failures(&server.refuse(2, Rank(1)))[0].1;
    assert!(text.contains("rank 1 of job j is already claimed by process 1001"), "{text}");
    // The refused one ends: nothing changes for the first.
    assert_eq!(server.closed(2), []);
    let table = done(server.join(3, join_of(0, 2)));
    assert!(matches!(table[..], [Action::Table { .. }]));
    // Still a member: the claim holds while the job runs, and is free afterwards.
    assert_eq!(server.join(4, join_of(1, 2)), Joined::Claimed(1));
    server.closed(1);
    assert!(matches!(server.join(4, join_of(1, 2)), Joined::Done(_)));
}

#[test]
fn a_difference_is_told_to_all_and_the_next_round_is_free() {
    let mut server = ServerState::new("j", 3);
    done(server.join(0, join_of(0, 3)));
    let mut other = join_of(2, 3);
    other.agreed[1].1 = 9;
    done(server.join(2, other));
    let told = failures(&done(server.join(1, join_of(1, 3))));
    assert_eq!(told.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [0, 1, 2]);
    let expected = "configuration field queue_num is 8 on rank 0 and 9 on rank 2; it must be the \
                    same on all ranks";
    assert!(told.iter().all(|(_, text)| text == expected), "{told:?}");
    assert_all_meet(&mut server);
}

#[test]
fn another_size_ends_the_round_for_all_who_come() {
    let mut server = ServerState::new("j", 3);
    done(server.join(0, join_of(0, 3)));
    let told = failures(&done(server.join(1, join_of(1, 4))));
    assert_eq!(told.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [1, 0]);
    assert!(told[0].1.contains("is 3 on rank 0 and 4 on rank 1"), "{told:?}");
    let late = failures(&done(server.join(2, join_of(2, 3))));
    assert_eq!(late, [(2, told[0].1.clone())]);
}

#[test]
fn the_end_of_a_rank_ends_init_for_those_here_and_those_to_come() {
    let mut server = ServerState::new("j", 3);
    done(server.join(0, join_of(0, 3)));
    let told = failures(&server.gone(Rank(2), "exit status 3"));
    assert_eq!(told.len(), 1);
    assert!(told[0].1.contains("rank 2 has ended before it joined the job (exit status 3)"));
    let late = failures(&done(server.join(1, join_of(1, 3))));
    assert_eq!(late[0].1, told[0].1);
    // Nor is there a later round without it.
    assert_eq!(failures(&done(server.join(5, join_of(1, 3))))[0].1, told[0].1);
    assert_eq!(server.gone(Rank(2), "again"), []);
}

#[test]
fn the_end_of_a_waiting_connection_ends_that_round_only() {
    let mut server = ServerState::new("j", 3);
    done(server.join(0, join_of(0, 3)));
    done(server.join(1, join_of(1, 3)));
    let told = failures(&server.closed(1));
    assert_eq!(told[0].0, 0);
    assert!(told[0].1.contains("rank 1 (process 1001) ended during init"), "{told:?}");
    assert_eq!(failures(&done(server.join(2, join_of(2, 3))))[0].1, told[0].1);
    assert!(server.rounds.is_empty(), "the failure is forgotten once all know it");
    assert_all_meet(&mut server);
}

#[test]
fn a_death_on_one_host_is_told_and_disturbs_nobody() {
    let mut server = ServerState::new("j", 2);
    done(server.join(0, join_of(0, 2)));
    done(server.join(1, join_of(1, 2)));
    // For those who cannot see its process.
    let died = Action::Died(Rank(1), "signal 9".to_owned());
    assert_eq!(server.gone(Rank(1), "signal 9"), [died]);
    assert_eq!(server.closed(1), []);
    server.closed(0);
    let told = failures(&done(server.join(2, join_of(0, 2))));
    assert!(told[0].1.contains("rank 1 has ended already (signal 9)"), "{told:?}");
}

#[test]
fn a_rank_that_cannot_come_says_why_and_may_come_to_the_next_round() {
    let mut server = ServerState::new("j", 3);
    let unable = |job: &str, rank| {
        let reason = "rank 2 needs more".to_owned();
        Message::Unable { job: job.to_owned(), rank: Rank(rank), reason }
    };
    done(server.join(0, join_of(0, 3)));
    assert_eq!(server.hear(7, &unable("k", 2)), [], "of another job");
    assert_eq!(server.hear(7, &unable("j", 0)), [], "somebody else has come as this rank");
    assert_eq!(server.hear(7, &unable("j", 9)), [], "no rank of the job");
    let told = failures(&server.hear(7, &unable("j", 2)));
    assert_eq!(told.len(), 1);
    assert!(told[0].0 == 0 && told[0].1.contains("rank 2 needs more"), "{told:?}");
    // One that comes later hears of it too; then all may try again.
    assert_eq!(failures(&done(server.join(1, join_of(1, 3))))[0].1, told[0].1);
    assert!(server.rounds.is_empty(), "the failure is forgotten once all know it");
    assert_all_meet(&mut server);
}

#[test]
fn strangers_are_refused() {
    let mut server = ServerState::new("j", 2);
    let mut other = join_of(0, 2);
    other.job = "k".to_owned();
    assert!(failures(&done(server.join(0, other)))[0].1.contains("job k"));
    assert!(failures(&done(server.join(0, join_of(7, 2))))[0].1.contains("does not exist"));
    // Only members may ask for a kill, and only of ranks that exist.
    assert_eq!(server.hear(0, &Message::Kill(Rank(1))), []);
    done(server.join(0, join_of(0, 2)));
    assert_eq!(server.hear(0, &Message::Kill(Rank(1))), [Action::Kill(Rank(1))]);
    assert_eq!(server.hear(0, &Message::Kill(Rank(2))), []);
    assert_eq!(server.hear(0, &Message::Over), []);
}

#[test]
fn news_of_the_missing_is_sparse() {
    let size = 1000;
    let mut server = ServerState::new("j", size);
    let mut sent = 0;
    for rank in 0..size as u16 {
        for action in done(server.join(u64::from(rank), join_of(rank, size))) {
            sent += if let Action::Send(to, _) = &action { to.len() } else { 1 };
        }
    }
    assert!(sent < 20 * size as usize, "{sent} messages");
}

/// Ten times the ranks take some ten times as long. Where each join went through all ranks this
/// took minutes.
#[test]
fn the_work_of_a_start_grows_with_the_ranks_and_not_with_their_square() {
    let size = 65535;
    let hosts = (0..size).map(|rank| format!("node{}", rank / 64).into()).collect();
    let mut server = ServerState::over_hosts("j", hosts);
    let started = std::time::Instant::now();
    for rank in (0..size as u16).rev() {
        let actions = done(server.join(u64::from(rank), join_of(rank, size)));
        if rank == 40_000 {
            let Some(Action::Send(to, Message::Missing { count: 40_000, words, .. })) =
                actions.first()
            else {
                panic!("{actions:?}");
            };
            assert_eq!(
                (to.len(), words.as_str()),
                (1, "ranks 0-63 on node0 (not seen yet) and 39936 more")
            );
        }
        if rank == 0 {
            assert!(matches!(&actions[..], [Action::Table { cards, .. }] if cards.len() == 65535));
        }
    }
    let took = started.elapsed();
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
}

/// Each rank that comes behind a failure hears of it by the same work, however many there are.
#[test]
fn telling_all_of_a_failure_looks_at_each_rank_a_few_times() {
    let size = 65_535;
    let steps_of = |server: &mut ServerState, what: &dyn Fn(&mut ServerState)| {
        let before = server.told.steps();
        what(server);
        server.told.steps() - before
    };
    let mut server = ServerState::new("j", size);
    server.gone(Rank(7), "exit status 1");
    let all = (0..size as u16).filter(|rank| *rank != 7);
    let steps = steps_of(&mut server, &|server| {
        for rank in all.clone() {
            let told = failures(&done(server.join(rank.into(), join_of(rank, size))));
            assert!(told[0].1.contains("rank 7 has ended before it joined"), "{told:?}");
        }
    });
    assert!(steps <= 8 * u64::from(size), "{steps} for those that join");
    assert!(!server.has_to_tell(), "all that live know");
    let mut server = ServerState::new("j", size);
    server.failed(Rank(7), Failure::Meeting("no memory".to_owned()));
    let steps = steps_of(&mut server, &|server| {
        for rank in all.clone() {
            let (job, reason) = ("j".to_owned(), "no room".to_owned());
            server.hear(rank.into(), &Message::Unable { job, rank: Rank(rank), reason });
        }
    });
    assert!(steps <= 8 * u64::from(size), "{steps} for those that cannot join");
    assert!(server.has_to_tell(), "rank 7 has not heard");
    let steps = steps_of(&mut server, &|server| {
        for rank in all.clone() {
            let told = failures(&done(server.join(rank.into(), join_of(rank, size - 1))));
            assert_eq!(told.len(), 1);
        }
    });
    assert!(steps <= 8 * u64::from(size), "{steps} for those with another size");
}

fn over_hosts() -> ServerState {
    let mut server = ServerState::over_hosts("j", ["a", "b", "b"].map(Arc::from).into());
    for rank in 0..3 {
        server.start_status().expect("hosts").started(Rank(rank), 1000 + i32::from(rank));
    }
    server
}

#[test]
fn an_incomplete_start_names_hosts_and_stages() {
    let mut server = over_hosts();
    assert!(!server.is_incomplete(), "nobody waits, and all have been started");
    let actions = done(server.join(1, join_of(0, 3)));
    let expected = "ranks 1-2 on b (started, have not called proc_init)";
    let [Action::Send(to, Message::Missing { count: 2, words, .. })] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!((&to[..], words.as_str()), (&[1][..], expected));
    let (text, again) = server.remind().expect("incomplete");
    assert_eq!((text.as_str(), again), (expected, actions));
    done(server.join(2, join_of(2, 3)));
    let (text, actions) = server.remind().expect("incomplete");
    assert_eq!(text, "rank 1 on b (process 1001 has not called proc_init)");
    assert!(matches!(&actions[..], [Action::Send(to, _)] if to[..] == [1, 2]));
    done(server.join(3, join_of(1, 3)));
    assert_eq!((server.remind(), server.is_incomplete()), (None, false));
    // Before anybody has come, the launcher is at work.
    let mut server = over_hosts();
    server.start_status().expect("hosts").stage(Rank(1), crate::bootstrap::StartStage::Reaching);
    let text = server.remind().expect("incomplete").0;
    assert!(text.contains("rank 1 on b (the host has not answered yet)"), "{text}");
}

#[test]
fn a_death_in_the_job_is_told_once_and_leaving_is_none() {
    let mut server = over_hosts();
    let come = |server: &mut ServerState, first: u64| {
        for rank in 0..3u16 {
            done(server.join(first + u64::from(rank), join_of(rank, 3)));
        }
    };
    come(&mut server, 10);
    // It leaves, and its process ends afterwards.
    assert_eq!(server.hear(11, &Message::Leave), []);
    assert_eq!(server.closed(11), []);
    assert_eq!(server.gone(Rank(1), "exit status 0"), []);
    // Its connection is seen to close before the launcher knows how it ended.
    assert_eq!(server.closed(12), []);
    let died = Action::Died(Rank(2), "signal 9".to_owned());
    assert_eq!(server.gone(Rank(2), "signal 9"), [died]);
    assert_eq!(server.gone(Rank(2), "signal 9"), []);
    // The other way round.
    assert_eq!(server.gone(Rank(0), "exit status 1").len(), 1);
    assert_eq!(server.closed(10), []);
}

#[test]
fn the_end_of_a_process_that_nobody_started_is_a_death() {
    let mut server = over_hosts();
    server.start_status().expect("hosts").started(Rank(1), 77);
    for rank in 0..3u16 {
        done(server.join(u64::from(rank), join_of(rank, 3)));
    }
    // A child of what was started.
    let actions = server.closed(1);
    let [Action::Died(Rank(1), how)] = &actions[..] else { panic!("{actions:?}") };
    assert!(how.contains("process 1001"), "{how}");
    assert_eq!(server.gone(Rank(1), "exit status 0"), []);
}

#[test]
fn a_machine_that_cannot_go_on_ends_the_round_for_all() {
    let mut server = over_hosts();
    done(server.join(0, join_of(0, 3)));
    let told = failures(&server.failed(Rank(1), Failure::Meeting("no memory on b".to_owned())));
    assert_eq!(told.len(), 1);
    for rank in 1..3 {
        let told = failures(&done(server.join(rank.into(), join_of(rank, 3))));
        assert!(told[0].1.contains("no memory on b"), "{told:?}");
    }
    assert_eq!(server.failed(Rank(9), Failure::Meeting(String::new())), []);
}

#[test]
fn a_claim_on_another_host_is_named_with_it() {
    let mut server = over_hosts();
    done(server.join(0, join_of(1, 3)));
    assert_eq!(server.join(5, join_of(1, 3)), Joined::Claimed(0));
    let text = &failures(&server.refuse(5, Rank(1)))[0].1;
    assert!(text.contains("already claimed by process 1001 on h"), "{text}");
}
