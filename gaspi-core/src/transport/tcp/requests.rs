//! Requests to the libraries of other ranks that they have not answered yet: each is completed
//! once, by its answer or by the end of the connection that it travels on.

use crate::error::{Error, Result};
use crate::ids::{NotificationId, QueueId, Rank, SegmentId};
use crate::runtime::Inner;
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering};
use crate::timeout::Deadline;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::connection::{Connection, Posted, Unsent};
use crate::transport::tcp::endpoint_table::{EXPLAIN, EndpointTable};
use crate::transport::tcp::send_queue::{Item, Outgoing};
use crate::wait::Waiting;
use crate::wire::frame::{AtomicOperation, Frame, RemoteAddress, Stream};
use std::cell::Cell;
use std::sync::{Arc, OnceLock};

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestFailure {
    /// The connection ended before the answer.
    Lost,
    /// The peer says why.
    Refused(String),
}

/// A call that can be continued after a timeout by calling again with the same arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RequestKey {
    Register { segment: SegmentId, generation: u32, rank: Rank },
    Ping { rank: Rank },
    Atomic { remote: RemoteAddress, rank: Rank, operation: AtomicOperation },
    Passive { rank: Rank, segment: SegmentId, offset: u64, size: u64 },
}

/// A call under way.
#[derive(Debug, Default)]
pub(crate) struct PendingCall {
    pub(super) outcome: OnceLock<Result<u64, RequestFailure>>,
    /// The number of its request.
    pub(crate) request: AtomicU64,
}

/// Where the bytes of an answer go.
#[derive(Debug, Clone)]
pub(crate) struct GetTarget {
    pub(crate) segment: Arc<Segment>,
    /// Bytes.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) notify: Option<(Arc<Segment>, NotificationId)>,
}

/// What an answer completes.
#[derive(Debug)]
pub(crate) enum Request {
    Call(Arc<PendingCall>),
    Get { queue: QueueId, generation: u32, get_target: GetTarget },
}

/// A request that has not been answered.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) peer: Rank,
    /// The name of the connection that it travels on.
    pub(super) token: u64,
    pub(super) request: Request,
}

/// For how long the ends of peers are waited for whose connections broke: in all, for a call that
/// asks several.
#[derive(Debug, Default)]
pub(crate) struct Patience(Cell<Option<Deadline>>);

impl Patience {
    fn limit(&self, deadline: Deadline) -> Deadline {
        let end = self.0.get().unwrap_or_else(|| Deadline::Never.at_most(EXPLAIN));
        self.0.set(Some(end));
        deadline.at_most(end.remaining().unwrap_or(EXPLAIN))
    }
}

