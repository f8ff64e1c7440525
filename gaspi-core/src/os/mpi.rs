//! An MPI library in the same process, if there is one: it shares the connection to the process
//! manager with this library.
//!
//! `unsafe` because the functions of another library are called by their names.

use libloading::os::unix::Library;
use std::sync::OnceLock;

/// What MPI in this process has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mpi {
    /// The process has loaded no MPI library.
    Absent,
    /// `MPI_Init` may come.
    Loaded,
    /// Between `MPI_Init` and `MPI_Finalize`.
    Initialised,
    /// After `MPI_Finalize`.
    Finalised,
}

type Text = unsafe extern "C" fn(*mut libc::c_char, *mut libc::c_int) -> libc::c_int;
type Question = unsafe extern "C" fn(*mut libc::c_int) -> libc::c_int;

impl Mpi {
    /// Asks the library.
    pub(crate) fn look_up() -> Mpi {
        match (answer(b"MPI_Initialized\0"), answer(b"MPI_Finalized\0")) {
            (_, Some(true)) => Mpi::Finalised,
            (Some(true), _) => Mpi::Initialised,
            (Some(false), _) => Mpi::Loaded,
            (None, _) => Mpi::Absent,
        }
    }
}

/// What a function that may be called at any time says; `None` if the process does not have it.
fn answer(name: &[u8]) -> Option<bool> {
    let process = Library::this();
    // SAFETY: the MPI standard declares both functions like this, for all of its bindings to C.
    let question = unsafe { process.get::<Question>(name) }.ok()?;
    let mut flag = 0;
    // SAFETY: the flag can be written; both may be called before MPI_Init and after MPI_Finalize.
    let status = unsafe { question(&raw mut flag) };
    Some(status == 0 && flag != 0)
}

/// Bytes of the longest description of a library: 256 of Open MPI, 8192 of MPICH.
const DESCRIPTION_MAX: usize = 16 << 10;

/// What the library of this process says of itself, if there is one. It may be asked at any time.
pub(crate) fn description() -> Option<String> {
    let process = Library::this();
    // SAFETY: the MPI standard declares the function like this.
    let describe = unsafe { process.get::<Text>(b"MPI_Get_library_version\0") }.ok()?;
    let (mut text, mut length) = (vec![0_u8; DESCRIPTION_MAX], 0);
    // SAFETY: the text has room for what any library says, and the length can be written.
    let status = unsafe { describe(text.as_mut_ptr().cast(), &raw mut length) };
    let length = usize::try_from(length).ok().filter(|_| status == 0)?;
    text.truncate(length);
    String::from_utf8(text).ok()
}

/// The major version of Open MPI, by the description of the library.
pub(crate) fn open_mpi_version(description: &str) -> Option<u32> {
    description.strip_prefix("Open MPI v")?.split('.').next()?.parse().ok()
}

type End = Box<dyn Fn() + Send + Sync>;

/// What is to be done when the process exits, and which process that is: a forked child that exits
/// has the connections of its parent, too, and must not end them.
static AT_EXIT: OnceLock<(u32, End)> = OnceLock::new();

extern "C" fn run_at_exit() {
    if let Some((process, end)) = AT_EXIT.get()
        && *process == std::process::id()
    {
        end();
    }
}

/// Has `end` called when the process exits by `exit` or by returning from `main`. The first call
/// counts: a process has one connection to its process manager.
pub(crate) fn at_exit(end: End) {
    if AT_EXIT.set((std::process::id(), end)).is_ok() {
        // SAFETY: the function takes nothing and does not unwind. Without memory for the entry the
        // process manager learns of the end by the connection.
        unsafe { libc::atexit(run_at_exit) };
    }
}

#[cfg(test)]
mod tests {
    use super::open_mpi_version;

    #[test]
    fn open_mpi_is_known_by_its_description() {
        assert_eq!(open_mpi_version("Open MPI v5.0.11, package: Open MPI root@x"), Some(5));
        assert_eq!(open_mpi_version("Open MPI v4.1.4, package: Debian OpenMPI"), Some(4));
        assert_eq!(open_mpi_version("Intel(R) MPI Library 2021.13 for Linux* OS\n"), None);
        assert_eq!(open_mpi_version("MPICH Version:      4.0.2\n"), None);
    }
}
