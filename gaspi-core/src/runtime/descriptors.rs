//! How many descriptors a rank needs, and the limit of open files.
//!
//! What a rank keeps open: 7 of its own (listener, two poll sets, wakeup, reserve, launcher, and
//! the shared area: for a moment, or with many ranks of its node for their arenas), with ranks of
//! other nodes some more (listeners for them, wakeup sockets); for each process of its node that it
//! watches a pidfd; for each other rank of its node, once there is something that shared memory
//! does not carry, a connection in each direction; for each rank of another node that it talks to a
//! connection, and one more while it is made; for each node of another machine a watch, or two
//! where both sides made one at once; for each rank of this machine on another node that was
//! disconnected a watch; some by which news of ends come; with the static topology those that the
//! steps of all ranks need; for each segment of its own a memory file, or two with reserved huge
//! pages. Segments of others take none once they are mapped.

use super::Inner;
use crate::bootstrap::{Job, report_unable};
use crate::config::{Config, Topology};
use crate::error::{Error, Result};
use crate::os::limits;
use crate::policy::watching;

/// Those of a rank itself, the one that reads a file of /proc included.
const OWN: u64 = 8;
/// The same where there are ranks of other nodes: a listener, two for wakeup sockets, one that
/// connects.
const OWN_REMOTE: u64 = OWN + 4;
/// A connection in each direction with a rank of the same node.
const LOCAL_CONNECTIONS: u64 = 2;
/// Where there may be as many nodes as ranks: connection, two watches, one that is being made.
const REMOTE_PEER: u64 = 4;
/// On another machine, where others of the node may be neighbours in the tree of its ranks: a
/// connection, a watch, and one that is being made.
const WATCHED_LEAST: u64 = 3;
/// On the same machine, as a node of its own: a connection, and one that is being made.
const BESIDE_LEAST: u64 = 2;
/// The same, and a watch.
const BESIDE_PEER: u64 = 3;
/// More listeners, the arena of channels, the pipe of large payloads, descriptors on their way.
const SPARE: u64 = 32;

/// How many descriptors a rank needs beside those that its program has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Need {
    /// To join, and for what the steps of all ranks need.
    least: u64,
    /// For all that it may come to.
    most: u64,
}

impl Need {
    fn of(job: &Job, config: &Config) -> Need {
        let others = u64::from(job.size) - 1;
        let remote = job.spans_hosts || job.transport.separates();
        let watched = watching::watched(others as usize).len() as u64;
        let (own, least, most) = match (remote, job.spans_hosts) {
            (false, _) => (OWN + watched, 0, LOCAL_CONNECTIONS),
            (true, false) => (OWN_REMOTE, BESIDE_LEAST, BESIDE_PEER),
            // Before the meeting nobody knows who is on which node.
            (true, true) => (OWN_REMOTE, WATCHED_LEAST, REMOTE_PEER),
        };
        let own = if remote { own + tree_connections(job.size) } else { own };
        // Others are connected as they are needed.
        let is_static = config.topology == Topology::Static;
        let connected = if is_static { others.min(partners(job.size)) } else { 0 };
        Need {
            least: own + least * connected,
            most: own + SPARE + most * others + u64::from(config.segment_max),
        }
    }
}

/// With whom the leader of a node exchanges messages in a step of all ranks, at most.
fn partners(size: u32) -> u64 {
    2 * (1 + u64::from(size.ilog2()))
}

/// With parent and children in the tree of nodes, and in that of the ranks of a node.
fn tree_connections(size: u32) -> u64 {
    3 + u64::from(size.ilog2())
}

/// Raises the limit of open files as far as `job` may need it. Where the least is not to be had,
/// the other ranks are told.
///
/// # Errors
/// [`Error::TooManyFiles`] with the need and the limit.
pub(super) fn prepare(job: &Job, config: &Config) -> Result<()> {
    let need = Need::of(job, config);
    let open = limits::open_files();
    let (limit, hard) = limits::raise_open_files(open + need.most);
    let (rank, size) = (job.rank, job.size);
    let least = open + need.least;
    if least > limit {
        let call = format!(
            "{rank} needs {least} open files for {size} ranks, the limit is {limit} (hard limit \
             {hard})"
        );
        let error = Error::TooManyFiles { call: call.into() };
        report_unable(job, &error);
        return Err(error);
    }
    let most = open + need.most;
    if most > limit {
        // Few programs make so many segments.
        let connected = most - u64::from(config.segment_max) <= limit;
        let level = if connected { log::Level::Info } else { log::Level::Warn };
        log::log!(
            level,
            "proc_init: {rank} may need up to {most} open files for {size} ranks and {} \
             segments, the limit is {limit} (hard limit {hard}); raise it with ulimit -n",
            config.segment_max
        );
    }
    Ok(())
}

impl Inner {
    /// How many pidfds leave descriptors for all connections.
    pub(crate) fn affordable_pidfds(&self) -> u64 {
        let Some(limit) = limits::allowed(limits::Resource::OpenFiles) else { return u64::MAX };
        let locals = self.ranks.area.locals().len() as u64 - 1;
        let remotes = u64::from(self.ranks.size) - 1 - locals;
        let connections = LOCAL_CONNECTIONS * locals + REMOTE_PEER * remotes;
        limit.saturating_sub(limits::open_files() + connections + SPARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Transport;
    use crate::ids::Rank;

    fn need(transport: Transport, spans_hosts: bool, topology: Topology) -> Need {
        let job = Job { transport, spans_hosts, ..Job::in_process("need", Rank(0), 512) };
        Need::of(&job, &Config { topology, ..Config::default() })
    }

    #[test]
    fn the_need_grows_with_the_job_and_its_connections() {
        let local = need(Transport::Auto, false, Topology::Static);
        // 16 processes are watched.
        assert_eq!(local, Need { least: 8 + 16, most: 8 + 16 + 32 + 2 * 511 + 255 });
        let tcp = need(Transport::Tcp, false, Topology::Static);
        let news = 3 + 9;
        assert_eq!(tcp, Need { least: 12 + news + 2 * 20, most: 12 + news + 32 + 3 * 511 + 255 });
        let hosts = need(Transport::Auto, true, Topology::Static);
        assert_eq!(hosts, Need { least: 12 + news + 3 * 20, most: 12 + news + 32 + 4 * 511 + 255 });
        let dynamic = need(Transport::Auto, true, Topology::Dynamic);
        assert_eq!(dynamic, Need { least: 12 + news, most: hosts.most });
    }
}
