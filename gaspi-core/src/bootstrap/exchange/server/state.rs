//! The state of the server, pure: which ranks have registered, and what each of them hears.
//!
//! Fed with what happened on numbered connections, it answers with what to do. It knows neither
//! sockets nor clocks. A job may have several exchanges (init, term, init again). Each rank
//! takes part in round 0, 1, 2, ... of its own count, and a round ends for all ranks together.
//!
//! Invariant: a rank hears of exactly one outcome per round, the table or one failure; a failure
//! is kept until every rank that can still ask has been told.

use super::told::Told;
use crate::bootstrap::Card;
use crate::bootstrap::exchange::message::{ATOMICS_FIELD, Failure, Join, MISSING_MAX, Message};
use crate::bootstrap::exchange::start_status::StartStatus;
use crate::ids::Rank;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A connection, numbered by the owner of the sockets. A number is never reused.
pub(crate) type ConnectionId = u64;

/// Missing ranks that the words for a newcomer go through.
const NAMED_TO_NEWCOMER: usize = 64;

/// What the owner of the sockets has to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Say this to these.
    Send(Vec<ConnectionId>, Message),
    /// Say this, then close the connection.
    Refuse(ConnectionId, Message),
    /// All are here: send the table, with a fresh shared area, to these connections.
    Table {
        /// By rank.
        connections: Vec<ConnectionId>,
        /// By rank.
        cards: Vec<Card>,
        /// The `group_max` that all agreed on.
        group_max: u32,
    },
    /// A member asks for the end of this rank.
    Kill(Rank),
    /// The process of this rank has ended without leaving the job, as the words say.
    Died(Rank, String),
}

/// What came of a join.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// These have to be done.
    Done(Vec<Action>),
    /// The rank is claimed by that connection: see whether it has ended, then ask again or call
    /// [`ServerState::refuse`].
    Claimed(ConnectionId),
}

#[derive(Debug)]
struct Round {
    joined: BTreeMap<u16, Join>,
    /// The ranks that have not joined.
    missing: BTreeSet<u16>,
    /// Set once it has failed.
    failure: Option<Failure>,
}

impl Round {
    fn of(size: u32) -> Round {
        let missing = (0..size).map(|rank| rank as u16).collect();
        Round { joined: BTreeMap::new(), missing, failure: None }
    }

    /// What is said of the missing, of which the words name no more than `named`.
    fn news(&self, status: Option<&StartStatus>, named: usize) -> Message {
        let missing = || self.missing.iter().copied().map(Rank);
        let words = |status: &StartStatus| {
            let ranks: Vec<Rank> = missing().take(named).collect();
            status.words(&ranks, self.missing.len() - ranks.len())
        };
        Message::Missing {
            count: self.missing.len() as u32,
            first: missing().take(MISSING_MAX).collect(),
            words: status.map_or(String::new(), words),
        }
    }
}

#[derive(Debug)]
struct Claim {
    connection: ConnectionId,
    pid: i32,
    start_time: u64,
    /// Its host, as it says.
    host: Arc<str>,
    life: Life,
}

/// How far a rank that has come is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// It waits for the others.
    Waiting,
    /// It has the table.
    InJob,
    /// It has said that it leaves.
    Left,
}

/// The server's view of all rounds.
#[derive(Debug)]
pub(crate) struct ServerState {
    job: String,
    size: u32,
    claims: Vec<Option<Claim>>,
    /// The ranks of the connections that hold a claim.
    ranks: HashMap<ConnectionId, Rank>,
    /// Where the job spans hosts.
    start_status: Option<StartStatus>,
    /// Members whose connection has closed without a word: their processes, which their launcher
    /// will tell about.
    lost: BTreeMap<u16, i32>,
    /// Outcomes that each rank has heard of: the number of its next round.
    told: Told,
    /// How a rank ended for good.
    gone: BTreeMap<u16, String>,
    /// Rounds that wait for ranks, or whose failure is not known to all.
    rounds: BTreeMap<u64, Round>,
}

