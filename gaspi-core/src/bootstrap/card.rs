//! What a rank tells the others about itself.

use crate::ids::Rank;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Addresses of one rank, at most.
pub(crate) const ENDPOINTS_MAX: usize = 64;
/// Networks of one rank, at most.
pub(crate) const NETWORKS_MAX: usize = 8;

/// What the other ranks need to know about a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// The rank. The exchange sets it from the job.
    pub rank: Rank,
    /// Its process as the kernel of the server vouches, 0 where it is not visible. The exchange
    /// sets it.
    pub pid: i32,
    /// When that process was started (field 22 of /proc/PID/stat): with the pid it names one
    /// process.
    pub start_time: u64,
    /// Random; names the rank's listener.
    pub instance: u64,
    /// Ranks of the same node share memory. The exchange makes sure that they can.
    pub node: u64,
    /// Ranks of the same machine registered with the same server: one kernel and one network
    /// namespace, so that their process ids mean the same and their addresses are each other's
    /// own. The exchange sets it.
    pub machine: u64,
    /// Where its listener for other nodes answers; empty where there are none.
    pub endpoints: Vec<SocketAddr>,
    /// Its machine.
    pub host: Arc<str>,
    /// The cores that it may use, as a mask.
    pub cpus: Arc<[u64]>,
    /// The networks of device ports that it could use, with their bits, the best one first.
    pub networks: Arc<[(IpAddr, u8)]>,
}

/// The abstract name of the listener of a rank, for ranks of its node.
pub(crate) fn listener(instance: u64) -> String {
    format!("gaspi-rank-{instance:016x}")
}
