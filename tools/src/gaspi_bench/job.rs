//! This process as a rank: joining, calls of the library with their errors, and memory.
//!
//! Invariant: every wait has a limit of [`LIMIT`], and ends early when a rank has died.

use crate::arguments::Bind;
use crate::failure::{Failure, Result};
use crate::gate;
use crate::library::{self, CONFIG_ALLREDUCE_ELEM_MAX, Config, Library, Procedures, Status};
use crate::memory::{APART, PAGE, Region, Shared};
use crate::{launch, system};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After this a call or a wait has failed.
const LIMIT: Duration = Duration::from_secs(60);
/// The same for the library.
pub(crate) const LIMIT_MS: u64 = 60_000;
/// All ranks.
const GROUP_ALL: u8 = 0;
const MEM_INITIALIZED: u32 = 1;
const STATE_HEALTHY: i32 = 0;
/// Loads between looks at the clock: some microseconds.
const SPINS: u32 = 4096;
/// The same where ranks share cores.
const SPINS_CROWDED: u32 = 50;
/// Between looks at whether all ranks live.
const LOOK: Duration = Duration::from_millis(20);

/// The segment of exchanges before a test; no test has one when it is made.
const EXCHANGE: u8 = 0;
/// Offsets in a rank's part of the control memory.
const SAMPLE: usize = 0;
const ERRORS: usize = 8;
const CORE: usize = 16;
const NOTE: usize = 24;
const NO_CORE: u64 = u64::MAX;

/// One rank.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) procedures: Procedures,
    pub(crate) library: PathBuf,
    pub(crate) interface: f32,
    pub(crate) transport: &'static str,
    /// Cores that the ranks may use together.
    pub(crate) cores: Vec<usize>,
    /// What gaspi_proc_init took, in microseconds.
    pub(crate) init_us: f64,
    /// Resident memory after that, as far as the kernel tells it.
    pub(crate) resident: [Option<u64>; 3],
    control: Option<Shared>,
    core_of: Vec<Option<usize>>,
}

impl Job {
    /// Becomes a rank, on the core that is its own.
    pub(crate) fn join(bind: Option<Bind>, allreduce_elements: Option<usize>) -> Result<Job> {
        let library = Library::load()?;
        let cores = launch::bind(bind)?;
        let mut job = Job {
            rank: 0,
            ranks: 1,
            procedures: library.procedures,
            library: library.path,
            interface: 0.0,
            transport: "shm",
            cores,
            init_us: 0.0,
            resident: [None; 3],
            control: None,
            core_of: Vec::new(),
        };
        if let Some(elements) = allreduce_elements {
            job.set_allreduce_elements(elements)?;
        }
        let begin = Instant::now();
        // SAFETY: no arguments but the timeout.
        job.call("gaspi_proc_init", unsafe { (job.procedures.proc_init)(LIMIT_MS) })?;
        job.init_us = micros(begin.elapsed());
        job.resident = crate::init::resident();
        job.look_around()?;
        job.set_up_control()?;
        Ok(job)
    }

    fn set_allreduce_elements(&self, elements: usize) -> Result<()> {
        let mut config = Config([0; 144]);
        // SAFETY: writes the struct that it is given.
        self.call("gaspi_config_get", unsafe { (self.procedures.config_get)(&raw mut config) })?;
        let field = CONFIG_ALLREDUCE_ELEM_MAX..CONFIG_ALLREDUCE_ELEM_MAX + 4;
        let elements = u32::try_from(elements).unwrap_or(u32::MAX);
        config.0[field].copy_from_slice(&elements.to_ne_bytes());
        // SAFETY: takes a copy.
        self.call("gaspi_config_set", unsafe { (self.procedures.config_set)(config) })
    }

