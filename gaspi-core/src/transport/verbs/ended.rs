//! What has become of requests: collected with a lane's lock, told without it.

use crate::ids::Rank;
use crate::transport::{RequestFailure, Upcalls};
use crate::wire::message::{Pairing, Stream};
use std::collections::VecDeque;

/// What has become of requests, to be told without the lane's lock.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) done: Vec<(Stream, u32)>,
    lost: Vec<Lost>,
}

/// What was lost of a stream.
#[derive(Debug)]
struct Lost {
    stream: Stream,
    /// As the queue counts.
    count: u32,
    requests: u32,
}

/// Why a lane's pair is to be taken down.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reason: String,
    /// Whether another attempt would meet it too, if the pair has not been up.
    pub(super) refuses: bool,
}

/// Counts a request of a stream.
pub(super) fn add(to: &mut Vec<(Stream, u32)>, stream: Stream) {
    match to.last_mut() {
        Some((last, count)) if *last == stream => *count += 1,
        _ => to.push((stream, 1)),
    }
}

impl Ended {
    /// Counts what is lost: so many requests, counted by the queue as `count`.
    pub(super) fn lose(&mut self, stream: Stream, count: u32, requests: u32) {
        match self.lost.last_mut() {
            Some(last) if last.stream == stream => {
                last.count += count;
                last.requests += requests;
            }
            _ => self.lost.push(Lost { stream, count, requests }),
        }
    }

    /// Tells the rank.
    pub(super) fn tell(self, up: &dyn Upcalls, peer: Rank) {
        for (stream, count) in self.done {
            up.completed(peer, stream, count, Ok(()));
        }
        for Lost { stream, count, requests } in self.lost {
            up.completed(peer, stream, count, Err(RequestFailure::LostRun { requests }));
        }
    }
}

/// What is to be told to the peer, in order, and whether somebody does.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) messages: VecDeque<Pairing>,
    pub(super) telling: bool,
}
