//! Posting without the lane's lock: a thread that has posted to a lane may do so by plain stores,
//! until another one needs the send queue (see [`Bias`]).
//!
//! What is posted in this way is not noted one by one: it is a **run**, which the queue counts as
//! one request, from the first one to the next wait for the queue. It ends behind all of its parts.
//!
//! A wait ends the run or takes it, and leaves the bias to its thread, where it rests: the next
//! request resumes it and opens another run, without the lane's lock too.
//!
//! Invariant: while a thread holds the bias the pair is up and nothing waits in the lane; a run is
//! open, unless the bias rests.

use super::post::{Data, POSTING, PostSend, Poster, Template};
use super::work::{Limits, Local, Remote, check, immediate};
use crate::ids::{NotificationId, QueueId, SegmentId};
use crate::sync::bias::Bias;
use crate::sync::epoch::Slot;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::wire::frame::PUT_LEN;
use crate::wire::message::{Put, Stream};
use libibverbs_sys::{ibv_cq, ibv_qp};
use std::ptr::NonNull;

/// Every so many requests one is signalled, so that the send queue empties.
pub(super) const SIGNAL_EVERY: u32 = 32;
/// In the word of a run, beside the generation of the queue.
const RUNS: u64 = 1 << 32;

/// Ordering of all that the bias, or the lane's lock, orders.
const PLAIN: Ordering = Ordering::Relaxed;

/// A send queue, as whoever may post to it without a lock sees it. Everything is written by who
/// holds the bias, in a section, or has taken it, with the lane's lock; `freed` and `until` with
/// the lock alone.
#[derive(Debug, Default)]
pub(super) struct Direct {
    bias: Bias,
    pair: AtomicPtr<ibv_qp>,
    /// Where its completions come, as long as the device is there.
    completions: AtomicPtr<ibv_cq>,
    /// The device's function, see [`PostSend`].
    post: AtomicPtr<()>,
    depth: AtomicU32,
    inline: AtomicU32,
    /// Bytes of a transfer.
    size_max: AtomicU64,
    /// The number of the next work request, and how many have left the send queue.
    next: AtomicU64,
    freed: AtomicU64,
    /// The number of the first that there is no room for.
    until: AtomicU64,
    signals: Signals,
    /// The generation of the queue beside [`RUNS`], or 0.
    run: AtomicU64,
    counts: Counts,
    /// Its next request.
    template: Template,
    /// The error that the device refused a request with.
    refused: AtomicU32,
}

/// What has been posted without the lane's lock, ever: statistics count it nowhere else.
#[derive(Debug, Default)]
struct Counts {
    bytes_written: AtomicU64,
    bytes_read: AtomicU64,
    /// Those without a notification.
    writes: AtomicU64,
    write_notifys: AtomicU64,
    reads: AtomicU64,
    /// Requests before the run.
    before_run: AtomicU64,
    /// Writes that are not to be heeded any more: a read is behind them, or the lane has been told.
    old_writes: AtomicU64,
}

impl Counts {
    /// By who holds the bias, in a section.
    #[inline(always)]
    fn add(counter: &AtomicU64, amount: u64) {
        counter.store(counter.load(PLAIN).wrapping_add(amount), PLAIN);
    }

    fn get(&self) -> DirectCounts {
        DirectCounts {
            bytes_written: self.bytes_written.load(PLAIN),
            bytes_read: self.bytes_read.load(PLAIN),
            writes: self.writes.load(PLAIN),
            write_notifys: self.write_notifys.load(PLAIN),
            reads: self.reads.load(PLAIN),
        }
    }
}

/// What threads have posted to ranks of other nodes without locks, for statistics.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirectCounts {
    pub(crate) bytes_written: u64,
    pub(crate) bytes_read: u64,
    /// Those without a notification.
    pub(crate) writes: u64,
    pub(crate) write_notifys: u64,
    pub(crate) reads: u64,
}

