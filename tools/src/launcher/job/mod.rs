//! The job while it runs: one loop over signals, the meeting, the ranks' output, the agents on
//! other machines and the timers.
//!
//! In two steps: all machines are reached ([`hosts`]) and say that they can do their part, then all
//! ranks are started. How ranks and the job end is in [`ends`].

mod alarm;
mod callers;
mod ends;
mod host_dedup;
mod hosts;
mod rank_records;
mod show;
mod shutdown;
mod startup;
mod time_limit;

use crate::arguments::Label;
use crate::files::{self, Files};
use crate::input::Input;
use crate::local_ranks::{LocalRanks, Piece};
use crate::plan::Plan;
use crate::printer::Printer;
use crate::process::{self, Setting};
use crate::protocol::Down;
use crate::refusal::{EXIT_LAUNCHER, EXIT_TIMEOUT, Refusal};
use crate::remote::Remote;
use crate::report;
use crate::tail::Tail;
use callers::Callers;
use gaspi_core::Rank;
use gaspi_core::bootstrap::{Request, Server};
use gaspi_tools::signals::Signals;
use gaspi_tools::system::{self, Watch};
use rank_records::RankRecords;
use show::Show;
use shutdown::Shutdown;
use startup::Startup;
use std::process::Stdio;
use std::time::Instant;
use time_limit::TimeLimit;

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

/// A job, from its first machine to its last word.
#[derive(Debug)]
pub(crate) struct Running {
    plan: Plan,
    signals: Signals,
    setting: Setting,
    host: Server,
    /// The ranks of this machine.
    local_ranks: LocalRanks,
    /// For the ranks of this machine, as they are started.
    files: Vec<Option<Files>>,
    /// The other machines.
    remotes: Vec<Remote>,
    callers: Callers,
    printer: Printer,
    /// For rank 0 on another machine.
    input: Option<Input>,
    records: RankRecords,
    startup: Startup,
    shutdown: Shutdown,
    /// Why the job cannot go on.
    failure: Option<Refusal>,
    show: Option<Show>,
}

/// What has become ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Looked at in every turn anyway.
    Always,
    Stream,
    Input,
    /// Another machine, by its place.
    Remote(usize),
}

impl Running {
    /// Prepares the job; nothing has been started.
    pub(crate) fn new(plan: Plan) -> Result<Running, Refusal> {
        // Writing to the terminal of another process group shall fail, not stop gaspi_run.
        let quiet = plan.own.ranks.first() != Some(&0);
        let taken = FORWARDED.into_iter().chain([libc::SIGCHLD, SHOW]);
        let signals = Signals::take(taken.chain(quiet.then_some(libc::SIGTTIN)))
            .map_err(|error| Refusal::launcher(format!("taking signals: {error}")))?;
        let descriptors = system::raise_descriptor_limit();
        let mut printer = Printer::new(plan.ranks, plan.output.label, plan.output.last_lines)
            .map_err(|error| Refusal::launcher(format!("output: {error}")))?;
        let files = outlets(&plan, &mut printer)?;
        process::adopt_orphans();
        let refuse = |error: gaspi_core::Error| Refusal::launcher(error.to_string());
        let host = if plan.own.machines > 1 || !plan.others.is_empty() {
            Server::hub(&plan.own.job, plan.hosts.clone()).map_err(refuse)?
        } else {
            Server::bind(&plan.own.job, plan.own.size).map_err(refuse)?
        };
        let meeting = host.name().to_owned();
        let setting = Setting { meeting, signal_mask: signals.before, descriptors };
        let away = plan.others.iter().any(|other| other.ranks.first() == Some(&0));
        Ok(Running {
            signals,
            setting,
            host,
            local_ranks: LocalRanks::new(plan.own.clone()),
            files,
            remotes: Vec::new(),
            callers: Callers::default(),
            printer,
            input: away.then(Input::new),
            records: RankRecords::new(plan.ranks),
            startup: Startup::default(),
            shutdown: Shutdown::new(TimeLimit::new(plan.timeout)),
            failure: None,
            show: None,
            plan,
        })
    }

    /// Runs the job to its end and returns the status to exit with.
    pub(crate) fn run(mut self) -> Result<u8, Refusal> {
        self.reach()?;
        if self.plan.only_ping {
            self.part();
            return Ok(0);
        }
        self.begin()?;
        while self.failure.is_none() && self.is_running() {
            self.turn();
        }
        if let Some(refusal) = self.failure.take() {
            return Err(self.abandon(refusal));
        }
        self.drain();
        self.part();
        let status = self.conclude();
        self.write_out();
        Ok(match status {
            _ if self.shutdown.time_limit.is_exceeded() => EXIT_TIMEOUT,
            0 if self.printer.has_lost() => EXIT_LAUNCHER,
            status => status,
        })
    }

