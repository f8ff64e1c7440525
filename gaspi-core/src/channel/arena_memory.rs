//! Memory of the arena for data that members of the node use where it lies.

use super::arena::Reserved;
use crate::error::{Error, Result};
use crate::runtime::{Inner, Runtime};
use std::fmt;
use std::sync::Arc;

/// A range of this rank's arena, which all ranks of the node that have opened a channel with it
/// have mapped. Freed when dropped.
pub struct ArenaMemory {
    inner: Arc<Inner>,
    reserved: Reserved,
    pointer: *mut u8,
    still_used: bool,
}

// SAFETY: the pointer leads into the arena, which the runtime keeps mapped.
unsafe impl Send for ArenaMemory {}
// SAFETY: nothing is read or written through it here.
unsafe impl Sync for ArenaMemory {}

impl fmt::Debug for ArenaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArenaMemory").field("bytes", &self.len()).finish_non_exhaustive()
    }
}

impl ArenaMemory {
    /// Its first byte, at the start of a page. What is there first is undefined.
    pub fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        (self.reserved.bytes.end - self.reserved.bytes.start) as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets go of it without giving it back, since other ranks may still write there.
    pub fn abandon(mut self) {
        self.still_used = true;
    }
}

impl Drop for ArenaMemory {
    fn drop(&mut self) {
        // A forked child has no right to what its parent uses.
        if self.inner.process != std::process::id() {
            return;
        }
        // Who may still write there uses it by channels, which are counted too.
        if let Some(arena) = self.inner.channels.arena().filter(|_| !self.still_used) {
            arena.free(self.reserved.clone());
        }
        self.inner.end_use();
    }
}

impl Runtime {
    /// Takes memory of this rank's arena. No other rank takes part.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory): the arena has no such range left.
    #[doc(hidden)]
    pub fn arena_memory(&self, bytes: u64) -> Result<ArenaMemory> {
        let inner = self.shared();
        inner.check_open()?;
        let pages = bytes.max(1).next_multiple_of(super::layout::PAGE);
        let reserved = inner.reserve(pages, 0)?;
        let segment = inner.channels.arena().map(|arena| arena.segment.pointer());
        let start = segment.ok_or(Error::NotInitialised)?;
        let pointer = start.wrapping_add(reserved.bytes.start as usize);
        let memory = ArenaMemory { inner, reserved, pointer, still_used: false };
        memory.inner.begin_use()?;
        Ok(memory)
    }
}