impl DirectCounts {
    pub(crate) fn requests(&self) -> u64 {
        self.all_writes() + self.reads
    }

    fn all_writes(&self) -> u64 {
        self.writes + self.write_notifys
    }

    pub(super) fn plus(self, other: DirectCounts) -> DirectCounts {
        DirectCounts {
            bytes_written: self.bytes_written.wrapping_add(other.bytes_written),
            bytes_read: self.bytes_read.wrapping_add(other.bytes_read),
            writes: self.writes + other.writes,
            write_notifys: self.write_notifys + other.write_notifys,
            reads: self.reads + other.reads,
        }
    }
}

/// Which work requests are signalled.
#[derive(Debug, Default)]
struct Signals {
    /// Whether the first one of a run is, if nothing else is under way.
    lone: AtomicBool,
    /// Of so many at least one is.
    every: AtomicU64,
    /// The next one is, once there have been so many.
    at: AtomicU64,
    /// All below this number have a signalled one behind them.
    below: AtomicU64,
}

/// The device has refused a request: the lane is to be looked at.
#[derive(Debug)]
pub(crate) struct Refused;

/// Requests that were counted as one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    generation: u32,
    pub(super) requests: u32,
}

impl Run {
    /// What it is counted in.
    pub(super) fn stream(self, queue: QueueId) -> Stream {
        Stream { queue, generation: self.generation }
    }
}

/// What the lane does with its lock. Whatever changes the send queue takes the bias first.
impl Direct {
    pub(super) fn take(&self) {
        self.bias.take();
    }

    /// The same to post something, unless the device has refused a request: the completion of what
    /// follows would count that as done.
    pub(super) fn take_to_post(&self) -> Result<(), String> {
        self.bias.take();
        self.refusal().map_or(Ok(()), Err)
    }

    pub(super) fn next(&self) -> u64 {
        self.next.load(PLAIN)
    }

    pub(super) fn freed(&self) -> u64 {
        self.freed.load(PLAIN)
    }

    /// Numbers work requests from here on; none has been posted.
    pub(super) fn number_from(&self, first: u64) {
        self.next.store(first, PLAIN);
        self.set_freed(first);
    }

    /// How many of the last ones may have no signalled one behind them.
    pub(super) fn unsignalled(&self) -> u64 {
        self.next() - self.all_signalled()
    }

    /// All below this number have a signalled one behind them, or have ended.
    fn all_signalled(&self) -> u64 {
        self.signals.below.load(PLAIN).max(self.freed())
    }

    /// A work request has been posted.
    pub(super) fn posted(&self, signalled: bool) {
        self.bias.take();
        let next = self.next() + 1;
        self.next.store(next, PLAIN);
        if signalled {
            self.signals.below.store(next, PLAIN);
        }
    }

    /// Work requests below this number have left the send queue.
    pub(super) fn set_freed(&self, below: u64) {
        let freed = self.freed().max(below);
        self.freed.store(freed, PLAIN);
        // Release: their memory and their places can be used again.
        self.until.store(freed + u64::from(self.depth.load(PLAIN)), Ordering::Release);
    }

    /// Nothing is in the send queue any more.
    pub(super) fn clear(&self) {
        self.bias.take();
        self.set_freed(self.next());
        self.refused.store(0, PLAIN);
    }

    /// Whether a run has not been taken.
    pub(super) fn has_run(&self) -> bool {
        self.run.load(PLAIN) != 0
    }

    /// Takes the run: what is posted from now on is another one.
    pub(super) fn take_run(&self) -> Option<Run> {
        self.bias.take();
        self.end_run()
    }

    /// The same by a thread that, if it has the bias, goes on with another run.
    pub(super) fn rest_run(&self) -> Option<Run> {
        self.bias.rest();
        self.end_run()
    }

    /// Whether the calling thread has a bias that rests.
    pub(super) fn rests(&self) -> bool {
        self.bias.rests()
    }

