//! The ranks of a job as this one sees them, and the one record of who has died, left or is
//! corrupt (GASPI 17.1, 5.5).
//!
//! A transport that hears of an end, a handler and a chapter all write here and read here.
//!
//! Invariants: when a call returns an error because of a rank, that rank is corrupt for this one
//! already. Nothing of the memory of the dead can be reached before anybody is told of the death,
//! and no later call succeeds on them. Nothing here waits, but for
//! [`may_have_ended`](Ranks::may_have_ended), which calls only.

use crate::bootstrap::Cards;
use crate::error::{self, Error, Result};
use crate::ids::{Rank, SegmentId};
use crate::os::event::Wakeup;
use crate::os::process;
use crate::os::temporary;
use crate::policy::rank_tree::Order;
use crate::segment::published::Published;
use crate::segment::table::{Table, Tables};
use crate::segment::{ARENA, Target};
use crate::sync::by_rank::ByRank;
use crate::sync::epoch::{self, Retired};
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering};
use crate::timeout::Deadline;
use crate::transport::shm::area::{ReadEnds, SharedArea, liveness};
use crate::wire::message::MemoryKey;
use crate::wire::shared_layout::AREA_PATH;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How a rank has been seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No request to it failed.
    Healthy,
    /// A request to it failed, or it has died.
    Corrupt,
}

/// How a rank has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Died,
    /// Or is about to leave.
    Left,
}

/// How long a process may take to end once its memory and its descriptors are gone.
const END_LIMIT: Duration = Duration::from_millis(20);

/// Nothing has failed.
const HEALTHY: u8 = 0;
/// A request has failed.
const FAILED: u8 = 1;
/// The rank has died: final.
const DEAD: u8 = 2;

/// What a rank has that has made no segment known.
static NO_TARGETS: Table<Target> = Table::new();

/// All ranks of the job, by number.
#[derive(Debug)]
pub(crate) struct Ranks {
    /// This rank.
    pub(crate) me: Rank,
    /// How many there are.
    pub(crate) size: u32,
    /// What each has told of itself: the same memory for all ranks of a machine.
    pub(crate) cards: Cards,
    /// Who is of which node, once that was asked for.
    order: OnceLock<Arc<Order>>,
    /// Which ranks are of this rank's node.
    local: Box<[bool]>,
    /// What the ranks of a node share, their liveness among it.
    pub(crate) area: SharedArea,
    /// Descriptors of processes of this node, as far as they are watched or were asked for.
    pub(crate) processes: ByRank<OnceLock<OwnedFd>>,
    /// Their segments as this rank reaches them.
    pub(crate) targets: Tables<Target>,
    /// Targets that were replaced and not freed yet.
    pub(crate) retired: Retired,
    /// Wakes the progress thread, which frees them.
    thread: Arc<Wakeup>,
    /// How requests to them went: one byte each.
    states: Box<[AtomicU8]>,
    /// The ends of processes of this node that the progress thread has handled.
    ends: AtomicU64,
    /// Ranks of other nodes that have said goodbye on a connection.
    leaving: Mutex<Leaving>,
    /// How many these are.
    goodbyes: AtomicU64,
}

#[derive(Debug, Default)]
struct Leaving {
    all: HashSet<Rank>,
    /// In the order of the goodbyes.
    log: Vec<Rank>,
}

/// Which ends somebody has been given.
#[derive(Debug, Default)]
pub(crate) struct KnownEnds {
    /// Those of which the node knows.
    pub(crate) area: ReadEnds,
    /// How many goodbyes.
    pub(crate) goodbyes: usize,
}

impl Ranks {
    pub(crate) fn new(me: Rank, cards: Cards, area: SharedArea, thread: Arc<Wakeup>) -> Ranks {
        let node = cards.at(me).node();
        let size = cards.len() as u32;
        Ranks {
            me,
            size,
            order: OnceLock::new(),
            local: cards.iter().map(|card| card.node() == node).collect(),
            cards,
            area,
            processes: ByRank::new(size),
            targets: Tables::new(size, &NO_TARGETS),
            retired: Retired::default(),
            thread,
            states: (0..size).map(|_| AtomicU8::new(HEALTHY)).collect(),
            ends: AtomicU64::new(0),
            leaving: Mutex::default(),
            goodbyes: AtomicU64::new(0),
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.size).map(|rank| Rank(rank as u16))
    }

