//! Which RDMA device, port and GID a rank uses: what is named wrongly or cannot be used, and what
//! changes while the rank runs.

use super::budgets::until_by_device;
use super::verbs::{LIMIT_OF_CHANGE, counted};
use super::*;
use crate::ranks::layouts::{self, Devices};
use crate::ranks::{run_with_devices, run_with_prepared, run_without_messages};
use gaspi_core::config::{GidChoice, RdmaParams};
use gaspi_mock_card::Fabric;
use gaspi_mock_card::control::Live;
use std::net::{IpAddr, Ipv4Addr};

/// The ports and their reasons of a rank that may choose among three devices, or its error.
fn start(devices: &Devices, config: &Config, ask: impl FnOnce(&mut Job)) -> Result<String, String> {
    let nodes = Nodes::of_this_test();
    let (fabric, library) = devices;
    fabric.use_all();
    let mut job = nodes.job("choice", Rank(0), 2);
    job.transport = Transport::Verbs;
    job.device.library = Some(library.clone());
    ask(&mut job);
    // Nobody is met.
    let prepared = PendingInit::new(job, config.clone());
    prepared.map(|prepared| prepared.rdma_device().unwrap_or_default()).map_err(|e| e.to_string())
}

fn refusal(devices: &Devices, ask: impl FnOnce(&mut DeviceChoice)) -> String {
    let started = start(devices, &Config::default(), |job| ask(&mut job.device));
    started.expect_err("there is no such thing")
}

fn three() -> Devices {
    layouts::mocked_devices(3, "")
}

fn name(devices: &Devices, device: u32) -> String {
    format!("mock{}_{device}", devices.0.number())
}

fn what_is_named_wrongly_is_an_error_that_tells_what_there_is() {
    let devices = three();
    let all = [name(&devices, 0), name(&devices, 1), name(&devices, 2)].join(", ");
    let told = |reason: String, words: &[&str]| {
        let missing = words.iter().find(|word| !reason.contains(**word));
        assert_eq!(missing, None, "{reason}");
    };
    let absent = || vec![name(&devices, 1), "mlx5_9".to_owned()];
    let reason = refusal(&devices, |choice| choice.devices = absent());
    told(reason, &["GASPI_IB_DEVICE", "mlx5_9", &all]);
    let reason = refusal(&devices, |choice| choice.port = Some(2));
    told(reason, &["GASPI_IB_PORT is 2", "has these ports: 1"]);
    let reason = refusal(&devices, |choice| choice.gid = Some(GidChoice::Index(7)));
    told(reason, &["GASPI_IB_GID is 7", "::ffff:10.", "(index 3, RoCE v2)"]);
    let other = GidChoice::Address("2001:db8::1".parse().expect("an address"));
    let reason = refusal(&devices, |choice| choice.gid = Some(other));
    told(reason, &["GASPI_IB_GID is 2001:db8::1", "(index 3, RoCE v2)"]);
    let reason = refusal(&devices, |choice| choice.pkey = Some(0x8123));
    told(reason, &["GASPI_IB_PKEY is 0x8123", "0xffff"]);
    let rdma = RdmaParams { device_number: Some(3), ..RdmaParams::default() };
    let config = Config { rdma, ..Config::default() };
    let reason = start(&devices, &config, |_| ()).expect_err("there are three");
    told(reason, &["netdev_id is 3", "0 to 2", &all]);
    // Also where a device may be used, but need not.
    let auto = start(&devices, &Config::default(), |job| {
        job.transport = Transport::Auto;
        job.device.devices = absent();
    });
    told(auto.expect_err("named wrongly"), &["GASPI_IB_DEVICE", "mlx5_9"]);
    assert_eq!(devices.0.end().contexts, 0, "devices stay open");
}

