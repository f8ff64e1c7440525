//! Other processes: telling them apart, watching them end, ending them. Always by pidfd, which
//! cannot be mistaken for a later process of the same number.

use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// When the process was started, in clock ticks since boot: with the pid it names one process.
/// `None` where it does not exist or is not visible.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, field 2, may hold anything; it ends with the last parenthesis.
    let rest = &stat[stat.rfind(')')? + 1..];
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Whether the process `pid` that was started at `started` still runs. A process that has ended but was
/// not waited for does not.
pub fn is_running(pid: i32, started: u64) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let Some(end) = stat.rfind(')') else { return false };
    let mut fields = stat[end + 1..].split_whitespace();
    let ended = matches!(fields.next(), Some("Z" | "X"));
    let found = fields.nth(18).and_then(|field| field.parse().ok());
    !ended && (started == 0 || found == Some(started))
}

/// A descriptor for the process `pid` that was started at `started` (0: not known); `None` if it has ended.
///
/// # Errors
/// Descriptors ran out, or the kernel has no pidfds.
pub fn open(pid: i32, started: u64) -> Result<Option<OwnedFd>> {
    // SAFETY: pidfd_open takes two integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let Ok(fd) = i32::try_from(fd) else { return Ok(None) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::ESRCH) {
            return Ok(None);
        }
        return Err(Error::os(format!("pidfd_open({pid})"), &error));
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // The number may have been given to another process before the descriptor was opened.
    Ok((started == 0 || start_time(pid) == Some(started)).then_some(fd))
}

/// Whether the process has ended.
pub fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the descriptor is open and the struct lives on this stack; it does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// Sends `signal`; false if the process has ended or may not be signalled.
pub fn signal(pidfd: &OwnedFd, signal: i32) -> bool {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open and the signal information may be null.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, info, 0) == 0 }
}

/// Ends this process at once, without running destructors or exit handlers.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit does not return.
    unsafe { libc::_exit(status) }
}

/// Runs `start` with all signals blocked, so that a thread made there never gets one.
pub fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: all zeroes is a valid set, which sigfillset then fills.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: writes the set that it is given.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both sets live on this stack.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let result = start();
    // SAFETY: restores the mask of this thread.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}