    /// Whether `rank` is of this rank's node, itself included.
    #[inline]
    pub(crate) fn is_local(&self, rank: Rank) -> bool {
        self.local[rank.index()]
    }

    /// Who is of which node: one list for all that need it.
    pub(crate) fn order(&self) -> &Arc<Order> {
        let by_name = || self.cards.iter().map(|card| [card.node(), card.rank().0.into()]);
        let order = || temporary::with_pairs(self.cards.len(), by_name(), Order::sorting);
        self.order.get_or_init(order)
    }

    /// Whether `rank` runs on the same machine as this rank, perhaps as another node.
    pub(crate) fn shares_machine(&self, rank: Rank) -> bool {
        self.cards.at(rank).machine() == self.cards.at(self.me).machine()
    }

    /// Its host, for messages.
    pub(crate) fn host_of(&self, rank: Rank) -> &str {
        self.cards.at(rank).host()
    }

    #[inline]
    pub(crate) fn check_rank(&self, rank: Rank) -> Result<()> {
        if u32::from(rank.0) < self.size {
            return Ok(());
        }
        let reason = format!("the job has ranks 0 to {}", self.size - 1);
        Err(Error::InvalidRank { rank, reason })
    }

    /// Wakes the threads of this rank that wait.
    #[inline]
    pub(crate) fn wake_own(&self) {
        self.area.wake(self.me);
    }
}

/// The record.
impl Ranks {
    /// Where `rank` is in its life.
    #[inline]
    pub(crate) fn liveness(&self, rank: Rank) -> u32 {
        self.area.liveness(rank)
    }

    /// How requests to `rank` went, its death included.
    pub(crate) fn state(&self, rank: Rank) -> State {
        match self.liveness(rank) {
            // A caller that reads it here has been told.
            liveness::DEAD => self.note_death(rank),
            // What failed may have been on its way when it left.
            liveness::LEFT => return State::Healthy,
            _ => {}
        }
        match self.states[rank.index()].load(Ordering::Relaxed) {
            HEALTHY => State::Healthy,
            // The same, before all connections with it are at their end.
            FAILED if self.is_leaving(rank) => State::Healthy,
            _ => State::Corrupt,
        }
    }

    /// Errors if `rank` has died or left; `pending` is what needs it.
    #[inline]
    pub(crate) fn check_alive(&self, rank: Rank, pending: &str) -> Result<()> {
        self.check_alive_with(rank, || pending.to_owned())
    }

    /// The same, where it takes time to say what is pending.
    #[inline]
    pub(crate) fn check_alive_with(
        &self,
        rank: Rank,
        pending: impl FnOnce() -> String,
    ) -> Result<()> {
        match self.liveness(rank) {
            liveness::DEAD => Err(self.died(rank, &pending())),
            liveness::LEFT => Err(Error::RankLeft { rank, pending: pending() }),
            _ => Ok(()),
        }
    }

    /// The one of `ranks` that has died first, as far as is known here.
    #[inline]
    pub(crate) fn dead_among(&self, ranks: &[Rank]) -> Option<Rank> {
        if self.area.all_live() { None } else { self.find_dead(ranks) }
    }

    #[cold]
    fn find_dead(&self, ranks: &[Rank]) -> Option<Rank> {
        self.first_dead(ranks.iter().copied())
    }

    fn first_dead(&self, ranks: impl Iterator<Item = Rank>) -> Option<Rank> {
        let dead = ranks.filter(|rank| self.liveness(*rank) == liveness::DEAD);
        dead.min_by_key(|rank| self.area.end_order(*rank))
    }

    /// Who has died before `rank` and all others, as far as is known here: `rank` may have ended
    /// for that reason.
    #[cold]
    fn died_before(&self, rank: Rank) -> Option<Rank> {
        let others = self.all().filter(|other| *other != self.me);
        self.first_dead(others).filter(|first| *first != rank)
    }

    /// The death of `rank` in words.
    #[cold]
    pub(crate) fn death_of(&self, rank: Rank) -> String {
        let first = error::died_first(self.died_before(rank));
        format!("{rank} has died on {}{first}", self.host_of(rank))
    }

