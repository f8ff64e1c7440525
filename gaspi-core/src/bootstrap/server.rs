//! The place where the ranks of one machine meet, with its sockets.
//!
//! In a job of one machine, and where the launcher itself runs, it is the *hub*: it drives the
//! state machine of [`super::host`]. On the other machines of a job it is a *relay*: it tells the
//! hub what its ranks say and does what the hub wants ([`super::links`]). gaspi_run and its agents
//! host for their whole life and for every round; a rank of a job started by hand hosts one round
//! inside its own init. Nothing here blocks: the owner waits for [`Host::as_fd`] and calls
//! [`Host::serve`].

use super::fields::DecodeError;
use super::host::{Action, Connection, Joined, Rounds};
use super::links::{Hub, LINK_SHIFT, Relay};
use super::message::{Failure, Join, Message, VERSION};
use super::random;
use super::roster::Stage;
use super::system::{self, Set, Timer};
use super::wire::Wire;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::observer::Observer;
use crate::os::{memory, socket};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LISTENER: u64 = 0;
/// The token of a member's process, beside that of its connection.
const PROCESS: u64 = 1 << 63;
/// The token of the timer.
const TIMER: u64 = 1 << 62;
/// Looks at the sockets per call of `serve`, so that its owner's other duties are not starved.
const PASSES_MAX: usize = 64;
/// How often an incomplete start says who is missing.
const REMINDER: Duration = Duration::from_secs(5);

/// What a host has to ask of its owner.
#[derive(Debug)]
#[non_exhaustive]
pub enum Request {
    /// A member wants this rank's process to be ended at once.
    Kill {
        /// The rank.
        rank: Rank,
        /// A pidfd of the process that joined as this rank, which need not be the one that the
        /// launcher started (a script's child); `None` if none has.
        process: Option<OwnedFd>,
    },
    /// The start of a job over several hosts is incomplete: tell the user. Comes every 5 seconds.
    Missing {
        /// Which ranks on which hosts are missing, and how far each has come.
        text: String,
    },
}

/// A connection of a rank of this machine.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) wire: Wire,
    pub(super) pid: i32,
    /// Readable when the process has ended: forked children may keep the connection open.
    process: Option<OwnedFd>,
    pub(super) since: Instant,
    /// Its last word has been said; to be closed when that is sent.
    pub(super) leaving: bool,
    watching_room: bool,
    /// Once it has asked to take part.
    pub(super) joined: Option<Seat>,
}

/// As what a connection takes part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    pub(super) rank: Rank,
    pub(super) start_time: u64,
    /// The part of the machine with which it shares memory.
    pub(super) place: Place,
    /// It has the table and has not left.
    pub(super) in_job: bool,
}

/// What a node area is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) node: u64,
    pub(super) size: u32,
    pub(super) group_max: u32,
}

/// The node areas of the ranks of this machine.
#[derive(Debug, Default)]
pub(super) struct Areas {
    pub(super) by_place: HashMap<Place, Arc<OwnedFd>>,
    pub(super) places: HashMap<Rank, Place>,
}

/// What decides.
#[derive(Debug)]
pub(super) enum Role {
    Hub(Hub),
    Relay(Relay),
}

/// The place where the ranks of a machine meet.
#[derive(Debug)]
pub struct Host {
    name: String,
    set: Set,
    /// `None` once a meeting for one round is over.
    listener: Option<OwnedFd>,
    /// Given up to refuse a newcomer in words when descriptors have run out.
    reserve: Option<OwnedFd>,
    timer: Option<Timer>,
    pub(super) peers: HashMap<Connection, Peer>,
    next: Connection,
    pub(super) role: Role,
    /// One round only, as the host of a job started by hand.
    pub(super) once: bool,
    pub(super) requests: Vec<Request>,
    /// Ranks can share memory only if they met here.
    instance: u64,
    /// What the ranks of the last round share.
    pub(super) areas: Option<Areas>,
}

/// A rank that has come to the meeting and is still in the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// The process that joined, as the kernel vouches.
    pub pid: i32,
    /// While it waits for others to come: since when, and for whom (on a relay: the first of them).
    pub meeting: Option<(Duration, Vec<Rank>)>,
}

