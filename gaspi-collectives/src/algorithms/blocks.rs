//! How data is divided: blocks that belong to members, slices for shared work, pieces for messages.

use crate::steps::Shape;

/// Bytes to whose multiples slices are aligned, so that no two members write one cache line.
const SLICE_ALIGN_BYTES: u64 = 64;

/// A part of a buffer, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Part {
    /// Parts of at most `piece_bytes`, in order; none where there are no bytes.
    pub(super) fn pieces(self, piece_bytes: u64) -> impl Iterator<Item = Part> {
        let piece = move |start| Part {
            offset: self.offset + start,
            bytes: piece_bytes.min(self.bytes - start),
        };
        (0..self.bytes.div_ceil(piece_bytes)).map(move |i| piece(i * piece_bytes))
    }
}

/// A buffer divided into parts that lie one behind the other.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    /// Where each part begins, and the end.
    bounds: Vec<u64>,
}

impl Blocks {
    /// What belongs to each member.
    pub(super) fn of_members(shape: &Shape) -> Blocks {
        if shape.counts.is_empty() {
            let bytes = shape.bytes();
            return Blocks { bounds: (0..=u64::from(shape.size)).map(|i| i * bytes).collect() };
        }
        Blocks::of_counts(&shape.counts, shape.element_bytes)
    }

    /// What this member sends to each, all-to-all.
    pub(super) fn of_sends(shape: &Shape) -> Blocks {
        if shape.sends.is_empty() {
            return Blocks::of_members(shape);
        }
        Blocks::of_counts(&shape.sends, shape.element_bytes)
    }

    /// What this member gets from each, all-to-all.
    pub(super) fn of_receives(shape: &Shape) -> Blocks {
        if shape.receives.is_empty() {
            return Blocks::of_members(shape);
        }
        Blocks::of_counts(&shape.receives, shape.element_bytes)
    }

    fn of_counts(counts: &[u64], element_bytes: u64) -> Blocks {
        let ends = counts.iter().scan(0, |end, count| {
            *end += count * element_bytes;
            Some(*end)
        });
        Blocks { bounds: [0].into_iter().chain(ends).collect() }
    }

    /// `bytes` divided among `members`, as evenly as cache lines and elements allow.
    pub(super) fn slices(shape: &Shape, bytes: u64, members: u32) -> Blocks {
        Blocks::slices_of(shape, Part { offset: 0, bytes }, members)
    }

    /// A part divided in the same way, whose beginning is as aligned.
    pub(super) fn slices_of(shape: &Shape, whole: Part, members: u32) -> Blocks {
        let element = shape.element_bytes;
        let unit =
            if SLICE_ALIGN_BYTES.is_multiple_of(element) { SLICE_ALIGN_BYTES } else { element };
        let units = whole.bytes.div_ceil(unit);
        let members = u64::from(members);
        let bound = |i: u64| whole.offset + (units * i / members * unit).min(whole.bytes);
        Blocks { bounds: (0..=members).map(bound).collect() }
    }

    /// All parts, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = Part> {
        self.bounds.windows(2).map(|pair| Part { offset: pair[0], bytes: pair[1] - pair[0] })
    }

    /// `bytes` divided among `members` in elements; no slice is longer than the first.
    pub(super) fn even(bytes: u64, members: u32, element_bytes: u64) -> Blocks {
        let slice = (bytes / element_bytes).div_ceil(u64::from(members)) * element_bytes;
        Blocks { bounds: (0..=u64::from(members)).map(|i| (i * slice).min(bytes)).collect() }
    }

    /// The part with that number.
    pub(super) fn block(&self, index: u32) -> Part {
        self.range(index, 1)
    }

    /// Some parts, one behind the other.
    pub(super) fn range(&self, first: u32, len: u32) -> Part {
        let offset = self.bounds[first as usize];
        Part { offset, bytes: self.bounds[(first + len) as usize] - offset }
    }

    /// Some parts from `first` on, behind the last one the first: one range or two.
    pub(super) fn cyclic(&self, first: u32, len: u32) -> impl Iterator<Item = Part> {
        let size = self.bounds.len() as u32 - 1;
        let first = first % size;
        let before = len.min(size - first);
        [self.range(first, before), self.range(0, len - before)].into_iter()
    }

    /// All of it.
    pub(super) fn whole(&self) -> Part {
        Part { offset: 0, bytes: self.bounds.last().copied().unwrap_or(0) }
    }

    /// Bytes of the longest part.
    pub(super) fn longest_bytes(&self) -> u64 {
        self.bounds.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }
}
