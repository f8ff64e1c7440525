//! The memory that all ranks of a node map: control pages, passive slots, arrival slots.
//!
//! One memory file per job and node, made by the exchange server, sparse: only what is used
//! takes memory. It is laid out for the ranks of the node, by their numbers there ([`numbers`]). Of
//! all ranks of the job, whichever node they are on, it has but a few words, where the node keeps
//! what it knows of their lives. What ranks of other nodes send to a group's members is kept in
//! [`crate::remote_arrivals`].
//! Each part has one writer (a control page: its rank, but for its wakeup and a count of ranks that
//! have closed; a liveness word: its rank, and whoever notices a death; a passive or arrival slot:
//! its sender), so a process that dies leaves nothing locked. Where each part lies is in
//! [`crate::wire::shared_layout`].

use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::memory::{Mapping, check_sealed};
use crate::os::{futex, memory, process};
use crate::sync::arrival_slot::ArrivalSlot;
use crate::sync::eventcount::EventCount;
use crate::sync::membarrier::{self, Light};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::transport::shm::area::arenas::Arenas;
use crate::transport::shm::area::numbers::{Numbers, Parts};
use crate::transport::shm::job_label::JobLabel;
use crate::transport::shm::pairs::PairWords;
use crate::transport::shm::wakeup::WakeupSockets;
use crate::wire::shared_layout::{
    ARRIVAL_SLOT_BYTES, CONTROL_PAGE_BYTES, LIVENESS_BYTES, OUTBOX_BUFFERS, PASSIVE_SLOT_BYTES,
    SharedLayout,
};
use std::os::fd::{AsFd, OwnedFd};

/// Where a rank is in its life. Written by the rank itself, and `DEAD` by whoever notices.
pub(crate) mod liveness {
    /// Has not joined yet.
    pub(crate) const ABSENT: u32 = 0;
    /// Takes part.
    pub(crate) const JOINED: u32 = 1;
    /// Has left by proc_term.
    pub(crate) const LEFT: u32 = 2;
    /// Ended without proc_term. Final.
    pub(crate) const DEAD: u32 = 3;
}

/// What a sleeper can wait for, one bit each, so that it is not woken for what others wait for.
pub(crate) mod wake_kind {
    /// A notification was set.
    pub(crate) const NOTIFICATION: u32 = 1;
    /// A rank has arrived at a step of a collective.
    pub(crate) const ARRIVAL: u32 = 2;
    /// Everything else.
    pub(crate) const OTHER: u32 = 4;
    /// What everybody has to look at, as for instance a death.
    pub(crate) const ANY: u32 = NOTIFICATION | ARRIVAL | OTHER;
}

/// Threads of a rank that can tell at once what they wait for; further ones sleep untold.
const NOTES: usize = 16;

/// What a sleeping thread of a rank waits for; written before it sleeps, read by tools.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Note {
    /// The call, 0 while the note is free, [`NOTE_TAKEN`] while it is being written.
    pub(crate) call: AtomicU32,
    /// Segment, group or queue of the call.
    pub(crate) object: AtomicU32,
    /// CLOCK_MONOTONIC in milliseconds.
    pub(crate) since_ms: AtomicU64,
}

#[repr(C, align(64))]
struct WakeupWords {
    sequence: AtomicU32,
    /// The [`wake_kind`] that somebody sleeps for.
    awaited: AtomicU32,
    /// How many sleep on their sockets instead of the futex.
    on_sockets: AtomicU32,
}

impl WakeupWords {
    fn eventcount(&self) -> EventCount<'_, AtomicU32> {
        EventCount { sequence: &self.sequence, awaited: &self.awaited }
    }
}

#[repr(C, align(4096))]
struct ControlPage {
    /// Whether this process can use membarrier; valid once joined.
    membarrier: AtomicU32,
    /// Bytes that this rank is about to touch, for the others' checks of free memory.
    claimed: AtomicU64,
    /// See [`process::descriptor_domain`]; valid once joined.
    descriptor_domain: AtomicU64,
    wakeup: WakeupWords,
    notes: [Note; NOTES],
    pairs: PairWords,
    /// Whether this rank can map the arenas behind the area; valid once joined.
    maps_arenas: AtomicU32,
    /// Whether this rank, which has left, uses no arena any more.
    has_closed: AtomicU32,
    /// In the page of the first rank of the node: for how many of its ranks that is so.
    all_closed: AtomicU32,
}

/// No number of a call.
pub(crate) const NOTE_TAKEN: u32 = u32::MAX;

