//! libibverbs with failures that tests plan, over a real device: a shared library that a program
//! loads in place of libibverbs.so.1, which it loads itself (GASPI_TEST_IBVERBS names another one).
//!
//! [`plan`] decides what fails. [`wrapped`] has the calls and entries of a device's table that can
//! fail; all else goes straight to the real library (`forwarded`). A request that is to complete
//! with an error is posted with a local key that no memory has. So the device itself fails it,
//! flushes what follows and stops the pair; only the reason is replaced when it is polled.
//!
//! This file is the C interface by which the program under test plans: it finds these functions in
//! the library that GASPI_IBVERBS_LIB names. Counts are of the whole process.

#![allow(unreachable_pub, reason = "programs reach the functions by their symbols")]

mod forwarded;
mod plan;
mod wrapped;

use std::ffi::{CStr, c_char, c_int};

use plan::Call;
use wrapped::plan;

/// The n-th call from now is refused with this error number. `call` is the verb without `ibv_`:
/// alloc_pd, reg_mr, create_comp_channel, create_cq, create_srq, create_qp, modify_qp,
/// req_notify_cq, poll_cq; post_send, post_srq_recv, which are counted by requests. Returns 0, or
/// EINVAL for a call with another name.
///
/// # Safety
/// `call` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn faulty_verbs_refuse(call: *const c_char, nth: u64, error: c_int) -> c_int {
    // SAFETY: caller's promise.
    let name = unsafe { CStr::from_ptr(call) };
    let Some(call) = name.to_str().ok().and_then(Call::named) else { return libc::EINVAL };
    if nth == 0 || error <= 0 {
        return libc::EINVAL;
    }
    plan().refuse(call, nth, error);
    0
}

/// The n-th request from now that is posted to a send queue completes with this status, and is not
/// carried out.
#[unsafe(no_mangle)]
pub extern "C" fn faulty_verbs_fail(nth: u64, status: u32) -> c_int {
    if nth == 0 || status == 0 {
        return libc::EINVAL;
    }
    plan().fail(nth, status);
    0
}

/// The n-th receive from now that is posted to a shared receive queue has no memory: the message
/// that meets it fails at both ends.
#[unsafe(no_mangle)]
pub extern "C" fn faulty_verbs_fail_receive(nth: u64) -> c_int {
    if nth == 0 {
        return libc::EINVAL;
    }
    plan().fail_receive(nth);
    0
}

/// From now on some of a million requests that are posted fail, half of them when they are posted
/// and half when they complete, by a seed. 0 of a million ends this.
#[unsafe(no_mangle)]
pub extern "C" fn faulty_verbs_random(seed: u64, of_a_million: u32) {
    plan().random(seed, of_a_million);
}

/// How many failures have been played.
#[unsafe(no_mangle)]
pub extern "C" fn faulty_verbs_played() -> u64 {
    plan().played()
}
