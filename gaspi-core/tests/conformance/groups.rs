//! Groups (GASPI 17.1, 6).

use super::*;
use ranks::Barrier;

const G1: GroupId = GroupId(1);

fn group_of(rt: &Runtime, ranks: &[u16]) -> GroupId {
    let group = rt.group_create().expect("create");
    for rank in ranks {
        rt.group_add(group, Rank(*rank)).expect("add");
    }
    group
}

fn ids_are_the_lowest_free_ones_up_to_the_limit() {
    let config = Config { group_max: 4, ..Config::default() };
    run_with(2, &config, |rt| {
        assert_eq!((rt.group_max(), rt.group_num()), (4, 1));
        for id in 1..4 {
            assert_eq!(rt.group_create(), Ok(GroupId(id)));
            assert_eq!(rt.group_size(GroupId(id)), Ok(0), "a new group is empty");
        }
        fails!(rt.group_create(), Error::TooManyGroups { limit: 4 });
        assert_eq!(rt.group_num(), 4);
        rt.group_delete(GroupId(2)).expect("delete");
        assert_eq!(rt.group_num(), 3);
        fails!(rt.group_size(GroupId(2)), Error::InvalidGroup { .. });
        fails!(rt.group_ranks(GroupId(2)), Error::InvalidGroup { .. });
        assert_eq!(rt.group_size(GroupId(3)), Ok(0), "a hole hides nothing behind it");
        assert_eq!(rt.group_create(), Ok(GroupId(2)));
        for id in [4, 200, 255] {
            fails!(rt.group_size(GroupId(id)), Error::InvalidGroup { .. });
            fails!(rt.group_delete(GroupId(id)), Error::InvalidGroup { .. });
            fails!(rt.group_add(GroupId(id), Rank(0)), Error::InvalidGroup { .. });
            fails!(rt.group_commit(GroupId(id), LIMIT), Error::InvalidGroup { .. });
            fails!(rt.barrier(GroupId(id), LIMIT), Error::InvalidGroup { .. });
        }
    });
}

fn members_are_sorted_and_checked() {
    run(3, |rt| {
        let group = group_of(rt, &[2, 0]);
        rt.group_add(group, Rank(1)).expect("add");
        assert_eq!(rt.group_ranks(group), Ok(vec![Rank(0), Rank(1), Rank(2)]));
        fails!(rt.group_add(group, Rank(1)), Error::InvalidRank { rank: Rank(1), .. });
        fails!(rt.group_add(group, Rank(3)), Error::InvalidRank { rank: Rank(3), .. });
        fails!(rt.group_add(group, Rank(u16::MAX)), Error::InvalidRank { .. });
        assert_eq!(rt.group_size(group), Ok(3));
        fails!(rt.barrier(group, LIMIT), Error::InvalidGroup { .. });
        rt.group_commit(group, LIMIT).expect("commit");
        fails!(rt.group_add(group, Rank(1)), Error::InvalidRank { .. });
        rt.barrier(group, LIMIT).expect("barrier");
    });
}

fn what_cannot_be_committed_or_deleted() {
    run(3, |rt| {
        let other = (rt.rank().0 + 1) % 3;
        let group = group_of(rt, &[other]);
        fails!(rt.group_commit(group, LIMIT), Error::InvalidGroup { .. });
        fails!(rt.group_delete(GroupId::ALL), Error::InvalidGroup { .. });
        rt.group_delete(group).expect("delete");
        fails!(rt.group_delete(group), Error::InvalidGroup { .. });
        fails!(rt.group_commit(group, LIMIT), Error::InvalidGroup { .. });
        meet(rt);
    });
}

fn every_size_commits_with_and_without_holes() {
    for size in ranks::sizes(&SIZES) {
        run(size, |rt| {
            let even: Vec<u16> = (0..size as u16).step_by(2).collect();
            let whole: Vec<u16> = (0..size as u16).collect();
            let both = [group_of(rt, &whole), group_of(rt, &even)];
            rt.group_commit(both[0], LIMIT).expect("commit");
            if rt.rank().0 % 2 == 0 {
                rt.group_commit(both[1], LIMIT).expect("commit");
                rt.barrier(both[1], LIMIT).expect("barrier");
            }
            rt.barrier(both[0], LIMIT).expect("barrier");
        });
    }
}

fn a_commit_that_timed_out_continues() {
    let late = Barrier::new(2);
    run(2, |rt| {
        let group = group_of(rt, &[0, 1]);
        if rt.rank() == Rank(0) {
            let test = within(AT_ONCE, "TEST", || rt.group_commit(group, Timeout::Test));
            assert!(test.expect_err("rank 1 waits").to_string().contains("{1}"));
            fails!(rt.group_commit(group, Timeout::Millis(30)), Error::Timeout { .. });
            late.wait();
        } else {
            late.wait();
        }
        rt.group_commit(group, LIMIT).expect("continued");
        rt.barrier(group, LIMIT).expect("barrier");
    });
}

