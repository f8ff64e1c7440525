//! The seam between the chapters of GASPI and whatever carries their bytes.
//!
//! A [`Link`] says how a peer is reached; within shared memory a
//! [`Reach`](crate::segment::Reach) says how one of its segments is. A transport owes: segments
//! made known and revoked, puts and gets that are done when they return or complete a queue's
//! request later, notifications behind them, atomics, frames between the libraries, and word of a
//! peer's death. Shared memory completes in the caller; what the peer has to do travels as frames
//! ([`frame`]) over [`connection`]s, Unix sockets within a node and TCP between nodes, received
//! straight into segments by whoever [`drive`]s the sockets: a caller that waits, or the
//! [`progress`] thread.

pub(crate) mod connecting;
pub(crate) mod connection;
pub(crate) mod drive;
pub(crate) mod driving;
pub(crate) mod frame;
pub(crate) mod handshake;
mod losses;
pub(crate) mod outgoing;
pub(crate) mod payload;
pub(crate) mod peers;
mod pipes;
pub(crate) mod progress;
pub(crate) mod requests;
pub(crate) mod serve;
pub(crate) mod table;

/// How a peer is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Link {
    /// This rank itself.
    Own,
    /// A rank of the same node, by shared memory.
    SharedMemory,
    /// A rank of another node, by TCP.
    Tcp,
}

impl Link {
    /// The name of the transport, as tables show it.
    pub fn name(self) -> &'static str {
        match self {
            Link::Own => "self",
            Link::SharedMemory => "shm",
            Link::Tcp => "tcp",
        }
    }
}
