//! One job under a watchdog.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gaspi_mock_card::MockCard;
use tempfile::TempDir;

use crate::Result;
use crate::built::gaspi_run;
use crate::hosts::{Host, Place};
use crate::processes::{self, MARK, Pid, Process};
use crate::seed::base_seed;
use crate::shapes::NODES;

/// Why a test failed.
#[derive(Clone, PartialEq, Eq)]
pub struct Failed(pub String);

impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Failed {
        Failed(error.to_string())
    }
}

/// A job that is not started yet.
#[derive(Debug)]
pub struct Job {
    command: Command,
    mark: String,
    limit: Duration,
    input: Vec<u8>,
    name: String,
    place: Option<Place>,
    devices: Option<TempDir>,
}

/// Distinguishes the jobs of one test process.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Job {
    /// `program` on `ranks` ranks under gaspi_run.
    ///
    /// # Errors
    /// When gaspi_run is not built.
    pub fn launched(ranks: u32, program: &Path) -> Result<Job> {
        let mut job = Job::plain(&gaspi_run()?);
        job.command.arg("-n").arg(ranks.to_string()).arg(program);
        job.name = format!("{} on {ranks} ranks", program.display());
        Ok(job)
    }

    /// gaspi_run itself with nothing but the arguments that follow.
    ///
    /// # Errors
    /// When gaspi_run is not built.
    pub fn launcher() -> Result<Job> {
        Ok(Job::plain(&gaspi_run()?))
    }

    /// A program without any launcher.
    pub fn plain(program: &Path) -> Job {
        // Relaxed: only uniqueness counts.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{number}-{}", std::process::id(), processes::monotonic_us());
        let mut command = Command::new(program);
        command.env(MARK, &mark);
        // cargo test names its own directory, and with it a library that is not the one under test.
        let foreign = "LD_LIBRARY_PATH";
        // What the test program was told is not for its jobs.
        command.env_remove(NODES);
        for name in ["GASPI_RANK", "GASPI_NRANKS", "GASPI_SOCKET", "GASPI_MFILE", foreign] {
            command.env_remove(name);
        }
        let name = program.display().to_string();
        let limit = Duration::from_secs(60);
        Job { command, mark, limit, input: Vec::new(), name, place: None, devices: None }
    }

    /// Starts the job on a host.
    pub fn on(mut self, host: &Host) -> Job {
        self.name = format!("{} on {}", self.name, host.name());
        self.place = Some(host.place());
        self
    }

    /// Data between ranks goes by RDMA devices that tests/mock-card plays, one for each process, as
    /// unkind as the standard allows, by GASPI_TEST_SEED. A rank without one does not start.
    ///
    /// # Errors
    /// When the mock card is not built.
    pub fn over_devices(self) -> Result<Job> {
        // The names of sockets are short.
        let folder = tempfile::Builder::new().prefix("gaspi-mock-").tempdir()?;
        let job = self.over_devices_in(folder.path())?;
        Ok(Job { devices: Some(folder), ..job })
    }

    /// The same for one of several processes that make up a job, whose devices meet in a folder.
    ///
    /// # Errors
    /// As for [`over_devices`](Job::over_devices).
    pub fn over_devices_in(mut self, folder: &Path) -> Result<Job> {
        let (mock, seed) = (MockCard::load().map_err(Failed)?, base_seed());
        self.name = format!("{} over mocked devices, seed {seed}", self.name);
        self.command.env("GASPI_TRANSPORT", "verbs").env("GASPI_IBVERBS_LIB", mock.path());
        self.command.env("GASPI_MOCK_DIR", folder);
        // A process that does not run for a moment is not taken for one that does not answer.
        self.command.env("GASPI_MOCK_OPTIONS", "time_scale=1,placement=1,shuffle=1");
        self.command.env("GASPI_MOCK_SEED", seed.to_string());
        Ok(self)
    }

    /// Another course of its devices, if it has such.
    pub fn device_seed(mut self, seed: u64) -> Job {
        if self.devices.is_some() {
            self.name = format!("{}, then {seed}", self.name);
            self.command.env("GASPI_MOCK_SEED", seed.to_string());
        }
        self
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Job {
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Job {
        self.command.args(arguments);
        self
    }

    /// Sets a variable of the environment.
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Job {
        self.command.env(name, value.into());
        self
    }

    /// Sets the working directory.
    pub fn directory(mut self, directory: &Path) -> Job {
        self.command.current_dir(directory);
        self
    }

    /// What the job reads from stdin; nothing otherwise.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Job {
        self.input = input.into();
        self
    }

    /// After this the job hangs: a generous guard, not a measurement.
    pub fn limit(mut self, limit: Duration) -> Job {
        self.limit = limit;
        self
    }

    /// Starts the job and its watchdog.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(mut self) -> Result<Running> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = match &self.place {
            Some(place) => place.spawn(&mut self.command),
            None => self.command.spawn(),
        }
        .map_err(|error| Failed(format!("cannot start {}: {error}", self.name)))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program may end without reading; then the pipe is closed, which is fine.
            let _ = stdin.write_all(&self.input);
        }
        let output = Arc::new(Output::default());
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            readers.push(output.read(stdout, |text| &mut text.stdout));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(output.read(stderr, |text| &mut text.stderr));
        }
        let Job { mark, limit, name, devices, .. } = self;
        let end = started + limit;
        let _devices = devices;
        Ok(Running { child, mark, end, started, limit, output, readers, name, _devices })
    }

    /// Starts the job and waits for its end.
    ///
    /// # Errors
    /// When it cannot be started or hangs.
    pub fn run(self) -> Result<Outcome> {
        self.start()?.wait()
    }
}

