//! How the server of a machine finds the hub of a job that was started by hand: it tries all
//! addresses of the hub's machine at all ports that the hub may have, until one answers that knows
//! the job and its key.
//!
//! Connections are made side by side, handshakes one after the other, so that the hub sees one.

use super::hub_access::{HubAccess, PATIENCE};
use super::server::Server;
use super::tcp_connection::{TcpConnection, continue_handshake};
use crate::bootstrap::addresses::{Audience, Candidates};
use crate::bootstrap::job::{HubLocation, Job};
use crate::bootstrap::system::random;
use crate::os::{interfaces, process, tcp};
use crate::wire::handshake::{self, HUB, Met, Peer, Purpose, State};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Between two rounds of trying: the hub may not have started yet.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LAST: Duration = Duration::from_millis(500);
/// Addresses of the hub's machine that are tried.
const ADDRESSES_MAX: usize = 4;
/// How often a process of another version may refuse before it is taken for the hub.
const VERSIONS_MAX: u32 = 3;
/// How often a name that is not known is looked up again.
const LOOK_UP: Duration = Duration::from_secs(5);
/// How often to look whether the resolver has an answer.
const RESOLVER: Duration = Duration::from_millis(2);
/// How often those who wait here are told why they wait.
const REPORT: Duration = Duration::from_secs(5);

/// A connection that is being made.
#[derive(Debug)]
struct Attempt {
    fd: OwnedFd,
    to: SocketAddr,
    connected: bool,
}

/// The way to the hub.
#[derive(Debug)]
pub(super) struct Discovery {
    rank: u32,
    hub: String,
    named_port: bool,
    audience: Audience,
    access: HubAccess,
    addresses: Vec<IpAddr>,
    looked_up: Option<Instant>,
    /// The resolver, which takes its time, while it is at work.
    resolver: Option<Receiver<std::io::Result<Vec<SocketAddr>>>>,
    attempts: Vec<Attempt>,
    /// When the attempts of this round have taken too long.
    until: Instant,
    /// The handshake that is under way.
    handshake: Option<(Attempt, handshake::Client, Instant)>,
    /// When the next round begins.
    again: Instant,
    pause: Duration,
    /// Why the hub was not reached, by address.
    failures: BTreeMap<SocketAddr, String>,
    unresolved: Option<String>,
    other_versions: u32,
    stream: Option<TcpConnection>,
    since: Instant,
    reported: Instant,
}

impl Discovery {
    pub(super) fn new(job: &Job, hub: &HubLocation, access: HubAccess) -> Discovery {
        let now = Instant::now();
        Discovery {
            rank: u32::from(job.rank.0),
            hub: hub.host.clone(),
            named_port: hub.port.is_some(),
            audience: hub.audience,
            access,
            addresses: Vec::new(),
            looked_up: None,
            resolver: None,
            attempts: Vec::new(),
            until: now,
            handshake: None,
            again: now,
            pause: PAUSE_FIRST,
            failures: BTreeMap::new(),
            unresolved: None,
            other_versions: 0,
            stream: None,
            since: now,
            reported: now,
        }
    }

    /// Goes on; what the hub and the ranks of this machine say passes through `server`.
    pub(super) fn serve(&mut self, server: &mut Server) {
        if self.stream.is_none() && !server.is_over() {
            self.connect(server);
        }
        let Some(stream) = &mut self.stream else { return };
        let mut bytes = Vec::new();
        while stream.read(&mut bytes) {}
        let understood = server.feed(Server::UPSTREAM, &bytes);
        stream.queue(server.take(Server::UPSTREAM));
        stream.flush();
        let end = match (understood, stream.ended()) {
            (Err(error), _) => Some(error.to_string()),
            (Ok(()), Some(why)) => Some(format!(
                "the connection to the host of the meeting on {} ({}) has ended: {why}",
                self.hub, stream.peer
            )),
            (Ok(()), None) => None,
        };
        if let Some(why) = end {
            self.stream = None;
            server.cut(Server::UPSTREAM, &why);
        }
    }

