//! The commit of a group: what this rank says to the members, and waiting until all agree.

use super::board::{Outbound, Unsent};
use super::{Abort, CallState, Committed, LAST_INCARNATION, Standing, first_step, list};
use crate::callback::may_wait;
use crate::control::leaders::Leaders;
use crate::control::leaders::route::FEW;
use crate::error::{Error, Result};
use crate::ids::{GroupId, Rank};
use crate::remote_arrivals::incarnation;
use crate::runtime::Inner;
use crate::sync::{Ordering, fence};
use crate::timeout::{Deadline, Timeout};
use crate::transport::shm::area::{WatchSteps, liveness};
use crate::wait::{Call, waiting_group};
use std::cell::Cell;
use std::sync::Arc;

/// What a commit that waits for long has to heed.
enum News {
    Settled(Result<u32>),
    /// A member has left by whom this rank would have known of others.
    HasLeft,
    /// Something is due that nobody sends.
    Due,
    /// See [`Board::lack_ends_in`](super::board::Board::lack_ends_in). Nothing wakes this rank when
    /// a lack has lasted for long enough.
    Lacks,
}

/// Whether the id can still be used. All members of a commit come to the same: that of an id that
/// is worn out fails everywhere, and nobody needs to be told.
fn check_limit(group: GroupId, incarnation: u32) -> Result<u32> {
    if incarnation <= LAST_INCARNATION {
        return Ok(incarnation);
    }
    let reason = format!("its id was committed {LAST_INCARNATION} times; use another one");
    Err(Error::InvalidGroup { group, reason })
}

impl Inner {
    /// Tells the members of a commit under way that this rank no longer wants it. A member that
    /// cannot be told any more does not wait any more.
    pub(super) fn withdraw(&self, group: GroupId) {
        self.control.groups.board.lock().withdraw(group);
        self.note_last_commit(group);
        self.send_due(group, Deadline::Now);
    }

    /// Lets others know on which commit of this rank they can count once it has left.
    fn note_last_commit(&self, group: GroupId) {
        let (commit, digest) = self.control.groups.board.lock().last_commit(group);
        self.ranks.area.set_commit(group.index(), commit, digest);
    }

    /// Sends what is due for commits of a group, in order: unless another thread does, which then
    /// goes on with it.
    pub(crate) fn send_due(&self, group: GroupId, deadline: Deadline) {
        let mut goes_on = false;
        loop {
            let next = self.control.groups.board.lock().next_due(group, goes_on);
            let Some(Outbound { attempt, to, message }) = next else { return };
            goes_on = true;
            let what = Unsent::of(&message);
            let outcome = self.send_commit(attempt, group, to, message, deadline);
            if let (Some(what), Err(error)) = (what, outcome) {
                let mut board = self.control.groups.board.lock();
                board.could_not_send(group, attempt, what, error);
            }
        }
    }

    /// This rank leaves: tells members what they may not know of its commits.
    pub(crate) fn tell_last_commits(&self) {
        for id in 0..self.control.groups.max() {
            let group = GroupId(id as u8);
            self.control.groups.board.lock().leave(group);
            self.note_last_commit(group);
            self.send_due(group, Deadline::Now);
        }
    }

    /// Asks those whose messages a commit awaits whether they commit something else.
    fn ask_of_commit(&self, group: GroupId, deadline: Deadline) {
        self.control.groups.board.lock().ask(group);
        self.send_due(group, deadline);
    }

    /// Asks the members of a commit of whom one would have told that has left.
    fn collect_commits(&self, group: GroupId, deadline: Deadline) {
        self.control.groups.board.lock().collect_of_left(group, |rank| self.has_left(rank));
        self.send_due(group, deadline);
    }

    /// Notes whether all members are known to have committed the present use.
    pub(super) fn note_joined(&self, group: GroupId, state: &CallState) {
        if let Some(incarnation) = state.joined() {
            self.control.groups.board.lock().all_know(group, incarnation);
        }
    }

