//! A connection between a rank and its server: frames in and out, without blocking.

use super::message::{FRAME_MAX, Message};
use crate::os::socket::{self, Piece};
use crate::wire::codec::Decoded;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes to send and descriptors, shared with the other connections that get the same.
#[derive(Debug)]
struct Outgoing {
    bytes: Arc<[u8]>,
    sent: usize,
    descriptors: Vec<Arc<OwnedFd>>,
}

/// A non-blocking connection that speaks [`Message`]s.
#[derive(Debug)]
pub(crate) struct LocalConnection {
    fd: OwnedFd,
    incoming: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    outgoing: VecDeque<Outgoing>,
    ended: bool,
}

impl LocalConnection {
    pub(crate) fn new(fd: OwnedFd) -> LocalConnection {
        LocalConnection {
            fd,
            incoming: Vec::new(),
            descriptors: Vec::new(),
            outgoing: VecDeque::new(),
            ended: false,
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Queues a frame; `flush` sends it.
    pub(crate) fn queue(&mut self, bytes: Arc<[u8]>, descriptors: Vec<Arc<OwnedFd>>) {
        self.outgoing.push_back(Outgoing { bytes, sent: 0, descriptors });
    }

    /// Sends what there is room for; true once all is sent. Where the other side has gone there is
    /// nothing to send any more: what it said last can still be read.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(next) = self.outgoing.front_mut() {
            let pieces = [Piece::of(&next.bytes[next.sent..]), Piece::of(&[])];
            let descriptors: Vec<BorrowedFd<'_>> =
                next.descriptors.iter().map(|fd| fd.as_fd()).collect();
            // SAFETY: the pieces are slices that live across the call.
            match unsafe { socket::send(self.fd.as_fd(), pieces, &descriptors) } {
                Ok(sent) => {
                    next.sent += sent;
                    // Descriptors go with the first byte.
                    next.descriptors.clear();
                    if next.sent == next.bytes.len() {
                        self.outgoing.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // A user has no more descriptors under way than a process may have open: until
                // others have taken theirs.
                Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.outgoing.clear(),
            }
        }
        true
    }

    /// Reads what has come, at most about a frame, so that nobody can fill the memory; false if
    /// nothing has.
    pub(crate) fn fill(&mut self) -> bool {
        let mut buffer = [0u8; 16 * 1024];
        let before = self.incoming.len();
        while !self.ended && self.incoming.len() < FRAME_MAX {
            let piece = Piece { pointer: buffer.as_mut_ptr(), len: buffer.len() };
            // SAFETY: the buffer is writable for its whole length.
            match unsafe { socket::receive(self.fd.as_fd(), piece, &mut self.descriptors) } {
                Ok(0) => self.ended = true,
                Ok(len) => self.incoming.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.ended = true,
            }
        }
        self.incoming.len() > before
    }

    /// The next message that has come whole.
    pub(crate) fn next(&mut self) -> Decoded<Option<Message>> {
        let Some((message, len)) = Message::decode(&self.incoming)? else { return Ok(None) };
        self.incoming.drain(..len);
        Ok(Some(message))
    }

    /// The first descriptor that has come and was not taken yet.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        if self.descriptors.is_empty() { None } else { Some(self.descriptors.remove(0)) }
    }

    /// Whether the other side has closed.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }
}
