//! Copying from and to the memory of another process without its help (process_vm_readv/writev).

use std::io;

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
