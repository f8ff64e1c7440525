//! Groups (GASPI 17.1, 6): built up locally, committed together.
//!
//! A commit announces its list to every listed member, which keeps it until its own commit of that
//! id looks for it ([`Board`]). Lists are taken in the order in which they came, one per member and
//! commit: a faster rank's next use of an id waits for the slower ones. Members whose lists differ
//! see that by each other's announcement, and tell all to whom they had announced theirs. The
//! members agree on the largest incarnation that any of them proposed, which is fresh for all, so a
//! reused id never meets arrival slots of its former use. A commit also waits until the members of
//! the former use have read this rank's last arrival slots there, which lie in the same place.

mod commit;
mod procedures;

use crate::config::{Config, Topology};
use crate::control::Active;
use crate::control::leaders::Leaders;
use crate::error::{Error, Result};
use crate::ids::{GroupId, Rank};
use crate::os::clock;
use crate::ranks::Ranks;
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering};
use crate::wire::message::Announce;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bits of the steps of one incarnation: enough for four days of nothing but barriers. Should they
/// run out, the count goes on in the next incarnation, in the same way on all members.
pub(crate) const STEP_BITS: u32 = 40;
/// The incarnation of the first use of each id.
pub(crate) const FIRST_INCARNATION: u32 = 1;

/// How much later than the list of a rank that knew of a death this rank may learn of it.
const DEATH_LIMIT: Duration = Duration::from_secs(1);

/// What a committed group needs to act together.
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) ranks: Arc<[Rank]>,
    /// This rank's index.
    pub(crate) me: usize,
    /// Incarnation and last finished step.
    pub(crate) step: u64,
    /// Whether there are members of other nodes.
    pub(crate) remote: bool,
    /// Who speaks for the nodes in its steps, if that pays.
    pub(crate) leaders: Option<Arc<Leaders>>,
}

/// The state that a collective or a commit of the group claims.
#[derive(Debug, Default)]
pub(crate) struct CallState {
    pub(crate) committed: Option<Committed>,
    pub(crate) active: Option<Active>,
    /// Members of the id's former use, and the last step that this rank finished with them: they
    /// may still be reading its arrival slot.
    former: Option<(Arc<[Rank]>, u64)>,
}

impl CallState {
    /// The group is no longer committed.
    fn retire(&mut self) {
        self.active = None;
        self.former = self.former();
        self.committed = None;
    }

    /// The use of the id that a new one has to wait for.
    fn former(&self) -> Option<(Arc<[Rank]>, u64)> {
        match &self.committed {
            // Without a step there is no arrival slot to read.
            Some(committed) if committed.step % (1 << STEP_BITS) == 0 => None,
            Some(committed) => Some((Arc::clone(&committed.ranks), committed.step)),
            None => self.former.clone(),
        }
    }
}

#[derive(Debug, Default)]
struct Members {
    exists: bool,
    committed: bool,
    ranks: Vec<Rank>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell {
    members: Mutex<Members>,
    call: Mutex<CallState>,
    /// Incarnation of the committed use, 0 if there is none: to be read without a lock.
    incarnation: AtomicU32,
}

/// Why a member has given up a commit, in its words.
#[derive(Debug, Clone)]
pub(crate) struct Abort {
    pub(crate) reporter: Rank,
    /// The member whose death is the reason.
    pub(crate) dead: Option<Rank>,
    pub(crate) reason: String,
}

/// A list that came from another rank.
#[derive(Debug)]
struct Entry {
    announce: Announce,
    /// Why its sender gave up, once it did.
    aborted: Option<Abort>,
}

/// A commit of this rank that is under way.
#[derive(Debug, Default)]
struct Attempt {
    number: u64,
    ranks: Vec<Rank>,
    /// Members whose list was the same: number of their commit and incarnation proposed.
    seen: BTreeMap<Rank, (u64, u32)>,
    incarnation: u32,
    failed: Option<Abort>,
    /// The largest incarnation in lists that made it fail.
    failed_round: u32,
    /// Since when a list of a rank of another node is known to lack members of this one.
    lacks_since: Option<Instant>,
}

impl Attempt {
    /// The largest incarnation that a member has proposed.
    fn proposed(&self) -> u32 {
        self.seen.values().map(|seen| seen.1).fold(self.incarnation, u32::max)
    }

