//! Groups (GASPI 17.1, 6): built up locally, committed together.
//!
//! A commit announces its list to every listed member, whose library keeps it until the member's
//! own commit of that id looks for it ([`Board`]). Lists are taken in the order in which they came,
//! one per member and commit: a faster rank's next use of an id waits for the slower ones. Members
//! whose lists differ find out from each other's announcement, and tell all they had announced to.
//! The members agree on the largest incarnation that any of them proposed, which is fresh for all,
//! so that a reused id never meets the lines of its former life.

use crate::agreement::Active;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fabric::connection::Outgoing;
use crate::fabric::frame::{Announce, Frame};
use crate::fabric::peers::waiting_group;
use crate::ids::{GroupId, Rank};
use crate::runtime::{Inner, Runtime, initial_group};
use crate::timeout::Timeout;
use crate::wait::Call;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Steps of one incarnation: four days of nothing but barriers. Should they run out, the count
/// goes on in the next incarnation, in the same way on all members.
const STEP_BITS: u32 = 40;

/// What a committed group needs to act together.
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) ranks: Arc<[Rank]>,
    /// This rank's index.
    pub(crate) me: usize,
    /// Incarnation and last finished step.
    pub(crate) step: u64,
}

/// What is claimed by whoever is in a collective of the group.
#[derive(Debug, Default)]
pub(crate) struct CallState {
    pub(crate) committed: Option<Committed>,
    pub(crate) active: Option<Active>,
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
}

/// A list that came from another rank.
#[derive(Debug)]
struct Entry {
    announce: Announce,
    /// Why its sender gave up, once it did.
    aborted: Option<String>,
}

/// A commit of this rank that is under way.
#[derive(Debug)]
struct Attempt {
    number: u64,
    ranks: Vec<Rank>,
    /// Members whose list was the same: number of their commit and incarnation proposed.
    seen: BTreeMap<Rank, (u64, u32)>,
    incarnation: u32,
    failed: Option<String>,
}

#[derive(Debug, Default)]
struct Board {
    announced: HashMap<(GroupId, Rank), VecDeque<Entry>>,
    attempts: HashMap<GroupId, Attempt>,
    commits: u64,
    /// The lowest incarnation that is fresh for this rank, by group.
    fresh: Vec<u32>,
}

/// How a commit stands.
enum Standing {
    Waiting(Vec<Rank>),
    /// All agree on this incarnation.
    Agreed(u32),
    /// A list differs, as this rank sees it.
    Differs(String),
    /// A member gave up and told why.
    Aborted(String),
}

/// The groups of one rank.
#[derive(Debug)]
pub(crate) struct Groups {
    cells: Box<[Cell]>,
    board: Mutex<Board>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(crate) fn new(config: &Config, own: Rank, size: u32) -> Groups {
        let cells: Box<[Cell]> = (0..config.group_max).map(|_| Cell::default()).collect();
        let mut fresh = vec![1; cells.len()];
        if let Some((group, ranks)) = initial_group(config, size) {
            let committed = Committed {
                ranks: ranks.as_slice().into(),
                me: own.index(),
                step: first_step(fresh[group.index()]),
            };
            let cell = &cells[group.index()];
            lock(&cell.call).committed = Some(committed);
            *lock(&cell.members) = Members { exists: true, committed: true, ranks };
            fresh[group.index()] += 1;
        }
        Groups { cells, board: Mutex::new(Board { fresh, ..Board::default() }) }
    }

    fn cell(&self, group: GroupId) -> Result<&Cell> {
        self.cells.get(group.index()).ok_or_else(|| {
            let reason = format!("ids are 0..{} (group_max)", self.cells.len());
            Error::InvalidGroup { group, reason }
        })
    }

