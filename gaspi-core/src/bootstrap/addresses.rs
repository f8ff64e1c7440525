//! Which addresses of this host are offered to other hosts, where listeners are bound, and in which
//! order the addresses of a peer are tried.
//!
//! GASPI_INTERFACE, GASPI_SUBNET and GASPI_PORT_RANGE, or a port of the configuration, restrict.
//! The choices are pure functions of the interfaces; only [`listen`] makes sockets. Every choice
//! has its reason in words.
//!
//! Invariant: a loopback address is never offered to another host, and an address that this host
//! has itself is never tried for a peer on another one (every docker host has 172.17.0.1).

use super::card::ENDPOINTS_MAX;
use super::variables::wrong;
use crate::error::{Error, Result};
use crate::os::interfaces::Interface;
use crate::os::{process, tcp};
use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

/// Where the ranks that have to reach this one are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// All on this host, in this network namespace: loopback is enough, and keeps all others out.
    ThisHost,
    /// Also on others.
    OtherHosts,
}

/// A part of the address space, as 192.0.2.0/24.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subnet {
    address: IpAddr,
    prefix: u8,
}

impl Subnet {
    fn parse(text: &str) -> Option<Subnet> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.parse().ok()?;
        let bits = bits(address);
        let prefix = prefix.map_or(Some(bits), |prefix| prefix.parse().ok())?;
        (prefix <= bits).then_some(Subnet { address, prefix })
    }

    fn of(interface: &Interface) -> Subnet {
        Subnet { address: interface.address, prefix: interface.prefix }
    }

    fn holds(&self, address: IpAddr) -> bool {
        let differ = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                u128::from(u32::from(own) ^ u32::from(other)) << 96
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => u128::from(own) ^ u128::from(other),
            _ => return false,
        };
        self.prefix == 0 || differ >> (128 - u32::from(self.prefix)) == 0
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// What the environment says about addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Restrictions {
    /// GASPI_INTERFACE; empty: all.
    names: Vec<String>,
    /// GASPI_SUBNET; empty: all.
    subnets: Vec<Subnet>,
    /// GASPI_PORT_RANGE: first and last; `None`: any free port.
    ports: Option<(u16, u16)>,
    /// The ports are asked for by the configuration, and taken in their order.
    in_order: bool,
}

impl Restrictions {
    /// Those of this process.
    ///
    /// # Errors
    /// [`Error::Environment`] if a variable makes no sense.
    pub(crate) fn from_environment() -> Result<Restrictions> {
        Restrictions::parse(&|name| std::env::var_os(name))
    }

    /// What these variables say.
    pub(super) fn parse(get: &dyn Fn(&str) -> Option<OsString>) -> Result<Restrictions> {
        let text = |name| get(name).map(|value| value.to_string_lossy().into_owned());
        let list = |name, example| {
            let Some(text) = text(name) else { return Ok(Vec::new()) };
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            let parts: Vec<String> = parts.map(str::to_owned).collect();
            if parts.is_empty() {
                return wrong(format!(
                    "{name} is {text:?}; write one or several with commas, as in {example}, or do \
                     not set it"
                ));
            }
            Ok(parts)
        };
        let mut subnets = Vec::new();
        for part in list("GASPI_SUBNET", "192.0.2.0/24")? {
            let Some(subnet) = Subnet::parse(&part) else {
                return wrong(format!(
                    "GASPI_SUBNET has {part:?}, which is no part of the address space; write it \
                     as in 192.0.2.0/24 or 2001:db8::/64, several with commas"
                ));
            };
            subnets.push(subnet);
        }
        let ports = text("GASPI_PORT_RANGE").map(|text| ports(&text)).transpose()?;
        let names = list("GASPI_INTERFACE", "eth0,ib0")?;
        Ok(Restrictions { names, subnets, ports, in_order: false })
    }

