//! How ranks of several hosts meet: authentication, listening addresses, messages about missing
//! ranks, and that being connected costs nothing.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use gaspi_tests::hosts::{Host, Hosts};
use gaspi_tests::{Process, Result};
use libtest_mimic::Trial;

use crate::job::{Rounds, hosts, launch, list, start, victim};
use crate::{GUARD, PLAIN, TRAPPED, expect, failed, root_trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        root_trial("meeting/one-host-opens-no-port", one_host),
        root_trial("meeting/strangers", strangers),
        root_trial("meeting/chosen-addresses-and-ports", restricted),
        root_trial("meeting/rank-that-is-missing", missing_rank),
        root_trial("meeting/hosts-that-do-not-reach-each-other", unreachable_pair),
        root_trial("meeting/connected-ranks-that-wait-cost-nothing", idle),
    ]
}

/// Where anybody listens on a host: addresses as they were bound.
fn bound(host: &Host) -> Result<BTreeSet<SocketAddr>> {
    const LISTENING: &str = "0A";
    let mut found = BTreeSet::new();
    for file in ["tcp", "tcp6"] {
        // Process 1 is the host's first, which shares its network.
        let text = host.inside(|| std::fs::read_to_string(format!("/proc/1/net/{file}")))??;
        for line in text.lines().skip(1) {
            let mut columns = line.split_whitespace().skip(1);
            let local = columns.next().unwrap_or_default();
            if columns.nth(1) == Some(LISTENING) {
                found.insert(address(local).ok_or_else(|| failed(format!("address {local}")))?);
            }
        }
    }
    Ok(found)
}

/// An address as the kernel lists it: words of 32 bits as this machine stores them, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = Vec::new();
    for word in address.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let address: IpAddr = match bytes.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
        _ => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
    };
    Some(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?))
}

/// The same, as others reach them.
fn listeners(host: &Host) -> Result<BTreeSet<SocketAddr>> {
    let mut found = BTreeSet::new();
    for address in bound(host)? {
        let reached = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => host.ipv4().into(),
            IpAddr::V6(ip) if ip.is_unspecified() => host.ipv6().into(),
            ip => ip,
        };
        found.insert(SocketAddr::new(reached, address.port()));
    }
    Ok(found)
}

/// A job of one host is out of everybody's reach.
fn one_host() -> Result<()> {
    let hosts = Hosts::new(1, PLAIN)?;
    let job = Rounds::start(&hosts, 0, &[0, 0, 0], &[])?;
    job.go_on(1)?;
    let open = bound(&hosts[0])?;
    expect(open.is_empty(), format!("a job of one host listens on {open:?}"))?;
    job.finish()
}

/// A stranger that talks to the ports of a job learns nothing and disturbs nobody.
fn strangers() -> Result<()> {
    let hosts = hosts(3, PLAIN)?;
    let job = Rounds::start(&hosts, 0, &[0, 1, 0, 1], &[])?;
    let mut half_open = Vec::new();
    let mut ports = 0;
    for host in &[&hosts[0], &hosts[1]] {
        for address in listeners(host)? {
            ports += 1;
            // More at once than a listener has patience for, which say nothing at all.
            for _ in 0..80 {
                let connected = hosts[2].inside(|| TcpStream::connect_timeout(&address, GUARD))?;
                half_open.extend(connected.ok());
            }
            for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &[0xff; 65536]] {
                let connected = hosts[2].inside(|| TcpStream::connect_timeout(&address, GUARD))?;
                // It may be refused or closed at any byte.
                let Ok(mut stream) = connected else { continue };
                let _ = stream.write_all(noise);
                stream.set_read_timeout(Some(GUARD))?;
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer);
                let told = answer.len();
                expect(told < 200, format!("{address} tells a stranger {told} bytes"))?;
            }
        }
    }
    expect(ports >= 2, format!("only {ports} ports are open"))?;
    job.go_on(5)?;
    job.finish()
}

