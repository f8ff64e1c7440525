//! A rank of a job: how it comes to be, what it consists of, how it ends.

use self::extensions::Extensions;
use crate::bootstrap::addresses::{self, Audience, Restrictions};
use crate::bootstrap::{Card, Gathering, Job, KEY_BYTES, Membership, Transport};
use crate::channel::Channels;
use crate::config::{Config, Topology};
use crate::error::{Error, Result};
use crate::fabric::connecting::PATIENCE;
use crate::fabric::peers::Peers;
use crate::fabric::progress::{Progress, try_drive};
use crate::fabric::table::{Table, Tables};
use crate::group::{FIRST_INCARNATION, Groups};
use crate::ids::{GroupId, Rank, SegmentId};
use crate::inside::Inside;
use crate::mirror::Mirror;
use crate::node::{Doorbells, NodeArea, life};
use crate::os::{affinity, interfaces, process, socket};
use crate::passive::{Mailbox, Outbox};
use crate::queue::{Queue, queues};
use crate::said::Said;
use crate::segment::{Segment, Shape, Target};
use crate::statistics::Statistics;
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, epoch, membarrier};
use crate::timeout::{Deadline, Timeout};
use crate::wait::{Call, Sockets, Waiter, Waiting, monotonic_ns};
use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a rank has that has made no segment known.
static NO_TARGETS: Table<Target> = Table::new();

/// Everything that the threads of a rank share, the progress thread included.
#[derive(Debug)]
pub(crate) struct Inner {
    /// The process that joined; a forked child is another one.
    pub(crate) process: u32,
    pub(crate) job: Job,
    pub(crate) config: Config,
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    pub(crate) cards: Vec<Card>,
    /// Which ranks are of this rank's node.
    pub(crate) local: Box<[bool]>,
    /// What ranks of other nodes have sent to its groups.
    pub(crate) mirror: Mirror,
    /// What it has sent to them that nobody answers to.
    pub(crate) said: Said,
    /// Passive messages that have come from other nodes.
    pub(crate) mailbox: Mailbox,
    /// Descriptors of the other ranks' processes, as far as they are watched.
    pub(crate) processes: Box<[OnceLock<OwnedFd>]>,
    pub(crate) token: [u8; 16],
    /// What connections between nodes prove to know.
    pub(crate) key: [u8; KEY_BYTES],
    /// How long a silent host is waited for.
    pub(crate) dead_after: Duration,
    pub(crate) shape: Shape,
    pub(crate) area: NodeArea,
    pub(crate) waiter: Waiter,
    pub(crate) segments: Table<Segment>,
    /// Which ids there are segments for, a bit each.
    pub(crate) segment_ids: [AtomicU64; 4],
    pub(crate) targets: Tables<Target>,
    /// Held while segments come and go.
    pub(crate) segment_changes: Mutex<()>,
    pub(crate) next_generation: AtomicU32,
    /// Read by peers to find out whether they may copy from this process.
    pub(crate) nonce: u64,
    /// Those of programs, then that of channels.
    pub(crate) queues: [Queue; crate::config::QUEUE_MAX as usize],
    pub(crate) channels: Channels,
    pub(crate) groups: Groups,
    pub(crate) peers: Peers,
    pub(crate) outbox: Outbox,
    /// Ranks to which a request failed, one byte each.
    pub(crate) corrupt: Box<[AtomicU8]>,
    pub(crate) statistics: Statistics,
    membership: Mutex<Option<Membership>>,
    closed: AtomicBool,
    /// When this rank began to take part.
    pub(crate) began: Instant,
}

impl Inner {
    /// Tells the ranks of one process apart, as long as they live.
    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// Waits until `attempt` gives something or the deadline has passed, and counts the time that
    /// this takes beyond a brief look.
    #[inline]
    pub(crate) fn until<T>(
        &self,
        deadline: Deadline,
        waiting: Waiting,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if self.peers.remote {
            return self.until_driving(deadline, waiting, attempt);
        }
        if deadline == Deadline::Now {
            return attempt();
        }
        if let Some(value) = self.waiter.briefly(&mut attempt) {
            return Some(value);
        }
        let (found, waited) = self.waiter.until(&self.area, None, deadline, waiting, attempt);
        self.count_waiting(waiting.call, waited);
        found
    }

