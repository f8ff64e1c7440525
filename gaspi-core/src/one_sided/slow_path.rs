//! Transfers that are not plain copies here, and notifications that are not plain stores: across
//! processes by the kernel, by the help of the peer, over a connection, and behind what is under
//! way.
//!
//! Invariant: the outcome goes to the queue, whatever it is; data that failed to arrive is not
//! announced.

use super::{Ends, Signal, Transfer};
use crate::error::{Error, Result};
use crate::ids::{NotificationId, QueueId, Rank, SegmentId};
use crate::queue::{Begun, Queue};
use crate::runtime::Inner;
use crate::segment::{Reach, Segment, Target};
use crate::sync::slots;
use crate::transport::Carried;
use crate::transport::endpoint::{CarrierKind, Departure};
use crate::transport::payload::Payload;
use crate::transport::requests::GetTarget;
use crate::transport::shm::area::{liveness, wake_kind};
use crate::transport::shm::copy::{CopyError, Direction, copy_across};
use crate::wire::message::{Put, RemoteAddress, Stream};
use std::sync::Arc;

/// The queue that a request was posted to.
#[derive(Clone, Copy)]
pub(super) struct Posting<'a> {
    pub(super) id: QueueId,
    pub(super) queue: &'a Queue,
}

/// Memory of a peer, and whether devices reach it and this rank's.
#[derive(Clone, Copy)]
struct Place {
    address: RemoteAddress,
    device: bool,
}

impl Inner {
    /// A transfer that is no plain copy, with a notification behind it. False if it has failed
    /// already, so that nothing behind it is to be announced.
    #[cold]
    pub(super) fn transfer_slow(
        &self,
        direction: Direction,
        t: &Transfer,
        ends: Ends,
        signal: Option<Signal>,
        to: Posting<'_>,
    ) -> bool {
        if !ends.target.alive() {
            self.target_gone(t.rank, t.remote, to.queue);
            return false;
        }
        match self.copy_across(direction, t, &ends) {
            Some(Ok(())) => {
                if let Some(signal) = signal {
                    self.signal_behind(direction, t, signal, to);
                }
                true
            }
            Some(Err(CopyError::Gone)) => {
                self.target_gone(t.rank, t.remote, to.queue);
                false
            }
            Some(Err(CopyError::Failed(error))) => {
                let reason = format!(
                    "copying {} bytes from or to the memory of {}: {error}",
                    t.size, t.rank
                );
                if self.ranks.liveness(t.rank) == liveness::DEAD {
                    self.target_gone(t.rank, t.remote, to.queue);
                } else {
                    self.ranks.set_corrupt(t.rank);
                    to.queue.fail(&reason);
                }
                false
            }
            Some(Err(CopyError::Forbidden)) | None => {
                self.post_request(direction, t, ends, signal, to)
            }
        }
    }

    /// Copies between processes, where the target is reached so.
    fn copy_across(
        &self,
        direction: Direction,
        t: &Transfer,
        Ends { local, target }: &Ends,
    ) -> Option<Result<(), CopyError>> {
        let Reach::CrossMemory { pid, address } = target.reach else { return None };
        if t.size == 0 {
            return Some(Ok(()));
        }
        // While this lives, the owner's delete waits.
        let Some(_copying) = target.copying(self.ranks.me) else {
            return Some(Err(CopyError::Gone));
        };
        let own = local.pointer().wrapping_add(t.local_offset as usize);
        let remote = (pid, address + t.remote_offset);
        let (ranks, len) = (&self.ranks, t.size as usize);
        // SAFETY: the local range was checked, and its segment is kept.
        Some(unsafe { copy_across(ranks, t.rank, direction, remote, own, len) })
    }

    /// A request to a segment that was deleted, or whose owner left or died.
    #[cold]
    fn target_gone(&self, rank: Rank, segment: SegmentId, q: &Queue) {
        let reason =
            self.ranks.end_of(rank).unwrap_or_else(|| format!("{rank} has deleted {segment}"));
        // First: another thread may be waiting for the queue.
        self.ranks.set_corrupt(rank);
        q.fail(&reason);
    }

    /// Has the owner of the target do it, with the notification; false if that could not be asked
    /// for.
    fn post_request(
        &self,
        direction: Direction,
        t: &Transfer,
        Ends { local, target }: Ends,
        signal: Option<Signal>,
        to: Posting<'_>,
    ) -> bool {
        let (generation, offset) = (target.generation, t.remote_offset);
        let device =
            self.is_by_device(&target, Some(&local).filter(|_| t.size > 0).map(Arc::as_ref));
        let remote =
            Place { device, address: RemoteAddress { segment: t.remote, generation, offset } };
        match direction {
            Direction::Write => {
                let payload = (t.size > 0).then(|| Payload::new(local, t.local_offset));
                self.post_put(t.rank, remote, t.size, payload, signal, to)
            }
            Direction::Read => {
                let notify = signal.map(|signal| (Arc::clone(&local), signal.id));
                let (offset, size) = (t.local_offset, t.size);
                self.post_get(
                    t.rank,
                    remote,
                    GetTarget { segment: local, offset, size, notify },
                    to,
                )
            }
        }
    }

    /// Counts a request, and settles what carries it; `device` says that devices reach the memory
    /// at both ends.
    fn begin(&self, rank: Rank, device: bool, to: Posting<'_>) -> Begun {
        to.queue.begin(rank, self.endpoints.preferred(self, to.id, rank, device))
    }

