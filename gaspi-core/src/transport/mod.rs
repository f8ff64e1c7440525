//! What carries bytes between ranks: shared memory within a node, TCP between nodes.
//!
//! A transport knows nothing of the library above but [`Upcalls`]. It owes:
//!
//! - **Order.** Requests of one stream, a queue and a peer, take effect in the order in which they
//!   were posted. A notification is set behind all data that was posted before it.
//! - **Completion.** Each request is told of once ([`Upcalls::completed`]): carried out, refused or
//!   lost. Its data is at the target by then, and the memory that it was taken from is free.
//! - **Loss.** What a broken connection has lost takes no effect after anything that is posted
//!   later, and what would have arrived behind it does not either ([`Behind`]).
//! - **Checks.** No access is believed: [`software_target`] checks segment, generation, range and
//!   notification, unless a card does.
//! - **Liveness.** [`Upcalls::ended`] is for a process that has ended or left. One that is stopped
//!   or slow lives.
//! - **No waiting.** Posting and polling never wait; what a socket does not take stays in memory,
//!   bounded by what is under way.
//!
//! Chapters post to an [`Endpoint`](endpoint::Endpoint), the way to one peer. Its carrier does what
//! eleven methods ask for: `put`, `get`, `message`, `send`, `call`, `connect`, `release`,
//! `disconnect`, `is_drained`, `may_bring_more`, `last_error`; what it can do besides is data
//! ([`Capabilities`](endpoint::Capabilities)). What it brings goes to
//! [`software_target`], which gives back what there is to answer. Which carrier a request gets is
//! settled by lane, a queue and a peer: see [`lane`](crate::sync::lane).
//!
//! A [`Link`] says how a peer is reached, for tables; a [`Reach`](crate::segment::Reach) says how
//! one of its segments is.

pub(crate) mod endpoint;
#[cfg(feature = "test-transports")]
pub(crate) mod faulty;
mod numbers;
pub(crate) mod payload;
pub(crate) mod posted_receives;
#[cfg(feature = "test-transports")]
mod random;
pub(crate) mod requests;
pub(crate) mod shm;
pub(crate) mod software_target;
pub(crate) mod tcp;
#[cfg(feature = "test-transports")]
pub mod twin;
pub(crate) mod verbs;

use crate::ids::{QueueId, Rank};
use crate::ranks::Ranks;
use crate::segment::own::Memory;
use crate::sync::AtomicU64;
use crate::sync::lane::LaneCarrier;
use crate::transport::software_target::Stopped;
use crate::wire::message::{LastStep, Message, Register, Stream};
use std::os::fd::OwnedFd;

/// Bytes of a part of a large transfer.
pub(crate) const CHUNK: u64 = 1024 * 1024;
/// Status of a process that proc_kill ended.
pub(crate) const KILLED: i32 = 255;

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestFailure {
    /// The connection ended before the answer.
    Lost,
    /// The same of so many requests, of which some were counted together, behind `losing`.
    LostRun { requests: u32 },
    /// The peer says why.
    Refused(String),
}

/// What a request would arrive behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behind {
    /// Earlier requests of a queue to the same peer.
    Queue(QueueId),
    /// Earlier messages of a channel, since so many requests to the peer were lost.
    Channel {
        /// Losses when the channel was opened.
        losses: u64,
    },
}

/// What transports ask of a rank and tell it. A transport knows nothing else of the library above.
///
/// All methods may be called by any thread that polls, with locks of the transport held: none of
/// them waits, and none calls a transport back but to send.
pub(crate) trait Upcalls: Send + Sync {
    /// The ranks of the job, and the record of who has died, left or is corrupt.
    fn ranks(&self) -> &Ranks;

    /// This rank's segments.
    fn memory(&self) -> &Memory;

    /// Whether requests of this stream have not been purged.
    fn expects(&self, stream: Stream) -> bool;

    /// What carries the requests of a lane, a queue and `peer`; none of channels.
    fn lane_carrier(&self, peer: Rank, queue: QueueId) -> Option<&LaneCarrier<AtomicU64>>;

