//! Connections between nodes, from the first packet to the proof that both know the job's key.
//!
//! The progress thread makes them. All addresses of a peer are tried, each a moment after the one
//! before, and the first on which the right rank proves itself is taken: an address that leads
//! elsewhere fools nobody. A peer that has to be watched, or of which it is not known whether it
//! still lives, is connected to in the same way.
//!
//! A connection that is to carry frames does so once who was connected to has welcomed it, by one
//! byte behind the handshake. Where two ranks connect to each other at once, that of the lower one
//! counts: the lower rank does not welcome a connection while one of its own waits for the welcome,
//! and the higher rank that takes a connection gives up making its own. Of one attempt only one
//! trial waits for a welcome.
//!
//! Invariant: a stranger costs a fixed buffer and [`STRANGER_LIMIT`], and there are at most
//! [`STRANGERS`] of them beside two for each rank.

mod attempt;
mod keepalive;

use crate::bootstrap::addresses::{Audience, Candidates};
use crate::error::{Error, Result as CoreResult};
use crate::ids::Rank;
use crate::os::event::Event;
use crate::os::{interfaces, tcp};
use crate::runtime::Inner;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::connection::Connection;
use crate::transport::tcp::endpoint_table::{ATTEMPTS, STRANGERS_FROM, WATCHES};
use crate::wire::handshake::{Client, Peer, Purpose, Secret, Server, State};
use attempt::{Outcome, Trial, advance, say_welcome, talk};
use keepalive::{Watch, has_ended, probes};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between the beginnings of two trials of a peer's addresses.
const STAGGER: Duration = Duration::from_millis(150);
/// How long the last stream of a rank that leaves may take to be made.
const DOUBT: Duration = Duration::from_millis(500);
/// After which time a peer is connected to again that closed before anything was proved.
const AGAIN: Duration = Duration::from_millis(50);
/// How long a peer is connected to again that closes before the connection is used: where there are
/// far more ranks than cores, both may take long to say their parts.
const TURNED_AWAY: Duration = Duration::from_secs(60);
/// How long somebody who connects may take to prove who it is.
const STRANGER_LIMIT: Duration = Duration::from_secs(5);
/// How many may be about to prove it, beside two for each rank of the job.
const STRANGERS: usize = 64;
/// How long the lower rank of two is left to connect to the other before init.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How often the limits are looked at while there are any, in milliseconds.
pub(crate) const LIMITS_MS: i32 = 50;

/// What a connection is wanted for.
#[derive(Debug, Clone)]
pub(crate) enum Aim {
    /// To carry frames.
    Data(Arc<Connection>),
    /// To be told by its end that the peer's host is gone.
    Watch,
    /// The same once the former watch has fallen silent, unlike others with that host.
    WatchAgain,
    /// To find out whether the peer lives.
    Probe,
    /// The same, but not at once.
    Doubt,
}

impl Aim {
    fn purpose(&self) -> Purpose {
        match self {
            Aim::Data(_) => Purpose::Data,
            Aim::Watch | Aim::WatchAgain => Purpose::Watch,
            Aim::Probe | Aim::Doubt => Purpose::Probe,
        }
    }
}

/// A peer that is being connected to.
#[derive(Debug)]
struct Attempt {
    rank: Rank,
    aim: Aim,
    since: Instant,
    /// Addresses that have not been tried.
    left: std::vec::IntoIter<SocketAddr>,
    /// By the number of the trial.
    trials: HashMap<u64, Trial>,
    next_at: Instant,
    /// Why trials failed.
    failures: Vec<String>,
    /// All that failed were refused by the peer's kernel: nobody listens there any more.
    refused: bool,
    /// One was accepted, and closed before anything was proved.
    ended: bool,
    /// This side lacks what it takes, which says nothing of the peer.
    lacking: bool,
}

#[derive(Debug)]
struct Stranger {
    fd: OwnedFd,
    from: SocketAddr,
    server: Server,
    until: Instant,
}

