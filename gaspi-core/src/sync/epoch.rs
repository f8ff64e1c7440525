//! Knowing when nobody uses a thing any more, and what each thread counts.
//!
//! A thread that may follow a pointer which another thread unlinks enters: it stores the number of
//! the current epoch into its own slot, and 0 when it leaves. Epochs have odd numbers; a thread
//! that is neither in a section nor on a fast path stores the even number after it. [`synchronize`]
//! waits until every thread that may have seen the pointer has left. It also pays for the full
//! fence that "store, then look" needs (membarrier), so entering and leaving are a plain store
//! each. A thread that may not wait, such as one in a handler of frames, leaves what it unlinked to
//! [`Retired`].
//!
//! A slot is found by the address of its thread's control block, which the processor holds in a
//! register: no call, as thread-local storage of a shared library would need. Threads that follow
//! each other at one address share a slot. Slots are never freed, so destructors that run after
//! main still work.
//!
//! Invariants: no thread waits for another rank while it is inside, beyond a brief look; a handler
//! waits for nothing. [`may_wait`] ends a process that breaks them, in release builds too: it would
//! hang, and nobody could say why.

mod callback;
mod peers;
mod retired;

pub use callback::{Callback, enter_callback, is_in_callback};
pub use peers::PEER_COUNTERS;
pub(crate) use peers::{PeerCounters, PeerTable};
pub(crate) use retired::Retired;

use super::membarrier::{fences_are_light, heavy_private, light_private, prepare_private};
use super::{AtomicPtr, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::compiler_fence;

/// Statistics counters of a thread's slot.
pub const COUNTERS: usize = 32;
/// Chains of slots; a power of two. A job with more threads than this walks chains.
const CHAINS: usize = 1024;
/// Added to a runtime's number, which is even: the counters of that runtime are being released.
const RELEASING: u64 = 1;

/// What one thread owns.
#[derive(Debug)]
#[repr(align(128))]
pub struct Slot {
    /// The owner.
    thread: usize,
    /// The owner again, while it is outside, in no function of the program that the library calls,
    /// and the rare side pays for its fences; else 0.
    fast: AtomicUsize,
    /// The epoch in which the owner entered, plus 1 unless it is in a section; 0 while it is
    /// outside. Written by the owner only.
    entered: AtomicU64,
    /// How many handlers of frames the owner is in. Written by the owner only.
    handling: AtomicUsize,
    /// Whether the owner is in a function of the program that the library calls. Written by the
    /// owner only.
    in_callback: AtomicUsize,
    /// The runtime whose statistics are counted here, 0 for none.
    counts_for: AtomicU64,
    /// Counters by rank of that runtime, written by the owner only.
    peers: AtomicPtr<PeerCounters>,
    /// How many ranks that are; changed under the lock.
    ranks: AtomicUsize,
    /// Counters, written by the owner only.
    counters: [AtomicU64; COUNTERS],
    /// The next one of its chain.
    next: AtomicPtr<Slot>,
}

/// The current epoch, odd.
static EPOCH: AtomicU64 = AtomicU64::new(1);
const NEXT: u64 = 2;
/// Chains of slots, which end in one that belongs to nobody.
static TABLE: [AtomicPtr<Slot>; CHAINS] =
    [const { AtomicPtr::new((&raw const NOBODY).cast_mut()) }; CHAINS];
static NOBODY: Slot = Slot::new(0, false, ptr::null_mut());
/// All slots.
static SLOTS: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());

fn slots() -> MutexGuard<'static, Vec<&'static Slot>> {
    SLOTS.lock()
}

