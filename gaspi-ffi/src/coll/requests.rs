//! Requests of collective operations: start, test, wait, free; and the names of the algorithms.

use super::arguments::{algorithms, collective};
use crate::error::Failure;
use crate::runtime::timeout;
use crate::types::*;
use gaspi_collectives::handles::{self, Handle};
use gaspi_core::{Deadline, Error, Runtime, Timeout};
use std::ffi::CStr;

/// The time until the deadline.
fn remaining(deadline: Deadline) -> Timeout {
    match deadline.remaining() {
        None => Timeout::Block,
        Some(left) if left.is_zero() => Timeout::Test,
        // Rounded up, so that less than a millisecond does not become 0.
        Some(left) => Timeout::Millis(left.as_millis() as u64 + 1),
    }
}

/// Waits for each of `num` requests; released ones become 0.
///
/// # Safety
/// `requests` points to `num` requests that no other thread uses.
unsafe fn wait_all(
    rt: &Runtime,
    num: usize,
    requests: *mut gaspi_coll_request_t,
    deadline: Deadline,
) -> Result<(), Failure> {
    let mut first = None;
    let mut pending = None;
    for at in 0..num {
        // SAFETY: one of the `num` requests; C does not promise alignment.
        let entry = unsafe { requests.add(at) };
        // SAFETY: one of the `num` requests.
        let request = unsafe { entry.read_unaligned() };
        if request == GASPI_COLL_REQUEST_NULL {
            continue;
        }
        let handle = Handle(request);
        match handles::wait(rt, handle, remaining(deadline)) {
            Err(error) if error.is_timeout() => {
                pending.get_or_insert(error);
                continue;
            }
            Err(error) => {
                first.get_or_insert(error);
            }
            Ok(()) => {}
        }
        if !handles::exists(rt, handle) {
            // SAFETY: one of the `num` requests.
            unsafe { entry.write_unaligned(GASPI_COLL_REQUEST_NULL) };
        }
    }
    match first.or(pending) {
        None => Ok(()),
        Some(error) => Err(error.into()),
    }
}

procedures! {
    /// gaspi_collectives.h: starts a prepared operation.
    fn coll_start(request: gaspi_coll_request_t) holding rt {
        Ok(handles::restart(rt, Handle(request))?)
    }

    /// gaspi_collectives.h: tells whether an operation has ended.
    fn coll_test(request: gaspi_coll_request_t, done: *mut gaspi_int) holding rt {
        let out = out!(done);
        out.set(handles::test(rt, Handle(request))?.into());
        Ok(())
    }

    /// gaspi_collectives.h: waits for the end of an operation.
    fn coll_wait(request: gaspi_coll_request_t, milliseconds: gaspi_timeout_t) holding rt {
        Ok(handles::wait(rt, Handle(request), timeout(milliseconds))?)
    }

    /// gaspi_collectives.h: waits for the ends of several operations.
    fn coll_wait_all(
        num: gaspi_size_t,
        requests: *mut gaspi_coll_request_t,
        milliseconds: gaspi_timeout_t,
    ) holding rt {
        if num == 0 {
            return Ok(());
        }
        not_null!(requests);
        let deadline = timeout(milliseconds).deadline();
        // SAFETY: the caller of the C function passes `num` requests.
        unsafe { wait_all(rt, num as usize, requests, deadline) }
    }

    /// gaspi_collectives.h: gives a prepared operation back.
    fn coll_free(request: gaspi_coll_request_t) holding rt {
        Ok(handles::free(rt, Handle(request))?)
    }

    /// gaspi_collectives.h: names of the algorithms of an operation.
    fn coll_algorithms(operation: *const gaspi_char, names: *mut gaspi_char, size: gaspi_size_t) {
        not_null!(operation, names);
        // SAFETY: the header asks for a text that ends with a zero byte.
        let operation = unsafe { CStr::from_ptr(operation) };
        let collective = collective(&operation.to_string_lossy())?;
        let text = algorithms(collective).join(",");
        if text.len() as u64 >= size {
            return Err(Failure::Core(Error::Size {
                size,
                reason: format!("the names have {} bytes with their end", text.len() + 1),
            }));
        }
        // SAFETY: the caller of the C function made room for `size` bytes, which is more.
        let into = unsafe { std::slice::from_raw_parts_mut(names.cast::<u8>(), text.len() + 1) };
        into[..text.len()].copy_from_slice(text.as_bytes());
        into[text.len()] = 0;
        Ok(())
    }
}
