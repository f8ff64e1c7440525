//! The C library, loaded at run time: where it is looked for, and the table of its procedures.
//!
//! gaspi-bench measures what a C program gets, so it calls through the same names with the same
//! types; the tables of GASPI.h are repeated here as function pointers.

use crate::failure::{Failure, Result};
use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::path::{Path, PathBuf};

/// Names the library file instead of searching.
pub(crate) const VARIABLE: &str = "GASPI_LIBRARY";
const SONAME: &str = "libgaspi.so.1";

pub(crate) type Status = c_int;
pub(crate) const ERROR: Status = -1;
pub(crate) const SUCCESS: Status = 0;
pub(crate) const TIMEOUT: Status = 1;
pub(crate) const TEST: c_ulong = 0;

/// gaspi_config_t: only its size matters for passing it, and the offsets of fields that are set.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Config(pub(crate) [u8; 144]);

/// Where fields of gaspi_config_t lie, of 4 bytes each.
pub(crate) const CONFIG_ALLREDUCE_ELEM_MAX: usize = 120;
pub(crate) const CONFIG_BUILD_INFRASTRUCTURE: usize = 128;
/// Connections are made on first use.
pub(crate) const TOPOLOGY_DYNAMIC: u32 = 2;

macro_rules! procedures {
    ($(#[$text:meta])* $name:ident $($field:ident: $symbol:literal ($($kind:ty),*);)*) => {
        $(#[$text])*
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $name {
            $(pub(crate) $field: unsafe extern "C" fn($($kind),*) -> Status,)*
        }

        impl $name {
            fn find(library: &Loaded) -> std::result::Result<$name, libloading::Error> {
                Ok($name {
                    $(
                        // SAFETY: the type is that of the declaration in the C headers.
                        $field: unsafe { *library.get(concat!($symbol, "\0").as_bytes())? },
                    )*
                })
            }
        }
    };
}

procedures! {
    /// The procedures that are measured or needed for it.
    Procedures
    config_get: "gaspi_config_get" (*mut Config);
    config_set: "gaspi_config_set" (Config);
    version: "gaspi_version" (*mut f32);
    proc_init: "gaspi_proc_init" (c_ulong);
    proc_term: "gaspi_proc_term" (c_ulong);
    proc_rank: "gaspi_proc_rank" (*mut u16);
    proc_num: "gaspi_proc_num" (*mut u16);
    network_type: "gaspi_network_type" (*mut c_int);
    statistic_counter_max: "gaspi_statistic_counter_max" (*mut c_uint);
    statistic_counter_info:
        "gaspi_statistic_counter_info"
        (c_uint, *mut c_int, *mut *const c_char, *mut *const c_char, *mut c_uint);
    statistic_counter_get: "gaspi_statistic_counter_get" (c_uint, c_uint, *mut c_ulong);
    state_vec_get: "gaspi_state_vec_get" (*mut c_int);
    error_detail: "gaspi_error_detail" (*mut u8, c_ulong);
    segment_create: "gaspi_segment_create" (u8, c_ulong, u8, c_ulong, c_uint);
    segment_delete: "gaspi_segment_delete" (u8);
    segment_ptr: "gaspi_segment_ptr" (u8, *mut *mut c_void);
    segment_num: "gaspi_segment_num" (*mut c_uint);
    queue_create: "gaspi_queue_create" (*mut u8, c_ulong);
    queue_delete: "gaspi_queue_delete" (u8);
    queue_num: "gaspi_queue_num" (*mut c_uint);
    write: "gaspi_write" (u8, c_ulong, u16, u8, c_ulong, c_ulong, u8, c_ulong);
    read: "gaspi_read" (u8, c_ulong, u16, u8, c_ulong, c_ulong, u8, c_ulong);
    wait: "gaspi_wait" (u8, c_ulong);
    notify: "gaspi_notify" (u8, u16, c_uint, c_uint, u8, c_ulong);
    notify_waitsome: "gaspi_notify_waitsome" (u8, c_uint, c_uint, *mut c_uint, c_ulong);
    notify_reset: "gaspi_notify_reset" (u8, c_uint, *mut c_uint);
    write_notify:
        "gaspi_write_notify" (u8, c_ulong, u16, u8, c_ulong, c_ulong, c_uint, c_uint, u8, c_ulong);
    atomic_fetch_add: "gaspi_atomic_fetch_add" (u8, c_ulong, u16, u64, *mut u64, c_ulong);
    atomic_compare_swap:
        "gaspi_atomic_compare_swap" (u8, c_ulong, u16, u64, u64, *mut u64, c_ulong);
    passive_send: "gaspi_passive_send" (u8, c_ulong, u16, c_ulong, c_ulong);
    passive_receive: "gaspi_passive_receive" (u8, c_ulong, *mut u16, c_ulong, c_ulong);
    barrier: "gaspi_barrier" (u8, c_ulong);
    allreduce:
        "gaspi_allreduce" (*mut c_void, *mut c_void, c_uint, c_int, c_int, u8, c_ulong);
}

impl Procedures {
    /// Turns the status of a call, whose longest wait is `limit_ms`, into a result.
    #[inline(always)]
    pub(crate) fn check(&self, name: &str, status: Status, limit_ms: u64) -> Result<()> {
        if status == SUCCESS { Ok(()) } else { Err(self.failed(name, status, limit_ms)) }
    }

    #[cold]
    fn failed(&self, name: &str, status: Status, limit_ms: u64) -> Failure {
        if status == TIMEOUT {
            return Failure::run(format!("{name} timed out after {limit_ms} ms"));
        }
        let mut text = [0u8; 1024];
        // SAFETY: writes at most the given number of bytes.
        unsafe { (self.error_detail)(text.as_mut_ptr(), text.len() as u64) };
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let detail = String::from_utf8_lossy(&text[..end]);
        if detail.is_empty() {
            return Failure::run(format!("{name} failed with status {status}"));
        }
        Failure::run(format!("{detail} (status {status})"))
    }
}

/// gaspi_coll_options_t.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Options {
    size: usize,
    algorithm: *const c_char,
    background: c_uint,
    reserved: c_uint,
    mode: c_uint,
    reserved2: c_uint,
}

impl Options {
    /// With an algorithm by its name, which has to stay as long as these, in a mode by its number.
    pub(crate) fn of(algorithm: Option<&CStr>, mode: c_uint) -> Options {
        let algorithm = algorithm.map_or(std::ptr::null(), CStr::as_ptr);
        let size = size_of::<Options>();
        Options { size, algorithm, background: 0, reserved: 0, mode, reserved2: 0 }
    }
}

procedures! {
    /// The collective operations of gaspi_collectives.h that wait for their end.
    Collectives
    allreduce:
        "gaspi_coll_allreduce"
        (*const c_void, *mut c_void, u64, u32, u64, u8, *const Options, c_ulong);
    reduce:
        "gaspi_coll_reduce"
        (*const c_void, *mut c_void, u64, u32, u64, u16, u8, *const Options, c_ulong);
    broadcast:
        "gaspi_coll_broadcast"
        (*const c_void, *mut c_void, u64, u32, u16, u8, *const Options, c_ulong);
    reduce_scatter:
        "gaspi_coll_reduce_scatter"
        (*const c_void, *mut c_void, u64, u32, u64, u8, *const Options, c_ulong);
    allgather:
        "gaspi_coll_allgather"
        (*const c_void, *mut c_void, u64, u32, u8, *const Options, c_ulong);
    allgatherv:
        "gaspi_coll_allgatherv"
        (*const c_void, *mut c_void, *const u64, *const u64, u32, u8, *const Options, c_ulong);
    gather:
        "gaspi_coll_gather"
        (*const c_void, *mut c_void, u64, u32, u16, u8, *const Options, c_ulong);
    scatter:
        "gaspi_coll_scatter"
        (*const c_void, *mut c_void, u64, u32, u16, u8, *const Options, c_ulong);
    alltoall:
        "gaspi_coll_alltoall"
        (*const c_void, *mut c_void, u64, u32, u8, *const Options, c_ulong);
    algorithms: "gaspi_coll_algorithms" (*const c_char, *mut c_char, c_ulong);
    alltoallv:
        "gaspi_coll_alltoallv"
        (*const c_void, *const u64, *const u64, *mut c_void, *const u64, *const u64, u32, u8,
         *const Options, c_ulong);
}

/// gaspi_fusion_tensor_t.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Tensor {
    count: u64,
    datatype: u32,
    reserved: c_uint,
}

