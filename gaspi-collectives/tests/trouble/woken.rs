//! Threads that sleep in a wait, and operations that other threads start meanwhile.

use super::{ALL, Memory, SOON, call, group_of, ranks, sum_of_all, within};
use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::start_raw;
use gaspi_core::Rank;
use std::sync::{Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

const ROUNDS: usize = 6;
/// Threads that sleep look by themselves at times: they begin to sleep for long some 10 ms behind
/// the begin of a wait, for a quarter of a second.
const ASLEEP: Duration = Duration::from_millis(40);
const SLEEP: Duration = Duration::from_millis(250);

/// Whether a thread of this process sleeps.
fn sleeps(thread: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    let stat = stat.expect("the thread lives");
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

/// What is started, and looked at by nobody else, is carried on by the thread that sleeps. In some
/// round no busy machine delays it.
fn they_are_woken_by_what_is_started() {
    let (begun, meet) = (Mutex::new(Instant::now()), Barrier::new(2));
    let quickest = Mutex::new(Duration::MAX);
    ranks::run(2, |rt| {
        let other = group_of(rt, [Rank(0), Rank(1)]);
        sum_of_all(rt, ALL, 3);
        sum_of_all(rt, other, 3);
        let mut memory = Memory::new(rt.rank(), 3);
        for _ in 0..ROUNDS {
            meet.wait();
            let request = memory.request(Collective::Broadcast, 3);
            if rt.rank() == Rank(1) {
                call(rt, other, &request, ranks::LIMIT).expect("broadcast");
                let took = begun.lock().expect("no panic").elapsed();
                let mut quickest = quickest.lock().expect("no panic");
                *quickest = took.min(*quickest);
                drop(quickest);
                sum_of_all(rt, ALL, 3);
                continue;
            }
            let (sender, receiver) = mpsc::channel();
            std::thread::scope(|scope| {
                let waits = scope.spawn(move || {
                    let own = std::fs::read_link("/proc/thread-self").expect("proc");
                    let id = own.file_name().expect("an id").to_string_lossy().into_owned();
                    sender.send((id, Instant::now())).expect("the test waits");
                    sum_of_all(rt, ALL, 3);
                });
                let (id, since) = receiver.recv().expect("the thread says");
                within(SOON, "it sleeps", || {
                    (since.elapsed() > ASLEEP && sleeps(&id)).then_some(())
                });
                *begun.lock().expect("no panic") = Instant::now();
                // SAFETY: the buffers live until the job has ended.
                let started = unsafe { start_raw(rt, other, &request, ranks::LIMIT) };
                waits.join().expect("both groups have met");
                started.expect("start").wait(ranks::LIMIT).expect("done");
            });
        }
        rt.barrier(ALL, ranks::LIMIT).expect("barrier");
    });
    let quickest = *quickest.lock().expect("no panic");
    assert!(quickest < SLEEP / 3, "the quickest one took {quickest:?}");
}

tests! {
    REAL:
        they_are_woken_by_what_is_started;
}
