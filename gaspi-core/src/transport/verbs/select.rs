//! Which device, port and GID a rank uses: a pure choice over what has been read.
//!
//! Invariant: each port that is not used has its reason in words, and the same facts and wishes
//! always lead to the same choice.

use super::port_rows::{self, PortRow};
use super::subnet::{Favoured, HostNetworks, Subnet};
use super::work::BUFFER_BYTES;
use crate::config::{DeviceChoice, GidChoice, Network, RdmaParams};
use std::cmp::Reverse;
use std::fmt;
use std::net::Ipv6Addr;

/// What a device speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// InfiniBand or RoCE.
    InfiniBand,
    Iwarp,
    /// None that has reliable pairs between any two ranks, such as EFA.
    Other,
}

/// What kind of GID it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GidKind {
    InfiniBand,
    RoceV1,
    RoceV2,
}

/// An entry of the GID table of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GidEntry {
    pub(super) index: u8,
    pub(super) gid: [u8; 16],
    pub(super) kind: GidKind,
}

/// A port, as it was read.
#[derive(Debug, Clone)]
pub(super) struct PortFacts {
    pub(super) number: u8,
    pub(super) active: bool,
    /// Whether it is one of Ethernet, whose addresses are GIDs.
    pub(super) ethernet: bool,
    pub(super) message_bytes: u32,
    /// Active MTU as verbs number it: 1 to 5 for 256 to 4096 bytes.
    pub(super) mtu: u8,
    pub(super) lid: u16,
    /// Whether packets need a global header beside a LID, as those of some virtual functions do.
    pub(super) needs_header: bool,
    /// Gigabits per second.
    pub(super) rate: u32,
    /// Those that are not empty.
    pub(super) gids: Vec<GidEntry>,
    /// The table of partition keys.
    pub(super) pkeys: Vec<u16>,
}

/// A device, as it was read.
#[derive(Debug, Clone)]
pub(super) struct DeviceFacts {
    pub(super) name: String,
    pub(super) protocol: Protocol,
    /// Why its ports could not be read.
    pub(super) unreadable: Option<String>,
    pub(super) shared_queues: bool,
    /// A limit of the device that leaves too little, in words.
    pub(super) too_small: Option<String>,
    /// Why it makes no reliable pairs, if it was tried.
    pub(super) unreliable: Option<String>,
    pub(super) numa_node: Option<u32>,
    /// The cores near it, 64 a word, where sysfs tells.
    pub(super) near_cores: Option<Vec<u64>>,
    pub(super) ports: Vec<PortFacts>,
}

/// Where a rank is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    /// The cores that it may use, 64 a word.
    pub(crate) cores: Vec<u64>,
    /// Its number among the ranks that share the devices.
    pub(crate) nth: u32,
}

/// What is wanted of the choice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) choice: &'a DeviceChoice,
    pub(super) params: &'a RdmaParams,
    pub(super) place: &'a Place,
    /// The kind of network that the configuration asks for.
    pub(super) network: Option<Network>,
    pub(super) networks: &'a HostNetworks,
    /// What the ranks have settled, once they know of each other.
    pub(super) favoured: &'a Favoured,
}

/// Why there is no device for this rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoDevice {
    /// Something was named that there is not.
    Wrong(String),
    /// There is none that can be used.
    Missing(String),
}

impl fmt::Display for NoDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (NoDevice::Wrong(reason) | NoDevice::Missing(reason)) = self;
        f.write_str(reason)
    }
}

/// Why a port is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Others were named.
    NotNamed(String),
    /// A variable asks for something that it does not have.
    Wrong(String),
    Unusable(String),
}

impl Refusal {
    pub(super) fn reason(&self) -> &str {
        let (Refusal::NotNamed(reason) | Refusal::Wrong(reason) | Refusal::Unusable(reason)) = self;
        reason
    }
}

/// A port that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) gid: GidEntry,
    pub(super) pkey_index: u16,
    /// What is to be compared, where that is known.
    pub(super) subnet: Option<Subnet>,
    pub(super) inactive: bool,
    pub(super) far: bool,
}

/// What was found about a port, or about a device without ports.
#[derive(Debug, Clone)]
pub(super) struct Verdict {
    pub(super) device: usize,
    /// Its place in the list of ports.
    pub(super) port: Option<usize>,
    pub(super) outcome: Result<Candidate, Refusal>,
}

/// The port to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) device: usize,
    pub(super) port: usize,
    pub(super) gid: GidEntry,
    pub(super) pkey_index: u16,
    /// As verbs number it, with the limit of the program.
    pub(super) mtu: u8,
    pub(super) subnet: Option<Subnet>,
}

