//! How a rank comes to be: what it tells the others about itself, and waiting until all have met,
//! have mapped the node's memory and are connected.
//!
//! Invariant: a start survives timeouts; whoever waits again goes on where the last wait ended.

use super::extensions::Extensions;
use super::progress_thread::ProgressThread;
use super::rdma::{dead_after, networks, open_device, with_device};
use super::{Inner, Runtime, atomics_by, descriptors};
use crate::bootstrap::addresses::{self, Audience, Restrictions};
use crate::bootstrap::{
    Card, CardView, Cards, Client, Job, KEY_BYTES, Membership, Transport, listener, report_unable,
};
use crate::channel::Channels;
use crate::config::{Config, Topology};
use crate::control::Control;
use crate::control::chunks::Chunks;
use crate::control::leaders::{AllGroupSteps, Leaders};
use crate::error::{Error, Result};
use crate::group::{FIRST_INCARNATION, FIRST_STEP, Groups, initial_group};
use crate::ids::{GroupId, Rank};
use crate::os::{affinity, clock, interfaces, process, socket};
use crate::passive::{Mailbox, Outbox, Passive};
use crate::queue::queues;
use crate::ranks::Ranks;
use crate::remote_arrivals::RemoteArrivals;
use crate::resend::ResendBuffer;
use crate::segment::Shape;
use crate::segment::own::Memory;
use crate::statistics::Statistics;
use crate::sync::Mutex;
use crate::sync::{AtomicBool, membarrier};
use crate::timeout::{Deadline, Timeout};
use crate::transport::endpoint::Endpoints;
#[cfg(feature = "test-transports")]
use crate::transport::faulty::Faults;
use crate::transport::shm::area::{SharedArea, liveness};
use crate::transport::shm::wakeup::WakeupSockets;
use crate::transport::tcp::connect::reach::{PATIENCE, Wanted};
use crate::transport::tcp::endpoint_table::{EndpointTable, Identity};
#[cfg(feature = "test-transports")]
use crate::transport::twin;
use crate::transport::verbs::Device;
use crate::wait::{Call, Waiter, stall_warning, waiting};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How far a start has come.
#[derive(Debug)]
enum Stage {
    Single,
    #[cfg(feature = "test-transports")]
    Twin(twin::Network),
    Client {
        gathering: Box<Client>,
        listener: Option<OwnedFd>,
        endpoints: Vec<OwnedFd>,
    },
    /// All have met; some may not have mapped the shared area yet.
    Started(Box<Runtime>),
    Done,
}

impl Stage {
    /// Opens what the others of the job are told of.
    fn client(job: &Job, config: &Config, device: Option<&Device>) -> Result<Stage> {
        let (endpoints, addresses) = listen(job, config)?;
        let networks = networks(job, config, device)?;
        let card = card(job, random_u64()?, (addresses, networks))?;
        let listener = socket::listen(&listener(card.instance))
            .map_err(|error| Error::os("making the listener of this rank", &error))?;
        let gathering = Box::new(Client::new(job, config, card)?);
        let gathering = gathering.agreeing(atomics_by::agreed(job, device));
        Ok(Stage::Client { gathering, listener: Some(listener), endpoints })
    }
}