impl Tensor {
    pub(crate) fn of(count: usize, datatype: u32) -> Tensor {
        Tensor { count: count as u64, datatype, reserved: 0 }
    }
}

/// gaspi_fusion_options_t.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct TensorOptions {
    size: usize,
    op: u64,
    threshold: u64,
    limit: u64,
    algorithm: *const c_char,
    order: c_uint,
    contributions: c_uint,
    wire: c_uint,
    background: c_uint,
    mode: c_uint,
    reserved: c_uint,
}

impl TensorOptions {
    /// Those of GASPI_FUSION_OPTIONS_INIT but for these.
    pub(crate) fn of(
        op: u64,
        threshold: u64,
        background: bool,
        [wire, mode]: [c_uint; 2],
    ) -> TensorOptions {
        TensorOptions {
            size: size_of::<TensorOptions>(),
            op,
            threshold,
            limit: 0,
            algorithm: std::ptr::null(),
            order: 0,
            contributions: 1,
            wire,
            background: background.into(),
            mode,
            reserved: 0,
        }
    }
}

procedures! {
    /// Fused buffers of gaspi_collectives.h.
    Fusions
    create:
        "gaspi_fusion_create"
        (*const Tensor, u64, u8, *const TensorOptions, *mut u64, c_ulong);
    submit: "gaspi_fusion_submit" (u64, u64, *const c_void, f64);
    wait: "gaspi_fusion_wait" (u64, u64, *mut c_void, c_ulong);
    result: "gaspi_fusion_result" (u64, u64, *mut *const c_void, c_ulong);
    release: "gaspi_fusion_release" (u64, u64, *const c_void);
    tensor_ptr: "gaspi_fusion_tensor_ptr" (u64, u64, *mut *mut c_void);
    buckets: "gaspi_fusion_buckets" (u64, *mut u64);
    free: "gaspi_fusion_free" (u64);
}

