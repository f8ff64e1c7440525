//! Which thread a collective belongs to between its brief look and its wait; which ranks arrive.

use super::*;
use crate::bootstrap::Job;
use crate::config::Config;
use crate::ids::{GroupId, Rank};
use crate::runtime::{PendingInit, Runtime};
use crate::sync::arrival_slot::Poll;
use crate::sync::{AtomicU64, Ordering};
use crate::timeout::Timeout;
use crate::transport::shm::area::wake_kind;
use std::sync::Barrier;

const LIMIT: Timeout = Timeout::Millis(60_000);

#[test]
fn a_barrier_between_its_brief_look_and_the_rest_belongs_to_its_thread() {
    let go = Barrier::new(2);
    let (go, join) = (&go, |rank| {
        let job = Job::in_process("between", Rank(rank), 2);
        PendingInit::new(job, Config::default()).unwrap().wait(LIMIT).unwrap()
    });
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let late = join(1);
            for _ in 0..3 {
                go.wait();
                late.barrier(GroupId::ALL, LIMIT).unwrap();
            }
            late.term(LIMIT).unwrap();
        });
        let runtime = &join(0);
        let barrier = |timeout| runtime.barrier(GroupId::ALL, timeout);
        let on_another_thread =
            |timeout| std::thread::scope(|inner| inner.spawn(|| barrier(timeout)).join().unwrap());
        assert!(runtime.inner().barrier_briefly(GroupId::ALL, true).is_none());
        let refused = on_another_thread(LIMIT);
        assert!(matches!(refused, Err(Error::ActiveCollective { .. })), "{refused:?}");
        go.wait();
        barrier(LIMIT).unwrap();
        // Once it has timed out, any thread may continue it.
        assert!(barrier(Timeout::Test).is_err_and(|error| error.is_timeout()));
        go.wait();
        on_another_thread(LIMIT).unwrap();
        // Nobody is one barrier ahead.
        assert!(barrier(Timeout::Test).is_err_and(|error| error.is_timeout()));
        go.wait();
        barrier(LIMIT).unwrap();
        runtime.term(LIMIT).unwrap();
    });
}

#[test]
fn a_rank_that_knows_of_a_death_does_not_arrive() {
    let join = |rank| {
        let job = Job::in_process("knows", Rank(rank), 3);
        let runtime = PendingInit::new(job, Config::default()).unwrap().wait(LIMIT).unwrap();
        runtime.barrier(GroupId::ALL, LIMIT).unwrap();
        runtime
    };
    let (_others, runtime) = std::thread::scope(|scope| {
        let others = [1, 2].map(|rank| scope.spawn(move || join(rank)));
        let runtime = join(0);
        (others.map(|other| other.join().unwrap()), runtime)
    });
    let inner = runtime.inner();
    inner.ranks.area.mark_dead(Rank(1));
    let steps = || {
        let arrival_slots = inner.arrival_slots_of(Rank(0), GroupId::ALL);
        arrival_slots.each_ref().map(|slot| slot.sequence.load(Ordering::Relaxed))
    };
    let before = steps();
    let outcome = runtime.barrier(GroupId::ALL, LIMIT);
    assert!(matches!(outcome, Err(Error::RankDied { rank: Rank(1), .. })), "{outcome:?}");
    let call = CallKey { arguments: 1, ..BARRIER };
    let refused = runtime.group_call(GroupId::ALL, call).map(drop);
    assert!(matches!(refused, Err(Error::RankDied { .. })), "{refused:?}");
    assert_eq!(steps(), before, "it has told the others that it came");
}

