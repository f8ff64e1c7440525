//! A repeated all-reduce allocates nothing, whatever its algorithm.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use gaspi_collectives::{Operation, allreduce_in_place};
use gaspi_core::{Config, GroupId, Job, PendingInit, Rank, Timeout};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all is done by the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn repeated_calls_allocate_nothing() {
    const SIZE: u32 = 4;
    const GUARD: Timeout = Timeout::Millis(60_000);
    let id = format!("no-allocation-{}", std::process::id());
    std::thread::scope(|scope| {
        for rank in 0..SIZE {
            let id = &id;
            scope.spawn(move || {
                let job = Job::in_process(id, Rank(rank as u16), SIZE);
                let config = Config { allreduce_elem_max: 1 << 20, ..Config::default() };
                let rt = PendingInit::new(job, config).unwrap().wait(GUARD).unwrap();
                // In a line, staged, staged in several chunks, sliced.
                for count in [1, 1000, 5000, 100_000] {
                    let mut data = vec![1.0_f32; count];
                    let mut before = 0;
                    for call in 0..20 {
                        if call == 2 {
                            before = ALLOCATIONS.get();
                        }
                        let (op, group) = (Operation::Max, GroupId::ALL);
                        allreduce_in_place(&rt, &mut data, op, group, GUARD).unwrap();
                    }
                    assert_eq!(ALLOCATIONS.get() - before, 0, "{count} elements");
                }
                rt.barrier(GroupId::ALL, GUARD).unwrap();
                rt.term(GUARD).unwrap();
            });
        }
    });
}
