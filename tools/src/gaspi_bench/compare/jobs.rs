//! A job that is kept alive for the whole comparison and measures in bursts when it is told to.
//!
//! Its ranks connect to this process; between bursts they sleep in a read. Nothing of it outlives the
//! comparison: ranks end when their connection does, and what is left is killed.

use super::rivals::Side;
use crate::failure::{Failure, Result};
use crate::transport::Choice;
use gaspi_core::os::event::Poll;
use gaspi_core::os::{process, socket};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// What ranks measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Barrier,
    /// Of so many doubles, as sum.
    Allreduce(u32),
}

/// One burst, as burst.c reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Burst {
    pub(crate) operation: Operation,
    /// Calls in a batch.
    pub(crate) calls: u32,
    pub(crate) batches: u32,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figures {
    /// Microseconds per call of each batch, of its slowest rank.
    pub(crate) us: Vec<f64>,
    /// Elements that were not the sum.
    pub(crate) wrong: u64,
}

/// As in burst.c.
pub(crate) const BATCHES_MAX: u32 = 64;
const ANSWER_BYTES: usize = 8 + 8 * BATCHES_MAX as usize;
const STOP: u32 = 0;
/// A launcher that takes longer to start its ranks, or a rank with a burst, has failed.
const LIMIT: Duration = Duration::from_secs(120);
/// How long a launcher may take to end after its ranks, before it is killed.
const FAREWELL: Duration = Duration::from_secs(20);
/// Between looks at whether a launcher has ended.
const LOOK_MS: i32 = 100;
/// Lines of a launcher's output that an error shows.
const LINES: usize = 5;

impl Burst {
    fn encode(self) -> [u8; 16] {
        let (what, count) = match self.operation {
            Operation::Barrier => (1, 0),
            Operation::Allreduce(count) => (2, count),
        };
        words([what, count, self.calls, self.batches.min(BATCHES_MAX)])
    }
}

fn words(numbers: [u32; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, number) in bytes.chunks_exact_mut(4).zip(numbers) {
        to.copy_from_slice(&number.to_ne_bytes());
    }
    bytes
}

/// A burst's figures from what each rank answered.
fn combine(burst: Burst, answers: &[[u8; ANSWER_BYTES]]) -> Figures {
    let word = |answer: &[u8; ANSWER_BYTES], index: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&answer[index * 8..][..8]);
        u64::from_ne_bytes(bytes)
    };
    let slowest = |batch: usize| {
        let times = answers.iter().map(|answer| f64::from_bits(word(answer, 1 + batch)));
        times.fold(0.0, f64::max) / f64::from(burst.calls.max(1))
    };
    Figures {
        us: (0..burst.batches.min(BATCHES_MAX) as usize).map(slowest).collect(),
        wrong: answers.iter().map(|answer| word(answer, 0)).sum(),
    }
}

/// A job of one library.
#[derive(Debug)]
pub(crate) struct Job {
    title: &'static str,
    launcher: Child,
    /// In the order in which they came.
    ranks: Vec<UnixStream>,
    processes: Vec<OwnedFd>,
    log: PathBuf,
}

impl Job {
    /// Starts `program` as `ranks` ranks on `cores` in turn, and waits for all of them.
    pub(crate) fn start(
        side: &Side,
        program: &Path,
        ranks: u32,
        cores: &[usize],
        transport: Choice,
    ) -> Result<Job> {
        let title = side.title();
        let failed = |error: std::io::Error| Failure::run(format!("starting {title}: {error}"));
        let name = format!("gaspi-compare-{}-{}", std::process::id(), side.name());
        let listener = socket::listen(&name).map_err(failed)?;
        let log = program.with_extension("log");
        let output = File::create(&log).map_err(failed)?;
        let cores_text: Vec<String> = cores.iter().map(usize::to_string).collect();
        let mut command = side.launch(program, ranks, ranks as usize > cores.len(), transport);
        command.arg(&name).arg(cores_text.join(","));
        command.stdin(Stdio::null()).stdout(output.try_clone().map_err(failed)?).stderr(output);
        // A group of its own, so that what a launcher leaves can be ended with it.
        command.process_group(0);
        let launcher = command.spawn().map_err(|error| {
            let program = command.get_program().to_string_lossy();
            Failure::run(format!("starting {title}: {program}: {error}"))
        })?;
        let mut job = Job { title, launcher, ranks: Vec::new(), processes: Vec::new(), log };
        job.gather(&listener, ranks)?;
        Ok(job)
    }

    fn gather(&mut self, listener: &OwnedFd, ranks: u32) -> Result<()> {
        let poll = Poll::new().map_err(|error| Failure::run(error.to_string()))?;
        poll.add(listener.as_fd(), 0).map_err(|error| Failure::run(error.to_string()))?;
        let begin = Instant::now();
        while self.ranks.len() < ranks as usize {
            poll.wait(&mut Vec::new(), LOOK_MS);
            while let Ok(Some(fd)) = socket::accept(listener.as_fd()) {
                self.admit(fd, ranks)?;
            }
            if let Ok(Some(status)) = self.launcher.try_wait() {
                return Err(self.failed(&format!("its launcher ended with {status}")));
            }
            if begin.elapsed() > LIMIT {
                let came = self.ranks.len();
                return Err(self.failed(&format!("{came} of {ranks} ranks came within {LIMIT:?}")));
            }
        }
        Ok(())
    }

