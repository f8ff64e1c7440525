//! Reductions by a function of the program.
//!
//! The function gets private copies of the elements: its writes to them reach no other rank, and it
//! may take long.

use std::cell::RefCell;
use std::fmt;

use crate::kernel::{self, Source, Target};

/// Returned by a failed [`UserReduce`]; all ranks then get [`gaspi_core::Error::Reduction`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReductionFailed;

/// A reduction of [`allreduce_user`](crate::allreduce_user) (GASPI 17.1, 11.4): associative and
/// commutative, the same function on all ranks. It is called on the thread that called the
/// collective, and contributions are combined in the order of the ranks.
///
/// Closures `FnMut(&[u8], &[u8], &mut [u8]) -> Result<(), ReductionFailed>` implement it.
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

    /// An identity of this function within the process. A call that continues with another function
    /// after a timeout is refused. In C: the function and its state.
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

/// A function that combines elements, as steps call it.
pub(crate) trait Function {
    /// Bytes of an element.
    fn element_bytes(&self) -> u64;

    /// Combines `count` elements of `one` and `two` into `result`, all aligned to 16 bytes.
    fn apply(
        &self,
        one: &[u8],
        two: &[u8],
        result: &mut [u8],
        count: u64,
    ) -> std::result::Result<(), ReductionFailed>;
}

/// A function that lives as long as the call.
pub(crate) struct OfTheCall<'a> {
    function: RefCell<&'a mut dyn UserReduce>,
    element_bytes: u64,
}

impl<'a> OfTheCall<'a> {
    pub(crate) fn new(function: &'a mut dyn UserReduce, element_bytes: u64) -> OfTheCall<'a> {
        OfTheCall { function: RefCell::new(function), element_bytes }
    }
}

impl fmt::Debug for OfTheCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfTheCall")
            .field("element_bytes", &self.element_bytes)
            .finish_non_exhaustive()
    }
}

impl Function for &OfTheCall<'_> {
    fn element_bytes(&self) -> u64 {
        self.element_bytes
    }

    fn apply(
        &self,
        one: &[u8],
        two: &[u8],
        result: &mut [u8],
        count: u64,
    ) -> std::result::Result<(), ReductionFailed> {
        self.function.borrow_mut().reduce(one, two, result, count)
    }
}

/// The memory of a function's arguments, in units that are aligned to 16 bytes.
#[derive(Debug, Default)]
pub(crate) struct Arguments([Vec<u128>; 3]);

impl Arguments {
    /// Combines the sources, in their order, into `target`, which has their length. It is not
    /// written to if the function fails.
    pub(crate) fn fold<'s>(
        &mut self,
        function: &impl Function,
        target: Target<'_>,
        sources: impl Iterator<Item = Source<'s>>,
    ) -> std::result::Result<(), ReductionFailed> {
        let bytes = target.len();
        let count = bytes as u64 / function.element_bytes();
        let units = bytes.div_ceil(size_of::<u128>());
        for memory in self.0.iter_mut().filter(|memory| memory.len() < units) {
            memory.resize(units, 0);
        }
        let [mut one, two, mut result] = self.0.each_mut().map(|memory| {
            let memory: &mut [u8] = bytemuck::cast_slice_mut(memory);
            &mut memory[..bytes]
        });
        let mut begun = false;
        for source in sources {
            if begun {
                kernel::copy(Target::of(two), source);
                function.apply(one, two, result, count)?;
                std::mem::swap(&mut one, &mut result);
            } else {
                kernel::copy(Target::of(one), source);
                begun = true;
            }
        }
        kernel::copy(target, Source::of(one));
        Ok(())
    }
}
