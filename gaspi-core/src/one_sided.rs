//! Writes, reads, notifications, and their lists (GASPI 17.1, 8).
//!
//! A request whose both ends are mapped here and in whose way is nothing is posted by [`FastPath`].
//! Everything else comes here: wrong arguments, full queues, targets that are gone, memory that is
//! not mapped, notifications behind copies that are under way, lists.

mod slow_path;
mod transfer;

pub use transfer::{Transfer, TransferList};

use crate::error::{Error, Result};
use crate::fast_path::FastPath;
use crate::ids::{NotificationId, QueueId, Rank, SegmentId};
use crate::runtime::{Inner, Runtime};
use crate::segment::table::Table;
use crate::segment::{Reach, Segment, Target};
use crate::statistics::PeerCounter;
use crate::sync::epoch::{self, Guard};
use crate::timeout::Timeout;
use crate::transport::shm::copy::Direction;
use slow_path::Posting;
use std::sync::Arc;

/// A notification at its target.
#[derive(Debug, Clone, Copy)]
struct Signal {
    rank: Rank,
    segment: SegmentId,
    id: NotificationId,
    value: u32,
}

/// Both ends of a transfer, which have been checked, beyond the epoch in which they were found.
struct Ends {
    local: Arc<Segment>,
    target: Arc<Target>,
}

impl Ends {
    fn keep(local: &Segment, target: &Target, inside: &Guard) -> Ends {
        // SAFETY: found in tables, which hold them by such pointers while the guard lives.
        let (local, target) = unsafe { (inside.keep(local), inside.keep(target)) };
        Ends { local, target }
    }
}

impl Inner {
    /// Checks both ends of a transfer.
    #[inline]
    fn check(&self, t: &Transfer, local: &Segment, target: &Target) -> Result<()> {
        let local_ok = t.local_offset < local.size && t.size <= local.size - t.local_offset;
        let remote_ok = t.remote_offset < target.size && t.size <= target.size - t.remote_offset;
        if local_ok && remote_ok && t.size <= self.config.transfer_size_max {
            return Ok(());
        }
        Err(self.out_of_range(t, local.size, target.size))
    }

    #[cold]
    fn out_of_range(&self, t: &Transfer, local: u64, remote: u64) -> Error {
        if t.local_offset >= local {
            return Error::LocalOffset { segment: t.local, offset: t.local_offset, size: local };
        }
        if t.remote_offset >= remote {
            let (rank, segment, offset) = (t.rank, t.remote, t.remote_offset);
            return Error::RemoteOffset { rank, segment, offset, size: remote };
        }
        let limit = self.config.transfer_size_max;
        let reason = if t.size > limit {
            format!("the limit is {limit} (transfer_size_max)")
        } else if t.size > local - t.local_offset {
            let left = local - t.local_offset;
            format!("only {left} are left at local offset {} of {}", t.local_offset, t.local)
        } else {
            let (left, offset) = (remote - t.remote_offset, t.remote_offset);
            format!("only {left} are left at remote offset {offset} of {} of {}", t.remote, t.rank)
        };
        Error::CommSize { size: t.size, reason }
    }

    /// Checks a notification to be set, except for its segment.
    #[inline]
    fn check_signal(&self, id: NotificationId, value: u32) -> Result<()> {
        if value == 0 {
            return Err(Error::NotificationValue);
        }
        self.check_notifications(id.0, 1)
    }

    #[cold]
    fn queue_full(&self, queue: QueueId) -> Error {
        Error::QueueFull { queue, limit: self.config.queue_size_max }
    }

    /// Posts one transfer, and a notification behind it, whatever that takes.
    #[cold]
    fn post(
        &self,
        direction: Direction,
        t: &Transfer,
        signal: Option<Signal>,
        queue: QueueId,
    ) -> Result<()> {
        let inside = epoch::enter();
        let q = self.queue(queue)?;
        let local = self.local(t.local, &inside)?;
        let target = self.target(t.rank, t.remote, &inside)?;
        self.check(t, local, target)?;
        if t.size == 0 && signal.is_none() {
            return Ok(());
        }
        if !q.reserve(&inside, 1, self.config.queue_size_max) {
            return Err(self.queue_full(queue));
        }
        self.count_transfer(&inside, direction, t, signal.is_some());
        let copied = t.size == 0 || fast(direction, t, local, target);
        let ends = (!copied).then(|| Ends::keep(local, target, &inside));
        // Posting may look after the sockets, and wait for all who are inside.
        drop(inside);
        let to = Posting { id: queue, queue: q };
        match (ends, signal) {
            (Some(ends), signal) => _ = self.transfer_slow(direction, t, ends, signal, to),
            (None, Some(signal)) => self.signal_behind(direction, t, signal, to),
            (None, None) => {}
        }
        self.tcp().look_behind_posts();
        Ok(())
    }

