//! Passive messages (GASPI 17.1, 9): a sender waits until a receiver took its message.
//!
//! Every pair of ranks has a slot, written by the sender; the payload lies in a buffer of the
//! sender's outbox. The receiver copies first and takes then: if the sender took the message back
//! meanwhile, taking fails and the copy is thrown away. So no rank can die holding a message.

mod procedures;

use crate::ids::{Rank, SegmentId};
use crate::sync::by_rank::ByRank;
use crate::sync::{AtomicU32, Mutex};
use crate::transport::requests::RequestKey;
use crate::wire::shared_layout::OUTBOX_BUFFERS;
use std::collections::VecDeque;

/// What a message consists of; the same call after a timeout has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Message {
    segment: SegmentId,
    offset: u64,
    size: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum SendState {
    #[default]
    Idle,
    /// A thread is sending.
    Busy,
    /// A message was posted, and its call timed out.
    TimedOut { message: Message, number: u64, buffer: usize },
    /// One whose call timed out was received since, and its buffer has gone to another one.
    Received { message: Message },
    /// The same to a rank of another node: a call that can be continued.
    Calling { key: RequestKey },
}

#[derive(Debug, Default)]
struct Sending {
    state: SendState,
    /// Messages posted so far.
    number: u64,
}

/// A message from another node that was not received yet.
#[derive(Debug)]
struct Letter {
    sender: Rank,
    request: u64,
    /// The connection that it came by: the only one by which its sender expects the answer.
    connection: u64,
    message: Vec<u8>,
}

/// Messages from other nodes, in the order in which they came; each sender has one at most.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    letters: Mutex<VecDeque<Letter>>,
}

impl Mailbox {
    /// A message has come.
    pub(crate) fn post(&self, sender: Rank, connection: u64, request: u64, message: Vec<u8>) {
        let mut letters = self.letters.lock();
        if letters.iter().any(|letter| letter.sender == sender && letter.request > request) {
            // It was late, on a connection that broke: its sender has sent another one since.
            return;
        }
        letters.retain(|letter| letter.sender != sender);
        letters.push_back(Letter { sender, request, connection, message });
    }

    /// Its sender takes a message back; the connection that it came by, if it was here.
    pub(crate) fn withhold(&self, sender: Rank, request: u64) -> Option<u64> {
        let mut letters = self.letters.lock();
        let is_it = |letter: &Letter| letter.sender == sender && letter.request == request;
        let index = letters.iter().position(is_it)?;
        letters.remove(index).map(|letter| letter.connection)
    }

    /// The first message of up to `size` bytes.
    fn take(&self, size: u64) -> Option<Letter> {
        let mut letters = self.letters.lock();
        let fits = |letter: &Letter| letter.message.len() as u64 <= size;
        let index = letters.iter().position(fits)?;
        letters.remove(index)
    }
}

/// The passive messages of a rank.
#[derive(Debug)]
pub(crate) struct Passive {
    /// Those that have come from other nodes.
    pub(crate) mailbox: Mailbox,
    pub(crate) outbox: Outbox,
}

/// The sender's side: one state to each receiver.
#[derive(Debug)]
pub(crate) struct Outbox {
    lanes: ByRank<Mutex<Sending>>,
    free: Mutex<Vec<usize>>,
    /// Where a receive begins to look, so that no sender is preferred.
    next: AtomicU32,
}

impl Outbox {
    pub(crate) fn new(size: u32) -> Outbox {
        Outbox {
            lanes: ByRank::new(size),
            free: Mutex::new((0..OUTBOX_BUFFERS).rev().collect()),
            next: AtomicU32::new(0),
        }
    }
}

#[cfg(test)]
mod tests;