impl EndpointTable {
    /// Posts a get, which is answered by data.
    pub(crate) fn post_get(
        &self,
        inner: &Inner,
        rank: Rank,
        stream: Stream,
        remote: RemoteAddress,
        get_target: GetTarget,
    ) -> Result<()> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (queue, size) = (stream.queue, get_target.size);
        let get = Request::Get { queue, generation: stream.generation, get_target };
        let item = Item::Frame(Frame::Get { request, stream, remote, size });
        self.ask(inner, rank, Deadline::Now, request, get, item, |connection, item| {
            connection.post(&self.data, queue, item)
        })
    }

    /// Sends a frame that will be answered.
    pub(crate) fn request(
        &self,
        inner: &Inner,
        rank: Rank,
        request: Request,
        deadline: Deadline,
        item: impl FnOnce(u64) -> std::io::Result<Outgoing>,
    ) -> Result<()> {
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        if let Request::Call(call) = &request {
            call.request.store(id, Ordering::Relaxed);
        }
        let item = item(id).map_err(|error| Error::os("duplicating a descriptor", &error))?;
        self.ask(inner, rank, deadline, id, request, item, |connection, item| {
            connection.send(&self.data, item).map(|()| Posted::default())
        })
    }

    /// Takes note of a request, and hands it over as [`EndpointTable::hand`].
    #[allow(clippy::too_many_arguments, reason = "what `hand` takes, and the request")]
    fn ask<T>(
        &self,
        inner: &Inner,
        peer: Rank,
        deadline: Deadline,
        id: u64,
        request: Request,
        item: T,
        hand_over: impl Fn(&Connection, T) -> Result<Posted, Unsent<T>>,
    ) -> Result<()> {
        self.requests.lock().insert(id, Asked { peer, token: 0, request });
        let handed = self.hand(inner, peer, deadline, item, |connection, item| {
            // Before it is sent: should the connection end, it fails with it.
            if let Some(asked) = self.requests.lock().get_mut(&id) {
                asked.token = connection.token;
            }
            hand_over(connection, item)
        });
        handed.inspect_err(|_| {
            self.requests.lock().remove(&id);
        })
    }

    /// Fails everything that `peer` has not answered on a connection.
    pub(super) fn fail_requests(&self, inner: &Inner, peer: Rank, token: u64) {
        let lost: Vec<Request> = {
            let mut requests = self.requests.lock();
            let of_it = requests.extract_if(|_, asked| asked.token == token);
            of_it.map(|(_, asked)| asked.request).collect()
        };
        for request in lost {
            finish(inner, peer, request, Err(RequestFailure::Lost));
        }
    }

    /// What answer `id` completes, if `from` was asked.
    pub(crate) fn answered(&self, id: u64, from: Rank) -> Option<Request> {
        let mut requests = self.requests.lock();
        if requests.get(&id).is_some_and(|asked| asked.peer == from) {
            requests.remove(&id).map(|asked| asked.request)
        } else {
            None
        }
    }

    fn continued(&self, key: &RequestKey) -> Option<Arc<PendingCall>> {
        let mut timed_out = self.timed_out.lock();
        let calls = timed_out.get_mut(key)?;
        let call = calls.pop();
        if calls.is_empty() {
            timed_out.remove(key);
        }
        // An old answer says nothing about a peer that is asked whether it answers now.
        call.filter(|call| !matches!(key, RequestKey::Ping { .. }) || call.outcome.get().is_none())
    }

    /// Gives a timed-out call up; the number of its request if it has not been answered.
    pub(crate) fn give_up(&self, key: &RequestKey) -> Option<u64> {
        let call = self.continued(key)?;
        let request = call.request.load(Ordering::Relaxed);
        self.requests.lock().remove(&request)?;
        Some(request)
    }

    /// Forgets timed-out registrations of a segment that no longer exists.
    pub(crate) fn forget_registrations(&self, gone: SegmentId, of: u32) {
        self.timed_out.lock().retain(|key, _| {
            !matches!(key, RequestKey::Register { segment, generation, .. }
                if *segment == gone && *generation == of)
        });
    }

    /// Where the answer to a get goes, if `from` was asked.
    pub(crate) fn get_target(&self, id: u64, from: Rank) -> Option<(QueueId, u32, GetTarget)> {
        match self.requests.lock().get(&id)? {
            Asked { peer, request: Request::Get { queue, generation, get_target }, .. }
                if *peer == from =>
            {
                Some((*queue, *generation, get_target.clone()))
            }
            _ => None,
        }
    }

    /// Starts a call, or continues one whose timeout ran out.
    pub(crate) fn call(
        &self,
        inner: &Inner,
        key: RequestKey,
        rank: Rank,
        deadline: Deadline,
        item: impl FnOnce(u64) -> std::io::Result<Outgoing>,
    ) -> Result<Arc<PendingCall>> {
        if let Some(call) = self.continued(&key) {
            return Ok(call);
        }
        let call = Arc::new(PendingCall::default());
        self.request(inner, rank, Request::Call(Arc::clone(&call)), deadline, item)?;
        Ok(call)
    }

    /// Waits for the answer to a call. A timeout leaves it under way.
    pub(crate) fn finish_call(
        &self,
        inner: &Inner,
        key: RequestKey,
        rank: Rank,
        call: Arc<PendingCall>,
        deadline: Deadline,
        waiting: Waiting,
    ) -> Result<u64> {
        let patience = Patience::default();
        self.finish_one_of(inner, key, rank, call, deadline, waiting, &patience)
    }

    /// The same for one of several calls, which share the patience with connections that broke.
    #[allow(clippy::too_many_arguments, reason = "what `finish_call` takes, and the patience")]
    pub(crate) fn finish_one_of(
        &self,
        inner: &Inner,
        key: RequestKey,
        rank: Rank,
        call: Arc<PendingCall>,
        deadline: Deadline,
        waiting: Waiting,
        patience: &Patience,
    ) -> Result<u64> {
        let outcome = inner.until(deadline, waiting, || {
            let answered = || call.outcome.get().cloned();
            // A forked child may hold the connection of somebody who has left.
            answered().or_else(|| match inner.ranks.check_alive(rank, "") {
                Ok(()) => None,
                Err(_) => Some(answered().unwrap_or(Err(RequestFailure::Lost))),
            })
        });
        let Some(outcome) = outcome else {
            self.timed_out.lock().entry(key).or_default().push(call);
            return Err(Error::Timeout { pending: format!("an answer of {rank}") });
        };
        match outcome {
            Ok(value) => Ok(value),
            Err(RequestFailure::Refused(reason)) => Err(inner.ranks.refused(rank, reason)),
            Err(RequestFailure::Lost) => {
                // A rank of this node that turned the connection away has said why.
                let said = self.last_error(rank).filter(|_| inner.ranks.is_local(rank));
                if said.is_none() {
                    inner.ranks.may_have_ended(rank);
                    inner.explain(rank, patience.limit(deadline));
                }
                inner.ranks.check_alive(rank, waiting.call.name())?;
                let reason = said.unwrap_or_else(|| "the connection to it broke".to_owned());
                Err(inner.ranks.refused(rank, reason))
            }
        }
    }
}

