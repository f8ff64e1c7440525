//! Queues: counting requests, completing them, keeping their failures (GASPI 17.1, 8.5).
//!
//! Slots, wait and purge exist once, above the transports. A request that is done when it is posted
//! only takes a slot; one that completes later is counted as pending and carries the queue's
//! generation, which a purge advances, so that late answers to purged requests are ignored
//! ([`InFlight`]). Counting takes no lock; only failures do.

mod procedures;

use crate::config::QUEUE_MAX;
use crate::error::{Error, Result};
use crate::ids::{QueueId, Rank};
use crate::sync::epoch::{self, Guard, Slot};
use crate::sync::in_flight::InFlight;
use crate::sync::lane::LaneCarrier;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::transport::endpoint::CarrierKind;
use crate::transport::verbs::LoneRun;
use std::collections::HashMap;
use std::sync::OnceLock;

/// Failures that nobody has been told of.
#[derive(Debug, Default)]
struct Failures {
    failed: u32,
    first_failure: String,
    /// To whom requests were lost with their connection, which nobody has been told of.
    lost: Vec<Rank>,
    /// The same where they have not been counted as failed yet; a rank for each run of them.
    losing: Vec<Rank>,
    /// How often that has happened at all.
    losses: HashMap<Rank, u64>,
}

/// The requests of a queue to one rank.
#[derive(Debug, Default)]
struct Lane {
    in_flight: InFlight<AtomicU64>,
    carrier: LaneCarrier<AtomicU64>,
}

/// Requests that were lost with their connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loss {
    pub(crate) requests: u32,
    /// Whether [`Queue::mark_losing`] has announced it.
    pub(crate) was_marked: bool,
}

/// A request that has been counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    /// That of the queue, which it belongs to.
    pub(crate) generation: u32,
    /// What carries the lane.
    pub(crate) carrier: CarrierKind,
}

/// In place of an owner: no thread has used the queue yet.
const NOBODY: usize = 0;
/// Several threads use the queue: they count atomically.
const EVERYBODY: usize = 1;
/// A thread is taking the queue from its owner.
const CHANGING: usize = 2;
/// The queue was deleted: it has no slots for anybody.
const DELETED: usize = 3;
/// How often a queue changes its owner before it belongs to everybody: a move costs microseconds.
const MOVES_MAX: u32 = 16;

/// One queue. All that can exist are there from the start; `exists` says which do.
///
/// The thread that uses a queue first owns its count and changes it by plain stores, in sections of
/// its slot; an atomic addition would cost more than all the rest of a small write. When a second
/// thread comes, it waits until the owner is in no section and becomes the owner itself; after some
/// such moves the queue belongs to everybody.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Queue {
    exists: AtomicBool,
    /// Requests under way, and whether there are failures.
    in_flight: InFlight<AtomicU64>,
    /// The same by target, made with the first one: a lane is a queue and a target.
    lanes: OnceLock<Box<[Lane]>>,
    /// Ranks of the job.
    ranks: u32,
    /// Whether there is anybody in its `lost`.
    has_lost: AtomicBool,
    /// Whether there has ever been anybody there.
    ever_lost: AtomicBool,
    /// Posted and not yet waited for.
    posted: AtomicU32,
    /// The address of a thread's slot, or one of the constants above.
    owner: AtomicUsize,
    /// How often it went from one thread to another.
    moves: AtomicU32,
    failures: Mutex<Failures>,
}

