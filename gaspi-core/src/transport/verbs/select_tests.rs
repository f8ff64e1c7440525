//! The choice over devices that no machine needs to have.

use super::super::subnet;
use super::*;
use proptest::prelude::*;

fn gid(index: u8, kind: GidKind, address: &str) -> GidEntry {
    let address: std::net::IpAddr = address.parse().expect("an address");
    let gid = match address {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(address) => address.octets(),
    };
    GidEntry { index, gid, kind }
}

/// The table of a port with an IPv6 and an IPv4 address.
fn table() -> Vec<GidEntry> {
    vec![
        gid(0, GidKind::RoceV1, "fe80::1"),
        gid(1, GidKind::RoceV2, "fe80::1"),
        gid(2, GidKind::RoceV1, "10.7.0.1"),
        gid(3, GidKind::RoceV2, "10.7.0.1"),
        gid(4, GidKind::RoceV2, "2001:db8::1"),
    ]
}

fn port(number: u8) -> PortFacts {
    PortFacts {
        number,
        active: true,
        ethernet: true,
        message_bytes: 1 << 30,
        mtu: 5,
        lid: 0,
        needs_header: false,
        rate: 100,
        gids: table(),
        pkeys: vec![0xffff, 0x8001, 0x0002],
    }
}

fn device(name: &str) -> DeviceFacts {
    DeviceFacts {
        name: name.to_owned(),
        protocol: Protocol::InfiniBand,
        unreadable: None,
        shared_queues: true,
        too_small: None,
        unreliable: None,
        numa_node: None,
        near_cores: None,
        ports: vec![port(1)],
    }
}

#[derive(Default)]
struct Asked {
    choice: DeviceChoice,
    params: RdmaParams,
    place: Place,
    network: Option<Network>,
    networks: HostNetworks,
    favoured: Favoured,
}

impl Asked {
    fn of(&self, devices: &[DeviceFacts]) -> Selection {
        let Asked { choice, params, place, networks, favoured, .. } = self;
        let network = self.network;
        choose(devices, Wanted { choice, params, place, network, networks, favoured })
    }
}

fn for_rank(nth: u32, cores: u64) -> Asked {
    Asked { place: Place { cores: vec![cores], nth }, ..Asked::default() }
}

/// Device and port number of what is chosen.
fn chosen(devices: &[DeviceFacts], asked: &Asked) -> (String, u8) {
    let chosen = asked.of(devices).chosen.expect("a port");
    let device = &devices[chosen.device];
    (device.name.clone(), device.ports[chosen.port].number)
}