    /// Whether something was lost that a request would arrive behind: it must not arrive either.
    fn is_stale(&self, peer: Rank, behind: Behind) -> bool;

    /// Requests of a stream to `peer` are lost, which is told by one `completed`: from here on
    /// nothing may arrive that is posted behind them.
    fn losing(&self, peer: Rank, stream: Stream);

    /// So many requests of a stream to `peer` have ended.
    fn completed(
        &self,
        peer: Rank,
        stream: Stream,
        count: u32,
        outcome: Result<(), RequestFailure>,
    );

    /// A request to `peer` that was to go by a device does so, or goes by the stream instead.
    fn carried(&self, peer: Rank, by_device: bool, carried: Carried);

    /// A put of this rank was refused; its acknowledgement follows and completes it.
    fn refused(&self, peer: Rank, stream: Stream, reason: &str);

    /// News is about to be handled that may speak of what other carriers have brought before it.
    fn catch_up(&self);

    /// News is about to be handled that has come by a socket of another node: what a device has
    /// taken before is visible then. This one waits, for this rank's own device.
    fn make_visible(&self);

    /// The end of `peer` of this attempt at a pair for messages is no more: so is this rank's, and
    /// all that has come by it is handled, when this returns.
    fn ended_messages(&self, peer: Rank, attempt: u32);

    /// What has come of messages with this number, which were to come by this attempt at a pair.
    fn came_by_ended(&self, peer: Rank, attempt: u32, number: u32) -> CameByEnded;

    /// The state of what has come of the bytes with this number, which another carrier has from now
    /// on.
    fn take_incoming(&self, peer: Rank, number: u32) -> Option<Stopped>;

    /// What has come of the bytes with a number, all of it, is continued under another one.
    fn continue_incoming(&self, peer: Rank, from: u32, to: u32);

    /// A message has come that nobody answers.
    fn message(&self, peer: Rank, message: Message);

    /// A passive message has come on a connection, by which alone its sender expects the answer.
    fn passive(&self, peer: Rank, connection: u64, request: u64, message: Vec<u8>);

    /// A peer describes a segment.
    ///
    /// # Errors
    /// In words, for the peer, if it cannot be reached.
    fn import(&self, peer: Rank, register: &Register, files: &[OwnedFd]) -> Result<u64, String>;

    /// A connection with `peer` has broken, and it is not known yet whether it lives. What is begun
    /// from now on is no part of the loss.
    fn doubted(&self, peer: Rank);

    /// What was under way to `peer` is lost, though it lives. Where it answers, what nobody
    /// acknowledges is sent again.
    fn lost(&self, peer: Rank, loss: ConnectionLoss);

    /// What nobody acknowledges may not have reached `peer`, which lives: it is sent again.
    fn send_again(&self, peer: Rank);

    /// There is a connection with `peer`, of another node, on which requests go.
    fn connected(&self, peer: Rank);

    /// The process of `peer` has ended, or it has left.
    fn ended(&self, peer: Rank);

    /// Where `rank` is in its groups, which leaves, as far as this rank knows.
    fn last_steps(&self, rank: Rank) -> Vec<LastStep>;

    /// `rank` leaves, which others are told from now on.
    fn leaves(&self, rank: Rank);
}

/// What is lost with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionLoss {
    /// It has broken, and the peer answers.
    Broken,
    /// It could not be made; whether pairs were to be settled on it.
    NotMade { settles_pairs: bool },
}

/// What is known of messages that were to come by a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CameByEnded {
    /// The pair is not over: its end tells.
    NotOver,
    /// It is no more, and so many have come.
    Messages(u64),
    /// It is no more, and this rank's device has failed, which may hold some back.
    Unknown,
}

/// What a request brings to or from a rank of another node, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Carried {
    Written(u64),
    Read(u64),
    Atomic,
}

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
    /// A rank of another node, by InfiniBand or RoCE; by TCP where no pair is up.
    Verbs,
}

impl Link {
    /// The name of the transport, as tables show it.
    pub fn name(self) -> &'static str {
        match self {
            Link::Own => "self",
            Link::SharedMemory => "shm",
            Link::Tcp => "tcp",
            Link::Verbs => "verbs",
        }
    }
}
