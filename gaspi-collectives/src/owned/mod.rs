//! Operations as values: [`Prepared`] ones that can be started repeatedly, and [`Started`] ones.
//!
//! A value owns its memory or borrows it (in a [`scope`]). While an operation is active, its memory
//! can be reached by nobody else; it can be neither started again nor freed.

mod operand;
mod scope;
mod typed_request;

use std::fmt;
use std::sync::Arc;

use gaspi_core::sync::epoch;
use gaspi_core::{Error, GroupId, Result, Runtime, Timeout, may_wait};

use crate::broadcast_list::{self, BroadcastList};
use crate::datatype::Element;
use crate::engine::{Engine, Operation, OperationGivenUp, Shared};
use crate::operations::{self, MemoryTerms};
use crate::request::Request;

pub use operand::Operand;
pub use scope::{Scope, scope};
use typed_request::Operands;
pub use typed_request::TypedRequest;

/// An operation and its memory.
#[derive(Debug)]
struct Run<'b, T> {
    shared: Arc<Shared>,
    operation: Arc<Operation>,
    operands: Operands<'b, T>,
}

impl<'b, T> Run<'b, T> {
    fn new(rt: &Runtime, operation: Operation, operands: Operands<'b, T>) -> Run<'b, T> {
        let shared = Arc::clone(&Engine::of(rt).shared);
        Run { shared, operation: Arc::new(operation), operands }
    }

    /// Gives the operation up if it has not ended. In a function of the program that may not wait
    /// its memory may be used until it is no longer active.
    fn give_up(&self) {
        if epoch::is_in_callback() && !self.shared.is_of_parent() {
            self.operation.cancel_at_once();
        } else {
            self.operation.give_up(&self.shared);
        }
    }

    fn wait(&self, timeout: Timeout) -> Result<&[T]> {
        self.shared.refuse_child()?;
        may_wait(timeout, "waiting for an operation")?;
        self.operation.wait(&self.shared, timeout.deadline())?;
        Ok(self.operands.receive.as_slice())
    }

    /// Whether the memory is this rank's again. If not at once, the operation is given up.
    fn has_memory(&self) -> bool {
        self.give_up();
        let may_be_active = || epoch::is_in_callback() || self.shared.is_of_parent();
        let is_used = self.operation.is_active() && may_be_active();
        !is_used && !self.operation.is_still_used()
    }

    fn output(&self) -> &[T] {
        if self.has_memory() { self.operands.receive.as_slice() } else { &[] }
    }

    /// The result as a vector.
    fn take_output(&mut self) -> Vec<T>
    where
        T: Element,
    {
        if !self.has_memory() {
            return Vec::new();
        }
        std::mem::replace(&mut self.operands.receive, Operand::empty()).into_vec()
    }
}

impl<T> Run<'_, T> {
    /// Leaves memory that the operation may use.
    #[cold]
    fn leak(&mut self) {
        let Operands { send, receive } = &mut self.operands;
        [send.as_mut(), Some(receive)].into_iter().flatten().for_each(Operand::leak);
    }

    /// Leaves the operation, and what it owns, to the library's thread. What it borrows is borrowed
    /// for ever: no function that may not wait has anything else.
    #[cold]
    fn end_later(&mut self) {
        let Operands { send, receive } = &mut self.operands;
        let memory = [send.as_mut(), Some(receive)].map(|one| one.and_then(Operand::take_owned));
        let (operation, memory) = (Arc::clone(&self.operation), Some(memory));
        let given_up = OperationGivenUp { operation, memory, is_cancelled: false };
        self.shared.end_later(Box::new(given_up));
    }
}

impl<T> Drop for Run<'_, T> {
    fn drop(&mut self) {
        let is_prepared = self.operation.is_prepared();
        if self.shared.is_of_parent() {
            std::mem::forget((Arc::clone(&self.shared), Arc::clone(&self.operation)));
            return self.leak();
        }
        if epoch::is_in_callback() && self.operation.is_active() {
            return self.end_later();
        }
        let has_memory = self.has_memory();
        if is_prepared {
            self.shared.close(&self.operation.executor);
        }
        if !has_memory {
            self.leak();
        }
    }
}