    /// Lets the bias rest that the calling thread has taken from itself since it rested.
    pub(super) fn rest_again(&self) {
        self.bias.rest_again();
    }

    /// Behind the bias: nobody posts to the run.
    fn end_run(&self) -> Option<Run> {
        let (run, before) = (self.run.load(PLAIN), self.counts.before_run.load(PLAIN));
        let requests = (self.close_run() - before) as u32;
        (run != 0).then_some(Run { generation: run as u32, requests })
    }

    /// How many requests there have been.
    fn close_run(&self) -> u64 {
        let requests = self.counts.get().requests();
        self.run.store(0, PLAIN);
        self.counts.before_run.store(requests, PLAIN);
        requests
    }

    /// What has been posted without the lane's lock.
    pub(super) fn counts(&self) -> DirectCounts {
        self.counts.get()
    }

    /// Whether runs that were taken had writes that no read is behind, as far as nobody has asked
    /// before.
    pub(super) fn take_written(&self) -> bool {
        let writes = self.counts.get().all_writes();
        let old = self.counts.old_writes.load(PLAIN);
        self.counts.old_writes.store(writes, PLAIN);
        writes != old
    }

    /// Why the device has refused a request.
    pub(super) fn refusal(&self) -> Option<String> {
        check(self.refused.load(PLAIN).cast_signed(), POSTING).err()
    }

    /// Whether no thread may post without the lock, nor will by itself.
    pub(super) fn is_free(&self) -> bool {
        self.bias.is_free()
    }

    /// Lets the thread of `slot` post without the lock, unless the device cannot send a
    /// notification in line, or has refused a request of this pair. `is_first` if nothing is under
    /// way, and nothing of the run has been posted.
    pub(super) fn give(
        &self,
        slot: &Slot,
        (poster, completions): (Poster, NonNull<ibv_cq>),
        limits: Limits,
        (size_max, is_first): (u64, bool),
    ) -> bool {
        if self.refused.load(PLAIN) != 0 {
            return false;
        }
        let Limits { depth, inline, message, ends_at_ack } = limits;
        // Half of the send queue at most is unsignalled.
        let every = u64::from((depth / 2).clamp(1, SIGNAL_EVERY));
        self.pair.store(poster.pair, PLAIN);
        self.completions.store(completions.as_ptr(), PLAIN);
        self.post.store(poster.post as *mut (), PLAIN);
        self.depth.store(depth, PLAIN);
        self.inline.store(inline, PLAIN);
        self.size_max.store(message.min(size_max), PLAIN);
        self.signals.lone.store(ends_at_ack, PLAIN);
        self.signals.every.store(every, PLAIN);
        self.set_freed(0);
        self.set_next_signal(is_first);
        // SAFETY: nobody holds the bias, and the lane's lock keeps others from giving it.
        unsafe { self.template.prepare() };
        inline as usize >= PUT_LEN && self.bias.give(slot)
    }
}

/// In a section of the thread that holds the bias.
impl Direct {
    /// Settles which request of a run is signalled; `is_first` as in [`give`](Direct::give).
    fn set_next_signal(&self, is_first: bool) {
        let signals = &self.signals;
        let is_lone = is_first && signals.lone.load(PLAIN);
        let at = if is_lone { 0 } else { self.all_signalled() + signals.every.load(PLAIN) };
        signals.at.store(at, PLAIN);
    }

    /// Where the completions of the run come, if its last request ends it: a wait for it posts
    /// nothing. Outside of a section this is a hint.
    #[inline]
    pub(super) fn ends_by_itself(&self) -> Option<NonNull<ibv_cq>> {
        let is_signalled = self.signals.below.load(PLAIN) == self.next();
        let ends = self.has_run() && is_signalled && self.ends_at_ack();
        NonNull::new(self.completions.load(PLAIN)).filter(|_| ends)
    }

    /// Whether an acknowledgement ends all that the run has posted.
    #[inline]
    fn ends_at_ack(&self) -> bool {
        self.signals.lone.load(PLAIN) || !self.has_written()
    }

