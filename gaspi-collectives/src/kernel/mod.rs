//! Access to user data: copying, and combining elements of several sources. With the two types for
//! memory, [`Source`] and [`Target`], it holds most of the `unsafe` of the crate.

mod chunk;
mod combine;
mod divide;
mod environment;
mod halves;
mod memory;
mod reduce;
pub(crate) mod stage;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::marker::PhantomData;

use gaspi_core::PeerSlice;

pub use divide::divide;
pub(crate) use memory::{Buffer, post_receive, pull, push, send};
pub use reduce::{accumulate, average, fold, instruction_set};

/// Memory to read from: pointer and length, no reference, because a peer may write to it at
/// another time.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    start: *const u8,
    len: usize,
    lifetime: PhantomData<&'a u8>,
}

/// Memory to write to (and to read from).
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    start: *mut u8,
    len: usize,
    lifetime: PhantomData<&'a u8>,
}

impl<'a> Source<'a> {
    /// `len` bytes from `start`, of any alignment.
    ///
    /// # Safety
    /// The bytes stay readable for `'a`. Other writes to them are ordered with the reads
    /// through this value, as in proved steps.
    pub unsafe fn new(start: *const u8, len: usize) -> Source<'a> {
        Source { start, len, lifetime: PhantomData }
    }

    /// Bytes of this memory that nobody writes to.
    pub fn of(bytes: &'a [u8]) -> Source<'a> {
        Source { start: bytes.as_ptr(), len: bytes.len(), lifetime: PhantomData }
    }

    /// Bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `offset` on. Panics when they are not all inside.
    pub fn part(self, offset: u64, len: u64) -> Source<'a> {
        let (offset, len) = inside(self.len, offset, len);
        // SAFETY: `inside` checked that the offset is not beyond the end of the same memory.
        Source { start: unsafe { self.start.add(offset) }, len, lifetime: PhantomData }
    }
}

impl<'a> Target<'a> {
    /// `len` bytes from `start`, of any alignment.
    ///
    /// # Safety
    /// The bytes stay readable and writable for `'a`. Other accesses to them are ordered
    /// with those through this value, as in proved steps.
    pub unsafe fn new(start: *mut u8, len: usize) -> Target<'a> {
        Target { start, len, lifetime: PhantomData }
    }

    /// Staging, which gaspi-core keeps mapped for as long as the slice's borrow.
    pub(crate) fn of_peer(slice: PeerSlice<'a>) -> Target<'a> {
        Target { start: slice.as_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// Memory that gaspi-core keeps mapped, for which the caller is to see that it stays so.
    pub(crate) fn of_shared(slice: &PeerSlice<'_>) -> Target<'static> {
        Target { start: slice.as_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// These bytes, which no other thread sees.
    pub fn of(bytes: &'a mut [u8]) -> Target<'a> {
        Target { start: bytes.as_mut_ptr(), len: bytes.len(), lifetime: PhantomData }
    }

    /// Bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `offset` on. Panics when they are not all inside.
    #[inline(always)]
    pub fn part(self, offset: u64, len: u64) -> Target<'a> {
        let (offset, len) = inside(self.len, offset, len);
        // SAFETY: `inside` checked that the offset is not beyond the end of the same memory.
        Target { start: unsafe { self.start.add(offset) }, len, lifetime: PhantomData }
    }

    /// The same memory to read from.
    pub fn source(self) -> Source<'a> {
        Source { start: self.start, len: self.len, lifetime: PhantomData }
    }
}

#[inline(always)]
fn inside(size: usize, offset: u64, len: u64) -> (usize, usize) {
    let end = offset.checked_add(len);
    assert!(
        end.is_some_and(|end| end <= size as u64),
        "{len} bytes at {offset} are not inside of {size} bytes"
    );
    // Both are at most `size`, which is a usize.
    (offset as usize, len as usize)
}

/// Copies all of `src`, which has the length of `dst`.
#[inline(always)]
pub fn copy(dst: Target<'_>, src: Source<'_>) {
    assert_eq!(dst.len, src.len, "a copy needs as many bytes as it fills");
    // SAFETY: both are valid for their length by the promise of their makers; `ptr::copy` allows
    // that they overlap.
    unsafe { std::ptr::copy(src.start, dst.start, src.len) };
}

/// Prefetches the cache lines of `src`.
pub(crate) fn prefetch(src: Source<'_>) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..src.len).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program could see and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(src.start.wrapping_add(offset).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = src;
}

#[cfg(test)]
mod tests;
