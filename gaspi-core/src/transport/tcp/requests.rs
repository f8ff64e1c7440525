//! Requests to the libraries of other ranks that they have not answered yet: each is completed
//! once, by its answer or by the end of the connection that it travels on.

use crate::error::{Error, Result};
use crate::ids::{NotificationId, QueueId, Rank, SegmentId};
use crate::segment::Segment;
use crate::sync::Ordering;
use crate::transport::tcp::connection::{Connection, Posted, Unsent};
use crate::transport::tcp::endpoint_table::EndpointTable;
use crate::transport::tcp::send_queue::{Item, Outgoing};
use crate::transport::{RequestFailure, Upcalls};
use crate::wire::frame::Frame;
use crate::wire::message::{AtomicOperation, RemoteAddress, RemoteCall, Stream};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

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
    request: u64,
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

impl PendingCall {
    /// The answer, once it has come.
    pub(crate) fn outcome(&self) -> Option<Result<u64, RequestFailure>> {
        self.outcome.get().cloned()
    }
}

impl EndpointTable {
    /// Posts a get, which is answered by data.
    pub(crate) fn post_get(
        &self,
        up: &dyn Upcalls,
        rank: Rank,
        stream: Stream,
        remote: RemoteAddress,
        get_target: GetTarget,
    ) -> Result<()> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (queue, size) = (stream.queue, get_target.size);
        let get = Request::Get { queue, generation: stream.generation, get_target };
        let item = Item::Frame(Frame::Get { request, stream, remote, size });
        self.ask(up, rank, request, get, item, |connection, item| {
            connection.post(&self.data, queue, item)
        })
    }

    /// Takes note of a request, and hands it over as [`EndpointTable::hand`].
    #[allow(clippy::too_many_arguments, reason = "what `hand` takes, and the request")]
    fn ask<T>(
        &self,
        up: &dyn Upcalls,
        peer: Rank,
        id: u64,
        request: Request,
        item: T,
        hand_over: impl Fn(&Connection, T) -> Result<Posted, Unsent<T>>,
    ) -> Result<()> {
        self.requests.lock().insert(id, Asked { peer, token: 0, request });
        let handed = self.hand(up, peer, item, |connection, item| {
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
    pub(super) fn fail_requests(&self, up: &dyn Upcalls, peer: Rank, token: u64) {
        let lost: Vec<Request> = {
            let mut requests = self.requests.lock();
            let of_it = requests.extract_if(|_, asked| asked.token == token);
            of_it.map(|(_, asked)| asked.request).collect()
        };
        for request in lost {
            finish(up, peer, request, Err(RequestFailure::Lost));
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
        let request = call.request;
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

    /// Answers a request that came on a connection, if that is still there: without it the asker
    /// knows already that its request has failed.
    pub(crate) fn answer(&self, connection: u64, request: u64, outcome: Result<u64, String>) {
        if let Some(connection) = self.connection(connection) {
            connection.answer(&self.data, &Frame::Reply { request, outcome });
        }
    }

    /// Keeps a call whose timeout ran out, to be continued.
    pub(crate) fn keep(&self, key: RequestKey, call: Arc<PendingCall>) {
        self.timed_out.lock().entry(key).or_default().push(call);
    }

    /// Starts a call, or continues one whose timeout ran out.
    pub(crate) fn call(
        &self,
        up: &dyn Upcalls,
        key: RequestKey,
        rank: Rank,
        call: RemoteCall,
        files: &[BorrowedFd<'_>],
    ) -> Result<Arc<PendingCall>> {
        if let Some(call) = self.continued(&key) {
            return Ok(call);
        }
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let pending = Arc::new(PendingCall { request: id, ..PendingCall::default() });
        let item = Outgoing::with_descriptors(&Frame::of_call(id, call), files)
            .map_err(|error| Error::os("duplicating a descriptor", &error))?;
        let request = Request::Call(Arc::clone(&pending));
        self.ask(up, rank, id, request, item, |connection, item| {
            connection.send(&self.data, item).map(|()| Posted::default())
        })?;
        Ok(pending)
    }
}

/// Completes a request with the answer to it.
pub(crate) fn finish(
    up: &dyn Upcalls,
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
            up.completed(peer, stream, 1, outcome.map(|_| ()));
        }
    }
    up.ranks().wake_own();
}
