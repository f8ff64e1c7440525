//! How many bytes are received at once: data that has a destination is not received elsewhere
//! first.

use super::Incoming;
use crate::config::CHANNELS;
use crate::ids::Rank;
use crate::transport::posted_receives::HEAD_BYTES;
use crate::transport::software_target::IncomingBody;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::connection::Connection;
use crate::wire::frame::{ACK_LEN, Frame, PUT_LEN};

/// Bytes to receive at once, where small frames are expected.
pub(super) const MANY: usize = 64 * 1024;
/// Bytes to receive at once behind a large payload: the frame of the next one, which goes to its
/// place, not here, and where whole pages are copied as such.
const FEW: usize = PUT_LEN;
/// The same behind a message of a channel: the next one comes with an acknowledgement and the news
/// of slots, most often of up to three channels, in front of it, and its head goes to the slot.
const FEW_OF_CHANNEL: usize = ACK_LEN + 4 * PUT_LEN + HEAD_BYTES;

impl Incoming {
    /// How many bytes to receive at once where a frame is expected.
    pub(super) fn want(&self) -> usize {
        if self.few == 0 { MANY } else { self.few }
    }

    /// Something is to be received. A message that has a destination may begin with it, whose data
    /// is then not received here.
    pub(super) fn begin(&mut self, tcp: Tcp<'_>, connection: &Connection) {
        let may_begin = self.served.body.is_none() && !connection.local;
        let peer = connection.peer().filter(|_| may_begin && self.few < FEW_OF_CHANNEL);
        if peer.is_some_and(|peer| tcp.table.posted_receives.expects(Rank(peer))) {
            self.few = FEW_OF_CHANNEL;
        }
    }
}

/// Whether a frame comes between messages, however many of its kind: an acknowledgement, or the
/// news of slots.
pub(super) fn is_between_messages(frame: &Frame) -> bool {
    match frame {
        Frame::Ack { .. } => true,
        Frame::Put(put) => put.size == 0 && put.stream.queue == CHANNELS,
        _ => false,
    }
}

/// How many bytes to receive at once where the frame behind a payload is expected.
pub(super) fn few_behind(body: &IncomingBody) -> usize {
    if body.is_of_channel() { FEW_OF_CHANNEL } else { FEW }
}