    fn look_around(&mut self) -> Result<()> {
        let (mut rank, mut ranks, mut local) = (0u16, 0u16, 0u16);
        let mut version = 0f32;
        let p = self.procedures;
        // SAFETY: each writes the number that it is given.
        unsafe {
            self.call("gaspi_proc_rank", (p.proc_rank)(&raw mut rank))?;
            self.call("gaspi_proc_num", (p.proc_num)(&raw mut ranks))?;
            self.call("gaspi_proc_local_num", (p.proc_local_num)(&raw mut local))?;
            self.call("gaspi_version", (p.version)(&raw mut version))?;
        }
        (self.rank, self.ranks) = (usize::from(rank), usize::from(ranks));
        self.interface = version;
        if local != ranks {
            return Err(Failure::usage(format!(
                "{local} of {ranks} ranks are on this machine; the limits need all of them there"
            )));
        }
        Ok(())
    }

    /// Makes the memory that ranks meet in, and learns where they run.
    fn set_up_control(&mut self) -> Result<()> {
        let size = PAGE + self.ranks * APART;
        self.control = Some(self.share(size)?);
        let own = system::cores();
        let core = if let [core] = own[..] { core as u64 } else { NO_CORE };
        // Relaxed here and below: the meeting orders it.
        self.own(CORE).store(core, Ordering::Relaxed);
        self.meet_all()?;
        let core_of = (0..self.ranks).map(|rank| self.slot(rank, CORE).load(Ordering::Relaxed));
        self.core_of = core_of.map(|core| (core != NO_CORE).then_some(core as usize)).collect();
        self.meet_all()
    }