/// A prepared operation. It has a channel of its own, so it overlaps with all others, and can be
/// started as often as wanted.
///
/// Its memory is empty after a failure in which other ranks have not let go of owned memory.
///
/// Dropping it frees it. If it is active, because a [`Started`] was leaked, that is
/// [given up](Started#dropping-before-the-end) before.
///
/// It cannot be started twice at once, nor can its memory be reached while it is active:
///
/// ```compile_fail,E0499
/// # use gaspi_collectives::Prepared;
/// # use gaspi_core::{Result, Timeout};
/// fn twice(sum: &mut Prepared<'_, f64>) -> Result<()> {
///     let mut first = sum.start()?;
///     let second = sum.start()?;
///     first.wait(Timeout::Block)?;
///     Ok(())
/// }
/// ```
///
/// ```compile_fail,E0499
/// # use gaspi_collectives::Prepared;
/// # use gaspi_core::{Result, Timeout};
/// fn meddle(sum: &mut Prepared<'_, f64>) -> Result<()> {
///     let mut started = sum.start()?;
///     sum.input_mut()[0] = 1.0;
///     started.wait(Timeout::Block)?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping a prepared operation frees it"]
pub struct Prepared<'b, T = ()>(Run<'b, T>);

impl<T> Prepared<'_, T> {
    /// Starts it.
    ///
    /// # Errors
    /// [`Error::RankDied`]; [`Error::NotInitialised`] in a forked child; and the one that ended an
    /// earlier start: nothing runs after a failure.
    pub fn start(&mut self) -> Result<Started<'_, T>> {
        self.0.shared.refuse_child()?;
        // A value that was leaked may have left it active.
        self.0.give_up();
        let invalid = |reason: &str| Error::InvalidOperation { handle: 0, reason: reason.into() };
        self.0.operation.start(&self.0.shared).unwrap_or_else(|reason| Err(invalid(reason)))?;
        Ok(Started(Held::Lent(&self.0)))
    }

    /// Starts it and waits for its end. After a timeout it is given up.
    ///
    /// # Errors
    /// Those of [`start`](Prepared::start) and [`Started::wait`].
    pub fn run(&mut self, timeout: Timeout) -> Result<&[T]> {
        // Before it begins what it could not wait for.
        may_wait(timeout, "waiting for an operation")?;
        self.start()?.wait(timeout)?;
        Ok(self.output())
    }

    /// What this rank contributes. In place, what it gets.
    pub fn input(&self) -> &[T] {
        if !self.0.has_memory() {
            return &[];
        }
        let Operands { send, receive } = &self.0.operands;
        send.as_ref().unwrap_or(receive).as_slice()
    }

    /// The same, to change it before the next start.
    pub fn input_mut(&mut self) -> &mut [T] {
        if !self.0.has_memory() {
            return &mut [];
        }
        let Operands { send, receive } = &mut self.0.operands;
        send.as_mut().unwrap_or(receive).as_mut_slice()
    }

    /// What this rank gets.
    pub fn output(&self) -> &[T] {
        self.0.output()
    }

    /// The same, to change it.
    pub fn output_mut(&mut self) -> &mut [T] {
        if self.0.has_memory() { self.0.operands.receive.as_mut_slice() } else { &mut [] }
    }
}

impl<T: Element> Prepared<'_, T> {
    /// Frees the operation and returns what this rank got: the memory itself if it was owned, else
    /// a copy.
    pub fn into_output(mut self) -> Vec<T> {
        self.0.take_output()
    }
}

/// Where the operation of a [`Started`] is.
#[derive(Debug)]
enum Held<'p, T> {
    Lent(&'p Run<'p, T>),
    Own(Run<'p, T>),
}

