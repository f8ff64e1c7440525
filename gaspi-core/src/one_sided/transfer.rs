//! What is moved: from where to where.

use crate::error::{Error, Result};
use crate::ids::{Rank, SegmentId};

/// From where to where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Segment of this rank.
    pub local: SegmentId,
    /// Bytes.
    pub local_offset: u64,
    /// The other rank; may be this one.
    pub rank: Rank,
    /// Segment of the other rank.
    pub remote: SegmentId,
    /// Bytes.
    pub remote_offset: u64,
    /// Bytes, at most transfer_size_max; 0 moves nothing.
    pub size: u64,
}

/// Several transfers with one rank; all lists have the same length, 1..=rw_list_elem_max.
#[derive(Debug, Clone, Copy)]
pub struct TransferList<'a> {
    /// The other rank.
    pub rank: Rank,
    /// Segments of this rank.
    pub local: &'a [SegmentId],
    /// Bytes.
    pub local_offsets: &'a [u64],
    /// Segments of the other rank.
    pub remote: &'a [SegmentId],
    /// Bytes.
    pub remote_offsets: &'a [u64],
    /// Bytes.
    pub sizes: &'a [u64],
}

impl TransferList<'_> {
    pub(super) fn check(&self, limit: u32) -> Result<()> {
        let len = self.sizes.len();
        let others = [
            self.local.len(),
            self.local_offsets.len(),
            self.remote.len(),
            self.remote_offsets.len(),
        ];
        if len == 0 || len > limit as usize || others.iter().any(|other| *other != len) {
            let reason =
                format!("a list has 1 to {limit} elements (rw_list_elem_max), of each kind");
            return Err(Error::Number { number: len as u64, reason });
        }
        Ok(())
    }

    pub(super) fn elements(&self) -> impl Iterator<Item = Transfer> + '_ {
        (0..self.sizes.len()).map(|i| Transfer {
            local: self.local[i],
            local_offset: self.local_offsets[i],
            rank: self.rank,
            remote: self.remote[i],
            remote_offset: self.remote_offsets[i],
            size: self.sizes[i],
        })
    }
}
