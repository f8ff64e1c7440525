//! The ranks of this machine: started, listened to, signalled and reaped, by gaspi_run itself or by
//! its agent. The owner of [`LocalRanks`] waits for their descriptors and for SIGCHLD.

use crate::assignment::Assignment;
use crate::binding::{self, Bind, Share};
use crate::files::Files;
use crate::hang::{self, Row};
use crate::process::{self, Cores, Ending, Process, Setting};
use crate::refusal::Refusal;
use crate::report;
use crate::topology::Topology;
use gaspi_core::Rank;
use gaspi_core::bootstrap::{Request, Server};
use gaspi_core::os::event::Epoll;
use gaspi_tools::signals::Signals;
use gaspi_tools::system::{self, Watch};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Bytes read from a rank at a time.
pub(crate) const READ: usize = 64 << 10;
/// How long the processes that ranks left behind may take to die of SIGKILL.
const ORPHANS: Duration = Duration::from_secs(2);

/// A rank's standard output (0) or error (1).
#[derive(Debug)]
struct Stream {
    rank: u32,
    number: u8,
    pipe: File,
}

/// What came out of a stream; empty at its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) rank: u32,
    /// Standard output (0) or error (1).
    pub(crate) stream: u8,
    pub(crate) bytes: &'a [u8],
}

/// A rank that has been started.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) rank: u32,
    pub(crate) pid: i32,
    /// The cores that it is bound to, as a text.
    pub(crate) place: String,
}

#[derive(Debug)]
struct Member {
    pid: i32,
    /// `None` once it has ended.
    process: Option<Process>,
    ending: Option<Ending>,
}

/// How ranks of this machine are bound.
fn bind_of(plan: &Assignment, topology: &Topology) -> Bind {
    match plan.bind {
        Some(bind) => bind,
        None if plan.numa => Bind::None,
        None => binding::default(topology, plan.ranks.len() as u32),
    }
}

/// The cores of the ranks of this machine.
pub(crate) fn shares(plan: &Assignment, topology: &Topology) -> Vec<Share> {
    let (bind, count) = (bind_of(plan, topology), plan.ranks.len());
    if count == 0 { Vec::new() } else { binding::shares(topology, bind, count) }
}

/// The ranks of this machine.
#[derive(Debug)]
pub(crate) struct LocalRanks {
    plan: Assignment,
    shares: Vec<Share>,
    /// The NUMA nodes of each rank's memory, if it is bound.
    memory: Vec<Vec<usize>>,
    /// It was to be spread over NUMA nodes, but there is one.
    in_vain: bool,
    /// Ranks that are to bind themselves to nodes that are not there.
    unbound: usize,
    /// By number on this machine.
    members: Vec<Member>,
    /// The numbers of those that run, by their processes.
    by_pid: HashMap<i32, usize>,
    /// Their processes, which it gives in the order in which they have ended.
    running: Option<Epoll>,
    /// What it gave that was not reaped yet.
    ended: VecDeque<i32>,
    streams: Vec<Stream>,
    /// Our end of the standard input of rank 0, where it is a pipe.
    pub(crate) input: Option<File>,
    buffer: Vec<u8>,
}

impl LocalRanks {
    /// No rank has been started.
    pub(crate) fn new(plan: Assignment) -> LocalRanks {
        let topology = Topology::look_up();
        let bind = bind_of(&plan, &topology);
        let shares = shares(&plan, &topology);
        let count = plan.ranks.len();
        let memory = match plan.bind_memory {
            true => binding::memory(&topology, &shares),
            false => vec![Vec::new(); count],
        };
        let one_node = count > 0 && topology.nodes().len() == 1;
        let in_vain = one_node && (plan.bind_memory || bind == Bind::NumaCyclic);
        let nodes = topology.nodes();
        let unbound = (0..count).filter(|local| plan.numa && !nodes.contains(local)).count();
        LocalRanks {
            plan,
            shares,
            memory,
            in_vain,
            unbound,
            members: Vec::new(),
            by_pid: HashMap::new(),
            running: Epoll::new().ok(),
            ended: VecDeque::new(),
            streams: Vec::new(),
            input: None,
            buffer: vec![0; READ],
        }
    }