    /// Takes the connection of a rank of this user's.
    fn admit(&mut self, fd: OwnedFd, ranks: u32) -> Result<()> {
        let Ok(who) = socket::credentials(fd.as_fd()) else { return Ok(()) };
        if who.uid != socket::own_uid() {
            return Ok(());
        }
        let mut stream = UnixStream::from(fd);
        let mut hello = [0; 8];
        stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(LIMIT)))
            .and_then(|()| stream.read_exact(&mut hello))
            .map_err(|error| self.failed(&format!("a rank said nothing ({error})")))?;
        let [_, _, _, _, size @ ..] = hello;
        if u32::from_ne_bytes(size) != ranks {
            let found = u32::from_ne_bytes(size);
            return Err(self.failed(&format!("its ranks form a job of {found} instead of {ranks}")));
        }
        self.ranks.push(stream);
        // Ended through it if need be; without one the end of its connection has to do.
        self.processes.extend(process::open(who.pid, 0).ok().flatten());
        Ok(())
    }

    /// Has all ranks measure, and waits for what they say.
    pub(crate) fn burst(&mut self, burst: Burst) -> Result<Figures> {
        let mut answers = vec![[0; ANSWER_BYTES]; self.ranks.len()];
        let told = self.ranks.iter_mut().try_for_each(|rank| rank.write_all(&burst.encode()));
        let heard = told.and_then(|()| {
            let pairs = self.ranks.iter_mut().zip(&mut answers);
            pairs.into_iter().try_for_each(|(rank, answer)| rank.read_exact(answer))
        });
        heard.map_err(|error| self.failed(&format!("a rank did not answer ({error})")))?;
        Ok(combine(burst, &answers))
    }

    /// Ends it in peace.
    pub(crate) fn stop(mut self) -> Result<()> {
        let told = self.ranks.iter_mut().try_for_each(|rank| rank.write_all(&words([STOP; 4])));
        told.map_err(|error| self.failed(&format!("a rank has ended ({error})")))?;
        if !self.await_launcher(FAREWELL) {
            return Err(self.failed(&format!("its launcher did not end within {FAREWELL:?}")));
        }
        match self.launcher.try_wait() {
            Ok(Some(status)) if !status.success() => {
                Err(self.failed(&format!("its launcher ended with {status}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the launcher ends within `limit`.
    fn await_launcher(&mut self, limit: Duration) -> bool {
        let begin = Instant::now();
        let pid = self.launcher.id().cast_signed();
        // Not waited for yet, so the number is still its own.
        let ended = process::open(pid, 0).ok().flatten();
        let poll = Poll::new().ok();
        if let (Some(poll), Some(ended)) = (&poll, &ended) {
            let _ = poll.add(ended.as_fd(), 0);
        }
        loop {
            if !matches!(self.launcher.try_wait(), Ok(None)) {
                return true;
            }
            if begin.elapsed() > limit {
                return false;
            }
            match &poll {
                Some(poll) => poll.wait(&mut Vec::new(), LOOK_MS),
                None => std::thread::yield_now(),
            }
        }
    }

    /// An error of this job with the last that its launcher and ranks said.
    fn failed(&self, what: &str) -> Failure {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(LINES)..].join("\n  ");
        let said = match last.as_str() {
            "" => "it said nothing".to_owned(),
            last => format!("it said:\n  {last}"),
        };
        Failure::run(format!("{}: {what}; {said}", self.title))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if matches!(self.launcher.try_wait(), Ok(Some(_))) {
            return;
        }
        for rank in &self.processes {
            process::signal(rank, libc::SIGKILL);
        }
        self.ranks.clear();
        // Launchers clean up when their ranks have ended; one that does not is ended with all it has.
        if !self.await_launcher(FAREWELL) {
            // SAFETY: the group is that of a child that was not waited for, so it is still ours.
            unsafe { libc::kill(-self.launcher.id().cast_signed(), libc::SIGKILL) };
            let _ = self.launcher.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::environment::Installed;
    use crate::compare::rivals::Rival;

    #[test]
    fn a_burst_takes_as_long_as_its_slowest_rank() {
        let burst = Burst { operation: Operation::Allreduce(3), calls: 10, batches: 2 };
        let answer = |wrong: u64, times: [f64; 2]| {
            let mut bytes = [0; ANSWER_BYTES];
            bytes[..8].copy_from_slice(&wrong.to_ne_bytes());
            bytes[8..16].copy_from_slice(&times[0].to_ne_bytes());
            bytes[16..24].copy_from_slice(&times[1].to_ne_bytes());
            bytes
        };
        let figures = combine(burst, &[answer(1, [10.0, 40.0]), answer(2, [20.0, 30.0])]);
        assert_eq!(figures, Figures { us: vec![2.0, 4.0], wrong: 3 });
    }

    #[test]
    fn commands_are_what_the_program_reads() {
        let burst = Burst { operation: Operation::Allreduce(255), calls: 7, batches: 9999 };
        assert_eq!(burst.encode(), words([2, 255, 7, BATCHES_MAX]));
        let source = super::super::SOURCE;
        for line in [
            "STOP = 0, BARRIER = 1, ALLREDUCE = 2",
            &format!("BATCHES_MAX = {BATCHES_MAX}"),
            "uint32_t what, count, calls, batches;",
        ] {
            assert!(source.contains(line), "{line}");
        }
    }

    #[test]
    fn a_launcher_that_fails_is_told_with_its_words() {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let launcher = bin.join("mpiexec.hydra");
        super::super::script::write(&launcher, "echo it rains >&2\nexit 3");
        let installed =
            Installed { prefix: directory.path().to_path_buf(), version: String::new() };
        let side = Side::Rival(Rival::Mpich, installed);
        let program = directory.path().join("burst");
        let failure = Job::start(&side, &program, 2, &[0], Choice::Shm).unwrap_err();
        assert!(failure.message.contains("exit status: 3"), "{failure}");
        assert!(failure.message.contains("it rains"), "{failure}");
    }
}
