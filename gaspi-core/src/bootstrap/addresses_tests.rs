//! Which addresses are offered and tried, on made-up hosts, and listeners on this one.

use super::*;
use crate::os::interfaces;
use std::collections::HashMap;

fn interface(name: &str, address: &str, prefix: u8) -> Interface {
    let address: IpAddr = address.parse().expect("address");
    let loopback = name == "lo";
    Interface { name: name.to_owned(), address, prefix, up: true, running: true, loopback }
}

/// A host as there are many.
fn host() -> Vec<Interface> {
    vec![
        interface("lo", "127.0.0.1", 8),
        interface("lo", "::1", 128),
        interface("eth0", "192.0.2.10", 24),
        interface("eth0", "2001:db8::10", 64),
        interface("eth0", "fe80::10", 64),
        interface("ib0", "198.51.100.10", 24),
        interface("docker0", "172.17.0.1", 16),
        Interface { up: false, running: false, ..interface("eth1", "203.0.113.10", 24) },
        Interface { running: false, ..interface("eth2", "203.0.113.11", 24) },
    ]
}

fn restrictions(variables: &[(&str, &str)]) -> Result<Restrictions> {
    let map: HashMap<&str, OsString> =
        variables.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
    Restrictions::parse(&|name| map.get(name).cloned())
}

fn offer(variables: &[(&str, &str)], audience: Audience) -> Vec<String> {
    let restrictions = restrictions(variables).expect("restrictions");
    let offer = offered(&host(), &restrictions, audience).expect("offer");
    offer.addresses.iter().map(IpAddr::to_string).collect()
}

#[test]
fn what_is_offered_follows_the_variables() {
    let hosts = Audience::OtherHosts;
    let all = ["192.0.2.10", "2001:db8::10", "198.51.100.10", "172.17.0.1"];
    assert_eq!(offer(&[], hosts), all);
    assert_eq!(offer(&[("GASPI_INTERFACE", "ib0")], hosts), ["198.51.100.10"]);
    assert_eq!(offer(&[("GASPI_INTERFACE", "ens3, eth0")], hosts), all[..2]);
    assert_eq!(offer(&[("GASPI_SUBNET", "192.0.0.0/8")], hosts), ["192.0.2.10"]);
    let both = [("GASPI_SUBNET", "2001:db8::/32,198.51.100.10")];
    assert_eq!(offer(&both, hosts), ["2001:db8::10", "198.51.100.10"]);
    assert_eq!(offer(&[("GASPI_SUBNET", "0.0.0.0/0")], hosts).len(), 3);
    assert_eq!(offer(&[], Audience::ThisHost), ["127.0.0.1", "::1"]);
    let named = [("GASPI_INTERFACE", "eth0")];
    assert_eq!(offer(&named, Audience::ThisHost), ["192.0.2.10", "2001:db8::10"]);
}

#[test]
fn loopback_is_offered_to_nobody_else() {
    for variables in [[("GASPI_INTERFACE", "lo")], [("GASPI_SUBNET", "127.0.0.0/8")]] {
        let restrictions = restrictions(&variables).expect("restrictions");
        let error = offered(&host(), &restrictions, Audience::OtherHosts).expect_err("loopback");
        let text = error.to_string();
        assert!(text.contains("loopback leads to this host only"), "{text}");
        assert!(text.contains("check GASPI_INTERFACE and GASPI_SUBNET"), "{text}");
        assert!(text.contains("192.0.2.10 (eth0)"), "{text}");
    }
    let none = offered(&[], &Restrictions::default(), Audience::OtherHosts).expect_err("none");
    assert!(none.to_string().contains("it has none"), "{none}");
}