/// All that is under way.
#[derive(Debug)]
pub(crate) struct Connecting {
    attempts: HashMap<u64, Attempt>,
    /// What is to be tried again, when, and since when it was tried.
    again: Vec<Again>,
    strangers: HashMap<u64, Stranger>,
    watches: HashMap<u64, Watch>,
    next: u64,
    secret: Secret,
    complained: bool,
}

/// A peer that will be connected to again.
#[derive(Debug)]
struct Again {
    at: Instant,
    rank: Rank,
    aim: Aim,
    since: Instant,
}

impl Connecting {
    pub(crate) fn new(inner: &Inner) -> Connecting {
        Connecting {
            attempts: HashMap::new(),
            again: Vec::new(),
            strangers: HashMap::new(),
            watches: HashMap::new(),
            next: 0,
            secret: Secret { job: inner.token, key: inner.key },
            complained: false,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whether limits have to be looked at.
    pub(crate) fn is_busy(&self) -> bool {
        !self.attempts.is_empty() || !self.strangers.is_empty() || !self.again.is_empty()
    }

    /// Whether somebody who has connected has not proved yet who it is.
    pub(crate) fn has_strangers(&self) -> bool {
        !self.strangers.is_empty()
    }

    /// Begins what is wanted, and gives up what takes too long.
    pub(crate) fn turn(&mut self, inner: &Inner) {
        for (rank, aim) in inner.peers.take_wanted() {
            self.begin(inner, rank, aim);
        }
        let now = Instant::now();
        let due: Vec<Again> = self.again.extract_if(.., |again| again.at <= now).collect();
        for Again { rank, aim, since, .. } in due {
            match aim {
                Aim::Data(connection) if inner.area.liveness(rank) != liveness::JOINED => {
                    inner.peers.drop_connection(inner, &connection);
                }
                _ if inner.area.liveness(rank) != liveness::JOINED => {}
                Aim::Doubt => self.begin_since(inner, rank, Aim::Probe, since),
                aim => self.begin_since(inner, rank, aim, since),
            }
        }
        let late = |trial: &Trial| !trial.connected && now >= trial.until;
        for id in self.attempts.keys().copied().collect::<Vec<_>>() {
            let Some(attempt) = self.attempts.get_mut(&id) else { continue };
            let silent: Vec<u64> =
                attempt.trials.iter().filter(|(_, t)| late(t)).map(|(n, _)| *n).collect();
            for number in silent {
                self.failed(inner, id, number, "no answer".to_owned(), false);
            }
            self.try_next(inner, id, now);
        }
        let late: Vec<u64> = self
            .strangers
            .iter()
            .filter(|(_, stranger)| now >= stranger.until)
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            // What it said may have come long ago: this thread may be the one that took its time.
            self.serve_stranger(inner, token);
            self.turn_away(inner, token, "it took too long");
        }
    }

    fn begin(&mut self, inner: &Inner, rank: Rank, aim: Aim) {
        let now = Instant::now();
        if matches!(aim, Aim::Doubt) {
            self.again.push(Again { at: now + DOUBT, rank, aim, since: now });
        } else {
            self.begin_since(inner, rank, aim, now);
        }
    }

    fn begin_since(&mut self, inner: &Inner, rank: Rank, aim: Aim, since: Instant) {
        let same =
            |attempt: &Attempt| attempt.rank == rank && attempt.aim.purpose() == aim.purpose();
        let again = !matches!(aim, Aim::Data(_)) && self.attempts.values().any(same);
        if again || (aim.purpose() == Purpose::Watch && self.is_watched(inner, rank)) {
            return;
        }
        if let Aim::Data(connection) = &aim
            && (connection.fd().is_some() || connection.is_forgotten())
        {
            // The peer was quicker, or nobody wants it any more.
            return;
        }
        let card = &inner.cards[rank.index()];
        let own = &inner.cards[inner.rank.index()];
        let audience =
            if card.machine == own.machine { Audience::ThisHost } else { Audience::OtherHosts };
        let own_interfaces = interfaces::list();
        let candidates = Candidates::new(&card.endpoints, &own_interfaces, audience);
        for candidate in &candidates.dropped {
            log::debug!("connecting to {rank} on {}: not by {candidate}", card.host);
        }
        let failures = candidates.lack().into_iter().collect();
        let left: Vec<SocketAddr> = candidates.tried.iter().map(|one| one.endpoint).collect();
        let id = self.number();
        let attempt = Attempt {
            rank,
            aim,
            since,
            refused: !left.is_empty(),
            ended: false,
            lacking: own_interfaces.is_empty(),
            left: left.into_iter(),
            trials: HashMap::new(),
            next_at: Instant::now(),
            failures,
        };
        self.attempts.insert(id, attempt);
        self.try_next(inner, id, Instant::now());
    }

    /// Begins the next trial of an attempt if it is due.
    fn try_next(&mut self, inner: &Inner, id: u64, now: Instant) {
        loop {
            let number = self.number();
            let Some(attempt) = self.attempts.get_mut(&id) else { return };
            let proved = attempt.trials.values().any(|trial| trial.proved);
            if proved || (!attempt.trials.is_empty() && now < attempt.next_at) {
                return;
            }
            let Some(endpoint) = attempt.left.next() else {
                if attempt.trials.is_empty() {
                    self.give_up(inner, id);
                }
                return;
            };
            attempt.next_at = now + STAGGER;
            match self.start(inner, id, number, endpoint) {
                Ok(()) => return,
                Err(error) => {
                    let refused = error.kind() == io::ErrorKind::ConnectionRefused;
                    if let Some(attempt) = self.attempts.get_mut(&id) {
                        attempt.refused &= refused;
                        attempt.lacking |= is_lack(&error);
                        let remedy = match error.raw_os_error() {
                            Some(libc::EMFILE) => " on this side; raise the limit with ulimit -n",
                            _ => "",
                        };
                        attempt.failures.push(format!("{endpoint}: {error}{remedy}"));
                    }
                }
            }
        }
    }

    fn start(
        &mut self,
        inner: &Inner,
        id: u64,
        number: u64,
        endpoint: SocketAddr,
    ) -> io::Result<()> {
        let Some(attempt) = self.attempts.get_mut(&id) else { return Ok(()) };
        let fd = tcp::connect(endpoint)?;
        tune(fd.as_fd(), inner, &attempt.aim.purpose());
        let to = Peer { rank: attempt.rank.0.into(), purpose: attempt.aim.purpose() };
        let client = Client::new(&self.secret, inner.rank.0.into(), to, nonce()?);
        inner.peers.poll.add_writable(fd.as_fd(), ATTEMPTS + number).map_err(other)?;
        let until = Instant::now() + inner.dead_after;
        let welcome = attempt.aim.purpose() == Purpose::Data;
        let (connected, proved) = (false, false);
        let trial = Trial { endpoint, fd, client, connected, proved, welcome, until };
        attempt.trials.insert(number, trial);
        Ok(())
    }

    /// Something happened to one of the descriptors.
    pub(crate) fn serve(&mut self, inner: &Inner, event: &Event) {
        match event.token {
            ATTEMPTS..STRANGERS_FROM => self.serve_trial(inner, event.token - ATTEMPTS),
            STRANGERS_FROM..WATCHES => self.serve_stranger(inner, event.token),
            _ => self.serve_watch(inner, event.token),
        }
    }

    fn serve_trial(&mut self, inner: &Inner, number: u64) {
        let holds = |(_, attempt): &(&u64, &mut Attempt)| attempt.trials.contains_key(&number);
        let Some((id, attempt)) = self.attempts.iter_mut().find(holds) else { return };
        let (id, Some(trial)) = (*id, attempt.trials.get_mut(&number)) else { return };
        let (first, unproved) = (!trial.connected, !trial.proved);
        match advance(trial) {
            Outcome::Pending => {
                if first && trial.connected {
                    // From now on only what the peer says counts.
                    let token = ATTEMPTS + number;
                    let _ = inner.peers.poll.listen(trial.fd.as_fd(), token, true);
                }
                if unproved && trial.proved {
                    settle(inner, attempt, number);
                }
            }
            Outcome::Done => self.succeeded(inner, id, number),
            Outcome::Failed { reason, refused } => self.failed(inner, id, number, reason, refused),
            Outcome::Ended { reason } => {
                attempt.ended = true;
                self.failed(inner, id, number, reason, false);
            }
        }
    }

    fn failed(&mut self, inner: &Inner, id: u64, number: u64, reason: String, refused: bool) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let Some(trial) = attempt.trials.remove(&number) else { return };
        inner.peers.poll.remove(trial.fd.as_fd());
        attempt.refused &= refused;
        attempt.failures.push(format!("{}: {reason}", trial.endpoint));
        attempt.next_at = Instant::now();
        self.try_next(inner, id, Instant::now());
    }

