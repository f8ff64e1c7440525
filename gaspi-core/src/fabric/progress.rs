//! The progress thread: serves other ranks while the program computes, and notices deaths.
//!
//! It sleeps in one poll set (listener, connections, process descriptors, its bell) and never waits
//! for anything else. What it receives for a segment goes there straight from the socket; here the
//! library is the network card, so segment, generation and range of every access are checked.

use super::connection::{Broken, Connection, Inbox, Outgoing, Payload, receive};
use super::frame::{Announce, AtomicOperation, Frame, Place, Register};
use super::peers::{BELL, CONNECTIONS, Failure, LAUNCHER, LISTENER, Landing, PROCESSES, finish};
use crate::bootstrap::{Membership, News};
use crate::error::Result as CoreResult;
use crate::ids::{NotificationId, QueueId, Rank, SegmentId};
use crate::node::life;
use crate::os::event::Bell;
use crate::os::process;
use crate::os::socket::{self, Piece};
use crate::runtime::Inner;
use crate::segment::{Segment, Target};
use crate::survey;
use crate::sync::{AtomicU64, Ordering, slots};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Rounds of receiving before other connections get a turn.
const ROUNDS: usize = 16;
/// How often to look at processes for which there is no descriptor, in milliseconds.
const POLL_MS: i32 = 200;
/// Status of a process that proc_kill ended.
const KILLED: i32 = 255;

/// What to do with the payload that is arriving.
enum Sink {
    Put { segment: Arc<Segment>, request: u64, notification: NotificationId, value: u32 },
    Get { request: u64, queue: QueueId, generation: u32, landing: Landing },
    Discard { refuse: Option<(u64, String)> },
}

struct Body {
    sink: Sink,
    /// Bytes: where the next ones go, and how many are still to come.
    offset: u64,
    left: u64,
}

#[derive(Default)]
struct Incoming {
    inbox: Inbox,
    body: Option<Body>,
}

/// The state of the thread.
pub(crate) struct Progress {
    inner: Arc<Inner>,
    incoming: HashMap<u64, Incoming>,
    discard: Vec<u8>,
    /// Ranks whose end nobody tells.
    polled: Vec<Rank>,
    /// A descriptor to give up when there are no others.
    reserve: Option<Bell>,
    /// Whether running out of descriptors was logged.
    complained: bool,
}

impl Progress {
    /// Prepares to serve `inner`, and opens the descriptors of the processes to watch.
    pub(crate) fn new(inner: Arc<Inner>) -> CoreResult<Progress> {
        let mut progress = Progress {
            inner,
            incoming: HashMap::new(),
            discard: vec![],
            polled: vec![],
            reserve: Some(Bell::new()?),
            complained: false,
        };
        progress.watch()?;
        Ok(progress)
    }

    fn watch(&mut self) -> CoreResult<()> {
        let inner = Arc::clone(&self.inner);
        if let Some(launcher) = inner.membership().as_ref().and_then(Membership::as_fd) {
            inner.peers.poll.add(launcher, LAUNCHER)?;
        }
        for step in 1..inner.size {
            let rank = Rank(((u32::from(inner.rank.0) + step) % inner.size) as u16);
            let card = &inner.cards[rank.index()];
            if card.pid == inner.cards[inner.rank.index()].pid || card.pid == 0 {
                continue;
            }
            let opened = match process::open(card.pid, card.start_time) {
                Ok(opened) => opened,
                // No descriptors left, or none of this kind (valgrind, seccomp, old kernels).
                Err(error) => {
                    if self.polled.is_empty() {
                        log::info!(
                            "proc_init: {error}, so that deaths are noticed by looking every \
                             {POLL_MS} ms; allow pidfd_open in the container's seccomp profile"
                        );
                    }
                    self.polled.push(rank);
                    continue;
                }
            };
            match opened {
                Some(fd) => {
                    let token = PROCESSES + u64::from(rank.0);
                    inner.peers.poll.add(fd.as_fd(), token)?;
                    // Set here only.
                    let _ = inner.processes[rank.index()].set(fd);
                }
                None => inner.peer_ended(rank),
            }
        }
        Ok(())
    }

