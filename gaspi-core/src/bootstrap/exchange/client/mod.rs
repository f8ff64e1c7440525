//! A rank's way into its job: find the server, register, wait for the table. Resumable: a call that
//! runs out of time leaves the registration in place, and the next one continues.
//!
//! In a job started by hand the first rank to take the server's name serves inside its own
//! calls, and joins it like everybody else.

mod state;

use super::embedded::EmbeddedServer;
use super::local_connection::LocalConnection;
use super::membership::Membership;
use super::message::{Join, Message};
use super::server::areas;
use crate::bootstrap::cards::Image;
use crate::bootstrap::job::{Job, ServerLocation};
use crate::bootstrap::system::{self, random};
use crate::bootstrap::{Card, Cards, KEY_BYTES};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::sealed::SealedMapping;
use crate::os::socket;
use crate::timeout::Deadline;
use crate::wire::shared_layout::SharedLayout;
use state::{ClientState, Progress};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Between two attempts to reach a server that is just starting or just ending: its name exists,
/// but nothing can be waited for.
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_LAST: Duration = Duration::from_millis(16);
/// How long a rank that cannot join looks for a server to tell, or serves those that come and tells
/// them.
const TELL_LIMIT: Duration = Duration::from_secs(2);
/// How long it leaves serving to others where all it could do is to relay: those stay.
const OTHERS_FIRST: Duration = Duration::from_secs(1);

/// A rank on its way into its job.
#[derive(Debug)]
pub struct Client {
    job: Job,
    join: Join,
    server: Option<EmbeddedServer>,
    phase: Phase,
}

/// What comes out of an exchange.
#[derive(Debug)]
pub struct Table {
    /// The cards of all ranks.
    pub cards: Cards,
    /// The area of this rank's node: a memory file sealed in size.
    pub area: OwnedFd,
    /// Random and known to the ranks of this exchange only.
    pub token: [u8; 16],
    /// The secret that connections between nodes prove to know.
    pub key: [u8; KEY_BYTES],
    /// Keeps the launcher informed; to be dropped when the rank leaves the job.
    pub membership: Membership,
}

#[derive(Debug)]
enum Phase {
    /// Nobody answers yet.
    Connecting { pause: Duration },
    /// Connected to the server.
    Registered(Registered),
    /// The table is here, but this rank still serves those that have not got theirs.
    Serving(Option<Box<Table>>),
    /// It ended with this error, or the table was handed out.
    Ended(Option<Error>),
}

#[derive(Debug)]
struct Registered {
    connection: LocalConnection,
    /// The server's process, 0 where it is not visible.
    pid: i32,
    /// Readable when it has ended.
    process: Option<OwnedFd>,
    state: ClientState,
}

/// What one look at the connection brought.
enum Outcome {
    Nothing,
    Table(Box<Table>),
    Over,
}

impl Client {
    /// Prepares to join `job`; [`Client::poll`] does it.
    ///
    /// # Errors
    /// The configuration is out of its limits.
    pub fn new(job: &Job, config: &Config, mut card: Card) -> Result<Client> {
        config.check()?;
        card.rank = job.rank;
        let agreed = config.agreed().into_iter().map(|(field, value)| (field.to_owned(), value));
        let join = Join { job: job.id.clone(), size: job.size, agreed: agreed.collect(), card };
        let phase = Phase::Connecting { pause: RETRY_FIRST };
        Ok(Client { job: job.clone(), join, server: None, phase })
    }

    /// A field besides those of the configuration that must be the same on all ranks.
    #[must_use]
    pub(crate) fn agreeing(mut self: Box<Client>, (field, value): (&str, u64)) -> Box<Client> {
        self.join.agreed.push((field.to_owned(), value));
        self
    }

