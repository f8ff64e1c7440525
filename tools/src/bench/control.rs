//! Exchange of a few words between batches, and barriers, without the library under test: in shared
//! memory, or, where there is none, over a connection of each rank with rank 0.
//!
//! Invariant: the others see what a rank wrote after the next barrier.

use crate::barrier;
use crate::failure::Result;
use crate::job::Job;
use crate::memory::{APART, PAGE, Shared};
use crate::sockets::{Pause, Socket, Waiting};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What each rank publishes, in words of 64 bits.
const SAMPLE: usize = 0;
/// Counts since the job began.
const ERRORS: usize = 1;
const NOTE: usize = 2;
const WORDS: usize = 3;
const BYTES: usize = 8 * WORDS;

const WHAT: &str = "the meeting of ranks between batches";
/// A rank that waits for a connection asks this long before it sleeps. Short: an idle target
/// shall leave its core to the library's own thread.
const ASK: Duration = Duration::from_micros(30);

/// The words of all ranks.
#[derive(Debug)]
pub(crate) struct Control {
    rank: usize,
    way: Way,
    errors_taken: AtomicU64,
}

#[derive(Debug)]
enum Way {
    Memory(Shared),
    Sockets {
        /// What was told until the last meeting.
        table: Vec<[AtomicU64; WORDS]>,
        /// As in `Connections::star`.
        star: Vec<Socket>,
    },
}

impl Control {
    /// Bytes of common memory that [`Control::in_memory`] wants.
    pub(crate) fn bytes(ranks: usize) -> usize {
        PAGE + ranks * APART
    }

    pub(crate) fn in_memory(rank: usize, shared: Shared) -> Control {
        Control { rank, way: Way::Memory(shared), errors_taken: AtomicU64::new(0) }
    }

    pub(crate) fn over_sockets(rank: usize, ranks: usize, star: Vec<Socket>) -> Control {
        let table = (0..ranks).map(|_| Default::default()).collect();
        Control { rank, way: Way::Sockets { table, star }, errors_taken: AtomicU64::new(0) }
    }

    fn word(&self, rank: usize, word: usize) -> &AtomicU64 {
        match &self.way {
            Way::Memory(shared) => shared.region().word(PAGE + rank * APART + 8 * word),
            Way::Sockets { table, .. } => &table[rank][word],
        }
    }

    fn own(&self, word: usize) -> &AtomicU64 {
        self.word(self.rank, word)
    }

    /// Waits for the first `participants` ranks; `all` has a barrier of its own, since ranks that
    /// take no part in a test wait there meanwhile.
    fn meet(&self, job: &Job, participants: usize, all: bool) -> Result<()> {
        match &self.way {
            Way::Memory(shared) => {
                let barrier = if all { 0 } else { barrier::BYTES };
                barrier::meet(job, shared.region().part(barrier, barrier::BYTES), participants)
            }
            Way::Sockets { star, .. } if self.rank == 0 => {
                let others = star.get(..participants - 1).unwrap_or(star);
                for (other, socket) in (1..).zip(others) {
                    let mut words = [0u8; BYTES];
                    receive(job, socket, &mut words)?;
                    self.set(other, &words);
                }
                let told: Vec<u8> =
                    (0..participants).flat_map(|rank| self.bytes_of(rank)).collect();
                others.iter().try_for_each(|socket| send(job, socket, &told))
            }
            Way::Sockets { star, .. } => {
                let Some(socket) = star.first() else { return Ok(()) };
                send(job, socket, &self.bytes_of(self.rank))?;
                let mut told = vec![0u8; participants * BYTES];
                receive(job, socket, &mut told)?;
                for (rank, words) in told.as_chunks::<BYTES>().0.iter().enumerate() {
                    self.set(rank, words);
                }
                Ok(())
            }
        }
    }

    /// Takes over what another rank published. The words of this rank are up to date already.
    fn set(&self, rank: usize, bytes: &[u8; BYTES]) {
        if rank == self.rank {
            return;
        }
        for (word, bytes) in bytes.as_chunks::<8>().0.iter().enumerate() {
            // Relaxed here and below: a meeting orders it, and here one thread meets.
            self.word(rank, word).store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    fn bytes_of(&self, rank: usize) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        for (word, bytes) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *bytes = self.word(rank, word).load(Ordering::Relaxed).to_ne_bytes();
        }
        bytes
    }
}

fn send(job: &Job, socket: &Socket, bytes: &[u8]) -> Result<()> {
    socket.send(job, WHAT, bytes.as_ptr(), bytes.len(), Waiting::Blocking)
}

/// Asks for a moment, then sleeps.
fn receive(job: &Job, socket: &Socket, bytes: &mut [u8]) -> Result<()> {
    let mut part = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    let mut pause = Pause::new(job, WHAT, Waiting::Blocking);
    let begin = Instant::now();
    let mut done = 0;
    while done < bytes.len() {
        match socket.receive_some(&mut part, libc::MSG_DONTWAIT)? {
            0 if job.crowded() || begin.elapsed() > ASK => {
                socket.await_some();
                pause.take()?;
            }
            0 => {}
            count => {
                done += count;
                part[0].iov_base = part[0].iov_base.wrapping_byte_add(count);
                part[0].iov_len -= count;
            }
        }
    }
    Ok(())
}

impl Job {
    /// Waits for all ranks of the job.
    pub(crate) fn meet_all(&self) -> Result<()> {
        self.control().meet(self, self.ranks, true)
    }

    /// Waits for the ranks that take part in a test.
    pub(crate) fn meet(&self, participants: usize) -> Result<()> {
        self.control().meet(self, participants, false)
    }

    /// Gives this rank's time of a batch, or that it has none.
    pub(crate) fn give_sample(&self, us: Option<f64>) {
        let sample = us.unwrap_or(f64::NAN).to_bits();
        self.control().own(SAMPLE).store(sample, Ordering::Relaxed);
    }

    /// The longest time that a rank gave.
    pub(crate) fn longest_sample(&self, participants: usize) -> Option<f64> {
        let control = self.control();
        let samples = (0..participants)
            .map(|rank| f64::from_bits(control.word(rank, SAMPLE).load(Ordering::Relaxed)));
        samples.filter(|us| !us.is_nan()).reduce(f64::max)
    }

    /// Adds errors of this rank.
    pub(crate) fn add_errors(&self, errors: u64) {
        self.control().own(ERRORS).fetch_add(errors, Ordering::Relaxed);
    }

    /// Adds an error of this rank if there is one.
    #[inline(always)]
    pub(crate) fn add_errors_if(&self, wrong: bool) {
        if wrong {
            self.add_errors(1);
        }
    }

    /// Errors of all ranks since they were taken last. Only rank 0 takes them, after a meeting.
    pub(crate) fn take_errors(&self) -> u64 {
        let control = self.control();
        let of = |rank: usize| control.word(rank, ERRORS).load(Ordering::Relaxed);
        let all = (0..self.ranks).map(of).sum();
        all - control.errors_taken.swap(all, Ordering::Relaxed)
    }

    /// All errors that rank 0 has taken; none on other ranks.
    pub(crate) fn errors(&self) -> u64 {
        self.control().errors_taken.load(Ordering::Relaxed)
    }

    /// Tells all ranks a number of this one; they read it after the next meeting.
    pub(crate) fn tell(&self, value: u64) {
        self.control().own(NOTE).store(value, Ordering::Relaxed);
    }

    /// What a rank told.
    pub(crate) fn told(&self, rank: usize) -> u64 {
        self.control().word(rank, NOTE).load(Ordering::Relaxed)
    }
}
