//! Networks of IP addresses as the interfaces of this host know them, and subnets of InfiniBand.
//! RoCE ports of one network reach each other; others do where a router is between. InfiniBand
//! ports reach those of their own subnet.

use crate::os::interfaces;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// An IP network, one of IPv4 as a part of IPv6, as GIDs have it; or a subnet of InfiniBand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subnet {
    network: u128,
    /// Bits of the network part.
    prefix: u32,
}

impl Subnet {
    /// That of an interface with this address and so many bits of network.
    pub(super) fn of(address: IpAddr, prefix: u8) -> Subnet {
        let (address, prefix) = match address {
            IpAddr::V4(address) => (address.to_ipv6_mapped(), u32::from(prefix) + 96),
            IpAddr::V6(address) => (address, u32::from(prefix)),
        };
        let prefix = prefix.min(128);
        Subnet { network: u128::from(address) & mask(prefix), prefix }
    }

    /// The InfiniBand subnet of a GID, which is told by its upper half.
    pub(super) fn of_infiniband(gid: [u8; 16]) -> Subnet {
        Subnet { network: u128::from_be_bytes(gid) & mask(64), prefix: 64 }
    }

    /// An address in it, and its bits of network.
    pub(super) fn parts(self) -> (IpAddr, u8) {
        let address = Ipv6Addr::from(self.network);
        match (address.to_ipv4_mapped(), self.prefix.checked_sub(96)) {
            (Some(address), Some(prefix)) => (address.into(), prefix as u8),
            _ => (address.into(), self.prefix as u8),
        }
    }

    /// Whether an end with this GID is in it.
    pub(super) fn contains(self, gid: [u8; 16]) -> bool {
        u128::from_be_bytes(gid) & mask(self.prefix) == self.network
    }
}

fn mask(prefix: u32) -> u128 {
    u128::MAX.checked_shl(128 - prefix).unwrap_or(0)
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, prefix) = self.parts();
        write!(f, "{address}/{prefix}")
    }
}

/// Networks of a rank's ports, in words.
pub(super) fn in_words(networks: impl Iterator<Item = (IpAddr, u8)>) -> String {
    let all: Vec<String> =
        networks.map(|(address, prefix)| Subnet::of(address, prefix).to_string()).collect();
    if all.is_empty() { "unknown networks".to_owned() } else { all.join(", ") }
}

/// The networks of all ranks' ports, the best one first: one that more ranks have, then one
/// that they like better, then the lowest. Each rank uses the first one that it has, so that ranks
/// with a network in common to all use the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Favoured(Vec<Subnet>);

/// What ranks have told each other, each its networks, the one it likes best first.
pub(crate) fn favoured(
    told: impl Iterator<Item = impl IntoIterator<Item = (IpAddr, u8)>>,
) -> Favoured {
    let mut votes: BTreeMap<Subnet, (usize, usize)> = BTreeMap::new();
    for networks in told {
        for (place, (address, prefix)) in networks.into_iter().enumerate() {
            let (ranks, places) = votes.entry(Subnet::of(address, prefix)).or_default();
            (*ranks, *places) = (*ranks + 1, *places + place);
        }
    }
    let mut all: Vec<_> = votes.into_iter().collect();
    all.sort_by_key(|(network, (ranks, places))| (Reverse(*ranks), *places, *network));
    Favoured(all.into_iter().map(|(network, _)| network).collect())
}

impl Favoured {
    /// Less is better.
    pub(super) fn place_of(&self, network: Option<Subnet>) -> usize {
        let found = self.0.iter().position(|other| Some(*other) == network);
        found.unwrap_or(self.0.len())
    }
}

/// The addresses of this host's interfaces, with their bits of network.
#[derive(Debug, Clone, Default)]
pub(super) struct HostNetworks(pub(super) Vec<(IpAddr, u8)>);