    /// Continues until all ranks of the job have registered.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the missing ranks; call again to continue. Any other error is final
    /// and the same on every further call.
    pub fn poll(&mut self, deadline: Deadline) -> Result<Table> {
        loop {
            match self.step() {
                Ok(Some(table)) => {
                    self.server = None;
                    self.phase = Phase::Ended(None);
                    // From now on the cards tell them.
                    self.job.hosts = Arc::default();
                    return Ok(table);
                }
                Ok(None) => {}
                Err(error) => {
                    if let Some(server) = self.server.take() {
                        server.tell_failure(deadline.at_most(TELL_LIMIT));
                    }
                    self.phase = Phase::Ended(Some(error.clone()));
                    return Err(error);
                }
            }
            if deadline.passed() {
                return Err(Error::Timeout { pending: self.pending() });
            }
            self.sleep(deadline);
        }
    }

    /// Does what can be done without waiting.
    fn step(&mut self) -> Result<Option<Table>> {
        if let Phase::Ended(error) = &self.phase {
            let handed_out = || Error::Meeting { reason: "the table was handed out".to_owned() };
            return Err(error.clone().unwrap_or_else(handed_out));
        }
        if self.job.server == ServerLocation::NotNeeded {
            return self.alone().map(Some);
        }
        if let ServerLocation::ByManager(session) = &self.job.server {
            let Some(server) = session.poll()? else { return Ok(None) };
            self.job.server = server;
        }
        if let Phase::Connecting { .. } = self.phase {
            self.connect()?;
        }
        if let Some(server) = &mut self.server {
            server.serve();
        }
        if let Phase::Registered(registered) = &mut self.phase {
            match registered.look(&self.job)? {
                Outcome::Nothing => return Ok(None),
                Outcome::Over => {
                    // A server of this process has found that there is another exchange.
                    self.server = None;
                    self.phase = Phase::Connecting { pause: RETRY_FIRST };
                }
                Outcome::Table(mut table) => {
                    let phase = std::mem::replace(&mut self.phase, Phase::Serving(None));
                    if let (Phase::Registered(old), ServerLocation::Launcher(_)) =
                        (phase, &self.job.server)
                    {
                        table.membership = Membership::new(old.connection);
                    }
                    self.phase = Phase::Serving(Some(table));
                }
            }
        }
        if let Phase::Serving(table) = &mut self.phase {
            if let Some(server) = &mut self.server {
                server.serve();
                if !server.finished() {
                    return Ok(None);
                }
            }
            return Ok(table.take().map(|table| *table));
        }
        Ok(None)
    }

    /// A job of one needs nobody.
    fn alone(&self) -> Result<Table> {
        let group_max = self.join.group_max();
        let mut card = self.join.card.clone();
        card.pid = std::process::id() as i32;
        Ok(Table {
            cards: Cards::own(&[card])?,
            area: areas::create(SharedLayout::new(1, group_max))?,
            token: random()?,
            key: random()?,
            membership: Membership::none(),
        })
    }

    /// Connects to the server, or becomes it.
    fn connect(&mut self) -> Result<()> {
        let (name, launched) = match &self.job.server {
            ServerLocation::Launcher(name) => (name.clone(), true),
            ServerLocation::FirstRank(name) | ServerLocation::OverHosts { name, .. } => {
                (name.clone(), false)
            }
            ServerLocation::NotNeeded | ServerLocation::ByManager(_) => return Ok(()),
        };
        if !launched && self.server.is_none() {
            match socket::listen(&name) {
                Ok(fd) => {
                    let mut server = EmbeddedServer::new(&self.job, &name, fd)?;
                    // Who hosts the meeting claims its rank first: were it refused for another
                    // process with that rank, the meeting would end for all.
                    let own = server.server.connect_self()?;
                    self.server = Some(server);
                    return self.register(own);
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(Error::os("listening for the ranks of the job", &error)),
            }
        }
        match socket::connect(&name) {
            Ok(fd) => self.register(fd),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && launched => {
                let reason = format!(
                    "the launcher of job {} (GASPI_MEETING={name}) does not answer: it has ended, \
                     or this process was moved to another network namespace; start the job again \
                     with gaspi_run",
                    self.job.id
                );
                Err(Error::Meeting { reason })
            }
            // Just taken and not yet listening, just over, or too many are in line.
            Err(error) => match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::WouldBlock | ErrorKind::Interrupted => {
                    Ok(())
                }
                _ => Err(Error::os("connecting to the meeting of the job", &error)),
            },
        }
    }

