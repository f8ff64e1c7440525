//! The way back: requests that a device does not carry, on a lane that it has.
//!
//! They wait in the lane until the device has nothing of it under way, their data included, and
//! then go by the stream, in order, with all that was posted behind them. From then on the lane is
//! the stream's, until nothing of it is under way: [`crate::sync::lane`].
//!
//! Invariant: a lane is handed over while nothing waits in it for a stream, so that no later
//! request of a thread overtakes an earlier one.

use super::Verbs;
use super::ended::Ended;
use super::lane::{Lane, LaneState, Request};
use crate::ids::{QueueId, Rank};
use crate::sync::MutexGuard;
use crate::transport::endpoint::CarrierKind;
use crate::transport::payload::Payload;
use crate::transport::requests::GetTarget;
use crate::transport::tcp::send_queue::Item;
use crate::transport::{Carried, RequestFailure};
use crate::wire::message::{Put, RemoteAddress, Stream};
use std::thread;

/// A request for a stream.
#[derive(Debug)]
pub(super) enum Diverted {
    Put(Put, Option<Payload>),
    Get(Stream, RemoteAddress, GetTarget),
}

impl Diverted {
    pub(super) fn stream(&self) -> Stream {
        match self {
            Diverted::Put(put, _) => put.stream,
            Diverted::Get(stream, ..) => *stream,
        }
    }

    /// Why the device cannot carry it, as far as that is known.
    pub(super) fn refusal(&self) -> String {
        let own = match self {
            Diverted::Put(_, payload) => payload.as_ref().and_then(Payload::place),
            Diverted::Get(.., target) => Some((&*target.segment, target.offset)),
        };
        let known = own.and_then(|(own, _)| Some((own.id, own.prepared.refusal()?)));
        known.map_or_else(
            || "the RDMA device does not take the memory".to_owned(),
            |(segment, reason)| format!("the RDMA device does not take {segment}: {reason}"),
        )
    }

    fn carried(&self) -> Carried {
        match self {
            Diverted::Put(put, _) => Carried::Written(put.size),
            Diverted::Get(.., target) => Carried::Read(target.size),
        }
    }
}

/// How many of those that wait are for a stream, and whether somebody hands such to it now.
#[derive(Debug, Default)]
pub(super) struct Diversion {
    pub(super) waiting: u32,
    pub(super) running: bool,
    /// How many a stream has been handed.
    handed: u32,
}

impl LaneState {
    /// The next request that is for a stream.
    fn take_diverted(&mut self) -> Option<Diverted> {
        let next =
            self.waiting.iter().position(|request| matches!(request, Request::Diverted(_)))?;
        self.diversion.waiting -= 1;
        match self.waiting.remove(next) {
            Some(Request::Diverted(request)) => Some(request),
            _ => None,
        }
    }

    /// Forgets what is for a stream, of a queue that has another generation now.
    fn drop_diverted(&mut self, queue: QueueId, generation: u32, ended: &mut Ended) {
        let before = self.waiting.len();
        self.waiting.retain(|request| {
            let Request::Diverted(request) = request else { return true };
            let stream = request.stream();
            let stays = stream.queue != queue || stream.generation == generation;
            if !stays {
                // They were under way until now.
                ended.done.add(stream);
            }
            stays
        });
        self.diversion.waiting -= (before - self.waiting.len()) as u32;
    }
}

impl Verbs<'_> {
    /// A queue was purged, whose requests have this generation from now on: older ones that wait
    /// for the stream are forgotten, before those that it has.
    pub(crate) fn forget_diverted(self, queue: QueueId, generation: u32) {
        for own in self.table.used(Some(queue)) {
            let route = own.route.lock();
            let lane = self.via(own, &route);
            let (mut ended, mut state) = (Ended::default(), lane.lock());
            drop(route);
            state.drop_diverted(queue, generation, &mut ended);
            // One may be on its way to the stream, which has to have it before it forgets its own.
            let handed = state.diversion.handed;
            while state.diversion.running && state.diversion.handed == handed {
                drop(state);
                thread::yield_now();
                state = lane.lock();
            }
            self.pump(lane, state);
            ended.tell(self.up, lane.peer);
        }
    }

    /// Whether a lane has been handed to the stream, which then gets all of it.
    pub(super) fn is_handed_over(self, peer: Rank, queue: QueueId) -> bool {
        let carrier = self.up.lane_carrier(peer, queue);
        carrier.is_some_and(|carrier| carrier.current() == CarrierKind::Stream as u8)
    }

    /// Hands what waits for a stream to it, if that is due: one thread at a time, so that it stays
    /// in order, and without the lane's lock, since a connection may be found to be broken.
    pub(super) fn divert<'l>(self, lane: &'l Lane, mut state: MutexGuard<'l, LaneState>) {
        if !state.may_divert() {
            return;
        }
        state.set_diverting(true);
        while let Some(request) = state.take_diverted() {
            drop(state);
            self.post_to_stream(lane.peer, request);
            state = lane.lock();
            state.diversion.handed = state.diversion.handed.wrapping_add(1);
        }
        let carriers = state.sharing.queues(lane.queue);
        for carrier in carriers.filter_map(|queue| self.up.lane_carrier(lane.peer, queue)) {
            carrier.hand_over(CarrierKind::Stream as u8);
        }
        state.set_diverting(false);
        // Answers to the peer that have waited behind, which no stream carries.
        self.pump(lane, state);
    }

    /// Posts a request to the stream, unless it is forgotten; one that cannot be posted is lost.
    pub(super) fn post_to_stream(self, peer: Rank, request: Diverted) {
        let (up, stream) = (self.up, request.stream());
        if up.lane_carrier(peer, stream.queue).is_some() && !up.expects(stream) {
            // Its queue was purged since.
            return up.completed(peer, stream, 1, Ok(()));
        }
        up.carried(peer, false, request.carried());
        let posted = match request {
            Diverted::Put(put, payload) => {
                self.stream.post(up, peer, stream.queue, Item::put(put, payload))
            }
            Diverted::Get(stream, place, target) => {
                self.stream.post_get(up, peer, stream, place, target)
            }
        };
        if let Err(error) = posted {
            log::debug!("{} to {peer}: {error}", stream.queue);
            up.completed(peer, stream, 1, Err(RequestFailure::Lost));
        }
    }
}