    /// Whether a list belongs to an earlier commit.
    fn is_past(&self, entry: &Entry, is_dead: impl Fn(Rank) -> bool) -> bool {
        let Entry { announce, aborted } = entry;
        let foreign = |rank: &Rank| self.ranks.binary_search(rank).is_err();
        let died = aborted.as_ref().and_then(|abort| abort.dead);
        aborted.is_some() && announce.incarnation < self.incarnation
            || died.is_some_and(|dead| foreign(&dead))
            || announce.ranks.iter().any(|rank| foreign(rank) && is_dead(*rank))
    }
}

/// What a rank has announced for a group.
#[derive(Debug, Default)]
struct Announced {
    queue: VecDeque<Entry>,
    /// The number of the last commit that has come.
    last: u64,
    /// Lists with a lower incarnation belong to a commit of this rank that failed.
    floor: u32,
}

#[derive(Debug, Default)]
struct Board {
    announced: HashMap<(GroupId, Rank), Announced>,
    attempts: HashMap<GroupId, Attempt>,
    commits: u64,
    /// The lowest incarnation that is fresh for this rank, by group.
    fresh: Vec<u32>,
}

impl Board {
    /// Gives up the commit under way without a failure: what was taken from the others is put back,
    /// since it belongs to a commit that may still come.
    fn withdraw(&mut self, group: GroupId) -> Option<(u64, Vec<Rank>)> {
        let Attempt { number, ranks, seen, .. } = self.attempts.remove(&group)?;
        for (rank, (attempt, incarnation)) in seen {
            let announce = Announce { group, attempt, incarnation, ranks: ranks.clone() };
            let announced = self.announced.entry((group, rank)).or_default();
            announced.queue.push_front(Entry { announce, aborted: None });
        }
        Some((number, ranks))
    }

    /// Ends the commit under way as failed, and drops what its members have announced for it or
    /// will announce. Where a member has died, only lists with the dead are dropped: survivors may
    /// have begun the next use of the id. Gives number, list and the incarnation of the failed
    /// round.
    fn fail(&mut self, group: GroupId, dead: Option<Rank>) -> Option<(u64, Vec<Rank>, u32)> {
        let attempt = self.attempts.remove(&group)?;
        let round = attempt.proposed().max(attempt.failed_round);
        let fresh = &mut self.fresh[group.index()];
        *fresh = (*fresh).max(round.saturating_add(1));
        for rank in &attempt.ranks {
            let announced = self.announced.entry((group, *rank)).or_default();
            if dead.is_none() {
                announced.floor = round.saturating_add(1);
            }
            announced.queue.retain(|Entry { announce, .. }| match dead {
                Some(dead) => !announce.lists(dead),
                None => announce.incarnation > round,
            });
        }
        Some((attempt.number, attempt.ranks, round))
    }
}

/// How a commit stands.
enum Standing {
    Waiting(Vec<Rank>),
    /// All agree on this incarnation.
    Agreed(u32),
    /// A list differs, as this rank sees it.
    Differs(String),
    /// A member gave up and said why.
    Aborted(Abort),
}

/// The group of all ranks, for a fresh rank.
pub(crate) fn initial_group(config: &Config, size: u32) -> Option<(GroupId, Vec<Rank>)> {
    (config.topology != Topology::None)
        .then(|| (GroupId::ALL, (0..size).map(|rank| Rank(rank as u16)).collect()))
}

/// The groups of one rank.
#[derive(Debug)]
pub(crate) struct Groups {
    cells: Box<[Cell]>,
    board: Mutex<Board>,
}

fn first_step(incarnation: u32) -> u64 {
    u64::from(incarnation) << STEP_BITS
}

fn list(ranks: &[Rank]) -> String {
    let shown: Vec<String> = ranks.iter().take(16).map(|rank| rank.0.to_string()).collect();
    let more =
        if ranks.len() > 16 { format!(", ... {} ranks", ranks.len()) } else { String::new() };
    format!("{{{}{more}}}", shown.join(", "))
}

impl Groups {
    pub(crate) fn new(config: &Config, job: &Ranks, leaders: Option<Arc<Leaders>>) -> Groups {
        let cells: Box<[Cell]> = (0..config.group_max).map(|_| Cell::default()).collect();
        let mut fresh = vec![FIRST_INCARNATION; cells.len()];
        if let Some((group, ranks)) = initial_group(config, job.size) {
            let committed = Committed {
                ranks: ranks.as_slice().into(),
                me: job.me.index(),
                step: first_step(fresh[group.index()]),
                remote: job.all().any(|rank| !job.is_local(rank)),
                leaders,
            };
            let cell = &cells[group.index()];
            cell.call.lock().committed = Some(committed);
            cell.incarnation.store(fresh[group.index()], Ordering::Release);
            *cell.members.lock() = Members { exists: true, committed: true, ranks };
            fresh[group.index()] += 1;
        }
        Groups { cells, board: Mutex::new(Board { fresh, ..Board::default() }) }
    }