    /// Tells the members of a commit under way that it has failed; `is_fresh` where it was to be
    /// the first of a group.
    fn abort(&self, group: GroupId, is_fresh: bool, error: &Error) {
        let (dead, reason) = match error {
            Error::RankDied { rank, .. } => (Some(*rank), Some(error.to_string())),
            Error::Mismatch { difference, .. } => (None, Some(difference.clone())),
            // See `check_limit`.
            Error::InvalidGroup { .. } => (None, None),
            _ => (None, Some(error.to_string())),
        };
        let failed = self.control.groups.board.lock().fail(group, dead, reason);
        if let Some(round) = failed {
            self.note_last_commit(group);
            if is_fresh {
                // Others may have committed this use, and wait for it to be read.
                self.ranks.area.give_up(group.index(), round);
            }
            self.send_due(group, Deadline::Now);
        }
    }

    pub(super) fn commit(&self, group: GroupId, timeout: Timeout) -> Result<()> {
        self.check_open()?;
        may_wait(timeout, Call::Commit.name())?;
        let mut state = self.control.groups.claim(group)?;
        if state.active.is_some() {
            let active = "a collective that timed out".to_owned();
            return Err(Error::ActiveCollective { group, active });
        }
        let ranks = {
            let mut members = self.control.groups.members(group)?;
            members.commits = true;
            members.ranks.clone()
        };
        let outcome = self.commit_claimed(group, &mut state, ranks, timeout);
        // Who deletes the group claims it before.
        self.control.groups.members(group)?.commits = false;
        outcome
    }

    /// The same by the thread that has claimed the group.
    fn commit_claimed(
        &self,
        group: GroupId,
        state: &mut CallState,
        ranks: Vec<Rank>,
        timeout: Timeout,
    ) -> Result<()> {
        let Ok(me) = ranks.binary_search(&self.ranks.me) else {
            let reason = format!("{} is not a member of it", self.ranks.me);
            return Err(Error::InvalidGroup { group, reason });
        };
        let deadline = timeout.deadline();
        self.note_joined(group, state);
        let route = || Leaders::route_of(&self.ranks, &ranks.as_slice().into(), me);
        let mut board = self.control.groups.board.lock();
        self.ranks.area.take_part(group.index(), board.fresh(group));
        board.begin(group, &ranks, route);
        drop(board);
        self.note_last_commit(group);
        self.send_due(group, deadline);
        self.ranks.area.set_members(group.index(), &ranks);
        // Committing again replaces what was committed, once the others have agreed to it.
        let former = state.former();
        let settled = self.await_settled(group, &ranks, former, deadline);
        // What others await may have become due in the last look.
        self.send_due(group, deadline);
        let settled = settled.map(|settled| settled.and_then(|it| check_limit(group, it)));
        let incarnation = match settled {
            Some(Ok(incarnation)) => incarnation,
            Some(Err(error)) => {
                let what = ("group_commit", waiting_group(Call::Commit, group));
                let error = self.cause(error, what, &ranks, deadline);
                self.abort(group, state.committed.is_none(), &error);
                return Err(error);
            }
            None => return Err(Error::Timeout { pending: self.awaited_by_commit(group) }),
        };
        self.note_committed(group, state, ranks, me, incarnation)
    }

