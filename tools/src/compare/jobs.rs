//! A job that is kept alive for the whole comparison and measures in bursts when it is told to.
//!
//! Its ranks connect to this process; between bursts they sleep in a read. Nothing of it outlives
//! the comparison: ranks end when their connection does, and what is left is killed.

use super::operation::Shape;
use super::rivals::Side;
use crate::failure::{Failure, Result};
use crate::fd_passing;
use crate::system;
use crate::transport::Choice;
use gaspi_core::os::event::Epoll;
use gaspi_core::os::{process, socket};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// One burst, as burst.c reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Burst {
    pub(crate) shape: Shape,
    pub(crate) calls: u32,
    /// No call but the first begins later.
    pub(crate) limit: Duration,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figures {
    /// Microseconds of each call that there was time for, until its last rank returned; none if the
    /// library does not have the operation.
    pub(crate) us: Option<Vec<f64>>,
    /// Elements that were not what they had to be.
    pub(crate) wrong: u64,
}

/// As in burst.c.
pub(crate) const CALLS_MAX: u32 = 512;
/// What a rank says when its library has started.
const READY_BYTES: usize = 4;
const COMMAND_BYTES: usize = 32;
const STOP: [u8; COMMAND_BYTES] = [0; COMMAND_BYTES];
/// Words of an answer before its times.
const HEAD: usize = 3;
const ANSWER_BYTES: usize = 8 * HEAD + 8 * CALLS_MAX as usize;
/// Bytes of memory that the ranks of a job meet in.
const MEETING_BYTES: usize = 8192;
/// A launcher that takes longer to start its ranks, or a rank with a burst, has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// How long a launcher may take to end after its ranks, before it is killed.
const FAREWELL: Duration = Duration::from_secs(20);
/// The same for one whose ranks have been killed.
const MOURNING: Duration = Duration::from_secs(5);
/// Between looks at whether a launcher has ended.
const LOOK_MS: i32 = 100;
/// Lines of a launcher's output that an error shows.
const LINES: usize = 5;

impl Burst {
    fn encode(self) -> [u8; COMMAND_BYTES] {
        let shape = self.shape;
        let words = [
            shape.operation.code(),
            u32::from(shape.in_place),
            shape.memory.code(),
            self.calls.min(CALLS_MAX),
        ];
        let mut bytes = [0; COMMAND_BYTES];
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_ne_bytes();
        }
        let limit_ns = u64::try_from(self.limit.as_nanos()).unwrap_or(u64::MAX);
        bytes[16..24].copy_from_slice(&(shape.count as u64).to_ne_bytes());
        bytes[24..].copy_from_slice(&limit_ns.to_ne_bytes());
        bytes
    }
}