impl ServerState {
    /// The job `job` of `size` ranks, before anybody has come.
    pub(crate) fn new(job: &str, size: u32) -> ServerState {
        let count = size as usize;
        ServerState {
            job: job.to_owned(),
            size,
            claims: (0..count).map(|_| None).collect(),
            ranks: HashMap::new(),
            start_status: None,
            lost: BTreeMap::new(),
            told: Told::new(count),
            gone: BTreeMap::new(),
            rounds: BTreeMap::new(),
        }
    }

    /// The job `job` whose ranks run on these hosts, by rank.
    pub(crate) fn over_hosts(job: &str, hosts: Arc<[Arc<str>]>) -> ServerState {
        let size = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        ServerState { start_status: Some(StartStatus::new(hosts)), ..ServerState::new(job, size) }
    }

    /// Where the ranks of a job over several hosts are.
    pub(crate) fn start_status(&mut self) -> Option<&mut StartStatus> {
        self.start_status.as_mut()
    }

    /// Whether it does.
    pub(crate) fn spans_hosts(&self) -> bool {
        self.start_status.is_some()
    }

    /// A rank wants to register.
    pub(crate) fn join(&mut self, connection: ConnectionId, join: Join) -> Joined {
        let rank = join.card.rank;
        if join.job != self.job {
            let reason = format!(
                "{rank} of job {} came to the meeting of job {}; check GASPI_JOB_ID and \
                 GASPI_MEETING",
                join.job, self.job
            );
            return Joined::Done(refusal(connection, Failure::Environment(reason)));
        }
        if join.size != self.size {
            return Joined::Done(self.other_size(connection, &join));
        }
        let Some(claim) = self.claims.get(rank.index()) else {
            let reason =
                format!("{rank} does not exist in job {} of {} ranks", self.job, self.size);
            return Joined::Done(refusal(connection, Failure::Environment(reason)));
        };
        if let Some(claim) = claim {
            return Joined::Claimed(claim.connection);
        }
        Joined::Done(self.admit(connection, join))
    }

    /// The answer to a join for a rank whose other process is still there.
    pub(crate) fn refuse(&self, connection: ConnectionId, rank: Rank) -> Vec<Action> {
        let claim = self.claims.get(rank.index()).and_then(Option::as_ref);
        let mut holder = claim.map_or(0, |claim| claim.pid).to_string();
        if let (Some(claim), Some(_)) = (claim, &self.start_status) {
            holder = format!("{holder} on {}", claim.host);
        }
        let reason = format!(
            "{rank} of job {} is already claimed by process {holder}; give every process its own \
             GASPI_RANK",
            self.job
        );
        refusal(connection, Failure::Environment(reason))
    }