    /// The death of `rank`, which `pending` needs. Before anybody is told, no call of this rank
    /// succeeds on the dead any more.
    #[cold]
    pub(crate) fn died(&self, rank: Rank, pending: &str) -> Error {
        self.note_death(rank);
        let host = self.host_of(rank).to_owned();
        let first = self.died_before(rank);
        Error::RankDied { rank, host, first, pending: pending.to_owned() }
    }

    /// `rank` has deleted `segment`, which `pending` needs: it may be about to leave.
    #[cold]
    pub(crate) fn deleted(&self, rank: Rank, segment: SegmentId, pending: &str) -> Error {
        match self.check_alive(rank, pending) {
            Err(error) => error,
            Ok(()) if self.is_leaving(rank) => {
                Error::RankLeft { rank, pending: pending.to_owned() }
            }
            Ok(()) => self.refused(rank, format!("it has deleted {segment}")),
        }
    }

    /// `rank` has not done what this rank needs, or cannot be reached.
    #[cold]
    pub(crate) fn refused(&self, rank: Rank, reason: impl Into<String>) -> Error {
        self.set_corrupt(rank);
        Error::Refused { rank, reason: reason.into() }
    }

    /// A call or request failed because of `rank`: to be said before the failure can be seen. One
    /// that has left is not at fault.
    pub(crate) fn set_corrupt(&self, rank: Rank) {
        match self.liveness(rank) {
            _ if rank == self.me => return,
            liveness::LEFT => return,
            liveness::DEAD => return self.note_death(rank),
            _ => {}
        }
        // Fails where it is corrupt already, or has died.
        let order = Ordering::Relaxed;
        let _ = self.states[rank.index()].compare_exchange(HEALTHY, FAILED, order, order);
    }

    /// A path to `rank` works again.
    pub(crate) fn mend(&self, rank: Rank) {
        // Fails where the rank has died.
        let order = Ordering::Relaxed;
        let _ = self.states[rank.index()].compare_exchange(FAILED, HEALTHY, order, order);
    }

    /// `rank` is known to have died: from now on no call of this rank succeeds on it.
    #[cold]
    pub(crate) fn note_death(&self, rank: Rank) {
        // Acquire: pairs with the Release below, also of another thread.
        if self.states[rank.index()].load(Ordering::Acquire) == DEAD {
            return;
        }
        self.forget_targets(rank);
        // Last: a thread that sees it need not look whether anything of the dead can be reached.
        self.states[rank.index()].store(DEAD, Ordering::Release);
    }

    /// The process of `rank` has ended: it is dead unless it left. True if this call made it so.
    pub(crate) fn note_end(&self, rank: Rank) -> bool {
        let marked = self.area.mark_dead(rank);
        if self.liveness(rank) == liveness::DEAD {
            self.note_death(rank);
        }
        marked
    }

