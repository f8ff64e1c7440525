//! Names that an installation has, and its version.

/// The version of everything that is installed.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The file behind all names of the shared library.
pub(crate) const LIBRARY: &str = "libgaspi.so.1.0.0";

/// What programs record when they link with it.
pub(crate) const SONAME: &str = "libgaspi.so.1";

/// Where the documentation lies below the prefix.
pub(crate) const DOCUMENTATION: &str = "share/doc/gaspi";
