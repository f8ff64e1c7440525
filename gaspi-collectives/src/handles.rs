//! Operations by number, for the C layer. Programs in Rust have [`Prepared`](crate::Prepared) and
//! [`Started`](crate::Started).

use gaspi_core::{Error, GroupId, Result, Runtime, Timeout, may_wait};

use crate::broadcast_list::{self, BroadcastList};
use crate::engine::Engine;
use crate::operations::{self, MemoryTerms};
use crate::request::Request;

/// An operation that was started or prepared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub u64);

/// Starts an operation. All members start the operations of a group in the same order, in which
/// they run. Only the first one of a group waits, at most `timeout`, until all members have started
/// one; after a timeout, call again.
///
/// # Errors
/// Those of [`run`](crate::run) that come from arguments.
///
/// # Safety
/// That of [`run`](crate::run).
pub unsafe fn start(
    rt: &Runtime,
    group: GroupId,
    request: &Request,
    timeout: Timeout,
) -> Result<Handle> {
    // SAFETY: the caller's promise.
    let operation = unsafe { operations::start(rt, group, request, MemoryTerms::OF_C, timeout) }?;
    Ok(Handle(Engine::of(rt).register(operation)))
}

/// Starts the broadcast of a list.
///
/// # Errors
/// Those of [`run_broadcast_list`](crate::run_broadcast_list) that come from arguments.
///
/// # Safety
/// That of [`run_broadcast_list`](crate::run_broadcast_list).
pub unsafe fn start_broadcast_list(
    rt: &Runtime,
    group: GroupId,
    list: &BroadcastList,
    timeout: Timeout,
) -> Result<Handle> {
    // SAFETY: the caller's promise.
    let operation = unsafe { broadcast_list::start(rt, group, list, MemoryTerms::OF_C, timeout) }?;
    Ok(Handle(Engine::of(rt).register(operation)))
}

/// Prepares an operation that can be started repeatedly. It has a channel of its own, so it
/// overlaps with all others, in any order. All members of the group prepare it together; after a
/// timeout, call again.
///
/// # Errors
/// As [`start`].
///
/// # Safety
/// That of [`run`](crate::run), as long as the handle lives and whenever the operation is active.
pub unsafe fn prepare(
    rt: &Runtime,
    group: GroupId,
    request: &Request,
    timeout: Timeout,
) -> Result<Handle> {
    // SAFETY: the caller's promise.
    let operation = unsafe { operations::prepare(rt, group, request, MemoryTerms::OF_C, timeout) }?;
    Ok(Handle(Engine::of(rt).register(operation)))
}

/// Starts a prepared operation that is not active.
///
/// # Errors
/// [`Error::InvalidOperation`]: the handle is not that of a prepared operation, or it is
/// active; [`Error::RankDied`]; and those that ended an earlier run.
pub fn restart(rt: &Runtime, handle: Handle) -> Result<()> {
    let engine = Engine::of(rt);
    let operation = engine.entry(handle.0)?;
    if operation.is_prepared() && operation.completion.background {
        engine.start_background_thread()?;
    }
    operation.start(&engine.shared).unwrap_or_else(|reason| Err(misused(handle, reason)))
}

/// Drives an operation, and returns whether it has ended. A prepared operation that is not active
/// has ended. The handle of one that runs once is released when this returns true or an error.
///
/// # Errors
/// [`Error::InvalidOperation`], and the error of the operation.
pub fn test(rt: &Runtime, handle: Handle) -> Result<bool> {
    match wait(rt, handle, Timeout::Test) {
        Ok(()) => Ok(true),
        Err(error) if error.is_timeout() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits until an operation has ended. Otherwise like [`test`].
///
/// # Errors
/// [`Error::Timeout`]: the operation goes on and can be waited for again; and those of
/// [`test`].
pub fn wait(rt: &Runtime, handle: Handle, timeout: Timeout) -> Result<()> {
    let engine = Engine::of(rt);
    let operation = engine.entry(handle.0)?;
    may_wait(timeout, "waiting for an operation")?;
    let outcome = operation.wait(&engine.shared, timeout.deadline());
    let has_ended = !outcome.as_ref().is_err_and(Error::is_timeout);
    if has_ended && !operation.is_prepared() {
        // Two threads may have waited.
        engine.release(handle.0);
    }
    outcome
}

/// Frees a prepared operation that is not active.
///
/// # Errors
/// [`Error::InvalidOperation`]: it is active, or there is none.
pub fn free(rt: &Runtime, handle: Handle) -> Result<()> {
    let engine = Engine::of(rt);
    let operation = engine.entry(handle.0)?;
    if operation.is_active() {
        return Err(misused(handle, "it is under way; wait for it, then free it"));
    }
    if engine.release(handle.0).is_some() && operation.is_prepared() {
        engine.shared.close(&operation.executor);
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
