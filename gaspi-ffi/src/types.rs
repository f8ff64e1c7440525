//! The C types under their C names: `prototypes.rs` compares signatures by these names, and sizes
//! by value.
//!
//! Enumerations are plain integers here, because C may pass any number.
#![allow(non_camel_case_types, reason = "the names are those of the C headers")]

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) type gaspi_char = c_char;
pub(crate) type gaspi_uchar = u8;
pub(crate) type gaspi_int = c_int;
pub(crate) type gaspi_uint = c_uint;
pub(crate) type gaspi_ulong = u64;
pub(crate) type gaspi_float = f32;

pub(crate) type gaspi_timeout_t = gaspi_ulong;
pub(crate) type gaspi_rank_t = u16;
pub(crate) type gaspi_group_t = gaspi_uchar;
pub(crate) type gaspi_number_t = gaspi_uint;
pub(crate) type gaspi_pointer_t = *mut c_void;
pub(crate) type gaspi_reduce_state_t = *mut c_void;
pub(crate) type gaspi_queue_id_t = gaspi_uchar;
pub(crate) type gaspi_size_t = gaspi_ulong;
pub(crate) type gaspi_offset_t = gaspi_ulong;
pub(crate) type gaspi_segment_id_t = gaspi_uchar;
pub(crate) type gaspi_string_t = *mut c_char;
pub(crate) type gaspi_time_t = gaspi_float;
pub(crate) type gaspi_atomic_value_t = gaspi_ulong;
pub(crate) type gaspi_notification_id_t = gaspi_uint;
pub(crate) type gaspi_notification_t = gaspi_uint;
pub(crate) type gaspi_statistic_counter_t = gaspi_uint;
pub(crate) type gaspi_cycles_t = gaspi_ulong;
pub(crate) type gaspi_memory_description_t = gaspi_int;
pub(crate) type gaspi_state_t = c_uint;
pub(crate) type gaspi_state_vector_t = *mut gaspi_state_t;

pub(crate) type gaspi_return_t = c_int;
pub(crate) type gaspi_operation_t = c_uint;
pub(crate) type gaspi_datatype_t = c_uint;
pub(crate) type gaspi_network_t = c_uint;
pub(crate) type gaspi_alloc_t = c_uint;
pub(crate) type gaspi_statistic_argument_t = c_uint;
pub(crate) type gaspi_topology_t = c_uint;

/// The callback of `gaspi_allreduce_user`; NULL is `None`.
pub(crate) type gaspi_reduce_operation_t = Option<
    unsafe extern "C" fn(
        one: gaspi_pointer_t,
        two: gaspi_pointer_t,
        result: gaspi_pointer_t,
        state: gaspi_reduce_state_t,
        num: gaspi_number_t,
        element_size: gaspi_size_t,
        timeout: gaspi_timeout_t,
    ) -> gaspi_return_t,
>;

pub(crate) type gaspi_coll_request_t = u64;
pub(crate) type gaspi_coll_op_t = u64;
pub(crate) type gaspi_coll_datatype_t = c_uint;

/// The options of a collective operation, as far as this version of the library knows them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct gaspi_coll_options_t {
    /// Bytes of the structure as the program knows it.
    pub(crate) size: usize,
    pub(crate) algorithm: *const c_char,
    pub(crate) background: gaspi_uint,
    pub(crate) reserved: gaspi_uint,
    /// From version 1002 of the header on.
    pub(crate) mode: gaspi_uint,
    pub(crate) reserved2: gaspi_uint,
}

/// A piece of `gaspi_coll_broadcast_list`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct gaspi_coll_piece_t {
    pub(crate) data: *mut c_void,
    pub(crate) count: u64,
    pub(crate) datatype: gaspi_coll_datatype_t,
    pub(crate) reserved: gaspi_uint,
}

/// The function of `gaspi_coll_op_create`; NULL is `None`.
pub(crate) type gaspi_coll_reduce_function_t = Option<
    unsafe extern "C" fn(
        left: *const c_void,
        right: *const c_void,
        result: *mut c_void,
        count: u64,
        element_size: gaspi_size_t,
        state: *mut c_void,
    ) -> gaspi_return_t,
>;

pub(crate) type gaspi_fusion_t = u64;

/// A tensor of a fused buffer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct gaspi_fusion_tensor_t {
    pub(crate) count: u64,
    pub(crate) datatype: gaspi_coll_datatype_t,
    pub(crate) reserved: gaspi_uint,
}

