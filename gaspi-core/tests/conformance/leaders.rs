//! Steps of groups that span nodes: how many messages they take, and who sends them.

use super::*;
use gaspi_core::knomial_tree::KnomialTree;
use gaspi_core::{CallKey, CallKind};
use ranks::run_jobs;

/// A job of nodes with so many ranks each, whose numbers are scattered over the nodes.
fn job_of(nodes: u32, id: &str, rank: Rank, size: u32) -> Job {
    Job::in_process(id, rank, size).on_node(u64::from(u32::from(rank.0) % nodes))
}

/// Some nodes and ranks of each; in the long tier 64 nodes, too.
fn shapes(usual: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let is_full = std::env::var_os("GASPI_TEST_FULL").is_some();
    let many: &[(u32, u32)] = if is_full { &[(64, 1), (64, 2), (64, 5)] } else { &[] };
    [usual, many].concat()
}

fn messages(rt: &Runtime) -> u64 {
    let find = |name| {
        let is_it = |number: &u32| Runtime::statistic_info(*number).expect("one").name == name;
        (0..rt.statistic_num()).find(is_it).expect("a counter of that name")
    };
    rt.statistic_get(find("NumberOfGroupMessages"), 0).expect("counter")
}

/// Has all ranks take a step again and again, and counts messages by rank. On a machine that is
/// late for once, ranks lose patience and tell all: so it is tried until they are few.
fn assert_few((nodes, size): (u32, u32), what: &str, step: impl Fn(&Runtime) + Sync) {
    assert_few_of((nodes, size), what, |rt| {
        let before = messages(rt);
        step(rt);
        messages(rt) - before
    });
}

/// The same where a step says how many messages count.
fn assert_few_of((nodes, size): (u32, u32), what: &str, step: impl Fn(&Runtime) -> u64 + Sync) {
    const STEPS: u64 = 5;
    let steps = |rt: &Runtime| (0..STEPS).map(|_| step(rt)).sum::<u64>().div_ceil(STEPS);
    let found = counted((nodes, size), |found| are_few(nodes, found), steps);
    assert!(are_few(nodes, &found), "{what} of {nodes} nodes: {found:?}");
}

/// What each rank counts, in the first try in which that is `few`.
fn counted(
    (nodes, size): (u32, u32),
    few: impl Fn(&[u64]) -> bool + Sync,
    count: impl Fn(&Runtime) -> u64 + Sync,
) -> Vec<u64> {
    let job = |id: &str, rank| job_of(nodes, id, rank, size);
    let tries = ranks::Tries::new(size);
    run_jobs(size, &Config::default(), job, |rt| {
        while !tries.are_over(rt.rank(), count(&rt), &few) {}
        rt.term(LIMIT).expect("term");
    });
    tries.counts()
}

fn are_few(nodes: u32, found: &[u64]) -> bool {
    let (leaders, others) = found.split_at(nodes as usize);
    let rounds = u64::from(nodes.next_power_of_two().trailing_zeros());
    // Along a tree the first one tells so many, and all together two for each edge; what is sent
    // behind a step may count for the next.
    let all: u64 = leaders.iter().sum();
    others.iter().all(|count| *count == 0)
        && leaders.iter().all(|count| *count <= rounds.max(of_root(nodes)) + 1)
        && (1..=u64::from(nodes) * rounds.max(2)).contains(&all)
}

/// So many the first of all nodes tells along a tree.
fn of_root(nodes: u32) -> u64 {
    KnomialTree::of(nodes as usize).children(0).count() as u64
}

fn first_members_of_nodes_send_few_messages_and_others_none() {
    for (nodes, each) in shapes(&[(24, 1), (5, 2), (8, 2), (4, 5), (2, 3)]) {
        let size = nodes * each;
        let barrier = |rt: &Runtime| rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        assert_few((nodes, size), "a barrier", barrier);
    }
}

/// The step tells members of other nodes all that they need of a segment.
fn a_segment_that_is_made_costs_a_step() {
    for (nodes, each) in [(24, 1), (4, 2), (2, 20)] {
        let make_one = |rt: &Runtime| {
            // So that nobody is late.
            meet(rt);
            let before = messages(rt);
            make(rt, S0, 64);
            let sent = messages(rt) - before;
            let next = Rank((rt.rank().0 + 1) % (nodes * each) as u16);
            assert_eq!(rt.segment_size(S0, next), Ok(64));
            meet(rt);
            rt.segment_delete(S0).expect("delete");
            sent
        };
        assert_few_of((nodes, nodes * each), "segment_create", make_one);
    }
}