    /// What the user should know of the binding.
    pub(crate) fn remark(&self) -> Option<String> {
        let (unbound, count) = (self.unbound, self.plan.ranks.len());
        if self.in_vain {
            return Some(
                "warning: it has one NUMA node, so binding to nodes spreads nothing; leave out \
                 --bind numa-cyclic and --bind-memory"
                    .to_owned(),
            );
        }
        (unbound > 0).then(|| {
            format!(
                "warning: -N gives each rank a NUMA node of its own, which {unbound} of {count} \
                 ranks do not find; use --bind numa"
            )
        })
    }

    /// Starts the next rank, as long as there is one. If it cannot be started, those before it are
    /// to be ended.
    pub(crate) fn start_next(
        &mut self,
        setting: &Setting,
        files: Option<Files>,
        input: Stdio,
    ) -> Result<Option<Begun>, Refusal> {
        let local = self.members.len();
        let Some(rank) = self.plan.ranks.get(local).copied() else { return Ok(None) };
        let share = &self.shares[local];
        let cores = Cores { share, memory: &self.memory[local] };
        let started = process::start(&self.plan, setting, &cores, local, files, input)?;
        let pid = started.process.pid;
        if let Some(running) = &self.running {
            // What it does not watch is reaped in any order.
            let _ = running.add(started.process.as_fd(), pid as u64);
        }
        self.members.push(Member { pid, process: Some(started.process), ending: None });
        self.by_pid.insert(pid, local);
        if rank == 0 {
            self.input = started.stdin;
        }
        for (number, pipe) in [(0, started.stdout), (1, started.stderr)] {
            self.streams.extend(pipe.map(|pipe| Stream { rank, number, pipe }));
        }
        Ok(Some(Begun { rank, pid, place: share.words() }))
    }

    /// Whether a rank still runs.
    pub(crate) fn is_running(&self) -> bool {
        !self.by_pid.is_empty()
    }