/// A burst's figures from what each rank answered.
fn combine(burst: Burst, answers: &[[u8; ANSWER_BYTES]]) -> Figures {
    let word = |answer: &[u8; ANSWER_BYTES], index: usize| {
        u64::from_ne_bytes(answer.as_chunks::<8>().0[index])
    };
    let last = |call: usize| {
        let times = answers.iter().map(|answer| f64::from_bits(word(answer, HEAD + call)));
        times.fold(0.0, f64::max)
    };
    let is_offered = answers.iter().all(|answer| word(answer, 0) == 1);
    let made = answers.iter().map(|answer| word(answer, 2)).min().unwrap_or(0);
    let calls = made.min(burst.calls.into()).min(CALLS_MAX.into()) as usize;
    Figures {
        us: is_offered.then(|| (0..calls).map(last).collect()),
        wrong: answers.iter().map(|answer| word(answer, 1)).sum(),
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
        let meeting = system::memory_file(MEETING_BYTES).map_err(failed)?;
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
        job.gather(&listener, &meeting, ranks)?;
        job.hear::<READY_BYTES>(LIMIT)?;
        Ok(job)
    }

    fn gather(&mut self, listener: &OwnedFd, meeting: &File, ranks: u32) -> Result<()> {
        let poll = Epoll::new().map_err(|error| Failure::run(error.to_string()))?;
        poll.add(listener.as_fd(), 0).map_err(|error| Failure::run(error.to_string()))?;
        let begin = Instant::now();
        while self.ranks.len() < ranks as usize {
            poll.wait(&mut Vec::new(), LOOK_MS);
            while let Ok(Some(fd)) = socket::accept(listener.as_fd()) {
                self.admit(fd, meeting, ranks)?;
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

    /// Takes the connection of a rank of this user's, and hands it the memory where ranks meet.
    fn admit(&mut self, fd: OwnedFd, meeting: &File, ranks: u32) -> Result<()> {
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
        fd_passing::send(stream.as_fd(), meeting)
            .map_err(|error| self.failed(&format!("a rank got no memory ({error})")))?;
        self.ranks.push(stream);
        // Ended through it if need be; without one the end of its connection has to do.
        self.processes.extend(process::open(who.pid, 0).ok().flatten());
        Ok(())
    }

    /// Whose it is, as people call it.
    pub(crate) fn title(&self) -> &'static str {
        self.title
    }

    /// Has all ranks measure, and waits for what they say, at most for `limit`.
    pub(crate) fn burst(&mut self, burst: Burst, limit: Duration) -> Result<Figures> {
        let told = self.ranks.iter_mut().try_for_each(|rank| rank.write_all(&burst.encode()));
        told.map_err(|error| self.lost(&format!("a rank has ended ({error})")))?;
        let answers = self.hear::<ANSWER_BYTES>(limit)?;
        Ok(combine(burst, &answers))
    }

    /// What each rank says, in so many bytes.
    fn hear<const BYTES: usize>(&mut self, limit: Duration) -> Result<Vec<[u8; BYTES]>> {
        let poll = Epoll::new().map_err(|error| Failure::run(error.to_string()))?;
        for (token, rank) in (0..).zip(&self.ranks) {
            poll.add(rank.as_fd(), token).map_err(|error| Failure::run(error.to_string()))?;
        }
        let (mut answers, mut missing) = (vec![[0; BYTES]; self.ranks.len()], self.ranks.len());
        let begin = Instant::now();
        while missing > 0 {
            let mut events = Vec::new();
            poll.wait(&mut events, LOOK_MS);
            for event in events {
                let at = event.token as usize;
                let heard = self.ranks[at].read_exact(&mut answers[at]);
                heard.map_err(|error| self.lost(&format!("a rank has ended ({error})")))?;
                // Whatever it says from now on is for later.
                poll.remove(self.ranks[at].as_fd());
                missing -= 1;
            }
            if missing > 0 && begin.elapsed() > limit {
                let all = self.ranks.len();
                let what = format!("{missing} of {all} ranks did not answer within {limit:?}");
                return Err(self.lost(&what));
            }
        }
        Ok(answers)
    }

    /// Ends it in peace.
    pub(crate) fn stop(mut self) -> Result<()> {
        let told = self.ranks.iter_mut().try_for_each(|rank| rank.write_all(&STOP));
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
        let poll = Epoll::new().ok();
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

    /// Kills its ranks, and its launcher with what that has left, if it does not end then.
    fn end(&mut self) {
        // Also without a launcher: ranks that spin in a library do not see their connections end.
        for rank in &self.processes {
            process::signal(rank, libc::SIGKILL);
        }
        self.ranks.clear();
        if matches!(self.launcher.try_wait(), Ok(Some(_))) {
            return;
        }
        if !self.await_launcher(MOURNING) {
            // SAFETY: the group is that of a child that was not waited for, so it is still ours.
            unsafe { libc::kill(-self.launcher.id().cast_signed(), libc::SIGKILL) };
            let _ = self.launcher.wait();
        }
    }

    /// Ends it for a reason, which is told when the launcher has passed on what ranks said.
    fn lost(&mut self, what: &str) -> Failure {
        self.end();
        self.failed(what)
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
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::environment::Installed;
    use crate::compare::operation::{Memory, Operation};
    use crate::compare::program;
    use crate::compare::rivals::Rival;
    use clap::ValueEnum;

    fn burst(calls: u32) -> Burst {
        let shape = Shape::new(Operation::Allgather, 1 << 33, 2, Memory::Segment, true);
        Burst { shape, calls, limit: Duration::from_secs(1) }
    }

    fn answer(words: [u64; HEAD], times: [f64; 2]) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        let words = words.into_iter().chain(times.map(f64::to_bits));
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_ne_bytes();
        }
        bytes
    }

    #[test]
    fn a_call_takes_until_its_last_rank_returns() {
        let answers = [answer([1, 1, 2], [10.0, 40.0]), answer([1, 2, 2], [20.0, 30.0])];
        let figures = combine(burst(2), &answers);
        assert_eq!(figures, Figures { us: Some(vec![20.0, 40.0]), wrong: 3 });
        let not_offered = combine(burst(2), &[answer([0; HEAD], [0.0; 2]); 2]);
        assert_eq!(not_offered.us, None);
        let late = combine(burst(2), &[answer([1, 0, 1], [10.0, 0.0]); 2]);
        assert_eq!(late.us, Some(vec![10.0]), "there was time for one of two calls");
    }

    #[test]
    fn commands_are_what_the_program_reads() {
        let bytes = burst(9999).encode();
        let words: Vec<u32> =
            bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        // 2^31 elements: more than a word holds with a sign.
        assert_eq!(words, [6, 1, 1, CALLS_MAX, 1 << 31, 0, 1_000_000_000, 0]);
        for line in [
            &format!("CALLS_MAX = {CALLS_MAX}"),
            "uint32_t what, in_place, memory, calls;\n  uint64_t count, limit_ns;",
            "uint64_t offered, wrong, calls;\n  double us[CALLS_MAX];",
        ] {
            assert!(program::BURST.contains(line), "{line}");
        }
        assert!(program::LIBRARY.contains("PRIVATE = 0, SEGMENT = 1"));
        for operation in Operation::value_variants() {
            let name = operation.name().to_uppercase().replace('-', "_");
            let line = format!("  {name} = {}", operation.code());
            assert!(program::LIBRARY.lines().any(|other| other.trim_end_matches(',') == line));
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