fn a_commit_goes_by_the_first_members_of_nodes() {
    for (nodes, each) in shapes(&[(24, 1), (8, 2), (5, 3), (4, 5), (2, 3)]) {
        let size = nodes * each;
        let commit = |rt: &Runtime| {
            let group = rt.group_create().expect("group");
            all(rt).for_each(|rank| rt.group_add(group, rank).expect("add"));
            // So that nobody is late, and all know what has been committed before.
            meet(rt);
            let before = messages(rt);
            rt.group_commit(group, LIMIT).expect("commit");
            let sent = messages(rt) - before;
            rt.barrier(group, LIMIT).expect("barrier");
            rt.group_delete(group).expect("delete");
            sent
        };
        assert_few_of((nodes, size), "a commit", commit);
    }
}

/// All but one have waited until their timeout is over before that one begins.
fn a_commit_that_one_is_late_for_costs_each_some_messages() {
    for (nodes, each) in [(24_u32, 1), (4, 6)] {
        let size = nodes * each;
        let (late, others_wait) = (Rank((size / 2) as u16), ranks::Barrier::new(size as usize));
        let commit = |rt: &Runtime| {
            let group = rt.group_create().expect("group");
            all(rt).for_each(|rank| rt.group_add(group, rank).expect("add"));
            meet(rt);
            let before = messages(rt);
            if rt.rank() != late {
                // Several times as long as they wait before they ask.
                let short = Timeout::Millis(u64::from(3 * size));
                fails!(rt.group_commit(group, short), Error::Timeout { .. });
            }
            others_wait.wait();
            rt.group_commit(group, LIMIT).expect("commit");
            let sent = messages(rt) - before;
            rt.barrier(group, LIMIT).expect("barrier");
            rt.group_delete(group).expect("delete");
            sent
        };
        let rounds = u64::from(nodes.next_power_of_two().trailing_zeros());
        // A message along each edge of a tree in both directions, and who waited for it has asked.
        let some = |sent: &[u64]| {
            sent.iter().all(|count| *count <= 4 * rounds.max(of_root(nodes)))
                && (1..=6 * u64::from(nodes)).contains(&sent.iter().sum())
        };
        let sent = counted((nodes, size), some, commit);
        assert!(some(&sent), "{nodes} nodes: {sent:?}");
    }
}

/// Each list has members of the one before, and others; there is no step between them.
fn commits_of_other_lists_under_an_id_cost_as_much_as_the_first() {
    for (nodes, each) in [(24_u32, 1), (8, 3)] {
        let size = (nodes * each) as u16;
        let commit = |rt: &Runtime| {
            meet(rt);
            let before = messages(rt);
            for list in [0..size, 0..size * 2 / 3, size / 3..size, 0..2, 0..size] {
                if !list.contains(&rt.rank().0) {
                    continue;
                }
                let group = rt.group_create().expect("group");
                list.for_each(|rank| rt.group_add(group, Rank(rank)).expect("add"));
                rt.group_commit(group, LIMIT).expect("commit");
                rt.group_delete(group).expect("delete");
            }
            messages(rt) - before
        };
        let most = u64::from(5 * nodes * nodes.next_power_of_two().trailing_zeros());
        let few = |sent: &[u64]| (1..=most).contains(&sent.iter().sum());
        let sent = counted((nodes, size.into()), few, commit);
        assert!(few(&sent), "{nodes} nodes of {each}: {sent:?}, not {most}");
    }
}

/// It has begun, and passes on nothing: those ask that it would have told.
fn a_member_that_has_tried_and_left_costs_some_questions() {
    let (size, rounds) = (48, 6);
    let tells = |rank: usize| {
        let of_tree = 1 + KnomialTree::of(size as usize).children(rank).count() as u64;
        of_tree.max(rounds)
    };
    for left in [0, 8] {
        // Each receiver asks all others, and is answered.
        let most = (2 * tells(left.into()) + 12) * u64::from(size);
        // Where threads wait for the processor some ask for other reasons, too.
        let mut tries = (0..10).map(|_| messages_without(Rank(left), size));
        let mut seen = Vec::new();
        let is_few = |sent: u64| sent > 0 && sent <= most;
        let found = tries.any(|sent| {
            seen.push(sent);
            is_few(sent)
        });
        assert!(found, "{left} has left: {seen:?} messages, not {most}");
    }
}

