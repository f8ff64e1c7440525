//! Memory that others use at the same time.

use std::marker::PhantomData;

/// A range of memory that a peer may read or write at any time: pointer and length, without Rust
/// references.
#[derive(Debug, Clone, Copy)]
pub struct PeerSlice<'a> {
    pointer: *mut u8,
    len: usize,
    _life: PhantomData<&'a u8>,
}

impl PeerSlice<'_> {
    pub(crate) fn new(pointer: *mut u8, len: usize) -> Self {
        PeerSlice { pointer, len, _life: PhantomData }
    }

    /// First byte, aligned to a cache line.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
