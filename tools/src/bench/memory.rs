//! Memory that the benchmark touches without the library: of segments, and mapped by several ranks
//! for the limits. The protocol of each test orders the accesses of several writers.

use crate::failure::{Failure, Result};
use crate::system;
use std::fs::File;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes that cores hand over at once.
pub(crate) const LINE: usize = 64;
/// Distance of words that are to travel alone: lines are fetched in pairs.
pub(crate) const APART: usize = 4 * LINE;
pub(crate) const PAGE: usize = 4096;

/// A stretch of memory that outlives `'a`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Region<'a> {
    base: *mut u8,
    size: usize,
    owner: PhantomData<&'a ()>,
}

/// A word at any address, as sizes that are no multiple of 8 have one at their end.
#[repr(C, packed)]
struct UnalignedWord(u64);

// SAFETY: a region is an address; every access goes through atomics or is kept in step by the
// protocol of a test, between threads as between processes.
unsafe impl Send for Region<'_> {}
// SAFETY: a shared region gives no other access than an owned one: atomics, or the protocol of a
// test that keeps threads in step.
unsafe impl Sync for Region<'_> {}

impl<'a> Region<'a> {
    /// # Safety
    /// The memory has to stay mapped for `'a`.
    pub(crate) unsafe fn new(base: *mut u8, size: usize) -> Region<'a> {
        Region { base, size, owner: PhantomData }
    }

    pub(crate) fn part(self, offset: usize, size: usize) -> Region<'a> {
        assert!(offset <= self.size && size <= self.size - offset, "part of a region");
        Region { base: self.base.wrapping_add(offset), size, owner: PhantomData }
    }

    pub(crate) fn address(self) -> *mut u8 {
        self.base
    }

    pub(crate) fn size(self) -> usize {
        self.size
    }

    /// A word that several may change.
    pub(crate) fn word(self, offset: usize) -> &'a AtomicU64 {
        let place = self.part(offset, 8).base.cast::<AtomicU64>();
        assert!(place.is_aligned(), "words are aligned");
        // SAFETY: mapped for 'a, aligned, and zeroes or anything else is a valid value.
        unsafe { &*place }
    }

    /// A word that processes can sleep on.
    pub(crate) fn word32(self, offset: usize) -> &'a AtomicU32 {
        let place = self.part(offset, 4).base.cast::<AtomicU32>();
        assert!(place.is_aligned(), "words are aligned");
        // SAFETY: mapped for 'a, aligned, and zeroes or anything else is a valid value.
        unsafe { &*place }
    }

    /// memcpy, as the C library has it.
    #[inline(always)]
    pub(crate) fn copy(self, offset: usize, to: Region<'_>, to_offset: usize, size: usize) {
        assert!(offset + size <= self.size && to_offset + size <= to.size, "copy within regions");
        let (source, target) = (self.base.wrapping_add(offset), to.base.wrapping_add(to_offset));
        if size == 8 {
            // SAFETY: in range; the target may be unaligned.
            unsafe { target.cast::<u64>().write_unaligned(source.cast::<u64>().read_unaligned()) };
            return;
        }
        // SAFETY: both ranges are mapped; the regions belong to different mappings or halves.
        unsafe { std::ptr::copy_nonoverlapping(source, target, size) };
    }

    /// Copies bytes into the region.
    pub(crate) fn put(self, offset: usize, bytes: &[u8]) {
        let part = self.part(offset, bytes.len());
        // SAFETY: in range, and apart from the bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), part.base, bytes.len()) };
    }

    /// Copies bytes out of the region.
    pub(crate) fn get(self, offset: usize, size: usize) -> Vec<u8> {
        let (part, mut bytes) = (self.part(offset, size), vec![0; size]);
        // SAFETY: in range, and apart from the bytes.
        unsafe { std::ptr::copy_nonoverlapping(part.base, bytes.as_mut_ptr(), size) };
        bytes
    }

    /// The last 8 bytes of a stretch.
    #[inline(always)]
    pub(crate) fn last(self, offset: usize, size: usize) -> u64 {
        assert!(size >= 8 && offset + size <= self.size, "last word within the region");
        let place = self.base.wrapping_add(offset + size - 8).cast::<UnalignedWord>();
        // SAFETY: in range, and the type needs no alignment. Volatile: the peer wrote it.
        unsafe { place.read_volatile().0 }
    }

    /// Sets the last 8 bytes of a stretch.
    #[inline(always)]
    pub(crate) fn set_last(self, offset: usize, size: usize, value: u64) {
        assert!(size >= 8 && offset + size <= self.size, "last word within the region");
        let place = self.base.wrapping_add(offset + size - 8).cast::<UnalignedWord>();
        // SAFETY: in range, and the type needs no alignment. Volatile: the peer reads it.
        unsafe { place.write_volatile(UnalignedWord(value)) };
    }

    /// Reads all of a stretch: the sum of its words.
    pub(crate) fn sum(self, offset: usize, size: usize) -> u64 {
        let part = self.part(offset, size);
        // SAFETY: in range; nobody writes it before this rank says that it has been read.
        unsafe { sum_words(part.base.cast::<u64>(), size / 8) }
    }

    /// `self += other`, in floats.
    pub(crate) fn add_floats(self, other: Region<'_>, size: usize) {
        let (sum, term) = (self.part(0, size), other.part(0, size));
        // SAFETY: in range, different regions, and all bits are valid floats.
        unsafe { add_floats(sum.base.cast::<f32>(), term.base.cast::<f32>(), size / 4) }
    }

    /// Writes a pattern that depends on `seed` and on the place.
    pub(crate) fn fill(self, offset: usize, size: usize, seed: u64) {
        let part = self.part(offset, size);
        for at in 0..size {
            // SAFETY: in range.
            unsafe { part.base.add(at).write(pattern(seed, at)) };
        }
    }

    /// Number of bytes that are not those of the pattern.
    pub(crate) fn errors(self, offset: usize, size: usize, seed: u64) -> u64 {
        let part = self.part(offset, size);
        // SAFETY: in range; its writer has been waited for.
        (0..size).filter(|at| unsafe { part.base.add(*at).read() } != pattern(seed, *at)).count()
            as u64
    }

    /// Makes the kernel provide every page.
    pub(crate) fn touch(self) {
        for offset in (0..self.size).step_by(PAGE) {
            // SAFETY: in range.
            unsafe { self.base.add(offset).write_volatile(0) };
        }
    }
}