    fn control(&self) -> Region<'_> {
        let control = self.control.as_ref();
        control.expect("set up when the job was joined").region()
    }

    fn slot(&self, rank: usize, field: usize) -> &std::sync::atomic::AtomicU64 {
        self.control().word(PAGE + rank * APART + field)
    }

    fn own(&self, field: usize) -> &std::sync::atomic::AtomicU64 {
        self.slot(self.rank, field)
    }

    /// The core that a rank is bound to.
    pub(crate) fn core_of(&self, rank: usize) -> Option<usize> {
        self.core_of.get(rank).copied().flatten()
    }

    /// Whether ranks have to share cores.
    pub(crate) fn crowded(&self) -> bool {
        self.ranks > self.cores.len()
    }

    /// Ranks that share a core, rounded up.
    pub(crate) fn ranks_per_core(&self) -> usize {
        self.ranks.div_ceil(self.cores.len())
    }

    /// Waits for all ranks of the job.
    pub(crate) fn meet_all(&self) -> Result<()> {
        gate::meet(self, self.control().part(0, gate::BYTES), self.ranks)
    }

    /// Waits for the ranks that take part in a test.
    pub(crate) fn meet(&self, participants: usize) -> Result<()> {
        gate::meet(self, self.control().part(gate::BYTES, gate::BYTES), participants)
    }

    /// Gives this rank's time of a batch, or that it has none.
    pub(crate) fn give_sample(&self, us: Option<f64>) {
        self.own(SAMPLE).store(us.unwrap_or(f64::NAN).to_bits(), Ordering::Relaxed);
    }

    /// The longest time that a rank gave.
    pub(crate) fn longest_sample(&self, participants: usize) -> Option<f64> {
        let samples = (0..participants)
            .map(|rank| f64::from_bits(self.slot(rank, SAMPLE).load(Ordering::Relaxed)));
        samples.filter(|us| !us.is_nan()).reduce(f64::max)
    }

    /// Adds errors of this rank.
    pub(crate) fn add_errors(&self, errors: u64) {
        self.own(ERRORS).fetch_add(errors, Ordering::Relaxed);
    }

    /// Adds an error of this rank if there is one.
    #[inline(always)]
    pub(crate) fn add_errors_if(&self, wrong: bool) {
        if wrong {
            self.add_errors(1);
        }
    }

    /// Takes the errors of all ranks.
    pub(crate) fn take_errors(&self, participants: usize) -> u64 {
        (0..participants).map(|rank| self.slot(rank, ERRORS).swap(0, Ordering::Relaxed)).sum()
    }

    /// Tells all ranks a number of this one; they read it after the next meeting.
    pub(crate) fn tell(&self, value: u64) {
        self.own(NOTE).store(value, Ordering::Relaxed);
    }

    /// What a rank told.
    pub(crate) fn told(&self, rank: usize) -> u64 {
        self.slot(rank, NOTE).load(Ordering::Relaxed)
    }

    /// Leaves the job.
    pub(crate) fn leave(&self) -> Result<()> {
        self.barrier()?;
        // SAFETY: no pointers.
        self.call("gaspi_proc_term", unsafe { (self.procedures.proc_term)(LIMIT_MS) })
    }

    /// Turns the status of a call into a result.
    #[inline(always)]
    pub(crate) fn call(&self, name: &'static str, status: Status) -> Result<()> {
        if status == library::SUCCESS { Ok(()) } else { Err(self.failed(name, status)) }
    }

    #[cold]
    fn failed(&self, name: &str, status: Status) -> Failure {
        if status == library::TIMEOUT {
            return Failure::run(format!("{name} timed out after {LIMIT_MS} ms"));
        }
        let mut text = [0u8; 1024];
        // SAFETY: writes at most the given number of bytes.
        unsafe { (self.procedures.error_detail)(text.as_mut_ptr(), text.len() as u64) };
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let detail = String::from_utf8_lossy(&text[..end]);
        if detail.is_empty() {
            return Failure::run(format!("{name} failed with status {status}"));
        }
        Failure::run(format!("{detail} (status {status})"))
    }

    /// Spins until something is true.
    #[inline(always)]
    pub(crate) fn spin(&self, what: &'static str, done: impl Fn() -> bool) -> Result<()> {
        let limit = if self.crowded() { SPINS_CROWDED } else { SPINS };
        for _ in 0..limit {
            if done() {
                return Ok(());
            }
        }
        self.spin_on(what, limit, &done)
    }

    #[cold]
    fn spin_on(&self, what: &'static str, limit: u32, done: &dyn Fn() -> bool) -> Result<()> {
        let mut patience = self.patience(what);
        loop {
            for _ in 0..limit {
                if done() {
                    return Ok(());
                }
            }
            patience.check(self)?;
            system::yield_now();
        }
    }

    /// The limit of a wait that begins now.
    pub(crate) fn patience(&self, what: &'static str) -> Patience {
        let now = Instant::now();
        Patience { what, begin: now, look: now }
    }

    /// The first rank that is known to be dead.
    fn dead(&self) -> Option<usize> {
        let mut states = vec![STATE_HEALTHY; self.ranks];
        // SAFETY: writes one state for each rank.
        let status = unsafe { (self.procedures.state_vec_get)(states.as_mut_ptr()) };
        if status != library::SUCCESS {
            return None;
        }
        states.iter().position(|state| *state != STATE_HEALTHY)
    }

    pub(crate) fn barrier(&self) -> Result<()> {
        // SAFETY: no pointers.
        self.call("gaspi_barrier", unsafe { (self.procedures.barrier)(GROUP_ALL, LIMIT_MS) })
    }

    pub(crate) fn wait(&self, queue: u8) -> Result<()> {
        // SAFETY: no pointers.
        self.call("gaspi_wait", unsafe { (self.procedures.wait)(queue, LIMIT_MS) })
    }

    /// Makes a segment on all ranks.
    pub(crate) fn bare_segment(&self, id: u8, size: usize) -> Result<()> {
        let create = self.procedures.segment_create;
        // SAFETY: no pointers.
        self.call("gaspi_segment_create", unsafe {
            create(id, size as u64, GROUP_ALL, LIMIT_MS, MEM_INITIALIZED)
        })
    }

    /// Deletes this rank's segment.
    pub(crate) fn delete_segment(&self, id: u8) -> Result<()> {
        // SAFETY: no pointers; `Segment::delete` takes the only way to its memory.
        let status = unsafe { (self.procedures.segment_delete)(id) };
        self.call("gaspi_segment_delete", status)
    }

    /// Makes a segment on all ranks, and touches all of it.
    pub(crate) fn segment(&self, id: u8, size: usize) -> Result<Segment<'_>> {
        self.bare_segment(id, size)?;
        let p = self.procedures;
        let mut base = std::ptr::null_mut();
        // SAFETY: writes the pointer that it is given.
        self.call("gaspi_segment_ptr", unsafe { (p.segment_ptr)(id, &raw mut base) })?;
        // SAFETY: the segment stays until `Segment::delete` takes it.
        let region = unsafe { Region::new(base.cast(), size) };
        region.touch();
        // Nobody writes into it before it has been touched everywhere.
        self.barrier()?;
        Ok(Segment { job: self, id, region })
    }

    /// Makes memory that all ranks map, of the kind that segments consist of.
    pub(crate) fn share(&self, size: usize) -> Result<Shared> {
        let size = size.next_multiple_of(PAGE);
        let refused = |error| Failure::run(format!("cannot make {size} bytes of memory: {error}"));
        if self.ranks == 1 {
            return Shared::map(&system::memory_file(size).map_err(refused)?, size);
        }
        let segment = self.segment(EXCHANGE, PAGE)?;
        let shared = if self.rank == 0 {
            let file = system::memory_file(size).map_err(refused)?;
            let shared = Shared::map(&file, size)?;
            segment.region.word(0).store(u64::from(std::process::id()), Ordering::Relaxed);
            segment.region.word(8).store(file.as_raw_fd() as u64, Ordering::Relaxed);
            for rank in 1..self.ranks {
                segment.write(0, rank, 0, 16, 0)?;
            }
            self.wait(0)?;
            self.barrier()?;
            // Until all have opened it.
            self.barrier()?;
            drop(file);
            shared
        } else {
            self.barrier()?;
            let word = |at| segment.region.word(at).load(Ordering::Relaxed);
            let path = format!("/proc/{}/fd/{}", word(0), word(8));
            let file = File::options().read(true).write(true).open(&path).map_err(|error| {
                Failure::run(format!(
                    "cannot open {path}, memory of rank 0: {error}; limits are measured between \
                     processes of one user that see each other in /proc"
                ))
            })?;
            let shared = Shared::map(&file, size)?;
            self.barrier()?;
            shared
        };
        segment.delete()?;
        Ok(shared)
    }
}