    /// The same where ranks of other nodes may bring what is waited for.
    #[cold]
    fn until_driving<T>(
        &self,
        deadline: Deadline,
        waiting: Waiting,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.peers.release(self);
        if let Some(value) = attempt() {
            return Some(value);
        }
        if deadline == Deadline::Now {
            return if self.look_once() { attempt() } else { None };
        }
        let found = {
            let sockets: &dyn Sockets = self;
            let (found, waited) =
                self.waiter.until(&self.area, Some(sockets), deadline, waiting, attempt);
            if self.waiter.was_brief(waited) {
                self.peers.brief.store(true, Ordering::Relaxed);
            }
            self.count_waiting(waiting.call, waited);
            found
        };
        self.leave();
        found
    }

    /// Looks after the sockets for a call that may not wait; false if somebody did so just now.
    pub(crate) fn look_once(&self) -> bool {
        let now_ns = monotonic_ns();
        if now_ns.wrapping_sub(self.peers.looked_ns.load(Ordering::Relaxed)) < LOOK_NS {
            return false;
        }
        self.peers.looked_ns.store(now_ns, Ordering::Relaxed);
        self.look();
        self.leave();
        true
    }

    #[inline]
    pub(crate) fn check_rank(&self, rank: Rank) -> Result<()> {
        if u32::from(rank.0) < self.size {
            return Ok(());
        }
        let reason = format!("the job has ranks 0 to {}", self.size - 1);
        Err(Error::InvalidRank { rank, reason })
    }

