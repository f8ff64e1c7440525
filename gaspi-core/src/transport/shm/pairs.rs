//! What a control page tells of the queue pairs of a rank: written by the rank, read by tools.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The queue pairs of a rank with RDMA devices; written by the rank, read by tools.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct PairWords {
    pub(crate) up: AtomicU32,
    pub(crate) being_made: AtomicU32,
    /// Since the rank has joined; those that went with their connection are not among them.
    pub(crate) failed: AtomicU32,
    /// How many of those that are up carry messages.
    pub(crate) messages: AtomicU32,
    /// 0 while there was no pair; else 1, or 2 where messages are to go by the device.
    pub(crate) kind: AtomicU32,
    /// Names the device by which the rank vouches, for ranks of its node; 0 where it does not.
    pub(crate) device: AtomicU64,
}

/// The queue pairs of a rank that has made any with an RDMA device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairs {
    /// Those that can carry requests.
    pub up: u32,
    /// Those that are being made.
    pub being_made: u32,
    /// Those that have failed since the rank joined. Pairs that ended with the connection to their
    /// peer are not among them.
    pub failed: u32,
    /// Of those that are up: how many carry messages. `None` where messages go by TCP.
    pub messages: Option<u32>,
}

impl Pairs {
    /// As the words say; none if there has been no pair.
    pub(crate) fn of(words: &PairWords) -> Option<Pairs> {
        let kind = words.kind.load(Ordering::Relaxed);
        let messages = words.messages.load(Ordering::Relaxed);
        (kind > 0).then(|| Pairs {
            up: words.up.load(Ordering::Relaxed),
            being_made: words.being_made.load(Ordering::Relaxed),
            failed: words.failed.load(Ordering::Relaxed),
            messages: (kind > 1).then_some(messages),
        })
    }
}
