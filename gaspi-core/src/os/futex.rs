//! Sleeping on a word of shared memory.

use crate::sync::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` has the value `expected`, at most `limit` (`None`: without limit). May
/// return early; the caller looks again.
pub fn wait(word: &AtomicU32, expected: u32, limit: Option<Duration>) {
    let timespec = limit.map(|limit| libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(limit.subsec_nanos()),
    });
    let pointer = timespec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word outlives the call, and the timespec is null or lives on this stack. Without
    // FUTEX_PRIVATE_FLAG, since other processes wake it.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, pointer);
    }
}

/// Wakes all who sleep on `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call; the kernel only uses its address.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}
