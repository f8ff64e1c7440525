//! What a rank of a job started by hand does that hosts the meeting of its machine, inside its own
//! init: the [`Host`], and in a job over several machines the TCP side of it. On the machine of the
//! hub that is a listener to which the other machines come ([`Gate`]); on the others it is the way
//! there ([`Seeker`](super::seeker::Seeker)).
//!
//! Invariant: nothing of a stranger is kept beyond a handshake's fixed buffers, for at most
//! [`PATIENCE`], and never of more than [`STRANGERS_MAX`] at once.

use super::addresses::{self, Audience, Restrictions};
use super::host::Rounds;
use super::links::{Hub, LinkId, Relay};
use super::seeker::Seeker;
use super::server::{Host, Request, Role};
use super::stream::{Stream, shake};
use super::{HubPlace, Job, MeetingPlace, keys, random};
use crate::error::{Error, Result};
use crate::os::{interfaces, tcp};
use crate::wire::handshake::{HUB, Purpose, Secret, Server, State, job_name};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Connections that have not proved anything yet.
const STRANGERS_MAX: usize = 64;
/// How long a stranger may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long the last words to a machine that does not close may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// Ports that a meeting may be at where none is named: above those that services use, below those
/// that the kernel hands out.
const PORTS: (u16, u16) = (20480, 28671);
/// How many of them a job tries, so that jobs do not stand in each other's way.
const TRIES: usize = 8;

/// The meeting of a machine.
#[derive(Debug)]
pub(super) struct Hosting {
    pub(super) host: Host,
    since: Instant,
    reach: Reach,
}

#[derive(Debug)]
enum Reach {
    /// All ranks are on this machine.
    Machine,
    Hub(Box<Gate>),
    Relay(Box<Seeker>),
}

/// What the machines of a job by hand know alike.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) secret: Secret,
    /// Where it came from, for errors.
    pub(super) origin: Option<PathBuf>,
    pub(super) restrictions: Restrictions,
    /// Where the hub may listen.
    pub(super) ports: Vec<u16>,
}

impl Shared {
    fn new(job: &Job, hub: &HubPlace) -> Result<Shared> {
        let (key, origin) = match &hub.key {
            Some(key) => (key.0, None),
            None => keys::of_job(&job.id).map(|(key, path)| (key, Some(path)))?,
        };
        let restrictions = Restrictions::from_environment()?;
        let name = job_name(&job.id);
        let ports = match hub.port {
            Some(port) => vec![port],
            None => derived_ports(&name, restrictions.ports().unwrap_or(PORTS)),
        };
        Ok(Shared { secret: Secret { job: name, key }, origin, restrictions, ports })
    }

    /// What to do where keys differ.
    pub(super) fn key_remedy(&self) -> String {
        match &self.origin {
            Some(path) => format!(
                "the key of this host is {}; it has to be the same on all hosts: copy it there, or \
                 set GASPI_KEY_FILE",
                path.display()
            ),
            None => "it has to be the same on all hosts".to_owned(),
        }
    }
}