/// A number that no other living thread of this process has.
#[inline(always)]
pub fn thread_key() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let key: usize;
        // SAFETY: the ABI has the thread control block begin with its own address.
        unsafe {
            std::arch::asm!(
                "mov {}, fs:0",
                out(reg) key,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        key
    }
    #[cfg(target_arch = "aarch64")]
    {
        let key: usize;
        // SAFETY: reads the thread pointer, which every thread has.
        unsafe {
            std::arch::asm!(
                "mrs {}, tpidr_el0",
                out(reg) key,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        key
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        // Constant and without a destructor, so that it works in destructors that run after main.
        thread_local!(static HERE: u8 = const { 0 });
        HERE.with(|here| ptr::from_ref(here) as usize)
    }
}

#[inline(always)]
fn chain(thread: usize) -> &'static AtomicPtr<Slot> {
    // Fibonacci hashing: control blocks lie at distances of powers of two.
    let hash = (thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &TABLE[(hash >> (64 - CHAINS.ilog2())) as usize]
}

#[inline(always)]
fn current() -> &'static Slot {
    let thread = thread_key();
    let first = first_of(chain(thread));
    if first.thread == thread { first } else { further(thread, first) }
}

#[inline(always)]
fn first_of(chain: &AtomicPtr<Slot>) -> &'static Slot {
    // Acquire: pairs with the Release in `register`.
    // SAFETY: chains are never empty, and slots are never freed.
    unsafe { &*chain.load(Ordering::Acquire) }
}

/// The slot of a thread that is not the first of its chain.
#[cold]
fn further(thread: usize, first: &'static Slot) -> &'static Slot {
    let mut slot = Some(first);
    while let Some(found) = slot {
        if found.thread == thread {
            return found;
        }
        // SAFETY: slots are never freed.
        slot = unsafe { found.next.load(Ordering::Acquire).as_ref() };
    }
    register(thread)
}

/// The slot of the calling thread.
pub(crate) fn own_slot() -> &'static Slot {
    current()
}

fn register(thread: usize) -> &'static Slot {
    prepare_private();
    let mut slots = slots();
    let chain = chain(thread);
    // Relaxed: only changed under the lock.
    let next = chain.load(Ordering::Relaxed);
    let slot: &'static Slot = Box::leak(Box::new(Slot::new(thread, fences_are_light(), next)));
    slots.push(slot);
    // Release: publishes the slot; pairs with the Acquire in `current`.
    chain.store(ptr::from_ref(slot).cast_mut(), Ordering::Release);
    slot
}

/// While it lives, nothing that this thread can reach is freed. Not to be held while waiting.
#[derive(Debug)]
pub struct Guard {
    slot: &'static Slot,
    /// Whether the thread was outside before.
    outermost: bool,
    // The slot belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

/// The guard of a section, from [`enter_fast`].
#[derive(Debug)]
pub struct FastGuard {
    slot: &'static Slot,
    // The slot belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

/// Enters; nests.
#[inline(always)]
pub fn enter() -> Guard {
    let slot = current();
    let outermost = slot.entered.load(Ordering::Relaxed) == 0;
    if outermost {
        slot.fast.store(0, Ordering::Relaxed);
        // Acquire: a thread that enters in a later epoch than an unlinking sees the unlinking.
        slot.entered.store(EPOCH.load(Ordering::Acquire) + 1, Ordering::Relaxed);
        // Orders the store before the reads that follow; pairs with `heavy_private`.
        light_private();
    }
    Guard { slot, outermost, _not_send: PhantomData }
}

/// Enters if that takes a few instructions: not for the first time, not nested, and where the rare
/// side pays for the fences. All until the guard ends is a section (see [`Guard::section`]).
#[inline(always)]
pub fn enter_fast() -> Option<FastGuard> {
    let thread = thread_key();
    let slot = first_of(chain(thread));
    if slot.fast.load(Ordering::Relaxed) != thread {
        return None;
    }
    // As in `enter`.
    slot.entered.store(EPOCH.load(Ordering::Acquire), Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    Some(FastGuard { slot, _not_send: PhantomData })
}

impl FastGuard {
    /// Tells this thread's queues from those of others.
    #[inline(always)]
    pub(crate) fn slot(&self) -> &'static Slot {
        self.slot
    }

    /// Whether this thread counts for `owner`.
    #[inline(always)]
    pub(crate) fn counts_for(&self, owner: u64) -> bool {
        self.slot.counts_for.load(Ordering::Relaxed) == owner
    }

    /// Adds to a counter of this thread, which counts for the caller.
    #[inline(always)]
    pub(crate) fn count(&self, counter: usize, amount: u64) {
        add(&self.slot.counters[counter], amount);
    }

    /// This thread's counters for `rank`.
    ///
    /// # Safety
    /// It counts for a runtime that has such a rank.
    #[inline(always)]
    pub(crate) unsafe fn peer(&self, rank: usize) -> &'static PeerCounters {
        // SAFETY: caller's promise.
        unsafe { self.slot.peer(rank) }
    }
}

impl Drop for FastGuard {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: the uses end before it; pairs with the Acquire in `synchronize`.
        self.slot.entered.store(0, Ordering::Release);
    }
}