fn a_member_that_uses_another_id_is_named() {
    let named = Barrier::new(2);
    run(2, |rt| {
        let (me, other) = (rt.rank().0, 1 - rt.rank().0);
        // Rank 1 counts one group more.
        let groups = [0; 2].map(|_| group_of(rt, &[0, 1]));
        let (own, its) = (groups[usize::from(me)], groups[usize::from(other)]);
        let says = format!("rank {other} commits the same ranks as {its}");
        let began = std::time::Instant::now();
        loop {
            let error = rt.group_commit(own, Timeout::Millis(30)).expect_err("it is alone");
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            if error.to_string().contains(&says) {
                break;
            }
            assert!(began.elapsed() < std::time::Duration::from_secs(60), "{error}");
        }
        named.wait();
        for group in [its, own] {
            rt.group_commit(group, LIMIT).expect("both commit both");
        }
        rt.barrier(groups[0], LIMIT).expect("barrier");
    });
}

fn the_next_use_of_an_id_waits_for_slower_ranks() {
    for size in ranks::sizes(&[3]) {
        let all: Vec<u16> = (0..size as u16).collect();
        let (last, others) = all.split_last().expect("some");
        run(size, |rt| {
            for round in 0..300 / size {
                // The last rank is ahead: it announces all while others still commit without it.
                if rt.rank().0 < *last {
                    let group = group_of(rt, others);
                    assert_eq!(group, G1);
                    rt.group_commit(group, LIMIT).unwrap_or_else(|e| panic!("round {round}: {e}"));
                    if round % 3 == 0 {
                        rt.barrier(group, LIMIT).expect("barrier");
                    }
                    rt.group_delete(group).expect("delete");
                }
                let group = group_of(rt, &all);
                assert_eq!(group, G1);
                rt.group_commit(group, LIMIT).unwrap_or_else(|e| panic!("round {round}: {e}"));
                rt.barrier(group, LIMIT).unwrap_or_else(|e| panic!("round {round}: {e}"));
                rt.group_delete(group).expect("delete");
            }
            meet(rt);
        });
    }
}

fn overlapping_groups_are_independent() {
    run(5, |rt| {
        let lists: [&[u16]; 3] = [&[0, 1, 2], &[1, 2, 3, 4], &[0, 2, 4]];
        let groups = lists.map(|list| group_of(rt, list));
        for (group, list) in groups.into_iter().zip(lists) {
            if list.contains(&rt.rank().0) {
                rt.group_commit(group, LIMIT).expect("commit");
            }
        }
        for _ in 0..20 {
            for (group, list) in groups.into_iter().zip(lists) {
                if list.contains(&rt.rank().0) {
                    rt.barrier(group, LIMIT).expect("barrier");
                }
            }
        }
        meet(rt);
    });
}

fn expect_mismatch(rt: &Runtime, group: GroupId, whole: &str) {
    match rt.group_commit(group, LIMIT) {
        Err(Error::Mismatch { group: named, difference }) => {
            assert_eq!(named, group);
            assert!(difference.contains(whole), "{difference}");
        }
        other => panic!("{other:?}"),
    }
    fails!(rt.barrier(group, LIMIT), Error::InvalidGroup { .. });
}

fn differing_lists_fail_on_all_also_where_they_are_not_mutual() {
    for odd in 0..4 {
        run(4, |rt| {
            // The deviating rank tells only one of those who wait for it.
            let list: &[u16] =
                if rt.rank().0 == odd { &[odd, (odd + 1) % 4] } else { &[0, 1, 2, 3] };
            expect_mismatch(rt, group_of(rt, list), "{0, 1, 2, 3}");
            meet(rt);
            // Another id is not concerned.
            let group = group_of(rt, &[0, 1, 2, 3]);
            rt.group_commit(group, LIMIT).expect("commit");
            rt.barrier(group, LIMIT).expect("barrier");
        });
    }
}

fn an_id_serves_again_after_a_mismatch() {
    run(5, |rt| {
        for round in 0..100 {
            let odd = round % 4;
            // Rank 4 is listed by one of the others only, and never commits.
            let list: &[u16] = if rt.rank().0 == odd { &[0, 1, 2, 3, 4] } else { &[0, 1, 2, 3] };
            if rt.rank().0 < 4 {
                let group = group_of(rt, list);
                expect_mismatch(rt, group, "{0, 1, 2, 3}");
                rt.group_delete(group).expect("delete");
            }
            meet(rt);
            if rt.rank().0 < 4 {
                let group = group_of(rt, &[0, 1, 2, 3]);
                rt.group_commit(group, LIMIT).unwrap_or_else(|e| panic!("round {round}: {e}"));
                rt.barrier(group, LIMIT).expect("barrier");
                rt.group_delete(group).expect("delete");
            }
        }
    });
}

