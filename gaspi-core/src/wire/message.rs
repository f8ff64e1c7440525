//! What ranks ask of each other and tell each other where they share no memory: decoded, whatever
//! carries it.

use crate::ids::{GroupId, NotificationId, QueueId, Rank, SegmentId};

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
    /// By what its memory is reached without its owner's library: at most [`KEYS_MAX`].
    pub(crate) keys: Vec<MemoryKey>,
}

/// Cards that a segment can be registered with.
pub(crate) const KEYS_MAX: u8 = 4;

/// What a carrier needs to reach memory of a peer. It means something to that carrier only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryKey {
    /// Which of the owner's devices gave it.
    pub(crate) device: u8,
    pub(crate) key: u32,
    /// Where the memory begins, for that card.
    pub(crate) address: u64,
}

impl MemoryKey {
    /// That of what begins so many bytes behind.
    pub(crate) fn behind(self, bytes: u64) -> MemoryKey {
        MemoryKey { address: self.address + bytes, ..self }
    }
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

/// Commits that one digest tells of at most: those of all ranks of the largest job.
pub(crate) const COMMITS_MAX: u32 = 65535;

/// A list on its way that is the same for several members: what each of them would announce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) group: GroupId,
    /// Counts the commits of the sender.
    pub(crate) attempt: u64,
    /// The sender's last commit before this one, under this id, whose list has the receiver; in an
    /// answer the receiver's commit for which it has asked.
    pub(crate) previous: u64,
    /// Which message of the commit this is.
    pub(crate) tag: u8,
    /// Of the list.
    pub(crate) digest: u64,
    /// The commits that the sender knows of, in an order that both know.
    pub(crate) commits: Vec<Commit>,
}

/// A commit of a member that is known.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Counts the commits of the member.
    pub(crate) attempt: u64,
    /// The lowest incarnation that is fresh for it.
    pub(crate) incarnation: u32,
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

/// What a rank asks of the library of another one, which answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RemoteCall {
    /// Whether it answers.
    Ping,
    /// To carry out an atomic operation.
    Atomic { remote: RemoteAddress, operation: AtomicOperation },
    /// To keep a passive message until the program receives it.
    Passive(Vec<u8>),
    /// To learn a segment of the caller's.
    Register(Register),
}

impl RemoteCall {
    /// Whether it carries data of the program.
    pub(crate) fn has_data(&self) -> bool {
        matches!(self, RemoteCall::Atomic { .. } | RemoteCall::Passive(_))
    }
}

/// What a rank tells another one that nobody answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// A registered segment was deleted.
    Revoke { segment: SegmentId, generation: u32 },
    /// The receiver ends at once with status 255.
    Kill,
    /// Takes a passive message back, if it was not received.
    Withhold { request: u64 },
    /// Of a lane that a device is to carry.
    Pairing(Pairing),
    /// What was put into the range that the sender had lent under this number has come too late: it
    /// has closed its end of the channel.
    Closed { lease: u32 },
    /// Of a group that both are members of.
    Group(GroupMessage),
}

/// What a member of a group tells another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GroupMessage {
    /// The list of a commit.
    Announce(Announce),
    /// That several members commit the same list.
    Digest(Digest),
    /// The sender's commit of this number no longer wants to be answered.
    Withdraw { group: GroupId, attempt: u64 },
    /// The sender's commit of this number failed, in the round of this incarnation.
    Abort {
        group: GroupId,
        attempt: u64,
        round: u32,
        /// The member whose death is the reason.
        dead: Option<Rank>,
        reason: String,
    },
    /// The sender has arrived at a step of a group.
    Arrive(Arrival),
    /// A member has arrived at a step of a group, as members tell their neighbours in a tree.
    PassedOn { of: Rank, arrival: Arrival },
    /// The leader of a node tells another one of a step.
    Lines { group: GroupId, lines: Lines },
    /// The sender leaves.
    Leaving(LastStep),
}

/// Where a member of a group is that leaves the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastStep {
    pub(crate) group: GroupId,
    /// The step at which it has arrived last.
    pub(crate) step: u64,
    /// Whether it has come to the end of that step.
    pub(crate) finished: bool,
    /// The commit that it has announced last, whose number is 0 if there is none, and the hash of
    /// its list.
    pub(crate) commit: Commit,
    pub(crate) digest: u64,
}

/// The arrival slot of a member as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) group: GroupId,
    /// Incarnation of the group and step.
    pub(crate) step: u64,
    pub(crate) signature: u64,
    /// What rides in the arrival slot.
    pub(crate) words: Vec<u64>,
    /// The used part of the staging behind it.
    pub(crate) stage: Vec<u8>,
}

/// What a leader tells of the nodes that its schedule has for this message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lines {
    /// Incarnation of the group and step.
    pub(crate) step: u64,
    /// Which message of the schedule this is.
    pub(crate) tag: u8,
    /// What the members of these nodes have called.
    pub(crate) signature: u64,
    /// The words of each of these members, as many for each.
    pub(crate) lines: Vec<u64>,
}

/// What two ranks tell each other to make and to end a pair of queue pairs for a lane. An attempt
/// is numbered alike by both; a higher number replaces a lower one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pairing {
    /// The sender has made its end.
    Offer(PairOffer),
    /// The sender's end is connected with that of the receiver.
    Connected { queue: QueueId, attempt: u32 },
    /// The sender's end has been taken down, and nothing of it is under way any more. If it
    /// `refuses`, another attempt would meet the same reason.
    Ended { queue: QueueId, attempt: u32, refuses: bool, reason: String },
    /// The sender has lost a connection with the receiver, and with it its ends of this attempt and
    /// of all before.
    Lost { queue: QueueId, attempt: u32 },
}

/// One end of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PairOffer {
    pub(crate) queue: QueueId,
    pub(crate) attempt: u32,
    /// Of the queue pair, and of its first packet.
    pub(crate) number: u32,
    pub(crate) first_packet: u32,
    /// Where it answers: its port's GID and LID.
    pub(crate) gid: [u8; 16],
    pub(crate) lid: u16,
    /// The largest path MTU of its port, as verbs number them.
    pub(crate) mtu: u8,
    /// Reads and atomics that it can serve at once.
    pub(crate) reads: u8,
    /// Memory that the receiver may read behind its writes.
    pub(crate) flush_key: u32,
    pub(crate) flush_address: u64,
    /// Whether an acknowledgement ends a write: no news reaches the sender's program before what
    /// its device has taken.
    pub(crate) vouches: bool,
}