/// Messages of a commit of so many nodes of a rank, one of which has left after an attempt.
fn messages_without(left: Rank, size: u32) -> u64 {
    let (all_have_tried, over) =
        (ranks::Barrier::new(size as usize), ranks::Barrier::new(size as usize - 1));
    let job = |id: &str, rank| job_of(size, id, rank, size);
    let sent: Vec<u64> = run_jobs(size, &Config::default(), job, |rt| {
        let group = rt.group_create().expect("group");
        all(&rt).for_each(|rank| rt.group_add(group, rank).expect("add"));
        meet(&rt);
        let before = messages(&rt);
        if rt.rank() == left {
            fails!(rt.group_commit(group, Timeout::Test), Error::Timeout { .. });
            rt.term(LIMIT).expect("term");
            all_have_tried.wait();
            return 0;
        }
        all_have_tried.wait();
        rt.group_commit(group, LIMIT).expect("all have come");
        over.wait();
        let sent = messages(&rt) - before;
        rt.term(LIMIT).expect("term");
        sent
    });
    sent.iter().sum()
}

/// Uses of an id in a row without a step between them, each with the same or other members.
fn commits_in_a_row_do_not_overtake_each_other() {
    for (nodes, size) in [(2, 4), (3, 6), (5, 5), (4, 9)] {
        let job = |id: &str, rank| job_of(nodes, id, rank, size);
        run_jobs(size, &Config::default(), job, |rt| {
            for round in 0..60_u16 {
                let left_out = if round % 5 < 3 { None } else { Some(round % size as u16) };
                if left_out == Some(rt.rank().0) {
                    continue;
                }
                let group = rt.group_create().expect("group");
                let members = (0..size as u16).filter(|rank| Some(*rank) != left_out);
                members.for_each(|rank| rt.group_add(group, Rank(rank)).expect("add"));
                rt.group_commit(group, LIMIT).unwrap_or_else(|e| panic!("round {round}: {e}"));
                if round % 7 == 0 {
                    rt.barrier(group, LIMIT).expect("barrier");
                }
                rt.group_delete(group).expect("delete");
            }
            meet(&rt);
            rt.term(LIMIT).expect("term");
        });
    }
}

/// Lists differ where leaders would tell of them: all are told so, with both lists.
fn differing_lists_are_told_to_all_nodes() {
    for nodes in [4, 1] {
        differing_lists_of(nodes, 8);
    }
}

/// The last one is listed by one of them, and never commits.
fn differing_lists_of(nodes: u32, size: u32) {
    let job = |id: &str, rank| job_of(nodes, id, rank, size);
    run_jobs(size, &Config::default(), job, |rt| {
        for odd in 0..size as u16 - 1 {
            let group = rt.group_create().expect("group");
            let end = if rt.rank().0 == odd { size as u16 } else { size as u16 - 1 };
            if rt.rank().0 < size as u16 - 1 {
                (0..end).for_each(|rank| rt.group_add(group, Rank(rank)).expect("add"));
                let error = rt.group_commit(group, LIMIT).expect_err("lists differ").to_string();
                for list in ["{0, 1, 2, 3, 4, 5, 6}", "{0, 1, 2, 3, 4, 5, 6, 7}"] {
                    assert!(error.contains(list), "{error}");
                }
            }
            rt.group_delete(group).expect("delete");
            meet(&rt);
            let group = rt.group_create().expect("group");
            if rt.rank().0 < size as u16 - 1 {
                let members = 0..size as u16 - 1;
                members.for_each(|rank| rt.group_add(group, Rank(rank)).expect("add"));
                rt.group_commit(group, LIMIT).expect("the next one");
                rt.barrier(group, LIMIT).expect("barrier");
            }
            rt.group_delete(group).expect("delete");
        }
        rt.term(LIMIT).expect("term");
    });
}

/// Each rank leaves once it has committed, whichever way it has heard of the others.
fn all_commit_a_group_of_ranks_that_leave_at_once() {
    for (nodes, size) in [(2, 5), (3, 7), (5, 10), (8, 8), (1, 5), (1, 40)] {
        for _ in 0..5 {
            let job = |id: &str, rank| job_of(nodes, id, rank, size);
            run_jobs(size, &Config::default(), job, |rt| {
                let group = rt.group_create().expect("group");
                all(&rt).for_each(|rank| rt.group_add(group, rank).expect("add"));
                rt.group_commit(group, LIMIT).expect("commit");
                rt.term(LIMIT).expect("term");
            });
        }
    }
}

