//! The completion of an operation, for the threads that started it and that wait for it.

use std::fmt;

use gaspi_core::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use gaspi_core::{Error, Result};

/// States of a [`Completion`].
mod status {
    /// Not started yet.
    pub(super) const IDLE: u8 = 0;
    pub(super) const ACTIVE: u8 = 1;
    pub(super) const DONE: u8 = 2;
    pub(super) const FAILED: u8 = 3;
}

/// Who is told of the end of an operation, while its executor is locked: nothing there waits.
pub(crate) trait EndHook: fmt::Debug + Send + Sync {
    fn ended(&self, outcome: &Result<()>);
}

/// Whether an operation has ended, and how.
#[derive(Debug)]
pub(crate) struct Completion {
    status: AtomicU8,
    error: Mutex<Option<Error>>,
    /// The signature of the operation, for messages.
    pub(crate) signature: u64,
    /// The background thread drives it.
    pub(crate) background: bool,
    /// It failed, and other members may still access its memory, which is then never freed.
    pub(super) still_used: AtomicBool,
    /// It ends only when no other member can access its memory, however long that takes.
    pub(super) until_unused: bool,
    /// Who is told of each end.
    hook: Option<Arc<dyn EndHook>>,
    /// It was given up before its end.
    pub(super) cancelled: AtomicBool,
}

impl Completion {
    pub(crate) fn new(signature: u64, background: bool) -> Completion {
        let status = AtomicU8::new(status::IDLE);
        Completion {
            status,
            error: Mutex::default(),
            signature,
            background,
            still_used: AtomicBool::new(false),
            until_unused: false,
            hook: None,
            cancelled: AtomicBool::new(false),
        }
    }

    /// The same for memory that is only lent: the operation ends when no other member can access
    /// it, however long that takes.
    pub(crate) fn until_unused(self) -> Completion {
        Completion { until_unused: true, ..self }
    }

    /// The same for an operation of whose ends somebody is told.
    pub(crate) fn with_hook(self, hook: Arc<dyn EndHook>) -> Completion {
        Completion { hook: Some(hook), ..self }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.status.load(Ordering::Acquire) == status::ACTIVE
    }

    /// Whether it was never started.
    pub(crate) fn is_idle(&self) -> bool {
        self.status.load(Ordering::Acquire) == status::IDLE
    }

    /// The outcome, once it has ended.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        // Acquire: the results were written before; pairs with the Release in `end`.
        match self.status.load(Ordering::Acquire) {
            status::DONE => Some(Ok(())),
            status::FAILED => {
                let error = self.error.lock().clone();
                Some(Err(error.unwrap_or(Error::NotInitialised)))
            }
            _ => None,
        }
    }

    /// Whether other members may access its memory although it has ended.
    pub(crate) fn is_still_used(&self) -> bool {
        self.still_used.load(Ordering::Relaxed)
    }

    /// Whether somebody is told of its end, without asking for it.
    pub(super) fn tells_at_once(&self) -> bool {
        self.hook.is_some()
    }

    pub(super) fn begin(&self) {
        *self.error.lock() = None;
        self.still_used.store(false, Ordering::Relaxed);
        self.status.store(status::ACTIVE, Ordering::Release);
    }

    pub(super) fn end(&self, outcome: Result<()>) {
        let status = match &outcome {
            Ok(()) => status::DONE,
            Err(error) => {
                *self.error.lock() = Some(error.clone());
                status::FAILED
            }
        };
        self.status.store(status, Ordering::Release);
        if let Some(hook) = &self.hook {
            hook.ended(&outcome);
        }
    }
}
