//! The host of a meeting with its sockets: drives the state machine of [`super::host`].
//!
//! gaspi_run hosts for its whole life and for every round; a rank of a job started by hand hosts
//! one round inside its own init. Nothing here blocks: the owner waits for [`Host::as_fd`] and
//! calls [`Host::serve`].

use super::host::{Action, Connection, Joined, Rounds};
use super::message::{DecodeError, Failure, Join, Message, VERSION, encode_cards};
use super::system::{self, Set};
use super::wire::Wire;
use super::{Card, KEY_BYTES, random};
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::observer::Observer;
use crate::os::{memory, process, socket};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LISTENER: u64 = 0;
/// The token of a member's process, beside that of its connection.
const PROCESS: u64 = 1 << 63;
/// Looks at the sockets per call of `serve`, so that its owner's other duties are not starved.
const PASSES_MAX: usize = 64;

/// What a member asks its launcher to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Request {
    /// End this rank's process at once.
    Kill {
        /// The rank.
        rank: Rank,
        /// A pidfd of the process that joined as this rank, which need not be the one that the
        /// launcher started (a script's child); `None` if none has.
        process: Option<OwnedFd>,
    },
}

#[derive(Debug)]
struct Peer {
    wire: Wire,
    pid: i32,
    /// Readable when the process has ended: forked children may keep the connection open.
    process: Option<OwnedFd>,
    since: Instant,
    /// Its last word has been said; to be closed when that is sent.
    leaving: bool,
    watching_room: bool,
}

/// Areas by node, token and key of a round.
type Made = (HashMap<u64, Arc<OwnedFd>>, [u8; 16], [u8; KEY_BYTES]);

/// The place where the ranks of a job meet.
#[derive(Debug)]
pub struct Host {
    name: String,
    set: Set,
    /// `None` once a meeting for one round is over.
    listener: Option<OwnedFd>,
    /// Given up to refuse a newcomer in words when descriptors have run out.
    reserve: Option<OwnedFd>,
    peers: HashMap<Connection, Peer>,
    next: Connection,
    rounds: Rounds,
    size: u32,
    /// One round only, as the host of a job started by hand.
    once: bool,
    requests: Vec<Request>,
    /// Ranks can share memory only if they met here.
    instance: u64,
    /// What the ranks of the last round share, by node, with their `group_max`.
    areas: Option<(HashMap<u64, Arc<OwnedFd>>, u32)>,
}

/// A rank that has come to the meeting and is still in the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// The process that joined, as the kernel vouches.
    pub pid: i32,
    /// While it waits for others to come: since when, and for whom.
    pub meeting: Option<(Duration, Vec<Rank>)>,
}

impl Host {
    /// A meeting place with a name of its own for all rounds of the job `job_id`.
    ///
    /// # Errors
    /// Descriptors or random numbers are not to be had.
    pub fn bind(job_id: &str, size: u32) -> Result<Host> {
        let name: String = random::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("gaspi-{name}");
        let listener = socket::listen(&name)
            .map_err(|error| Error::os("listening for the ranks of the job", &error))?;
        Host::new(name, listener, job_id, size, false)
    }

    /// The host of one round behind a listener that this process could bind.
    pub(crate) fn once(name: &str, listener: OwnedFd, job_id: &str, size: u32) -> Result<Host> {
        Host::new(name.to_owned(), listener, job_id, size, true)
    }

    fn new(name: String, listener: OwnedFd, job: &str, size: u32, once: bool) -> Result<Host> {
        let set = Set::new()?;
        let watched = set.add(listener.as_fd(), LISTENER);
        watched.map_err(|error| Error::os("epoll_ctl", &error))?;
        let reserve = listener.try_clone().ok();
        Ok(Host {
            name,
            set,
            listener: Some(listener),
            reserve,
            peers: HashMap::new(),
            next: LISTENER + 1,
            rounds: Rounds::new(job, size),
            size,
            once,
            requests: Vec::new(),
            instance: u64::from_le_bytes(random()?),
            areas: None,
        })
    }

    /// The abstract name of the socket, for GASPI_MEETING.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Readable when [`Host::serve`] has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Does what can be done without waiting and returns what members ask for.
    pub fn serve(&mut self) -> Vec<Request> {
        for _ in 0..PASSES_MAX {
            let ready = self.set.ready();
            if ready.is_empty() {
                break;
            }
            for token in ready {
                match token {
                    LISTENER => self.accept(),
                    token if token & PROCESS != 0 => self.closed(token & !PROCESS),
                    token => self.hear(token),
                }
            }
        }
        std::mem::take(&mut self.requests)
    }