    /// To be read from, in this order.
    pub(crate) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.streams.iter().map(|stream| stream.pipe.as_fd())
    }

    /// Reads once from the streams that are ready, in the order of [`LocalRanks::watched`].
    pub(crate) fn read(&mut self, ready: &[bool], mut take: impl FnMut(Piece<'_>)) {
        let (mut ready, buffer) = (ready.iter(), &mut self.buffer);
        self.streams.retain_mut(|stream| {
            let is_ready = ready.next().copied().unwrap_or(false);
            !is_ready || read_some(stream, buffer, &mut take) != Some(0)
        });
    }

    /// Takes what the ranks wrote before they ended. A process that they left behind may keep a
    /// pipe open and go on writing: what does not fit into a pipe now came later.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(Piece<'_>)) {
        for mut stream in std::mem::take(&mut self.streams) {
            let mut left = system::pipe_size(stream.pipe.as_fd());
            while left > 0 && system::ready(Watch::input(stream.pipe.as_fd())) {
                match read_some(&mut stream, &mut self.buffer, &mut take) {
                    None | Some(0) => break,
                    Some(count) => left = left.saturating_sub(count),
                }
            }
            take(Piece { rank: stream.rank, stream: stream.number, bytes: &[] });
        }
    }

    /// The rank whose process has ended, if it is one.
    pub(crate) fn ended(&mut self, pid: i32, ending: Ending) -> Option<u32> {
        let local = self.by_pid.remove(&pid)?;
        self.members[local].process = None;
        self.members[local].ending = Some(ending);
        Some(self.plan.ranks[local])
    }

    /// Reaps the next child that has ended: ranks in the order in which they have, as the others
    /// are told of it. The kernel gives children in the order in which they were started.
    pub(crate) fn reap(&mut self) -> Option<(i32, Ending)> {
        let any = process::any_ended()?;
        if self.by_pid.contains_key(&any) {
            self.line_up_ended();
            if let Some(ended) = self.ended.pop_front().and_then(process::reap_one) {
                return Some(ended);
            }
        }
        process::reap_one(any)
    }

    /// Takes all that have ended out of the set, first the one that has ended first.
    fn line_up_ended(&mut self) {
        let Some(running) = &self.running else { return };
        loop {
            let mut events = Vec::new();
            running.wait(&mut events, 0);
            if events.is_empty() {
                return;
            }
            for pid in events.iter().map(|event| event.token as i32) {
                let local = self.by_pid.get(&pid).copied();
                if let Some(process) = local.and_then(|local| self.members[local].process.as_ref())
                {
                    running.remove(process.as_fd());
                }
                self.ended.push_back(pid);
            }
        }
    }

    /// Sends a signal to all ranks that run.
    pub(crate) fn signal_all(&self, signal: i32) {
        let running = self.members.iter().filter_map(|member| member.process.as_ref());
        running.for_each(|process| process.signal(signal));
    }

    /// Does what a member of the meeting asks for, if it concerns a rank of this machine.
    pub(crate) fn obey(&self, request: &Request) {
        match request {
            Request::Kill { process: Some(pidfd), .. } => process::signal(pidfd, libc::SIGKILL),
            Request::Kill { rank, process: None } => {
                let local = self.plan.ranks.binary_search(&u32::from(rank.0));
                let member = local.ok().and_then(|local| self.members.get(local));
                if let Some(process) = member.and_then(|member| member.process.as_ref()) {
                    process.signal(libc::SIGKILL);
                }
            }
            _ => {}
        }
    }

    /// What the ranks are doing.
    pub(crate) fn rows(&self, host: &Server) -> Vec<(u32, Row)> {
        let pairs = self.plan.ranks.iter().zip(&self.members);
        let row = |member: &Member, rank| hang::row(host, rank, member.pid, member.ending);
        pairs.map(|(rank, member)| (*rank, row(member, *rank))).collect()
    }

    /// Kills all ranks and what they left behind. `others` are children that are left alone, and
    /// forgotten when they have ended.
    pub(crate) fn abandon(&mut self, signals: &Signals, others: &mut Vec<i32>) {
        self.streams.clear();
        self.signal_all(libc::SIGKILL);
        while self.is_running() {
            system::wait(&[Watch::input(signals.as_fd())], None);
            self.reap_silently(signals, others);
        }
        self.end_orphans(signals, others);
    }

    /// Kills what the ranks of an ended job left behind, children of orphans too.
    pub(crate) fn end_orphans(&mut self, signals: &Signals, others: &mut Vec<i32>) {
        let deadline = Instant::now() + ORPHANS;
        while process::kill_orphans(|pid| others.contains(&pid)) && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            system::wait(&[Watch::input(signals.as_fd())], Some(left));
            self.reap_silently(signals, others);
        }
    }

    fn reap_silently(&mut self, signals: &Signals, others: &mut Vec<i32>) {
        while signals.read().is_some() {}
        while let Some((pid, ending)) = process::reap() {
            self.ended(pid, ending);
            others.retain(|other| *other != pid);
        }
    }
}

/// Tells the meeting that a rank has ended.
pub(crate) fn tell(host: &mut Server, rank: u32, ending: Ending) {
    host.gone(Rank(rank as u16), &report::phrase(ending));
}

/// Reads what a stream has, at most one buffer; `Some(0)` is its end.
fn read_some(
    stream: &mut Stream,
    buffer: &mut [u8],
    mut take: impl FnMut(Piece<'_>),
) -> Option<usize> {
    let (rank, number) = (stream.rank, stream.number);
    let mut count = match stream.pipe.read(buffer) {
        Ok(count) => count,
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return None,
        Err(_) => 0,
    };
    count = count.min(buffer.len());
    take(Piece { rank, stream: number, bytes: &buffer[..count] });
    Some(count)
}
