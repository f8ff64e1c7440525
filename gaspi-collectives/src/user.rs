//! Reductions by a function of the caller: what the function is, and how it is applied.
//!
//! It is called on the thread that called the collective, in the order of the ranks, with private
//! copies of the elements: nothing that it does to its arguments reaches another rank, and it may
//! take its time.

use std::fmt;
use std::ops::Range;

use crate::kernel::{self, Source, Target};

/// What a failed [`UserReduce`] returns; all ranks then get [`gaspi_core::Error::Reduction`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReductionFailed;

/// A reduction defined by the caller (GASPI 17.1, 11.4): associative and commutative, the same
/// function on all ranks. Contributions are combined in the order of the ranks nonetheless.
///
/// Closures `FnMut(&[u8], &[u8], &mut [u8]) -> Result<(), ReductionFailed>` are ones.
pub trait UserReduce {
    /// Combines `one` and `two` into `result`: `count` elements each, aligned to 16 bytes.
    ///
    /// # Errors
    /// [`ReductionFailed`] ends the call with an error on all ranks.
    fn reduce(
        &mut self,
        one: &[u8],
        two: &[u8],
        result: &mut [u8],
        count: u64,
    ) -> std::result::Result<(), ReductionFailed>;

    /// What tells this function from others of this process, so that a call that continues with
    /// another one after a timeout is refused: in C the function and its state.
    fn identity(&self) -> u64 {
        0
    }
}

impl<F> UserReduce for F
where
    F: FnMut(&[u8], &[u8], &mut [u8]) -> std::result::Result<(), ReductionFailed>,
{
    fn reduce(
        &mut self,
        one: &[u8],
        two: &[u8],
        result: &mut [u8],
        _count: u64,
    ) -> std::result::Result<(), ReductionFailed> {
        self(one, two, result)
    }
}

/// A [`UserReduce`] with the memory of its arguments.
pub struct UserReduction<'a> {
    function: &'a mut dyn UserReduce,
    element_bytes: u64,
    /// In units that are aligned to 16 bytes.
    memory: [Vec<u128>; 3],
}

impl fmt::Debug for UserReduction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserReduction").field("element_bytes", &self.element_bytes).finish()
    }
}

impl<'a> UserReduction<'a> {
    /// The function for elements of this size.
    pub fn new(function: &'a mut dyn UserReduce, element_bytes: u64) -> UserReduction<'a> {
        UserReduction { function, element_bytes, memory: [const { Vec::new() }; 3] }
    }

    /// Combines the members' sources, in their order, into `target`.
    pub(crate) fn reduce<'s>(
        &mut self,
        target: Target<'_>,
        members: Range<u32>,
        source: impl Fn(u32) -> Source<'s>,
    ) -> std::result::Result<(), ReductionFailed> {
        let bytes = target.len();
        let count = bytes as u64 / self.element_bytes;
        for memory in &mut self.memory {
            memory.resize(bytes.div_ceil(size_of::<u128>()), 0);
        }
        let [one, two, result] = &mut self.memory;
        let (mut one, mut result) = (one, result);
        let mut first = true;
        for member in members {
            let copy = if first { &mut *one } else { &mut *two };
            kernel::copy(Target::of(bytes_of(copy, bytes)), source(member));
            if !first {
                let (one, two) = (&*bytes_of(one, bytes), &*bytes_of(two, bytes));
                self.function.reduce(one, two, bytes_of(result, bytes), count)?;
            }
            if !first {
                std::mem::swap(&mut one, &mut result);
            }
            first = false;
        }
        kernel::copy(target, Source::of(bytes_of(one, bytes)));
        Ok(())
    }
}

fn bytes_of(memory: &mut [u128], bytes: usize) -> &mut [u8] {
    &mut bytemuck::cast_slice_mut::<u128, u8>(memory)[..bytes]
}
