//! All-reduce of at most 48 bytes, n members: the payload rides in the line of the arrival.
//!
//! Steps: 1 arrival. Bytes: each rank writes one cache line and reads n of them; no staging.
//!
//! ```text
//! arrive with the input; await; output = line 0 op line 1 op ... op line n-1
//! ```

use crate::schedule::{
    LINE_BYTES, Payload, Place, Schedule, Shape, SourcePlace, Sources, Span, Step,
};

/// See the head of this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    shape: Shape,
}

impl Line {
    /// The step that waits.
    pub(crate) const AWAIT: u64 = 1;

    /// The schedule; the shape has at most [`LINE_BYTES`] bytes.
    pub fn new(shape: Shape) -> Line {
        assert!(shape.bytes() <= LINE_BYTES, "{} bytes do not fit into a line", shape.bytes());
        Line { shape }
    }
}

impl Schedule for Line {
    #[inline]
    fn step(&self, index: u64) -> Step {
        let Shape { me, size, .. } = self.shape;
        let bytes = self.shape.bytes();
        match index {
            0 => Step::Arrive(Payload::Data(Span { place: Place::Input(me), offset: 0, bytes })),
            1 => Step::Await,
            2 => Step::Reduce {
                dst: Span { place: Place::Output(me), offset: 0, bytes },
                srcs: Sources { first: 0, end: size, place: SourcePlace::Line },
            },
            _ => Step::Done,
        }
    }

    #[inline]
    fn arrivals_before(&self, index: u64) -> u64 {
        index.min(1)
    }
}