/// What came of a choice.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    pub(super) chosen: Result<Chosen, NoDevice>,
    /// One for each port, in the order of the devices.
    pub(super) rows: Vec<PortRow>,
    /// Networks of the ports that could be used, of the kind that comes first: the best one first.
    pub(super) networks: Vec<Subnet>,
}

/// A GID as it is written; that of an IPv4 address as `::ffff:10.7.0.1`.
pub(super) fn written(gid: [u8; 16]) -> String {
    Ipv6Addr::from(gid).to_string()
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        };
        write!(f, "{} (index {}, {kind})", written(self.gid), self.index)
    }
}

impl GidEntry {
    /// Whether it is good on its own link only.
    fn is_link_local(&self) -> bool {
        let address = Ipv6Addr::from(self.gid);
        let is_local = |v4: std::net::Ipv4Addr| v4.is_link_local() || v4.is_loopback();
        address.is_unicast_link_local() || address.to_ipv4_mapped().is_some_and(is_local)
    }

    /// More is better.
    fn preference(&self) -> (bool, bool, bool) {
        let mapped = Ipv6Addr::from(self.gid).to_ipv4_mapped().is_some();
        (!self.is_link_local(), self.kind == GidKind::RoceV2, mapped)
    }
}

/// The GID to use: the one that is wanted, or the best; of equal ones the first.
pub(super) fn best_gid(gids: &[GidEntry], wanted: Option<GidChoice>) -> Option<GidEntry> {
    let of = |entry: &&GidEntry| match wanted {
        None => true,
        Some(GidChoice::Index(index)) => entry.index == index,
        Some(GidChoice::Address(address)) => entry.gid == address.octets(),
    };
    let found = gids.iter().filter(of);
    found.max_by_key(|entry| (entry.preference(), Reverse(entry.index))).copied()
}

/// The place of a GID that was chosen before; if it is gone, the GID that takes its place.
pub(super) fn gid_again(
    gids: &[GidEntry],
    before: GidEntry,
    wanted: Option<GidChoice>,
) -> Option<GidEntry> {
    let same = |entry: &&GidEntry| (entry.gid, entry.kind) == (before.gid, before.kind);
    match wanted {
        // An address that was asked for has no substitute.
        Some(GidChoice::Address(_)) => gids.iter().find(same).copied(),
        _ => gids.iter().find(same).copied().or_else(|| best_gid(gids, None)),
    }
}

fn shares_a_core(one: &[u64], other: &[u64]) -> bool {
    one.iter().zip(other).any(|(one, other)| one & other != 0)
}

fn listed<T: fmt::Display>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = all.into_iter().map(|one| one.to_string()).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// Names and numbers of devices and ports that there are not.
fn check_names(devices: &[DeviceFacts], wanted: Wanted<'_>) -> Result<(), NoDevice> {
    if devices.is_empty() {
        return Err(NoDevice::Missing("there is no RDMA device".to_owned()));
    }
    let names = || listed(devices.iter().map(|device| &device.name));
    let absent = |name: &&String| devices.iter().all(|device| device.name != **name);
    if let Some(name) = wanted.choice.devices.iter().find(absent) {
        return Err(NoDevice::Wrong(format!(
            "GASPI_IB_DEVICE is wrong: there is no RDMA device {name:?}; there are: {}",
            names()
        )));
    }
    let by_number = wanted.params.device_number.filter(|_| wanted.choice.devices.is_empty());
    if let Some(number) = by_number.filter(|number| *number as usize >= devices.len()) {
        return Err(NoDevice::Wrong(format!(
            "dev_config.params.ib.netdev_id is {number}, but devices are numbered 0 to {}: {}",
            devices.len() - 1,
            names()
        )));
    }
    Ok(())
}

