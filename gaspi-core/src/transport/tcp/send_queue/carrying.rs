//! What carries the bytes of a connection.

use super::going_back::SentAgain;
use crate::os::socket::{self, Piece};
use crate::transport::tcp::byte_carrier::ByteCarrier;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// What carries the bytes.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) enum Carrying {
    #[default]
    Socket,
    /// The socket up to here, then this.
    Next(Arc<dyn ByteCarrier>),
    /// The same, which the peer is being told.
    Switching(Arc<dyn ByteCarrier>),
    Other(Arc<dyn ByteCarrier>),
    /// The socket, which brings once more what another one may not have.
    Again(Box<SentAgain>),
    /// Nothing: the next one goes on from the bytes with this number, which no socket may have.
    Waiting(u32),
    /// This one goes on from those of another one, once it has written data that lies ahead.
    Continuing(Arc<dyn ByteCarrier>),
}

impl Carrying {
    /// What carries bytes in place of the socket.
    pub(in crate::transport::tcp) fn other(&self) -> Option<&dyn ByteCarrier> {
        match self {
            Carrying::Other(carrier) => Some(carrier.as_ref()),
            _ => None,
        }
    }

    /// Sends as much as there is room for.
    ///
    /// # Safety
    /// The pieces are readable.
    pub(super) unsafe fn send(
        &self,
        fd: BorrowedFd<'_>,
        pieces: [Piece; 2],
        descriptors: &[BorrowedFd<'_>],
        has_data: bool,
    ) -> io::Result<usize> {
        // SAFETY: as the caller says.
        unsafe {
            match self.other() {
                Some(carrier) => carrier.send(pieces, has_data),
                None => socket::send(fd, pieces, descriptors),
            }
        }
    }
}

impl Carrying {
    /// Whether what another carrier may not have brought is being sent, of which no byte may be
    /// missing.
    pub(super) fn is_sending_again(&self) -> bool {
        matches!(self, Carrying::Again(again) if !again.wire.is_empty())
    }

    /// Whether the socket carries the bytes.
    #[inline]
    pub(in crate::transport::tcp) fn is_by_socket(&self) -> bool {
        use Carrying::{Again, Next, Socket, Switching};
        matches!(self, Socket | Next(_) | Switching(_) | Again(_))
    }

    /// Whether nothing carries them now: they wait for the next carrier, or for what goes ahead.
    #[inline]
    pub(in crate::transport::tcp) fn is_held(&self) -> bool {
        matches!(self, Carrying::Waiting(_) | Carrying::Continuing(_))
    }

    /// Nothing is sent any more.
    pub(super) fn forget_again(&mut self) {
        if matches!(self, Carrying::Again(_)) || self.is_held() {
            *self = Carrying::Socket;
        }
    }
}
