//! Counters of what a rank did (GASPI 17.1, 14.1). Counting costs a plain addition in the calling
//! thread's slot; times are taken only on paths that really wait.
//!
//! What goes to other ranks is counted by rank; the totals are sums over ranks. What a carrier
//! brings to ranks of other nodes is counted besides where it is handed over, since a rank may be
//! reached by several. What threads post to a device without locks is counted by lanes alone.

mod procedures;

use crate::error::{Error, Result};
use crate::sync::AtomicU64;
use crate::sync::epoch::{COUNTERS, PEER_COUNTERS, PeerTable};
use crate::transport::Link;
use std::sync::OnceLock;

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
    BytesWrittenTcp,
    BytesReadTcp,
    RequestsTcp,
    BytesWrittenVerbs,
    BytesReadVerbs,
    RequestsVerbs,
    GroupMessages,
    CollectiveMessages,
    CollectiveCopies,
}

const THREAD_COUNTERS: usize = Counter::CollectiveCopies as usize + 1;
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
    /// Of all ranks of this node that are reached in this way.
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
    Thread(Counter::BytesWrittenTcp), 2, "BytesWrittenTcp", "bytes written by TCP";
    Thread(Counter::BytesReadTcp), 2, "BytesReadTcp", "bytes read by TCP";
    Thread(Counter::RequestsTcp), 2, "NumberOfRequestsTcp",
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
    Thread(Counter::BytesWrittenVerbs), 2, "BytesWrittenVerbs",
        "bytes written by InfiniBand or RoCE";
    Thread(Counter::BytesReadVerbs), 2, "BytesReadVerbs", "bytes read by InfiniBand or RoCE";
    Thread(Counter::RequestsVerbs), 2, "NumberOfRequestsVerbs",
        "writes, reads and notifications by InfiniBand or RoCE";
    Thread(Counter::GroupMessages), 2, "NumberOfGroupMessages",
        "messages to members of groups on other nodes: arrivals, what leaders tell, commits";
    Thread(Counter::CollectiveMessages), 2, "NumberOfCollectiveMessages",
        "messages and arrivals of collective operations, but for short waiting ones in a node";
    Thread(Counter::CollectiveCopies), 2, "BytesCopiedByCollectives",
        "bytes that these operations have copied, into messages to ranks of the node too";
}

/// What is counted outside of the threads' slots, and where counting began.
#[derive(Debug)]
pub(crate) struct Statistics {
    /// Counts of threads whose slot counts for another rank of this process.
    shared: [AtomicU64; THREAD_COUNTERS],
    shared_peers: OnceLock<PeerTable>,
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

fn find(counter: u32) -> Result<(usize, Source)> {
    let found = INFO.get(counter as usize);
    found.map(|(_, source)| (counter as usize, *source)).ok_or_else(|| {
        let reason = format!("there are {} counters", INFO.len());
        Error::Number { number: counter.into(), reason }
    })
}
