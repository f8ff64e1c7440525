//! What a task computes from two operands, or from those of a function of the program.

use super::buffers::Arithmetic;
use super::counters::Counters;
use super::substrate::Substrate;
use super::task::Task;
use crate::datatype::Operation;
use crate::kernel::{self, Source, Target};
use crate::steps::{Span, Step};
use crate::user_reduction::Function;

impl<F: Function> Task<F> {
    /// `dst = left op right`; `dst` may be the same memory as either.
    pub(super) fn combine<C: Substrate>(
        &self,
        on: &C,
        dst: Target<'_>,
        left: Source<'_>,
        right: Source<'_>,
    ) {
        if dst.is_empty() || self.failed.get() != 0 {
            return;
        }
        match &self.arithmetic {
            Arithmetic::BuiltIn(op, ty) => kernel::fold(*op, *ty, &[dst], &[left, right]),
            Arithmetic::User(function) => {
                self.apply(on, function, dst, [left, right].into_iter());
            }
        }
    }

    /// Combines the sources in their order by a function of the program.
    pub(super) fn apply<'s, C: Substrate>(
        &self,
        on: &C,
        function: &F,
        dst: Target<'_>,
        sources: impl Iterator<Item = Source<'s>>,
    ) {
        if self.arguments.borrow_mut().fold(function, dst, sources).is_err() {
            self.failed.set(1 + u64::from(on.ranks()[on.me()].0));
        }
    }

    /// Whether the next step finishes these elements.
    pub(super) fn finishes(&self, received: Span) -> bool {
        let next = self.plan.steps.get(self.position.cursor + 1);
        matches!(next, Some(Step::Finish { span }) if *span == received)
    }

    /// Combines, and finishes an average in the same pass; false if it takes two.
    pub(super) fn average<C: Substrate>(
        &self,
        on: &C,
        dst: Target<'_>,
        left: Source<'_>,
        right: Source<'_>,
    ) -> bool {
        let Arithmetic::BuiltIn(Operation::Average, ty) = self.arithmetic else { return false };
        kernel::average(ty, &[dst], &[left, right], on.ranks().len() as u32)
    }

    pub(super) fn finish<C: Substrate>(&self, on: &C, counters: &Counters, span: Span) {
        let Arithmetic::BuiltIn(Operation::Average, ty) = self.arithmetic else { return };
        if span.bytes > 0 {
            let members = on.ranks().len() as u32;
            kernel::divide(ty, self.target(on, counters, span), members);
        }
    }
}