/// One passive message between two ranks: written by the sender, taken by the receiver.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct PassiveSlot {
    pub(crate) word: AtomicU64,
    pub(crate) size: AtomicU32,
    pub(crate) buffer: AtomicU32,
}

/// Memory that is about to be touched.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    claimed: &'a AtomicU64,
    bytes: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claimed.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// A thread of this rank sleeps on its sockets.
#[derive(Debug)]
pub(crate) struct OnSockets<'a> {
    word: &'a AtomicU32,
}

impl Drop for OnSockets<'_> {
    fn drop(&mut self) {
        self.word.fetch_sub(1, Ordering::Relaxed);
    }
}

// The layout gives each type its place.
const _: () = {
    assert!(size_of::<ControlPage>() == CONTROL_PAGE_BYTES);
    assert!(size_of::<ArrivalSlot<AtomicU64>>() == ARRIVAL_SLOT_BYTES);
    assert!(size_of::<PassiveSlot>() == PASSIVE_SLOT_BYTES);
    assert!(size_of::<AtomicU32>() == LIVENESS_BYTES);
};

/// So many bytes of a file that has room for all of `layout`.
fn map(fd: &OwnedFd, layout: SharedLayout, bytes: u64) -> Result<Mapping> {
    check_sealed(fd.as_fd(), layout.bytes()).map_err(|_| Error::Meeting {
        reason: "the launcher and this program use different versions of this library".to_owned(),
    })?;
    let mapping = Mapping::new(fd.as_fd(), 0, bytes)
        .map_err(|error| Error::mapping("mapping the shared area", bytes, &error))?;
    mapping.keep_from_core_dumps();
    Ok(mapping)
}

/// The shared area as one rank maps it.
#[derive(Debug)]
pub(crate) struct SharedArea {
    mapping: Mapping,
    layout: SharedLayout,
    /// Where the part of each rank lies.
    parts: Parts,
    own: Rank,
    /// The ranks of this node, ascending, and the numbers that they have there.
    locals: Box<[Rank]>,
    /// How far the log of ends is known to be written.
    logged: AtomicU32,
    /// Which ranks of other nodes have said goodbye to this one.
    left: Box<[AtomicBool]>,
    /// Where ranks of this node are woken that sleep on their sockets; none where no rank does.
    wakeup_sockets: Option<WakeupSockets>,
    /// Set once every process of the node has said that it can use membarrier.
    membarrier: AtomicBool,
    /// The parts of how many bytes behind that of the first rank can be found by a product, and
    /// their ranks be woken without a fence: none before that is set.
    unfenced: AtomicU64,
    /// Where arenas may lie behind the area.
    arenas: Option<Arenas>,
    /// By which tools find this process.
    _label: Option<JobLabel>,
}

impl SharedArea {
    /// Maps the area of the node that `locals` are on, in a job of `ranks` ranks; `own` is the rank
    /// that maps it.
    pub(crate) fn map(
        fd: &OwnedFd,
        ranks: u32,
        group_max: u32,
        own: Rank,
        locals: Box<[Rank]>,
    ) -> Result<SharedArea> {
        let layout = SharedLayout::new(ranks, group_max).of_node(locals.len() as u32);
        let arenas = Arenas::behind(fd, layout, locals.len());
        let numbers = Numbers::of(&locals);
        let number = numbers.of_rank(own);
        let mapping = map(fd, layout, layout.bytes())?;
        let area = SharedArea { arenas, ..SharedArea::new(mapping, layout, own, locals, numbers) };
        // Nothing else is published by it: what tools then look at is zero, or of this rank.
        area.number_word(own).store(number.0, Ordering::Relaxed);
        Ok(area)
    }

    fn new(
        mapping: Mapping,
        layout: SharedLayout,
        own: Rank,
        locals: Box<[Rank]>,
        numbers: Numbers,
    ) -> SharedArea {
        let ranks = layout.ranks();
        let remote = if locals.len() < ranks as usize { ranks } else { 0 };
        let parts = Parts::new(&mapping, layout, numbers, own);
        SharedArea {
            mapping,
            layout,
            parts,
            own,
            locals,
            logged: AtomicU32::new(0),
            left: (0..remote).map(|_| AtomicBool::new(false)).collect(),
            wakeup_sockets: None,
            membarrier: AtomicBool::new(false),
            unfenced: AtomicU64::new(0),
            arenas: None,
            _label: None,
        }
    }

    /// The same in a process that says, to tools, which rank of which job it is.
    pub(crate) fn labelled(self, job: &str) -> SharedArea {
        SharedArea { _label: JobLabel::show(job, self.own), ..self }
    }