impl Host {
    /// A meeting place with a name of its own for all rounds of the job `job_id` of one machine.
    ///
    /// # Errors
    /// Descriptors or random numbers are not to be had.
    pub fn bind(job_id: &str, size: u32) -> Result<Host> {
        Host::own(Role::Hub(Hub::new(Rounds::new(job_id, size))))
    }

    /// The hub of a job whose ranks run on `hosts`, by rank.
    ///
    /// # Errors
    /// Descriptors or random numbers are not to be had.
    pub fn hub(job_id: &str, hosts: Vec<String>) -> Result<Host> {
        Host::own(Role::Hub(Hub::new(Rounds::over_hosts(job_id, hosts))))
    }

    /// The place on another machine of a job; [`Host::UPSTREAM`] leads to its hub.
    ///
    /// # Errors
    /// Descriptors or random numbers are not to be had.
    pub fn relay() -> Result<Host> {
        Host::own(Role::Relay(Relay::new()))
    }

    fn own(role: Role) -> Result<Host> {
        let name: String = random::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("gaspi-{name}");
        let listener = socket::listen(&name)
            .map_err(|error| Error::os("listening for the ranks of the job", &error))?;
        Host::new(name, listener, role, false)
    }

    /// The host of one round behind a listener that this process could bind.
    pub(super) fn once(name: &str, listener: OwnedFd, role: Role) -> Result<Host> {
        Host::new(name.to_owned(), listener, role, true)
    }

