//! Steps that all members of a group take together, and the barrier (GASPI 17.1, 11).
//!
//! A step is one arrival slot per member ([`crate::sync::arrival_slot`]): a rank publishes its own
//! and waits for those of all others. The arrival slot carries a fingerprint of the call, so that
//! ranks that called different things find out before they touch each other's data, and a small
//! payload; behind it lies the rank's staging. Barrier, segment create and use, opening a channel
//! and the all-reduces of the standard are built on it.
//!
//! Who knows that a member has died does not arrive: having heard of it, a program calls something
//! else, which the others would take for a mismatch before they hear of the death.
//!
//! Invariants: one collective is active per group; one whose timeout ran out stays active and is
//! continued by the same call. A rank goes from step k to k + 1 only after it has read all arrival
//! slots of k, so two arrival slots (and two stages) alternate. After an error that is not a
//! timeout the call has ended on this rank.

mod call;
pub(crate) mod reason;
pub(crate) mod tree_barrier;

pub use call::{GroupCall, PeerSlice};

use crate::error::{Error, Result};
use crate::group::CallState;
use crate::ids::{GroupId, Rank};
use crate::runtime::{Inner, Runtime};
use crate::statistics::Counter;
use crate::sync::AtomicU64;
use crate::sync::arrival_slot::{ArrivalSlot, Poll};
use crate::sync::epoch;
use crate::timeout::Timeout;
use crate::transport::shm::area::wake_kind;
use std::time::Instant;

/// What a group does together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
#[non_exhaustive]
pub enum CallKind {
    /// A barrier.
    Barrier = 1,
    /// An all-reduce by a built-in operation.
    Allreduce = 2,
    /// An all-reduce by a function of the program.
    AllreduceUser = 3,
    /// A segment made by all.
    SegmentCreate = 4,
    /// A segment on the program's memory made by all.
    SegmentUse = 5,
    /// A channel opened by all.
    ChannelOpen = 6,
}

/// Bits of a fingerprint that hold the kind.
pub(crate) const KIND_BITS: u32 = 4;

impl CallKind {
    /// A fingerprint of this kind: the kind in the lowest 4 bits, `details` above.
    pub const fn fingerprint(self, details: u64) -> u64 {
        self as u64 | details << KIND_BITS
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            CallKind::Barrier => "barrier",
            CallKind::Allreduce => "allreduce",
            CallKind::AllreduceUser => "allreduce_user",
            CallKind::SegmentCreate => "segment_create",
            CallKind::SegmentUse => "segment_use",
            // The first one of a group, for a program.
            CallKind::ChannelOpen => "a collective",
        }
    }
}

/// The call that a fingerprint stands for, in words.
pub fn describe_call(fingerprint: u64) -> String {
    let details = fingerprint >> KIND_BITS;
    match fingerprint & ((1 << KIND_BITS) - 1) {
        1 => "barrier".to_owned(),
        2 => "allreduce".to_owned(),
        3 => "allreduce_user".to_owned(),
        4 => format!("segment_create of segment {details}"),
        5 => format!("segment_use of segment {details}"),
        6 => crate::channel::describe(details),
        kind => format!("a collective of kind {kind}"),
    }
}

/// Which call this is.
#[derive(Debug, Clone, Copy)]
pub struct CallKey {
    /// What is called.
    pub kind: CallKind,
    /// A hash of the arguments of this rank: a continued call must have the same.
    pub arguments: u64,
    /// What must be the same on all ranks.
    pub fingerprint: u64,
    /// A fingerprint in words.
    pub describe: fn(u64) -> String,
}

impl CallKey {
    fn is_same(&self, other: &CallKey) -> bool {
        self.kind == other.kind
            && self.arguments == other.arguments
            && self.fingerprint == other.fingerprint
    }
}

/// The collective that a group has not finished.
#[derive(Debug)]
pub(crate) struct Active {
    key: CallKey,
    arrived: bool,
    /// The thread that is just about to continue it, 0 if any may.
    continued_by: usize,
    cursor: u64,
    /// Why this rank cannot do its part, once it has told the others.
    failure: Option<Box<Error>>,
    /// Since when it is known that members differ.
    differs_since: Option<Instant>,
    /// When it arrived at the tree.
    at_tree_since: Option<Instant>,
}

