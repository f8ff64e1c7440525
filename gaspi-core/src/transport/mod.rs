//! What carries bytes between ranks: shared memory within a node, TCP between nodes.
//!
//! A [`Link`] says how a peer is reached; within shared memory a
//! [`Reach`](crate::segment::Reach) says how one of its segments is. A transport provides segments
//! that are made known and revoked, puts and gets, notifications behind them, atomics, frames
//! between the libraries, and word of a peer's death.

pub(crate) mod shm;
pub(crate) mod tcp;

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