/// The options of a fused buffer, as far as this version of the library knows them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct gaspi_fusion_options_t {
    /// Bytes of the structure as the program knows it.
    pub(crate) size: usize,
    pub(crate) op: gaspi_coll_op_t,
    pub(crate) threshold: gaspi_size_t,
    pub(crate) limit: gaspi_size_t,
    pub(crate) algorithm: *const c_char,
    pub(crate) order: gaspi_uint,
    pub(crate) contributions: gaspi_uint,
    pub(crate) wire: gaspi_uint,
    pub(crate) background: gaspi_uint,
    pub(crate) mode: gaspi_uint,
    pub(crate) reserved: gaspi_uint,
}

/// The function of `gaspi_fusion_on_end`; NULL is `None`.
pub(crate) type gaspi_fusion_function_t = Option<
    unsafe extern "C" fn(
        fusion: gaspi_fusion_t,
        bucket: gaspi_size_t,
        outcome: gaspi_return_t,
        state: *mut c_void,
    ),
>;

/// The modes of collective operations.
pub(crate) const GASPI_COLL_MODE_DEFAULT: gaspi_uint = 0;
pub(crate) const GASPI_COLL_MODE_FAST: gaspi_uint = 1;
pub(crate) const GASPI_COLL_MODE_STABLE: gaspi_uint = 2;

/// The orders in which tensors are put into buckets.
pub(crate) const GASPI_FUSION_DECLARED: gaspi_uint = 0;
pub(crate) const GASPI_FUSION_REVERSE: gaspi_uint = 1;

/// The function of `gaspi_threads_run`: `void *(*)(void *)`; NULL is `None`.
pub(crate) type thread_function = Option<unsafe extern "C" fn(*mut c_void) -> *mut c_void>;

pub(crate) const GASPI_TEST: gaspi_timeout_t = 0;
pub(crate) const GASPI_BLOCK: gaspi_timeout_t = u64::MAX;

pub(crate) const GASPI_ERROR: gaspi_return_t = -1;
pub(crate) const GASPI_SUCCESS: gaspi_return_t = 0;
pub(crate) const GASPI_TIMEOUT: gaspi_return_t = 1;
pub(crate) const GASPI_ERR_EMFILE: gaspi_return_t = 2;
pub(crate) const GASPI_ERR_ENV: gaspi_return_t = 3;
pub(crate) const GASPI_ERR_CONFIG: gaspi_return_t = 5;
pub(crate) const GASPI_ERR_NOINIT: gaspi_return_t = 6;
pub(crate) const GASPI_ERR_INITED: gaspi_return_t = 7;
pub(crate) const GASPI_ERR_NULLPTR: gaspi_return_t = 8;
pub(crate) const GASPI_ERR_INV_SEGSIZE: gaspi_return_t = 9;
pub(crate) const GASPI_ERR_INV_SEG: gaspi_return_t = 10;
pub(crate) const GASPI_ERR_INV_GROUP: gaspi_return_t = 11;
pub(crate) const GASPI_ERR_INV_RANK: gaspi_return_t = 12;
pub(crate) const GASPI_ERR_INV_QUEUE: gaspi_return_t = 13;
pub(crate) const GASPI_ERR_INV_LOC_OFF: gaspi_return_t = 14;
pub(crate) const GASPI_ERR_INV_REM_OFF: gaspi_return_t = 15;
pub(crate) const GASPI_ERR_INV_COMMSIZE: gaspi_return_t = 16;
pub(crate) const GASPI_ERR_INV_NOTIF_VAL: gaspi_return_t = 17;
pub(crate) const GASPI_ERR_INV_NOTIF_ID: gaspi_return_t = 18;
pub(crate) const GASPI_ERR_INV_NUM: gaspi_return_t = 19;
pub(crate) const GASPI_ERR_INV_SIZE: gaspi_return_t = 20;
pub(crate) const GASPI_ERR_MANY_SEG: gaspi_return_t = 21;
pub(crate) const GASPI_ERR_MANY_GRP: gaspi_return_t = 22;
pub(crate) const GASPI_QUEUE_FULL: gaspi_return_t = 23;
pub(crate) const GASPI_ERR_UNALIGN_OFF: gaspi_return_t = 24;
pub(crate) const GASPI_ERR_ACTIVE_COLL: gaspi_return_t = 25;
pub(crate) const GASPI_ERR_MEMALLOC: gaspi_return_t = 28;