    /// The process of `rank` has ended; `how` says it as in "exit status 1". Whoever waits for it
    /// to join is told.
    pub fn gone(&mut self, rank: Rank, how: &str) {
        let actions = self.rounds.gone(rank, how);
        self.act(actions);
    }

    /// Whether `rank` is in the meeting or in the job; `None` before it joined and after it left.
    pub fn presence(&self, rank: Rank) -> Option<Presence> {
        let (pid, _) = self.rounds.member(rank)?;
        let since = || {
            let peer = self.peers.get(&self.rounds.connection_of(rank.0)?);
            peer.map(|peer| peer.since.elapsed())
        };
        let missing = self.rounds.missing(rank);
        Some(Presence { pid, meeting: missing.map(|ranks| (since().unwrap_or_default(), ranks)) })
    }

    /// A look at what the ranks of the last complete meeting do; `None` before one was complete.
    ///
    /// # Errors
    /// What they share could not be mapped.
    pub fn observer(&self) -> Option<Result<Observer>> {
        let (areas, group_max) = self.areas.as_ref()?;
        Some(Observer::new(areas.values().next()?, self.size, *group_max))
    }

    /// Whether the one round of this host is over and everybody has been sent its outcome.
    pub(crate) fn finished(&self) -> bool {
        self.once && self.listener.is_none() && self.peers.is_empty()
    }

    fn accept(&mut self) {
        while let Some(listener) = &self.listener {
            match socket::accept(listener.as_fd()) {
                Ok(Some(fd)) => self.welcome(fd),
                Ok(None) => return,
                // Shut down, and nobody is left in line.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
                Err(_) => return self.turn_away(),
            }
        }
    }

    /// Descriptors have run out: refuses the next in line with the last one.
    fn turn_away(&mut self) {
        self.reserve = None;
        let Some(listener) = &self.listener else { return };
        if let Ok(Some(fd)) = socket::accept(listener.as_fd()) {
            let reason = "the host of the meeting has no file descriptors left; raise the limit \
                          with ulimit -n";
            let mut wire = Wire::new(fd);
            let failure = Failure::Meeting(reason.to_owned());
            wire.queue(Message::Failed(failure).encode().into(), None);
            wire.flush();
        }
        self.reserve = listener.try_clone().ok();
    }

    fn welcome(&mut self, fd: OwnedFd) {
        let Ok(who) = socket::credentials(fd.as_fd()) else { return };
        if who.uid != socket::own_uid() {
            log::warn!(
                "proc_init: user {} tried to join the meeting {} and was refused; ranks of a job \
                 belong to one user",
                who.uid,
                self.name
            );
            return;
        }
        let connection = self.next;
        self.next += 1;
        if self.set.add(fd.as_fd(), connection).is_err() {
            return;
        }
        let mut process = None;
        if self.once {
            process = system::watch_process(who.pid);
            if let Some(fd) = &process {
                // Without it the connection alone tells.
                let _ = self.set.add(fd.as_fd(), connection | PROCESS);
            }
        }
        let wire = Wire::new(fd);
        let since = Instant::now();
        let (pid, leaving, watching_room) = (who.pid, false, false);
        let peer = Peer { wire, pid, process, since, leaving, watching_room };
        self.peers.insert(connection, peer);
    }

    fn hear(&mut self, connection: Connection) {
        let Some(peer) = self.peers.get_mut(&connection) else { return };
        peer.wire.fill();
        self.flush(connection);
        while let Some(peer) = self.peers.get_mut(&connection) {
            let pid = peer.pid;
            let actions = match peer.wire.next() {
                Ok(Some(Message::Join(mut join))) => {
                    join.card.pid = pid;
                    join.card.node ^= self.instance;
                    self.join(connection, join)
                }
                Ok(Some(message)) => self.rounds.hear(connection, &message),
                Ok(None) => break,
                Err(error) => self.misheard(connection, &error),
            };
            self.act(actions);
            if self.peers.get(&connection).is_some_and(|peer| peer.leaving) {
                break;
            }
        }
        if self.peers.get(&connection).is_some_and(|peer| peer.wire.ended()) {
            self.closed(connection);
        }
    }

    fn join(&mut self, connection: Connection, join: Join) -> Vec<Action> {
        let rank = join.card.rank;
        match self.rounds.join(connection, join.clone()) {
            Joined::Done(actions) => actions,
            Joined::Claimed(by) => {
                // It may have left a moment ago, and its end not have been looked at yet.
                if by != connection {
                    self.hear(by);
                }
                match self.rounds.join(connection, join) {
                    Joined::Done(actions) => actions,
                    Joined::Claimed(_) => self.rounds.refuse(connection, rank),
                }
            }
        }
    }

