//! What carries the bytes of a connection in place of its socket, which then only tells by its end
//! that the connection has ended.
//!
//! A connection begins on its socket. Once it may use something faster its sender says so behind a
//! frame ([`Frame::Switch`](crate::wire::frame::Frame)), and everything behind goes the other way:
//! the order of a connection is that of its bytes, whatever carries them.
//!
//! Where the carrier ends before the connection does, the bytes go back to the socket, or on by the
//! next carrier where no socket may have them. So the carrier keeps what may not have arrived.

use crate::os::socket::Piece;
use crate::transport::payload::{ChannelMessage, Payload};
use crate::wire::message::Put;
use std::fmt::Debug;
use std::io;

/// What has become of the data of a message that was to be written ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// It arrives before what is sent from now on.
    Written,
    /// Once there is room for it; whoever makes room flushes the connection.
    Waits,
    /// It has to go along.
    GoesAlong,
}

/// What was sent by a carrier that is no more, and may not have arrived.
#[derive(Debug)]
pub(crate) enum Kept {
    /// Of frames, some of which may carry data of the program.
    Bytes { bytes: Vec<u8>, has_data: bool },
    /// Data of a message, which was written ahead of it, and where it belongs.
    Data(Put, Payload),
}

/// The sending half.
pub(crate) trait ByteCarrier: Debug + Send + Sync {
    /// The number by which the peer tells these bytes from others.
    fn number(&self) -> u32;

    /// The number of the attempt by which it came to be: what ends with one ends with all before.
    fn attempt(&self) -> u32;

    /// Sends bytes of both pieces, in order, as many as there is room for; how many. Where there is
    /// none for any, whoever makes room flushes the connection. Whether they may carry data of the
    /// program is [kept](Kept) with them.
    ///
    /// # Errors
    /// EAGAIN without room, or where the bytes are to [go back](ByteCarrier::take_back); anything
    /// else ends the connection.
    ///
    /// # Safety
    /// The pieces are readable.
    unsafe fn send(&self, pieces: [Piece; 2], has_data: bool) -> io::Result<usize>;

    /// Writes the data of a message straight to where it belongs, if that can be done; a failure
    /// shows when something is sent.
    ///
    /// # Safety
    /// The data is readable, and nobody else uses the slot until the message has been taken.
    unsafe fn write_ahead(&self, message: &ChannelMessage<'_>) -> Ahead;

    /// Whether all has arrived. If not, the connection is flushed when it has.
    fn is_drained(&self) -> bool;

    /// What has not arrived, in order, where the peer has handled so many messages and will handle
    /// no more. `None` if that cannot be, or is not known.
    ///
    /// Where no socket may have data, only bytes are given: what was written ahead is written again
    /// by the [next carrier](ByteCarrier::write_kept).
    fn take_back(&self, messages: u64) -> Option<Vec<Kept>>;

    /// The socket carries what follows: no other carrier goes on with it.
    fn leave_to_socket(&self) {}

    /// Writes data that an earlier carrier may not have brought, and that goes ahead of what is
    /// sent by this one: all of it, or what there is room for; whoever makes room flushes the
    /// connection.
    ///
    /// # Errors
    /// The data may not be read any more, which ends the connection.
    fn write_kept(&self) -> io::Result<bool> {
        Ok(true)
    }
}
