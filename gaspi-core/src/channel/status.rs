//! Status words: how far each member of a bundle says it is, for others that wonder.
//!
//! They lie behind the bundle's data. Members of a node look there; for those of other nodes the
//! library of the owner answers, whatever its program does. Nothing that is computed depends on
//! them: they are for people.

use super::SharedData;
use super::spec::DataSpec;
use crate::config::STATUS;
use crate::error::Result;
use crate::ids::{NotificationId, SegmentId};
use crate::segment::{ARENA, Init, Segment, Shape};
use crate::sync::{AtomicU32, Ordering};
use crate::transport::requests::GetTarget;
use crate::wire::message::{RemoteAddress, Stream};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a word.
const WORD: u64 = size_of::<AtomicU32>() as u64;
/// Set by the answer, in the memory that it comes to.
const ARRIVED: NotificationId = NotificationId(0);

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
        let size = words.len() as u64 * WORD;
        // Memory of its own, which the request keeps: an answer may come at any time.
        let shape = Shape { ranks: 0, notifications: 1 };
        let id = SegmentId(0);
        let into = Arc::new(Segment::new(id, 0, size.max(WORD), Init::Uninitialized, shape)?);
        let (bundle, of) = (&self.bundle, &self.bundle.members[member]);
        let read = StatusRead { into: Arc::clone(&into), words: words.len() };
        if let Some(view) = &of.view {
            let remote = RemoteAddress {
                segment: ARENA,
                generation: view.target.generation,
                offset: of.base + self.status_at + u64::from(words.start) * WORD,
            };
            let notify = Some((Arc::clone(&into), ARRIVED));
            let target = GetTarget { segment: into, offset: 0, size, notify };
            let stream = Stream { queue: STATUS, generation: 0 };
            bundle.inner.endpoint(of.rank).get(stream, remote, target)?;
        }
        Ok(read)
    }
}

/// Status words of another node that are on their way.
#[derive(Debug)]
pub struct StatusRead {
    into: Arc<Segment>,
    words: usize,
}

impl StatusRead {
    /// The words, once they have come. This rank is woken when they do.
    pub fn words(&self) -> Option<&[AtomicU32]> {
        // Acquire: pairs with the Release of the progress thread (`slots::set`), behind the words.
        if self.into.notification(ARRIVED.index()).load(Ordering::Acquire) == 0 {
            return None;
        }
        let start = self.into.pointer().cast::<AtomicU32>();
        // SAFETY: mapped atomics: the segment has room for so many, at the start of a page.
        Some(unsafe { std::slice::from_raw_parts(start, self.words) })
    }
}
