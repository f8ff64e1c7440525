//! Counters of what a rank did (GASPI 17.1, 14.1). Counting costs a plain addition in the calling
//! thread's slot; times are taken only on paths that really wait.
//!
//! What goes to other ranks is counted by rank, and only there: the totals and the counters of a
//! transport are sums over ranks.

use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::runtime::{Inner, Runtime};
use crate::sync::epoch::{self, COUNTERS, Guard, PEER_COUNTERS};
use crate::sync::{AtomicU64, Ordering};
use crate::transport::Link;
use crate::wait::Call;
use std::sync::OnceLock;
use std::time::Duration;

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterInfo {
    /// Its name, as in GASPI.
    pub name: &'static str,
    /// What it counts, and its unit.
    pub description: &'static str,
    /// Whether it takes a rank as argument.
    pub per_rank: bool,
    /// From which verbosity level on it is shown.
    pub verbosity: u32,
}

/// What is counted by thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counter {
    Barriers,
    Waits,
    SegmentCreate,
    SegmentAlloc,
    SegmentRegister,
    SegmentDelete,
    SegmentBind,
    SegmentUse,
    TimeInBarrier,
    TimeInWait,
    TimeInWaitSome,
    TimeWaiting,
    PassiveSends,
    PassiveReceives,
    Allreduces,
}

const THREAD_COUNTERS: usize = Counter::Allreduces as usize + 1;
const _: () = assert!(THREAD_COUNTERS <= COUNTERS);

/// What is counted by thread and rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerCounter {
    BytesWritten,
    BytesRead,
    Writes,
    WriteNotifys,
    Reads,
    ReadNotifys,
    Notifys,
    Atomics,
}

const _: () = assert!(PeerCounter::Atomics as usize + 1 == PEER_COUNTERS);

