//! Counters of what a rank did (GASPI 17.1, 14.1). Counting costs a plain addition in the calling
//! thread's slot; times are taken only on paths that really wait.

use crate::error::{Error, Result};
use crate::runtime::{Inner, Runtime};
use crate::sync::epoch::{self, COUNTERS};
use crate::sync::{AtomicU64, Ordering};
use std::time::Instant;

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

macro_rules! counters {
    ($($variant:ident $name:literal $description:literal,)*) => {
        /// The counters, in the order of their numbers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Counter { $($variant,)* }

        const INFO: &[CounterInfo] = &[$(CounterInfo {
            name: $name, description: $description, per_rank: false, verbosity: 1,
        },)*];
    };
}

counters! {
    BytesWritten "BytesWritten" "bytes written to other ranks' segments",
    BytesRead "BytesRead" "bytes read from other ranks' segments",
    Barriers "NumberOfBarriers" "barriers",
    Waits "NumberOfWaits" "waits for a queue",
    Writes "NumberOfWrites" "writes, one per list element",
    WriteNotifys "NumberOfWriteNotifys" "writes with a notification",
    Reads "NumberOfReads" "reads, one per list element",
    ReadNotifys "NumberOfReadNotifys" "reads with a notification",
    SegmentCreate "NumberOfSegmentCreate" "segments created by a group",
    SegmentAlloc "NumberOfSegmentAlloc" "segments allocated",
    SegmentRegister "NumberOfSegmentRegister" "registrations of a segment with a rank",
    SegmentDelete "NumberOfSegmentDelete" "segments deleted",
    SegmentBind "NumberOfSegmentBind" "segments bound to memory of the program",
    SegmentUse "NumberOfSegmentUse" "segments bound and created by a group",
    TimeInBarrier "TimeInBarrier" "nanoseconds of waiting in barriers",
    TimeInWait "TimeInWait" "nanoseconds of waiting for queues",
    TimeInWaitSome "TimeInWaitSome" "nanoseconds of waiting for notifications",
    TimeWaiting "TimeWaitingInGaspi" "nanoseconds of waiting in all procedures",
}

const _: () = assert!(INFO.len() <= COUNTERS);

/// What is counted outside of the threads' slots, and where counting began.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    /// Counts of threads whose slot counts for another rank of this process.
    shared: [AtomicU64; INFO.len()],
    /// The values at the last reset.
    base: [AtomicU64; INFO.len()],
}

impl Inner {
    /// Adds to a counter.
    #[inline]
    pub(crate) fn count(&self, counter: Counter, amount: u64) {
        let inside = epoch::enter();
        self.count_inside(&inside, counter, amount);
    }

    /// Adds to a counter, from inside an epoch.
    #[inline]
    pub(crate) fn count_inside(&self, inside: &epoch::Guard, counter: Counter, amount: u64) {
        if !inside.count(self.id, counter as usize, amount) {
            self.statistics.shared[counter as usize].fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Counts the time that `wait` takes under `counter` and under the sum of all waiting.
    pub(crate) fn timed<T>(&self, counter: Counter, wait: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = wait();
        let nanoseconds = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.count(Counter::TimeWaiting, nanoseconds);
        if counter != Counter::TimeWaiting {
            self.count(counter, nanoseconds);
        }
        result
    }

    fn counted(&self, counter: usize) -> u64 {
        let shared = self.statistics.shared[counter].load(Ordering::Relaxed);
        epoch::counted(self.id, counter).wrapping_add(shared)
    }
}

impl Runtime {
    /// How many counters there are.
    pub fn statistic_num(&self) -> u32 {
        INFO.len() as u32
    }

    /// What a counter counts, `None` if there is no such counter.
    pub fn statistic_info(counter: u32) -> Option<&'static CounterInfo> {
        INFO.get(counter as usize)
    }

    /// The value of a counter since init or its last reset.
    ///
    /// # Errors
    /// [`Error::Number`] if there is no such counter.
    pub fn statistic_get(&self, counter: u32, _argument: u32) -> Result<u64> {
        let index = check(counter)?;
        let base = self.inner().statistics.base[index].load(Ordering::Relaxed);
        Ok(self.inner().counted(index).wrapping_sub(base))
    }

    /// Sets a counter to 0.
    ///
    /// # Errors
    /// [`Error::Number`] if there is no such counter.
    pub fn statistic_reset(&self, counter: u32) -> Result<()> {
        let index = check(counter)?;
        let now = self.inner().counted(index);
        self.inner().statistics.base[index].store(now, Ordering::Relaxed);
        Ok(())
    }
}

fn check(counter: u32) -> Result<usize> {
    if (counter as usize) < INFO.len() {
        return Ok(counter as usize);
    }
    let reason = format!("there are {} counters", INFO.len());
    Err(Error::Number { number: counter.into(), reason })
}