    fn cell(&self, group: GroupId) -> Result<&Cell> {
        self.cells.get(group.index()).ok_or_else(|| {
            let reason = format!("ids are below {} (group_max)", self.cells.len());
            Error::InvalidGroup { group, reason }
        })
    }

    fn members(&self, group: GroupId) -> Result<MutexGuard<'_, Members>> {
        let members = self.cell(group)?.members.lock();
        if members.exists {
            return Ok(members);
        }
        Err(Error::InvalidGroup { group, reason: "it does not exist".to_owned() })
    }

    /// Groups that can exist.
    pub(crate) fn max(&self) -> usize {
        self.cells.len()
    }

    /// Claims a group for a collective or a commit.
    pub(crate) fn claim(&self, group: GroupId) -> Result<MutexGuard<'_, CallState>> {
        self.cell(group)?.call.try_lock().ok_or_else(|| {
            let active = "a collective of another thread".to_owned();
            Error::ActiveCollective { group, active }
        })
    }

    /// The same, `None` if anything is in the way.
    #[inline]
    pub(crate) fn claim_idle(&self, group: GroupId) -> Option<MutexGuard<'_, CallState>> {
        self.cells.get(group.index())?.call.try_lock()
    }

    /// Why a group cannot be used by collectives.
    #[cold]
    pub(crate) fn not_committed(&self, group: GroupId) -> Error {
        match self.members(group) {
            Err(error) => error,
            Ok(_) => Error::InvalidGroup { group, reason: "it is not committed".to_owned() },
        }
    }

    /// A list of `peer` has arrived.
    pub(crate) fn announced(&self, peer: Rank, announce: Announce) {
        let mut board = self.board.lock();
        let announced = board.announced.entry((announce.group, peer)).or_default();
        if announce.attempt <= announced.last {
            // Sent again, since a connection broke.
            return;
        }
        announced.last = announce.attempt;
        // Below the floor its sender has been told that this round failed, and fails too.
        if announce.incarnation >= announced.floor {
            announced.queue.push_back(Entry { announce, aborted: None });
        }
    }

    /// `peer` no longer waits for its commit to be answered.
    pub(crate) fn withdrawn(&self, peer: Rank, group: GroupId, attempt: u64) {
        let mut board = self.board.lock();
        if let Some(own) = board.attempts.get_mut(&group)
            && own.seen.get(&peer).is_some_and(|(number, _)| *number == attempt)
        {
            own.seen.remove(&peer);
        } else if let Some(announced) = board.announced.get_mut(&(group, peer)) {
            announced.queue.retain(|entry| entry.announce.attempt != attempt);
        }
    }

    /// The commit of `peer` failed in this round. So does the one of this rank that belongs to it,
    /// under way or still to come.
    pub(crate) fn aborted(
        &self,
        peer: Rank,
        group: GroupId,
        attempt: u64,
        round: u32,
        abort: &Abort,
    ) {
        let mut board = self.board.lock();
        // A commit that is still to come belongs to this round, so it must not begin above it.
        let mut to_come = false;
        if let Some(own) = board.attempts.get_mut(&group)
            && own.seen.get(&peer).is_some_and(|(number, _)| *number == attempt)
        {
            own.failed = Some(abort.clone());
            own.failed_round = own.failed_round.max(round);
        } else if let Some(announced) = board.announced.get_mut(&(group, peer)) {
            let mut entries = announced.queue.iter_mut();
            if let Some(entry) = entries.find(|entry| entry.announce.attempt == attempt) {
                entry.aborted = Some(abort.clone());
                entry.announce.incarnation = entry.announce.incarnation.max(round);
                to_come = true;
            }
        }
        if !to_come && let Some(fresh) = board.fresh.get_mut(group.index()) {
            *fresh = (*fresh).max(round.saturating_add(1));
        }
    }

    /// The commit of this rank: continues the one under way, or begins one and gives the list to be
    /// announced. Also gives number and list of a commit that this one replaces.
    fn begin(
        &self,
        group: GroupId,
        ranks: &[Rank],
    ) -> (Option<Announce>, Option<(u64, Vec<Rank>)>) {
        let mut board = self.board.lock();
        if board.attempts.get(&group).is_some_and(|attempt| attempt.ranks == ranks) {
            return (None, None);
        }
        let replaced = board.withdraw(group);
        board.commits += 1;
        let incarnation = board.fresh[group.index()];
        let attempt = Attempt {
            number: board.commits,
            ranks: ranks.to_vec(),
            incarnation,
            ..Attempt::default()
        };
        let announce =
            Announce { group, attempt: attempt.number, incarnation, ranks: ranks.to_vec() };
        board.attempts.insert(group, attempt);
        (Some(announce), replaced)
    }

    /// Takes what the members have announced. A list with a dead rank belongs to a commit that
    /// fails everywhere, after which survivors go on to the next use of the id. A list that lacks
    /// members may do so because of a death, which ranks of other nodes learn at another time.
    fn standing(
        &self,
        group: GroupId,
        own: Rank,
        is_dead: impl Fn(Rank) -> bool,
        is_remote: impl Fn(Rank) -> bool,
    ) -> Standing {
        let mut board = self.board.lock();
        let Board { announced, attempts, .. } = &mut *board;
        let Some(attempt) = attempts.get_mut(&group) else { return Standing::Waiting(Vec::new()) };
        if let Some(abort) = &attempt.failed {
            return Standing::Aborted(abort.clone());
        }
        let (mut missing, mut bad) = (Vec::new(), None);
        for rank in attempt.ranks.iter().copied().filter(|rank| *rank != own) {
            if attempt.seen.contains_key(&rank) {
                continue;
            }
            let queue = &mut announced.entry((group, rank)).or_default().queue;
            // Lists of failed commits, and lists with dead ranks.
            while queue.front().is_some_and(|entry| attempt.is_past(entry, &is_dead)) {
                queue.pop_front();
            }
            let Some(Entry { announce: theirs, aborted }) = queue.front() else {
                missing.push(rank);
                continue;
            };
            let lacks = || !attempt.ranks.iter().all(|rank| theirs.lists(*rank));
            if is_remote(rank)
                && aborted.is_none()
                && lacks()
                && clock::since(*attempt.lacks_since.get_or_insert_with(clock::now)) < DEATH_LIMIT
            {
                missing.push(rank);
                continue;
            }
            attempt.failed_round = attempt.failed_round.max(theirs.incarnation);
            match aborted {
                Some(abort) => {
                    bad = bad.or(Some(Standing::Aborted(abort.clone())));
                    queue.pop_front();
                }
                // The list stays: should this commit fail because of a death, it belongs to the
                // next one.
                None if theirs.ranks != attempt.ranks => {
                    let (ours, theirs) = (list(&attempt.ranks), list(&theirs.ranks));
                    let difference = format!("{own} commits {ours}, {rank} commits {theirs}");
                    bad = bad.or(Some(Standing::Differs(difference)));
                }
                None => {
                    attempt.seen.insert(rank, (theirs.attempt, theirs.incarnation));
                    queue.pop_front();
                }
            }
        }
        if let Some(bad) = bad {
            return bad;
        }
        if !missing.is_empty() {
            return Standing::Waiting(missing);
        }
        Standing::Agreed(attempt.proposed())
    }

    /// Whether a list that lacks members is kept back, since a death may be the reason.
    fn lacks_members(&self, group: GroupId) -> bool {
        self.board.lock().attempts.get(&group).is_some_and(|own| own.lacks_since.is_some())
    }

    /// The commit under way has succeeded; its number.
    fn agreed(&self, group: GroupId, incarnation: u32) -> Option<u64> {
        let mut board = self.board.lock();
        board.fresh[group.index()] = incarnation.saturating_add(1);
        board.attempts.remove(&group).map(|attempt| attempt.number)
    }

    /// What a member that is missing does instead, where it is known.
    fn hint(&self, group: GroupId, own: Rank) -> String {
        let board = self.board.lock();
        let foreign = board.announced.iter().find_map(|((id, rank), announced)| {
            let listed = board.attempts.get(&group).is_some_and(|own| own.ranks.contains(rank));
            let first = announced.queue.front()?;
            (*id == group && *rank != own && !listed).then_some((rank, &first.announce.ranks))
        });
        foreign.map_or_else(String::new, |(rank, ranks)| {
            format!("; {rank} commits {} under the same id", list(ranks))
        })
    }
}