    fn misheard(&mut self, connection: Connection, error: &DecodeError) -> Vec<Action> {
        let reason = match error {
            DecodeError::Version(version) => format!(
                "this rank speaks version {version} of the meeting, its host version {VERSION}; \
                 use one version of the library and of gaspi_run"
            ),
            DecodeError::Malformed(what) => format!("the host did not understand a frame: {what}"),
        };
        let mut actions = self.rounds.closed(connection);
        actions.push(Action::Refuse(connection, Message::Failed(Failure::Meeting(reason))));
        actions
    }

    fn closed(&mut self, connection: Connection) {
        let actions = self.rounds.closed(connection);
        self.part(connection);
        self.act(actions);
    }

    /// Closes a connection. Taken out of the set by hand: a forked child may hold a copy of the
    /// descriptors, and then closing alone would leave them there.
    fn part(&mut self, connection: Connection) {
        if let Some(peer) = self.peers.remove(&connection) {
            self.set.remove(peer.wire.as_fd());
            if let Some(process) = &peer.process {
                self.set.remove(process.as_fd());
            }
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(to, message) => self.send(to, message.encode().into(), None),
                Action::Refuse(to, message) => self.refuse(to, &message),
                Action::Kill(rank) => {
                    let member = self.rounds.member(rank);
                    let process = member.and_then(|(pid, start)| process::open(pid, start).ok());
                    self.requests.push(Request::Kill { rank, process: process.flatten() });
                }
                Action::Table { connections, cards, group_max } => {
                    self.send_table(&connections, &cards, group_max);
                }
            }
        }
    }

    fn refuse(&mut self, to: Connection, message: &Message) {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.leaving = true;
        }
        self.send(to, message.encode().into(), None);
    }

    fn send_table(&mut self, connections: &[Connection], cards: &[Card], group_max: u32) {
        if self.once {
            self.close_meeting(connections);
        }
        let (areas, token, key) = match self.make_areas(cards, group_max) {
            Ok(made) => made,
            Err(error) => {
                let message = Message::Failed(error.into());
                for to in connections {
                    let _ = self.rounds.closed(*to);
                    self.refuse(*to, &message);
                }
                return;
            }
        };
        let parts: Vec<Arc<[u8]>> = encode_cards(cards).into_iter().map(Arc::from).collect();
        let last: Arc<[u8]> = Message::Area { token, key }.encode().into();
        for (to, card) in connections.iter().zip(cards) {
            for part in &parts {
                self.send(*to, part.clone(), None);
            }
            if let Some(peer) = self.peers.get_mut(to) {
                peer.leaving = self.once;
            }
            self.send(*to, last.clone(), areas.get(&card.node).cloned());
        }
        if !self.once {
            self.areas = Some((areas, group_max));
        }
    }

    /// An area for each node, and the secrets of a round.
    fn make_areas(&self, cards: &[Card], group_max: u32) -> Result<Made> {
        let size = crate::node::area_size(self.size, group_max);
        let mut areas = HashMap::new();
        for card in cards {
            if let Entry::Vacant(place) = areas.entry(card.node) {
                place.insert(Arc::new(memory::create(c"gaspi-node", size, false)?));
            }
        }
        Ok((areas, random()?, random()?))
    }

    /// Ends the listening before the table goes out, so that a rank which is fast to init again
    /// starts a new meeting. Who is not a member is sent there too.
    fn close_meeting(&mut self, members: &[Connection]) {
        if let Some(listener) = &self.listener {
            // From now on connecting is refused; those in line can still be accepted.
            system::shut_down(listener.as_fd());
            self.set.remove(listener.as_fd());
        }
        self.accept();
        self.listener = None;
        self.reserve = None;
        let strangers: Vec<Connection> =
            self.peers.keys().copied().filter(|peer| !members.contains(peer)).collect();
        for stranger in strangers {
            if !self.peers[&stranger].leaving {
                self.refuse(stranger, &Message::Over);
            }
        }
    }

    fn send(&mut self, to: Connection, bytes: Arc<[u8]>, descriptor: Option<Arc<OwnedFd>>) {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.wire.queue(bytes, descriptor);
            self.flush(to);
        }
    }

    /// Sends what there is room for; closes the connection after its last word.
    fn flush(&mut self, to: Connection) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        let sent = peer.wire.flush();
        if sent && peer.leaving {
            return self.part(to);
        }
        if peer.watching_room == sent {
            peer.watching_room = !sent;
            // It was added, so it can be changed.
            let _ = self.set.watch_room(peer.wire.as_fd(), to, !sent);
        }
    }
}
