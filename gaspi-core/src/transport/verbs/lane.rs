//! A lane that a device carries: a queue and a peer, its pair, and what is under way on it.
//!
//! Requests are posted in their order; what the send queue has no room for waits here. Who waits
//! for the queue has something end behind its writes (`finish.rs`).
//!
//! Invariant: each request is told of once: done, refused or lost with the pair.

use super::atomics::{AtomicRequest, AtomicSent, RESULTS};
use super::by_number::first_number;
use super::byte_stream::StreamUser;
use super::chain::Assembly;
use super::direct::{Direct, Run, SIGNAL_EVERY};
use super::divert::{Diversion, Diverted};
use super::ended::{Again, Cause, Counts, Ended, Failure, Outbox};
use super::guests::{Route, Sharing};
use super::kept::{KeptData, Posted};
use super::pairing::PairState;
use super::queue_pair::QueuePair;
use super::shown::Shown;
use super::work::{Completion, Limits, Local, Remote, WorkRequest, immediate};
use crate::ids::{NotificationId, QueueId, Rank};
use crate::segment::Segment;
use crate::sync::{AtomicU32, Mutex, MutexGuard, slots};
use crate::wire::frame::Frame;
use crate::wire::message::{Put, Stream};
use std::collections::VecDeque;
use std::sync::Arc;

/// Something to be posted. Memory of this rank stays until the lane has ended it: the delete of a
/// segment waits for that.
#[derive(Debug)]
pub(super) enum Request {
    /// Data, and a notification behind it unless its value is 0.
    Put { put: Put, data: Option<(Local, Remote)> },
    /// A read, and a notification of this rank behind it.
    Get { stream: Stream, local: Local, remote: Remote, size: u64, notify: Notify },
    /// A read behind all writes, whose result nobody wants. So many requests without a note end
    /// with it.
    Finish { stream: Stream, requests: u32 },
    /// The same so that what follows by a stream comes behind the writes; a run ends with it.
    Fence { run: Option<(Stream, u32)> },
    /// An atomic operation of the device.
    Atomic(AtomicRequest),
    /// An answer to the peer, which completes nothing.
    Answer(Frame),
    /// What a stream is to carry, once nothing of the lane is under way here.
    Diverted(Diverted),
}

type Notify = Option<(Arc<Segment>, NotificationId)>;

impl Request {
    /// Whose it is, and how many requests it counts for.
    pub(super) fn counted(&self) -> Option<(Stream, u32)> {
        match self {
            Request::Put { put, .. } => Some((put.stream, 1)),
            Request::Get { stream, .. } => Some((*stream, 1)),
            Request::Finish { stream, requests } => Some((*stream, *requests)),
            Request::Diverted(request) => Some((request.stream(), 1)),
            Request::Fence { run } => *run,
            Request::Atomic(_) | Request::Answer(_) => None,
        }
    }
}

/// What the end of a request means.
#[derive(Debug)]
pub(super) enum Kind {
    /// The way is proved.
    Proof,
    Write(Stream),
    Read(Stream, Notify),
    /// All writes, and so many requests that were not noted.
    Finish(Stream, u32),
    /// So many requests that were not noted, the last of which is signalled.
    Run(Stream, u32),
    Fence(Option<(Stream, u32)>),
    Atomic(AtomicSent),
    Answer,
    /// Data that was written ahead of a message, from memory that the device knows until then.
    /// Apart, so that what ends often stays small.
    Data(Option<Box<KeptData>>),
}

impl Kind {
    /// As for a [`Request`].
    fn counted(&self) -> Option<(Stream, u32)> {
        match self {
            Kind::Write(stream) | Kind::Read(stream, _) => Some((*stream, 1)),
            Kind::Finish(stream, requests) | Kind::Run(stream, requests) => {
                Some((*stream, *requests))
            }
            Kind::Fence(run) => *run,
            Kind::Proof | Kind::Atomic(_) | Kind::Answer | Kind::Data(_) => None,
        }
    }
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct Sent {
    /// The number of its last work request.
    pub(super) last: u64,
    pub(super) kind: Kind,
}

/// A queue and a peer, as a device carries them.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) queue: QueueId,
    pub(super) peer: Rank,
    /// Of that which carries the bytes of connections.
    pub(super) user: StreamUser,
    pub(super) shown: Shown,
    pub(super) direct: Arc<Direct>,
    pub(super) route: Mutex<Route>,
    /// Lists whose elements are being pushed.
    pub(super) lists: AtomicU32,
    state: Mutex<LaneState>,
}

