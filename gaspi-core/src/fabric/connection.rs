//! One stream to a peer: frames with descriptors and payloads out, bytes in.
//!
//! Whoever posts sends at once what the socket takes; the progress thread sends the rest. Nothing
//! here waits.

use super::frame::{FRAME_MAX, Frame, PREFIX};
use crate::os::event::Poll;
use crate::os::socket::{self, Piece};
use crate::segment::Segment;
use crate::sync::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who is on the other side, before it has said so.
const UNKNOWN: u32 = u32::MAX;

/// Bytes of a segment that go out behind a frame.
#[derive(Debug)]
pub(crate) struct Payload {
    pointer: *mut u8,
    len: usize,
    segment: Arc<Segment>,
}

// SAFETY: the pointer leads into the segment, which is kept; it is only read by the kernel.
unsafe impl Send for Payload {}

impl Payload {
    /// `len` bytes at `offset` of `segment`; the caller has checked the range.
    pub(crate) fn new(segment: Arc<Segment>, offset: u64, len: u64) -> Payload {
        let pointer = segment.pointer().wrapping_add(offset as usize);
        Payload { pointer, len: len as usize, segment }
    }
}

/// A frame on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    payload: Option<Payload>,
    sent: usize,
}

impl Outgoing {
    pub(crate) fn new(frame: &Frame) -> Outgoing {
        Outgoing { bytes: frame.encode(), descriptors: Vec::new(), payload: None, sent: 0 }
    }

    pub(crate) fn with_payload(frame: &Frame, payload: Payload) -> Outgoing {
        Outgoing { payload: Some(payload), ..Outgoing::new(frame) }
    }

    pub(crate) fn with_descriptors(
        frame: &Frame,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Outgoing> {
        let descriptors: io::Result<_> =
            descriptors.iter().map(BorrowedFd::try_clone_to_owned).collect();
        Ok(Outgoing { descriptors: descriptors?, ..Outgoing::new(frame) })
    }

    fn len(&self) -> usize {
        self.bytes.len() + self.payload.as_ref().map_or(0, |payload| payload.len)
    }

    /// As [`rest`](Outgoing::rest), with zeroes in the place of the payload.
    fn rest_without_payload(&self) -> [Piece; 2] {
        let [head, body] = self.rest();
        [head, Piece::of(&ZEROES[..body.len.min(ZEROES.len())])]
    }

    /// What is left of frame and payload.
    fn rest(&self) -> [Piece; 2] {
        let head = Piece::of(&self.bytes[self.sent.min(self.bytes.len())..]);
        let skip = self.sent.saturating_sub(self.bytes.len());
        let body = match &self.payload {
            Some(payload) => {
                Piece { pointer: payload.pointer.wrapping_add(skip), len: payload.len - skip }
            }
            None => Piece { pointer: std::ptr::null_mut(), len: 0 },
        };
        [head, body]
    }
}

/// Stands for a payload whose memory is gone.
static ZEROES: [u8; 4096] = [0; 4096];

#[derive(Debug, Default)]
struct Out {
    queue: VecDeque<Outgoing>,
    /// Whether the progress thread waits for room.
    armed: bool,
    broken: bool,
}

/// A stream to a peer.
#[derive(Debug)]
pub(crate) struct Connection {
    fd: OwnedFd,
    /// Its name in the poll set.
    pub(crate) token: u64,
    peer: AtomicU32,
    out: Mutex<Out>,
}

/// The stream has ended or failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

impl Connection {
    /// A stream that a peer opened; it says later who it is.
    pub(crate) fn accepted(fd: OwnedFd, token: u64) -> Connection {
        Connection { fd, token, peer: AtomicU32::new(UNKNOWN), out: Mutex::default() }
    }

    /// A stream opened to `peer`.
    pub(crate) fn opened(fd: OwnedFd, token: u64, peer: u16) -> Connection {
        Connection { fd, token, peer: AtomicU32::new(peer.into()), out: Mutex::default() }
    }

    pub(crate) fn peer(&self) -> Option<u16> {
        u16::try_from(self.peer.load(Ordering::Relaxed)).ok()
    }

