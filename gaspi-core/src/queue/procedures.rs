//! The procedures of queues (GASPI 17.1, 8.2.3 and 8.5).

use super::{DELETED, NOBODY, Queue};
use crate::callback::may_wait;
use crate::config::QUEUE_MAX;
use crate::error::{Error, Result};
use crate::ids::QueueId;
use crate::policy::spin::BRIEF_LOOKS;
use crate::runtime::{Inner, Runtime};
use crate::statistics::Counter;
use crate::sync::Ordering;
use crate::sync::epoch::{self};
use crate::timeout::Timeout;
use crate::transport::endpoint::CarrierKind;
use crate::wait::{Call, waiting};
use crate::wire::message::Stream;

/// A thread that looks for the end of its own run looks at all that has come every so many times.
const LOOKS_AT_ALL: u32 = 8;

impl Inner {
    #[inline]
    pub(crate) fn queue(&self, id: QueueId) -> Result<&Queue> {
        match self.queues.get(id.index()) {
            Some(queue) if queue.exists.load(Ordering::Relaxed) => Ok(queue),
            _ => Err(self.no_queue(id)),
        }
    }

    /// Has what a device carries end: writes that nothing follows.
    pub(crate) fn finish_writes(&self, q: &Queue, queue: QueueId) {
        if let Some(verbs) = self.endpoints.verbs(self) {
            verbs.finish(queue, |rank| {
                let generation = q.begin(rank, CarrierKind::Verbs).generation;
                Stream { queue, generation }
            });
        }
    }

    #[cold]
    fn no_queue(&self, queue: QueueId) -> Error {
        let exist = |queue: &&Queue| queue.exists.load(Ordering::Relaxed);
        let count = self.queues.iter().filter(exist).count();
        let reason = format!("numbered from 0, and {count} exist; queue_create makes more");
        Error::InvalidQueue { queue, reason }
    }
}

impl Runtime {
    /// Waits until all requests posted to `queue` so far are complete: local memory may be reused,
    /// data read has arrived, data written is visible at its target (GASPI 17.1, 8.2.3).
    ///
    /// # Errors
    /// [`Error::Timeout`]: the rest stays pending. [`Error::RequestFailed`] tells of all requests
    /// that have failed so far, and takes them off the queue: repeat the call until it succeeds, or
    /// call [`queue_purge`](Runtime::queue_purge).
    #[inline]
    pub fn wait(&self, queue: QueueId, timeout: Timeout) -> Result<()> {
        if self.try_fast(|fast| fast.wait(queue)).is_some() {
            return Ok(());
        }
        let inner = self.inner();
        let q = inner.queue(queue)?;
        if self.wait_for_run(queue, timeout).is_some() {
            return Ok(());
        }
        wait_busy(inner, q, queue, timeout)
    }

    /// Waits for a run of this thread that alone is under way, for about as long as a device takes.
    #[cold]
    fn wait_for_run(&self, queue: QueueId, timeout: Timeout) -> Option<()> {
        let inner = self.inner();
        let verbs = inner.endpoints.verbs(inner)?;
        let run = verbs.table.lone_run(queue)?;
        inner.endpoints.flush(inner);
        let polling = &inner.endpoints.stream.polling;
        let is_brief = timeout == Timeout::Test || !inner.waiter.spins();
        for look in 1..=if is_brief { 1 } else { BRIEF_LOOKS } {
            if look % LOOKS_AT_ALL == 0 {
                verbs.poll();
            } else {
                verbs.look_at(run);
            }
            if self.try_fast(|fast| fast.end_run(queue, run)).is_some() {
                polling.note_brief();
                return Some(());
            }
            if !run.is_there() {
                return None;
            }
            // Else the progress thread would be told of what comes.
            polling.note_caller_poll();
        }
        None
    }