    /// The same with the port that the configuration asks for, or one of the next, which further
    /// ranks of a host take; GASPI_PORT_RANGE comes before it.
    pub(crate) fn or_from_port(self, first: Option<u16>, ranks: u32) -> Restrictions {
        let Some(first) = first.filter(|_| self.ports.is_none()) else { return self };
        let more = u16::try_from(ranks.saturating_sub(1)).unwrap_or(u16::MAX);
        Restrictions { ports: Some((first, first.saturating_add(more))), in_order: true, ..self }
    }

    /// The range of ports, if there is one.
    pub(crate) fn ports(&self) -> Option<(u16, u16)> {
        self.ports
    }

    /// The same addresses, at this port only.
    pub(crate) fn at_port(&self, port: u16) -> Restrictions {
        Restrictions { ports: Some((port, port)), ..self.clone() }
    }

    /// The range of ports cannot be used; `why` tells the reason, with the name of the range.
    fn wrong_ports(&self, why: impl FnOnce(&str) -> String) -> Error {
        let (low, high) = self.ports.unwrap_or_default();
        if self.in_order {
            let reason = why(&format!("the range {low}-{high}"));
            Error::Config { field: "dev_config.params.tcp.port", reason }
        } else {
            Error::Environment { reason: why(&format!("GASPI_PORT_RANGE {low}-{high}")) }
        }
    }

    fn restricts_addresses(&self) -> bool {
        !self.names.is_empty() || !self.subnets.is_empty()
    }

    /// Why an address is not offered, if it is not.
    fn against(&self, interface: &Interface, audience: Audience) -> Option<String> {
        let named = self.names.is_empty() || self.names.contains(&interface.name);
        let inside = self.subnets.iter().any(|subnet| subnet.holds(interface.address));
        let only_this_host = interface.loopback && !self.restricts_addresses();
        let reason = if !interface.up {
            "the interface is down"
        } else if !named {
            "GASPI_INTERFACE does not name it"
        } else if !inside && !self.subnets.is_empty() {
            "it is not in GASPI_SUBNET"
        } else if audience == Audience::OtherHosts
            && (interface.address.is_loopback() || only_this_host)
        {
            "loopback leads to this host only"
        } else if is_link_local(interface.address) {
            "it is valid on its link only"
        } else if !interface.running {
            "the interface has no carrier"
        } else if interface.address.is_unspecified() || interface.address.is_multicast() {
            "it is no address of a host"
        } else {
            return None;
        };
        Some(reason.to_owned())
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn ports(text: &str) -> Result<(u16, u16)> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (low.trim().parse(), high.trim().parse()) {
        (Ok(low), Ok(high)) if 0 < low && low <= high => Ok((low, high)),
        _ => wrong(format!(
            "GASPI_PORT_RANGE is {text:?}; write the first and the last port, as in 50000-50999"
        )),
    }
}

/// The addresses of this host that peers are told, and in words why the others are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) left_out: Vec<String>,
}

/// Chooses among `interfaces`.
///
/// # Errors
/// [`Error::Environment`] if nothing is left, with what there is.
pub(crate) fn offered(
    interfaces: &[Interface],
    restrictions: &Restrictions,
    audience: Audience,
) -> Result<Offer> {
    let mut offer = Offer { addresses: Vec::new(), left_out: Vec::new() };
    // If all are on this host and nothing else was asked for, all others are kept out.
    let loopback_only = audience == Audience::ThisHost
        && !restrictions.restricts_addresses()
        && interfaces.iter().any(|interface| interface.running && interface.address.is_loopback());
    for interface in interfaces {
        let (name, address) = (&interface.name, interface.address);
        let mut against = restrictions.against(interface, audience);
        if loopback_only && !address.is_loopback() {
            against = Some("all ranks are on this host".to_owned());
        } else if against.is_none() && offer.addresses.len() == ENDPOINTS_MAX {
            against = Some(format!("{ENDPOINTS_MAX} addresses are offered already"));
        }
        match against {
            Some(reason) => offer.left_out.push(format!("{address} ({name}): {reason}")),
            None if offer.addresses.contains(&address) => {}
            None => offer.addresses.push(address),
        }
    }
    if offer.addresses.is_empty() {
        let remedy = if restrictions.restricts_addresses() {
            "check GASPI_INTERFACE and GASPI_SUBNET"
        } else {
            "give it a network address"
        };
        let there = if offer.left_out.is_empty() {
            "it has none".to_owned()
        } else {
            offer.left_out.join(", ")
        };
        return wrong(format!(
            "this host has no address to offer to other hosts; {remedy}; not offered: {there}"
        ));
    }
    Ok(offer)
}

