//! A job of any size in virtual time, for tests: what each rank says and with whom it connects is
//! decided by its own [`Ends`] and [`Conversation`]s. Played are kernels and sockets, processes
//! that end, and memory that ranks of a host share; nobody has a connection for requests.

mod connector;

use super::*;
use crate::fuzzed::Seed;
use crate::ids::GroupId;
use crate::policy::watching;
use crate::transport::tcp::connect::AGAIN;
use crate::transport::tcp::connect::keepalive::Watched;
use crate::wire::message::Commit;
use std::collections::{BTreeMap, BTreeSet};

/// How long anything takes from one rank to another, within a host too.
pub(super) const HOP: Duration = Duration::from_micros(20);
/// A host that is silent for so long is gone.
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(10);
/// How long a rank that leaves stays at most, and how often it looks.
const LAST_WORD: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);

/// Where every rank is that leaves.
pub(super) const LAST: LastStep = LastStep {
    group: GroupId(0),
    step: 7,
    finished: true,
    commit: Commit { attempt: 1, incarnation: 0 },
    digest: 3,
};

/// What was said since counting began.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    /// By all ranks together, as it was heard.
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// To one rank.
    pub(super) most: usize,
    /// Connections that were made, and attempts that were refused.
    pub(super) made: usize,
    pub(super) refused: usize,
    /// Until the last rank knew the last thing.
    pub(super) until: Duration,
    /// Ends at which all ranks together have looked.
    pub(super) looks: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Stays,
    Leaves { since: Duration },
    Gone,
}

/// One rank.
#[derive(Debug)]
struct Played {
    ends: Ends,
    stage: Stage,
    /// Its sides of connections.
    sides: Vec<usize>,
    /// Who is being connected to; who will be tried again when, and since when it is tried.
    dials: Vec<(Rank, Purpose)>,
    later: Vec<(Duration, Rank, Duration)>,
    of_others: OfOthers,
    /// Ends of processes of its host that it has seen.
    processes: usize,
    heard: usize,
}

/// What a rank has heard of those of other hosts: who has left, in which order, and where those are
/// that leave.
#[derive(Debug, Default)]
struct OfOthers {
    left: BTreeSet<Rank>,
    goodbyes: Vec<Rank>,
    steps: BTreeMap<Rank, LastStep>,
}

/// What the ranks of a host share.
#[derive(Debug, Default)]
struct Host {
    dead: BTreeSet<Rank>,
    /// Of its own ranks.
    left: BTreeSet<Rank>,
    /// All ends that it knows.
    log: Vec<(Rank, End)>,
    ends: u64,
    /// Ends of its own processes.
    processes: usize,
    is_silent: bool,
}

/// One side of a connection.
#[derive(Debug)]
struct Side {
    of: Rank,
    other: usize,
    conversation: Conversation,
    is_open: bool,
    /// When the last thing comes to it that is on its way.
    last_at: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Keepalive,
    Probe,
}

#[derive(Debug)]
enum Event {
    Bytes(usize, Vec<u8>),
    Ended(usize),
    Silent(usize),
    /// An attempt that was begun then.
    Asks(Rank, Rank, Purpose, Duration),
    Refused(Rank, Rank, Purpose, Duration),
    Unanswered(Rank, Rank, Purpose),
    Proved(Rank, Rank, Purpose, Duration),
    Done(Rank, Rank, Purpose, usize),
    Again(Rank, Rank, Purpose, Duration),
    ProcessEnded(Rank, Rank),
    Look(Rank),
    Leaves(Rank),
    Dies(Rank),
}

/// What one rank knows.
struct Known<'a> {
    me: Rank,
    of: &'a OfOthers,
    host: &'a Host,
    ranks: std::ops::Range<usize>,
    size: usize,
}

impl Record for Known<'_> {
    fn known_ends(&self) -> (u64, u64) {
        (self.host.ends, self.of.left.len() as u64)
    }

    fn ended_since(&self, known: &mut KnownEnds) -> Vec<(Rank, End)> {
        let goodbyes = self.of.goodbyes[known.goodbyes..].iter().map(|rank| (*rank, End::Left));
        let log = self.host.log[known.area.next as usize..].iter().copied();
        let all: Vec<_> = goodbyes.chain(log).collect();
        known.area.looks += all.len();
        known.area.next = self.host.log.len() as u32;
        known.goodbyes = self.of.goodbyes.len();
        all.into_iter().filter(|(rank, _)| *rank != self.me).collect()
    }

    fn last_steps(&self, rank: Rank) -> Vec<LastStep> {
        let heard = self.of.steps.get(&rank).copied();
        heard.or(self.ranks.contains(&rank.index()).then_some(LAST)).into_iter().collect()
    }

    fn is_remote(&self, rank: Rank) -> bool {
        rank.index() < self.size && !self.ranks.contains(&rank.index())
    }

    fn takes_part(&self, rank: Rank) -> bool {
        ![&self.host.dead, &self.host.left, &self.of.left].iter().any(|ended| ended.contains(&rank))
    }
}

