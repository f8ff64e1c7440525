//! Sleeping on a word of shared memory.

use crate::sync::AtomicU32;
use rustix::thread::futex::{self, Flags, Timespec};
use std::time::Duration;

/// Without [`Flags::PRIVATE`]: words lie in memory that processes share.
const SHARED: Flags = Flags::empty();

/// Sleeps while `word` has the value `expected`, at most `limit` (`None`: without limit). May
/// return early; the caller looks again.
pub fn wait(word: &AtomicU32, expected: u32, limit: Option<Duration>) {
    let limit = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    // Whatever ended the sleep, the caller looks again.
    let _ = futex::wait(word, SHARED, expected, limit.as_ref());
}

/// Wakes all who sleep on `word`.
pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, SHARED, i32::MAX.cast_unsigned());
}