fn the_first_device_that_can_be_used_is_used() {
    let devices = three();
    let device = |config: &Config, ask: &dyn Fn(&mut Job)| {
        let started = start(&devices, config, |job| ask(job)).expect("a device");
        (0..3).find(|number| started.starts_with(&name(&devices, *number))).expect(&started)
    };
    let default = Config::default();
    assert_eq!(device(&default, &|_| ()), 0);
    assert_eq!(device(&default, &|job| job.local_rank = 4), 1, "equal ones are taken in turn");
    assert_eq!(device(&default, &|job| job.device.devices = vec![name(&devices, 2)]), 2);
    let rdma = RdmaParams { device_number: Some(2), ..RdmaParams::default() };
    assert_eq!(device(&Config { rdma, ..Config::default() }, &|_| ()), 2);
    // NDR and XDR: the latter does not fit into 8 bits.
    devices.0.set(1, "speed=128");
    devices.0.set(2, "speed=256");
    assert_eq!(device(&default, &|_| ()), 2, "the fastest comes first");
    devices.0.set(1, "speed=32");
    devices.0.set(2, "speed=32");
    devices.0.set(0, "reliable=0");
    devices.0.port(1, 0);
    assert_eq!(device(&default, &|_| ()), 2);
    devices.0.set(2, "max_srq=0");
    let reason = start(&devices, &default, |_| ()).expect_err("none can be used");
    for why in ["reliable queue pairs", "port 1 is not active", "shared receive queues"] {
        assert!(reason.contains(why), "{why}: {reason}");
    }
    let rdma = RdmaParams { port_check: false, ..RdmaParams::default() };
    assert_eq!(device(&Config { rdma, ..Config::default() }, &|_| ()), 1);
    assert_eq!(devices.0.end().contexts, 0, "devices stay open");
}

fn a_job_without_an_active_port_ends_at_init() {
    let devices = layouts::mocked_devices(1, "port_up=0");
    let reason = start(&devices, &Config::default(), |_| ()).expect_err("no active port");
    assert!(reason.contains("GASPI_TRANSPORT is verbs"), "{reason}");
    assert!(reason.contains("port 1 is not active"), "{reason}");
}

fn a_network_that_is_asked_for_narrows_the_choice() {
    let devices = three();
    devices.0.set(0, "link_layer=1");
    let device = |network| {
        let config = Config { network, ..Config::default() };
        let started = start(&devices, &config, |_| ()).expect("a device");
        (0..3).find(|number| started.starts_with(&name(&devices, *number))).expect(&started)
    };
    assert_eq!(device(None), 0, "InfiniBand comes first");
    assert_eq!(device(Some(Network::InfiniBand)), 0);
    assert_eq!(device(Some(Network::Roce)), 1);
    let config = Config { network: Some(Network::InfiniBand), ..Config::default() };
    let only = |job: &mut Job| job.device.devices = vec![name(&devices, 2)];
    let reason = start(&devices, &config, only).expect_err("it is on Ethernet");
    assert!(reason.contains("InfiniBand is asked for"), "{reason}");
    assert_eq!(devices.0.end().contexts, 0, "devices stay open");
}

fn each_pair_takes_the_lid_that_the_port_has_then() {
    // The pair of messages would be an old one, and break.
    run_without_messages(2, "link_layer=1", |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, Q0, 1);
        fabric.set(rt.rank().0.into(), "lid=100");
        meet(rt);
        // A pair of its own.
        exchange(rt, Q1, 2);
    });
}

fn a_port_of_ethernet_with_a_lid_is_one_of_roce() {
    run_without_messages(2, "link_layer=2,lid=1", |rt, _| {
        make(rt, S0, 8192);
        exchange(rt, Q0, 1);
    });
}

fn a_device_without_room_for_what_each_rank_needs_is_an_error_of_init() {
    for (options, told) in [
        ("max_registered=4096", "ulimit -l"),
        ("max_mr=0", ""),
        ("max_cq=0", ""),
        ("max_pd=0", ""),
        ("max_mr=1", "it allows only 1 registrations of memory; 4 are needed"),
        ("max_cqe=1", "it allows only 1 entries of a completion queue"),
        ("max_srq_wr=15", "it allows only 15 receives"),
    ] {
        let devices = layouts::mocked_devices(1, options);
        let started = start(&devices, &Config::default(), |_| ());
        let reason = started.expect_err(options);
        assert!(reason.contains("GASPI_TRANSPORT is verbs"), "{options}: {reason}");
        assert!(reason.contains(told), "{options}: {reason}");
        assert_eq!(devices.0.live(0), gaspi_mock_card::control::Live::default(), "{options}");
    }
}

/// Some writes by a queue, both ways, which only a pair of devices carries.
fn exchange(rt: &Runtime, queue: QueueId, round: u64) {
    put_u64(rt, S0, 0, round);
    for _ in 0..10 {
        rt.write(&eight(Rank(1 - rt.rank().0)), queue, LIMIT).expect("posted");
    }
    rt.wait(queue, LIMIT).expect("wait");
    meet(rt);
    assert_eq!(get_u64(rt, S0, 8), round);
    meet(rt);
}

