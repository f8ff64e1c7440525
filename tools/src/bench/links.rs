//! How ranks reach each other: what the library does.
//!
//! The library is asked through its counters: a write to a rank counts as written by the transport
//! that carried it.

use crate::failure::{Failure, Result};
use crate::job::{Job, Segment};
use crate::transport::Choice;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Counters of bytes written by one transport begin so, and end with its name.
const COUNTER: &str = "BytesWritten";
/// Offsets in the segment of the question: what is written, and where to; what rank 0 found.
const FROM: usize = 0;
const TO: usize = 64;
const VERDICT: usize = 128;
const BYTES: usize = 4096;
/// How long connections by devices may take to be made.
const SETTLE: Duration = Duration::from_secs(2);
/// GASPI_ETHERNET: data between hosts goes by TCP.
const ETHERNET: c_int = 2;

/// What rows call each set of transports, by [`Seen::code`] less one.
const NAMES: [&str; 7] =
    ["shm", "tcp", "shm+tcp", "verbs", "shm+verbs", "tcp+verbs", "shm+tcp+verbs"];

/// What carries data from one rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Shm,
    Tcp,
    Verbs,
}

/// What this rank and rank 0 use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Links {
    /// From rank 0 to the others: the name that rows have.
    pub(crate) transport: &'static str,
    /// Whether each rank shares memory with rank 0.
    pub(crate) one_memory: bool,
    /// To the other rank of this rank's pair.
    pub(crate) to_peer: Link,
}

impl Links {
    /// Of a job that has no other ranks.
    pub(crate) fn alone() -> Links {
        Links { transport: NAMES[0], one_memory: true, to_peer: Link::Shm }
    }

    /// Refuses a library that uses something else than it was asked for.
    pub(crate) fn demand(self, asked: Option<Choice>) -> Result<()> {
        let asked = asked.filter(|choice| *choice != Choice::Auto).map(Choice::name);
        match asked {
            Some(name) if name != self.transport => Err(Failure::run(format!(
                "--transport {name} was asked for, but the library uses {}",
                self.transport
            ))),
            _ => Ok(()),
        }
    }

    /// Finds out by a small write to the peer, and from rank 0 to every rank.
    pub(crate) fn find(job: &Job) -> Result<Links> {
        let counters = Counters::of(job)?;
        let segment = job.segment(0, BYTES)?;
        let peer = job.rank ^ 1;
        let settled = |ranks: std::ops::Range<usize>| {
            let over = time_limit(job)?;
            settle(over, || counters.links(job, &segment, ranks.clone()))
        };
        let to_peer = if peer < job.ranks {
            settled(peer..peer + 1)?
        } else {
            Seen { shm: true, tcp: false, verbs: false }
        };
        let verdict = segment.region.word(VERDICT);
        if job.rank == 0 {
            let seen = settled(1..job.ranks)?;
            verdict.store(seen.code(), Ordering::Relaxed);
            for rank in 1..job.ranks {
                segment.write(VERDICT, rank, VERDICT, 8, 0)?;
            }
            job.wait(0)?;
        }
        job.barrier()?;
        let code = verdict.load(Ordering::Relaxed).clamp(1, NAMES.len() as u64);
        segment.delete()?;
        let to_peer = match to_peer {
            Seen { tcp: true, .. } => Link::Tcp,
            Seen { verbs: true, .. } => Link::Verbs,
            _ => Link::Shm,
        };
        let transport = NAMES[code as usize - 1];
        Ok(Links { transport, one_memory: code == 1, to_peer })
    }
}

/// When to take what is seen as it is: at once where the rank has no device.
fn time_limit(job: &Job) -> Result<impl Fn() -> bool + use<>> {
    let mut network = ETHERNET;
    // SAFETY: writes the number that it is given.
    job.call("gaspi_network_type", unsafe { (job.procedures.network_type)(&raw mut network) })?;
    let until = Instant::now() + if network == ETHERNET { Duration::ZERO } else { SETTLE };
    Ok(move || Instant::now() >= until)
}

/// Looks until nothing goes by TCP: while a connection by a device is made, requests do, and rows
/// are called by what carries those that are measured. Once it is `over`, what was seen last
/// counts: some ranks may have no device.
fn settle(over: impl Fn() -> bool, mut look: impl FnMut() -> Result<Seen>) -> Result<Seen> {
    loop {
        let seen = look()?;
        if !seen.tcp || over() {
            return Ok(seen);
        }
    }
}

/// Which transports carried something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    shm: bool,
    tcp: bool,
    verbs: bool,
}