    /// Errors once this rank has left its job.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::NotInitialised) } else { Ok(()) }
    }

    /// The death of `rank`, which `pending` needs.
    #[cold]
    pub(crate) fn died(&self, rank: Rank, pending: &str) -> Error {
        let host = self.cards[rank.index()].host.clone();
        Error::RankDied { rank, host, pending: pending.to_owned() }
    }

    /// Errors if `rank` has died or left; `pending` is what needs it.
    #[inline]
    pub(crate) fn check_alive(&self, rank: Rank, pending: &str) -> Result<()> {
        self.check_alive_with(rank, || pending.to_owned())
    }

    /// The same, where it takes time to say what is pending.
    #[inline]
    pub(crate) fn check_alive_with(
        &self,
        rank: Rank,
        pending: impl FnOnce() -> String,
    ) -> Result<()> {
        match self.area.life(rank) {
            life::DEAD => Err(self.died(rank, &pending())),
            life::LEFT => Err(Error::RankLeft { rank, pending: pending() }),
            _ => Ok(()),
        }
    }

    /// Gives the news of `rank`'s end a moment to arrive.
    pub(crate) fn explain(&self, rank: Rank, deadline: Deadline) {
        let waiting = Waiting { call: Call::Connect, object: rank.0.into() };
        self.until(deadline, waiting, || self.check_alive(rank, "").is_err().then_some(()));
    }

    /// The segments of `rank` as this rank reaches them.
    pub(crate) fn targets_of(&self, rank: Rank) -> &Table<Target> {
        self.targets.make(rank)
    }

    /// A segment of `rank`, if it was made known to this rank.
    #[inline]
    pub(crate) fn target<'g>(
        &self,
        rank: Rank,
        segment: SegmentId,
        inside: &'g epoch::Guard,
    ) -> Result<&'g Target> {
        match self.targets.of(rank).and_then(|table| table.get(segment, inside)) {
            Some(target) => Ok(target),
            None => Err(self.no_target(rank, segment)),
        }
    }

    #[cold]
    fn no_target(&self, rank: Rank, segment: SegmentId) -> Error {
        if let Err(error) = self.check_rank(rank) {
            return error;
        }
        let reason = if u32::from(segment.0) >= self.config.segment_max {
            format!("ids are below {} (segment_max)", self.config.segment_max)
        } else {
            format!("{rank} has not registered it with {}", self.rank)
        };
        Error::InvalidSegment { segment, reason }
    }

    /// A segment of this rank.
    #[inline]
    pub(crate) fn local<'g>(
        &self,
        segment: SegmentId,
        inside: &'g epoch::Guard,
    ) -> Result<&'g Segment> {
        match self.segments.get(segment, inside) {
            Some(found) => Ok(found),
            None => Err(self.no_segment(segment)),
        }
    }

    #[cold]
    pub(crate) fn no_segment(&self, segment: SegmentId) -> Error {
        if self.closed.load(Ordering::Acquire) {
            return Error::NotInitialised;
        }
        let reason = format!("{} has no such segment", self.rank);
        Error::InvalidSegment { segment, reason }
    }

    /// A request to `rank` failed. One that has left is not at fault.
    pub(crate) fn set_corrupt(&self, rank: Rank) {
        if self.area.life(rank) != life::LEFT {
            self.corrupt[rank.index()].store(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn membership(&self) -> MutexGuard<'_, Option<Membership>> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Tells the ranks of other nodes that this one leaves, and waits a moment until they have read
    /// what was sent to them: closing earlier could cost them the rest of it.
    fn say_goodbye(&self) {
        let waiting = Waiting { call: Call::Term, object: self.rank.0.into() };
        let limit = Deadline::Never.at_most(GOODBYE_LIMIT);
        // What others have put here is acknowledged first; another thread may be about to.
        let (paid, _) = self.waiter.until(&self.area, None, limit, waiting, || {
            try_drive(&self.peers).map(|mut drive| {
                drive.pay(self);
                self.peers.say_goodbye(self);
            })
        });
        if paid.is_none() {
            // Another thread still sleeps on the sockets. Without a goodbye this rank would seem dead.
            self.peers.say_goodbye(self);
        }
        self.until(limit, waiting, || (!self.peers.has_remote(self)).then_some(()));
    }
}

/// How often calls that may not wait look after the sockets, in nanoseconds: a look costs some
/// hundred.
const LOOK_NS: u64 = 1000;

/// How long ranks of other nodes may take to read what was sent to them before this rank left.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// How far a start has come.
#[derive(Debug)]
enum Stage {
    Single,
    Gathering {
        gathering: Box<Gathering>,
        listener: Option<OwnedFd>,
        endpoints: Vec<OwnedFd>,
    },
    /// All have met; some may not have mapped the node area yet.
    Started(Box<Runtime>),
    Done,
}

/// A start that is under way. It survives timeouts: wait again to continue.
#[derive(Debug)]
pub struct Joining {
    job: Job,
    config: Config,
    stage: Stage,
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::System {
        call: "getrandom".to_owned(),
        reason: error.to_string(),
    })?;
    Ok(bytes)
}

fn random_u64() -> Result<u64> {
    random().map(u64::from_ne_bytes)
}

/// What only the ranks of a job know.
#[derive(Debug, Default)]
struct Secrets {
    token: [u8; 16],
    key: [u8; KEY_BYTES],
}

/// Listens for ranks of other nodes, if there may be any.
fn listen(job: &Job) -> Result<(Vec<OwnedFd>, Vec<SocketAddr>)> {
    let audience = match (job.spans_hosts && job.node.is_none(), job.transport) {
        (true, Transport::SharedMemory) => {
            let reason = "GASPI_TRANSPORT is shm, but this job runs on several hosts, which share \
                          no memory; leave it away, or set it to auto"
                .to_owned();
            return Err(Error::Environment { reason });
        }
        (true, _) => Audience::OtherHosts,
        (false, Transport::Tcp) => Audience::ThisHost,
        (false, _) if job.node.is_some() => Audience::ThisHost,
        (false, _) => return Ok((Vec::new(), Vec::new())),
    };
    let restrictions = Restrictions::from_environment()?;
    let listening = addresses::listen(&interfaces::list(), &restrictions, audience)?;
    for reason in &listening.left_out {
        log::debug!("proc_init: not offered to other hosts: {reason}");
    }
    let endpoints = match &job.detour {
        None => listening.endpoints,
        Some(detour) => listening.endpoints.into_iter().map(|at| detour.of(at)).collect(),
    };
    Ok((listening.listeners, endpoints))
}

/// GASPI_DEAD_AFTER: how long a host that does not answer is waited for.
fn dead_after() -> Result<Duration> {
    let Some(value) = std::env::var_os("GASPI_DEAD_AFTER") else { return Ok(DEAD_AFTER) };
    let text = value.to_string_lossy();
    match text.parse() {
        Ok(seconds @ 3..=3600) => Ok(Duration::from_secs(seconds)),
        _ => Err(Error::Environment {
            reason: format!("GASPI_DEAD_AFTER is {text:?}; it takes 3 to 3600 seconds"),
        }),
    }
}

/// The default of GASPI_DEAD_AFTER.
const DEAD_AFTER: Duration = Duration::from_secs(5);

/// What the others of the job have to know about this rank.
fn card(job: &Job, address: String, endpoints: Vec<SocketAddr>) -> Result<Card> {
    let pid = std::process::id().cast_signed();
    Ok(Card {
        rank: job.rank,
        pid,
        start_time: process::start_time(pid).unwrap_or(0),
        instance: random_u64()?,
        node: match (job.node, job.transport) {
            (Some(node), _) => node,
            // A node of its own.
            (None, Transport::Tcp) => random_u64()?,
            (None, _) => 0,
        },
        machine: 0,
        address,
        endpoints,
        host: job.hosts.get(job.rank.index()).cloned().unwrap_or_default(),
        cpus: affinity::mask(),
    })
}

impl Joining {
    /// Prepares to join `job`; other ranks can see this one from the first [`wait`](Joining::wait)
    /// on.
    ///
    /// # Errors
    /// [`Error::Config`], or what the operating system refuses.
    pub fn new(job: Job, config: Config) -> Result<Joining> {
        config.check()?;
        // Before the first thread of the library.
        membarrier::prepare();
        let stage = if job.size == 1 {
            Stage::Single
        } else {
            let address = format!("gaspi-rank-{:032x}", u128::from_ne_bytes(random()?));
            let listener = socket::listen(&address)
                .map_err(|error| Error::os("making the listener of this rank", &error))?;
            let (endpoints, addresses) = listen(&job)?;
            let card = card(&job, address, addresses)?;
            let gathering = Box::new(Gathering::new(&job, &config, card)?);
            Stage::Gathering { gathering, listener: Some(listener), endpoints }
        };
        Ok(Joining { job, config, stage })
    }

    /// Joins (GASPI 17.1, 5.3.1): returns once all ranks of the job have met.
    ///
    /// # Errors
    /// [`Error::Timeout`] says who is missing and leaves this value usable.
    /// [`Error::ConfigMismatch`] and [`Error::Meeting`] end the start on all ranks.
    pub fn wait(&mut self, timeout: Timeout) -> Result<Runtime> {
        let deadline = timeout.deadline();
        match &mut self.stage {
            Stage::Single => {
                let own = card(&self.job, String::new(), Vec::new())?;
                let area = NodeArea::single(self.config.group_max)?;
                let peers = Peers::new(None, None, Vec::new(), 1)?;
                let runtime = self.assemble(vec![own], area, Secrets::default(), None, peers)?;
                self.stage = Stage::Started(Box::new(runtime));
            }
            Stage::Gathering { gathering, listener, endpoints } => {
                let table = gathering.poll(deadline)?;
                let (size, rank) = (self.job.size, self.job.rank);
                let node = table.cards[rank.index()].node;
                let locals = table.cards.iter().filter(|card| card.node == node);
                let ranks = locals.clone().map(|card| card.rank).collect::<Box<[Rank]>>();
                let remote = ranks.len() < table.cards.len();
                let groups = self.config.group_max;
                let mut area = NodeArea::map(&table.area, size, groups, rank, ranks)?;
                let mut doorbell = None;
                if remote {
                    doorbell = Some(Doorbells::bind(&table.cards[rank.index()].address)?);
                    let listeners = locals.map(|card| (card.rank, card.address.clone()));
                    area = area.with_doorbells(Doorbells::new(listeners)?);
                }
                let peers = Peers::new(listener.take(), doorbell, std::mem::take(endpoints), size)?;
                let membership = Some(table.membership);
                let secrets = Secrets { token: table.token, key: table.key };
                let runtime = self.assemble(table.cards, area, secrets, membership, peers)?;
                self.stage = Stage::Started(Box::new(runtime));
            }
            Stage::Started(_) | Stage::Done => {}
        }
        let Stage::Started(runtime) = &self.stage else { return Err(Error::NotInitialised) };
        runtime.inner().await_all_joined(deadline)?;
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Started(runtime) => Ok(*runtime),
            _ => Err(Error::NotInitialised),
        }
    }

    fn assemble(
        &self,
        cards: Vec<Card>,
        area: NodeArea,
        secrets: Secrets,
        membership: Option<Membership>,
        peers: Peers,
    ) -> Result<Runtime> {
        let (config, size) = (self.config.clone(), self.job.size);
        let node = cards[self.job.rank.index()].node;
        let local: Box<[bool]> = cards.iter().map(|card| card.node == node).collect();
        let (ranks, cores) = of_machine(&cards, self.job.rank);
        let groups = Groups::new(&config, self.job.rank, &local);
        let inner = Arc::new(Inner {
            process: std::process::id(),
            rank: self.job.rank,
            job: self.job.clone(),
            size,
            cards,
            local,
            mirror: Mirror::new(size, config.group_max),
            said: Said::new(config.group_max),
            mailbox: Mailbox::default(),
            processes: (0..size).map(|_| OnceLock::new()).collect(),
            token: secrets.token,
            key: secrets.key,
            dead_after: dead_after()?,
            shape: Shape { ranks: size, notifications: config.notification_num },
            area,
            waiter: Waiter::new(ranks, cores).on_sockets(peers.remote),
            segments: Table::new(),
            segment_ids: Default::default(),
            targets: Tables::new(size, &NO_TARGETS),
            segment_changes: Mutex::default(),
            next_generation: AtomicU32::new(1),
            nonce: random_u64()?,
            queues: queues(config.queue_num),
            channels: Channels::new(size),
            groups,
            peers,
            outbox: Outbox::new(size),
            corrupt: (0..size).map(|_| AtomicU8::new(0)).collect(),
            statistics: Statistics::default(),
            membership: Mutex::new(membership),
            closed: AtomicBool::new(false),
            began: Instant::now(),
            config,
        });
        if let Some((group, _)) = initial_group(&inner.config, size) {
            inner.mirror.committed(group, FIRST_INCARNATION);
        }
        for rank in (0..size).map(|rank| Rank(rank as u16)).filter(|rank| !inner.is_local(*rank)) {
            inner.area.remote_joined(rank);
        }
        let thread = (size > 1).then(|| start_progress(&inner)).transpose()?;
        inner.area.join();
        Ok(Runtime { extensions: Extensions::default(), inner, thread: Mutex::new(thread) })
    }
}

