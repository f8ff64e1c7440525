//! Memory that nobody can change: files that are written once, sealed, and mapped for reading.
//!
//! Unlike what [`super::memory`] maps, this is a slice: the seals forbid writing, shrinking and
//! growing to all processes, the one included that made the file.

use super::memory;
use crate::error::{Error, Result};
use rustix::fs::{self, SealFlags};
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// A memory file with these bytes, which nobody can change any more.
///
/// # Errors
/// Descriptors or memory ran out, or a limit of the process forbids the size.
pub fn create(name: &CStr, bytes: &[u8]) -> Result<OwnedFd> {
    let mut file = File::from(memory::create_unsealed(name, bytes.len() as u64)?);
    file.write_all(bytes).map_err(|error| Error::os("writing a memory file", &error))?;
    fs::fcntl_add_seals(&file, SEALS.union(SealFlags::SEAL))
        .map_err(|error| Error::os("sealing a memory file", &error.into()))?;
    Ok(file.into())
}

/// A memory file that was [created](create) here or in another process, mapped for reading.
#[derive(Debug)]
pub struct SealedMapping {
    address: *const u8,
    len: usize,
}

// SAFETY: an address range that belongs to the process, whose bytes never change.
unsafe impl Send for SealedMapping {}
// SAFETY: its bytes never change.
unsafe impl Sync for SealedMapping {}

impl SealedMapping {
    /// Maps all of `fd`, which can then be closed.
    ///
    /// # Errors
    /// It is not sealed, or there is no room.
    pub fn new(fd: BorrowedFd<'_>) -> Result<SealedMapping> {
        if !fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(Error::System {
                call: "mapping a sealed memory file".to_owned(),
                reason: "it is not sealed against changes".to_owned(),
            });
        }
        let mapping = |error: &io::Error| Error::os("mapping a sealed memory file", error);
        let size = fs::fstat(fd).map_err(|error| mapping(&error.into()))?.st_size;
        let len = usize::try_from(size).unwrap_or_default();
        // Private: kernels before 6.7 take a shared mapping of such a file for one that could be
        // made writable. Pages that nobody writes are the same either way, those of the file.
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe {
            let (access, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
            libc::mmap(std::ptr::null_mut(), len, access, flags, fd.as_raw_fd(), 0)
        };
        if mapped == libc::MAP_FAILED {
            let (what, error) = ("mapping a sealed memory file", io::Error::last_os_error());
            return Err(Error::mapping(what, len as u64, &error));
        }
        Ok(SealedMapping { address: mapped.cast_const().cast(), len })
    }
}

impl Deref for SealedMapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped for as long as the value lives. The seals were checked: the file has this
        // size for ever, and nobody can write to it, nor to this mapping.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }
}

impl Drop for SealedMapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and borrows of it have ended.
        unsafe { libc::munmap(self.address.cast_mut().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_sealed_cannot_be_changed() {
        let fd = create(c"test", b"for ever").expect("memory file");
        let mapping = SealedMapping::new(fd.as_fd()).expect("mapping");
        assert_eq!(&*mapping, b"for ever");
        let raw = fd.as_raw_fd();
        // SAFETY: the buffer is a constant.
        assert_eq!(unsafe { libc::pwrite(raw, b"n".as_ptr().cast(), 1, 0) }, -1, "written");
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::ftruncate(raw, 0) }, -1, "shrunk");
        // SAFETY: the same.
        assert_eq!(unsafe { libc::ftruncate(raw, 4096) }, -1, "grown");
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let writable =
            unsafe { libc::mmap(std::ptr::null_mut(), 8, access, libc::MAP_SHARED, raw, 0) };
        assert_eq!(writable, libc::MAP_FAILED);
        drop(fd);
        assert_eq!(&*mapping, b"for ever");
    }

    #[test]
    fn what_is_not_sealed_is_not_mapped() {
        let whole = memory::create_unsealed(c"test", 8).expect("memory file");
        let of_size = memory::create(c"test", 8, false).expect("memory file");
        let missing: OwnedFd = File::open("/dev/zero").expect("a file").into();
        for fd in [whole, of_size, missing] {
            let error = SealedMapping::new(fd.as_fd()).expect_err("it can change");
            assert!(error.to_string().contains("not sealed against changes"), "{error}");
        }
    }
}