/// Where the value of a counter comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    Thread(Counter),
    /// Of all ranks.
    All(PeerCounter),
    /// Of the rank that is asked for.
    Rank(&'static [PeerCounter]),
    /// Of all ranks that are reached in this way.
    Link(Link, &'static [PeerCounter]),
}

/// Every request, whatever its size.
const REQUESTS: &[PeerCounter] = &[
    PeerCounter::Writes,
    PeerCounter::WriteNotifys,
    PeerCounter::Reads,
    PeerCounter::ReadNotifys,
    PeerCounter::Notifys,
    PeerCounter::Atomics,
];

macro_rules! counters {
    ($($source:expr, $verbosity:literal, $name:literal, $description:literal;)*) => {
        /// The counters, in the order of their numbers.
        const INFO: &[(CounterInfo, Source)] = &[$((
            CounterInfo {
                name: $name,
                description: $description,
                per_rank: matches!($source, Source::Rank(_)),
                verbosity: $verbosity,
            },
            $source,
        ),)*];
    };
}

use PeerCounter as P;
use Source::{All, Thread};

counters! {
    All(P::BytesWritten), 1, "BytesWritten", "bytes written to segments of ranks";
    All(P::BytesRead), 1, "BytesRead", "bytes read from segments of ranks";
    Thread(Counter::Barriers), 1, "NumberOfBarriers", "barriers";
    Thread(Counter::Waits), 1, "NumberOfWaits", "waits for a queue";
    All(P::Writes), 1, "NumberOfWrites", "writes, one per list element";
    All(P::WriteNotifys), 1, "NumberOfWriteNotifys", "writes with a notification";
    All(P::Reads), 1, "NumberOfReads", "reads, one per list element";
    All(P::ReadNotifys), 1, "NumberOfReadNotifys", "reads with a notification";
    Thread(Counter::SegmentCreate), 1, "NumberOfSegmentCreate", "segments created by a group";
    Thread(Counter::SegmentAlloc), 1, "NumberOfSegmentAlloc", "segments allocated";
    Thread(Counter::SegmentRegister), 1, "NumberOfSegmentRegister",
        "registrations of a segment with a rank";
    Thread(Counter::SegmentDelete), 1, "NumberOfSegmentDelete", "segments deleted";
    Thread(Counter::SegmentBind), 1, "NumberOfSegmentBind",
        "segments bound to memory of the program";
    Thread(Counter::SegmentUse), 1, "NumberOfSegmentUse", "segments bound and created by a group";
    Thread(Counter::TimeInBarrier), 1, "TimeInBarrier", "nanoseconds of waiting in barriers";
    Thread(Counter::TimeInWait), 1, "TimeInWait", "nanoseconds of waiting for queues";
    Thread(Counter::TimeInWaitSome), 1, "TimeInWaitSome",
        "nanoseconds of waiting for notifications";
    Thread(Counter::TimeWaiting), 1, "TimeWaitingInGaspi",
        "nanoseconds of waiting in all procedures";
    All(P::Notifys), 1, "NumberOfNotifys", "notifications without a write";
    All(P::Atomics), 1, "NumberOfAtomics", "atomic operations";
    Thread(Counter::PassiveSends), 1, "NumberOfPassiveSends", "passive messages sent";
    Thread(Counter::PassiveReceives), 1, "NumberOfPassiveReceives", "passive messages received";
    Thread(Counter::Allreduces), 1, "NumberOfAllreduces", "all-reduces, also by a user's function";
    Source::Link(Link::Own, &[P::BytesWritten]), 2, "BytesWrittenSelf",
        "bytes written to this rank itself";
    Source::Link(Link::Own, &[P::BytesRead]), 2, "BytesReadSelf",
        "bytes read from this rank itself";
    Source::Link(Link::Own, REQUESTS), 2, "NumberOfRequestsSelf",
        "writes, reads, notifications and atomics on this rank itself";
    Source::Link(Link::SharedMemory, &[P::BytesWritten]), 2, "BytesWrittenShm",
        "bytes written by shared memory";
    Source::Link(Link::SharedMemory, &[P::BytesRead]), 2, "BytesReadShm",
        "bytes read by shared memory";
    Source::Link(Link::SharedMemory, REQUESTS), 2, "NumberOfRequestsShm",
        "writes, reads, notifications and atomics by shared memory";
    Source::Link(Link::Tcp, &[P::BytesWritten]), 2, "BytesWrittenTcp", "bytes written by TCP";
    Source::Link(Link::Tcp, &[P::BytesRead]), 2, "BytesReadTcp", "bytes read by TCP";
    Source::Link(Link::Tcp, REQUESTS), 2, "NumberOfRequestsTcp",
        "writes, reads, notifications and atomics by TCP";
    Source::Rank(&[P::BytesWritten]), 3, "BytesWrittenToRank", "bytes written to a rank";
    Source::Rank(&[P::BytesRead]), 3, "BytesReadFromRank", "bytes read from a rank";
    Source::Rank(&[P::Writes, P::WriteNotifys]), 3, "NumberOfWritesToRank",
        "writes to a rank, with or without a notification";
    Source::Rank(&[P::Reads, P::ReadNotifys]), 3, "NumberOfReadsFromRank",
        "reads from a rank, with or without a notification";
    Source::Rank(&[P::Notifys]), 3, "NumberOfNotifysToRank",
        "notifications of a rank without a write";
    Source::Rank(&[P::Atomics]), 3, "NumberOfAtomicsOnRank", "atomic operations on a rank";
}

/// What is counted outside of the threads' slots, and where counting began.
#[derive(Debug)]
pub(crate) struct Statistics {
    /// Counts of threads whose slot counts for another rank of this process.
    shared: [AtomicU64; THREAD_COUNTERS],
    shared_peers: OnceLock<Box<[[AtomicU64; PEER_COUNTERS]]>>,
    /// The values at the last reset.
    base: [AtomicU64; INFO.len()],
    /// The same by rank, of the counters that take one.
    base_of_rank: [OnceLock<Box<[AtomicU64]>>; INFO.len()],
}

impl Default for Statistics {
    fn default() -> Statistics {
        Statistics {
            shared: [const { AtomicU64::new(0) }; THREAD_COUNTERS],
            shared_peers: OnceLock::new(),
            base: [const { AtomicU64::new(0) }; INFO.len()],
            base_of_rank: [const { OnceLock::new() }; INFO.len()],
        }
    }
}

impl Inner {
    /// Adds to a counter.
    #[inline]
    pub(crate) fn count(&self, counter: Counter, amount: u64) {
        self.count_inside(&epoch::enter(), counter, amount);
    }

    /// Adds to a counter, from inside an epoch.
    #[inline]
    pub(crate) fn count_inside(&self, inside: &Guard, counter: Counter, amount: u64) {
        if !inside.count(self.id(), self.ranks.size, counter as usize, amount) {
            self.statistics.shared[counter as usize].fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Adds to a counter of `rank`, which has been checked.
    pub(crate) fn count_for(&self, inside: &Guard, rank: Rank, counter: PeerCounter, amount: u64) {
        if inside.claim(self.id(), self.ranks.size) {
            // SAFETY: it counts for this runtime, and the rank was checked.
            let peer = unsafe { inside.peer(rank.index()) };
            return peer.add(counter as usize, amount);
        }
        let zeroes = || (0..self.ranks.size).map(|_| [const { AtomicU64::new(0) }; PEER_COUNTERS]);
        let shared = self.statistics.shared_peers.get_or_init(|| zeroes().collect());
        shared[rank.index()][counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Counts what a call has waited.
    #[cold]
    pub(crate) fn count_waiting(&self, call: Call, waited: Duration) {
        let nanoseconds = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let inside = epoch::enter();
        self.count_inside(&inside, Counter::TimeWaiting, nanoseconds);
        if let Some(counter) = call.counter() {
            self.count_inside(&inside, counter, nanoseconds);
        }
    }

    fn counted_for(&self, rank: usize, counters: &[PeerCounter]) -> u64 {
        let of = |counter: &PeerCounter| {
            let index = *counter as usize;
            let shared = self.statistics.shared_peers.get();
            let shared = shared.map_or(0, |peers| peers[rank][index].load(Ordering::Relaxed));
            epoch::counted_for(self.id(), rank, index).wrapping_add(shared)
        };
        counters.iter().map(of).fold(0, u64::wrapping_add)
    }

    /// The value since init; `rank` is for counters that take one.
    fn counted(&self, source: Source, rank: usize) -> u64 {
        let sum = |ranks: &mut dyn Iterator<Item = u32>, counters: &[PeerCounter]| {
            ranks.map(|rank| self.counted_for(rank as usize, counters)).fold(0, u64::wrapping_add)
        };
        match source {
            Source::Thread(counter) => {
                let shared = self.statistics.shared[counter as usize].load(Ordering::Relaxed);
                epoch::counted(self.id(), counter as usize).wrapping_add(shared)
            }
            Source::All(counter) => sum(&mut (0..self.ranks.size), &[counter]),
            Source::Rank(counters) => self.counted_for(rank, counters),
            Source::Link(link, counters) => {
                let reached = |rank: &u32| self.link_to(Rank(*rank as u16)) == link;
                sum(&mut (0..self.ranks.size).filter(reached), counters)
            }
        }
    }
}

impl Runtime {
    /// How many counters there are.
    pub fn statistic_num(&self) -> u32 {
        INFO.len() as u32
    }

    /// What a counter counts, `None` if there is no such counter.
    pub fn statistic_info(counter: u32) -> Option<&'static CounterInfo> {
        INFO.get(counter as usize).map(|(info, _)| info)
    }

    /// The value of a counter since init or its last reset. `argument` is a rank for counters that
    /// take one, and ignored for others.
    ///
    /// # Errors
    /// [`Error::Number`] if there is no such counter, [`Error::InvalidRank`].
    pub fn statistic_get(&self, counter: u32, argument: u32) -> Result<u64> {
        let (index, source) = find(counter)?;
        let inner = self.inner();
        let statistics = &inner.statistics;
        if !matches!(source, Source::Rank(_)) {
            let base = statistics.base[index].load(Ordering::Relaxed);
            return Ok(inner.counted(source, 0).wrapping_sub(base));
        }
        let rank = Rank(u16::try_from(argument).unwrap_or(u16::MAX));
        inner.ranks.check_rank(rank)?;
        let base = statistics.base_of_rank[index].get();
        let base = base.map_or(0, |base| base[rank.index()].load(Ordering::Relaxed));
        Ok(inner.counted(source, rank.index()).wrapping_sub(base))
    }

    /// Sets a counter to 0, for all ranks if it takes one.
    ///
    /// # Errors
    /// [`Error::Number`] if there is no such counter.
    pub fn statistic_reset(&self, counter: u32) -> Result<()> {
        let (index, source) = find(counter)?;
        let inner = self.inner();
        let statistics = &inner.statistics;
        if !matches!(source, Source::Rank(_)) {
            statistics.base[index].store(inner.counted(source, 0), Ordering::Relaxed);
            return Ok(());
        }
        let zeroes = || (0..inner.ranks.size).map(|_| AtomicU64::new(0)).collect();
        let base = statistics.base_of_rank[index].get_or_init(zeroes);
        for (rank, base) in base.iter().enumerate() {
            base.store(inner.counted(source, rank), Ordering::Relaxed);
        }
        Ok(())
    }
}

fn find(counter: u32) -> Result<(usize, Source)> {
    let found = INFO.get(counter as usize);
    found.map(|(_, source)| (counter as usize, *source)).ok_or_else(|| {
        let reason = format!("there are {} counters", INFO.len());
        Error::Number { number: counter.into(), reason }
    })
}
