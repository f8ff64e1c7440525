//! Copying from and to the memory of another process without its help (process_vm_readv/writev).
//!
//! By hand: rustix has no such calls, and none that forks.

use super::{limits, process};
use crate::sync::{AtomicU64, Ordering};
use std::io;
use std::os::unix::net::UnixStream;

fn vector(pointer: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: pointer.cast(), iov_len: len }
}

/// Repeats partial copies; `copy` gets what is done so far.
fn all(len: usize, mut copy: impl FnMut(usize) -> isize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match usize::try_from(copy(done)) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Ok(copied) => done += copied,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Copies `len` bytes from `address` of process `pid` to `target`.
///
/// # Errors
/// The kernel refuses (Yama, seccomp, namespaces), the process has ended, or the range is not
/// mapped there.
///
/// # Safety
/// `target` is writable for `len` bytes.
pub unsafe fn read(pid: i32, address: u64, target: *mut u8, len: usize) -> io::Result<()> {
    all(len, |done| {
        let local = vector(target.wrapping_add(done), len - done);
        let remote = vector((address as *mut u8).wrapping_add(done), len - done);
        // SAFETY: the caller vouches for the local range; the kernel checks the remote one.
        unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) }
    })
}

/// Copies `len` bytes from `source` to `address` of process `pid`.
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// `source` is readable for `len` bytes.
pub unsafe fn write(pid: i32, address: u64, source: *const u8, len: usize) -> io::Result<()> {
    all(len, |done| {
        let local = vector(source.wrapping_add(done).cast_mut(), len - done);
        let remote = vector((address as *mut u8).wrapping_add(done), len - done);
        // SAFETY: the caller vouches for the local range; the kernel checks the remote one.
        unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) }
    })
}

/// What the child of [`probe`] says: an error of the kernel (0 for none) and the number it read.
type Answer = [u64; 2];

/// Whether the kernel lets a process of this user copy from the memory of another one that is not
/// its child, as ranks do: a child reads a number from this process that it cannot know otherwise.
///
/// # Errors
/// Why not; [`refusal`] says it in words.
pub fn probe() -> io::Result<()> {
    let number = AtomicU64::new(0);
    let parent = std::process::id().cast_signed();
    let (own, childs) = UnixStream::pair()?;
    // SAFETY: the child only makes system calls, on what was made before, and ends itself.
    let child = process::with_signals_blocked(|| unsafe { libc::fork() });
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        drop(own);
        read_from_parent(parent, &number, &childs)
    }
    drop(childs);
    // After the fork, so that the child's copy does not have it.
    let expected = std::ptr::from_ref(&number) as u64 ^ 0x6761_7370_6920_6e6f;
    number.store(expected, Ordering::SeqCst);
    let answer = ask(&own);
    drop(own);
    // SAFETY: the child is ours, and it ends once the socket is closed.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    match answer? {
        [0, read] if read == expected => Ok(()),
        [0, _] => Err(io::Error::other("another process was read")),
        [error, _] => Err(io::Error::from_raw_os_error(error as i32)),
    }
}

/// Lets the child begin and takes its answer.
fn ask(child: &UnixStream) -> io::Result<Answer> {
    use std::io::{Read as _, Write as _};
    let (mut stream, mut bytes) = (child, [0u8; size_of::<Answer>()]);
    stream.write_all(&[1])?;
    stream.read_exact(&mut bytes)?;
    Ok(bytemuck::cast(bytes))
}

/// The child's part. It was forked from a process that may have threads: nothing but system calls.
fn read_from_parent(parent: i32, number: &AtomicU64, socket: &UnixStream) -> ! {
    use std::os::fd::AsRawFd as _;
    let mut found = 0u64;
    let mut begin = 0u8;
    // SAFETY: reads one byte onto this stack.
    if unsafe { libc::read(socket.as_raw_fd(), (&raw mut begin).cast(), 1) } == 1 {
        let address = std::ptr::from_ref(number) as u64;
        // SAFETY: writes 8 bytes onto this stack.
        let read = unsafe { read(parent, address, (&raw mut found).cast(), size_of::<u64>()) };
        let error = read.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
        let answer: Answer = [error as u64, found];
        let flags = libc::MSG_NOSIGNAL;
        // SAFETY: sends an array from this stack.
        unsafe {
            let bytes = (&raw const answer).cast();
            libc::send(socket.as_raw_fd(), bytes, size_of::<Answer>(), flags)
        };
    }
    process::exit_now(0)
}

/// Why the kernel refused to copy, and what to do about it.
pub fn refusal(error: &io::Error) -> (String, String) {
    let yama = limits::setting("/proc/sys/kernel/yama/ptrace_scope");
    let status = limits::setting("/proc/self/status").unwrap_or_default();
    let filtered = status.lines().any(|line| line.starts_with("Seccomp:") && line.ends_with('2'));
    explain(error, yama.and_then(|scope| scope.parse().ok()).unwrap_or(0), filtered)
}

fn explain(error: &io::Error, yama: u32, filtered: bool) -> (String, String) {
    let (reason, remedy) = match (error.raw_os_error(), yama) {
        (Some(libc::ENOSYS), _) if !filtered => (
            "the kernel has no process_vm_readv".to_owned(),
            "use a kernel that was built with CONFIG_CROSS_MEMORY_ATTACH",
        ),
        (Some(libc::EPERM | libc::ENOSYS), _) if filtered => (
            "a seccomp filter refuses process_vm_readv".to_owned(),
            "allow it in the container's profile (docker: --cap-add SYS_PTRACE)",
        ),
        (Some(libc::EPERM), 3) => (
            "kernel.yama.ptrace_scope is 3".to_owned(),
            "boot with a smaller one; 3 cannot be changed while the machine runs",
        ),
        (Some(libc::EPERM), scope @ 1..) => (
            format!("kernel.yama.ptrace_scope is {scope}"),
            "as root: sysctl kernel.yama.ptrace_scope=0",
        ),
        (Some(libc::EPERM), 0) => (
            "the kernel refuses process_vm_readv".to_owned(),
            "run all ranks as the same user in the same namespaces, and not setuid",
        ),
        _ => (error.to_string(), "run all ranks as the same user in the same namespaces"),
    };
    (reason, remedy.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_refused_by_the_kernel() {
        // Allowed or not is the machine's affair; an answer of the kernel it has to be.
        if let Err(error) = probe() {
            assert!(error.raw_os_error().is_some(), "{error}");
        }
    }

    #[test]
    fn each_refusal_has_its_remedy() {
        let refused = |error, yama, filtered| {
            let (reason, remedy) = explain(&io::Error::from_raw_os_error(error), yama, filtered);
            format!("{reason}; {remedy}")
        };
        assert!(refused(libc::EPERM, 1, false).contains("sysctl kernel.yama.ptrace_scope=0"));
        assert!(refused(libc::EPERM, 3, false).contains("boot with"));
        assert!(refused(libc::EPERM, 1, true).contains("seccomp"));
        assert!(refused(libc::EPERM, 0, false).contains("same user"));
        assert!(refused(libc::ENOSYS, 0, false).contains("CONFIG_CROSS_MEMORY_ATTACH"));
        assert!(refused(libc::ENOSYS, 0, true).contains("seccomp"));
    }
}
