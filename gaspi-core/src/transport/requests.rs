//! Requests to the libraries of other ranks that they have not answered yet: each is completed
//! once, by its answer or by the end of the connection that it travels on.

use crate::error::Result;
use crate::ids::{NotificationId, QueueId, Rank, SegmentId};
use crate::segment::Segment;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::transport::numbers::NumberMap;
use crate::transport::{RequestFailure, Upcalls};
use crate::wire::message::{AtomicOperation, RemoteAddress, Stream};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    outcome: OnceLock<Result<u64, RequestFailure>>,
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
    Get { stream: Stream, get_target: GetTarget },
}

/// A request that has not been answered.
#[derive(Debug)]
struct Asked {
    peer: Rank,
    /// The name of the connection that it travels on.
    token: u64,
    request: Request,
}

impl PendingCall {
    /// Of a request of this number.
    pub(in crate::transport) fn new(request: u64) -> PendingCall {
        PendingCall { request, ..PendingCall::default() }
    }

    /// The number of its request.
    pub(crate) fn request(&self) -> u64 {
        self.request
    }

    /// Completes it, if nobody has.
    pub(in crate::transport) fn complete(&self, outcome: Result<u64, RequestFailure>) {
        // The first counts.
        let _ = self.outcome.set(outcome);
    }

    /// The answer, once it has come.
    pub(crate) fn outcome(&self) -> Option<Result<u64, RequestFailure>> {
        self.outcome.get().cloned()
    }
}

/// What has not been answered.
#[derive(Debug)]
pub(crate) struct PendingRequests {
    asked: Mutex<NumberMap<u64, Asked>>,
    /// Calls whose timeout ran out, to be continued.
    timed_out: Mutex<HashMap<RequestKey, Vec<Arc<PendingCall>>>>,
    next: AtomicU64,
}

impl Default for PendingRequests {
    fn default() -> PendingRequests {
        let (asked, timed_out) = (Mutex::default(), Mutex::default());
        PendingRequests { asked, timed_out, next: AtomicU64::new(1) }
    }
}

impl PendingRequests {
    /// A number that no other request has.
    pub(in crate::transport) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes note of a request to a rank, which travels on the connection of this name.
    pub(in crate::transport) fn insert(
        &self,
        id: u64,
        (peer, token): (Rank, u64),
        request: Request,
    ) {
        self.asked.lock().insert(id, Asked { peer, token, request });
    }

    /// Forgets a request, without completing it; whether it was there.
    pub(in crate::transport) fn withdraw(&self, id: u64) -> bool {
        self.asked.lock().remove(&id).is_some()
    }

    /// Takes out what has not been answered on a connection.
    pub(in crate::transport) fn take_lost(&self, token: u64) -> Vec<Request> {
        let mut asked = self.asked.lock();
        let of_it = asked.extract_if(|_, asked| asked.token == token);
        of_it.map(|(_, asked)| asked.request).collect()
    }

    /// Whether something has been asked for on a connection that has not been answered.
    pub(in crate::transport) fn has_any_on(&self, token: u64) -> bool {
        self.asked.lock().values().any(|asked| asked.token == token)
    }

    /// What answer `id` completes, if `from` was asked.
    pub(crate) fn answered(&self, id: u64, from: Rank) -> Option<Request> {
        match self.asked.lock().entry(id) {
            Entry::Occupied(asked) if asked.get().peer == from => Some(asked.remove().request),
            _ => None,
        }
    }

    /// The call whose timeout ran out with this key, if there is one.
    pub(crate) fn continued(&self, key: &RequestKey) -> Option<Arc<PendingCall>> {
        let mut timed_out = self.timed_out.lock();
        let calls = timed_out.get_mut(key)?;
        let call = calls.pop();
        if calls.is_empty() {
            timed_out.remove(key);
        }
        // An old answer says nothing about a peer that is asked whether it answers now.
        call.filter(|call| !matches!(key, RequestKey::Ping { .. }) || call.outcome.get().is_none())
    }

    /// Whether there is a call whose timeout ran out with this key.
    pub(crate) fn is_kept(&self, key: &RequestKey) -> bool {
        self.timed_out.lock().contains_key(key)
    }

    /// Gives a timed-out call up; the number of its request if it has not been answered.
    pub(crate) fn give_up(&self, key: &RequestKey) -> Option<u64> {
        let call = self.continued(key)?;
        let request = call.request;
        self.withdraw(request).then_some(request)
    }

    /// Forgets timed-out registrations of a segment that no longer exists.
    pub(crate) fn forget_registrations(&self, gone: SegmentId, of: u32) {
        self.timed_out.lock().retain(|key, _| {
            !matches!(key, RequestKey::Register { segment, generation, .. }
                if *segment == gone && *generation == of)
        });
    }

    /// Where the answer to a get goes, if `from` was asked.
    pub(crate) fn get_target(&self, id: u64, from: Rank) -> Option<(Stream, GetTarget)> {
        match self.asked.lock().get(&id)? {
            Asked { peer, request: Request::Get { stream, get_target }, .. } if *peer == from => {
                Some((*stream, get_target.clone()))
            }
            _ => None,
        }
    }

    /// Where answers to the gets of a queue go.
    pub(in crate::transport) fn targets_of(&self, queue: QueueId) -> Vec<Arc<Segment>> {
        let asked = self.asked.lock();
        let of_it = asked.values().filter_map(|asked| match &asked.request {
            Request::Get { stream, get_target } if stream.queue == queue => {
                Some(&get_target.segment)
            }
            _ => None,
        });
        let mut targets: Vec<Arc<Segment>> = Vec::new();
        for segment in of_it {
            if !targets.iter().any(|known| Arc::ptr_eq(known, segment)) {
                targets.push(Arc::clone(segment));
            }
        }
        targets
    }

    /// Keeps a call whose timeout ran out, to be continued.
    pub(crate) fn keep(&self, key: RequestKey, call: Arc<PendingCall>) {
        self.timed_out.lock().entry(key).or_default().push(call);
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
            call.complete(outcome);
        }
        Request::Get { stream, .. } => up.completed(peer, stream, 1, outcome.map(|_| ())),
    }
    up.ranks().wake_own();
}
