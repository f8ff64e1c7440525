//! What a wait for a queue has end behind its writes.
//!
//! Where an acknowledgement ends writes, the first write of an idle lane is signalled. A wait that
//! comes before a second one posts nothing: the completion of the write ends it. Behind several
//! writes a write of nothing is posted, which is signalled. Where an acknowledgement does not end
//! writes, a read is posted behind them.
//!
//! Invariant: behind each write that is waited for, a signalled request is under way or waits.

use super::Verbs;
use super::direct::Run;
use super::ended::Ended;
use super::lane::{Kind, LaneState, Request};
use super::work::{Limits, WorkRequest};
use crate::ids::{QueueId, Rank};
use crate::wire::message::Stream;

impl Verbs<'_> {
    /// Has what was posted to a queue end; `count` counts a request that is posted for that.
    pub(crate) fn finish(self, queue: QueueId, mut count: impl FnMut(Rank) -> Stream) {
        let unfinished = self.table.of_queue(queue).map(|lanes| &lanes.unfinished);
        let Some(unfinished) = unfinished.filter(|unfinished| unfinished.any()) else { return };
        for peer in unfinished.take() {
            let own = self.table.lane(queue, peer);
            let state = own.lock();
            // A lane with a run carries it itself.
            let (lane, mut state, route) = if state.direct.has_run() {
                (own, state, None)
            } else {
                drop(state);
                let (lane, state, route) = self.carrier_of(own);
                (lane, state, Some(route))
            };
            // What goes to one that has ended is told as lost.
            if self.up.ranks().check_alive(lane.peer, "a request to it").is_err() {
                continue;
            }
            let is_guest = lane.queue != queue;
            if is_guest && !state.has_of(queue) {
                continue;
            }
            // Runs are of the lane's own queue.
            let run = if is_guest { None } else { state.rest_run() };
            let stream = run.map(|run| run.stream(queue));
            if state.needs_finish() {
                let stream = stream.unwrap_or_else(|| count(lane.peer));
                let requests = run.map_or(1, |run| run.requests);
                let rests = run.is_some() && state.direct.rests();
                state.push(Request::Finish { stream, requests });
                drop(route);
                if let Err(reason) = state.pump() {
                    self.fail(state, &reason);
                } else if rests && !state.has_waiting() {
                    // As before it was pushed.
                    state.direct.rest_again();
                } else {
                    self.pump(lane, state);
                }
            } else if let Some((stream, run)) = stream.zip(run) {
                let mut ended = Ended::default();
                state.end_run(stream, run, &mut ended);
                drop((state, route));
                ended.tell(self.up, lane.peer);
            }
        }
    }
}

impl LaneState {
    /// Whether a write that is posted now, the latest that was pushed, is to be signalled, so that
    /// a wait for it alone posts nothing.
    pub(super) fn ends_by_itself(&self, limits: Limits) -> bool {
        limits.ends_at_ack && self.unfinished == 1 && self.has_ended_all()
    }

    /// Whether there are writes behind which nothing ends.
    pub(super) fn is_unfinished(&mut self) -> bool {
        let written = self.direct.take_written();
        self.unfinished = self.unfinished.saturating_add(u32::from(written));
        self.unfinished > 0
    }

    /// Whether something has to be posted so that the writes end. If not, they count as finished.
    fn needs_finish(&mut self) -> bool {
        let unfinished = self.is_unfinished();
        let at_ack = self.pair.as_ref().is_some_and(|pair| pair.limits().ends_at_ack);
        let all_posted = self.pairing.is_up() && !self.has_waiting();
        let ends_anyway = at_ack && all_posted && self.direct.unsignalled() == 0;
        if ends_anyway {
            self.unfinished = 0;
        }
        unfinished && !ends_anyway
    }

    /// Has a run, which was taken, end once all that was posted has.
    pub(super) fn end_run(&mut self, stream: Stream, run: Run, ended: &mut Ended) {
        if self.has_ended_all() {
            return ended.done.add(stream);
        }
        self.counters.begun += 1;
        self.note(Kind::Run(stream, run.requests));
    }

    /// Posts a read behind all writes, or only something that ends behind them.
    pub(super) fn post_read_behind(&mut self, reads: bool) -> Result<(), String> {
        let pair = self.pair.as_mut().ok_or("there is no pair")?;
        let behind = match pair.flush_target().filter(|_| reads) {
            Some(remote) => WorkRequest::Read { local: pair.scratch(), remote, size: 1 },
            None => WorkRequest::Nothing,
        };
        self.post(&behind, true)
    }
}