    /// Says how the ranks ended; the status to exit with.
    fn conclude(&mut self) -> u8 {
        let (hosts, ends) = (&self.plan.hosts, self.records.ends());
        self.printer.say(&report::summary(ends, |rank| &hosts[rank]));
        self.repeat_last_lines();
        let (ends, succeeded) = (self.records.ends(), report::succeeded(self.records.ends()));
        let status = report::status(ends);
        let enough = self.plan.needed.is_some_and(|needed| succeeded >= needed);
        if status == 0 || !(self.plan.may_lose && enough) {
            return status;
        }
        self.printer.say(&format!(
            "gaspi_run: warning: {succeeded} of {} ranks ended with status 0, which --min-ranks {} \
             lets pass\n",
            self.plan.ranks,
            self.plan.needed.unwrap_or_default()
        ));
        0
    }

    /// Repeats what the first rank that failed said last, on standard error or else on standard
    /// output.
    fn repeat_last_lines(&mut self) {
        let count = self.plan.output.last_lines;
        let Some(end) = report::first(self.records.ends()).filter(|_| count > 0) else { return };
        let tail = |stream: usize, name| {
            let kept = self.printer.tail(end.rank, stream);
            match &self.plan.output.directory {
                // It wrote into its file itself.
                Some(directory) if kept.len() == 0 => {
                    let path = files::path(directory, end.rank, self.plan.ranks, name);
                    let tail = Tail::of_file(&path, count);
                    (tail.len(), tail.quoted())
                }
                _ => (kept.len(), kept.quoted()),
            }
        };
        let streams = [(1, "err", "error"), (0, "out", "output")];
        let said = streams.into_iter().map(|(stream, name, word)| (tail(stream, name), word));
        let found = said.into_iter().find(|((count, _), _)| *count > 0);
        let (rank, seconds) = (end.rank, end.after.as_secs_f64());
        let text = match found {
            None => "it wrote nothing\n".to_owned(),
            Some(((1, text), word)) => format!("its last line on standard {word}:\n{text}"),
            Some(((count, text), word)) => {
                format!("its last {count} lines on standard {word}:\n{text}")
            }
        };
        self.printer.say(&format!(
            "gaspi_run: rank {rank} failed first, {seconds:.1} s after the start; {text}"
        ));
    }

    /// Starts all ranks. If one cannot be started, or a signal comes that ends programs, those
    /// before it are killed.
    fn begin(&mut self) -> Result<(), Refusal> {
        self.startup.begin();
        if let Some(remark) = self.local_ranks.remark() {
            self.printer.say(&format!("gaspi_run: host {}: {remark}\n", self.plan.own.host));
        }
        for remote in &mut self.remotes {
            remote.begin();
            remote.flush();
        }
        let mut files = std::mem::take(&mut self.files).into_iter();
        loop {
            if let Some(refusal) = self.interrupted() {
                return Err(self.abandon(refusal));
            }
            let files = files.next().flatten();
            match self.local_ranks.start_next(&self.setting, files, Stdio::inherit()) {
                Ok(Some(begun)) => {
                    self.host.started(Rank(begun.rank as u16), begun.pid);
                    self.note_start(begun.rank, begun.pid, &begun.place);
                }
                Ok(None) => return Ok(()),
                Err(refusal) => return Err(self.abandon(refusal)),
            }
        }
    }

    fn note_start(&mut self, rank: u32, pid: i32, place: &str) {
        let rank = rank as usize;
        self.records.note_start(rank, pid);
        if self.plan.output.label == Some(Label::Number) {
            let several = self.plan.own.machines > 1;
            let host =
                if several { format!(", host {}", self.plan.hosts[rank]) } else { String::new() };
            self.printer.say(&format!("gaspi_run: rank {rank} (pid {pid}{host}) {place}\n"));
        }
    }

    /// Whether there is something to wait for: a rank that runs, or output of one that has ended.
    fn is_running(&self) -> bool {
        self.local_ranks.is_running() || self.remotes.iter().any(|remote| !remote.is_over())
    }

    /// Waits for something to do and does it.
    fn turn(&mut self) {
        let (streams, input) = self.wait();
        let printer = &mut self.printer;
        // What ranks wrote before they ended comes before what is said about their end.
        self.local_ranks.read(&streams, |piece| printer.take(piece));
        self.printer.show_prompt();
        if input {
            self.read_input();
        }
        self.take_signals();
        self.serve();
        self.serve_callers();
        self.hear();
        self.reach_next();
        self.pass_on();
        self.look_at_clock();
        self.printer.flush();
    }

