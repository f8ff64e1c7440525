//! One rank of a job of `gaspi-bench scale`: calls the library as any program does, without what
//! the other tests set up between ranks, and prints its figures as one line.

use crate::elements::{Op, Type};
use crate::failure::{Failure, Result};
use crate::job::{LIMIT_MS, micros};
use crate::library::{Collectives, ERROR, Library, Procedures, Status};
use crate::transport::Choice;
use crate::{resident, system, text};
use clap::ValueEnum;
use serde_json::json;
use std::time::Instant;

/// What a rank does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// Measures one step after another
    Steps,
    /// Loses a rank: the last one kills itself
    Death,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Part::Steps => "steps",
            Part::Death => "death",
        }
    }
}

/// Keys of the lines of a job that loses a rank: microseconds of the clock of the host.
pub(super) const KILLED: &str = "killed_us";
pub(super) const KNOWN: &str = "known_us";

const GROUP_ALL: u8 = 0;
const SEGMENT: u8 = 0;
const SEGMENT_BYTES: u64 = 64 << 10;
const MEM_INITIALIZED: u32 = 1;
const SUM: i32 = 2;
const TYPE_DOUBLE: i32 = 3;
/// Barriers before those that are measured, and those.
const BEFORE: u32 = 2;
const MEASURED: u32 = 5;

/// A rank that has joined.
struct Rank {
    procedures: Procedures,
    number: u16,
    ranks: u16,
}

pub(super) fn run(part: Part, transport: Option<Choice>) -> Result<()> {
    if let Some(choice) = transport {
        choice.tell();
    }
    let Library { procedures, extensions, .. } = Library::load()?;
    match part {
        Part::Steps => measure(procedures, extensions.collectives),
        Part::Death => lose_one(procedures),
    }
}

impl Rank {
    fn join(procedures: Procedures) -> Result<Rank> {
        let mut rank = Rank { procedures, number: 0, ranks: 0 };
        let p = &rank.procedures;
        // SAFETY: no arguments but the timeout.
        rank.call("gaspi_proc_init", unsafe { (p.proc_init)(LIMIT_MS) })?;
        let (mut number, mut ranks) = (0, 0);
        // SAFETY: each writes the number that it is given.
        unsafe {
            rank.call("gaspi_proc_rank", (p.proc_rank)(&raw mut number))?;
            rank.call("gaspi_proc_num", (p.proc_num)(&raw mut ranks))?;
        }
        (rank.number, rank.ranks) = (number, ranks);
        Ok(rank)
    }

    fn call(&self, name: &str, status: Status) -> Result<()> {
        self.procedures.check(name, status, LIMIT_MS)
    }

    fn barrier(&self) -> Result<()> {
        // SAFETY: no pointers.
        let status = unsafe { (self.procedures.barrier)(GROUP_ALL, LIMIT_MS) };
        self.call("gaspi_barrier", status)
    }

    fn create_segment(&self) -> Result<()> {
        let create = self.procedures.segment_create;
        // SAFETY: no pointers.
        let status =
            unsafe { create(SEGMENT, SEGMENT_BYTES, GROUP_ALL, LIMIT_MS, MEM_INITIALIZED) };
        self.call("gaspi_segment_create", status)
    }

    /// Adds up the numbers of all ranks.
    fn allreduce(&self) -> Result<()> {
        let (mut own, mut sum) = (f64::from(self.number), 0f64);
        let (from, to) = ((&raw mut own).cast(), (&raw mut sum).cast());
        // SAFETY: one double is read, and one written.
        let status = unsafe {
            let allreduce = self.procedures.allreduce;
            allreduce(from, to, 1, SUM, TYPE_DOUBLE, GROUP_ALL, LIMIT_MS)
        };
        self.call("gaspi_allreduce", status)?;
        self.check_sum("gaspi_allreduce", sum)
    }

