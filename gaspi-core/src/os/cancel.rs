//! Cancellation of threads (`pthread_cancel`), held off inside of calls.
//!
//! A cancelled thread is unwound from the next function of the C library that is a cancellation
//! point, as `epoll_wait`, `send` and `close` are; `futex` by `syscall` is none. Rust can neither
//! catch that unwinding nor let it pass, and locks would stay taken. By hand: the libc crate does
//! not declare the function.

use std::ffi::c_int;
use std::marker::PhantomData;

/// `PTHREAD_CANCEL_DISABLE`, of glibc and musl.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// As long as it lives its thread is not cancelled; then it is as before.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
    /// Belongs to its thread.
    _thread: PhantomData<*const ()>,
}

/// Holds cancellation of this thread off. Two calls of the C library: not for fast paths.
#[must_use]
pub fn hold_off() -> Uncancelled {
    let mut before = DISABLE;
    // SAFETY: `before` is written, and any thread may change its own state.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    Uncancelled { before, _thread: PhantomData }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut own = DISABLE;
        // SAFETY: `own` is written, and the state is one that this thread had.
        unsafe { pthread_setcancelstate(self.before, &raw mut own) };
    }
}
