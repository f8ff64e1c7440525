//! Namespaces of the kernel: made for one thread, entered by one thread. Only system calls are
//! here.
//!
//! All namespaces but that of processes belong to the thread that asks; the last one is for the
//! processes that the thread starts. So a test enters a host on a thread of its own, starts what is
//! to run there, and lets the thread end: the rest of the test never leaves its place.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::processes::Process;

/// Whether processes that the thread starts are to live among those of the host too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    /// Network, name, mounts and System V IPC.
    Place,
    /// Those, and the process numbers of what is started. No thread can be started any more.
    Processes,
}

/// What makes a host.
const HOST: i32 = libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWNS | libc::CLONE_NEWIPC;

fn checked(result: i32, what: &str) -> io::Result<()> {
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("{what}: {error}")))
}

/// Gives the calling thread namespaces of a new host; the next process that it starts is the first
/// of the host's processes, and the host ends with it.
pub(crate) fn found() -> io::Result<()> {
    // SAFETY: no memory is passed.
    checked(unsafe { libc::unshare(HOST | libc::CLONE_NEWPID) }, "unshare")
}

/// Takes the calling thread into the host whose first process is given.
pub(crate) fn enter(first: &Process, depth: Depth) -> io::Result<()> {
    let here = std::env::current_dir()?;
    // A thread that shares its root directory with others may not change its mounts.
    // SAFETY: no memory is passed.
    checked(unsafe { libc::unshare(libc::CLONE_FS) }, "unshare")?;
    let processes = if depth == Depth::Processes { libc::CLONE_NEWPID } else { 0 };
    // SAFETY: no memory is passed, and the descriptor is open.
    checked(unsafe { libc::setns(first.handle.as_raw_fd(), HOST | processes) }, "setns")?;
    // Entering mounts moved the thread to their root.
    std::env::set_current_dir(here)
}

/// Names the host of the caller.
pub(crate) fn set_host_name(name: &str) -> io::Result<()> {
    // SAFETY: the name is that many bytes long.
    checked(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }, "sethostname")
}

/// Mounts a new file system of the kernel's at `place`.
pub(crate) fn mount(kind: &str, place: &Path) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    mount_with(Path::new("none"), place, kind, flags)
}

/// Shows `file` in place of `place`, to the mounts of the caller only.
pub(crate) fn bind(file: &Path, place: &Path) -> io::Result<()> {
    mount_with(file, place, "none", libc::MS_BIND)
}

fn mount_with(source: &Path, place: &Path, kind: &str, flags: libc::c_ulong) -> io::Result<()> {
    let (from, to) =
        (CString::new(source.as_os_str().as_bytes())?, CString::new(place.as_os_str().as_bytes())?);
    let kind = CString::new(kind)?;
    // SAFETY: all strings are terminated and outlive the call; no data is passed.
    let result =
        unsafe { libc::mount(from.as_ptr(), to.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
    checked(result, &format!("mount {} at {}", source.display(), place.display()))
}

/// Waits for the next child of the caller that ends; adopted ones are children too.
pub(crate) fn wait_for_any() -> io::Result<(i32, i32)> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place for the result.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        if pid > 0 {
            return Ok((pid, status));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Sleeps for ever, as the first process of a host has to. The kernel reaps its children.
pub(crate) fn rest() -> ! {
    // SAFETY: no handler is installed; to ignore the signal has the kernel reap all children.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    loop {
        // SAFETY: pause only waits.
        unsafe { libc::pause() };
    }
}

/// Has a command start in a session of its own.
pub(crate) fn in_session_of_its_own(command: &mut Command) -> &mut Command {
    let start = || {
        // SAFETY: no memory is passed; it is safe between fork and exec.
        if unsafe { libc::setsid() } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: `start` makes one system call and allocates nothing.
    unsafe { command.pre_exec(start) }
}