    /// The same for ranks of which some sleep on their sockets.
    pub(crate) fn with_wakeup_sockets(self, wakeup_sockets: WakeupSockets) -> SharedArea {
        SharedArea { wakeup_sockets: Some(wakeup_sockets), ..self }
    }

    /// An area of its own for a job of one rank.
    pub(crate) fn single(group_max: u32) -> Result<SharedArea> {
        SharedArea::alone(1, group_max, Rank(0))
    }

    /// That of a rank with a node of its own, in a job of so many.
    pub(crate) fn alone(ranks: u32, group_max: u32, own: Rank) -> Result<SharedArea> {
        let layout = SharedLayout::new(ranks, group_max).of_node(1);
        let fd = memory::create(c"gaspi-node", layout.bytes(), false)?;
        SharedArea::map(&fd, ranks, group_max, own, [own].into())
    }

    /// The ranks of this node, ascending.
    pub(crate) fn locals(&self) -> &[Rank] {
        &self.locals
    }

    fn at<T>(&self, offset: u64) -> &T {
        debug_assert!(offset as usize + size_of::<T>() <= self.mapping.len());
        let pointer = self.mapping.as_ptr().wrapping_add(offset as usize).cast::<T>();
        // SAFETY: inside of the mapping and aligned by the layout; all structures of the area
        // consist of atomics only, for which zeroes and anything that peers write are valid.
        unsafe { &*pointer }
    }

    /// What lies so far behind the start of a part.
    #[inline]
    fn in_part<T>(&self, part: *const u8, offset: u64) -> &T {
        let pointer = part.wrapping_add(offset as usize).cast::<T>();
        debug_assert!(pointer.addr() - self.mapping.as_ptr().addr() < self.mapping.len());
        // SAFETY: as in `at`: parts lie in the mapping, and what has a place there in the part.
        unsafe { &*pointer }
    }

    #[inline]
    fn page(&self, rank: Rank) -> &ControlPage {
        self.in_part(self.parts.of(rank), 0)
    }

    fn own_page(&self) -> &ControlPage {
        self.in_part(self.parts.own(), 0)
    }

    fn liveness_word(&self, rank: Rank) -> &AtomicU32 {
        self.at(self.layout.liveness(rank))
    }

    fn number_word(&self, rank: Rank) -> &AtomicU32 {
        self.at(self.layout.numbers() + u64::from(rank.0) * LIVENESS_BYTES as u64)
    }

    fn deaths(&self) -> &AtomicU32 {
        self.at(self.layout.deaths())
    }

    fn departures(&self) -> &AtomicU32 {
        self.at(self.layout.departures())
    }

    /// Whether no rank is known to have died; if not, `liveness` tells which.
    #[inline]
    pub(crate) fn all_live(&self) -> bool {
        // Acquire: what a rank does that has heard of a death comes after it.
        self.deaths().load(Ordering::Acquire) == 0
    }

    /// Where `rank` is in its life, as far as this node knows.
    #[inline]
    pub(crate) fn liveness(&self, rank: Rank) -> u32 {
        // Acquire: what the rank published before it joined or left is visible.
        let known = self.liveness_word(rank).load(Ordering::Acquire);
        // Each rank of this node has its own connections with those of others, and so its own last
        // word of them.
        let left = |left: &AtomicBool| left.load(Ordering::Acquire);
        if known == liveness::JOINED && self.left.get(rank.index()).is_some_and(left) {
            return liveness::LEFT;
        }
        known
    }

    fn change_liveness(&self, rank: Rank, from: u32, to: u32) -> bool {
        let order = Ordering::AcqRel;
        self.liveness_word(rank).compare_exchange(from, to, order, Ordering::Acquire).is_ok()
    }

    /// A rank of another node takes part: the meeting has said so.
    pub(crate) fn remote_joined(&self, rank: Rank) {
        self.change_liveness(rank, liveness::ABSENT, liveness::JOINED);
    }

    /// A rank of another node has said goodbye.
    pub(crate) fn remote_left(&self, rank: Rank) {
        if let Some(left) = self.left.get(rank.index()) {
            left.store(true, Ordering::Release);
            self.wake(self.own);
        }
    }

    /// Announces that this rank takes part.
    pub(crate) fn join(&self) {
        let page = self.own_page();
        page.membarrier.store(membarrier::register_global().into(), Ordering::Relaxed);
        page.descriptor_domain.store(process::descriptor_domain(), Ordering::Relaxed);
        self.show_arenas();
        // Release: pairs with the Acquire in `liveness`.
        self.liveness_word(self.own).store(liveness::JOINED, Ordering::Release);
        self.wake_all();
    }

