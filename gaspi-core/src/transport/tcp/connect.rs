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
//! and the higher rank that takes a connection gives up making its own. Of one dial only one
//! attempt waits for a welcome.
//!
//! Invariant: an unauthenticated peer costs a fixed buffer and [`UNAUTHENTICATED_LIMIT`], and there
//! are at most [`UNAUTHENTICATED_MAX`] of them beside two for each rank.

mod attempt;
mod conversation;
mod dials;
mod ends;
mod giving_up;
mod hosts;
mod keepalive;
mod news;
mod own_interfaces;
pub(crate) mod reach;

use crate::bootstrap::addresses::{Audience, Candidates};
use crate::ids::Rank;
use crate::os::event::Event;
use crate::os::tcp;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::dialing::ConnectPurpose;
use crate::transport::tcp::poll_sets::{ATTEMPTS, KEEPALIVES, UNAUTHENTICATED_FROM};
use crate::wire::handshake::{Client, Peer, Purpose, Secret, Server, State};
use attempt::{Answer, Attempt, Outcome, advance, is_lack, nonce, other, say_welcome, talk};
use dials::{Again, Dial, Dials, Later};
use hosts::{Hosts, patience_with};
use keepalive::{Keepalive, Watched, has_ended, have_asked, tune};
use news::Ends;
use own_interfaces::OwnInterfaces;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Between the beginnings of two attempts of a peer's addresses.
const STAGGER: Duration = Duration::from_millis(150);
/// How often attempts and unauthenticated peers are looked at: there may be as many as ranks.
const LOOK: Duration = Duration::from_millis(10);
/// How long the last stream of a rank that leaves may take to be made.
const DOUBT: Duration = Duration::from_millis(500);
/// After which time a peer is connected to again that closed before anything was proved.
const AGAIN: Duration = Duration::from_millis(50);
/// How long the news of an earlier death may take.
const EARLIER: Duration = Duration::from_millis(50);
/// How long who was connected to leaves it to the other side to make the keepalive connection; how
/// soon one is tried again that cannot be made.
const GRACE: Duration = Duration::from_secs(1);
/// How long a peer that closes first is tried again: where ranks share cores, both may be slow.
const TURNED_AWAY: Duration = Duration::from_secs(60);
/// How long somebody who connects may take to prove who it is.
const UNAUTHENTICATED_LIMIT: Duration = Duration::from_secs(5);
/// How many may be about to prove it, beside two for each rank of the job.
const UNAUTHENTICATED_MAX: usize = 64;

#[derive(Debug)]
struct Unauthenticated {
    fd: OwnedFd,
    from: SocketAddr,
    server: Server,
    until: Instant,
}

/// All that is under way.
#[derive(Debug)]
pub(crate) struct Connector {
    dials: Dials,
    /// What is to be tried again.
    again: Later,
    /// Those that came first have to have proved it first.
    unauthenticated: BTreeMap<u64, Unauthenticated>,
    keepalives: HashMap<u64, Keepalive>,
    /// Those on which something is to be sent, or may not have been acknowledged.
    unsettled: BTreeSet<u64>,
    /// How many of these watch what.
    watched: HashMap<Watched, u32>,
    hosts: Hosts,
    /// Since when those seem to have died of whom nobody else has told it.
    untold: HashMap<Rank, Instant>,
    /// Where ranks tell each other of ends.
    ends: Option<Ends>,
    /// This rank has said on keepalive connections that it leaves.
    leaves: bool,
    next: u64,
    /// When limits are looked at next.
    look_at: Instant,
    interfaces: OwnInterfaces,
    secret: Secret,
    complained: bool,
}