    #[inline]
    fn has_written(&self) -> bool {
        self.counts.get().all_writes() != self.counts.old_writes.load(PLAIN)
    }

    /// Ends the run of the thread of `slot` if all of it has been acknowledged, which is enough,
    /// and `may` has nothing against it; the generation of its queue. The bias rests.
    #[inline]
    pub(super) fn end_own_run(&self, slot: &Slot, may: impl FnOnce(u32) -> bool) -> Option<u32> {
        if !self.is_held_by(slot) || !self.has_run() || !self.ends_at_ack() {
            return None;
        }
        // Acquire: pairs with the Release in `set_freed`, behind which the data of reads is there.
        let freed = self.until.load(Ordering::Acquire) - u64::from(self.depth.load(PLAIN));
        let generation = self.run.load(PLAIN) as u32;
        if freed != self.next() || !may(generation) {
            return None;
        }
        self.close_run();
        self.take_written();
        self.bias.rest_in_section(slot);
        Some(generation)
    }

    /// Whether the thread of `slot` had a bias that rested, which it holds from here on, and there
    /// is room. The run that it opens is what `begin` says; without one it gives the bias back.
    #[inline]
    pub(super) fn resume(&self, slot: &Slot, begin: impl Fn() -> Option<u32>) -> bool {
        if !self.bias.resume(slot) {
            return false;
        }
        let may = self.refused.load(PLAIN) == 0 && self.has_room();
        let Some(generation) = may.then(begin).flatten() else {
            self.bias.give_back();
            return false;
        };
        self.open_run(generation);
        self.set_next_signal(self.freed() == self.next());
        true
    }

    /// Whether there is room for any request and its notification.
    #[inline(always)]
    fn has_room(&self) -> bool {
        // Acquire: pairs with the Release in `set_freed`.
        self.next() + 2 <= self.until.load(Ordering::Acquire)
    }

    /// Counts work requests that are about to be posted: the number of the first one, and whether
    /// the last one is to be signalled.
    #[inline(always)]
    fn count(&self, requests: u64) -> (u64, bool) {
        let first = self.next();
        let next = first + requests;
        self.next.store(next, PLAIN);
        let signalled = next >= self.signals.at.load(PLAIN);
        if signalled {
            self.signals.below.store(next, PLAIN);
            self.signals.at.store(next + self.signals.every.load(PLAIN), PLAIN);
        }
        (first, signalled)
    }

    /// The same of a read, which is signalled.
    #[inline(always)]
    fn count_read(&self) -> u64 {
        let first = self.next();
        self.next.store(first + 1, PLAIN);
        self.signals.below.store(first + 1, PLAIN);
        first
    }

    #[inline(always)]
    fn outcome(&self, result: i32) -> Result<(), Refused> {
        if result == 0 { Ok(()) } else { Err(self.note_refusal(result)) }
    }

    #[cold]
    #[inline(never)]
    fn note_refusal(&self, error: i32) -> Refused {
        self.refused.store(error.cast_unsigned(), PLAIN);
        self.bias.give_back();
        Refused
    }

    /// Opens a run of this generation of the queue.
    pub(super) fn open_run(&self, generation: u32) {
        self.run.store(RUNS | u64::from(generation), PLAIN);
    }

    /// Whether the thread of `slot` may post, and there is room.
    #[inline(always)]
    pub(super) fn is_open_to(&self, slot: &Slot) -> bool {
        self.is_held_by(slot) && self.has_room()
    }

    #[inline(always)]
    pub(super) fn is_held_by(&self, slot: &Slot) -> bool {
        self.bias.is_held_by(slot)
    }

    /// The device's function to post by, and the pair.
    #[inline(always)]
    fn poster(&self) -> Poster {
        // SAFETY: stored by `give`, from such a function.
        let post = unsafe { std::mem::transmute::<*mut (), PostSend>(self.post.load(PLAIN)) };
        Poster { pair: self.pair.load(PLAIN), post }
    }
}