    /// Waits until the commit under way has ended, and no member reads this rank's arrival slots of
    /// the id's former use any more.
    fn await_settled(
        &self,
        group: GroupId,
        ranks: &[Rank],
        former: Option<(Arc<[Rank]>, u64)>,
        deadline: Deadline,
    ) -> Option<Result<u32>> {
        let waiting = waiting_group(Call::Commit, group);
        let (former, step) = former.unwrap_or_else(|| ([].into(), 0));
        // Ranks of other nodes read copies. Members of both uses, which have said so, read the
        // former one no more; they may never have committed it.
        let reads =
            |rank: &&Rank| self.ranks.is_local(**rank) && ranks.binary_search(rank).is_err();
        let readers: Vec<Rank> = former.iter().filter(reads).copied().collect();
        // Once a member of the former use has died, a reader may never come back to it. One that
        // does finds that what it reads has been overwritten.
        let has_died = || self.ranks.dead_among(&former).is_some();
        let has_read = |rank: &Rank| {
            self.ranks.area.has_finished(*rank, group.index(), step)
                || self.ranks.area.has_given_up(*rank, group.index(), incarnation(step))
                || self.ranks.liveness(*rank) != liveness::JOINED
        };
        let settled = || {
            let settled = self.settled(group, ranks);
            settled.filter(|settled| settled.is_err() || readers.iter().all(has_read) || has_died())
        };
        let patience = self.control.groups.board.lock().patience(group);
        if let Some(patience) = patience {
            if let Some(settled) = self.until(deadline.at_most(patience), waiting, settled) {
                return Some(settled);
            }
            if deadline != Deadline::Now || patience.is_zero() {
                self.ask_of_commit(group, deadline);
            }
        }
        // While these live, the readers wake this rank when they finish a step.
        let _watches: Vec<WatchSteps<'_>> =
            readers.iter().map(|rank| self.ranks.area.watch_steps(*rank, group.index())).collect();
        let waits_for_lack = Cell::new(false);
        let mut news =
            || settled().map(News::Settled).or_else(|| self.news(group, waits_for_lack.get()));
        let wait = self.waiter.long_wait(deadline);
        loop {
            let mut until = self.ask_again(group, deadline);
            let lack = self.control.groups.board.lock().lack_ends_in(group);
            until = lack.map_or(until, |left| until.at_most(left));
            waits_for_lack.set(lack.is_some());
            match self.until(wait.part(until), waiting, &mut news) {
                Some(News::Settled(settled)) => return Some(settled),
                Some(News::HasLeft) => self.collect_commits(group, deadline),
                Some(News::Due) => self.send_due(group, deadline),
                Some(News::Lacks) => {}
                None if deadline.passed() => return None,
                None => wait.tell(Call::Commit.name(), || self.awaited_by_commit(group)),
            }
        }
    }

    /// What a commit has to heed that has not ended; `waits_for_lack` where it looks again once a
    /// lack has lasted for long enough.
    fn news(&self, group: GroupId, waits_for_lack: bool) -> Option<News> {
        if let Some(error) = self.turned_away(group) {
            return Some(News::Settled(Err(error)));
        }
        let mut board = self.control.groups.board.lock();
        // What a member that has left would have passed on does not come.
        if board.has_to_collect(group, |rank| self.has_left(rank)) {
            return Some(News::HasLeft);
        }
        if board.has_due(group) {
            return Some(News::Due);
        }
        let lacks = !waits_for_lack && board.lack_ends_in(group).is_some();
        lacks.then_some(News::Lacks)
    }

    fn has_left(&self, rank: Rank) -> bool {
        self.ranks.liveness(rank) == liveness::LEFT
    }

    /// Asks once more if it is time to. Until when that need not be done again.
    fn ask_again(&self, group: GroupId, deadline: Deadline) -> Deadline {
        let next = || self.control.groups.board.lock().next_question(group);
        if next().is_some_and(|left| left.is_zero()) {
            self.ask_of_commit(group, deadline);
        }
        next().map_or(deadline, |left| deadline.at_most(left))
    }

    /// Why a member of this node, whose word is missing, has taken nothing from this rank.
    fn turned_away(&self, group: GroupId) -> Option<Error> {
        let dialing = &self.endpoints.stream.dialing;
        if !dialing.has_errors() {
            return None;
        }
        let silent = self.control.groups.board.lock().silent(group);
        let mut locals = silent.into_iter().filter(|rank| self.ranks.is_local(*rank));
        let (rank, reason) = locals.find_map(|rank| Some((rank, dialing.last_error(rank)?)))?;
        Some(self.ranks.refused(rank, reason))
    }

    /// All members agree.
    fn note_committed(
        &self,
        group: GroupId,
        state: &mut CallState,
        ranks: Vec<Rank>,
        me: usize,
        incarnation: u32,
    ) -> Result<()> {
        let agreed = self.control.groups.board.lock().agreed(group, incarnation);
        if let Some(attempt) = agreed {
            self.control.resend_buffer.agreed(group, attempt);
        }
        log::debug!(
            "group_commit: {group} has ranks {}, use {incarnation} of its id",
            list(&ranks)
        );
        let step = first_step(incarnation);
        state.former = None;
        let ranks: Arc<[Rank]> = ranks.into();
        let leaders = self.leaders_of(&ranks, me, group).map(Arc::new);
        self.control.steps.of(group).committed(incarnation, leaders.clone());
        let early = self.control.remote_arrivals.committed(group, incarnation);
        early.into_iter().for_each(|onward| self.pass_on(onward));
        self.connect_neighbours(group, step);
        self.open_slots(group, step);
        state.committed = Some(Committed::new(ranks, me, step, leaders, &self.ranks));
        self.control.groups.members(group)?.committed = true;
        let incarnation = crate::remote_arrivals::incarnation(step);
        self.control.groups.cell(group)?.incarnation.store(incarnation, Ordering::Release);
        Ok(())
    }

