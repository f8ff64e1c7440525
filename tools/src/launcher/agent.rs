//! The agent: gaspi_run on another machine of the job. It is started through ssh and does for the
//! ranks of its machine what gaspi_run does for its own, as told by frames on standard input and
//! telling by frames on standard output; or both by a connection that it makes itself.
//!
//! Invariant: the agent and all that it started end when gaspi_run closes the connection, and when
//! the machine of gaspi_run is not there any more.

use crate::assignment::Assignment;
use crate::callback;
use crate::channel::Channel;
use crate::input;
use crate::local_ranks::{self, LocalRanks, Piece};
use crate::process::{self, ENDING, Ending, Setting};
use crate::protocol::{self, Down, Errand, Up};
use crate::refusal::Refusal;
use crate::ssh_liveness::SshLiveness;
use crate::starter::Starter;
use crate::{environment, identity, limits};
use gaspi_core::Rank;
use gaspi_core::bootstrap::{Encrypted, Invitation, Server};
use gaspi_tools::remote_agent::Tool;
use gaspi_tools::remote_shell::RemoteShell;
use gaspi_tools::signals::Signals;
use gaspi_tools::system::{self, Watch};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Makes this program an agent.
pub(crate) const AGENT: &str = "--agent";
/// Behind it: the agent is to call gaspi_run back.
pub(crate) const CALL_BACK: &str = "--call-back";
/// The same, but one that cannot do so speaks by its pipes.
pub(crate) const MAY_CALL_BACK: &str = "--may-call-back";

/// Bytes of output that may be on the way.
const WINDOW: usize = 1 << 20;
/// How often the connection is used and looked at, whatever else happens.
const ALIVE: Duration = Duration::from_secs(1);
/// The agent was left alone or told to end.
const EXIT_ALONE: u8 = 1;

/// Why the agent goes.
#[derive(Debug)]
enum Leave {
    /// All is done; `orphans` are to be ended too.
    Done { orphans: bool },
    /// gaspi_run has closed the connection, its machine has gone, or a signal came.
    Alone,
}

/// The job on this machine.
#[derive(Debug)]
struct Job {
    local_ranks: LocalRanks,
    host: Server,
    setting: Setting,
    /// The ranks were started.
    begun: bool,
    /// They have ended, and gaspi_run was told.
    done: bool,
}

#[derive(Debug)]
struct Agent {
    signals: Signals,
    descriptors: libc::rlimit,
    channel: Channel,
    liveness: Liveness,
    job: Option<Job>,
    /// For rank 0, not yet taken by it.
    input: Vec<u8>,
    input_ended: bool,
    /// Bytes of output that may still be sent.
    window: usize,
    alive_at: Instant,
    /// gaspi_run needs this agent no more.
    part: Option<bool>,
    /// There is no sense in going on.
    lost: bool,
    /// Of an agent that has called back, which may have others start and call.
    invitation: Option<Invitation>,
    /// What starts those.
    starters: Vec<Starter>,
}

/// What connects the agent with gaspi_run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// Standard input and output.
    Pipes,
    /// A connection that it makes, as an invitation on standard input says.
    Callback,
    /// That one if it can be made, else standard input and output behind the invitation.
    Either,
}

/// Whether the machine of gaspi_run answers.
#[derive(Debug)]
enum Liveness {
    Ssh(SshLiveness),
    Callback(callback::Liveness),
}

impl Liveness {
    fn set_patience(&mut self, patience: Duration) {
        match self {
            Liveness::Ssh(ssh) => ssh.set_patience(patience),
            Liveness::Callback(callback) => callback.set_patience(patience),
        }
    }

    fn is_cut(&mut self) -> bool {
        match self {
            Liveness::Ssh(ssh) => ssh.is_cut(),
            Liveness::Callback(callback) => callback.is_cut(),
        }
    }
}

/// The agent's end of what connects it with gaspi_run.
#[derive(Debug)]
struct Connected {
    channel: Channel,
    liveness: Liveness,
    /// Of one that has called back.
    invitation: Option<Invitation>,
    /// Why it could not, if it was to.
    no_way_back: Option<String>,
}

fn failed(error: std::io::Error) -> Refusal {
    Refusal::launcher(format!("agent: {error}"))
}

impl Connected {
    fn by(line: Line) -> Result<Connected, Refusal> {
        match line {
            Line::Pipes => Connected::by_pipes(None),
            Line::Callback => Connected::by_callback(callback::call()?),
            Line::Either => match callback::try_call()? {
                Ok(called) => Connected::by_callback(called),
                Err(reason) => Connected::by_pipes(Some(reason)),
            },
        }
    }

