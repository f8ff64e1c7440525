//! What has become of requests: collected with a lane's lock, told without it.

use crate::ids::Rank;
use crate::transport::{RequestFailure, Upcalls};
use crate::wire::message::Stream;

/// What has become of requests, to be told without the lane's lock.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) done: Vec<(Stream, u32)>,
    pub(super) lost: Vec<(Stream, u32)>,
}

/// Counts a request of a stream.
pub(super) fn add(to: &mut Vec<(Stream, u32)>, stream: Stream) {
    match to.last_mut() {
        Some((last, count)) if *last == stream => *count += 1,
        _ => to.push((stream, 1)),
    }
}

impl Ended {
    /// Tells the rank.
    pub(super) fn tell(self, up: &dyn Upcalls, peer: Rank) {
        for (stream, count) in self.done {
            up.completed(peer, stream, count, Ok(()));
        }
        for (stream, count) in self.lost {
            up.completed(peer, stream, count, Err(RequestFailure::Lost));
        }
    }
}
