//! Which job this process belongs to, as what, and where its exchange server is.

use super::addresses::Audience;
use super::auth::Key;
use super::launchers::session::Session;
use crate::config::DeviceChoice;
use crate::ids::Rank;
use crate::os::process;
use crate::os::socket;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Ranks of the largest job: rank numbers have 16 bits.
pub const RANKS_MAX: u32 = 65535;

/// Which job this process belongs to, and as what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Names the job in messages and in its processes' environment.
    pub id: String,
    /// This rank.
    pub rank: Rank,
    /// Ranks of the job, 1..=65535.
    pub size: u32,
    /// This rank's number among those on its machine.
    pub local_rank: u16,
    /// The machine of each rank, as far as this process knows before the exchange: the right one
    /// for this rank.
    pub hosts: Arc<[Arc<str>]>,
    /// What may carry bytes between ranks.
    pub transport: Transport,
    /// The device, where one is to be used.
    pub device: DeviceChoice,
    /// Whether ranks may be on several hosts, so that each has to listen on sockets.
    pub spans_hosts: bool,
    /// The node to belong to, where it is not the machine: see [`Job::on_node`].
    pub(crate) node: Option<u64>,
    /// Where others find the listeners of this rank, where that is not where they are.
    pub(crate) proxy: Option<TestProxy>,
    /// What this rank takes its machine for: see [`Job::on_machine`].
    pub(crate) machine: TestMachine,
    pub(crate) server: ServerLocation,
}

/// What a test says of a machine, in place of what is there: see [`Job::on_machine`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TestMachine {
    /// Cores that its ranks may use.
    pub cores: Option<u32>,
    /// The kernel refuses copies between processes.
    pub without_cross_memory: bool,
    /// Addresses of its interfaces, with the bits of their networks.
    pub networks: Option<&'static [(IpAddr, u8)]>,
}

/// Gives for the address of a listener the one at which others find it: see [`Job::via_proxy`].
#[derive(Clone)]
pub struct TestProxy(Arc<dyn Fn(SocketAddr) -> SocketAddr + Send + Sync>);

impl TestProxy {
    /// A proxy; `of` is asked once for each listener, before anybody knows of it.
    pub fn new(of: impl Fn(SocketAddr) -> SocketAddr + Send + Sync + 'static) -> TestProxy {
        TestProxy(Arc::new(of))
    }

    pub(crate) fn of(&self, listener: SocketAddr) -> SocketAddr {
        (self.0)(listener)
    }
}

impl std::fmt::Debug for TestProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TestProxy")
    }
}

impl PartialEq for TestProxy {
    fn eq(&self, other: &TestProxy) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for TestProxy {}

/// What may carry bytes between ranks (GASPI_TRANSPORT).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Shared memory between ranks of a machine, TCP between machines.
    #[default]
    Auto,
    /// Shared memory only.
    SharedMemory,
    /// TCP, also between ranks of one machine.
    Tcp,
    /// InfiniBand or RoCE for the data of queues, also between ranks of one machine; TCP for what
    /// that does not carry.
    Verbs,
}

impl Transport {
    /// Whether each rank is a node of its own.
    pub(crate) fn separates(self) -> bool {
        matches!(self, Transport::Tcp | Transport::Verbs)
    }
}

/// Where the exchange server of this rank is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerLocation {
    /// A job of one rank exchanges nothing.
    NotNeeded,
    /// The launcher serves under this abstract name.
    Launcher(String),
    /// All ranks know this abstract name; the first to take it serves.
    FirstRank(String),
    /// The job spans machines: the first rank of each to take this abstract name serves there, and
    /// the servers connect to the hub.
    OverHosts {
        /// The same on all machines.
        name: String,
        hub: HubLocation,
    },
    /// The process manager that started the ranks has to be asked first.
    ByManager(Arc<Session>),
}

/// Where the hub of a job is that was started by hand on several machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubLocation {
    /// The machine of the hub: a name or an address.
    pub(super) host: String,
    /// Its port, where the user has named one.
    pub(super) port: Option<u16>,
    /// Whether that is this machine.
    pub(super) here: bool,
    /// Where the other machines are.
    pub(super) audience: Audience,
    /// The key, where it is not made from the user's secret.
    pub(super) key: Option<Key>,
    /// Whether munge may vouch for the user where that user has no secret.
    pub(super) munge: bool,
    /// Its addresses, where they are known without a resolver.
    pub(super) addresses: Vec<IpAddr>,
}

/// The machine of each of so many ranks, which are all on one.
pub(super) fn all_on(host: String, size: u32) -> Arc<[Arc<str>]> {
    let host: Arc<str> = host.into();
    (0..size).map(|_| Arc::clone(&host)).collect()
}

/// The machines of these names, by rank: of ranks that follow one another on one there is its name
/// once.
pub(super) fn hosts_by_rank(names: Vec<String>) -> Arc<[Arc<str>]> {
    let mut last: Arc<str> = "".into();
    let share = |name: String| {
        if *last != *name {
            last = name.into();
        }
        Arc::clone(&last)
    };
    names.into_iter().map(share).collect()
}

impl Job {
    /// A job of one rank, without a launcher.
    pub fn single() -> Job {
        Job {
            id: format!("single-{}", std::process::id()),
            rank: Rank(0),
            size: 1,
            local_rank: 0,
            hosts: [process::host_name().into()].into(),
            transport: Transport::Auto,
            device: DeviceChoice::default(),
            spans_hosts: false,
            node: None,
            proxy: None,
            machine: TestMachine::default(),
            server: ServerLocation::NotNeeded,
        }
    }

    /// A rank of which nothing else is known yet.
    pub(super) fn of(rank: Rank, size: u32) -> Job {
        Job {
            rank,
            size,
            local_rank: rank.0,
            hosts: all_on(process::host_name(), size),
            ..Job::single()
        }
    }

    /// A rank of a job whose ranks are threads of this process and share `id`.
    pub fn in_process(id: &str, rank: Rank, size: u32) -> Job {
        let name = format!("thread-{}-{id}", std::process::id());
        Job {
            id: id.to_owned(),
            server: ServerLocation::FirstRank(derived_name(name.as_bytes())),
            ..Job::of(rank, size)
        }
    }

    /// The same rank as if it were on a machine of its own together with those of the same `node`:
    /// they share memory with each other only, and reach all others by TCP.
    #[must_use]
    pub fn on_node(self, node: u64) -> Job {
        Job { node: Some(node), spans_hosts: true, ..self }
    }

    /// The same rank, which takes its machine for another one; for tests. All ranks of the machine
    /// have to.
    #[must_use]
    pub fn on_machine(self, machine: TestMachine) -> Job {
        Job { machine, ..self }
    }

    /// The same rank, which others reach through a proxy that may delay, hold back or cut what
    /// passes: for tests of what a network can do.
    #[doc(hidden)]
    #[must_use]
    pub fn via_proxy(self, proxy: TestProxy) -> Job {
        Job { proxy: Some(proxy), ..self }
    }
}

/// An abstract socket name that all processes of this user derive from the same bytes. It has to
/// stay the same from one version of the library to the next, so the hash is fixed: FNV-1a.
pub(super) fn derived_name(shared: &[u8]) -> String {
    let hash = |start: u64| {
        shared
            .iter()
            .fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    let (one, two) = (hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142));
    format!("gaspi-{}-{one:016x}{two:016x}", socket::own_uid())
}