/// A start that is not complete names the missing ranks, at once and at its end.
fn missing_rank() -> Result<()> {
    let hosts = hosts(3, PLAIN)?;
    let script = format!(
        "if [ $GASPI_RANK = 2 ]; then exec sleep 1000; fi; exec {} join 8000 0",
        victim().display()
    );
    let list = ["--kill-on-failure", "--hosts", "ant,bee,cow"];
    let outcome = start(&hosts, &list, Path::new("sh"), &["-c", &script])?.wait()?;
    expect(!outcome.status.success(), "a rank joined a job that lacks one")?;
    let mut told = outcome.stderr.lines().filter(|line| line.contains("rank 2"));
    if !told.any(|line| line.contains("cow")) {
        return Err(outcome.failure("it was to name the missing rank and its host"));
    }
    hosts.await_idle()
}

/// Ranks listen, and connect, only where they are told.
fn restricted() -> Result<()> {
    let hosts = hosts(2, TRAPPED)?;
    let before: Vec<_> = hosts.iter().map(bound).collect::<Result<_>>()?;
    let limits = [("GASPI_SUBNET", "fd77::/64"), ("GASPI_PORT_RANGE", "20000-20019")];
    let job = Rounds::start(&hosts, 0, &[0, 1, 0, 1], &limits)?;
    for (host, before) in hosts.iter().zip(before) {
        let all = bound(host)?;
        // Without those of sshd.
        let open: Vec<_> = all.difference(&before).collect();
        expect(!open.is_empty(), "nobody listens")?;
        for address in open {
            let is_allowed =
                address.ip() == host.ipv6() && (20000..20020).contains(&address.port());
            expect(is_allowed, format!("{} listens on {address}", host.name()))?;
        }
    }
    job.finish()?;
    // An interface that leads to nobody else.
    let options = ["--hosts", "ant,bee"];
    let outcome = launch(&hosts, 0, &options, &victim(), &["join", "3000", "0"])?
        .env("GASPI_INTERFACE", "docker0")
        .run()?;
    expect(!outcome.status.success(), "they met on an interface that leads nowhere")?;
    outcome.says("172.17.0.1").map(drop)
}

/// Two hosts that the third one reaches, and that do not reach each other: an error names both.
fn unreachable_pair() -> Result<()> {
    let hosts = hosts(3, PLAIN)?;
    hosts.block(1, 2)?;
    let options = ["--hosts", "ant,bee,cow"];
    let outcome = start(&hosts, &options, &victim(), &["join", "3000", "0"])?.wait()?;
    expect(!outcome.status.success(), outcome.failure("it joined").0)?;
    outcome.says("bee")?.says("cow")?;
    hosts.await_idle()
}

/// 64 ranks that are connected and wait use no processor.
fn idle() -> Result<()> {
    const RANKS: usize = 64;
    /// Clock ticks of 10 ms that all of them together may use in the time; a single one that polls
    /// uses all of it.
    const TICKS: u64 = 30;
    const TIME: Duration = Duration::from_secs(2);
    let hosts = hosts(2, PLAIN)?;
    let places: Vec<usize> = (0..RANKS).map(|rank| rank % 2).collect();
    let options = ["--hosts", &list(&hosts, &places)];
    let job = start(&hosts, &options, &victim(), &["wait", "none", "0"])?;
    job.lines("ready ", RANKS)?;
    let ranks: Vec<Process> =
        (0..RANKS as u16).map(|rank| job.rank(rank)).collect::<Result<_>>()?;
    let mut used = u64::MAX;
    // The last ranks may still be on their way to where they wait.
    for _ in 0..5 {
        let before = ticks(&ranks)?;
        std::thread::sleep(TIME);
        used = ticks(&ranks)? - before;
        if used <= TICKS {
            break;
        }
    }
    expect(used <= TICKS, format!("{RANKS} ranks that wait used {used}0 ms within {TIME:?}"))
}

/// Processor time that processes have used so far.
fn ticks(ranks: &[Process]) -> Result<u64> {
    let mut sum = 0;
    for rank in ranks {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", rank.pid))?;
        // The name in brackets may hold anything; user and system time are the 12th and 13th
        // behind.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        sum += fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(sum)
}