    fn count_transfer(&self, inside: &Guard, direction: Direction, t: &Transfer, signal: bool) {
        let (bytes, plain, notified) = match direction {
            Direction::Write => {
                (PeerCounter::BytesWritten, PeerCounter::Writes, PeerCounter::WriteNotifys)
            }
            Direction::Read => {
                (PeerCounter::BytesRead, PeerCounter::Reads, PeerCounter::ReadNotifys)
            }
        };
        let requests = if signal { notified } else { plain };
        self.count_for(inside, t.rank, bytes, t.size);
        self.count_for(inside, t.rank, requests, 1);
    }

    /// Posts a notification, whatever that takes.
    #[cold]
    fn notify(&self, signal: Signal, queue: QueueId) -> Result<()> {
        let inside = epoch::enter();
        let q = self.queue(queue)?;
        self.target(signal.rank, signal.segment, &inside)?;
        self.check_signal(signal.id, signal.value)?;
        if !q.reserve(&inside, 1, self.config.queue_size_max) {
            return Err(self.queue_full(queue));
        }
        self.count_for(&inside, signal.rank, PeerCounter::Notifys, 1);
        drop(inside);
        self.notify_behind(signal, Posting { id: queue, queue: q });
        self.tcp().look_behind_posts();
        Ok(())
    }

    fn post_list(
        &self,
        direction: Direction,
        list: &TransferList<'_>,
        signal: Option<Signal>,
        queue: QueueId,
    ) -> Result<()> {
        list.check(self.config.rw_list_elem_max)?;
        let mut inside = epoch::enter();
        let q = self.queue(queue)?;
        let mut slots_needed = u32::from(signal.is_some());
        // All elements have the same rank.
        let targets = self.ranks.targets.of(list.rank);
        for t in list.elements() {
            let local = self.local(t.local, &inside)?;
            self.check(&t, local, self.target_in(targets, t.rank, t.remote, &inside)?)?;
            slots_needed += u32::from(t.size > 0);
        }
        if let Some(signal) = signal {
            self.target(signal.rank, signal.segment, &inside)?;
        }
        if !q.reserve(&inside, slots_needed, self.config.queue_size_max) {
            return Err(self.queue_full(queue));
        }
        let losses = signal.map(|_| q.losses(list.rank));
        let to = Posting { id: queue, queue: q };
        let (mut last, mut moved, mut left) = (None, true, false);
        let gathered = self.gather(list, targets, queue, &inside);
        for t in list.elements().inspect(|t| last = Some(*t)).filter(|t| t.size > 0) {
            self.count_transfer(&inside, direction, &t, false);
            let local = self.local(t.local, &inside)?;
            let target = self.target_in(targets, t.rank, t.remote, &inside)?;
            // Other threads may have replaced segments since this one was outside.
            if left && let Err(error) = self.check(&t, local, target) {
                q.fail(&format!("a segment was replaced while it was used: {error}"));
                moved = false;
                continue;
            }
            if fast(direction, &t, local, target) {
                continue;
            }
            let ends = Ends::keep(local, target, &inside);
            // It may look after the sockets, and wait for all who are inside.
            drop(inside);
            left = true;
            moved &= self.transfer_slow(direction, &t, ends, None, to);
            inside = epoch::enter();
        }
        drop(inside);
        if let (Some(signal), Some(last), true) = (signal, last, moved) {
            // A thread that waits for the queue may have been told of the loss meanwhile.
            if losses == Some(q.losses(list.rank)) {
                self.signal_behind(direction, &last, signal, to);
            } else {
                self.ranks.set_corrupt(list.rank);
                q.fail(&format!(
                    "the data before a notification was lost with the connection to {}",
                    list.rank
                ));
            }
        }
        drop(gathered);
        self.tcp().look_behind_posts();
        Ok(())
    }

