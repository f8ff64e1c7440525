//! Memory shared between processes: sealed memory files and their mappings.
//!
//! Never named files, so nothing is left behind; sealed in size, so that no peer can make an
//! access fault; never MAP_NORESERVE, so that huge pages that are not there fail here and not at
//! the first touch.
//!
//! Mappings are made by hand: memmap2 cannot place one in a reservation, which huge pages need, and
//! gives slices, which memory that peers write must not become.

use super::limits::{self, Resource};
use crate::error::{Error, Result};
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Alignment of mappings: the largest page of the machines that Linux runs on.
pub const PAGE: u64 = 65536;
/// The smallest page.
const SMALL_PAGE: usize = 4096;
/// Bytes of a huge page: mappings from this size on are aligned to it.
pub const HUGE_PAGE: u64 = 2 << 20;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Whether `needed` bytes may be promised, while others are about to use `claimed` bytes.
///
/// # Errors
/// [`Error::Memory`] with the figures and the limit.
pub fn check_available(needed: u64, claimed: u64) -> Result<()> {
    let headroom = limits::memory();
    let available = headroom.available.saturating_sub(claimed);
    if needed > available {
        return Err(Error::Memory { needed, available, reason: headroom.limit });
    }
    Ok(())
}

/// Whether the process has memory mapped at all of `len` bytes from `start` on. It looks at
/// mappings: whether their pages are in memory does not matter. (msync would tell in one call, but
/// memory checkers report its range as read.)
pub fn is_mapped(start: *const u8, len: u64) -> bool {
    const PAGES_AT_ONCE: usize = 4096;
    // SAFETY: reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
    let before = start.addr() % page;
    let Some(len) = (len as usize).checked_add(before) else { return false };
    let first = start.wrapping_sub(before).cast_mut();
    let mut resident = [0_u8; PAGES_AT_ONCE];
    (0..len).step_by(PAGES_AT_ONCE * page).all(|at| {
        let part = (len - at).min(PAGES_AT_ONCE * page);
        // SAFETY: mincore touches nothing of the range, and writes a byte for each of its pages,
        // of which there are no more than `resident` has bytes.
        let found =
            unsafe { libc::mincore(first.wrapping_add(at).cast(), part, resident.as_mut_ptr()) };
        found == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOMEM)
    })
}

/// A memory file of `size` bytes, sealed in size. `huge` asks for reserved huge pages, which only
/// the mapping will find missing.
///
/// # Errors
/// Descriptors ran out, or a limit of the process forbids the size.
pub fn create(name: &CStr, size: u64, huge: bool) -> Result<OwnedFd> {
    let fd = file(name, size, if huge { MemfdFlags::HUGETLB } else { MemfdFlags::empty() })?;
    if i64::try_from(size).is_err() {
        let reason = "no file can be larger".to_owned();
        return Err(Error::Memory { needed: size, available: i64::MAX as u64, reason });
    }
    fs::ftruncate(&fd, size).map_err(|error| {
        Error::os(format!("ftruncate of a memory file to {size} bytes"), &error.into())
    })?;
    fs::fcntl_add_seals(&fd, SEALS)
        .map_err(|error| Error::os("sealing a memory file", &error.into()))?;
    Ok(fd)
}

/// A memory file without a byte, which may come to have `size`.
///
/// # Errors
/// Those of [`create`].
pub(super) fn create_unsealed(name: &CStr, size: u64) -> Result<OwnedFd> {
    file(name, size, MemfdFlags::empty())
}

fn file(name: &CStr, size: u64, flags: MemfdFlags) -> Result<OwnedFd> {
    // Beyond this limit ftruncate and write do not fail but kill the process by SIGXFSZ.
    if let Some(limit) = limits::allowed(Resource::FileSize)
        && size > limit
    {
        let reason = "limit of the file size; raise it with ulimit -f".to_owned();
        return Err(Error::Memory { needed: size, available: limit, reason });
    }
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    fs::memfd_create(name, flags).map_err(|error| Error::os("memfd_create", &error.into()))
}