/// Completes a request with the answer to it.
pub(crate) fn finish(
    inner: &Inner,
    peer: Rank,
    request: Request,
    outcome: Result<u64, RequestFailure>,
) {
    match request {
        Request::Call(call) => {
            // Answered once only; nobody else sets it.
            let _ = call.outcome.set(outcome);
        }
        Request::Get { queue, generation, .. } => {
            let stream = Stream { queue, generation };
            inner.completed(peer, stream, 1, outcome.map(|_| ()));
        }
    }
    inner.ranks.wake_own();
}

impl Inner {
    /// Requests of a queue have ended.
    pub(crate) fn completed(
        &self,
        peer: Rank,
        stream: Stream,
        count: u32,
        outcome: Result<(), RequestFailure>,
    ) {
        let lost = outcome == Err(RequestFailure::Lost);
        let failed = outcome.err().map(|failure| match failure {
            RequestFailure::Refused(reason) => format!("{peer} refused: {reason}"),
            RequestFailure::Lost => match self.ranks.liveness(peer) {
                liveness::LEFT => format!("{peer} has left the job"),
                liveness::DEAD => {
                    format!("{peer} has died on {}", self.ranks.cards[peer.index()].host)
                }
                _ => {
                    let host = &self.ranks.cards[peer.index()].host;
                    match self.endpoints.last_error(peer) {
                        Some(why) => format!("{peer} on {host} cannot be reached: {why}"),
                        None => format!("the connection to {peer} on {host} broke"),
                    }
                }
            },
        });
        // First: whoever waits for the queue may see the failure at once.
        if let Some(reason) = &failed {
            self.request_failed(peer, stream, reason, !lost);
        }
        match self.queues.get(stream.queue.index()) {
            Some(queue) if lost => {
                queue.lose(peer, stream.generation, count, failed.as_deref().unwrap_or_default());
            }
            Some(queue) => queue.complete(peer, stream.generation, count, failed.as_deref()),
            None if failed.is_some() => self.channels.zero_copy.lost(stream.generation),
            None => self.channels.zero_copy.acknowledged(stream.generation),
        }
        self.ranks.wake_own();
    }
}
