//! A rank of a job: what it consists of, how it ends.

mod addresses;
mod atomics_by;
pub(crate) mod descriptors;
mod extensions;
mod leaving;
mod pending_init;
mod progress_thread;
mod rdma;
mod upcalls;
mod waiting;

pub use pending_init::PendingInit;

pub use self::extensions::Extension;
use self::extensions::Extensions;
use self::leaving::Delivery;
use crate::bootstrap::{Job, Membership};
use crate::callback::outside_callback;
use crate::channel::Channels;
use crate::config::{Config, Network, Topology};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::ids::{QueueId, Rank, SegmentId};
use crate::passive::Passive;
use crate::policy::acknowledge::Flush;
use crate::progress::caller::Arrivals;
use crate::progress::thread::try_receiver;
use crate::queue::Queue;
use crate::ranks::Ranks;
use crate::segment::own::Memory;
use crate::segment::table::Table;
use crate::segment::{Reach, Segment, Target};
use crate::statistics::Statistics;
use crate::sync::Mutex;
use crate::sync::epoch::{self};
use crate::sync::{AtomicBool, Ordering};
use crate::timeout::{Deadline, Timeout};
use crate::transport::endpoint::{CarrierKind, Endpoint, Endpoints};
use crate::transport::shm::pairs::Pairs;
use crate::transport::tcp::Tcp;
use crate::transport::verbs::DeviceTable;
use crate::wait::{Call, Waiter, waiting};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Everything that the threads of a rank share, the progress thread included.
#[derive(Debug)]
pub(crate) struct Inner {
    /// The process that joined; a forked child is another one.
    pub(crate) process: u32,
    pub(crate) job: Job,
    pub(crate) config: Config,
    pub(crate) ranks: Ranks,
    pub(crate) memory: Memory,
    pub(crate) control: Control,
    pub(crate) passive: Passive,
    /// Those of programs, then that of channels.
    pub(crate) queues: [Queue; crate::config::QUEUE_MAX as usize],
    pub(crate) channels: Channels,
    pub(crate) endpoints: Endpoints,
    pub(crate) waiter: Waiter,
    pub(crate) statistics: Statistics,
    pub(crate) membership: Mutex<Option<Membership>>,
    closed: AtomicBool,
    /// When this rank began to take part.
    pub(crate) began: Instant,
}

impl Inner {
    /// Tells the ranks of one process apart, as long as they live.
    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// Whether others are reached by streams, which a thread looks after.
    pub(crate) fn has_peers(&self) -> bool {
        #[cfg(feature = "test-transports")]
        if self.endpoints.twin.is_some() {
            return false;
        }
        self.ranks.size > 1
    }

    /// Whether this rank has left its job.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Errors once this rank has left its job.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(Error::NotInitialised) } else { Ok(()) }
    }

    /// A segment of `rank`, if it was made known to this rank.
    #[inline]
    pub(crate) fn target<'g>(
        &self,
        rank: Rank,
        segment: SegmentId,
        inside: &'g epoch::Guard,
    ) -> Result<&'g Target> {
        self.target_in(self.ranks.targets.of(rank), rank, segment, inside)
    }

    /// The same among the targets of `rank`.
    #[inline(always)]
    pub(crate) fn target_in<'g>(
        &self,
        targets: Option<&Table<Target>>,
        rank: Rank,
        segment: SegmentId,
        inside: &'g epoch::Guard,
    ) -> Result<&'g Target> {
        match targets.and_then(|targets| targets.get(segment, inside)) {
            Some(target) if target.reach != Reach::Published => Ok(target),
            Some(target) => self.mapped_target(target, rank, segment, inside),
            None => Err(self.no_target(rank, segment)),
        }
    }

    /// The same of a segment that is about to be mapped.
    #[cold]
    fn mapped_target<'g>(
        &self,
        target: &'g Target,
        rank: Rank,
        segment: SegmentId,
        inside: &'g epoch::Guard,
    ) -> Result<&'g Target> {
        let Some(published) = target.is_published() else { return Ok(target) };
        self.map_published(rank, segment, published)?;
        self.ranks.target(rank, segment, inside).ok_or_else(|| self.no_target(rank, segment))
    }

    #[cold]
    fn no_target(&self, rank: Rank, segment: SegmentId) -> Error {
        if let Err(error) = self.ranks.check_rank(rank) {
            return error;
        }
        let reason = if u32::from(segment.0) >= self.config.segment_max {
            format!("ids are below {} (segment_max)", self.config.segment_max)
        } else if rank == self.ranks.me {
            return self.no_segment(segment);
        } else {
            format!("{rank} has not registered it with {}", self.ranks.me)
        };
        Error::InvalidSegment { segment, reason }
    }

    /// A segment of this rank.
    #[inline]
    pub(crate) fn local<'g>(
        &self,
        segment: SegmentId,
        inside: &'g epoch::Guard,
    ) -> Result<&'g Segment> {
        match self.memory.segments.get(segment, inside) {
            Some(found) => Ok(found),
            None => Err(self.no_segment(segment)),
        }
    }

    #[cold]
    pub(crate) fn no_segment(&self, segment: SegmentId) -> Error {
        if self.closed.load(Ordering::Acquire) {
            return Error::NotInitialised;
        }
        let reason = format!("{} has no such segment", self.ranks.me);
        Error::InvalidSegment { segment, reason }
    }

    /// The way to `rank`.
    #[inline]
    pub(crate) fn endpoint(&self, rank: Rank) -> Endpoint<'_> {
        self.endpoints.to(self, rank)
    }

    /// The way to `rank` for a lane that this carries.
    #[inline]
    pub(crate) fn endpoint_by(&self, carrier: CarrierKind, rank: Rank) -> Endpoint<'_> {
        Endpoint { carrier: self.endpoints.carrier(carrier), ..self.endpoint(rank) }
    }

    /// What brings something from ranks of other nodes.
    fn arrivals(&self) -> Arrivals<'_> {
        Arrivals { tcp: self.tcp(), verbs: self.endpoints.verbs(self) }
    }

    /// The streams of this rank, and what they tell it.
    #[inline]
    pub(crate) fn tcp(&self) -> Tcp<'_> {
        Tcp { table: &self.endpoints.stream, up: self }
    }
}

