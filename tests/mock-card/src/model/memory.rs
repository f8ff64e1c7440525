//! What a card reads and writes in the memory of programs, by addresses that were checked against
//! a registered region.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) length: u64,
}

impl Piece {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.length
    }

    pub(crate) fn overlaps(&self, other: Piece) -> bool {
        self.address < other.end() && other.address < self.end()
    }
}

/// Copies bytes. A word of 8 bytes is written whole, as cards do that are not soft-RoCE.
///
/// # Safety
/// Both are `length` bytes of memory that stays mapped. Programs may read and write them meanwhile,
/// as they may with a card.
pub(crate) unsafe fn copy(from: u64, to: u64, length: u64) {
    if length == 8 && to.is_multiple_of(8) && from.is_multiple_of(8) {
        // SAFETY: caller's promise; aligned.
        let (from, to) = unsafe { (word(from), word(to)) };
        // Release: what the card placed before is seen by a program that sees this word.
        to.store(from.load(Ordering::Relaxed), Ordering::Release);
        return;
    }
    // SAFETY: caller's promise.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, length as usize) };
}

/// Writes bytes one by one, from the last to the first, so that words are seen in pieces.
///
/// # Safety
/// As `copy`: `to` has as many bytes as `from`.
pub(crate) unsafe fn place_torn(from: &[u8], to: u64) {
    for (at, byte) in from.iter().enumerate().rev() {
        // SAFETY: caller's promise.
        let target = unsafe { AtomicU8::from_ptr((to + at as u64) as *mut u8) };
        target.store(*byte, Ordering::Release);
    }
}

/// Appends the bytes of a piece to `bytes`.
///
/// # Safety
/// The piece is mapped memory.
pub(crate) unsafe fn gather(piece: Piece, bytes: &mut Vec<u8>) {
    let (start, length) = (bytes.len(), piece.length as usize);
    bytes.resize(start + length, 0);
    let to = bytes[start..].as_mut_ptr() as u64;
    // SAFETY: caller's promise; the vector was made that long.
    unsafe { copy(piece.address, to, piece.length) };
}

/// Changes a word and returns what it was. `with_processors`: atomic with those, not only among
/// cards, whose operations come one at a time anyway.
///
/// # Safety
/// The word is mapped memory, and aligned.
pub(crate) unsafe fn change(
    address: u64,
    with_processors: bool,
    new: impl Fn(u64) -> Option<u64>,
) -> u64 {
    // SAFETY: caller's promise.
    let word = unsafe { word(address) };
    if with_processors {
        let done = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, new);
        return done.unwrap_or_else(|old| old);
    }
    let old = word.load(Ordering::Acquire);
    if let Some(new) = new(old) {
        // A processor's change between both is lost: such a card promises no more.
        std::thread::yield_now();
        word.store(new, Ordering::Release);
    }
    old
}

/// # Safety
/// The word is mapped memory for as long as the reference is used, and aligned.
unsafe fn word<'a>(address: u64) -> &'a AtomicU64 {
    // SAFETY: caller's promise.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}