fn ports_of_unequal_mtus_use_the_lower_one() {
    // The mock refuses a path whose MTU is above that of the port.
    for (mine, other) in [(5, 1), (1, 5), (2, 3)] {
        let prepare = |fabric: &gaspi_mock_card::Fabric| {
            fabric.set(0, &format!("mtu={mine}"));
            fabric.set(1, &format!("mtu={other}"));
        };
        run_with_prepared(
            2,
            ("", &Config::default()),
            prepare,
            |_| (),
            |rt, _| {
                make(rt, S0, 8192);
                exchange(rt, Q0, 1);
            },
        );
    }
    let rdma = RdmaParams { mtu_bytes: 1024, ..RdmaParams::default() };
    let config = Config { rdma, ..Config::default() };
    run_with_prepared(
        2,
        ("", &config),
        |_| (),
        |_| (),
        |rt, _| {
            make(rt, S0, 8192);
            exchange(rt, Q0, 1);
        },
    );
}

fn a_gid_that_moves_is_found_again_for_the_next_pair() {
    run_with_devices(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, Q0, 1);
        if rt.rank() == Rank(0) {
            // The entry where it was is empty now.
            fabric.move_gids(0, 4);
        }
        meet(rt);
        exchange(rt, Q1, 2);
        exchange(rt, Q0, 3);
    });
}

fn a_gid_that_is_gone_has_a_substitute_in_the_next_pair() {
    run_with_devices(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, Q0, 1);
        if rt.rank() == Rank(0) {
            let address: std::net::Ipv6Addr = "::ffff:172.16.99.1".parse().expect("an address");
            fabric.gid(0, 2, 1, None);
            fabric.gid(0, 3, 2, None);
            fabric.gid(0, 6, 2, Some(address.octets()));
        }
        meet(rt);
        exchange(rt, Q1, 2);
    });
}

fn what_is_asked_of_a_port_holds_for_its_pairs() {
    let ask = |choice: &mut DeviceChoice| {
        (choice.port, choice.gid) = (Some(1), Some(GidChoice::Index(3)));
        (choice.pkey, choice.service_level, choice.traffic_class) = (Some(0x8002), 5, 104);
    };
    let options = ("pkeys=4", &Config::default());
    run_with_prepared(
        2,
        options,
        |_| (),
        ask,
        |rt, fabric| {
            make(rt, S0, 8192);
            exchange(rt, Q0, 1);
            let told = |name| fabric.counter(rt.rank().0.into(), name);
            let found = [told("pkey_index"), told("service_level"), told("traffic_class")];
            assert_eq!(found, [2, 5, 104]);
        },
    );
}

fn a_rank_tells_which_ports_there_are_and_why_one_is_used() {
    run_with_devices(2, "", |rt, fabric| {
        let ports = rt.rdma_ports();
        let own = format!("mock{}_{}, port 1: active, Ethernet", fabric.number(), rt.rank().0);
        let used: Vec<&String> = ports.iter().filter(|port| port.contains("; used: ")).collect();
        assert_eq!(used.len(), 1, "{ports:?}");
        assert!(used[0].starts_with(&own) && used[0].contains("RoCE v2"), "{ports:?}");
        let other = ports.iter().find(|port| port.contains("; not used: ")).expect("the other's");
        assert!(other.contains("GASPI_IB_DEVICE names"), "{ports:?}");
    });
}

/// What is asked of devices of hosts in several networks.
#[derive(Clone, Copy)]
struct Asked {
    transport: Transport,
    messages: MessageCarrier,
    /// Devices between which there is no way.
    cuts: &'static [(u32, u32)],
    /// More options of the devices.
    options: &'static str,
}

impl Asked {
    /// Of this layout.
    fn usual() -> Asked {
        let transport = Nodes::of_this_test().transport_of_devices();
        Asked { transport, messages: MessageCarrier::Tcp, cuts: &[], options: "" }
    }
}

