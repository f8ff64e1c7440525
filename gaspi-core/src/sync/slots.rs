//! Notification words and passive slots: the hand-overs between two ranks.
//!
//! Both are written by one side and taken by the other without a lock, so that no process can die
//! while holding one.

use super::{Ordering, Word32, Word64};

/// Sets a notification; the last value wins (GASPI 17.1, 8.3.2).
#[inline]
pub fn set<W: Word32>(word: &W, value: u32) {
    // Release: publishes the payload; pairs with the Acquire in `peek` and `take`.
    word.store(value, Ordering::Release);
}

/// Whether a notification is set.
#[inline]
pub fn peek<W: Word32>(word: &W) -> bool {
    // Acquire: pairs with the Release in `set`.
    word.load(Ordering::Acquire) != 0
}

/// Takes a notification: of several threads exactly one gets the value, 0 where none is set.
#[inline]
pub fn take<W: Word32>(word: &W) -> u32 {
    // Acquire: pairs with the Release in `set`; the exchange cannot lose one that arrives now.
    word.swap(0, Ordering::AcqRel)
}

/// The life of a passive message in its (receiver, sender) slot: the sender posts, the receiver
/// copies and takes. The word counts messages in its upper bits, so that a taken message is never
/// mistaken for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passive {
    /// No message, or the last one was taken back.
    Empty,
    /// A message waits for the receiver.
    Posted,
    /// The receiver took the message.
    Taken,
}

const STATE_BITS: u32 = 2;

/// Number of a message and its state, as one word.
#[inline]
pub const fn passive_word(number: u64, state: Passive) -> u64 {
    (number << STATE_BITS) | state as u64
}

/// The state in a slot's word.
#[inline]
pub const fn passive_state(word: u64) -> Passive {
    match word & ((1 << STATE_BITS) - 1) {
        1 => Passive::Posted,
        2 => Passive::Taken,
        _ => Passive::Empty,
    }
}

/// Publishes message `number`, whose payload and description were written before.
#[inline]
pub fn passive_post<W: Word64>(word: &W, number: u64) {
    // Release: publishes payload and description; pairs with the Acquire in `passive_pending`.
    word.store(passive_word(number, Passive::Posted), Ordering::Release);
}

/// The posted word, if a message waits.
#[inline]
pub fn passive_pending<W: Word64>(word: &W) -> Option<u64> {
    // Acquire: pairs with the Release in `passive_post`.
    let value = word.load(Ordering::Acquire);
    (passive_state(value) == Passive::Posted).then_some(value)
}

/// Moves a message from posted to `end`: taken by its receiver after the copy, or empty by a sender
/// that takes it back. Exactly one of them succeeds; a receiver that fails throws its copy away.
#[inline]
pub fn passive_end<W: Word64>(word: &W, posted: u64, end: Passive) -> bool {
    let ended = (posted >> STATE_BITS) << STATE_BITS | end as u64;
    // AcqRel: the receiver's reads of the payload stay before it (the sender reuses the outbox
    // afterwards); pairs with the Acquire in `passive_taken`.
    word.compare_exchange(posted, ended, Ordering::AcqRel).is_ok()
}

/// Whether message `number` was taken.
#[inline]
pub fn passive_taken<W: Word64>(word: &W, number: u64) -> bool {
    // Acquire: pairs with the AcqRel in `passive_end`.
    word.load(Ordering::Acquire) == passive_word(number, Passive::Taken)
}