fn wrong(devices: &[DeviceFacts], asked: &Asked) -> String {
    match asked.of(devices).chosen {
        Err(NoDevice::Wrong(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_gids_the_best_is_used() {
    let best = |gids: &[GidEntry]| best_gid(gids, None).map(|gid| gid.index);
    let all = table();
    assert_eq!(best(&all), Some(3), "RoCE v2 of an IPv4 address");
    assert_eq!(best(&[all[0], all[1], all[2], all[4]]), Some(4), "v2 before v1");
    assert_eq!(best(&all[..3]), Some(2), "v1 before a link-local one of v2");
    assert_eq!(best(&all[..2]), Some(1), "link-local if there is no other");
    let itself = gid(0, GidKind::RoceV2, "169.254.3.4");
    assert_eq!(best(&[itself, all[4]]), Some(4), "IPv4 has link-local ones too");
    assert_eq!(best(&[]), None);
}

#[test]
fn a_gid_is_found_again_by_its_value() {
    let before = table()[3];
    let moved: Vec<GidEntry> =
        table().iter().map(|gid| GidEntry { index: gid.index + 2, ..*gid }).collect();
    assert_eq!(gid_again(&moved, before, None).map(|gid| gid.index), Some(5), "not the one of v1");
    let gone: Vec<GidEntry> = moved.iter().filter(|gid| gid.gid != before.gid).copied().collect();
    assert_eq!(gid_again(&gone, before, None).map(|gid| gid.index), Some(6), "the next best");
    let asked = Some(GidChoice::Address("::ffff:10.7.0.1".parse().expect("an address")));
    assert_eq!(gid_again(&gone, before, asked), None, "what was asked for has no substitute");
}

#[test]
fn devices_that_cannot_be_used_tell_why() {
    type Case = (&'static str, fn(&mut DeviceFacts));
    let refused: [Case; 8] = [
        ("iWARP", |device| device.protocol = Protocol::Iwarp),
        ("EFA", |device| device.protocol = Protocol::Other),
        ("it is broken", |device| device.unreadable = Some("it is broken".to_owned())),
        ("shared receive queues", |device| device.shared_queues = false),
        ("reliable queue pairs", |device| device.unreliable = Some("refused".to_owned())),
        ("has no port", |device| device.ports.clear()),
        ("port 1 is not active", |device| device.ports[0].active = false),
        ("port 1 has no GID", |device| device.ports[0].gids.clear()),
    ];
    for (reason, change) in refused {
        let mut devices = [device("a"), device("b")];
        change(&mut devices[0]);
        let found = Asked::default().of(&devices);
        assert_eq!(found.chosen.map(|chosen| chosen.device), Ok(1), "{reason}");
        assert!(found.rows[0].reason.contains(reason), "{reason}: {:?}", found.rows);
        assert!(!found.rows[0].usable && found.rows[1].used, "{reason}");
        match Asked::default().of(&devices[..1]).chosen {
            Err(NoDevice::Missing(told)) => assert!(told.contains(reason), "{reason}: {told}"),
            other => panic!("{other:?}"),
        }
    }
    let none = Asked::default().of(&[]).chosen;
    assert_eq!(none, Err(NoDevice::Missing("there is no RDMA device".to_owned())));
}

#[test]
fn the_nearest_port_comes_first_then_the_fastest() {
    let mut devices = [device("a"), device("b"), device("c")];
    for (device, cores) in devices.iter_mut().zip([0x0f, 0xf0]) {
        device.near_cores = Some(vec![cores]);
    }
    devices[2].near_cores = Some(vec![0xf0]);
    devices[2].ports[0].rate = 200;
    assert_eq!(chosen(&devices, &for_rank(0, 0x01)).0, "a");
    assert_eq!(chosen(&devices, &for_rank(0, 0x10)).0, "c", "near, and faster than b");
    assert_eq!(chosen(&devices, &for_rank(0, 0x100)).0, "c", "none is near");
    devices[0].ports[0].ethernet = false;
    devices[0].ports[0].gids = vec![gid(0, GidKind::InfiniBand, "fe80::5")];
    assert_eq!(chosen(&devices, &for_rank(0, 0x10)).0, "a", "all ranks prefer InfiniBand alike");
}

#[test]
fn ranks_of_a_node_take_equal_ports_in_turn() {
    let mut devices = [device("a"), device("b"), device("c")];
    devices[1].ports.push(port(2));
    devices[2].ports[0].rate = 10;
    let turns: Vec<(String, u8)> = (0..4).map(|nth| chosen(&devices, &for_rank(nth, 1))).collect();
    let expected = [("a", 1), ("b", 1), ("b", 2), ("a", 1)];
    assert_eq!(turns, expected.map(|(name, port)| (name.to_owned(), port)));
    let mut other_subnet = [device("a"), device("b")];
    for (device, prefix) in other_subnet.iter_mut().zip(["fe80::1", "fec0::1"]) {
        device.ports[0].ethernet = false;
        device.ports[0].gids = vec![gid(0, GidKind::InfiniBand, prefix)];
    }
    assert_eq!(chosen(&other_subnet, &for_rank(1, 1)).0, "a", "another subnet is not equal");
}

#[test]
fn ports_of_other_networks_do_not_count_as_equal_unless_they_are_named() {
    let mut devices = [device("a"), device("b"), device("c")];
    for (device, address) in devices.iter_mut().zip(["10.8.0.1", "10.7.0.1", "10.7.0.2"]) {
        device.ports[0].gids = vec![gid(0, GidKind::RoceV2, address)];
    }
    let mut asked = for_rank(0, 1);
    let turns = |asked: &mut Asked| {
        [0, 1, 2].map(|nth| {
            asked.place.nth = nth;
            chosen(&devices, asked).0
        })
    };
    assert_eq!(turns(&mut asked), ["a", "b", "c"], "as long as nothing is known");
    let own = ["10.8.0.1", "10.7.0.1", "10.7.0.2"];
    asked.networks =
        HostNetworks(own.iter().map(|own| (own.parse().expect("an address"), 24)).collect());
    assert_eq!(turns(&mut asked), ["b", "c", "b"], "the lowest network, for all hosts alike");
    asked.place.nth = 0;
    let rows = asked.of(&devices).rows;
    assert!(
        rows[0].reason.contains("in network 10.8.0.0/24, b, port 1 in 10.7.0.0/24"),
        "{rows:?}"
    );
    asked.choice.devices = ["a", "b", "c"].map(str::to_owned).to_vec();
    assert_eq!(turns(&mut asked), ["a", "b", "c"], "whoever names them says that they are equal");
    asked.choice.devices.clear();
    asked.networks.0.iter_mut().for_each(|(_, prefix)| *prefix = 8);
    assert_eq!(turns(&mut asked), ["a", "b", "c"], "one network");
}

#[test]
fn a_network_that_the_ranks_share_comes_before_a_faster_port() {
    // On this host the first one is faster and near, on the other hosts its network is unknown.
    let mut devices = [device("a"), device("b"), device("c")];
    for (device, address) in devices.iter_mut().zip(["10.7.0.1", "10.8.0.1", "10.9.0.1"]) {
        device.ports[0].gids = vec![gid(0, GidKind::RoceV2, address)];
        device.near_cores = Some(vec![2]);
    }
    (devices[0].near_cores, devices[0].ports[0].rate) = (Some(vec![1]), 200);
    let mut asked = for_rank(0, 1);
    let own = ["10.7.0.1", "10.8.0.1", "10.9.0.1"];
    asked.networks =
        HostNetworks(own.iter().map(|own| (own.parse().expect("an address"), 24)).collect());
    let alone = asked.of(&devices);
    let told = |selection: &Selection| -> Vec<_> {
        selection.networks.iter().map(|network| network.parts()).collect()
    };
    let networks = told(&alone);
    let in_words = subnet::in_words(networks.iter().copied());
    assert_eq!(in_words, "10.7.0.0/24, 10.8.0.0/24, 10.9.0.0/24", "the best one first");
    assert_eq!(alone.chosen.map(|chosen| chosen.device), Ok(0));
    // Others have the second and the third one.
    asked.favoured =
        subnet::favoured([0, 1, 1].into_iter().map(|from| networks[from..].iter().copied()));
    let found = asked.of(&devices);
    assert_eq!(found.chosen.as_ref().map(|chosen| chosen.device), Ok(1));
    assert_eq!(told(&found), networks, "what a rank tells does not depend on the others");
    let reason = &found.rows[0].reason;
    assert!(reason.contains("10.7.0.0/24, b, port 1 in 10.8.0.0/24, which the ranks"), "{reason}");
    // InfiniBand comes first, and tells its own.
    devices[2].ports[0].ethernet = false;
    devices[2].ports[0].gids = vec![gid(0, GidKind::InfiniBand, "fe80::7")];
    let found = asked.of(&devices);
    let networks = subnet::in_words(told(&found).into_iter());
    assert_eq!((found.chosen.map(|chosen| chosen.device), &*networks), (Ok(2), "fe80::/64"));
}

#[test]
fn an_infiniband_subnet_that_the_ranks_share_comes_first() {
    let mut devices = [device("a"), device("b")];
    for (device, address) in devices.iter_mut().zip(["fe80:0:0:1::1", "fe80:0:0:2::1"]) {
        device.ports[0].ethernet = false;
        device.ports[0].gids = vec![gid(0, GidKind::InfiniBand, address)];
    }
    let mut asked = for_rank(0, 1);
    let alone = asked.of(&devices);
    assert_eq!(alone.chosen.map(|chosen| chosen.device), Ok(0), "the lowest, for all hosts alike");
    asked.favoured = subnet::favoured([0, 1, 1].into_iter().map(|from| {
        let told = &alone.networks[from..];
        told.iter().map(|network| network.parts())
    }));
    // To name both does not join them.
    asked.choice.devices = ["a", "b"].map(str::to_owned).to_vec();
    let found = asked.of(&devices);
    assert_eq!(found.chosen.as_ref().map(|chosen| chosen.device), Ok(1));
    let reason = &found.rows[0].reason;
    let words = "in network fe80:0:0:1::/64, b, port 1 in fe80:0:0:2::/64, which the ranks of the \
                 job favour";
    assert!(reason.ends_with(words), "{reason}");
}

#[test]
fn what_is_named_is_used_or_an_error_that_tells_what_there_is() {
    let mut devices = [device("a"), device("b")];
    devices[1].ports.push(port(2));
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let mut asked = for_rank(1, 1);
    asked.choice.devices = names(&["a"]);
    assert_eq!(chosen(&devices, &asked), ("a".to_owned(), 1));
    asked.choice.devices = names(&["b", "a"]);
    assert_eq!(chosen(&devices, &asked), ("b".to_owned(), 1), "the second of three");
    asked.choice.devices = names(&["a", "x"]);
    let reason = wrong(&devices, &asked);
    assert!(reason.contains("GASPI_IB_DEVICE") && reason.contains("\"x\""), "{reason}");
    assert!(reason.contains("a, b"), "{reason}");

    asked = Asked::default();
    asked.choice.port = Some(2);
    assert_eq!(chosen(&devices, &asked), ("b".to_owned(), 2));
    devices[1].ports[1].active = false;
    let none = asked.of(&devices).chosen.expect_err("an inactive port");
    assert_eq!(none, NoDevice::Missing("b: port 2 is not active".to_owned()));
    asked.choice.port = Some(3);
    assert!(wrong(&devices, &asked).contains("GASPI_IB_PORT is 3"));

    asked = Asked::default();
    asked.choice.gid = Some(GidChoice::Index(1));
    assert_eq!(asked.of(&devices).chosen.map(|chosen| chosen.gid.index), Ok(1));
    asked.choice.gid = Some(GidChoice::Address("2001:db8::1".parse().expect("an address")));
    assert_eq!(asked.of(&devices).chosen.map(|chosen| chosen.gid.index), Ok(4));
    asked.choice.gid = Some(GidChoice::Index(9));
    let reason = wrong(&devices, &asked);
    assert!(reason.contains("GASPI_IB_GID is 9"), "{reason}");
    assert!(reason.contains("::ffff:10.7.0.1 (index 3, RoCE v2)"), "{reason}");

    asked = Asked::default();
    for (key, index) in [(0xffff, 0), (0x8001, 1), (0x0001, 1), (0x8002, 2)] {
        asked.choice.pkey = Some(key);
        assert_eq!(asked.of(&devices).chosen.map(|chosen| chosen.pkey_index), Ok(index));
    }
    asked.choice.pkey = Some(0x8003);
    let reason = wrong(&devices, &asked);
    assert!(reason.contains("GASPI_IB_PKEY is 0x8003") && reason.contains("0x8001"), "{reason}");
}

#[test]
fn what_the_program_asks_for_holds_where_no_variable_does() {
    let mut devices = [device("a"), device("b")];
    let mut asked = Asked::default();
    asked.params.device_number = Some(1);
    assert_eq!(chosen(&devices, &asked).0, "b");
    asked.choice.devices = vec!["a".to_owned()];
    assert_eq!(chosen(&devices, &asked).0, "a", "the environment comes first");
    asked = Asked::default();
    asked.params.device_number = Some(2);
    let reason = wrong(&devices, &asked);
    assert!(reason.contains("netdev_id is 2") && reason.contains("a, b"), "{reason}");

    asked = Asked::default();
    for (bytes, mtu) in [(0, 5), (1024, 3), (2048, 4), (4096, 5)] {
        asked.params.mtu_bytes = bytes;
        assert_eq!(asked.of(&devices).chosen.map(|chosen| chosen.mtu), Ok(mtu));
    }
    devices[0].ports[0].mtu = 2;
    assert_eq!(asked.of(&devices).chosen.map(|chosen| chosen.mtu), Ok(2), "of the port");

    let mut asked = Asked::default();
    devices[0].ports[0].active = false;
    asked.params.port_check = false;
    assert_eq!(chosen(&devices, &asked).0, "b", "active ones come first");
    assert_eq!(chosen(&devices[..1], &asked).0, "a", "an inactive one is no error");
}

fn any_port() -> impl Strategy<Value = PortFacts> {
    let gids = prop::collection::vec(0..5usize, 0..4);
    (any::<[bool; 3]>(), 0..6u8, 1..3u32, gids).prop_map(
        |([active, ethernet, long], mtu, rate, of)| {
            let gids = of.into_iter().map(|at| table()[at]).collect();
            let message_bytes = if long { 1 << 20 } else { 100 };
            PortFacts { active, ethernet, mtu, rate, gids, message_bytes, ..port(1) }
        },
    )
}

fn any_device() -> impl Strategy<Value = DeviceFacts> {
    let ports = prop::collection::vec(any_port(), 0..3);
    let near = prop::option::of(any::<u8>());
    (ports, near, any::<[bool; 2]>(), 0..6u8).prop_map(
        |(mut ports, near, [queues, pairs], kind)| {
            for (at, port) in ports.iter_mut().enumerate() {
                port.number = at as u8 + 1;
            }
            DeviceFacts {
                protocol: match kind {
                    0 => Protocol::Iwarp,
                    1 => Protocol::Other,
                    _ => Protocol::InfiniBand,
                },
                shared_queues: queues,
                unreliable: (!pairs).then(|| "refused".to_owned()),
                near_cores: near.map(|near| vec![near.into()]),
                ports,
                ..device("any")
            }
        },
    )
}

proptest! {
    #[test]
    fn what_is_chosen_can_be_used_and_all_else_has_a_reason(
        mut devices in prop::collection::vec(any_device(), 0..5), nth: u8, cores: u8, checked: bool,
    ) {
        for (at, device) in devices.iter_mut().enumerate() {
            device.name = format!("d{at}");
        }
        let mut asked = for_rank(nth.into(), cores.into());
        asked.params.port_check = checked;
        let found = asked.of(&devices);
        let ports: usize = devices.iter().map(|device| device.ports.len().max(1)).sum();
        prop_assert_eq!(found.rows.len(), ports);
        prop_assert!(found.rows.iter().all(|row| !row.reason.is_empty()));
        let used: Vec<&PortRow> = found.rows.iter().filter(|row| row.used).collect();
        let any_usable = found.rows.iter().any(|row| row.usable);
        match found.chosen {
            Err(NoDevice::Missing(reason)) => {
                prop_assert!(!any_usable && used.is_empty() && !reason.is_empty());
            }
            Err(NoDevice::Wrong(reason)) => prop_assert!(false, "nothing was named: {}", reason),
            Ok(chosen) => {
                let device = &devices[chosen.device];
                let port = &device.ports[chosen.port];
                prop_assert_eq!(used.len(), 1);
                prop_assert!(used[0].usable);
                prop_assert!(device.protocol == Protocol::InfiniBand && device.shared_queues);
                prop_assert!(device.unreliable.is_none() && port.message_bytes >= 256);
                prop_assert!(port.active || !checked);
                prop_assert!((1..=5).contains(&chosen.mtu) && chosen.mtu <= port.mtu.max(1));
                prop_assert!(port.gids.contains(&chosen.gid));
                let other = |gid: &GidEntry| !gid.is_link_local();
                let has_other = port.gids.iter().any(other);
                prop_assert!(!chosen.gid.is_link_local() || !has_other);
            }
        }
        // The same question has the same answer.
        let again = asked.of(&devices);
        prop_assert_eq!(found.rows, again.rows);
    }
}
