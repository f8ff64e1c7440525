//! A connection whose bytes go back to its socket, and what that carries beside them.

use super::{Broken, ByteCarrier, Carrying, Connection, SendQueue};
use crate::os::event::Epoll;
use crate::os::socket::{self, Piece};
use crate::wire::frame::Frame;
use std::io;
use std::os::fd::BorrowedFd;

impl Connection {
    /// Tells the peer by the socket that nothing more is handled of what its device sends for this
    /// connection, ahead of everything else.
    pub(crate) fn say_back(&self, poll: &Epoll, back: &Frame) -> Result<(), Broken> {
        let mut out = self.out();
        // Nothing follows the last word, and the peer ends the connection when it hears that.
        let drained = out.carrying.other().is_none_or(ByteCarrier::is_drained);
        if out.usage.is_last() && out.is_idle() && drained {
            return Ok(());
        }
        back.append_to(&mut out.going_back.beside);
        self.flush_locked(poll, &mut out)
    }

    /// The peer has said that it handles nothing more of what was sent by this attempt at a pair,
    /// and how many messages of this number it has handled: what follows goes by the socket.
    /// Whether that has changed anything.
    ///
    /// # Errors
    /// The peer has not handled what its device has acknowledged.
    pub(crate) fn go_back(
        &self,
        poll: &Epoll,
        (attempt, number, messages): (u32, u32, u64),
    ) -> Result<bool, Broken> {
        let mut out = self.out();
        let goes_back = out.go_back(attempt, number, messages).map_err(|()| Broken)?;
        if goes_back {
            // Nothing waits for room in the send queue of the device any more, and in the socket
            // only what goes beside.
            out.room.awaited = std::mem::take(&mut out.going_back.awaited);
            self.flush_locked(poll, &mut out)?;
        }
        Ok(goes_back)
    }

    /// Whether the socket brings once more what another carrier may not have.
    pub(crate) fn is_sending_again(&self) -> bool {
        matches!(self.out().carrying, Carrying::Again(_))
    }

    /// Sends what goes beside the bytes of the connection, at the next boundary of a frame; whether
    /// the socket, which another carrier leaves to that, is full.
    pub(super) fn send_beside(
        &self,
        poll: &Epoll,
        fd: BorrowedFd<'_>,
        out: &mut SendQueue,
    ) -> Result<bool, Broken> {
        if out.carrying.other().is_none() {
            out.put_beside();
            return Ok(false);
        }
        while !out.going_back.beside.is_empty() {
            let pieces = [Piece::of(&out.going_back.beside), Piece::of(&[])];
            // SAFETY: owned here.
            match unsafe { socket::send(fd, pieces, &[]) } {
                Ok(sent) => drop(out.going_back.beside.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if socket::is_full(&error) => {
                    self.await_beside(poll, fd, out);
                    return Ok(true);
                }
                Err(_) => {
                    out.usage.note_broken();
                    socket::shut_down(fd);
                    return Err(Broken);
                }
            }
        }
        if std::mem::take(&mut out.going_back.awaited) {
            // Where this fails the set tells of room once more, for nothing.
            let _ = poll.change(fd, self.token, false);
        }
        Ok(false)
    }

    /// The receiving thread flushes when the socket has room.
    fn await_beside(&self, poll: &Epoll, fd: BorrowedFd<'_>, out: &mut SendQueue) {
        out.going_back.awaited = true;
        if out.room.direct_poll {
            out.room.awaited = true;
            self.rejoin_epoll_locked(poll, out);
        } else if let Err(error) = poll.change(fd, self.token, true) {
            log::debug!("waiting for room in a socket: {error}");
        }
    }
}
