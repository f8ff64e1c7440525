//! What the real library does alone.

#![allow(clippy::missing_safety_doc, reason = "the manual pages of rdma-core have the contracts")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libibverbs_sys as sys;
use sys::*;

use crate::wrapped::real;

macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of libibverbs.")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: C contract, which is that of the real function.
                unsafe { (real().$name)($($argument),*) }
            }
        )*
    };
}

/// With the result of a library that lacks the function.
macro_rules! forward_newer {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $missing:expr;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of libibverbs.")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: C contract, which is that of the real function.
                real().$name.map_or($missing, |found| unsafe { found($($argument),*) })
            }
        )*
    };
}

forward! {
    ibv_ack_async_event(event: *mut ibv_async_event);
    ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint);
    ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    ibv_event_type_str(event: ibv_event_type) -> *const c_char;
    ibv_fork_init() -> c_int;
    ibv_free_device_list(list: *mut *mut ibv_device);
    ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    ibv_get_cq_event(
        channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, about: *mut *mut c_void
    ) -> c_int;
    ibv_get_device_guid(device: *mut ibv_device) -> __be64;
    ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    ibv_modify_srq(srq: *mut ibv_srq, attributes: *mut ibv_srq_attr, mask: c_int) -> c_int;
    ibv_node_type_str(kind: ibv_node_type) -> *const c_char;
    ibv_port_state_str(state: ibv_port_state) -> *const c_char;
    ibv_query_device(context: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int;
    ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, key: *mut __be16) -> c_int;
    ibv_query_port(
        context: *mut ibv_context, port: u8, attributes: *mut _compat_ibv_port_attr
    ) -> c_int;
    ibv_query_qp(
        qp: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int, made: *mut ibv_qp_init_attr
    ) -> c_int;
    ibv_query_srq(srq: *mut ibv_srq, attributes: *mut ibv_srq_attr) -> c_int;
    ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int;
    ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;
}

forward_newer! {
    _ibv_query_gid_ex(
        context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, flags: u32,
        size: usize
    ) -> c_int, libc::EOPNOTSUPP;
    _ibv_query_gid_table(
        context: *mut ibv_context, entries: *mut ibv_gid_entry, room: usize, flags: u32,
        size: usize
    ) -> isize, -(libc::EOPNOTSUPP as isize);
    ibv_get_device_index(device: *mut ibv_device) -> c_int, -1;
    ibv_is_fork_initialized() -> ibv_fork_status, IBV_FORK_DISABLED;
}