/// A lane, to which the calling thread can post where it is open to it.
#[derive(Clone, Copy)]
pub(crate) struct DirectLane<'a>(pub(super) &'a Direct);

impl DirectLane<'_> {
    /// Whether the thread of `slot` may post to it, and there is room.
    #[inline(always)]
    pub(crate) fn is_open_to(self, slot: &Slot) -> bool {
        self.0.is_open_to(slot)
    }

    /// Whether so many bytes, not none, can be posted as one request.
    #[inline(always)]
    pub(crate) fn takes(self, size: u64) -> bool {
        // 0 becomes the largest number.
        size.wrapping_sub(1) < self.0.size_max.load(PLAIN)
    }

    /// Posts a write of a size that it [takes](DirectLane::takes).
    ///
    /// # Errors
    /// The device refuses it.
    #[inline(always)]
    pub(crate) fn write(self, size: u64, (local, remote): (Local, Remote)) -> Result<(), Refused> {
        let lane = self.0;
        Counts::add(&lane.counts.bytes_written, size);
        Counts::add(&lane.counts.writes, 1);
        let kind = (None, lane.inline.load(PLAIN));
        // SAFETY: the thread holds the bias, and while it does the pair lasts; the memory stays
        // until the run ends.
        let result = unsafe {
            lane.template.write(lane.poster(), lane.count(1), (local, remote, size), kind)
        };
        lane.outcome(result)
    }

    /// The same with a notification. `put` gives the frame for the generation of the queue, if the
    /// notification cannot go along with the data.
    ///
    /// # Errors
    /// The device refuses it.
    #[inline(always)]
    pub(crate) fn write_notify(
        self,
        (local, remote, size): Data,
        (segment, notification, value): (SegmentId, NotificationId, u32),
        put: impl FnOnce(u32) -> Put,
    ) -> Result<(), Refused> {
        let lane = self.0;
        Counts::add(&lane.counts.bytes_written, size);
        Counts::add(&lane.counts.write_notifys, 1);
        let immediate = immediate(segment, notification, value);
        let result = if immediate.is_some() {
            let (data, kind) = ((local, remote, size), (immediate, lane.inline.load(PLAIN)));
            // SAFETY: as for `write`.
            unsafe { lane.template.write(lane.poster(), lane.count(1), data, kind) }
        } else {
            let here = (local.address, local.key);
            self.write_and_send(here, (remote.address, remote.key), put)
        };
        lane.outcome(result)
    }

    /// The same where the notification follows the data. The arguments go by registers.
    #[cold]
    #[inline(never)]
    fn write_and_send(
        self,
        (here, local_key): (u64, Option<u32>),
        (there, remote_key): (u64, u32),
        put: impl FnOnce(u32) -> Put,
    ) -> i32 {
        let lane = self.0;
        let put = put(lane.run.load(PLAIN) as u32);
        let local = Local { address: here, key: local_key };
        let remote = Remote { address: there, key: remote_key };
        let (data, numbered) = ((local, remote, put.size), lane.count(2));
        // What the message does not carry has its place.
        let message = Put { size: 0, ..put }.encoded();
        let inline = lane.inline.load(PLAIN);
        // SAFETY: as for `write`.
        unsafe { lane.poster().write_and_send(numbered, data, &message, inline) }
    }

    /// Posts a get of one request.
    ///
    /// # Errors
    /// The device refuses it.
    #[inline(always)]
    pub(crate) fn read(self, size: u64, (local, remote): (Local, Remote)) -> Result<(), Refused> {
        let lane = self.0;
        let first = lane.count_read();
        Counts::add(&lane.counts.bytes_read, size);
        Counts::add(&lane.counts.reads, 1);
        // SAFETY: as for `write`.
        let result = unsafe { lane.template.read(lane.poster(), first, (local, remote, size)) };
        lane.outcome(result)
    }
}
