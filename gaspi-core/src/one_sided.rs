//! Writes, reads, notifications, and their lists (GASPI 17.1, 8).
//!
//! A request whose both ends are mapped here and in whose way is nothing is posted by [`Inside`].
//! Everything else comes here: wrong arguments, full queues, targets that are gone, memory that is
//! not mapped, notifications behind copies that are under way, lists.

use crate::error::{Error, Result};
use crate::fabric::frame::{Lane, Place, Put};
use crate::fabric::outgoing::{CHUNK, Item};
use crate::fabric::payload::Payload;
use crate::fabric::peers::Landing;
use crate::ids::{NotificationId, QueueId, Rank, SegmentId};
use crate::inside::Inside;
use crate::node::{life, news};
use crate::os::{cross_memory, process};
use crate::queue::Queue;
use crate::runtime::{Inner, Runtime};
use crate::segment::{Reach, Segment, Target};
use crate::statistics::PeerCounter;
use crate::sync::epoch::{self, Guard};
use crate::sync::slots;
use crate::timeout::Timeout;
use std::sync::Arc;

/// From where to where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Segment of this rank.
    pub local: SegmentId,
    /// Bytes.
    pub local_offset: u64,
    /// The other rank; may be this one.
    pub rank: Rank,
    /// Segment of the other rank.
    pub remote: SegmentId,
    /// Bytes.
    pub remote_offset: u64,
    /// Bytes, at most transfer_size_max; 0 moves nothing.
    pub size: u64,
}

/// Several transfers with one rank; all lists have the same length, 1..=rw_list_elem_max.
#[derive(Debug, Clone, Copy)]
pub struct TransferList<'a> {
    /// The other rank.
    pub rank: Rank,
    /// Segments of this rank.
    pub local: &'a [SegmentId],
    /// Bytes.
    pub local_offsets: &'a [u64],
    /// Segments of the other rank.
    pub remote: &'a [SegmentId],
    /// Bytes.
    pub remote_offsets: &'a [u64],
    /// Bytes.
    pub sizes: &'a [u64],
}

impl TransferList<'_> {
    fn check(&self, limit: u32) -> Result<()> {
        let len = self.sizes.len();
        let others = [
            self.local.len(),
            self.local_offsets.len(),
            self.remote.len(),
            self.remote_offsets.len(),
        ];
        if len == 0 || len > limit as usize || others.iter().any(|other| *other != len) {
            let reason =
                format!("a list has 1 to {limit} elements (rw_list_elem_max), of each kind");
            return Err(Error::Number { number: len as u64, reason });
        }
        Ok(())
    }

    fn elements(&self) -> impl Iterator<Item = Transfer> + '_ {
        (0..self.sizes.len()).map(|i| Transfer {
            local: self.local[i],
            local_offset: self.local_offsets[i],
            rank: self.rank,
            remote: self.remote[i],
            remote_offset: self.remote_offsets[i],
            size: self.sizes[i],
        })
    }
}

/// A notification at its target.
#[derive(Debug, Clone, Copy)]
struct Signal {
    rank: Rank,
    segment: SegmentId,
    id: NotificationId,
    value: u32,
}

/// How a copy between processes ended.
enum Copied {
    Done,
    /// The queue knows why.
    Failed,
    /// The kernel does not allow it: the peer has to help.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Write,
    Read,
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

    /// Posts one transfer, and a notification at the target behind it, whatever that takes.
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
        let remote = target.reach == Reach::Remote && target.alive();
        drop(inside);
        if let (Direction::Write, true, Some(signal)) = (direction, remote, signal) {
            self.put_remotely(t, signal, q, queue);
        } else {
            let moved = self.move_slowly(direction, t, q, queue);
            if let (true, Some(signal)) = (moved, signal) {
                self.signal_slowly(direction, t, signal, q, queue);
            }
        }
        self.look_behind_posts();
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

