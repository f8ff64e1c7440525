//! What is sent to a peer: handed to the connection with it, which is made if there is none, and
//! what is held back there for a moment.

use super::{EXPLAIN, EndpointTable};
use crate::error::{Error, Result};
use crate::ids::{QueueId, Rank};
use crate::policy::owner::PollOwner;
use crate::runtime::Inner;
use crate::sync::{Ordering, fence};
use crate::timeout::Deadline;
use crate::transport::tcp::connection::{Broken, Connection, Posted, Unsent};
use crate::transport::tcp::send_queue::{ChannelMessage, Item, Outgoing};
use std::cell::Cell;
use std::sync::Arc;

impl EndpointTable {
    /// Sends a frame to `rank`.
    pub(crate) fn send(
        &self,
        inner: &Inner,
        rank: Rank,
        item: Outgoing,
        deadline: Deadline,
    ) -> Result<()> {
        self.hand(inner, rank, deadline, item, |connection, item| {
            connection.send(&self.data, item).map(|()| Posted::default())
        })
    }

    /// Posts a put or a get to `rank`; not where the queue has lost a request to it, behind which
    /// it would have arrived.
    pub(crate) fn post(&self, inner: &Inner, rank: Rank, queue: QueueId, item: Item) -> Result<()> {
        self.hand(inner, rank, Deadline::Now, item, |connection, item| {
            // What was lost shows before a new connection can be used.
            if inner.queues.get(queue.index()).is_some_and(|queue| queue.has_lost(rank)) {
                return Err(Unsent::Stale);
            }
            connection.post(&self.data, queue, item)
        })
    }

    /// Posts a message of a channel to `rank`, to which messages were lost so often before the
    /// first one of the channel; none follows one that was lost. Its data is not needed any more
    /// then. False if there is no room now.
    ///
    /// # Safety
    /// The data is readable, and nobody else uses the slot until the message has been sent.
    pub(crate) unsafe fn post_message(
        &self,
        inner: &Inner,
        rank: Rank,
        losses: u64,
        message: ChannelMessage<'_>,
    ) -> Result<bool> {
        let full = Cell::new(false);
        self.hand(inner, rank, Deadline::Now, message, |connection, message| {
            // As above.
            if inner.channels.losses(rank) != losses {
                return Err(Unsent::Stale);
            }
            // SAFETY: as the caller says.
            let posted = unsafe { connection.post_message(&self.data, message) }?;
            full.set(posted.is_none());
            Ok(posted.unwrap_or_default())
        })?;
        Ok(!full.get())
    }

    /// Has a small request go along with whatever is sent to `rank` next, which is posted right
    /// behind it where it is `followed`. Else whoever waits next sends it, or the progress thread.
    pub(crate) fn post_along(
        &self,
        inner: &Inner,
        rank: Rank,
        queue: QueueId,
        item: Item,
        followed: bool,
    ) -> Result<()> {
        self.hand(inner, rank, Deadline::Now, item, |connection, item| {
            connection.post_along(queue, item, followed)
        })
    }

    /// Hands something to the connection that is used for requests to `rank`.
    pub(in crate::transport::tcp) fn hand<T>(
        &self,
        inner: &Inner,
        rank: Rank,
        deadline: Deadline,
        mut item: T,
        hand_over: impl Fn(&Connection, T) -> Result<Posted, Unsent<T>>,
    ) -> Result<()> {
        loop {
            let connection = self.connected(inner, rank, deadline)?;
            match hand_over(&connection, item) {
                Ok(posted) => {
                    if posted.corked {
                        self.note_corked(&connection);
                    }
                    if let Some(now_ns) = posted.soon_ns {
                        // Who posts all the time is about to wait, most likely: the progress thread
                        // need not run for each acknowledgement.
                        self.note_caller_poll();
                        self.note_posting(now_ns);
                    }
                    return Ok(());
                }
                Err(Unsent::Broken) => {
                    self.broke(inner, &connection);
                    return Ok(());
                }
                Err(Unsent::Closed(back)) => item = back,
                Err(Unsent::Stale) => {
                    let host = &inner.cards[rank.index()].host;
                    let reason = format!("the connection to {rank} on {host} broke");
                    return Err(inner.refused(rank, reason));
                }
            }
        }
    }

    /// The connection with `rank`, for something that has to be sent.
    fn connected(&self, inner: &Inner, rank: Rank, deadline: Deadline) -> Result<Arc<Connection>> {
        let mut result = self.open(inner, rank);
        if matches!(result, Err(Error::System { .. })) {
            // Somebody who ends refuses connections a moment before his end is known.
            inner.explain(rank, deadline.at_most(EXPLAIN));
            inner.check_alive(rank, "a connection to it")?;
            result = self.open(inner, rank);
            if matches!(result, Err(Error::System { .. })) {
                inner.set_corrupt(rank);
            }
        }
        result
    }

    /// Something is held back on a connection: the progress thread sends it should nobody else.
    fn note_corked(&self, connection: &Arc<Connection>) {
        self.corked.lock().push(Arc::clone(connection));
        self.any_corked.store(true, Ordering::Relaxed);
        // The thread says what it does next, and looks then whether something is held back: one of
        // both sees the other. While it ticks it comes by itself.
        fence(Ordering::SeqCst);
        if self.poll_owner() != PollOwner::Timer || self.ticks_slowly.load(Ordering::Relaxed) {
            self.wakeup.wake();
        }
    }

    /// Whether something may be held back.
    pub(crate) fn has_corked(&self) -> bool {
        self.any_corked.load(Ordering::Relaxed)
    }

    /// Sends what is held back; false if nothing is.
    pub(crate) fn flush_corked(&self, inner: &Inner) -> bool {
        if !self.has_corked() {
            return false;
        }
        self.any_corked.store(false, Ordering::Relaxed);
        let corked = std::mem::take(&mut *self.corked.lock());
        for connection in &corked {
            match connection.flush_corked(&self.data) {
                Ok(false) => {}
                Ok(true) => inner.area.wake(inner.rank),
                Err(Broken) => self.broke(inner, connection),
            }
        }
        true
    }
}