    /// All addresses have been tried in vain.
    fn give_up(&mut self, inner: &Inner, id: u64) {
        let Some(attempt) = self.attempts.remove(&id) else { return };
        let Attempt { rank, aim, since, failures, refused, ended, lacking, .. } = attempt;
        let reason = failures.join("; ");
        let probed = matches!(aim, Aim::Probe);
        let patience = match aim {
            Aim::Data(_) => inner.dead_after.max(TURNED_AWAY),
            _ => inner.dead_after,
        };
        let turned_away = ended && !refused && since.elapsed() < patience;
        if refused {
            // What the rank said before it closed has come, but may not have been heard.
            self.hear_farewell(inner, rank);
        }
        if turned_away || (probed && lacking) {
            // Who ends closes what others have connected to before nobody listens any more; and who
            // has too many strangers at once turns some away. Nobody is dead because this side
            // lacks descriptors.
            self.again.push(Again { at: Instant::now() + AGAIN, rank, aim, since });
            return;
        }
        // It may be that of a connection which is about to be used.
        let early = matches!(aim, Aim::Watch) && since.elapsed() < AGAIN;
        if refused && (early || inner.peers.has_connection(rank)) {
            // Nobody listens any more; how its connections end tells whether it said goodbye.
            self.again.push(Again { at: Instant::now() + AGAIN, rank, aim, since });
            return;
        }
        if refused || probed {
            inner.unreachable(rank, &reason);
        }
        match aim {
            Aim::Data(connection) => {
                let host = &inner.cards[rank.index()].host;
                if inner.area.liveness(rank) == liveness::JOINED {
                    log::warn!("connecting to {rank} on {host} failed: {reason}");
                    inner.peers.note_trouble(rank, reason);
                }
                inner.peers.drop_connection(inner, &connection);
                if inner.area.liveness(rank) == liveness::JOINED {
                    // What waited on it will not arrive, though nobody has died.
                    inner.channels.lost(rank);
                    inner.area.wake(inner.rank);
                }
            }
            Aim::WatchAgain if !refused && !ended && !lacking => self.fell_silent(inner, rank),
            Aim::Watch | Aim::WatchAgain | Aim::Probe | Aim::Doubt => {}
        }
    }

