//! libibverbs, found at run time: the types, constants and functions of `infiniband/verbs.h` that a
//! library with reliable connections needs.
//!
//! Building needs neither headers nor clang: `bindings` is generated and committed (`cargo xtask
//! bindings` compares it with rdma-core's headers, which may be used under the OpenIB BSD licence).
//! Running needs libibverbs only where a card is to be used: [`Library::load`] says why it cannot
//! be had. Functions that older versions lack are options, so that a missing one costs its feature
//! only. What the header defines in place of calling the library is in [`inline`].
//!
//! ```
//! use libibverbs_sys::Library;
//!
//! match Library::load(None) {
//!     Ok(verbs) => {
//!         let mut count = 0;
//!         // SAFETY: `count` can be written, and the list is given back once.
//!         unsafe {
//!             let list = (verbs.ibv_get_device_list)(&raw mut count);
//!             if !list.is_null() {
//!                 (verbs.ibv_free_device_list)(list);
//!             }
//!         }
//!         println!("{count} cards");
//!     }
//!     Err(reason) => println!("no cards: {reason}"),
//! }
//! ```

#[allow(
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    clippy::all,
    clippy::pedantic,
    clippy::missing_safety_doc,
    unreachable_pub,
    reason = "generated"
)]
mod bindings;
pub mod inline;

pub use bindings::*;
use libc::{size_t, ssize_t};
use std::ffi::OsStr;
use std::fmt;

/// The file that is loaded unless another one is named.
pub const FILE: &str = "libibverbs.so.1";

/// Why libibverbs cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    /// The file that was to be loaded.
    pub file: String,
    /// What the loader says.
    pub reason: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be used: {}", self.file, self.reason)
    }
}

impl std::error::Error for LoadError {}

macro_rules! library {
    (
        required { $($name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)* }
        optional { $($newer:ident($($a:ident: $t:ty),*) $(-> $r:ty)?;)* }
    ) => {
        /// The functions of libibverbs, as its header declares them.
        #[allow(missing_docs, reason = "the manual pages of rdma-core have them")]
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
            $(pub $newer: Option<unsafe extern "C" fn($($t),*) $(-> $r)?>,)*
            _file: libloading::Library,
        }

        // The types are those of the header.
        $(const _: unsafe extern "C" fn($($type),*) $(-> $result)? = bindings::$name;)*
        $(const _: unsafe extern "C" fn($($t),*) $(-> $r)? = bindings::$newer;)*

        impl Library {
            fn of(file: libloading::Library) -> Result<Library, String> {
                // SAFETY: the symbols have these types, see above.
                unsafe {
                    Ok(Library {
                        $($name: *file
                            .get(concat!(stringify!($name), "\0").as_bytes())
                            .map_err(|error| error.to_string())?,)*
                        $($newer: file
                            .get(concat!(stringify!($newer), "\0").as_bytes())
                            .ok()
                            .map(|found| *found),)*
                        _file: file,
                    })
                }
            }
        }
    };
}

library! {
    required {
        ibv_wc_status_str(status: ibv_wc_status) -> *const libc::c_char;
        ibv_get_device_list(num_devices: *mut libc::c_int) -> *mut *mut ibv_device;
        ibv_free_device_list(list: *mut *mut ibv_device);
        ibv_get_device_name(device: *mut ibv_device) -> *const libc::c_char;
        ibv_get_device_guid(device: *mut ibv_device) -> __be64;
        ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        ibv_close_device(context: *mut ibv_context) -> libc::c_int;
        ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> libc::c_int;
        ibv_ack_async_event(event: *mut ibv_async_event);
        ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> libc::c_int;
        ibv_query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr) -> libc::c_int;
        ibv_query_gid(context: *mut ibv_context, port_num: u8, index: libc::c_int, gid: *mut ibv_gid) -> libc::c_int;
        ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: libc::c_int, pkey: *mut __be16) -> libc::c_int;
        ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd(pd: *mut ibv_pd) -> libc::c_int;
        ibv_reg_mr(pd: *mut ibv_pd, addr: *mut libc::c_void, length: size_t, access: libc::c_int) -> *mut ibv_mr;
        ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut libc::c_void, length: size_t, iova: u64, access: libc::c_int) -> *mut ibv_mr;
        ibv_dereg_mr(mr: *mut ibv_mr) -> libc::c_int;
        ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> libc::c_int;
        ibv_create_cq(context: *mut ibv_context, cqe: libc::c_int, cq_context: *mut libc::c_void, channel: *mut ibv_comp_channel, comp_vector: libc::c_int) -> *mut ibv_cq;
        ibv_resize_cq(cq: *mut ibv_cq, cqe: libc::c_int) -> libc::c_int;
        ibv_destroy_cq(cq: *mut ibv_cq) -> libc::c_int;
        ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut libc::c_void) -> libc::c_int;
        ibv_ack_cq_events(cq: *mut ibv_cq, nevents: libc::c_uint);
        ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: libc::c_int) -> libc::c_int;
        ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> libc::c_int;
        ibv_destroy_srq(srq: *mut ibv_srq) -> libc::c_int;
        ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: libc::c_int) -> libc::c_int;
        ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> libc::c_int;
        ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: libc::c_int, init_attr: *mut ibv_qp_init_attr) -> libc::c_int;
        ibv_destroy_qp(qp: *mut ibv_qp) -> libc::c_int;
        ibv_fork_init() -> libc::c_int;
        ibv_node_type_str(node_type: ibv_node_type) -> *const libc::c_char;
        ibv_port_state_str(port_state: ibv_port_state) -> *const libc::c_char;
        ibv_event_type_str(event: ibv_event_type) -> *const libc::c_char;
    }
    optional {
        ibv_get_device_index(device: *mut ibv_device) -> libc::c_int;
        _ibv_query_gid_ex(context: *mut ibv_context, port_num: u32, gid_index: u32, entry: *mut ibv_gid_entry, flags: u32, entry_size: size_t) -> libc::c_int;
        _ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: size_t, flags: u32, entry_size: size_t) -> ssize_t;
        ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut libc::c_void, length: size_t, iova: u64, access: libc::c_uint) -> *mut ibv_mr;
        ibv_is_fork_initialized() -> ibv_fork_status;
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

impl Library {
    /// Loads `file`, or [`FILE`] from where the loader looks.
    ///
    /// # Errors
    /// There is no such library, or it lacks a function.
    pub fn load(file: Option<&OsStr>) -> Result<Library, LoadError> {
        let name = file.unwrap_or(OsStr::new(FILE));
        let error =
            |reason: String| LoadError { file: name.to_string_lossy().into_owned(), reason };
        // SAFETY: libraries may run code of theirs when loaded; this one is meant to be.
        let loaded = unsafe { libloading::Library::new(name) };
        Library::of(loaded.map_err(|reason| error(reason.to_string()))?).map_err(error)
    }
}
