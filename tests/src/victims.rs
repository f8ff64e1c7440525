//! Jobs of the program `victim`, one rank of which suffers: killed and stopped at random moments.

use std::time::Duration;

use tempfile::{NamedTempFile, TempPath};

use crate::job::{Job, Outcome, Running};
use crate::processes::{Process, monotonic_us};
use crate::{Result, Seed};

/// What ranks do while one of them dies.
pub const DIE: [&str; 10] = [
    "barrier",
    "allreduce",
    "large-allreduce",
    "passive",
    "write",
    "atomic",
    "segment",
    "ping",
    "commit",
    "idle",
];
/// What they do while one of them is stopped.
pub const STOP: [&str; 7] =
    ["barrier", "allreduce", "large-allreduce", "passive", "write", "atomic", "ping"];

/// Lets a random time pass. Not a synchronisation: any moment is as good as any other.
pub fn random_moment(seed: &mut Seed, below: Duration) {
    std::thread::sleep(Duration::from_micros(seed.below(below.as_micros() as u64)));
}

/// Ranks that go about, most often one that is killed at a random moment.
#[derive(Debug)]
pub struct Killed {
    ranks: Vec<usize>,
    /// When, in microseconds of [`monotonic_us`].
    at_us: u64,
}

impl Killed {
    /// Kills a rank of a job all of whose ranks are ready.
    ///
    /// # Errors
    /// It has ended already.
    pub fn kill(job: &Running, rank: usize, seed: &mut Seed) -> Result<Killed> {
        let process = job.rank(rank as u16)?;
        random_moment(seed, Duration::from_millis(30));
        let at_us = monotonic_us();
        process.signal(libc::SIGKILL)?;
        Ok(Killed { ranks: vec![rank], at_us })
    }

    /// Ranks that go about now in another way.
    pub fn now(ranks: &[usize]) -> Killed {
        Killed { ranks: ranks.to_vec(), at_us: monotonic_us() }
    }

    /// A rank that has ended by itself, when it had said so: it does as much before as it has to,
    /// however slow the machine is.
    ///
    /// # Errors
    /// It has not said so.
    pub fn by_itself(outcome: &Outcome, rank: usize) -> Result<Killed> {
        let begin = format!("leaves {rank} ");
        let told = outcome.stdout.lines().find_map(|line| line.split_once(&begin)?.1.parse().ok());
        match told {
            Some(at_us) => Ok(Killed { ranks: vec![rank], at_us }),
            None => Err(outcome.failure(&format!("rank {rank} did not say that it leaves"))),
        }
    }

    /// Demands of all other ranks that they knew within `limit`, and went on.
    ///
    /// # Errors
    /// What is wrong with which rank.
    pub fn expect_survivors(&self, outcome: &Outcome, ranks: usize, limit: Duration) -> Result<()> {
        let mut survivors = (0..ranks).filter(|rank| !self.ranks.contains(rank));
        survivors.try_for_each(|rank| self.expect_survivor(outcome, rank, limit))
    }

    /// The same of one rank.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn expect_survivor(&self, outcome: &Outcome, rank: usize, limit: Duration) -> Result<()> {
        let says = |line: &str, text: &str| {
            let (_, rest) = line.split_once(text)?;
            rest.split(' ').next().filter(|number| *number == rank.to_string()).map(|_| ())
        };
        let survived = outcome.stdout.lines().any(|line| says(line, "survived ").is_some());
        let knew = outcome.stdout.lines().find(|line| says(line, "knows ").is_some());
        let knew = knew.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        let took = knew.map(|knew| Duration::from_micros(knew.saturating_sub(self.at_us)));
        if !survived || took.is_none_or(|took| took > limit) || outcome.stderr.contains("FAILED") {
            return Err(
                outcome.failure(&format!("rank {rank} was to survive; it knew after {took:?}"))
            );
        }
        Ok(())
    }
}

/// Continues a stopped process when it goes out of scope, so that a failing test ends.
#[derive(Debug)]
pub struct Stopped<'a>(&'a Process);

impl Stopped<'_> {
    /// Stops a process.
    ///
    /// # Errors
    /// It has ended.
    pub fn stop(process: &Process) -> Result<Stopped<'_>> {
        process.signal(libc::SIGSTOP)?;
        Ok(Stopped(process))
    }

    /// Stops a process, none of whose threads runs any more then.
    ///
    /// # Errors
    /// It has ended.
    pub fn wholly(process: &Process) -> Result<Stopped<'_>> {
        let stopped = Stopped::stop(process)?;
        while !process.is_stopped()? {
            std::thread::yield_now();
        }
        Ok(stopped)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // If it has ended there is nothing to continue.
        let _ = self.0.signal(libc::SIGCONT);
    }
}

/// A job that goes on until it is told that it has been stopped and continued enough.
#[derive(Debug)]
pub struct Enduring {
    job: Running,
    ranks: usize,
    go_on: TempPath,
}

impl Enduring {
    /// Starts `job` with these arguments, the rank that suffers, and a file that is there as long
    /// as it is to go on.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(job: Job, ranks: usize, what: [&str; 2], of: usize) -> Result<Enduring> {
        let go_on = NamedTempFile::new()?.into_temp_path();
        let job = job.args(what).arg(of.to_string()).arg(&go_on).start()?;
        job.lines("ready ", ranks)?;
        Ok(Enduring { job, ranks, go_on })
    }

    /// A rank of it.
    ///
    /// # Errors
    /// It has ended.
    pub fn rank(&self, rank: usize) -> Result<Process> {
        self.job.rank(rank as u16)
    }

    /// Stops a rank at random moments for random times.
    ///
    /// # Errors
    /// It has ended.
    pub fn stop_and_continue(&self, rank: usize, seed: &mut Seed) -> Result<()> {
        let process = self.rank(rank)?;
        for _ in 0..3 {
            random_moment(seed, Duration::from_millis(100));
            let stopped = Stopped::stop(&process)?;
            random_moment(seed, Duration::from_millis(200));
            drop(stopped);
        }
        Ok(())
    }

    /// Has the ranks end, and demands that nothing has failed.
    ///
    /// # Errors
    /// What is wrong.
    pub fn finish(self) -> Result<()> {
        self.go_on.close()?;
        let outcome = self.job.wait()?.success()?;
        let finished = outcome.stdout.lines().filter(|line| line.contains("finished ")).count();
        if finished != self.ranks || outcome.stderr.contains("FAILED") {
            let what = format!("{finished} of {} ranks finished", self.ranks);
            return Err(outcome.failure(&what));
        }
        Ok(())
    }
}