    /// The memory or a connection of `rank` is gone: most likely its process is ending, which its
    /// descriptor tells a moment later. A main thread may also end before others; then it lives.
    pub(crate) fn may_have_ended(&self, rank: Rank) {
        let limit = Deadline::Never.at_most(END_LIMIT);
        loop {
            match self.process_has_ended(rank) {
                Some(false) => {}
                Some(true) => {
                    self.note_end(rank);
                    return;
                }
                None => return,
            }
            if self.liveness(rank) != liveness::JOINED {
                return;
            }
            if limit.passed() {
                let pid = self.cards.at(rank).pid();
                // It has called execve.
                if process::maps_nothing_of(pid, AREA_PATH) == Some(true) {
                    self.note_end(rank);
                }
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Whether the process of `rank`, of this node, has ended; `None` where that cannot be told at
    /// once.
    pub(crate) fn process_has_ended(&self, rank: Rank) -> Option<bool> {
        let kept = self.processes.of(rank.index());
        if let Some(pidfd) = kept.get() {
            return Some(process::has_ended(pidfd));
        }
        let card = self.cards.at(rank);
        let pid = card.pid();
        if !self.is_local(rank) || pid == 0 || pid == self.cards.at(self.me).pid() {
            return None;
        }
        match process::open(pid, card.start_time()) {
            Ok(Some(pidfd)) => {
                let ended = process::has_ended(&pidfd);
                // Another thread may have been faster.
                let _ = kept.set(pidfd);
                Some(ended)
            }
            Ok(None) => Some(true),
            Err(_) => None,
        }
    }

    /// The end of a process of this node has been handled by the progress thread, up to this
    /// [`SharedArea::ends`].
    pub(crate) fn note_ends(&self, ends: u64) {
        self.ends.store(ends, Ordering::Relaxed);
    }

    /// Wakes the progress thread if a rank of this node has ended that it does not know of, since
    /// another one has noticed. Gives the ends that it has been woken for, which the caller, who
    /// waits, gives the next time.
    #[inline]
    pub(crate) fn pass_on_ends(&self, told: u64) -> u64 {
        let ends = self.area.ends();
        if ends != told && ends != self.ends.load(Ordering::Relaxed) {
            self.thread.wake();
        }
        ends
    }

    /// `peer`, of another node, leaves the job. It has left once all connections with it are at
    /// their end.
    pub(crate) fn note_goodbye(&self, peer: Rank) {
        let mut leaving = self.leaving.lock();
        if leaving.all.insert(peer) {
            leaving.log.push(peer);
            self.goodbyes.fetch_add(1, Ordering::Release);
        }
    }

    /// Two numbers of which one is another one whenever a rank is known to have ended of which that
    /// was not known.
    pub(crate) fn known_ends(&self) -> (u64, u64) {
        // Acquire: pairs with the Release in `note_goodbye`.
        (self.area.ends(), self.goodbyes.load(Ordering::Acquire))
    }

    /// The others that are known to have ended and were not given as `known` already; those that
    /// have died in that order, as far as is known here. One that has left may be given again once
    /// it is dead.
    pub(crate) fn ended_since(&self, known: &mut KnownEnds) -> Vec<(Rank, End)> {
        let leaving = self.leaving.lock();
        let left = leaving.log[known.goodbyes..].iter().map(|rank| (*rank, End::Left));
        known.goodbyes = leaving.log.len();
        let of_area = self.area.ends_since(&mut known.area).into_iter();
        let of_area = of_area.filter(|(rank, _)| *rank != self.me).map(|(rank, life)| match life {
            liveness::DEAD => (rank, End::Died),
            _ => (rank, End::Left),
        });
        left.chain(of_area).collect()
    }

    /// Whether `peer` has said goodbye.
    pub(crate) fn is_leaving(&self, peer: Rank) -> bool {
        self.leaving.lock().all.contains(&peer)
    }

    /// How `rank` has ended, in words, if it has.
    #[cold]
    pub(crate) fn end_of(&self, rank: Rank) -> Option<String> {
        match self.liveness(rank) {
            liveness::DEAD => Some(self.death_of(rank)),
            liveness::LEFT => Some(format!("{rank} has left the job by proc_term")),
            _ if self.is_leaving(rank) => Some(format!("{rank} has left the job by proc_term")),
            _ => None,
        }
    }

    /// `rank`, which `pending` needs, has left, as another one says: its goodbye may come later.
    #[cold]
    pub(crate) fn reported_left(&self, rank: Rank, pending: String) -> Error {
        self.note_goodbye(rank);
        Error::RankLeft { rank, pending }
    }

    /// `reporter` says that `rank`, which `pending` needs, has died. Death is final for the job, so
    /// that is true for this rank too, whose own connections may tell it later.
    #[cold]
    pub(crate) fn reported_death(&self, rank: Rank, reporter: Rank, pending: &str) -> Error {
        if rank == self.me {
            return self.refused(reporter, "it takes this rank for dead");
        }
        if self.check_rank(rank).is_err() {
            return self.refused(reporter, "it reports the death of a rank that does not exist");
        }
        if self.is_leaving(rank) {
            return Error::RankLeft { rank, pending: pending.to_owned() };
        }
        if self.liveness(rank) != liveness::LEFT && self.area.mark_dead(rank) {
            log::warn!("{rank} on {} has died, as {reporter} reports", self.host_of(rank));
        }
        match self.check_alive(rank, pending) {
            Err(error) => error,
            // It was just about to leave.
            Ok(()) => self.refused(rank, format!("{reporter} reports that it has died")),
        }
    }
}

/// Their segments.
impl Ranks {
    /// The segments of `rank` as this rank reaches them.
    pub(crate) fn targets_of(&self, rank: Rank) -> &Table<Target> {
        self.targets.make(rank)
    }

    /// The generation of a peer's segment that this rank can use. One that is not mapped yet is
    /// none.
    pub(crate) fn target_generation(&self, peer: Rank, segment: SegmentId) -> Option<u32> {
        let known = self.targets_of(peer).get_arc(segment)?;
        (known.alive() && known.is_published().is_none()).then_some(known.generation)
    }

    /// A peer of this node has published a segment, unless it is mapped already or the peer has
    /// died.
    pub(crate) fn learn_published(&self, peer: Rank, segment: SegmentId, published: Published) {
        let _changes = self.targets.changes();
        let is_mapped = self.target_generation(peer, segment) == Some(published.generation);
        if !is_mapped && self.liveness(peer) != liveness::DEAD {
            self.replace_target(peer, segment, Target::published(published));
        }
    }

    /// A published segment is what mapping it has brought, unless another thread was faster.
    pub(crate) fn learn_mapped(&self, peer: Rank, segment: SegmentId, target: Target) {
        let _changes = self.targets.changes();
        let known = self.targets_of(peer).get_arc(segment);
        let is_it = |known: &Arc<Target>| known.is_published().is_some();
        if known.is_some_and(|known| is_it(&known) && known.generation == target.generation) {
            self.replace_target(peer, segment, target);
        }
    }

    /// A segment of `rank`, if it was made known to this rank.
    #[inline]
    pub(crate) fn target<'g>(
        &self,
        rank: Rank,
        segment: SegmentId,
        inside: &'g epoch::Guard,
    ) -> Option<&'g Target> {
        self.targets.of(rank).and_then(|table| table.get(segment, inside))
    }

    /// The key by which this rank's device reaches a peer's segment, of another node, if it still
    /// knows that one and nothing else by that number.
    pub(crate) fn learn_key(
        &self,
        peer: Rank,
        segment: SegmentId,
        generation: u32,
        key: MemoryKey,
    ) {
        let _changes = self.targets.changes();
        let known = self.targets_of(peer).get_arc(segment);
        let known = known.filter(|known| known.alive() && known.generation == generation);
        if let Some(known) = known.filter(|_| self.liveness(peer) != liveness::DEAD) {
            let target = Target::remote((known.size, generation), Some(key));
            self.replace_target(peer, segment, target);
        }
    }

    /// A peer's segment from now on, unless the peer has died.
    ///
    /// # Errors
    /// In words, if it has.
    pub(crate) fn learn_target(
        &self,
        peer: Rank,
        segment: SegmentId,
        target: Target,
    ) -> Result<(), String> {
        // A thread that notes a death afterwards finds it; nobody is to reach the memory of the
        // dead.
        let _changes = self.targets.changes();
        if self.liveness(peer) == liveness::DEAD {
            return Err(format!("{peer} has died"));
        }
        self.replace_target(peer, segment, target);
        Ok(())
    }

    /// Forgets a peer's segment: later accesses fail. With a generation, only that one. Arenas are
    /// the channels' affair.
    pub(crate) fn forget_target(&self, peer: Rank, segment: SegmentId, generation: Option<u32>) {
        let _changes = self.targets.changes();
        self.forget_locked(peer, segment, generation);
    }

    /// The same for who holds the lock of changes.
    fn forget_locked(&self, peer: Rank, segment: SegmentId, generation: Option<u32>) {
        debug_assert!(segment != ARENA);
        let Some(known) = self.targets_of(peer).get_arc(segment) else { return };
        if generation.is_none_or(|generation| generation == known.generation) {
            let gone = Target::gone(known.size, known.generation);
            drop(known);
            self.replace_target(peer, segment, gone);
        }
    }

    /// Nothing of the memory of `rank` can be reached any more.
    pub(crate) fn forget_targets(&self, rank: Rank) {
        let _changes = self.targets.changes();
        for segment in self.targets_of(rank).ids().collect::<Vec<_>>() {
            self.forget_locked(rank, segment, None);
        }
    }

    fn replace_target(&self, peer: Rank, segment: SegmentId, target: Target) {
        let table = self.targets_of(peer);
        if table.replace_later(segment, Some(Arc::new(target)), &self.retired) {
            self.thread.wake();
        }
    }
}