impl Queue {
    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock()
    }

    /// Whether the thread of `slot` owns the queue. Only in a section of it.
    #[inline(always)]
    fn is_owned(&self, slot: &Slot) -> bool {
        // Relaxed: whoever takes the queue away waits for the end of the section.
        self.owner.load(Ordering::Relaxed) == address(slot)
    }

    /// Takes slots; `None` if the queue is another thread's. Only in a section.
    #[inline(always)]
    pub(crate) fn reserve_fast(&self, slot: &Slot, slots: u32, limit: u32) -> Option<bool> {
        if !self.is_owned(slot) {
            return self.reserve_shared(slots, limit);
        }
        let sum = self.posted.load(Ordering::Relaxed) + slots;
        if sum <= limit {
            self.posted.store(sum, Ordering::Relaxed);
        }
        Some(sum <= limit)
    }

    /// Takes slots of a queue that belongs to everybody.
    #[cold]
    fn reserve_shared(&self, slots: u32, limit: u32) -> Option<bool> {
        match self.owner.load(Ordering::Acquire) {
            EVERYBODY => {}
            DELETED => return Some(false),
            _ => return None,
        }
        // Relaxed: the count orders nothing; completions are ordered by `in_flight`.
        let order = Ordering::Relaxed;
        let sum = |posted: u32| Some(posted + slots).filter(|sum| *sum <= limit);
        Some(self.posted.fetch_update(order, order, sum).is_ok())
    }

    /// Takes `slots` slots, all or none.
    pub(crate) fn reserve(&self, guard: &Guard, slots: u32, limit: u32) -> bool {
        loop {
            self.enter(guard.slot());
            // Another thread may have taken it again.
            let reserved = guard.section(|| self.reserve_fast(guard.slot(), slots, limit));
            if let Some(reserved) = reserved {
                return reserved;
            }
        }
    }

    /// Forgets what is posted, false if the queue is another thread's. Only in a section.
    #[inline(always)]
    pub(crate) fn reset_fast(&self, slot: &Slot) -> bool {
        let may = self.is_owned(slot) || self.owner.load(Ordering::Acquire) == EVERYBODY;
        if may {
            self.posted.store(0, Ordering::Relaxed);
        }
        may
    }

    /// Ends a run that alone is under way, and forgets what is posted, if both are the calling
    /// thread's. Only in a section.
    #[inline]
    pub(crate) fn end_run_fast(&self, slot: &Slot, run: LoneRun<'_>) -> Option<()> {
        if !self.is_owned(slot) {
            return None;
        }
        let generation = run.end(slot, |generation| self.in_flight.has_one_of(generation))?;
        self.complete(run.peer(), generation, 1, None);
        self.posted.store(0, Ordering::Relaxed);
        Some(())
    }

    /// Forgets what is posted.
    fn reset(&self, guard: &Guard) {
        self.enter(guard.slot());
        // Another thread may have taken it again.
        while !guard.section(|| self.reset_fast(guard.slot()))
            && self.owner.load(Ordering::Relaxed) != DELETED
        {
            self.enter(guard.slot());
        }
    }

    /// Makes the thread of `slot` the owner of the queue, unless it has had many or was deleted.
    fn enter(&self, slot: &Slot) {
        // AcqRel: takes over what a former owner counted.
        let change = |from, to| {
            self.owner.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        loop {
            match self.owner.load(Ordering::Acquire) {
                EVERYBODY | DELETED => return,
                NOBODY if change(NOBODY, address(slot)) => return,
                owner if owner == address(slot) => return,
                NOBODY => {}
                // A few instructions of another thread.
                CHANGING => std::thread::yield_now(),
                owner if change(owner, CHANGING) => {
                    // SAFETY: the address of a slot, and slots are never freed.
                    let owner = unsafe { &*(owner as *const Slot) };
                    owner.await_section();
                    let moves = self.moves.fetch_add(1, Ordering::Relaxed);
                    let next = if moves < MOVES_MAX { address(slot) } else { EVERYBODY };
                    self.owner.store(next, Ordering::Release);
                }
                _ => {}
            }
        }
    }

    /// So many requests that were posted have been waited for.
    fn release(&self, guard: &Guard, slots: u32) {
        let less = |posted: u32| Some(posted.saturating_sub(slots));
        loop {
            self.enter(guard.slot());
            // Another thread may have taken it again.
            let released = guard.section(|| match self.owner.load(Ordering::Acquire) {
                owner if owner == address(guard.slot()) => {
                    let posted = self.posted.load(Ordering::Relaxed);
                    self.posted.store(posted.saturating_sub(slots), Ordering::Relaxed);
                    true
                }
                EVERYBODY => {
                    let order = Ordering::Relaxed;
                    // Never refuses.
                    let _ = self.posted.fetch_update(order, order, less);
                    true
                }
                owner => owner == DELETED,
            });
            if released {
                return;
            }
        }
    }

    /// Has all threads count atomically, so that the caller may change the count without its slot.
    fn share(&self) {
        let inside = epoch::enter();
        loop {
            self.enter(inside.slot());
            let own = address(inside.slot());
            // Its own thread is in no section.
            let order = Ordering::AcqRel;
            match self.owner.compare_exchange(own, EVERYBODY, order, Ordering::Acquire) {
                Ok(_) | Err(EVERYBODY | DELETED) => return,
                // Another thread has taken it again.
                Err(_) => {}
            }
        }
    }

    /// Whether something may be pending or has failed.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.is_busy()
    }

    /// Requests under way to `rank`.
    fn lane(&self, rank: Rank) -> &Lane {
        let lanes = || (0..self.ranks).map(|_| Lane::default()).collect();
        &self.lanes.get_or_init(lanes)[rank.index()]
    }

    /// Counts a request that completes later. No lock.
    #[inline]
    pub(crate) fn begin(&self, rank: Rank, preferred: CarrierKind) -> Begun {
        let generation = self.in_flight.begin();
        let lane = self.lane(rank);
        lane.in_flight.begin_in(generation);
        Begun { generation, carrier: CarrierKind::of_number(lane.carrier.begin(preferred as u8)) }
    }

    /// Counts a run of requests as one, if this carrier may have it; its generation.
    pub(crate) fn begin_run(&self, rank: Rank, carrier: CarrierKind) -> Option<u32> {
        if self.has_lost(rank) {
            return None;
        }
        let begun = self.begin(rank, carrier);
        if begun.carrier != carrier {
            self.complete(rank, begun.generation, 1, None);
            return None;
        }
        Some(begun.generation)
    }

    /// What carries the requests to `rank`.
    pub(crate) fn carrier(&self, rank: Rank) -> &LaneCarrier<AtomicU64> {
        &self.lane(rank).carrier
    }

    /// Counts a further part of a request, unless it was purged.
    pub(crate) fn begin_more(&self, rank: Rank, begun: Begun) {
        let lane = self.lane(rank);
        // The request itself is under way, so that nothing else can carry it.
        lane.carrier.begin(begun.carrier as u8);
        if self.in_flight.begin_more(begun.generation) {
            lane.in_flight.begin_in(begun.generation);
        }
    }

    /// Whether requests to `rank` are under way, so that later ones have to queue behind them.
    pub(crate) fn is_pending(&self, rank: Rank) -> bool {
        self.pending_with(rank) > 0
    }

    /// How many requests to `rank` are under way.
    pub(crate) fn pending_with(&self, rank: Rank) -> u32 {
        match self.in_flight.count() {
            0 => 0,
            _ => self.lane(rank).in_flight.count_of(self.in_flight.generation()),
        }
    }

    /// Whether requests of this generation have not been purged.
    pub(crate) fn expects(&self, generation: u32) -> bool {
        self.in_flight.generation() == generation
    }

    /// Completes `count` requests begun earlier.
    pub(crate) fn complete(&self, rank: Rank, generation: u32, count: u32, failure: Option<&str>) {
        let lane = self.lane(rank);
        // Purged ones too: they were under way until now.
        lane.carrier.end(count);
        match failure {
            None => self.count_off(lane, generation, count),
            Some(reason) => {
                let mut failures = self.failures();
                if self.expects(generation) {
                    self.fail_locked(&mut failures, reason, count);
                    self.count_off(lane, generation, count);
                }
            }
        }
    }

    /// The lane first: where the queue is seen to be idle, so are its lanes.
    #[inline]
    fn count_off(&self, lane: &Lane, generation: u32, count: u32) {
        lane.in_flight.complete(generation, count);
        self.in_flight.complete(generation, count);
    }

    /// Completes `count` requests of this generation to `rank`, begun earlier, with which so many
    /// were lost with their connection: nothing that was to arrive behind them may.
    pub(crate) fn lose(
        &self,
        rank: Rank,
        generation: u32,
        (count, lost): (u32, Loss),
        reason: &str,
    ) {
        let lane = self.lane(rank);
        let mut failures = self.failures();
        let expected = self.expects(generation);
        if expected {
            let run = failures.losing.iter().position(|losing| *losing == rank);
            if let Some(run) = run.filter(|_| lost.was_marked) {
                failures.losing.swap_remove(run);
            }
            if !failures.lost.contains(&rank) {
                failures.lost.push(rank);
            }
            // Relaxed: who uses a connection that was made since has been told by the lock on it.
            self.has_lost.store(true, Ordering::Relaxed);
            *failures.losses.entry(rank).or_default() += 1;
            self.ever_lost.store(true, Ordering::Relaxed);
            self.fail_locked(&mut failures, reason, lost.requests);
        }
        // Behind the mark: the next request may have another carrier from here on.
        lane.carrier.end(count);
        if expected {
            self.count_off(lane, generation, count);
        }
    }

    /// Requests of this generation to `rank` are lost, and will be counted off by [`lose`] once:
    /// from here on nothing arrives that is posted behind them.
    ///
    /// [`lose`]: Queue::lose
    pub(crate) fn mark_losing(&self, rank: Rank, generation: u32) {
        let mut failures = self.failures();
        if self.expects(generation) {
            failures.losing.push(rank);
            // Relaxed: who posts next holds the lock of the lane that they were lost on.
            self.has_lost.store(true, Ordering::Relaxed);
        }
    }

    /// How often requests to `rank` were lost: while that stays the same, nothing of a call was.
    #[inline]
    pub(crate) fn losses(&self, rank: Rank) -> u64 {
        // Relaxed: a loss that is not seen yet is one that comes after this look.
        if self.ever_lost.load(Ordering::Relaxed) { self.count_losses(rank) } else { 0 }
    }

    #[cold]
    fn count_losses(&self, rank: Rank) -> u64 {
        self.failures().losses.get(&rank).copied().unwrap_or(0)
    }

    /// Whether requests to `rank` were lost with their connection and have not been purged.
    pub(crate) fn has_lost(&self, rank: Rank) -> bool {
        self.has_lost.load(Ordering::Relaxed) && self.looks_up_loss(rank)
    }

    #[cold]
    fn looks_up_loss(&self, rank: Rank) -> bool {
        let failures = self.failures();
        failures.lost.iter().chain(&failures.losing).any(|lost| *lost == rank)
    }

    /// Records a request that failed when it was posted.
    pub(crate) fn fail(&self, reason: &str) {
        self.fail_locked(&mut self.failures(), reason, 1);
    }

    /// Records that a request of this generation failed which is completed later; false if it was
    /// purged.
    pub(crate) fn fail_of(&self, generation: u32, reason: &str) -> bool {
        let mut failures = self.failures();
        let expected = self.expects(generation);
        if expected {
            self.fail_locked(&mut failures, reason, 1);
        }
        expected
    }

    fn fail_locked(&self, failures: &mut Failures, reason: &str, count: u32) {
        if failures.failed == 0 {
            reason.clone_into(&mut failures.first_failure);
        }
        failures.failed += count;
        self.in_flight.mark_failed(true);
    }

    /// Forgets all requests and failures; the generation of those to come.
    fn purge(&self) -> u32 {
        let generation = {
            let mut failures = self.failures();
            let losses = std::mem::take(&mut failures.losses);
            *failures = Failures { losses, ..Failures::default() };
            self.has_lost.store(false, Ordering::Relaxed);
            self.in_flight.purge()
        };
        // Without the lock, which handlers take: the owner may be in the middle of a large copy.
        self.reset(&epoch::enter());
        generation
    }

    /// What `wait` finds, `None` while requests are under way. Failures are told once.
    fn outcome(&self, id: QueueId) -> Option<Result<()>> {
        // A failure is marked before its request is counted off.
        let (count, failed) = self.in_flight.look();
        if !failed {
            return (count == 0).then_some(Ok(()));
        }
        let mut failures = self.failures();
        if failures.failed == 0 {
            return (self.in_flight.count() == 0).then_some(Ok(()));
        }
        // Once told, they are dealt with: what is posted from now on is not behind what was lost.
        let failed = std::mem::take(&mut failures.failed);
        let reason = std::mem::take(&mut failures.first_failure);
        failures.lost.clear();
        self.has_lost.store(!failures.losing.is_empty(), Ordering::Relaxed);
        self.in_flight.mark_failed(false);
        Some(Err(Error::RequestFailed { queue: id, failed, reason }))
    }

    /// How many requests are under way.
    pub(crate) fn pending(&self) -> u32 {
        self.in_flight.count()
    }
}

fn address(slot: &Slot) -> usize {
    std::ptr::from_ref(slot) as usize
}

/// The queues of a fresh rank.
pub(crate) fn queues(existing: u32, ranks: u32) -> [Queue; QUEUE_MAX as usize] {
    std::array::from_fn(|index| Queue {
        exists: AtomicBool::new((index as u32) < existing),
        in_flight: InFlight::default(),
        lanes: OnceLock::new(),
        ranks,
        has_lost: AtomicBool::new(false),
        ever_lost: AtomicBool::new(false),
        posted: AtomicU32::new(0),
        owner: AtomicUsize::new(NOBODY),
        moves: AtomicU32::new(0),
        failures: Mutex::default(),
    })
}

#[cfg(test)]
mod tests;
