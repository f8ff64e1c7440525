//! The lock of the start and the end of the rank, and a start that is not finished.

use crate::error::Failure;
use gaspi_core::PendingInit;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// A start that ran into its timeout; the next `proc_init` continues it. Locked by the thread that
/// starts or ends the rank.
static LIFECYCLE: Mutex<Option<PendingInit>> = Mutex::new(None);

/// Only one thread starts or ends the rank; another one gets an error instead of waiting past its
/// timeout.
pub(crate) fn lifecycle() -> Result<MutexGuard<'static, Option<PendingInit>>, Failure> {
    match LIFECYCLE.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Failure::Rejected(
            "another thread is inside gaspi_proc_init or gaspi_proc_term; wait for it".to_owned(),
        )),
    }
}

/// Whether the configuration is in use already.
pub(crate) fn is_starting() -> bool {
    LIFECYCLE.try_lock().map_or(true, |joining| joining.is_some())
}
