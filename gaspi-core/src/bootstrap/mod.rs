//! From the environment to a connected job: find out who this process is, meet the other ranks,
//! exchange cards.
//!
//! The ranks of a job meet at a *host*: gaspi_run under its own name, or, in a job started by hand,
//! the first rank to take a name that all ranks derive alike. Each rank joins with its [`Card`];
//! once all are there the host makes the node area, a sealed memory file, and sends it with all
//! cards as the [`Table`]. Names are abstract (nothing to delete), and both sides check that the
//! kernel vouches for the same user.
//!
//! [`message`] is pure bytes, [`host`] a pure state machine; sockets are in [`server`] and
//! [`gathering`]; over several hosts [`links`], [`hosting`] and [`seeker`] join in. Another way to
//! start (Slurm, PMI) adds a [`MeetingPlace`].
//!
//! Invariant: no wait here outlives its deadline, and the end of any rank before the table went out
//! ends the meeting for all that take part in it.

pub(crate) mod addresses;
pub(crate) mod envelope;
mod environment;
mod fields;
mod gathering;
mod host;
mod hosting;
mod keys;
mod links;
pub mod machines;
pub(crate) mod message;
mod roster;
mod seeker;
mod server;
mod stream;
mod system;
mod wire;

pub use environment::RANKS_MAX;
pub use gathering::Gathering;
pub(crate) use gathering::tell_unable;
pub use links::LinkId;
pub use roster::Stage;
pub use server::{Host, Presence, Request};

use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::socket::{self, Piece};
use message::{ENDPOINTS_MAX, Message};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use wire::Wire;

/// Bytes of a job's secret.
pub const KEY_BYTES: usize = 32;

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
    /// The machine of each rank, as far as this process knows before the meeting: the right one for
    /// this rank.
    pub hosts: Vec<String>,
    /// What may carry bytes between ranks.
    pub transport: Transport,
    /// Whether ranks may be on several hosts, so that each has to listen on sockets.
    pub spans_hosts: bool,
    /// The node to belong to, where it is not the machine: see [`Job::on_node`].
    pub(crate) node: Option<u64>,
    /// Where others find the listeners of this rank, where that is not where they are.
    pub(crate) detour: Option<Detour>,
    pub(crate) place: MeetingPlace,
}

/// Gives for the address of a listener the one at which others find it: see [`Job::by_detour`].
#[derive(Clone)]
pub struct Detour(Arc<dyn Fn(SocketAddr) -> SocketAddr + Send + Sync>);

impl Detour {
    /// A detour; `of` is asked once for each listener, before anybody knows of it.
    pub fn new(of: impl Fn(SocketAddr) -> SocketAddr + Send + Sync + 'static) -> Detour {
        Detour(Arc::new(of))
    }

    pub(crate) fn of(&self, listener: SocketAddr) -> SocketAddr {
        (self.0)(listener)
    }
}

impl std::fmt::Debug for Detour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Detour")
    }
}

impl PartialEq for Detour {
    fn eq(&self, other: &Detour) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Detour {}

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
}

/// Where the ranks meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MeetingPlace {
    /// A job of one rank meets nobody.
    Nowhere,
    /// The launcher hosts under this abstract name.
    Launcher(String),
    /// All ranks know this abstract name; the first to take it hosts.
    Agreed(String),
    /// The job spans machines: the first rank of each to take this abstract name hosts there, and
    /// they meet at the hub.
    Hosts {
        /// The same on all machines.
        name: String,
        hub: HubPlace,
    },
}

/// Where the machines of a job that was started by hand meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubPlace {
    /// The machine of the hub: a name or an address.
    host: String,
    /// Its port, where the user has named one.
    port: Option<u16>,
    /// Whether that is this machine.
    here: bool,
    /// Where the other machines are.
    audience: addresses::Audience,
    /// The key, where it is not made from the user's secret.
    key: Option<Key>,
}

/// The secret of a job; never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key([u8; KEY_BYTES]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Job {
    /// A job of one rank, without a launcher.
    pub fn single() -> Job {
        Job {
            id: format!("single-{}", std::process::id()),
            rank: Rank(0),
            size: 1,
            local_rank: 0,
            hosts: vec![system::host_name()],
            transport: Transport::Auto,
            spans_hosts: false,
            node: None,
            detour: None,
            place: MeetingPlace::Nowhere,
        }
    }

    /// A rank of which nothing else is known yet.
    fn of(rank: Rank, size: u32) -> Job {
        Job {
            rank,
            size,
            local_rank: rank.0,
            hosts: vec![system::host_name(); size as usize],
            ..Job::single()
        }
    }

    /// A rank of a job whose ranks are threads of this process and share `id`.
    pub fn in_process(id: &str, rank: Rank, size: u32) -> Job {
        let name = format!("thread-{}-{id}", std::process::id());
        Job {
            id: id.to_owned(),
            rank,
            size,
            local_rank: rank.0,
            hosts: vec![system::host_name(); size as usize],
            transport: Transport::Auto,
            spans_hosts: false,
            node: None,
            detour: None,
            place: MeetingPlace::Agreed(environment::agreed_name(name.as_bytes())),
        }
    }

    /// The same rank as if it were on a machine of its own together with those of the same `node`:
    /// they share memory with each other only, and reach all others by TCP.
    #[must_use]
    pub fn on_node(self, node: u64) -> Job {
        Job { node: Some(node), spans_hosts: true, ..self }
    }

    /// The same rank, which others reach over somebody in between who may delay, hold back or cut
    /// what passes: for tests of what a network can do.
    #[must_use]
    pub fn by_detour(self, detour: Detour) -> Job {
        Job { detour: Some(detour), ..self }
    }
}