/// A leader or not, while the others commit or before; they then go on without it.
fn a_dead_member_of_any_node_ends_the_commit() {
    let size = 6_u32;
    for (nodes, dead) in
        [3, 1].into_iter().flat_map(|n| (0..size as u16).map(move |dead| (n, dead)))
    {
        let ready = ranks::Barrier::new(size as usize);
        let job = |id: &str, rank| job_of(nodes, id, rank, size);
        run_jobs(size, &Config::default(), job, |rt| {
            let group = rt.group_create().expect("group");
            all(&rt).for_each(|rank| rt.group_add(group, rank).expect("add"));
            ready.wait();
            if rt.rank().0 == dead {
                if dead % 2 == 0 {
                    // Others may know that it takes part.
                    let error = rt.group_commit(group, Timeout::Test);
                    assert!(error.is_ok() || error.is_err_and(|error| error.is_timeout()));
                }
                return die(rt);
            }
            match rt.group_commit(group, Timeout::Block) {
                Ok(()) => assert_eq!(dead % 2, 0, "it has not begun"),
                Err(error) => {
                    let died = format!("rank {dead} has died");
                    assert!(error.to_string().contains(&died), "{error}");
                }
            }
            soon("the death is known", || rt.state(Rank(dead)) == Ok(State::Corrupt));
            rt.group_delete(group).expect("delete");
            let survivors = rt.group_create().expect("group");
            let living = all(&rt).filter(|rank| rank.0 != dead);
            living.for_each(|rank| rt.group_add(survivors, rank).expect("add"));
            rt.group_commit(survivors, LIMIT).expect("the survivors go on");
            rt.barrier(survivors, LIMIT).expect("barrier");
        });
    }
}

/// It has passed on nothing, and does so no more.
fn a_member_that_has_tried_and_left_keeps_nobody_from_the_commit() {
    for (nodes, size) in [(24, 24), (4, 12), (1, 40)] {
        // One that others tell through, wherever that is.
        for left in [0, 1, size as u16 / 2] {
            let tried = ranks::Barrier::new(size as usize);
            let job = |id: &str, rank| job_of(nodes, id, rank, size);
            run_jobs(size, &Config::default(), job, |rt| {
                let group = rt.group_create().expect("group");
                all(&rt).for_each(|rank| rt.group_add(group, rank).expect("add"));
                meet(&rt);
                if rt.rank() == Rank(left) {
                    fails!(rt.group_commit(group, Timeout::Test), Error::Timeout { .. });
                }
                tried.wait();
                if rt.rank() != Rank(left) {
                    let commit = || rt.group_commit(group, LIMIT);
                    within(Duration::from_secs(10), "the commit", commit).expect("all have come");
                }
                rt.term(LIMIT).expect("term");
            });
        }
    }
}

/// The leader of a node has begun to commit, and computes, when others of its node come.
fn a_leader_that_has_tried_keeps_nobody_from_the_commit() {
    let (nodes, size) = (3, 9);
    let (tried, over) = (ranks::Barrier::new(9), ranks::Barrier::new(9));
    let job = |id: &str, rank| job_of(nodes, id, rank, size);
    run_jobs(size, &Config::default(), job, |rt| {
        for _ in 0..5 {
            let leads = u32::from(rt.rank().0) < nodes;
            let group = rt.group_create().expect("group");
            all(&rt).for_each(|rank| rt.group_add(group, rank).expect("add"));
            if leads {
                let error = rt.group_commit(group, Timeout::Test).expect_err("others are late");
                assert!(error.is_timeout(), "{error}");
            }
            tried.wait();
            if !leads {
                within(AT_ONCE, "the others' commit", || rt.group_commit(group, LIMIT))
                    .expect("all have come");
            }
            over.wait();
            if leads {
                rt.group_commit(group, LIMIT).expect("continued");
            }
            rt.group_delete(group).expect("delete");
        }
        rt.term(LIMIT).expect("term");
    });
}

