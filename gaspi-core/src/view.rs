//! Segments of this rank as arrays of numbers, for Rust programs.
//!
//! Other ranks may write a segment at any time, so nothing here hands out Rust references safely:
//! elements are copied in and out. Which elements are stable at what time is agreed by
//! notifications and barriers, as in C.

use crate::error::{Error, Result};
use crate::ids::SegmentId;
use crate::runtime::Runtime;
use crate::segment::Segment;
use crate::sync::epoch;
use bytemuck::Pod;
use std::marker::PhantomData;

/// A segment of this rank as an array of `T`, from [`Runtime::view`].
///
/// Every access looks the segment up: one that was deleted meanwhile is an error, not a fault.
///
/// ```
/// # use gaspi_core::{Config, GroupId, Init, Job, PendingInit, SegmentId, Timeout};
/// # fn main() -> gaspi_core::Result<()> {
/// # let rank = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
/// rank.segment_alloc(SegmentId(3), 1024, Init::Zeroed)?;
/// let field = rank.view::<f64>(SegmentId(3))?;
/// assert_eq!(field.len(), 128);
/// field.write(10, &[1.5, 2.5])?;
/// assert_eq!(field.get(11)?, 2.5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct View<'r, T> {
    runtime: &'r Runtime,
    segment: SegmentId,
    generation: u32,
    len: usize,
    _element: PhantomData<T>,
}

impl<T: Pod> View<'_, T> {
    /// Elements that fit into the segment.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether not even one element fits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Calls `access` with the address of element `first` while the segment cannot be freed.
    fn with<R>(&self, first: usize, count: usize, access: impl FnOnce(*mut T) -> R) -> Result<R> {
        if first > self.len || count > self.len - first {
            let reason = format!("{count} elements from {first} on, of {} in the view", self.len);
            return Err(Error::Size { size: (count * size_of::<T>()) as u64, reason });
        }
        let inside = epoch::enter();
        let inner = self.runtime.inner();
        let found = inner.local(self.segment, &inside)?;
        if found.generation != self.generation {
            return Err(inner.no_segment(self.segment));
        }
        Ok(access(found.pointer().cast::<T>().wrapping_add(first)))
    }

    /// Element `index`.
    ///
    /// # Errors
    /// [`Error::Size`] beyond the end, [`Error::InvalidSegment`] after the delete.
    pub fn get(&self, index: usize) -> Result<T> {
        let mut value = T::zeroed();
        self.read(index, std::slice::from_mut(&mut value))?;
        Ok(value)
    }

    /// Stores element `index`.
    ///
    /// # Errors
    /// As [`get`](View::get).
    pub fn set(&self, index: usize, value: T) -> Result<()> {
        self.write(index, &[value])
    }

    /// Copies elements from `first` on out of the segment.
    ///
    /// # Errors
    /// As [`get`](View::get).
    pub fn read(&self, first: usize, to: &mut [T]) -> Result<()> {
        self.with(first, to.len(), |pointer| {
            let bytes = std::mem::size_of_val(to);
            // SAFETY: inside of the segment, which exists while `with` runs. Copied as bytes, since
            // bound memory may be unaligned; every bit pattern is a T.
            unsafe { std::ptr::copy(pointer.cast::<u8>(), to.as_mut_ptr().cast(), bytes) }
        })
    }

    /// Copies elements into the segment, from `first` on.
    ///
    /// # Errors
    /// As [`get`](View::get).
    pub fn write(&self, first: usize, from: &[T]) -> Result<()> {
        self.with(first, from.len(), |pointer| {
            let bytes = std::mem::size_of_val(from);
            // SAFETY: as in `read`.
            unsafe { std::ptr::copy(from.as_ptr().cast(), pointer.cast::<u8>(), bytes) }
        })
    }

    /// The elements in place, without a copy.
    ///
    /// # Errors
    /// As [`get`](View::get); [`Error::Unaligned`] if bound memory is not aligned for `T`.
    ///
    /// # Safety
    /// While the slice lives, nobody writes to the segment: no rank of the job, no other thread. It
    /// is not deleted either.
    pub unsafe fn as_slice(&self) -> Result<&[T]> {
        let pointer = self.aligned()?;
        // SAFETY: aligned, inside of the segment, and the caller promises that nobody writes.
        Ok(unsafe { std::slice::from_raw_parts(pointer, self.len) })
    }

    /// The elements in place, for writing.
    ///
    /// # Errors
    /// As [`as_slice`](View::as_slice).
    ///
    /// # Safety
    /// While the slice lives, nobody else reads or writes the segment, and it is not deleted.
    #[allow(clippy::mut_from_ref, reason = "exclusive use is what the caller promises")]
    pub unsafe fn as_mut_slice(&self) -> Result<&mut [T]> {
        let pointer = self.aligned()?;
        // SAFETY: aligned, inside of the segment, and the caller promises exclusive use.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, self.len) })
    }

    fn aligned(&self) -> Result<*mut T> {
        let pointer = self.with(0, self.len, |pointer| pointer)?;
        if pointer.is_aligned() { Ok(pointer) } else { Err(Error::Unaligned { offset: 0 }) }
    }
}

impl Runtime {
    /// A segment of this rank as an array of `T`.
    ///
    /// # Errors
    /// [`Error::InvalidSegment`].
    pub fn view<T: Pod>(&self, segment: SegmentId) -> Result<View<'_, T>> {
        let inside = epoch::enter();
        let Segment { generation, size, .. } = self.inner().local(segment, &inside)?;
        // Types without a size have no elements to speak of.
        let len = (*size as usize).checked_div(size_of::<T>()).unwrap_or(0);
        Ok(View { runtime: self, segment, generation: *generation, len, _element: PhantomData })
    }
}
