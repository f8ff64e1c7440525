//! The exchange server of one machine, with its sockets.
//!
//! In a job of one machine, and where the launcher itself runs, it is the *hub*: it drives the
//! state machine of [`state`]. On the other machines of a job it is a *relay*: it tells the
//! hub what its ranks say and does what the hub wants ([`relay`]). gaspi_run and its agents serve
//! every round for their whole life; a rank of a job started by hand serves one round inside its
//! own init. Nothing here blocks: the owner waits for [`Server::as_fd`] and calls
//! [`Server::serve`].

pub(super) mod areas;
mod local_ranks;
pub(super) mod relay;
pub(super) mod state;
mod told;

pub use relay::RelayId;

use super::local_connection::LocalConnection;
use super::message::{Failure, Message};
use super::start_status::StartStage;
use crate::bootstrap::job::hosts_by_rank;
use crate::bootstrap::system::{self, Timer, random};
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::event::Epoll;
use crate::os::socket;
use crate::wire::shared_layout::SharedLayout;
use areas::{AreaKey, Areas};
use relay::{Hub, Relay};
use state::{Action, ConnectionId, ServerState};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

/// What a server asks of its owner.
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
    pub(super) socket: LocalConnection,
    pub(super) pid: i32,
    /// Readable when the process has ended: forked children may keep the connection open.
    process: Option<OwnedFd>,
    pub(super) since: Instant,
    /// Its last word has been said; to be closed when that is sent.
    pub(super) leaving: bool,
    watching_room: bool,
    /// Once it has asked to take part.
    pub(super) joined: Option<Registration>,
}

impl Peer {
    /// Whether it takes part as `rank`.
    pub(super) fn is_rank(&self, rank: Rank) -> bool {
        self.joined.is_some_and(|registration| registration.rank == rank)
    }

    /// Whether it has the table and has not left.
    pub(super) fn is_in_job(&self) -> bool {
        self.joined.is_some_and(|registration| registration.in_job)
    }
}

/// As what a connection takes part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Registration {
    pub(super) rank: Rank,
    pub(super) start_time: u64,
    /// The part of the machine with which it shares memory.
    pub(super) area: AreaKey,
    /// It has the table and has not left.
    pub(super) in_job: bool,
}

/// What decides.
#[derive(Debug)]
pub(super) enum Role {
    Hub(Hub),
    Relay(Relay),
}

/// The exchange server of a machine.
#[derive(Debug)]
pub struct Server {
    name: String,
    set: Epoll,
    /// `None` once the only round is over.
    listener: Option<OwnedFd>,
    /// Given up to refuse a newcomer in words when descriptors have run out.
    reserve: Option<OwnedFd>,
    timer: Option<Timer>,
    pub(super) peers: HashMap<ConnectionId, Peer>,
    next: ConnectionId,
    pub(super) role: Role,
    /// One round only, as in a job started by hand.
    pub(super) once: bool,
    pub(super) requests: Vec<Request>,
    /// Ranks can share memory only if they registered here.
    instance: u64,
    /// What the ranks of the last round share.
    areas: Option<Areas>,
}

/// A rank that has registered and is still in the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// The process that joined, as the kernel vouches.
    pub pid: i32,
    /// While it waits for others to come: since when, and for whom (on a relay: the first of them).
    pub missing: Option<(Duration, Vec<Rank>)>,
}

impl Server {
    /// A server with a name of its own for all rounds of the job `job_id` of one machine.
    ///
    /// # Errors
    /// Descriptors or random numbers are not to be had.
    pub fn bind(job_id: &str, size: u32) -> Result<Server> {
        Server::own(Role::Hub(Hub::new(ServerState::new(job_id, size))))
    }

    /// The hub of a job whose ranks run on `hosts`, by rank.
    ///
    /// # Errors
    /// Descriptors or random numbers are not to be had.
    pub fn hub(job_id: &str, hosts: Vec<String>) -> Result<Server> {
        Server::own(Role::Hub(Hub::new(ServerState::over_hosts(job_id, hosts_by_rank(hosts)))))
    }

    /// The relay on another machine of a job; [`Server::UPSTREAM`] leads to its hub.
    ///
    /// # Errors
    /// Descriptors or random numbers are not to be had.
    pub fn relay() -> Result<Server> {
        Server::own(Role::Relay(Relay::new()))
    }

    fn own(role: Role) -> Result<Server> {
        let name: String = random::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("gaspi-{name}");
        let listener = socket::listen(&name)
            .map_err(|error| Error::os("listening for the ranks of the job", &error))?;
        Server::new(name, listener, role, false)
    }

    /// The server of one round behind a listener that this process could bind.
    pub(super) fn once(name: &str, listener: OwnedFd, role: Role) -> Result<Server> {
        Server::new(name.to_owned(), listener, role, true)
    }

