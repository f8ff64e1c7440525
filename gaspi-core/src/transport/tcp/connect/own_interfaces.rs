//! The interfaces of this host, asked for once for all connections that are made at a time.

use crate::os::interfaces::{self, Interface};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long an answer is good for.
const FRESH: Duration = Duration::from_millis(100);

/// What the kernel has told last.
#[derive(Debug, Default)]
pub(super) struct OwnInterfaces {
    known: Vec<Interface>,
    since: Option<Instant>,
}

impl OwnInterfaces {
    /// The interfaces.
    pub(super) fn list(&mut self, now: Instant) -> &[Interface] {
        let is_fresh = self.since.is_some_and(|since| now.duration_since(since) < FRESH);
        if !is_fresh {
            (self.known, self.since) = (interfaces::list(), Some(now));
        }
        &self.known
    }

    /// Whether this host has an address from which it could connect to that one.
    pub(super) fn have_source_for(&mut self, to: IpAddr, now: Instant) -> bool {
        self.list(now).iter().any(|own| is_source_for(own, to))
    }
}

/// Addresses of a link count for others of a link only.
fn is_source_for(own: &Interface, to: IpAddr) -> bool {
    let of_link = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let alike = own.address.is_ipv6() == to.is_ipv6() && own.loopback == to.is_loopback();
    own.up && alike && of_link(&own.address) == of_link(&to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_same_kind_is_a_source() {
        let own = |address: &str, loopback| Interface {
            name: "one".to_owned(),
            address: address.parse().unwrap(),
            prefix: 24,
            up: true,
            running: true,
            loopback,
        };
        let is_source = |own: &Interface, to: &str| is_source_for(own, to.parse().unwrap());
        let four = own("192.0.2.1", false);
        assert!(is_source(&four, "198.51.100.7"));
        assert!(!is_source(&four, "2001:db8::7") && !is_source(&four, "127.0.0.1"));
        assert!(!is_source(&Interface { up: false, ..four }, "198.51.100.7"));
        assert!(is_source(&own("2001:db8::1", false), "2001:db8::7"));
        assert!(!is_source(&own("fe80::1", false), "2001:db8::7"));
        assert!(is_source(&own("127.0.0.1", true), "127.0.0.1"));
    }
}
