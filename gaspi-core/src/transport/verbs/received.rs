//! What has come to the receive queue: messages of peers, and notifications of their writes.

use super::byte_stream::Chunk;
use super::lane::{LaneState, Request};
use super::receives::Receives;
use super::work::{self, Completion, Outcome};
use super::{ATOMICS, STREAM, Verbs};
use crate::config::CHANNELS;
use crate::ids::Rank;
use crate::os::cancel;
use crate::transport::software_target::{Action, Served, SoftwareTarget};
use crate::wire::frame::{Frame, PREFIX};

impl Verbs<'_> {
    /// A message has come.
    pub(super) fn received(self, receives: &mut Receives, completion: &Completion) {
        let place = completion.id as usize;
        let of = self.table.by_number.find_again(completion.number, &mut receives.last);
        let lane = of.map(|(queue, peer)| self.table.lane(queue, peer));
        let (Some(lane), Outcome::Done) = (lane, completion.outcome) else {
            return receives.give_back(place);
        };
        if let Some(immediate) = completion.immediate {
            receives.give_back(place);
            if lane.queue.index() >= CHANNELS.index() || !self.notified(immediate) {
                self.fail(lane.lock(), "the peer does not keep to the protocol");
            }
            return;
        }
        // It may bring anything: a segment to import, a connection that ends.
        let _uncancelled = cancel::hold_off();
        if lane.queue == STREAM {
            return self.bytes_came(receives, lane, Chunk { place, len: completion.bytes });
        }
        let bytes = receives.bytes(place, completion.bytes);
        let answer = if lane.queue == ATOMICS { None } else { self.handle(lane.peer, bytes) };
        receives.give_back(place);
        match answer {
            Some(Action::Nothing | Action::Answered) => {}
            Some(Action::Answer(frame) | Action::Value(frame)) => {
                let mut state = lane.lock();
                // Else its pair has been taken down meanwhile.
                if state.has_pair(completion.number) {
                    state.push(Request::Answer(frame));
                    self.pump(lane, state);
                }
            }
            _ => self.fail(lane.lock(), "the peer does not keep to the protocol"),
        }
    }

    /// Sets the notification of a write that has come; false if it cannot be one. A segment that
    /// has been deleted since the write was done is no more to be notified of it.
    fn notified(self, immediate: u32) -> bool {
        let (segment, id, value) = work::notification(immediate);
        self.target().notify(segment, id, value)
    }

    fn target(&self) -> SoftwareTarget<'_> {
        SoftwareTarget {
            up: self.up,
            requests: &self.table.requests,
            posted_receives: &self.table.posted_receives,
        }
    }

    /// Carries out a message; what is to be done then, if it is one.
    fn handle(self, peer: Rank, bytes: &[u8]) -> Option<Action> {
        let frame = Frame::decode(bytes.get(PREFIX..)?)?;
        let (target, mut served) = (self.target(), Served::default());
        Some(self.table.looks.handing_on.during(|| target.handle(peer, 0, &mut served, frame)))
    }
}

impl LaneState {
    /// There is no pair any more that answers could go by.
    pub(super) fn drop_answers(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|request| !matches!(request, Request::Answer(_)));
        self.counters.ended += (before - self.waiting.len()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::QueueId;
    use crate::wire::message::Stream;

    #[test]
    fn an_answer_goes_with_the_pair_that_it_was_for() {
        let mut state = LaneState::default();
        let (stream, reason) = (Stream { queue: QueueId(0), generation: 0 }, String::new());
        state.push(Request::Answer(Frame::Refused { stream, reason }));
        let begun = state.begun();
        assert!(!state.has_no_request() && state.has_before(begun));
        state.drop_pair();
        assert!(state.has_no_request() && !state.has_before(begun));
    }
}
