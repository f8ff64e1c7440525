//! The job while it runs: one loop over signals, the meeting, the ranks' output and the timers.

use crate::files::{self, Files};
use crate::output::{Lines, Sink, Writer};
use crate::plan::Plan;
use crate::process::{self, Process, Setting, Started};
use crate::report::{self, End};
use crate::topology::as_list;
use crate::{EXIT_TIMEOUT, Refusal, hang};
use gaspi_core::Rank;
use gaspi_core::bootstrap::{Host, Request};
use gaspi_tools::signals::{Arrival, Signals};
use gaspi_tools::system::{self, Watch};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// What is passed on to the ranks.
const FORWARDED: [i32; 7] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR2,
    libc::SIGCONT,
    libc::SIGWINCH,
];
/// Asks for the hang table.
const SHOW: i32 = libc::SIGUSR1;
/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// How long the processes that ranks left behind may take to die of SIGKILL.
const ORPHANS: Duration = Duration::from_secs(2);
/// Bytes read from a rank at a time.
const READ: usize = 64 * 1024;
/// After how much silence an unfinished line of rank 0 on a terminal is taken for a prompt.
const PROMPT: Duration = Duration::from_millis(100);

/// A rank's standard output or error.
#[derive(Debug)]
struct Stream {
    pipe: File,
    lines: Lines,
    sink: usize,
    /// Rank 0 on a terminal: it may prompt for input.
    asks: bool,
}

/// A job whose ranks have been started.
#[derive(Debug)]
pub(crate) struct Running {
    plan: Plan,
    signals: Signals,
    host: Host,
    /// By rank; `None` once it has ended.
    processes: Vec<Option<Process>>,
    streams: Vec<Stream>,
    /// Standard output and error; one if both are the same.
    sinks: Vec<Sink>,
    /// In the order in which they ended.
    ends: Vec<End>,
    interrupts: u32,
    /// The job is being ended: what ranks leave behind is ended too.
    ending: bool,
    /// It is gaspi_run that ends it.
    ordered: bool,
    /// When the job has taken too long.
    timeout_at: Option<Instant>,
    timed_out: bool,
    /// When SIGKILL follows.
    kill_at: Option<Instant>,
    /// When an unfinished line of rank 0 is shown, as somebody may be asked to answer it.
    prompt_at: Option<Instant>,
    buffer: Vec<u8>,
}

impl Running {
    /// Starts all ranks. If one cannot be started, those before it are killed.
    pub(crate) fn start(plan: Plan) -> Result<Running, Refusal> {
        let taken = FORWARDED.into_iter().chain([libc::SIGCHLD, SHOW]);
        let signals = Signals::take(taken)
            .map_err(|error| Refusal::launcher(format!("taking signals: {error}")))?;
        let ranks = plan.commands.len();
        let descriptors = system::descriptor_limit();
        system::set_descriptor_limit(libc::rlimit {
            rlim_cur: descriptors.rlim_max,
            rlim_max: descriptors.rlim_max,
        });
        let files: Vec<Files> = match &plan.output_directory {
            Some(directory) => files::create(directory, ranks)?,
            None => Vec::new(),
        };
        process::adopt_orphans();
        let job = new_id()?;
        let size = u32::try_from(ranks).unwrap_or(u32::MAX);
        let host = Host::bind(&job, size).map_err(|error| Refusal::launcher(error.to_string()))?;
        let meeting = host.name().to_owned();
        let setting = Setting { job, meeting, signal_mask: signals.before, descriptors };
        let mut running = Running {
            plan,
            signals,
            host,
            processes: Vec::with_capacity(ranks),
            streams: Vec::with_capacity(2 * ranks),
            sinks: sinks().map_err(|error| Refusal::launcher(format!("output: {error}")))?,
            ends: Vec::with_capacity(ranks),
            interrupts: 0,
            ending: false,
            ordered: false,
            timeout_at: None,
            timed_out: false,
            kill_at: None,
            prompt_at: None,
            buffer: vec![0; READ],
        };
        let limit = running.plan.timeout;
        running.timeout_at = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut files = files.into_iter();
        for rank in 0..ranks {
            match process::start(&running.plan, &setting, rank, files.next()) {
                Ok(started) => running.add(rank, started),
                Err(refusal) => {
                    running.abandon();
                    return Err(refusal);
                }
            }
        }
        Ok(running)
    }