    /// Once all have joined: whether wakers can go without a fence.
    pub(crate) fn settle_fences(&self) {
        let usable = |rank: &Rank| self.page(*rank).membarrier.load(Ordering::Relaxed) == 1;
        let all = self.locals.iter().all(usable);
        self.membarrier.store(all, Ordering::Relaxed);
        self.unfenced.store(if all { self.parts.run_bytes() } else { 0 }, Ordering::Relaxed);
    }

    /// Whether `rank` of this node may open files by this process's descriptors. Once all have
    /// joined.
    pub(crate) fn may_open_descriptors(&self, rank: Rank) -> bool {
        let domain = |rank| self.page(rank).descriptor_domain.load(Ordering::Relaxed);
        domain(self.own) != 0 && domain(rank) == domain(self.own)
    }

    /// Whether wakers go without a fence.
    pub(crate) fn wakes_without_fence(&self) -> bool {
        self.light() == Light::Compiler
    }

    /// Announces that this rank has left.
    pub(crate) fn leave(&self) {
        self.log_end(self.own);
        self.liveness_word(self.own).store(liveness::LEFT, Ordering::Release);
        // Release: pairs with the Acquire in `ends`.
        self.departures().fetch_add(1, Ordering::Release);
        self.wake_all();
    }

    /// A number that is another one whenever a rank of the node has left, or there is news of a
    /// death.
    #[inline]
    pub(crate) fn ends(&self) -> u64 {
        let departures = self.departures().load(Ordering::Acquire);
        u64::from(departures) << 32 | u64::from(self.death_news())
    }

    /// A number that is another one whenever there is news of a death; 0 while there was none.
    pub(crate) fn death_news(&self) -> u32 {
        // Acquire: pairs with the Release in `note_death_news`; what was marked before is seen.
        self.deaths().load(Ordering::Acquire)
    }

    fn note_death_news(&self) {
        let next = |news: u32| Some(news.wrapping_add(1).max(1));
        // Release: pairs with the Acquire in `death_news`. The update always has a result.
        let _ = self.deaths().fetch_update(Ordering::Release, Ordering::Relaxed, next);
    }

    /// Marks `rank` dead unless it has left; true if this call did it.
    pub(crate) fn mark_dead(&self, rank: Rank) -> bool {
        if self.left.get(rank.index()).is_some_and(|left| left.load(Ordering::Acquire)) {
            return false;
        }
        // First: whoever marks may die before the second.
        self.note_death_news();
        // Before the death shows: a rank that ends because it has seen it comes later.
        self.log_end(rank);
        let change = |from| self.change_liveness(rank, from, liveness::DEAD);
        let marked = change(liveness::JOINED) || change(liveness::ABSENT);
        // Also where another rank marked it: that one may not live to wake them.
        if self.liveness(rank) == liveness::DEAD {
            // Whoever has looked between the two has not seen it.
            self.note_death_news();
            self.wake_all_regardless();
        }
        marked
    }

    /// Wakes all ranks of the node whether or not they have announced themselves: the dead may have
    /// taken an announcement back without having woken anybody.
    fn wake_all_regardless(&self) {
        for rank in &self.locals {
            let wakeup = self.wakeup(*rank);
            wakeup.wake_regardless();
            self.wake_sleepers(*rank);
        }
    }