    fn members(&self, group: GroupId) -> Result<MutexGuard<'_, Members>> {
        let members = lock(&self.cell(group)?.members);
        if members.exists {
            return Ok(members);
        }
        Err(Error::InvalidGroup { group, reason: "it does not exist".to_owned() })
    }

    /// Claims a group for a collective or a commit.
    pub(crate) fn claim(&self, group: GroupId) -> Result<MutexGuard<'_, CallState>> {
        match self.cell(group)?.call.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let active = "a collective of another thread".to_owned();
                Err(Error::ActiveCollective { group, active })
            }
        }
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
        let mut board = lock(&self.board);
        let queue = board.announced.entry((announce.group, peer)).or_default();
        queue.push_back(Entry { announce, aborted: None });
    }

    /// `peer` no longer waits for its commit to be answered.
    pub(crate) fn withdrawn(&self, peer: Rank, group: GroupId, attempt: u64) {
        let mut board = lock(&self.board);
        if let Some(queue) = board.announced.get_mut(&(group, peer)) {
            queue.retain(|entry| entry.announce.attempt != attempt);
        }
    }

    /// The commit of `peer` failed: so does the one of this rank that belongs to it, be it under way
    /// or still to come.
    pub(crate) fn aborted(&self, peer: Rank, group: GroupId, attempt: u64, reason: &str) {
        let mut board = lock(&self.board);
        if let Some(own) = board.attempts.get_mut(&group)
            && own.ranks.contains(&peer)
            && own.seen.get(&peer).is_some_and(|(number, _)| *number == attempt)
        {
            own.failed = Some(reason.to_owned());
        } else if let Some(queue) = board.announced.get_mut(&(group, peer)) {
            for entry in queue.iter_mut().filter(|entry| entry.announce.attempt == attempt) {
                entry.aborted = Some(reason.to_owned());
            }
        }
    }

    /// The commit of this rank: continues the one under way, or begins one whose list is then to be
    /// announced. Also gives the number of a commit that this one replaces.
    fn begin(
        &self,
        group: GroupId,
        ranks: &[Rank],
    ) -> (Option<Announce>, Option<(u64, Vec<Rank>)>) {
        let mut board = lock(&self.board);
        if board.attempts.get(&group).is_some_and(|attempt| attempt.ranks == ranks) {
            return (None, None);
        }
        let replaced = board.attempts.remove(&group).map(|old| (old.number, old.ranks));
        board.commits += 1;
        let incarnation = board.fresh[group.index()];
        let attempt = Attempt {
            number: board.commits,
            ranks: ranks.to_vec(),
            seen: BTreeMap::new(),
            incarnation,
            failed: None,
        };
        let announce =
            Announce { group, attempt: attempt.number, incarnation, ranks: ranks.to_vec() };
        board.attempts.insert(group, attempt);
        (Some(announce), replaced)
    }

    /// Takes what the members have announced.
    fn standing(&self, group: GroupId, own: Rank) -> Standing {
        let mut board = lock(&self.board);
        let Board { announced, attempts, .. } = &mut *board;
        let Some(attempt) = attempts.get_mut(&group) else { return Standing::Waiting(Vec::new()) };
        if let Some(reason) = &attempt.failed {
            return Standing::Aborted(reason.clone());
        }
        let mut missing = Vec::new();
        for rank in attempt.ranks.iter().copied().filter(|rank| *rank != own) {
            if attempt.seen.contains_key(&rank) {
                continue;
            }
            let Some(entry) = announced.get_mut(&(group, rank)).and_then(VecDeque::pop_front)
            else {
                missing.push(rank);
                continue;
            };
            if let Some(reason) = entry.aborted {
                return Standing::Aborted(reason);
            }
            let theirs = entry.announce;
            if theirs.ranks != attempt.ranks {
                return Standing::Differs(format!(
                    "{own} commits {}, {rank} commits {}",
                    list(&attempt.ranks),
                    list(&theirs.ranks)
                ));
            }
            attempt.seen.insert(rank, (theirs.attempt, theirs.incarnation));
        }
        if !missing.is_empty() {
            return Standing::Waiting(missing);
        }
        let proposed = attempt.seen.values().map(|(_, incarnation)| *incarnation);
        Standing::Agreed(proposed.fold(attempt.incarnation, u32::max))
    }

    /// Ends the commit under way, and gives its number and list.
    fn end(&self, group: GroupId, agreed: Option<u32>) -> Option<(u64, Vec<Rank>)> {
        let mut board = lock(&self.board);
        if let Some(incarnation) = agreed {
            board.fresh[group.index()] = incarnation.wrapping_add(1);
        }
        board.attempts.remove(&group).map(|attempt| (attempt.number, attempt.ranks))
    }

    /// What a member that is missing does instead, where it is known.
    fn hint(&self, group: GroupId, own: Rank) -> String {
        let board = lock(&self.board);
        let foreign = board.announced.iter().find(|((id, rank), queue)| {
            let listed = board.attempts.get(&group).is_some_and(|own| own.ranks.contains(rank));
            *id == group && *rank != own && !listed && !queue.is_empty()
        });
        foreign.map_or_else(String::new, |((_, rank), queue)| {
            let ranks = queue.front().map_or(&[][..], |entry| &entry.announce.ranks);
            format!("; {rank} commits {} under the same id", list(ranks))
        })
    }
}