/// Sockets that wait for peers, and where peers find them.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) listeners: Vec<OwnedFd>,
    pub(crate) endpoints: Vec<SocketAddr>,
    /// In words, why further addresses of this host are not offered.
    pub(crate) left_out: Vec<String>,
}

/// Listens on what is offered: on all addresses of a family by one socket where nothing restricts,
/// else on each chosen address by one of its own.
///
/// # Errors
/// Nothing can be offered, all ports of GASPI_PORT_RANGE are taken, or what the kernel refuses.
pub(crate) fn listen(
    interfaces: &[Interface],
    restrictions: &Restrictions,
    audience: Audience,
) -> Result<Listening> {
    let Offer { addresses, left_out } = offered(interfaces, restrictions, audience)?;
    let mut listening = Listening { listeners: Vec::new(), endpoints: Vec::new(), left_out };
    let each = restrictions.restricts_addresses() || audience == Audience::ThisHost;
    let places: Vec<(IpAddr, Vec<IpAddr>)> = if each {
        addresses.into_iter().map(|address| (address, vec![address])).collect()
    } else {
        let (v4, v6) = addresses.into_iter().partition(IpAddr::is_ipv4);
        let all = [(Ipv4Addr::UNSPECIFIED.into(), v4), (Ipv6Addr::UNSPECIFIED.into(), v6)];
        all.into_iter()
            .filter(|(_, addresses): &(IpAddr, Vec<IpAddr>)| !addresses.is_empty())
            .collect()
    };
    let mut last = None;
    for (place, addresses) in places {
        match bind(place, restrictions) {
            Ok((fd, port)) => {
                listening.listeners.push(fd);
                let endpoints = addresses.into_iter().map(|ip| SocketAddr::new(ip, port));
                listening.endpoints.extend(endpoints);
            }
            // Switched off for this process, or an address that is not ready yet: others may do.
            Err(Unbound::Address(reason)) => {
                listening.left_out.push(format!("{place}: {reason}"));
                last = Some(Error::System { call: format!("listening on {place}"), reason });
            }
            Err(Unbound::Final(error)) => return Err(error),
        }
    }
    match last {
        Some(error) if listening.listeners.is_empty() => Err(error),
        _ => Ok(listening),
    }
}

/// Why there is no listener.
enum Unbound {
    /// Nobody can listen on this address.
    Address(String),
    /// The whole start ends here.
    Final(Error),
}

fn bind(
    place: IpAddr,
    restrictions: &Restrictions,
) -> std::result::Result<(OwnedFd, u16), Unbound> {
    let (low, high) = restrictions.ports.unwrap_or((0, 0));
    let count = u32::from(high - low) + 1;
    // The ranks of a host share the range: each begins elsewhere.
    let first = if restrictions.in_order { 0 } else { std::process::id() % count };
    for number in 0..count {
        let port = low + ((first + number) % count) as u16;
        let failure = match tcp::listen(SocketAddr::new(place, port)) {
            Ok(fd) => match tcp::local_address(fd.as_fd()) {
                Ok(address) => return Ok((fd, address.port())),
                Err(error) => error,
            },
            Err(error) if error.kind() == ErrorKind::AddrInUse && port != 0 => continue,
            Err(error) => error,
        };
        let call = format!("listening on {}", SocketAddr::new(place, port));
        return Err(match failure.raw_os_error() {
            Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) => Unbound::Address(failure.to_string()),
            Some(libc::EACCES) => Unbound::Final(restrictions.wrong_ports(|range| {
                format!("{range} has port {port}, which only root may use; take ports from 1024 on")
            })),
            _ => Unbound::Final(Error::os(call, &failure)),
        });
    }
    let host = process::host_name();
    let remedy = if restrictions.in_order { "choose another port" } else { "widen the range" };
    Err(Unbound::Final(restrictions.wrong_ports(|range| {
        format!(
            "the ports of {range} are all taken on host {host} (address {place}); every rank of \
             the host needs one: {remedy}"
        )
    })))
}

