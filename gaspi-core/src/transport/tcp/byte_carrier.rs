//! What carries the bytes of a connection in place of its socket, which then only tells by its end
//! that the connection has ended.
//!
//! A connection begins on its socket. Once it may use something faster its sender says so behind a
//! frame ([`Frame::Switch`](crate::wire::frame::Frame)), and everything behind goes the other way:
//! the order of a connection is that of its bytes, whatever carries them.

use crate::os::socket::Piece;
use std::fmt::Debug;
use std::io;

/// The sending half.
pub(crate) trait ByteCarrier: Debug + Send + Sync {
    /// The number by which the peer tells these bytes from others.
    fn number(&self) -> u32;

    /// Sends bytes of both pieces, in order, as many as there is room for; how many. Where there is
    /// none for any, whoever makes room flushes the connection.
    ///
    /// # Errors
    /// EAGAIN without room; anything else ends the connection.
    ///
    /// # Safety
    /// The pieces are readable.
    unsafe fn send(&self, pieces: [Piece; 2]) -> io::Result<usize>;

    /// Whether all has arrived. If not, the connection is flushed when it has.
    fn is_drained(&self) -> bool;
}
