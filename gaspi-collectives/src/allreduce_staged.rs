//! All-reduce through staging, n members, m chunks of at most the staging size: every rank
//! combines all contributions itself, in the order of the ranks.
//!
//! Steps: m arrivals. Bytes: each rank copies its input once, reads n times the input from staging
//! and writes the output once. In place is right: a chunk of input is staged before the same chunk
//! of output is written.
//!
//! ```text
//! for each chunk c:  stage[c % 2] = input c; arrive; await
//!                    output c = stage[c % 2] of member 0 op ... op member n-1
//! ```
//!
//! Two stages suffice: a rank writes stage c + 2 after it awaited arrival c + 1, which every
//! member makes after its last read of stage c.
//!
//! With status (reductions that can fail) each arrival says whether a reduction failed on this rank
//! so far, and one more arrival at the end does so for the last chunk; all ranks then stop at the
//! same step.

use crate::schedule::{Payload, Place, Schedule, Shape, SourcePlace, Sources, Span, Step};

/// See the head of this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Staged {
    shape: Shape,
    chunk_bytes: u64,
    chunks: u64,
    status: bool,
}

impl Staged {
    /// The step that waits for the first chunk, without status.
    pub(crate) const AWAIT: u64 = 2;

    /// Whether one arrival carries everything.
    pub(crate) fn has_one_chunk(&self) -> bool {
        self.chunks == 1 && !self.status
    }

    /// The schedule; an element has at most the staging size.
    pub fn new(shape: Shape) -> Staged {
        let chunk_elements = shape.stage_bytes / shape.element_bytes;
        assert!(chunk_elements > 0, "an element has to fit into the staging");
        Staged {
            shape,
            chunk_bytes: chunk_elements * shape.element_bytes,
            chunks: shape.count.div_ceil(chunk_elements),
            status: false,
        }
    }

    /// The same schedule with status.
    pub fn with_status(shape: Shape) -> Staged {
        Staged { status: true, ..Staged::new(shape) }
    }

    fn copy(&self, chunk: u64) -> Step {
        let Span { offset, bytes, .. } = self.output(chunk);
        let member = self.shape.me;
        let place = Place::Scratch { member, parity: parity(chunk) };
        Step::Copy {
            dst: Span { place, offset: 0, bytes },
            src: Span { place: Place::Input(member), offset, bytes },
        }
    }

    fn reduce(&self, chunk: u64) -> Step {
        let place = SourcePlace::Scratch { parity: parity(chunk), offset: 0 };
        Step::Reduce {
            dst: self.output(chunk),
            srcs: Sources { first: 0, end: self.shape.size, place },
        }
    }

    fn output(&self, chunk: u64) -> Span {
        let offset = chunk * self.chunk_bytes;
        let bytes = self.chunk_bytes.min(self.shape.bytes() - offset);
        Span { place: Place::Output(self.shape.me), offset, bytes }
    }
}

fn parity(chunk: u64) -> u32 {
    (chunk % 2) as u32
}

impl Schedule for Staged {
    #[inline]
    fn step(&self, index: u64) -> Step {
        if !self.status {
            let chunk = index / 4;
            return match index % 4 {
                _ if chunk >= self.chunks => Step::Done,
                0 => self.copy(chunk),
                1 => Step::Arrive(Payload::Nothing),
                2 => Step::Await,
                _ => self.reduce(chunk),
            };
        }
        let chunk = index / 5;
        match index % 5 {
            0 if chunk < self.chunks => self.copy(chunk),
            4 if chunk < self.chunks => self.reduce(chunk),
            // The arrival behind the last chunk: an empty copy keeps the rhythm of five.
            0 if chunk == self.chunks => self.nothing(),
            1 if chunk <= self.chunks => Step::Arrive(Payload::Status),
            2 if chunk <= self.chunks => Step::Await,
            3 if chunk <= self.chunks => Step::Check,
            _ => Step::Done,
        }
    }

    #[inline]
    fn arrivals_before(&self, index: u64) -> u64 {
        let (steps, chunks) = if self.status { (5, self.chunks + 1) } else { (4, self.chunks) };
        (index / steps + u64::from(index % steps > 1)).min(chunks)
    }
}

impl Staged {
    fn nothing(&self) -> Step {
        let span = Span { place: Place::Input(self.shape.me), offset: 0, bytes: 0 };
        Step::Copy { dst: Span { place: Place::Output(self.shape.me), ..span }, src: span }
    }
}