/// All ranks.
#[derive(Debug)]
pub(super) struct Job {
    per_host: usize,
    ranks: Vec<Played>,
    hosts: Vec<Host>,
    sides: Vec<Side>,
    /// By time, and in the order in which they were caused.
    events: BTreeMap<(Duration, u64), Event>,
    number: u64,
    began: Instant,
    now: Duration,
    counted: Counted,
    counted_from: Duration,
    /// How long each took that has left, and who had heard it that was not known to be dead.
    leaving: Vec<Duration>,
    heard_by: BTreeMap<Rank, Vec<Rank>>,
    /// By these numbers things take longer.
    uneven: Option<Seed>,
}

impl Job {
    /// A job of so many ranks, so many on a host, in which all have the connections that they
    /// begin with.
    pub(super) fn start(size: usize, per_host: usize) -> Job {
        let node_of: Vec<u64> = (0..size).map(|rank| (rank / per_host) as u64).collect();
        let tree = RankTree::new(Rank(0), &node_of);
        let played = |rank| Played {
            ends: Ends::new(rank, size, tree.seen_by(rank)),
            stage: Stage::Stays,
            sides: Vec::new(),
            dials: Vec::new(),
            later: Vec::new(),
            of_others: OfOthers::default(),
            processes: 0,
            heard: 0,
        };
        let mut job = Job {
            per_host,
            ranks: (0..size).map(|rank| played(Rank(rank as u16))).collect(),
            hosts: (0..size.div_ceil(per_host)).map(|_| Host::default()).collect(),
            sides: Vec::new(),
            events: BTreeMap::new(),
            number: 0,
            began: Instant::now(),
            now: Duration::ZERO,
            counted: Counted::default(),
            counted_from: Duration::ZERO,
            leaving: Vec::new(),
            heard_by: BTreeMap::new(),
            uneven: None,
        };
        (0..size).for_each(|rank| job.turn(Rank(rank as u16)));
        job
    }

    /// Plays until nothing happens any more; what was said since the last time.
    pub(super) fn play(&mut self) -> Counted {
        while let Some(((at, _), event)) = self.events.pop_first() {
            self.now = at;
            self.happens(event);
        }
        let most = self.ranks.iter_mut().map(|rank| std::mem::take(&mut rank.heard)).max();
        let (most, from) = (most.unwrap_or(0), self.counted_from);
        let looks = self.ranks.iter_mut().map(|rank| &mut rank.ends.known.area.looks);
        let looks = looks.map(std::mem::take).sum();
        let counted = std::mem::take(&mut self.counted);
        self.counted_from = self.now;
        Counted { most, looks, until: counted.until.saturating_sub(from), ..counted }
    }

    /// A process is killed: its host's kernel closes what it had, and tells those who watch it.
    pub(super) fn kill(&mut self, rank: Rank) {
        let watchers: Vec<Rank> = self.of_host(rank).filter(|of| self.watches(*of, rank)).collect();
        self.go(rank);
        for of in watchers {
            self.after(Duration::ZERO, Event::ProcessEnded(of, rank));
        }
    }

    /// A host vanishes. Its silence is noticed where there are connections with it.
    pub(super) fn cut(&mut self, host: usize) {
        self.hosts[host].is_silent = true;
        for rank in self.of_host(Rank((host * self.per_host) as u16)) {
            self.ranks[rank.index()].stage = Stage::Gone;
            for side in std::mem::take(&mut self.ranks[rank.index()].sides) {
                self.sides[side].is_open = false;
                self.after(DEAD_AFTER, Event::Silent(self.sides[side].other));
            }
        }
    }

    /// A rank leaves after this time.
    pub(super) fn leave_after(&mut self, time: Duration, rank: Rank) {
        self.after(time, Event::Leaves(rank));
    }

    /// A rank is killed after this time.
    pub(super) fn kill_after(&mut self, time: Duration, rank: Rank) {
        self.after(time, Event::Dies(rank));
    }

    /// A rank leaves.
    pub(super) fn leave(&mut self, rank: Rank) {
        let host = &mut self.hosts[rank.index() / self.per_host];
        host.left.insert(rank);
        host.log.push((rank, End::Left));
        host.ends += 1;
        self.ranks[rank.index()].stage = Stage::Leaves { since: self.now };
        for side in self.ranks[rank.index()].sides.clone() {
            let steps = [KeepaliveMessage::Step(rank.0, LAST)];
            let (ends, of) = (&self.ranks[rank.index()].ends, &mut self.sides[side].conversation);
            of.take_leave(&steps, ends.is_before(of.rank), ends.told());
            self.flush(side);
        }
        self.after(LOOK, Event::Look(rank));
        self.turn(rank);
    }