fn the_group_of_all_may_be_committed_again() {
    for size in ranks::sizes(&[1, 2, 5]) {
        run(size, |rt| {
            for _ in 0..3 {
                rt.group_commit(GroupId::ALL, LIMIT).expect("commit");
                meet(rt);
            }
        });
    }
}

fn without_a_topology_the_group_of_all_does_not_exist() {
    let config = Config { topology: Topology::None, ..Config::default() };
    run_with(3, &config, |rt| {
        assert_eq!(rt.build_infrastructure(), 0);
        assert_eq!(rt.group_num(), 1);
        fails!(rt.barrier(GroupId::ALL, LIMIT), Error::InvalidGroup { .. });
        fails!(rt.group_size(GroupId::ALL), Error::InvalidGroup { .. });
        fails!(rt.group_ranks(GroupId::ALL), Error::InvalidGroup { .. });
        fails!(rt.group_add(GroupId::ALL, Rank(0)), Error::InvalidGroup { .. });
        fails!(rt.group_commit(GroupId::ALL, LIMIT), Error::InvalidGroup { .. });
        let group = group_of(rt, &[0, 1, 2]);
        assert_eq!(group, G1);
        rt.group_commit(group, LIMIT).expect("commit");
        rt.segment_create(S0, 64, group, LIMIT, Init::Zeroed).expect("create");
        rt.barrier(group, LIMIT).expect("barrier");
    });
}

fn a_dead_member_ends_the_commit() {
    for size in ranks::sizes(&[3]) {
        let everybody: Vec<u16> = (0..size as u16).collect();
        let others: Vec<u16> = everybody.iter().copied().filter(|rank| *rank != 1).collect();
        let ready = Barrier::new(size as usize);
        run_owned(size, &Config::default(), |rt| {
            // Nobody is still on the way when one of them ends.
            ready.wait();
            if rt.rank() == Rank(1) {
                return die(rt);
            }
            let group = group_of(&rt, &everybody);
            // Seen by this rank, or told by another one.
            let error = rt.group_commit(group, Timeout::Block).expect_err("rank 1 is dead");
            assert!(error.to_string().contains("rank 1 has died"), "{error}");
            soon("the death is known", || rt.state(Rank(1)) == Ok(State::Corrupt));
            rt.group_delete(group).expect("delete");
            let survivors = group_of(&rt, &others);
            rt.group_commit(survivors, LIMIT).expect("the survivors go on");
            rt.barrier(survivors, LIMIT).expect("barrier");
        });
    }
}

fn a_member_that_left_ends_the_commit_and_stays_healthy() {
    for size in ranks::sizes(&[3]) {
        let all: Vec<u16> = (0..size as u16).collect();
        let failed = Barrier::new(size as usize - 1);
        run(size, |rt| {
            if rt.rank() == Rank(1) {
                return rt.term(LIMIT).expect("term");
            }
            let group = group_of(rt, &all);
            let error = rt.group_commit(group, Timeout::Block).expect_err("rank 1 has left");
            assert!(error.to_string().contains("rank 1 has left"), "{error}");
            assert_eq!(rt.state(Rank(1)), Ok(State::Healthy));
            failed.wait();
        });
    }
}

/// Nor for one that has deleted it before it knew that the others had committed it.
fn an_id_does_not_wait_for_a_rank_that_has_deleted_its_group_in_a_commit() {
    let [begun, used, ready, over] = [3; 4].map(Barrier::new);
    run(3, |rt| {
        let me = rt.rank().0;
        let group = group_of(rt, &[0, 1, 2]);
        assert_eq!(group, G1);
        if me == 2 {
            fails!(rt.group_commit(group, Timeout::Test), Error::Timeout { .. });
        }
        begun.wait();
        if me < 2 {
            rt.group_commit(group, LIMIT).expect("commit");
            // A step for which both have arrived, and which rank 2 could read.
            let outcome = if me == 0 {
                rt.barrier(group, LIMIT)
            } else {
                rt.segment_create(S0, 64, group, LIMIT, Init::Zeroed)
            };
            fails!(outcome, Error::Mismatch { .. });
        }
        used.wait();
        rt.group_delete(group).expect("delete");
        ready.wait();
        if me < 2 {
            let group = group_of(rt, &[0, 1]);
            assert_eq!(group, G1);
            within(AT_ONCE, "commit", || rt.group_commit(group, LIMIT)).expect("commit");
            rt.barrier(group, LIMIT).expect("barrier");
        }
        over.wait();
    });
}

