//! libibverbs, found at run time: the types, constants and functions of `infiniband/verbs.h` that a
//! library with reliable connections needs.
//!
//! Building needs neither headers nor clang: `bindings` is generated and committed, and
//! `cargo xtask bindings` compares it with rdma-core's `verbs.h`. That header is under the GPL or,
//! as used here, the OpenIB.org BSD licence; types, constants and prototypes come from it, comments
//! do not.
//!
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
    (required { $($name:ident)* } optional { $($newer:ident)* }) => {
        /// The functions of libibverbs, as its header declares them.
        #[allow(missing_docs, reason = "the manual pages of rdma-core have them")]
        pub struct Library {
            $(pub $name: bindings::$name,)*
            $(pub $newer: Option<bindings::$newer>,)*
            _file: libloading::Library,
        }

        impl Library {
            /// The functions without which a library is not loaded.
            pub const REQUIRED: &[&str] = &[$(stringify!($name)),*];
            /// The functions that it may lack.
            pub const OPTIONAL: &[&str] = &[$(stringify!($newer)),*];

            fn of(file: libloading::Library) -> Result<Library, String> {
                // SAFETY: the types are those of the header, and the default versions of the
                // symbols are what a program compiled with it is linked with.
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

// Optional is what came later than version 1.1 of its symbols, with rdma-core 17 and after.
library! {
    required {
        ibv_ack_async_event
        ibv_ack_cq_events
        ibv_alloc_pd
        ibv_close_device
        ibv_create_comp_channel
        ibv_create_cq
        ibv_create_qp
        ibv_create_srq
        ibv_dealloc_pd
        ibv_dereg_mr
        ibv_destroy_comp_channel
        ibv_destroy_cq
        ibv_destroy_qp
        ibv_destroy_srq
        ibv_event_type_str
        ibv_fork_init
        ibv_free_device_list
        ibv_get_async_event
        ibv_get_cq_event
        ibv_get_device_guid
        ibv_get_device_list
        ibv_get_device_name
        ibv_modify_qp
        ibv_modify_srq
        ibv_node_type_str
        ibv_open_device
        ibv_port_state_str
        ibv_query_device
        ibv_query_gid
        ibv_query_pkey
        ibv_query_port
        ibv_query_qp
        ibv_query_srq
        ibv_reg_mr
        ibv_resize_cq
        ibv_wc_status_str
    }
    optional {
        _ibv_query_gid_ex
        _ibv_query_gid_table
        ibv_get_device_index
        ibv_is_fork_initialized
        ibv_query_qp_data_in_order
        ibv_reg_mr_iova
        ibv_reg_mr_iova2
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
