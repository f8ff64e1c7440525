//! How the server of a machine finds the hub of a job that was started by hand: it tries all
//! addresses of the hub's machine at all ports that the hub may have, until one answers that knows
//! the job and its key.
//!
//! Connections are made side by side, handshakes one after the other, so that the hub sees one.

use super::hub_access::{Beginning, HubAccess, PATIENCE};
use super::hub_lookup::HubLookup;
use super::server::Server;
use super::tcp_connection::{TcpConnection, continue_handshake, send_first};
use super::vouching::{Asked, LOOK, no_answer};
use crate::bootstrap::job::{HubLocation, Job};
use crate::os::tcp;
use crate::wire::handshake::{self, HUB, Met, Peer, Purpose, State};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Between two rounds of trying: the hub may not have started yet.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LAST: Duration = Duration::from_millis(500);
/// How often a process of another version may refuse before it is taken for the hub.
const VERSIONS_MAX: u32 = 3;
/// How often to look whether the resolver has an answer.
const RESOLVER: Duration = Duration::from_millis(2);
/// How long to wait at least.
const SHORTEST: Duration = Duration::from_millis(1);
/// How often those who wait here are told why they wait.
const REPORT: Duration = Duration::from_secs(5);

/// A connection that is being made.
#[derive(Debug)]
struct Attempt {
    fd: OwnedFd,
    to: SocketAddr,
    connected: bool,
}

/// The rounds of trying: each tries all places once, and pauses between them grow.
#[derive(Debug)]
struct Rounds {
    /// When the attempts of this round have taken too long.
    until: Instant,
    /// When the next round begins.
    again: Instant,
    pause: Duration,
}

impl Rounds {
    fn new(now: Instant) -> Rounds {
        Rounds { until: now, again: now, pause: PAUSE_FIRST }
    }

    fn is_due(&self, now: Instant) -> bool {
        now >= self.again
    }

    fn begin(&mut self, now: Instant) {
        self.until = now + PATIENCE;
    }

    /// The round has found nothing: the next one comes after a pause.
    fn end(&mut self, now: Instant) {
        self.again = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_LAST);
    }

    /// There are new places to try: the next round need not wait.
    fn hurry(&mut self) {
        self.again = Instant::now();
    }
}

/// The way to the hub.
#[derive(Debug)]
pub(super) struct Discovery {
    rank: u32,
    named_port: bool,
    access: HubAccess,
    hub: HubLookup,
    rounds: Rounds,
    attempts: Vec<Attempt>,
    /// What munge is asked for before the next handshake, and until when.
    asked: Option<(Attempt, Asked<Beginning>, Instant)>,
    /// The handshake that is under way.
    handshake: Option<(Attempt, handshake::Client, Instant)>,
    /// Why the hub was not reached, by address.
    failures: BTreeMap<SocketAddr, String>,
    other_versions: u32,
    stream: Option<TcpConnection>,
    since: Instant,
    /// When those who wait here are told the next time why they wait.
    report_at: Instant,
}

impl Discovery {
    pub(super) fn new(job: &Job, hub: &HubLocation, access: HubAccess) -> Discovery {
        let now = Instant::now();
        Discovery {
            rank: u32::from(job.rank.0),
            named_port: hub.port.is_some(),
            access,
            hub: HubLookup::new(hub),
            rounds: Rounds::new(now),
            attempts: Vec::new(),
            asked: None,
            handshake: None,
            failures: BTreeMap::new(),
            other_versions: 0,
            stream: None,
            since: now,
            report_at: now + REPORT,
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
        stream.look_for_silence();
        let end = match (understood, stream.ended()) {
            (Err(error), _) => Some(error.to_string()),
            (Ok(()), Some(why)) => Some(format!(
                "the connection to the host of the meeting on {} ({}) has ended: {why}",
                self.hub.name(),
                stream.peer
            )),
            (Ok(()), None) => None,
        };
        if let Some(why) = end {
            self.stream = None;
            server.cut(Server::UPSTREAM, &why);
        }
    }

    /// Whether the hub has been sent all there was to say.
    pub(super) fn has_told_hub(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| !stream.is_pending())
    }

