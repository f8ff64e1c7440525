//! Ranks that are processes whose library does not answer.

use super::*;
use std::os::unix::process::CommandExt;
use std::time::Instant;

fn a_thread_that_waits_for_a_stopped_rank_ends_once_its_own_has_left() {
    let test = "silent::a_thread_that_waits_for_a_stopped_rank_ends_once_its_own_has_left";
    two_processes(test, None, |rt| {
        let memory = Memory::bind(rt);
        let pid = process_of_rank_1(rt);
        if rt.rank() == Rank(0) {
            rt.ping(Rank(1), LIMIT).expect("it answers");
            meet(rt);
            // It stops itself.
            signal_until(pid, 0, &["T"]);
            let waits = std::thread::scope(|scope| {
                let waiting = scope.spawn(|| rt.ping(Rank(1), Timeout::Block));
                std::thread::sleep(Duration::from_millis(50));
                rt.term(LIMIT).expect("nothing is under way");
                let began = Instant::now();
                while !waiting.is_finished() && began.elapsed() < Duration::from_secs(10) {
                    std::thread::yield_now();
                }
                let ended = waiting.is_finished();
                // Else the scope would wait for ever.
                resume(pid);
                let outcome = waiting.join().expect("no panic");
                assert!(ended, "it still waits: {outcome:?}");
                outcome
            });
            assert_eq!(waits, Err(Error::NotInitialised));
            drop(memory);
        } else {
            meet(rt);
            // SAFETY: no memory is passed. Rank 0 lets it go on.
            assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0);
            memory.unbind(rt);
        }
    });
}

/// A process that has become another program has no library that would obey.
fn a_rank_that_has_become_another_program_is_killed() {
    two_processes("silent::a_rank_that_has_become_another_program_is_killed", Some(1), |rt| {
        let memory = Memory::bind(rt);
        let pid = process_of_rank_1(rt);
        if rt.rank() == Rank(1) {
            panic!("{}", Command::new("sleep").arg("1000").exec());
        }
        let name = format!("/proc/{pid}/comm");
        while !std::fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n") {
            std::thread::yield_now();
        }
        rt.kill(Rank(1), Timeout::Millis(1000)).expect("it has ended");
        memory.unbind(rt);
    });
}

tests! {
    SHM:
        a_thread_that_waits_for_a_stopped_rank_ends_once_its_own_has_left,
        a_rank_that_has_become_another_program_is_killed;
}
