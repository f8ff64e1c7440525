//! Steps of a group with more members on a node than look at each other's slots.

use super::*;
use gaspi_core::sync::arrival_slot::Poll;
use ranks::{Barrier, run_jobs};
use std::sync::atomic::{AtomicU32, Ordering};

/// One full team and a part of one; three teams; three levels.
const MANY: [u32; 3] = [17, 40, 260];

fn describe(signature: u64) -> String {
    format!("test call {signature}")
}

fn key(arguments: u64, signature: u64) -> CallKey {
    CallKey { kind: CallKind::Allreduce, arguments, signature, describe }
}

/// A job of two nodes, to which the ranks belong by turns.
fn two_nodes(id: &str, rank: Rank, size: u32) -> Job {
    Job::in_process(id, rank, size).on_node(u64::from(rank.0 % 2))
}

fn nobody_passes_before_all_have_come() {
    for size in MANY {
        let arrived = AtomicU32::new(0);
        run(size, |rt| {
            for round in 1..=10 {
                arrived.fetch_add(1, Ordering::SeqCst);
                meet(rt);
                assert!(arrived.load(Ordering::SeqCst) >= round * size);
            }
        });
    }
}

fn nobody_passes_before_all_of_two_nodes_have_come() {
    let (size, arrived) = (40, AtomicU32::new(0));
    run_jobs(
        size,
        &Config::default(),
        |id, rank| two_nodes(id, rank, size),
        |rt| {
            for round in 1..=20 {
                arrived.fetch_add(1, Ordering::SeqCst);
                meet(&rt);
                assert!(arrived.load(Ordering::SeqCst) >= round * size);
            }
            rt.term(LIMIT).expect("term");
        },
    );
}

/// One step in which each member tells a word and something staged.
fn tell(rt: &Runtime, call: &mut GroupCall<'_>, round: u64) {
    let me = u64::from(rt.rank().0);
    let stage = call.stage(call.me(), call.step() + 1);
    // SAFETY: this rank's own staging, aligned and longer, for a step at which it has not arrived.
    unsafe { stage.as_ptr().cast::<u64>().write(round << 32 | me) };
    call.stage_used(8, true);
    call.arrive(&[me, round]);
    call.await_all(LIMIT.deadline()).expect("all arrive");
    for member in 0..call.ranks().len() {
        assert_eq!(call.payload(member, call.step())[..2], [member as u64, round]);
        let stage = call.stage(member, call.step()).as_ptr().cast::<u64>();
        // SAFETY: the member has written it before its arrival.
        assert_eq!(unsafe { stage.read() }, round << 32 | member as u64);
    }
}

fn all_see_what_each_has_told() {
    for size in MANY {
        run(size, |rt| {
            for round in 0..5 {
                let mut call = rt.group_call(GroupId::ALL, key(1, 7)).expect("call");
                tell(rt, &mut call, round);
                tell(rt, &mut call, round + 100);
                call.finish();
            }
        });
    }
}

fn segments_are_made_by_many() {
    run(40, |rt| {
        for round in 1..=3 {
            make(rt, S0, 64 * round);
            for rank in all(rt) {
                assert_eq!(rt.segment_size(S0, rank), Ok(64 * round));
            }
            meet(rt);
            rt.segment_delete(S0).expect("delete");
        }
    });
}

const SPEC: ChannelSpec = ChannelSpec { slots: 2, message_bytes: 64, stage_bytes: 64 };