    fn add(&mut self, rank: usize, started: Started) {
        if self.plan.label {
            let (pid, where_to) = (started.process.pid, self.plan.shares[rank].words());
            self.say(&format!("gaspi_run: rank {rank} (pid {pid}) {where_to}\n"));
        }
        self.processes.push(Some(started.process));
        let width = (self.plan.commands.len() - 1).to_string().len();
        let label = if self.plan.label { format!("[{rank:>width$}] ") } else { String::new() };
        let pipes = [(started.stdout, 0), (started.stderr, self.sinks.len() - 1)];
        for (number, (pipe, sink)) in pipes.into_iter().enumerate() {
            if let Some(pipe) = pipe {
                // A number of its own, though streams come and go.
                let lines = Lines::new(2 * rank + number, label.clone());
                let asks = rank == 0 && self.sinks[sink].is_terminal();
                self.streams.push(Stream { pipe, lines, sink, asks });
            }
        }
    }

    /// Ends what was started when the rest cannot be.
    fn abandon(&mut self) {
        self.ending = true;
        self.signal_all(libc::SIGKILL);
        self.streams.clear();
        while self.is_running() {
            system::wait(&[Watch { fd: self.signals.as_fd(), room: false }], None);
            self.take_signals();
        }
        self.end_orphans();
    }

    /// Looks after the job until its end and returns the status to exit with.
    pub(crate) fn finish(mut self) -> Result<u8, Refusal> {
        while self.is_running() {
            self.turn();
        }
        self.drain();
        if self.ending {
            self.end_orphans();
        }
        let summary = report::summary(&self.ends, &self.plan.host);
        self.say(&summary);
        self.write_out();
        Ok(if self.timed_out { EXIT_TIMEOUT } else { report::status(&self.ends) })
    }

    fn is_running(&self) -> bool {
        self.processes.iter().any(Option::is_some)
    }

    /// Waits for something to do and does it.
    fn turn(&mut self) {
        let taking = self.sinks.iter().all(Sink::has_room);
        let watch = |fd, room| Watch { fd, room };
        let mut watches = vec![watch(self.signals.as_fd(), false), watch(self.host.as_fd(), false)];
        let pending = self.sinks.iter().filter(|sink| sink.pending());
        watches.extend(pending.map(|sink| watch(sink.as_fd(), true)));
        let first = watches.len();
        if taking {
            watches.extend(self.streams.iter().map(|stream| watch(stream.pipe.as_fd(), false)));
        }
        let next = [self.kill_at, self.prompt_at, self.timeout_at].into_iter().flatten().min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        let ready = system::wait(&watches, left);
        let streams = ready[first..].to_vec();
        // What ranks wrote before they ended comes before what is said about their end.
        self.read(&streams);
        self.take_signals();
        self.serve();
        if self.timeout_at.is_some_and(|at| Instant::now() >= at) {
            self.time_out();
        }
        self.sinks.iter_mut().for_each(Sink::flush);
        if self.kill_at.is_some_and(|at| Instant::now() >= at) {
            self.kill_at = None;
            self.signal_all(libc::SIGKILL);
        }
    }

    /// Reads once from the streams that have something.
    fn read(&mut self, ready: &[bool]) {
        let mut index = 0;
        let (sinks, buffer) = (&mut self.sinks, &mut self.buffer);
        let mut prompt = None;
        self.streams.retain_mut(|stream| {
            let is_ready = ready.get(index).copied().unwrap_or(false);
            index += 1;
            let stays = !is_ready || read_some(stream, sinks, buffer) != Some(0);
            if stream.asks && stream.lines.unfinished() {
                prompt = Some(is_ready);
            }
            stays
        });
        match prompt {
            None => self.prompt_at = None,
            Some(true) => self.prompt_at = Some(Instant::now() + PROMPT),
            Some(false) if self.prompt_at.is_some_and(|at| Instant::now() >= at) => {
                self.prompt_at = None;
                for stream in self.streams.iter_mut().filter(|stream| stream.asks) {
                    stream.lines.finish(&mut self.sinks[stream.sink]);
                }
            }
            Some(false) => {}
        }
    }