/// How many ranks the machine of `rank` has, of all its nodes, and how many cores they may use.
fn of_machine(cards: &[Card], rank: Rank) -> (u32, u32) {
    let machine = cards[rank.index()].machine;
    let here = || cards.iter().filter(|card| card.machine == machine);
    (here().count() as u32, affinity::usable_cores(here().map(|card| card.cpus.as_slice())))
}

fn start_progress(inner: &Arc<Inner>) -> Result<JoinHandle<()>> {
    let progress = Progress::new(Arc::clone(inner))?;
    // A thread inherits the mask of signals: none of the program's are delivered to it.
    process::with_signals_blocked(|| {
        std::thread::Builder::new()
            .name("gaspi-progress".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || progress.run())
    })
    .map_err(|error| Error::os("starting the progress thread", &error))
}

impl Inner {
    /// Makes the connections to the ranks of other nodes, unless they are made on first use.
    fn await_all_reached(&self, deadline: Deadline) -> Result<()> {
        if !self.peers.remote || self.config.topology != Topology::Static {
            return Ok(());
        }
        let waiting = Waiting { call: Call::Init, object: 0 };
        // Nothing wakes a rank when it is time to connect to lower ones that have not done so: where
        // one of them has died before, nothing would ever come from it.
        let patient = deadline.at_most(PATIENCE.saturating_sub(self.began.elapsed()));
        let reached = self.until(patient, waiting, || self.reached_all());
        let reached = reached.or_else(|| self.until(deadline, waiting, || self.reached_all()));
        reached.unwrap_or_else(|| {
            let unreached =
                |card: &&Card| !self.is_local(card.rank) && !self.peers.is_established(card.rank);
            let first = self.cards.iter().find(unreached);
            let who = first.map_or(String::new(), |card| format!("{} on {}", card.rank, card.host));
            Err(Error::Timeout { pending: format!("the connection to {who}") })
        })
    }