    /// Sleeps; says which streams of the ranks are ready, and whether standard input is. Machines
    /// hear from it whether there is something to read.
    fn wait(&mut self) -> (Vec<bool>, bool) {
        let always = |watch| (watch, Source::Always);
        let mut watches = vec![always(Watch::input(self.signals.as_fd()))];
        watches.push(always(Watch::input(self.host.as_fd())));
        watches.extend(self.printer.writable().map(Watch::room).map(always));
        for (at, remote) in self.remotes.iter().enumerate() {
            let of_it = |watch| (watch, Source::Remote(at));
            watches.extend(remote.readable().map(Watch::input).map(of_it));
            watches.extend(remote.writable().map(Watch::room).map(always));
        }
        watches.extend(self.callers.watches().map(always));
        if self.startup.has_begun() {
            let input = self.input.as_ref().and_then(Input::readable);
            watches.extend(input.map(|fd| (Watch::input(fd), Source::Input)));
        }
        if self.printer.has_room() {
            let stream = |fd| (Watch::input(fd), Source::Stream);
            watches.extend(self.local_ranks.watched().map(stream));
        }
        let (watches, sources): (Vec<Watch<'_>>, Vec<Source>) = watches.into_iter().unzip();
        let left = self.next_time().map(|at| at.saturating_duration_since(Instant::now()));
        let ready = system::wait(&watches, left);
        for (source, _) in sources.iter().zip(&ready).filter(|(_, ready)| **ready) {
            if let Source::Remote(at) = source {
                self.remotes[*at].note_readable();
            }
        }
        let of = |wanted| {
            let pairs = ready.iter().zip(&sources);
            pairs.filter(move |(_, source)| **source == wanted).map(|(ready, _)| *ready)
        };
        (of(Source::Stream).collect(), of(Source::Input).any(|ready| ready))
    }

    /// When there is something to do, though nothing happens.
    fn next_time(&self) -> Option<Instant> {
        let own = [
            self.shutdown.deadline(),
            self.shutdown.time_limit.at(),
            self.startup.report_at(),
            self.printer.prompt_at(),
            self.show.as_ref().map(Show::until),
            self.callers.deadline(),
        ];
        let others = self.remotes.iter().map(Remote::deadline);
        own.into_iter().chain(others).flatten().min()
    }

    fn look_at_clock(&mut self) {
        if self.startup.take_report_due() {
            self.tell_missing();
        }
        if self.shutdown.time_limit.take_due() {
            self.time_out();
        }
        self.end_rest();
        if self.shutdown.take_kill_due() {
            self.signal_all(libc::SIGKILL);
        }
        if self.shutdown.take_sever_due() {
            self.sever();
        }
        self.finish_show();
    }

    fn read_input(&mut self) {
        let Some(frame) = self.input.as_mut().and_then(Input::read) else { return };
        let first = self.remotes.iter_mut().find(|remote| remote.ranks.first() == Some(&0));
        if let Some(remote) = first {
            remote.say(&frame);
        }
    }

    fn serve(&mut self) {
        let requests = self.host.serve();
        self.obey(requests);
    }

    fn obey(&mut self, requests: Vec<Request>) {
        for request in requests {
            match request {
                // Until then it is told which hosts are not ready.
                Request::Missing { .. } if !self.startup.has_begun() => {}
                Request::Missing { text } => {
                    self.printer.say(&format!("gaspi_run: waiting for {text}\n"));
                }
                request => self.local_ranks.obey(&request),
            }
        }
    }

    /// What the meeting here says to those on other machines, and thanks for output.
    fn pass_on(&mut self) {
        let requests = self.host.requests();
        self.obey(requests);
        let room = self.printer.has_room();
        for remote in &mut self.remotes {
            if let Some(link) = remote.link.filter(|_| remote.takes_part()) {
                for bytes in self.host.take(link) {
                    remote.say(&Down::Meeting(bytes.to_vec()));
                }
            }
            if room && remote.owed > 0 {
                let owed = std::mem::take(&mut remote.owed);
                remote.say(&Down::Taken(owed));
            }
            remote.flush();
        }
    }

    /// Passes on what the ranks of this machine wrote before they ended.
    fn drain(&mut self) {
        let printer = &mut self.printer;
        self.local_ranks.drain(|piece: Piece<'_>| printer.take(piece));
        (0..self.plan.ranks as u32).for_each(|rank| self.printer.finish(rank));
    }
}

/// The files of all ranks, if there are to be any: those of other machines' ranks are written here.
fn outlets(plan: &Plan, printer: &mut Printer) -> Result<Vec<Option<Files>>, Refusal> {
    let own = &plan.own.ranks;
    let Some(directory) = plan.output.directory.as_ref().filter(|_| !plan.only_ping) else {
        return Ok(own.iter().map(|_| None).collect());
    };
    let mut files = Vec::new();
    let is_copied = |rank| rank == 0 && plan.output.tee;
    let is_own = |rank: usize| own.binary_search(&(rank as u32)).is_ok();
    let stays_open = |rank| is_own(rank) || is_copied(rank);
    let created = files::create(directory, plan.ranks, stays_open)?;
    for (rank, both) in created.into_iter().enumerate() {
        let paths = ["out", "err"].map(|stream| files::path(directory, rank, plan.ranks, stream));
        match both {
            Some(both) if is_copied(rank) => {
                printer.copy_first(both, paths.map(|path| path.display().to_string()));
                files.extend(is_own(rank).then_some(None));
            }
            Some(both) => files.push(Some(both)),
            None => printer.divert(rank, paths),
        }
    }
    Ok(files)
}