    fn serve(&mut self) {
        for request in self.host.serve() {
            match request {
                Request::Kill { process: Some(pidfd), .. } => {
                    process::signal(&pidfd, libc::SIGKILL);
                }
                Request::Kill { rank, process: None } => {
                    if let Some(Some(process)) = self.processes.get(rank.index()) {
                        process.signal(libc::SIGKILL);
                    }
                }
                _ => {}
            }
        }
    }

    fn take_signals(&mut self) {
        while let Some(arrival) = self.signals.read() {
            match arrival.signal {
                libc::SIGCHLD => self.reap(),
                SHOW => self.show_calls(),
                _ => self.forward(arrival),
            }
        }
    }

    fn forward(&mut self, arrival: Arrival) {
        if self.plan.debug && arrival.from_terminal {
            // Meant for the debugger.
            return;
        }
        let ends = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
        self.ending |= ends.contains(&arrival.signal);
        self.interrupts += u32::from(arrival.signal == libc::SIGINT);
        if arrival.signal == libc::SIGINT && self.interrupts == 2 {
            self.say("gaspi_run: second interrupt: killing all ranks\n");
        }
        if self.interrupts >= 2 {
            self.signal_all(libc::SIGKILL);
        } else if !arrival.from_terminal {
            self.signal_all(arrival.signal);
            if ends.contains(&arrival.signal) {
                // A stopped rank would not see it.
                self.signal_all(libc::SIGCONT);
            }
        }
    }

    fn signal_all(&self, signal: i32) {
        self.processes.iter().flatten().for_each(|process| process.signal(signal));
    }

    /// Takes note of everybody who has ended.
    fn reap(&mut self) {
        while let Some((pid, ending)) = process::reap() {
            let is_it = |process: &Option<Process>| matches!(process, Some(p) if p.pid == pid);
            // Not a rank: something that a rank left behind.
            let Some(rank) = self.processes.iter().position(is_it) else { continue };
            self.processes[rank] = None;
            // What it said in the meeting comes before its end.
            self.serve();
            self.host.gone(Rank(rank as u16), &report::phrase(ending));
            self.ends.push(End { rank, pid, ending, ordered: self.ordered });
            if ending.failed() && self.plan.kill_on_failure && !self.ending && self.is_running() {
                self.end_job(&format!("rank {rank} failed: ending the job (--kill-on-failure)"));
            }
        }
    }

    /// The time that the job was given is over.
    fn time_out(&mut self) {
        self.timeout_at = None;
        // What ends the job already has its own limit.
        if self.ordered || !self.is_running() {
            return;
        }
        self.timed_out = true;
        self.show_calls();
        let running = |(rank, process): (usize, &Option<Process>)| process.as_ref().map(|_| rank);
        let ranks: Vec<usize> = self.processes.iter().enumerate().filter_map(running).collect();
        let verb = if ranks.len() == 1 { "rank" } else { "ranks" };
        let limit = hang::duration(self.plan.timeout.unwrap_or_default());
        let ranks = as_list(&ranks);
        self.end_job(&format!(
            "{verb} {ranks} still running after {limit} (--timeout): ending the job"
        ));
    }

    /// The hang table.
    fn show_calls(&mut self) {
        let pid = |process: &Option<Process>| process.as_ref().map(|process| process.pid);
        let processes: Vec<Option<i32>> = self.processes.iter().map(pid).collect();
        let table = hang::table(&self.host, &processes, &self.ends);
        self.say(&table);
    }