impl Guard {
    /// Tells this thread's queues from those of others.
    #[inline]
    pub(crate) fn slot(&self) -> &'static Slot {
        self.slot
    }

    /// Adds to a statistics counter of runtime `owner`, false if the slot counts for another one.
    #[inline]
    pub(crate) fn count(&self, owner: u64, ranks: u32, counter: usize, amount: u64) -> bool {
        if !self.claim(owner, ranks) {
            return false;
        }
        add(&self.slot.counters[counter], amount);
        true
    }

    /// This thread's counters for `rank`.
    ///
    /// # Safety
    /// It counts for a runtime that has such a rank.
    pub(crate) unsafe fn peer(&self, rank: usize) -> &PeerCounters {
        // SAFETY: caller's promise.
        unsafe { self.slot.peer(rank) }
    }

    /// Has this thread count for `owner` from now on, false if it counts for another one.
    #[inline]
    pub(crate) fn claim(&self, owner: u64, ranks: u32) -> bool {
        let counts = self.slot.counts_for.load(Ordering::Relaxed) == owner;
        counts || claim(self.slot, owner, ranks)
    }

    /// What was found inside, to be used beyond the guard.
    ///
    /// # Safety
    /// It was found, since the guard began, where it is kept as a pointer of an `Arc`.
    pub(crate) unsafe fn keep<T>(&self, found: &T) -> Arc<T> {
        // SAFETY: as the caller says; it is not given up while the guard lives.
        unsafe {
            Arc::increment_strong_count(found);
            Arc::from_raw(found)
        }
    }

    /// Runs a few instructions that change by plain stores what this thread owns, after a check
    /// that it still does. They wait for nothing: a thread that takes ownership over waits for
    /// their end.
    pub(crate) fn section<T>(&self, change: impl FnOnce() -> T) -> T {
        let entered = self.slot.entered.load(Ordering::Relaxed);
        // The odd number of the same epoch.
        self.slot.entered.store((entered - 1) | 1, Ordering::Relaxed);
        // Orders the store before the look; pairs with `await_section`.
        light_private();
        let changed = change();
        // Release: a thread that sees the end sees what was changed.
        self.slot.entered.store(entered, Ordering::Release);
        changed
    }
}

/// By the only writer, so a plain addition.
#[inline(always)]
fn add(counter: &AtomicU64, amount: u64) {
    let value = counter.load(Ordering::Relaxed);
    counter.store(value.wrapping_add(amount), Ordering::Relaxed);
}

#[cold]
fn claim(slot: &Slot, owner: u64, ranks: u32) -> bool {
    // Under the lock, so that `release_counters` cannot miss it.
    let _slots = slots();
    if slot.counts_for.load(Ordering::Relaxed) != 0 {
        return false;
    }
    let (peers, ranks) = PeerTable::new(ranks).into_raw();
    slot.ranks.store(ranks, Ordering::Relaxed);
    slot.peers.store(peers, Ordering::Relaxed);
    slot.counts_for.store(owner, Ordering::Relaxed);
    true
}