/// An address of a peer, and what speaks for or against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) endpoint: SocketAddr,
    pub(crate) reason: String,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.endpoint, self.reason)
    }
}

/// The addresses of a peer as this host sees them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Candidates {
    /// To be tried in this order.
    pub(crate) tried: Vec<Candidate>,
    /// Not to be tried.
    pub(crate) dropped: Vec<Candidate>,
}

impl Candidates {
    /// The addresses `offered` by a peer that is on this host or on another, in the order of
    /// trying: those in a subnet of this host first, then those behind a router, families by turns.
    pub(crate) fn new(offered: &[SocketAddr], own: &[Interface], audience: Audience) -> Candidates {
        let mut found = Candidates::default();
        let (mut near, mut far) = ([vec![], vec![]], [vec![], vec![]]);
        for endpoint in offered {
            let (endpoint, ip) = (*endpoint, endpoint.ip());
            let family = usize::from(ip.is_ipv6());
            let holder = own.iter().find(|interface| interface.address == ip);
            let neighbour = own.iter().find(|interface| {
                let shared = interface.prefix > 0 && interface.prefix < bits(ip);
                interface.running && shared && Subnet::of(interface).holds(ip)
            });
            let elsewhere = audience == Audience::OtherHosts;
            let against = match holder {
                _ if elsewhere && ip.is_loopback() => {
                    Some("loopback never leads elsewhere".to_owned())
                }
                Some(own) if elsewhere => {
                    Some(format!("this host has that address itself, on {}", own.name))
                }
                _ => None,
            };
            let candidate = |reason| Candidate { endpoint, reason };
            match (against, holder, neighbour) {
                (Some(reason), _, _) => found.dropped.push(candidate(reason)),
                (None, Some(_), _) => near[family].push(candidate("on this host".to_owned())),
                (None, None, Some(own)) => {
                    let reason = format!("in the subnet {} of {}", Subnet::of(own), own.name);
                    near[family].push(candidate(reason));
                }
                (None, None, None) => {
                    far[family].push(candidate("in no subnet of this host".to_owned()));
                }
            }
        }
        found.tried = by_turns(near);
        found.tried.extend(by_turns(far));
        found
    }

    /// Why there is nothing to try, if that is so.
    pub(crate) fn lack(&self) -> Option<String> {
        if !self.tried.is_empty() {
            return None;
        }
        if self.dropped.is_empty() {
            return Some("it offers no address".to_owned());
        }
        let dropped: Vec<String> = self.dropped.iter().map(Candidate::to_string).collect();
        Some(format!("it offers no address that leads there: {}", dropped.join(", ")))
    }
}

/// IPv4, IPv6, IPv4, ...: where one family does not get through, the other is tried soon.
fn by_turns([v4, v6]: [Vec<Candidate>; 2]) -> Vec<Candidate> {
    let (mut v4, mut v6) = (v4.into_iter(), v6.into_iter());
    let mut mixed = Vec::new();
    loop {
        let pair = (v4.next(), v6.next());
        if pair == (None, None) {
            return mixed;
        }
        mixed.extend(pair.0);
        mixed.extend(pair.1);
    }
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;
