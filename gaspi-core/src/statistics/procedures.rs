//! Counting, and the procedures of statistics (GASPI 17.1, 13).

use super::{Counter, CounterInfo, INFO, PeerCounter, Source, find};
use crate::error::Result;
use crate::ids::Rank;
use crate::runtime::{Inner, Runtime};
use crate::sync::epoch::{self, Guard, PeerTable};
use crate::sync::{AtomicU64, Ordering};
use crate::transport::Carried;
use crate::transport::endpoint::CarrierKind;
use crate::transport::verbs::DirectCounts;
use crate::wait::Call;
use std::time::Duration;

impl CarrierKind {
    /// Where what it carries is counted: bytes written, bytes read, requests.
    fn counters(self) -> [Counter; 3] {
        match self {
            CarrierKind::Stream => {
                [Counter::BytesWrittenTcp, Counter::BytesReadTcp, Counter::RequestsTcp]
            }
            CarrierKind::Verbs => {
                [Counter::BytesWrittenVerbs, Counter::BytesReadVerbs, Counter::RequestsVerbs]
            }
            // In place of streams.
            #[cfg(feature = "test-transports")]
            CarrierKind::Faulty | CarrierKind::Twin => CarrierKind::Stream.counters(),
        }
    }
}

/// What lanes have counted, by counter.
fn counters_of_lanes(counts: DirectCounts) -> impl Fn(PeerCounter) -> u64 {
    move |counter| match counter {
        PeerCounter::BytesWritten => counts.bytes_written,
        PeerCounter::BytesRead => counts.bytes_read,
        PeerCounter::Writes => counts.writes,
        PeerCounter::WriteNotifys => counts.write_notifys,
        PeerCounter::Reads => counts.reads,
        PeerCounter::ReadNotifys | PeerCounter::Notifys | PeerCounter::Atomics => 0,
    }
}

impl Inner {
    /// Adds to a counter.
    #[inline]
    pub(crate) fn count(&self, counter: Counter, amount: u64) {
        if let Some(inside) = epoch::enter_fast()
            && inside.counts_for(self.id())
        {
            return inside.count(counter as usize, amount);
        }
        // Outside of it.
        self.count_slowly(counter, amount);
    }

    /// The same for the first time, or from inside an epoch.
    #[cold]
    #[inline(never)]
    fn count_slowly(&self, counter: Counter, amount: u64) {
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
        let table = || PeerTable::new(self.ranks.size);
        let peer = &self.statistics.shared_peers.get_or_init(table)[rank.index()];
        peer.counter(counter as usize).fetch_add(amount, Ordering::Relaxed);
    }

    /// Counts a request to `rank` where it is handed to this carrier.
    pub(crate) fn count_carried(&self, rank: Rank, carrier: CarrierKind, carried: Carried) {
        if self.ranks.is_local(rank) {
            return;
        }
        let [written, read, requests] = carrier.counters();
        let inside = epoch::enter();
        self.count_inside(&inside, requests, 1);
        match carried {
            Carried::Written(bytes) => self.count_inside(&inside, written, bytes),
            Carried::Read(bytes) => self.count_inside(&inside, read, bytes),
            Carried::Atomic => {}
        }
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
            let shared =
                shared.map_or(0, |peers| peers[rank].counter(index).load(Ordering::Relaxed));
            epoch::counted_for(self.id(), rank, index).wrapping_add(shared)
        };
        let by_lanes = counters_of_lanes(self.direct_counts(rank));
        let with_lanes = |counter| of(counter).wrapping_add(by_lanes(*counter));
        counters.iter().map(with_lanes).fold(0, u64::wrapping_add)
    }

    /// What the lanes of a device have counted for a rank.
    fn direct_counts(&self, rank: usize) -> DirectCounts {
        let device = self.endpoints.device.as_ref();
        device.map(|device| device.direct_counts(Rank(rank as u16))).unwrap_or_default()
    }

    /// What lanes have counted of what a carrier brings.
    fn counted_by_lanes(&self, counter: Counter) -> u64 {
        let of: fn(DirectCounts) -> u64 = match counter {
            Counter::BytesWrittenVerbs => |counts| counts.bytes_written,
            Counter::BytesReadVerbs => |counts| counts.bytes_read,
            Counter::RequestsVerbs => |counts| counts.requests(),
            _ => return 0,
        };
        let ranks = 0..self.ranks.size as usize;
        ranks.map(|rank| of(self.direct_counts(rank))).fold(0, u64::wrapping_add)
    }

    /// The value since init; `rank` is for counters that take one.
    fn counted(&self, source: Source, rank: usize) -> u64 {
        let sum = |ranks: &mut dyn Iterator<Item = u32>, counters: &[PeerCounter]| {
            ranks.map(|rank| self.counted_for(rank as usize, counters)).fold(0, u64::wrapping_add)
        };
        match source {
            Source::Thread(counter) => {
                let shared = self.statistics.shared[counter as usize].load(Ordering::Relaxed);
                let counted = epoch::counted(self.id(), counter as usize).wrapping_add(shared);
                counted.wrapping_add(self.counted_by_lanes(counter))
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
    /// [`Error::Number`](crate::Error::Number) if there is no such counter,
    /// [`Error::InvalidRank`](crate::Error::InvalidRank).
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
    /// [`Error::Number`](crate::Error::Number) if there is no such counter.
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