impl Connector {
    pub(crate) fn new(tcp: Tcp<'_>) -> Connector {
        Connector {
            dials: Dials::default(),
            again: Later::default(),
            unauthenticated: BTreeMap::new(),
            keepalives: HashMap::new(),
            unsettled: BTreeSet::new(),
            watched: HashMap::new(),
            hosts: Hosts::default(),
            untold: HashMap::new(),
            ends: tcp.table.remote.then(|| tcp.no_ends()),
            leaves: false,
            next: 0,
            look_at: Instant::now(),
            interfaces: OwnInterfaces::default(),
            secret: Secret { job: tcp.table.identity.token, key: tcp.table.identity.key },
            complained: false,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whether limits have to be looked at.
    pub(crate) fn is_busy(&self) -> bool {
        !self.dials.is_empty()
            || !self.unauthenticated.is_empty()
            || !self.again.is_empty()
            || !self.unsettled.is_empty()
            || self.leaves
    }

    /// Whether somebody who has connected has not proved yet who it is.
    pub(crate) fn has_unauthenticated(&self) -> bool {
        !self.unauthenticated.is_empty()
    }

    /// Begins what is wanted, and gives up what takes too long.
    pub(crate) fn turn(&mut self, tcp: Tcp<'_>) {
        self.tell_ends(tcp);
        self.follow_watchers(tcp);
        for (rank, purpose) in tcp.table.dialing.take_wanted() {
            self.begin(tcp, rank, purpose);
        }
        let now = Instant::now();
        for Again { rank, purpose, since, .. } in self.again.take_due(now) {
            match purpose {
                ConnectPurpose::Data(connection)
                    if tcp.up.ranks().liveness(rank) != liveness::JOINED =>
                {
                    tcp.table.drop_connection(tcp.up, &connection);
                }
                _ if tcp.up.ranks().liveness(rank) != liveness::JOINED => {}
                ConnectPurpose::Doubt => self.begin_since(tcp, rank, ConnectPurpose::Probe, since),
                ConnectPurpose::Unsent => self.send_unsent(tcp, rank),
                purpose => self.begin_since(tcp, rank, purpose, since),
            }
        }
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK;
        self.look_for_silence(tcp);
        while let Some(id) = self.dials.pop_due(now) {
            self.look_at_dial(tcp, id, now);
        }
        while let Some(first) = self.unauthenticated.first_entry()
            && first.get().until <= now
        {
            let token = *first.key();
            // What it said may have come long ago: this thread may be the one that took its time.
            self.serve_unauthenticated(tcp, token);
            self.turn_away(tcp, token, "it took too long");
        }
        // Nothing may wake this thread to tell of ends that were found just now.
        self.tell_ends(tcp);
        self.follow_watchers(tcp);
    }

    /// Gives up the attempts of a dial that have taken too long, and begins the next one.
    fn look_at_dial(&mut self, tcp: Tcp<'_>, id: u64, now: Instant) {
        let late = |attempt: &Attempt| !attempt.connected && now >= attempt.until;
        let silent = |dial: Option<&Dial>| -> Vec<u64> {
            let attempts = dial.into_iter().flat_map(|dial| &dial.attempts);
            attempts.filter(|(_, attempt)| late(attempt)).map(|(number, _)| *number).collect()
        };
        for number in silent(self.dials.get(id)) {
            // The answer may have come long ago: this thread may be the one that took its time.
            self.serve_attempt(tcp, number);
        }
        for number in silent(self.dials.get(id)) {
            self.failed(tcp, id, number, "no answer".to_owned(), Answer::None);
        }
        self.try_next(tcp, id, now);
    }

    fn begin(&mut self, tcp: Tcp<'_>, rank: Rank, purpose: ConnectPurpose) {
        let now = Instant::now();
        if matches!(purpose, ConnectPurpose::Doubt) {
            self.again.push(Again { at: now + DOUBT, rank, purpose, since: now });
        } else {
            self.begin_since(tcp, rank, purpose, now);
        }
    }

    fn begin_since(&mut self, tcp: Tcp<'_>, rank: Rank, purpose: ConnectPurpose, since: Instant) {
        let wanted = purpose.on_wire();
        let watches = (wanted == Purpose::Keepalive).then(|| tcp.watched_by(rank));
        let again = match watches {
            Some(watched) => {
                self.dials.will_watch(watched)
                    || self.has_keepalive(tcp, rank)
                    || !self.is_to_watch(tcp, rank)
            }
            None if wanted == Purpose::Data => false,
            None => self.dials.of_rank(rank).any(|(_, dial)| dial.purpose.on_wire() == wanted),
        };
        if again {
            return;
        }
        if let ConnectPurpose::Data(connection) = &purpose
            && (connection.fd().is_some() || connection.is_forgotten())
        {
            // The peer was quicker, or nobody wants it any more.
            return;
        }
        let ranks = tcp.up.ranks();
        let shares_machine = ranks.shares_machine(rank);
        let audience = if shares_machine { Audience::ThisHost } else { Audience::OtherHosts };
        let own_interfaces = self.interfaces.list(Instant::now());
        let offered: Vec<SocketAddr> = ranks.cards.at(rank).endpoints().collect();
        let candidates = Candidates::new(&offered, own_interfaces, audience);
        for candidate in &candidates.dropped {
            log::debug!("connecting to {rank} on {}: not by {candidate}", ranks.host_of(rank));
        }
        let failures = candidates.lack().into_iter().collect();
        let left: Vec<SocketAddr> = candidates.tried.iter().map(|one| one.endpoint).collect();
        let lacking = own_interfaces.is_empty();
        let id = self.number();
        let dial = Dial {
            rank,
            purpose,
            watches,
            since,
            refused: !left.is_empty(),
            absent: !left.is_empty(),
            answered: left.is_empty(),
            ended: false,
            lacking,
            left: left.into_iter(),
            attempts: HashMap::new(),
            next_at: Instant::now(),
            failures,
        };
        self.dials.insert(id, dial);
        self.try_next(tcp, id, Instant::now());
    }

    /// Begins the next attempt of a dial if it is due.
    fn try_next(&mut self, tcp: Tcp<'_>, id: u64, now: Instant) {
        loop {
            let number = self.number();
            let Some(dial) = self.dials.get_mut(id) else { return };
            let proved = dial.attempts.values().any(|attempt| attempt.proved);
            if proved || (!dial.attempts.is_empty() && now < dial.next_at) {
                return;
            }
            let Some(endpoint) = dial.left.next() else {
                if dial.attempts.is_empty() {
                    self.give_up(tcp, id);
                }
                return;
            };
            self.dials.next_at(id, now + STAGGER);
            match self.start(tcp, id, number, endpoint) {
                Ok(()) => return,
                Err(error) => {
                    let refused = error.kind() == io::ErrorKind::ConnectionRefused;
                    let rank = self.dials.get(id).map(|dial| dial.rank);
                    let reached = rank.and_then(|rank| tcp.table.dialing.address(rank));
                    let known = reached.is_some_and(|reached| reached.ip() == endpoint.ip());
                    let known = known && self.interfaces.have_source_for(endpoint.ip(), now);
                    if let Some(dial) = self.dials.get_mut(id) {
                        dial.refused &= refused;
                        dial.absent &= refused;
                        dial.answered |= refused;
                        dial.lacking |= is_lack(&error, known);
                        let remedy = match error.raw_os_error() {
                            Some(libc::EMFILE) => " on this side; raise the limit with ulimit -n",
                            _ => "",
                        };
                        dial.failures.push(format!("{endpoint}: {error}{remedy}"));
                    }
                }
            }
        }
    }

    fn start(
        &mut self,
        tcp: Tcp<'_>,
        id: u64,
        number: u64,
        endpoint: SocketAddr,
    ) -> io::Result<()> {
        let Some(dial) = self.dials.get(id) else { return Ok(()) };
        let fd = tcp::connect(endpoint)?;
        tune(fd.as_fd(), tcp, dial.rank);
        let to = Peer { rank: dial.rank.0.into(), purpose: dial.purpose.on_wire() };
        let client = Client::new(&self.secret, tcp.up.ranks().me.0.into(), to, nonce()?);
        tcp.table.sets.poll.add_writable(fd.as_fd(), ATTEMPTS + number).map_err(other)?;
        let until = Instant::now() + patience_with(&dial.purpose, tcp, dial.rank);
        let welcome = dial.purpose.on_wire() == Purpose::Data;
        let (connected, proved) = (false, false);
        let attempt = Attempt { endpoint, fd, client, connected, proved, welcome, until };
        self.dials.add_attempt(id, number, attempt);
        Ok(())
    }

    /// Something happened to one of the descriptors.
    pub(crate) fn serve(&mut self, tcp: Tcp<'_>, event: &Event) {
        match event.token {
            ATTEMPTS..UNAUTHENTICATED_FROM => self.serve_attempt(tcp, event.token - ATTEMPTS),
            UNAUTHENTICATED_FROM..KEEPALIVES => self.serve_unauthenticated(tcp, event.token),
            _ => self.serve_keepalive(tcp, event.token),
        }
    }

    fn serve_attempt(&mut self, tcp: Tcp<'_>, number: u64) {
        let Some((id, dial)) = self.dials.of_attempt(number) else { return };
        let Some(attempt) = dial.attempts.get_mut(&number) else { return };
        let (first, unproved) = (!attempt.connected, !attempt.proved);
        match advance(attempt) {
            Outcome::Pending => {
                if first && attempt.connected {
                    // From now on only what the peer says counts.
                    let token = ATTEMPTS + number;
                    let _ = tcp.table.sets.poll.listen(attempt.fd.as_fd(), token, true);
                }
                if unproved && attempt.proved {
                    self.settle(tcp, id, number);
                }
            }
            Outcome::Done => self.succeeded(tcp, id, number),
            Outcome::Failed { reason, answer } => self.failed(tcp, id, number, reason, answer),
            Outcome::Ended { reason } => {
                (dial.ended, dial.answered) = (true, true);
                self.failed(tcp, id, number, reason, Answer::Other);
            }
        }
    }

    fn failed(&mut self, tcp: Tcp<'_>, id: u64, number: u64, reason: String, answer: Answer) {
        let Some(attempt) = self.dials.take_attempt(id, number) else { return };
        tcp.table.sets.poll.remove(attempt.fd.as_fd());
        let Some(dial) = self.dials.get_mut(id) else { return };
        dial.refused &= answer == Answer::Refused;
        dial.absent &= answer != Answer::None;
        dial.answered |= answer != Answer::None;
        dial.failures.push(format!("{}: {reason}", attempt.endpoint));
        dial.next_at = Instant::now();
        self.try_next(tcp, id, Instant::now());
    }

    fn succeeded(&mut self, tcp: Tcp<'_>, id: u64, number: u64) {
        let Some(attempt) = self.dials.take_attempt(id, number) else { return };
        let Some(dial) = self.dials.remove(id) else { return };
        for other in dial.attempts.values() {
            tcp.table.sets.poll.remove(other.fd.as_fd());
        }
        tcp.table.sets.poll.remove(attempt.fd.as_fd());
        let rank = dial.rank;
        let _ = tcp::allow_silence(attempt.fd.as_fd());
        self.does_not_refuse(rank);
        match dial.purpose {
            ConnectPurpose::Data(connection) => {
                log::debug!(
                    "connecting to {rank} on {}: by {}",
                    tcp.up.ranks().host_of(rank),
                    attempt.endpoint
                );
                tcp.table.dialing.set_address(rank, attempt.endpoint);
                // A keepalive connection decides about the host.
                let _ = tcp::clear_keepalive(attempt.fd.as_fd());
                // First: whatever is said on the connection, the peer's leaving included, comes
                // later.
                self.watch_host(tcp, rank, true);
                tcp.table.made(tcp.up, &connection, attempt.fd);
            }
            ConnectPurpose::Keepalive | ConnectPurpose::KeepaliveAgain => {
                self.keep_watch(tcp, attempt.fd, rank);
            }
            ConnectPurpose::Probe | ConnectPurpose::Doubt | ConnectPurpose::Unsent => {
                tcp.table.note_alive(tcp.up, rank);
                // It may have been its keepalive connection that broke.
                self.begin(tcp, rank, ConnectPurpose::Keepalive);
            }
        }
    }

    /// Takes connections of others.
    ///
    /// # Errors
    /// Descriptors ran out.
    pub(crate) fn accept(&mut self, tcp: Tcp<'_>, listener: &OwnedFd) -> io::Result<()> {
        while let Some((fd, from)) = tcp::accept(listener.as_fd())? {
            let most = UNAUTHENTICATED_MAX + 2 * tcp.up.ranks().size as usize;
            let first = self.unauthenticated.keys().next().copied();
            if let Some(token) = first.filter(|_| self.unauthenticated.len() >= most) {
                self.turn_away(tcp, token, "too many others came");
            }
            let (me, size) = (tcp.up.ranks().me.0.into(), tcp.up.ranks().size);
            let server = Server::new(&self.secret, me, size, nonce()?);
            let _ = tcp::set_no_delay(fd.as_fd());
            let token = UNAUTHENTICATED_FROM + self.number();
            if tcp.table.sets.poll.add(fd.as_fd(), token).is_ok() {
                let until = Instant::now() + UNAUTHENTICATED_LIMIT;
                self.unauthenticated.insert(token, Unauthenticated { fd, from, server, until });
            }
        }
        Ok(())
    }

    fn take_pending(&mut self, tcp: Tcp<'_>, token: u64) -> Option<Unauthenticated> {
        let pending = self.unauthenticated.remove(&token)?;
        tcp.table.sets.poll.remove(pending.fd.as_fd());
        Some(pending)
    }

    fn turn_away(&mut self, tcp: Tcp<'_>, token: u64, why: &str) {
        let Some(pending) = self.take_pending(tcp, token) else { return };
        if !std::mem::replace(&mut self.complained, true) {
            log::warn!(
                "a connection from {} was refused: {why}: {}; further ones are not logged",
                pending.from,
                pending.server.ended()
            );
        }
    }

    fn serve_unauthenticated(&mut self, tcp: Tcp<'_>, token: u64) {
        let Some(pending) = self.unauthenticated.get_mut(&token) else { return };
        let open = talk(pending.fd.as_fd(), &mut pending.server);
        match pending.server.state().clone() {
            State::Pending if open => {}
            State::Done(peer) => {
                if let Some(pending) = self.take_pending(tcp, token) {
                    self.admit(tcp, pending, peer);
                }
            }
            // A rank that has ended, or left.
            State::Pending if pending.server.has_greeted() => drop(self.take_pending(tcp, token)),
            _ => self.turn_away(tcp, token, "the handshake failed"),
        }
    }

    /// A peer has proved who it is.
    fn admit(&mut self, tcp: Tcp<'_>, pending: Unauthenticated, peer: Peer) {
        let Some(rank) = u16::try_from(peer.rank).ok().map(Rank) else { return };
        let Unauthenticated { fd, from, .. } = pending;
        match peer.purpose {
            Purpose::Data => {
                // Who is not welcome sees the connection end, and tries again unless it is
                // connected to meanwhile.
                let welcome = tcp.up.ranks().me > rank || !self.awaits_welcome(rank);
                if !welcome || has_ended(fd.as_fd()) {
                    return;
                }
                // The other side watches this one, and so is watched.
                self.watch_host(tcp, rank, false);
                // Before the peer hears of the welcome: it would take what it sees of a connection
                // that is given up for one more.
                let given_up = self.give_way(tcp, rank);
                if !say_welcome(fd.as_fd()) {
                    for purpose in given_up {
                        self.begin(tcp, rank, purpose);
                    }
                    return;
                }
                tcp.table.dialing.set_address(rank, from);
                tcp.table.admitted(tcp.up, fd, rank);
            }
            Purpose::Keepalive => {
                have_asked(fd.as_fd(), tcp, rank);
                self.keep_watch(tcp, fd, rank);
            }
            Purpose::Probe | Purpose::Meeting => {}
        }
    }

    /// Whether a connection to `rank` will be made unless the rank does not want it.
    fn awaits_welcome(&self, rank: Rank) -> bool {
        let mut attempts = self.dials.of_rank(rank).flat_map(|(_, dial)| dial.attempts.values());
        attempts.any(|attempt| attempt.proved && attempt.welcome)
    }

    /// Gives up making a connection to `rank`, which has made one; gives what it was wanted for.
    fn give_way(&mut self, tcp: Tcp<'_>, rank: Rank) -> Vec<ConnectPurpose> {
        let is_one = |(_, dial): &(u64, &Dial)| matches!(dial.purpose, ConnectPurpose::Data(_));
        let ids: Vec<u64> = self.dials.of_rank(rank).filter(is_one).map(|(id, _)| id).collect();
        let mut given_up = Vec::new();
        for dial in ids.into_iter().filter_map(|id| self.dials.remove(id)) {
            for attempt in dial.attempts.values() {
                tcp.table.sets.poll.remove(attempt.fd.as_fd());
            }
            given_up.push(dial.purpose);
        }
        given_up
    }

    /// Gives up the other attempts of a dial once one waits for its welcome: the peer may welcome
    /// each that has proved itself and use the first, while this side takes the one whose welcome
    /// comes first.
    fn settle(&mut self, tcp: Tcp<'_>, id: u64, number: u64) {
        for other in self.dials.take_others(id, number) {
            tcp.table.sets.poll.remove(other.fd.as_fd());
        }
    }
}

fn is_keepalive(purpose: &ConnectPurpose) -> bool {
    matches!(purpose, ConnectPurpose::Keepalive | ConnectPurpose::KeepaliveAgain)
}
