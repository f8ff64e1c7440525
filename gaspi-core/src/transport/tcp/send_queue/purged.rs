//! Requests of a queue that was purged: what has not begun to be sent of them is not sent.

use super::{Item, SendQueue};
use crate::ids::QueueId;
use crate::wire::frame::Frame;
use crate::wire::message::Stream;

/// Requests that were dropped: nothing comes of them any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// One entry for each put.
    pub(crate) puts: Vec<Stream>,
    /// The numbers of gets.
    pub(crate) gets: Vec<u64>,
}

impl Dropped {
    pub(crate) fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.gets.is_empty()
    }
}

impl SendQueue {
    /// Drops requests of `queue` that were posted before this generation of it, but for those of
    /// which a part is on the wire.
    pub(in crate::transport::tcp) fn drop_purged(
        &mut self,
        queue: QueueId,
        generation: u32,
    ) -> Dropped {
        let is_older = |of: &Stream| generation.wrapping_sub(of.generation) as i32 > 0;
        let mut dropped = Dropped::default();
        let Some((_, items)) = self.streams.iter_mut().find(|(of, _)| *of == queue) else {
            return dropped;
        };
        items.retain(|item| {
            match item {
                Item::Put { put, sent: 0, .. } if is_older(&put.stream) => {
                    dropped.puts.push(put.stream);
                }
                Item::Frame(Frame::Get { request, stream, .. }) if is_older(stream) => {
                    dropped.gets.push(*request);
                }
                // Answers to the peer are among them.
                _ => return true,
            }
            false
        });
        self.streams.retain(|(_, items)| !items.is_empty());
        dropped
    }
}
