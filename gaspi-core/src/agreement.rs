//! Steps that all members of a group take together, and the barrier (GASPI 17.1, 11).
//!
//! A step is one arrival line per member ([`Line`]): a rank publishes its own and waits for those of
//! all others. The line carries a fingerprint of the call, so that ranks that called different
//! things find out before they touch each other's data, and a small payload; behind it lies the
//! rank's staging. Barrier, segment create and the collectives are built on it.
//!
//! Invariants: one collective is active per group; one whose timeout ran out stays active and is
//! continued by the same call. A rank goes from step k to k + 1 only after it has read all lines of
//! k, so two lines (and two stages) alternate. After an error that is not a timeout the call has
//! ended on this rank.

use crate::error::{Error, Result};
use crate::fabric::peers::waiting_group;
use crate::group::CallState;
use crate::ids::{GroupId, Rank};
use crate::node::{STAGE_BYTES, news};
use crate::runtime::{Inner, Runtime};
use crate::statistics::Counter;
use crate::sync::line::{Line, Look, PAYLOAD_WORDS};
use crate::sync::{AtomicU64, Ordering, epoch};
use crate::timeout::{Deadline, Timeout};
use crate::wait::Call;
use std::marker::PhantomData;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Bytes that ride in a line.
pub const INLINE_MAX: usize = PAYLOAD_WORDS * WORD;
const WORD: usize = size_of::<u64>();

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
}

/// Bits of a fingerprint that hold the kind.
const KIND_BITS: u32 = 4;

impl CallKind {
    /// A fingerprint of this kind: the kind in the lowest 4 bits, `details` above.
    pub const fn fingerprint(self, details: u64) -> u64 {
        self as u64 | details << KIND_BITS
    }

    fn name(self) -> &'static str {
        match self {
            CallKind::Barrier => "barrier",
            CallKind::Allreduce => "allreduce",
            CallKind::AllreduceUser => "allreduce_user",
            CallKind::SegmentCreate => "segment_create",
            CallKind::SegmentUse => "segment_use",
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
        kind => format!("a collective of kind {kind}"),
    }
}

/// How long a mismatch waits for members that have not arrived.
const MISMATCH_LIMIT: Duration = Duration::from_secs(1);

/// How a step stands.
enum Scan {
    Done(Result<()>),
    /// Members have not arrived.
    Missing,
    /// Members have not arrived, and others differ already.
    Differs(Error),
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
}

impl Active {
    fn new(key: CallKey) -> Active {
        let (failure, differs_since) = (None, None);
        Active { key, arrived: false, continued_by: 0, cursor: 0, failure, differs_since }
    }
}

/// A range of memory that a peer may read or write at any time: pointer and length, without Rust
/// references.
#[derive(Debug, Clone, Copy)]
pub struct PeerSlice<'a> {
    pointer: *mut u8,
    len: usize,
    _life: PhantomData<&'a u8>,
}

impl PeerSlice<'_> {
    /// First byte, aligned to a cache line.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A collective under way on a group. Dropped without [`finish`](GroupCall::finish) it stays active,