    fn succeeded(&mut self, inner: &Inner, id: u64, number: u64) {
        let Some(mut attempt) = self.attempts.remove(&id) else { return };
        let Some(trial) = attempt.trials.remove(&number) else { return };
        for other in attempt.trials.values() {
            inner.peers.poll.remove(other.fd.as_fd());
        }
        inner.peers.poll.remove(trial.fd.as_fd());
        let rank = attempt.rank;
        match attempt.aim {
            Aim::Data(connection) => {
                log::debug!(
                    "connecting to {rank} on {}: by {}",
                    inner.cards[rank.index()].host,
                    trial.endpoint
                );
                inner.peers.note_way(rank, trial.endpoint);
                // First: whatever is said on the connection, the peer's leaving included, comes
                // later.
                self.begin(inner, rank, Aim::Watch);
                inner.peers.made(inner, &connection, trial.fd);
            }
            Aim::Watch | Aim::WatchAgain => {
                let token = WATCHES + self.number();
                if inner.peers.poll.add(trial.fd.as_fd(), token).is_ok() {
                    self.watches.insert(token, Watch { fd: trial.fd, rank: Some(rank) });
                }
            }
            Aim::Probe | Aim::Doubt => {
                inner.peers.note_alive(inner, rank);
                // It may have been its watch that broke.
                self.begin(inner, rank, Aim::Watch);
            }
        }
    }

