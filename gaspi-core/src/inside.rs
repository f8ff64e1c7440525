//! The procedures that take nanoseconds, as far as nothing is in their way.
//!
//! Each is either done completely, or nothing has happened at all: `None`. Then the procedure of
//! the same name of [`Runtime`] has to be called, which finds out why: wrong arguments, a full
//! queue, a target that is gone, memory that is not mapped here, something to wait for. What is
//! here has no error paths, takes no lock and calls nothing, so that a program pays for little more
//! than the copy.

use crate::ids::{NotificationId, QueueId, Rank, SegmentId};
use crate::node::news;
use crate::one_sided::{Transfer, copy};
use crate::queue::Queue;
use crate::runtime::{Inner, Runtime};
use crate::segment::{Segment, Target};
use crate::statistics::{Counter, PeerCounter};
use crate::sync::epoch::{Guard, PeerCounters};
use crate::sync::{AtomicU64, Ordering, slots};

/// A rank, while the calling thread is inside an epoch.
#[derive(Debug, Clone, Copy)]
pub struct Inside<'a> {
    inner: &'a Inner,
    guard: &'a Guard,
}

/// Memory at both ends of a transfer, and who it is counted for.
struct Ends<'a> {
    local: *mut u8,
    remote: *mut u8,
    target: &'a Target,
    peer: &'a PeerCounters,
}