/// A start that is under way. It survives timeouts: wait again to continue.
#[derive(Debug)]
pub struct PendingInit {
    job: Job,
    config: Config,
    stage: Stage,
    /// The device that carries data between nodes, until it is used.
    device: Option<Device>,
    /// The progress thread, until it has its rank.
    thread: Option<ProgressThread>,
    /// After how long calls say what they wait for.
    stall_warning: Option<Duration>,
    /// The seed of what delays requests.
    #[cfg(feature = "test-transports")]
    faults: Option<u64>,
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

/// Listens for ranks of other nodes, if there may be any.
fn listen(job: &Job, config: &Config) -> Result<(Vec<OwnedFd>, Vec<SocketAddr>)> {
    let audience = match (job.spans_hosts && job.node.is_none(), job.transport) {
        (true, Transport::SharedMemory) => {
            let reason = "GASPI_TRANSPORT is shm, but this job runs on several hosts, which share \
                          no memory; leave it away, or set it to auto"
                .to_owned();
            return Err(Error::Environment { reason });
        }
        (true, _) => Audience::OtherHosts,
        (false, Transport::Tcp | Transport::Verbs) => Audience::ThisHost,
        (false, _) if job.node.is_some() => Audience::ThisHost,
        (false, _) => return Ok((Vec::new(), Vec::new())),
    };
    let restrictions = Restrictions::from_environment()?;
    let restrictions = restrictions.or_from_port(config.tcp_port, job.size);
    let listening = addresses::listen(&interfaces::list(), &restrictions, audience)?;
    for reason in &listening.left_out {
        log::debug!("proc_init: not offered to other hosts: {reason}");
    }
    let endpoints = match &job.proxy {
        None => listening.endpoints,
        Some(proxy) => listening.endpoints.into_iter().map(|at| proxy.of(at)).collect(),
    };
    Ok((listening.listeners, endpoints))
}

/// What the others of the job have to know about this rank.
fn card(
    job: &Job,
    instance: u64,
    (endpoints, networks): (Vec<SocketAddr>, Vec<(IpAddr, u8)>),
) -> Result<Card> {
    let pid = std::process::id().cast_signed();
    Ok(Card {
        rank: job.rank,
        pid,
        start_time: process::own_start_time().unwrap_or(0),
        instance,
        node: match (job.node, job.transport) {
            (Some(node), _) => node,
            // A node of its own.
            (None, Transport::Tcp | Transport::Verbs) => random_u64()?,
            (None, _) => 0,
        },
        machine: 0,
        endpoints,
        host: job.hosts.get(job.rank.index()).cloned().unwrap_or_default(),
        cpus: match job.machine.cores {
            Some(cores) => affinity::first(cores as usize).into(),
            None => affinity::mask().into(),
        },
        networks: networks.into(),
    })
}

impl PendingInit {
    /// Prepares to join `job`; other ranks can see this one from the first
    /// [`wait`](PendingInit::wait) on.
    ///
    /// # Errors
    /// [`Error::Config`], or what the operating system refuses.
    pub fn new(job: Job, config: Config) -> Result<PendingInit> {
        config.check()?;
        let stall_warning = stall_warning()?;
        if job.size > 1 {
            descriptors::prepare(&job, &config)?;
            super::addresses::check(&job, &config)?;
        }
        // Before the first thread of the library.
        membarrier::prepare();
        let device = open_device(&job, &config);
        // The others would wait for a rank that has no device for atomics.
        let told = device.as_ref().err().filter(|_| job.device.atomics);
        told.inspect(|error| report_unable(&job, error));
        let device = device?;
        // It has to be there before the others meet: they would wait for a rank without it.
        let thread = (job.size > 1).then(|| ProgressThread::start(job.rank)).transpose();
        let thread = thread.inspect_err(|error| report_unable(&job, error))?;
        let stage = if job.size == 1 {
            Stage::Single
        } else {
            let stage = Stage::client(&job, &config, device.as_ref());
            stage.inspect_err(|error| report_unable(&job, error))?
        };
        Ok(PendingInit {
            job,
            config,
            stage,
            device,
            thread,
            stall_warning,
            #[cfg(feature = "test-transports")]
            faults: None,
        })
    }

    /// The RDMA device that has been opened and waits to be used, in words.
    #[doc(hidden)]
    pub fn rdma_device(&self) -> Option<String> {
        self.device.as_ref().map(|device| device.description().to_owned())
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
                let own = card(&self.job, 0, (Vec::new(), Vec::new()))?;
                let area = SharedArea::single(self.config.group_max)?;
                // Nobody connects.
                let (token, key) = ([0; 16], [0; KEY_BYTES]);
                let identity = Identity { token, key, dead_after: dead_after()? };
                let endpoints = EndpointTable::new(None, None, Vec::new(), 1, identity)?;
                let runtime =
                    self.assemble(Cards::own(&[own])?, area, None, Endpoints::new(endpoints))?;
                self.stage = Stage::Started(Box::new(runtime));
            }
            #[cfg(feature = "test-transports")]
            Stage::Twin(network) => {
                let network = network.clone();
                let runtime = self.join(network)?;
                self.stage = Stage::Started(Box::new(runtime));
            }
            Stage::Client { gathering, listener, endpoints } => {
                let table = gathering.poll(deadline)?;
                // Its memory is there for what follows.
                self.job.hosts = Arc::default();
                let (size, rank) = (self.job.size, self.job.rank);
                let node = table.cards.at(rank).node();
                let locals = || table.cards.iter().filter(|card| card.node() == node);
                let ranks = locals().map(CardView::rank).collect::<Box<[Rank]>>();
                let remote = ranks.len() < table.cards.len();
                let nth = ranks.iter().position(|other| *other == rank).unwrap_or(0) as u32;
                let groups = self.config.group_max;
                if remote {
                    atomics_by::check(&table.cards, self.device.as_ref())?;
                }
                let area = SharedArea::map(&table.area, size, groups, rank, ranks)?;
                let mut area = area.labelled(&self.job.id);
                let mut wakeup_socket = None;
                if remote {
                    wakeup_socket = Some(WakeupSockets::bind(&table.cards.at(rank).listener())?);
                    let listeners = locals().map(|card| (card.rank(), card.listener()));
                    area = area.with_wakeup_sockets(WakeupSockets::new(listeners)?);
                }
                let endpoints = EndpointTable::new(
                    listener.take(),
                    wakeup_socket,
                    std::mem::take(endpoints),
                    size,
                    Identity { token: table.token, key: table.key, dead_after: dead_after()? },
                )?;
                let membership = Some(table.membership);
                let mut endpoints = Endpoints::new(endpoints);
                if remote {
                    let device = self.device.take();
                    let of = (nth, &table.cards);
                    endpoints = with_device(endpoints, device, of, (&self.job, &self.config))?;
                }
                #[cfg(feature = "test-transports")]
                let endpoints = Endpoints { faults: self.faults.map(Faults::new), ..endpoints };
                let runtime = self.assemble(table.cards, area, membership, endpoints)?;
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

    /// Has the progress thread serve this rank from now on.
    fn progress(&mut self, inner: &Arc<Inner>) -> Result<JoinHandle<()>> {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            // One that had it has failed.
            None => ProgressThread::start(self.job.rank)?,
        };
        thread.serve(inner)
    }

