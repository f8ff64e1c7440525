//! One address that is being tried: the handshake and the welcome, as bytes over a socket.

use crate::error::Error;
use crate::os::socket::{self, Piece};
use crate::os::tcp;
use crate::wire::handshake::{Client, Server, State};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// What welcomes a connection that is to carry frames.
const WELCOME: u8 = 1;

/// One address that is being tried.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) endpoint: SocketAddr,
    pub(super) fd: OwnedFd,
    pub(super) client: Client,
    /// The peer's kernel has answered: whoever listens there may take its time.
    pub(super) connected: bool,
    /// Both sides have proved who they are.
    pub(super) proved: bool,
    /// Whether the peer has to welcome the connection then.
    pub(super) welcome: bool,
    pub(super) until: Instant,
}

/// Who answered at an address where the rank did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The kernel: nobody listens there.
    Refused,
    /// Somebody else, who may have closed the connection.
    Other,
    /// Nobody.
    None,
}

/// What became of an attempt.
pub(super) enum Outcome {
    Pending,
    Done,
    Failed {
        reason: String,
        answer: Answer,
    },
    /// The other side has closed the connection.
    Ended {
        reason: String,
    },
}

/// Takes an attempt further.
pub(super) fn advance(attempt: &mut Attempt) -> Outcome {
    let fd = attempt.fd.as_fd();
    if !attempt.connected {
        match tcp::outcome(fd) {
            Ok(false) => return Outcome::Pending,
            Ok(true) => attempt.connected = true,
            Err(error) => {
                let reason = error.to_string();
                return match error.kind() {
                    // Accepted and closed before this was looked at.
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                        Outcome::Ended { reason }
                    }
                    kind => {
                        let refused = kind == io::ErrorKind::ConnectionRefused;
                        let answer = if refused { Answer::Refused } else { Answer::None };
                        Outcome::Failed { reason, answer }
                    }
                };
            }
        }
    }
    let open = talk(fd, &mut attempt.client);
    match attempt.client.state() {
        State::Done(_) => {
            // The proof fits into an empty socket.
            send_all(fd, &mut attempt.client);
            attempt.proved = true;
            if attempt.welcome { hear_welcome(fd) } else { Outcome::Done }
        }
        State::Refused(reason) => Outcome::Failed { reason: reason.clone(), answer: Answer::Other },
        State::Pending if open => Outcome::Pending,
        State::Pending => Outcome::Ended { reason: attempt.client.ended() },
    }
}

/// One side of a handshake.
pub(super) trait Speaker {
    fn output(&self) -> &[u8];
    fn sent(&mut self, count: usize);
    fn wants(&self) -> usize;
    fn receive(&mut self, bytes: &[u8]) -> usize;
}

macro_rules! speaker {
    ($side:ident) => {
        impl Speaker for $side {
            fn output(&self) -> &[u8] {
                self.output()
            }
            fn sent(&mut self, count: usize) {
                self.sent(count);
            }
            fn wants(&self) -> usize {
                self.wants()
            }
            fn receive(&mut self, bytes: &[u8]) -> usize {
                self.receive(bytes)
            }
        }
    };
}

speaker!(Client);
speaker!(Server);

fn send_all(fd: BorrowedFd<'_>, speaker: &mut impl Speaker) {
    while !speaker.output().is_empty() {
        let pieces = [Piece::of(speaker.output()), Piece::of(&[])];
        // SAFETY: a slice that lives across the call.
        match unsafe { socket::send(fd, pieces, &[]) } {
            Ok(count) => speaker.sent(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Says and hears what can be said and heard now; false once the other side has closed.
pub(super) fn talk(fd: BorrowedFd<'_>, speaker: &mut impl Speaker) -> bool {
    loop {
        send_all(fd, speaker);
        let wants = speaker.wants();
        if wants == 0 {
            return true;
        }
        let mut bytes = [0u8; 256];
        let piece = Piece { pointer: bytes.as_mut_ptr(), len: wants.min(bytes.len()) };
        // SAFETY: the array is writable for that length.
        match unsafe { socket::receive(fd, piece, &mut Vec::new()) } {
            Ok(0) => return false,
            Ok(count) => {
                speaker.receive(&bytes[..count]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

/// Says that frames may follow; false if that is not possible any more.
pub(super) fn say_welcome(fd: BorrowedFd<'_>) -> bool {
    let pieces = [Piece::of(&[WELCOME]), Piece::of(&[])];
    // SAFETY: a slice that lives across the call. It fits into an empty socket.
    matches!(unsafe { socket::send(fd, pieces, &[]) }, Ok(1))
}

/// Whether frames may follow: what comes behind this byte is not read.
fn hear_welcome(fd: BorrowedFd<'_>) -> Outcome {
    let mut byte = [0u8; 1];
    let piece = Piece { pointer: byte.as_mut_ptr(), len: byte.len() };
    let ended = |reason: &str| Outcome::Ended { reason: reason.to_owned() };
    // SAFETY: the array is writable.
    match unsafe { socket::receive_bytes(fd, piece) } {
        Ok(0) => ended("the rank closed the connection before it was used"),
        Ok(_) if byte == [WELCOME] => Outcome::Done,
        Ok(_) => ended("the rank said what nobody expects"),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Outcome::Pending,
            _ => ended(&error.to_string()),
        },
    }
}

/// Whether descriptors, memory or ports of this side have run out. `known` says that the address
/// has been connected to before: else there may be none here that could.
pub(super) fn is_lack(error: &io::Error, known: bool) -> bool {
    let lacks = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    let is_one = |number| lacks.contains(&number) || known && number == libc::EADDRNOTAVAIL;
    error.raw_os_error().is_none_or(is_one)
}

pub(super) fn other(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}

pub(super) fn nonce() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_address_lacks_a_port() {
        let lacks = |number, known| is_lack(&io::Error::from_raw_os_error(number), known);
        assert_eq!([false, true].map(|known| lacks(libc::EADDRNOTAVAIL, known)), [false, true]);
        assert_eq!([false, true].map(|known| lacks(libc::EMFILE, known)), [true; 2]);
        assert_eq!([false, true].map(|known| lacks(libc::ENETUNREACH, known)), [false; 2]);
    }
}