#[test]
fn an_arrival_among_many_wakes_nobody_before_all_are_there() {
    // So many that nobody loses patience meanwhile.
    const RANKS: u32 = 80;
    let runtimes: Vec<_> = std::thread::scope(|scope| {
        let join = |rank| {
            let job = Job::in_process("many", Rank(rank as u16), RANKS);
            PendingInit::new(job, Config::default()).unwrap().wait(LIMIT).unwrap()
        };
        let threads: Vec<_> = (0..RANKS).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (sleeper, others) = runtimes.split_first().unwrap();
    let (last, others) = others.split_last().unwrap();
    let wakeup = sleeper.inner().ranks.area.own_wakeup();
    let is_late = |runtime: &Runtime| {
        // Far shorter than its patience.
        runtime.barrier(GroupId::ALL, Timeout::Millis(1)).is_err_and(|error| error.is_timeout())
    };
    assert!(is_late(sleeper));
    let ticket = wakeup.ticket();
    wakeup.announce(wake_kind::ARRIVAL, || ());
    assert!(others.iter().all(is_late));
    assert_eq!(wakeup.ticket(), ticket, "it is woken although one is missing");
    last.barrier(GroupId::ALL, Timeout::Test).expect("all have arrived");
    assert_ne!(wakeup.ticket(), ticket, "it would sleep on");
    for runtime in runtimes.iter().take(RANKS as usize - 1) {
        assert!(runtime.barrier(GroupId::ALL, Timeout::Test).is_ok(), "all have arrived");
    }
}

/// Where data waits for a device, what goes ahead of it by the socket finds nothing to take back.
#[test]
fn what_takes_a_passive_message_back_keeps_behind_it() {
    use crate::wire::message::Message;
    assert!(belongs_to_data(&Message::Withhold { request: 1 }));
    assert!(!belongs_to_data(&Message::Kill));
}

/// What a member has told of its data by leaders counts, whatever it says to this rank itself.
#[test]
fn the_line_of_a_member_counts_though_it_cannot_send_to_this_rank() {
    // Two of each node.
    const RANKS: u16 = 4;
    const STEPS: u64 = 10_000;
    let all = Barrier::new(RANKS.into());
    let [checked, wrong] = [const { AtomicU64::new(0) }; 2];
    let key = CallKey {
        kind: CallKind::Allreduce,
        arguments: 1,
        signature: CallKind::Allreduce.signature(1),
        describe: |signature| format!("test call {signature}"),
    };
    let run = |rank: u16| {
        let job = Job::in_process("lines", Rank(rank), RANKS.into()).on_node((rank % 2).into());
        let runtime = PendingInit::new(job, Config::default()).unwrap().wait(LIMIT).unwrap();
        let mut call = runtime.group_call(GroupId::ALL, key).unwrap();
        let words = |of: u16, step: u64| (step << 16) | (u64::from(of) + 1);
        for _ in 0..STEPS {
            let step = call.step() + 1;
            call.arrive(&[words(rank, step)]);
            call.await_all(LIMIT.deadline()).unwrap();
            // Nobody goes on meanwhile.
            all.wait();
            for of in (0..RANKS).filter(|of| of % 2 != rank % 2) {
                let (member, told) = (usize::from(of), words(of, step));
                let slot = call.slot(member, step);
                // Else somebody has lost patience with the leaders.
                if slot.poll(step) == Poll::Missing {
                    slot.publish(step, CallKind::CannotSend as u64, &[0]);
                    let is_wrong = call.payload(member, step)[0] != told;
                    wrong.fetch_add(is_wrong.into(), Ordering::Relaxed);
                    checked.fetch_add(1, Ordering::Relaxed);
                }
            }
            all.wait();
            if checked.load(Ordering::Relaxed) > 0 {
                break;
            }
            all.wait();
        }
        call.finish();
        runtime.barrier(GroupId::ALL, LIMIT).unwrap();
        runtime.term(LIMIT).unwrap();
    };
    std::thread::scope(|scope| {
        let run = &run;
        (0..RANKS).for_each(|rank| drop(scope.spawn(move || run(rank))));
    });
    assert_ne!(checked.into_inner(), 0, "no step has gone by leaders alone");
    assert_eq!(wrong.into_inner(), 0, "data of the slot, which has none");
}

/// What was read is known not to be of the step: a member has given the group up behind a death,
/// and uses its id for others.
#[test]
fn what_members_have_told_is_looked_at_twice() {
    let join = |rank| {
        let job = Job::in_process("twice", Rank(rank), 4);
        PendingInit::new(job, Config::default()).unwrap().wait(LIMIT).unwrap()
    };
    let runtimes: Vec<Runtime> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let group_of = |rank: usize, members: &[u16]| {
        let group = runtimes[rank].group_create().unwrap();
        let add = |member: &u16| runtimes[rank].group_add(group, Rank(*member)).unwrap();
        members.iter().for_each(add);
        group
    };
    let commit = |ranks: &[usize], group| {
        std::thread::scope(|scope| {
            for rank in ranks {
                let runtime = &runtimes[*rank];
                scope.spawn(move || runtime.group_commit(group, LIMIT).unwrap());
            }
        });
    };
    let key = CallKey {
        kind: CallKind::SegmentCreate,
        arguments: 1,
        signature: CallKind::SegmentCreate.signature(1),
        describe: |signature| format!("test call {signature}"),
    };
    let groups = [0, 1, 2].map(|rank| group_of(rank, &[0, 1, 2]));
    let [group, ..] = groups;
    assert_eq!(groups, [group; 3]);
    commit(&[0, 1, 2], group);
    let mut calls = [0, 1, 2].map(|rank| runtimes[rank].group_call(group, key).unwrap());
    for (told, call) in (5..).zip(&mut calls) {
        call.arrive(&[told]);
    }
    let [mut call, others @ ..] = calls;
    call.await_all(LIMIT.deadline()).unwrap();
    let told = call.payloads().unwrap();
    assert_eq!(told.iter().map(|words| words[0]).collect::<Vec<_>>(), [5, 6, 7]);
    drop(others);
    runtimes[0].inner().ranks.area.mark_dead(Rank(2));
    runtimes[1].group_delete(group).unwrap();
    assert_eq!([1, 3].map(|rank| group_of(rank, &[1, 3])), [group; 2]);
    commit(&[1, 3], group);
    let outcome = call.payloads();
    assert!(matches!(outcome, Err(Error::RankDied { rank: Rank(2), .. })), "{outcome:?}");
}