/// Neighbouring bytes differ, and so do neighbouring seeds and pages.
fn pattern(seed: u64, at: usize) -> u8 {
    let mixed = (seed ^ at as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (8 * (at % 8))) as u8 ^ at as u8
}

/// Compiles a loop for the vector units that the machine has.
macro_rules! with_vectors {
    ($name:ident, $inner:ident, ($($argument:ident: $kind:ty),*) $(-> $result:ty)?) => {
        unsafe fn $name($($argument: $kind),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
                unsafe fn widest($($argument: $kind),*) $(-> $result)? {
                    // SAFETY: by the contract of the caller.
                    unsafe { $inner($($argument),*) }
                }
                #[target_feature(enable = "avx2")]
                unsafe fn wide($($argument: $kind),*) $(-> $result)? {
                    // SAFETY: by the contract of the caller.
                    unsafe { $inner($($argument),*) }
                }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                {
                    // SAFETY: the machine has them; the rest by the contract of the caller.
                    return unsafe { widest($($argument),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the machine has them; the rest by the contract of the caller.
                    return unsafe { wide($($argument),*) };
                }
            }
            // SAFETY: by the contract of the caller.
            unsafe { $inner($($argument),*) }
        }
    };
}

with_vectors!(sum_words, sum_words_plain, (words: *const u64, count: usize) -> u64);
with_vectors!(add_floats, add_floats_plain, (sum: *mut f32, term: *const f32, count: usize));

#[inline(always)]
unsafe fn sum_words_plain(words: *const u64, count: usize) -> u64 {
    let mut sums = [0u64; 32];
    let whole = count / 32;
    for block in 0..whole {
        for (lane, sum) in sums.iter_mut().enumerate() {
            // SAFETY: below `count`.
            *sum = sum.wrapping_add(unsafe { words.add(block * 32 + lane).read_unaligned() });
        }
    }
    for at in whole * 32..count {
        // SAFETY: below `count`.
        sums[0] = sums[0].wrapping_add(unsafe { words.add(at).read_unaligned() });
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

#[inline(always)]
unsafe fn add_floats_plain(sum: *mut f32, term: *const f32, count: usize) {
    for at in 0..count {
        // SAFETY: below `count`; the ranges do not overlap.
        unsafe { *sum.add(at) += *term.add(at) };
    }
}

/// Memory that ranks map together, without the library.
#[derive(Debug)]
pub(crate) struct Shared {
    base: *mut u8,
    size: usize,
}

// SAFETY: as Region.
unsafe impl Send for Shared {}
// SAFETY: as Region.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn map(file: &File, size: usize) -> Result<Shared> {
        let base = system::map(file, size).map_err(|error| {
            Failure::run(format!("cannot map {size} bytes of memory for the limits: {error}"))
        })?;
        Ok(Shared { base, size })
    }

    pub(crate) fn region(&self) -> Region<'_> {
        // SAFETY: mapped until drop, which the lifetime precedes.
        unsafe { Region::new(self.base, self.size) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: regions do not outlive this value.
        unsafe { system::unmap(self.base, self.size) };
    }
}

/// Offsets of the buffers that operations go through, one after another and round again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rotation {
    pub(crate) size: usize,
    stride: usize,
    /// Bytes of all buffers.
    pub(crate) total: usize,
    next: usize,
}