    /// Why the hub has not been reached yet.
    pub(super) fn last_error(&self) -> Option<String> {
        if self.stream.is_some() {
            return None;
        }
        let mut reasons: Vec<String> =
            self.hub.last_error().map(str::to_owned).into_iter().collect();
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
            self.hub.name(),
            ports.join(", ")
        );
        if !reasons.is_empty() {
            text = format!("{text} ({})", reasons.join("; "));
        }
        Some(text)
    }

    fn connect(&mut self, server: &mut Server) {
        let now = Instant::now();
        if self.hub.poll() {
            self.rounds.hurry();
        }
        if self.is_idle() && self.rounds.is_due(now) {
            self.begin(now);
        }
        self.take_answer(now);
        self.take_connected(now);
        while let Some((attempt, mut client, until)) = self.handshake.take() {
            match continue_handshake(attempt.fd.as_fd(), &mut client) {
                None if now < until => {
                    self.handshake = Some((attempt, client, until));
                    break;
                }
                None => self.failed(attempt.to, "no answer to the handshake"),
                Some(State::Done(_)) => {
                    log::debug!("proc_init: {} is the host of the meeting", attempt.to);
                    self.attempts.clear();
                    let stream = |records| TcpConnection::new(attempt.fd, attempt.to, records);
                    self.stream = client.records().map(stream);
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
        if self.is_idle() && self.rounds.is_due(now) {
            self.rounds.end(now);
        }
        if now >= self.report_at
            && let Some(last_error) = self.last_error()
        {
            self.report_at = now + REPORT;
            let waited = self.since.elapsed().as_secs();
            log::error!("proc_init: {waited} s have passed, {last_error}");
            server.explain(&last_error);
        }
    }

    /// Whether nothing is under way: no connection, no question to munge, no handshake.
    fn is_idle(&self) -> bool {
        self.attempts.is_empty() && self.asked.is_none() && self.handshake.is_none()
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
            Met::OtherVersion | Met::Nobody => {
                return format!("{to} on {}: {reason}", self.hub.name());
            }
        };
        format!("{to} on {}: {reason}; {remedy}", self.hub.name())
    }

    fn failed(&mut self, to: SocketAddr, reason: &str) {
        log::debug!("proc_init: {to} is not the host of the meeting: {reason}");
        self.failures.insert(to, reason.to_owned());
    }

    /// Starts to connect to all places where the hub may be.
    fn begin(&mut self, now: Instant) {
        self.hub.start(now);
        self.rounds.begin(now);
        for to in self.hub.places(&self.access.ports) {
            match tcp::connect(to) {
                Ok(fd) => self.attempts.push(Attempt { fd, to, connected: false }),
                Err(error) => self.failed(to, &error.to_string()),
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
            if !attempt.connected && now >= self.rounds.until {
                self.failed(attempt.to, "no answer");
            } else if attempt.connected && self.asked.is_none() && self.handshake.is_none() {
                let to = Peer { rank: HUB, purpose: Purpose::Meeting };
                let asked = self.access.client(self.rank, to);
                self.asked = Some((attempt, asked, now + PATIENCE));
                self.take_answer(now);
            } else {
                self.attempts.push(attempt);
            }
        }
    }

    /// Begins the next handshake once munge has answered.
    fn take_answer(&mut self, now: Instant) {
        let Some((attempt, mut asked, until)) = self.asked.take() else { return };
        let begun = match asked.poll() {
            None if now < until => {
                self.asked = Some((attempt, asked, until));
                return;
            }
            None => Err(no_answer()),
            Some(answer) => answer.and_then(|(first, client)| {
                send_first(attempt.fd.as_fd(), &first).map(|()| client)
            }),
        };
        match begun {
            Ok(client) => self.handshake = Some((attempt, client, now + PATIENCE)),
            Err(reason) => self.failed(attempt.to, &reason),
        }
    }

    pub(super) fn watches<'a>(&'a self, fds: &mut Vec<(BorrowedFd<'a>, bool)>) -> Option<Duration> {
        if let Some(stream) = &self.stream {
            fds.push((stream.as_fd(), stream.is_pending()));
            let look_at = stream.look_at()?;
            return Some(look_at.saturating_duration_since(Instant::now()).max(SHORTEST));
        }
        if let Some((attempt, client, _)) = &self.handshake {
            fds.push((attempt.fd.as_fd(), !client.output().is_empty()));
        }
        let open = self.attempts.iter().filter(|attempt| !attempt.connected);
        fds.extend(open.map(|attempt| (attempt.fd.as_fd(), true)));
        let next = match &self.handshake {
            _ if self.is_idle() => self.rounds.again,
            Some((_, _, until)) => *until,
            None => self.rounds.until,
        };
        let mut next = next.min(self.report_at);
        if self.hub.is_pending() {
            next = next.min(Instant::now() + RESOLVER);
        }
        if self.asked.is_some() {
            next = next.min(Instant::now() + LOOK);
        }
        Some(next.saturating_duration_since(Instant::now()).max(SHORTEST))
    }
}
