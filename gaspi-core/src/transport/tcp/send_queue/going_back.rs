//! The way of a connection's bytes back to its socket, when what has carried them is no more.
//!
//! Behind the news that another carrier follows, the socket stands at the boundary of a frame. So
//! it can carry frames *beside* the bytes of the connection, and all of them later: first data that
//! was written ahead and may not have come, then bytes that may not have, then the rest.
//!
//! Where no socket may carry data, and there is some, they wait for the next carrier instead. It
//! goes on under a number of its own, which the socket says beside.
//!
//! Invariant: what is on the wire stands still until all in front of it has been sent again.

use super::{Carrying, Outgoing, OutgoingBody, SendQueue};
use crate::transport::CHUNK;
use crate::transport::payload::Payload;
use crate::transport::tcp::byte_carrier::{ByteCarrier, Kept};
use crate::wire::frame::Frame;
use crate::wire::message::{Put, RemoteAddress};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// What is sent by the socket before anything else, and what follows it.
#[derive(Debug)]
pub(in crate::transport::tcp) struct SentAgain {
    data: VecDeque<(Put, Payload)>,
    /// The news of it, bytes that may not have come, and what was on the wire.
    pub(super) wire: Vec<u8>,
    body: Option<OutgoingBody>,
}

/// What goes by the socket whatever carries the bytes.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) struct GoingBack {
    /// Frames beside the bytes of the connection.
    pub(in crate::transport::tcp) beside: Vec<u8>,
    /// Whether they wait for room in the socket.
    pub(in crate::transport::tcp) awaited: bool,
    /// The peer's end of this attempt at a pair, and of all before, is no more.
    ended: u32,
    /// Whether what is on the wire, its payload included, may carry data of the program.
    pub(in crate::transport::tcp) has_data: bool,
}

impl GoingBack {
    /// Whether something goes beside the bytes of the connection.
    #[inline]
    pub(in crate::transport::tcp) fn has_any_beside(&self) -> bool {
        !self.beside.is_empty()
    }

    /// Whether a carrier by this attempt can be used no more.
    pub(in crate::transport::tcp) fn has_ended(&self, attempt: u32) -> bool {
        attempt <= self.ended
    }
}

impl SendQueue {
    /// Whether the socket, which carries the bytes, stands at the boundary of a frame.
    fn is_at_boundary(&self) -> bool {
        let behind_wire = self.body.is_some() && self.wire.is_empty();
        self.sent == 0 && !behind_wire && self.by_page.pipe.is_none()
    }

    /// A frame that goes beside the bytes.
    pub(in crate::transport::tcp) fn push_beside(&mut self, frame: Outgoing) {
        self.going_back.beside.extend(frame.bytes);
    }

    /// Puts what goes beside the bytes in front of them, if the socket carries both.
    pub(in crate::transport::tcp) fn put_beside(&mut self) {
        if self.is_at_boundary() {
            let mut wire = std::mem::take(&mut self.going_back.beside);
            wire.append(&mut self.wire);
            self.wire = wire;
        }
    }

    /// The peer handles nothing more that comes by this attempt at a pair. Of the bytes that were
    /// sent by it under this number it has handled so many messages. Whether the connection leaves
    /// its carrier for that.
    ///
    /// # Errors
    /// The peer does not say what it has to.
    pub(in crate::transport::tcp) fn go_back(
        &mut self,
        attempt: u32,
        number: u32,
        messages: u64,
    ) -> Result<bool, ()> {
        self.going_back.ended = self.going_back.ended.max(attempt);
        if self.usage.is_broken() {
            // What was sent ends with the connection.
            return Ok(false);
        }
        match std::mem::take(&mut self.carrying) {
            Carrying::Next(carrier) if carrier.attempt() <= attempt => {
                carrier.leave_to_socket();
                Ok(true)
            }
            // Nothing was sent under the number yet.
            Carrying::Switching(carrier) if carrier.attempt() <= attempt => {
                Frame::Resume { number: carrier.number() }.append_to(&mut self.wire);
                carrier.leave_to_socket();
                Ok(true)
            }
            Carrying::Other(carrier) | Carrying::Continuing(carrier)
                if carrier.attempt() <= attempt =>
            {
                let handled = if number == carrier.number() { messages } else { 0 };
                let Some(kept) = carrier.take_back(handled) else {
                    // Nothing may overtake what is lost.
                    self.usage.note_broken();
                    return Err(());
                };
                if self.may_go_by_socket(&kept, &*carrier) {
                    self.send_again(carrier.number(), kept);
                    carrier.leave_to_socket();
                } else {
                    self.await_next(carrier.number(), kept);
                }
                Ok(true)
            }
            carrying => {
                self.carrying = carrying;
                Ok(false)
            }
        }
    }