/// and the same call continues it.
#[derive(Debug)]
pub struct GroupCall<'r> {
    inner: &'r Inner,
    group: GroupId,
    state: MutexGuard<'r, CallState>,
    me: usize,
    key: CallKey,
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
        if state.active.is_some() || self.check_open().is_err() {
            return None;
        }
        let step = committed.step + 1;
        let at = (step % 2) as usize;
        let line = |rank: Rank| &self.area.lines(rank, group.index())[at];
        line(self.rank).publish(step, BARRIER.fingerprint, &[]);
        for rank in committed.ranks.iter().filter(|rank| **rank != self.rank) {
            self.area.ring_for(*rank, news::ARRIVAL);
        }
        let mut next = 0;
        let mut look = || {
            let ranks = &committed.ranks;
            self.have_arrived(ranks, group, step, BARRIER.fingerprint, &mut next).then_some(())
        };
        let all = if once { look() } else { self.waiter.briefly(look) };
        if all.is_none() {
            // Until it has claimed the group again, another thread could take this barrier for its own.
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

    pub(crate) fn group_call(&self, group: GroupId, key: CallKey) -> Result<GroupCall<'_>> {
        self.check_open()?;
        let mut state = self.groups.claim(group)?;
        let Some(committed) = &state.committed else {
            return Err(self.groups.not_committed(group));
        };
        let me = committed.me;
        match &mut state.active {
            None => {
                state.active = Some(Active::new(key));
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
        Ok(GroupCall { inner: self, group, state, me, key })
    }

    /// Whether the members from `next` on, and so all, have arrived at `step` in one accord.
    #[inline]
    fn have_arrived(
        &self,
        ranks: &[Rank],
        group: GroupId,
        step: u64,
        fingerprint: u64,
        next: &mut usize,
    ) -> bool {
        for rank in &ranks[*next..] {
            let line = &self.area.lines(*rank, group.index())[(step % 2) as usize];
            if line.look(step) != Look::Arrived(fingerprint) {
                return false;
            }
            *next += 1;
        }
        true
    }
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

    /// How far the executor has come: 0 for a new call, kept across timeouts.
    pub fn cursor(&self) -> u64 {
        self.state.active.as_ref().map_or(0, |active| active.cursor)
    }

    /// Remembers how far the executor has come.
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

    /// Sequence of the last step that this rank has finished.
    fn step(&self) -> u64 {
        self.state.committed.as_ref().map_or(0, |committed| committed.step)
    }

    fn line(&self, member: usize, step: u64) -> &Line<AtomicU64> {
        &self.inner.area.lines(self.ranks()[member], self.group.index())[(step % 2) as usize]
    }

    /// Publishes this rank's next line with up to [`INLINE_MAX`] bytes of payload, and its staging.
    /// Does nothing where a continued call has published it already.
    pub fn arrive(&mut self, payload: &[u8]) {
        // SAFETY: the slice is readable.
        unsafe { self.arrive_with(payload.as_ptr(), payload.len()) }
    }

    /// [`arrive`](GroupCall::arrive) with `size` bytes of memory that others may write to.
    ///
    /// # Safety
    /// The bytes are readable.
    pub unsafe fn arrive_with(&mut self, payload: *const u8, size: usize) {
        assert!(size <= INLINE_MAX, "{size} bytes do not fit into a line");
        let step = self.step() + 1;
        match &mut self.state.active {
            Some(active) if !active.arrived => active.arrived = true,
            _ => return,
        }
        let words = size.div_ceil(WORD);
        let line = self.line(self.me, step);
        for (index, word) in line.payload.iter().enumerate().take(words) {
            // SAFETY: as the caller promises, for as many words as `size` has.
            word.store(unsafe { take_word(payload, size, index) }, Ordering::Relaxed);
        }
        line.publish(step, self.key.fingerprint, &[]);
        for rank in self.ranks().iter().filter(|rank| **rank != self.inner.rank) {
            self.inner.area.ring_for(*rank, news::ARRIVAL);
        }
    }

    /// Waits until all members have arrived as often as this rank.
    ///
    /// # Errors
    /// [`Error::Timeout`] leaves the call active. [`Error::Mismatch`] if a member arrived with
    /// another fingerprint; [`Error::RankDied`] and [`Error::RankLeft`] if one cannot arrive any
    /// more: these end the call on this rank.
    pub fn await_all(&mut self, deadline: Deadline) -> Result<()> {
        let step = self.step() + 1;
        let mut next = 0;
        if self.all_arrive_briefly(deadline, step, &mut next) {
            if let Some(committed) = &mut self.state.committed {
                committed.step = step;
            }
            if let Some(active) = &mut self.state.active {
                active.arrived = false;
            }
            return Ok(());
        }
        self.await_rest(deadline, step, &mut next)
    }

    /// Whether nothing but a brief look was needed.
    #[inline]
    fn all_arrive_briefly(&self, deadline: Deadline, step: u64, next: &mut usize) -> bool {
        let (inner, fingerprint) = (self.inner, self.key.fingerprint);
        let ranks = self.ranks();
        let mut look =
            || inner.have_arrived(ranks, self.group, step, fingerprint, next).then_some(());
        let all = match deadline {
            Deadline::Now => look(),
            _ => inner.waiter.briefly(look),
        };
        all.is_some()
    }

    /// The whole of waiting: for members that are late, differ, have died or left.
    #[cold]
    fn await_rest(&mut self, deadline: Deadline, step: u64, next: &mut usize) -> Result<()> {
        let outcome = match self.scan(step, next) {
            Scan::Done(outcome) => Some(outcome),
            Scan::Missing if deadline == Deadline::Now => None,
            Scan::Missing | Scan::Differs(_) => self.await_slowly(deadline, step, next),
        };
        let Some(outcome) = outcome else { return Err(self.timed_out(step)) };
        if let Some(committed) = &mut self.state.committed {
            committed.step = step;
        }
        match outcome {
            Ok(()) => {
                if let Some(active) = &mut self.state.active {
                    active.arrived = false;
                }
            }
            Err(_) => self.end(),
        }
        outcome
    }

    /// Waits for members that have not arrived; `None` once the deadline has passed. A mismatch is
    /// told when all are there, so that nobody gets ahead of a member that is still in the step
    /// before; but a member that never comes does not keep it back for long.
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
            _ => Call::Collective,
        };
        let (inner, waiting) = (self.inner, waiting_group(call, self.group));
        let seen = inner.until(deadline, waiting, || match self.scan(step, next) {
            Scan::Missing => None,
            seen => Some(seen),
        });
        let error = match seen? {
            Scan::Done(outcome) => return Some(outcome),
            Scan::Missing => return None,
            Scan::Differs(error) => error,
        };
        let now = Instant::now();
        let since = match &mut self.state.active {
            Some(active) => *active.differs_since.get_or_insert(now),
            None => now,
        };
        let left = MISMATCH_LIMIT.saturating_sub(now - since);
        let outcome =
            inner.until(deadline.at_most(left), waiting, || match self.scan(step, next) {
                Scan::Done(outcome) => Some(outcome),
                Scan::Missing | Scan::Differs(_) => None,
            });
        outcome.or_else(|| (since.elapsed() >= MISMATCH_LIMIT).then_some(Err(error)))
    }

    /// Looks at the lines of a step from member `next` on, which all before have arrived at.
    #[inline]
    fn scan(&self, step: u64, next: &mut usize) -> Scan {
        let (mut missing, mut passed, mut differs) = (false, None, None);
        for member in *next..self.ranks().len() {
            let (rank, line) = (self.ranks()[member], self.line(member, step));
            let mut look = line.look(step);
            if look == Look::Missing
                && let Err(error) = self.inner.check_alive(rank, self.key.kind.name())
            {
                // It may have arrived just before its end.
                look = line.look(step);
                if look == Look::Missing {
                    return Scan::Done(Err(error));
                }
            }
            match look {
                Look::Arrived(other) if other != self.key.fingerprint => {
                    differs = differs.or(Some((rank, other)));
                }
                Look::Arrived(_) if missing || passed.is_some() || differs.is_some() => {}
                Look::Arrived(_) => *next = member + 1,
                Look::Passed => passed = passed.or(Some(rank)),
                Look::Missing => missing = true,
            }
        }
        if !missing && passed.is_none() && differs.is_none() {
            return Scan::Done(Ok(()));
        }
        // Another thread may have ended this rank's part in the job.
        if let Err(error) = self.inner.check_open() {
            return Scan::Done(Err(error));
        }
        if let Some(rank) = self.inner.dead_among(self.ranks()) {
            // Also where it had arrived: survivors that know do not come any more.
            let pending = self.key.kind.name().to_owned();
            return Scan::Done(Err(Error::RankDied { rank, pending }));
        }
        match (differs, passed) {
            (Some((rank, other)), _) if missing => Scan::Differs(self.mismatch(rank, other)),
            (Some((rank, other)), _) => Scan::Done(Err(self.mismatch(rank, other))),
            (None, Some(rank)) => {
                let reason = "this collective failed there; its own error says why".to_owned();
                Scan::Done(Err(Error::Refused { rank, reason }))
            }
            (None, None) => Scan::Missing,
        }
    }

    #[cold]
    fn mismatch(&self, rank: Rank, other: u64) -> Error {
        let difference = format!(
            "{} called {}, {rank} called {}",
            self.inner.rank,
            (self.key.describe)(self.key.fingerprint),
            (self.key.describe)(other),
        );
        Error::Mismatch { group: self.group, difference }
    }

    #[cold]
    fn timed_out(&self, step: u64) -> Error {
        let missing: Vec<String> = (0..self.ranks().len())
            .filter(|member| self.line(*member, step).look(step) == Look::Missing)
            .take(8)
            .map(|member| self.ranks()[member].0.to_string())
            .collect();
        let kind = self.key.kind.name();
        let pending = format!("rank {} to arrive at {kind} of {}", missing.join(", "), self.group);
        Error::Timeout { pending }
    }

    /// The first byte of a member's payload, of the step awaited last. Valid until this rank's next
    /// arrival.
    pub fn status(&self, member: usize) -> u8 {
        let word = self.line(member, self.step()).payload[0].load(Ordering::Relaxed);
        word.to_ne_bytes()[0]
    }

    /// Copies the first bytes of a member's payload, of the step awaited last. Valid until this rank's
    /// next arrival.
    ///
    /// # Safety
    /// `size` bytes at `to` are writable.
    pub unsafe fn payload(&self, member: usize, to: *mut u8, size: usize) {
        assert!(size <= INLINE_MAX, "a payload has at most {INLINE_MAX} bytes");
        let words = size.div_ceil(WORD);
        let line = self.line(member, self.step());
        for (index, word) in line.payload.iter().enumerate().take(words) {
            // SAFETY: as the caller promises, for as many words as `size` has. Relaxed: the Acquire
            // of the line's sequence orders them.
            unsafe { put_word(to, size, index, word.load(Ordering::Relaxed)) };
        }
    }

    fn stage(&self, member: usize, step: u64) -> PeerSlice<'_> {
        let (rank, group) = (self.ranks()[member], self.group.index());
        let pointer = self.inner.area.stage(rank, group, (step % 2) as usize);
        PeerSlice { pointer, len: STAGE_BYTES, _life: PhantomData }
    }

    /// A member's staging that its next arrival will publish.
    pub fn next_stage(&self, member: usize) -> PeerSlice<'_> {
        self.stage(member, self.step() + 1)
    }

    /// A member's staging that the arrival awaited last has published. Valid until this rank's next
    /// arrival: a peer that has seen it may write there again.
    pub fn last_stage(&self, member: usize) -> PeerSlice<'_> {
        self.stage(member, self.step())
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
            self.inner.area.finish_step(self.group.index(), self.step());
        }
    }
}

