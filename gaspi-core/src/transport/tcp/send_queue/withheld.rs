//! Frames with data of the program, where no socket may carry that: they wait until something else
//! carries the connection.
//!
//! Invariant: they keep their order, and go ahead of what has been queued behind them.

use super::Outgoing;
use crate::sync::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

/// What waits.
#[derive(Debug, Default)]
pub(crate) struct Withheld {
    frames: VecDeque<Outgoing>,
    /// How many wait on all connections of this rank; none where sockets may carry all.
    all: Option<Arc<AtomicU64>>,
}

impl Withheld {
    /// Nothing yet; `all` counts what waits, where data has to.
    pub(in crate::transport::tcp) fn new(all: Option<Arc<AtomicU64>>) -> Withheld {
        Withheld { frames: VecDeque::new(), all }
    }

    /// Whether data has to wait.
    pub(in crate::transport::tcp) fn withholds(&self) -> bool {
        self.all.is_some()
    }

    pub(in crate::transport::tcp) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(in crate::transport::tcp) fn push(&mut self, frame: Outgoing) {
        if let Some(all) = &self.all {
            // Relaxed: whoever looks at it takes the lock of the connection next.
            all.fetch_add(1, Ordering::Relaxed);
        }
        self.frames.push_back(frame);
    }

    /// All of it, to be sent or forgotten.
    pub(in crate::transport::tcp) fn take(&mut self) -> VecDeque<Outgoing> {
        if let Some(all) = self.all.as_ref().filter(|_| !self.frames.is_empty()) {
            all.fetch_sub(self.frames.len() as u64, Ordering::Relaxed);
        }
        std::mem::take(&mut self.frames)
    }
}

impl Drop for Withheld {
    fn drop(&mut self) {
        self.take();
    }
}