    pub(crate) fn set_peer(&self, peer: u16) {
        self.peer.store(peer.into(), Ordering::Relaxed);
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends, or leaves it to the progress thread.
    pub(crate) fn send(&self, poll: &Poll, item: Outgoing) -> Result<(), Broken> {
        let mut out = self.out();
        out.queue.push_back(item);
        if out.queue.len() > 1 && !out.broken {
            return Ok(());
        }
        self.flush_locked(poll, &mut out)
    }

    /// Sends what there is room for.
    pub(crate) fn flush(&self, poll: &Poll) -> Result<(), Broken> {
        self.flush_locked(poll, &mut self.out())
    }

    fn flush_locked(&self, poll: &Poll, out: &mut Out) -> Result<(), Broken> {
        let mut blocked = false;
        while !out.broken && !blocked {
            let Some(item) = out.queue.front_mut() else { break };
            let descriptors: Vec<BorrowedFd<'_>> =
                item.descriptors.iter().map(AsFd::as_fd).collect();
            // Memory of the program may be gone once its segment was deleted: what is left of the
            // frame then goes out as zeroes, so that those behind it arrive.
            let accepts = item.payload.as_ref().map(|payload| payload.segment.accept());
            let pieces = if accepts.as_ref().is_none_or(|accepts| **accepts) {
                item.rest()
            } else {
                item.rest_without_payload()
            };
            // SAFETY: the frame is owned by the item, the payload's segment accepts while its lock
            // is held, the zeroes are constant.
            let sent = unsafe { socket::send(self.fd.as_fd(), pieces, &descriptors) };
            drop(accepts);
            match sent {
                Ok(sent) => {
                    item.sent += sent;
                    drop(descriptors);
                    item.descriptors.clear();
                    if item.sent == item.len() {
                        out.queue.pop_front();
                    }
                }
                Err(error) if socket::is_full(&error) => blocked = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => out.broken = true,
            }
        }
        if out.broken {
            out.queue.clear();
            return Err(Broken);
        }
        if blocked != out.armed && poll.change(self.fd.as_fd(), self.token, blocked).is_ok() {
            out.armed = blocked;
        }
        Ok(())
    }

    /// Ends the stream for both sides.
    pub(crate) fn shut_down(&self) {
        socket::shut_down(self.fd.as_fd());
    }

    /// Whether everything has been handed to the kernel.
    pub(crate) fn is_drained(&self) -> bool {
        self.out().queue.is_empty()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Bytes and descriptors that have arrived but are not a whole frame yet.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Bytes to make room for before receiving.
const CHUNK: usize = 64 * 1024;

impl Inbox {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The next whole frame; `Err` if what came is none.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Broken> {
        let bytes = self.bytes();
        let Some(prefix) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
        let len = u32::from_le_bytes(*prefix) as usize;
        if len > FRAME_MAX {
            return Err(Broken);
        }
        let Some(body) = bytes.get(PREFIX..PREFIX + len) else { return Ok(None) };
        let frame = Frame::decode(body).ok_or(Broken)?;
        self.start += PREFIX + len;
        Ok(Some(frame))
    }

    /// Takes up to `max` bytes that came along with the last frame.
    pub(crate) fn take(&mut self, max: usize) -> &[u8] {
        let from = self.start;
        self.start += max.min(self.end - self.start);
        &self.buffer[from..self.start]
    }

    /// Receives more; `Ok(false)` where there is nothing now.
    pub(crate) fn fill(&mut self, fd: BorrowedFd<'_>) -> Result<bool, Broken> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.buffer.len() < self.end + CHUNK {
            self.buffer.resize(self.end + CHUNK, 0);
        }
        let room = &mut self.buffer[self.end..];
        let piece = Piece { pointer: room.as_mut_ptr(), len: room.len() };
        // SAFETY: the piece is the free part of the buffer.
        let received = unsafe { receive(fd, piece, &mut self.descriptors) }?;
        self.end += received.unwrap_or(0);
        Ok(received.is_some())
    }
}

/// Receives straight into memory; `None` where there is nothing now.
///
/// # Safety
/// The piece is writable.
pub(crate) unsafe fn receive(
    fd: BorrowedFd<'_>,
    piece: Piece,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Option<usize>, Broken> {
    // SAFETY: the caller vouches for the piece.
    match unsafe { socket::receive(fd, piece, descriptors) } {
        Ok(0) => Err(Broken),
        Ok(received) => Ok(Some(received)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(Broken),
        },
    }
}