#[test]
fn reasons_are_told() {
    let offer = offered(&host(), &Restrictions::default(), Audience::OtherHosts).expect("offer");
    let told = offer.left_out.join("\n");
    for words in [
        "127.0.0.1 (lo): loopback leads to this host only",
        "fe80::10 (eth0): it is valid on its link only",
        "203.0.113.10 (eth1): the interface is down",
        "203.0.113.11 (eth2): the interface has no carrier",
    ] {
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn variables_that_make_no_sense_are_named() {
    for (name, value) in [
        ("GASPI_SUBNET", "192.0.2.0/33"),
        ("GASPI_SUBNET", "192.0.2/24"),
        ("GASPI_SUBNET", "eth0"),
        ("GASPI_SUBNET", ""),
        ("GASPI_INTERFACE", ""),
        ("GASPI_INTERFACE", " , "),
        ("GASPI_PORT_RANGE", ""),
        ("GASPI_PORT_RANGE", "0-10"),
        ("GASPI_PORT_RANGE", "10-9"),
        ("GASPI_PORT_RANGE", "1-65536"),
    ] {
        let text = restrictions(&[(name, value)]).expect_err(value).to_string();
        assert!(text.contains(name), "{text}");
    }
    let range = |text| restrictions(&[("GASPI_PORT_RANGE", text)]).expect("range").ports;
    assert_eq!(range("50000-50999"), Some((50000, 50999)));
    assert_eq!(range(" 7 "), Some((7, 7)));
}

fn order(offered: &[&str], audience: Audience) -> (Vec<String>, Vec<String>) {
    let offered: Vec<SocketAddr> = offered.iter().map(|a| a.parse().expect("endpoint")).collect();
    let found = Candidates::new(&offered, &host(), audience);
    let text = |all: &[Candidate]| all.iter().map(Candidate::to_string).collect();
    (text(&found.tried), text(&found.dropped))
}

#[test]
fn near_addresses_are_tried_first_and_own_ones_never() {
    let peer = [
        "172.17.0.1:7",
        "10.0.0.1:7",
        "10.0.0.2:7",
        "198.51.100.11:7",
        "192.0.2.11:7",
        "[2001:db8:1::11]:8",
        "[2001:db8::11]:8",
        "127.0.0.1:7",
    ];
    let (tried, dropped) = order(&peer, Audience::OtherHosts);
    assert_eq!(
        tried,
        [
            "198.51.100.11:7 (in the subnet 198.51.100.10/24 of ib0)",
            "[2001:db8::11]:8 (in the subnet 2001:db8::10/64 of eth0)",
            "192.0.2.11:7 (in the subnet 192.0.2.10/24 of eth0)",
            "10.0.0.1:7 (in no subnet of this host)",
            "[2001:db8:1::11]:8 (in no subnet of this host)",
            "10.0.0.2:7 (in no subnet of this host)",
        ]
    );
    assert_eq!(
        dropped,
        [
            "172.17.0.1:7 (this host has that address itself, on docker0)",
            "127.0.0.1:7 (loopback never leads elsewhere)",
        ]
    );
    // A rank of this host answers there.
    let (tried, dropped) = order(&["127.0.0.1:7", "192.0.2.10:7"], Audience::ThisHost);
    assert_eq!((tried.len(), dropped.len()), (2, 0), "{tried:?}");
}

#[test]
fn a_peer_that_cannot_be_reached_is_explained() {
    let offered = ["172.17.0.1:7".parse().expect("endpoint")];
    let lack = Candidates::new(&offered, &host(), Audience::OtherHosts).lack().expect("lack");
    assert!(
        lack.contains("172.17.0.1:7 (this host has that address itself, on docker0)"),
        "{lack}"
    );
    let lack = Candidates::new(&[], &host(), Audience::OtherHosts).lack().expect("lack");
    assert_eq!(lack, "it offers no address");
    let offered = ["192.0.2.7:7".parse().expect("endpoint")];
    assert_eq!(Candidates::new(&offered, &host(), Audience::OtherHosts).lack(), None);
}

#[test]
fn listeners_are_where_their_endpoints_say() {
    let own = interfaces::list();
    let none = Restrictions::default();
    let listening = listen(&own, &none, Audience::ThisHost).expect("listeners");
    assert_eq!(listening.listeners.len(), listening.endpoints.len());
    for (fd, endpoint) in listening.listeners.iter().zip(&listening.endpoints) {
        assert_eq!(tcp::local_address(fd.as_fd()).expect("address"), *endpoint);
        let client = tcp::connect(*endpoint).expect("connection");
        crate::bootstrap::system::wait(
            &[(fd.as_fd(), false)],
            crate::timeout::Deadline::Never,
            Some(std::time::Duration::from_secs(20)),
        );
        assert!(tcp::accept(fd.as_fd()).expect("accept").is_some(), "{endpoint}");
        drop(client);
    }
}

/// A port that is taken, and the next one, which is free.
fn taken_and_free() -> (u16, std::os::fd::OwnedFd) {
    loop {
        let taken = tcp::listen("127.0.0.1:0".parse().expect("address")).expect("listener");
        let port = tcp::local_address(taken.as_fd()).expect("address").port();
        let next = |port: u16| tcp::listen(([127, 0, 0, 1], port).into());
        if port < u16::MAX && next(port + 1).is_ok() {
            return (port, taken);
        }
    }
}

#[test]
fn ranks_of_a_host_take_the_port_of_the_configuration_and_those_behind_it() {
    let own = [interface("lo", "127.0.0.1", 8)];
    let (port, taken) = taken_and_free();
    let from = |ranks| restrictions(&[]).expect("none").or_from_port(Some(port), ranks);
    let all_taken = listen(&own, &from(1), Audience::ThisHost).expect_err("taken").to_string();
    let field = "dev_config.params.tcp.port";
    assert!(all_taken.contains(field) && all_taken.contains("taken"), "{all_taken}");
    let listening = listen(&own, &from(2), Audience::ThisHost).expect("the next one is free");
    assert_eq!(listening.endpoints[0].port(), port + 1);
    drop((taken, listening));
    let listening = listen(&own, &from(2), Audience::ThisHost).expect("both are free");
    assert_eq!(listening.endpoints[0].port(), port);
}

#[test]
fn a_range_of_ports_comes_before_the_port_of_the_configuration() {
    let ranged = restrictions(&[("GASPI_PORT_RANGE", "50000-50009")]).expect("range");
    assert_eq!(ranged.clone().or_from_port(Some(20_000), 4), ranged);
    let none = restrictions(&[]).expect("none");
    assert_eq!(none.clone().or_from_port(None, 4), none);
    let ports = |first, ranks| none.clone().or_from_port(Some(first), ranks).ports;
    assert_eq!(ports(20_000, 4), Some((20_000, 20_003)));
    assert_eq!(ports(65_000, 65_535), Some((65_000, 65_535)));
}

#[test]
fn a_full_range_of_ports_is_told() {
    let own = [interface("lo", "127.0.0.1", 8)];
    let taken = tcp::listen("127.0.0.1:0".parse().expect("address")).expect("listener");
    let port = tcp::local_address(taken.as_fd()).expect("address").port();
    let range = format!("{port}-{port}");
    let full = restrictions(&[("GASPI_PORT_RANGE", &range)]).expect("range");
    let text = listen(&own, &full, Audience::ThisHost).expect_err("taken").to_string();
    let words = format!("the ports of GASPI_PORT_RANGE {range} are all taken on host");
    assert!(text.contains(&words), "{text}");
    drop(taken);
    // The port has been used a moment ago, and is free. Another process may have taken it by now.
    if let Ok(listening) = listen(&own, &full, Audience::ThisHost) {
        assert_eq!(listening.endpoints[0].port(), port);
    }
}