    fn assemble(
        &mut self,
        cards: Cards,
        area: SharedArea,
        membership: Option<Membership>,
        endpoints: Endpoints,
    ) -> Result<Runtime> {
        let (config, size) = (self.config.clone(), self.job.size);
        let (ranks, cores) = of_machine(&cards, self.job.rank);
        let initial = initial_group(&config, size);
        let cores = self.job.machine.cores.unwrap_or(cores);
        let waiter = Waiter::new(ranks, cores).on_sockets(endpoints.remote);
        let waiter = waiter.warning_after(self.stall_warning);
        let ranks =
            Ranks::new(self.job.rank, cards, area, Arc::clone(&endpoints.stream.sets.wakeup));
        let leaders = initial.as_ref().and_then(|(_, members)| {
            let members = members.as_slice().into();
            Leaders::of(&ranks, &members, self.job.rank.index(), GroupId::ALL).map(Arc::new)
        });
        let inner = Arc::new(Inner {
            process: std::process::id(),
            job: self.job.clone(),
            memory: Memory::new(
                Shape { ranks: size, notifications: config.notification_num },
                random_u64()?,
            ),
            control: Control {
                groups: Groups::new(&config, &ranks, leaders.clone()),
                remote_arrivals: RemoteArrivals::new(size, config.group_max),
                steps: AllGroupSteps::new(config.group_max),
                chunks: Chunks::new(config.group_max),
                resend_buffer: ResendBuffer::new(config.group_max),
            },
            passive: Passive { mailbox: Mailbox::default(), outbox: Outbox::new(size) },
            queues: queues(config.queue_num, size),
            channels: Channels::new(size),
            waiter,
            statistics: Statistics::default(),
            membership: Mutex::new(membership),
            closed: AtomicBool::new(false),
            began: clock::now(),
            endpoints,
            ranks,
            config,
        });
        if let Some((group, _)) = initial {
            inner.control.steps.of(group).committed(FIRST_INCARNATION, leaders);
            // Nothing has come before.
            inner.control.remote_arrivals.committed(group, FIRST_INCARNATION);
        }
        for rank in inner.ranks.all().filter(|rank| !inner.ranks.is_local(*rank)) {
            inner.ranks.area.remote_joined(rank);
        }
        if let Some(verbs) = inner.endpoints.verbs(&*inner) {
            // Before a pair is made, and before ranks of the node know that this one has joined.
            verbs.prepare_to_vouch();
        }
        let thread = inner.has_peers().then(|| self.progress(&inner)).transpose()?;
        #[cfg(feature = "test-transports")]
        if inner.endpoints.faults.is_some() {
            Faults::start(&inner, |rank| {
                Some((rank.endpoints.faults.as_ref()?, &rank.endpoints.stream))
            });
        }
        inner.ranks.area.join();
        Ok(Runtime { extensions: Extensions::default(), inner, thread: Mutex::new(thread) })
    }
}

#[cfg(feature = "test-transports")]
impl PendingInit {
    /// Prepares to join a job over the network of a test, in place of sockets.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn on_twin(job: Job, config: Config, network: twin::Network) -> Result<PendingInit> {
        config.check()?;
        membarrier::prepare();
        let stage = Stage::Twin(network);
        let stall_warning = stall_warning()?;
        let (device, thread, faults) = (None, None, None);
        Ok(PendingInit { job, config, stage, device, thread, stall_warning, faults })
    }

    /// The same with requests that are delayed by a seed.
    #[must_use]
    pub fn with_faults(self, seed: u64) -> PendingInit {
        PendingInit { faults: Some(seed), ..self }
    }