fn groups_of_some_nodes_have_leaders_of_their_own() {
    let (nodes, size) = (4, 12);
    let job = |id: &str, rank| job_of(nodes, id, rank, size);
    run_jobs(size, &Config::default(), job, |rt| {
        // Without the first rank of each node, then without the second node, then of two nodes.
        let left_out: [fn(u16) -> bool; 3] = [|r| r < 4, |r| r % 4 == 1, |r| r % 4 > 1 || r == 0];
        for left_out in left_out {
            let members = || (0..size as u16).filter(|rank| !left_out(*rank));
            for _ in 0..3 {
                if left_out(rt.rank().0) {
                    continue;
                }
                let group = rt.group_create().expect("group");
                members().for_each(|rank| rt.group_add(group, Rank(rank)).expect("add"));
                rt.group_commit(group, LIMIT).expect("commit");
                for _ in 0..5 {
                    rt.barrier(group, LIMIT).expect("barrier");
                }
                rt.group_delete(group).expect("delete");
            }
            meet(&rt);
        }
        rt.term(LIMIT).expect("term");
    });
}

/// Whoever it is, a leader or not: its reason comes to all.
fn a_member_that_cannot_do_its_part_is_named_by_all() {
    let (nodes, size) = (3, 6);
    let job = |id: &str, rank| job_of(nodes, id, rank, size);
    run_jobs(size, &Config::default(), job, |rt| {
        for failing in all(&rt) {
            let bytes = if rt.rank() == failing { 1 << 50 } else { 64 };
            let made = rt.segment_create(S0, bytes, GroupId::ALL, LIMIT, Init::Zeroed);
            match made.expect_err("one has not so much memory") {
                Error::Memory { .. } => assert_eq!(rt.rank(), failing),
                error => assert!(error.to_string().contains(&failing.to_string()), "{error}"),
            }
            assert_eq!(rt.segment_num(), 0, "nobody keeps it");
        }
        make(&rt, S0, 64);
        rt.term(LIMIT).expect("term");
    });
}

/// The leader of a node has arrived, and computes, when others of its node come.
fn a_leader_that_has_tried_keeps_nobody_from_the_barrier() {
    let (nodes, size) = (3, 9);
    let (tried, over) = (ranks::Barrier::new(9), ranks::Barrier::new(9));
    let job = |id: &str, rank| job_of(nodes, id, rank, size);
    run_jobs(size, &Config::default(), job, |rt| {
        for _ in 0..5 {
            let leads = u32::from(rt.rank().0) < nodes;
            if leads {
                let error = rt.barrier(GroupId::ALL, Timeout::Test).expect_err("others are late");
                assert!(error.is_timeout(), "{error}");
            }
            tried.wait();
            if !leads {
                within(AT_ONCE, "the others' barrier", || rt.barrier(GroupId::ALL, LIMIT))
                    .expect("all have come");
            }
            over.wait();
            if leads {
                rt.barrier(GroupId::ALL, LIMIT).expect("continued");
            }
        }
        rt.term(LIMIT).expect("term");
    });
}

/// Each rank leaves once it has passed, whichever way it has heard of the others.
fn all_pass_the_last_barrier_of_ranks_that_leave_at_once() {
    for (nodes, size) in [(2, 5), (3, 7), (5, 10), (8, 8), (1, 5), (1, 40)] {
        for _ in 0..5 {
            let job = |id: &str, rank| job_of(nodes, id, rank, size);
            run_jobs(size, &Config::default(), job, |rt| {
                for _ in 0..3 {
                    rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
                }
                rt.term(LIMIT).expect("term");
            });
        }
    }
}

/// In each job another rank is late for a step, so that each tells all of its arrival. All of them
/// leave as soon as they have come to its end.
fn all_finish_late<T: PartialEq + std::fmt::Debug>(
    step: impl Fn(&Runtime, Timeout) -> gaspi_core::Result<T> + Sync,
    expected: impl Fn(u32) -> T + Sync,
) {
    for (nodes, size) in [(2, 5), (3, 7), (5, 10), (8, 8)] {
        for late in (0..size as u16).map(Rank) {
            let together = ranks::Barrier::new(size as usize);
            let job = |id: &str, rank| job_of(nodes, id, rank, size);
            run_jobs(size, &Config::default(), job, |rt| {
                if rt.rank() != late {
                    is_late(step(&rt, Timeout::Millis(1)));
                }
                together.wait();
                let found = step(&rt, LIMIT);
                assert_eq!(found, Ok(expected(size)), "{} of {nodes} nodes", rt.rank());
                rt.term(LIMIT).expect("term");
            });
        }
    }
}

