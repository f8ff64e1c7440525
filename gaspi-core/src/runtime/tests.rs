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

/// A peer may be stopped while it copies.
#[test]
fn segments_are_made_while_the_delete_of_another_one_waits() {
    let bound = SegmentId(0);
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| join("deletes", 1, 2));
        (join("deletes", 0, 2), second.join().unwrap())
    });
    let mut memory = [0u64; 8];
    // SAFETY: the memory outlives both ranks.
    unsafe { first.segment_bind(bound, memory.as_mut_ptr().cast(), 64) }.unwrap();
    first.segment_register(bound, Rank(1), LIMIT).unwrap();
    let target = second.inner().ranks.targets_of(Rank(0)).get_arc(bound).unwrap();
    let copying = target.copying(Rank(1)).unwrap();
    let outcome = std::thread::scope(|scope| {
        let delete = scope.spawn(|| first.segment_delete(bound));
        while first.inner().memory.segments.get_arc(bound).is_some() {
            std::thread::yield_now();
        }
        let began = std::time::Instant::now();
        first.segment_alloc(SegmentId(1), 64, Init::Zeroed).unwrap();
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
        assert!(!delete.is_finished());
        drop(copying);
        delete.join().unwrap()
    });
    assert_eq!(outcome, Ok(()));
    drop((first, second));
    assert_eq!(memory, [0; 8]);
}

/// Those of other nodes do not map the words that tell of copies.
#[test]
fn a_delete_asks_the_ranks_of_its_node_only() {
    let join = |rank: u16| {
        let job = Job::in_process("asks", Rank(rank), 2).on_node(rank.into());
        PendingInit::new(job, Config::default()).unwrap().wait(LIMIT).unwrap()
    };
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| join(1));
        (join(0), second.join().unwrap())
    });
    let (bound, mut memory) = (SegmentId(0), [0u64; 8]);
    // SAFETY: the memory outlives both ranks.
    unsafe { first.segment_bind(bound, memory.as_mut_ptr().cast(), 64) }.unwrap();
    let own = first.inner().ranks.targets_of(Rank(0)).get_arc(bound).unwrap();
    let mark = own.copying(Rank(1)).unwrap();
    assert_eq!(first.segment_delete(bound), Ok(()));
    drop((mark, first, second));
    assert_eq!(memory, [0; 8]);
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