    fn register(&mut self, fd: OwnedFd) -> Result<()> {
        let host = socket::credentials(fd.as_fd())
            .map_err(|error| Error::os("asking who hosts the meeting", &error))?;
        if host.uid != socket::own_uid() {
            let reason = format!(
                "the meeting of job {} is held by process {} of user {}, not by this user; set \
                 another GASPI_JOB_ID on all ranks",
                self.job.id, host.pid, host.uid
            );
            return Err(Error::Meeting { reason });
        }
        let mut connection = LocalConnection::new(fd);
        connection.queue(Message::Join(self.join.clone()).encode().into(), Vec::new());
        connection.flush();
        let own = self.server.is_some();
        let process = if own { None } else { system::watch_process(host.pid) };
        let pid = host.pid;
        let registered = Registered { connection, pid, process, state: ClientState::default() };
        self.phase = Phase::Registered(registered);
        Ok(())
    }

    /// Sleeps until there may be something to do.
    fn sleep(&mut self, deadline: Deadline) {
        let mut fds = Vec::new();
        let mut limit = None;
        if let ServerLocation::ByManager(session) = &self.job.server {
            return system::wait(&[(session.as_fd(), false)], deadline, None);
        }
        if let Some(server) = &self.server {
            (fds, limit) = server.watches();
        }
        match &mut self.phase {
            Phase::Connecting { pause } => {
                limit = Some(limit.map_or(*pause, |limit| limit.min(*pause)));
                *pause = (*pause * 2).min(RETRY_LAST);
            }
            Phase::Registered(registered) => {
                let unsent = !registered.connection.flush();
                fds.push((registered.connection.as_fd(), unsent));
                if let Some(process) = &registered.process {
                    fds.push((process.as_fd(), false));
                }
            }
            Phase::Serving(_) | Phase::Ended(_) => {}
        }
        system::wait(&fds, deadline, limit);
    }

    fn pending(&self) -> String {
        let text = self.awaited();
        match self.server.as_ref().and_then(EmbeddedServer::last_error) {
            Some(error) if !text.contains(&error) => format!("{text}; {error}"),
            _ => text,
        }
    }

    fn awaited(&self) -> String {
        let job = &self.job;
        if let ServerLocation::ByManager(session) = &job.server {
            return session.awaited();
        }
        match &self.phase {
            Phase::Registered(registered) => registered.state.awaited(&job.id, job.size),
            Phase::Serving(_) => format!("the other ranks of job {} to take their tables", job.id),
            _ => state::nothing_heard(&job.id, job.size),
        }
    }
}

/// Tells the others of `job` that this rank cannot join, if there is a server.
pub(crate) fn report_unable(job: &Job, error: &Error) {
    let limit = Deadline::Never.at_most(TELL_LIMIT);
    let unable = Unable { job: job.id.clone(), rank: job.rank, reason: error.to_string() };
    match &job.server {
        ServerLocation::ByManager(session) => {
            let mut job = job.clone();
            session.tell(limit, move |server| {
                job.server = server;
                unable.tell(&job, Deadline::Never.at_most(TELL_LIMIT));
            });
        }
        _ => unable.tell(job, limit),
    }
}

/// What a rank that cannot join tells the others.
pub(super) struct Unable {
    pub(super) job: String,
    pub(super) rank: Rank,
    pub(super) reason: String,
}