    fn new(name: String, listener: OwnedFd, role: Role, once: bool) -> Result<Host> {
        let set = Set::new()?;
        let watched = set.add(listener.as_fd(), LISTENER);
        watched.map_err(|error| Error::os("epoll_ctl", &error))?;
        let timer = match &role {
            Role::Hub(hub) if hub.spans_hosts() => {
                let timer = Timer::new()?;
                let watched = set.add(timer.as_fd(), TIMER);
                watched.map_err(|error| Error::os("epoll_ctl", &error))?;
                Some(timer)
            }
            _ => None,
        };
        let reserve = listener.try_clone().ok();
        Ok(Host {
            name,
            set,
            listener: Some(listener),
            reserve,
            timer,
            peers: HashMap::new(),
            next: LISTENER + 1,
            role,
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

    /// Does what can be done without waiting and returns what its owner has to do.
    pub fn serve(&mut self) -> Vec<Request> {
        for _ in 0..PASSES_MAX {
            let ready = self.set.ready();
            if ready.is_empty() {
                break;
            }
            for token in ready {
                match token {
                    LISTENER => self.accept(),
                    TIMER => self.remind(),
                    token if token & PROCESS != 0 => self.closed(token & !PROCESS),
                    token => self.hear(token),
                }
            }
        }
        self.requests()
    }

    /// What its owner has to do since it was asked last.
    pub fn requests(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.requests)
    }

    /// How far the start of these ranks is; of interest to the hub of a job over several hosts.
    pub fn stage(&mut self, ranks: &[Rank], stage: Stage) {
        if let Role::Hub(Hub { rounds, .. }) = &mut self.role
            && let Some(roster) = rounds.roster()
        {
            ranks.iter().for_each(|rank| roster.stage(*rank, stage));
        }
        self.arm();
    }

    /// Whether `rank` is in the meeting or in the job; `None` before it joined and after it left. A
    /// relay knows the ranks of its machine.
    pub fn presence(&self, rank: Rank) -> Option<Presence> {
        match &self.role {
            Role::Hub(hub) => {
                let (pid, _) = hub.rounds.member(rank)?;
                let connection = hub.rounds.connection_of(rank.0)?;
                let local = self.peers.get(&connection).map(|peer| peer.since);
                let since = local.or_else(|| hub.since(connection)).map(|since| since.elapsed());
                let missing = hub.rounds.missing(rank);
                let meeting = missing.map(|ranks| (since.unwrap_or_default(), ranks));
                Some(Presence { pid, meeting })
            }
            Role::Relay(relay) => {
                let is_it = |peer: &&Peer| peer.joined.is_some_and(|seat| seat.rank == rank);
                let peer = self.peers.values().find(is_it)?;
                let waits = !peer.joined?.in_job;
                let meeting = waits.then(|| (peer.since.elapsed(), relay.missing.clone()));
                Some(Presence { pid: peer.pid, meeting })
            }
        }
    }

    /// A look at what `rank` does since the last complete meeting; `None` before one was complete,
    /// and for ranks of other machines.
    ///
    /// # Errors
    /// What the ranks share could not be mapped.
    pub fn observer(&self, rank: Rank) -> Option<Result<Observer>> {
        let areas = self.areas.as_ref()?;
        let place = areas.places.get(&rank)?;
        let area = areas.by_place.get(place)?;
        Some(Observer::new(area, place.size, place.group_max))
    }

    /// Whether the one round of this host is over and everybody here has been sent its outcome.
    pub(crate) fn finished(&self) -> bool {
        self.once && self.listener.is_none() && self.peers.is_empty()
    }

    /// Whether the one round of this host has an outcome, so that nobody can join any more.
    pub(super) fn is_over(&self) -> bool {
        self.listener.is_none()
    }

    pub(super) fn accept(&mut self) {
        while let Some(listener) = &self.listener {
            match socket::accept(listener.as_fd()) {
                Ok(Some(fd)) => self.welcome(fd),
                Ok(None) => return,
                // Shut down, and nobody is left in line.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
                Err(_) if self.spare_processes() => {}
                Err(_) => return self.turn_away(),
            }
        }
    }

    /// Closes the descriptors of the members' processes; false if there are none. Their connections
    /// tell of their ends too.
    fn spare_processes(&mut self) -> bool {
        let processes = self.peers.values_mut().filter_map(|peer| peer.process.take());
        processes.map(|process| self.set.remove(process.as_fd())).count() > 0
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
        let peer = Peer { wire, pid, process, since, leaving, watching_room, joined: None };
        self.peers.insert(connection, peer);
    }

    pub(super) fn hear(&mut self, connection: Connection) {
        let Some(peer) = self.peers.get_mut(&connection) else { return };
        peer.wire.fill();
        self.flush(connection);
        while let Some(peer) = self.peers.get_mut(&connection) {
            match peer.wire.next() {
                Ok(Some(Message::Join(mut join))) => {
                    join.card.pid = peer.pid;
                    join.card.machine = self.instance;
                    join.card.node ^= self.instance;
                    peer.joined = Some(Seat {
                        rank: join.card.rank,
                        start_time: join.card.start_time,
                        place: Place {
                            node: join.card.node,
                            size: join.size,
                            group_max: join.group_max(),
                        },
                        in_job: false,
                    });
                    self.come(connection, join);
                }
                Ok(Some(message)) => {
                    if let (Message::Leave, Some(seat)) = (&message, &mut peer.joined) {
                        seat.in_job = false;
                    }
                    self.said(connection, message);
                }
                Ok(None) => break,
                Err(error) => self.misheard(connection, &error),
            }
            if self.peers.get(&connection).is_some_and(|peer| peer.leaving) {
                break;
            }
        }
        if self.peers.get(&connection).is_some_and(|peer| peer.wire.ended()) {
            self.closed(connection);
        }
    }

    /// A rank of this machine wants to take part.
    fn come(&mut self, connection: Connection, join: Join) {
        match &mut self.role {
            Role::Hub(_) => self.join(connection, join),
            Role::Relay(_) => self.pass_on(connection, join),
        }
    }

    /// Anything else that a rank of this machine says.
    fn said(&mut self, connection: Connection, message: Message) {
        match &mut self.role {
            Role::Hub(hub) => {
                let actions = hub.rounds.hear(connection, &message);
                self.act(actions);
            }
            Role::Relay(relay) => relay.say(connection, message),
        }
    }

    /// Somebody wants to take part, here or at the other end of a link.
    pub(super) fn join(&mut self, connection: Connection, join: Join) {
        let rank = join.card.rank;
        let Role::Hub(hub) = &mut self.role else { return };
        let mut joined = hub.rounds.join(connection, join.clone());
        if let Joined::Claimed(by) = joined {
            // It may have left a moment ago, and its end not have been looked at yet.
            if by != connection {
                self.hear(by);
            }
            let Role::Hub(hub) = &mut self.role else { return };
            joined = hub.rounds.join(connection, join);
            if let Joined::Claimed(_) = joined {
                joined = Joined::Done(hub.rounds.refuse(connection, rank));
            }
        }
        if let Joined::Done(actions) = joined {
            self.act(actions);
        }
    }

    fn misheard(&mut self, connection: Connection, error: &DecodeError) {
        let reason = match error {
            DecodeError::Version(version) => format!(
                "this rank speaks version {version} of the meeting, its host version {VERSION}; \
                 use one version of the library and of gaspi_run"
            ),
            DecodeError::Malformed(what) => format!("the host did not understand a frame: {what}"),
        };
        self.forget(connection);
        self.refuse(connection, &Message::Failed(Failure::Meeting(reason)));
    }

    fn closed(&mut self, connection: Connection) {
        let actions = self.forgotten(connection);
        self.part(connection);
        self.act(actions);
    }

    /// The rank of this connection no longer takes part.
    fn forget(&mut self, connection: Connection) {
        let actions = self.forgotten(connection);
        self.act(actions);
    }

    fn forgotten(&mut self, connection: Connection) -> Vec<Action> {
        match &mut self.role {
            Role::Hub(hub) => hub.rounds.closed(connection),
            Role::Relay(relay) => {
                if self.peers.get(&connection).is_some_and(|peer| peer.joined.is_some()) {
                    relay.closed(connection);
                }
                Vec::new()
            }
        }
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

    /// Does what the rounds want; of the hub.
    pub(super) fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(to, message) => self.tell(&to, &message),
                Action::Refuse(to, message) => self.turn_down(to, &message),
                Action::Kill(rank) => self.kill(rank),
                Action::Table { connections, cards, group_max } => {
                    self.send_table(&connections, &cards, group_max);
                }
                // A meeting of one round has no members.
                Action::Died(..) if self.once => {}
                Action::Died(rank, how) => self.died(rank, &how),
            }
        }
        self.arm();
    }