    fn by_pipes(no_way_back: Option<String>) -> Result<Connected, Refusal> {
        let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
        let pair = copy(std::io::stdin().as_fd())
            .and_then(|from| Ok((from, copy(std::io::stdout().as_fd())?)));
        let channel = pair.and_then(|(from, to)| Channel::new(from, to)).map_err(failed)?;
        let liveness = Liveness::Ssh(SshLiveness::find());
        Ok(Connected { channel, liveness, invitation: None, no_way_back })
    }

    fn by_callback((connection, invitation): (Encrypted, Invitation)) -> Result<Self, Refusal> {
        let patience = Duration::from_secs(crate::plan::DEAD_AFTER);
        let liveness = callback::Liveness::new(&connection.fd, patience).map_err(failed)?;
        let channel = Channel::over(connection).map_err(failed)?;
        let (liveness, invitation) = (Liveness::Callback(liveness), Some(invitation));
        Ok(Connected { channel, liveness, invitation, no_way_back: None })
    }
}

/// Runs the agent to its end; the status to exit with.
pub(crate) fn run(line: Line) -> Result<u8, Refusal> {
    process::reset_signals();
    let signals = Signals::take(ENDING.into_iter().chain([libc::SIGCHLD]))
        .map_err(|error| Refusal::launcher(format!("taking signals: {error}")))?;
    let descriptors = system::raise_descriptor_limit();
    process::adopt_orphans();
    let Connected { channel, liveness, invitation, no_way_back } = Connected::by(line)?;
    let mut agent = Agent {
        signals,
        descriptors,
        channel,
        liveness,
        job: None,
        input: Vec::new(),
        input_ended: false,
        window: WINDOW,
        alive_at: Instant::now() + ALIVE,
        part: None,
        lost: false,
        invitation,
        starters: Vec::new(),
    };
    let hello = Up::Hello { version: protocol::VERSION, machine: identity::look_up() };
    agent.channel.say(&hello);
    if let Some(reason) = no_way_back {
        agent.channel.say(&Up::NoWayBack(reason));
    }
    let leave = loop {
        if let Some(leave) = agent.turn() {
            break leave;
        }
    };
    Ok(agent.leave(&leave))
}

/// What has become ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Looked at in every turn anyway.
    Always,
    Stream,
}

impl Agent {
    /// Waits for something to do and does it.
    fn turn(&mut self) -> Option<Leave> {
        self.channel.flush();
        let streams = self.wait();
        self.channel.fill();
        if let Some(job) = &mut self.job {
            let (channel, window) = (&mut self.channel, &mut self.window);
            job.local_ranks.read(&streams, |piece| {
                *window = window.saturating_sub(piece.bytes.len());
                channel.say(&output(piece));
            });
        }
        loop {
            match self.channel.next::<Down>() {
                Ok(Some(frame)) => self.obey(frame),
                Ok(None) => break,
                Err(reason) => {
                    complain(&format!("the agent did not understand gaspi_run: {reason}"));
                    return Some(Leave::Alone);
                }
            }
        }
        self.hear_starters();
        if self.take_signals() || self.lost {
            return Some(Leave::Alone);
        }
        self.serve();
        self.feed();
        if Instant::now() >= self.alive_at {
            self.alive_at = Instant::now() + ALIVE;
            if !self.channel.pending() {
                self.channel.say(&Up::Alive);
            }
            if self.liveness.is_cut() {
                complain("the machine of gaspi_run does not answer any more");
                return Some(Leave::Alone);
            }
        }
        self.finish();
        if let Some(orphans) = self.part {
            return Some(Leave::Done { orphans });
        }
        self.channel.ended().then_some(Leave::Alone)
    }

    /// Says that all ranks have ended, behind all that they wrote.
    fn finish(&mut self) {
        let Some(job) = &mut self.job else { return };
        if !job.begun || job.done || job.local_ranks.is_running() {
            return;
        }
        job.done = true;
        let channel = &mut self.channel;
        job.local_ranks.drain(|piece| channel.say(&output(piece)));
        self.channel.say(&Up::Done);
    }

