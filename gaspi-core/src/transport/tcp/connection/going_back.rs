//! A connection whose bytes go back to its socket, or on by the next carrier, and what the socket
//! carries beside them.

use super::{Broken, ByteCarrier, Carrying, Connection, Outgoing, SendQueue, Unsent};
use crate::os::event::Epoll;
use crate::os::socket::{self, Piece};
use crate::wire::frame::Frame;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

impl Connection {
    /// What follows is to go by another carrier; false if the connection has one, or is ending.
    pub(crate) fn carry_by(&self, poll: &Epoll, carrier: Arc<dyn ByteCarrier>) -> bool {
        let mut out = self.out();
        // A goodbye that is to be said waits for data.
        let ends = out.usage.is_ending() && out.withheld.is_empty();
        let begins = match out.carrying {
            Carrying::Socket => self.fd().is_some() && !ends,
            Carrying::Waiting(_) => true,
            _ => false,
        };
        let over = out.going_back.has_ended(carrier.attempt());
        if !begins || over || out.usage.is_broken() {
            return false;
        }
        out.carry_next(carrier);
        // Where it has broken, its end is dealt with like any other's.
        let _ = self.flush_unless_full(poll, &mut out);
        true
    }

    /// Tells the peer by the socket that nothing more is handled of what its device sends for this
    /// connection, ahead of everything else.
    pub(crate) fn say_back(&self, poll: &Epoll, back: &Frame) -> Result<(), Broken> {
        let mut out = self.out();
        // Nothing follows the last word, and the peer ends the connection when it hears that.
        let carried = out.carrying.other().is_none_or(ByteCarrier::is_drained);
        let drained = carried && !out.carrying.is_held();
        if out.usage.is_last() && out.is_idle() && drained {
            return Ok(());
        }
        back.append_to(&mut out.going_back.beside);
        self.flush_locked(poll, &mut out)
    }

    /// The peer has said that it handles nothing more of what was sent by this attempt at a pair,
    /// and how many messages of this number it has handled: what follows goes by the socket, or
    /// waits for the next carrier. Whether that has changed anything.
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
            out.room.awaited = out.going_back.awaited;
            out.going_back.awaited &= !out.carrying.is_by_socket();
            self.flush_locked(poll, &mut out)?;
        }
        Ok(goes_back)
    }

    /// Sends a frame by the socket, beside the bytes of the connection, where data has to go
    /// otherwise; else among them.
    pub(crate) fn send_control(
        &self,
        poll: &Epoll,
        item: Outgoing,
    ) -> Result<(), Unsent<Outgoing>> {
        let mut out = self.out();
        if out.usage.is_let_go() {
            return Err(Unsent::Closed(item));
        }
        out.usage.note_asked();
        let sent = if !out.withheld.withholds() {
            self.send_locked(poll, &mut out, item)
        } else if out.usage.is_last() {
            Ok(())
        } else {
            out.push_beside(item);
            self.flush_locked(poll, &mut out)
        };
        sent.map_err(|Broken| Unsent::Broken)
    }

    /// Whether its socket carries its bytes.
    pub(crate) fn is_by_socket(&self) -> bool {
        self.out().carrying.is_by_socket()
    }

    /// Whether its socket carries its bytes, and nothing else is to.
    pub(crate) fn is_by_socket_alone(&self) -> bool {
        matches!(self.out().carrying, Carrying::Socket | Carrying::Again(_))
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
        if out.carrying.is_by_socket() {
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