    /// Serves until the runtime stops it.
    pub(crate) fn run(mut self) {
        let mut events = Vec::new();
        while !self.inner.peers.stop.load(Ordering::Acquire) {
            events.clear();
            let limit_ms = if self.polled.is_empty() { -1 } else { POLL_MS };
            self.inner.peers.poll.wait(&mut events, limit_ms);
            self.look_for_ends();
            for event in &events {
                match event.token {
                    BELL => self.inner.peers.bell.clear(),
                    LISTENER => self.accept(),
                    LAUNCHER => self.hear_launcher(),
                    token @ PROCESSES..CONNECTIONS => {
                        self.process_ended(Rank((token - PROCESSES) as u16));
                    }
                    token => self.serve(token, event.readable, event.writable),
                }
            }
            if self.inner.peers.take_dropped() {
                let peers = &self.inner.peers;
                self.incoming.retain(|token, _| peers.connection(*token).is_some());
            }
        }
    }

    /// The launcher tells of deaths on all hosts. A job does not outlive it.
    fn hear_launcher(&self) {
        let news = || self.inner.membership().as_mut().and_then(Membership::next_news);
        while let Some(news) = news() {
            match news {
                News::Died { rank, .. } => self.inner.peer_ended(rank),
                News::LauncherEnded => process::exit_now(KILLED),
            }
        }
    }

    /// Looks after processes for which there is no descriptor.
    fn look_for_ends(&mut self) {
        let inner = &self.inner;
        self.polled.retain(|rank| {
            let card = &inner.cards[rank.index()];
            let running = process::is_running(card.pid, card.start_time);
            if !running {
                inner.peer_ended(*rank);
            }
            running
        });
    }

    fn process_ended(&self, rank: Rank) {
        if let Some(fd) = self.inner.processes[rank.index()].get() {
            self.inner.peers.poll.remove(fd.as_fd());
        }
        self.inner.peer_ended(rank);
    }

    fn accept(&mut self) {
        let inner = Arc::clone(&self.inner);
        let Some(listener) = &inner.peers.listener else { return };
        loop {
            match socket::accept(listener.as_fd()) {
                Ok(Some(fd)) => self.admit(fd),
                Ok(None) => return,
                Err(error) => {
                    if self.refuse(listener) {
                        continue;
                    }
                    if !std::mem::replace(&mut self.complained, true) {
                        log::error!(
                            "accepting a connection: {error}, so that peers cannot reach this \
                             rank; raise the limit of open files with ulimit -n"
                        );
                    }
                    return;
                }
            }
        }
    }

    /// Takes a connection from one of this user's processes, for whom the kernel vouches.
    fn admit(&mut self, fd: OwnedFd) {
        let known = socket::credentials(fd.as_fd()).is_ok_and(|peer| peer.uid == socket::own_uid());
        if known
            && let Ok(connection) = self.inner.peers.adopt(|token| Connection::accepted(fd, token))
        {
            self.incoming.insert(connection.token, Incoming::default());
        }
    }

    /// Without a free descriptor: accepts and closes one connection in the place of the reserve, so
    /// that the listener does not stay ready for ever. False if that is not possible either.
    fn refuse(&mut self, listener: &OwnedFd) -> bool {
        let had_reserve = self.reserve.take().is_some();
        let refused = had_reserve && matches!(socket::accept(listener.as_fd()), Ok(Some(_)));
        self.reserve = Bell::new().ok();
        if self.reserve.is_none() {
            self.inner.peers.poll.remove(listener.as_fd());
        }
        refused
    }

    fn serve(&mut self, token: u64, readable: bool, writable: bool) {
        let Some(connection) = self.inner.peers.connection(token) else { return };
        let inner = Arc::clone(&self.inner);
        let mut result = Ok(());
        if writable {
            result = connection.flush(&inner.peers.poll);
            // Somebody may wait until everything has been handed over.
            inner.area.ring(inner.rank);
        }
        if readable && result.is_ok() {
            let mut incoming = self.incoming.remove(&token).unwrap_or_default();
            result = self.read(&connection, &mut incoming);
            self.incoming.insert(token, incoming);
        }
        if result.is_err() {
            self.incoming.remove(&token);
            inner.peers.drop_connection(&inner, &connection);
        }
    }