/// gaspi_coll_piece_t.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Piece {
    data: *mut c_void,
    count: u64,
    datatype: u32,
    reserved: c_uint,
}

impl Piece {
    pub(crate) fn of<T>(elements: &mut [T], datatype: u32) -> Piece {
        let count = elements.len() as u64;
        Piece { data: elements.as_mut_ptr().cast(), count, datatype, reserved: 0 }
    }
}

procedures! {
    /// Lists of pieces of gaspi_collectives.h.
    Lists
    broadcast:
        "gaspi_coll_broadcast_list"
        (*const Piece, u64, u16, u8, *const Options, c_ulong);
}

/// What a library may have beyond the standard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extensions {
    pub(crate) collectives: Option<Collectives>,
    pub(crate) fusions: Option<Fusions>,
    pub(crate) lists: Option<Lists>,
}

/// The library as long as the process lives.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) procedures: Procedures,
    pub(crate) extensions: Extensions,
    /// The file that was loaded.
    pub(crate) path: PathBuf,
}

impl Library {
    /// Loads the first library that is found.
    pub(crate) fn load() -> Result<Library> {
        let mut reasons = Vec::new();
        for place in places() {
            // SAFETY: initialisers of libgaspi do nothing but set up its own memory.
            match unsafe { Loaded::open(Some(&place), RTLD_NOW | RTLD_LOCAL) } {
                Ok(loaded) => return Library::new(loaded, &place),
                Err(error) => reasons.push(format!("  {}: {error}", place.display())),
            }
        }
        Err(Failure::usage(format!(
            "{SONAME} was not found; name it with {VARIABLE} or LD_LIBRARY_PATH; searched:\n{}",
            reasons.join("\n")
        )))
    }

    fn new(loaded: Loaded, place: &Path) -> Result<Library> {
        let procedures = Procedures::find(&loaded).map_err(|error| {
            Failure::usage(format!("{} is not a library to measure: {error}", place.display()))
        })?;
        let (collectives, fusions) = (Collectives::find(&loaded).ok(), Fusions::find(&loaded).ok());
        let extensions = Extensions { collectives, fusions, lists: Lists::find(&loaded).ok() };
        let symbol = procedures.proc_init as *const c_void;
        let path = file_of(symbol).unwrap_or_else(|| place.to_path_buf());
        // Its threads may run until the process ends.
        std::mem::forget(loaded);
        Ok(Library { procedures, extensions, path })
    }
}

/// Where the library may be, best first.
fn places() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        return vec![named.into()];
    }
    let mut places = Vec::new();
    let own = std::env::current_exe().and_then(std::fs::canonicalize).ok();
    if let Some(directory) = own.as_deref().and_then(Path::parent) {
        places.push(directory.join(SONAME));
        if let Some(prefix) = directory.parent() {
            places.push(prefix.join("lib").join(SONAME));
            places.push(prefix.join("lib64").join(SONAME));
            let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
            places.push(prefix.join("lib").join(triplet).join(SONAME));
        }
    }
    // A bare name makes the loader search its own path.
    places.push(SONAME.into());
    places
}

/// The file that a symbol came from.
fn file_of(symbol: *const c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: all zeroes is a valid Dl_info.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr only looks up the address and writes the struct that it is given.
    if unsafe { libc::dladdr(symbol, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr returns a string that lives as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    Some(std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()))
}
