//! The network interfaces of this machine, as far as this process sees them.
//!
//! By hand: rustix has no `getifaddrs`.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of an interface; one that has several appears as often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// One of its addresses.
    pub address: IpAddr,
    /// Bits of the network part of the address.
    pub prefix: u8,
    /// Whether it is switched on.
    pub up: bool,
    /// Whether it is switched on and has a carrier.
    pub running: bool,
    /// Whether it leads to this machine only.
    pub loopback: bool,
}

/// Reads an address.
///
/// # Safety
/// It is null, or an address of the family that it says.
unsafe fn address(from: *const libc::sockaddr) -> Option<IpAddr> {
    if from.is_null() {
        return None;
    }
    // SAFETY: every address starts with its family.
    match i32::from(unsafe { (*from).sa_family }) {
        libc::AF_INET => {
            // SAFETY: of this family, so of this type; possibly unaligned.
            let found = unsafe { from.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: of this family, so of this type; possibly unaligned.
            let found = unsafe { from.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(found.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn ones(mask: IpAddr) -> u8 {
    let count = match mask {
        IpAddr::V4(mask) => u32::from(mask).count_ones(),
        IpAddr::V6(mask) => u128::from(mask).count_ones(),
    };
    count as u8
}

/// All of them; none if the kernel does not tell.
pub fn list() -> Vec<Interface> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call makes a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: an entry of the list, which is valid until it is freed.
        let entry = unsafe { next.read() };
        next = entry.ifa_next;
        // SAFETY: null, or of the family that it says.
        let Some(own) = (unsafe { address(entry.ifa_addr) }) else { continue };
        // SAFETY: null, or of the family that it says, which is the family of the address.
        let mask = unsafe { address(entry.ifa_netmask) };
        // SAFETY: the name of an entry is a string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        let flag = |flag: i32| entry.ifa_flags & flag.cast_unsigned() != 0;
        let (up, loopback) = (flag(libc::IFF_UP), flag(libc::IFF_LOOPBACK));
        let running = up && flag(libc::IFF_RUNNING);
        let bits = if own.is_ipv4() { 32 } else { 128 };
        let prefix = mask.map_or(bits, ones);
        found.push(Interface { name, address: own, prefix, up, running, loopback });
    }
    // SAFETY: the list of getifaddrs, freed once.
    unsafe { libc::freeifaddrs(list) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_makes_sense() {
        for interface in list() {
            assert!(!interface.name.is_empty());
            let bits = if interface.address.is_ipv4() { 32 } else { 128 };
            assert!(interface.prefix <= bits, "{interface:?}");
            assert!(interface.loopback || !interface.address.is_loopback(), "{interface:?}");
        }
    }
}