    /// A message other than a join came from this connection.
    pub(crate) fn hear(&mut self, connection: ConnectionId, message: &Message) -> Vec<Action> {
        if let Message::Unable { job, rank, reason } = message {
            return self.unable(job, *rank, reason);
        }
        let Some(member) = self.ranks.get(&connection) else { return Vec::new() };
        match message {
            Message::Kill(rank) if rank.index() < self.claims.len() => vec![Action::Kill(*rank)],
            Message::Leave => {
                if let Some(claim) = &mut self.claims[member.index()]
                    && claim.life == Life::InJob
                {
                    claim.life = Life::Left;
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// `rank` itself says that it cannot take part in its next round. That counts as its outcome.
    fn unable(&mut self, job: &str, rank: Rank, reason: &str) -> Vec<Action> {
        // Another process may hold the rank; then it is the round of that process.
        if job != self.job || !matches!(self.claims.get(rank.index()), Some(None)) {
            return Vec::new();
        }
        let place = self.place(rank);
        let is_named = place.is_empty() && names(reason, rank);
        let reason = if is_named { reason.to_owned() } else { format!("{reason} ({rank}{place})") };
        let number = self.told.of(rank);
        self.told.advance(rank);
        let round = self.rounds.entry(number).or_insert_with(|| Round::of(self.size));
        if round.failure.is_some() {
            self.forget();
            return Vec::new();
        }
        self.fail(number, Failure::Meeting(reason))
    }

    /// The machine of `rank` cannot take part in the rank's next round.
    pub(crate) fn failed(&mut self, rank: Rank, failure: Failure) -> Vec<Action> {
        let Some(number) = self.told.find(rank) else { return Vec::new() };
        self.rounds.entry(number).or_insert_with(|| Round::of(self.size));
        self.fail(number, failure)
    }

    /// Forgets a connection without a word to anybody.
    pub(crate) fn dismiss(&mut self, connection: ConnectionId) {
        if let Some(rank) = self.ranks.get(&connection).copied() {
            self.release(rank);
        }
    }

    /// Takes the claim of a rank back.
    fn release(&mut self, rank: Rank) -> Option<Claim> {
        let claim = self.claims[rank.index()].take()?;
        self.ranks.remove(&claim.connection);
        Some(claim)
    }

    /// The connection has ended. Its rank is free again; if it was waiting for a round, that round
    /// cannot be completed.
    pub(crate) fn closed(&mut self, connection: ConnectionId) -> Vec<Action> {
        let Some(rank) = self.ranks.get(&connection).copied() else { return Vec::new() };
        let Some(claim) = self.release(rank) else { return Vec::new() };
        let (pid, number) = (claim.pid, self.told.of(rank));
        if claim.life == Life::InJob {
            return self.lose(rank, pid);
        }
        let waiting = self.rounds.get(&number).is_some_and(|r| r.joined.contains_key(&rank.0));
        if !waiting {
            return Vec::new();
        }
        self.told.advance(rank);
        let place = self.place(rank);
        let reason = format!("{rank} (process {pid}{place}) ended during init");
        self.fail(number, Failure::Meeting(reason))
    }

    /// A member's connection has closed without a word. Of a process that the launcher started, the
    /// launcher will say how it ended; of another, nobody would.
    fn lose(&mut self, rank: Rank, pid: i32) -> Vec<Action> {
        // On one host the ranks watch each other too: the launcher only tells what it knows for
        // certain.
        if self.start_status.as_ref().is_none_or(|status| status.process(rank) == Some(pid)) {
            self.lost.insert(rank.0, pid);
            return Vec::new();
        }
        vec![Action::Died(rank, format!("process {pid} has ended without proc_term"))]
    }

    /// The process of `rank` has ended for good; `how` is a phrase such as "exit status 1".
    pub(crate) fn gone(&mut self, rank: Rank, how: &str) -> Vec<Action> {
        if rank.index() >= self.claims.len() || self.gone.contains_key(&rank.0) {
            return Vec::new();
        }
        let number = self.told.of(rank);
        self.gone.insert(rank.0, how.to_owned());
        self.told.gone(rank);
        let member = self.release(rank).is_some_and(|claim| claim.life == Life::InJob);
        let lost = self.lost.remove(&rank.0).is_some();
        let failure = self.missing_for_good(rank);
        let open: Vec<u64> = self
            .rounds
            .iter()
            .filter(|(n, round)| **n >= number && round.failure.is_none())
            .map(|(n, _)| *n)
            .collect();
        let mut actions: Vec<Action> =
            open.into_iter().flat_map(|n| self.fail(n, failure.clone())).collect();
        if member || lost {
            actions.push(Action::Died(rank, how.to_owned()));
        }
        actions
    }

    /// The process that is `rank` now, and when it was started.
    pub(crate) fn member(&self, rank: Rank) -> Option<(i32, u64)> {
        let claim = self.claims.get(rank.index())?.as_ref()?;
        Some((claim.pid, claim.start_time))
    }

    /// The ranks that `rank` waits for in a round; `None` if it waits in none.
    pub(crate) fn missing(&self, rank: Rank) -> Option<Vec<Rank>> {
        let round = self.rounds.get(&self.told.find(rank)?)?;
        round.joined.get(&rank.0)?;
        Some(round.missing.iter().copied().map(Rank).collect())
    }

    /// " on HOST" where the job spans hosts and that of `rank` is known.
    fn place(&self, rank: Rank) -> String {
        let host = self.start_status.as_ref().map_or("", |status| status.host(rank));
        if host.is_empty() { String::new() } else { format!(" on {host}") }
    }

    fn missing_for_good(&self, rank: Rank) -> Failure {
        let how = self.gone.get(&rank.0).map_or("", String::as_str);
        let when = if self.told.of(rank) == 0 { "before it joined the job" } else { "already" };
        let place = self.place(rank);
        Failure::Meeting(format!("{rank}{place} has ended {when} ({how})"))
    }

    /// A rank that counts the job's ranks differently: no round can be complete for both.
    fn other_size(&mut self, connection: ConnectionId, join: &Join) -> Vec<Action> {
        let open = self.rounds.iter().find(|(_, round)| round.failure.is_none());
        let first = open.and_then(|(n, round)| Some((*n, Rank(*round.joined.keys().next()?))));
        let Some((number, left)) = first else {
            let reason = format!(
                "{} was told of {} ranks (GASPI_NRANKS), but job {} has {}",
                join.card.rank, join.size, self.job, self.size
            );
            // The others come later, and wait for this rank: their round has failed too.
            let failure = Failure::Environment(reason);
            let number = self.told.least();
            let round = self.rounds.entry(number).or_insert_with(|| Round::of(self.size));
            round.failure.get_or_insert(failure.clone());
            return refusal(connection, failure);
        };
        let failure = Failure::Mismatch {
            field: "number of ranks (GASPI_NRANKS)".to_owned(),
            left,
            left_value: self.size.to_string(),
            right: join.card.rank,
            right_value: join.size.to_string(),
        };
        let mut actions = refusal(connection, failure.clone());
        actions.extend(self.fail(number, failure));
        actions
    }

    fn admit(&mut self, connection: ConnectionId, join: Join) -> Vec<Action> {
        let rank = join.card.rank;
        let number = self.told.of(rank);
        let gone = self.gone.keys().next().map(|rank| self.missing_for_good(Rank(*rank)));
        let round = self.rounds.entry(number).or_insert_with(|| Round::of(self.size));
        if round.failure.is_none() {
            round.failure = gone;
        }
        if let Some(failure) = round.failure.clone() {
            self.told.advance(rank);
            self.forget();
            return refusal(connection, failure);
        }
        self.claims[rank.index()] = Some(Claim {
            connection,
            pid: join.card.pid,
            start_time: join.card.start_time,
            host: Arc::clone(&join.card.host),
            life: Life::Waiting,
        });
        self.ranks.insert(connection, rank);
        self.lost.remove(&rank.0);
        round.joined.insert(rank.0, join);
        round.missing.remove(&rank.0);
        if round.missing.is_empty() {
            return self.complete(number);
        }
        self.announce(number, connection)
    }

    /// Tells the newcomer which ranks are missing, and the others now and then: a message to all
    /// whenever the number has halved, and for each of the last few.
    fn announce(&self, number: u64, newcomer: ConnectionId) -> Vec<Action> {
        let Some(round) = self.rounds.get(&number) else { return Vec::new() };
        let missing = round.missing.len();
        if missing > MISSING_MAX && !missing.is_power_of_two() {
            // The same work for each newcomer, however many are missing.
            let message = round.news(self.start_status.as_ref(), NAMED_TO_NEWCOMER);
            return vec![Action::Send(vec![newcomer], message)];
        }
        let Some((message, waiting)) = self.incomplete(number) else { return Vec::new() };
        vec![Action::Send(waiting, message)]
    }

    /// The ranks that are missing in a round, and the connections that wait for them.
    fn incomplete(&self, number: u64) -> Option<(Message, Vec<ConnectionId>)> {
        let round = self.rounds.get(&number).filter(|round| round.failure.is_none())?;
        let message = round.news(self.start_status.as_ref(), usize::MAX);
        let waiting = round.joined.keys().filter_map(|rank| self.connection_of(*rank)).collect();
        Some((message, waiting))
    }

    /// What is to be said, now and then, while the job's start is incomplete: in words, and to
    /// those who wait. Nothing for a job of one host.
    pub(crate) fn remind(&self) -> Option<(String, Vec<Action>)> {
        let start_status = self.start_status.as_ref()?;
        let open: Vec<(Message, Vec<ConnectionId>)> =
            self.rounds.keys().filter_map(|number| self.incomplete(*number)).collect();
        let text = match open.first() {
            Some((Message::Missing { words, .. }, _)) => words.clone(),
            _ if start_status.is_starting() => {
                let all: Vec<Rank> = (0..self.size as u16).map(Rank).collect();
                start_status.words(&all, 0)
            }
            _ => return None,
        };
        let actions = open.into_iter().map(|(message, to)| Action::Send(to, message)).collect();
        Some((text, actions))
    }

    /// Whether [`ServerState::remind`] has something to say.
    pub(crate) fn is_incomplete(&self) -> bool {
        let waits = || self.rounds.values().any(|round| !round.joined.is_empty());
        self.start_status.as_ref().is_some_and(|status| status.is_starting() || waits())
    }

    pub(crate) fn connection_of(&self, rank: u16) -> Option<ConnectionId> {
        self.claims[usize::from(rank)].as_ref().map(|claim| claim.connection)
    }

    /// All are here: the table, or what they differ in.
    fn complete(&mut self, number: u64) -> Vec<Action> {
        if let Some(failure) = self.rounds.get(&number).and_then(difference) {
            return self.fail(number, failure);
        }
        let Some(round) = self.rounds.remove(&number) else { return Vec::new() };
        self.told.set_all(number + 1);
        for claim in self.claims.iter_mut().flatten() {
            claim.life = Life::InJob;
        }
        let connections =
            round.joined.keys().filter_map(|rank| self.connection_of(*rank)).collect();
        let group_max = round.joined.values().next().map_or(0, Join::group_max);
        let cards = round.joined.into_values().map(|join| join.card).collect();
        vec![Action::Table { connections, cards, group_max }]
    }

    /// Ends a round: tells those who wait, and keeps the failure for those who have not come yet.
    fn fail(&mut self, number: u64, failure: Failure) -> Vec<Action> {
        let Some(round) = self.rounds.get_mut(&number) else { return Vec::new() };
        round.failure = Some(failure.clone());
        let waiting = std::mem::take(&mut round.joined);
        round.missing.clear();
        let mut actions = Vec::new();
        for rank in waiting.into_keys() {
            if let Some(claim) = self.release(Rank(rank)) {
                self.told.set(Rank(rank), number + 1);
                actions.extend(refusal(claim.connection, failure.clone()));
            }
        }
        self.forget();
        actions
    }

    /// Whether a failure is kept for ranks that have not come yet.
    pub(crate) fn has_to_tell(&self) -> bool {
        self.rounds.values().any(|round| round.failure.is_some())
    }

    /// Drops the failures that every rank that still lives has heard of.
    fn forget(&mut self) {
        let least = self.told.least_of_living().unwrap_or(u64::MAX);
        self.rounds.retain(|number, round| round.failure.is_none() || *number >= least);
    }
}

/// Whether a text speaks of a rank.
fn names(text: &str, rank: Rank) -> bool {
    let name = rank.to_string();
    let mut behind = text.match_indices(&name).map(|(at, _)| &text[at + name.len()..]);
    behind.any(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
}

fn refusal(connection: ConnectionId, failure: Failure) -> Vec<Action> {
    vec![Action::Refuse(connection, Message::Failed(failure))]
}

/// The first thing in which a rank differs from the lowest one.
fn difference(round: &Round) -> Option<Failure> {
    let mut joins = round.joined.values();
    let left = joins.next()?;
    for right in joins {
        let pairs = left.agreed.iter().zip(&right.agreed);
        let differs = pairs.into_iter().find(|(l, r)| l != r);
        let (field, left_value, right_value) = match differs {
            Some((l, r)) if l.0 == r.0 => (l.0.clone(), l.1, r.1),
            None if left.agreed.len() == right.agreed.len() => continue,
            // Fields themselves differ: libraries of different versions with the same protocol.
            _ => {
                let field = "number of configuration fields (different library versions)";
                (field.to_owned(), left.agreed.len() as u64, right.agreed.len() as u64)
            }
        };
        let (left_value, right_value) = match field.as_str() {
            ATOMICS_FIELD => {
                (atomics_in_words(left, left_value), atomics_in_words(right, right_value))
            }
            _ => (left_value.to_string(), right_value.to_string()),
        };
        let (left, right) = (left.card.rank, right.card.rank);
        return Some(Failure::Mismatch { field, left, left_value, right, right_value });
    }
    None
}

/// What a rank has said about who executes atomic operations, and its host.
fn atomics_in_words(join: &Join, value: u64) -> String {
    let by = match value {
        0 => "cpu",
        1 => "nic (with a device that is not atomic with processors)",
        _ => "nic (with a device that is atomic with processors)",
    };
    format!("{by} on host {}", join.card.host)
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