    /// Whether the socket may carry what was not handled, and what is queued: it is no data, or
    /// data may go anywhere. What follows data that is queued may not overtake it.
    fn may_go_by_socket(&self, kept: &[Kept], carrier: &dyn ByteCarrier) -> bool {
        if !self.withheld.withholds() {
            return true;
        }
        let is_data = |kept: &Kept| matches!(kept, Kept::Bytes { has_data: true, .. });
        let is_begun = self.going_back.has_data || kept.iter().any(is_data);
        let is_queued = !self.streams.is_empty() || self.control.iter().any(|next| next.has_data);
        !is_begun && !is_queued && carrier.is_drained()
    }

    /// No socket may carry what follows: it stays where it is.
    fn await_next(&mut self, number: u32, kept: Vec<Kept>) {
        let mut wire = Vec::new();
        for kept in kept {
            if let Kept::Bytes { bytes, .. } = kept {
                wire.extend(bytes);
            }
        }
        wire.extend_from_slice(&self.wire[self.sent..]);
        if !wire.is_empty() || self.body.is_none() {
            (self.wire, self.sent) = (wire, 0);
        }
        // Else the frame has been sent, and stands in front of what is left of its payload.
        self.going_back.has_data = !self.wire.is_empty();
        self.carrying = Carrying::Waiting(number);
    }

    /// What follows is to go by this carrier, which the peer is told: behind what the socket
    /// carries, or beside the bytes where it carries none.
    pub(in crate::transport::tcp) fn carry_next(&mut self, carrier: Arc<dyn ByteCarrier>) {
        let Carrying::Waiting(continues) = self.carrying else {
            self.carrying = Carrying::Next(carrier);
            return;
        };
        let (attempt, number) = (carrier.attempt(), carrier.number());
        Frame::Switch { attempt, number, continues }.append_to(&mut self.going_back.beside);
        self.carrying = Carrying::Continuing(carrier);
    }

    /// Has a carrier go on that follows another one, once all that lies ahead is written; whether
    /// bytes have something that carries them.
    ///
    /// # Errors
    /// What lies ahead cannot be written any more.
    pub(in crate::transport::tcp) fn go_on_by_next(&mut self) -> io::Result<bool> {
        let Carrying::Continuing(carrier) = &self.carrying else {
            return Ok(!self.carrying.is_held());
        };
        if !carrier.write_kept()? {
            return Ok(false);
        }
        self.carrying = Carrying::Other(Arc::clone(carrier));
        // Behind data that was queued before.
        let mut withheld = self.withheld.take();
        self.control.append(&mut withheld);
        Ok(true)
    }

    fn send_again(&mut self, number: u32, kept: Vec<Kept>) {
        let (mut data, mut wire) = (VecDeque::new(), Vec::new());
        Frame::Resume { number }.append_to(&mut wire);
        for kept in kept {
            match kept {
                Kept::Bytes { bytes, .. } => wire.extend(bytes),
                Kept::Data(put, payload) => data.push_back((put, payload)),
            }
        }
        wire.extend_from_slice(&self.wire[self.sent..]);
        (self.wire, self.sent) = (Vec::new(), 0);
        let body = self.body.take();
        self.carrying = Carrying::Again(Box::new(SentAgain { data, wire, body }));
    }

    /// Puts the next part of what is sent again on the wire, if there is any.
    pub(super) fn refill_again(&mut self) {
        let Carrying::Again(again) = &mut self.carrying else { return };
        if !self.wire.is_empty() {
            return;
        }
        let Some((put, payload)) = again.data.front_mut() else {
            (self.wire, self.body) = (std::mem::take(&mut again.wire), again.body.take());
            if self.wire.is_empty() {
                self.carrying = Carrying::Socket;
            }
            return;
        };
        // In parts, none of which completes anything.
        let size = put.size.min(CHUNK);
        Frame::Put(Put { size, last: false, value: 0, ..*put }).append_to(&mut self.wire);
        let behind = payload.behind(size);
        let payload = std::mem::replace(payload, behind);
        self.body = Some(OutgoingBody { payload, sent: 0, size, piped: false });
        put.size -= size;
        put.remote = RemoteAddress { offset: put.remote.offset + size, ..put.remote };
        if put.size == 0 {
            again.data.pop_front();
        }
    }
}
