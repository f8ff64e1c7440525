//! Chunks that members of a group send each other between two steps of a call, where one of them
//! ends meanwhile.

use super::*;
use std::sync::Barrier;

const SIGNATURE: u64 = CallKind::Allreduce.signature(5);

fn call(rt: &Runtime) -> GroupCall<'_> {
    let describe = |_| "a call in a window".to_owned();
    let key = CallKey { kind: CallKind::Allreduce, arguments: 5, signature: SIGNATURE, describe };
    rt.group_call(GroupId::ALL, key).expect("the same call")
}

/// Takes the first step of a call.
fn open(rt: &Runtime) {
    let mut call = call(rt);
    call.arrive(&[]);
    call.await_all(LIMIT.deadline()).expect("all arrive");
    call.set_cursor(1);
}

/// Arrives at the next one, and does not wait.
fn arrive(rt: &Runtime, timeout: Timeout) -> Result<()> {
    let mut call = call(rt);
    call.set_number(1);
    call.arrive(&[]);
    call.await_all(timeout.deadline())
}

/// A group of ranks 0 and 2, by which the latter sees that the former is gone.
fn pair(rt: &Runtime) -> GroupId {
    let pair = rt.group_create().expect("create");
    [0, 2].into_iter().for_each(|rank| rt.group_add(pair, Rank(rank)).expect("add"));
    rt.group_commit(pair, LIMIT).expect("commit");
    pair
}

/// Waits until rank 0 is known to be gone.
fn see_the_end(rt: &Runtime, pair: GroupId) -> Error {
    rt.barrier(pair, LIMIT).expect_err("rank 0 does not come")
}

/// Rank 0 has sent its chunk, arrived behind the window, and leaves: nobody needs it any more.
fn a_member_that_has_arrived_behind_a_window_may_leave() {
    // Few tell each other of their arrivals, more by way of leaders.
    [3, 5].into_iter().for_each(leave_behind_a_window);
}

fn leave_behind_a_window(size: u32) {
    let (arrived, seen) = (Barrier::new(3), Barrier::new(2));
    run_owned(size, &Config::default(), |rt| {
        let me = rt.rank().0;
        let pair = [0, 2].contains(&me).then(|| pair(&rt));
        open(&rt);
        match me {
            0 => {
                call(&rt).send_chunk(1, 0, vec![70]);
                assert!(arrive(&rt, Timeout::Test).is_err_and(|error| error.is_timeout()));
                arrived.wait();
                return rt.term(LIMIT).expect("term");
            }
            1 => {
                arrived.wait();
                seen.wait();
                let mut call = call(&rt);
                call.await_chunk(0, 0, LIMIT.deadline()).expect("it was sent before");
                let words = call.take_chunk(0, 0).expect("it has come");
                call.send_chunk(2, 0, words);
            }
            2 => {
                arrived.wait();
                let error = see_the_end(&rt, pair.expect("a member"));
                assert!(matches!(error, Error::RankLeft { rank: Rank(0), .. }), "{error}");
                let none = call(&rt).await_chunk(1, 0, Timeout::Test.deadline());
                assert!(none.as_ref().is_err_and(Error::is_timeout), "{none:?}");
                seen.wait();
                let mut call = call(&rt);
                call.await_chunk(1, 0, LIMIT.deadline()).expect("rank 1 goes on");
                assert_eq!(call.take_chunk(1, 0), Some(vec![70]));
            }
            _ => {}
        }
        arrive(&rt, LIMIT).expect("rank 0 had arrived");
        let mut call = call(&rt);
        call.end_chunks();
        call.finish();
        rt.term(LIMIT).expect("term");
    });
}

/// Rank 0 ends in a window; so does the call, also of one that waits for another member.
fn who_ends_in_a_window_ends_it_for_all(end: fn(Runtime), is_it: fn(&Error) -> bool) {
    let opened = Barrier::new(3);
    run_owned(3, &Config::default(), |rt| {
        let me = rt.rank().0;
        open(&rt);
        opened.wait();
        if me == 0 {
            return end(rt);
        }
        let other = 3 - usize::from(me);
        let failed = call(&rt).await_chunk(other, 0, LIMIT.deadline());
        assert!(failed.as_ref().is_err_and(is_it), "rank {me}: {failed:?}");
        // The call has ended.
        let next = rt.barrier(GroupId::ALL, LIMIT);
        assert!(next.as_ref().is_err_and(is_it), "rank {me}: {next:?}");
        go_on_without_it(&rt);
    });
}

/// The others go on without it.
fn go_on_without_it(rt: &Runtime) {
    let rest = rt.group_create().expect("create");
    [1, 2].into_iter().for_each(|rank| rt.group_add(rest, Rank(rank)).expect("add"));
    rt.group_commit(rest, LIMIT).expect("commit");
    rt.barrier(rest, LIMIT).expect("both come");
    rt.term(LIMIT).expect("term");
}

fn a_member_that_leaves_in_a_window_ends_it_for_all() {
    let leave = |rt: Runtime| rt.term(LIMIT).expect("term");
    who_ends_in_a_window_ends_it_for_all(leave, |error| {
        matches!(error, Error::RankLeft { rank: Rank(0), .. })
    });
}

fn a_member_that_dies_in_a_window_ends_it_for_all() {
    who_ends_in_a_window_ends_it_for_all(die, |error| {
        matches!(error, Error::RankDied { rank: Rank(0), .. })
    });
}

tests! {
    TCP:
        a_member_that_has_arrived_behind_a_window_may_leave,
        a_member_that_leaves_in_a_window_ends_it_for_all,
        a_member_that_dies_in_a_window_ends_it_for_all;
}
