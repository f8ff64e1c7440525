//! Threads that sleep until a device tells of something, while others may take from it what it
//! has told.
//!
//! A thread counts itself before it arms the device's channel. Whoever has taken from the channel
//! what it said looks at the count behind that, and arms the channel again if there are such. So
//! one of both arms it after the last that was taken.

use super::{Ordering, Word32};

/// How many threads sleep.
#[derive(Debug, Default)]
pub struct Sleepers<W: Word32>(W);

impl<W: Word32> Sleepers<W> {
    /// The calling thread is about to arm the channel and to sleep.
    pub fn begin(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// It sleeps no more.
    pub fn end(&self) {
        self.0.fetch_add(u32::MAX, Ordering::SeqCst);
    }

    /// Whether the channel has to be armed while nobody looks.
    pub fn are_any(&self) -> bool {
        // As an exchange, which reads the last value that there is.
        self.0.fetch_add(0, Ordering::SeqCst) != 0
    }
}