    /// Waits until every rank has mapped the node area.
    fn await_all_joined(&self, deadline: Deadline) -> Result<()> {
        let waiting = Waiting { call: Call::Init, object: 0 };
        let mut next = 0;
        let outcome = self.until(deadline, waiting, || {
            while next < self.size {
                match self.area.life(Rank(next as u16)) {
                    life::ABSENT => return None,
                    life::DEAD => return Some(Err(Rank(next as u16))),
                    _ => next += 1,
                }
            }
            Some(Ok(()))
        });
        match outcome {
            Some(Ok(())) => {
                self.await_all_reached(deadline)?;
                self.area.settle_fences();
                if !self.area.wakes_without_fence() {
                    log::debug!(
                        "proc_init: membarrier is refused to a rank of this machine, so that each \
                         notification costs a fence; allow it in the container's seccomp profile"
                    );
                }
                Ok(())
            }
            Some(Err(rank)) => {
                let reason =
                    format!("{rank} on {} died while joining", self.cards[rank.index()].host);
                Err(Error::Meeting { reason })
            }
            None => {
                Err(Error::Timeout { pending: format!("rank {next} to map the node's memory") })
            }
        }
    }
}

/// One rank of a job. `Send` and `Sync`; all procedures may be called from several threads at once.
///
/// Dropping it leaves the job as [`term`](Runtime::term) does, without waiting. Where a thread that
/// owns one panics, the others see a death.
#[derive(Debug)]
pub struct Runtime {
    extensions: Extensions,
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Runtime {
    #[inline]
    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// The same, to be kept.
    pub(crate) fn shared(&self) -> Arc<Inner> {
        Arc::clone(&self.inner)
    }

    /// State that a layer above keeps with this rank: made on first use, one value of each type,
    /// dropped with the rank before that leaves its job. `make` must not ask for extensions itself.
    #[inline]
    pub fn extension<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        self.extensions.get(make)
    }

