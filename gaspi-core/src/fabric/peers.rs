//! Connections to the libraries of other ranks, and requests that they have not answered yet.

use super::connection::{Connection, Outgoing};
use super::frame::{AtomicOperation, Frame, Place};
use crate::error::{Error, Result};
use crate::ids::{GroupId, NotificationId, QueueId, Rank, SegmentId};
use crate::node::life;
use crate::os::event::{Bell, Poll};
use crate::os::socket;
use crate::runtime::Inner;
use crate::segment::Segment;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::timeout::Deadline;
use crate::wait::{Call, Waiting};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Names of the poll set: pidfds carry their rank, connections count from a base.
pub(crate) const LISTENER: u64 = 0;
pub(crate) const BELL: u64 = 1;
pub(crate) const LAUNCHER: u64 = 2;
pub(crate) const PROCESSES: u64 = 1 << 32;
pub(crate) const CONNECTIONS: u64 = 1 << 33;

/// How long a broken connection may stay unexplained: the process descriptor tells soon after.
const EXPLAIN: Duration = Duration::from_secs(1);

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection ended before the answer.
    Lost,
    /// The peer says why.
    Refused(String),
}

/// A call that can be continued after a timeout by calling again with the same arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CallKey {
    Register { segment: SegmentId, generation: u32, rank: Rank },
    Ping { rank: Rank },
    Atomic { place: Place, rank: Rank, operation: AtomicOperation },
}

/// A call under way.
#[derive(Debug, Default)]
pub(crate) struct PendingCall {
    outcome: OnceLock<Result<u64, Failure>>,
}

/// Where the bytes of an answer go.
#[derive(Debug, Clone)]
pub(crate) struct Landing {
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
    Post { queue: QueueId, generation: u32 },
    Get { queue: QueueId, generation: u32, landing: Landing },
}

