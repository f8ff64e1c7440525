//! What a rank has to do with the network: requests out, and handling what arrives.

use super::schedule::{Body, LOOK, Lane, Network, News, Shared};
use crate::error::Result;
use crate::ids::Rank;
use crate::os::socket::Piece;
use crate::sync::{Mutex, epoch};
use crate::transport::payload::{ChannelMessage, Payload};
use crate::transport::posted_receives::{HEAD_BYTES, PostedReceives};
use crate::transport::requests::{
    GetTarget, PendingCall, PendingRequests, Request, RequestKey, finish,
};
use crate::transport::software_target::{Action, Served, SoftwareTarget};
use crate::transport::{RequestFailure, Upcalls};
use crate::wire::frame::Frame;
use crate::wire::message::{Message, Put, RemoteAddress, RemoteCall, Stream};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Of so many messages of channels one finds no room at first.
const FULL: u64 = 16;

/// The way of one rank to all others.
#[derive(Debug)]
pub(crate) struct Port {
    network: Network,
    state: Arc<PortState>,
}

/// What is kept of what is under way.
#[derive(Debug)]
pub(super) struct PortState {
    me: Rank,
    requests: Arc<PendingRequests>,
    posted_receives: Arc<PostedReceives>,
    served: Mutex<HashMap<Rank, Served>>,
    /// Puts that peers have not acknowledged.
    unacknowledged: Mutex<HashMap<Rank, Vec<Stream>>>,
}

/// What stands for a connection with `peer`; 0 is none.
fn name_of(peer: Rank) -> u64 {
    u64::from(peer.0) + 1
}

impl Port {
    pub(crate) fn new(
        network: Network,
        me: Rank,
        requests: Arc<PendingRequests>,
        posted_receives: Arc<PostedReceives>,
    ) -> Port {
        let (served, unacknowledged) = (Mutex::default(), Mutex::default());
        let state = PortState { me, requests, posted_receives, served, unacknowledged };
        Port { network, state: Arc::new(state) }
    }

    /// Takes part; returns once all do.
    pub(crate) fn join(&self, up: Weak<dyn Upcalls>) {
        self.network.0.join(self.state.me, up, &self.state);
    }

    /// The rank leaves, or dies.
    pub(crate) fn leave(&self, died: bool) {
        self.network.0.leave(self.state.me, died);
    }

    /// The calling thread waits until something may have happened, at most for so long. It may
    /// have `acted` since it waited last.
    pub(crate) fn wait(&self, limit: Option<Duration>, acted: bool) {
        self.network.0.wait_here(limit, acted);
    }

    /// The same for a call that may not wait.
    pub(crate) fn look(&self) {
        self.network.0.pause_here(LOOK);
    }

    fn post(&self, to: Rank, lane: Lane, frame: Frame, body: Body) {
        self.network.0.post(self.state.me, to, lane, News::Frame(frame, body));
    }

    pub(crate) fn put(
        &self,
        up: &dyn Upcalls,
        peer: Rank,
        put: Put,
        payload: Option<Payload>,
    ) -> Result<()> {
        up.ranks().check_alive(peer, "a connection to it")?;
        let body = match payload {
            None => Body::Nothing,
            Some(payload) => Body::Later { head: Vec::new(), payload, size: put.size },
        };
        self.post_put(peer, put, body);
        Ok(())
    }

    fn post_put(&self, peer: Rank, put: Put, body: Body) {
        self.state.unacknowledged.lock().entry(peer).or_default().push(put.stream);
        self.post(peer, Lane::Queue(put.stream.queue), Frame::Put(put), body);
    }

    /// # Safety
    /// The data is readable.
    pub(crate) unsafe fn message(
        &self,
        up: &dyn Upcalls,
        peer: Rank,
        message: ChannelMessage<'_>,
    ) -> Result<bool> {
        up.ranks().check_alive(peer, "a connection to it")?;
        if self.network.0.chance(FULL) {
            return Ok(false);
        }
        let ChannelMessage { put, head, data, buffer, .. } = message;
        let mut head = head.to_vec();
        let body = match buffer {
            Some(buffer) => {
                let size = data.len as u64;
                Body::Later { head, payload: Payload::of_user(buffer, 0), size }
            }
            None => {
                // SAFETY: as the caller says.
                head.extend_from_slice(unsafe { data.bytes() });
                Body::Bytes(head)
            }
        };
        self.post_put(peer, put, body);
        Ok(true)
    }

    pub(crate) fn get(
        &self,
        up: &dyn Upcalls,
        peer: Rank,
        stream: Stream,
        remote: RemoteAddress,
        get_target: GetTarget,
    ) -> Result<()> {
        let size = get_target.size;
        let request = self.ask(up, peer, |_| Request::Get { stream, get_target })?;
        let get = Frame::Get { request, stream, remote, size };
        self.post(peer, Lane::Queue(stream.queue), get, Body::Nothing);
        Ok(())
    }

    pub(crate) fn call(
        &self,
        up: &dyn Upcalls,
        key: RequestKey,
        peer: Rank,
        call: RemoteCall,
    ) -> Result<Arc<PendingCall>> {
        if let Some(call) = self.state.requests.continued(&key) {
            return Ok(call);
        }
        let mut pending = None;
        let request = self.ask(up, peer, |id| {
            Request::Call(Arc::clone(pending.insert(Arc::new(PendingCall::new(id)))))
        })?;
        self.post(peer, Lane::Control, Frame::of_call(request, call), Body::Nothing);
        Ok(pending.unwrap_or_default())
    }

    /// Takes note of a request; gives its number.
    fn ask(
        &self,
        up: &dyn Upcalls,
        peer: Rank,
        request: impl FnOnce(u64) -> Request,
    ) -> Result<u64> {
        up.ranks().check_alive(peer, "a connection to it")?;
        let id = self.state.requests.number();
        self.state.requests.insert(id, (peer, name_of(peer)), request(id));
        Ok(id)
    }

