//! All-reduce through staging, on one node, n members, m chunks: each member combines one slice of
//! every chunk and fetches the other slices from those who combined them.
//!
//! Steps: m + 1 arrivals, because the slices of a chunk and the input of the next chunk are
//! published together. Bytes: each member copies its input, reads the input's size in slices of all
//! members, writes 1/n of it, and copies the output: work does not grow with n. In place is right:
//! a chunk of input is staged before the same chunk of output is written.
//!
//! A chunk has n slices of s elements; staging holds a chunk and, behind it, one slice:
//! (n + 1) s elements.
//!
//! ```text
//! for c in 0..=m:  stage.chunk = input c                                    (c < m)
//!                  stage.slice = my slice of the last stage.chunk of 0..n   (c > 0)
//!                  arrive; await
//!                  output c - 1 = stage.slice of each member                (c > 0)
//! ```

use super::blocks::{Blocks, Part};
use super::program::{Program, all, one, span};
use crate::steps::{Carry, Kind, Place, Shape, Step};

/// Whether one element for each member and one more fit into a stage.
pub(super) fn fits(shape: &Shape) -> bool {
    slice_elements(shape) > 0
}

/// Elements of a slice of a full chunk.
fn slice_elements(shape: &Shape) -> u64 {
    shape.stage_bytes / shape.element_bytes / (u64::from(shape.size) + 1)
}

pub(super) fn steps(shape: &Shape) -> Option<Vec<Step>> {
    let Shape { me, size, element_bytes, .. } = *shape;
    let chunk_bytes = slice_elements(shape) * u64::from(size) * element_bytes;
    let mut program = Program::new(shape)?;
    let whole = Part { offset: 0, bytes: shape.bytes() };
    let mut last: Option<(Part, Blocks)> = None;
    for chunk in whole.pieces(chunk_bytes).map(Some).chain([None]) {
        if let Some(chunk) = chunk {
            let staged = Part { offset: 0, bytes: chunk.bytes };
            program.copy(program.stage(staged), program.input(chunk));
        }
        if let Some((_, slices)) = &last {
            let Part { offset, bytes } = slices.block(me);
            program.reduce(one(me, Kind::Stage, chunk_bytes), all(Kind::Stage, offset), bytes);
        }
        program.meet(Carry::Nothing);
        for member in (me..size).chain(0..me) {
            let Some((before, slices)) = &last else { break };
            let Part { offset, bytes } = slices.block(member);
            let output = program.output(Part { offset: before.offset + offset, bytes });
            let slice = span(Place::Stage(member), Part { offset: chunk_bytes, bytes });
            program.copy(output, slice);
        }
        last = chunk.map(|chunk| (chunk, Blocks::even(chunk.bytes, size, element_bytes)));
    }
    Some(program.into_steps())
}
