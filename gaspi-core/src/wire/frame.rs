//! The messages between the libraries of two ranks, as bytes. No sockets here.
//!
//! ```text
//! frame    length u32 of what follows | kind u8 | fields, little-endian | payload, not counted
//! text     length u32 | UTF-8
//! ranks    count u32 | u16 each
//! ```
//!
//! A large put travels in several frames. Only `Put` and `Data` have a payload, whose length is a
//! field. Lengths are bounded before they are used.

mod encoding;

pub(crate) use encoding::Encode;

use super::message::{AtomicOperation, Message, Put, Register, RemoteAddress, Stream};
use crate::ids::Rank;

/// Bytes of the length in front of a frame.
pub(crate) const PREFIX: usize = 4;
/// The longest frame without its payload: the lines of 65,535 members and some fields.
pub(crate) const FRAME_MAX: usize = 4 << 20;
/// Bytes of a put as a frame, its length in front.
pub(crate) const PUT_LEN: usize = 40;
/// Bytes of an acknowledgement as a frame.
pub(crate) const ACK_LEN: usize = 13;
/// The largest payload: transfer_size_max.
pub(crate) const PAYLOAD_MAX: u64 = 1 << 30;
/// The first word of a connection within a node; changes with the format.
const MAGIC: u32 = 0x4741_000f;

/// A message between two libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// First on every connection within a node: who connects.
    Hello {
        rank: Rank,
        token: [u8; 16],
    },
    /// First on every connection between nodes: how many with the receiver the sender has lost.
    /// Nothing counts any more that is still on its way on one that was made before the last of
    /// them.
    Epoch {
        count: u64,
    },
    /// The answer to `request`: a value, or why not.
    Reply {
        request: u64,
        outcome: Result<u64, String>,
    },
    /// What nobody answers.
    Message(Message),
    Register(Register),
    Ping {
        request: u64,
    },
    /// Payload for a place, then a notification.
    Put(Put),
    /// So many puts that came on this connection have been completed: their data is visible.
    Ack {
        puts: u64,
    },
    /// A put of this stream was refused; its acknowledgement follows.
    Refused {
        stream: Stream,
        reason: String,
    },
    /// Asks for `size` bytes of a place. Answers of one stream come in order.
    Get {
        request: u64,
        stream: Stream,
        remote: RemoteAddress,
        size: u64,
    },
    /// The answer to `Get`, with `size` bytes of payload.
    Data {
        request: u64,
        size: u64,
    },
    Atomic {
        request: u64,
        remote: RemoteAddress,
        operation: AtomicOperation,
    },
    /// A passive message; answered when it was received.
    Passive {
        request: u64,
        message: Vec<u8>,
    },
    /// The sender leaves the job: nothing follows on this connection.
    Goodbye,
    /// The sender will ask for nothing more on this connection: to be closed once the receiver does
    /// not use it either.
    Release,
    /// What follows comes by the sender's device, by this attempt at a pair for messages, and in
    /// messages that have this number. It `continues` the bytes of that number, unless that is 0,
    /// behind the messages that were handled.
    Switch {
        attempt: u32,
        number: u32,
        continues: u32,
    },
    /// The sender's end of this attempt at a pair for messages is no more. Of the messages that the
    /// receiver has sent by it under this number, 0 if none is known, so many were handled, and no
    /// more will be.
    Back {
        attempt: u32,
        number: u32,
        messages: u64,
    },
    /// What follows are the bytes of this number behind those messages: they come by the socket.
    Resume {
        number: u32,
    },
    /// The sender has no place for this connection, and ends it before it has read anything.
    TurnedAway {
        reason: String,
    },
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod tests;