impl Inner {
    /// Tells the ranks of other nodes that this one leaves, and waits a moment until they have read
    /// what was sent to them: closing earlier could cost them the rest of it.
    fn say_goodbye(&self) {
        let waiting = waiting(Call::Term, self.ranks.me.0);
        let limit = Deadline::Never.at_most(GOODBYE_LIMIT);
        // What others have put here is acknowledged first; another thread may be about to.
        let (paid, _) = self.waiter.until(&self.ranks.area, None, limit, waiting, || {
            try_receiver(&self.endpoints.stream).map(|mut receiver| {
                receiver.flush_acks(self.tcp(), Flush::All);
                self.say_last_word();
            })
        });
        if paid.is_none() {
            // Another thread still sleeps on the sockets. Without a goodbye this rank would seem
            // dead.
            self.say_last_word();
        }
        let read = || (!self.endpoints.stream.has_remote(self)).then_some(());
        if self.until(limit, waiting, read).is_none() && self.endpoints.stream.forget_withheld(self)
        {
            // The goodbye has waited for data that no device has carried.
            self.until(Deadline::Never.at_most(GOODBYE_LIMIT), waiting, read);
        }
    }

    /// Says goodbye behind all that handlers of messages send: what one has published, members of
    /// this node act on, also by leaving, before it has told other nodes.
    fn say_last_word(&self) {
        if let Some(verbs) = self.endpoints.verbs(self) {
            // Whoever handles what the device has brought has done so.
            verbs.catch_up();
        }
        // Nothing is passed on any more behind this.
        self.tell_last_steps();
        #[cfg(feature = "test-transports")]
        if let Some(faults) = &self.endpoints.faults {
            faults.release(self, &self.endpoints.stream);
        }
        self.endpoints.stream.say_goodbye(self);
    }
}

/// How long ranks of other nodes may take to read what was sent to them before this rank left.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// One rank of a job. `Send` and `Sync`; all procedures may be called from several threads at once.
///
/// Dropping it leaves the job as [`term`](Runtime::term) does, without waiting. Where a thread that
/// owns one panics, the others see a death.
#[derive(Debug)]
pub struct Runtime {
    extensions: Extensions,
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Runtime {
    #[inline]
    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// The same, to be kept.
    pub(crate) fn shared(&self) -> Arc<Inner> {
        Arc::clone(&self.inner)
    }

    /// State that a layer above keeps with this rank: made on first use, one value of each type,
    /// dropped with the rank before that leaves its job. `make` must not ask for extensions itself.
    #[doc(hidden)]
    #[inline(always)]
    pub fn extension<T: Extension>(&self, make: impl FnOnce() -> T) -> &T {
        self.extensions.get(make)
    }

    /// This rank.
    #[inline]
    pub fn rank(&self) -> Rank {
        self.inner.ranks.me
    }

    /// Ranks of the job.
    #[inline]
    pub fn size(&self) -> u32 {
        self.inner.ranks.size
    }

    /// This rank's number among those of its host.
    pub fn local_rank(&self) -> u16 {
        self.inner.job.local_rank
    }

    /// Ranks that share memory, this one included: those of its host, unless they reach each other
    /// by TCP.
    pub fn local_size(&self) -> u32 {
        self.inner.ranks.area.locals().len() as u32
    }

    /// Ranks on this rank's host, however they reach each other.
    pub fn host_size(&self) -> u32 {
        let own = self.host();
        self.inner.ranks.cards.iter().filter(|card| card.host() == own).count() as u32
    }

    /// What carries data to ranks of other nodes: the network of this rank's device, or else
    /// Ethernet.
    pub fn network(&self) -> Network {
        self.inner.endpoints.device.as_ref().map_or(Network::Ethernet, DeviceTable::network)
    }

    /// The queue pairs of this rank, as tools see them; `None` if it has made none.
    #[doc(hidden)]
    pub fn pairs(&self) -> Option<Pairs> {
        Pairs::of(self.inner.ranks.area.own_pairs())
    }

    /// As if all its pairs for messages had come up so much earlier.
    #[cfg(feature = "test-transports")]
    #[doc(hidden)]
    pub fn age_message_pairs(&self, by: Duration) {
        if let Some(device) = &self.inner.endpoints.device {
            device.age_message_pairs(by);
        }
    }

    /// The configuration that all ranks agreed on.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.inner.job
    }

