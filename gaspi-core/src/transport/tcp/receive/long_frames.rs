//! Frames that take many looks at a socket: they are received behind what has come of them, and not
//! copied to the buffer and back each time.

use super::{Broken, Incoming, MANY, Received, Receiver, USUAL, receive};
use crate::os::socket::Piece;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::connection::Connection;
use crate::wire::frame::{FRAME_MAX, PREFIX};
use std::os::fd::BorrowedFd;

impl Incoming {
    /// How many bytes are missing of a long frame that has begun to come.
    pub(super) fn left_of_long(&self) -> Option<usize> {
        let len = u32::from_le_bytes(*self.partial.first_chunk::<PREFIX>()?) as usize;
        let is_long = (USUAL..=FRAME_MAX).contains(&len);
        (PREFIX + len).checked_sub(self.partial.len()).filter(|left| is_long && *left > 0)
    }
}

impl Receiver {
    /// Receives more of a long frame, of which so many bytes are missing, and handles it once it is
    /// whole.
    pub(super) fn long_frame(
        &mut self,
        tcp: Tcp<'_>,
        connection: &Connection,
        fd: BorrowedFd<'_>,
        incoming: &mut Incoming,
        left: usize,
    ) -> Result<Received, Broken> {
        let (have, want) = (incoming.partial.len(), left.min(MANY));
        incoming.partial.resize(have + want, 0);
        let piece = Piece { pointer: incoming.partial[have..].as_mut_ptr(), len: want };
        // SAFETY: the piece is a part of what has come, made longer for this.
        let received = unsafe { receive(connection, fd, piece, &mut incoming.served.descriptors) };
        let count = received.as_ref().map_or(0, |received| received.unwrap_or(0));
        incoming.partial.truncate(have + count);
        if received?.is_none() {
            return Ok(Received::Nothing);
        }
        if count == left {
            let whole = std::mem::take(&mut incoming.partial);
            self.make_room(whole.len());
            self.buffer[..whole.len()].copy_from_slice(&whole);
            self.take_frames(tcp, connection, incoming, whole.len())?;
        }
        Ok(if count < want { Received::All } else { Received::Some })
    }
}