    /// Runs what takes nanoseconds, as far as nothing is in its way.
    #[inline(always)]
    pub fn swiftly<T>(&self, call: impl FnOnce(Inside<'_>) -> Option<T>) -> Option<T> {
        call(Inside::new(self, epoch::enter_swiftly()?))
    }

    /// This rank.
    #[inline]
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// Ranks of the job.
    #[inline]
    pub fn size(&self) -> u32 {
        self.inner.size
    }

    /// This rank's number among those of its host.
    pub fn local_rank(&self) -> u16 {
        self.inner.job.local_rank
    }

    /// Ranks on this rank's host.
    pub fn local_size(&self) -> u32 {
        self.inner.area.locals().len() as u32
    }

    /// The configuration that all ranks agreed on.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.inner.job
    }

    /// The host of this rank.
    pub fn host(&self) -> &str {
        &self.inner.cards[self.inner.rank.index()].host
    }

    /// The host of `rank`.
    ///
    /// # Errors
    /// [`Error::InvalidRank`].
    pub fn host_of(&self, rank: Rank) -> Result<&str> {
        self.inner.check_rank(rank)?;
        Ok(&self.inner.cards[rank.index()].host)
    }

    /// How calls of this rank wait for others, and why, in words.
    pub fn waiting_mode(&self) -> String {
        let (ranks, cores) = of_machine(&self.inner.cards, self.inner.rank);
        let noun = if cores == 1 { "core" } else { "cores" };
        if self.inner.waiter.spins() {
            format!("spins, then sleeps ({ranks} ranks may use {cores} {noun})")
        } else {
            format!("yields, then sleeps ({ranks} ranks share {cores} {noun})")
        }
    }

