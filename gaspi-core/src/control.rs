//! Steps that all members of a group take together, and the barrier (GASPI 17.1, 11).
//!
//! A step is one arrival slot per member ([`crate::sync::arrival_slot`]): a rank publishes its own
//! and waits for those of all others. The slot carries a small payload and a signature of the call,
//! by which ranks that called different things find out before they touch each other's data. Where
//! many members are of a node they look at few slots ([`in_node`]). Behind a slot lies the rank's
//! staging. Barrier, segment create and use, opening a channel and the
//! all-reduces of the standard are built on it.
//!
//! A rank that knows of a member's death does not arrive: its program may call something else next,
//! which members that do not know of the death yet would take for a mismatch.
//!
//! Invariants: one collective is active per group; one that timed out stays active, and the same
//! call continues it. A rank goes from step k to k + 1 only after it has read all arrival slots of
//! k, so two slots (and two stages) alternate. An error other than a timeout ends the call on this
//! rank.

mod arrived;
mod call;
pub(crate) mod chunks;
pub(crate) mod handlers;
mod in_node;
mod in_words;
pub(crate) mod leaders;
mod peer_slice;
mod procedures;
pub(crate) mod reason;
pub(crate) mod teams;
mod unsent;
mod windows;

pub use call::GroupCall;
pub use chunks::CHUNKS_MAX;
pub use peer_slice::PeerSlice;

use crate::group::Groups;
use crate::remote_arrivals::RemoteArrivals;
use crate::resend::ResendBuffer;
use chunks::Chunks;
use leaders::{AllGroupSteps, LineWidth};

use crate::error::Error;
use crate::wire::message::{GroupMessage, Message};
use std::time::Instant;

/// The groups of a rank, and what their members say to each other.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) groups: Groups,
    /// What ranks of other nodes have sent to the groups.
    pub(crate) remote_arrivals: RemoteArrivals,
    pub(crate) steps: AllGroupSteps,
    /// What members have sent this rank behind a step.
    pub(crate) chunks: Chunks,
    /// What this rank has sent to them that is not answered.
    pub(crate) resend_buffer: ResendBuffer,
}

/// What a group does together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
#[non_exhaustive]
pub enum CallKind {
    /// A barrier.
    Barrier = 1,
    /// An all-reduce by a built-in operation.
    Allreduce = 2,
    /// An all-reduce by a function of the program.
    AllreduceUser = 3,
    /// A segment made by all.
    SegmentCreate = 4,
    /// A segment on the program's memory made by all.
    SegmentUse = 5,
    /// A channel opened by all.
    ChannelOpen = 6,
    /// Many channels opened by all.
    ChannelsOpen = 7,
    /// None: what a rank tells that cannot send the data of its arrival.
    CannotSend = 8,
}

/// The first word of a report: the member has done its part.
const DONE: u64 = 0;

/// Bits of a signature that hold the kind.
pub(crate) const KIND_BITS: u32 = 4;

/// Of a call of several steps, bits of its signatures from here on hold which step an arrival is,
/// from 0.
pub const NUMBER_SHIFT: u32 = 60;
/// The others, which are those of the call.
pub(crate) const CALL_BITS: u64 = (1 << NUMBER_SHIFT) - 1;

impl CallKind {
    /// A signature of this kind: the kind in the lowest 4 bits, `details` above.
    pub const fn signature(self, details: u64) -> u64 {
        self as u64 | details << KIND_BITS
    }

    /// Whether an arrival begins with a report of what its rank could do.
    fn has_report(self) -> bool {
        use CallKind::{Allreduce, AllreduceUser, Barrier};
        !matches!(self, Barrier | Allreduce | AllreduceUser)
    }

    /// Whether an arrival tells of a failure.
    fn has_failed(self, payload: &[u64]) -> bool {
        self.has_report() && payload.first().is_some_and(|status| *status != DONE)
    }