impl Rotation {
    /// The same buffer every time.
    pub(crate) fn warm(size: usize) -> Rotation {
        let stride = size.next_multiple_of(LINE);
        Rotation { size, stride, total: stride, next: 0 }
    }

    /// So many that they have left the caches when they come again.
    pub(crate) fn cold(size: usize, span: usize) -> Rotation {
        let stride = size.next_multiple_of(LINE);
        Rotation { size, stride, total: (span / stride).max(2) * stride, next: 0 }
    }

    /// The same buffers, beginning with another one: what went through them at the same time shall
    /// not have brought them into the caches.
    pub(crate) fn beginning(mut self, lane: usize) -> Rotation {
        let buffers = self.total / self.stride;
        // Of five lanes no two begin closer than a seventh of the round.
        self.next = lane * buffers * 5 / 13 % buffers * self.stride;
        self
    }

    #[inline(always)]
    pub(crate) fn offset(&mut self) -> usize {
        let now = self.next;
        let next = now + self.stride;
        self.next = if next >= self.total { 0 } else { next };
        now
    }
}

/// Publishes what was written before; pairs with `wanted`.
#[inline(always)]
pub(crate) fn publish(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
}

/// Whether the word has been published with this value.
#[inline(always)]
pub(crate) fn wanted(word: &AtomicU64, value: u64) -> bool {
    word.load(Ordering::Acquire) == value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_an_error() {
        let mut bytes = vec![0u8; 1000];
        // SAFETY: the vector lives to the end of the test.
        let region = unsafe { Region::new(bytes.as_mut_ptr(), bytes.len()) };
        region.fill(8, 900, 7);
        assert_eq!(region.errors(8, 900, 7), 0);
        for at in [8, 9, 500, 907] {
            // SAFETY: in range.
            unsafe { *region.address().add(at) ^= 1 };
        }
        assert_eq!(region.errors(8, 900, 7), 4);
        // Data of the round before, and data that is shifted, are found.
        region.fill(8, 900, 7);
        assert!(region.errors(8, 900, 8) > 800);
        assert!(region.errors(16, 800, 7) > 700);
    }

    #[test]
    fn the_last_word_may_lie_anywhere() {
        let mut words = [0u64; 4];
        // SAFETY: the array lives to the end of the test.
        let region = unsafe { Region::new(words.as_mut_ptr().cast(), 32) };
        for size in 8..=32 {
            region.set_last(0, size, 0x0102_0304_0506_0708);
            assert_eq!(region.last(0, size), 0x0102_0304_0506_0708, "{size} bytes");
        }
    }

    #[test]
    fn sums_read_everything() {
        let mut words: Vec<u64> = (0..1003).collect();
        // SAFETY: the vector lives to the end of the test.
        let region = unsafe { Region::new(words.as_mut_ptr().cast(), 8 * words.len()) };
        assert_eq!(region.sum(0, 8 * 1003), 1002 * 1003 / 2);
        assert_eq!(region.sum(8, 8 * 2), 3);
    }

    #[test]
    fn rotations_come_round() {
        let mut cold = Rotation::cold(100, 400);
        let offsets: Vec<usize> = (0..4).map(|_| cold.offset()).collect();
        assert_eq!((offsets, cold.total), (vec![0, 128, 256, 0], 384));
        let mut begins: Vec<usize> =
            (0..5).map(|lane| Rotation::cold(64, 6400).beginning(lane).offset() / 64).collect();
        begins.sort_unstable();
        assert!(begins.windows(2).all(|pair| pair[1] - pair[0] >= 14), "{begins:?}");
        let mut warm = Rotation::warm(8).beginning(3);
        assert_eq!((warm.offset(), warm.offset(), warm.total), (0, 0, 64));
    }
}