    /// The host of this rank.
    pub fn host(&self) -> &str {
        self.inner.ranks.host_of(self.inner.ranks.me)
    }

    /// The host of `rank`.
    ///
    /// # Errors
    /// [`Error::InvalidRank`].
    pub fn host_of(&self, rank: Rank) -> Result<&str> {
        self.inner.ranks.check_rank(rank)?;
        Ok(self.inner.ranks.host_of(rank))
    }

    /// How calls of this rank wait for others, and why, in words.
    pub fn waiting_mode(&self) -> String {
        let (ranks, cores) = pending_init::of_machine(&self.inner.ranks.cards, self.inner.ranks.me);
        let noun = if cores == 1 { "core" } else { "cores" };
        if self.inner.waiter.spins() {
            format!("spins, then sleeps ({ranks} ranks may use {cores} {noun})")
        } else {
            format!("yields, then sleeps ({ranks} ranks share {cores} {noun})")
        }
    }

    /// Connections that init makes: 1 for all, 2 for on first use, 0 for none.
    pub fn build_infrastructure(&self) -> u32 {
        match self.inner.config.topology {
            Topology::None => 0,
            Topology::Static => 1,
            Topology::Dynamic => 2,
        }
    }

    /// Leaves the job (GASPI 17.1, 5.3.4): local, others go on. Requests that are under way, and
    /// messages that are not out of this rank's hands, are given until the timeout. Afterwards
    /// every procedure fails with [`Error::NotInitialised`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if some are still on their way, with the ranks that they are for; this
    /// rank then still takes part.
    pub fn term(&self, timeout: Timeout) -> Result<()> {
        let inner = &*self.inner;
        inner.check_open()?;
        // The function may be called by a thread that ends here.
        outside_callback(Call::Term.name())?;
        let waiting = waiting(Call::Term, inner.ranks.me.0);
        let mut delivery = Delivery::default();
        let delivered = inner.until(timeout.deadline(), waiting, || {
            for (queue, id) in inner.queues.iter().zip(0..) {
                inner.finish_writes(queue, QueueId(id));
            }
            inner.has_delivered(&mut delivery).then_some(())
        });
        if delivered.is_none()
            && let Some(pending) = inner.undelivered()
        {
            return Err(Error::Timeout { pending });
        }
        self.close();
        Ok(())
    }

    /// Leaves without waiting.
    fn close(&self) {
        let inner = &*self.inner;
        // A forked child has neither the thread nor a right to leave for its parent.
        if inner.process != std::process::id() || inner.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        // Before the announcement only what those wait for who would give this rank up for it.
        // Behind it what fails is known to be no fault, and nobody keeps this rank's memory.
        if std::thread::panicking() {
            inner.ranks.area.mark_dead(inner.ranks.me);
            // As of a process that has died: who finds its pairs gone, and asks whether it lives,
            // is not answered.
            self.end_progress();
        } else {
            inner.tell_last_commits();
            inner.ranks.area.leave();
        }
        self.extensions.tell_of_leaving();
        if let Some(verbs) = inner.endpoints.verbs(inner) {
            verbs.close_queues();
        }
        inner.end_all_segments();
        let says_goodbye = inner.endpoints.remote && !std::thread::panicking();
        if says_goodbye {
            inner.say_goodbye();
        }
        if let Some(verbs) = inner.endpoints.verbs(inner) {
            verbs.close();
        }
        #[cfg(feature = "test-transports")]
        if let Some(port) = &inner.endpoints.twin {
            port.leave(std::thread::panicking());
        }
        self.end_progress();
        inner.endpoints.stream.connections.shut_down();
        // After the announcement: whoever hosts the job sees the connection close.
        *inner.membership.lock() = None;
        inner.leave_arenas();
        epoch::release_counters(inner.id());
    }

    /// Ends the progress thread; nobody looks at sockets any more.
    fn end_progress(&self) {
        let stream = &self.inner.endpoints.stream;
        stream.polling.stop();
        stream.sets.wakeup.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // It does not panic; if it did, there is nothing left to do for it.
            let _ = thread.join();
        }
    }

    /// Whether the group of all ranks exists.
    pub(crate) fn has_group_all(&self) -> bool {
        self.inner.config.topology != Topology::None
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let extensions = std::mem::take(&mut self.extensions);
        if self.inner.process == std::process::id() {
            // While it can still say to others that it does not need them any more.
            drop(extensions);
        } else {
            std::mem::forget(extensions);
        }
        self.close();
        if self.inner.process != std::process::id() {
            // Threads that do not exist here may have been using it, and would be waited for.
            std::mem::forget(Arc::clone(&self.inner));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Threads that outlived the rank may have counted for it since it left.
        epoch::release_counters(self.id());
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod scale_tests;