impl Unable {
    pub(super) fn tell(self, job: &Job, limit: Deadline) {
        let (ServerLocation::Launcher(name)
        | ServerLocation::FirstRank(name)
        | ServerLocation::OverHosts { name, .. }) = &job.server
        else {
            return;
        };
        let launched = matches!(job.server, ServerLocation::Launcher(_));
        let relays = matches!(&job.server, ServerLocation::OverHosts { hub, .. } if !hub.here);
        let alone = Deadline::Never.at_most(if relays { OTHERS_FIRST } else { Duration::ZERO });
        loop {
            match socket::connect(name) {
                Ok(fd) => return self.send(fd),
                Err(error) => match error.kind() {
                    // Too many are in line.
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => {}
                    // There is no server yet.
                    ErrorKind::ConnectionRefused if !launched => {
                        if alone.passed()
                            && let Ok(listener) = socket::listen(name)
                        {
                            return self.tell_as_server((job, name, listener), limit);
                        }
                    }
                    _ => return,
                },
            }
            if limit.passed() {
                return;
            }
            system::wait(&[], limit, Some(RETRY_LAST));
        }
    }

    /// The first of its machine serves those that come.
    fn tell_as_server(self, (job, name, listener): (&Job, &str, OwnedFd), limit: Deadline) {
        let Ok(mut server) = EmbeddedServer::new(job, name, listener) else { return };
        if let Ok(own) = server.server.connect_self() {
            self.send(own);
            server.tell_failure(limit);
        }
    }

    fn send(self, fd: OwnedFd) {
        let host = socket::credentials(fd.as_fd());
        if !host.is_ok_and(|host| host.uid == socket::own_uid()) {
            return;
        }
        let Unable { job, rank, reason } = self;
        let mut connection = LocalConnection::new(fd);
        connection.queue(Message::Unable { job, rank, reason }.encode().into(), Vec::new());
        connection.flush();
    }
}

impl Registered {
    /// Reads what the server says.
    fn look(&mut self, job: &Job) -> Result<Outcome> {
        // Asked before reading: what a server said before it ended can then be read.
        let server_ended = self.process.as_ref().is_some_and(|fd| system::readable(fd.as_fd()));
        self.connection.flush();
        loop {
            let message = match self.connection.next() {
                Ok(Some(message)) => message,
                Ok(None) if self.connection.fill() => continue,
                Ok(None) if server_ended || self.connection.ended() => {
                    return Err(self.server_ended(job));
                }
                Ok(None) => return Ok(Outcome::Nothing),
                Err(_) => {
                    let text = "a frame that this rank does not understand; use one version of \
                                the library and of gaspi_run";
                    let reason = format!("the host (process {}) sent {text}", self.pid);
                    return Err(Error::Meeting { reason });
                }
            };
            match self.state.receive(message)? {
                Progress::Pending => {}
                Progress::Over => return Ok(Outcome::Over),
                Progress::Complete { token, key } => {
                    let table = self.table(job, token, key)?;
                    return Ok(Outcome::Table(Box::new(table)));
                }
            }
        }
    }

    fn table(&mut self, job: &Job, token: [u8; 16], key: [u8; KEY_BYTES]) -> Result<Table> {
        let mut came = || self.connection.take_descriptor();
        let (Some(area), Some(cards)) = (came(), came()) else {
            // The kernel drops descriptors that do not fit into the receiver's table.
            return Err(Error::TooManyFiles { call: "receiving the shared area".into() });
        };
        let image = Image::Shared(SealedMapping::new(cards.as_fd())?);
        let cards = Cards::new(image).map_err(|error| self.misunderstood(&error.to_string()))?;
        if cards.len() != job.size as usize {
            return Err(self.misunderstood(&format!("it has {} cards", cards.len())));
        }
        let cards = state::seen_by(cards, job.rank, self.pid);
        Ok(Table { cards, area, token, key, membership: Membership::none() })
    }

    fn misunderstood(&self, how: &str) -> Error {
        let reason = format!(
            "the host (process {}) sent a table that this rank does not understand ({how}); use \
             one version of the library and of gaspi_run",
            self.pid
        );
        Error::Meeting { reason }
    }

    fn server_ended(&self, job: &Job) -> Error {
        let who = match job.server {
            ServerLocation::Launcher(_) => "the launcher",
            _ => "the rank that hosted the meeting",
        };
        let reason =
            format!("{who} of job {} (process {}) has ended during init", job.id, self.pid);
        Error::Meeting { reason }
    }
}
