//! A TCP connection between the servers of an exchange, from the handshake to the frames of the
//! relay protocol, without blocking. What goes over it is encrypted, once the handshake is over.

use crate::os::socket::{self, Piece};
use crate::os::tcp;
use crate::wire::handshake::{Handshake, Side, State};
use crate::wire::record_layer::RecordLayer;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes read at a time.
const READ: usize = 16 * 1024;
/// Bytes that are encrypted at a time.
const PIECE: usize = 64 * 1024;
/// How often, a second apart, the kernel asks one that has been silent for a second, and how long
/// that is in all.
const PROBES: u8 = 4;
const SILENCE: Duration = Duration::from_secs(1 + PROBES as u64);
/// How often to look whether something is acknowledged.
const LOOK: Duration = Duration::from_secs(1);

/// A connection that carries bytes in both directions.
#[derive(Debug)]
pub(super) struct TcpConnection {
    fd: OwnedFd,
    /// Where the other end is.
    pub(super) peer: SocketAddr,
    records: RecordLayer,
    /// What is still to be sent, in clear: other connections may share it.
    out: VecDeque<Arc<[u8]>>,
    /// Bytes of the first that are in `encrypted` already, or were sent.
    taken: usize,
    /// What goes next.
    encrypted: Vec<u8>,
    /// Bytes of that which were sent.
    sent: usize,
    /// When to look whether what was sent is acknowledged.
    look_at: Option<Instant>,
    /// Why it ended.
    ended: Option<String>,
}

impl TcpConnection {
    /// Over which both sides have proved to know the key, from which `records` was made.
    pub(super) fn new(fd: OwnedFd, peer: SocketAddr, records: RecordLayer) -> TcpConnection {
        // What cannot be set is a matter of speed, and of how soon an end is noticed.
        let _ = tcp::set_no_delay(fd.as_fd());
        let _ = tcp::set_keepalive(fd.as_fd(), 1, 1, PROBES);
        TcpConnection {
            fd,
            peer,
            records,
            out: VecDeque::new(),
            taken: 0,
            encrypted: Vec::new(),
            sent: 0,
            look_at: None,
            ended: None,
        }
    }

    /// Ends the connection where what this side has said is not answered at all: while it is not
    /// acknowledged, the kernel does not ask.
    pub(super) fn look_for_silence(&mut self) {
        let now = Instant::now();
        if self.look_at.is_none_or(|at| now < at) || self.ended.is_some() {
            return;
        }
        let awaits = tcp::has_unacknowledged(self.fd.as_fd()).unwrap_or(false);
        self.look_at = awaits.then(|| now + LOOK);
        if awaits && tcp::is_unanswered(self.fd.as_fd(), SILENCE).unwrap_or(false) {
            self.ended = Some("its machine does not answer".to_owned());
        }
    }

    /// When to [look](TcpConnection::look_for_silence) next.
    pub(super) fn look_at(&self) -> Option<Instant> {
        self.look_at.filter(|_| self.ended.is_none())
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Why it ended, if it has.
    pub(super) fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Whether there is something to send.
    pub(super) fn is_pending(&self) -> bool {
        self.ended.is_none() && (self.sent < self.encrypted.len() || !self.out.is_empty())
    }

    pub(super) fn queue(&mut self, bytes: Vec<Arc<[u8]>>) {
        self.out.extend(bytes);
    }

    /// Sends what there is room for.
    pub(super) fn flush(&mut self) {
        while self.ended.is_none() {
            if self.sent == self.encrypted.len() {
                self.encrypt_next();
            }
            if self.encrypted.is_empty() {
                return;
            }
            match send(self.fd.as_fd(), &self.encrypted[self.sent..]) {
                Ok(Some(count)) => {
                    self.sent += count;
                    self.look_at.get_or_insert_with(|| Instant::now() + LOOK);
                }
                Ok(None) => return,
                // What the other side said last can still be read, which then tells the end.
                Err(_) => {
                    self.out.clear();
                    self.encrypted.clear();
                    (self.taken, self.sent) = (0, 0);
                }
            }
        }
    }

    /// Encrypts the next bytes, some [`PIECE`] of them: a table for many hosts lies here once, in
    /// clear, and not for each of them.
    fn encrypt_next(&mut self) {
        self.encrypted.clear();
        self.sent = 0;
        while let Some(first) = self.out.front().filter(|_| self.encrypted.len() < PIECE) {
            let end = first.len().min(self.taken + PIECE);
            self.records.seal(&first[self.taken..end], &mut self.encrypted);
            self.taken = end;
            if end == first.len() {
                self.out.pop_front();
                self.taken = 0;
            }
        }
    }

    /// Appends what has come; false if nothing has.
    pub(super) fn read(&mut self, to: &mut Vec<u8>) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let mut came = Vec::new();
        match receive(self.fd.as_fd(), READ, &mut came) {
            Ok(Some(0)) => self.ended = Some("it was closed".to_owned()),
            Ok(Some(_)) => match self.records.open(&came, to) {
                Ok(()) => return true,
                Err(tampered) => self.ended = Some(tampered.to_string()),
            },
            Ok(None) => {}
            Err(error) => self.ended = Some(error.to_string()),
        }
        false
    }
}

impl Drop for TcpConnection {
    fn drop(&mut self) {
        // The last word shall arrive: closing with unread bytes would take it back.
        self.flush();
        socket::end_sending(self.fd.as_fd());
        let mut rest = Vec::new();
        while self.read(&mut rest) && rest.len() < 64 * READ {}
    }
}

fn passing<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<Option<usize>> {
    // SAFETY: the bytes live across the call.
    passing(unsafe { socket::send(fd, [Piece::of(bytes), Piece::of(&[])], &[]) })
}

/// Sends the first bytes of a connection, for which the kernel has room.
///
/// # Errors
/// In words.
pub(super) fn send_first(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Ok(());
    }
    match send(fd, bytes) {
        Ok(Some(count)) if count == bytes.len() => Ok(()),
        Ok(_) => Err("the kernel has no room for the first bytes".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn receive(
    fd: BorrowedFd<'_>,
    limit: usize,
    to: &mut Vec<u8>,
) -> io::Result<Option<usize>> {
    let mut buffer = [0u8; READ];
    let piece = Piece { pointer: buffer.as_mut_ptr(), len: limit.min(READ) };
    // SAFETY: the buffer is writable for that length.
    let received = passing(unsafe { socket::receive(fd, piece, &mut Vec::new()) })?;
    to.extend_from_slice(&buffer[..received.unwrap_or(0)]);
    Ok(received)
}

/// Continues a handshake as far as it goes without waiting; the outcome once there is one.
pub(super) fn continue_handshake(
    fd: BorrowedFd<'_>,
    side: &mut Handshake<impl Side>,
) -> Option<State> {
    loop {
        while !side.output().is_empty() {
            match send(fd, side.output()) {
                Ok(Some(count)) => side.sent(count),
                Ok(None) => return None,
                Err(_) => return Some(State::Refused(side.ended())),
            }
        }
        let wants = side.wants();
        if wants == 0 {
            return Some(side.state().clone());
        }
        let mut bytes = Vec::with_capacity(wants);
        match receive(fd, wants, &mut bytes) {
            Ok(Some(1..)) => {
                side.receive(&bytes);
            }
            Ok(None) => return None,
            Ok(Some(0)) | Err(_) => return Some(State::Refused(side.ended())),
        }
    }
}
