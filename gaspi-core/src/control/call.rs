//! One rank in the steps of one collective: arriving, waiting for the others, what they published.

use super::peer_slice::PeerSlice;
use super::procedures::have_arrived;
use super::tree_barrier::{Tree, TreeBarrier};
use super::{CallKey, CallKind};
use crate::error::{Error, Result};
use crate::group::CallState;
use crate::ids::{GroupId, Rank};
use crate::os::clock;
use crate::runtime::Inner;
use crate::statistics::Counter;
use crate::sync::arrival_slot::{ArrivalSlot, PAYLOAD_WORDS, Poll};
use crate::sync::{AtomicU64, MutexGuard};
use crate::timeout::Deadline;
use crate::transport::Upcalls;
use crate::transport::shm::area::wake_kind;
use crate::wait::{Call, waiting_group};
use crate::wire::message::Arrival;
use crate::wire::shared_layout::STAGE_BYTES;
use std::sync::Arc;
use std::time::Duration;

/// How long a mismatch is kept back for members that have not arrived.
const MISMATCH_LIMIT: Duration = Duration::from_secs(1);

/// How a step stands, unless members have not arrived and nothing else is known.
enum Scan {
    Done(Result<()>),
    /// Members have not arrived, and others differ already.
    Differs(Error),
}