/// The connections of one rank.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) poll: Poll,
    pub(crate) bell: Bell,
    pub(crate) listener: Option<OwnedFd>,
    pub(crate) stop: AtomicBool,
    opened: Box<[Mutex<Option<Arc<Connection>>>]>,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    /// Whether connections were dropped that the progress thread may hold something of.
    dropped: AtomicBool,
    requests: Mutex<HashMap<u64, (Rank, Request)>>,
    /// Calls whose timeout ran out, to be continued.
    timed_out: Mutex<HashMap<CallKey, Vec<Arc<PendingCall>>>>,
    next_request: AtomicU64,
    next_token: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers {
    pub(crate) fn new(listener: Option<OwnedFd>, size: u32) -> Result<Peers> {
        let poll = Poll::new()?;
        let bell = Bell::new()?;
        poll.add(bell.as_fd(), BELL)?;
        if let Some(listener) = &listener {
            poll.add(listener.as_fd(), LISTENER)?;
        }
        Ok(Peers {
            poll,
            bell,
            listener,
            stop: AtomicBool::new(false),
            opened: (0..size).map(|_| Mutex::default()).collect(),
            connections: Mutex::default(),
            dropped: AtomicBool::new(false),
            requests: Mutex::default(),
            timed_out: Mutex::default(),
            next_request: AtomicU64::new(1),
            next_token: AtomicU64::new(CONNECTIONS),
        })
    }

    /// Takes a connection into the poll set.
    pub(crate) fn adopt(&self, make: impl FnOnce(u64) -> Connection) -> Result<Arc<Connection>> {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(make(token));
        lock(&self.connections).insert(token, Arc::clone(&connection));
        if let Err(error) = self.poll.add(connection.as_fd(), token) {
            lock(&self.connections).remove(&token);
            return Err(error);
        }
        Ok(connection)
    }

    pub(crate) fn connection(&self, token: u64) -> Option<Arc<Connection>> {
        lock(&self.connections).get(&token).cloned()
    }

    /// Forgets a connection that has ended; what it owed answers for fails.
    pub(crate) fn drop_connection(&self, inner: &Inner, connection: &Arc<Connection>) {
        self.poll.remove(connection.as_fd());
        connection.shut_down();
        lock(&self.connections).remove(&connection.token);
        self.dropped.store(true, Ordering::Release);
        self.bell.ring();
        let Some(peer) = connection.peer().map(Rank) else { return };
        let mut opened = lock(&self.opened[peer.index()]);
        if opened.as_ref().is_some_and(|own| own.token == connection.token) {
            *opened = None;
            drop(opened);
            self.fail_requests(inner, peer);
        }
    }

    /// Whether connections were dropped since the last call.
    pub(crate) fn take_dropped(&self) -> bool {
        self.dropped.swap(false, Ordering::AcqRel)
    }

    /// Ends all connections for the other side too, also where a forked child holds them.
    pub(crate) fn shut_down(&self) {
        for connection in lock(&self.connections).values() {
            connection.shut_down();
        }
    }

    /// Fails everything that `peer` has not answered.
    pub(crate) fn fail_requests(&self, inner: &Inner, peer: Rank) {
        let lost: Vec<Request> = {
            let mut requests = lock(&self.requests);
            let ids: Vec<u64> =
                requests.iter().filter(|(_, (to, _))| *to == peer).map(|(id, _)| *id).collect();
            ids.iter().filter_map(|id| requests.remove(id)).map(|(_, request)| request).collect()
        };
        for request in lost {
            finish(inner, peer, request, Err(Failure::Lost));
        }
    }

    /// Closes the connection opened to `rank`, if there is one.
    pub(crate) fn disconnect(&self, inner: &Inner, rank: Rank) {
        let connection = lock(&self.opened[rank.index()]).clone();
        if let Some(connection) = connection {
            self.drop_connection(inner, &connection);
        }
    }

    /// Whether everything posted to `rank` has been handed to the kernel.
    pub(crate) fn is_drained(&self, rank: Rank) -> bool {
        lock(&self.opened[rank.index()]).as_ref().is_none_or(|open| open.is_drained())
    }

    /// The connection opened to `rank`, made if there is none.
    pub(crate) fn open(&self, inner: &Inner, rank: Rank) -> Result<Arc<Connection>> {
        inner.check_alive(rank, "a connection to it")?;
        let mut opened = lock(&self.opened[rank.index()]);
        if let Some(connection) = opened.as_ref() {
            return Ok(Arc::clone(connection));
        }
        let address = &inner.cards[rank.index()].address;
        let fd = socket::connect(address)
            .map_err(|error| Error::os(format!("connecting to {rank}"), &error))?;
        let connection = self.adopt(|token| Connection::opened(fd, token, rank.0))?;
        let hello = Frame::Hello { rank: inner.rank, token: inner.token };
        // A connection that breaks at once is noticed by the progress thread.
        let _ = connection.send(&self.poll, Outgoing::new(&hello));
        *opened = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Sends a frame to `rank`.
    pub(crate) fn send(
        &self,
        inner: &Inner,
        rank: Rank,
        item: Outgoing,
        deadline: Deadline,
    ) -> Result<()> {
        let mut result = self.open(inner, rank);
        if matches!(result, Err(Error::System { .. })) {
            // Somebody who ends refuses connections a moment before his end is known.
            inner.explain(rank, deadline.at_most(EXPLAIN));
            inner.check_alive(rank, "a connection to it")?;
            result = self.open(inner, rank);
        }
        let connection = result?;
        if connection.send(&self.poll, item).is_err() {
            self.drop_connection(inner, &connection);
        }
        Ok(())
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
        let item = item(id).map_err(|error| Error::os("duplicating a descriptor", &error))?;
        lock(&self.requests).insert(id, (rank, request));
        self.send(inner, rank, item, deadline).inspect_err(|_| {
            lock(&self.requests).remove(&id);
        })
    }

    /// What answer `id` completes, if `from` was asked.
    pub(crate) fn answered(&self, id: u64, from: Rank) -> Option<Request> {
        let mut requests = lock(&self.requests);
        if requests.get(&id).is_some_and(|(to, _)| *to == from) {
            requests.remove(&id).map(|(_, request)| request)
        } else {
            None
        }
    }

    fn continued(&self, key: &CallKey) -> Option<Arc<PendingCall>> {
        let mut timed_out = lock(&self.timed_out);
        let calls = timed_out.get_mut(key)?;
        let call = calls.pop();
        if calls.is_empty() {
            timed_out.remove(key);
        }
        // An old answer says nothing about a peer that is asked whether it answers now.
        call.filter(|call| !matches!(key, CallKey::Ping { .. }) || call.outcome.get().is_none())
    }

    /// Forgets timed-out registrations of a segment that no longer exists.
    pub(crate) fn forget_registrations(&self, gone: SegmentId, of: u32) {
        lock(&self.timed_out).retain(|key, _| {
            !matches!(key, CallKey::Register { segment, generation, .. }
                if *segment == gone && *generation == of)
        });
    }

    /// Where the answer to a get goes, if `from` was asked.
    pub(crate) fn landing(&self, id: u64, from: Rank) -> Option<(QueueId, u32, Landing)> {
        match lock(&self.requests).get(&id)? {
            (to, Request::Get { queue, generation, landing }) if *to == from => {
                Some((*queue, *generation, landing.clone()))
            }
            _ => None,
        }
    }

    /// Starts a call, or continues one whose timeout ran out.
    pub(crate) fn call(
        &self,
        inner: &Inner,
        key: CallKey,
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
        key: CallKey,
        rank: Rank,
        call: Arc<PendingCall>,
        deadline: Deadline,
        waiting: Waiting,
    ) -> Result<u64> {
        let outcome = inner.until(deadline, waiting, || {
            let answered = || call.outcome.get().cloned();
            // A forked child may hold the connection of somebody who has left.
            answered().or_else(|| match inner.check_alive(rank, "") {
                Ok(()) => None,
                Err(_) => Some(answered().unwrap_or(Err(Failure::Lost))),
            })
        });
        let Some(outcome) = outcome else {
            lock(&self.timed_out).entry(key).or_default().push(call);
            return Err(Error::Timeout { pending: format!("an answer of {rank}") });
        };
        match outcome {
            Ok(value) => Ok(value),
            Err(Failure::Refused(reason)) => Err(Error::Refused { rank, reason }),
            Err(Failure::Lost) => {
                inner.explain(rank, deadline.at_most(EXPLAIN));
                inner.check_alive(rank, waiting.call.name())?;
                Err(Error::Refused { rank, reason: "the connection to it broke".to_owned() })
            }
        }
    }
}

/// Completes a request with the answer to it.
pub(crate) fn finish(inner: &Inner, peer: Rank, request: Request, outcome: Result<u64, Failure>) {
    match request {
        Request::Call(call) => {
            // Answered once only; nobody else sets it.
            let _ = call.outcome.set(outcome);
        }
        Request::Post { queue, generation } | Request::Get { queue, generation, .. } => {
            let failed = outcome.err().map(|failure| match failure {
                Failure::Refused(reason) => format!("{peer} refused: {reason}"),
                Failure::Lost => match inner.area.life(peer) {
                    life::LEFT => format!("{peer} has left the job"),
                    life::DEAD => format!("{peer} has died"),
                    _ => format!("the connection to {peer} broke"),
                },
            });
            inner.queues[queue.index()].complete(peer, generation, failed.as_deref());
            if failed.is_some() {
                inner.set_corrupt(peer);
            }
        }
    }
    inner.area.ring(inner.rank);
}

/// How calls of this module appear while they wait.
pub(crate) fn waiting(call: Call, object: impl Into<u32>) -> Waiting {
    Waiting { call, object: object.into() }
}

/// The object of a group's call.
pub(crate) fn waiting_group(call: Call, group: GroupId) -> Waiting {
    waiting(call, group.0)
}
