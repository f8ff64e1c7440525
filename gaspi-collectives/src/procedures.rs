//! The procedures of collective operations: start, continue, wait, free.

use gaspi_core::sync::Mutex;
use std::sync::Arc;

use gaspi_core::{Error, FastPath, GroupId, Result, Runtime, Timeout};

use crate::checked_request::{CheckedRequest, check_sizes};
use crate::engine::{Engine, Entry, Prepared};
use crate::exec::completion::Completion;
use crate::exec::pack::PackBuffers;
use crate::request::{Request, SimpleRequest};

/// An operation that was started or prepared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub u64);

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
/// # Safety The memory of the request is readable (send) and writable (receive). Until the
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
    let engine = Engine::of(rt);
    let deadline = timeout.deadline();
    let context = engine.context(rt, group, timeout)?;
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
    let call = CheckedRequest::new(request, &context.executor)?;
    let plan = call.cached_plan(engine, &context)?;
    let signature = call.signature(&plan);
    let arguments = call.arguments(signature);
    let completion = match context.executor.continued(arguments)? {
        Some(completion) => completion,
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
    let outcome = engine.wait(&context.executor, &completion, deadline);
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

/// Starts an operation. All members start the operations of a group in the same order, in which
/// they run. Only the first one of a group waits, at most `timeout`, until all members have started
/// one; after a timeout, call again.
///
/// # Errors
/// Those of [`run`] that come from arguments.
///
/// # Safety
/// That of [`run`].
pub unsafe fn start(
    rt: &Runtime,
    group: GroupId,
    request: &Request,
    timeout: Timeout,
) -> Result<Handle> {
    let engine = Engine::of(rt);
    let context = engine.context(rt, group, timeout)?;
    let call = CheckedRequest::new(request, &context.executor)?;
    let plan = call.cached_plan(engine, &context)?;
    let mut packed = PackBuffers::default();
    // SAFETY: the caller makes the promises; packed memory lives as long as the operation.
    let buffers = unsafe { call.buffers(&plan, &mut packed) }?;
    packed.pack();
    let completion = Arc::new(Completion::new(call.signature(&plan), request.background));
    if request.background {
        engine.start_background_thread()?;
    }
    context.executor.start(&completion, &plan, &call.arithmetic(), buffers)?;
    if request.background {
        engine.notify_background(&context.executor);
    }
    let executor = Arc::clone(&context.executor);
    Ok(Handle(engine.register(Entry {
        completion,
        executor,
        prepared: None,
        unpacks: packed.has_output(),
        packed: Mutex::new(packed),
    })))
}

/// Prepares an operation that can be started repeatedly. It has a channel of its own, so it
/// overlaps with all others, in any order. All members of the group prepare it together; after a
/// timeout, call again.
///
/// # Errors
/// As [`start`].
///
/// # Safety That of [`run`], as long as the handle lives and whenever the operation is active.
pub unsafe fn prepare(
    rt: &Runtime,
    group: GroupId,
    request: &Request,
    timeout: Timeout,
) -> Result<Handle> {
    let engine = Engine::of(rt);
    check_sizes(request, rt.group_ranks(group)?.len())?;
    let executor = engine.open(rt, group, timeout)?;
    let prepared = (|| {
        let call = CheckedRequest::new(request, &executor)?;
        let key = call.key();
        let plan = key.plan(&call.shape(&key), engine.preferred()?)?;
        let mut packed = PackBuffers::default();
        // SAFETY: the caller makes the promises; packed memory lives as long as the operation.
        let buffers = unsafe { call.buffers(&plan, &mut packed) }?;
        let completion = Arc::new(Completion::new(call.signature(&plan), request.background));
        let arithmetic = call.arithmetic();
        let prepared = Some(Prepared { plan, arithmetic, buffers });
        let executor = Arc::clone(&executor);
        let unpacks = packed.has_output();
        Ok(Entry { completion, executor, prepared, packed: Mutex::new(packed), unpacks })
    })();
    match prepared {
        Ok(entry) => Ok(Handle(engine.register(entry))),
        Err(error) => {
            engine.close(&executor);
            Err(error)
        }
    }
}

/// Starts a prepared operation that is not active.
///
/// # Errors [`Error::InvalidOperation`]: the handle is not that of a prepared operation, or it is
/// active; [`Error::RankDied`]; and those that ended an earlier run.
pub fn restart(rt: &Runtime, handle: Handle) -> Result<()> {
    let engine = Engine::of(rt);
    let entry = engine.entry(handle.0)?;
    let Some(prepared) = &entry.prepared else {
        return Err(misused(handle, "it was started once and cannot be started again"));
    };
    // Another thread may be starting it.
    let Some(mut packed) = entry.packed.try_lock() else {
        return Err(misused(handle, "another thread is starting it"));
    };
    if entry.completion.is_active() {
        return Err(misused(handle, "it is under way; wait for it, then start it again"));
    }
    let background = entry.completion.background;
    if background {
        engine.start_background_thread()?;
    }
    packed.pack();
    let Prepared { plan, arithmetic, buffers } = prepared;
    entry.executor.start(&entry.completion, plan, arithmetic, *buffers)?;
    if background {
        engine.notify_background(&entry.executor);
    }
    Ok(())
}

/// Drives an operation, and returns whether it has ended. A prepared operation that is not active
/// has ended. The handle of one that runs once is released when this returns true or an error.
///
/// # Errors [`Error::InvalidOperation`], and the error of the operation.
pub fn test(rt: &Runtime, handle: Handle) -> Result<bool> {
    match wait(rt, handle, Timeout::Test) {
        Ok(()) => Ok(true),
        Err(error) if error.is_timeout() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits until an operation has ended. Otherwise like [`test`].
///
/// # Errors [`Error::Timeout`]: the operation goes on and can be waited for again; and those of
/// [`test`].
pub fn wait(rt: &Runtime, handle: Handle, timeout: Timeout) -> Result<()> {
    let engine = Engine::of(rt);
    let entry = engine.entry(handle.0)?;
    if entry.prepared.is_some() && entry.completion.is_idle() {
        return Ok(());
    }
    let outcome = engine.wait(&entry.executor, &entry.completion, timeout.deadline());
    if outcome.as_ref().is_err_and(Error::is_timeout) {
        return outcome;
    }
    if outcome.is_ok() && entry.unpacks {
        let mut packed = entry.packed.lock();
        // Another thread that waited may have started the operation again.
        if !entry.completion.is_active() {
            packed.unpack();
        }
    }
    if entry.prepared.is_none() {
        // Two threads may have waited.
        engine.release(handle.0);
    }
    outcome
}

/// Frees a prepared operation that is not active.
///
/// # Errors [`Error::InvalidOperation`]: it is active, or there is none.
pub fn free(rt: &Runtime, handle: Handle) -> Result<()> {
    let engine = Engine::of(rt);
    let entry = engine.entry(handle.0)?;
    if entry.completion.is_active() {
        return Err(misused(handle, "it is under way; wait for it, then free it"));
    }
    if engine.release(handle.0).is_some() && entry.prepared.is_some() {
        engine.close(&entry.executor);
    }
    Ok(())
}

/// Whether the handle is valid: the operation was not freed and, unless it is prepared, has not
/// ended.
pub fn exists(rt: &Runtime, handle: Handle) -> bool {
    Engine::of(rt).entry(handle.0).is_ok()
}

#[cold]
fn misused(handle: Handle, reason: &str) -> Error {
    Error::InvalidOperation { handle: handle.0, reason: reason.to_owned() }
}