/// Members tell each other by arrivals of channels that they open one after the other. Whoever
/// waits looks again only when it is woken.
fn arrive_in_channels(rt: &Runtime) {
    for round in 1..=3_u64 {
        let channel = rt.channel_open(GroupId::ALL, SPEC, LIMIT).expect("a channel");
        let me = u64::from(rt.rank().0);
        for sequence in 1..=7 {
            // Another one each time is the last, and the others sleep.
            let is_last = (sequence * 6) % channel.ranks().len() as u64 == me;
            (0..if is_last { 2000 } else { 0 }).for_each(|_| std::thread::yield_now());
            channel.arrive(sequence, round, &[me + sequence]);
            for member in (0..channel.ranks().len()).filter(|member| channel.is_local(*member)) {
                let arrived = || channel.poll(member, sequence) == Poll::Arrived(round);
                channel.wait_for(LIMIT.deadline(), || arrived().then_some(())).expect("woken");
                assert_eq!(channel.payload(member, sequence)[0], member as u64 + sequence);
            }
        }
        assert_eq!(channel.check(), Ok(()));
        meet(rt);
    }
}

fn channels_are_opened_by_many() {
    run(40, arrive_in_channels);
}

fn channels_are_opened_by_many_of_two_nodes() {
    // Of the second node there are few members.
    for of_second in [20, 3] {
        let size = 40;
        let node = |rank: Rank| u64::from(rank.0 % 2 == 1 && rank.0 < 2 * of_second);
        let job = |id: &str, rank: Rank| Job::in_process(id, rank, size).on_node(node(rank));
        run_jobs(size, &Config::default(), job, |rt| {
            arrive_in_channels(&rt);
            rt.term(LIMIT).expect("term");
        });
    }
}

fn a_channel_of_many_that_timed_out_is_opened_by_the_next_call() {
    let late = Barrier::new(40);
    run(40, |rt| {
        let open = |timeout| rt.channel_open(GroupId::ALL, SPEC, timeout);
        if rt.rank() != Rank(21) {
            fails!(open(Timeout::Test), Error::Timeout { .. });
            fails!(open(Timeout::Millis(20)), Error::Timeout { .. });
        }
        late.wait();
        let channel = open(LIMIT).expect("a channel");
        assert!((0..40).all(|member| channel.is_local(member)));
        meet(rt);
    });
}

fn a_death_ends_the_opening_of_a_channel_for_all() {
    run_owned(40, &Config::default(), |rt| {
        meet(&rt);
        if rt.rank() == Rank(22) {
            return die(rt);
        }
        let outcome = rt.channel_open(GroupId::ALL, SPEC, LIMIT);
        fails!(outcome, Error::RankDied { rank: Rank(22), .. });
        rt.term(LIMIT).expect("term");
    });
}

fn a_barrier_that_timed_out_continues() {
    let (size, late) = (40, Barrier::new(40));
    run(size, |rt| {
        for round in 0..3 {
            // Of another team in each round.
            let missing = Rank([39, 0, 20][round]);
            if rt.rank() != missing {
                let error = rt.barrier(GroupId::ALL, Timeout::Test).expect_err("one is missing");
                assert!(error.is_timeout());
                let error = rt.barrier(GroupId::ALL, Timeout::Millis(30)).expect_err("missing");
                let text = error.to_string();
                assert!(text.contains(&missing.0.to_string()), "{text}");
            }
            late.wait();
            rt.barrier(GroupId::ALL, LIMIT).expect("continued");
            meet(rt);
        }
    });
}

/// The last one comes when the others have lost patience, which takes 1 ms for each.
fn one_that_is_very_late_is_waited_for() {
    let waiting = AtomicU32::new(0);
    run(40, |rt| {
        if rt.rank() == Rank(33) {
            // Each of the others has waited for longer than that.
            while waiting.load(Ordering::SeqCst) < 39 {
                ranks::pause();
            }
        } else {
            let outcome = rt.barrier(GroupId::ALL, Timeout::Millis(100));
            assert!(outcome.expect_err("one is missing").is_timeout());
            waiting.fetch_add(1, Ordering::SeqCst);
        }
        meet(rt);
        meet(rt);
    });
}

