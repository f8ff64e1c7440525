//! Whether a socket has room, and what the poll set says of it.

/// Who waits for room in the socket of a connection.
///
/// Invariant: a message waits at most until all that was in its way has been sent once.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) struct Room {
    /// Whether the receiving thread waits for room: the socket had none at the last attempt.
    pub(in crate::transport::tcp) awaited: bool,
    /// Whether the socket is out of the set of those that are waited for.
    pub(in crate::transport::tcp) direct_poll: bool,
    /// How often all has been sent, and how often it had been when a message began to wait for
    /// that.
    drains: u64,
    waits_since: Option<u64>,
}

impl Room {
    /// All has been sent.
    #[inline]
    pub(in crate::transport::tcp) fn note_drained(&mut self) {
        self.drains += 1;
    }

    /// Whether a message that `would` wait for room does: not after all has been sent since it
    /// began to.
    #[inline]
    pub(super) fn has_to_wait(&mut self, would: bool) -> bool {
        let waits = would && *self.waits_since.get_or_insert(self.drains) == self.drains;
        if !waits {
            self.waits_since = None;
        }
        waits
    }
}
