//! Operations that wait for their end.

use gaspi_core::{Error, FastPath, GroupId, Result, Runtime, Timeout, may_wait};

use crate::checked_request::CheckedRequest;
use crate::engine::Engine;
use crate::exec::pack::PackBuffers;
use crate::request::{Request, SimpleRequest};

/// Carries out an operation and waits for its end on this rank. After a timeout, call again with
/// the same arguments to continue. The first operation of a group waits until all members have
/// called one.
///
/// # Errors
/// - [`Error::Timeout`]: the operation goes on when it is called again.
/// - [`Error::Mismatch`]: the ranks called different operations; all that called get it. A rank
///   that only sends messages gets it from its next operation of the group.
/// - [`Error::RankDied`], [`Error::RankLeft`]: a member that is needed is gone.
/// - [`Error::ActiveCollective`]: another one was interrupted by its timeout, or runs in another
///   thread.
/// - [`Error::InvalidRank`], [`Error::Number`], [`Error::Size`], [`Error::Null`],
///   [`Error::Unsupported`]: the arguments are invalid; nothing has happened.
///
/// # Safety
/// The memory of the request is readable (send) and writable (receive). Until the
/// operation has ended, nobody else writes to the former or uses the latter.
pub unsafe fn run(rt: &Runtime, group: GroupId, request: &Request, timeout: Timeout) -> Result<()> {
    let simple = SimpleRequest::of(request);
    if let Some(simple) = &simple {
        let no_wait = timeout == Timeout::Test;
        // SAFETY: the caller makes the promises of `run`.
        let done = rt.try_fast(|inside| unsafe { try_run_fast(&inside, group, simple, no_wait) });
        if done.is_some() {
            return Ok(());
        }
    }
    may_wait(timeout, "a collective operation")?;
    let engine = Engine::of(rt);
    let deadline = timeout.deadline();
    let context = engine.context(rt, group, timeout)?;
    if let Some(simple) = simple.as_ref().filter(|_| timeout != Timeout::Test) {
        // SAFETY: the caller makes the promises.
        let done = unsafe { context.executor.try_run_by_messages(simple) };
        if done.is_some() {
            return Ok(());
        }
    }
    let mut packed = match context.blocking.try_lock() {
        Some(packed) => packed,
        // The other thread holds it only for a moment, until it finds this thread's operation
        // active.
        None if context.executor.is_own_call_active() => context.blocking.lock(),
        None => {
            let active = "a collective of another thread".to_owned();
            return Err(Error::ActiveCollective { group, active });
        }
    };
    context.check_no_list(group)?;
    let call = CheckedRequest::new(engine, request, &context.executor)?;
    let plan = call.cached_plan(engine, &context)?;
    let signature = call.signature(&plan);
    let arguments = call.arguments(signature);
    let completion = match context.executor.continued(arguments)? {
        Some((completion, begun)) => {
            if let Some(begun) = begun {
                *packed = begun;
            }
            completion
        }
        None => {
            *packed = PackBuffers::default();
            // SAFETY: the caller makes the promises; packed memory lives until the operation has
            // ended.
            let buffers = unsafe { call.buffers(&plan, &mut packed) }?;
            packed.pack();
            if let Some(simple) = &simple {
                context.executor.remember(simple, &plan, signature);
            }
            let blocked =
                context.executor.block((arguments, signature), &plan, &call.arithmetic(), buffers);
            blocked.inspect_err(|_| *packed = PackBuffers::default())?
        }
    };
    let outcome = engine.shared.wait(&context.executor, &completion, deadline);
    if !outcome.as_ref().is_err_and(Error::is_timeout) {
        if outcome.is_ok() {
            packed.unpack();
        }
        let own = std::mem::take(&mut *packed);
        if completion.is_still_used() {
            own.abandon();
        }
        context.executor.unblock(completion);
    }
    outcome
}

/// The fast path of [`run`], for simple requests. After `None`, call [`run`] with the same
/// arguments: nothing has happened, or the operation is active. `no_wait` is for a call that may
/// not wait at all.
///
/// # Safety
/// That of [`run`].
#[inline]
pub unsafe fn try_run_fast(
    inside: &FastPath<'_>,
    group: GroupId,
    simple: &SimpleRequest,
    no_wait: bool,
) -> Option<()> {
    let context = Engine::known_context(inside, group)?;
    // SAFETY: the caller makes the promises of `run`.
    unsafe { context.executor.try_run_fast(simple, no_wait) }
}
