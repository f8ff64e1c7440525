//! What members of a group tell each other where they share no memory.

use crate::ids::{GroupId, Rank};

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

/// What is told along a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierMessage {
    /// To the parent: the sender and all below it have arrived.
    Gathered,
    /// To the children: all have.
    Complete,
    /// To all: this one has left without arriving.
    Departed(Rank),
}

/// How many kinds of messages there are.
pub(crate) const KINDS: usize = 3;

impl BarrierMessage {
    /// Of which kind it is, below [`KINDS`].
    pub(crate) fn kind(self) -> usize {
        match self {
            BarrierMessage::Gathered => 0,
            BarrierMessage::Complete => 1,
            BarrierMessage::Departed(_) => 2,
        }
    }
}