/// Checks that a peer's memory file has at least `size` bytes and can never shrink.
///
/// # Errors
/// It can, or is smaller: accessing it could kill this process.
pub fn check_sealed(fd: BorrowedFd<'_>, size: u64) -> Result<()> {
    if !fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
        return Err(Error::System {
            call: "importing memory of a peer".to_owned(),
            reason: "it is not sealed against shrinking".to_owned(),
        });
    }
    let found = fs::fstat(fd).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    if found < size {
        return Err(Error::System {
            call: "importing memory of a peer".to_owned(),
            reason: format!("it has {found} bytes instead of {size}"),
        });
    }
    Ok(())
}

/// Whether this process has addresses left for a mapping of so many bytes.
pub(crate) fn has_addresses(bytes: u64) -> bool {
    let Ok(len) = usize::try_from(bytes.saturating_add(HUGE_PAGE)) else { return false };
    // SAFETY: a fresh anonymous mapping without access, which nobody else knows.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let found = libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0);
        found != libc::MAP_FAILED && libc::munmap(found, len) == 0
    }
}

/// Gives back the memory of a part of a memory file, which reads as zeroes from then on. Where the
/// kernel refuses that, it stays as long as the file.
pub(crate) fn give_back(file: BorrowedFd<'_>, offset: u64, bytes: u64) {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(error) = fs::fallocate(file, how, offset, bytes) {
        log::debug!("memory of {bytes} bytes stays with its file: {error}");
    }
}

/// A shared mapping of a part of a memory file.
#[derive(Debug)]
pub struct Mapping {
    address: *mut u8,
    len: usize,
    /// The mapping that it is a part of, which unmaps it.
    whole: Option<Arc<Mapping>>,
}