    /// Words of an arrival that leaders have to tell the others, of so many, where none failed.
    fn line_words(self, payload: usize) -> usize {
        match self {
            // The report, generation and size. The rest is for ranks of the node, which see it.
            CallKind::SegmentCreate | CallKind::SegmentUse => payload.min(4),
            _ => payload,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            CallKind::Barrier => "barrier",
            CallKind::Allreduce => "allreduce",
            CallKind::AllreduceUser => "allreduce_user",
            CallKind::SegmentCreate => "segment_create",
            CallKind::SegmentUse => "segment_use",
            // The first one of a group, for a program.
            CallKind::ChannelOpen | CallKind::ChannelsOpen | CallKind::CannotSend => "a collective",
        }
    }
}

/// The call that a signature stands for, in words.
pub fn describe_call(signature: u64) -> String {
    let details = signature >> KIND_BITS;
    match signature & ((1 << KIND_BITS) - 1) {
        1 => "barrier".to_owned(),
        2 => "allreduce".to_owned(),
        3 => "allreduce_user".to_owned(),
        4 => format!("segment_create of segment {details}"),
        5 => format!("segment_use of segment {details}"),
        6 => crate::channel::describe(details),
        7 => crate::channel::describe_many(details),
        8 => "a collective whose data its RDMA device cannot send".to_owned(),
        kind => format!("a collective of kind {kind}"),
    }
}

/// Whether an arrival of this signature carries data of the program.
fn has_data(signature: u64) -> bool {
    let kind = signature & ((1 << KIND_BITS) - 1);
    [CallKind::Allreduce, CallKind::AllreduceUser].iter().any(|it| *it as u64 == kind)
}

/// Whether a message carries data of the program, or has to keep behind one that does.
pub(crate) fn belongs_to_data(message: &Message) -> bool {
    match message {
        // It takes a passive message back that may still be on its way.
        Message::Withhold { .. } => true,
        Message::Group(GroupMessage::Arrive(arrival) | GroupMessage::PassedOn { arrival, .. }) => {
            has_data(arrival.signature)
        }
        Message::Group(GroupMessage::Lines { lines, .. }) => has_data(lines.signature),
        _ => false,
    }
}

/// Which call this is.
#[derive(Debug, Clone, Copy)]
pub struct CallKey {
    /// What is called.
    pub kind: CallKind,
    /// A hash of the arguments of this rank: a continued call must have the same.
    pub arguments: u64,
    /// What must be the same on all ranks.
    pub signature: u64,
    /// A signature in words.
    pub describe: fn(u64) -> String,
}

impl CallKey {
    fn is_same(&self, other: &CallKey) -> bool {
        self.kind == other.kind
            && self.arguments == other.arguments
            && self.signature == other.signature
    }
}

/// The collective that a group has not finished.
#[derive(Debug)]
pub(crate) struct Active {
    key: CallKey,
    arrived: bool,
    /// The thread that is just about to continue it, 0 if any may.
    continued_by: usize,
    cursor: u64,
    /// Why this rank cannot do its part, once it has told the others.
    failure: Option<Box<Error>>,
    /// Since when it is known that the present step fails unless all members arrive.
    fails_since: Option<Instant>,
    /// Since when its present step goes by leaders, and how long lines are.
    by_leaders: Option<(Instant, LineWidth)>,
    /// Whether this rank has told that all of the node that it leads have arrived.
    node_told: bool,
    /// When it arrived at its present step, among many members of its node.
    quiet_since: Option<Instant>,
}

impl Active {
    fn new(key: CallKey) -> Active {
        Active {
            key,
            arrived: false,
            continued_by: 0,
            cursor: 0,
            failure: None,
            fails_since: None,
            by_leaders: None,
            node_told: false,
            quiet_since: None,
        }
    }
}

/// All barriers are alike.
const BARRIER: CallKey = CallKey {
    kind: CallKind::Barrier,
    arguments: 0,
    signature: CallKind::Barrier.signature(0),
    describe: describe_call,
};

#[cfg(test)]
mod tests;