/// The ports at which the ranks of a job look for its hub, in this order on all machines.
fn derived_ports(name: &[u8; 16], (low, high): (u16, u16)) -> Vec<u16> {
    let count = u32::from(high - low) + 1;
    let mut ports = Vec::with_capacity(TRIES);
    for pair in name.chunks_exact(2).take(TRIES) {
        let port = low + (u32::from(u16::from_le_bytes([pair[0], pair[1]])) % count) as u16;
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports
}

impl Hosting {
    /// Begins to host behind `listener`, which has the name that the machine's ranks know.
    pub(super) fn new(job: &Job, name: &str, listener: OwnedFd) -> Result<Hosting> {
        let (role, reach) = match &job.place {
            MeetingPlace::Hosts { hub, .. } => {
                let shared = Shared::new(job, hub)?;
                if hub.here {
                    let rounds = Rounds::over_hosts(&job.id, job.hosts.clone());
                    let gate = Gate::new(shared, hub.audience, job.size)?;
                    (Role::Hub(Hub::new(rounds)), Reach::Hub(Box::new(gate)))
                } else {
                    let seeker = Box::new(Seeker::new(job, hub, shared));
                    (Role::Relay(Relay::new()), Reach::Relay(seeker))
                }
            }
            _ => (Role::Hub(Hub::new(Rounds::new(&job.id, job.size))), Reach::Machine),
        };
        Ok(Hosting { host: Host::once(name, listener, role)?, since: Instant::now(), reach })
    }

    /// Does what can be done without waiting.
    pub(super) fn serve(&mut self) {
        for request in self.host.serve() {
            if let Request::Missing { text } = request {
                // Each is told: the time differs.
                let waited = self.since.elapsed().as_secs();
                log::error!("proc_init: {waited} s have passed, still waiting for {text}");
            }
        }
        match &mut self.reach {
            Reach::Machine => {}
            Reach::Hub(gate) => gate.serve(&mut self.host),
            Reach::Relay(seeker) => seeker.serve(&mut self.host),
        }
    }

    /// Whether everybody has been sent the outcome of the round.
    pub(super) fn finished(&self) -> bool {
        let farewell = match &self.reach {
            Reach::Hub(gate) => gate.is_done(),
            Reach::Machine | Reach::Relay(_) => true,
        };
        farewell && self.host.finished()
    }

    /// What stands in the way, in words.
    pub(super) fn trouble(&self) -> Option<String> {
        match &self.reach {
            Reach::Machine => None,
            Reach::Hub(gate) => gate.trouble.clone(),
            Reach::Relay(seeker) => seeker.trouble(),
        }
    }

    /// What to wait for (with `true` also for room), and for how long at most.
    pub(super) fn watches(&self) -> (Vec<(BorrowedFd<'_>, bool)>, Option<Duration>) {
        let mut fds = vec![(self.host.as_fd(), false)];
        let limit = match &self.reach {
            Reach::Machine => None,
            Reach::Hub(gate) => gate.watches(&mut fds),
            Reach::Relay(seeker) => seeker.watches(&mut fds),
        };
        (fds, limit)
    }
}

/// Somebody who has connected and not proved anything yet.
#[derive(Debug)]
struct Stranger {
    fd: OwnedFd,
    from: SocketAddr,
    server: Server,
    until: Instant,
}

/// The TCP side of the hub.
#[derive(Debug)]
struct Gate {
    shared: Shared,
    size: u32,
    listeners: Vec<OwnedFd>,
    /// Given up to turn somebody away when descriptors have run out.
    reserve: Option<OwnedFd>,
    strangers: Vec<Stranger>,
    streams: Vec<(LinkId, Stream)>,
    /// Who was refused last, and why.
    trouble: Option<String>,
    /// Since when the meeting is over and all was sent.
    quiet: Option<Instant>,
}

impl Gate {
    fn new(shared: Shared, audience: Audience, size: u32) -> Result<Gate> {
        let mut last = None;
        for port in &shared.ports {
            let at = shared.restrictions.at_port(*port);
            match addresses::listen(&interfaces::list(), &at, audience) {
                Ok(listening) => {
                    log::info!(
                        "proc_init: the hosts of the job meet here, at {:?}",
                        listening.endpoints
                    );
                    return Ok(Gate {
                        shared,
                        size,
                        reserve: listening.listeners[0].try_clone().ok(),
                        listeners: listening.listeners,
                        strangers: Vec::new(),
                        streams: Vec::new(),
                        trouble: None,
                        quiet: None,
                    });
                }
                Err(error) => last = Some(error),
            }
        }
        let ports: Vec<String> = shared.ports.iter().map(u16::to_string).collect();
        let why = last.map_or(String::new(), |error| format!(" ({error})"));
        Err(Error::Environment {
            reason: format!(
                "none of the ports {} for the meeting of the hosts can be listened on{why}; set \
                 another GASPI_JOB_ID or GASPI_MEETING=tcp:HOST:PORT on all ranks",
                ports.join(", ")
            ),
        })
    }

    fn serve(&mut self, host: &mut Host) {
        if host.is_over() {
            // Who comes now looks for the next meeting.
            self.listeners.clear();
            self.reserve = None;
            self.strangers.clear();
        }
        self.accept();
        self.welcome(host);
        let mut bytes = Vec::new();
        for (link, stream) in &mut self.streams {
            bytes.clear();
            while stream.read(&mut bytes) {}
            if let Err(error) = host.feed(*link, &bytes) {
                log::warn!("proc_init: {} was sent away: {error}", stream.peer);
                host.cut(*link, &error.to_string());
            }
            if let Some(why) = stream.ended() {
                host.cut(*link, &format!("the connection to {} has ended: {why}", stream.peer));
            }
        }
        for (link, stream) in &mut self.streams {
            stream.queue(host.take(*link));
            stream.flush();
        }
        self.streams.retain(|(_, stream)| stream.ended().is_none());
        let sent = self.streams.iter().all(|(_, stream)| !stream.is_pending());
        if host.is_over() && sent {
            self.quiet.get_or_insert_with(Instant::now);
        }
    }

    fn accept(&mut self) {
        for listener in &self.listeners {
            while self.strangers.len() < STRANGERS_MAX {
                let (fd, from) = match tcp::accept(listener.as_fd()) {
                    Ok(Some(found)) => found,
                    Ok(None) => break,
                    Err(error) => {
                        self.trouble = Some(format!(
                            "a host could not be let in: {error}; raise the limit of open files \
                             with ulimit -n"
                        ));
                        // Turned away by the last descriptor, so that the listener does not stay
                        // ready for ever; it comes again.
                        self.reserve = None;
                        let turned_away = matches!(tcp::accept(listener.as_fd()), Ok(Some(_)));
                        self.reserve = listener.try_clone().ok();
                        if turned_away {
                            continue;
                        }
                        break;
                    }
                };
                let Ok(nonce) = random() else { continue };
                let server = Server::new(&self.shared.secret, HUB, self.size, nonce);
                let until = Instant::now() + PATIENCE;
                self.strangers.push(Stranger { fd, from, server, until });
            }
        }
    }

    /// Makes links of the strangers who have proved to belong to the job.
    fn welcome(&mut self, host: &mut Host) {
        let now = Instant::now();
        for mut stranger in std::mem::take(&mut self.strangers) {
            match shake(stranger.fd.as_fd(), &mut stranger.server) {
                None if now < stranger.until => self.strangers.push(stranger),
                None => self.refused(&stranger, &stranger.server.ended()),
                Some(State::Done(peer)) if peer.purpose == Purpose::Meeting => {
                    let stream = Stream::new(stranger.fd, stranger.from);
                    self.streams.push((host.add_link(&[]), stream));
                }
                Some(State::Refused(reason)) => self.refused(&stranger, &reason),
                Some(State::Done(_) | State::Pending) => {}
            }
        }
    }

    fn refused(&mut self, stranger: &Stranger, reason: &str) {
        log::info!("proc_init: {} was refused: {reason}", stranger.from);
        // Scans and other programs are no trouble of this job.
        if stranger.server.knows_job() {
            let remedy = self.shared.key_remedy();
            self.trouble = Some(format!(
                "a process at {} was refused: {reason}; {remedy}",
                stranger.from.ip()
            ));
        }
    }

    /// Whether the other machines have their outcome. One that is stopped is not waited for long.
    fn is_done(&self) -> bool {
        self.streams.is_empty() || self.quiet.is_some_and(|since| since.elapsed() >= FAREWELL)
    }

    fn watches<'a>(&'a self, fds: &mut Vec<(BorrowedFd<'a>, bool)>) -> Option<Duration> {
        if self.strangers.len() < STRANGERS_MAX {
            fds.extend(self.listeners.iter().map(|listener| (listener.as_fd(), false)));
        }
        for stranger in &self.strangers {
            fds.push((stranger.fd.as_fd(), !stranger.server.output().is_empty()));
        }
        fds.extend(self.streams.iter().map(|(_, stream)| (stream.as_fd(), stream.is_pending())));
        let now = Instant::now();
        let strangers = self.strangers.iter().map(|stranger| stranger.until);
        let farewell = self.quiet.map(|since| since + FAREWELL);
        let next = strangers.chain(farewell).min()?;
        Some(next.saturating_duration_since(now).max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
#[path = "hosting_tests.rs"]
mod tests;