    fn read(&mut self, connection: &Connection, incoming: &mut Incoming) -> Result<(), Broken> {
        for _ in 0..ROUNDS {
            let more = match &mut incoming.body {
                Some(body) => self.body_from_socket(connection, body)?,
                None => incoming.inbox.fill(connection.as_fd())?,
            };
            if !more {
                return Ok(());
            }
            self.drain(connection, incoming)?;
        }
        Ok(())
    }

    /// Handles everything that has been received.
    fn drain(&self, connection: &Connection, incoming: &mut Incoming) -> Result<(), Broken> {
        loop {
            if incoming.body.is_some() {
                self.body_from_inbox(connection, incoming)?;
                if incoming.body.is_some() {
                    return Ok(());
                }
            }
            let Some(frame) = incoming.inbox.next()? else { return Ok(()) };
            self.handle(connection, incoming, frame)?;
        }
    }

    /// Where a payload goes; nowhere if nobody wants it any more.
    fn wanted<'s>(&self, sink: &'s Sink) -> Option<&'s Arc<Segment>> {
        match sink {
            Sink::Put { segment, .. } => Some(segment),
            // After a purge the place may serve another purpose.
            Sink::Get { queue, generation, landing, .. } => {
                let expected = self.inner.queues[queue.index()].expects(*generation);
                expected.then_some(&landing.segment)
            }
            Sink::Discard { .. } => None,
        }
    }

    /// Payload that came along with its frame.
    fn body_from_inbox(
        &self,
        connection: &Connection,
        incoming: &mut Incoming,
    ) -> Result<(), Broken> {
        let Some(body) = &mut incoming.body else { return Ok(()) };
        let bytes = incoming.inbox.take(usize::try_from(body.left).unwrap_or(usize::MAX));
        let len = bytes.len() as u64;
        if let Some(segment) = self.wanted(&body.sink) {
            let accepts = segment.accept();
            if *accepts {
                let to = segment.pointer().wrapping_add(body.offset as usize);
                // SAFETY: the range was checked when the frame came, and the segment exists while
                // the lock is held.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
            }
        }
        body.offset += len;
        body.left -= len;
        if body.left == 0
            && let Some(body) = incoming.body.take()
        {
            self.arrived(connection, body)?;
        }
        Ok(())
    }

    /// Payload straight from the socket into its place.
    fn body_from_socket(
        &mut self,
        connection: &Connection,
        body: &mut Body,
    ) -> Result<bool, Broken> {
        let left = usize::try_from(body.left).unwrap_or(usize::MAX);
        let (accepts, pointer) = match self.wanted(&body.sink) {
            Some(segment) => {
                let accepts = segment.accept();
                let pointer = segment.pointer().wrapping_add(body.offset as usize);
                (accepts.then_some(accepts), pointer)
            }
            None => (None, std::ptr::null_mut()),
        };
        let piece = if accepts.is_some() {
            Piece { pointer, len: left }
        } else {
            self.discard.resize(64 * 1024, 0);
            Piece { pointer: self.discard.as_mut_ptr(), len: left.min(self.discard.len()) }
        };
        // SAFETY: either the scratch buffer, or a checked range of a segment that exists while the
        // lock is held.
        let received = unsafe { receive(connection.as_fd(), piece, &mut Vec::new()) }?;
        drop(accepts);
        let received = received.unwrap_or(0);
        body.offset += received as u64;
        body.left -= received as u64;
        Ok(received > 0)
    }

    /// A payload is complete.
    fn arrived(&self, connection: &Connection, body: Body) -> Result<(), Broken> {
        let inner = &self.inner;
        match body.sink {
            Sink::Put { segment, request, notification, value } => {
                let accepts = *segment.accept();
                let outcome = if accepts {
                    if value != 0 {
                        slots::set(segment.notification(notification.index()), value);
                    }
                    Ok(0)
                } else {
                    Err(format!("{} was deleted", segment.id))
                };
                inner.area.ring(inner.rank);
                self.reply(connection, request, outcome)
            }
            Sink::Get { request, queue, generation, landing } => {
                let Some(peer) = connection.peer().map(Rank) else { return Err(Broken) };
                let Some(request) = inner.peers.answered(request, peer) else { return Ok(()) };
                let expected = inner.queues[queue.index()].expects(generation);
                if let Some((segment, id)) = landing.notify.filter(|_| expected) {
                    slots::set(segment.notification(id.index()), 1);
                }
                finish(inner, peer, request, Ok(0));
                Ok(())
            }
            Sink::Discard { refuse: Some((request, reason)) } => {
                self.reply(connection, request, Err(reason))
            }
            Sink::Discard { refuse: None } => Ok(()),
        }
    }

    fn reply(
        &self,
        connection: &Connection,
        request: u64,
        outcome: Result<u64, String>,
    ) -> Result<(), Broken> {
        let frame = Frame::Reply { request, outcome };
        connection.send(&self.inner.peers.poll, Outgoing::new(&frame))
    }

    fn handle(
        &self,
        connection: &Connection,
        incoming: &mut Incoming,
        frame: Frame,
    ) -> Result<(), Broken> {
        let inner = &self.inner;
        // Connections that this rank opened know their peer; all others have to say who they are
        // before anything else.
        let Some(peer) = connection.peer().map(Rank) else {
            return self.greet(connection, &frame);
        };
        match frame {
            Frame::Hello { .. } => return Err(Broken),
            Frame::Reply { request, outcome } => {
                if let Some(request) = inner.peers.answered(request, peer) {
                    finish(inner, peer, request, outcome.map_err(Failure::Refused));
                }
            }
            Frame::Register(register) => {
                let descriptors = std::mem::take(&mut incoming.inbox.descriptors);
                let outcome = self.import(peer, &register, &descriptors);
                return self.reply(connection, register.request, outcome);
            }
            Frame::Revoke { segment, generation } => {
                inner.forget_target(peer, segment, Some(generation))
            }
            Frame::Ping { request } => return self.reply(connection, request, Ok(0)),
            Frame::Kill => process::exit_now(KILLED),
            Frame::Announce(announce) => self.announced(peer, announce),
            Frame::Withdraw { group, attempt } => inner.groups.withdrawn(peer, group, attempt),
            Frame::Abort { group, attempt, round, reason } => {
                inner.groups.aborted(peer, group, attempt, round, &reason);
                inner.area.ring(inner.rank);
            }
            Frame::Put { request, place, size, notification, value } => {
                self.put(incoming, request, place, size, notification, value);
            }
            Frame::Notify { request, place, notification, value } => {
                let outcome = self.find(place, 0).and_then(|segment| {
                    self.check_notification(notification)?;
                    slots::set(segment.notification(notification.index()), value);
                    inner.area.ring(inner.rank);
                    Ok(0)
                });
                return self.reply(connection, request, outcome);
            }
            Frame::Get { request, place, size } => {
                return self.get(connection, request, place, size);
            }
            Frame::Data { request, size } => return self.data(incoming, peer, request, size),
            Frame::Atomic { request, place, operation } => {
                return self.reply(connection, request, self.atomic(place, operation));
            }
        }
        Ok(())
    }

    fn greet(&self, connection: &Connection, frame: &Frame) -> Result<(), Broken> {
        match frame {
            Frame::Hello { rank, token }
                if u32::from(rank.0) < self.inner.size && *token == self.inner.token =>
            {
                connection.set_peer(rank.0);
                Ok(())
            }
            _ => Err(Broken),
        }
    }

    fn announced(&self, peer: Rank, announce: Announce) {
        let inner = &self.inner;
        if usize::from(announce.group.0) < inner.config.group_max as usize {
            inner.groups.announced(peer, announce);
            inner.area.ring(inner.rank);
        }
    }

    fn import(
        &self,
        peer: Rank,
        register: &Register,
        descriptors: &[OwnedFd],
    ) -> Result<u64, String> {
        let inner = &self.inner;
        if u32::from(register.segment.0) >= inner.config.segment_max {
            return Err(format!("{} is out of range", register.segment));
        }
        if inner.target_generation(peer, register.segment) == Some(register.generation) {
            return Ok(0);
        }
        let pid = inner.cards[peer.index()].pid;
        let target = Target::import(register, pid, descriptors, inner.shape)
            .map_err(|error| error.to_string())?;
        log::debug!(
            "segment_register: {} of {peer} has {} and is {}",
            register.segment,
            survey::bytes(register.size),
            target.reach.in_words()
        );
        inner.targets_of(peer).replace(register.segment, Some(Arc::new(target)));
        Ok(0)
    }

    /// The segment that a peer's access is for, if the range lies inside.
    fn find(&self, place: Place, size: u64) -> Result<Arc<Segment>, String> {
        let SegmentId(id) = place.segment;
        let segment = self.inner.segments.get_arc(place.segment);
        let segment = segment
            .filter(|segment| segment.generation == place.generation)
            .ok_or_else(|| format!("segment {id} was deleted"))?;
        let fits = place.offset.checked_add(size).is_some_and(|end| end <= segment.size);
        if !fits {
            let Place { offset, .. } = place;
            let limit = segment.size;
            return Err(format!("{size} bytes at {offset} of segment {id}, which has {limit}"));
        }
        Ok(segment)
    }

    fn check_notification(&self, id: NotificationId) -> Result<(), String> {
        if id.0 >= self.inner.shape.notifications {
            return Err(format!("{id} is out of range"));
        }
        Ok(())
    }

    fn put(
        &self,
        incoming: &mut Incoming,
        request: u64,
        place: Place,
        size: u64,
        notification: NotificationId,
        value: u32,
    ) {
        let found = self
            .find(place, size)
            .and_then(|segment| self.check_notification(notification).map(|()| segment));
        let sink = match found {
            Ok(segment) => Sink::Put { segment, request, notification, value },
            Err(reason) => Sink::Discard { refuse: Some((request, reason)) },
        };
        incoming.body = Some(Body { sink, offset: place.offset, left: size });
    }

    fn get(
        &self,
        connection: &Connection,
        request: u64,
        place: Place,
        size: u64,
    ) -> Result<(), Broken> {
        match self.find(place, size) {
            Ok(segment) => {
                let payload = Payload::new(segment, place.offset, size);
                let item = Outgoing::with_payload(&Frame::Data { request, size }, payload);
                connection.send(&self.inner.peers.poll, item)
            }
            Err(reason) => self.reply(connection, request, Err(reason)),
        }
    }

    fn data(
        &self,
        incoming: &mut Incoming,
        peer: Rank,
        request: u64,
        size: u64,
    ) -> Result<(), Broken> {
        // It stays a request until all is here: the peer may end in the middle.
        let (queue, generation, landing) = self
            .inner
            .peers
            .landing(request, peer)
            .filter(|get| get.2.size == size)
            .ok_or(Broken)?;
        let offset = landing.offset;
        let sink = Sink::Get { request, queue, generation, landing };
        incoming.body = Some(Body { sink, offset, left: size });
        Ok(())
    }

    fn atomic(&self, place: Place, operation: AtomicOperation) -> Result<u64, String> {
        let segment = self.find(place, 8)?;
        if !place.offset.is_multiple_of(8) {
            return Err(format!("offset {} is not a multiple of 8", place.offset));
        }
        let accepts = segment.accept();
        if !*accepts {
            return Err(format!("{} was deleted", segment.id));
        }
        let word = segment.pointer().wrapping_add(place.offset as usize).cast::<AtomicU64>();
        if !word.is_aligned() {
            return Err(format!("{} is not aligned to 8 bytes", segment.id));
        }
        // SAFETY: inside of the segment, aligned, and the segment exists while the lock is held.
        let word = unsafe { &*word };
        Ok(apply(word, operation))
    }
}

/// Carries out an atomic operation and returns the former value.
#[inline]
pub(crate) fn apply(word: &AtomicU64, operation: AtomicOperation) -> u64 {
    match operation {
        AtomicOperation::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
        AtomicOperation::CompareSwap { comparator, new } => {
            let order = Ordering::SeqCst;
            word.compare_exchange(comparator, new, order, order).unwrap_or_else(|found| found)
        }
    }
}

impl Inner {
    /// The process of `rank` has ended: unless it left, it is dead.
    pub(crate) fn peer_ended(&self, rank: Rank) {
        let marked = self.area.mark_dead(rank);
        if self.area.life(rank) == life::DEAD {
            let (host, pid) = (&self.cards[rank.index()].host, self.cards[rank.index()].pid);
            if marked {
                log::warn!(
                    "watching {rank}: its process {pid} on {host} has died, calls that need it \
                     will fail; go on in a group of the others"
                );
            }
            self.set_corrupt(rank);
        }
        self.peers.disconnect(self, rank);
        for segment in self.targets_of(rank).ids().collect::<Vec<_>>() {
            self.forget_target(rank, segment, None);
        }
        self.area.ring(self.rank);
    }
}
