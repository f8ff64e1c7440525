//! The segments of this rank, by id.

use super::{ARENA, Segment, Shape};
use crate::ids::SegmentId;
use crate::segment::table::Table;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use std::sync::{Arc, OnceLock};

/// What this rank has made of memory for others to reach.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) shape: Shape,
    pub(crate) segments: Table<Segment>,
    /// The segment of channels, once there is one.
    arena: OnceLock<Arc<Segment>>,
    /// Which ids there are segments for, a bit each.
    pub(crate) segment_ids: [AtomicU64; 4],
    /// Held while segments come and go.
    pub(crate) segment_changes: Mutex<()>,
    /// Held until nobody uses segments that have ended any more; taken before `segment_changes`.
    pub(crate) segment_ends: Mutex<()>,
    next_generation: AtomicU32,
    /// Read by peers to find out whether they may copy from this process.
    pub(crate) nonce: u64,
}

impl Memory {
    pub(crate) fn new(shape: Shape, nonce: u64) -> Memory {
        Memory {
            shape,
            segments: Table::new(),
            arena: OnceLock::new(),
            segment_ids: Default::default(),
            segment_changes: Mutex::default(),
            segment_ends: Mutex::default(),
            next_generation: AtomicU32::new(1),
            nonce,
        }
    }

    /// A segment by its id, the arena among them.
    pub(crate) fn find(&self, id: SegmentId) -> Option<Arc<Segment>> {
        if id == ARENA { self.arena.get().cloned() } else { self.segments.get_arc(id) }
    }

    /// The arena has been made; there is one.
    pub(crate) fn set_arena(&self, arena: &Arc<Segment>) {
        let _ = self.arena.set(Arc::clone(arena));
    }

    /// The number of a segment that is about to be made: no two have the same.
    pub(crate) fn generation(&self) -> u32 {
        self.next_generation.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps `segment_ids`. The caller holds `segment_changes`.
    pub(crate) fn note_presence(&self, segment: SegmentId, exists: bool) {
        let (word, bit) = (&self.segment_ids[segment.index() / 64], 1 << (segment.index() % 64));
        // Relaxed: a hint where to look; what is found is published by the table.
        if exists {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// The segments that exist, as far as `segment_ids` tells.
    pub(crate) fn existing(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.segment_ids.iter().zip(0u32..).flat_map(|(word, nth)| {
            let mut bits = word.load(Ordering::Relaxed);
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros())?;
                bits &= bits - 1;
                Some(SegmentId((nth * 64 + bit) as u8))
            })
        })
    }
}