/// What a job wrote so far.
#[derive(Debug, Default)]
struct Output {
    text: Mutex<Text>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Text {
    stdout: String,
    stderr: String,
    /// Streams that have ended.
    ended: u32,
}

impl Output {
    fn read(
        self: &Arc<Output>,
        stream: impl Read + Send + 'static,
        stream_of: fn(&mut Text) -> &mut String,
    ) -> JoinHandle<()> {
        let output = Arc::clone(self);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                stream_of(&mut output.lock()).push_str(&String::from_utf8_lossy(&line));
                output.changed.notify_all();
                line.clear();
            }
            output.lock().ended += 1;
            output.changed.notify_all();
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Text> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `wanted` finds what it looks for, both streams ended, or `end` is reached.
    fn until<T>(&self, end: Instant, wanted: impl Fn(&Text) -> Option<T>) -> Option<T> {
        let mut text = self.lock();
        loop {
            if let Some(found) = wanted(&text) {
                return Some(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            if text.ended == 2 || left.is_zero() {
                return None;
            }
            text = self
                .changed
                .wait_timeout(text, left)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(text, _)| text);
        }
    }
}

/// A job under way. Dropping it kills whatever is left of it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    mark: String,
    started: Instant,
    end: Instant,
    limit: Duration,
    output: Arc<Output>,
    readers: Vec<JoinHandle<()>>,
    name: String,
    /// Where its devices meet.
    _devices: Option<TempDir>,
}

impl Running {
    /// Number of the process that was started: gaspi_run, or the program itself.
    pub fn pid(&self) -> Pid {
        Pid::try_from(self.child.id()).expect("process numbers fit")
    }

    /// The process of a rank, as soon as it exists.
    ///
    /// # Errors
    /// When it does not come into being before the job or its time is over.
    pub fn rank(&self, rank: u16) -> Result<Process> {
        let entries = [format!("{MARK}={}", self.mark), format!("GASPI_RANK={rank}")];
        while self.output.lock().ended < 2 && Instant::now() < self.end {
            // The job was started with a clean environment, so only ranks have this variable; of
            // several processes (a shell and what it runs) the first is the one that was started.
            let first = processes::with_environment(&entries).first().copied();
            if let Some(process) = first.and_then(|pid| Process::open(pid).ok()) {
                return Ok(process);
            }
            std::thread::yield_now();
        }
        Err(self.expired(&format!("rank {rank} did not start, or has ended")))
    }

    /// All processes of the job, the launcher included.
    pub fn processes(&self) -> Vec<Process> {
        let pids = processes::with_environment(&[format!("{MARK}={}", self.mark)]);
        pids.into_iter().filter_map(|pid| Process::open(pid).ok()).collect()
    }

