//! One rank in the steps of one collective: arriving, waiting for the others, what they published.

use super::leaders::{GroupSteps, Leaders, LineWidth};
use super::procedures::have_arrived;
use super::{CALL_BITS, CallKey, CallKind, NUMBER_SHIFT};
use crate::error::{Error, Result};
use crate::group::CallState;
use crate::ids::{GroupId, Rank};
use crate::os::clock;
use crate::runtime::Inner;
use crate::statistics::Counter;
use crate::sync::AtomicU64;
use crate::sync::arrival_slot::{ArrivalSlot, PAYLOAD_WORDS, Poll};
use crate::sync::claim::Claimed;
use crate::timeout::{Deadline, Timeout};
use crate::transport::Upcalls;
use crate::transport::shm::area::wake_kind;
use crate::wait::{Call, Waiting, waiting_group};
use crate::wire::message::Arrival;
use crate::wire::shared_layout::STAGE_BYTES;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a mismatch is kept back for members that have not arrived.
const MISMATCH_LIMIT: Duration = Duration::from_secs(1);

/// How long arrivals are waited for of members that have all left behind them. Only one that has
/// left a step that it had not finished can keep them from coming.
const DESERTED_LIMIT: Duration = Duration::from_secs(10);

/// How a step stands, unless members have not arrived and nothing else is known.
pub(super) enum Scan {
    Done(Result<()>),
    /// Members have not arrived, and others differ already.
    Differs(Error),
    /// The members whose arrivals have not come have left behind them; the first one's end.
    Deserted(Error),
}

/// A collective under way on a group. Dropped without [`finish`](GroupCall::finish) it stays
/// active, and the same call continues it.
#[derive(Debug)]
pub struct GroupCall<'r> {
    pub(super) inner: &'r Inner,
    pub(super) group: GroupId,
    pub(super) state: Claimed<'r, CallState>,
    pub(super) me: usize,
    pub(super) key: CallKey,
    /// Bytes of staging that the next arrival publishes, and whether all members stage as many.
    pub(super) staged: usize,
    pub(super) staged_alike: bool,
}