    /// Members of a use that this rank has given up, after it had arrived, may still read what it
    /// published there: they can tell before any of that is overwritten.
    fn open_slots(&self, group: GroupId, before_first: u64) {
        for slot in self.ranks.area.own_arrival_slots(group.index()) {
            slot.sequence.store(before_first, Ordering::Relaxed);
        }
        // Release: before what this rank publishes next; pairs with the Acquire fence in
        // `check_read`.
        fence(Ordering::Release);
    }

    fn leaders_of(&self, ranks: &[Rank], me: usize, group: GroupId) -> Option<Leaders> {
        Leaders::of(&self.ranks, &ranks.into(), me, group)
    }

    fn standing(&self, group: GroupId) -> Standing {
        let is_dead = |rank: Rank| {
            self.ranks.check_rank(rank).is_ok() && self.ranks.liveness(rank) == liveness::DEAD
        };
        let is_remote = |rank| !self.ranks.is_local(rank);
        let last_commit = |rank: Rank| {
            let last = || self.last_step_of(rank, group).map(|last| (last.commit, last.digest));
            self.has_left(rank).then(last).flatten()
        };
        self.control.groups.board.lock().standing(group, is_dead, is_remote, last_commit)
    }

    /// The end of the commit under way, if it has come to one: the incarnation, or an error.
    fn settled(&self, group: GroupId, ranks: &[Rank]) -> Option<Result<u32>> {
        if let Err(error) = self.check_open() {
            return Some(Err(error));
        }
        // Who has left before this look, and is missing, does not come.
        let ended = |rank: &Rank| {
            let error = self.ranks.check_alive(*rank, "group_commit").err()?;
            Some((*rank, error))
        };
        let ended: Vec<(Rank, Error)> = ranks.iter().filter_map(ended).collect();
        let standing = self.standing(group);
        if !matches!(standing, Standing::Agreed(_))
            && let Some(rank) = self.ranks.dead_among(ranks)
        {
            return Some(Err(self.ranks.died(rank, "group_commit")));
        }
        match standing {
            Standing::Agreed(incarnation) => Some(Ok(incarnation)),
            Standing::Aborted(Abort { reporter, dead: Some(dead), .. })
                if ranks.binary_search(&dead).is_ok() =>
            {
                Some(Err(self.ranks.reported_death(dead, reporter, "group_commit")))
            }
            Standing::Differs(difference) | Standing::Aborted(Abort { reason: difference, .. }) => {
                Some(Err(Error::Mismatch { group, difference }))
            }
            Standing::Unreachable(error) => Some(Err(error)),
            Standing::Waiting(missing) => {
                // What those of this node have sent before is still on its way.
                let has_leaders =
                    ranks.len() > FEW || ranks.iter().any(|rank| !self.ranks.is_local(*rank));
                let mut ended = ended;
                ended.retain(|(rank, _)| missing.contains(rank));
                let has_gone_on = |rank: Rank| {
                    let last = self.last_step_of(rank, group);
                    let attempt = last.map_or(0, |last| last.commit.attempt);
                    self.control.groups.board.lock().has_gone_on(group, rank, attempt)
                };
                let may_come = |(rank, error): &(Rank, Error)| {
                    let has_left = matches!(error, Error::RankLeft { .. });
                    has_left && (has_leaders && self.ranks.is_local(*rank) || has_gone_on(*rank))
                };
                // Any other end is final.
                ended.sort_by_key(may_come);
                let first = ended.into_iter().next()?;
                let waits =
                    may_come(&first) && self.control.groups.board.lock().may_still_come(group);
                (!waits).then_some(Err(first.1))
            }
        }
    }

    /// What a commit under way waits for.
    #[cold]
    fn awaited_by_commit(&self, group: GroupId) -> String {
        let board = self.control.groups.board.lock();
        let missing = board.missing(group);
        if missing.is_empty() {
            return format!("ranks that used {group} before to finish their last collective there");
        }
        format!("ranks {} to commit {group}{}", list(&missing), board.hint(group, &missing))
    }
}
