//! The procedures that take nanoseconds, as far as nothing is in their way.
//!
//! Each is either done completely, or nothing has happened at all: `None`. Then the procedure of
//! the same name of [`Runtime`] has to be called, which finds out why: wrong arguments, a full
//! queue, a target that is gone, memory that is not mapped here, something to wait for. Only a
//! barrier may have arrived by then, which is continued. What is here has no error paths, waits for
//! no lock, and calls nothing but memmove and, where a peer sleeps for just this, the kernel that
//! wakes it: a program pays for little more than the copy. docs/performance.md counts the
//! instructions.

use crate::ids::{GroupId, NotificationId, QueueId, Rank, SegmentId};
use crate::one_sided::Transfer;
use crate::queue::Queue;
use crate::runtime::{Inner, Runtime};
use crate::segment::{Reach, Segment, Target};
use crate::statistics::{Counter, PeerCounter};
use crate::sync::epoch::{self, FastGuard, PeerCounters};
use crate::sync::{AtomicU64, Ordering, slots};
use crate::transport::endpoint::CarrierKind;
use crate::transport::shm::area::wake_kind;
use crate::transport::verbs::{DirectLane, Local, LoneRun, Refused, Remote as RemotePlace};
use crate::wire::message::{Put, RemoteAddress, Stream};

const WORD: u64 = size_of::<u64>() as u64;
/// Notifications that can be looked at again and again without keeping others from leaving an
/// epoch.
const SHORT_LOOK: u32 = 64;

/// A rank, while the calling thread is inside an epoch for one procedure.
#[derive(Debug)]
pub struct FastPath<'a> {
    runtime: &'a Runtime,
    inner: &'a Inner,
    guard: FastGuard,
}

/// Memory at both ends of a transfer.
struct Ends {
    local: *mut u8,
    remote: *mut u8,
}

/// Whether `size` bytes at `offset` lie inside of `room` bytes.
#[inline(always)]
fn fits(room: u64, offset: u64, size: u64) -> bool {
    let (last, too_large) = room.overflowing_sub(size);
    !too_large && offset <= last
}

/// Copies and leaves. Apart from the procedures, so that they need no stack.
///
/// # Safety
/// As [`std::ptr::copy`].
#[inline(never)]
unsafe fn copy_and_leave(guard: FastGuard, from: *const u8, to: *mut u8, size: usize) {
    // SAFETY: caller's promise.
    unsafe { std::ptr::copy(from, to, size) };
    drop(guard);
}

impl Runtime {
    /// Runs what takes nanoseconds, as far as nothing is in its way.
    #[doc(hidden)]
    #[inline(always)]
    pub fn try_fast<T>(&self, call: impl FnOnce(FastPath<'_>) -> Option<T>) -> Option<T> {
        call(FastPath::new(self, epoch::enter_fast()?))
    }
}

impl<'a> FastPath<'a> {
    /// Of `runtime`, which the guard keeps from being freed.
    #[inline(always)]
    pub fn new(runtime: &'a Runtime, guard: FastGuard) -> FastPath<'a> {
        FastPath { runtime, inner: runtime.inner(), guard }
    }

    /// The rank, for layers above that have procedures of this kind.
    #[inline(always)]
    pub fn runtime(&self) -> &'a Runtime {
        self.runtime
    }

    #[inline(always)]
    fn target(&self, rank: Rank, segment: SegmentId) -> Option<&'a Target> {
        // SAFETY: nothing that is looked up here is used after the guard has ended.
        unsafe { self.inner.ranks.targets.of(rank)?.get_inside(segment) }
    }

