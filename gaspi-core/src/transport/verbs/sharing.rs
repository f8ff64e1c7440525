//! Lanes of queues for which there is no pair share that of another queue to the same peer.
//!
//! Such a lane is carried by the one that has the pair: its requests are posted there, in the order
//! of both, and are noted with their queue, so that completions tell them apart. Send queue,
//! credits, the read behind the writes and failures are those of the pair, whichever queues share
//! it. What comes by a pair names no queue that matters, so that the peer need not know.
//!
//! Locks are taken in this order: a lane's route, then the state of one lane.
//!
//! Invariant: all that is under way of a queue and a peer is in one lane. It changes only where
//! nothing is, or where all of it waits for a pair that does not come.

use super::budget::lacks_pairs;
use super::ended::Ended;
use super::guests::{Route, bit, each};
use super::lane::{Lane, LaneState, Request};
use super::{STREAM, Verbs};
use crate::ids::{QueueId, Rank};
use crate::sync::once_arc::OnceArc;
use crate::sync::{MutexGuard, Ordering};
use std::ptr;

impl LaneState {
    /// Whether no pair can be had, of this rank's or of the peer's.
    pub(super) fn lacks_pair(&self) -> bool {
        let none = self.pair.is_none() && !self.pairing.is_ending();
        none && self.pairing.refused().is_some_and(lacks_pairs)
    }

    /// Whether something of a queue is under way here, or waits.
    pub(super) fn has_of(&self, queue: QueueId) -> bool {
        let of_sent = self.sent_of().chain(self.acknowledged.streams());
        let of_waiting = self.waiting.iter().filter_map(Request::counted).map(|(stream, _)| stream);
        of_sent.chain(of_waiting).any(|stream| stream.queue == queue)
    }

    /// The queues of which something waits.
    fn waiting_queues(&self) -> u16 {
        let counted = self.waiting.iter().filter_map(Request::counted);
        counted.fold(0, |bits, (stream, _)| bits | bit(stream.queue))
    }

    /// Takes what waits of a queue, where there is no pair. What others have ended behind may go
    /// with it, or come to lie elsewhere: see [`note_waiting`](super::DeviceTable::note_waiting).
    pub(super) fn take_waiting_of(&mut self, queue: QueueId) -> Vec<Request> {
        let mut taken = Vec::new();
        for request in std::mem::take(&mut self.waiting) {
            if request.counted().is_some_and(|(stream, _)| stream.queue == queue) {
                match &request {
                    Request::Diverted(_) => self.diversion.waiting -= 1,
                    _ => self.counters.ended += 1,
                }
                taken.push(request);
            } else {
                self.waiting.push_back(request);
            }
        }
        if !taken.is_empty() {
            self.unfinished = self.waiting_unfinished();
        }
        taken
    }

    /// Writes that wait, and behind which nothing ends.
    fn waiting_unfinished(&self) -> u32 {
        let ends = |it: &&Request| matches!(it, Request::Finish { .. } | Request::Fence { .. });
        let behind = self.waiting.iter().rev().take_while(|request| !ends(request));
        behind.filter(|request| matches!(request, Request::Put { .. })).count() as u32
    }

    /// What waits of a queue is lost.
    pub(super) fn lose_waiting_of(&mut self, queue: QueueId, ended: &mut Ended) {
        for (stream, requests) in self.take_waiting_of(queue).iter().filter_map(Request::counted) {
            ended.lose(stream, 1, requests);
        }
    }
}

/// The lane that carries a lane, its state, and what keeps that so: no request of the lane is
/// pushed meanwhile. It is let go before anything is sent to the peer.
pub(super) type Carrier<'a> = (&'a Lane, MutexGuard<'a, LaneState>, MutexGuard<'a, Route>);

