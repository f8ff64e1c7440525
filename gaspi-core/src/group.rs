//! Groups (GASPI 17.1, 6): built up locally, committed together.
//!
//! A commit announces its list to every listed member, which keeps it until its own commit of that
//! id looks for it ([`Board`]). Lists are taken in the order in which they came, one per member and
//! commit: a faster rank's next use of an id waits for the slower ones. Digests tell of the lists,
//! where nodes have leaders by these; lists themselves travel where something is wrong. Members
//! whose lists differ see that by each other's list, and tell all to whom they had announced
//! theirs. The
//! members agree on the largest incarnation that any of them proposed, which is fresh for all, so a
//! reused id never meets arrival slots of its former use. A commit also waits until the members of
//! the former use have read this rank's last arrival slots there, which lie in the same place.

mod board;
mod commit;
mod procedures;

use crate::config::{Config, Topology};
use crate::control::Active;
use crate::control::leaders::Leaders;
use crate::control::teams::Teams;
use crate::error::{Error, Result};
use crate::ids::{GroupId, Rank};
use crate::ranks::Ranks;
use crate::remote_arrivals::incarnation;
use crate::sync::claim::{Claim, Claimed};
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering};
use crate::wire::message::{Announce, Digest};
use board::{Board, Standing};
use std::sync::Arc;
use std::time::Duration;

/// Bits of the steps of one incarnation: enough for four days of nothing but barriers. Should they
/// run out, the count goes on in the next incarnation, in the same way on all members.
pub(crate) const STEP_BITS: u32 = 40;
/// The last incarnation that leaves room for steps: enough for 16 million commits of one id.
pub(crate) const LAST_INCARNATION: u32 = (1 << (u64::BITS - STEP_BITS)) - 1;
/// The incarnation of the first use of each id.
pub(crate) const FIRST_INCARNATION: u32 = 1;
/// Before all steps of that.
pub(crate) const FIRST_STEP: u64 = (FIRST_INCARNATION as u64) << STEP_BITS;

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
    /// Whether a step has failed.
    pub(crate) failed: bool,
    /// Whether there are members of other nodes.
    pub(crate) remote: bool,
    /// Who speaks for the nodes in its steps, if that pays.
    pub(crate) leaders: Option<Arc<Leaders>>,
    /// The teams of the members of this node, if these are many.
    pub(crate) teams: Option<Teams>,
    /// All members are of this node, and so few that each looks at all.
    pub(crate) few: bool,
}

impl Committed {
    fn new(
        ranks: Arc<[Rank]>,
        me: usize,
        step: u64,
        leaders: Option<Arc<Leaders>>,
        job: &Ranks,
    ) -> Committed {
        let remote = ranks.iter().any(|rank| !job.is_local(*rank));
        let teams = Teams::of(&ranks, job);
        let few = !remote && teams.is_none();
        Committed { ranks, me, step, failed: false, remote, leaders, teams, few }
    }
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

    /// The incarnation of the present use, if all of its members are known to have committed it.
    fn joined(&self) -> Option<u32> {
        let committed = self.committed.as_ref()?;
        let has_met = committed.step % (1 << STEP_BITS) > 0 && !committed.failed;
        has_met.then(|| incarnation(committed.step))
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
    /// Whether a thread is in a commit of these ranks.
    commits: bool,
    ranks: Vec<Rank>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell {
    members: Mutex<Members>,
    call: Claim<CallState>,
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
        let mut cells: Box<[Cell]> = (0..config.group_max).map(|_| Cell::default()).collect();
        let mut board = Board::new(job.me, cells.len());
        if let Some((group, ranks)) = initial_group(config, job.size) {
            let (members, me) = (ranks.as_slice().into(), job.me.index());
            let committed = Committed::new(members, me, FIRST_STEP, leaders, job);
            let cell = &mut cells[group.index()];
            cell.call.get_mut().committed = Some(committed);
            cell.incarnation.store(FIRST_INCARNATION, Ordering::Release);
            *cell.members.lock() = Members { exists: true, committed: true, commits: false, ranks };
            board.initial(group);
        }
        Groups { cells, board: Mutex::new(board) }
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
    pub(crate) fn claim(&self, group: GroupId) -> Result<Claimed<'_, CallState>> {
        self.cell(group)?.call.try_claim().ok_or_else(|| {
            let active = "a collective of another thread".to_owned();
            Error::ActiveCollective { group, active }
        })
    }

    /// The same, `None` if anything is in the way.
    #[inline]
    pub(crate) fn claim_idle(&self, group: GroupId) -> Option<Claimed<'_, CallState>> {
        self.cells.get(group.index())?.call.try_claim()
    }

    /// Why a group cannot be used by collectives.
    #[cold]
    pub(crate) fn not_committed(&self, group: GroupId) -> Error {
        match self.members(group) {
            Err(error) => error,
            Ok(_) => Error::InvalidGroup { group, reason: "it is not committed".to_owned() },
        }
    }

    /// A list of `peer` has come from itself.
    pub(crate) fn announced(&self, peer: Rank, announce: Announce) {
        self.board.lock().announced(peer, announce);
    }

    /// A digest has come from `peer`. Whether what it has been sent has to be sent again.
    pub(crate) fn digested(&self, peer: Rank, digest: Digest) -> bool {
        self.board.lock().digested(peer, digest)
    }

    /// `peer` no longer waits for its commit to be answered.
    pub(crate) fn withdrawn(&self, peer: Rank, group: GroupId, attempt: u64) {
        self.board.lock().withdrawn(peer, group, attempt);
    }

    /// The commit of `peer` failed in this round.
    pub(crate) fn aborted(
        &self,
        peer: Rank,
        group: GroupId,
        attempt: u64,
        round: u32,
        abort: &Abort,
    ) {
        self.board.lock().aborted(peer, group, attempt, round, abort);
    }
}

#[cfg(test)]
mod tests;
