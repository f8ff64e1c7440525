//! Transfers that are not plain copies here, and notifications that are not plain stores: across
//! processes by the kernel, by the help of the peer, over a connection, and behind what is under
//! way.
//!
//! Invariant: the outcome goes to the queue, whatever it is; data that failed to arrive is not
//! announced.

use super::{Direction, Signal, Transfer, fast};
use crate::error::{Error, Result};
use crate::ids::{NotificationId, QueueId, Rank, SegmentId};
use crate::os::{cross_memory, process};
use crate::queue::Queue;
use crate::runtime::Inner;
use crate::segment::{Reach, Segment, Target};
use crate::sync::slots;
use crate::transport::shm::area::{liveness, wake_kind};
use crate::transport::payload::Payload;
use crate::transport::requests::GetTarget;
use crate::transport::tcp::send_queue::{CHUNK, Item};
use crate::wire::message::{Put, RemoteAddress, Stream};
use std::io;
use std::sync::Arc;

/// How a copy between processes ended.
enum Copied {
    Done,
    /// The queue knows why.
    Failed,
    /// The kernel does not allow it: the peer has to help.
    Refused,
}

impl Inner {
    /// A transfer that is not a plain copy: its outcome goes to the queue. False if it has failed
    /// already, so that it must not be announced.
    #[cold]
    pub(super) fn copy_via_owner(
        &self,
        direction: Direction,
        t: &Transfer,
        q: &Queue,
        queue: QueueId,
    ) -> bool {
        let local = self.memory.segments.get_arc(t.local);
        let target = self.ranks.targets_of(t.rank).get_arc(t.remote);
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
        self.copy_by_owner(direction, t, &local, target.generation, None, q, queue)
    }

    /// A request to a segment that was deleted, or whose owner left or died.
    #[cold]
    fn target_gone(&self, rank: Rank, segment: SegmentId, q: &Queue) {
        let reason = match self.ranks.liveness(rank) {
            liveness::DEAD => format!("{rank} has died on {}", self.ranks.cards[rank.index()].host),
            liveness::LEFT => format!("{rank} has left the job by proc_term"),
            _ => format!("{rank} has deleted {segment}"),
        };
        // First: another thread may be waiting for the queue.
        self.ranks.set_corrupt(rank);
        q.fail(&reason);
    }