    /// Takes connections of others.
    ///
    /// # Errors
    /// Descriptors ran out.
    pub(crate) fn accept(&mut self, inner: &Inner, listener: &OwnedFd) -> io::Result<()> {
        while let Some((fd, from)) = tcp::accept(listener.as_fd())? {
            if self.strangers.len() >= STRANGERS + 2 * inner.size as usize {
                let oldest = self.strangers.iter().min_by_key(|(_, stranger)| stranger.until);
                if let Some(token) = oldest.map(|(token, _)| *token) {
                    self.turn_away(inner, token, "too many others came");
                }
            }
            let server = Server::new(&self.secret, inner.rank.0.into(), inner.size, nonce()?);
            tune(fd.as_fd(), inner, &Purpose::Data);
            let token = STRANGERS_FROM + self.number();
            if inner.peers.poll.add(fd.as_fd(), token).is_ok() {
                let until = Instant::now() + STRANGER_LIMIT;
                self.strangers.insert(token, Stranger { fd, from, server, until });
            }
        }
        Ok(())
    }

    fn turn_away(&mut self, inner: &Inner, token: u64, why: &str) {
        let Some(stranger) = self.strangers.remove(&token) else { return };
        inner.peers.poll.remove(stranger.fd.as_fd());
        if !std::mem::replace(&mut self.complained, true) {
            log::warn!(
                "a connection from {} was refused: {why}: {}; further ones are not logged",
                stranger.from,
                stranger.server.ended()
            );
        }
    }

    fn serve_stranger(&mut self, inner: &Inner, token: u64) {
        let Some(stranger) = self.strangers.get_mut(&token) else { return };
        let open = talk(stranger.fd.as_fd(), &mut stranger.server);
        match stranger.server.state().clone() {
            State::Pending if open => {}
            State::Done(peer) => {
                if let Some(stranger) = self.strangers.remove(&token) {
                    inner.peers.poll.remove(stranger.fd.as_fd());
                    self.admit(inner, stranger, peer);
                }
            }
            State::Pending | State::Refused(_) => {
                self.turn_away(inner, token, "the handshake failed");
            }
        }
    }

    /// A peer has proved who it is.
    fn admit(&mut self, inner: &Inner, stranger: Stranger, peer: Peer) {
        let Some(rank) = u16::try_from(peer.rank).ok().map(Rank) else { return };
        let Stranger { fd, from, .. } = stranger;
        match peer.purpose {
            Purpose::Data => {
                // Who is not welcome sees the connection end, and tries again unless it is
                // connected to meanwhile.
                let welcome = inner.rank > rank || !self.awaits_welcome(rank);
                if !welcome || has_ended(fd.as_fd()) {
                    return;
                }
                // As where a connection of this side's has been made.
                self.begin(inner, rank, Aim::Watch);
                // Before the peer hears of the welcome: it would take what it sees of a connection
                // that is given up for one more.
                let given_up = self.give_way(inner, rank);
                if !say_welcome(fd.as_fd()) {
                    for aim in given_up {
                        self.begin(inner, rank, aim);
                    }
                    return;
                }
                inner.peers.note_way(rank, from);
                inner.peers.admitted(inner, fd, rank);
            }
            Purpose::Watch => {
                let token = WATCHES + self.number();
                if inner.peers.poll.add(fd.as_fd(), token).is_ok() {
                    self.watches.insert(token, Watch { fd, rank: None });
                }
            }
            Purpose::Probe | Purpose::Meeting => {}
        }
    }

