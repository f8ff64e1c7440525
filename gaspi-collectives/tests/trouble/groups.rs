//! Groups that come and go, and processes that are copies.

use super::{ALL, Memory, group_of, ranks, sum_of_all};
use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::start_raw;
use gaspi_core::{Config, Error, GroupId, Rank};

fn an_id_serves_other_members_again_and_again() {
    ranks::run(3, |rt| {
        let mut ids = Vec::new();
        // All channels of these groups together would not fit into the memory of channels.
        for cycle in 0..300_u16 {
            let out = Rank(cycle % 3);
            if rt.rank() == out {
                continue;
            }
            let members = [Rank(0), Rank(1), Rank(2)].into_iter().filter(|rank| *rank != out);
            let group = group_of(rt, members);
            ids.push(group);
            sum_of_all(rt, group, 1 + usize::from(cycle) * 7);
            rt.group_delete(group).expect("group_delete");
        }
        ids.dedup();
        assert_eq!(ids, [GroupId(1)], "one id serves all");
        sum_of_all(rt, ALL, 10);
    });
}

fn groups_that_are_deleted_do_not_hold_what_they_took() {
    ranks::run(2, |rt| {
        let most = rt.group_max() as usize - 2;
        for _ in 0..4 {
            let groups: Vec<GroupId> =
                (0..most.min(40)).map(|_| group_of(rt, [Rank(0), Rank(1)])).collect();
            groups.iter().for_each(|group| sum_of_all(rt, *group, 30_000));
            groups.into_iter().for_each(|group| rt.group_delete(group).expect("group_delete"));
        }
    });
}

fn what_was_done_swiftly_ends_with_its_group() {
    ranks::run(2, |rt| {
        for members in [[Rank(0), Rank(1)]; 3] {
            let group = group_of(rt, members);
            (0..5).for_each(|_| sum_of_all(rt, group, 1));
            let mut memory = Memory::new(rt.rank(), 1);
            let request = memory.request(Collective::Allreduce, 1);
            // Nobody deletes it while others are in it.
            rt.barrier(ALL, ranks::LIMIT).expect("barrier");
            rt.group_delete(group).expect("group_delete");
            let outcome = super::call(rt, group, &request, ranks::LIMIT);
            assert!(matches!(outcome, Err(Error::InvalidGroup { .. })), "{outcome:?}");
        }
    });
}

fn a_forked_child_disturbs_nobody() {
    ranks::run_with(2, &Config::default(), |rt| {
        let mut memory = Memory::new(rt.rank(), 1000);
        sum_of_all(rt, ALL, 1000);
        let mut request = memory.request(Collective::Allreduce, 1000);
        // The child has no such thread.
        request.background = true;
        // SAFETY: the buffers live until it has ended.
        let mut started = unsafe { start_raw(rt, ALL, &request, ranks::LIMIT) }.expect("start");
        // SAFETY: the child calls what is tested, and ends.
        let child = unsafe { fork() };
        if child == 0 {
            // SAFETY: ends this process if it hangs.
            unsafe { alarm(20) };
            // SAFETY: the copy of the child, which has no other owner.
            drop(unsafe { std::ptr::read(rt) });
            // SAFETY: ends it without running what belongs to the parent.
            unsafe { _exit(0) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child ends well");
        started.wait(ranks::LIMIT).expect("wait");
        sum_of_all(rt, ALL, 1000);
    });
}

unsafe extern "C" {
    fn fork() -> i32;
    fn alarm(seconds: u32) -> u32;
    fn _exit(status: i32) -> !;
    fn waitpid(child: i32, status: *mut i32, options: i32) -> i32;
}

/// Whether a thread of this process sleeps.
fn sleeps(thread: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    let stat = stat.expect("the thread lives");
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

fn who_waits_for_the_members_of_a_new_group_carries_on_the_others() {
    ranks::run(2, |rt| {
        let new = group_of(rt, [Rank(0), Rank(1)]);
        sum_of_all(rt, ALL, 3);
        let mut memory = Memory::new(rt.rank(), 3);
        let request = memory.request(Collective::Allreduce, 3);
        if rt.rank() == Rank(1) {
            super::call(rt, ALL, &request, ranks::LIMIT)
                .expect("started, and waited for by nobody");
            sum_of_all(rt, new, 3);
        } else {
            let (sender, receiver) = std::sync::mpsc::channel();
            let mut started = std::thread::scope(|scope| {
                let opens = scope.spawn(move || {
                    let own = std::fs::read_link("/proc/thread-self").expect("proc");
                    let id = own.file_name().expect("an id").to_string_lossy().into_owned();
                    sender.send(id).expect("the test waits");
                    sum_of_all(rt, new, 3);
                });
                let id = receiver.recv().expect("the thread says");
                super::within(super::SOON, "it sleeps", || sleeps(&id).then_some(()));
                // SAFETY: the buffers live until the job has ended.
                let started = unsafe { start_raw(rt, ALL, &request, ranks::LIMIT) }.expect("start");
                opens.join().expect("all have come to the new group");
                started
            });
            started.wait(ranks::LIMIT).expect("done");
        }
        rt.barrier(ALL, ranks::LIMIT).expect("barrier");
    });
}

tests! {
    DEVICES:
        an_id_serves_other_members_again_and_again,
        groups_that_are_deleted_do_not_hold_what_they_took,
        what_was_done_swiftly_ends_with_its_group,
        a_forked_child_disturbs_nobody,
        who_waits_for_the_members_of_a_new_group_carries_on_the_others;
}