impl<'a> Verbs<'a> {
    /// The lane that carries the next request of a lane.
    pub(super) fn carrier_of(self, own: &'a Lane) -> Carrier<'a> {
        let mut route = own.route.lock();
        let mut now = self.via(own, &route);
        let mut state = now.lock();
        if self.is_to_move(own, now, &state) {
            drop(state);
            now = self.move_on(own, now, &mut route);
            state = now.lock();
        }
        (now, state, route)
    }

    /// Where requests of a lane are carried.
    pub(super) fn via(self, own: &'a Lane, route: &Route) -> &'a Lane {
        route.via.map_or(own, |queue| self.table.lane(queue, own.peer))
    }

    /// Whether another lane is to carry what follows. Where requests wait for pairs they go along.
    fn is_to_move(self, own: &Lane, now: &Lane, state: &LaneState) -> bool {
        let may_take_along = self.table.forced && state.lacks_pair();
        if ptr::eq(own, now) {
            let free = may_take_along || state.lacks_pair() && state.is_idle();
            return free && self.host_of(own).is_some();
        }
        let pairing = &state.pairing;
        let serves = pairing.is_up() || self.table.forced && pairing.is_being_made();
        let stays = pairing.is_ending() || state.is_diverted() || serves && !own.shown.is_up();
        !stays && (may_take_along || !state.has_of(own.queue))
    }

    /// A lane of the same peer whose pair a lane can share.
    fn host_of(self, own: &Lane) -> Option<&'a Lane> {
        if own.queue.index() >= STREAM.index() {
            return None;
        }
        let lanes = self.table.lanes[..STREAM.index()].iter().filter_map(OnceArc::get);
        let serves =
            |lane: &&Lane| lane.shown.is_up() || self.table.forced && lane.shown.is_being_made();
        let found = lanes.filter_map(|lanes| lanes[own.peer.index()].get()).filter(serves);
        let found: Vec<&Lane> = found.filter(|lane| lane.queue != own.queue).collect();
        // Those that share are spread.
        (!found.is_empty()).then(|| found[own.queue.index() % found.len()])
    }

    /// Whether a lane that lacks a pair may share one, now or soon.
    pub(super) fn may_share(self, own: &Lane) -> bool {
        let of_queue = own.queue.index() < STREAM.index();
        let mut others = self.table.used_with(own.peer);
        let has_pair = |lane: &Lane| lane.shown.is_up() || lane.shown.is_being_made();
        of_queue && others.any(|lane| lane.queue.index() < STREAM.index() && has_pair(lane))
    }

    /// Has another lane carry a lane, if it still is to; which one does.
    fn move_on(self, own: &'a Lane, now: &'a Lane, route: &mut Route) -> &'a Lane {
        let mut state = now.lock();
        if !self.is_to_move(own, now, &state) {
            return now;
        }
        let moved = state.take_waiting_of(own.queue);
        self.table.note_waiting(&state, own.peer);
        state.sharing.guests &= !bit(own.queue);
        if ptr::eq(own, now) {
            // From here on no thread posts to its own pair, should one come up.
            state.sharing.elsewhere = true;
        }
        drop(state);
        let lacks = ptr::eq(own, now) || own.lock().lacks_pair();
        let next = self.host_of(own).filter(|_| lacks).unwrap_or(own);
        route.via = (!ptr::eq(own, next)).then_some(next.queue);
        let mut state = next.lock();
        match route.via {
            None => state.sharing.elsewhere = false,
            Some(_) => state.sharing.guests |= bit(own.queue),
        }
        if !moved.is_empty() {
            route.moves += 1;
            moved.into_iter().for_each(|request| state.push(request));
            self.table.note_waiting(&state, own.peer);
            self.table.has_stalled.store(true, Ordering::Release);
            self.stream.sets.wakeup.wake();
        }
        if let Some(via) = route.via {
            drop(state);
            self.table.tell_of_sharing(own, via);
        }
        next
    }

    /// What waits in a lane that lacks a pair moves to others, or is lost.
    pub(super) fn settle_waiting(self, lane: &'a Lane) {
        let queues = lane.lock().waiting_queues();
        for queue in each(queues) {
            let (now, state, route) = self.carrier_of(self.table.lane(queue, lane.peer));
            drop(route);
            if !ptr::eq(now, lane) {
                self.pump(now, state);
            }
        }
        let (mut ended, mut state) = (Ended::default(), lane.lock());
        if state.lacks_pair() {
            state.lose_all(lane.queue, &mut ended);
            ended.mark(self.up, lane.peer);
        }
        drop(state);
        ended.tell(self.up, lane.peer);
    }
}

impl super::DeviceTable {
    /// A wait for any queue of which something waits in a lane looks whether it ends: with the
    /// lane's lock, where that of another queue did and is there no more.
    pub(super) fn note_waiting(&self, state: &LaneState, peer: Rank) {
        each(state.waiting_queues()).for_each(|queue| self.note_unfinished(queue, peer));
    }

    /// Says once that queues share pairs.
    fn tell_of_sharing(&self, own: &Lane, via: QueueId) {
        let (queue, peer) = (own.queue, own.peer);
        let reason = own.lock().pairing.refused().unwrap_or_default().to_owned();
        if self.device.handles.budget.tells_of_sharing() {
            log::info!(
                "{queue} to {peer} shares the pair of {via}, and further queues for which there is \
                 no pair share those of others: {reason}"
            );
        } else {
            log::debug!("{queue} to {peer} shares the pair of {via}: {reason}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{NotificationId, SegmentId};
    use crate::wire::message::{Put, RemoteAddress, Stream};

    const Q0: QueueId = QueueId(0);
    const Q1: QueueId = QueueId(1);

    fn stream(queue: QueueId) -> Stream {
        Stream { queue, generation: 0 }
    }

    fn put(queue: QueueId) -> Request {
        let remote = RemoteAddress { segment: SegmentId(0), generation: 0, offset: 0 };
        let (notification, stream) = (NotificationId(0), stream(queue));
        let put = Put { stream, remote, size: 0, last: true, notification, value: 1 };
        Request::Put { put, data: None }
    }

    /// Two queues of which one has asked for the end of what waits.
    fn finished_by(queue: QueueId) -> LaneState {
        let mut state = LaneState::default();
        let finish = Request::Finish { stream: stream(queue), requests: 1 };
        [put(Q0), put(Q1), finish].into_iter().for_each(|request| state.push(request));
        assert!(!state.is_unfinished());
        state
    }

    #[test]
    fn what_ended_with_a_queue_that_has_gone_is_unfinished_again() {
        let mut state = finished_by(Q1);
        assert_eq!(state.take_waiting_of(Q1).len(), 2);
        assert!(state.is_unfinished() && state.waiting_queues() == bit(Q0));
        let mut state = finished_by(Q1);
        state.lose_waiting_of(Q1, &mut Ended::default());
        assert!(state.is_unfinished());
    }

    #[test]
    fn what_ends_with_a_queue_that_remains_is_no_more_unfinished() {
        let mut state = finished_by(Q1);
        let moved = state.take_waiting_of(Q0);
        assert!(!state.is_unfinished());
        assert!(state.take_waiting_of(QueueId(2)).is_empty());
        assert!(!state.is_unfinished());
        // Where it goes nothing ends behind it.
        let mut next = LaneState::default();
        moved.into_iter().for_each(|request| next.push(request));
        assert!(next.is_unfinished());
    }
}
