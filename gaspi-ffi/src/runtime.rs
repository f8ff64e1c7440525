//! The one global of the project: the runtime of this process.
//!
//! Hot calls read it under an epoch guard, without a lock or a count; calls that may wait hold it
//! by its count, so that nothing waits inside a guard. `proc_term` unlinks it, waits until no
//! guard that may have seen it is alive, and gives up its own count.

use crate::error::{Failure, Outcome};
use crate::types::*;
use gaspi_core::sync::epoch;
use gaspi_core::{FastPath, Runtime, Timeout};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The count of the process itself; a forked child leaves it alone.
static OWNED: Mutex<Option<Arc<Runtime>>> = Mutex::new(None);
/// Where the owned runtime lies; NULL without one.
static CURRENT: AtomicPtr<Runtime> = AtomicPtr::new(ptr::null_mut());
/// Set from the start of `proc_init` to the end of `proc_term`, also where init timed out.
static ENGAGED: AtomicBool = AtomicBool::new(false);
/// Set in a child that was forked while this process was engaged.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The timeout of a C call.
#[inline]
pub(crate) fn timeout(milliseconds: gaspi_timeout_t) -> Timeout {
    match milliseconds {
        GASPI_TEST => Timeout::Test,
        GASPI_BLOCK => Timeout::Block,
        limit => Timeout::Millis(limit),
    }
}

/// Whether this process was forked from a rank, and so may take none of the library's locks.
pub(crate) fn refuse_fork() -> Outcome {
    if FORKED.load(Ordering::Relaxed) { Err(Failure::Forked) } else { Ok(()) }
}

/// The error without a runtime.
#[cold]
fn absent() -> Failure {
    refuse_fork().err().unwrap_or(Failure::NotInitialised)
}

/// Runs what takes nanoseconds, as far as nothing is in its way.
#[inline(always)]
pub(crate) fn try_fast<T>(call: impl FnOnce(FastPath<'_>) -> Option<T>) -> Option<T> {
    let guard = epoch::enter_fast()?;
    // Acquire: the runtime was built before it was published; pairs with the Release in `publish`.
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: it was current inside the guard, so `retire` waits for the guard before it drops.
    call(FastPath::new(unsafe { current.as_ref() }?, guard))
}

/// Runs a call that does not wait.
pub(crate) fn with<T>(call: impl FnOnce(&Runtime) -> Result<T, Failure>) -> Result<T, Failure> {
    // The slots of the epochs are taken under a lock, which a forked child must not touch.
    if CURRENT.load(Ordering::Relaxed).is_null() {
        return Err(absent());
    }
    let _guard = epoch::enter();
    // Acquire: the runtime was built before it was published; pairs with the Release in `publish`.
    let current = CURRENT.load(Ordering::Acquire);
    if current.is_null() {
        return Err(absent());
    }
    // SAFETY: it was current inside the guard, so `retire` waits for the guard before it drops.
    call(unsafe { &*current })
}

/// The runtime, alive as long as the result.
#[inline]
pub(crate) fn hold() -> Result<Arc<Runtime>, Failure> {
    if let Some(_guard) = epoch::enter_fast() {
        let current = CURRENT.load(Ordering::Acquire);
        if !current.is_null() {
            // SAFETY: it was current inside the guard, which keeps its count above zero.
            return Ok(unsafe { counted(current) });
        }
    }
    hold_slowly()
}

/// The same where a thread has not entered before, or not outermost.
#[cold]
fn hold_slowly() -> Result<Arc<Runtime>, Failure> {
    // SAFETY: the guard keeps its count above zero.
    with(|current| Ok(unsafe { counted(current) }))
}

/// A count of its own.
///
/// # Safety
/// It was published, and somebody keeps its count above zero.
unsafe fn counted(current: *const Runtime) -> Arc<Runtime> {
    // SAFETY: caller's promise; it lies in an `Arc`.
    unsafe { Arc::increment_strong_count(current) };
    // SAFETY: the count taken above becomes the one of the result.
    unsafe { Arc::from_raw(current) }
}

/// Whether there is a runtime.
pub(crate) fn is_present() -> bool {
    !CURRENT.load(Ordering::Relaxed).is_null()
}

fn owned() -> MutexGuard<'static, Option<Arc<Runtime>>> {
    OWNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a runtime current. The caller has made sure that there is none.
pub(crate) fn publish(runtime: Arc<Runtime>) {
    let mut owned = owned();
    let current = Arc::as_ptr(owned.insert(runtime)).cast_mut();
    // Release: pairs with the Acquire in `with`.
    CURRENT.store(current, Ordering::Release);
}

/// Takes the runtime away from all further calls. Calls that run on it go on.
pub(crate) fn unlink() -> Result<Arc<Runtime>, Failure> {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
    owned().take().ok_or_else(absent)
}

/// Gives up an unlinked runtime once no thread can reach it without holding a count.
pub(crate) fn retire(runtime: Arc<Runtime>) {
    epoch::synchronize();
    drop(runtime);
}

/// Runs in the child of a fork: what was copied is left alone, and every call says so.
extern "C" fn forked() {
    CURRENT.store(ptr::null_mut(), Ordering::Relaxed);
    if ENGAGED.swap(false, Ordering::Relaxed) {
        FORKED.store(true, Ordering::Relaxed);
    }
}

/// Whether this process is about to become a rank, is one, or is about to end being one: a child
/// forked then gets copies that are not its own.
pub(crate) fn engage(engaged: bool) {
    ENGAGED.store(engaged, Ordering::Relaxed);
}

/// From now on children of this process know that they are no ranks.
pub(crate) fn watch_forks() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if !WATCHING.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler only touches atomics, and the library is never unloaded.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        if failed != 0 {
            log::warn!("pthread_atfork failed; forked children must not call the library");
        }
    }
}