    /// Whether a connection to `rank` will be made unless the rank does not want it.
    fn awaits_welcome(&self, rank: Rank) -> bool {
        let to_it = |attempt: &&Attempt| attempt.rank == rank;
        let mut trials = self.attempts.values().filter(to_it).flat_map(|a| a.trials.values());
        trials.any(|trial| trial.proved && trial.welcome)
    }

    /// Gives up making a connection to `rank`, which has made one; gives what it was wanted for.
    fn give_way(&mut self, inner: &Inner, rank: Rank) -> Vec<Aim> {
        let of_it = |_: &u64, attempt: &mut Attempt| {
            attempt.rank == rank && matches!(attempt.aim, Aim::Data(_))
        };
        let mut given_up = Vec::new();
        for (_, attempt) in self.attempts.extract_if(of_it) {
            for trial in attempt.trials.values() {
                inner.peers.poll.remove(trial.fd.as_fd());
            }
            given_up.push(attempt.aim);
        }
        given_up
    }
}

/// Gives up the other trials of an attempt once one waits for its welcome: the peer may welcome
/// each that has proved itself and use the first, while this side takes the one whose welcome comes
/// first.
fn settle(inner: &Inner, attempt: &mut Attempt, number: u64) {
    for (_, other) in attempt.trials.extract_if(|other, _| *other != number) {
        inner.peers.poll.remove(other.fd.as_fd());
    }
}

/// Whether descriptors or memory of this side have run out.
fn is_lack(error: &io::Error) -> bool {
    let lacks = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_none_or(|number| lacks.contains(&number))
}

fn other(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}

fn nonce() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

/// What the kernel can do for a connection; one that cannot be had is done without.
fn tune(fd: BorrowedFd<'_>, inner: &Inner, purpose: &Purpose) {
    let _ = tcp::set_no_delay(fd);
    if *purpose == Purpose::Watch {
        let (interval_s, probes) = probes(inner.dead_after);
        let _ = tcp::set_keepalive(fd, 1, interval_s, probes);
    }
}

impl Inner {
    /// Nobody listens where `rank` did, or nothing answers there any more.
    fn unreachable(&self, rank: Rank, reason: &str) {
        if self.peers.is_leaving(rank) {
            self.area.remote_left(rank);
        } else if self.area.liveness(rank) == liveness::JOINED {
            log::info!("{rank} on {} is gone: {reason}", self.cards[rank.index()].host);
        }
        self.peer_ended(rank);
    }

    /// Whether all ranks of other nodes are connected; connects to those that are not: to the
    /// higher ones at once, to the lower ones if they have not done so [some time](PATIENCE) after
    /// this rank began.
    pub(crate) fn reached_all(&self) -> Option<CoreResult<()>> {
        let impatient = self.began.elapsed() >= PATIENCE;
        let mut all = true;
        // Each begins with another one, so that they do not all come to the same at once.
        let (before, after) = self.cards.split_at(self.rank.index());
        let others = after.iter().chain(before).filter(|card| !self.is_local(card.rank));
        for card in others {
            let (rank, host) = (card.rank, &card.host);
            match self.area.liveness(rank) {
                liveness::DEAD => {
                    let trouble = self.peers.trouble(rank);
                    let why = trouble.map_or(String::new(), |why| format!(" ({why})"));
                    let reason = format!("{rank} on {host} died while joining{why}");
                    return Some(Err(Error::Meeting { reason }));
                }
                // It has joined, and left already.
                liveness::LEFT => continue,
                _ if self.peers.is_established(rank) => continue,
                _ => {}
            }
            if let Some(reason) = self.peers.trouble(rank) {
                let reason = format!("{rank} on {host} cannot be reached: {reason}");
                return Some(Err(Error::Meeting { reason }));
            }
            all = false;
            if rank < self.rank && !impatient {
                continue;
            }
            if let Err(error) = self.peers.open(self, rank) {
                return Some(Err(error));
            }
        }
        all.then_some(Ok(()))
    }
}