impl Lane {
    pub(super) fn new(queue: QueueId, peer: Rank) -> Lane {
        let (state, user, shown) = (LaneState::default(), StreamUser::default(), Shown::default());
        let direct = Arc::clone(&state.direct);
        direct.number_from(first_number(queue, peer));
        let (route, state) = (Mutex::default(), Mutex::new(state));
        Lane { queue, peer, user, shown, direct, route, lists: AtomicU32::new(0), state }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock()
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, LaneState>> {
        self.state.try_lock()
    }
}

/// The state of a lane.
#[derive(Debug, Default)]
pub(super) struct LaneState {
    pub(super) pairing: PairState,
    pub(super) pair: Option<QueuePair>,
    /// The send queue.
    pub(super) direct: Arc<Direct>,
    pub(super) sharing: Sharing,
    pub(super) waiting: VecDeque<Request>,
    pub(super) sent: VecDeque<Sent>,
    /// Writes that the peer's device has.
    pub(super) acknowledged: Counts,
    /// Writes behind which nothing ends.
    pub(super) unfinished: u32,
    pub(super) counters: Counters,
    /// The request that the device has refused, and why.
    refused: Option<(Stream, u32)>,
    pub(super) failed: Option<Failure>,
    pub(super) diversion: Diversion,
    pub(super) assembly: Assembly,
    pub(super) outbox: Outbox,
    /// Messages of connections that are under way.
    pub(super) posted: Posted,
}

/// Requests up to some time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    /// That were noted.
    requests: u64,
    /// Work requests.
    posted: u64,
}

/// How many requests there have been, how many the device has nothing to do with any more, and how
/// often all have been lost.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) losses: u64,
}

impl LaneState {
    /// Whether nothing is under way, nor waits.
    pub(super) fn is_idle(&self) -> bool {
        let none = self.has_none_here() && self.waiting.is_empty() && !self.direct.has_run();
        none && !self.diversion.running
    }

    /// Whether no request is under way, nor waits. What tries a pair that is being made is none.
    pub(super) fn has_no_request(&self) -> bool {
        let none_waits = self.waiting.is_empty() && !self.diversion.running;
        self.is_idle() || none_waits && self.pairing.is_being_made()
    }

    /// Whether the device has nothing of the lane under way.
    fn has_none_here(&self) -> bool {
        let no_run = !self.direct.has_run() || self.direct.freed() == self.direct.next();
        self.sent.is_empty() && self.acknowledged.is_empty() && no_run
    }

    /// Whether what is pushed now has to go by a stream too, behind others that do.
    pub(super) fn is_diverted(&self) -> bool {
        self.diversion.waiting > 0 || self.diversion.running
    }

    /// Whether what waits for a stream can go there.
    pub(super) fn may_divert(&self) -> bool {
        let next = matches!(self.waiting.front(), Some(Request::Diverted(_)));
        next && !self.diversion.running && self.has_none_here() && !self.pairing.is_ending()
    }

    /// Begins or ends handing requests to a stream.
    pub(super) fn set_diverting(&mut self, diverting: bool) {
        self.direct.take();
        self.diversion.running = diverting;
    }

    /// Whose requests are under way.
    pub(super) fn sent_of(&self) -> impl Iterator<Item = Stream> {
        self.sent.iter().filter_map(|sent| sent.kind.counted()).map(|(stream, _)| stream)
    }

    /// Whether a request that is pushed can be posted at once.
    pub(super) fn takes_more(&self) -> bool {
        let unhindered =
            self.waiting.is_empty() && !self.diversion.running && self.failed.is_none();
        unhindered && self.pairing.is_up() && self.sharing.is_at_home() && self.room() > 1
    }

    /// Whoever looks next takes the pair down; the first failure counts.
    pub(super) fn note_failure(&mut self, reason: &str, again: Again) {
        self.failed.get_or_insert_with(|| Failure::new(reason, again));
    }

    /// The same where connections leave the pair, which nothing has failed on.
    pub(super) fn note_return(&mut self, reason: &str) {
        let failure = || Failure { cause: Cause::Return, ..Failure::new(reason, Again::AtOnce) };
        self.failed.get_or_insert_with(failure);
    }