/// A step cannot have ended yet.
fn is_late<T: std::fmt::Debug>(outcome: gaspi_core::Result<T>) {
    let error = outcome.expect_err("one is late");
    assert!(error.is_timeout(), "{error}");
}

fn all_pass_the_last_barrier_that_one_is_late_for() {
    all_finish_late(|rt, timeout| rt.barrier(GroupId::ALL, timeout), |_| ());
}

/// A step in which each rank tells of its number twice, in a word and in staging. Gives what came.
fn exchange(rt: &Runtime, timeout: Timeout) -> gaspi_core::Result<Vec<u64>> {
    let key = CallKey { kind: CallKind::Allreduce, arguments: 1, signature: 7, describe };
    let mut call = rt.group_call(GroupId::ALL, key).expect("call");
    if call.arrived() == call.step() {
        let stage = call.stage(call.me(), call.step() + 1);
        // SAFETY: this rank's stage of the step to come, which nobody else touches.
        unsafe { stage.as_ptr().cast::<u64>().write(rt.rank().0.into()) };
        call.stage_used(size_of::<u64>(), true);
        call.arrive(&[rt.rank().0.into()]);
    }
    call.await_all(timeout.deadline())?;
    let of = |member: usize| {
        // SAFETY: published by the arrival just awaited.
        let staged = unsafe { call.stage(member, call.step()).as_ptr().cast::<u64>().read() };
        call.payload(member, call.step())[0] << 32 | staged
    };
    let found = (0..call.ranks().len()).map(of).collect();
    call.finish();
    Ok(found)
}

fn describe(signature: u64) -> String {
    format!("exchange {signature}")
}

fn exchanged(size: u32) -> Vec<u64> {
    (0..u64::from(size)).map(|rank| rank << 32 | rank).collect()
}

/// What ranks have told in a step comes to all, although each leaves as soon as it has it.
fn all_get_what_was_told_in_the_last_step_that_one_is_late_for() {
    all_finish_late(exchange, exchanged);
}

/// A rank leaves a step that it has not finished. The others finish it, or are told who left.
fn nobody_waits_for_ever_where_one_leaves_a_step_behind() {
    for (nodes, size) in [(3, 7), (5, 10)] {
        for leaver in (0..size as u16).map(Rank) {
            let late = Rank((leaver.0 + 1) % size as u16);
            let together = ranks::Barrier::new(size as usize);
            let job = |id: &str, rank| job_of(nodes, id, rank, size);
            run_jobs(size, &Config::default(), job, |rt| {
                if rt.rank() != late {
                    is_late(exchange(&rt, Timeout::Millis(1)));
                }
                if rt.rank() == leaver {
                    rt.term(LIMIT).expect("term");
                    together.wait();
                    return;
                }
                together.wait();
                match exchange(&rt, LIMIT) {
                    Ok(found) => assert_eq!(found, exchanged(size), "{}", rt.rank()),
                    Err(Error::RankLeft { .. }) => {}
                    Err(error) => panic!("{} of {nodes} nodes: {error}", rt.rank()),
                }
                rt.term(LIMIT).expect("term");
            });
        }
    }
}

tests! {
    TCP:
        first_members_of_nodes_send_few_messages_and_others_none,
        a_segment_that_is_made_costs_a_step,
        a_commit_goes_by_the_first_members_of_nodes,
        a_commit_that_one_is_late_for_costs_each_some_messages,
        commits_of_other_lists_under_an_id_cost_as_much_as_the_first,
        a_member_that_has_tried_and_left_costs_some_questions,
        commits_in_a_row_do_not_overtake_each_other,
        differing_lists_are_told_to_all_nodes,
        all_commit_a_group_of_ranks_that_leave_at_once,
        a_dead_member_of_any_node_ends_the_commit,
        a_member_that_has_tried_and_left_keeps_nobody_from_the_commit,
        a_leader_that_has_tried_keeps_nobody_from_the_commit,
        groups_of_some_nodes_have_leaders_of_their_own,
        a_leader_that_has_tried_keeps_nobody_from_the_barrier,
        a_member_that_cannot_do_its_part_is_named_by_all,
        all_pass_the_last_barrier_of_ranks_that_leave_at_once,
        all_pass_the_last_barrier_that_one_is_late_for,
        all_get_what_was_told_in_the_last_step_that_one_is_late_for,
        nobody_waits_for_ever_where_one_leaves_a_step_behind;
}