/// One that waits in vain and gives the group up needs nothing of it any more.
fn an_id_does_not_wait_for_a_rank_that_has_deleted_its_group() {
    let [arrived, ready, over] = [2, 3, 3].map(Barrier::new);
    run(3, |rt| {
        let me = rt.rank().0;
        if me < 2 {
            let group = group_of(rt, &[0, 1]);
            assert_eq!(group, G1);
            rt.group_commit(group, LIMIT).expect("commit");
            if me == 1 {
                fails!(rt.barrier(group, Timeout::Millis(10)), Error::Timeout { .. });
                arrived.wait();
            } else {
                arrived.wait();
                rt.barrier(group, LIMIT).expect("rank 1 had arrived");
            }
            rt.group_delete(group).expect("delete");
        }
        ready.wait();
        if me != 1 {
            let group = group_of(rt, &[0, 2]);
            assert_eq!(group, G1);
            within(AT_ONCE, "commit", || rt.group_commit(group, LIMIT)).expect("commit");
            rt.barrier(group, LIMIT).expect("barrier");
        }
        over.wait();
    });
}

/// What a member does behind the death of another one.
#[derive(Clone, Copy, PartialEq)]
enum Behind {
    Deletes,
    Calls,
    DoesNothing,
}

/// Nor does one that does not come after a death.
fn an_id_does_not_wait_for_a_rank_of_a_group_with_a_death() {
    for behind in [Behind::Deletes, Behind::Calls, Behind::DoesNothing] {
        let [joined, arrived, failed, ready, over] = [4, 3, 3, 3, 3].map(Barrier::new);
        run_owned(4, &Config::default(), |rt| {
            let me = rt.rank().0;
            joined.wait();
            if me < 3 {
                let group = group_of(&rt, &[0, 1, 2]);
                assert_eq!(group, G1);
                rt.group_commit(group, LIMIT).expect("commit");
                if me == 2 {
                    arrived.wait();
                    return die(rt);
                }
                if me == 1 {
                    arrived.wait();
                }
                if me == 0 {
                    fails!(rt.barrier(group, Timeout::Millis(10)), Error::Timeout { .. });
                    arrived.wait();
                    fails!(rt.barrier(group, LIMIT), Error::RankDied { rank: Rank(2), .. });
                }
            }
            failed.wait();
            if me == 0 || me == 1 && behind == Behind::Deletes {
                rt.group_delete(G1).expect("delete");
            } else if me == 1 && behind == Behind::Calls {
                soon("the death is known", || rt.state(Rank(2)) == Ok(State::Corrupt));
                fails!(rt.barrier(G1, LIMIT), Error::RankDied { rank: Rank(2), .. });
            }
            ready.wait();
            if me == 0 || me == 3 {
                let group = group_of(&rt, &[0, 3]);
                assert_eq!(group, G1);
                within(AT_ONCE, "commit", || rt.group_commit(group, LIMIT)).expect("commit");
                rt.barrier(group, LIMIT).expect("barrier");
            }
            over.wait();
        });
    }
}

fn thousands_of_groups_come_and_go() {
    run(2, |rt| {
        for round in 0..2000 {
            let group = group_of(rt, &[1, 0]);
            rt.group_commit(group, LIMIT).unwrap_or_else(|e| panic!("round {round}: {e}"));
            rt.group_delete(group).expect("delete");
        }
        meet(rt);
    });
}

tests! {
    EVERY:
        ids_are_the_lowest_free_ones_up_to_the_limit,
        members_are_sorted_and_checked,
        what_cannot_be_committed_or_deleted,
        every_size_commits_with_and_without_holes,
        a_commit_that_timed_out_continues,
        a_member_that_uses_another_id_is_named,
        the_next_use_of_an_id_waits_for_slower_ranks,
        overlapping_groups_are_independent,
        differing_lists_fail_on_all_also_where_they_are_not_mutual,
        an_id_serves_again_after_a_mismatch,
        the_group_of_all_may_be_committed_again,
        without_a_topology_the_group_of_all_does_not_exist,
        a_dead_member_ends_the_commit,
        an_id_does_not_wait_for_a_rank_that_has_deleted_its_group,
        an_id_does_not_wait_for_a_rank_that_has_deleted_its_group_in_a_commit,
        an_id_does_not_wait_for_a_rank_of_a_group_with_a_death,
        a_member_that_left_ends_the_commit_and_stays_healthy,
        thousands_of_groups_come_and_go;
    SEVERAL:
        every_size_commits_with_and_without_holes,
        the_next_use_of_an_id_waits_for_slower_ranks,
        a_member_that_left_ends_the_commit_and_stays_healthy,
        the_group_of_all_may_be_committed_again,
        a_dead_member_ends_the_commit;
}
