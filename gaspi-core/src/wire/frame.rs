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

use super::group_message::{Arrival, BarrierMessage};
use crate::ids::{GroupId, NotificationId, QueueId, Rank, SegmentId};

/// Bytes of the length in front of a frame.
pub(crate) const PREFIX: usize = 4;
/// The longest frame without its payload: a list of 65535 ranks and some fields.
pub(crate) const FRAME_MAX: usize = 256 * 1024;
/// Bytes of a put as a frame, its length in front.
pub(crate) const PUT_LEN: usize = 40;
/// Bytes of an acknowledgement as a frame.
pub(crate) const ACK_LEN: usize = 13;
/// The largest payload: transfer_size_max.
pub(crate) const PAYLOAD_MAX: u64 = 1 << 30;
/// The first word of a connection within a node; changes with the format.
const MAGIC: u32 = 0x4741_0004;

/// A segment as its owner describes it to a peer; its descriptors travel beside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Register {
    pub(crate) request: u64,
    pub(crate) segment: SegmentId,
    pub(crate) generation: u32,
    /// Bytes.
    pub(crate) size: u64,
    /// Where bound memory lies in the owner, 0 for memory that comes as a descriptor.
    pub(crate) address: u64,
    /// Where the owner keeps `nonce`, to find out whether its memory can be read.
    pub(crate) nonce_address: u64,
    pub(crate) nonce: u64,
    /// How many descriptors come along.
    pub(crate) descriptors: u8,
}

/// A range of a segment of the receiver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RemoteAddress {
    pub(crate) segment: SegmentId,
    pub(crate) generation: u32,
    /// Bytes.
    pub(crate) offset: u64,
}

/// An atomic operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AtomicOperation {
    FetchAdd { add: u64 },
    CompareSwap { comparator: u64, new: u64 },
}

/// A list of group members on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announce {
    pub(crate) group: GroupId,
    /// Counts the commits of the sender.
    pub(crate) attempt: u64,
    /// The lowest incarnation that is fresh for the sender.
    pub(crate) incarnation: u32,
    pub(crate) ranks: Vec<Rank>,
}

impl Announce {
    /// Whether `rank` is in the list, which ascends.
    pub(crate) fn lists(&self, rank: Rank) -> bool {
        self.ranks.contains(&rank)
    }
}

/// Part of a write, or a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Put {
    /// The sender's queue, and its generation.
    pub(crate) stream: Stream,
    /// Where the payload goes.
    pub(crate) remote: RemoteAddress,
    /// Bytes of payload.
    pub(crate) size: u64,
    /// Whether this part completes the request.
    pub(crate) last: bool,
    /// To be set behind the data unless the value is 0.
    pub(crate) notification: NotificationId,
    pub(crate) value: u32,
}

/// A queue of the sender's between two purges: what travels in it stays in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    pub(crate) queue: QueueId,
    pub(crate) generation: u32,
}

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
    Register(Register),
    /// A registered segment was deleted.
    Revoke {
        segment: SegmentId,
        generation: u32,
    },
    Ping {
        request: u64,
    },
    /// The receiver ends at once with status 255.
    Kill,
    Announce(Announce),
    /// The sender's commit of this number no longer wants to be answered.
    Withdraw {
        group: GroupId,
        attempt: u64,
    },
    /// The sender's commit of this number failed, in the round of this incarnation.
    Abort {
        group: GroupId,
        attempt: u64,
        round: u32,
        /// The member whose death is the reason.
        dead: Option<Rank>,
        reason: String,
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
    /// The sender has arrived at a step of a group.
    Arrive(Arrival),
    /// Of a barrier that goes along a tree.
    Barrier {
        group: GroupId,
        step: u64,
        message: BarrierMessage,
    },
    /// A passive message; answered when it was received.
    Passive {
        request: u64,
        message: Vec<u8>,
    },
    /// Takes a passive message back, if it was not received.
    Withhold {
        request: u64,
    },
    /// The sender leaves the job: nothing follows on this connection.
    Goodbye,
    /// The sender will ask for nothing more on this connection: to be closed once the receiver does
    /// not use it either.
    Release,
    /// The sender has no place for this connection, and ends it before it has read anything.
    TurnedAway {
        reason: String,
    },
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod tests;