    /// A transfer that is not a plain copy: its outcome goes to the queue. False if it has failed
    /// already, so that it must not be announced.
    #[cold]
    fn move_slowly(&self, direction: Direction, t: &Transfer, q: &Queue, queue: QueueId) -> bool {
        let local = self.segments.get_arc(t.local);
        let target = self.targets_of(t.rank).get_arc(t.remote);
        let (Some(local), Some(target)) = (local, target) else {
            q.fail("a segment was deleted while it was used");
            return false;
        };
        if !target.alive() {
            self.target_gone(t.rank, t.remote, q);
            return false;
        }
        // It may have been replaced by a smaller one since it was checked.
        if let Err(error) = self.check(t, &local, &target) {
            q.fail(&format!("a segment was replaced while it was used: {error}"));
            return false;
        }
        if t.size == 0 || fast(direction, t, &local, &target) {
            return true;
        }
        if let Reach::CrossMemory { pid, address } = target.reach {
            match self.copy_across(direction, t, &local, &target, pid, address, q) {
                Copied::Done => return true,
                Copied::Failed => return false,
                Copied::Refused => {}
            }
        }
        self.stage(direction, t, &local, target.generation, None, q, queue)
    }

    /// A request to a segment that was deleted, or whose owner left or died.
    #[cold]
    fn target_gone(&self, rank: Rank, segment: SegmentId, q: &Queue) {
        let reason = match self.area.life(rank) {
            life::DEAD => format!("{rank} has died on {}", self.cards[rank.index()].host),
            life::LEFT => format!("{rank} has left the job by proc_term"),
            _ => format!("{rank} has deleted {segment}"),
        };
        q.fail(&reason);
        self.set_corrupt(rank);
    }

    /// Copies between processes.
    #[allow(clippy::too_many_arguments, reason = "what move_slowly has looked up")]
    fn copy_across(
        &self,
        direction: Direction,
        t: &Transfer,
        local: &Segment,
        target: &Target,
        pid: i32,
        address: u64,
        q: &Queue,
    ) -> Copied {
        // While this lives, the owner's delete waits.
        let copying = target.copying(self.rank);
        // The number may serve another process once the owner has ended.
        let ended = self.processes[t.rank.index()].get().is_some_and(process::has_ended);
        if copying.is_none() || ended || self.area.life(t.rank) != life::JOINED {
            self.target_gone(t.rank, t.remote, q);
            return Copied::Failed;
        }
        let pointer = local.pointer().wrapping_add(t.local_offset as usize);
        let remote = address + t.remote_offset;
        let len = t.size as usize;
        // SAFETY: the local range was checked and its segment is kept alive by the caller.
        let copied = unsafe {
            match direction {
                Direction::Write => cross_memory::write(pid, remote, pointer, len),
                Direction::Read => cross_memory::read(pid, remote, pointer, len),
            }
        };
        match copied {
            Ok(()) => Copied::Done,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Copied::Refused,
            Err(error) => {
                q.fail(&format!(
                    "copying {len} bytes from or to the memory of {}: {error}",
                    t.rank
                ));
                self.set_corrupt(t.rank);
                Copied::Failed
            }
        }
    }

    /// Has the owner's progress copy; false if that could not even be asked for.
    #[allow(clippy::too_many_arguments, reason = "what move_slowly has looked up")]
    fn stage(
        &self,
        direction: Direction,
        t: &Transfer,
        local: &Arc<Segment>,
        generation: u32,
        notify: Option<(Arc<Segment>, NotificationId)>,
        q: &Queue,
        queue: QueueId,
    ) -> bool {
        let place = Place { segment: t.remote, generation, offset: t.remote_offset };
        let size = t.size;
        let lane = Lane { queue, generation: q.begin(t.rank) };
        let posted = match direction {
            Direction::Write => {
                let payload = Payload::new(Arc::clone(local), t.local_offset);
                let item = Item::put(self.plain_put(lane, place, size), Some(payload));
                self.peers.post(self, t.rank, queue, item)
            }
            Direction::Read => {
                let segment = Arc::clone(local);
                let landing = Landing { segment, offset: t.local_offset, size, notify };
                self.read_in_parts(t.rank, lane, place, landing, q)
            }
        };
        if let Err(error) = &posted {
            q.complete(t.rank, lane.generation, 1, Some(&error.to_string()));
            self.set_corrupt(t.rank);
        }
        posted.is_ok()
    }