    /// A connection of this process with its own server, before that of any other process.
    ///
    /// # Errors
    /// Descriptors ran out.
    pub(super) fn connect_self(&mut self) -> Result<OwnedFd> {
        let (own, other) = socket::pair()
            .map_err(|error| Error::os("connecting to the meeting of the job", &error))?;
        self.welcome(other);
        Ok(own)
    }

    fn new(name: String, listener: OwnedFd, role: Role, once: bool) -> Result<Server> {
        let set = Epoll::new()?;
        set.add(listener.as_fd(), LISTENER)?;
        let timer = match &role {
            Role::Hub(hub) if hub.spans_hosts() => {
                let timer = Timer::new()?;
                set.add(timer.as_fd(), TIMER)?;
                Some(timer)
            }
            _ => None,
        };
        let reserve = listener.try_clone().ok();
        Ok(Server {
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

    /// Readable when [`Server::serve`] has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Does what can be done without waiting and returns what its owner has to do.
    pub fn serve(&mut self) -> Vec<Request> {
        for _ in 0..PASSES_MAX {
            let mut ready = Vec::new();
            self.set.wait(&mut ready, 0);
            if ready.is_empty() {
                break;
            }
            for event in ready {
                match event.token {
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
    pub fn stage(&mut self, ranks: &[Rank], stage: StartStage) {
        if let Role::Hub(Hub { state, .. }) = &mut self.role
            && let Some(start_status) = state.start_status()
        {
            ranks.iter().for_each(|rank| start_status.stage(*rank, stage));
        }
        self.arm();
    }

    /// Whether `rank` has registered or is in the job; `None` before it joined and after it left. A
    /// relay knows the ranks of its machine.
    pub fn presence(&self, rank: Rank) -> Option<Presence> {
        match &self.role {
            Role::Hub(hub) => {
                let (pid, _) = hub.state.member(rank)?;
                let connection = hub.state.connection_of(rank.0)?;
                let local = self.peers.get(&connection).map(|peer| peer.since);
                let since = local.or_else(|| hub.since(connection)).map(|since| since.elapsed());
                let missing = hub.state.missing(rank);
                let missing = missing.map(|ranks| (since.unwrap_or_default(), ranks));
                Some(Presence { pid, missing })
            }
            Role::Relay(relay) => {
                let peer = self.peers.values().find(|peer| peer.is_rank(rank))?;
                let waits = !peer.joined?.in_job;
                let missing = waits.then(|| (peer.since.elapsed(), relay.missing.clone()));
                Some(Presence { pid: peer.pid, missing })
            }
        }
    }

    /// What `rank` shares with its node since the last complete exchange, for an observer; `None`
    /// before one was complete, and for ranks of other machines.
    pub fn shared_area(&self, rank: Rank) -> Option<(&OwnedFd, SharedLayout)> {
        let areas = self.areas.as_ref()?;
        let key = areas.keys.get(&rank)?;
        Some((areas.by_key.get(key)?, key.layout))
    }

    /// Whether the one round of this server is over and all ranks here were sent its outcome.
    pub(crate) fn finished(&self) -> bool {
        self.once && self.listener.is_none() && self.peers.is_empty()
    }

    /// Whether the one round of this server has an outcome, so that no rank can join any more.
    pub(super) fn is_over(&self) -> bool {
        self.listener.is_none()
    }

    /// Whether no rank is left that has not heard of an exchange that has failed; of those that
    /// have come to a relay.
    pub(super) fn has_told_all(&self) -> bool {
        let waits = |peer: &Peer| peer.leaving || peer.joined.is_some();
        match &self.role {
            Role::Hub(hub) => {
                !hub.state.has_to_tell() && !self.peers.values().any(|peer| peer.leaving)
            }
            Role::Relay(_) => !self.peers.values().any(waits),
        }
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
            let mut socket = LocalConnection::new(fd);
            let failure = Failure::Meeting(reason.to_owned());
            socket.queue(Message::Failed(failure).encode().into(), Vec::new());
            socket.flush();
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
        let socket = LocalConnection::new(fd);
        let since = Instant::now();
        let (pid, leaving, watching_room) = (who.pid, false, false);
        let peer = Peer { socket, pid, process, since, leaving, watching_room, joined: None };
        self.peers.insert(connection, peer);
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
                // A server of one round has no members.
                Action::Died(..) if self.once => {}
                Action::Died(rank, how) => self.died(rank, &how),
            }
        }
        self.arm();
    }

    /// Reminds of what is missing as long as something is.
    fn arm(&mut self) {
        if let (Some(timer), Role::Hub(hub)) = (&mut self.timer, &self.role) {
            timer.set(hub.state.is_incomplete().then_some(REMINDER));
        }
    }

    fn remind(&mut self) {
        if let Some(timer) = &self.timer {
            timer.clear();
        }
        if let Role::Hub(hub) = &self.role
            && let Some((text, actions)) = hub.state.remind()
        {
            self.requests.push(Request::Missing { text });
            self.act(actions);
        }
    }
}