/// Runs ranks whose hosts have these addresses, each that of a device, in networks of 16 bits.
fn run_on_networks(
    hosts: &[&'static [[u8; 4]]],
    asked: Asked,
    body: impl Fn(&Runtime, &Fabric) + Sync,
) {
    let count = hosts.iter().map(|own| own.len()).sum::<usize>() as u32;
    let options = format!("link_local=0,roce_v1=0,{}", asked.options);
    let (fabric, library) = layouts::mocked_devices(count, &options);
    for (device, address) in hosts.iter().copied().flatten().enumerate() {
        let gid = Ipv4Addr::from(*address).to_ipv6_mapped().octets();
        fabric.gid(device as u32, 0, 2, Some(gid));
    }
    let with_networks = |job: Job| {
        let own = hosts[usize::from(job.rank.0)];
        let with_bits = own.iter().map(|own| (IpAddr::from(*own), 16)).collect::<Vec<_>>();
        let networks = Some(&*with_bits.leak());
        job.on_machine(TestMachine { networks, ..TestMachine::default() })
    };
    run_on_hosts(((fabric, library), count), (hosts.len(), asked), with_networks, body);
}

/// Runs two ranks, each of a host of its own that has the ports of these subnets of InfiniBand.
fn run_on_subnets([one, other]: [&'static [u8]; 2], body: impl Fn(&Runtime, &Fabric) + Sync) {
    let count = (one.len() + other.len()) as u32;
    let (fabric, library) = layouts::mocked_devices(count, "link_layer=1,grh_required=1");
    for (device, subnet) in (0..).zip(one.iter().chain(other)) {
        let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, *subnet, 0, 0, 0, 0, 0, 0, 0, 1 + device as u8];
        fabric.gid(device, 0, 0, Some(gid));
    }
    let number = fabric.number();
    let with_devices = |mut job: Job| {
        let first = if job.rank == Rank(0) { 0 } else { one.len() };
        let own = [one, other][usize::from(job.rank.0)].len();
        let names = (first..first + own).map(|device| format!("mock{number}_{device}"));
        job.device.devices = names.collect();
        job
    };
    run_on_hosts(((fabric, library), count), (2, Asked::usual()), with_devices, body);
}

/// Runs so many ranks, whose job is changed before they meet, with so many devices.
fn run_on_hosts(
    ((fabric, library), count): (Devices, u32),
    (size, asked): (usize, Asked),
    change: impl Fn(Job) -> Job + Sync,
    body: impl Fn(&Runtime, &Fabric) + Sync,
) {
    let nodes = Nodes::of_this_test();
    asked.cuts.iter().for_each(|(one, other)| fabric.link(*one, *other, 0));
    let id = format!("networks-{}", fabric.number());
    ranks::scope(|scope| {
        for rank in (0..size).map(|rank| Rank(rank as u16)) {
            let (id, fabric, library) = (&id, &fabric, &library);
            let (change, body) = (&change, &body);
            scope.spawn(move || {
                nodes.enter();
                fabric.use_all();
                let mut job = change(nodes.job(id, rank, size as u32));
                job.transport = asked.transport;
                job.device.library = Some(library.clone());
                job.device.messages = asked.messages;
                let joining = PendingInit::new(job, Config::default());
                let rt = joining.expect("joining").wait(LIMIT).expect("all meet");
                body(&rt, fabric);
                let _ = rt.term(LIMIT);
            });
        }
    });
    for device in 0..count {
        assert_eq!(fabric.live(device), Live::default(), "objects that nobody has ended");
    }
}

/// Data of both ranks goes by devices, by these and no others.
fn uses_devices(rt: &Runtime, fabric: &Fabric, used: [bool; 4]) {
    make(rt, S0, 8192);
    until_by_device(rt, Rank(1 - rt.rank().0), Q0);
    meet(rt);
    assert_eq!([0, 1, 2, 3].map(|device| fabric.live(device).pairs > 0), used);
    meet(rt);
}

fn ranks_use_a_network_that_both_have() {
    // Each would take its first device, whose network is the lowest of its host.
    let hosts: [&[[u8; 4]]; 2] = [&[[10, 1, 0, 1], [10, 2, 0, 1]], &[[10, 0, 0, 1], [10, 2, 0, 2]]];
    run_on_networks(&hosts, Asked::usual(), |rt, fabric| {
        uses_devices(rt, fabric, [false, true, false, true]);
    });
    // Where both have the same, it is the lowest one as before.
    let hosts: [&[[u8; 4]]; 2] = [&[[10, 1, 0, 1], [10, 2, 0, 1]], &[[10, 1, 0, 2], [10, 2, 0, 2]]];
    run_on_networks(&hosts, Asked::usual(), |rt, fabric| {
        uses_devices(rt, fabric, [true, false, true, false]);
    });
}

fn ranks_use_an_infiniband_subnet_that_both_have() {
    // Each would take the lowest of its host.
    run_on_subnets([&[2, 3], &[1, 3]], |rt, fabric| {
        uses_devices(rt, fabric, [false, true, false, true]);
    });
}

fn ranks_without_an_infiniband_subnet_in_common_are_told_of_both() {
    run_on_subnets([&[2, 3], &[1, 4]], |rt, _| {
        make(rt, S0, 8192);
        meet(rt);
        let peer = Rank(1 - rt.rank().0);
        let written = rt.write(&eight(peer), Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT));
        let reason = written.expect_err("there is no way").to_string();
        let words = ["InfiniBand subnet", "fe80:0:0:1::/64", "fe80:0:0:2::/64", "GASPI_IB_DEVICE"];
        let missing = words.iter().find(|word| !reason.contains(**word));
        assert_eq!(missing, None, "{reason}");
        meet(rt);
    });
}

