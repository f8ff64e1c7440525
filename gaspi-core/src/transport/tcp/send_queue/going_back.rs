//! The way of a connection's bytes back to its socket, when what has carried them is no more.
//!
//! Behind the news that another carrier follows, the socket stands at the boundary of a frame. So
//! it can carry frames *beside* the bytes of the connection, and all of them later: first data that
//! was written ahead and may not have come, then bytes that may not have, then the rest.
//!
//! Invariant: what is on the wire stands still until all in front of it has been sent again.

use super::{Carrying, OutgoingBody, SendQueue};
use crate::transport::CHUNK;
use crate::transport::payload::Payload;
use crate::transport::tcp::byte_carrier::Kept;
use crate::wire::frame::Frame;
use crate::wire::message::{Put, RemoteAddress};
use std::collections::VecDeque;

/// What is sent by the socket before anything else, and what follows it.
#[derive(Debug)]
pub(in crate::transport::tcp) struct SentAgain {
    data: VecDeque<(Put, Payload)>,
    /// The news of it, bytes that may not have come, and what was on the wire.
    wire: Vec<u8>,
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

impl Carrying {
    /// Whether what another carrier may not have brought is being sent, of which no byte may be
    /// missing.
    pub(super) fn is_sending_again(&self) -> bool {
        matches!(self, Carrying::Again(again) if !again.wire.is_empty())
    }

    /// Nothing is sent any more.
    pub(super) fn forget_again(&mut self) {
        if matches!(self, Carrying::Again(_)) {
            *self = Carrying::Socket;
        }
    }
}

impl SendQueue {
    /// Whether the socket, which carries the bytes, stands at the boundary of a frame.
    fn is_at_boundary(&self) -> bool {
        let behind_wire = self.body.is_some() && self.wire.is_empty();
        self.sent == 0 && !behind_wire && self.by_page.pipe.is_none()
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
    /// sent by it under this number it has handled so many messages. Whether the connection goes on
    /// by its socket from here.
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
        match std::mem::take(&mut self.carrying) {
            Carrying::Next(carrier) if carrier.attempt() <= attempt => Ok(true),
            // Nothing was sent under the number yet.
            Carrying::Switching(carrier) if carrier.attempt() <= attempt => {
                Frame::Resume { number: carrier.number() }.append_to(&mut self.wire);
                Ok(true)
            }
            Carrying::Other(carrier) if carrier.attempt() <= attempt => {
                let handled = if number == carrier.number() { messages } else { 0 };
                let Some(kept) = carrier.take_back(handled) else {
                    // Nothing may overtake what is lost.
                    self.usage.note_broken();
                    return Err(());
                };
                self.send_again(carrier.number(), kept);
                Ok(true)
            }
            carrying => {
                self.carrying = carrying;
                Ok(false)
            }
        }
    }

    fn send_again(&mut self, number: u32, kept: Vec<Kept>) {
        let (mut data, mut wire) = (VecDeque::new(), Vec::new());
        Frame::Resume { number }.append_to(&mut wire);
        for kept in kept {
            match kept {
                Kept::Bytes(bytes) => wire.extend(bytes),
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
