//! What models are made of: words whose orderings can be weakened, memory that is handed over, and
//! the two verdicts. The models of other packages use it too.

#![allow(dead_code, reason = "each test program uses its share")]

use gaspi_core::sync::{Word32, Word64};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Preemptions per execution, unless `LOOM_MAX_PREEMPTIONS` says otherwise; 0 for no bound.
pub(crate) const PREEMPTIONS: usize = 3;

/// What is left of an ordering.
pub(crate) const AS_WRITTEN: u8 = 0;
pub(crate) const NO_RELEASE: u8 = 1;
pub(crate) const NO_ACQUIRE: u8 = 2;
/// As written, with stores as exchanges: loom lets a plain store slip between the load and the
/// store of an exchange of another thread, which no machine does. An exchange is no stronger here,
/// as nothing reads what it returns.
pub(crate) const EXCHANGED: u8 = 4;

pub(crate) const fn weaken(order: Ordering, how: u8) -> Ordering {
    match (order, how & !EXCHANGED) {
        (Ordering::Release, NO_RELEASE) | (Ordering::Acquire, NO_ACQUIRE) => Ordering::Relaxed,
        (Ordering::AcqRel, NO_RELEASE) => Ordering::Acquire,
        (Ordering::AcqRel, NO_ACQUIRE) => Ordering::Release,
        _ => order,
    }
}

/// A word of loom's whose orderings are weakened.
#[derive(Debug, Default)]
pub(crate) struct W32<const HOW: u8>(pub(crate) AtomicU32);

impl<const HOW: u8> Word32 for W32<HOW> {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(weaken(order, HOW))
    }
    fn store(&self, value: u32, order: Ordering) {
        if HOW & EXCHANGED != 0 {
            self.0.swap(value, weaken(order, HOW));
        } else {
            self.0.store(value, weaken(order, HOW));
        }
    }
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, weaken(order, HOW))
    }
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_add(value, weaken(order, HOW))
    }
    fn fetch_or(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_or(value, weaken(order, HOW))
    }
}

#[derive(Debug, Default)]
pub(crate) struct W64<const HOW: u8>(pub(crate) AtomicU64);

impl<const HOW: u8> Word64 for W64<HOW> {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(weaken(order, HOW))
    }
    fn store(&self, value: u64, order: Ordering) {
        if HOW & EXCHANGED != 0 {
            self.0.swap(value, weaken(order, HOW));
        } else {
            self.0.store(value, weaken(order, HOW));
        }
    }
    fn compare_exchange(&self, current: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        // As std's words in shared memory do it: Acquire on failure.
        let failure = weaken(Ordering::Acquire, HOW);
        self.0.compare_exchange(current, new, weaken(order, HOW), failure)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, weaken(order, HOW))
    }
}

/// Memory handed over: loom objects to every access that is not ordered.
#[derive(Debug, Default)]
pub(crate) struct Payload(UnsafeCell<u64>);

// SAFETY: loom checks that accesses are ordered; that is what these models are about.
unsafe impl Sync for Payload {}
// SAFETY: a number.
unsafe impl Send for Payload {}

impl Payload {
    pub(crate) fn write(&self, value: u64) {
        // SAFETY: loom's pointer is valid, and loom checks that nobody else accesses it.
        self.0.with_mut(|pointer| unsafe { *pointer = value });
    }
    pub(crate) fn read(&self) -> u64 {
        // SAFETY: as in `write`.
        self.0.with(|pointer| unsafe { *pointer })
    }
}

pub(crate) fn holds(model: impl Fn() + Send + Sync + 'static) {
    builder().check(model);
}

pub(crate) fn builder() -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    // Waiting takes branches too.
    builder.max_branches = 20_000;
    builder.preemption_bound = match std::env::var("LOOM_MAX_PREEMPTIONS") {
        Ok(text) => match text.parse().expect("LOOM_MAX_PREEMPTIONS is a number") {
            0 => None,
            bound => Some(bound),
        },
        Err(_) => Some(PREEMPTIONS),
    };
    builder
}

/// Loom finds the model broken, by a race or by an assertion, not by giving up.
pub(crate) fn breaks(model: impl Fn() + Send + Sync + 'static) {
    let found = catch_unwind(AssertUnwindSafe(|| holds(model)));
    let reason = found.expect_err("the weakened twin holds: the model does not see the ordering");
    let text = reason
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| reason.downcast_ref::<&str>().copied())
        .unwrap_or("");
    assert!(!text.contains("exceeded"), "loom gave up: {text}");
}

/// Runs `run` in a thread of its own.
pub(crate) fn spawn<T: 'static, R: 'static>(
    shared: &Arc<T>,
    run: impl FnOnce(&T) -> R + 'static,
) -> thread::JoinHandle<R> {
    let shared = Arc::clone(shared);
    thread::spawn(move || run(&shared))
}

pub(crate) fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}