impl Inner {
    /// Tells the members of a commit that it has ended without success.
    fn give_up(&self, group: GroupId, ended: Option<(u64, Vec<Rank>)>, reason: Option<&str>) {
        let Some((attempt, ranks)) = ended else { return };
        let frame = match reason {
            Some(reason) => Frame::Abort { group, attempt, reason: reason.to_owned() },
            None => Frame::Withdraw { group, attempt },
        };
        for rank in ranks.into_iter().filter(|rank| *rank != self.rank) {
            // Who cannot be told any more does not wait any more.
            let _ = self.peers.send(self, rank, Outgoing::new(&frame));
        }
    }

    fn commit(&self, group: GroupId, timeout: Timeout) -> Result<()> {
        self.check_open()?;
        let mut state = self.groups.claim(group)?;
        if state.active.is_some() {
            let active = "a collective that timed out".to_owned();
            return Err(Error::ActiveCollective { group, active });
        }
        let ranks = self.groups.members(group)?.ranks.clone();
        let Ok(me) = ranks.binary_search(&self.rank) else {
            let reason = format!("{} is not a member of it", self.rank);
            return Err(Error::InvalidGroup { group, reason });
        };
        let (announce, replaced) = self.groups.begin(group, &ranks);
        self.give_up(group, replaced, None);
        if let Some(announce) = announce {
            let frame = Frame::Announce(announce);
            for rank in ranks.iter().filter(|rank| **rank != self.rank) {
                if let Err(error) = self.peers.send(self, *rank, Outgoing::new(&frame)) {
                    self.give_up(group, self.groups.end(group, None), Some(&error.to_string()));
                    return Err(error);
                }
            }
        }
        let waiting = waiting_group(Call::Commit, group);
        let standing = self.until(timeout.deadline(), waiting, || self.settled(group));
        let incarnation = match standing {
            Some(Ok(incarnation)) => incarnation,
            Some(Err((error, tell))) => {
                let ended = self.groups.end(group, None);
                self.give_up(group, ended, tell.as_deref());
                return Err(error);
            }
            None => return Err(self.commit_timed_out(group)),
        };
        self.groups.end(group, Some(incarnation));
        let step = first_step(incarnation);
        state.committed = Some(Committed { ranks: ranks.into(), me, step });
        self.groups.members(group)?.committed = true;
        Ok(())
    }

    /// The end of the commit under way, if it has one: the incarnation, or the error and what the
    /// other members should be told.
    #[allow(clippy::type_complexity, reason = "used once, right above")]
    fn settled(&self, group: GroupId) -> Option<Result<u32, (Error, Option<String>)>> {
        match self.groups.standing(group, self.rank) {
            Standing::Agreed(incarnation) => Some(Ok(incarnation)),
            Standing::Differs(difference) => {
                let error = Error::Mismatch { group, difference: difference.clone() };
                Some(Err((error, Some(difference))))
            }
            // Whoever found the difference has told everybody.
            Standing::Aborted(difference) => {
                Some(Err((Error::Mismatch { group, difference }, None)))
            }
            Standing::Waiting(missing) => missing.iter().find_map(|rank| {
                let error = self.check_alive(*rank, "group_commit").err()?;
                self.set_corrupt_if_dead(*rank);
                let text = error.to_string();
                Some(Err((error, Some(text))))
            }),
        }
    }