    /// Sleeps; says which streams of the ranks are ready.
    fn wait(&self) -> Vec<bool> {
        let read = |fd| (Watch::input(fd), Source::Always);
        let mut watches = vec![read(self.signals.as_fd())];
        watches.extend(self.channel.readable().map(read));
        watches.extend(self.channel.writable().map(|fd| (Watch::room(fd), Source::Always)));
        watches.extend(self.starters.iter().flat_map(Starter::readable).map(read));
        let full = self.starters.iter().filter_map(Starter::writable);
        watches.extend(full.map(|fd| (Watch::room(fd), Source::Always)));
        if let Some(job) = &self.job {
            watches.push(read(job.host.as_fd()));
            let input = job.local_ranks.input.as_ref().filter(|_| !self.input.is_empty());
            watches.extend(input.map(|fd| (Watch::room(fd.as_fd()), Source::Always)));
            if self.window > 0 {
                let stream = |fd| (Watch::input(fd), Source::Stream);
                watches.extend(job.local_ranks.watched().map(stream));
            }
        }
        let (watches, sources): (Vec<Watch<'_>>, Vec<Source>) = watches.into_iter().unzip();
        let left = self.alive_at.saturating_duration_since(Instant::now());
        let ready = system::wait(&watches, Some(left));
        let pairs = ready.into_iter().zip(sources);
        pairs.filter(|(_, source)| *source == Source::Stream).map(|(ready, _)| ready).collect()
    }

    fn obey(&mut self, frame: Down) {
        match (frame, &mut self.job) {
            (Down::Plan(plan), None) => match self.prepare(*plan) {
                Ok(()) => self.channel.say(&Up::Ready),
                Err(refusal) => self.fail(refusal),
            },
            (Down::Start, Some(job)) if !job.begun => self.begin(),
            (Down::Input(bytes), _) => self.input.extend_from_slice(&bytes),
            (Down::InputEnd, _) => self.input_ended = true,
            (Down::Signal(signal), Some(job)) => job.local_ranks.signal_all(signal),
            (Down::Part(orphans), Some(_)) => self.part = Some(orphans),
            (Down::Show, Some(job)) => self.channel.say(&Up::Rows(job.local_ranks.rows(&job.host))),
            (Down::Taken(count), _) => self.window = (self.window + count as usize).min(WINDOW),
            (Down::Meeting(bytes), Some(job)) => {
                if let Err(error) = job.host.feed(Server::UPSTREAM, &bytes) {
                    complain(&format!("the agent did not understand the meeting: {error}"));
                    self.lost = true;
                }
            }
            (Down::Reach(errand), _) => self.run_errand(&errand),
            (Down::Refused(reason), None) => {
                complain(&format!("this agent is not wanted: {reason}"));
                self.lost = true;
            }
            _ => {}
        }
    }

    /// Starts agents on further hosts.
    fn run_errand(&mut self, errand: &Errand) {
        for (number, host) in &errand.hosts {
            if let Err(reason) = self.start_agent(errand, *number, host) {
                self.channel.say(&Up::Missed { number: *number, reason });
            }
        }
    }

    fn start_agent(&mut self, errand: &Errand, number: u32, host: &str) -> Result<(), String> {
        let words = |error: std::io::Error| error.to_string();
        let invitation = self.invitation.as_ref().ok_or("its agent has not called back")?;
        let shell = RemoteShell::of_words(errand.shell.clone()).ok_or("no program is named")?;
        let tool = Tool::own("gaspi_run").map_err(words)?;
        let invitation = invitation.for_hosts(vec![(number, host.to_owned())]);
        let starter = Starter::start(&shell, &tool, &invitation, self.signals.before);
        self.starters.push(starter.map_err(words)?);
        Ok(())
    }

    fn hear_starters(&mut self) {
        for missed in self.starters.iter_mut().flat_map(Starter::hear) {
            self.channel.say(&Up::Missed { number: missed.number, reason: missed.reason });
        }
    }

    fn fail(&mut self, refusal: Refusal) {
        self.channel.say(&Up::Failed { status: refusal.status, message: refusal.message });
    }

    /// Makes sure that the ranks can be started.
    fn prepare(&mut self, mut plan: Assignment) -> Result<(), Refusal> {
        if let Some(environment) = &mut plan.environment {
            let directory = &environment.directory;
            std::env::set_current_dir(directory).map_err(|error| {
                let name = directory.display();
                Refusal::launcher(format!(
                    "working directory {name}: {error}; start gaspi_run in a directory that all \
                     hosts have"
                ))
            })?;
            // SAFETY: takes an integer and cannot fail.
            unsafe { libc::umask(environment.umask) };
            let arrived = std::mem::take(&mut environment.variables);
            environment.variables = environment::completed(arrived, std::env::vars_os());
            let settled = limits::take_on(&environment.limits, self.descriptors);
            self.descriptors = settled.descriptors;
            let notices = settled.lacks.into_iter().map(Up::Notice);
            notices.for_each(|notice| self.channel.say(&notice));
        }
        let named = |name: &str| plan.variable(name);
        self.liveness.set_patience(crate::plan::dead_after(named("GASPI_DEAD_AFTER").as_deref())?);
        plan.check_programs()?;
        crate::plan::check_descriptors(plan.ranks.len(), 0, None, 0)?;
        let host = Server::relay().map_err(|error| Refusal::launcher(error.to_string()))?;
        let setting = Setting {
            meeting: host.name().to_owned(),
            signal_mask: self.signals.before,
            descriptors: self.descriptors,
        };
        let local_ranks = LocalRanks::new(plan);
        if let Some(remark) = local_ranks.remark() {
            self.channel.say(&Up::Notice(remark));
        }
        self.job = Some(Job { local_ranks, host, setting, begun: false, done: false });
        Ok(())
    }

    /// Starts the ranks, until a signal comes at which the agent ends itself.
    fn begin(&mut self) {
        let Some(job) = &mut self.job else { return };
        job.begun = true;
        while self.signals.pending(&ENDING).is_none() {
            match job.local_ranks.start_next(&job.setting, None, Stdio::piped()) {
                Ok(Some(begun)) => {
                    job.host.started(Rank(begun.rank as u16), begun.pid);
                    let (rank, pid, place) = (begun.rank, begun.pid, begun.place);
                    self.channel.say(&Up::Started { rank, pid, place });
                }
                Ok(None) => break,
                Err(refusal) => {
                    job.local_ranks.abandon(&self.signals, &mut Vec::new());
                    // Nothing runs, but the last word is gaspi_run's.
                    job.begun = false;
                    return self.fail(refusal);
                }
            }
        }
        let input = &job.local_ranks.input;
        if input.as_ref().is_some_and(|input| system::set_nonblocking(input.as_fd()).is_err()) {
            job.local_ranks.input = None;
        }
    }

    fn reap(&mut self) -> Option<(i32, Ending)> {
        match &mut self.job {
            Some(job) => job.local_ranks.reap(),
            None => process::reap(),
        }
    }

    /// Records the processes that have ended; true if the agent is to end itself.
    fn take_signals(&mut self) -> bool {
        let mut ends = false;
        while let Some(arrival) = self.signals.read() {
            ends |= arrival.signal != libc::SIGCHLD;
        }
        while let Some((pid, ending)) = self.reap() {
            if self.starters.iter_mut().any(|starter| starter.ended(pid, ending)) {
                continue;
            }
            let Some(job) = &mut self.job else { continue };
            // Not a rank: something that a rank left behind.
            let Some(rank) = job.local_ranks.ended(pid, ending) else { continue };
            // What it said in the meeting comes before its end.
            self.serve();
            if let Some(job) = &mut self.job {
                local_ranks::tell(&mut job.host, rank, ending);
            }
            self.pass_on();
            self.channel.say(&Up::Ended { rank, pid, ending });
        }
        ends
    }

    fn serve(&mut self) {
        let Some(job) = &mut self.job else { return };
        for request in job.host.serve() {
            job.local_ranks.obey(&request);
        }
        self.pass_on();
    }

    /// What the meeting here says to the one at gaspi_run.
    fn pass_on(&mut self) {
        let Some(job) = &mut self.job else { return };
        let parts: Vec<Arc<[u8]>> = job.host.take(Server::UPSTREAM);
        parts.iter().for_each(|bytes| self.channel.say(&Up::Meeting(bytes.to_vec())));
    }

    /// Writes to the standard input of rank 0.
    fn feed(&mut self) {
        let Some(job) = self.job.as_mut().filter(|job| job.begun) else { return };
        let Some(pipe) = &mut job.local_ranks.input else {
            self.input.clear();
            return;
        };
        while !self.input.is_empty() {
            match write(pipe, &self.input) {
                Some(0) => return,
                Some(count) => {
                    self.input.drain(..count);
                    self.channel.say(&Up::InputTaken(count as u32));
                }
                None => {
                    self.input.clear();
                    self.channel.say(&Up::InputClosed);
                    job.local_ranks.input = None;
                    return;
                }
            }
        }
        if self.input_ended {
            job.local_ranks.input = None;
        }
    }

    /// Ends what is left; the status to exit with.
    fn leave(&mut self, why: &Leave) -> u8 {
        let Some(job) = &mut self.job else { return EXIT_ALONE };
        match why {
            Leave::Done { orphans } => {
                if *orphans {
                    job.local_ranks.end_orphans(&self.signals, &mut Vec::new());
                }
                0
            }
            Leave::Alone => {
                job.local_ranks.abandon(&self.signals, &mut Vec::new());
                EXIT_ALONE
            }
        }
    }
}

/// Says something on standard error, which is gone where whatever has started the agent is.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "gaspi_run: {text}");
}

fn output(piece: Piece<'_>) -> Up {
    Up::Output { rank: piece.rank, stream: piece.stream, bytes: piece.bytes.to_vec() }
}

/// Bytes written, 0 if there is no room now, `None` if the reader is gone.
fn write(pipe: &mut File, bytes: &[u8]) -> Option<usize> {
    match pipe.write(&bytes[..bytes.len().min(input::WINDOW)]) {
        Ok(count) => Some(count),
        Err(error) => match error.kind() {
            std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock => Some(0),
            _ => None,
        },
    }
}