    /// Makes a queue and returns the lowest free id (GASPI 17.1, 8.5.1).
    ///
    /// # Errors
    /// [`Error::TooManyQueues`].
    pub fn queue_create(&self, _timeout: Timeout) -> Result<QueueId> {
        for (id, queue) in self.inner().queues[..QUEUE_MAX as usize].iter().enumerate() {
            if !queue.exists.swap(true, Ordering::AcqRel) {
                queue.purge();
                queue.posted.store(0, Ordering::Relaxed);
                queue.moves.store(0, Ordering::Relaxed);
                queue.owner.store(NOBODY, Ordering::Release);
                return Ok(QueueId(id as u8));
            }
        }
        Err(Error::TooManyQueues { limit: QUEUE_MAX })
    }

    /// Deletes a queue; requests that were not waited for are forgotten.
    ///
    /// # Errors
    /// [`Error::InvalidQueue`].
    pub fn queue_delete(&self, queue: QueueId) -> Result<()> {
        let q = self.inner().queue(queue)?;
        forget_requests(self.inner(), q, queue);
        // Nobody takes a slot of a queue that does not exist, nor owns the next one of this number.
        q.share();
        q.owner.store(DELETED, Ordering::Release);
        q.exists.store(false, Ordering::Release);
        self.inner().ranks.area.wake(self.rank());
        Ok(())
    }

    /// Requests posted to `queue` and not yet waited for.
    ///
    /// # Errors
    /// [`Error::InvalidQueue`].
    pub fn queue_size(&self, queue: QueueId) -> Result<u32> {
        Ok(self.inner().queue(queue)?.posted.load(Ordering::Relaxed))
    }

    /// Queues that exist.
    pub fn queue_num(&self) -> u32 {
        let exists = |queue: &&Queue| queue.exists.load(Ordering::Relaxed);
        self.inner().queues.iter().filter(exists).count() as u32
    }

    /// Requests that fit into one queue.
    pub fn queue_size_max(&self) -> u32 {
        self.inner().config.queue_size_max
    }

    /// Queues that can exist at once.
    pub fn queue_max(&self) -> u32 {
        QUEUE_MAX
    }

    /// Forgets all requests of `queue` and its failures, so that it can be used again.
    ///
    /// # Errors
    /// [`Error::InvalidQueue`].
    pub fn queue_purge(&self, queue: QueueId, _timeout: Timeout) -> Result<()> {
        forget_requests(self.inner(), self.inner().queue(queue)?, queue);
        // Another thread may be waiting for it.
        self.inner().ranks.area.wake(self.rank());
        Ok(())
    }
}

/// Forgets the requests of a queue and their failures, and does not send those that wait for their
/// turn.
fn forget_requests(inner: &Inner, q: &Queue, queue: QueueId) {
    let generation = q.purge();
    if let Some(verbs) = inner.endpoints.verbs(inner) {
        verbs.forget_diverted(queue, generation);
    }
    inner.endpoints.stream.purge(inner, queue, generation);
    if let Some(verbs) = inner.endpoints.verbs(inner) {
        verbs.purge(queue);
    }
}

#[cold]
fn wait_busy(inner: &Inner, q: &Queue, queue: QueueId, timeout: Timeout) -> Result<()> {
    let waiting = waiting(Call::Wait, queue.0);
    if !q.is_busy() {
        q.reset(&epoch::enter());
        inner.count(Counter::Waits, 1);
        return Ok(());
    }
    may_wait(timeout, waiting.call.name())?;
    let before = q.posted.load(Ordering::Relaxed);
    let outcome = inner.until_within(timeout, waiting, || {
        inner.finish_writes(q, queue);
        q.outcome(queue).or_else(|| inner.check_open().err().map(Err))
    });
    // A wait that timed out is continued by the next.
    inner.count(Counter::Waits, u64::from(outcome.is_some()));
    match outcome {
        Some(outcome) => {
            // Where nothing is left all slots are free, but for those of requests that other
            // threads have posted meanwhile.
            if outcome.is_ok() || !q.is_busy() {
                q.release(&epoch::enter(), before);
            }
            outcome
        }
        None => {
            let pending = format!("{} requests of {queue}", q.pending());
            Err(Error::Timeout { pending })
        }
    }
}