    #[inline(always)]
    fn segment(&self, segment: SegmentId) -> Option<&'a Segment> {
        // SAFETY: nothing that is looked up here is used after the guard has ended.
        unsafe { self.inner.memory.segments.get_inside(segment) }
    }

    #[inline(always)]
    fn queue(&self, queue: QueueId) -> Option<&'a Queue> {
        self.inner.queues.get(usize::from(queue.0))
    }

    /// How much of the target's memory a transfer may leave out in front, where that is mapped
    /// here. Asked first, since what goes by a device has nothing in common with what follows.
    #[inline(always)]
    fn room(target: &Target, t: &Transfer) -> Option<u64> {
        target.mapped().checked_sub(t.size)
    }

    /// Both ends of a transfer that is not empty, to memory that is mapped here.
    #[inline(always)]
    fn ends(&self, t: &Transfer, target: &Target, room: u64) -> Option<Ends> {
        let local = self.segment(t.local)?;
        // 0 becomes the largest number.
        if t.size.wrapping_sub(1) >= self.inner.config.transfer_size_max || t.remote_offset > room {
            return None;
        }
        if !fits(local.size, t.local_offset, t.size) || !target.alive() {
            return None;
        }
        let local = local.pointer().wrapping_add(t.local_offset as usize);
        Some(Ends { local, remote: target.start(t.remote_offset) })
    }

    /// The calling thread's counters for `rank`, whose targets have been looked up.
    #[inline(always)]
    fn peer(&self, rank: Rank) -> Option<&'a PeerCounters> {
        self.counts()?;
        // SAFETY: it counts for this runtime, which has targets for its ranks only.
        Some(unsafe { self.guard.peer(usize::from(rank.0)) })
    }

    /// Whether the calling thread counts for this runtime.
    #[inline(always)]
    fn counts(&self) -> Option<()> {
        self.guard.counts_for(self.inner.id()).then_some(())
    }

    /// Takes a slot of a queue that no other thread owns.
    #[inline(always)]
    fn take_slot(&self, queue: QueueId) -> Option<()> {
        let limit = self.inner.config.queue_size_max;
        self.queue(queue)?.reserve_fast(self.guard.slot(), 1, limit)?.then_some(())
    }

    /// The same, if nothing that was posted earlier is under way.
    #[inline(always)]
    fn take_slot_of_idle(&self, queue: QueueId) -> Option<()> {
        if self.queue(queue)?.is_busy() {
            return None;
        }
        self.take_slot(queue)
    }

    /// Whether a notification may be set, but for its segment.
    #[inline(always)]
    fn check_signal(&self, notification: NotificationId, value: u32) -> Option<()> {
        (value != 0 && notification.0 < self.inner.memory.shape.notifications).then_some(())
    }

    #[inline(always)]
    fn signal(&self, target: &Target, rank: Rank, notification: NotificationId, value: u32) {
        slots::set(target.notification(notification.0 as usize), value);
        self.inner.ranks.area.wake_for(rank, wake_kind::NOTIFICATION);
    }

    /// The last thing that a transfer does.
    ///
    /// # Safety
    /// Both ranges have been checked.
    #[inline(always)]
    unsafe fn copy(self, from: *const u8, to: *mut u8, size: u64) -> Option<()> {
        if size == WORD {
            // As one word, since programs look at it as one.
            // SAFETY: the caller vouches for 8 bytes at both ends.
            unsafe { to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()) };
        } else {
            // SAFETY: caller's promise; on one's own segments they may overlap.
            unsafe { copy_and_leave(self.guard, from, to, size as usize) };
        }
        Some(())
    }

    /// [`Runtime::write`].
    #[inline(always)]
    pub fn write(self, t: &Transfer, queue: QueueId) -> Option<()> {
        let target = self.target(t.rank, t.remote)?;
        let Some(room) = Self::room(target, t) else {
            return self.write_by_device(t, target, queue);
        };
        let Ends { local, remote } = self.ends(t, target, room)?;
        let peer = self.peer(t.rank)?;
        self.take_slot(queue)?;
        peer.add(PeerCounter::BytesWritten as usize, t.size);
        peer.add(PeerCounter::Writes as usize, 1);
        // SAFETY: they have been checked.
        unsafe { self.copy(local, remote, t.size) }
    }

    /// [`Runtime::read`].
    #[inline(always)]
    pub fn read(self, t: &Transfer, queue: QueueId) -> Option<()> {
        let target = self.target(t.rank, t.remote)?;
        let Some(room) = Self::room(target, t) else {
            return self.read_by_device(t, target, queue);
        };
        let Ends { local, remote } = self.ends(t, target, room)?;
        let peer = self.peer(t.rank)?;
        self.take_slot(queue)?;
        peer.add(PeerCounter::BytesRead as usize, t.size);
        peer.add(PeerCounter::Reads as usize, 1);
        // SAFETY: they have been checked.
        unsafe { self.copy(remote, local, t.size) }
    }

    /// [`Runtime::write_notify`].
    #[inline(always)]
    pub fn write_notify(
        self,
        t: &Transfer,
        notification: NotificationId,
        value: u32,
        queue: QueueId,
    ) -> Option<()> {
        let target = self.target(t.rank, t.remote)?;
        let Some(room) = Self::room(target, t) else {
            self.check_signal(notification, value)?;
            return self.write_notify_by_device(t, target, (notification, value), queue);
        };
        let Ends { local, remote } = self.ends(t, target, room)?;
        self.counts()?;
        self.check_signal(notification, value)?;
        self.take_slot_of_idle(queue)?;
        let size = t.size as usize;
        if t.size == WORD {
            // SAFETY: 8 bytes at both ends have been checked.
            unsafe { remote.cast::<u64>().write_unaligned(local.cast::<u64>().read_unaligned()) };
        } else {
            // SAFETY: they have been checked; on one's own segments they may overlap.
            unsafe { std::ptr::copy(local, remote, size) };
        }
        self.signal(target, t.rank, notification, value);
        // SAFETY: the thread counts for this runtime, which has targets for its ranks only.
        let peer = unsafe { self.guard.peer(usize::from(t.rank.0)) };
        peer.add(PeerCounter::BytesWritten as usize, t.size);
        peer.add(PeerCounter::WriteNotifys as usize, 1);
        Some(())
    }

    /// The lane by which this rank's device carries a transfer as it is, to which this thread may
    /// post and which counts it, and the memory that is here.
    #[inline(always)]
    fn device_lane(
        &self,
        t: &Transfer,
        target: &Target,
        queue: QueueId,
    ) -> Option<(DirectLane<'a>, &'a Segment)> {
        let local = self.segment(t.local)?;
        let fits_all =
            fits(target.size, t.remote_offset, t.size) && fits(local.size, t.local_offset, t.size);
        if !fits_all || !target.alive() {
            return None;
        }
        self.queue(queue)?;
        let device = self.inner.endpoints.device.as_ref()?;
        // SAFETY: it has a target, as only ranks of the job have.
        let lane = unsafe { device.direct_of(queue, t.rank) }?;
        let open = lane.is_open_to(self.guard.slot()) && lane.takes(t.size);
        open.then_some((lane, local))
    }

    /// Where both ends of a transfer lie, if devices reach them. Asked last, so that it is looked
    /// up where it is written down.
    #[inline(always)]
    fn places(t: &Transfer, local: &Segment, target: &Target) -> Option<(Local, RemotePlace)> {
        let Reach::Device { key, address } = target.reach else { return None };
        let own = local.pointer() as u64 + t.local_offset;
        let local = Local { address: own, key: Some(local.prepared.local_key()?) };
        Some((local, RemotePlace { address: address + t.remote_offset, key }))
    }

    /// A write to a rank of another node, handed to this rank's device: it is done when the queue
    /// says so.
    #[inline(always)]
    fn write_by_device(&self, t: &Transfer, target: &Target, queue: QueueId) -> Option<()> {
        let (lane, local) = self.device_lane(t, target, queue)?;
        let places = Self::places(t, local, target)?;
        self.take_slot(queue)?;
        self.heed(lane.write(t.size, places))
    }

    /// The same with a notification.
    #[inline(always)]
    fn write_notify_by_device(
        &self,
        t: &Transfer,
        target: &Target,
        (notification, value): (NotificationId, u32),
        queue: QueueId,
    ) -> Option<()> {
        let (lane, here) = self.device_lane(t, target, queue)?;
        let (local, remote) = Self::places(t, here, target)?;
        self.take_slot(queue)?;
        let Transfer { remote: segment, remote_offset: offset, size, .. } = *t;
        let put = move |generation| {
            let stream = Stream { queue, generation };
            let remote = RemoteAddress { segment, generation: target.generation, offset };
            Put { stream, remote, size, last: true, notification, value }
        };
        let signal = (segment, notification, value);
        self.heed(lane.write_notify((local, remote, size), signal, put))
    }

    /// The same for a read.
    #[inline(always)]
    fn read_by_device(&self, t: &Transfer, target: &Target, queue: QueueId) -> Option<()> {
        let (lane, local) = self.device_lane(t, target, queue)?;
        let places = Self::places(t, local, target)?;
        self.take_slot(queue)?;
        self.heed(lane.read(t.size, places))
    }

    /// What was handed to the device is done but for its end, also if it was refused.
    #[inline(always)]
    fn heed(&self, posted: Result<(), Refused>) -> Option<()> {
        if let Err(refused) = posted {
            self.call_progress(refused);
        }
        Some(())
    }

    /// Lets this thread post to a lane of this rank's device in the procedures below, where
    /// nothing is in the way: they may be tried again then.
    #[cold]
    pub fn open_device_lane(self, rank: Rank, queue: QueueId) -> Option<()> {
        let device = self.inner.endpoints.device.as_ref()?;
        let q = self.queue(queue)?;
        let size_max = self.inner.config.transfer_size_max;
        let begin = || q.begin_run(rank, CarrierKind::Verbs);
        device.open(self.guard.slot(), (queue, rank), size_max, begin).then_some(())
    }

    /// A lane is to be looked at, by whoever looks next.
    #[cold]
    #[inline(never)]
    fn call_progress(&self, refused: Refused) {
        if let Some(verbs) = self.inner.endpoints.verbs(self.inner) {
            verbs.table.note_refused(refused);
            verbs.call_progress();
        }
    }

    /// [`Runtime::notify`].
    #[inline(always)]
    pub fn notify(
        self,
        rank: Rank,
        segment: SegmentId,
        notification: NotificationId,
        value: u32,
        queue: QueueId,
    ) -> Option<()> {
        self.check_signal(notification, value)?;
        let target = self.target(rank, segment)?;
        let peer = self.peer(rank)?;
        if !target.alive() || !target.is_notified_here() {
            return None;
        }
        self.take_slot_of_idle(queue)?;
        self.signal(target, rank, notification, value);
        peer.add(PeerCounter::Notifys as usize, 1);
        Some(())
    }

    /// [`Runtime::wait`].
    #[inline(always)]
    pub fn wait(self, queue: QueueId) -> Option<()> {
        let q = self.queue(queue)?;
        // Requests that are done when posted leave only their count.
        let idle = !q.is_busy() && self.guard.counts_for(self.inner.id());
        if !idle || !q.reset_fast(self.guard.slot()) {
            return None;
        }
        self.guard.count(Counter::Waits as usize, 1);
        Some(())
    }

    /// Ends a run that alone is under way on its queue, if it is this thread's and all of it is
    /// done; what is posted is forgotten then.
    #[inline]
    pub(crate) fn end_run(self, queue: QueueId, run: LoneRun<'_>) -> Option<()> {
        let q = self.queue(queue)?;
        self.counts()?;
        q.end_run_fast(self.guard.slot(), run)?;
        // Another thread may wait for the queue too.
        self.inner.ranks.wake_own();
        self.guard.count(Counter::Waits as usize, 1);
        Some(())
    }

    /// [`Runtime::barrier`], if all members arrive within a brief look; unless `once`, the look
    /// takes some hundred nanoseconds where that pays. `None` may also mean that this rank has
    /// arrived.
    #[inline(always)]
    pub fn barrier(self, group: GroupId, once: bool) -> Option<()> {
        // Who knows that a member has died does not arrive; whether one has is looked up elsewhere.
        if !self.guard.counts_for(self.inner.id()) || !self.inner.ranks.area.all_live() {
            return None;
        }
        self.inner.barrier_briefly(group, once)?;
        self.guard.count(Counter::Barriers as usize, 1);
        Some(())
    }

    /// A look at the notifications `begin..begin + num` of this rank's `segment`: the lowest that
    /// is set, if one is. Unless `once`, it goes on looking for some hundred nanoseconds where that
    /// pays and a look is short. See [`Runtime::notify_waitsome`].
    #[inline(always)]
    pub fn notify_waitsome(
        self,
        segment: SegmentId,
        begin: u32,
        num: u32,
        once: bool,
    ) -> Option<Option<NotificationId>> {
        let end = begin.checked_add(num)?;
        if num == 0 || end > self.inner.memory.shape.notifications {
            return None;
        }
        let segment = self.segment(segment)?;
        let found = first_set(segment, begin, end);
        if found.is_none() && self.inner.waiter.looks_after_sockets() {
            return None;
        }
        if found.is_some() || once || num > SHORT_LOOK {
            return Some(found);
        }
        Some(self.inner.waiter.poll_briefly(|| first_set(segment, begin, end)))
    }

    /// [`Runtime::notify_reset`].
    #[inline(always)]
    pub fn notify_reset(self, segment: SegmentId, notification: NotificationId) -> Option<u32> {
        let segment = self.segment(segment)?;
        let exists = notification.0 < self.inner.memory.shape.notifications;
        exists.then(|| slots::take(segment.notification(notification.0 as usize)))
    }

    /// The word of an atomic operation, which is counted.
    #[inline(always)]
    fn word(&self, segment: SegmentId, offset: u64, rank: Rank) -> Option<&'a AtomicU64> {
        if self.inner.endpoints.atomics_by_device {
            return None;
        }
        let target = self.target(rank, segment)?;
        let peer = self.peer(rank)?;
        let word = target.start(offset).cast::<AtomicU64>();
        // Bound memory may begin anywhere.
        let aligned = offset.is_multiple_of(WORD) && word.is_aligned();
        if !fits(target.mapped(), offset, WORD) || !aligned || !target.alive() {
            return None;
        }
        peer.add(PeerCounter::Atomics as usize, 1);
        // SAFETY: inside of the mapping, which exists while the guard lives, and aligned; peers
        // access it with atomics or as raw memory.
        Some(unsafe { &*word })
    }

    /// [`Runtime::atomic_fetch_add`].
    #[inline(always)]
    pub fn atomic_fetch_add(
        self,
        segment: SegmentId,
        offset: u64,
        rank: Rank,
        add: u64,
    ) -> Option<u64> {
        Some(self.word(segment, offset, rank)?.fetch_add(add, Ordering::SeqCst))
    }

    /// [`Runtime::atomic_compare_swap`].
    #[inline(always)]
    pub fn atomic_compare_swap(
        self,
        segment: SegmentId,
        offset: u64,
        rank: Rank,
        comparator: u64,
        new: u64,
    ) -> Option<u64> {
        let word = self.word(segment, offset, rank)?;
        let order = Ordering::SeqCst;
        Some(word.compare_exchange(comparator, new, order, order).unwrap_or_else(|old| old))
    }
}

/// The lowest notification of `begin..end` that is set; the range has been checked.
#[inline(always)]
pub(crate) fn first_set(segment: &Segment, begin: u32, end: u32) -> Option<NotificationId> {
    let set = |id: &u32| slots::peek(segment.notification(*id as usize));
    (begin..end).find(set).map(NotificationId)
}

#[cfg(test)]
mod tests {
    use super::fits;
    use proptest::prelude::*;

    fn edges() -> impl Strategy<Value = u64> {
        let near = |edge: u64| (0..16u64).prop_map(move |by| edge.wrapping_add(by).wrapping_sub(8));
        prop_oneof![near(0), near(1 << 30), near(1 << 62), near(1 << 63), any::<u64>()]
    }

    proptest! {
        #[test]
        fn what_fits_ends_inside(room in edges(), offset in edges(), size in edges()) {
            let ends_inside = offset.checked_add(size).is_some_and(|end| end <= room);
            prop_assert_eq!(fits(room, offset, size), ends_inside);
        }
    }
}