    /// The same by the collectives of the library.
    fn coll_allreduce(&self, collectives: &Collectives) -> Result<()> {
        let (mut own, mut sum) = (f64::from(self.number), 0f64);
        let (from, to) = ((&raw mut own).cast(), (&raw mut sum).cast());
        let (of_type, by) = (Type::F64.code(), Op::Sum.code());
        let allreduce = collectives.allreduce;
        // SAFETY: one double is read, and one written; no options.
        let status =
            unsafe { allreduce(from, to, 1, of_type, by, GROUP_ALL, std::ptr::null(), LIMIT_MS) };
        self.call("gaspi_coll_allreduce", status)?;
        self.check_sum("gaspi_coll_allreduce", sum)
    }

    fn check_sum(&self, name: &str, sum: f64) -> Result<()> {
        let expected = f64::from(self.ranks) * (f64::from(self.ranks) - 1.0) / 2.0;
        if sum == expected {
            return Ok(());
        }
        Err(Failure::run(format!("{name} returned {sum} instead of {expected}")))
    }

    fn leave(&self) -> Result<()> {
        // SAFETY: no pointers.
        self.call("gaspi_proc_term", unsafe { (self.procedures.proc_term)(LIMIT_MS) })
    }
}

/// What a step takes, in microseconds.
fn timed(step: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    step()?;
    Ok(micros(begin.elapsed()))
}

/// Descriptors of this process, as far as the kernel tells them.
fn descriptors() -> Option<usize> {
    // Without the one that reads the directory.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count() - 1)
}

fn measure(procedures: Procedures, collectives: Option<Collectives>) -> Result<()> {
    let (begin, cpu) = (Instant::now(), system::cpu_time());
    let rank = Rank::join(procedures)?;
    let proc_init = micros(begin.elapsed());
    // Between the two nobody begins what comes next.
    rank.barrier()?;
    let (descriptors_first, private) = (descriptors(), resident::private());
    rank.barrier()?;
    let segment_create = timed(|| rank.create_segment())?;
    (0..BEFORE).try_for_each(|_| rank.barrier())?;
    let barriers = timed(|| (0..MEASURED).try_for_each(|_| rank.barrier()))?;
    let allreduce = timed(|| rank.allreduce())?;
    rank.barrier()?;
    let [coll_first, colls] = [1, MEASURED].map(|times| {
        let collectives = collectives.as_ref()?;
        Some(timed(|| (0..times).try_for_each(|_| rank.coll_allreduce(collectives))))
    });
    let (coll_first, colls) = (coll_first.transpose()?, colls.transpose()?);
    // No rank leaves while others still compute: they would have to wait for a core.
    rank.barrier()?;
    let descriptors_later = descriptors();
    rank.barrier()?;
    let proc_term = timed(|| rank.leave())?;
    let cpu = micros(system::cpu_time() - cpu);
    let line = json!({
        "rank": rank.number,
        "proc_init_us": proc_init,
        "segment_create_us": segment_create,
        "barrier_us": barriers / f64::from(MEASURED),
        "allreduce_us": allreduce,
        "coll_first_us": coll_first,
        "coll_next_us": colls.map(|colls| colls / f64::from(MEASURED)),
        "proc_term_us": proc_term,
        "cpu_us": cpu,
        "descriptors": descriptors_first,
        "descriptors_later": descriptors_later,
        "private_bytes": private,
    });
    text::write_line(&line.to_string())
}

/// The last rank kills itself behind some barriers. The others have the death in the next one, or,
/// where they are late, in the last of those that it has still come to.
fn lose_one(procedures: Procedures) -> Result<()> {
    let rank = Rank::join(procedures)?;
    let line = |key: &str| {
        let line = json!({ "rank": rank.number, key: micros(system::host_time()) });
        text::write_line(&line.to_string())
    };
    let is_last = rank.number + 1 == rank.ranks;
    let mut left = BEFORE;
    loop {
        if left == 0 && is_last {
            line(KILLED)?;
            system::kill_self();
        }
        // SAFETY: no pointers.
        let status = unsafe { (rank.procedures.barrier)(GROUP_ALL, LIMIT_MS) };
        if status == ERROR && left <= 1 && !is_last {
            break;
        }
        rank.call("gaspi_barrier", status)?;
        left = left.checked_sub(1).ok_or_else(|| {
            Failure::run("gaspi_barrier succeeded without a rank that was killed")
        })?;
    }
    line(KNOWN)?;
    rank.leave()
}