/// An operation that was started.
///
/// # Dropping before the end
/// The operation is given up:
/// 1. It may still end by itself for a moment (100 ms; not while the thread panics).
/// 2. Then it fails on this rank: a prepared one for good, another one with all that follow on
///    its group, for which a new group has to be committed. What was started before it goes on. The
///    other ranks get [`Error::Mismatch`] from it.
/// 3. The drop returns when no other rank can use the memory any more. That is at once, unless all
///    ranks have arrived in an operation that uses their memory directly, and some are still in
///    it: then after those have left it, failed too, ended or died. *Owned* memory is waited for
///    at most 2 s, and leaked if that was not enough. *Borrowed* memory is waited for as long as it
///    takes, which is only long where a rank neither dies nor calls the library any more.
///
/// In a function that is told of ends ([`Fusion::on_end`](crate::fusion::Fusion::on_end)) it does
/// not wait: the library's thread ends the operation behind it, and frees owned memory. One of a
/// [`Prepared`] fails at once there, and its memory is empty until it has ended.
///
/// In a forked child a drop does nothing: the operation is the parent's, and all calls on it are
/// [`Error::NotInitialised`].
///
/// A value that is leaked ([`std::mem::forget`]) frees nothing; a [`scope`] gives up its operations
/// at its end, whatever became of their values.
///
/// A result that is used after the value, or a value that is used after its end, does not compile:
///
/// ```compile_fail,E0382
/// # use gaspi_collectives::Started;
/// # use gaspi_core::{Result, Timeout};
/// fn after_the_end(mut sum: Started<'_, f64>) -> Result<Vec<f64>> {
///     sum.wait(Timeout::Block)?;
///     let result = sum.into_output();
///     sum.wait(Timeout::Block)?;
///     Ok(result)
/// }
/// ```
#[derive(Debug)]
#[must_use = "an operation that is dropped before its end is given up"]
pub struct Started<'p, T = ()>(Held<'p, T>);

impl<T> Started<'_, T> {
    fn run(&self) -> &Run<'_, T> {
        match &self.0 {
            Held::Lent(run) => run,
            Held::Own(run) => run,
        }
    }

    /// Drives it; what this rank gets, once it has ended.
    ///
    /// # Errors
    /// The one that ended it.
    pub fn test(&mut self) -> Result<Option<&[T]>> {
        match self.run().wait(Timeout::Test) {
            Ok(output) => Ok(Some(output)),
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until it has ended; what this rank gets.
    ///
    /// # Errors
    /// - [`Error::Timeout`]: it goes on and can be waited for again.
    /// - The one that ended it.
    pub fn wait(&mut self, timeout: Timeout) -> Result<&[T]> {
        self.run().wait(timeout)
    }
}

impl<T: Element> Started<'_, T> {
    /// What this rank got, after the end: the memory itself if the value owns it, else a copy. An
    /// operation that has not ended is given up.
    pub fn into_output(mut self) -> Vec<T> {
        match &mut self.0 {
            Held::Own(run) => run.take_output(),
            Held::Lent(run) => run.output().to_vec(),
        }
    }
}

impl<T> Drop for Started<'_, T> {
    fn drop(&mut self) {
        // One that owns its operation gives that up with it.
        if let Held::Lent(run) = &self.0 {
            run.give_up();
        }
    }
}

/// A request that was not carried out, with the reason.
#[derive(Debug)]
pub struct NotStarted<'b, T> {
    /// Why. After [`Error::Timeout`], which only the first operation of a group and preparing
    /// return, try again with the same request.
    pub error: Error,
    /// The request, with its memory.
    pub request: Box<TypedRequest<'b, T>>,
}

impl<T> fmt::Display for NotStarted<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for NotStarted<'_, T> {}

impl<T> From<NotStarted<'_, T>> for Error {
    fn from(not: NotStarted<'_, T>) -> Error {
        not.error
    }
}

/// What prepares or starts a request.
type Begin = unsafe fn(&Runtime, GroupId, &Request, MemoryTerms, Timeout) -> Result<Operation>;

/// Prepares or starts a request.
///
/// # Safety
/// Borrowed memory outlives the operation.
unsafe fn begin<'b, T>(
    begin: Begin,
    rt: &Runtime,
    group: GroupId,
    request: TypedRequest<'b, T>,
    timeout: Timeout,
) -> std::result::Result<Run<'b, T>, NotStarted<'b, T>> {
    let engine = Engine::of(rt);
    // A prepared operation is started without the runtime.
    let begun = engine.shared.refuse_child().and_then(|()| match request.request.background {
        true => engine.start_background_thread(),
        false => Ok(()),
    });
    let terms = request.terms();
    let begun = begun.and_then(|()| {
        // SAFETY: the memory is long enough by its terms, and lives until the operation has ended:
        // `Run` owns what is owned, and the caller promises the rest. Its borrow is unique.
        unsafe { begin(rt, group, &request.request, terms, timeout) }
    });
    match begun {
        Ok(operation) => Ok(Run::new(rt, operation, request.operands)),
        Err(error) => Err(NotStarted { error, request: Box::new(request) }),
    }
}

