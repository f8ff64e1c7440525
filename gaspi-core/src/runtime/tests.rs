//! What outlives a rank: threads that count on, and copies in forked children.

use super::*;
use crate::bootstrap::Transport;
use crate::ids::QueueId;
use crate::one_sided::Transfer;
use crate::segment::Init;
use crate::statistics::Counter;

const LIMIT: Timeout = Timeout::Millis(60_000);

fn join(id: &str, rank: u16, size: u32) -> Runtime {
    let job = Job::in_process(id, Rank(rank), size);
    PendingInit::new(job, Config::default()).unwrap().wait(LIMIT).unwrap()
}

fn make_segment(runtime: &Runtime) {
    runtime.segment_alloc(SegmentId(0), 64, Init::Zeroed).unwrap();
    runtime.segment_register(SegmentId(0), runtime.rank(), LIMIT).unwrap();
}

#[test]
fn a_job_on_several_hosts_cannot_do_with_shared_memory_only() {
    let job = Job {
        transport: Transport::SharedMemory,
        spans_hosts: true,
        node: None,
        ..Job::in_process("shm-over-hosts", Rank(0), 2)
    };
    match PendingInit::new(job, Config::default()) {
        Err(Error::Environment { reason }) => assert!(reason.contains("several hosts"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_thread_that_counts_after_its_rank_has_left_counts_for_the_next_one() {
    let counts_for = |runtime: &Runtime| {
        make_segment(runtime);
        let own = Transfer {
            local: SegmentId(0),
            local_offset: 0,
            rank: Rank(0),
            remote: SegmentId(0),
            remote_offset: 8,
            size: 8,
        };
        runtime.write(&own, QueueId(0), LIMIT).unwrap();
        epoch::enter().count(runtime.inner().id(), 1, Counter::Waits as usize, 1)
    };
    epoch::tests::on_a_free_thread(|| {
        let first = join("outlived", 0, 1);
        assert!(counts_for(&first));
        first.term(LIMIT).unwrap();
        // As a thread does whose wait has ended because the rank has left.
        first.inner().count(Counter::TimeWaiting, 1);
        drop(first);
        let second = join("outlived", 0, 1);
        assert!(counts_for(&second), "the thread is still taken by a rank that is gone");
    });
}

#[test]
fn a_forked_child_drops_its_copy_without_waiting_for_threads_that_it_does_not_have() {
    let runtime = join("forked", 0, 1);
    make_segment(&runtime);
    let (leave, told) = std::sync::mpsc::channel::<()>();
    let (tell, inside) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || {
        let guard = epoch::enter();
        tell.send(()).unwrap();
        let _ = told.recv();
        drop(guard);
    });
    inside.recv().unwrap();
    // SAFETY: the child does nothing but what is tested, which takes no lock, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends this process if it hangs.
        unsafe { libc::alarm(20) };
        drop(runtime);
        // SAFETY: ends it without running what belongs to the parent.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was ended by its alarm");
    drop(leave);
    other.join().unwrap();
}