impl<'a> Inside<'a> {
    /// Of `runtime`, which the guard keeps from being freed.
    #[inline(always)]
    pub fn new(runtime: &'a Runtime, guard: &'a Guard) -> Inside<'a> {
        Inside { inner: runtime.inner(), guard }
    }

    #[inline(always)]
    fn target(self, rank: Rank, segment: SegmentId) -> Option<&'a Target> {
        self.inner.targets.get(rank.index())?.get()?.get(segment, self.guard)
    }

    #[inline(always)]
    fn segment(self, segment: SegmentId) -> Option<&'a Segment> {
        self.inner.segments.get(segment, self.guard)
    }

    #[inline(always)]
    fn queue(self, queue: QueueId) -> Option<&'a Queue> {
        self.inner.queues.get(queue.index())
    }

    /// Both ends of a transfer that is not empty.
    #[inline(always)]
    fn ends(self, t: &Transfer) -> Option<Ends<'a>> {
        let target = self.target(t.rank, t.remote)?;
        let remote = target.at(t.remote_offset, t.size)?;
        let local = self.segment(t.local)?.at(t.local_offset, t.size)?;
        // 0 becomes the largest number.
        if t.size.wrapping_sub(1) >= self.inner.config.transfer_size_max {
            return None;
        }
        Some(Ends { local, remote, target, peer: self.peer(t.rank)? })
    }

    /// The calling thread's counters for `rank`, whose targets have been looked up.
    #[inline(always)]
    fn peer(self, rank: Rank) -> Option<&'a PeerCounters> {
        if !self.guard.counts_for(self.inner.id) {
            return None;
        }
        // SAFETY: it counts for this runtime, which has targets for its ranks only.
        Some(unsafe { self.guard.peer(rank.index()) })
    }

    /// Takes a slot of a queue that the calling thread owns.
    #[inline(always)]
    fn take_slot(self, queue: QueueId) -> Option<()> {
        let limit = self.inner.config.queue_size_max;
        self.queue(queue)?.reserve_owned(self.guard, 1, limit)?.then_some(())
    }

    /// The same, if nothing that was posted earlier is under way.
    #[inline(always)]
    fn take_slot_of_idle(self, queue: QueueId) -> Option<()> {
        if self.queue(queue)?.is_busy() {
            return None;
        }
        self.take_slot(queue)
    }

    /// Whether a notification may be set, but for its segment.
    #[inline(always)]
    fn check_signal(self, notification: NotificationId, value: u32) -> Option<()> {
        (value != 0 && notification.0 < self.inner.shape.notifications).then_some(())
    }

    #[inline(always)]
    fn signal(self, target: &Target, rank: Rank, notification: NotificationId, value: u32) {
        slots::set(target.notification(notification.index()), value);
        self.inner.area.ring_for(rank, news::NOTIFICATION);
    }

    /// [`Runtime::write`].
    #[inline(always)]
    pub fn write(self, t: &Transfer, queue: QueueId) -> Option<()> {
        let ends = self.ends(t)?;
        self.take_slot(queue)?;
        ends.peer.add(PeerCounter::BytesWritten as usize, t.size);
        ends.peer.add(PeerCounter::Writes as usize, 1);
        // SAFETY: `ends` checked both ranges, which exist while the guard lives.
        unsafe { copy(ends.local, ends.remote, t.size as usize) };
        Some(())
    }

    /// [`Runtime::read`].
    #[inline(always)]
    pub fn read(self, t: &Transfer, queue: QueueId) -> Option<()> {
        let ends = self.ends(t)?;
        self.take_slot(queue)?;
        ends.peer.add(PeerCounter::BytesRead as usize, t.size);
        ends.peer.add(PeerCounter::Reads as usize, 1);
        // SAFETY: `ends` checked both ranges, which exist while the guard lives.
        unsafe { copy(ends.remote, ends.local, t.size as usize) };
        Some(())
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
        self.check_signal(notification, value)?;
        let ends = self.ends(t)?;
        self.take_slot_of_idle(queue)?;
        // SAFETY: `ends` checked both ranges, which exist while the guard lives.
        unsafe { copy(ends.local, ends.remote, t.size as usize) };
        self.signal(ends.target, t.rank, notification, value);
        ends.peer.add(PeerCounter::BytesWritten as usize, t.size);
        ends.peer.add(PeerCounter::WriteNotifys as usize, 1);
        Some(())
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
        if !target.alive() {
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
        if q.is_busy() || !q.reset_owned(self.guard) {
            return None;
        }
        self.guard.count_owned(self.inner.id, Counter::Waits as usize, 1).then_some(())
    }

    /// A look at the notifications `begin..begin + num` of this rank's `segment`: the lowest that is
    /// set, if one is. Unless `once`, it goes on looking for some hundred nanoseconds where that
    /// pays. See [`Runtime::notify_waitsome`].
    #[inline(always)]
    pub fn notify_waitsome(
        self,
        segment: SegmentId,
        begin: u32,
        num: u32,
        once: bool,
    ) -> Option<Option<NotificationId>> {
        let end = begin.checked_add(num)?;
        if num == 0 || end > self.inner.shape.notifications {
            return None;
        }
        let segment = self.segment(segment)?;
        let found = first_set(segment, begin, end);
        if found.is_some() || once {
            return Some(found);
        }
        Some(self.inner.waiter.briefly(|| first_set(segment, begin, end)))
    }

    /// [`Runtime::notify_reset`].
    #[inline(always)]
    pub fn notify_reset(self, segment: SegmentId, notification: NotificationId) -> Option<u32> {
        let segment = self.segment(segment)?;
        let exists = notification.0 < self.inner.shape.notifications;
        exists.then(|| slots::take(segment.notification(notification.index())))
    }

    /// The word of an atomic operation, which is counted.
    #[inline(always)]
    fn word(self, segment: SegmentId, offset: u64, rank: Rank) -> Option<&'a AtomicU64> {
        let word = self.target(rank, segment)?.at(offset, 8)?.cast::<AtomicU64>();
        let peer = self.peer(rank)?;
        // Bound memory may begin anywhere.
        if !offset.is_multiple_of(8) || !word.is_aligned() {
            return None;
        }
        peer.add(PeerCounter::Atomics as usize, 1);
        // SAFETY: `at` checked that it lies inside of the mapping, which exists while the guard
        // lives; it is aligned, and peers access it with atomics or as raw memory.
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
