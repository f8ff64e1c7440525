//! For tests of decoders: cases by seed, a million in the full tier and in the stage `fuzz`, and a
//! bound on what one case may allocate.
//!
//! `GASPI_TEST_SEED=N` starts elsewhere; a failure names the seed of the case that failed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Cases of each test.
const CASES: u64 = 20_000;
const CASES_IN_FULL: u64 = 1_000_000;

/// A small generator (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Seed(u64);

impl Seed {
    /// Of one case.
    pub(crate) fn of(number: u64) -> Seed {
        Seed(number)
    }

    /// The next 64 bits.
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `limit`, which must not be 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }

    /// Changes some bytes, cuts some off, or puts some in; now and then makes all of it up.
    pub(crate) fn mutate(&mut self, bytes: &mut Vec<u8>) {
        if self.below(16) == 0 {
            let len = self.below(300) as usize;
            *bytes = (0..len).map(|_| self.next_u64() as u8).collect();
            return;
        }
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len() as u64 + 1) as usize;
            match self.below(6) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, self.next_u64() as u8),
                // Lengths and counts are where it hurts.
                2 => bytes.iter_mut().skip(at).take(4).for_each(|byte| *byte = 0xff),
                3 => bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = 0),
                _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| {
                    *byte ^= 1 << (at % 8);
                }),
            }
        }
    }
}

fn first_seed() -> u64 {
    std::env::var("GASPI_TEST_SEED").map_or(1, |text| text.parse().expect("GASPI_TEST_SEED"))
}

/// Runs a case for each of many seeds; none may panic, or allocate more than `bytes` at once.
pub(crate) fn run(what: &str, bytes: usize, case: impl Fn(&mut Seed)) {
    let first = first_seed();
    let is_full = std::env::var_os("GASPI_TEST_FULL").is_some();
    for number in first..first + if is_full { CASES_IN_FULL } else { CASES } {
        let mut seed = Seed(number.wrapping_mul(0x2545_f491_4f6c_dd1d));
        LARGEST.set(0);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(&mut seed)));
        let largest = LARGEST.get();
        assert!(outcome.is_ok(), "{what}: GASPI_TEST_SEED={number} shows what failed above");
        assert!(largest <= bytes, "{what}: GASPI_TEST_SEED={number} allocates {largest} bytes");
    }
}

thread_local! {
    /// Bytes of this thread's largest allocation.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    /// Bytes that this thread has allocated, less those that it has freed.
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

/// Bytes that this thread has allocated and not freed; those of libraries are not counted.
pub(crate) fn live_bytes() -> isize {
    LIVE.get()
}

/// The system's allocator, watched.
struct Watched;

#[global_allocator]
static WATCHED: Watched = Watched;

fn count(bytes: isize) {
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

fn note(layout: Layout, size: usize) {
    let size = size.max(layout.size());
    // Not in a thread that has ended already.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(size)));
}

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout, 0);
        count(layout.size() as isize);
        // SAFETY: the caller's layout, as it is.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: allocated by the same allocator with this layout, says the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout, 0);
        count(layout.size() as isize);
        // SAFETY: the caller's layout, as it is.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(layout, size);
        count(size as isize - layout.size() as isize);
        // SAFETY: allocated by the same allocator with this layout, says the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[test]
fn large_allocations_are_seen() {
    LARGEST.set(0);
    drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 20)));
    assert!(LARGEST.get() >= 1 << 20);
}
