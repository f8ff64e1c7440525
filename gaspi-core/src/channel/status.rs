//! Status words: how far each member of a bundle says it is, for others that wonder.
//!
//! They lie behind the bundle's data. Members of a node look there; for those of other nodes the
//! library of the owner answers, whatever its program does. Nothing that is computed depends on
//! them: they are for people.

use super::SharedData;
use super::fetched::Fetched;
use super::spec::DataSpec;
use crate::error::Result;
use crate::sync::AtomicU32;
use std::ops::Range;

/// Bytes of a word.
const WORD: u64 = size_of::<AtomicU32>() as u64;

/// The status words that begin at `start`.
pub(super) fn status_words<'a>(start: *mut u8, data: DataSpec) -> &'a [AtomicU32] {
    // SAFETY: mapped atomics: `Parts` has so many behind the data, at the start of a cache line.
    unsafe { std::slice::from_raw_parts(start.cast::<AtomicU32>(), data.status_words as usize) }
}

impl SharedData {
    fn status_at(&self, start: *mut u8) -> &[AtomicU32] {
        let data = DataSpec { bytes: 0, status_words: self.status_words };
        status_words(start.wrapping_add(self.status_at as usize), data)
    }

    /// The status words of this rank, for it to write.
    #[inline]
    pub fn own_status(&self) -> &[AtomicU32] {
        let start = self.bundle.segment.pointer();
        self.status_at(start.wrapping_add(self.bundle.reserved.bytes.start as usize))
    }

    /// Those of a member, where they are mapped here.
    pub fn status_of(&self, member: usize) -> Option<&[AtomicU32]> {
        if member == self.bundle.me {
            return Some(self.own_status());
        }
        self.bundle.members[member].start.map(|start| self.status_at(start))
    }

    /// Has words of a member of another node come here. Its library answers, whatever its program
    /// does; it does not if the process is stopped or cannot be reached.
    ///
    /// # Errors
    /// The member cannot be reached; memory has run out.
    pub fn read_status(&self, member: usize, words: Range<u32>) -> Result<StatusRead> {
        let words = words.start.min(self.status_words)..words.end.min(self.status_words);
        let (size, of) = (words.len() as u64 * WORD, &self.bundle.members[member]);
        let at = self.status_at + u64::from(words.start) * WORD;
        let fetched = Fetched::begin(&self.bundle.inner, of, at, size)?;
        Ok(StatusRead { fetched, words: words.len() })
    }
}

/// Status words of another node that are on their way.
#[derive(Debug)]
pub struct StatusRead {
    fetched: Fetched,
    words: usize,
}

impl StatusRead {
    /// The words, once they have come. This rank is woken when they do.
    pub fn words(&self) -> Option<&[AtomicU32]> {
        let start = self.fetched.bytes()?.cast::<AtomicU32>();
        // SAFETY: mapped atomics: the memory has room for so many, at the start of a page.
        Some(unsafe { std::slice::from_raw_parts(start, self.words) })
    }
}
