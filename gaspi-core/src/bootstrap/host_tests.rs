//! The host's state machine: who is told what.

use super::*;

fn join_of(rank: u16, size: u32) -> Join {
    Join {
        job: "j".to_owned(),
        size,
        agreed: vec![("group_max".to_owned(), 32), ("queue_num".to_owned(), 8)],
        card: Card {
            rank: Rank(rank),
            pid: 1000 + i32::from(rank),
            start_time: 1,
            instance: 2,
            node: 0,
            endpoints: Vec::new(),
            address: format!("a{rank}"),
            host: "h".to_owned(),
            cpus: vec![1],
        },
    }
}

fn done(joined: Joined) -> Vec<Action> {
    match joined {
        Joined::Done(actions) => actions,
        Joined::Claimed(by) => panic!("claimed by connection {by}"),
    }
}

fn failures(actions: &[Action]) -> Vec<(Connection, String)> {
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
    let mut rounds = Rounds::new("j", 2);
    for number in 0..3u64 {
        let (one, two) = (10 * number, 10 * number + 1);
        let first = done(rounds.join(one, join_of(1, 2)));
        let missing = Message::Missing { count: 1, first: vec![Rank(0)] };
        assert_eq!(first, [Action::Send(one, missing)]);
        let second = done(rounds.join(two, join_of(0, 2)));
        let [Action::Table { connections, cards, group_max: 32 }] = &second[..] else {
            panic!("{second:?}");
        };
        assert_eq!(connections, &[two, one]);
        assert_eq!(cards.iter().map(|card| card.rank.0).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(rounds.closed(one), []);
        assert_eq!(rounds.closed(two), []);
        assert!(rounds.rounds.is_empty());
    }
}

#[test]
fn a_second_claim_is_refused_until_the_first_ends() {
    let mut rounds = Rounds::new("j", 2);
    done(rounds.join(1, join_of(1, 2)));
    assert_eq!(rounds.join(2, join_of(1, 2)), Joined::Claimed(1));
    let text = &failures(&rounds.refuse(2, Rank(1)))[0].1;
    assert!(text.contains("rank 1 of job j is already claimed by process 1001"), "{text}");
    // The refused one ends: nothing changes for the first.
    assert_eq!(rounds.closed(2), []);
    let table = done(rounds.join(3, join_of(0, 2)));
    assert!(matches!(table[..], [Action::Table { .. }]));
    // Still a member: the claim holds while the job runs, and is free afterwards.
    assert_eq!(rounds.join(4, join_of(1, 2)), Joined::Claimed(1));
    rounds.closed(1);
    assert!(matches!(rounds.join(4, join_of(1, 2)), Joined::Done(_)));
}

#[test]
fn a_difference_is_told_to_all_and_the_next_round_is_free() {
    let mut rounds = Rounds::new("j", 3);
    done(rounds.join(0, join_of(0, 3)));
    let mut other = join_of(2, 3);
    other.agreed[1].1 = 9;
    done(rounds.join(2, other));
    let told = failures(&done(rounds.join(1, join_of(1, 3))));
    assert_eq!(told.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [0, 1, 2]);
    let expected = "configuration field queue_num is 8 on rank 0 and 9 on rank 2; it must be the \
                    same on all ranks";
    assert!(told.iter().all(|(_, text)| text == expected), "{told:?}");
    for rank in 0..2 {
        done(rounds.join(10 + u64::from(rank), join_of(rank, 3)));
    }
    let table = done(rounds.join(12, join_of(2, 3)));
    assert!(matches!(table[..], [Action::Table { .. }]));
}

#[test]
fn another_size_ends_the_round_for_all_who_come() {
    let mut rounds = Rounds::new("j", 3);
    done(rounds.join(0, join_of(0, 3)));
    let told = failures(&done(rounds.join(1, join_of(1, 4))));
    assert_eq!(told.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [1, 0]);
    assert!(told[0].1.contains("is 3 on rank 0 and 4 on rank 1"), "{told:?}");
    let late = failures(&done(rounds.join(2, join_of(2, 3))));
    assert_eq!(late, [(2, told[0].1.clone())]);
}

#[test]
fn the_end_of_a_rank_ends_init_for_those_here_and_those_to_come() {
    let mut rounds = Rounds::new("j", 3);
    done(rounds.join(0, join_of(0, 3)));
    let told = failures(&rounds.gone(Rank(2), "exit status 3"));
    assert_eq!(told.len(), 1);
    assert!(told[0].1.contains("rank 2 has ended before it joined the job (exit status 3)"));
    let late = failures(&done(rounds.join(1, join_of(1, 3))));
    assert_eq!(late[0].1, told[0].1);
    // Nor is there a later round without it.
    assert_eq!(failures(&done(rounds.join(5, join_of(1, 3))))[0].1, told[0].1);
    assert_eq!(rounds.gone(Rank(2), "again"), []);
}

#[test]
fn the_end_of_a_waiting_connection_ends_that_round_only() {
    let mut rounds = Rounds::new("j", 3);
    done(rounds.join(0, join_of(0, 3)));
    done(rounds.join(1, join_of(1, 3)));
    let told = failures(&rounds.closed(1));
    assert_eq!(told[0].0, 0);
    assert!(told[0].1.contains("rank 1 (process 1001) ended during init"), "{told:?}");
    assert_eq!(failures(&done(rounds.join(2, join_of(2, 3))))[0].1, told[0].1);
    assert!(rounds.rounds.is_empty(), "the failure is forgotten once all know it");
    for rank in 0..2 {
        done(rounds.join(10 + u64::from(rank), join_of(rank, 3)));
    }
    assert!(matches!(done(rounds.join(12, join_of(2, 3)))[..], [Action::Table { .. }]));
}

#[test]
fn the_end_of_a_rank_does_not_disturb_a_running_job() {
    let mut rounds = Rounds::new("j", 2);
    done(rounds.join(0, join_of(0, 2)));
    done(rounds.join(1, join_of(1, 2)));
    assert_eq!(rounds.gone(Rank(1), "signal 9"), []);
    assert_eq!(rounds.closed(1), []);
    rounds.closed(0);
    let told = failures(&done(rounds.join(2, join_of(0, 2))));
    assert!(told[0].1.contains("rank 1 has ended already (signal 9)"), "{told:?}");
}

#[test]
fn strangers_are_refused() {
    let mut rounds = Rounds::new("j", 2);
    let mut other = join_of(0, 2);
    other.job = "k".to_owned();
    assert!(failures(&done(rounds.join(0, other)))[0].1.contains("job k"));
    assert!(failures(&done(rounds.join(0, join_of(7, 2))))[0].1.contains("does not exist"));
    // Only members may ask for a kill, and only of ranks that exist.
    assert_eq!(rounds.hear(0, &Message::Kill(Rank(1))), []);
    done(rounds.join(0, join_of(0, 2)));
    assert_eq!(rounds.hear(0, &Message::Kill(Rank(1))), [Action::Kill(Rank(1))]);
    assert_eq!(rounds.hear(0, &Message::Kill(Rank(2))), []);
    assert_eq!(rounds.hear(0, &Message::Over), []);
}

#[test]
fn news_of_the_missing_is_sparse() {
    let size = 1000;
    let mut rounds = Rounds::new("j", size);
    let mut sent = 0;
    for rank in 0..size as u16 {
        sent += done(rounds.join(u64::from(rank), join_of(rank, size))).len();
    }
    assert!(sent < 20 * size as usize, "{sent} messages");
}
