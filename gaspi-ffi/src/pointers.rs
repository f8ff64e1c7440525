//! Pointers that a C program passed, checked once and used through safe methods.

use crate::error::{Failure, Outcome};
use std::ptr::NonNull;

/// An out-argument that is not NULL.
#[derive(Debug)]
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Checks the argument `name`.
    ///
    /// # Safety
    /// `pointer` is NULL or may be written for as long as the result lives.
    #[inline]
    pub(crate) unsafe fn new(pointer: *mut T, name: &'static str) -> Result<Out<T>, Failure> {
        NonNull::new(pointer).map(Out).ok_or(Failure::Null(name))
    }

    /// An argument that may be NULL.
    ///
    /// # Safety
    /// As [`new`](Out::new).
    #[inline(always)]
    pub(crate) unsafe fn wanted(pointer: *mut T) -> Option<Out<T>> {
        NonNull::new(pointer).map(Out)
    }

    /// Writes the value.
    #[inline]
    pub(crate) fn set(self, value: T) {
        // SAFETY: `new` was promised that it may be written; C does not promise alignment.
        unsafe { self.0.write_unaligned(value) }
    }

    /// Writes the value as the last thing that a procedure does. `out!(x).give(f()?)` looks at the
    /// argument before it calls `f`.
    #[inline]
    pub(crate) fn give(self, value: T) -> Outcome {
        self.set(value);
        Ok(())
    }

    /// Writes several values, of which there have to be as many as the program made room for.
    pub(crate) fn fill(self, values: impl IntoIterator<Item = T>) {
        for (index, value) in values.into_iter().enumerate() {
            // SAFETY: `new` was promised that it may be written, and the header tells the program
            // how many values there are.
            unsafe { self.0.add(index).write_unaligned(value) }
        }
    }
}

/// A list argument as a slice.
///
/// # Safety
/// `pointer` is NULL or points to `count` elements that nobody changes during `'a`, and `U` has
/// the layout of `T`.
#[inline]
pub(crate) unsafe fn list<'a, T, U>(
    pointer: *const T,
    count: u32,
    name: &'static str,
) -> Result<&'a [U], Failure> {
    const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
    if pointer.is_null() {
        return Err(Failure::Null(name));
    }
    if !pointer.is_aligned() {
        return Err(Failure::Rejected(format!("{name} is not aligned to its elements")));
    }
    // SAFETY: it is neither NULL nor misaligned, and by the contract of this function it points to
    // `count` elements that nobody changes during `'a`.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast::<U>(), count as usize) })
}