    /// Whether devices reach the memory at both ends; `local` is this rank's, if there is any.
    fn is_by_device(&self, target: &Target, local: Option<&Segment>) -> bool {
        let Some(device) = &self.endpoints.device else { return false };
        matches!(target.reach, Reach::Device { .. })
            && local.is_none_or(|segment| device.can_use(segment))
    }

    /// Counts a request; a device says itself where one went.
    fn count_begun(&self, rank: Rank, carrier: CarrierKind, carried: Carried) {
        if carrier != CarrierKind::Verbs {
            self.count_carried(rank, carrier, carried);
        }
    }

    /// Posts a put, which takes its turn behind the others of the queue to that rank.
    fn post_put(
        &self,
        rank: Rank,
        Place { address: remote, device }: Place,
        size: u64,
        payload: Option<Payload>,
        signal: Option<Signal>,
        to: Posting<'_>,
    ) -> bool {
        let (notification, value) = signal.map_or((NotificationId(0), 0), |s| (s.id, s.value));
        let begun = self.begin(rank, device, to);
        let stream = Stream { queue: to.id, generation: begun.generation };
        let put = Put { stream, remote, size, last: true, notification, value };
        self.count_begun(rank, begun.carrier, Carried::Written(size));
        let posted = self.endpoint_by(begun.carrier, rank).put(put, payload, Departure::Now);
        self.note_posted(rank, stream, to.queue, posted)
    }

    /// Asks for a range in parts, so that what others ask of its owner has its turn in between. The
    /// last one, which completes the request, carries the notification.
    fn post_get(
        &self,
        rank: Rank,
        Place { address: remote, device }: Place,
        whole: GetTarget,
        to: Posting<'_>,
    ) -> bool {
        let q = to.queue;
        let begun = self.begin(rank, device, to);
        let stream = Stream { queue: to.id, generation: begun.generation };
        self.count_begun(rank, begun.carrier, Carried::Read(whole.size));
        let mut done = 0;
        loop {
            let size = (whole.size - done).min(begun.carrier.get_max());
            let last = done + size == whole.size;
            let part = GetTarget {
                segment: Arc::clone(&whole.segment),
                offset: whole.offset + done,
                size,
                notify: whole.notify.clone().filter(|_| last),
            };
            let remote = RemoteAddress { offset: remote.offset + done, ..remote };
            if !last {
                q.begin_more(rank, begun);
            }
            let posted = self.endpoint_by(begun.carrier, rank).get(stream, remote, part);
            if posted.is_err() && !last {
                q.complete(rank, stream.generation, 1, None);
            }
            if posted.is_err() || last {
                return self.note_posted(rank, stream, q, posted);
            }
            done += size;
        }
    }

    /// A request that was counted has been posted, or could not be.
    fn note_posted(&self, rank: Rank, stream: Stream, q: &Queue, posted: Result<()>) -> bool {
        posted.inspect_err(|error| self.not_posted(rank, stream, q, error)).is_ok()
    }

    #[cold]
    fn not_posted(&self, rank: Rank, stream: Stream, q: &Queue, error: &Error) {
        self.ranks.set_corrupt(rank);
        q.complete(rank, stream.generation, 1, Some(&error.to_string()));
    }

    /// A notification behind transfers that may be under way.
    #[cold]
    pub(super) fn signal_behind(
        &self,
        direction: Direction,
        t: &Transfer,
        signal: Signal,
        to: Posting<'_>,
    ) {
        match direction {
            Direction::Write => self.notify_behind(signal, to),
            Direction::Read => self.notify_after_reads(t, signal, to),
        }
    }

    /// Sets a peer's notification after what this queue has under way to that peer.
    pub(super) fn notify_behind(&self, signal: Signal, to: Posting<'_>) {
        let Some(target) = self.ranks.targets_of(signal.rank).get_arc(signal.segment) else {
            return to.queue.fail("a segment was deleted while it was used");
        };
        if !target.alive() {
            return self.target_gone(signal.rank, signal.segment, to.queue);
        }
        if target.is_notified_here() && !to.queue.is_pending(signal.rank) {
            slots::set(target.notification(signal.id.index()), signal.value);
            self.ranks.area.wake_for(signal.rank, wake_kind::NOTIFICATION);
            return;
        }
        let generation = target.generation;
        let address = RemoteAddress { segment: signal.segment, generation, offset: 0 };
        let remote = Place { address, device: self.is_by_device(&target, None) };
        self.post_put(signal.rank, remote, 0, None, Some(signal), to);
    }

    /// Sets a notification of this rank after the reads that this queue has under way.
    fn notify_after_reads(&self, t: &Transfer, signal: Signal, to: Posting<'_>) {
        let own = self.memory.segments.get_arc(signal.segment);
        let target = self.ranks.targets_of(t.rank).get_arc(t.remote);
        let (Some(own), Some(target)) = (own, target) else {
            return to.queue.fail("a segment was deleted while it was used");
        };
        // Data that failed to arrive is not announced.
        if !target.alive() {
            return;
        }
        if to.queue.is_pending(t.rank) {
            // Answers come in order: an empty read behind the others carries the notification.
            let empty = Transfer { size: 0, ..*t };
            let ends = Ends { local: own, target };
            self.post_request(Direction::Read, &empty, ends, Some(signal), to);
        } else {
            self.notify_own(&own, signal);
        }
    }

    /// Sets a notification of this rank.
    fn notify_own(&self, own: &Segment, signal: Signal) {
        slots::set(own.notification(signal.id.index()), signal.value);
        self.ranks.area.wake_for(self.ranks.me, wake_kind::NOTIFICATION);
    }
}