// SAFETY: a mapping is an address range that belongs to the process; what is in it is only reached
// through raw pointers and atomics.
unsafe impl Send for Mapping {}
// SAFETY: shared by copies.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes at `offset`. From the size of a huge page on the address is aligned to one,
    /// and the kernel is asked for huge pages.
    ///
    /// # Errors
    /// There is no room, or no reserved huge page.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Mapping> {
        let invalid = || io::Error::from_raw_os_error(libc::ENOMEM);
        let len = usize::try_from(len).map_err(|_| invalid())?;
        let offset = libc::off_t::try_from(offset).map_err(|_| invalid())?;
        let align = if len as u64 >= HUGE_PAGE { HUGE_PAGE as usize } else { PAGE as usize };
        let room = len.next_multiple_of(PAGE as usize).checked_add(align).ok_or_else(invalid)?;
        // A reservation with room to align in; the real mapping then replaces a part of it.
        // SAFETY: a fresh anonymous mapping without access.
        let reserved = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), room, libc::PROT_NONE, flags, -1, 0)
        };
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = reserved as usize;
        let address = start.next_multiple_of(align);
        let end = address + len.next_multiple_of(PAGE as usize);
        let unmap = |from: usize, to: usize| {
            if to > from {
                // SAFETY: the range lies in our own reservation and is not used.
                unsafe { libc::munmap(from as *mut libc::c_void, to - from) };
            }
        };
        // SAFETY: MAP_FIXED replaces pages of our own reservation only.
        let mapped = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            libc::mmap(address as *mut _, len, access, flags, fd.as_raw_fd(), offset)
        };
        if mapped == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // A mapping that failed may have removed what it should have replaced, and another
            // thread may be there by now: the middle of the reservation is given up.
            unmap(start, address);
            unmap(end, start + room);
            return Err(error);
        }
        unmap(start, address);
        unmap(end, start + room);
        if len as u64 >= HUGE_PAGE {
            // SAFETY: the range is mapped; the advice changes no contents and may be refused.
            unsafe { libc::madvise(mapped, len, libc::MADV_HUGEPAGE) };
        }
        Ok(Mapping { address: mapped.cast(), len, whole: None })
    }

    /// Maps reserved huge pages, which the kernel aligns itself.
    ///
    /// # Errors
    /// There are none.
    pub fn huge(fd: BorrowedFd<'_>, len: u64) -> io::Result<Mapping> {
        let len = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { address: mapped.cast(), len, whole: None })
    }

    /// Leaves it out of core dumps, which would put a page into each hole of a sparse file.
    pub fn keep_from_core_dumps(&self) {
        // SAFETY: the range is mapped; the advice changes no contents and may be refused.
        unsafe { libc::madvise(self.address.cast(), self.len, libc::MADV_DONTDUMP) };
    }

    /// A part of another mapping, which stays mapped as long.
    ///
    /// # Panics
    /// The other one does not have these bytes.
    pub fn part(whole: &Arc<Mapping>, offset: u64, len: u64) -> Mapping {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= whole.len as u64), "a part of the mapping");
        let address = whole.address.wrapping_add(offset as usize);
        Mapping { address, len: len as usize, whole: Some(Arc::clone(whole)) }
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Touches every page for writing from the calling thread, so that placement is the caller's.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn populate(&self) -> io::Result<()> {
        const MADV_POPULATE_WRITE: libc::c_int = 23;
        // SAFETY: the range is mapped and belongs to this mapping.
        if unsafe { libc::madvise(self.address.cast(), self.len, MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        // Kernels before 5.14: a fresh memory file reads as zero, so storing zero is the same.
        for offset in (0..self.len).step_by(SMALL_PAGE) {
            // SAFETY: inside of the mapping; nobody else knows this memory yet.
            unsafe { self.address.add(offset).write_volatile(0) };
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.whole.is_some() {
            return;
        }
        // SAFETY: the range was mapped by `new`, and neither anything nor a part of it is used any
        // more.
        unsafe { libc::munmap(self.address.cast(), self.len.next_multiple_of(PAGE as usize)) };
    }
}

/// Memory for a segment in a file that it shares with others.
#[derive(Debug)]
pub struct Room {
    /// The file.
    pub file: Arc<OwnedFd>,
    /// A mapping of the file that has it.
    pub mapping: Arc<Mapping>,
    /// Where it begins there.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_memory_file_is_sealed_and_shared() {
        let fd = create(c"test", 2 * PAGE, false).expect("memory file");
        check_sealed(fd.as_fd(), 2 * PAGE).expect("sealed");
        assert!(check_sealed(fd.as_fd(), 2 * PAGE + 1).is_err());
        let one = Mapping::new(fd.as_fd(), 0, 2 * PAGE).expect("mapping");
        let two = Mapping::new(fd.as_fd(), PAGE, PAGE).expect("mapping");
        // SAFETY: both addresses are mapped.
        unsafe { one.as_ptr().add(PAGE as usize).write_volatile(7) };
        // SAFETY: kept alive. `two` maps the page that was written.
        assert_eq!(unsafe { two.as_ptr().read_volatile() }, 7);
        // SAFETY: the descriptor is open.
        assert_ne!(unsafe { libc::ftruncate(fd.as_raw_fd(), 0) }, 0, "the size is sealed");
    }

    #[test]
    fn large_mappings_are_aligned_to_huge_pages() {
        let fd = create(c"test", 4 << 20, false).expect("memory file");
        let mapping = Mapping::new(fd.as_fd(), 0, 3 << 20).expect("mapping");
        assert_eq!(mapping.as_ptr() as u64 % HUGE_PAGE, 0);
    }

    #[test]
    fn a_part_keeps_the_whole_mapped() {
        let fd = create(c"test", 4 * PAGE, false).expect("memory file");
        let whole = Arc::new(Mapping::new(fd.as_fd(), PAGE, 3 * PAGE).expect("mapping"));
        let part = Mapping::part(&whole, PAGE, PAGE);
        let again = Mapping::new(fd.as_fd(), 2 * PAGE, PAGE).expect("mapping");
        drop(Mapping::part(&whole, PAGE, 2 * PAGE));
        drop(whole);
        // SAFETY: both are mapped, and nobody else knows this memory.
        unsafe { part.as_ptr().write_volatile(7) };
        // SAFETY: the page that was written, in a mapping of its own.
        assert_eq!(unsafe { again.as_ptr().read_volatile() }, 7);
    }

    #[test]
    fn memory_beyond_the_machine_is_refused_with_figures() {
        let error = check_available(1 << 60, 0).expect_err("no machine has an exabyte");
        assert!(matches!(error, Error::Memory { needed, .. } if needed == 1 << 60), "{error}");
    }
}