    /// Reminds of what is missing as long as something is.
    fn arm(&mut self) {
        if let (Some(timer), Role::Hub(hub)) = (&mut self.timer, &self.role) {
            timer.set(hub.rounds.is_incomplete().then_some(REMINDER));
        }
    }

    fn remind(&mut self) {
        if let Some(timer) = &self.timer {
            timer.clear();
        }
        if let Role::Hub(hub) = &self.role
            && let Some((text, actions)) = hub.rounds.remind()
        {
            self.requests.push(Request::Missing { text });
            self.act(actions);
        }
    }

    /// Says `message` to a rank of this machine, then closes.
    pub(super) fn refuse(&mut self, to: Connection, message: &Message) {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.leaving = true;
        }
        self.send(to, message.encode().into(), None);
    }

    /// An area for each place.
    pub(super) fn make_areas(
        places: impl Iterator<Item = Place>,
    ) -> Result<HashMap<Place, Arc<OwnedFd>>> {
        let mut areas = HashMap::new();
        for place in places {
            if let Entry::Vacant(entry) = areas.entry(place) {
                let size =
                    crate::transport::shm::area::shared_area_size(place.size, place.group_max);
                entry.insert(Arc::new(memory::create(c"gaspi-node", size, false)?));
            }
        }
        Ok(areas)
    }

    /// Sends the table to the ranks of this machine that met.
    pub(super) fn hand_out(
        &mut self,
        connections: &[Connection],
        cards: &[Arc<[u8]>],
        last: &Arc<[u8]>,
        by_place: HashMap<Place, Arc<OwnedFd>>,
    ) {
        let mut places = HashMap::new();
        for to in connections {
            for part in cards {
                self.send(*to, part.clone(), None);
            }
            let Some(peer) = self.peers.get_mut(to) else { continue };
            peer.leaving = self.once;
            let Some(seat) = &mut peer.joined else { continue };
            seat.in_job = true;
            places.insert(seat.rank, seat.place);
            let area = by_place.get(&seat.place).cloned();
            self.send(*to, last.clone(), area);
        }
        if !self.once {
            self.areas = Some(Areas { by_place, places });
        }
    }

    /// Ends the listening before the table goes out, so that a rank which is fast to init again
    /// starts a new meeting. Who is not a member is sent there too.
    pub(super) fn close_meeting(&mut self, members: &[Connection]) {
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

    /// Sends to a rank of this machine.
    pub(super) fn send(
        &mut self,
        to: Connection,
        bytes: Arc<[u8]>,
        descriptor: Option<Arc<OwnedFd>>,
    ) {
        debug_assert_eq!(to >> LINK_SHIFT, 0, "a rank of another machine");
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