impl GroupCall<'_> {
    /// The members, ascending.
    #[inline]
    pub fn ranks(&self) -> &[Rank] {
        self.state.committed.as_ref().map_or(&[], |committed| &committed.ranks)
    }

    pub(crate) fn ranks_shared(&self) -> Arc<[Rank]> {
        self.state.committed.as_ref().map_or_else(|| [].into(), |c| Arc::clone(&c.ranks))
    }

    /// This rank's index among the members.
    pub fn me(&self) -> usize {
        self.me
    }

    /// How far the caller has come: 0 for a new call, kept across timeouts.
    pub fn cursor(&self) -> u64 {
        self.state.active.as_ref().map_or(0, |active| active.cursor)
    }

    /// Remembers how far the caller has come.
    pub fn set_cursor(&mut self, cursor: u64) {
        if let Some(active) = &mut self.state.active {
            active.cursor = cursor;
        }
    }

    /// Why this rank could not do its part of a call that is continued.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.state.active.as_ref().and_then(|active| active.failure.as_deref().cloned())
    }

    /// Remembers why this rank cannot do its part.
    pub(crate) fn set_failure(&mut self, failure: Error) {
        if let Some(active) = &mut self.state.active {
            active.failure = Some(Box::new(failure));
        }
    }

    /// Which step of the call the next arrival is, from 0: a member that is in another one has
    /// called it anew, since it has failed there. Only the last 4 bits count. To be said before
    /// each step but the first, also where a call is continued.
    pub fn set_number(&mut self, number: u64) {
        let call = self.key.signature & CALL_BITS;
        self.key.signature = call | number << NUMBER_SHIFT;
    }

    /// The last step at which all members are known to have arrived; steps only grow.
    #[inline]
    pub fn step(&self) -> u64 {
        self.state.committed.as_ref().map_or(0, |committed| committed.step)
    }

    /// The step at which this rank has arrived last: [`step`](GroupCall::step), or the next one,
    /// which remains to be awaited.
    pub fn arrived(&self) -> u64 {
        let arrived = self.state.active.as_ref().is_some_and(|active| active.arrived);
        self.step() + u64::from(arrived)
    }

    pub(super) fn slot(&self, member: usize, step: u64) -> &ArrivalSlot<AtomicU64> {
        &self.inner.arrival_slots_of(self.ranks()[member], self.group)[(step % 2) as usize]
    }

    /// Publishes this rank's next arrival slot with up to [`PAYLOAD_WORDS`] words, and its staging.
    /// Does nothing where a continued call has published it already.
    pub fn arrive(&mut self, payload: &[u64]) {
        debug_assert!(payload.len() <= PAYLOAD_WORDS, "{payload:?} does not fit into a line");
        let step = self.step() + 1;
        match &mut self.state.active {
            Some(active) if !active.arrived => active.arrived = true,
            _ => return,
        }
        self.slot(self.me, step).publish(step, self.key.signature, payload);
        if self.is_among_few() {
            for rank in self.ranks().iter().filter(|rank| **rank != self.inner.ranks.me) {
                self.inner.ranks.area.wake_for(*rank, wake_kind::ARRIVAL);
            }
        } else {
            self.arrive_at_other_nodes(step, payload);
            self.arrive_in_node(step);
        }
        self.staged = 0;
    }

    /// Whether all members are of this node, and few.
    #[inline]
    fn is_among_few(&self) -> bool {
        self.state.committed.as_ref().is_some_and(|committed| committed.few)
    }

    /// Lets the members of other nodes know.
    fn arrive_at_other_nodes(&mut self, step: u64, payload: &[u64]) {
        let Some(committed) = &self.state.committed else { return };
        if !committed.remote {
            return;
        }
        let width = LineWidth {
            words: self.key.kind.line_words(payload.len()),
            staged: self.staged.div_ceil(size_of::<u64>()),
        };
        let alike = self.staged == 0 || self.staged_alike;
        let may_tell = committed.leaders.as_ref().is_some_and(|leaders| leaders.may_tell(width));
        let (has_leaders, fails) = (committed.leaders.is_some(), self.key.kind.has_failed(payload));
        let by_leaders = may_tell && alike && !fails;
        if let Some(active) = &mut self.state.active {
            active.by_leaders = by_leaders.then(|| (clock::now(), width));
            active.node_told = false;
        }
        let arrival = self.arrival(step, payload);
        if by_leaders || has_leaders && fails {
            self.inner.arrive_by_leaders(arrival, width);
            if fails {
                self.inner.tell_all_of_arrival(self.group, step);
            }
            return;
        }
        if has_leaders {
            self.steps().arrive_directly(step);
        }
        self.inner.send_arrival(self.ranks_shared(), arrival);
    }

    /// This rank's arrival slot, and the staging behind it, as they travel.
    fn arrival(&self, step: u64, words: &[u64]) -> Arrival {
        let mut stage = vec![0; self.staged];
        if self.staged > 0 {
            let own = self.stage(self.me, step).as_ptr();
            // SAFETY: this rank's own staging, which it alone writes, has STAGE_BYTES.
            unsafe { stage.as_mut_ptr().copy_from_nonoverlapping(own, self.staged) };
        }
        let (signature, words) = (self.key.signature, words.to_vec());
        Arrival { group: self.group, step, signature, words, stage }
    }

    /// Whether leaders of nodes tell each other what all members publish: so many words of an
    /// arrival and bytes of staging each. Else, between nodes, each member sends that to each.
    /// `None` where there are no leaders.
    pub fn leaders_tell(&self, words: usize, staged: usize) -> Option<bool> {
        let leaders = self.state.committed.as_ref().and_then(|c| c.leaders.as_ref())?;
        let width = LineWidth { words, staged: staged.div_ceil(size_of::<u64>()) };
        Some(leaders.may_tell(width))
    }

    /// The leaders by which the present step goes, and how long lines are.
    #[inline]
    pub(super) fn by_leaders(&self) -> Option<(&Leaders, LineWidth)> {
        let leaders = self.state.committed.as_ref()?.leaders.as_deref()?;
        let (_, width) = self.state.active.as_ref()?.by_leaders?;
        Some((leaders, width))
    }

    /// Whether members of the node wait for nothing but their leader at a step at which this rank
    /// has arrived.
    pub(super) fn goes_by_leaders(&self, step: u64) -> bool {
        self.by_leaders().is_some() && !self.steps().has_told_all(step)
    }

    pub(super) fn steps(&self) -> &GroupSteps {
        self.inner.control.steps.of(self.group)
    }

    /// Whether leaders have told that all members have arrived.
    #[inline]
    fn is_exchanged(&self, leaders: &Leaders, step: u64) -> bool {
        self.inner.ranks.area.has_exchanged(leaders.locals()[0], self.group.index(), step)
    }

    /// The leader of a node tells the others once all of the node have arrived.
    fn lead(&mut self, step: u64) {
        let Some((leaders, width)) = self.by_leaders() else { return };
        let told = self.state.active.as_ref().is_none_or(|active| active.node_told);
        if told || !leaders.leads() {
            return;
        }
        let teams = self.state.committed.as_ref().and_then(|committed| committed.teams.as_ref());
        let area = &self.inner.ranks.area;
        if teams.is_some_and(|teams| !teams.have_all(area, self.group, step)) {
            return;
        }
        let (group, parity) = (self.group.index(), (step % 2) as usize);
        let mut lines = Vec::with_capacity(width.all() * leaders.locals().len());
        for rank in leaders.locals() {
            let slot = &self.inner.ranks.area.arrival_slots(*rank, group)[parity];
            if slot.poll(step) != Poll::Arrived(self.key.signature) {
                return;
            }
            let payload = slot.payload();
            // This one sends its arrival to all, and the reason with it.
            if self.key.kind.has_failed(&payload) {
                return;
            }
            lines.extend_from_slice(&payload[..width.words]);
            let (stage, end) = (self.inner.ranks.area.stage(*rank, group, parity), lines.len());
            lines.resize(end + width.staged, 0);
            let to: *mut u8 = lines[end..].as_mut_ptr().cast();
            // SAFETY: checked range. Staging is longer; the member staged it before it arrived.
            unsafe { to.copy_from_nonoverlapping(stage, width.staged * size_of::<u64>()) };
            if !slot.has_stayed(step) {
                return;
            }
        }
        let of = (step, self.key.signature);
        self.inner.node_arrived(self.group, of, width.all(), &lines);
        if let Some(active) = &mut self.state.active {
            active.node_told = true;
        }
    }

    /// How long this rank waits before it tells all members of its arrival; `None` if it has, or
    /// did so at once.
    fn patience(&self, step: u64) -> Option<Duration> {
        let Some((leaders, _)) = self.by_leaders() else { return self.patience_of_teams(step) };
        let (since, _) = self.state.active.as_ref()?.by_leaders?;
        let left = leaders.patience().saturating_sub(clock::since(since));
        (!self.steps().has_told_all(step)).then_some(left)
    }

    /// Waits until all members have arrived as often as this rank.
    ///
    /// # Errors
    /// [`Error::Timeout`] leaves the call active. [`Error::Mismatch`] if a member arrived with
    /// another signature; [`Error::RankDied`] and [`Error::RankLeft`] if one cannot arrive any
    /// more; [`Error::Refused`] if data cannot be sent to one: these end the call on this rank.
    pub fn await_all(&mut self, deadline: Deadline) -> Result<()> {
        self.await_by(deadline != Deadline::Now, || deadline)
    }

    /// The same for a call that has just begun. Where all others of its node arrive soon, nobody
    /// looks at the clock. Looks at sockets may take long, so that a timeout begins before.
    pub(super) fn await_all_within(&mut self, timeout: Timeout) -> Result<()> {
        if matches!(timeout, Timeout::Millis(_)) && self.inner.endpoints.remote {
            return self.await_all(timeout.deadline());
        }
        self.await_by(timeout != Timeout::Test, || timeout.deadline())
    }

    fn await_by(&mut self, waits: bool, deadline: impl Fn() -> Deadline) -> Result<()> {
        let step = self.step() + 1;
        let mut next = 0;
        let outcome = if self.all_arrive_briefly(waits, step, &mut next) {
            Ok(())
        } else {
            let outcome = self.await_rest(deadline(), step, &mut next);
            outcome.ok_or_else(|| Error::Timeout { pending: self.missing(step) })?
        };
        let outcome = outcome.and_then(|()| self.hand_over(deadline, step));
        if outcome.as_ref().is_err_and(Error::is_timeout) {
            return outcome;
        }
        if let Some(committed) = &mut self.state.committed {
            committed.step = step;
        }
        if outcome.is_ok() {
            self.inner.catch_up();
        }
        if self.by_leaders().is_some_and(|(leaders, _)| !self.is_exchanged(leaders, step)) {
            self.steps().end(step);
        }
        if outcome.is_err() {
            self.fail_at(step);
        } else if let Some(active) = &mut self.state.active {
            active.arrived = false;
        }
        outcome
    }

    /// Whether nothing but a brief look was needed.
    #[inline]
    fn all_arrive_briefly(&mut self, waits: bool, step: u64, next: &mut usize) -> bool {
        let (inner, signature) = (self.inner, self.key.signature);
        let (group, at) = (self.group.index(), (step % 2) as usize);
        if self.is_among_few() {
            let slot = |rank| &inner.ranks.area.arrival_slots(rank, group)[at];
            let mut look = || have_arrived(self.ranks(), slot, step, signature, next).then_some(());
            let all = if waits { inner.waiter.poll_giving_way(look) } else { look() };
            return all.is_some();
        }
        self.lead(step);
        if let Some((leaders, _)) = self.by_leaders() {
            let look = || self.is_exchanged(leaders, step).then_some(());
            let all = match waits {
                true if leaders.leads() => look().or_else(|| self.look_for_leaders(look)),
                true => inner.waiter.poll_giving_way(look),
                false => look(),
            };
            return all.is_some();
        }
        if let Some(teams) = self.local_teams() {
            let look = || teams.have_all(&inner.ranks.area, self.group, step).then_some(());
            let all = if waits { inner.waiter.poll_giving_way(look) } else { look() };
            return all.is_some();
        }
        // What comes by sockets does not come before they are polled.
        let slot = |rank| &inner.arrival_slots_of(rank, self.group)[at];
        let mut look = || have_arrived(self.ranks(), slot, step, signature, next).then_some(());
        if !waits {
            return look().is_some();
        }
        look().or_else(|| inner.look_for_message(self.waiting().call, look)).is_some()
    }

    /// Once the node has arrived only messages of other leaders are missing.
    fn look_for_leaders(&self, look: impl FnMut() -> Option<()>) -> Option<()> {
        let told = self.state.active.as_ref().is_some_and(|active| active.node_told);
        if told { self.inner.look_for_message(self.waiting().call, look) } else { None }
    }

    /// Waits for members that are late, differ, have died or left; `None` once the deadline has
    /// passed.
    #[cold]
    fn await_rest(
        &mut self,
        deadline: Deadline,
        step: u64,
        next: &mut usize,
    ) -> Option<Result<()>> {
        let outcome = match self.scan(step, next) {
            Some(Scan::Done(outcome)) => outcome,
            None if deadline == Deadline::Now => {
                if self.patience(step) == Some(Duration::ZERO) {
                    self.lose_patience(step);
                }
                self.inner.look_once();
                match self.scan(step, next)? {
                    Scan::Done(outcome) => outcome,
                    Scan::Differs(_) | Scan::Deserted(_) => return None,
                }
            }
            None | Some(Scan::Differs(_) | Scan::Deserted(_)) => {
                self.await_slowly(deadline, step, next)?
            }
        };
        // The arrivals of all have ended the step, not the leaders. This rank sends its own to all
        // too, since others may have nothing but such arrivals.
        if !matches!(outcome, Err(Error::RankDied { .. } | Error::Refused { .. }))
            && self.patience(step).is_some()
            && self.by_leaders().is_some_and(|(leaders, _)| !self.is_exchanged(leaders, step))
        {
            self.inner.tell_all_of_arrival(self.group, step);
        }
        let what = (self.key.kind.name(), self.waiting());
        Some(outcome.map_err(|error| self.inner.cause(error, what, self.ranks(), deadline)))
    }

    /// The call fails on this rank at `step`.
    pub(super) fn fail_at(&mut self, step: u64) {
        if let Some(committed) = &mut self.state.committed {
            (committed.step, committed.failed) = (step, true);
        }
        self.end();
    }

    /// Since when it is known that the call fails, unless something changes.
    pub(super) fn fails_since(&mut self) -> Instant {
        let now = clock::now();
        self.state.active.as_mut().map_or(now, |active| *active.fails_since.get_or_insert(now))
    }

    pub(super) fn waiting(&self) -> Waiting {
        let call = match self.key.kind {
            CallKind::Barrier => Call::Barrier,
            CallKind::SegmentCreate | CallKind::SegmentUse => Call::Create,
            CallKind::ChannelOpen | CallKind::ChannelsOpen => Call::Channel,
            _ => Call::Collective,
        };
        waiting_group(call, self.group)
    }

    /// Waits for members that have not arrived; `None` once the deadline has passed. A mismatch is
    /// an error only when all are there, so that no rank gets ahead of a member that is still in
    /// the step before; but a member that never comes does not keep it back for long.
    #[cold]
    fn await_slowly(
        &mut self,
        deadline: Deadline,
        step: u64,
        next: &mut usize,
    ) -> Option<Result<()>> {
        let (inner, waiting) = (self.inner, self.waiting());
        let mut seen = None;
        if let Some(patience) = self.patience(step) {
            let limit = deadline.at_most(patience);
            seen = inner.until(limit, waiting, || {
                self.scan(step, next).filter(|scan| !matches!(scan, Scan::Deserted(_)))
            });
            if seen.is_none() && limit == deadline && self.local_teams().is_some() {
                // It has arrived, which is enough for teams: others need not hear how short it
                // waits.
                return None;
            }
            if !matches!(seen, Some(Scan::Done(_))) {
                self.lose_patience(step);
            }
        }
        let seen = seen.or_else(|| self.await_long(deadline, step, next));
        let (error, limit) = match seen? {
            Scan::Done(outcome) => return Some(outcome),
            Scan::Differs(error) => (error, MISMATCH_LIMIT),
            Scan::Deserted(error) => (error, DESERTED_LIMIT),
        };
        let since = self.fails_since();
        let left = limit.saturating_sub(clock::since(since));
        let outcome =
            inner.until(deadline.at_most(left), waiting, || match self.scan(step, next) {
                Some(Scan::Done(outcome)) => Some(outcome),
                _ => None,
            });
        outcome.or_else(|| (clock::since(since) >= limit).then_some(Err(error)))
    }

    /// Waits for news of a step; who is missing after a long time is said.
    fn await_long(&mut self, deadline: Deadline, step: u64, next: &mut usize) -> Option<Scan> {
        let (inner, waiting) = (self.inner, self.waiting());
        let wait = inner.waiter.long_wait(deadline);
        loop {
            let seen = inner.until(wait.part(deadline), waiting, || self.scan(step, next));
            if seen.is_some() || deadline.passed() {
                return seen;
            }
            wait.tell(self.key.kind.name(), || self.missing(step));
        }
    }

    /// How a step stands. All members before `next` have arrived.
    #[inline]
    fn scan(&mut self, step: u64, next: &mut usize) -> Option<Scan> {
        self.lead(step);
        if let Some(known) = self.look_at_teams(step) {
            return known;
        }
        let ends = self.inner.ranks.area.ends();
        let seen = self.scan_slots(step, next);
        if seen.is_none() {
            self.note_none_ended(ends);
        }
        seen
    }

    /// Looks at the arrival slots of a step from member `next` on.
    fn scan_slots(&mut self, step: u64, next: &mut usize) -> Option<Scan> {
        let kind = self.key.kind.name();
        let (mut missing, mut left, mut passed, mut differs) = (false, None, None, None);
        let leaders = self.by_leaders().map(|(leaders, _)| leaders);
        if leaders.is_some_and(|leaders| self.is_exchanged(leaders, step)) {
            return Some(Scan::Done(Ok(())));
        }
        for member in *next..self.ranks().len() {
            let rank = self.ranks()[member];
            let mut look = self.slot(member, step).poll(step);
            if look == Poll::Missing
                && let Err(error) = self.inner.ranks.check_alive(rank, kind)
            {
                // It may have arrived just before its end.
                look = self.slot(member, step).poll(step);
                if look == Poll::Missing && leaders.is_some_and(|l| self.is_exchanged(l, step)) {
                    return Some(Scan::Done(Ok(())));
                }
                // Where it had arrived, all may know so from their leaders.
                let came = leaders.is_some() && self.steps().has_left_behind(rank, step);
                if look == Poll::Missing && !came {
                    // It may have left because of another member's death.
                    return Some(Scan::Done(Err(self.death().unwrap_or(error))));
                }
                if look == Poll::Missing {
                    left = left.or(Some(error));
                    continue;
                }
            }
            match look {
                Poll::Arrived(other) if other != self.key.signature => {
                    differs = differs.or(Some((rank, other)));
                }
                Poll::Arrived(_) if *next == member => *next = member + 1,
                Poll::Arrived(_) => {}
                Poll::Passed => passed = passed.or(Some(rank)),
                Poll::Missing => missing = true,
            }
        }
        if *next == self.ranks().len() {
            return Some(Scan::Done(Ok(())));
        }
        // Another thread may have ended this rank's part in the job. A death counts also where the
        // dead had arrived: survivors that know of it do not arrive.
        let ended = self.inner.check_open().err();
        if let Some(error) = ended.or_else(|| self.death()) {
            return Some(Scan::Done(Err(error)));
        }
        let some_missing = missing || left.is_some();
        let (error, may_change) = match (self.cannot_send(step), differs, passed) {
            (Some(error), ..) => (error, some_missing),
            (None, Some((rank, other)), _) => (self.mismatch(rank, other), some_missing),
            (None, None, Some(rank)) => {
                let error = self.has_gone_on(rank);
                let remote = self.state.committed.as_ref().is_some_and(|group| group.remote);
                // If it failed because of a death, other nodes know of that a moment later.
                (error, remote)
            }
            (None, None, None) => return left.filter(|_| !missing).map(Scan::Deserted),
        };
        Some(if may_change { Scan::Differs(error) } else { Scan::Done(Err(error)) })
    }

    /// The error of a member's death, if one has died.
    pub(super) fn death(&self) -> Option<Error> {
        let rank = self.inner.ranks.dead_among(self.ranks())?;
        Some(self.inner.ranks.died(rank, self.key.kind.name()))
    }

    /// This rank's next arrival publishes at least the first `bytes` of its staging. `alike` says
    /// that all members stage as many, and nothing else: so leaders can tell of it.
    ///
    /// # Panics
    /// If staging is not so long.
    pub fn stage_used(&mut self, bytes: usize, alike: bool) {
        assert!(bytes <= STAGE_BYTES, "staging has {STAGE_BYTES} bytes");
        self.staged_alike = alike && self.staged == 0;
        self.staged = self.staged.max(bytes);
    }

    /// The collective is complete, or has failed in the same way on all ranks: the group is free.
    pub fn finish(mut self) {
        self.end();
        if matches!(self.key.kind, CallKind::Allreduce | CallKind::AllreduceUser) {
            self.inner.count(Counter::Allreduces, 1);
        }
    }

    fn end(&mut self) {
        self.state.active = None;
        if self.ranks().len() > 1 {
            self.inner.ranks.area.finish_step(self.group.index(), self.step());
        }
    }
}