fn children_are_provided_for_before_a_device_is_read() {
    run_with_devices(2, "needs_fork_init=1", |rt, _| {
        make(rt, S0, 8192);
        until_by_device(rt, Rank(1 - rt.rank().0), Q0);
        meet(rt);
    });
}

fn memory_of_requests_that_the_device_does_not_take_is_named_with_the_remedy() {
    run_without_messages(2, "max_registered=6000000", |rt, _| {
        make(rt, S0, 8192);
        rt.segment_alloc(S1, 16 << 20, Init::Uninitialized).expect("nobody else is to reach it");
        let t = Transfer { local: S1, ..eight(Rank(1 - rt.rank().0)) };
        let posted = rt.write(&t, Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT));
        let reason = posted.expect_err("the device does not take it").to_string();
        let words = ["segment 1", "16777216 bytes", "ulimit -l"];
        let missing = words.iter().find(|word| !reason.contains(**word));
        assert_eq!(missing, None, "{reason}");
        meet(rt);
    });
}

fn ranks_without_a_network_in_common_are_told_of_both() {
    let hosts: [&[[u8; 4]]; 2] = [&[[10, 1, 0, 1], [10, 3, 0, 1]], &[[10, 2, 0, 1]]];
    run_on_networks(&hosts, Asked::usual(), |rt, fabric| {
        make(rt, S0, 8192);
        meet(rt);
        if rt.rank() == Rank(0) {
            // As if no router were between.
            fabric.link(0, 2, 0);
            let written = rt.write(&eight(Rank(1)), Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT));
            let reason = written.expect_err("there is no way").to_string();
            // Whichever side has found it out first.
            let both = "the host of rank 0 has RoCE ports in 10.1.0.0/16, 10.3.0.0/16, that of \
                        rank 1 in 10.2.0.0/16";
            assert!(reason.contains(both), "{reason}");
            fabric.link(0, 2, 1);
        }
        meet(rt);
    });
}

/// Bytes that this rank has written by devices and by TCP.
fn written(rt: &Runtime) -> [u64; 2] {
    ["BytesWrittenVerbs", "BytesWrittenTcp"].map(|name| counted(rt, name))
}

/// Writes to a rank until that goes by a device, or until it goes by TCP.
fn until_written(rt: &Runtime, peer: Rank, by_device: bool) {
    within(LIMIT_OF_CHANGE, "the carrier", || {
        loop {
            let before = written(rt);
            rt.write(&eight(peer), Q0, LIMIT).expect("posted");
            rt.wait(Q0, LIMIT).expect("nothing is lost");
            let grown = [0, 1].map(|carrier| written(rt)[carrier] - before[carrier]);
            if grown == if by_device { [8, 0] } else { [0, 8] } {
                break;
            }
        }
    });
}

/// Each rank writes to all others, a thousand bytes in each round, which arrive.
fn tell_all(rt: &Runtime, rounds: u64) {
    let own = u64::from(rt.rank().0);
    for round in 1..=rounds {
        put_u64(rt, S0, 4096 + 1024 * own, 100 * round + own);
        for rank in ranks::others(rt) {
            let at = 4096 + 1024 * own;
            let told = Transfer { local_offset: at, remote_offset: at, size: 1000, ..eight(rank) };
            rt.write(&told, Q0, LIMIT).expect("posted");
        }
        rt.wait(Q0, LIMIT).expect("nothing is lost");
        meet(rt);
        for rank in all(rt).map(|rank| u64::from(rank.0)) {
            assert_eq!(get_u64(rt, S0, 4096 + 1024 * rank), 100 * round + rank, "rank {rank}");
        }
        meet(rt);
    }
}

