//! Tests of the harness: its hosts have what the other tests rely on.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use gaspi_tests::hosts::{Host, Hosts, Options, is_root, ssh_config, world_of_its_own};
use gaspi_tests::{Job, Process, Result, run_compiler};
use libtest_mimic::Trial;

use crate::{GUARD, STAY, expect, failed, root_trial, trial};

/// How long nothing has to arrive that arrives in microseconds where nothing is in the way.
const SILENCE: Duration = Duration::from_millis(100);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("harness/hosts-reach-each-other", hosts_reach_each_other),
        trial("harness/only-ipv6", only_ipv6),
        trial("harness/only-ipv4", only_ipv4),
        trial("harness/equal-addresses-lead-nowhere-else", equal_addresses),
        trial("harness/cut-and-restored", cut_and_restored),
        trial("harness/blocked", blocked),
        trial("harness/blocked-one-way", blocked_one_way),
        trial("harness/limited-rate", limited_rate),
        trial("harness/processes-of-a-host", processes_of_a_host),
        trial("harness/no-power", no_power),
        trial("harness/killed-program-leaves-nothing", killed_program_leaves_nothing),
        root_trial("harness/ssh", ssh),
    ]
}

/// Whether a datagram from one host to an address of another arrives within a time.
fn arrives(from: &Host, to: &Host, address: IpAddr, within: Duration) -> Result<bool> {
    let receiver = to.inside(|| UdpSocket::bind((address, 0)))??;
    receiver.set_read_timeout(Some(Duration::from_millis(10)))?;
    let target = receiver.local_addr()?;
    let unspecified: SocketAddr =
        if address.is_ipv4() { "0.0.0.0:0".parse() } else { "[::]:0".parse() }
            .map_err(|error| failed(format!("{error}")))?;
    let sender = from.inside(|| UdpSocket::bind(unspecified))??;
    let end = Instant::now() + within;
    while Instant::now() < end {
        // Again and again: the first may be lost while the hosts find each other.
        if sender.send_to(b"here", target).is_err() {
            std::thread::yield_now();
            continue;
        }
        if receiver.recv(&mut [0; 4]).is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A connection between two hosts.
fn connection(from: &Host, to: &Host) -> Result<(TcpStream, TcpStream)> {
    let listener = to.inside(|| TcpListener::bind((to.ipv4(), 0)))??;
    let address = listener.local_addr()?;
    let client = from.inside(|| TcpStream::connect(address))??;
    let (server, _) = listener.accept()?;
    Ok((client, server))
}

/// Demands that nothing at all is heard: neither data nor an end.
fn expect_silence(stream: &mut TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    match stream.read(&mut [0; 16]) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(()),
        other => Err(failed(format!("instead of silence: {other:?}"))),
    }
}

fn resolved(on: &Host, name: &str) -> Result<Vec<IpAddr>> {
    let mut found: Vec<IpAddr> =
        on.inside(|| (name, 1).to_socket_addrs())??.map(|address| address.ip()).collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn hosts_reach_each_other() -> Result<()> {
    let hosts = Hosts::new(4, Options::default())?;
    for from in hosts.iter() {
        let name = from.output(&mut Command::new("hostname"))?;
        expect(name.trim() == from.name(), format!("{} is called {name}", from.name()))?;
        for to in hosts.iter() {
            let found = resolved(from, to.name())?;
            let (one, other) = (from.name(), to.name());
            expect(found == to.addresses(), format!("{one} takes {other} for {found:?}"))?;
            for address in to.addresses() {
                let arrived = arrives(from, to, address, GUARD)?;
                expect(arrived, format!("{one} does not reach {other} at {address}"))?;
            }
        }
    }
    // Other hosts are other networks: they do not see what lies under one's own loopback address.
    let listener = hosts[0].inside(|| TcpListener::bind("127.0.0.1:0"))??;
    let address = listener.local_addr()?;
    hosts[0].inside(|| TcpStream::connect(address))??;
    let other = hosts[1].inside(|| TcpStream::connect(address))?;
    expect(other.is_err(), "two hosts share their loopback address")
}

fn only_ipv6() -> Result<()> {
    let hosts = Hosts::new(2, Options { ipv4: false, ..Options::default() })?;
    let [ipv4, ipv6] = hosts[1].addresses();
    expect(arrives(&hosts[0], &hosts[1], ipv6, GUARD)?, "no IPv6")?;
    expect(resolved(&hosts[0], hosts[1].name())? == [ipv6], "the name has another address")?;
    let refused = hosts[1].inside(|| UdpSocket::bind((ipv4, 0)))?;
    expect(refused.is_err(), "there is an IPv4 address")
}

fn only_ipv4() -> Result<()> {
    let hosts = Hosts::new(2, Options { ipv6: false, ..Options::default() })?;
    let [ipv4, _] = hosts[1].addresses();
    expect(arrives(&hosts[0], &hosts[1], ipv4, GUARD)?, "no IPv4")?;
    expect(resolved(&hosts[0], hosts[1].name())? == [ipv4], "the name has another address")?;
    let refused = hosts[1].inside(|| UdpSocket::bind("[::1]:0"))?;
    expect(refused.is_err(), "there is an IPv6 address")
}

fn equal_addresses() -> Result<()> {
    let options = Options { docker: true, own_name_is_loopback: true, ..Options::default() };
    let hosts = Hosts::new(2, options)?;
    let address = IpAddr::from(Ipv4Addr::new(172, 17, 0, 1));
    expect(arrives(&hosts[0], &hosts[0], address, GUARD)?, "the address is not there")?;
    expect(!arrives(&hosts[0], &hosts[1], address, SILENCE)?, "it leads to another host")?;
    for host in hosts.iter() {
        let own = resolved(host, host.name())?;
        expect(own == [Ipv4Addr::new(127, 0, 1, 1)], format!("the own name means {own:?}"))?;
    }
    expect(resolved(&hosts[0], hosts[1].name())? == hosts[1].addresses(), "names of others")
}

fn cut_and_restored() -> Result<()> {
    let hosts = Hosts::new(3, Options::default())?;
    let (mut client, mut server) = connection(&hosts[0], &hosts[1])?;
    client.write_all(b"before")?;
    server.read_exact(&mut [0; 6])?;
    hosts.cut(1)?;
    client.write_all(b"after")?;
    expect_silence(&mut server)?;
    expect(arrives(&hosts[0], &hosts[2], hosts[2].ipv6().into(), GUARD)?, "others are cut too")?;
    hosts.restore(1)?;
    server.set_read_timeout(Some(GUARD))?;
    let mut bytes = [0; 5];
    server.read_exact(&mut bytes)?;
    expect(&bytes == b"after", format!("{bytes:?} arrived"))
}

fn blocked() -> Result<()> {
    let hosts = Hosts::new(3, Options::default())?;
    for address in hosts[1].addresses() {
        expect(arrives(&hosts[0], &hosts[1], address, GUARD)?, "not reached at first")?;
        hosts.block(0, 1)?;
        expect(!arrives(&hosts[0], &hosts[1], address, SILENCE)?, "reached though blocked")?;
        expect(arrives(&hosts[0], &hosts[2], hosts[2].ipv4().into(), GUARD)?, "not blocked")?;
        hosts.unblock(0, 1)?;
        expect(arrives(&hosts[0], &hosts[1], address, GUARD)?, "not reached again")?;
    }
    Ok(())
}

fn blocked_one_way() -> Result<()> {
    let hosts = Hosts::new(2, Options::default())?;
    let (mut client, mut server) = connection(&hosts[0], &hosts[1])?;
    hosts.block_one_way(1, 0)?;
    // The acknowledgement is lost, the data is not; the answer is.
    client.write_all(b"question")?;
    server.set_read_timeout(Some(GUARD))?;
    server.read_exact(&mut [0; 8])?;
    server.write_all(b"answer")?;
    expect_silence(&mut client)
}

fn limited_rate() -> Result<()> {
    const BYTES: usize = 2 << 20;
    let hosts = Hosts::new(2, Options::default())?;
    // 2 MiB take 0.2 s at 80 Mbit/s, and a millisecond without limit.
    hosts.limit_rate(1, 80)?;
    for (from, to) in [(0, 1), (1, 0)] {
        let (mut client, mut server) = connection(&hosts[from], &hosts[to])?;
        let start = Instant::now();
        let writer = std::thread::spawn(move || client.write_all(&vec![7; BYTES]));
        let mut received = Vec::new();
        server.read_to_end(&mut received)?;
        writer.join().map_err(|_| failed("the writer panicked"))??;
        expect(received.len() == BYTES, format!("{} bytes arrived", received.len()))?;
        let took = start.elapsed();
        expect(took > Duration::from_millis(150), format!("it took only {took:?}"))?;
    }
    Ok(())
}

fn processes_of_a_host() -> Result<()> {
    let hosts = Hosts::new(2, Options::default())?;
    expect(hosts[0].processes().is_empty(), "a new host is not idle")?;
    // Process numbers are the host's own: a shell there is among the first.
    let number = hosts[0].output(Command::new("sh").args(["-c", "echo $$"]))?;
    let number: u32 = number.trim().parse().map_err(|_| failed(number.clone()))?;
    expect(number < 10, format!("process {number} is not the host's own"))?;
    let job = Job::plain(Path::new("sleep")).arg("1000").on(&hosts[1]).start()?;
    expect(hosts[0].processes().is_empty(), "the other host has it")?;
    expect(hosts[1].processes() == [job.pid()], "the host does not have it")?;
    Process::open(job.pid())?.signal(libc::SIGKILL)?;
    expect(!job.wait()?.status.success(), "it was killed")?;
    hosts.await_idle()?;
    // Orphans stay on the host, and end with it.
    hosts[1].output(Command::new("sh").args(["-c", "sleep 1000 > /dev/null 2>&1 &"]))?;
    let orphans = hosts[1].processes();
    expect(orphans.len() == 1, format!("{} orphans", orphans.len()))?;
    let orphan = Process::open(orphans[0])?;
    drop(hosts);
    await_end(&orphan)
}

/// Waits until a process has ended and somebody has taken note of it.
fn await_end(process: &Process) -> Result<()> {
    let end = Instant::now() + GUARD;
    while process.signal(0).is_ok() {
        expect(Instant::now() < end, format!("process {} is left", process.pid))?;
        std::thread::yield_now();
    }
    Ok(())
}

fn no_power() -> Result<()> {
    let hosts = Hosts::new(2, Options::default())?;
    let (mut client, server) = connection(&hosts[0], &hosts[1])?;
    let job = Job::plain(Path::new("sleep")).arg("1000").on(&hosts[1]).start()?;
    hosts.power_off(1)?;
    expect(!job.wait()?.status.success(), "a process ended well without power")?;
    // This end lies in the test, which still lives: it closes it as the kernel of the host would.
    drop(server);
    expect_silence(&mut client)?;
    expect(hosts[1].spawn(&mut Command::new("true")).is_err(), "it still starts processes")
}

/// Makes hosts, says so, and waits to be killed.
pub(crate) fn stay() -> ExitCode {
    let made = Hosts::new(2, Options::default()).and_then(|hosts| {
        if is_root() {
            hosts.start_sshd()?;
        }
        Ok(hosts)
    });
    match made {
        Ok(hosts) => {
            println!("made {}", hosts.len());
            loop {
                std::thread::park();
            }
        }
        Err(reason) => {
            println!("{reason}");
            ExitCode::FAILURE
        }
    }
}

/// Whichever process of such a program is killed: no process, interface or file remains.
fn killed_program_leaves_nothing() -> Result<()> {
    let interfaces = || std::fs::read_to_string("/proc/net/dev").map(|text| text.lines().count());
    let files = || run_compiler(Command::new("find").arg("/run"));
    let mounts = || std::fs::read_to_string("/proc/self/mounts");
    // The one that was started, and the one that is the program proper.
    for victim in ["unshare", "hosts"] {
        let (before, files_before) = (all(), files()?);
        let (interfaces_before, mounts_before) = (interfaces()?, mounts()?);
        let mut program =
            world_of_its_own()?.arg(STAY).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut line = [0; 6];
        if let Some(mut stdout) = program.stdout.take() {
            stdout.read_exact(&mut line)?;
        }
        expect(&line == b"made 2", "it makes no hosts")?;
        let made: Vec<i32> = all().into_iter().filter(|pid| !before.contains(pid)).collect();
        expect(made.len() >= 6, format!("the processes {made:?} cannot be all"))?;
        let open: Vec<Process> =
            made.iter().map(|pid| Process::open(*pid)).collect::<std::io::Result<_>>()?;
        let victim = match victim {
            "unshare" => program.id() as i32,
            // It was started right after the first of its world.
            _ => made[2],
        };
        Process::open(victim)?.signal(libc::SIGKILL)?;
        program.wait()?;
        open.iter().try_for_each(await_end)?;
        expect(interfaces()? == interfaces_before, "an interface is left")?;
        expect(files()? == files_before, "a file is left")?;
        expect(mounts()? == mounts_before, "a mount is left")?;
    }
    Ok(())
}

fn all() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut pids: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

fn ssh() -> Result<()> {
    let hosts = Hosts::new(3, Options::default())?;
    hosts.start_sshd()?;
    for to in hosts.iter() {
        let [ipv4, ipv6] = to.addresses().map(|address| address.to_string());
        for name in [to.name(), &ipv4, &ipv6] {
            let mut command = Command::new("ssh");
            command.arg("-F").arg(ssh_config()?).args([name, "hostname"]);
            let said = hosts[0].output(&mut command)?;
            expect(said.trim() == to.name(), format!("{name} answers as {said}"))?;
        }
    }
    // Without being told where its configuration lies too. The environment is that of a login.
    let said = hosts[1].output(Command::new("ssh").args(["bee", "env"]).env("FOREIGN", "1"))?;
    expect(said.contains("HOME=/run/home") && !said.contains("FOREIGN"), said.clone())?;
    expect(!said.contains("LD_LIBRARY_PATH"), said)?;
    hosts.await_idle()
}
