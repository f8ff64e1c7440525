//! The clock that all processes of a machine share; that of a test, in virtual time.

use std::time::{Duration, Instant};

/// The present.
#[inline]
pub(crate) fn now() -> Instant {
    #[cfg(feature = "test-transports")]
    if let Some(now) = virtual_time::now() {
        return now;
    }
    Instant::now()
}

/// How long ago that was.
pub(crate) fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// CLOCK_MONOTONIC, which is one for all processes of a machine.
pub(crate) fn monotonic_ms() -> u64 {
    monotonic_ns() / 1_000_000
}

/// The same in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes the struct that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Time that passes only when a test says so.
#[cfg(feature = "test-transports")]
pub(crate) mod virtual_time {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    /// A clock that stands still unless it is set.
    #[derive(Debug)]
    pub(crate) struct Clock {
        began: Instant,
        passed_ns: AtomicU64,
    }

    thread_local! {
        static CLOCK: RefCell<Option<Arc<Clock>>> = const { RefCell::new(None) };
    }

    impl Clock {
        pub(crate) fn new() -> Arc<Clock> {
            Arc::new(Clock { began: Instant::now(), passed_ns: AtomicU64::new(0) })
        }

        /// Nanoseconds since the begin.
        pub(crate) fn passed_ns(&self) -> u64 {
            self.passed_ns.load(Ordering::Acquire)
        }

        pub(crate) fn set(&self, passed_ns: u64) {
            self.passed_ns.store(passed_ns, Ordering::Release);
        }

        /// The calling thread lives by this clock from now on; by that of the machine with `None`.
        pub(crate) fn follow(clock: Option<Arc<Clock>>) {
            CLOCK.set(clock);
        }
    }

    pub(super) fn now() -> Option<Instant> {
        CLOCK.with_borrow(|clock| {
            let clock = clock.as_ref()?;
            Some(clock.began + Duration::from_nanos(clock.passed_ns()))
        })
    }
}