impl Drop for Guard {
    #[inline(always)]
    fn drop(&mut self) {
        if self.outermost {
            // Release: the uses end before it; pairs with the Acquire in `synchronize`.
            self.slot.entered.store(0, Ordering::Release);
            self.slot.allow_fast();
        }
    }
}

impl Slot {
    const fn new(thread: usize, light: bool, next: *mut Slot) -> Slot {
        Slot {
            thread,
            fast: AtomicUsize::new(if light { thread } else { 0 }),
            entered: AtomicU64::new(0),
            handling: AtomicUsize::new(0),
            in_callback: AtomicUsize::new(0),
            counts_for: AtomicU64::new(0),
            peers: AtomicPtr::new(ptr::null_mut()),
            ranks: AtomicUsize::new(0),
            counters: [const { AtomicU64::new(0) }; COUNTERS],
            next: AtomicPtr::new(next),
        }
    }

    /// Lets the owner, which is outside, take fast paths again unless something forbids that.
    #[inline(always)]
    fn allow_fast(&self) {
        let allowed = fences_are_light() && self.in_callback.load(Ordering::Relaxed) == 0;
        self.fast.store(if allowed { self.thread } else { 0 }, Ordering::Relaxed);
    }

    /// See [`Guard::peer`].
    #[inline(always)]
    unsafe fn peer(&self, rank: usize) -> &'static PeerCounters {
        debug_assert!(rank < self.ranks.load(Ordering::Relaxed));
        let peers = self.peers.load(Ordering::Relaxed);
        // SAFETY: while the thread counts for a runtime the array is there, with an entry for each
        // of its ranks.
        unsafe {
            std::hint::assert_unchecked(!peers.is_null());
            &*peers.add(rank)
        }
    }

    /// Whether the owner is inside since before this epoch.
    fn is_inside_before(&self, epoch: u64) -> bool {
        (1..epoch).contains(&self.entered.load(Ordering::Acquire))
    }

    /// Returns once the owner of this slot has ended the section that it is in, if it is in one.
    /// The caller has published before that the owner lost its ownership.
    pub(crate) fn await_section(&self) {
        if is_handling() {
            end_loudly("a handler of frames waits for another thread's section");
        }
        self.outlast_section();
    }

    /// The same for rare cases in which a handler has to: sections wait for nothing, so that it is
    /// as if their thread did not run for a while.
    pub(crate) fn outlast_section(&self) {
        // A section that begins later has a later number.
        let epoch = next_epoch();
        let in_section = |entered: u64| entered % 2 == 1 && entered < epoch;
        while in_section(self.entered.load(Ordering::Acquire)) {
            std::thread::yield_now();
        }
    }
}

/// Begins an epoch. Threads in an earlier one may not have seen what was done before.
fn next_epoch() -> u64 {
    // SeqCst: after the unlinking, which a thread that reads the new number sees.
    let epoch = EPOCH.fetch_add(NEXT, Ordering::SeqCst) + NEXT;
    heavy_private();
    #[cfg(test)]
    tests::note_waiting();
    epoch
}

