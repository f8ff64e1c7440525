//! This process as a rank: joining, calls of the library with their errors, and memory. Where ranks
//! meet beside the library is in [`crate::control`].
//!
//! Invariant: every wait has a limit of [`LIMIT`], and ends early when a rank has died.

use crate::arguments::Plain;
use crate::connections::{self, Streams};
use crate::control::Control;
use crate::failure::{Failure, Result};
use crate::fd_passing::{self, FileServer};
use crate::library::{self, Config, Extensions, Library, Procedures, Status};
use crate::links::{Link, Links};
use crate::memory::{PAGE, Region, Shared};
use crate::places::Places;
use crate::raw_verbs;
use crate::resident;
use crate::transport::Choice;
use crate::{launch, system};
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

/// One rank.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) procedures: Procedures,
    pub(crate) extensions: Extensions,
    pub(crate) library: PathBuf,
    pub(crate) interface: f32,
    /// How the ranks reach each other.
    pub(crate) links: Links,
    /// Raw connections with the peer, if this rank reaches it over TCP.
    pub(crate) streams: Option<Streams>,
    /// The raw pair with the peer, if this rank reaches it by verbs.
    pub(crate) verbs: Option<raw_verbs::End>,
    /// Cores that this rank was given, before it bound itself to one.
    pub(crate) cores: Vec<usize>,
    /// What gaspi_proc_init took, in microseconds.
    pub(crate) init_us: f64,
    /// Resident memory after that, as far as the kernel tells it.
    pub(crate) resident: [Option<u64>; 3],
    /// Private memory when rank 0 had reached all ranks, as far as the kernel tells it.
    pub(crate) talked: Option<u64>,
    control: Option<Control>,
    pub(crate) places: Places,
}

impl Job {
    /// Becomes a rank, on the core that is its own.
    ///
    /// `fields` are those of gaspi_config_t, by offset, that are to be other than their defaults.
    pub(crate) fn join(plain: &Plain, fields: &[(usize, u32)]) -> Result<Job> {
        if let Some(choice) = plain.transport {
            choice.tell();
        }
        let library = Library::load()?;
        let cores = launch::bind(plain.bind)?;
        let mut job = Job {
            rank: 0,
            ranks: 1,
            procedures: library.procedures,
            extensions: library.extensions,
            library: library.path,
            interface: 0.0,
            links: Links::alone(),
            streams: None,
            verbs: None,
            cores,
            init_us: 0.0,
            resident: [None; 3],
            talked: None,
            control: None,
            places: Places::unknown(1),
        };
        if !fields.is_empty() {
            job.configure(fields)?;
        }
        let begin = Instant::now();
        // SAFETY: no arguments but the timeout.
        job.call("gaspi_proc_init", unsafe { (job.procedures.proc_init)(LIMIT_MS) })?;
        job.init_us = micros(begin.elapsed());
        job.resident = resident::now();
        job.look_around()?;
        job.meet_others(plain.transport)?;
        Ok(job)
    }

    fn configure(&self, fields: &[(usize, u32)]) -> Result<()> {
        let mut config = Config([0; 144]);
        // SAFETY: writes the struct that it is given.
        self.call("gaspi_config_get", unsafe { (self.procedures.config_get)(&raw mut config) })?;
        for (offset, value) in fields {
            config.0[*offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        }
        // SAFETY: takes a copy.
        self.call("gaspi_config_set", unsafe { (self.procedures.config_set)(config) })
    }

    fn look_around(&mut self) -> Result<()> {
        let (mut rank, mut ranks) = (0u16, 0u16);
        let mut version = 0f32;
        let p = self.procedures;
        // SAFETY: each writes the number that it is given.
        unsafe {
            self.call("gaspi_proc_rank", (p.proc_rank)(&raw mut rank))?;
            self.call("gaspi_proc_num", (p.proc_num)(&raw mut ranks))?;
            self.call("gaspi_version", (p.version)(&raw mut version))?;
        }
        (self.rank, self.ranks) = (usize::from(rank), usize::from(ranks));
        self.interface = version;
        self.places = Places::unknown(self.ranks);
        Ok(())
    }

    /// Learns how the ranks reach each other, makes what they meet by, and learns where they run.
    fn meet_others(&mut self, asked: Option<Choice>) -> Result<()> {
        if self.ranks > 1 {
            self.links = Links::find(self)?;
            self.links.demand(asked)?;
        }
        self.talked = resident::private();
        let control = if self.links.one_memory {
            Control::in_memory(self.rank, self.share(Control::bytes(self.ranks))?)
        } else {
            let connections = connections::connect(self, self.links)?;
            self.streams = connections.streams;
            self.verbs = raw_verbs::connect(self, self.links.to_peer == Link::Verbs)?;
            Control::over_sockets(self.rank, self.ranks, connections.star)
        };
        self.control = Some(control);
        self.places = Places::learn(self)?;
        Ok(())
    }

    pub(crate) fn control(&self) -> &Control {
        self.control.as_ref().expect("set up when the job was joined")
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
        self.procedures.check(name, status, LIMIT_MS)
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

    /// Spins until something that can fail is true.
    #[inline(always)]
    pub(crate) fn spin_until(
        &self,
        what: &'static str,
        mut done: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let limit = if self.crowded() { SPINS_CROWDED } else { SPINS };
        for _ in 0..limit {
            if done()? {
                return Ok(());
            }
        }
        let mut patience = self.patience(what);
        loop {
            for _ in 0..limit {
                if done()? {
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
        // No rank writes into it before it has been touched everywhere.
        self.barrier()?;
        Ok(Segment { job: self, id, region })
    }

    /// Makes memory of the kind that segments consist of, which all ranks map; where not all of
    /// them share memory each has its own.
    pub(crate) fn share(&self, size: usize) -> Result<Shared> {
        let size = size.next_multiple_of(PAGE);
        let refused = |error| Failure::run(format!("cannot make {size} bytes of memory: {error}"));
        if self.ranks == 1 || !self.links.one_memory {
            return Shared::map(&system::memory_file(size).map_err(refused)?, size);
        }
        let segment = self.segment(EXCHANGE, PAGE)?;
        let shared = if self.rank == 0 {
            let file = system::memory_file(size).map_err(refused)?;
            let shared = Shared::map(&file, size)?;
            let server = FileServer::open()?;
            segment.region.word(0).store(server.number, Ordering::Relaxed);
            for rank in 1..self.ranks {
                segment.write(0, rank, 0, 8, 0)?;
            }
            self.wait(0)?;
            self.barrier()?;
            server.give(self, &file, self.ranks - 1)?;
            shared
        } else {
            self.barrier()?;
            let file = fd_passing::take(self, segment.region.word(0).load(Ordering::Relaxed))?;
            Shared::map(&file, size)?
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

    /// Deletes it when no rank uses it any more.
    pub(crate) fn delete(self) -> Result<()> {
        self.job.barrier()?;
        self.job.delete_segment(self.id)
    }
}

/// Microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