    /// A write to another node together with its notification.
    fn put_remotely(&self, t: &Transfer, signal: Signal, q: &Queue, queue: QueueId) {
        let local = self.segments.get_arc(t.local);
        let target = self.targets_of(t.rank).get_arc(t.remote);
        let (Some(local), Some(target)) = (local, target) else {
            return q.fail("a segment was deleted while it was used");
        };
        if !target.alive() {
            return self.target_gone(t.rank, t.remote, q);
        }
        if let Err(error) = self.check(t, &local, &target) {
            return q.fail(&format!("a segment was replaced while it was used: {error}"));
        }
        let generation = target.generation;
        let place = Place { segment: t.remote, generation, offset: t.remote_offset };
        let lane = Lane { queue, generation: q.begin(t.rank) };
        let put = self.plain_put(lane, place, t.size);
        let put = Put { notification: signal.id, value: signal.value, ..put };
        let payload = (t.size > 0).then(|| Payload::new(local, t.local_offset));
        if let Err(error) = self.peers.post(self, t.rank, queue, Item::put(put, payload)) {
            q.complete(t.rank, lane.generation, 1, Some(&error.to_string()));
            self.set_corrupt(t.rank);
        }
    }

    /// A put without a notification.
    fn plain_put(&self, lane: Lane, place: Place, size: u64) -> Put {
        let notification = NotificationId(0);
        Put { lane, place, size, last: true, notification, value: 0 }
    }

    /// Asks for a range in parts, so that what others ask of its owner has its turn in between. The
    /// last one, which completes the request, carries the notification.
    fn read_in_parts(
        &self,
        rank: Rank,
        lane: Lane,
        place: Place,
        landing: Landing,
        q: &Queue,
    ) -> Result<()> {
        let mut done = 0;
        loop {
            let size = (landing.size - done).min(CHUNK);
            let last = done + size == landing.size;
            let part = Landing {
                segment: Arc::clone(&landing.segment),
                offset: landing.offset + done,
                size,
                notify: landing.notify.clone().filter(|_| last),
            };
            let place = Place { offset: place.offset + done, ..place };
            if !last {
                q.begin_more(rank, lane.generation);
            }
            let posted = self.peers.post_get(self, rank, lane, place, part);
            if posted.is_err() && !last {
                q.complete(rank, lane.generation, 1, None);
            }
            posted?;
            if last {
                return Ok(());
            }
            done += size;
        }
    }

    /// A notification behind transfers that may be under way.
    #[cold]
    fn signal_slowly(
        &self,
        direction: Direction,
        t: &Transfer,
        signal: Signal,
        q: &Queue,
        queue: QueueId,
    ) {
        match direction {
            Direction::Write => self.notify_behind(signal, q, queue),
            Direction::Read => self.notify_after_reads(t, signal, q, queue),
        }
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
        self.notify_behind(signal, q, queue);
        self.look_behind_posts();
        Ok(())
    }

    /// Sets a peer's notification after what this queue has under way to that peer.
    fn notify_behind(&self, signal: Signal, q: &Queue, queue: QueueId) {
        let Some(target) = self.targets_of(signal.rank).get_arc(signal.segment) else {
            return q.fail("a segment was deleted while it was used");
        };
        if !target.alive() {
            return self.target_gone(signal.rank, signal.segment, q);
        }
        if target.is_notified_here() && !q.is_pending(signal.rank) {
            slots::set(target.notification(signal.id.index()), signal.value);
            self.area.ring_for(signal.rank, news::NOTIFICATION);
            return;
        }
        let place = Place { segment: signal.segment, generation: target.generation, offset: 0 };
        let lane = Lane { queue, generation: q.begin(signal.rank) };
        let put = self.plain_put(lane, place, 0);
        let put = Put { notification: signal.id, value: signal.value, ..put };
        let posted = self.peers.post(self, signal.rank, queue, Item::put(put, None));
        if let Err(error) = posted {
            q.complete(signal.rank, lane.generation, 1, Some(&error.to_string()));
        }
    }