    /// Copies between processes.
    #[allow(clippy::too_many_arguments, reason = "what copy_via_owner has looked up")]
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
        let copying = target.copying(self.ranks.me);
        // The number may serve another process once the owner has ended.
        let ended = self.ranks.processes[t.rank.index()].get().is_some_and(process::has_ended);
        if ended {
            self.ranks.note_end(t.rank);
        }
        if copying.is_none() || self.ranks.liveness(t.rank) != liveness::JOINED {
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
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                drop(copying);
                self.ranks.may_have_ended(t.rank);
                self.not_copied(t, q, &error)
            }
            Err(error) => self.not_copied(t, q, &error),
        }
    }

    #[cold]
    fn not_copied(&self, t: &Transfer, q: &Queue, error: &io::Error) -> Copied {
        if self.ranks.liveness(t.rank) == liveness::DEAD {
            self.target_gone(t.rank, t.remote, q);
        } else {
            self.ranks.set_corrupt(t.rank);
            let (len, rank) = (t.size, t.rank);
            q.fail(&format!("copying {len} bytes from or to the memory of {rank}: {error}"));
        }
        Copied::Failed
    }

    /// Has the owner's progress copy; false if that could not even be asked for.
    #[allow(clippy::too_many_arguments, reason = "what copy_via_owner has looked up")]
    fn copy_by_owner(
        &self,
        direction: Direction,
        t: &Transfer,
        local: &Arc<Segment>,
        generation: u32,
        notify: Option<(Arc<Segment>, NotificationId)>,
        q: &Queue,
        queue: QueueId,
    ) -> bool {
        let remote = RemoteAddress { segment: t.remote, generation, offset: t.remote_offset };
        let size = t.size;
        let stream = Stream { queue, generation: q.begin(t.rank) };
        let posted = match direction {
            Direction::Write => {
                let payload = Payload::new(Arc::clone(local), t.local_offset);
                let item = Item::put(self.plain_put(stream, remote, size), Some(payload));
                self.endpoints.post(self, t.rank, queue, item)
            }
            Direction::Read => {
                let segment = Arc::clone(local);
                let get_target = GetTarget { segment, offset: t.local_offset, size, notify };
                self.read_in_parts(t.rank, stream, remote, get_target, q)
            }
        };
        if let Err(error) = &posted {
            self.not_posted(t.rank, stream, q, error);
        }
        posted.is_ok()
    }

    /// A write to another node together with its notification.
    pub(super) fn post_put(&self, t: &Transfer, signal: Signal, q: &Queue, queue: QueueId) {
        let local = self.memory.segments.get_arc(t.local);
        let target = self.ranks.targets_of(t.rank).get_arc(t.remote);
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
        let remote = RemoteAddress { segment: t.remote, generation, offset: t.remote_offset };
        let stream = Stream { queue, generation: q.begin(t.rank) };
        let put = self.plain_put(stream, remote, t.size);
        let put = Put { notification: signal.id, value: signal.value, ..put };
        let payload = (t.size > 0).then(|| Payload::new(local, t.local_offset));
        if let Err(error) = self.endpoints.post(self, t.rank, queue, Item::put(put, payload)) {
            self.not_posted(t.rank, stream, q, &error);
        }
    }

    /// A request that was counted could not be posted.
    #[cold]
    fn not_posted(&self, rank: Rank, stream: Stream, q: &Queue, error: &Error) {
        self.ranks.set_corrupt(rank);
        q.complete(rank, stream.generation, 1, Some(&error.to_string()));
    }

    /// A put without a notification.
    fn plain_put(&self, stream: Stream, remote: RemoteAddress, size: u64) -> Put {
        let notification = NotificationId(0);
        Put { stream, remote, size, last: true, notification, value: 0 }
    }

    /// Asks for a range in parts, so that what others ask of its owner has its turn in between. The
    /// last one, which completes the request, carries the notification.
    fn read_in_parts(
        &self,
        rank: Rank,
        stream: Stream,
        remote: RemoteAddress,
        get_target: GetTarget,
        q: &Queue,
    ) -> Result<()> {
        let mut done = 0;
        loop {
            let size = (get_target.size - done).min(CHUNK);
            let last = done + size == get_target.size;
            let part = GetTarget {
                segment: Arc::clone(&get_target.segment),
                offset: get_target.offset + done,
                size,
                notify: get_target.notify.clone().filter(|_| last),
            };
            let remote = RemoteAddress { offset: remote.offset + done, ..remote };
            if !last {
                q.begin_more(rank, stream.generation);
            }
            let posted = self.endpoints.post_get(self, rank, stream, remote, part);
            if posted.is_err() && !last {
                q.complete(rank, stream.generation, 1, None);
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
    pub(super) fn signal_slow(
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

    /// Sets a peer's notification after what this queue has under way to that peer.
    pub(super) fn notify_behind(&self, signal: Signal, q: &Queue, queue: QueueId) {
        let Some(target) = self.ranks.targets_of(signal.rank).get_arc(signal.segment) else {
            return q.fail("a segment was deleted while it was used");
        };
        if !target.alive() {
            return self.target_gone(signal.rank, signal.segment, q);
        }
        if target.is_notified_here() && !q.is_pending(signal.rank) {
            slots::set(target.notification(signal.id.index()), signal.value);
            self.ranks.area.wake_for(signal.rank, wake_kind::NOTIFICATION);
            return;
        }
        let remote =
            RemoteAddress { segment: signal.segment, generation: target.generation, offset: 0 };
        let stream = Stream { queue, generation: q.begin(signal.rank) };
        let put = self.plain_put(stream, remote, 0);
        let put = Put { notification: signal.id, value: signal.value, ..put };
        let posted = self.endpoints.post(self, signal.rank, queue, Item::put(put, None));
        if let Err(error) = posted {
            self.not_posted(signal.rank, stream, q, &error);
        }
    }

    /// Sets a notification of this rank after the reads that this queue has under way.
    fn notify_after_reads(&self, t: &Transfer, signal: Signal, q: &Queue, queue: QueueId) {
        let own = self.memory.segments.get_arc(signal.segment);
        let target = self.ranks.targets_of(t.rank).get_arc(t.remote);
        let (Some(own), Some(target)) = (own, target) else {
            return q.fail("a segment was deleted while it was used");
        };
        // Data that failed to arrive is not announced.
        if !target.alive() {
            return;
        }
        if !q.is_pending(t.rank) {
            slots::set(own.notification(signal.id.index()), signal.value);
            self.ranks.area.wake_for(self.ranks.me, wake_kind::NOTIFICATION);
            return;
        }
        // Answers come in order: an empty read behind the others carries the notification.
        let empty = Transfer { size: 0, ..*t };
        let notify = Some((Arc::clone(&own), signal.id));
        self.copy_by_owner(Direction::Read, &empty, &own, target.generation, notify, q, queue);
    }
}