fn all_are_told_of_a_mismatch() {
    // Within a team, between teams, and of a whole team.
    let differ: [fn(u16) -> bool; 3] =
        [|rank| rank == 5, |rank| rank == 39, |rank| (16..32).contains(&rank)];
    for differs in differ {
        run(40, |rt| {
            let other = differs(rt.rank().0);
            let outcome = within(AT_ONCE, "a mismatch", || {
                if other {
                    rt.segment_create(S0, 8, GroupId::ALL, LIMIT, Init::Zeroed)
                } else {
                    rt.barrier(GroupId::ALL, LIMIT)
                }
            });
            fails!(outcome, Error::Mismatch { .. });
            // The next step finds all of them again.
            meet(rt);
            make(rt, S1, 64);
        });
    }
}

/// A mismatch is told although some do not come, one of each team.
fn a_mismatch_is_told_although_members_are_missing() {
    let done = Barrier::new(34);
    run(34, |rt| {
        match rt.rank().0 {
            3 | 20 | 33 => {}
            5 => {
                let create = rt.segment_create(S0, 8, GroupId::ALL, LIMIT, Init::Zeroed);
                fails!(create, Error::Mismatch { .. });
            }
            _ => fails!(rt.barrier(GroupId::ALL, LIMIT), Error::Mismatch { .. }),
        }
        done.wait();
    });
}

fn a_death_ends_the_step_for_all() {
    for dead in [0, 16, 39] {
        run_owned(40, &Config::default(), |rt| {
            meet(&rt);
            if rt.rank() == Rank(dead) {
                return die(rt);
            }
            let outcome = within(AT_ONCE, "a death", || rt.barrier(GroupId::ALL, LIMIT));
            fails!(outcome, Error::RankDied { rank, .. } if rank == Rank(dead));
            rt.term(LIMIT).expect("term");
        });
    }
}

fn a_rank_that_leaves_ends_the_step_for_all() {
    for leaver in [0, 17, 39] {
        run_owned(40, &Config::default(), |rt| {
            meet(&rt);
            if rt.rank() != Rank(leaver) {
                let outcome = within(AT_ONCE, "a leave", || rt.barrier(GroupId::ALL, LIMIT));
                fails!(outcome, Error::RankLeft { rank, .. } if rank == Rank(leaver));
            }
            rt.term(LIMIT).expect("term");
        });
    }
}

fn all_pass_the_last_barrier_of_ranks_that_leave_at_once() {
    for size in MANY {
        run_owned(size, &Config::default(), |rt| {
            meet(&rt);
            meet(&rt);
            rt.term(LIMIT).expect("term");
        });
    }
}

fn an_id_is_used_again_by_others() {
    run(40, |rt| {
        for round in 0..6_u16 {
            // Groups of 20 or 40 with the same id, whose first members differ.
            let parts = [1, 2][usize::from(round % 2)];
            let group = rt.group_create().expect("create");
            let of_part = |rank: &Rank| rank.0 % parts == rt.rank().0 % parts;
            all(rt).filter(of_part).for_each(|rank| rt.group_add(group, rank).expect("add"));
            rt.group_commit(group, LIMIT).expect("commit");
            for _ in 0..=round {
                rt.barrier(group, LIMIT).expect("barrier");
            }
            rt.group_delete(group).expect("delete");
        }
        meet(rt);
    });
}

tests! {
    SHM:
        nobody_passes_before_all_have_come,
        all_see_what_each_has_told,
        segments_are_made_by_many,
        channels_are_opened_by_many,
        a_channel_of_many_that_timed_out_is_opened_by_the_next_call,
        a_death_ends_the_opening_of_a_channel_for_all,
        a_barrier_that_timed_out_continues,
        one_that_is_very_late_is_waited_for,
        all_are_told_of_a_mismatch,
        a_mismatch_is_told_although_members_are_missing,
        a_death_ends_the_step_for_all,
        a_rank_that_leaves_ends_the_step_for_all,
        all_pass_the_last_barrier_of_ranks_that_leave_at_once,
        an_id_is_used_again_by_others;
    TCP:
        nobody_passes_before_all_of_two_nodes_have_come,
        channels_are_opened_by_many_of_two_nodes;
}