fn a_rank_without_a_device_is_reached_by_tcp_and_others_by_devices() {
    let nodes = Nodes::of_this_test();
    let job = |id: &str, rank| {
        let mut job = nodes.job(id, rank, 4);
        if rank == Rank(3) {
            job.device.library = Some("/nowhere".into());
        }
        job
    };
    ranks::run_jobs(4, &Config::default(), job, |rt| {
        make(&rt, S0, 8192);
        // Ranks 0 and 2 share a node, and so do 1 and 3.
        let elsewhere: Vec<_> =
            ranks::others(&rt).filter(|peer| (peer.0 ^ rt.rank().0) & 1 == 1).collect();
        let has_device = |rank: Rank| rank != Rank(3);
        let by_device = |peer| has_device(rt.rank()) && has_device(peer);
        elsewhere.iter().for_each(|peer| until_written(&rt, *peer, by_device(*peer)));
        meet(&rt);
        let (before, rounds) = (written(&rt), 20);
        tell_all(&rt, rounds);
        let devices = elsewhere.iter().filter(|peer| by_device(**peer)).count() as u64;
        let expected = [devices, 2 - devices].map(|peers| 1000 * rounds * peers);
        assert_eq!([0, 1].map(|carrier| written(&rt)[carrier] - before[carrier]), expected);
        meet(&rt);
        let _ = rt.term(LIMIT);
    });
}

fn data_of_ranks_without_a_common_network_goes_by_tcp() {
    // No router is between the network of rank 2 and that of the others.
    let hosts: [&[[u8; 4]]; 3] = [&[[10, 1, 0, 1]], &[[10, 1, 0, 2]], &[[10, 2, 0, 1]]];
    let asked = Asked {
        transport: Transport::Auto,
        messages: MessageCarrier::Device,
        cuts: &[(0, 2), (1, 2)],
        options: "time_scale=2000",
    };
    run_on_networks(&hosts, asked, |rt, _| {
        make(rt, S0, 8192);
        for peer in ranks::others(rt) {
            until_written(rt, peer, ![rt.rank(), peer].contains(&Rank(2)));
        }
        tell_all(rt, 20);
    });
}

fn a_library_that_cannot_be_loaded_is_an_error_of_init() {
    let devices = three();
    let file = std::env::temp_dir().join(format!("gaspi-no-library-{}", std::process::id()));
    std::fs::write(&file, "no library").expect("a file");
    for (library, why) in [("/nowhere/libibverbs.so.1", "No such file"), ("", "invalid ELF")] {
        let library = if library.is_empty() { file.as_os_str() } else { library.as_ref() };
        let reason = refusal(&devices, |choice| choice.library = Some(library.to_owned()));
        let words = ["GASPI_TRANSPORT is verbs", &*library.to_string_lossy(), "GASPI_IBVERBS_LIB"];
        assert!(words.iter().all(|word| reason.contains(word)), "{why}: {reason}");
    }
    std::fs::remove_file(&file).expect("removed");
}

tests! {
    BY_DEVICE:
        children_are_provided_for_before_a_device_is_read,
        ranks_use_an_infiniband_subnet_that_both_have,
        ranks_use_a_network_that_both_have;
    VERBS_PAIRS:
        a_rank_without_a_device_is_reached_by_tcp_and_others_by_devices;
    VERBS:
        data_of_ranks_without_a_common_network_goes_by_tcp,
        memory_of_requests_that_the_device_does_not_take_is_named_with_the_remedy,
        ranks_without_an_infiniband_subnet_in_common_are_told_of_both,
        a_library_that_cannot_be_loaded_is_an_error_of_init,
        ranks_without_a_network_in_common_are_told_of_both,
        a_device_without_room_for_what_each_rank_needs_is_an_error_of_init,
        a_gid_that_is_gone_has_a_substitute_in_the_next_pair,
        a_gid_that_moves_is_found_again_for_the_next_pair,
        a_job_without_an_active_port_ends_at_init,
        a_port_of_ethernet_with_a_lid_is_one_of_roce,
        a_network_that_is_asked_for_narrows_the_choice,
        each_pair_takes_the_lid_that_the_port_has_then,
        a_rank_tells_which_ports_there_are_and_why_one_is_used,
        ports_of_unequal_mtus_use_the_lower_one,
        the_first_device_that_can_be_used_is_used,
        what_is_asked_of_a_port_holds_for_its_pairs,
        what_is_named_wrongly_is_an_error_that_tells_what_there_is;
}
