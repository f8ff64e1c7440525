//! Groups of several threads of a rank, and ids that have served for long.

use super::*;
use crate::bootstrap::Job;
use crate::runtime::{PendingInit, Runtime};
use crate::timeout::Timeout;

const LIMIT: Timeout = Timeout::Millis(60_000);

fn join(id: &str, rank: u16, size: u32) -> Runtime {
    let job = Job::in_process(id, Rank(rank), size);
    PendingInit::new(job, Config::default()).unwrap().wait(LIMIT).unwrap()
}

fn pair(id: &str) -> [Runtime; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(id, 1, 2));
        [join(id, 0, 2), other.join().unwrap()]
    })
}

fn on_both(runtimes: &[Runtime; 2], body: impl Fn(&Runtime) + Sync) {
    let body = &body;
    std::thread::scope(|scope| {
        for runtime in runtimes {
            scope.spawn(move || body(runtime));
        }
    });
}

fn group_of(runtime: &Runtime, ranks: &[u16]) -> GroupId {
    let group = runtime.group_create().unwrap();
    ranks.iter().for_each(|rank| runtime.group_add(group, Rank(*rank)).unwrap());
    group
}

#[test]
fn an_id_that_was_committed_as_often_as_it_can_be_says_so() {
    let runtimes = pair("worn-out");
    on_both(&runtimes, |runtime| {
        let group = group_of(runtime, &[0, 1]);
        let board = &runtime.inner().control.groups.board;
        board.lock().set_fresh(group, (1 << 24) - 1);
        runtime.group_commit(group, LIMIT).unwrap();
        runtime.barrier(group, LIMIT).unwrap();
        runtime.group_delete(group).unwrap();
        assert_eq!(group_of(runtime, &[0, 1]), group);
        let error = runtime.group_commit(group, LIMIT).unwrap_err();
        assert!(matches!(error, Error::InvalidGroup { .. }), "{error}");
        assert!(error.to_string().contains("use another one"), "{error}");
        let other = group_of(runtime, &[0, 1]);
        runtime.group_commit(other, LIMIT).unwrap();
        runtime.barrier(other, LIMIT).unwrap();
    });
}

#[test]
fn nobody_is_added_while_another_thread_commits() {
    let [first, second] = pair("added");
    let group = group_of(&first, &[0]);
    first.group_add(group, Rank(1)).unwrap();
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| first.group_commit(group, LIMIT));
        let groups = &first.inner().control.groups;
        while groups.board.lock().missing(group).is_empty() {
            std::thread::yield_now();
        }
        // Whoever is a member is told so.
        let again = first.group_add(group, Rank(1)).unwrap_err();
        assert!(matches!(again, Error::InvalidRank { .. }), "{again}");
        groups.members(group).unwrap().ranks.pop();
        let added = first.group_add(group, Rank(1)).unwrap_err();
        assert!(matches!(added, Error::ActiveCollective { .. }), "{added}");
        assert_eq!(group_of(&second, &[0, 1]), group);
        second.group_commit(group, LIMIT).unwrap();
        commit.join().unwrap().unwrap();
    });
}

#[test]
fn an_id_is_free_once_another_thread_can_make_a_group_of_it() {
    let runtime = join("free-ids", 0, 1);
    let come_and_go = || {
        for round in 0..20_000 {
            let group = group_of(&runtime, &[0]);
            let commit = runtime.group_commit(group, LIMIT);
            assert!(commit.is_ok(), "round {round}: {commit:?}");
            runtime.group_delete(group).unwrap();
        }
    };
    std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(come_and_go)));
    });
}
