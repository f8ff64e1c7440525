//! The RDMA device of a rank that joins: whether there has to be one, which, and when it is opened.

use super::atomics_by;
use crate::bootstrap::{CardView, Cards, Job, Transport};
use crate::config::{Config, Network};
use crate::error::{Error, Result};
use crate::os::affinity;
use crate::transport::endpoint::Endpoints;
use crate::transport::verbs::{self, Device, Favoured, NoDevice, Place, Wishes};
use std::net::IpAddr;
use std::time::Duration;

/// GASPI_DEAD_AFTER: how long a host that does not answer is waited for.
pub(super) fn dead_after() -> Result<Duration> {
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

/// What is wanted of the RDMA device of a rank, which is the `nth` of those that share devices.
fn wishes(job: &Job, config: &Config, nth: u32) -> Result<Wishes> {
    let place = Place { cores: affinity::mask(), nth };
    let (choice, params, dead_after) = (job.device.clone(), config.rdma, dead_after()?);
    let network = config.network.filter(|network| *network != Network::Ethernet);
    let (interfaces, favoured) = (job.machine.networks, Favoured::default());
    Ok(Wishes { choice, params, place, network, dead_after, interfaces, favoured })
}

/// The networks that ports of this rank could be used in, for ranks of other hosts.
pub(super) fn networks(
    job: &Job,
    config: &Config,
    device: Option<&Device>,
) -> Result<Vec<(IpAddr, u8)>> {
    if let Some(device) = device {
        return Ok(device.networks());
    }
    let may_use = job.transport == Transport::Auto && config.network != Some(Network::Ethernet);
    let has_others = job.size > 1 && (job.spans_hosts || job.node.is_some());
    if !may_use || !has_others {
        return Ok(Vec::new());
    }
    Ok(verbs::networks(&wishes(job, config, 0)?))
}

/// The device that was opened before the networks of other ranks were known; another one, if that
/// has a port in a network that more ranks have.
fn in_shared_network(
    device: Device,
    favoured: Favoured,
    (job, config): (&Job, &Config),
) -> Result<Device> {
    if device.suits(&favoured) {
        return Ok(device);
    }
    let (before, atomics) = (device.description().to_owned(), device.atomics());
    // Its memory counts, while it is open.
    drop(device);
    let wishes = Wishes { favoured, ..wishes(job, config, job.local_rank.into())? };
    let opened = Device::open(&wishes);
    let device = opened.map_err(|error| Error::Environment { reason: error.to_string() })?;
    log::info!(
        "proc_init: data between nodes goes by {}, not by {before}: more ranks have its network",
        device.description()
    );
    log_ports(&device);
    if device.atomics() == atomics {
        return Ok(device);
    }
    let reason = format!(
        "GASPI_ATOMICS is nic, but {before} and {}, which is in a network that more ranks have, \
         differ in how they execute atomic operations; name one of them with GASPI_IB_DEVICE",
        device.description()
    );
    Err(Error::Environment { reason })
}

/// Says which device was chosen, and why no other one.
fn log_ports(device: &Device) {
    for row in device.rows() {
        let level = if row.used { log::Level::Info } else { log::Level::Debug };
        log::log!(level, "proc_init: {row}");
    }
}

/// Opens the RDMA device that has to be used: as GASPI_TRANSPORT says, or as the configuration asks
/// for a network that only devices have. Each rank is told by its number on the machine from those
/// that share the devices. Where a device may be used, what was named has to exist, if there are
/// devices.
pub(super) fn open_device(job: &Job, config: &Config) -> Result<Option<Device>> {
    if job.size == 1 {
        return Ok(None);
    }
    let refused = |reason| Err(Error::Config { field: "network", reason });
    let wishes = wishes(job, config, job.local_rank.into())?;
    let wanted = wishes.network;
    let for_atomics = atomics_by::need_device(job, config)?;
    match (job.transport, wanted) {
        (Transport::Verbs, None) if config.network.is_some() => {
            return refused("it is Ethernet, but GASPI_TRANSPORT is verbs".to_owned());
        }
        (Transport::Tcp, Some(network)) => {
            return refused(format!("it is {network}, but GASPI_TRANSPORT is tcp"));
        }
        (Transport::Verbs, _) => {}
        (Transport::Auto, _) if for_atomics => {}
        // Ranks of one host share memory.
        (Transport::Auto, Some(_)) if job.spans_hosts => {}
        (Transport::Auto, _) => {
            let named = job.device.names_something() || config.rdma.device_number.is_some();
            let asks = named && config.network != Some(Network::Ethernet);
            return match asks.then(|| verbs::inspect(&wishes)) {
                Some(Ok((Err(NoDevice::Wrong(reason)), _))) => Err(Error::Environment { reason }),
                _ => Ok(None),
            };
        }
        _ => return Ok(None),
    }
    let opened = Device::open(&wishes).and_then(|device| atomics_by::fit(job, device));
    match (opened, wanted) {
        (Ok(device), _) => {
            log::info!("proc_init: data between nodes goes by {}", device.description());
            log_ports(&device);
            Ok(Some(device))
        }
        (Err(NoDevice::Wrong(reason)), _) => Err(Error::Environment { reason }),
        (Err(NoDevice::Missing(reason)), Some(network)) => {
            refused(format!("it is {network}, but {reason}"))
        }
        (Err(NoDevice::Missing(reason)), None) => {
            let forced = job.transport == Transport::Verbs;
            let asks = if forced { "GASPI_TRANSPORT is verbs" } else { "GASPI_ATOMICS is nic" };
            Err(Error::Environment { reason: format!("{asks}, but {reason}") })
        }
    }
}

/// Adds the RDMA device of a rank that has others on other nodes: one that has to be used, or one
/// that there is.
pub(super) fn with_device(
    endpoints: Endpoints,
    device: Option<Device>,
    (nth, cards): (u32, &Cards),
    (job, config): (&Job, &Config),
) -> Result<Endpoints> {
    let host = cards.at(job.rank).host();
    let sharers = cards.iter().filter(|card| card.host() == host).count() as u32;
    let favoured = verbs::favoured(cards.iter().map(CardView::networks));
    if let Some(device) = device {
        let device = in_shared_network(device, favoured, (job, config))?;
        device.share_among(sharers);
        let forced = job.transport == Transport::Verbs;
        let table = endpoints.device_table(device, forced, job.size);
        // What the device lacks is most often the limit of locked memory.
        let refused =
            |reason| Error::Environment { reason: format!("preparing the RDMA device: {reason}") };
        return endpoints.with_device(table.map_err(refused)?);
    }
    if job.transport != Transport::Auto || config.network == Some(Network::Ethernet) {
        return Ok(endpoints);
    }
    let wishes = Wishes { favoured, ..wishes(job, config, nth)? };
    let wanted = wishes.choice.names_something() || wishes.choice.library.is_some();
    // Most machines have none.
    let level = if wanted { log::Level::Warn } else { log::Level::Debug };
    let missing = |error: NoDevice| (level, error.to_string());
    let opened = Device::open(&wishes).map_err(missing).and_then(|device| {
        log_ports(&device);
        let description = device.description().to_owned();
        device.share_among(sharers);
        let table = endpoints.device_table(device, false, job.size);
        table.map(|table| (table, description)).map_err(|reason| (log::Level::Warn, reason))
    });
    match opened {
        Ok((table, description)) => {
            log::info!("proc_init: data between nodes goes by {description} where it can");
            endpoints.with_device(table)
        }
        Err((level, reason)) => {
            log::log!(level, "proc_init: data between nodes goes by TCP: {reason}");
            Ok(endpoints)
        }
    }
}