/// How long to wait for something.
#[derive(Debug)]
pub(crate) struct Patience {
    what: &'static str,
    begin: Instant,
    look: Instant,
}

impl Patience {
    /// Fails when the time is over or a rank has died.
    pub(crate) fn check(&mut self, job: &Job) -> Result<()> {
        let now = Instant::now();
        if now - self.look < LOOK {
            return Ok(());
        }
        self.look = now;
        if let Some(rank) = job.dead() {
            return Err(Failure::run(format!("rank {rank} has died during {}", self.what)));
        }
        if now - self.begin > LIMIT {
            let seconds = LIMIT.as_secs();
            return Err(Failure::run(format!("{} did not happen within {seconds} s", self.what)));
        }
        Ok(())
    }
}

/// A segment on all ranks. Deleted by all of them together.
#[derive(Debug)]
pub(crate) struct Segment<'a> {
    job: &'a Job,
    pub(crate) id: u8,
    pub(crate) region: Region<'a>,
}

impl Segment<'_> {
    #[inline(always)]
    pub(crate) fn write(
        &self,
        from: usize,
        rank: usize,
        to: usize,
        size: usize,
        queue: u8,
    ) -> Result<()> {
        let write = self.job.procedures.write;
        let (from, to, size) = (from as u64, to as u64, size as u64);
        // SAFETY: no pointers.
        let status =
            unsafe { write(self.id, from, rank as u16, self.id, to, size, queue, LIMIT_MS) };
        self.job.call("gaspi_write", status)
    }

    #[inline(always)]
    pub(crate) fn read(&self, to: usize, rank: usize, from: usize, size: usize) -> Result<()> {
        let read = self.job.procedures.read;
        let (from, to, size) = (from as u64, to as u64, size as u64);
        // SAFETY: no pointers.
        let status = unsafe { read(self.id, to, rank as u16, self.id, from, size, 0, LIMIT_MS) };
        self.job.call("gaspi_read", status)
    }

    /// Deletes it when nobody uses it any more.
    pub(crate) fn delete(self) -> Result<()> {
        self.job.barrier()?;
        self.job.delete_segment(self.id)
    }
}

/// Microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
