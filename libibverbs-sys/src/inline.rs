//! What `verbs.h` defines in place of a call: it goes through the tables of a context.

use super::{
    IB_UVERBS_ACCESS_OPTIONAL_RANGE, Library, ibv_context, ibv_cq, ibv_device_attr_ex,
    ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq,
    ibv_wc, verbs_context,
};
use libc::{c_int, c_uint, c_void, size_t, ssize_t};
use std::mem::{offset_of, zeroed};
use std::ptr::null;

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
    // SAFETY: caller's promise.
    let extended = unsafe { (*context).abi_compat } == EXTENDED;
    extended.then(|| context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast())
}

/// An entry of the extended table, if both the library and the card's driver have it. The table
/// grows at its start, and `sz` says how much of it there is.
macro_rules! extended {
    ($context:expr, $entry:ident) => {
        verbs_get_ctx($context)
            .filter(|&verbs| {
                (*verbs).sz >= size_of::<verbs_context>() - offset_of!(verbs_context, $entry)
            })
            .and_then(|verbs| (*verbs).$entry)
    };
}

/// A device's function that posts work requests, as [`ibv_post_send`] does.
pub type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

/// The function that [`ibv_post_send`] calls for a queue pair, as long as that exists.
///
/// # Safety
/// The queue pair exists.
#[inline]
pub unsafe fn post_send_of(qp: *mut ibv_qp) -> PostSend {
    unsafe extern "C" fn missing(
        _: *mut ibv_qp,
        _: *mut ibv_send_wr,
        _: *mut *mut ibv_send_wr,
    ) -> c_int {
        MISSING
    }
    // SAFETY: caller's promise. The context lives as long as its queue pairs.
    unsafe { (*(*qp).context).ops.post_send.unwrap_or(missing) }
}

/// Posts work requests to a send queue. An error is a number of `errno`.
///
/// # Safety
/// The queue pair exists, the list is one of valid requests, and `bad_wr` can be written.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: caller's promise.
    unsafe { post_send_of(qp)(qp, wr, bad_wr) }
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
    // SAFETY: caller's promise. The context lives as long as its queue pairs.
    unsafe { (*(*qp).context).ops.post_recv.map_or(MISSING, |post| post(qp, wr, bad_wr)) }
}

/// Posts receives to a shared receive queue.
///
/// # Safety
/// The shared receive queue exists, the list is one of valid requests, and `bad_wr` can be written.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: caller's promise. The context lives as long as its queues.
    unsafe { (*(*srq).context).ops.post_srq_recv.map_or(MISSING, |post| post(srq, wr, bad_wr)) }
}

/// Takes up to `entries` completions; how many, below 0 on failure.
///
/// # Safety
/// The queue exists, and `wc` has room for so many.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: caller's promise. The context lives as long as its queues.
    unsafe { (*(*cq).context).ops.poll_cq.map_or(-MISSING, |poll| poll(cq, entries, wc)) }
}

/// Asks for an event at the next completion, or the next that is solicited.
///
/// # Safety
/// The queue exists.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: caller's promise. The context lives as long as its queues.
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
    // SAFETY: caller's promise. The library's own function writes the first part only.
    unsafe {
        if let Some(query) = extended!(context, query_port) {
            return query(context, port, attr, size_of::<ibv_port_attr>());
        }
        attr.write(zeroed());
        (library.ibv_query_port)(context, port, attr.cast())
    }
}

/// What is known of a port, with what newer libraries tell behind it: the header that the bindings
/// are made from is older, and ends before that.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PortAttr {
    /// What all tell.
    pub attr: ibv_port_attr,
    /// The speed of a lane, as `active_speed`, which has no room for that of XDR (256); 0 of older
    /// libraries and kernels.
    pub active_speed_ex: u32,
}

// Right behind, and as long as the newer struct.
const _: () = assert!(offset_of!(PortAttr, active_speed_ex) == size_of::<ibv_port_attr>());
const _: () = assert!(size_of::<PortAttr>() == 56);

/// What is known of a port, with its newer part. The library is told how long the struct is: an
/// older one zeroes what it does not know.
///
/// # Safety
/// `context` is open, and `attr` can be written.
#[inline]
pub unsafe fn query_port_and_speed(
    library: &Library,
    context: *mut ibv_context,
    port: u8,
    attr: *mut PortAttr,
) -> c_int {
    // SAFETY: caller's promise. The library's own function writes the first part only.
    unsafe {
        attr.write(zeroed());
        match extended!(context, query_port) {
            Some(query) => query(context, port, attr.cast(), size_of::<PortAttr>()),
            None => (library.ibv_query_port)(context, port, attr.cast()),
        }
    }
}

/// What a card can do. Of an older library or driver only `orig_attr` is filled; all else is 0.
///
/// # Safety
/// `context` is open, and `attr` can be written.
#[inline]
pub unsafe fn ibv_query_device_ex(
    library: &Library,
    context: *mut ibv_context,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: caller's promise.
    unsafe {
        if let Some(query) = extended!(context, query_device_ex) {
            let error = query(context, null(), attr, size_of::<ibv_device_attr_ex>());
            if !matches!(error, libc::EOPNOTSUPP | libc::ENOSYS) {
                return error;
            }
        }
        attr.write(zeroed());
        (library.ibv_query_device)(context, &raw mut (*attr).orig_attr)
    }
}

/// An entry of a port's table of GIDs, with its type and network device.
///
/// # Safety
/// `context` is open, and `entry` can be written.
#[inline]
pub unsafe fn ibv_query_gid_ex(
    library: &Library,
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
) -> c_int {
    library._ibv_query_gid_ex.map_or(MISSING, |query| {
        // SAFETY: caller's promise.
        unsafe { query(context, port, index, entry, 0, size_of::<ibv_gid_entry>()) }
    })
}

/// The valid GIDs of all ports; how many there are, below 0 on failure.
///
/// # Safety
/// `context` is open, and `entries` has room for `max_entries`.
#[inline]
pub unsafe fn ibv_query_gid_table(
    library: &Library,
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: size_t,
) -> ssize_t {
    library._ibv_query_gid_table.map_or(-(MISSING as ssize_t), |query| {
        // SAFETY: caller's promise.
        unsafe { query(context, entries, max_entries, 0, size_of::<ibv_gid_entry>()) }
    })
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
    // SAFETY: caller's promise.
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
