//! A barrier between batches that does not use the library under test. A rank that waits long
//! sleeps, so that ranks which take no part in a batch leave the cores free.

use crate::failure::Result;
use crate::job::Job;
use crate::memory::{LINE, Region};
use crate::system;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes that a barrier takes.
pub(crate) const BYTES: usize = 4 * LINE;
const ARRIVED: usize = 0;
const GENERATION: usize = LINE;
const SLEEPERS: usize = 2 * LINE;

/// Loads before sleeping: some tens of microseconds, longer than most differences between ranks.
const SPINS: u32 = 20_000;
/// Between looks at whether all ranks live.
const NAP: Duration = Duration::from_millis(20);

/// Waits until `participants` ranks are at this barrier.
pub(crate) fn meet(job: &Job, barrier: Region<'_>, participants: usize) -> Result<()> {
    let (arrived, generation) = (barrier.word32(ARRIVED), barrier.word32(GENERATION));
    let sleepers = barrier.word32(SLEEPERS);
    // Acquire: pairs with the release of the last that opened the barrier before.
    let now = generation.load(Ordering::Acquire);
    if arrived.fetch_add(1, Ordering::AcqRel) as usize + 1 == participants {
        arrived.store(0, Ordering::Relaxed);
        // SeqCst: "open, then look for sleepers" against "announce, then look at the barrier".
        generation.fetch_add(1, Ordering::SeqCst);
        if sleepers.load(Ordering::SeqCst) > 0 {
            system::futex_wake(generation);
        }
        return Ok(());
    }
    let spins = if job.crowded() { 0 } else { SPINS };
    for _ in 0..spins {
        if generation.load(Ordering::Acquire) != now {
            return Ok(());
        }
        std::hint::spin_loop();
    }
    sleepers.fetch_add(1, Ordering::SeqCst);
    let mut patience = job.patience("the meeting of ranks between batches");
    while generation.load(Ordering::SeqCst) == now {
        system::futex_wait(generation, now, NAP);
        patience.check(job)?;
    }
    sleepers.fetch_sub(1, Ordering::SeqCst);
    Ok(())
}