    /// From now on what is said takes longer by up to three hops, and now and then by many more.
    pub(super) fn delay_by(&mut self, seed: Seed) {
        self.uneven = Some(seed);
    }

    /// How long each rank took that has left.
    pub(super) fn leaving(&self) -> &[Duration] {
        &self.leaving
    }

    /// Whether one takes another one for dead.
    pub(super) fn takes_for_dead(&self, of: Rank, rank: Rank) -> bool {
        self.host_of(of).dead.contains(&rank)
    }

    /// Whether all that have heard `rank`, which has left, have died since, or have left and were
    /// heard by such only: then there may be nobody who knows.
    pub(super) fn is_heard_by_the_dead(&self, rank: Rank) -> bool {
        match self.heard_by.get(&rank) {
            Some(all) => !all.is_empty() && all.iter().all(|rank| self.is_heard_by_the_dead(*rank)),
            None => !self.runs(rank),
        }
    }

    /// Those that stay, and connections among them.
    pub(super) fn living(&self) -> impl Iterator<Item = Rank> + '_ {
        let all = self.ranks.iter().zip(0..);
        all.filter(|(rank, _)| rank.stage == Stage::Stays).map(|(_, rank)| Rank(rank))
    }

    pub(super) fn connections(&self) -> usize {
        self.sides.iter().filter(|side| side.is_open).count() / 2
    }

    /// Whether a rank that stays knows of these ends, in order, and of no others; has told them,
    /// and been told where those were that have left.
    pub(super) fn knows(&self, of: Rank, ends: &[(Rank, End)]) -> bool {
        let (record, told) = (self.record(of), &self.ranks[of.index()].ends.is_told);
        let mut known = record.ended_since(&mut KnownEnds::default());
        known.sort_unstable_by_key(|(rank, end)| (*rank, *end == End::Died));
        known.dedup();
        let is_whole = |end: &(Rank, End)| {
            let last = || record.last_steps(end.0) == [LAST];
            told.contains_key(&end.0) && (end.1 == End::Died || last())
        };
        known == ends && ends.iter().all(is_whole)
    }
}

/// What that needs.
impl Job {
    fn after(&mut self, time: Duration, event: Event) {
        let mut at = self.now + time;
        if let Some(seed) = self.uneven.as_mut().filter(|_| time <= 2 * HOP) {
            let stalls = if seed.below(64) == 0 { 50 } else { 1 };
            at += HOP * seed.below(4) as u32 * stalls;
        }
        if let Event::Bytes(side, _) | Event::Ended(side) | Event::Done(.., side) = event {
            // What is said on a connection comes in this order.
            let last = &mut self.sides[side].last_at;
            at = at.max(*last);
            *last = at;
        }
        self.number += 1;
        self.events.insert((at, self.number), event);
    }

    fn of_host(&self, rank: Rank) -> impl Iterator<Item = Rank> + use<> {
        let (from, size) = (rank.index() / self.per_host * self.per_host, self.ranks.len());
        (from..size.min(from + self.per_host)).map(|rank| Rank(rank as u16))
    }

    fn host_of(&self, rank: Rank) -> &Host {
        &self.hosts[rank.index() / self.per_host]
    }

    fn runs(&self, rank: Rank) -> bool {
        self.ranks[rank.index()].stage != Stage::Gone
    }

    fn leaves(&self, rank: Rank) -> bool {
        matches!(self.ranks[rank.index()].stage, Stage::Leaves { .. })
    }

