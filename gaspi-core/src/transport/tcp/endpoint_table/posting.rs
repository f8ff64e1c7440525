//! What is sent to a peer: handed to the connection with it, which is made if there is none, and
//! what is held back there for a moment.

use super::EndpointTable;
use crate::error::{Error, Result};
use crate::ids::{QueueId, Rank};
use crate::os::cancel;
use crate::sync::{Ordering, fence};
use crate::transport::payload::ChannelMessage;
use crate::transport::tcp::connection::{Broken, Connection, Posted, Unsent};
use crate::transport::tcp::send_queue::{Encode, Item, Outgoing};
use crate::transport::{Behind, Upcalls};
use std::cell::Cell;
use std::sync::Arc;

impl EndpointTable {
    /// Sends a frame to `rank`, which is encoded where it is handed over; `has_data` says that it
    /// has data of the program.
    pub(crate) fn send_frame(
        &self,
        up: &dyn Upcalls,
        rank: Rank,
        frame: &impl Encode,
        has_data: bool,
    ) -> Result<()> {
        self.hand(up, rank, (frame, has_data), |connection, item| {
            connection.send_frame(&self.sets.data, item, || ()).map(|()| Posted::default())
        })
    }

    /// Sends what settles a pair of devices. Where it settles how connections are carried, it goes
    /// `beside` their bytes, since it may not wait for that itself.
    pub(crate) fn send_pairing(
        &self,
        up: &dyn Upcalls,
        rank: Rank,
        item: Outgoing,
        beside: bool,
    ) -> Result<()> {
        self.hand(up, rank, item, |connection, item| {
            connection.note_pairing();
            let data = &self.sets.data;
            let sent = if beside {
                connection.send_control(data, item)
            } else {
                connection.send(data, item, || ())
            };
            sent.map(|()| Posted::default())
        })
    }

    /// Posts a put or a get to `rank`; not where the queue has lost a request to it, behind which
    /// it would have arrived.
    pub(crate) fn post(
        &self,
        up: &dyn Upcalls,
        rank: Rank,
        queue: QueueId,
        item: Item,
    ) -> Result<()> {
        self.hand(up, rank, item, |connection, item| {
            // What was lost shows before a new connection can be used.
            if up.is_stale(rank, Behind::Queue(queue)) {
                return Err(Unsent::Stale);
            }
            connection.post(&self.sets.data, queue, item, || ())
        })
    }

    /// Posts a message of a channel to `rank`, to which messages were lost so often before the
    /// first one of the channel; none follows one that was lost. Its data is not needed any more
    /// then. False if there is no room now, or no device carries the bytes of the connection yet
    /// where that has to (`by_device_only`).
    ///
    /// # Safety
    /// The data is readable, and nobody else uses the slot until the message has been sent.
    pub(crate) unsafe fn post_message(
        &self,
        up: &dyn Upcalls,
        rank: Rank,
        (losses, by_device_only): (u64, bool),
        message: ChannelMessage<'_>,
    ) -> Result<bool> {
        let full = Cell::new(false);
        self.hand(up, rank, message, |connection, message| {
            // As above.
            if up.is_stale(rank, Behind::Channel { losses }) {
                return Err(Unsent::Stale);
            }
            // SAFETY: as the caller says.
            let posted =
                unsafe { connection.post_message(&self.sets.data, message, by_device_only) }?;
            full.set(posted.is_none());
            Ok(posted.unwrap_or_default())
        })?;
        Ok(!full.get())
    }

    /// Has a small request go along with whatever is sent to `rank` next, which is posted right
    /// behind it where it is `followed`. Else whoever waits next sends it, or the progress thread.
    pub(crate) fn post_along(
        &self,
        up: &dyn Upcalls,
        rank: Rank,
        queue: QueueId,
        item: Item,
        followed: bool,
    ) -> Result<()> {
        self.hand(up, rank, item, |connection, item| connection.post_along(queue, item, followed))
    }

    /// Hands something to the connection that is used for requests to `rank`.
    pub(in crate::transport::tcp) fn hand<T>(
        &self,
        up: &dyn Upcalls,
        rank: Rank,
        mut item: T,
        hand_over: impl Fn(&Connection, T) -> Result<Posted, Unsent<T>>,
    ) -> Result<()> {
        let _uncancelled = cancel::hold_off();
        loop {
            let connection = self.connected(up, rank)?;
            match hand_over(&connection, item) {
                Ok(posted) => {
                    if posted.corked {
                        self.note_corked(&connection);
                    }
                    if let Some(now_ns) = posted.soon_ns {
                        // Who posts all the time is about to wait, most likely: the progress thread
                        // need not run for each acknowledgement.
                        self.polling.note_caller_poll();
                        self.polling.note_posting(now_ns);
                    }
                    return Ok(());
                }
                Err(Unsent::Broken) => {
                    self.broke(up, &connection);
                    return Ok(());
                }
                Err(Unsent::Closed(back)) => item = back,
                Err(Unsent::Stale) => {
                    let host = up.ranks().host_of(rank);
                    let reason = format!("the connection to {rank} on {host} broke");
                    return Err(up.ranks().refused(rank, reason));
                }
            }
        }
    }

    /// The connection with `rank`, for something that has to be sent.
    fn connected(&self, up: &dyn Upcalls, rank: Rank) -> Result<Arc<Connection>> {
        let mut result = self.open(up, rank);
        if matches!(result, Err(Error::System { .. })) {
            // A rank that ends refuses connections a moment before its end is known.
            up.ranks().check_alive(rank, "a connection to it")?;
            result = self.open(up, rank);
            if matches!(result, Err(Error::System { .. })) {
                up.ranks().set_corrupt(rank);
            }
        }
        result
    }

    /// Something is held back on a connection: the progress thread sends it should nobody else.
    fn note_corked(&self, connection: &Arc<Connection>) {
        self.corked.push(connection);
        // The thread says what it does next, and looks then whether something is held back: one of
        // both sees the other. While it ticks it comes by itself.
        fence(Ordering::SeqCst);
        if !self.polling.ticks_soon() {
            self.sets.wakeup.wake();
        }
    }

    /// Whether something may be held back.
    pub(crate) fn has_corked(&self) -> bool {
        self.corked.has_any()
    }

    /// Sends what is held back; false if nothing is.
    pub(crate) fn flush_corked(&self, up: &dyn Upcalls) -> bool {
        if !self.has_corked() {
            return false;
        }
        let _uncancelled = cancel::hold_off();
        for connection in &self.corked.take() {
            match connection.flush_corked(&self.sets.data) {
                Ok(false) => {}
                Ok(true) => up.ranks().wake_own(),
                Err(Broken) => self.broke(up, connection),
            }
        }
        true
    }
}