/// Prepares an operation that can be started repeatedly. All members of the group prepare it
/// together. For borrowed memory, see [`scope`].
///
/// ```no_run
/// # use gaspi_collectives::{Operation, TypedRequest, prepare};
/// # use gaspi_core::{GroupId, Runtime, Timeout};
/// # fn example(rt: &Runtime) -> gaspi_core::Result<()> {
/// let request = TypedRequest::allreduce_in_place(Operation::Sum, vec![0.0; 1000]);
/// let mut sum = prepare(rt, GroupId::ALL, request, Timeout::Block)?;
/// for step in 0..10 {
///     sum.input_mut().fill(f64::from(step));
///     let mut started = sum.start()?;
///     // Here the rank may compute something else.
///     let total = started.wait(Timeout::Block)?;
///     assert_eq!(total[0], f64::from(step) * f64::from(rt.size()));
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`run`](crate::run) that come from arguments, [`Error::Size`] if memory is too short,
/// and [`Error::Timeout`].
pub fn prepare<T>(
    rt: &Runtime,
    group: GroupId,
    request: TypedRequest<'static, T>,
    timeout: Timeout,
) -> std::result::Result<Prepared<'static, T>, NotStarted<'static, T>> {
    // SAFETY: what is borrowed for ever outlives the operation.
    unsafe { begin(operations::prepare, rt, group, request, timeout) }.map(Prepared)
}

/// Starts an operation. All members start the operations of a group in the same order, in which
/// they run. Only the first one of a group waits, at most `timeout`, until all members have started
/// one. For borrowed memory, see [`scope`].
///
/// # Errors
/// As [`prepare`].
pub fn start<T>(
    rt: &Runtime,
    group: GroupId,
    request: TypedRequest<'static, T>,
    timeout: Timeout,
) -> std::result::Result<Started<'static, T>, NotStarted<'static, T>> {
    // SAFETY: what is borrowed for ever outlives the operation.
    let run = unsafe { begin(operations::start, rt, group, request, timeout) }?;
    Ok(Started(Held::Own(run)))
}

/// The terms of memory about which the caller has promised everything.
const PROMISED: MemoryTerms = MemoryTerms { bytes: None, until_unused: true };
const NOTHING: Operands<'static, ()> = Operands { send: None, receive: Operand::empty() };

/// As [`prepare`], for all requests and memory anywhere.
///
/// # Errors
/// As [`prepare`].
///
/// # Safety
/// The value is dropped, not leaked, before the memory of the request is freed, and not in a
/// function that is told of ends, where a drop does not wait. While the operation is active, nobody
/// else writes to the send memory or uses the receive memory.
pub unsafe fn prepare_raw(
    rt: &Runtime,
    group: GroupId,
    request: &Request,
    timeout: Timeout,
) -> Result<Prepared<'static>> {
    if request.background {
        Engine::of(rt).start_background_thread()?;
    }
    // SAFETY: the caller's promise.
    let operation = unsafe { operations::prepare(rt, group, request, PROMISED, timeout) }?;
    Ok(Prepared(Run::new(rt, operation, NOTHING)))
}

/// Starts the broadcast of a list.
///
/// # Errors
/// Those of [`run_broadcast_list`](crate::run_broadcast_list) that come from arguments.
///
/// # Safety
/// That of [`prepare_raw`].
pub unsafe fn start_broadcast_list_raw(
    rt: &Runtime,
    group: GroupId,
    list: &BroadcastList,
    timeout: Timeout,
) -> Result<Started<'static>> {
    // SAFETY: the caller's promise.
    let operation = unsafe { broadcast_list::start(rt, group, list, PROMISED, timeout) }?;
    Ok(Started(Held::Own(Run::new(rt, operation, NOTHING))))
}

/// As [`start`], for all requests and memory anywhere.
///
/// # Errors
/// As [`start`].
///
/// # Safety
/// That of [`prepare_raw`].
pub unsafe fn start_raw(
    rt: &Runtime,
    group: GroupId,
    request: &Request,
    timeout: Timeout,
) -> Result<Started<'static>> {
    // SAFETY: the caller's promise.
    let operation = unsafe { operations::start(rt, group, request, PROMISED, timeout) }?;
    Ok(Started(Held::Own(Run::new(rt, operation, NOTHING))))
}
