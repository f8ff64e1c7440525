//! Memory for partial results, and copies from and to other processes.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;

use gaspi_core::{Channel, Head, Lifetime, PeerSlice, Result};

use super::{Source, Target};

/// Memory on the heap that is only used through [`Source`] and [`Target`], aligned to 16 bytes.
pub(crate) struct Buffer(Box<[UnsafeCell<u128>]>);

impl Buffer {
    /// At least `bytes` of zeroes.
    pub(crate) fn new(bytes: u64) -> Buffer {
        let units = (bytes as usize).div_ceil(size_of::<u128>());
        // Zeroes of the allocator, whose pages are taken when they are used.
        let zeroes = Box::into_raw(vec![0_u128; units].into_boxed_slice());
        // SAFETY: an UnsafeCell has the layout of what is in it.
        Buffer(unsafe { Box::from_raw(zeroes as *mut [UnsafeCell<u128>]) })
    }

    /// The first `bytes`.
    pub(crate) fn target(&self, bytes: u64) -> Target<'_> {
        let len = self.0.len() * size_of::<u128>();
        Target { start: UnsafeCell::raw_get(self.0.as_ptr()).cast(), len, lifetime: PhantomData }
            .part(0, bytes)
    }

    /// All of it.
    pub(crate) fn len(&self) -> u64 {
        (self.0.len() * size_of::<u128>()) as u64
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("bytes", &self.len()).finish()
    }
}

impl<'a> Source<'a> {
    /// The address of the first byte.
    pub(crate) fn start(self) -> *const u8 {
        self.start
    }

    /// The first eight bytes. Panics when there are fewer.
    #[inline]
    pub(crate) fn word(self) -> u64 {
        assert!(self.len >= size_of::<u64>(), "a word has eight bytes");
        // SAFETY: so many bytes are readable by the promise of its maker.
        unsafe { self.start.cast::<u64>().read_unaligned() }
    }

    /// Whether `target` begins at the same place.
    pub(crate) fn is_at(self, target: Target<'_>) -> bool {
        std::ptr::eq(self.start, target.start)
    }

    /// Memory of a peer, which gaspi-core keeps mapped for as long as the slice's borrow.
    pub(crate) fn of_peer(slice: PeerSlice<'a>) -> Source<'a> {
        Target::of_peer(slice).source()
    }
}

/// Copies from the memory of a member's process.
///
/// # Errors
/// Those of [`Channel::pull`].
pub(crate) fn pull(channel: &Channel, member: usize, address: u64, to: Target<'_>) -> Result<()> {
    // SAFETY: valid for its length by the promise of its maker.
    unsafe { channel.pull(member, address, to.start, to.len) }
}

/// Copies to the memory of a member's process.
///
/// # Errors
/// Those of [`Channel::push`].
pub(crate) fn push(channel: &Channel, member: usize, address: u64, from: Source<'_>) -> Result<()> {
    // SAFETY: valid for its length by the promise of its maker.
    unsafe { channel.push(member, address, from.start, from.len) }
}

/// Sends a message; false if there is no room for it now. Its data does not change during the call,
/// or until the channel has returned it or [withdraws](Channel::withdraw).
///
/// # Errors
/// Those of [`Channel::send`].
#[inline]
pub(crate) fn send(
    channel: &Channel,
    to: usize,
    index: u64,
    head: &Head,
    data: Source<'_>,
    lifetime: Lifetime,
) -> Result<bool> {
    // SAFETY: valid for its length by the promise of its maker, until the operation has ended.
    // Zero-copy sends are acknowledged before.
    unsafe { channel.send(to, index, head, (data.start, data.len), lifetime) }
}

/// Posts a receive: the data of a message goes to `to` if its head begins like this.
pub(crate) fn post_receive(
    channel: &Channel,
    (from, index): (usize, u64),
    head: [u64; 3],
    to: Target<'_>,
) {
    // SAFETY: valid for its length by the promise of its maker, until the operation has ended,
    // which withdraws the receive.
    unsafe { channel.post_receive(from, index, head, (to.start, to.len as u64)) }
}

// SAFETY: an address and a length. Its maker promised that any thread may use the memory.
unsafe impl Send for Source<'_> {}
// SAFETY: its maker promised that any thread may use the memory.
unsafe impl Sync for Source<'_> {}
// SAFETY: its maker promised that any thread may use the memory.
unsafe impl Send for Target<'_> {}
// SAFETY: its maker promised that any thread may use the memory.
unsafe impl Sync for Target<'_> {}