impl HostNetworks {
    /// Those of the host, or what a test says in their place.
    pub(super) fn read(instead: Option<&[(IpAddr, u8)]>) -> HostNetworks {
        if let Some(all) = instead {
            return HostNetworks(all.to_vec());
        }
        let all = interfaces::list().into_iter();
        HostNetworks(all.map(|interface| (interface.address, interface.prefix)).collect())
    }

    /// The network of a GID that is the address of an interface. Link-local addresses say nothing:
    /// each link has the same network of them.
    pub(super) fn of(&self, gid: [u8; 16]) -> Option<Subnet> {
        let address = Ipv6Addr::from(gid);
        if address.is_unicast_link_local() {
            return None;
        }
        let found = self.0.iter().find(|(own, _)| match own {
            IpAddr::V4(own) => own.to_ipv6_mapped() == address,
            IpAddr::V6(own) => *own == address,
        });
        found.map(|(own, prefix)| Subnet::of(*own, *prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(address: &str) -> [u8; 16] {
        match address.parse().expect("an address") {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        }
    }

    #[test]
    fn ranks_favour_the_network_that_most_have() {
        let favour = |told: &[&[&str]]| {
            let parse = |text: &&str| {
                let (address, prefix) = text.split_once('/').expect("a prefix");
                (address.parse().expect("an address"), prefix.parse().expect("bits"))
            };
            let told: Vec<Vec<(IpAddr, u8)>> =
                told.iter().map(|list| list.iter().map(parse).collect()).collect();
            let Favoured(all) = favoured(told.iter().map(|networks| networks.iter().copied()));
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        const ONE: &str = "10.1.0.0/16";
        const TWO: &str = "10.2.0.0/16";
        const SIX: &str = "2001:db8::/64";
        assert_eq!(favour(&[&[], &[]]), [""; 0]);
        assert_eq!(favour(&[&[ONE, TWO], &[TWO, SIX], &[]]), [TWO, ONE, SIX]);
        // All have both: what they like better, and where that is undecided the lowest.
        assert_eq!(favour(&[&[TWO, ONE], &[TWO, ONE], &[ONE, TWO]]), [TWO, ONE]);
        assert_eq!(favour(&[&[TWO, ONE], &[ONE, TWO]]), [ONE, TWO]);
        assert_eq!(in_words([("10.2.3.4".parse().expect("v4"), 16)].into_iter()), TWO);
        let all = favoured([[("10.2.0.0".parse().expect("v4"), 16)]].into_iter());
        let of = |bits| Some(Subnet::of("10.2.3.4".parse().expect("v4"), bits));
        assert_eq!((all.place_of(of(16)), all.place_of(of(24)), all.place_of(None)), (0, 1, 1));
    }

    #[test]
    fn gids_are_in_the_network_of_their_interface() {
        let host = ["10.7.0.1/16", "2001:db8::1/64", "fe80::1/64", "10.9.9.9/32", "10.1.1.1/0"];
        let networks = HostNetworks(
            host.iter()
                .map(|text| {
                    let (address, prefix) = text.split_once('/').expect("a prefix");
                    (address.parse().expect("an address"), prefix.parse().expect("bits"))
                })
                .collect(),
        );
        let of = |address| networks.of(gid(address));
        let network = of("10.7.0.1").expect("known");
        assert_eq!(network.to_string(), "10.7.0.0/16");
        assert!(network.contains(gid("10.7.200.3")) && !network.contains(gid("10.8.0.1")));
        let six = of("2001:db8::1").expect("known");
        assert_eq!(six.to_string(), "2001:db8::/64");
        assert!(six.contains(gid("2001:db8::9")) && !six.contains(gid("2001:db9::9")));
        assert_eq!((of("fe80::1"), of("10.7.0.2")), (None, None));
        let alone = of("10.9.9.9").expect("known");
        assert!(alone.contains(gid("10.9.9.9")) && !alone.contains(gid("10.9.9.8")));
        let all = of("10.1.1.1").expect("known");
        assert!(all.contains(gid("192.0.2.1")) && !all.contains(gid("2001:db8::9")));
    }
}
