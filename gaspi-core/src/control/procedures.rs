//! Steps of a group, started and continued, and the barrier (GASPI 17.1, 11).

use super::call::GroupCall;
use super::{Active, BARRIER, CallKey};
use crate::callback::may_wait;
use crate::error::{Error, Result};
use crate::group::CallState;
use crate::ids::{GroupId, Rank};
use crate::remote_arrivals::incarnation;
use crate::runtime::{Inner, Runtime};
use crate::statistics::Counter;
use crate::sync::arrival_slot::{ArrivalSlot, Poll};
use crate::sync::{AtomicU64, epoch};
use crate::timeout::Timeout;
use crate::transport::Upcalls;
use crate::transport::shm::area::wake_kind;
use crate::wait::Call;

impl Inner {
    /// Arrives at a barrier and looks whether all members have. `None` if not, or if something is
    /// in the way: the barrier then has to be started or continued as a call.
    #[inline]
    pub(crate) fn barrier_briefly(&self, group: GroupId, once: bool) -> Option<()> {
        let mut state = self.control.groups.claim_idle(group)?;
        let state = &mut *state;
        let committed = state.committed.as_mut()?;
        if state.active.is_some() || !committed.few || self.is_closed() {
            return None;
        }
        let step = committed.step + 1;
        let at = (step % 2) as usize;
        let own = &self.ranks.area.own_arrival_slots(group.index())[at];
        own.publish(step, BARRIER.signature, &[]);
        for rank in committed.ranks.iter().filter(|rank| **rank != self.ranks.me) {
            self.ranks.area.wake_for(*rank, wake_kind::ARRIVAL);
        }
        let mut next = 0;
        let mut look = || {
            let ranks = &committed.ranks;
            let slot = |rank| &self.ranks.area.arrival_slots(rank, group.index())[at];
            have_arrived(ranks, slot, step, BARRIER.signature, &mut next).then_some(())
        };
        let all = if once { look() } else { self.waiter.poll_briefly(look) };
        if all.is_none() {
            // Before this thread has claimed the group again, another one could take this barrier
            // for its own.
            let continued_by = epoch::thread_key();
            state.active = Some(Active { arrived: true, continued_by, ..Active::new(BARRIER) });
            return None;
        }
        committed.step = step;
        if committed.ranks.len() > 1 {
            self.ranks.area.finish_step(group.index(), step);
            self.catch_up();
        }
        all
    }

    /// The arrival slots of a member, of this node or another one.
    #[inline]
    pub(crate) fn arrival_slots_of(
        &self,
        rank: Rank,
        group: GroupId,
    ) -> &[ArrivalSlot<AtomicU64>; 2] {
        if self.ranks.is_local(rank) {
            self.ranks.area.arrival_slots(rank, group.index())
        } else {
            self.control.remote_arrivals.arrival_slots(rank, group.index())
        }
    }

    pub(crate) fn group_call(&self, group: GroupId, key: CallKey) -> Result<GroupCall<'_>> {
        self.check_open()?;
        let mut state = self.control.groups.claim(group)?;
        let CallState { committed, active, .. } = &mut *state;
        let Some(committed) = committed else {
            return Err(self.control.groups.not_committed(group));
        };
        let me = committed.me;
        match active {
            None => {
                if let Some(rank) = self.ranks.dead_among(&committed.ranks) {
                    // There will be no more steps. Others may wait for this one to be read.
                    self.ranks.area.give_up(group.index(), incarnation(committed.step));
                    return Err(self.ranks.died(rank, key.kind.name()));
                }
                *active = Some(Active::new(key));
            }
            Some(active) if ![0, epoch::thread_key()].contains(&active.continued_by) => {
                let active = "a collective of another thread".to_owned();
                return Err(Error::ActiveCollective { group, active });
            }
            Some(active) if active.key.is_same(&key) => active.continued_by = 0,
            Some(active) => {
                let active = (active.key.describe)(active.key.signature);
                return Err(Error::ActiveCollective { group, active });
            }
        }
        Ok(GroupCall { inner: self, group, state, me, key, staged: 0, staged_alike: false })
    }
}

/// Whether the members from `next` on, and so all, have arrived at `step` with this signature.
#[inline]
pub(super) fn have_arrived<'a>(
    ranks: &[Rank],
    slot: impl Fn(Rank) -> &'a ArrivalSlot<AtomicU64>,
    step: u64,
    signature: u64,
    next: &mut usize,
) -> bool {
    for rank in &ranks[*next..] {
        if slot(*rank).poll(step) != Poll::Arrived(signature) {
            return false;
        }
        *next += 1;
    }
    true
}

impl Runtime {
    /// Starts or continues a collective on `group`.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`] if it is not committed; [`Error::ActiveCollective`] while another
    /// thread is in a collective of the group, or another one is not finished; [`Error::RankDied`]
    /// of a member, for one that is started.
    #[doc(hidden)]
    pub fn group_call(&self, group: GroupId, key: CallKey) -> Result<GroupCall<'_>> {
        self.inner().group_call(group, key)
    }

    /// Waits until all ranks of `group` have called it (GASPI 17.1, 11.2.1). After a timeout, call
    /// again to continue.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::InvalidGroup`], [`Error::ActiveCollective`],
    /// [`Error::Mismatch`], [`Error::RankDied`], [`Error::RankLeft`].
    pub fn barrier(&self, group: GroupId, timeout: Timeout) -> Result<()> {
        let once = timeout == Timeout::Test;
        if self.try_fast(|fast| fast.barrier(group, once)).is_some() {
            return Ok(());
        }
        self.barrier_call(group, timeout)
    }

    /// The same where [`FastPath::barrier`](crate::FastPath::barrier) has been tried before.
    ///
    /// # Errors
    /// As [`barrier`](Runtime::barrier).
    #[doc(hidden)]
    pub fn barrier_call(&self, group: GroupId, timeout: Timeout) -> Result<()> {
        may_wait(timeout, Call::Barrier.name())?;
        let inner = self.inner();
        let mut call = inner.group_call(group, BARRIER)?;
        call.arrive(&[]);
        call.await_all_within(timeout)?;
        call.finish();
        inner.count(Counter::Barriers, 1);
        Ok(())
    }
}