    pub(crate) fn send(&self, up: &dyn Upcalls, peer: Rank, message: &Message) -> Result<()> {
        up.ranks().check_alive(peer, "a connection to it")?;
        self.post(peer, Lane::Control, Frame::Message(message.clone()), Body::Nothing);
        Ok(())
    }

    /// Answers a request of the peer that a connection of this name stands for.
    pub(crate) fn answer(
        &self,
        name: u64,
        request: u64,
        outcome: std::result::Result<u64, String>,
    ) {
        let peer = Rank((name - 1) as u16);
        self.post(peer, Lane::Answers, Frame::Reply { request, outcome }, Body::Nothing);
    }

    /// What is under way to a peer that has ended is lost.
    pub(crate) fn disconnect(&self, up: &dyn Upcalls, peer: Rank) {
        let lost = self.state.unacknowledged.lock().remove(&peer).unwrap_or_default();
        for stream in lost {
            up.completed(peer, stream, 1, Err(RequestFailure::Lost));
        }
        for request in self.state.requests.take_lost(name_of(peer)) {
            finish(up, peer, request, Err(RequestFailure::Lost));
        }
    }

    /// Whether something of `peer` has not arrived.
    pub(crate) fn may_bring_more(&self, peer: Rank) -> bool {
        self.network.0.is_under_way(peer, self.state.me)
    }
}

impl PortState {
    /// Something has arrived.
    pub(super) fn arrived(&self, network: &Shared, up: &dyn Upcalls, from: Rank, news: News) {
        let _handling = epoch::handling();
        match news {
            News::Frame(frame, body) => self.frame(network, up, from, frame, body),
            News::Acknowledged(stream) => {
                let mut unacknowledged = self.unacknowledged.lock();
                let streams = unacknowledged.entry(from).or_default();
                let known = streams.iter().position(|one| *one == stream);
                if let Some(place) = known {
                    streams.remove(place);
                }
                drop(unacknowledged);
                if known.is_some() {
                    up.completed(from, stream, 1, Ok(()));
                }
            }
            News::Ended { died } => {
                if !died {
                    up.ranks().note_goodbye(from);
                    up.ranks().area.remote_left(from);
                }
                up.ended(from);
            }
        }
    }

    fn frame(&self, network: &Shared, up: &dyn Upcalls, from: Rank, frame: Frame, body: Body) {
        let target =
            SoftwareTarget { up, requests: &self.requests, posted_receives: &self.posted_receives };
        let mut served = self.served.lock().remove(&from).unwrap_or_default();
        let stream = match &frame {
            Frame::Put(put) => Some(put.stream),
            _ => None,
        };
        let mut action = target.handle(from, name_of(from), &mut served, frame);
        if let Action::Receive(size) = action {
            let bytes = taken(body);
            assert_eq!(bytes.len() as u64, size, "a payload is as long as its frame says");
            self.receive(network, target, from, &mut served, &bytes);
            action = target.arrived(from, &mut served);
        }
        let answer = |lane, frame, body| {
            network.post(self.me, from, lane, News::Frame(frame, body));
        };
        match action {
            Action::Nothing | Action::Answered => {}
            Action::Answer(frame) | Action::Value(frame) => {
                answer(Lane::Answers, frame, Body::Nothing);
            }
            Action::Refuse { stream, answer: frame } => {
                answer(Lane::Data(stream.queue), frame, Body::Nothing);
            }
            Action::Data { stream, request, size, payload } => {
                let body = Body::Later { head: Vec::new(), payload, size };
                answer(Lane::Data(stream.queue), Frame::Data { request, size }, body);
            }
            Action::Receive(_) | Action::Abort | Action::Own(_) => {
                panic!("{from} does not keep to the protocol: {action:?}")
            }
        }
        if std::mem::take(&mut served.completed).puts > 0
            && let Some(stream) = stream
        {
            network.post(self.me, from, Lane::Answers, News::Acknowledged(stream));
        }
        self.served.lock().insert(from, served);
        up.ranks().wake_own();
    }

    /// Puts a payload into its place, in some parts.
    fn receive(
        &self,
        network: &Shared,
        target: SoftwareTarget<'_>,
        from: Rank,
        served: &mut Served,
        bytes: &[u8],
    ) {
        let Some(body) = &mut served.body else { return };
        let mut rest = bytes;
        while !rest.is_empty() {
            // A word is one, and the head of a message goes to its slot.
            let least = if rest.len() == bytes.len() { HEAD_BYTES } else { 8 };
            let len = (least + network.below(rest.len() as u64) as usize).min(rest.len());
            let (part, behind) = rest.split_at(len);
            match target.receive_target(from, body) {
                Some(place) => {
                    // SAFETY: the memory of a receive that was posted, as long as its message.
                    unsafe { place.pointer.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
                    body.advance(part.len() as u64);
                }
                None => target.store(body, part),
            }
            rest = behind;
        }
    }
}

/// The bytes of a body, as they are now. Memory that may not be read any more gives zeroes.
fn taken(body: Body) -> Vec<u8> {
    match body {
        Body::Nothing => Vec::new(),
        Body::Bytes(bytes) => bytes,
        Body::Later { mut head, payload, size } => {
            let readable = payload.accept();
            let data = Piece { pointer: payload.pointer(0), len: size as usize };
            if *readable {
                // SAFETY: the range was checked when it was posted, and may be read while the lock
                // is held.
                head.extend_from_slice(unsafe { data.bytes() });
            } else {
                head.resize(head.len() + data.len, 0);
            }
            head
        }
    }
}