    fn wakeup(&self, rank: Rank) -> EventCount<'_, AtomicU32> {
        self.page(rank).wakeup.eventcount()
    }

    /// This rank's own eventcount, to sleep on.
    pub(crate) fn own_wakeup(&self) -> EventCount<'_, AtomicU32> {
        self.own_page().wakeup.eventcount()
    }

    /// A note of this rank for a thread that is about to sleep, taken by writing
    /// [`NOTE_TAKEN`] to its call; `None` if too many sleep.
    pub(crate) fn take_note(&self) -> Option<&Note> {
        let take = |note: &&Note| {
            let (new, order) = (NOTE_TAKEN, Ordering::Relaxed);
            // Acquire: what the note's former thread wrote is over.
            note.call.compare_exchange(0, new, Ordering::Acquire, order).is_ok()
        };
        self.own_page().notes.iter().find(take)
    }

    /// What the sleeping threads of `rank` wait for; free notes are among them.
    pub(crate) fn notes(&self, rank: Rank) -> &[Note] {
        &self.page(rank).notes
    }

    /// What tools see of the queue pairs of `rank`.
    pub(crate) fn pairs(&self, rank: Rank) -> &PairWords {
        &self.page(rank).pairs
    }

    /// The same of this rank, which writes it.
    pub(crate) fn own_pairs(&self) -> &PairWords {
        &self.own_page().pairs
    }

    /// The fence of a sleeper of this rank, which pays for those of its wakers that are fenced by
    /// [`SharedArea::light`]. Alone on its node it has such wakers among its own threads only.
    pub(crate) fn heavy_fence(&self) {
        match *self.locals {
            [_] if membarrier::fences_are_light() => membarrier::heavy_private(),
            _ => membarrier::heavy_global(),
        }
    }

    #[inline]
    pub(crate) fn light(&self) -> Light {
        if self.membarrier.load(Ordering::Relaxed) { Light::Compiler } else { Light::Full }
    }

    /// Wakes `rank` if somebody sleeps there for this kind of [`wake_kind`]; to be called after the
    /// store that it waits for.
    #[inline]
    pub(crate) fn wake_for(&self, rank: Rank, kinds: u32) {
        let behind_first = self.parts.behind_first(rank);
        if behind_first >= self.unfenced.load(Ordering::Relaxed) {
            return self.wake_fenced(rank, kinds);
        }
        let page: &ControlPage = self.in_part(self.parts.at(behind_first), 0);
        if page.wakeup.eventcount().someone_sleeps(kinds, || Light::Compiler.fence()) {
            self.wake_sleepers(rank);
        }
    }

    #[cold]
    fn wake_fenced(&self, rank: Rank, kinds: u32) {
        if self.wakeup(rank).someone_sleeps(kinds, || self.light().fence()) {
            self.wake_sleepers(rank);
        }
    }

    /// Wakes the threads of `rank` that sleep on its futex, and the one that sleeps on its sockets.
    #[cold]
    fn wake_sleepers(&self, rank: Rank) {
        let words = &self.page(rank).wakeup;
        futex::wake(&words.sequence);
        if words.on_sockets.load(Ordering::Relaxed) != 0
            && let Some(wakeup_sockets) = &self.wakeup_sockets
        {
            wakeup_sockets.wake(rank);
        }
    }

    /// While the value lives, whoever wakes this rank also sends to the wakeup socket among its
    /// sockets. To be made before the sleeper announces itself.
    pub(crate) fn sleep_on_sockets(&self) -> OnSockets<'_> {
        let word = &self.own_page().wakeup.on_sockets;
        // Ordered before the second look by the fence of the announcement.
        word.fetch_add(1, Ordering::Relaxed);
        OnSockets { word }
    }

    /// Wakes whoever sleeps at `rank`.
    pub(crate) fn wake(&self, rank: Rank) {
        self.wake_for(rank, wake_kind::ANY);
    }

    /// Wakes all ranks of the node.
    pub(crate) fn wake_all(&self) {
        for rank in &self.locals {
            self.wake(*rank);
        }
    }

    /// While the value lives, the others count these bytes as used.
    pub(crate) fn claim(&self, bytes: u64) -> Claim<'_> {
        let claimed = &self.own_page().claimed;
        claimed.fetch_add(bytes, Ordering::SeqCst);
        Claim { claimed, bytes }
    }

    /// Bytes that other living ranks are about to touch.
    pub(crate) fn claimed_by_others(&self) -> u64 {
        self.locals
            .iter()
            .filter(|rank| **rank != self.own && self.liveness(**rank) == liveness::JOINED)
            .map(|rank| self.page(*rank).claimed.load(Ordering::SeqCst))
            .fold(0, u64::saturating_add)
    }

    /// The two arrival slots of `rank` in `group`, by the parity of the step.
    #[inline]
    pub(crate) fn arrival_slots(&self, rank: Rank, group: usize) -> &[ArrivalSlot<AtomicU64>; 2] {
        self.in_part(self.parts.of(rank), self.layout.arrival_slots_in_part(group))
    }

    /// Those of this rank.
    #[inline]
    pub(crate) fn own_arrival_slots(&self, group: usize) -> &[ArrivalSlot<AtomicU64>; 2] {
        self.in_part(self.parts.own(), self.layout.arrival_slots_in_part(group))
    }
}

mod arenas;
mod buffers;
mod ends;
mod marks;
mod numbers;
mod watchers;
pub(crate) use ends::ReadEnds;
pub(crate) use marks::WatchSteps;
#[cfg(test)]
mod tests;
