//! A scope for operations on borrowed memory.

use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use gaspi_core::sync::Mutex;
use gaspi_core::{GroupId, Runtime, Timeout, outside_callback};

use super::{Begin, Held, NotStarted, Prepared, Run, Started, TypedRequest, begin};
use crate::engine::{Engine, Operation};
use crate::operations;

/// Where operations on borrowed memory are prepared and started, see [`scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    rt: &'env Runtime,
    /// Those whose values may exist, or may have been leaked.
    operations: Mutex<Vec<Weak<Operation>>>,
    scope: PhantomData<&'scope mut &'scope ()>,
}

/// Calls a function that prepares and starts operations on memory that outlives the call. At its
/// end, or if it panics, operations that are still active are given up, so that none uses the
/// memory afterwards, even if its value was leaked.
///
/// ```no_run
/// # use gaspi_collectives::{Operation, TypedRequest, scope};
/// # use gaspi_core::{GroupId, Runtime, Timeout};
/// # fn example(rt: &Runtime) -> gaspi_core::Result<()> {
/// let mut gradient = vec![1.0f32; 1000];
/// scope(rt, |scope| -> gaspi_core::Result<()> {
///     let request = TypedRequest::allreduce_in_place(Operation::Average, &mut gradient);
///     let mut mean = scope.start(GroupId::ALL, request, Timeout::Block)?;
///     // Here the rank may compute something else.
///     mean.wait(Timeout::Block)?;
///     Ok(())
/// })?;
/// assert_eq!(gradient[0], 1.0);
/// # Ok(())
/// # }
/// ```
///
/// Memory that an operation borrows cannot be used meanwhile:
///
/// ```compile_fail,E0503
/// # use gaspi_collectives::{Operation, TypedRequest, scope};
/// # use gaspi_core::{GroupId, Runtime, Timeout};
/// # fn example(rt: &Runtime, gradient: &mut [f32]) -> gaspi_core::Result<()> {
/// scope(rt, |scope| -> gaspi_core::Result<()> {
///     let request = TypedRequest::allreduce_in_place(Operation::Average, &mut *gradient);
///     let mut mean = scope.start(GroupId::ALL, request, Timeout::Block)?;
///     gradient[0] = 2.0;
///     mean.wait(Timeout::Block)?;
///     Ok(())
/// })
/// # }
/// ```
pub fn scope<'env, T>(
    rt: &'env Runtime,
    body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
) -> T {
    let scope = Scope { rt, operations: Mutex::default(), scope: PhantomData };
    let _end = EndOfScope { rt, operations: &scope.operations };
    body(&scope)
}

/// Gives up what the scope has left active.
struct EndOfScope<'a> {
    rt: &'a Runtime,
    operations: &'a Mutex<Vec<Weak<Operation>>>,
}

impl Drop for EndOfScope<'_> {
    fn drop(&mut self) {
        let left = std::mem::take(&mut *self.operations.lock());
        for operation in left.iter().filter_map(Weak::upgrade) {
            operation.give_up(&Engine::of(self.rt).shared);
        }
    }
}

impl<'scope> Scope<'scope, '_> {
    /// As [`prepare`](crate::prepare).
    ///
    /// # Errors
    /// As [`prepare`](crate::prepare).
    pub fn prepare<T>(
        &'scope self,
        group: GroupId,
        request: TypedRequest<'scope, T>,
        timeout: Timeout,
    ) -> Result<Prepared<'scope, T>, NotStarted<'scope, T>> {
        self.begin(operations::prepare, group, request, timeout).map(Prepared)
    }

    /// As [`start`](crate::start).
    ///
    /// # Errors
    /// As [`start`](crate::start).
    pub fn start<T>(
        &'scope self,
        group: GroupId,
        request: TypedRequest<'scope, T>,
        timeout: Timeout,
    ) -> Result<Started<'scope, T>, NotStarted<'scope, T>> {
        let run = self.begin(operations::start, group, request, timeout)?;
        Ok(Started(Held::Own(run)))
    }

    fn begin<T>(
        &'scope self,
        how: Begin,
        group: GroupId,
        request: TypedRequest<'scope, T>,
        timeout: Timeout,
    ) -> Result<Run<'scope, T>, NotStarted<'scope, T>> {
        // Its end would have to wait.
        if let Err(error) = outside_callback("an operation on borrowed memory") {
            return Err(NotStarted { error, request: Box::new(request) });
        }
        // SAFETY: the memory outlives the scope, at whose end its operations are given up.
        let run = unsafe { begin(how, self.rt, group, request, timeout) }?;
        let mut operations = self.operations.lock();
        if operations.len() == operations.capacity() {
            operations.retain(|operation| operation.strong_count() > 0);
        }
        operations.push(Arc::downgrade(&run.operation));
        Ok(run)
    }
}