    /// Connections that init makes: 1 for all, 2 for on first use, 0 for none.
    pub fn build_infrastructure(&self) -> u32 {
        match self.inner.config.topology {
            Topology::None => 0,
            Topology::Static => 1,
            Topology::Dynamic => 2,
        }
    }

    /// Leaves the job (GASPI 17.1, 5.3.4): local, others go on. Requests that are under way are
    /// given until the timeout. Afterwards every procedure fails with [`Error::NotInitialised`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if requests are still under way; this rank then still takes part.
    pub fn term(&self, timeout: Timeout) -> Result<()> {
        let inner = &*self.inner;
        inner.check_open()?;
        let waiting = Waiting { call: Call::Term, object: inner.rank.0.into() };
        let pending = || inner.queues.iter().map(Queue::pending).sum::<u32>();
        let drained = inner.until(timeout.deadline(), waiting, || {
            let peers = (0..inner.size).map(|rank| Rank(rank as u16));
            let handed_over = peers.into_iter().all(|rank| inner.peers.is_drained(rank));
            (pending() == 0 && handed_over).then_some(())
        });
        if drained.is_none() {
            let pending = format!("{} requests that are under way", pending());
            return Err(Error::Timeout { pending });
        }
        self.close();
        Ok(())
    }

    /// Leaves without waiting.
    fn close(&self) {
        let inner = &*self.inner;
        // A forked child has neither the thread nor a right to leave for its parent.
        if inner.process != std::process::id() || inner.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        // First the announcement, so that what fails from here on is known to be no fault; then
        // nobody keeps this rank's memory.
        if std::thread::panicking() {
            inner.area.mark_dead(inner.rank);
        } else {
            inner.area.leave();
        }
        inner.end_all_segments();
        if inner.peers.remote && !std::thread::panicking() {
            inner.say_goodbye();
        }
        inner.peers.stop.store(true, Ordering::Release);
        inner.peers.bell.ring();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It does not panic; if it did, there is nothing left to do for it.
            let _ = thread.join();
        }
        inner.peers.shut_down();
        // After the announcement: whoever hosts the job sees the connection close.
        *inner.membership() = None;
        epoch::release_counters(inner.id());
    }

    /// Whether the group of all ranks exists.
    pub(crate) fn has_group_all(&self) -> bool {
        self.inner.config.topology != Topology::None
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let extensions = std::mem::take(&mut self.extensions);
        if self.inner.process == std::process::id() {
            // While it can still say to others that it does not need them any more.
            drop(extensions);
        } else {
            std::mem::forget(extensions);
        }
        self.close();
        if self.inner.process != std::process::id() {
            // Threads that do not exist here may have been using it, and would be waited for.
            std::mem::forget(Arc::clone(&self.inner));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Threads that outlived the rank may have counted for it since it left.
        epoch::release_counters(self.id());
    }
}

/// The group of all ranks, for a fresh rank.
pub(crate) fn initial_group(config: &Config, size: u32) -> Option<(GroupId, Vec<Rank>)> {
    (config.topology != Topology::None)
        .then(|| (GroupId::ALL, (0..size).map(|rank| Rank(rank as u16)).collect()))
}

mod extensions;
#[cfg(test)]
mod tests;
