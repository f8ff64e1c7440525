//! Memory of an operation, owned or borrowed.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::datatype::Element;

/// Memory that an operation reads or writes: a vector or a box that it owns, or a slice that it
/// borrows.
#[derive(Debug)]
pub struct Operand<'b, T> {
    // An address, since a box or a reference would claim that nobody else uses the memory.
    start: NonNull<T>,
    len: usize,
    owned: bool,
    borrow: PhantomData<&'b mut [T]>,
}

// SAFETY: an operand is a box or a unique reference, both of which may be sent where `T` may.
unsafe impl<T: Send> Send for Operand<'_, T> {}
// SAFETY: a shared operand gives out shared references only.
unsafe impl<T: Sync> Sync for Operand<'_, T> {}

impl<'b, T> Operand<'b, T> {
    /// No memory.
    pub(super) const fn empty() -> Operand<'b, T> {
        Operand { start: NonNull::dangling(), len: 0, owned: false, borrow: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    pub(super) fn address(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    /// The elements. No operation that uses them is active.
    pub(super) fn as_slice(&self) -> &[T] {
        // SAFETY: valid for as long as the operand; nobody writes while no operation is active.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The elements. No operation that uses them is active.
    pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: valid for as long as the operand; nobody uses it while no operation is active.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    pub(super) fn is_owned(&self) -> bool {
        self.owned
    }

    /// What is owned, to be freed by whoever takes it; nothing of what is borrowed.
    pub(super) fn take_owned(&mut self) -> Option<Owned> {
        let is_owned = std::mem::replace(&mut self.owned, false);
        is_owned.then(|| {
            let elements = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len);
            // SAFETY: it was made from a box, which nothing else frees from now on. Only its length
            // is looked at.
            let layout = unsafe { Layout::for_value(&*elements) };
            Owned { start: self.start.cast(), layout }
        })
    }

    /// Never frees the memory.
    pub(super) fn leak(&mut self) {
        self.owned = false;
    }
}

impl<T: Element> Operand<'_, T> {
    /// The elements as a vector: the owned one, or a copy.
    pub(super) fn into_vec(mut self) -> Vec<T> {
        if !self.owned {
            return self.as_slice().to_vec();
        }
        self.owned = false;
        let elements = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len);
        // SAFETY: it was made from a box, which nothing else frees from now on.
        unsafe { Box::from_raw(elements) }.into_vec()
    }
}

/// The memory of elements that need no drop, whatever their type.
#[derive(Debug)]
pub(super) struct Owned {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: nobody looks at the elements any more.
unsafe impl Send for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: it was made as a box of that layout, and operations on it have ended.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}

impl<T> Drop for Operand<'_, T> {
    fn drop(&mut self) {
        if self.owned {
            let elements = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len);
            // SAFETY: it was made from a box, and operations on it have ended.
            drop(unsafe { Box::from_raw(elements) });
        }
    }
}

impl<T: Element> From<Box<[T]>> for Operand<'_, T> {
    fn from(elements: Box<[T]>) -> Self {
        let (len, elements) = (elements.len(), Box::into_raw(elements));
        // A box is never null.
        let start = NonNull::new(elements.cast()).unwrap_or(NonNull::dangling());
        Operand { start, len, owned: true, borrow: PhantomData }
    }
}

impl<T: Element> From<Vec<T>> for Operand<'_, T> {
    fn from(elements: Vec<T>) -> Self {
        elements.into_boxed_slice().into()
    }
}

impl<'b, T: Element> From<&'b mut [T]> for Operand<'b, T> {
    fn from(elements: &'b mut [T]) -> Self {
        let (len, start) = (elements.len(), NonNull::from(elements).cast());
        Operand { start, len, owned: false, borrow: PhantomData }
    }
}

impl<'b, T: Element> From<&'b mut Vec<T>> for Operand<'b, T> {
    fn from(elements: &'b mut Vec<T>) -> Self {
        elements.as_mut_slice().into()
    }
}