    /// Why the hub has not been reached yet.
    pub(super) fn last_error(&self) -> Option<String> {
        if self.stream.is_some() {
            return None;
        }
        let mut reasons: Vec<String> = self.unresolved.iter().cloned().collect();
        // Ports at which nobody listens say the same.
        let mut told: Vec<(IpAddr, &str)> = Vec::new();
        for (to, reason) in &self.failures {
            if !told.contains(&(to.ip(), reason)) {
                told.push((to.ip(), reason));
                reasons.push(format!("{to}: {reason}"));
            }
        }
        let ports: Vec<String> = self.access.ports.iter().map(u16::to_string).collect();
        let plural = if ports.len() == 1 { "port" } else { "ports" };
        let mut text = format!(
            "the host of the meeting on {} has not answered at {plural} {}",
            self.hub,
            ports.join(", ")
        );
        if !reasons.is_empty() {
            text = format!("{text} ({})", reasons.join("; "));
        }
        Some(text)
    }

    fn connect(&mut self, server: &mut Server) {
        let now = Instant::now();
        self.resolved();
        if self.attempts.is_empty() && self.handshake.is_none() && now >= self.again {
            self.begin(now);
        }
        self.take_connected(now);
        while let Some((attempt, mut client, until)) = self.handshake.take() {
            match continue_handshake(attempt.fd.as_fd(), &mut client) {
                None if now < until => {
                    self.handshake = Some((attempt, client, until));
                    break;
                }
                None => self.failed(attempt.to, "no answer to the handshake"),
                Some(State::Done(_)) => {
                    self.attempts.clear();
                    self.stream = Some(TcpConnection::new(attempt.fd, attempt.to));
                    return;
                }
                Some(State::Refused(reason)) => {
                    self.failed(attempt.to, &reason);
                    if self.is_final(&client) {
                        let why = self.refusal(attempt.to, &client, &reason);
                        return server.cut(Server::UPSTREAM, &why);
                    }
                }
                Some(State::Pending) => {}
            }
            self.take_connected(now);
        }
        if self.attempts.is_empty() && self.handshake.is_none() && self.again <= now {
            self.again = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE_LAST);
        }
        if now >= self.reported + REPORT
            && let Some(last_error) = self.last_error()
        {
            self.reported = now;
            let waited = self.since.elapsed().as_secs();
            log::error!("proc_init: {waited} s have passed, {last_error}");
            server.explain(&last_error);
        }
    }

    /// Whether trying again cannot help: it is the hub that refuses, or that we refuse.
    fn is_final(&mut self, client: &handshake::Client) -> bool {
        match client.met() {
            Met::SameJob => true,
            Met::OtherJob => self.named_port,
            // It may be another job at one of our ports, while the hub has not started yet.
            Met::OtherVersion => {
                self.other_versions += 1;
                self.named_port || self.other_versions >= VERSIONS_MAX
            }
            Met::Nobody => false,
        }
    }

    /// Why there will be no exchange.
    fn refusal(&self, to: SocketAddr, client: &handshake::Client, reason: &str) -> String {
        let remedy = match client.met() {
            Met::SameJob => self.access.key_remedy(),
            Met::OtherJob => "check GASPI_JOB_ID and GASPI_MEETING on all hosts".to_owned(),
            Met::OtherVersion | Met::Nobody => return format!("{to} on {}: {reason}", self.hub),
        };
        format!("{to} on {}: {reason}; {remedy}", self.hub)
    }

    fn failed(&mut self, to: SocketAddr, reason: &str) {
        log::debug!("proc_init: {to} is not the host of the meeting: {reason}");
        self.failures.insert(to, reason.to_owned());
    }

    /// Starts to connect to all places where the hub may be.
    fn begin(&mut self, now: Instant) {
        let stale = self.looked_up.is_none_or(|at| now >= at + LOOK_UP);
        if self.addresses.is_empty() && stale && self.resolver.is_none() {
            self.look_up(now);
        }
        self.until = now + PATIENCE;
        let places: Vec<SocketAddr> = self
            .addresses
            .iter()
            .flat_map(|ip| self.access.ports.iter().map(|port| SocketAddr::new(*ip, *port)))
            .collect();
        for to in places {
            match tcp::connect(to) {
                Ok(fd) => self.attempts.push(Attempt { fd, to, connected: false }),
                Err(error) => self.failed(to, &error.to_string()),
            }
        }
    }

    /// Asks the resolver, in a thread: no call waits for it beyond its timeout.
    fn look_up(&mut self, now: Instant) {
        self.looked_up = Some(now);
        let name = self.hub.trim_start_matches('[').trim_end_matches(']').to_owned();
        let (tell, resolver) = mpsc::channel();
        let asked = process::with_signals_blocked(|| {
            std::thread::Builder::new().name("gaspi-resolver".to_owned()).spawn(move || {
                // Nobody listens any more if the start has ended meanwhile.
                let _ = tell.send((name.as_str(), 0).to_socket_addrs().map(Iterator::collect));
            })
        });
        match asked {
            Ok(_) => self.resolver = Some(resolver),
            Err(error) => self.unresolved = Some(format!("looking up {}: {error}", self.hub)),
        }
    }

    /// Takes what the resolver has found.
    fn resolved(&mut self) {
        let found = match self.resolver.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => return,
            Some(Ok(found)) => found,
            Some(Err(TryRecvError::Disconnected)) => Err(std::io::ErrorKind::Other.into()),
        };
        self.resolver = None;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.unresolved = Some(format!("looking up {}: {error}", self.hub));
                return;
            }
        };
        self.again = Instant::now();
        let candidates = Candidates::new(&found, &interfaces::list(), self.audience);
        self.unresolved = candidates.lack();
        for candidate in candidates.tried {
            let ip = candidate.endpoint.ip();
            if !self.addresses.contains(&ip) && self.addresses.len() < ADDRESSES_MAX {
                self.addresses.push(ip);
            }
        }
    }

    /// Takes the next connection that was made for a handshake.
    fn take_connected(&mut self, now: Instant) {
        for mut attempt in std::mem::take(&mut self.attempts) {
            if !attempt.connected {
                match tcp::outcome(attempt.fd.as_fd()) {
                    Ok(connected) => attempt.connected = connected,
                    Err(error) => {
                        self.failed(attempt.to, &error.to_string());
                        continue;
                    }
                }
            }
            if !attempt.connected && now >= self.until {
                self.failed(attempt.to, "no answer");
            } else if attempt.connected && self.handshake.is_none() {
                let Ok(nonce) = random() else { continue };
                let to = Peer { rank: HUB, purpose: Purpose::Meeting };
                let client = handshake::Client::new(&self.access.secret, self.rank, to, nonce);
                self.handshake = Some((attempt, client, now + PATIENCE));
            } else {
                self.attempts.push(attempt);
            }
        }
    }

    pub(super) fn watches<'a>(&'a self, fds: &mut Vec<(BorrowedFd<'a>, bool)>) -> Option<Duration> {
        if let Some(stream) = &self.stream {
            fds.push((stream.as_fd(), stream.is_pending()));
            return None;
        }
        if let Some((attempt, client, _)) = &self.handshake {
            fds.push((attempt.fd.as_fd(), !client.output().is_empty()));
        }
        let open = self.attempts.iter().filter(|attempt| !attempt.connected);
        fds.extend(open.map(|attempt| (attempt.fd.as_fd(), true)));
        let idle = self.attempts.is_empty() && self.handshake.is_none();
        let next = match &self.handshake {
            _ if idle => self.again,
            Some((_, _, until)) => *until,
            None => self.until,
        };
        let mut next = next.min(self.reported + REPORT);
        if self.resolver.is_some() {
            next = next.min(Instant::now() + RESOLVER);
        }
        Some(next.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)))
    }
}