    /// Sets a notification of this rank after the reads that this queue has under way.
    fn notify_after_reads(&self, t: &Transfer, signal: Signal, q: &Queue, queue: QueueId) {
        let own = self.segments.get_arc(signal.segment);
        let target = self.targets_of(t.rank).get_arc(t.remote);
        let (Some(own), Some(target)) = (own, target) else {
            return q.fail("a segment was deleted while it was used");
        };
        // Data that failed to arrive is not announced.
        if !target.alive() {
            return;
        }
        if !q.is_pending(t.rank) {
            slots::set(own.notification(signal.id.index()), signal.value);
            self.area.ring_for(self.rank, news::NOTIFICATION);
            return;
        }
        // Answers come in order: an empty read behind the others carries the notification.
        let empty = Transfer { size: 0, ..*t };
        let notify = Some((Arc::clone(&own), signal.id));
        self.stage(Direction::Read, &empty, &own, target.generation, notify, q, queue);
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
        for t in list.elements() {
            let local = self.local(t.local, &inside)?;
            self.check(&t, local, self.target(t.rank, t.remote, &inside)?)?;
            slots_needed += u32::from(t.size > 0);
        }
        if let Some(signal) = signal {
            self.target(signal.rank, signal.segment, &inside)?;
        }
        if !q.reserve(&inside, slots_needed, self.config.queue_size_max) {
            return Err(self.queue_full(queue));
        }
        let (mut last, mut moved) = (None, true);
        for t in list.elements().inspect(|t| last = Some(*t)).filter(|t| t.size > 0) {
            self.count_transfer(&inside, direction, &t, false);
            let local = self.local(t.local, &inside)?;
            let target = self.target(t.rank, t.remote, &inside)?;
            // Looked up again, as other threads may replace segments meanwhile.
            if self.check(&t, local, target).is_ok() && fast(direction, &t, local, target) {
                continue;
            }
            // It may look after the sockets, and wait for all who are inside.
            drop(inside);
            moved &= self.move_slowly(direction, &t, q, queue);
            inside = epoch::enter();
        }
        drop(inside);
        if let (Some(signal), Some(last), true) = (signal, last, moved) {
            self.signal_slowly(direction, &last, signal, q, queue);
        }
        self.look_behind_posts();
        Ok(())
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
    /// Writes `size` bytes of this rank's segment into a segment of another (GASPI 17.1, 8.2.1).
    ///
    /// # Errors
    /// [`Error::QueueFull`], and those of wrong arguments. What goes wrong afterwards shows in
    /// [`wait`](Runtime::wait).
    #[inline]
    pub fn write(&self, t: &Transfer, queue: QueueId, _timeout: Timeout) -> Result<()> {
        match self.swiftly(|inside| inside.write(t, queue)) {
            Some(()) => Ok(()),
            None => self.inner().post(Direction::Write, t, None, queue),
        }
    }

    /// Reads `size` bytes of another rank's segment into a segment of this one (GASPI 17.1, 8.2.2).
    ///
    /// # Errors
    /// As [`write`](Runtime::write).
    #[inline]
    pub fn read(&self, t: &Transfer, queue: QueueId, _timeout: Timeout) -> Result<()> {
        match self.swiftly(|inside| inside.read(t, queue)) {
            Some(()) => Ok(()),
            None => self.inner().post(Direction::Read, t, None, queue),
        }
    }

    /// A write and, visible after it and after all earlier writes of this queue to that rank, a
    /// notification of the remote segment (GASPI 17.1, 8.4.1). Takes one slot.
    ///
    /// # Errors
    /// As [`write`](Runtime::write), and [`Error::NotificationValue`], [`Error::NotificationRange`].
    #[inline]
    pub fn write_notify(
        &self,
        t: &Transfer,
        notification: NotificationId,
        value: u32,
        queue: QueueId,
        _timeout: Timeout,
    ) -> Result<()> {
        let swiftly = |inside: Inside<'_>| inside.write_notify(t, notification, value, queue);
        if self.swiftly(swiftly).is_some() {
            return Ok(());
        }
        let inner = self.inner();
        inner.check_signal(notification, value)?;
        let signal = Signal { rank: t.rank, segment: t.remote, id: notification, value };
        inner.post(Direction::Write, t, Some(signal), queue)
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
        let signal = Signal { rank: inner.rank, segment: t.local, id: notification, value: 1 };
        inner.post(Direction::Read, t, Some(signal), queue)
    }

    /// Several writes to one rank (GASPI 17.1, 8.4.2). Takes one slot per element that is not empty;
    /// all or none are posted.
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
        let signal = Signal { rank: inner.rank, segment: notified, id: notification, value: 1 };
        inner.post_list(Direction::Read, list, Some(signal), queue)?;
        inner.count_for(&epoch::enter(), list.rank, PeerCounter::ReadNotifys, 1);
        Ok(())
    }
    /// Sets a notification of another rank's segment, visible after all earlier writes of this queue
    /// to that rank (GASPI 17.1, 8.3.2). Takes one slot.
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
        let swiftly = |inside: Inside<'_>| inside.notify(rank, segment, notification, value, queue);
        match self.swiftly(swiftly) {
            Some(()) => Ok(()),
            None => self.inner().notify(Signal { rank, segment, id: notification, value }, queue),
        }
    }
}
