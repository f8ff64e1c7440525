//! Which job the variables describe, and what is said about those that describe none.

use super::*;
use crate::bootstrap::job::ServerLocation;
use crate::error::Error;
use crate::ids::Rank;
use std::collections::HashMap;
use std::ffi::OsString;

fn job_of(variables: &[(&str, &str)]) -> Result<Job> {
    let map: HashMap<&str, OsString> =
        variables.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
    let value = |name: &str| map.get(name).cloned();
    describe(&Variables::new(&value, &ThisMachine::look_up), Deadline::Never)
}

fn refusal(variables: &[(&str, &str)]) -> String {
    match job_of(variables).expect_err("accepted") {
        Error::Environment { reason } => reason,
        other => panic!("{other}"),
    }
}

#[test]
fn nothing_is_a_job_of_one() {
    let job = job_of(&[]).expect("job");
    assert_eq!((job.rank, job.size, job.server), (Rank(0), 1, ServerLocation::NotNeeded));
}

#[test]
fn contradictions_are_named() {
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        (&[("GASPI_RANK", "0")], &["GASPI_RANK", "GASPI_NRANKS"]),
        (&[("GASPI_NRANKS", "2")], &["GASPI_NRANKS", "GASPI_RANK"]),
        (&[("GASPI_MFILE", "/x")], &["GASPI_MFILE", "GASPI_RANK"]),
        (&[("GASPI_SOCKET", "0")], &["GASPI_SOCKET"]),
        (&[("GASPI_RANK", "x"), ("GASPI_NRANKS", "2")], &["GASPI_RANK", "\"x\""]),
        (&[("GASPI_RANK", ""), ("GASPI_NRANKS", "2")], &["GASPI_RANK"]),
        (&[("GASPI_RANK", "+1"), ("GASPI_NRANKS", "2")], &["not a number"]),
        (&[("GASPI_RANK", "-1"), ("GASPI_NRANKS", "2")], &["not a number"]),
        (&[("GASPI_RANK", "2"), ("GASPI_NRANKS", "2")], &["ranks are 0 to 1"]),
        (&[("GASPI_RANK", "0"), ("GASPI_NRANKS", "0")], &["1 to 65535"]),
        (&[("GASPI_RANK", "0"), ("GASPI_NRANKS", "65536")], &["1 to 65535"]),
        (&[("GASPI_RANK", "0"), ("GASPI_NRANKS", "99999999999999999999")], &["not a number"]),
        (&[("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), ("GASPI_SOCKET", "one")], &["GASPI_SOCKET"]),
        (&[("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), ("GASPI_SOCKET", "2")], &["GASPI_SOCKET"]),
        (&[("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), ("GASPI_MEETING", "m")], &["GASPI_JOB_ID"]),
        (
            &[("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), ("GASPI_MFILE", "/nonexistent")],
            &["/nonexistent"],
        ),
    ];
    for (variables, words) in cases {
        let text = refusal(variables);
        assert!(words.iter().all(|word| text.contains(word)), "{variables:?}: {text}");
    }
}

#[test]
fn what_is_missing_is_told_with_the_command_that_helps() {
    let left = [("GASPI_MEETING", "m"), ("GASPI_JOB_ID", "x"), ("GASPI_BIND", "none")];
    assert_eq!(
        refusal(&left),
        "GASPI_MEETING is set but GASPI_RANK and GASPI_NRANKS are not; set all of them, or \
         start the program with gaspi_run, or make it a job of one rank: env -u GASPI_MEETING \
         -u GASPI_JOB_ID -u GASPI_BIND PROGRAM"
    );
    let text = refusal(&[("GASPI_SOCKET", "0"), ("GASPI_MFILE", "f"), ("GASPI_MEETING", "")]);
    let begin = "GASPI_SOCKET, GASPI_MFILE and GASPI_MEETING are set but GASPI_RANK and";
    assert!(text.starts_with(begin), "{text}");
    let text = refusal(&[("GASPI_RANK", "0"), ("GASPI_MEETING", "m")]);
    assert!(text.starts_with("GASPI_RANK is set but GASPI_NRANKS (the number"), "{text}");
    assert!(text.contains(") is not; "), "{text}");
    assert!(text.ends_with(": env -u GASPI_RANK -u GASPI_MEETING PROGRAM"), "{text}");
}

#[test]
fn the_machine_file_is_checked() {
    let path = std::env::temp_dir().join(format!("gaspi-mfile-{}", std::process::id()));
    let name = path.to_string_lossy().into_owned();
    let by_hand = [("GASPI_RANK", "1"), ("GASPI_NRANKS", "2"), ("GASPI_MFILE", &*name)];
    std::fs::write(&path, "localhost\n").expect("file");
    assert!(refusal(&by_hand).contains("names 1 hosts"));
    std::fs::write(&path, "localhost\r\n192.0.2.77").expect("file");
    let text = refusal(&by_hand);
    assert!(text.contains("puts this rank on \"192.0.2.77\""), "{text}");
    std::fs::write(&path, "LOCALHOST\r\n\r\n127.0.0.1").expect("file");
    let found = job_of(&by_hand).expect("job");
    assert_eq!((found.rank, found.size, found.local_rank), (Rank(1), 2, 1));
    assert!(!found.spans_hosts);
    let other = [("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), ("GASPI_MFILE", &*name)];
    assert_eq!(job_of(&other).expect("job").server, found.server);
    std::fs::remove_file(&path).expect("remove");
}

#[test]
fn jobs_by_hand_derive_the_server_from_id_file_or_size() {
    let by = |size: &str, id: Option<&str>| {
        let mut variables = vec![("GASPI_RANK", "0"), ("GASPI_NRANKS", size)];
        variables.extend(id.map(|id| ("GASPI_JOB_ID", id)));
        job_of(&variables).expect("job").server
    };
    assert_eq!(by("2", None), by("2", None));
    assert_ne!(by("2", None), by("3", None));
    assert_ne!(by("2", Some("a")), by("2", Some("b")));
    assert_eq!(by("2", Some("a")), by("3", Some("a")));
}

/// The job of `rank` among those on `hosts`, on the machine that `own` means.
fn over_hosts(hosts: &[&str], own: &str, rank: &str, more: &[(&str, &str)]) -> Result<Job> {
    let path = std::env::temp_dir().join(format!(
        "gaspi-hosts-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    std::fs::write(&path, hosts.join("\n")).expect("file");
    let (name, size) = (path.to_string_lossy().into_owned(), hosts.len().to_string());
    let mut variables = vec![("GASPI_RANK", rank), ("GASPI_NRANKS", &size), ("GASPI_MFILE", &name)];
    variables.extend(more);
    let map: HashMap<&str, OsString> =
        variables.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
    let machine = || ThisMachine::called("node", &[own.parse().expect("address")]);
    let found =
        describe(&Variables::new(&|name| map.get(name).cloned(), &machine), Deadline::Never);
    std::fs::remove_file(&path).expect("remove");
    found
}

#[test]
fn machines_of_a_job_by_hand_agree_on_the_hub() {
    let hosts = ["192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.2"];
    let found: Vec<Job> = hosts
        .iter()
        .zip(["0", "1", "2", "3"])
        .map(|(own, rank)| over_hosts(&hosts, own, rank, &[]).expect("job"))
        .collect();
    let hub = |job: &Job| match &job.server {
        ServerLocation::OverHosts { name, hub } => (name.clone(), hub.clone()),
        other => panic!("{other:?}"),
    };
    for (job, local) in found.iter().zip([0, 0, 1, 1]) {
        assert!(job.spans_hosts && job.hosts.iter().map(|host| &**host).eq(hosts));
        assert_eq!((job.local_rank, &job.id), (local, &found[0].id));
        assert_eq!(hub(job).0, hub(&found[0]).0);
        assert_eq!((hub(job).1.host.as_str(), hub(job).1.port), ("192.0.2.1", None));
    }
    assert!(hub(&found[2]).1.here && !hub(&found[3]).1.here);
    // Another job on the same machines.
    let other = over_hosts(&hosts, hosts[0], "0", &[("GASPI_JOB_ID", "x")]).expect("job");
    assert_ne!(hub(&other).0, hub(&found[0]).0);
    assert_eq!(other.id, "x");
    let socket = [("GASPI_SOCKET", "3")];
    assert_eq!(over_hosts(&hosts, hosts[1], "3", &socket).expect("job").local_rank, 3);
    let error = over_hosts(&["localhost", "192.0.2.2", "192.0.2.3"], "192.0.2.2", "1", &[]);
    let text = error.expect_err("two machines take it for themselves").to_string();
    assert!(text.contains("\"localhost\" beside other machines"), "{text}");
}

#[test]
fn the_hub_can_be_named() {
    let named = [("GASPI_MEETING", "tcp:[2001:db8::2]:4711")];
    let job = over_hosts(&["192.0.2.1", "192.0.2.2"], "192.0.2.2", "1", &named).expect("job");
    let ServerLocation::OverHosts { hub, .. } = &job.server else { panic!("{job:?}") };
    assert_eq!((hub.host.as_str(), hub.port, hub.here), ("[2001:db8::2]", Some(4711), false));
    // Without a machine file, and here.
    let alone =
        |meeting| job_of(&[("GASPI_RANK", "1"), ("GASPI_NRANKS", "2"), ("GASPI_MEETING", meeting)]);
    let found = alone("tcp:localhost:4711").expect("job");
    let ServerLocation::OverHosts { hub, .. } = &found.server else { panic!("{found:?}") };
    assert!(hub.here && found.spans_hosts);
    for wrong in ["tcp:", "tcp:host", "tcp:host:", "tcp::7", "tcp:host:0", "tcp:host:65536"] {
        let text = alone(wrong).expect_err(wrong).to_string();
        assert!(text.contains("write tcp:HOST:PORT"), "{text}");
    }
    for address in ["192.0.2.1:4711", "node-1:4711", "[2001:db8::2]:4711"] {
        let text = alone(address).expect_err(address).to_string();
        assert!(text.contains(&format!("write tcp:{address}, ")), "{text}");
    }
}

#[test]
fn a_launcher_says_how_many_machines_there_are() {
    let launched = |hosts: &str| {
        job_of(&[
            ("GASPI_RANK", "1"),
            ("GASPI_NRANKS", "2"),
            ("GASPI_MEETING", "gaspi-x"),
            ("GASPI_JOB_ID", "x"),
            ("GASPI_HOSTS", hosts),
            ("GASPI_HOST", "nodeb"),
        ])
        .expect("job")
    };
    assert!(launched("2").spans_hosts && !launched("1").spans_hosts);
    assert_eq!(&*launched("2").hosts[1], "nodeb");
}

#[test]
fn what_is_asked_of_devices_is_read_strictly() {
    let asked = |name, value| {
        job_of(&[("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), (name, value)]).map(|job| job.device)
    };
    let accepted = |name, value| asked(name, value).expect("accepted");
    assert_eq!(accepted("GASPI_IB_DEVICE", "a, b").devices, ["a", "b"]);
    assert_eq!(accepted("GASPI_IB_PORT", "2").port, Some(2));
    assert_eq!(accepted("GASPI_IB_GID", "3").gid, Some(GidChoice::Index(3)));
    let mapped = Some(GidChoice::Address("::ffff:10.7.0.1".parse().expect("an address")));
    assert_eq!(accepted("GASPI_IB_GID", "10.7.0.1").gid, mapped);
    assert_eq!(accepted("GASPI_IB_GID", "::ffff:10.7.0.1").gid, mapped);
    assert_eq!(accepted("GASPI_IB_PKEY", "0x8001").pkey, Some(0x8001));
    assert_eq!(accepted("GASPI_IB_SL", "15").service_level, 15);
    assert_eq!(accepted("GASPI_IB_TRAFFIC_CLASS", "104").traffic_class, 104);
    assert_eq!(accepted("GASPI_IB_PORT", "1").messages, MessageCarrier::Device);
    assert_eq!(accepted("GASPI_IB_MESSAGES", "device").messages, MessageCarrier::Device);
    assert_eq!(accepted("GASPI_IB_MESSAGES", "tcp").messages, MessageCarrier::Tcp);
    assert_eq!(accepted("GASPI_IB_PORT", "1").write_end, WriteEnd::Auto);
    let ends = [("auto", WriteEnd::Auto), ("read", WriteEnd::Read), ("ack", WriteEnd::Ack)];
    for (value, end) in ends {
        assert_eq!(accepted("GASPI_IB_WAIT", value).write_end, end);
    }
    assert_eq!(accepted("GASPI_IB_PAIRS", "0").pairs, Some(0));
    assert_eq!(accepted("GASPI_IB_PAIRS", "16777215").pairs, Some(16_777_215));
    let wrong = [
        ("GASPI_IB_DEVICE", "a,,b", "parted by commas"),
        ("GASPI_IB_PORT", "0", "1 to 254"),
        ("GASPI_IB_PORT", "255", "1 to 254"),
        ("GASPI_IB_PORT", "one", "not a number"),
        ("GASPI_IB_GID", "256", "0 to 255"),
        ("GASPI_IB_GID", "-1", "0 to 255"),
        ("GASPI_IB_GID", "::", "IPv4 address"),
        ("GASPI_IB_GID", "10.7.0", "IPv4 address"),
        ("GASPI_IB_PKEY", "ffff", "0x0001 to 0xffff"),
        ("GASPI_IB_PKEY", "0x", "0x0001 to 0xffff"),
        ("GASPI_IB_PKEY", "0x+1", "0x0001 to 0xffff"),
        ("GASPI_IB_PKEY", "0x8000", "0x0001 to 0xffff"),
        ("GASPI_IB_PKEY", "0x10000", "0x0001 to 0xffff"),
        ("GASPI_IB_SL", "16", "0 to 15"),
        ("GASPI_IB_TRAFFIC_CLASS", "256", "0 to 255"),
        ("GASPI_IB_WAIT", "never", "auto, ack or read"),
        ("GASPI_IB_MESSAGES", "verbs", "device or tcp"),
        ("GASPI_IB_PAIRS", "-1", "not a number"),
        ("GASPI_IB_PAIRS", "16777216", "0 to 16777215"),
        ("GASPI_ATOMICS", "device", "cpu or nic"),
    ];
    for (name, value, possible) in wrong {
        let reason = asked(name, value).expect_err(value).to_string();
        let told = [name, value, possible];
        assert!(told.iter().all(|told| reason.contains(told)), "{name}={value}: {reason}");
    }
}

#[test]
fn empty_values_are_refused_with_what_is_possible() {
    for (name, possible) in [
        ("GASPI_TRANSPORT", "auto, shm, tcp or verbs"),
        ("GASPI_ATOMICS", "cpu or nic"),
        ("GASPI_IBVERBS_LIB", "a file"),
        ("GASPI_IB_DEVICE", "parted by commas"),
        ("GASPI_IB_PORT", "not a number"),
        ("GASPI_IB_GID", "IPv4 address"),
        ("GASPI_IB_PKEY", "0x0001 to 0xffff"),
        ("GASPI_IB_WAIT", "auto, ack or read"),
        ("GASPI_IB_MESSAGES", "device or tcp"),
        ("GASPI_IB_PAIRS", "not a number"),
        ("GASPI_INTERFACE", "eth0,ib0"),
        ("GASPI_SUBNET", "192.0.2.0/24"),
        ("GASPI_PORT_RANGE", "50000-50999"),
    ] {
        // A job of one rank, and one of two.
        for others in [&[][..], &[("GASPI_RANK", "0"), ("GASPI_NRANKS", "2")]] {
            let reason = refusal(&[others, &[(name, "")]].concat());
            let told = [name, "\"\"", possible];
            assert!(told.iter().all(|told| reason.contains(told)), "{name}: {reason}");
        }
    }
}

#[test]
fn a_job_of_one_rank_looks_at_addresses_too() {
    for (name, value) in [("GASPI_SUBNET", "eth0"), ("GASPI_PORT_RANGE", "10-9")] {
        let reason = refusal(&[(name, value)]);
        assert!(reason.contains(name) && reason.contains(value), "{reason}");
    }
    let job = job_of(&[("GASPI_INTERFACE", "ib0"), ("GASPI_PORT_RANGE", "7")]);
    assert_eq!(job.expect("job").size, 1);
}
