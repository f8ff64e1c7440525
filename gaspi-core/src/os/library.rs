//! Shared libraries that may or may not be installed.
//!
//! By hand: one call whose handle is given back at once, for which libloading is `unsafe` too.

use std::ffi::CStr;

/// Whether the loader finds the shared library `name` and can load it.
pub fn is_loadable(name: &CStr) -> bool {
    // SAFETY: the name is a C string; libraries of the system may run code of theirs when loaded.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return false;
    }
    // SAFETY: the handle comes from dlopen and is given up once.
    unsafe { libc::dlclose(handle) };
    true
}
