//! All-reduce through staging, n members, m chunks: each rank combines one slice of every chunk
//! and fetches the other slices from those who combined them (reduce-scatter, then gather).
//!
//! Steps: m + 1 arrivals, because the slices of a chunk and the input of the next chunk are
//! published together. Bytes: each rank copies its input, reads the input's size in slices of all
//! members, writes 1/n of it, and copies the output: work does not grow with n. In place is right:
//! a chunk of input is staged before the same chunk of output is written.
//!
//! A chunk has n slices of s elements; staging holds a chunk and, behind it, one slice:
//! (n + 1) s elements.
//!
//! ```text
//! for c in 0..=m:  stage[c % 2].chunk = input c                                     (c < m)
//!                  stage[c % 2].slice = my slice of stage[(c-1) % 2].chunk of 0..n  (c > 0)
//!                  arrive; await
//!                  output c - 1 = stage[c % 2].slice of each member                 (c > 0)
//! ```

use crate::schedule::{Payload, Place, Schedule, Shape, SourcePlace, Sources, Span, Step};

/// See the head of this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sliced {
    shape: Shape,
    /// Elements of a full chunk; all but the last are.
    chunk_elements: u64,
    chunks: u64,
}

impl Sliced {
    /// The schedule; `None` when one element for each member and one more do not fit into staging.
    pub fn new(shape: Shape) -> Option<Sliced> {
        let members = u64::from(shape.size);
        let slice_elements = shape.stage_bytes / shape.element_bytes / (members + 1);
        if slice_elements == 0 {
            return None;
        }
        let chunk_elements = slice_elements * members;
        Some(Sliced { shape, chunk_elements, chunks: shape.count.div_ceil(chunk_elements) })
    }

    /// Steps of one round.
    fn round(&self) -> u64 {
        4 + u64::from(self.shape.size)
    }

    /// Elements of a chunk; none before the first and behind the last.
    fn elements(&self, chunk: Option<u64>) -> u64 {
        let left = chunk.map(|c| self.shape.count.saturating_sub(c * self.chunk_elements));
        left.unwrap_or(0).min(self.chunk_elements)
    }

    /// Where a member's slice of a chunk lies in the chunk, and its length, in bytes. The last
    /// chunk is divided among all members too.
    fn slice(&self, chunk: Option<u64>, member: u32) -> (u64, u64) {
        let elements = self.elements(chunk);
        let step = elements.div_ceil(u64::from(self.shape.size));
        let start = (step * u64::from(member)).min(elements);
        let end = (start + step).min(elements);
        (start * self.shape.element_bytes, (end - start) * self.shape.element_bytes)
    }

    /// Where combined slices lie in staging.
    fn slice_offset(&self) -> u64 {
        self.chunk_elements * self.shape.element_bytes
    }

    fn chunk_offset(&self, chunk: Option<u64>) -> u64 {
        chunk.unwrap_or(0) * self.chunk_elements * self.shape.element_bytes
    }

    fn stage_input(&self, round: u64) -> Step {
        let member = self.shape.me;
        let bytes = self.elements(Some(round)) * self.shape.element_bytes;
        let offset = if bytes == 0 { 0 } else { self.chunk_offset(Some(round)) };
        let place = Place::Scratch { member, parity: (round % 2) as u32 };
        Step::Copy {
            dst: Span { place, offset: 0, bytes },
            src: Span { place: Place::Input(member), offset, bytes },
        }
    }

    fn combine_slice(&self, round: u64) -> Step {
        let member = self.shape.me;
        let (offset, bytes) = self.slice(round.checked_sub(1), member);
        let place = Place::Scratch { member, parity: (round % 2) as u32 };
        Step::Reduce {
            dst: Span { place, offset: self.slice_offset(), bytes },
            srcs: Sources {
                first: 0,
                end: self.shape.size,
                place: SourcePlace::Scratch { parity: ((round + 1) % 2) as u32, offset },
            },
        }
    }

    fn fetch_slice(&self, round: u64, turn: u64) -> Step {
        // Everyone begins with itself, so that they do not all read the same member at once.
        let member = (u64::from(self.shape.me) + turn) % u64::from(self.shape.size);
        let member = member as u32;
        let chunk = round.checked_sub(1);
        let (offset, bytes) = self.slice(chunk, member);
        let place = Place::Scratch { member, parity: (round % 2) as u32 };
        Step::Copy {
            dst: Span {
                place: Place::Output(self.shape.me),
                offset: self.chunk_offset(chunk) + offset,
                bytes,
            },
            src: Span { place, offset: self.slice_offset(), bytes },
        }
    }
}

impl Schedule for Sliced {
    #[inline]
    fn step(&self, index: u64) -> Step {
        let round = index / self.round();
        match index % self.round() {
            _ if round > self.chunks => Step::Done,
            0 => self.stage_input(round),
            1 => self.combine_slice(round),
            2 => Step::Arrive(Payload::Nothing),
            3 => Step::Await,
            turn => self.fetch_slice(round, turn - 4),
        }
    }

    #[inline]
    fn arrivals_before(&self, index: u64) -> u64 {
        let arrived = u64::from(index % self.round() > 2);
        (index / self.round() + arrived).min(self.chunks + 1)
    }
}
