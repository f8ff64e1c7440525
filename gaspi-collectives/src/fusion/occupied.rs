//! Where a fused buffer has memory beside that of all buckets: other memories of steps, results in
//! the type of the tensors, snapshots, partial sums.
//!
//! Invariant: what is known here is memory of the fused buffer. It is forgotten before it is freed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use gaspi_core::sync::Mutex;

/// Ranges of addresses that do not overlap, each by where it begins, with its end.
#[derive(Debug, Default)]
pub(super) struct Occupied(Mutex<BTreeMap<usize, usize>>);

impl Occupied {
    /// Knows memory until the value is dropped.
    pub(super) fn note(self: &Arc<Occupied>, start: *const u8, bytes: u64) -> Noted {
        let start = start.addr();
        self.0.lock().insert(start, start + bytes as usize);
        Noted { of: Arc::clone(self), start }
    }

    /// Whether some of it lies in a range.
    pub(super) fn overlaps(&self, range: &Range<usize>) -> bool {
        let known = self.0.lock();
        known.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }
}

/// Memory that is known.
#[derive(Debug)]
pub(super) struct Noted {
    of: Arc<Occupied>,
    start: usize,
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.of.0.lock().remove(&self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::without_provenance;

    #[test]
    fn a_range_overlaps_what_is_known_and_not_forgotten() {
        let occupied = Arc::new(Occupied::default());
        assert!(!occupied.overlaps(&(0..usize::MAX)));
        let [low, high] = [0x1000, 0x3000].map(|at| occupied.note(without_provenance(at), 0x100));
        for (range, expected) in [
            (0xf00..0x1000, false),
            (0xf00..0x1001, true),
            (0x1040..0x1041, true),
            (0x10ff..0x2000, true),
            (0x1100..0x3000, false),
            (0x1100..0x3001, true),
            (0x3100..0x4000, false),
            (0..0x4000, true),
        ] {
            assert_eq!(occupied.overlaps(&range), expected, "{range:x?}");
        }
        drop(low);
        assert!(!occupied.overlaps(&(0..0x3000)) && occupied.overlaps(&(0..0x3001)));
        drop(high);
        assert!(!occupied.overlaps(&(0..usize::MAX)));
    }
}