/// Whether a device may be used, as far as it goes without its ports.
fn check_device(devices: &[DeviceFacts], number: usize, wanted: Wanted<'_>) -> Result<(), Refusal> {
    let device = &devices[number];
    let unusable = |reason: &str| Err(Refusal::Unusable(reason.to_owned()));
    let named = &wanted.choice.devices;
    if !named.is_empty() && !named.contains(&device.name) {
        let reason = format!("GASPI_IB_DEVICE names {}", listed(named));
        return Err(Refusal::NotNamed(reason));
    }
    if let Some(by) = wanted.params.device_number.filter(|_| named.is_empty())
        && by as usize != number
    {
        let reason = format!("dev_config.params.ib.netdev_id is {by}, this is device {number}");
        return Err(Refusal::NotNamed(reason));
    }
    match device.protocol {
        Protocol::InfiniBand => {}
        Protocol::Iwarp => return unusable("iWARP devices are not used"),
        Protocol::Other => return unusable("it speaks neither InfiniBand nor RoCE, like EFA"),
    }
    if let Some(reason) = &device.unreadable {
        return unusable(reason);
    }
    if !device.shared_queues {
        return unusable("it has no shared receive queues");
    }
    if let Some(reason) = &device.too_small {
        return unusable(reason);
    }
    if let Some(reason) = &device.unreliable {
        return Err(Refusal::Unusable(format!("it makes no reliable queue pairs: {reason}")));
    }
    if device.ports.is_empty() {
        return unusable("it has no port");
    }
    Ok(())
}

/// Whether a port may be used, and by which address and key; `port_exists` says whether some device
/// has a port of the number that is wanted.
fn check_port(
    device: &DeviceFacts,
    port: &PortFacts,
    wanted: Wanted<'_>,
    port_exists: bool,
) -> Result<Candidate, Refusal> {
    let choice = wanted.choice;
    if let Some(number) = choice.port.filter(|number| *number != port.number) {
        let reason = format!(
            "GASPI_IB_PORT is {number}; {} has these ports: {}",
            device.name,
            listed(device.ports.iter().map(|port| port.number))
        );
        return Err(if port_exists { Refusal::NotNamed(reason) } else { Refusal::Wrong(reason) });
    }
    let network = if port.ethernet { Network::Roce } else { Network::InfiniBand };
    if let Some(asked) = wanted.network.filter(|asked| *asked != network) {
        let reason = format!("port {} is {network}, {asked} is asked for", port.number);
        return Err(Refusal::Unusable(reason));
    }
    if !port.active && wanted.params.port_check {
        return Err(Refusal::Unusable(format!("port {} is not active", port.number)));
    }
    if (port.message_bytes as usize) < BUFFER_BYTES {
        return Err(Refusal::Unusable(format!(
            "port {} takes messages of {} bytes only",
            port.number, port.message_bytes
        )));
    }
    let gid = best_gid(&port.gids, choice.gid).ok_or_else(|| match choice.gid {
        None => Refusal::Unusable(format!("port {} has no GID", port.number)),
        Some(asked) => {
            let asked = match asked {
                GidChoice::Index(index) => index.to_string(),
                GidChoice::Address(address) => address.to_string(),
            };
            let there = listed(&port.gids);
            Refusal::Wrong(format!(
                "GASPI_IB_GID is {asked}; port {} of {} has these GIDs: {there}",
                port.number, device.name
            ))
        }
    })?;
    let pkey_index = choice.pkey.map_or(Ok(0), |key| pkey_index(device, port, key))?;
    let cores = &wanted.place.cores;
    let far = device.near_cores.as_ref().is_some_and(|near| !shares_a_core(near, cores));
    let subnet = match gid.kind {
        GidKind::InfiniBand => Some(Subnet::of_infiniband(gid.gid)),
        // Of several devices that are named, each is as good as the others.
        _ => wanted.networks.of(gid.gid).filter(|_| choice.devices.len() < 2),
    };
    Ok(Candidate { gid, pkey_index, subnet, inactive: !port.active, far })
}

/// Where a partition key is in the table of a port: as it is, or as the key of the other kind of
/// members.
fn pkey_index(device: &DeviceFacts, port: &PortFacts, key: u16) -> Result<u16, Refusal> {
    let find = |mask: u16| port.pkeys.iter().position(|own| own & mask == key & mask);
    let found = find(0xffff).or_else(|| find(0x7fff)).and_then(|at| u16::try_from(at).ok());
    found.ok_or_else(|| {
        let there = port.pkeys.iter().filter(|key| **key != 0).map(|key| format!("{key:#06x}"));
        Refusal::Wrong(format!(
            "GASPI_IB_PKEY is {key:#06x}; port {} of {} has these keys: {}",
            port.number,
            device.name,
            listed(there)
        ))
    })
}

/// What ports are compared by; less is better.
type Order = (bool, bool, usize, bool, Reverse<u32>);

fn order(candidate: &Candidate, port: &PortFacts, favoured: &Favoured) -> Order {
    let network = favoured.place_of(candidate.subnet);
    (candidate.inactive, port.ethernet, network, candidate.far, Reverse(port.rate))
}

/// Whether what one port reaches can be expected of another one.
fn same_network(one: &Candidate, other: &Candidate) -> bool {
    one.gid.kind == other.gid.kind
        && one.subnet.zip(other.subnet).is_none_or(|(one, other)| one == other)
}