pub(crate) const GASPI_OP_MIN: gaspi_operation_t = 0;
pub(crate) const GASPI_OP_MAX: gaspi_operation_t = 1;
pub(crate) const GASPI_OP_SUM: gaspi_operation_t = 2;

pub(crate) const GASPI_TYPE_INT: gaspi_datatype_t = 0;
pub(crate) const GASPI_TYPE_UINT: gaspi_datatype_t = 1;
pub(crate) const GASPI_TYPE_FLOAT: gaspi_datatype_t = 2;
pub(crate) const GASPI_TYPE_DOUBLE: gaspi_datatype_t = 3;
pub(crate) const GASPI_TYPE_LONG: gaspi_datatype_t = 4;
pub(crate) const GASPI_TYPE_ULONG: gaspi_datatype_t = 5;

pub(crate) const GASPI_IB: gaspi_network_t = 0;
pub(crate) const GASPI_ROCE: gaspi_network_t = 1;
pub(crate) const GASPI_ETHERNET: gaspi_network_t = 2;

pub(crate) const GASPI_MEM_UNINITIALIZED: gaspi_alloc_t = 0;
pub(crate) const GASPI_MEM_INITIALIZED: gaspi_alloc_t = 1;

pub(crate) const GASPI_STATE_HEALTHY: gaspi_state_t = 0;
pub(crate) const GASPI_STATE_CORRUPT: gaspi_state_t = 1;

pub(crate) const GASPI_STATISTIC_ARGUMENT_NONE: gaspi_statistic_argument_t = 0;
pub(crate) const GASPI_STATISTIC_ARGUMENT_RANK: gaspi_statistic_argument_t = 1;

pub(crate) const GASPI_TOPOLOGY_NONE: gaspi_topology_t = 0;
pub(crate) const GASPI_TOPOLOGY_STATIC: gaspi_topology_t = 1;
pub(crate) const GASPI_TOPOLOGY_DYNAMIC: gaspi_topology_t = 2;

/// The address that says "in place".
pub(crate) const GASPI_COLL_IN_PLACE: usize = usize::MAX;
pub(crate) const GASPI_COLL_REQUEST_NULL: gaspi_coll_request_t = 0;

pub(crate) const GASPI_COLL_TYPE_I8: gaspi_coll_datatype_t = 16;
pub(crate) const GASPI_COLL_TYPE_U8: gaspi_coll_datatype_t = 17;
pub(crate) const GASPI_COLL_TYPE_I16: gaspi_coll_datatype_t = 18;
pub(crate) const GASPI_COLL_TYPE_U16: gaspi_coll_datatype_t = 19;
pub(crate) const GASPI_COLL_TYPE_I32: gaspi_coll_datatype_t = 20;
pub(crate) const GASPI_COLL_TYPE_U32: gaspi_coll_datatype_t = 21;
pub(crate) const GASPI_COLL_TYPE_I64: gaspi_coll_datatype_t = 22;
pub(crate) const GASPI_COLL_TYPE_U64: gaspi_coll_datatype_t = 23;
pub(crate) const GASPI_COLL_TYPE_F16: gaspi_coll_datatype_t = 32;
pub(crate) const GASPI_COLL_TYPE_BF16: gaspi_coll_datatype_t = 33;
pub(crate) const GASPI_COLL_TYPE_F32: gaspi_coll_datatype_t = 34;
pub(crate) const GASPI_COLL_TYPE_F64: gaspi_coll_datatype_t = 35;
pub(crate) const GASPI_COLL_TYPE_USER: gaspi_coll_datatype_t = 64;

pub(crate) const GASPI_COLL_OP_SUM: gaspi_coll_op_t = 16;
pub(crate) const GASPI_COLL_OP_PRODUCT: gaspi_coll_op_t = 17;
pub(crate) const GASPI_COLL_OP_MIN: gaspi_coll_op_t = 18;
pub(crate) const GASPI_COLL_OP_MAX: gaspi_coll_op_t = 19;
pub(crate) const GASPI_COLL_OP_AND: gaspi_coll_op_t = 20;
pub(crate) const GASPI_COLL_OP_OR: gaspi_coll_op_t = 21;
pub(crate) const GASPI_COLL_OP_XOR: gaspi_coll_op_t = 22;
pub(crate) const GASPI_COLL_OP_AVERAGE: gaspi_coll_op_t = 23;

pub(crate) const GASPI_COLL_OP_ORDERED: gaspi_uint = 1;
pub(crate) const GASPI_COLL_OP_BACKGROUND: gaspi_uint = 2;
