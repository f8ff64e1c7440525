//! What `verbs.h` defines in place of a call: it goes through the tables of a context.

use super::{
    IB_UVERBS_ACCESS_OPTIONAL_RANGE, Library, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_port_attr,
    ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc, verbs_context,
};
use libc::{c_int, c_uint, c_void, size_t};
use std::mem::{offset_of, zeroed};

/// What `abi_compat` of a context is where a [`verbs_context`] lies around it.
const EXTENDED: *mut c_void = usize::MAX as *mut c_void;
/// What access flags need the newer registration.
pub const ACCESS_OPTIONAL_RANGE: c_uint = IB_UVERBS_ACCESS_OPTIONAL_RANGE;

/// An entry of a table that the header calls without looking: every card has it.
const MISSING: c_int = libc::EOPNOTSUPP;

/// The extended context around `context`, if it has one.
///
/// # Safety
/// `context` is open.
#[inline]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the context is open.
    let extended = unsafe { (*context).abi_compat } == EXTENDED;
    extended.then(|| context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast())
}

/// Posts work requests to a send queue.
///
/// # Safety
/// The queue pair exists, and the list is one of valid requests.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: as the caller says; the context lives as long as its queue pairs.
    unsafe { (*(*qp).context).ops.post_send.map_or(MISSING, |post| post(qp, wr, bad_wr)) }
}

/// Posts receives to a queue pair.
///
/// # Safety
/// As [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { (*(*qp).context).ops.post_recv.map_or(MISSING, |post| post(qp, wr, bad_wr)) }
}

/// Posts receives to a shared receive queue.
///
/// # Safety
/// As [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { (*(*srq).context).ops.post_srq_recv.map_or(MISSING, |post| post(srq, wr, bad_wr)) }
}

/// Takes up to `entries` completions; how many, below 0 on failure.
///
/// # Safety
/// The queue exists, and `wc` has room for so many.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: as the caller says.
    unsafe { (*(*cq).context).ops.poll_cq.map_or(-MISSING, |poll| poll(cq, entries, wc)) }
}

/// Asks for an event at the next completion, or the next that is solicited.
///
/// # Safety
/// The queue exists.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        (*(*cq).context).ops.req_notify_cq.map_or(MISSING, |request| request(cq, solicited_only))
    }
}

/// What a port is and in which state.
///
/// # Safety
/// `context` is open, and `attr` can be written.
#[inline]
pub unsafe fn ibv_query_port(
    library: &Library,
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: as the caller says; the library's own function writes the first part only.
    unsafe {
        if let Some(verbs) = verbs_get_ctx(context)
            && (*verbs).sz >= size_of::<verbs_context>() - offset_of!(verbs_context, query_port)
            && let Some(query) = (*verbs).query_port
        {
            return query(context, port, attr, size_of::<ibv_port_attr>());
        }
        *attr = zeroed();
        (library.ibv_query_port)(context, port, attr.cast())
    }
}

/// Registers memory.
///
/// # Safety
/// The memory stays as long as the registration.
#[inline]
pub unsafe fn ibv_reg_mr(
    library: &Library,
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: size_t,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: as the caller says.
    unsafe {
        match library.ibv_reg_mr_iova2 {
            Some(register) if access & ACCESS_OPTIONAL_RANGE != 0 => {
                register(pd, address, length, address as u64, access)
            }
            // Without it the optional flags are left away, as they may be.
            _ => (library.ibv_reg_mr)(
                pd,
                address,
                length,
                (access & !ACCESS_OPTIONAL_RANGE).cast_signed(),
            ),
        }
    }
}