/// While it lives, the thread handles frames: it may wait for nothing.
#[derive(Debug)]
pub(crate) struct Handling {
    slot: &'static Slot,
    // The slot belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

/// The thread handles frames from now on; nests.
pub(crate) fn handling() -> Handling {
    let slot = current();
    let depth = slot.handling.load(Ordering::Relaxed);
    slot.handling.store(depth + 1, Ordering::Relaxed);
    Handling { slot, _not_send: PhantomData }
}

impl Drop for Handling {
    fn drop(&mut self) {
        let depth = self.slot.handling.load(Ordering::Relaxed);
        self.slot.handling.store(depth - 1, Ordering::Relaxed);
    }
}

/// To be called before this thread waits for something. Ends the process if the thread is inside of
/// an epoch, which others may wait for, or handles frames: it might wait for itself.
pub(crate) fn may_wait(for_what: &str) {
    let slot = current();
    let place = if slot.handling.load(Ordering::Relaxed) != 0 {
        "a handler of frames"
    } else if slot.entered.load(Ordering::Relaxed) != 0 {
        "a section that others may wait for"
    } else {
        return;
    };
    end_loudly(&format!("{place} waits for {for_what}"));
}

/// Ends the process because of a fault of the library, which would make it hang otherwise.
#[cold]
pub(crate) fn end_loudly(what: &str) -> ! {
    let text = format!("gaspi: a fault of the library: {what}; please report it\n");
    // Not by the log, which may have nobody to listen, and not by a macro that may panic.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
    std::process::abort();
}

/// Whether this thread handles frames.
pub(crate) fn is_handling() -> bool {
    current().handling.load(Ordering::Relaxed) != 0
}

/// Returns once every thread that was inside when it was called has come out. What was unlinked
/// before the call may then be freed.
///
/// Ends the process if this thread [may not wait](may_wait).
pub fn synchronize() {
    may_wait("the end of all uses of what was unlinked");
    let epoch = next_epoch();
    let inside = |slot: &Slot| slot.is_inside_before(epoch);
    let all: Vec<&Slot> = slots().iter().copied().filter(|slot| inside(slot)).collect();
    for slot in all {
        // Uses last as long as one copy, so yielding is enough.
        while inside(slot) {
            std::thread::yield_now();
        }
    }
}

/// The slots that count for `owner`, under the lock.
fn counting<'a>(
    slots: &'a MutexGuard<'static, Vec<&'static Slot>>,
    owner: u64,
) -> impl Iterator<Item = &'a &'static Slot> {
    slots.iter().filter(move |slot| slot.counts_for.load(Ordering::Relaxed) == owner)
}

/// The sum of a counter over the threads that count for `owner`.
pub(crate) fn counted(owner: u64, counter: usize) -> u64 {
    counting(&slots(), owner)
        .map(|slot| slot.counters[counter].load(Ordering::Relaxed))
        .fold(0, u64::wrapping_add)
}

/// The same for one of the counters of `rank`.
pub(crate) fn counted_for(owner: u64, rank: usize, counter: usize) -> u64 {
    counting(&slots(), owner)
        .filter(|slot| rank < slot.ranks.load(Ordering::Relaxed))
        .map(|slot| {
            // SAFETY: the array has that many entries and is freed under the lock only.
            let peer = unsafe { &*slot.peers.load(Ordering::Relaxed).add(rank) };
            peer.counter(counter).load(Ordering::Relaxed)
        })
        .fold(0, u64::wrapping_add)
}

/// Frees the slots that count for `owner` for another runtime. Not to be called from inside.
pub(crate) fn release_counters(owner: u64) {
    debug_assert!(owner & RELEASING == 0, "runtimes have even numbers");
    let mut found = false;
    for slot in counting(&slots(), owner) {
        slot.counts_for.store(owner | RELEASING, Ordering::Relaxed);
        found = true;
    }
    if !found {
        return;
    }
    // Threads that found the owner's number there may still be adding.
    synchronize();
    for slot in counting(&slots(), owner | RELEASING) {
        for counter in &slot.counters {
            counter.store(0, Ordering::Relaxed);
        }
        let ranks = slot.ranks.swap(0, Ordering::Relaxed);
        let peers = slot.peers.swap(ptr::null_mut(), Ordering::Relaxed);
        slot.counts_for.store(0, Ordering::Relaxed);
        // SAFETY: made in `claim`, and nobody can reach it any more.
        drop(unsafe { PeerTable::from_raw(peers, ranks) });
    }
}

#[cfg(test)]
pub(crate) mod tests;
