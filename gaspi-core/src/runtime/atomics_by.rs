//! Who executes atomic operations (GASPI_ATOMICS): what the ranks agree on at init, and what a rank
//! needs so that its device can.
//!
//! Most devices are atomic among their own operations alone. Then all operations on a word have to
//! be executed by the device of its owner, also those of the owner and of ranks of its node. Ranks
//! of one node have no pairs with each other, so that with such devices each rank has to be a node
//! of its own.

use crate::bootstrap::{ATOMICS_FIELD, Cards, Job, Transport};
use crate::config::{Config, Network};
use crate::error::{Error, Result};
use crate::transport::verbs::{AtomicReach, Device, NoDevice};
use std::collections::HashMap;

/// Whether a rank of the job needs a device since atomic operations go by devices.
///
/// # Errors
/// What else was asked for forbids devices.
pub(super) fn need_device(job: &Job, config: &Config) -> Result<bool> {
    if !job.device.atomics {
        return Ok(false);
    }
    let forbids = match job.transport {
        Transport::SharedMemory => "GASPI_TRANSPORT is shm",
        Transport::Tcp => "GASPI_TRANSPORT is tcp",
        _ if config.network == Some(Network::Ethernet) => "the configured network is Ethernet",
        // Ranks of one host share memory.
        Transport::Auto => return Ok(job.spans_hosts || job.node.is_some()),
        Transport::Verbs => return Ok(true),
    };
    let reason = format!("GASPI_ATOMICS is nic, but {forbids}, which uses no RDMA device");
    Err(Error::Environment { reason })
}

/// Gives the device back if it executes atomic operations, or need not.
pub(super) fn fit(job: &Job, device: Device) -> std::result::Result<Device, NoDevice> {
    if device.atomics() != Some(AtomicReach::Nothing) {
        return Ok(device);
    }
    let host = job.hosts.get(job.rank.index()).map_or("", |host| host);
    Err(NoDevice::Wrong(format!(
        "GASPI_ATOMICS is nic, but the device of {} on {host} executes no atomic operations: {}; \
         name another one with GASPI_IB_DEVICE, or set GASPI_ATOMICS to cpu for all ranks",
        job.rank,
        device.description()
    )))
}

/// What all ranks have to agree on: its name, and its number.
pub(super) fn agreed(job: &Job, device: Option<&Device>) -> (&'static str, u64) {
    let by_device = device.and_then(Device::atomics);
    let number = match (job.device.atomics, by_device) {
        (false, _) => 0,
        (true, Some(AtomicReach::Processors)) => 2,
        (true, _) => 1,
    };
    (ATOMICS_FIELD, number)
}

/// Checks that all ranks can use the device for all operations.
///
/// # Errors
/// Ranks share a node. It is the same on all ranks.
pub(super) fn check(cards: &Cards, device: Option<&Device>) -> Result<()> {
    if device.and_then(Device::atomics) != Some(AtomicReach::Device) {
        return Ok(());
    }
    let mut nodes = HashMap::new();
    let mut shared = cards.iter().filter_map(|card| Some((nodes.insert(card.node(), card)?, card)));
    let Some((one, other)) = shared.next() else { return Ok(()) };
    let reason = format!(
        "GASPI_ATOMICS is nic, but {} and {} share memory on {}, and the RDMA devices are not \
         atomic with processors; start one rank on each host, or set GASPI_TRANSPORT to verbs, or \
         set GASPI_ATOMICS to cpu",
        one.rank(),
        other.rank(),
        one.host()
    );
    Err(Error::Environment { reason })
}