    /// Has a device get the elements of a list together.
    fn gather<'a>(
        &'a self,
        list: &TransferList<'_>,
        targets: Option<&Table<Target>>,
        queue: QueueId,
        inside: &Guard,
    ) -> Option<impl Drop + use<'a>> {
        let verbs = self.endpoints.verbs(self)?;
        let target = self.target_in(targets, list.rank, *list.remote.first()?, inside).ok()?;
        let is_by_device = matches!(target.reach, Reach::Device { .. });
        is_by_device.then(|| verbs.gather(queue, list.rank))
    }
}

/// A plain copy, where both ends are mapped here and the target still exists; false where not.
#[inline(always)]
fn fast(direction: Direction, t: &Transfer, local: &Segment, target: &Target) -> bool {
    if !target.alive() {
        return false;
    }
    let remote = target.data(t.remote_offset);
    if remote.is_null() {
        return false;
    }
    let near = local.pointer().wrapping_add(t.local_offset as usize);
    let (from, to) = match direction {
        Direction::Write => (near.cast_const(), remote),
        Direction::Read => (remote.cast_const(), near),
    };
    // SAFETY: both ranges were checked, and both mappings exist while the caller is inside of an
    // epoch or holds both; on one's own segments they may overlap.
    unsafe { std::ptr::copy(from, to, t.size as usize) };
    true
}