    /// Waits until `count` lines of stdout contain `text`, and returns those lines.
    ///
    /// # Errors
    /// When the job ends or its time is over before.
    pub fn lines(&self, text: &str, count: usize) -> Result<Vec<String>> {
        let found = self.output.until(self.end, |output| {
            let lines: Vec<String> = output
                .stdout
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n') && line.contains(text))
                .map(|line| line.trim_end().to_owned())
                .collect();
            (lines.len() >= count).then_some(lines)
        });
        found.ok_or_else(|| self.expired(&format!("{count} lines with {text:?} did not come")))
    }

    /// Waits until stderr contains `text`.
    ///
    /// # Errors
    /// When the job ends or its time is over before.
    pub fn complains(&self, text: &str) -> Result<()> {
        let found =
            self.output.until(self.end, |output| output.stderr.contains(text).then_some(()));
        found.ok_or_else(|| self.expired(&format!("{text:?} was not said")))
    }

    /// Kills every process of the job, the launcher included, with SIGKILL.
    pub fn kill_all(&self) {
        processes::kill_marked(&self.mark);
    }

    /// Waits for the end of the job.
    ///
    /// # Errors
    /// When it hangs: with the stacks of all its processes.
    pub fn wait(mut self) -> Result<Outcome> {
        if self.output.until(self.end, |text| (text.ended == 2).then_some(())).is_none() {
            return Err(self.expired("it hangs"));
        }
        // Both streams are closed, so the end is near; a process that closes them and stays hangs.
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() >= self.end {
                return Err(self.expired("it closed its output and hangs"));
            }
            std::thread::yield_now();
        };
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        let left = processes::with_environment(&[format!("{MARK}={}", self.mark)]);
        let text = self.output.lock();
        Ok(Outcome {
            status,
            stdout: text.stdout.clone(),
            stderr: text.stderr.clone(),
            elapsed: self.started.elapsed(),
            left,
            name: self.name.clone(),
        })
    }

    /// The failure of a job that did not come to its end, with stacks and output.
    fn expired(&self, what: &str) -> Failed {
        let pids = processes::with_environment(&[format!("{MARK}={}", self.mark)]);
        let stacks = processes::stacks(&pids);
        let text = self.output.lock();
        Failed(format!(
            "{}: {what} ({:.1} s of {:.0} s)\n{stacks}--- stdout\n{}--- stderr\n{}",
            self.name,
            self.started.elapsed().as_secs_f64(),
            self.limit.as_secs_f64(),
            text.stdout,
            text.stderr,
        ))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        processes::kill_marked(&self.mark);
        let _ = self.child.wait();
    }
}

/// How a job ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Status of what was started.
    pub status: ExitStatus,
    /// Everything on stdout.
    pub stdout: String,
    /// Everything on stderr.
    pub stderr: String,
    /// From start to end.
    pub elapsed: Duration,
    /// Processes of the job that outlived what was started.
    pub left: Vec<Pid>,
    name: String,
}

impl Outcome {
    /// Demands status 0 and that no process is left.
    ///
    /// # Errors
    /// With status and output otherwise.
    pub fn success(self) -> Result<Outcome> {
        if self.status.success() && self.left.is_empty() {
            return Ok(self);
        }
        Err(self.failure("it was to succeed"))
    }

    /// Demands exit status `code` and that no process is left.
    ///
    /// # Errors
    /// With status and output otherwise.
    pub fn code(self, code: i32) -> Result<Outcome> {
        if self.status.code() == Some(code) && self.left.is_empty() {
            return Ok(self);
        }
        Err(self.failure(&format!("it was to end with status {code}")))
    }

    /// Demands that a stream (stdout and stderr together) contains `text`.
    ///
    /// # Errors
    /// With status and output otherwise.
    pub fn says(self, text: &str) -> Result<Outcome> {
        if self.stdout.contains(text) || self.stderr.contains(text) {
            return Ok(self);
        }
        Err(self.failure(&format!("it was to say {text:?}")))
    }

    /// A failure that shows how the job ended.
    pub fn failure(&self, what: &str) -> Failed {
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("status {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or_default()),
        };
        let left = if self.left.is_empty() {
            String::new()
        } else {
            format!(", and left the processes {:?}", self.left)
        };
        Failed(format!(
            "{}: {what}; it ended with {how} after {:.2} s{left}\n--- stdout\n{}--- stderr\n{}",
            self.name,
            self.elapsed.as_secs_f64(),
            self.stdout,
            self.stderr
        ))
    }
}