    fn end_job(&mut self, why: &str) {
        self.ending = true;
        self.ordered = true;
        self.kill_at = Some(Instant::now() + GRACE);
        self.say(&format!("gaspi_run: {why}\n"));
        self.signal_all(libc::SIGTERM);
        // A stopped rank would not see it.
        self.signal_all(libc::SIGCONT);
    }

    /// Passes on what the ranks wrote before they ended. A process that they left behind may keep a
    /// pipe open and go on writing: what does not fit into a pipe now came later.
    fn drain(&mut self) {
        for mut stream in std::mem::take(&mut self.streams) {
            let mut left = system::pipe_size(stream.pipe.as_fd());
            while left > 0 && system::ready(stream.pipe.as_fd(), false) {
                match read_some(&mut stream, &mut self.sinks, &mut self.buffer) {
                    None | Some(0) => break,
                    Some(count) => left = left.saturating_sub(count),
                }
            }
            stream.lines.finish(&mut self.sinks[stream.sink]);
        }
    }

    /// Kills what the ranks of an ended job left behind, children of orphans too.
    fn end_orphans(&mut self) {
        let deadline = Instant::now() + ORPHANS;
        while process::kill_orphans(|_| false) && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            system::wait(&[Watch { fd: self.signals.as_fd(), room: false }], Some(left));
            self.take_signals();
        }
    }

    /// Waits for the readers of our output; any signal that ends programs gives up on them, and so
    /// does the end of the time that the job was given.
    fn write_out(&mut self) {
        if self.timed_out {
            self.timeout_at = Some(Instant::now() + GRACE);
        }
        loop {
            self.sinks.iter_mut().for_each(Sink::flush);
            let pending = self.sinks.iter().filter(|sink| sink.pending());
            let room = pending.map(|sink| Watch { fd: sink.as_fd(), room: true });
            let signals = Watch { fd: self.signals.as_fd(), room: false };
            let watches: Vec<Watch<'_>> = std::iter::once(signals).chain(room).collect();
            if watches.len() == 1 {
                return;
            }
            let left = self.timeout_at.map(|at| at.saturating_duration_since(Instant::now()));
            system::wait(&watches, left);
            if left.is_some_and(|left| left.is_zero()) {
                self.timed_out = true;
                return;
            }
            while let Some(arrival) = self.signals.read() {
                let ignored = [libc::SIGCHLD, libc::SIGCONT, SHOW, libc::SIGWINCH];
                if !ignored.contains(&arrival.signal) {
                    return;
                }
            }
        }
    }

    /// Says something on standard error, on lines of its own.
    fn say(&mut self, text: &str) {
        if let Some(sink) = self.sinks.last_mut() {
            sink.put(Writer::Launcher, "", text.as_bytes());
        }
    }
}

/// Reads what a stream has, at most one buffer; `Some(0)` is its end.
fn read_some(stream: &mut Stream, sinks: &mut [Sink], buffer: &mut [u8]) -> Option<usize> {
    let sink = &mut sinks[stream.sink];
    match stream.pipe.read(buffer) {
        Ok(0) => {
            stream.lines.finish(sink);
            Some(0)
        }
        Ok(count) => {
            stream.lines.push(&buffer[..count], sink);
            Some(count)
        }
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => None,
        Err(_) => Some(0),
    }
}

/// Standard output and error, as one if they are the same.
fn sinks() -> std::io::Result<Vec<Sink>> {
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    let (output, error): (BorrowedFd<'_>, BorrowedFd<'_>) = (stdout.as_fd(), stderr.as_fd());
    let output = Sink::new(output)?;
    Ok(if output.same(error) { vec![output] } else { vec![output, Sink::new(error)?] })
}

/// A name for the job that no other has.
fn new_id() -> Result<String, Refusal> {
    let mut random = [0; 8];
    let mut source = File::open("/dev/urandom")
        .map_err(|error| Refusal::launcher(format!("/dev/urandom: {error}")))?;
    source
        .read_exact(&mut random)
        .map_err(|error| Refusal::launcher(format!("/dev/urandom: {error}")))?;
    Ok(format!("{:016x}", u64::from_le_bytes(random)))
}