/// Of equal ports those in the lowest network come first, so that all hosts decide alike.
fn tie_break(candidate: &Candidate) -> (bool, Option<Subnet>) {
    (candidate.subnet.is_none(), candidate.subnet)
}

/// Chooses. Ranks of a node with equal ports get them in turn.
pub(super) fn choose(devices: &[DeviceFacts], wanted: Wanted<'_>) -> Selection {
    let verdicts = verdicts(devices, wanted);
    let usable = || {
        verdicts.iter().filter_map(|verdict| {
            let candidate = verdict.outcome.as_ref().ok()?;
            let port = verdict.port?;
            Some((verdict.device, port, candidate))
        })
    };
    let order_of = |(device, port, candidate): &(usize, usize, &Candidate)| {
        order(candidate, &devices[*device].ports[*port], wanted.favoured)
    };
    let first = usable().min_by_key(|one| (order_of(one), tie_break(one.2)));
    let equal: Vec<_> = first.map_or_else(Vec::new, |first| {
        let is_equal = |one: &(usize, usize, &Candidate)| {
            order_of(one) == order_of(&first) && same_network(one.2, first.2)
        };
        usable().filter(is_equal).collect()
    });
    let turn = wanted.place.nth as usize % equal.len().max(1);
    let named = check_names(devices, wanted);
    let chosen = match (named, equal.get(turn)) {
        (Err(error), _) => Err(error),
        (Ok(()), None) => Err(nothing(devices, &verdicts)),
        (Ok(()), Some(&(device, port, candidate))) => {
            let limit = match wanted.params.mtu_bytes {
                0 => 5,
                bytes => (bytes.max(256).ilog2() - 7).min(5) as u8,
            };
            let mtu = devices[device].ports[port].mtu.clamp(1, limit);
            let Candidate { gid, pkey_index, subnet, .. } = *candidate;
            Ok(Chosen { device, port, gid, pkey_index, mtu, subnet })
        }
    };
    let rows = port_rows::of(devices, &verdicts, &chosen, (turn, equal.len()), wanted);
    let mut like_first: Vec<_> = usable()
        .map(|one| (order(one.2, &devices[one.0].ports[one.1], &Favoured::default()), one.2))
        .collect();
    like_first.sort_by_key(|(order, candidate)| (*order, tie_break(candidate)));
    let kind = like_first.first().map(|(order, _)| (order.0, order.1));
    let mut networks = Vec::new();
    for (order, candidate) in like_first {
        let network = candidate.subnet.filter(|network| !networks.contains(network));
        networks.extend(network.filter(|_| Some((order.0, order.1)) == kind));
    }
    Selection { chosen, rows, networks }
}

fn verdicts(devices: &[DeviceFacts], wanted: Wanted<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let is_wanted = |port: &PortFacts| Some(port.number) == wanted.choice.port;
    let port_exists = devices.iter().any(|device| device.ports.iter().any(is_wanted));
    for (number, device) in devices.iter().enumerate() {
        let checked = check_device(devices, number, wanted);
        let mut push = |port, outcome| verdicts.push(Verdict { device: number, port, outcome });
        if let (Err(refusal), true) = (&checked, device.ports.is_empty()) {
            push(None, Err(refusal.clone()));
        }
        for (at, port) in device.ports.iter().enumerate() {
            let outcome =
                checked.clone().and_then(|()| check_port(device, port, wanted, port_exists));
            push(Some(at), outcome);
        }
    }
    verdicts
}

/// Why no port can be used.
fn nothing(devices: &[DeviceFacts], verdicts: &[Verdict]) -> NoDevice {
    let refusals = || {
        let all =
            verdicts.iter().filter_map(|verdict| Some((verdict, verdict.outcome.as_ref().err()?)));
        all.map(|(verdict, refusal)| (&devices[verdict.device].name, refusal))
    };
    let wrong = refusals().find(|(_, refusal)| matches!(refusal, Refusal::Wrong(_)));
    let unusable = |(_, refusal): &(_, &Refusal)| matches!(refusal, Refusal::Unusable(_));
    if let Some((_, refusal)) = wrong {
        return NoDevice::Wrong(refusal.reason().to_owned());
    }
    let mut reasons: Vec<String> = refusals()
        .filter(unusable)
        .map(|(name, why)| format!("{name}: {}", why.reason()))
        .collect();
    reasons.dedup();
    NoDevice::Missing(reasons.join("; "))
}

#[cfg(test)]
#[path = "select_tests.rs"]
mod tests;
