//! Connections on which something is held back for a moment, to share a system call with what comes
//! next.
//!
//! Invariant: a connection is in the list before `any` is set, and `any` is cleared before the list
//! is taken, so that no connection stays behind unseen.

use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::transport::tcp::connection::Connection;
use std::sync::Arc;

/// Connections on which something is held back, and whether there are any.
#[derive(Debug, Default)]
pub(super) struct Corked {
    connections: Mutex<Vec<Arc<Connection>>>,
    any: AtomicBool,
}

impl Corked {
    /// Something is held back on a connection.
    pub(super) fn push(&self, connection: &Arc<Connection>) {
        self.connections.lock().push(Arc::clone(connection));
        self.any.store(true, Ordering::Relaxed);
    }

    /// Whether something may be held back.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// All of them, which are here no longer.
    pub(super) fn take(&self) -> Vec<Arc<Connection>> {
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.connections.lock())
    }
}