/// Word `index` of `size` bytes, of which the last may be missing some.
///
/// # Safety
/// The bytes are readable and the word begins inside of them.
#[inline(always)]
unsafe fn take_word(from: *const u8, size: usize, index: usize) -> u64 {
    let (from, left) = (from.wrapping_add(index * WORD), size - index * WORD);
    if left >= WORD {
        // SAFETY: as promised.
        return unsafe { from.cast::<u64>().read_unaligned() };
    }
    let mut bytes = [0; WORD];
    // SAFETY: as promised.
    unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), left) };
    u64::from_ne_bytes(bytes)
}

/// The opposite of [`take_word`].
///
/// # Safety
/// The bytes are writable and the word begins inside of them.
#[inline(always)]
unsafe fn put_word(to: *mut u8, size: usize, index: usize, word: u64) {
    let (to, left) = (to.wrapping_add(index * WORD), size - index * WORD);
    if left >= WORD {
        // SAFETY: as promised.
        unsafe { to.cast::<u64>().write_unaligned(word) };
    } else {
        // SAFETY: as promised.
        unsafe { to.copy_from_nonoverlapping(word.to_ne_bytes().as_ptr(), left) };
    }
}

impl Runtime {
    /// Starts or continues a collective on `group`.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`] if it is not committed; [`Error::ActiveCollective`] while another
    /// thread is in a collective of the group, or another one is not finished.
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
        if self.swiftly(|inside| inside.barrier(group, once)).is_some() {
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