    fn record(&self, me: Rank) -> Known<'_> {
        let (of, host) = (&self.ranks[me.index()].of_others, self.host_of(me));
        known(me, of, host, (self.per_host, self.ranks.len()))
    }

    fn ends_of(&mut self, me: Rank) -> (&mut Ends, Known<'_>) {
        let sizes = (self.per_host, self.ranks.len());
        let host = &self.hosts[me.index() / self.per_host];
        let Played { ends, of_others, .. } = &mut self.ranks[me.index()];
        (ends, known(me, of_others, host, sizes))
    }

    fn conversations(&self, me: Rank) -> impl Iterator<Item = &Conversation> + Clone {
        self.ranks[me.index()].sides.iter().map(|side| &self.sides[*side].conversation)
    }

    /// A process has ended, or dies: what it had is closed.
    fn go(&mut self, rank: Rank) {
        self.ranks[rank.index()].stage = Stage::Gone;
        let left = self.host_of(rank).left.contains(&rank);
        if left {
            self.ranks[rank.index()].dials.clear();
        }
        for side in std::mem::take(&mut self.ranks[rank.index()].sides) {
            self.sides[side].is_open = false;
            self.after(HOP, Event::Ended(self.sides[side].other));
        }
    }

    /// A rank knows that another one is dead, and so do all of its host.
    fn note_death(&mut self, me: Rank, rank: Rank) {
        if self.ranks[me.index()].of_others.left.contains(&rank) {
            return;
        }
        let is_own = me.index() / self.per_host == rank.index() / self.per_host;
        let host = &mut self.hosts[me.index() / self.per_host];
        if !host.left.contains(&rank) && host.dead.insert(rank) {
            host.log.push((rank, End::Died));
            host.ends += 1;
            host.processes += usize::from(is_own);
        }
    }

    /// What one connection is enough for.
    fn watched_by(&self, me: Rank, rank: Rank) -> Watched {
        let (own, other) = (me.index() / self.per_host, rank.index() / self.per_host);
        if own == other { Watched::Rank(rank) } else { Watched::Node(other as u64) }
    }

    fn has_keepalive(&self, me: Rank, rank: Rank) -> bool {
        let wanted = self.watched_by(me, rank);
        match self.leaves(me) {
            true => self.conversations(me).any(|of| of.reaches(rank)),
            false => self.conversations(me).any(|of| self.watched_by(me, of.rank) == wanted),
        }
    }

    fn is_about_to_watch(&self, me: Rank, rank: Rank) -> bool {
        let (wanted, soon) = (self.watched_by(me, rank), self.now + AGAIN);
        let (record, of_me) = (self.record(me), &self.ranks[me.index()]);
        of_me.later.iter().any(|(at, of, since)| {
            let counts = self.watched_by(me, *of) == wanted && record.takes_part(*of);
            counts && *at <= soon && !of_me.ends.is_from_before(self.began + *since)
        })
    }

    /// Tries again after some time what began then.
    fn later(
        &mut self,
        me: Rank,
        rank: Rank,
        purpose: Purpose,
        (time, since): (Duration, Duration),
    ) {
        if purpose == Purpose::Keepalive {
            self.ranks[me.index()].later.push((self.now + time, rank, since));
        }
        self.after(time, Event::Again(me, rank, purpose, since));
    }

    fn begin(&mut self, by: Rank, to: Rank, purpose: Purpose, since: Duration) {
        let wanted = self.watched_by(by, to);
        let mut dials = self.ranks[by.index()].dials.iter();
        let again = match purpose {
            Purpose::Keepalive => {
                dials.any(|dial| dial.1 == purpose && self.watched_by(by, dial.0) == wanted)
                    || self.has_keepalive(by, to)
            }
            Purpose::Probe => dials.any(|dial| *dial == (to, purpose)),
        };
        if !again {
            self.ranks[by.index()].dials.push((to, purpose));
            self.after(HOP, Event::Asks(by, to, purpose, since));
        }
    }

    /// Whether the rank still runs that has begun it.
    fn end_dial(&mut self, by: Rank, to: Rank, purpose: Purpose) -> bool {
        self.ranks[by.index()].dials.retain(|dial| *dial != (to, purpose));
        self.runs(by)
    }

    fn keep_watch(&mut self, side: usize) {
        let me = self.sides[side].of;
        let leaves = self.leaves(me);
        let conversation = &mut self.sides[side].conversation;
        conversation.say(self.ranks[me.index()].ends.told());
        if leaves {
            conversation.take_leave(&[KeepaliveMessage::Step(me.0, LAST)], false, &[]);
        }
        self.ranks[me.index()].sides.push(side);
        self.flush(side);
    }

    fn end_watch(&mut self, side: usize) -> Option<Rank> {
        let Side { of, is_open, .. } = &mut self.sides[side];
        let (me, was_open) = (*of, std::mem::take(is_open));
        self.ranks[me.index()].sides.retain(|one| *one != side);
        was_open.then_some(me)
    }

    fn flush(&mut self, side: usize) {
        let Side { other, conversation, .. } = &mut self.sides[side];
        let (other, bytes) = (*other, std::mem::take(conversation.outgoing()));
        if !bytes.is_empty() {
            self.after(HOP, Event::Bytes(other, bytes));
        }
    }
}

fn known<'a>(
    me: Rank,
    of: &'a OfOthers,
    host: &'a Host,
    (per_host, size): (usize, usize),
) -> Known<'a> {
    let from = me.index() / per_host * per_host;
    Known { me, of, host, ranks: from..size.min(from + per_host), size }
}