    /// Joins it: with no exchange, as all know alike who takes part.
    fn join(&mut self, network: twin::Network) -> Result<Runtime> {
        let (size, me) = (self.job.size, self.job.rank);
        let card_of = |rank: u32| {
            let job = Job { rank: Rank(rank as u16), node: Some(rank.into()), ..self.job.clone() };
            card(&job, 0, (Vec::new(), Vec::new()))
        };
        let cards = Cards::own(&(0..size).map(card_of).collect::<Result<Vec<_>>>()?)?;
        let area = SharedArea::alone(size, self.config.group_max, me)?;
        let identity = Identity { token: [0; 16], key: [0; KEY_BYTES], dead_after: dead_after()? };
        let stream = EndpointTable::new(None, None, Vec::new(), size, identity)?;
        let runtime = self.assemble(cards, area, None, Endpoints::on_twin(stream, network, me))?;
        if let Some(port) = &runtime.inner().endpoints.twin {
            let up: std::sync::Weak<Inner> = Arc::downgrade(&runtime.shared());
            port.join(up);
        }
        Ok(runtime)
    }
}

/// How many ranks the machine of `rank` has, of all its nodes, and how many cores they may use.
pub(super) fn of_machine(cards: &Cards, rank: Rank) -> (u32, u32) {
    let machine = cards.at(rank).machine();
    let here = || cards.iter().filter(|card| card.machine() == machine);
    (here().count() as u32, affinity::usable_cores(here().map(CardView::cpus)))
}

impl Inner {
    /// The ranks of other nodes with which init makes connections: with the static topology those
    /// that the steps of all ranks need.
    fn reached_first(&self) -> Vec<Rank> {
        if self.config.topology != Topology::Static {
            return Vec::new();
        }
        let is_remote = |rank: &Rank| !self.ranks.is_local(*rank);
        match self.control.steps.of(GroupId::ALL).leaders_at(FIRST_STEP) {
            None => self.ranks.all().filter(is_remote).collect(),
            Some(leaders) => leaders.partners(),
        }
    }

    /// Makes the connection by which this rank hears of ends, and those that init makes.
    fn await_all_reached(&self, deadline: Deadline) -> Result<()> {
        if !self.endpoints.stream.remote {
            return Ok(());
        }
        let waiting = waiting(Call::Init, 0_u32);
        let dialing = &self.endpoints.stream.dialing;
        let mut wanted = Wanted::new(self.reached_first(), self.ranks.me, self.ranks.size);
        // Nothing wakes a rank when it is time to connect to lower ones that have not done so:
        // where one of them has died before, nothing would ever come from it.
        let patient = deadline.at_most(PATIENCE.saturating_sub(clock::since(self.began)));
        let mut reached = || {
            let reached = self.tcp().reached(&mut wanted, clock::since(self.began) >= PATIENCE)?;
            (reached.is_err() || dialing.hears_of_ends()).then_some(reached)
        };
        let outcome = self.until(patient, waiting, &mut reached);
        let outcome = outcome.or_else(|| self.until(deadline, waiting, &mut reached));
        outcome.unwrap_or_else(|| {
            let is_there = |rank: &Rank| self.endpoints.stream.connections.is_established(*rank);
            let first = wanted.ranks().iter().find(|rank| !is_there(rank));
            let pending = match first {
                Some(rank) => {
                    format!("the connection to {rank} on {}", self.ranks.host_of(*rank))
                }
                None => "the connection by which news of ends come".to_owned(),
            };
            Err(Error::Timeout { pending })
        })
    }

    /// Waits until every rank has mapped the shared area.
    fn await_all_joined(&self, deadline: Deadline) -> Result<()> {
        let waiting = waiting(Call::Init, 0_u32);
        let mut next = 0;
        let outcome = self.until(deadline, waiting, || {
            while next < self.ranks.size {
                match self.ranks.liveness(Rank(next as u16)) {
                    liveness::ABSENT => return None,
                    liveness::DEAD => return Some(Err(Rank(next as u16))),
                    _ => next += 1,
                }
            }
            Some(Ok(()))
        });
        match outcome {
            Some(Ok(())) => {
                self.await_all_reached(deadline)?;
                if self.config.topology == Topology::Static {
                    self.connect_neighbours(GroupId::ALL, FIRST_STEP);
                }
                self.ranks.area.settle_fences();
                if !self.ranks.area.wakes_without_fence() {
                    log::debug!(
                        "proc_init: membarrier is refused to a rank of this machine, so that each \
                         notification costs a fence; allow it in the container's seccomp profile"
                    );
                }
                Ok(())
            }
            Some(Err(rank)) => {
                let reason = format!("{rank} on {} died while joining", self.ranks.host_of(rank));
                Err(Error::Meeting { reason })
            }
            None => {
                Err(Error::Timeout { pending: format!("rank {next} to map the node's memory") })
            }
        }
    }
}