/// A collective under way on a group. Dropped without [`finish`](GroupCall::finish) it stays
/// active, and the same call continues it.
#[derive(Debug)]
pub struct GroupCall<'r> {
    pub(super) inner: &'r Inner,
    pub(super) group: GroupId,
    pub(super) state: MutexGuard<'r, CallState>,
    pub(super) me: usize,
    pub(super) key: CallKey,
    /// Bytes of staging that the next arrival publishes.
    pub(super) staged: usize,
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

    fn slot(&self, member: usize, step: u64) -> &ArrivalSlot<AtomicU64> {
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
        for rank in self.ranks().iter().filter(|rank| **rank != self.inner.ranks.me) {
            if self.inner.ranks.is_local(*rank) {
                self.inner.ranks.area.wake_for(*rank, wake_kind::ARRIVAL);
            }
        }
        if self.tree().is_some() {
            if let Some(active) = &mut self.state.active {
                active.at_tree_since = Some(clock::now());
            }
            self.inner.arrive_at_tree(self.group, step);
        } else if self.state.committed.as_ref().is_some_and(|committed| committed.remote) {
            self.arrive_remotely(step, payload);
        }
        self.staged = 0;
    }

    /// The tree along which this call goes.
    fn tree(&self) -> Option<&Tree> {
        let committed = self.state.committed.as_ref()?;
        committed.tree.as_deref().filter(|_| self.key.kind == CallKind::Barrier)
    }

    fn tree_barrier(&self) -> &TreeBarrier {
        self.inner.control.tree_barriers.of(self.group)
    }

    /// How long this rank waits before it sends its arrival to all members; `None` if it has.
    fn patience(&self, step: u64) -> Option<Duration> {
        let (tree, active) = (self.tree()?, self.state.active.as_ref()?);
        let since = active.at_tree_since?;
        let left = tree.patience().saturating_sub(clock::since(since));
        (!self.tree_barrier().has_told_all(step)).then_some(left)
    }

    /// Sends this rank's arrival slot, and the staging behind it, to the members of other nodes.
    #[cold]
    fn arrive_remotely(&self, step: u64, words: &[u64]) {
        let own = self.stage(self.me, step).as_ptr();
        let mut stage = vec![0; self.staged];
        // SAFETY: this rank's own staging, which it alone writes, has STAGE_BYTES.
        unsafe { stage.as_mut_ptr().copy_from_nonoverlapping(own, self.staged) };
        let (signature, words) = (self.key.signature, words.to_vec());
        let arrival = Arrival { group: self.group, step, signature, words, stage };
        self.inner.send_arrival(self.ranks_shared(), arrival);
    }

    /// Waits until all members have arrived as often as this rank.
    ///
    /// # Errors
    /// [`Error::Timeout`] leaves the call active. [`Error::Mismatch`] if a member arrived with
    /// another signature; [`Error::RankDied`] and [`Error::RankLeft`] if one cannot arrive any
    /// more: these end the call on this rank.
    pub fn await_all(&mut self, deadline: Deadline) -> Result<()> {
        let step = self.step() + 1;
        let mut next = 0;
        let outcome = if self.all_arrive_briefly(deadline, step, &mut next) {
            Ok(())
        } else {
            self.await_rest(deadline, step, &mut next).ok_or_else(|| self.timed_out(step))?
        };
        if let Some(committed) = &mut self.state.committed {
            committed.step = step;
        }
        if outcome.is_ok() {
            self.inner.catch_up();
        }
        if outcome.is_err() {
            self.end();
        } else if let Some(active) = &mut self.state.active {
            active.arrived = false;
        }
        outcome
    }

    /// Whether nothing but a brief look was needed.
    #[inline]
    fn all_arrive_briefly(&self, deadline: Deadline, step: u64, next: &mut usize) -> bool {
        let (inner, signature) = (self.inner, self.key.signature);
        let ranks = self.ranks();
        if self.tree().is_some() {
            return self.tree_barrier().has_completed(step);
        }
        let remote = self.state.committed.as_ref().is_some_and(|committed| committed.remote);
        let slot = |rank| &inner.arrival_slots_of(rank, self.group)[(step % 2) as usize];
        let mut look = || have_arrived(ranks, slot, step, signature, next).then_some(());
        let all = match deadline {
            Deadline::Never | Deadline::At(_) if !remote => inner.waiter.poll_briefly(look),
            // What comes by sockets does not come before they are polled.
            _ => look(),
        };
        all.is_some()
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
                    self.inner.tell_all_of_barrier(self.group, step);
                }
                self.inner.look_once();
                match self.scan(step, next)? {
                    Scan::Done(outcome) => outcome,
                    Scan::Differs(_) => return None,
                }
            }
            None | Some(Scan::Differs(_)) => self.await_slowly(deadline, step, next)?,
        };
        // The arrivals of all have ended the step, not the tree. This rank sends its own to all
        // too, since it may have left before the tree completes.
        if !matches!(outcome, Err(Error::RankDied { .. }))
            && self.patience(step).is_some()
            && !self.tree_barrier().has_completed(step)
        {
            self.inner.tell_all_of_barrier(self.group, step);
        }
        Some(outcome)
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
        let call = match self.key.kind {
            CallKind::Barrier => Call::Barrier,
            CallKind::SegmentCreate | CallKind::SegmentUse => Call::Create,
            CallKind::ChannelOpen | CallKind::ChannelsOpen => Call::Channel,
            _ => Call::Collective,
        };
        let (inner, waiting) = (self.inner, waiting_group(call, self.group));
        let mut seen = None;
        if let Some(patience) = self.patience(step) {
            let limit = deadline.at_most(patience);
            seen = inner.until(limit, waiting, || self.scan(step, next));
            if !matches!(seen, Some(Scan::Done(_))) {
                inner.tell_all_of_barrier(self.group, step);
            }
        }
        let seen = seen.or_else(|| inner.until(deadline, waiting, || self.scan(step, next)));
        let error = match seen? {
            Scan::Done(outcome) => return Some(outcome),
            Scan::Differs(error) => error,
        };
        let now = clock::now();
        let since = match &mut self.state.active {
            Some(active) => *active.differs_since.get_or_insert(now),
            None => now,
        };
        let left = MISMATCH_LIMIT.saturating_sub(now - since);
        let outcome =
            inner.until(deadline.at_most(left), waiting, || match self.scan(step, next) {
                Some(Scan::Done(outcome)) => Some(outcome),
                _ => None,
            });
        outcome.or_else(|| (clock::since(since) >= MISMATCH_LIMIT).then_some(Err(error)))
    }

    /// Looks at the arrival slots of a step from member `next` on; all before have arrived.
    #[inline]
    fn scan(&self, step: u64, next: &mut usize) -> Option<Scan> {
        let kind = self.key.kind.name();
        let (mut missing, mut passed, mut differs) = (false, None, None);
        let at_tree = self.tree().is_some();
        if at_tree && self.tree_barrier().has_completed(step) {
            return Some(Scan::Done(Ok(())));
        }
        for member in *next..self.ranks().len() {
            let (rank, slot) = (self.ranks()[member], self.slot(member, step));
            let mut look = slot.poll(step);
            if look == Poll::Missing
                && let Err(error) = self.inner.ranks.check_alive(rank, kind)
            {
                // It may have arrived just before its end.
                look = slot.poll(step);
                if look == Poll::Missing && at_tree {
                    if let Some(outcome) = self.end_at_tree(rank, step, error) {
                        return Some(Scan::Done(outcome));
                    }
                } else if look == Poll::Missing {
                    // It may have left because of another member's death.
                    return Some(Scan::Done(Err(self.death().unwrap_or(error))));
                }
            }
            match look {
                Poll::Arrived(other) if other != self.key.signature => {
                    differs = differs.or(Some((rank, other)));
                }
                Poll::Arrived(_) if missing || passed.is_some() || differs.is_some() => {}
                Poll::Arrived(_) => *next = member + 1,
                Poll::Passed => passed = passed.or(Some(rank)),
                Poll::Missing => missing = true,
            }
        }
        if !missing && passed.is_none() && differs.is_none() {
            return Some(Scan::Done(Ok(())));
        }
        // Another thread may have ended this rank's part in the job. A death counts also where the
        // dead had arrived: survivors that know of it do not arrive.
        let ended = self.inner.check_open().err();
        if let Some(error) = ended.or_else(|| self.death()) {
            return Some(Scan::Done(Err(error)));
        }
        if at_tree && let Some(rank) = self.departed(step) {
            return Some(Scan::Done(Err(self.inner.ranks.reported_left(rank, kind.to_owned()))));
        }
        let (error, may_change) = match (differs, passed) {
            (Some((rank, other)), _) => (self.mismatch(rank, other), missing),
            (None, Some(rank)) => {
                let difference = format!(
                    "{kind} has failed on {rank}, which has called something else on the group \
                     since"
                );
                let error = Error::Mismatch { group: self.group, difference };
                let remote = self.state.committed.as_ref().is_some_and(|group| group.remote);
                // If it failed because of a death, other nodes know of that a moment later.
                (error, remote)
            }
            (None, None) => return None,
        };
        Some(if may_change { Scan::Differs(error) } else { Scan::Done(Err(error)) })
    }

    /// The error of a member's death, if one has died.
    fn death(&self) -> Option<Error> {
        let rank = self.inner.ranks.dead_among(self.ranks())?;
        Some(self.inner.ranks.died(rank, self.key.kind.name()))
    }

    /// The member that is known to have left without arriving.
    fn departed(&self, step: u64) -> Option<Rank> {
        self.tree_barrier().departed(step, self.ranks())
    }

    /// The outcome where a member has died or left and this rank has not heard of its arrival;
    /// `None` if others may have heard of it, so that the step can still be completed.
    #[cold]
    fn end_at_tree(&self, rank: Rank, step: u64, error: Error) -> Option<Result<()>> {
        let (inner, group) = (self.inner, self.group);
        let missed = inner.has_missed(group, step, rank);
        // It may have arrived just before its end.
        if self.tree_barrier().has_completed(step) {
            return Some(Ok(()));
        }
        if let Some(error) = self.death() {
            return Some(Err(error));
        }
        // It may have left because of a departure that is known already.
        if !missed || self.departed(step).is_some() {
            return None;
        }
        if matches!(error, Error::RankLeft { .. }) {
            inner.say_departed(group, step, rank);
        }
        Some(Err(error))
    }

    #[cold]
    fn mismatch(&self, rank: Rank, other: u64) -> Error {
        let difference = format!(
            "{} called {}, {rank} called {}",
            self.inner.ranks.me,
            (self.key.describe)(self.key.signature),
            (self.key.describe)(other),
        );
        Error::Mismatch { group: self.group, difference }
    }

    #[cold]
    fn timed_out(&self, step: u64) -> Error {
        let missing: Vec<String> = (0..self.ranks().len())
            .filter(|member| self.slot(*member, step).poll(step) == Poll::Missing)
            .filter(|member| !self.tree_barrier().has_arrived(step, *member))
            .take(8)
            .map(|member| self.ranks()[member].0.to_string())
            .collect();
        let kind = self.key.kind.name();
        let ranks = if missing.len() == 1 { "rank" } else { "ranks" };
        let missing = missing.join(", ");
        let pending = format!("{ranks} {missing} to arrive at {kind} of {}", self.group);
        Error::Timeout { pending }
    }

    /// What a member's arrival at `step` carries. To be called between the end of the wait for it
    /// and this rank's next arrival.
    #[inline]
    pub fn payload(&self, member: usize, step: u64) -> [u64; PAYLOAD_WORDS] {
        self.slot(member, step).payload()
    }

    /// The same where it lies: [`PAYLOAD_WORDS`] words.
    #[inline]
    pub fn carried(&self, member: usize, step: u64) -> PeerSlice<'_> {
        let payload = &raw const self.slot(member, step).payload;
        PeerSlice::new(payload.cast_mut().cast::<u8>(), PAYLOAD_WORDS * size_of::<u64>())
    }

    /// Staging of a member for `step`. A step that has been awaited may be read until this rank's
    /// next arrival: a member that has seen that may write there again.
    #[inline]
    pub fn stage(&self, member: usize, step: u64) -> PeerSlice<'_> {
        let (rank, group) = (self.ranks()[member], self.group.index());
        let parity = (step % 2) as usize;
        let pointer = if self.inner.ranks.is_local(rank) {
            self.inner.ranks.area.stage(rank, group, parity)
        } else {
            self.inner.control.remote_arrivals.stage(rank, group, parity)
        };
        PeerSlice::new(pointer, STAGE_BYTES)
    }

    /// This rank's next arrival publishes at least the first `bytes` of its staging.
    ///
    /// # Panics
    /// If staging is not so long.
    pub fn stage_used(&mut self, bytes: usize) {
        assert!(bytes <= STAGE_BYTES, "staging has {STAGE_BYTES} bytes");
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