impl Seen {
    fn code(self) -> u64 {
        u64::from(self.shm) + 2 * u64::from(self.tcp) + 4 * u64::from(self.verbs)
    }
}

/// The counters of bytes written by transport: number, and name of the transport.
#[derive(Debug)]
struct Counters(Vec<(u32, String)>);

impl Counters {
    fn of(job: &Job) -> Result<Counters> {
        let mut found = Vec::new();
        for counter in 0..counters(job)? {
            let Some(name) = name(job, counter)? else { continue };
            if let Some(transport) = name.strip_prefix(COUNTER).filter(|rest| !rest.is_empty()) {
                found.push((counter, transport.to_ascii_lowercase()));
            }
        }
        Ok(Counters(found))
    }

    fn values(&self, job: &Job) -> Result<Vec<u64>> {
        self.0.iter().map(|(counter, _)| value(job, *counter)).collect()
    }

    /// Writes to these ranks, and looks which transports carried it.
    fn links(
        &self,
        job: &Job,
        segment: &Segment<'_>,
        ranks: std::ops::Range<usize>,
    ) -> Result<Seen> {
        let before = self.values(job)?;
        for rank in ranks {
            segment.write(FROM, rank, TO, 8, 0)?;
        }
        job.wait(0)?;
        let after = self.values(job)?;
        let grew = |name: &str| {
            let mut counts = self.0.iter().zip(before.iter().zip(&after));
            counts.any(|((_, transport), (before, after))| transport == name && after > before)
        };
        let seen = Seen { shm: grew("shm"), tcp: grew("tcp"), verbs: grew("verbs") };
        if seen.code() != 0 {
            return Ok(seen);
        }
        Err(Failure::run(
            "the library has counted a write for none of the transports shm, tcp and verbs; \
             limits of others are not known here",
        ))
    }
}

/// The value of the library's counter of this name, if it has one.
pub(crate) fn counter(job: &Job, wanted: &str) -> Result<Option<u64>> {
    for counter in 0..counters(job)? {
        if name(job, counter)?.as_deref() == Some(wanted) {
            return value(job, counter).map(Some);
        }
    }
    Ok(None)
}

fn counters(job: &Job) -> Result<c_uint> {
    let mut count = 0;
    // SAFETY: writes the number that it is given.
    let status = unsafe { (job.procedures.statistic_counter_max)(&raw mut count) };
    job.call("gaspi_statistic_counter_max", status)?;
    Ok(count)
}

fn value(job: &Job, counter: c_uint) -> Result<u64> {
    let mut value = 0;
    // SAFETY: writes the number that it is given.
    let status = unsafe { (job.procedures.statistic_counter_get)(counter, 0, &raw mut value) };
    job.call("gaspi_statistic_counter_get", status)?;
    Ok(value)
}

/// The name of a counter that takes no rank.
fn name(job: &Job, counter: c_uint) -> Result<Option<String>> {
    let (mut argument, mut verbosity): (c_int, c_uint) = (0, 0);
    let (mut name, mut text): (*const c_char, *const c_char) = (std::ptr::null(), std::ptr::null());
    // SAFETY: writes the values that it is given.
    let status = unsafe {
        (job.procedures.statistic_counter_info)(
            counter,
            &raw mut argument,
            &raw mut name,
            &raw mut text,
            &raw mut verbosity,
        )
    };
    job.call("gaspi_statistic_counter_info", status)?;
    if name.is_null() || argument != 0 {
        return Ok(None);
    }
    // SAFETY: the library returns a constant C string.
    Ok(Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const BY_TCP: Seen = Seen { shm: false, tcp: true, verbs: false };

    #[test]
    fn rows_are_called_by_what_carries_requests_in_the_end() {
        let looks = Cell::new(0);
        let at = |verbs_from: u32| {
            let look = looks.get() + 1;
            looks.set(look);
            let verbs = look >= verbs_from;
            Seen { shm: false, tcp: !verbs, verbs }
        };
        let seen = settle(|| false, || Ok(at(3))).ok();
        assert_eq!((seen.map(Seen::code), looks.get()), (Some(4), 3));
        looks.set(0);
        assert_eq!(settle(|| looks.get() == 2, || Ok(at(9))).ok(), Some(BY_TCP), "over");
        looks.set(0);
        assert_eq!(settle(|| true, || Ok(at(9))).ok(), Some(BY_TCP));
        assert_eq!(looks.get(), 1, "a job without a device is not held up");
    }
}