    /// Stops the pair if it is to be taken down; whether it is.
    pub(super) fn stop_failed(&mut self) -> bool {
        if let Some(reason) = self.direct.refusal() {
            self.note_failure(&reason, Again::AtOnce);
        }
        let is_stopped = self.failed.is_some() && self.stop();
        if let Some(failure) = &mut self.failed {
            failure.is_stopped = is_stopped;
        }
        self.failed.is_some()
    }

    /// Nothing more comes by the pair; false if the device does not stop it.
    pub(super) fn stop(&self) -> bool {
        self.pair.as_ref().is_none_or(QueuePair::stop)
    }

    /// Whether the pair is to be taken down, and nothing comes by it any more.
    pub(super) fn is_stopped(&self) -> bool {
        self.failed.as_ref().is_some_and(|failure| failure.is_stopped)
    }

    /// Whether the pair is to be taken down.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Whether connections leave the pair, which nothing has failed on.
    pub(super) fn is_return(&self) -> bool {
        self.failed.as_ref().is_some_and(|failure| failure.cause == Cause::Return)
    }

    /// Whether another attempt would meet the same at once.
    pub(super) fn refuses(&self) -> bool {
        self.failed.as_ref().is_some_and(|failure| failure.again != Again::AtOnce)
    }

    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        self.failed.take()
    }

    /// Whether something waits for the pair, or for room in it.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether something waits for room in the send queue, or behind what is there.
    pub(super) fn waits_for_room(&self) -> bool {
        self.has_waiting() && self.pairing.is_up()
    }

    /// All requests that there have been. What tries a pair that is being made uses no memory.
    pub(super) fn begun(&self) -> Begun {
        let tries = self.pairing.is_being_made();
        let posted = if tries { self.direct.freed() } else { self.direct.next() };
        Begun { requests: self.counters.begun, posted }
    }

    /// Whether the device may still use memory of these requests.
    pub(super) fn has_before(&self, begun: Begun) -> bool {
        self.counters.ended < begun.requests || self.direct.freed() < begun.posted
    }

    /// Puts a request behind the others.
    pub(super) fn push(&mut self, request: Request) {
        self.direct.take();
        match &request {
            Request::Put { .. } => self.unfinished += 1,
            Request::Finish { .. } | Request::Fence { .. } => self.unfinished = 0,
            _ => {}
        }
        self.counters.begun += 1;
        self.waiting.push_back(request);
    }

    /// Puts a request for a stream behind the others, and behind the data of those before.
    pub(super) fn push_diverted(&mut self, queue: QueueId, request: Diverted) {
        let run = self.take_run().map(|run| (run.stream(queue), run.requests));
        if (self.is_unfinished() || run.is_some()) && self.pairing.is_up() {
            self.push(Request::Fence { run });
        }
        self.diversion.waiting += 1;
        self.waiting.push_back(Request::Diverted(request));
    }

    /// Requests that have not been noted, all of one generation: what is posted from now on does
    /// not belong to them.
    pub(super) fn take_run(&mut self) -> Option<Run> {
        self.direct.take_run()
    }

    /// The same, and the calling thread, if it has posted them, may open the next one without the
    /// lane's lock.
    pub(super) fn rest_run(&mut self) -> Option<Run> {
        self.direct.rest_run()
    }

    /// Posts the request that proves the way.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn prove(&mut self) -> Result<(), String> {
        self.post(&WorkRequest::Nothing, true)?;
        self.note(Kind::Proof);
        Ok(())
    }

    /// Has the device say when all that was posted so far has left it.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn signal(&mut self) -> Result<(), String> {
        self.direct.take();
        if self.direct.unsignalled() == 0 || self.room() == 0 || !self.pairing.is_up() {
            return Ok(());
        }
        self.post(&WorkRequest::Nothing, true)
    }

    /// Whether all that was posted has ended.
    pub(super) fn has_ended_all(&self) -> bool {
        self.direct.freed() == self.direct.next()
    }

    /// Whether the pair of this attempt is up.
    pub(super) fn is_up_since(&self, attempt: u32) -> bool {
        self.pairing.is_up() && self.pairing.attempt() == attempt && self.failed.is_none()
    }

    pub(super) fn room(&self) -> u64 {
        let depth = self.pair.as_ref().map_or(0, |pair| u64::from(pair.limits().depth));
        depth.saturating_sub(self.direct.next() - self.direct.freed())
    }

    /// Whether the next work request is signalled anyway. The last one that there is room for is:
    /// else nothing would make room.
    pub(super) fn is_signalled(&self, room: u64) -> bool {
        room == 1 || self.direct.unsignalled() + 1 >= u64::from(SIGNAL_EVERY)
    }

    pub(super) fn post(
        &mut self,
        request: &WorkRequest<'_>,
        signalled: bool,
    ) -> Result<(), String> {
        self.direct.take_to_post()?;
        let signalled = signalled || self.is_signalled(self.room());
        let Some(pair) = &mut self.pair else { return Err("there is no pair".to_owned()) };
        pair.post(self.direct.next(), request, signalled, self.assembly.chain())?;
        self.direct.posted(signalled);
        // The bytes of a message are overwritten by the next one.
        let due = self.assembly.due(matches!(request, WorkRequest::Send(_)));
        // SAFETY: the memory of each stays until it has ended.
        due.map_or(Ok(()), |first| unsafe { pair.post_chain(first) })
    }

    /// Posts what waits, up to what there is no room for, or what failed.
    pub(super) fn post_waiting(&mut self) -> Result<(), String> {
        while self.pairing.is_up() && self.room() > 0 && self.failed.is_none() {
            if let Some(Request::Diverted(_)) = self.waiting.front() {
                break;
            }
            let Some(request) = self.waiting.pop_front() else { break };
            let counted = request.counted();
            match self.post_request(request) {
                Ok(None) => {}
                Ok(Some(rest)) => {
                    self.waiting.push_front(rest);
                    break;
                }
                Err(reason) => {
                    self.refused = counted;
                    return Err(reason);
                }
            }
        }
        Ok(())
    }

    /// Posts a request, or as much of it as there is room for; gives the rest back.
    fn post_request(&mut self, request: Request) -> Result<Option<Request>, String> {
        let Some(limits) = self.pair.as_ref().map(QueuePair::limits) else {
            return Ok(Some(request));
        };
        match request {
            Request::Put { put, data } => self.post_put(put, data, limits),
            Request::Get { stream, mut local, mut remote, mut size, notify } => {
                if size == 0 {
                    // Behind the others, for its notification.
                    self.post(&WorkRequest::Nothing, true)?;
                }
                while size > 0 {
                    if self.room() == 0 {
                        return Ok(Some(Request::Get { stream, local, remote, size, notify }));
                    }
                    let part = size.min(limits.message);
                    let last = part == size;
                    self.post(&WorkRequest::Read { local, remote, size: part }, last)?;
                    local.address += part;
                    remote.address += part;
                    size -= part;
                }
                self.note(Kind::Read(stream, notify));
                Ok(None)
            }
            Request::Finish { stream, requests } => {
                self.post_read_behind(!limits.ends_at_ack)?;
                self.note(Kind::Finish(stream, requests));
                Ok(None)
            }
            Request::Fence { run } => {
                self.post_read_behind(true)?;
                self.note(Kind::Fence(run));
                Ok(None)
            }
            Request::Diverted(_) => Ok(Some(request)),
            Request::Atomic(_) if self.direct.next() - self.direct.freed() >= RESULTS => {
                Ok(Some(request))
            }
            Request::Atomic(atomic) => {
                let nth = self.direct.next();
                let local = self.pair.as_mut().ok_or("there is no pair")?.result(nth)?;
                self.post(&atomic.work(local), true)?;
                self.note(Kind::Atomic(atomic.sent(local)));
                Ok(None)
            }
            Request::Answer(frame) => {
                if !self.post_message(&frame, true)? {
                    return Ok(Some(Request::Answer(frame)));
                }
                self.note(Kind::Answer);
                Ok(None)
            }
        }
    }

    /// Posts a frame as a message; false if there is no room for it now.
    fn post_message(&mut self, frame: &Frame, signalled: bool) -> Result<bool, String> {
        let mut bytes = std::mem::take(&mut self.assembly.message);
        bytes.clear();
        frame.append_to(&mut bytes);
        let (mut fits, mut goes_along) = (false, true);
        if let Some(pair) = self.pair.as_ref().filter(|_| self.room() > 0) {
            fits = pair.has_room_for(bytes.len(), self.direct.freed());
            goes_along = bytes.len() <= pair.limits().inline as usize;
        }
        // What takes a buffer gives it back soon.
        let signalled = signalled || !goes_along;
        let posted = if fits { self.post(&WorkRequest::Send(&bytes), signalled) } else { Ok(()) };
        self.assembly.message = bytes;
        posted.map(|()| fits)
    }

    /// Notes what ends with the last work request.
    pub(super) fn note(&mut self, kind: Kind) {
        self.sent.push_back(Sent { last: self.direct.next() - 1, kind });
    }

    fn post_put(
        &mut self,
        mut put: Put,
        mut data: Option<(Local, Remote)>,
        limits: Limits,
    ) -> Result<Option<Request>, String> {
        let mut notifies = put.value != 0;
        let signalled = self.ends_by_itself(limits);
        while let Some((local, remote)) = data.filter(|_| put.size > 0) {
            if self.room() == 0 {
                return Ok(Some(Request::Put { put, data }));
            }
            let part = put.size.min(limits.message);
            let immediate = immediate(put.remote.segment, put.notification, put.value);
            let immediate = immediate.filter(|_| part == put.size);
            put.size -= part;
            notifies &= immediate.is_none();
            let signalled = signalled && put.size == 0 && !notifies;
            self.post(&WorkRequest::Write { local, remote, size: part, immediate }, signalled)?;
            data = Some((
                Local { address: local.address + part, ..local },
                Remote { address: remote.address + part, ..remote },
            ));
        }
        if notifies {
            // What the message does not carry has its place.
            let frame = Frame::Put(Put { size: 0, last: true, ..put });
            if !self.post_message(&frame, signalled)? {
                return Ok(Some(Request::Put { put, data: None }));
            }
        }
        self.note(Kind::Write(put.stream));
        Ok(None)
    }

    /// The device has carried out a work request of this number, and all before it.
    pub(super) fn completed(&mut self, completion: &Completion, ended: &mut Ended) {
        self.direct.set_freed(completion.id + 1);
        let at_ack = self.pair.as_ref().is_some_and(|pair| pair.limits().ends_at_ack);
        while self.sent.front().is_some_and(|sent| sent.last <= completion.id) {
            let Some(sent) = self.sent.pop_front() else { break };
            self.counters.ended += u64::from(!matches!(sent.kind, Kind::Proof));
            match sent.kind {
                Kind::Proof => self.pairing.on_proved(),
                Kind::Write(stream) if at_ack => ended.done.add(stream),
                Kind::Write(stream) => self.acknowledged.add(stream),
                Kind::Read(stream, notify) => {
                    if let Some((segment, id)) = notify {
                        slots::set(segment.notification(id.index()), 1);
                    }
                    ended.done.add(stream);
                }
                Kind::Finish(stream, _) => {
                    ended.done.append(&mut self.acknowledged);
                    ended.done.add(stream);
                }
                Kind::Run(stream, _) => ended.done.add(stream),
                Kind::Fence(run) => {
                    ended.done.append(&mut self.acknowledged);
                    run.iter().for_each(|(stream, _)| ended.done.add(*stream));
                }
                // SAFETY: what is under way is dropped with its pair.
                Kind::Atomic(atomic) => unsafe { atomic.finish() },
                Kind::Answer | Kind::Data(_) => {}
            }
        }
    }

    /// The pair is gone before anything was posted to it but what proves the way. The peer may have
    /// used it: what was to be answered by it is not.
    pub(super) fn drop_pair(&mut self) {
        self.direct.clear();
        self.pair = None;
        self.failed = None;
        self.sent.clear();
        self.drop_answers();
    }

    /// Nothing comes of anything: what was under way is lost, and what waits.
    pub(super) fn lose_all(&mut self, queue: QueueId, ended: &mut Ended) {
        self.direct.clear();
        let run = self.direct.take_run();
        self.direct.take_written();
        self.pair = None;
        self.failed = None;
        self.counters.ended = self.counters.begun;
        self.counters.losses += 1;
        self.unfinished = 0;
        self.diversion.waiting = 0;
        let run = run.map(|run| (run.stream(queue), run.requests));
        let sent = self.sent.drain(..).filter_map(|sent| sent.kind.counted());
        let waiting = self.waiting.drain(..).filter_map(|request| request.counted());
        for (stream, count) in self.acknowledged.take() {
            ended.lose(stream, count, count);
        }
        for (stream, requests) in sent.chain(self.refused.take()).chain(run).chain(waiting) {
            ended.lose(stream, 1, requests);
        }
    }
}