    #[cold]
    fn commit_timed_out(&self, group: GroupId) -> Error {
        let missing = match self.groups.standing(group, self.rank) {
            Standing::Waiting(missing) => list(&missing),
            _ => "nobody any more".to_owned(),
        };
        let hint = self.groups.hint(group, self.rank);
        Error::Timeout { pending: format!("ranks {missing} to commit {group}{hint}") }
    }
}

impl Runtime {
    /// Makes an empty group and returns the lowest free id (GASPI 17.1, 6.2).
    ///
    /// # Errors
    /// [`Error::TooManyGroups`].
    pub fn group_create(&self) -> Result<GroupId> {
        self.inner().check_open()?;
        let groups = &self.inner().groups;
        // Id 0 is the group of all ranks, also where it does not exist.
        for (id, cell) in groups.cells.iter().enumerate().skip(1) {
            let mut members = lock(&cell.members);
            if !members.exists {
                *members = Members { exists: true, ..Members::default() };
                return Ok(GroupId(id as u8));
            }
        }
        Err(Error::TooManyGroups { limit: groups.cells.len() as u32 })
    }

    /// Deletes a group. Local.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`], also for the group of all ranks; [`Error::ActiveCollective`] while
    /// another thread is in a collective of the group.
    pub fn group_delete(&self, group: GroupId) -> Result<()> {
        let inner = self.inner();
        inner.check_open()?;
        drop(inner.groups.members(group)?);
        if group == GroupId::ALL {
            let reason = "the group of all ranks cannot be deleted".to_owned();
            return Err(Error::InvalidGroup { group, reason });
        }
        let mut state = inner.groups.claim(group)?;
        inner.give_up(group, inner.groups.end(group, None), None);
        *state = CallState::default();
        *inner.groups.members(group)? = Members::default();
        Ok(())
    }

    /// Adds a rank to a group that is not committed.
    ///
    /// # Errors
    /// [`Error::InvalidRank`] also if it is a member already; [`Error::InvalidGroup`].
    pub fn group_add(&self, group: GroupId, rank: Rank) -> Result<()> {
        let inner = self.inner();
        inner.check_open()?;
        let mut members = inner.groups.members(group)?;
        inner.check_rank(rank)?;
        match members.ranks.binary_search(&rank) {
            Ok(_) => {
                let reason = format!("it is a member of {group} already");
                Err(Error::InvalidRank { rank, reason })
            }
            Err(_) if members.committed => {
                let reason = "it is committed; its members cannot change any more".to_owned();
                Err(Error::InvalidGroup { group, reason })
            }
            Err(place) => {
                members.ranks.insert(place, rank);
                Ok(())
            }
        }
    }

    /// Commits a group together with all its members (GASPI 17.1, 6.2.4), which then can use it for
    /// collectives. After a timeout, call again to continue.
    ///
    /// # Errors
    /// [`Error::Timeout`] says who is missing; [`Error::Mismatch`] if members have different lists;
    /// [`Error::InvalidGroup`] also if this rank is not a member; [`Error::RankDied`],
    /// [`Error::RankLeft`].
    pub fn group_commit(&self, group: GroupId, timeout: Timeout) -> Result<()> {
        self.inner().commit(group, timeout)
    }

    /// Groups of this rank, that of all ranks included.
    pub fn group_num(&self) -> u32 {
        let exists = |cell: &&Cell| lock(&cell.members).exists;
        let count = self.inner().groups.cells.iter().filter(exists).count() as u32;
        // Without a topology id 0 is reserved, and counts.
        count + u32::from(!self.has_group_all())
    }

    /// Members of a group.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`].
    pub fn group_size(&self, group: GroupId) -> Result<u32> {
        Ok(self.inner().groups.members(group)?.ranks.len() as u32)
    }

    /// The members of a group, ascending.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`].
    pub fn group_ranks(&self, group: GroupId) -> Result<Vec<Rank>> {
        Ok(self.inner().groups.members(group)?.ranks.clone())
    }

    /// Groups that may exist at once.
    pub fn group_max(&self) -> u32 {
        self.inner().config.group_max
    }
}