impl Runtime {
    /// Posts what was not done at once: to a lane of a device that this thread can open, or else
    /// whatever that takes.
    #[cold]
    fn post(
        &self,
        direction: Direction,
        t: &Transfer,
        signal: Option<Signal>,
        queue: QueueId,
    ) -> Result<()> {
        let opens = |fast: FastPath<'_>| fast.open_device_lane(t.rank, queue);
        let again = |fast: FastPath<'_>| match (direction, &signal) {
            (Direction::Read, _) => fast.read(t, queue),
            (Direction::Write, None) => fast.write(t, queue),
            (Direction::Write, Some(signal)) => {
                fast.write_notify(t, signal.id, signal.value, queue)
            }
        };
        if self.try_fast(opens).and_then(|()| self.try_fast(again)).is_some() {
            return Ok(());
        }
        self.inner().post(direction, t, signal, queue)
    }

    /// Writes `size` bytes of this rank's segment into a segment of another (GASPI 17.1, 8.2.1).
    ///
    /// # Errors
    /// [`Error::QueueFull`], and those of wrong arguments. What goes wrong afterwards shows in
    /// [`wait`](Runtime::wait).
    #[inline]
    pub fn write(&self, t: &Transfer, queue: QueueId, _timeout: Timeout) -> Result<()> {
        match self.try_fast(|fast| fast.write(t, queue)) {
            Some(()) => Ok(()),
            None => self.post(Direction::Write, t, None, queue),
        }
    }

    /// Reads `size` bytes of another rank's segment into a segment of this one (GASPI 17.1, 8.2.2).
    ///
    /// # Errors
    /// As [`write`](Runtime::write).
    #[inline]
    pub fn read(&self, t: &Transfer, queue: QueueId, _timeout: Timeout) -> Result<()> {
        match self.try_fast(|fast| fast.read(t, queue)) {
            Some(()) => Ok(()),
            None => self.post(Direction::Read, t, None, queue),
        }
    }

    /// A write and, visible after it and after all earlier writes of this queue to that rank, a
    /// notification of the remote segment (GASPI 17.1, 8.4.1). Takes one slot.
    ///
    /// # Errors
    /// As [`write`](Runtime::write), and [`Error::NotificationValue`],
    /// [`Error::NotificationRange`].
    #[inline]
    pub fn write_notify(
        &self,
        t: &Transfer,
        notification: NotificationId,
        value: u32,
        queue: QueueId,
        _timeout: Timeout,
    ) -> Result<()> {
        let fast = |fast: FastPath<'_>| fast.write_notify(t, notification, value, queue);
        if self.try_fast(fast).is_some() {
            return Ok(());
        }
        let inner = self.inner();
        inner.check_signal(notification, value)?;
        let signal = Signal { rank: t.rank, segment: t.remote, id: notification, value };
        self.post(Direction::Write, t, Some(signal), queue)
    }

    /// A read and, after the data has arrived, the notification of the local segment with value 1
    /// (GASPI 17.1, 8.4.4). Takes one slot.
    ///
    /// # Errors
    /// As [`read`](Runtime::read), and [`Error::NotificationRange`].
    pub fn read_notify(
        &self,
        t: &Transfer,
        notification: NotificationId,
        queue: QueueId,
        _timeout: Timeout,
    ) -> Result<()> {
        let inner = self.inner();
        inner.check_signal(notification, 1)?;
        let signal = Signal { rank: inner.ranks.me, segment: t.local, id: notification, value: 1 };
        inner.post(Direction::Read, t, Some(signal), queue)
    }

    /// Several writes to one rank (GASPI 17.1, 8.4.2). Takes one slot per element that is not
    /// empty; all or none are posted.
    ///
    /// # Errors
    /// As [`write`](Runtime::write), and [`Error::Number`].
    pub fn write_list(&self, list: &TransferList<'_>, queue: QueueId, _t: Timeout) -> Result<()> {
        self.inner().post_list(Direction::Write, list, None, queue)
    }

    /// Several reads from one rank (GASPI 17.1, 8.4.5).
    ///
    /// # Errors
    /// As [`write_list`](Runtime::write_list).
    pub fn read_list(&self, list: &TransferList<'_>, queue: QueueId, _t: Timeout) -> Result<()> {
        self.inner().post_list(Direction::Read, list, None, queue)
    }

    /// Several writes, then a notification of the rank's segment `notified` (GASPI 17.1, 8.4.3).
    /// Takes one more slot.
    ///
    /// # Errors
    /// As [`write_list`](Runtime::write_list) and [`write_notify`](Runtime::write_notify).
    pub fn write_list_notify(
        &self,
        list: &TransferList<'_>,
        notified: SegmentId,
        notification: NotificationId,
        value: u32,
        queue: QueueId,
        _timeout: Timeout,
    ) -> Result<()> {
        let inner = self.inner();
        inner.check_signal(notification, value)?;
        let signal = Signal { rank: list.rank, segment: notified, id: notification, value };
        inner.post_list(Direction::Write, list, Some(signal), queue)?;
        inner.count_for(&epoch::enter(), list.rank, PeerCounter::WriteNotifys, 1);
        Ok(())
    }

    /// Several reads, then, after all data has arrived, a notification of this rank's segment
    /// `notified` with value 1 (GASPI 17.1, 8.4.6). Takes one more slot.
    ///
    /// # Errors
    /// As [`read_list`](Runtime::read_list) and [`read_notify`](Runtime::read_notify).
    pub fn read_list_notify(
        &self,
        list: &TransferList<'_>,
        notified: SegmentId,
        notification: NotificationId,
        queue: QueueId,
        _timeout: Timeout,
    ) -> Result<()> {
        let inner = self.inner();
        inner.check_signal(notification, 1)?;
        let signal = Signal { rank: inner.ranks.me, segment: notified, id: notification, value: 1 };
        inner.post_list(Direction::Read, list, Some(signal), queue)?;
        inner.count_for(&epoch::enter(), list.rank, PeerCounter::ReadNotifys, 1);
        Ok(())
    }
    /// Sets a notification of another rank's segment, visible after all earlier writes of this
    /// queue to that rank (GASPI 17.1, 8.3.2). Takes one slot.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::NotificationValue`], [`Error::NotificationRange`],
    /// [`Error::InvalidSegment`], [`Error::InvalidRank`], [`Error::InvalidQueue`].
    #[inline]
    pub fn notify(
        &self,
        rank: Rank,
        segment: SegmentId,
        notification: NotificationId,
        value: u32,
        queue: QueueId,
        _timeout: Timeout,
    ) -> Result<()> {
        let fast = |fast: FastPath<'_>| fast.notify(rank, segment, notification, value, queue);
        match self.try_fast(fast) {
            Some(()) => Ok(()),
            None => self.inner().notify(Signal { rank, segment, id: notification, value }, queue),
        }
    }
}