/// What the other ranks need to know about a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// The rank; the meeting sets it from the job.
    pub rank: Rank,
    /// Its process as the host's kernel vouches, 0 where it is not visible. The meeting sets it.
    pub pid: i32,
    /// When that process was started (field 22 of /proc/PID/stat): with the pid it names one
    /// process.
    pub start_time: u64,
    /// Random; tells ranks that are threads of one process apart.
    pub instance: u64,
    /// Ranks of the same node share memory. The meeting makes sure that they can.
    pub node: u64,
    /// Ranks of the same machine met at the same place: one kernel and one network namespace, so
    /// that their process ids mean the same and their addresses are each other's own. The meeting
    /// sets it.
    pub machine: u64,
    /// The abstract name of the rank's own listener, for ranks of its node.
    pub address: String,
    /// Where its listener for other nodes answers; empty where there are none.
    pub endpoints: Vec<SocketAddr>,
    /// Its machine.
    pub host: String,
    /// The cores that it may use, as a mask.
    pub cpus: Vec<u64>,
}

/// What comes out of a meeting.
#[derive(Debug)]
pub struct Table {
    /// The cards of all ranks, by rank.
    pub cards: Vec<Card>,
    /// The area of this rank's node: a memory file sealed in size.
    pub area: OwnedFd,
    /// Random and known to the ranks of this meeting only.
    pub token: [u8; 16],
    /// The secret that connections between nodes prove to know.
    pub key: [u8; KEY_BYTES],
    /// Keeps the launcher informed; to be dropped when the rank leaves the job.
    pub membership: Membership,
}

/// A rank's connection to its launcher, open for as long as the rank is in the job. Dropping it
/// says that the rank has left, unless its thread panics.
#[derive(Debug)]
pub struct Membership {
    /// With the process that made it: a forked child must not end its parent's membership.
    launcher: Option<(Wire, u32)>,
}

/// What a member hears from its launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// The process of a rank has ended, and it had not left the job.
    Died {
        /// The rank.
        rank: Rank,
        /// As in "signal 9".
        how: String,
    },
    /// The launcher itself has ended.
    LauncherEnded,
}

impl Membership {
    fn none() -> Membership {
        Membership { launcher: None }
    }

    fn new(wire: Wire) -> Membership {
        Membership { launcher: Some((wire, std::process::id())) }
    }

    /// The connection, if a launcher hosts the job: it becomes readable when there is news.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.launcher.as_ref().map(|(wire, _)| wire.as_fd())
    }

    /// The next news that has come; the last is the launcher's end, again and again.
    pub fn next_news(&mut self) -> Option<News> {
        let (wire, _) = self.launcher.as_mut()?;
        loop {
            match wire.next() {
                Ok(Some(Message::Died { rank, how })) => return Some(News::Died { rank, how }),
                Ok(Some(_)) => {}
                Ok(None) if wire.fill() => {}
                Ok(None) if wire.ended() => return Some(News::LauncherEnded),
                Ok(None) => return None,
                // Whoever says this is no launcher of this job any more.
                Err(_) => return Some(News::LauncherEnded),
            }
        }
    }

    /// Asks the launcher to end the process of `rank` at once (SIGKILL).
    ///
    /// # Errors
    /// No launcher hosts this job, or it has ended.
    pub fn request_kill(&self, rank: Rank) -> Result<()> {
        let call = format!("asking the launcher to kill {rank}");
        let Some((wire, _)) = &self.launcher else {
            let reason = "the job was started without gaspi_run".to_owned();
            return Err(Error::System { call, reason });
        };
        let frame = Message::Kill(rank).encode();
        // SAFETY: the frame lives across the call.
        let sent = unsafe { socket::send(wire.as_fd(), [Piece::of(&frame), Piece::of(&[])], &[]) };
        match sent {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::os(call, &error)),
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some((wire, owner)) = &mut self.launcher
            && *owner == std::process::id()
        {
            if !std::thread::panicking() {
                let leave: Arc<[u8]> = Message::Leave.encode().into();
                wire.queue(leave, None);
                wire.flush();
            }
            // Forked children may hold copies: closing alone would not end the connection.
            system::shut_down(wire.as_fd());
        }
    }
}

/// Random bytes of the kernel.
fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::System {
        call: "getrandom".to_owned(),
        reason: error.to_string(),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
pub(crate) mod tests;