impl Active {
    fn new(key: CallKey) -> Active {
        Active {
            key,
            arrived: false,
            continued_by: 0,
            cursor: 0,
            failure: None,
            differs_since: None,
            at_tree_since: None,
        }
    }
}

/// All barriers are alike.
const BARRIER: CallKey = CallKey {
    kind: CallKind::Barrier,
    arguments: 0,
    fingerprint: CallKind::Barrier.fingerprint(0),
    describe: describe_call,
};

impl Inner {
    /// Arrives at a barrier and looks whether all members have. `None` if not, or if something is
    /// in the way: the barrier then has to be started or continued as a call.
    #[inline]
    pub(crate) fn barrier_briefly(&self, group: GroupId, once: bool) -> Option<()> {
        let mut state = self.groups.claim_idle(group)?;
        let state = &mut *state;
        let committed = state.committed.as_mut()?;
        if state.active.is_some() || committed.remote || self.check_open().is_err() {
            return None;
        }
        let step = committed.step + 1;
        let at = (step % 2) as usize;
        let slot = |rank: Rank| &self.area.arrival_slots(rank, group.index())[at];
        slot(self.rank).publish(step, BARRIER.fingerprint, &[]);
        for rank in committed.ranks.iter().filter(|rank| **rank != self.rank) {
            self.area.wake_for(*rank, wake_kind::ARRIVAL);
        }
        let mut next = 0;
        let mut look = || {
            let ranks = &committed.ranks;
            // All members are of this node.
            let slot = |rank| &self.area.arrival_slots(rank, group.index())[at];
            have_arrived(ranks, slot, step, BARRIER.fingerprint, &mut next).then_some(())
        };
        let all = if once { look() } else { self.waiter.briefly(look) };
        if all.is_none() {
            // Until it has claimed the group again, another thread could take this barrier for its
            // own.
            let continued_by = epoch::thread_key();
            state.active = Some(Active { arrived: true, continued_by, ..Active::new(BARRIER) });
            return None;
        }
        committed.step = step;
        if committed.ranks.len() > 1 {
            self.area.finish_step(group.index(), step);
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
        if self.is_local(rank) {
            self.area.arrival_slots(rank, group.index())
        } else {
            self.remote_arrivals.arrival_slots(rank, group.index())
        }
    }

    pub(crate) fn group_call(&self, group: GroupId, key: CallKey) -> Result<GroupCall<'_>> {
        self.check_open()?;
        let mut state = self.groups.claim(group)?;
        let CallState { committed, active, .. } = &mut *state;
        let Some(committed) = committed else {
            return Err(self.groups.not_committed(group));
        };
        let me = committed.me;
        match active {
            None => {
                if let Some(rank) = self.dead_among(&committed.ranks) {
                    return Err(self.died(rank, key.kind.name()));
                }
                *active = Some(Active::new(key));
            }
            Some(active) if ![0, epoch::thread_key()].contains(&active.continued_by) => {
                let active = "a collective of another thread".to_owned();
                return Err(Error::ActiveCollective { group, active });
            }
            Some(active) if active.key.is_same(&key) => active.continued_by = 0,
            Some(active) => {
                let active = (active.key.describe)(active.key.fingerprint);
                return Err(Error::ActiveCollective { group, active });
            }
        }
        Ok(GroupCall { inner: self, group, state, me, key, staged: 0 })
    }
}

/// Whether the members from `next` on, and so all, have arrived at `step` in one accord, as their
/// arrival slots tell.
#[inline]
fn have_arrived<'a>(
    ranks: &[Rank],
    slot: impl Fn(Rank) -> &'a ArrivalSlot<AtomicU64>,
    step: u64,
    fingerprint: u64,
    next: &mut usize,
) -> bool {
    for rank in &ranks[*next..] {
        if slot(*rank).poll(step) != Poll::Arrived(fingerprint) {
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
        let inner = self.inner();
        let mut call = inner.group_call(group, BARRIER)?;
        call.arrive(&[]);
        call.await_all(timeout.deadline())?;
        call.finish();
        inner.count(Counter::Barriers, 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
