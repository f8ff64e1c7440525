//! Several hosts on one machine: namespaces that are joined by a switch.
//!
//! A test program calls [`enter_world`] first in `main`. Each [`Hosts`] is a network of its own
//! then: hosts with a name, addresses of both kinds, processes, System V IPC and a few files of
//! /etc of their own; all other files are those of the machine. Cables can be pulled, the switch
//! can lose what one host sends to another, and hosts can lose their power. When a `Hosts` goes
//! out of scope, or the program ends in whatever way, the kernel removes all of it.
//!
//! What is not here: delays, for which many kernels lack netem.

mod namespaces;
mod network;
mod sshd;
mod world;

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use namespaces::Depth;
pub use sshd::ssh_config;
use tempfile::TempDir;
pub use world::{enter_world, is_root, world_of_its_own};

use crate::processes::{self, Pid, Process};
use crate::{Failed, Result};

/// Names of hosts, by their number.
const NAMES: [&str; MOST] = [
    "ant", "bee", "cow", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "koi", "lark", "mole",
    "newt", "owl", "pug", "quail", "rat", "seal", "tern", "unau", "vole", "wasp", "yak", "zebu",
];
/// How many hosts there may be.
pub const MOST: usize = 25;

/// A guard for what takes milliseconds.
const GUARD: Duration = Duration::from_secs(20);

/// What a set of hosts has.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Addresses 10.77.0.x; loopback has 127.0.0.1 in any case.
    pub ipv4: bool,
    /// Addresses fd77::x and link-local ones; otherwise not even loopback has one.
    pub ipv6: bool,
    /// Every host has an interface `docker0` with the address 172.17.0.1 that leads to no other
    /// host.
    pub docker: bool,
    /// On every host its own name means 127.0.1.1, as Debian's installer arranges it.
    pub own_name_is_loopback: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { ipv4: true, ipv6: true, docker: false, own_name_is_loopback: false }
    }
}

/// Hosts that are joined by a switch.
#[derive(Debug)]
pub struct Hosts {
    hosts: Vec<Host>,
    switch: Host,
    options: Options,
    /// Goes last: it holds files that the hosts show in /etc.
    _files: TempDir,
}

/// One host. It ends when this value does.
#[derive(Debug)]
pub struct Host {
    name: &'static str,
    number: usize,
    place: Place,
    /// The one of its process numbers, as the kernel names it.
    namespace: PathBuf,
    first: Mutex<Child>,
    sshd: Mutex<Option<Child>>,
}

/// Where a host's processes live.
#[derive(Clone, Debug)]
pub struct Place {
    first: Arc<Process>,
}

impl Hosts {
    /// Makes `count` hosts (at most [`MOST`]) that reach each other.
    ///
    /// # Errors
    /// When the kernel or the programs ip and nft refuse; with their words.
    ///
    /// # Panics
    /// When `count` is more than that.
    pub fn new(count: usize, options: Options) -> Result<Hosts> {
        assert!(count <= MOST, "at most {MOST} hosts");
        let files = TempDir::new()?;
        let switch = Host::new("switch", MOST, files.path().to_path_buf())?;
        let mut hosts = Vec::new();
        for (number, name) in NAMES[..count].iter().enumerate() {
            let etc = files.path().join(name);
            std::fs::create_dir(&etc)?;
            std::fs::write(etc.join("hosts"), etc_hosts(&NAMES[..count], number, options))?;
            sshd::write_accounts(&etc)?;
            hosts.push(Host::new(name, number, etc)?);
        }
        let hosts = Hosts { hosts, switch, options, _files: files };
        network::connect(&hosts)?;
        Ok(hosts)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Host> {
        self.hosts.iter()
    }

    /// Pulls the cable of a host: its interface loses its carrier.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn cut(&self, host: usize) -> Result<()> {
        network::set_cable(&self.switch, host, false)
    }

    /// Plugs it in again, and waits until the switch carries its traffic.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn restore(&self, host: usize) -> Result<()> {
        network::set_cable(&self.switch, host, true)
    }

    /// A host takes its own interface down: it has no way to others any more.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn take_down(&self, host: usize) -> Result<()> {
        network::take_down(&self.hosts[host])
    }

    /// From now on the switch silently loses what two hosts send each other.
    ///
    /// # Errors
    /// When `nft` fails.
    pub fn block(&self, one: usize, other: usize) -> Result<()> {
        network::set_blocked(&self.switch, "add", &[(one, other), (other, one)])
    }

    /// Ends [`Hosts::block`].
    ///
    /// # Errors
    /// When `nft` fails, as it does when they are not blocked.
    pub fn unblock(&self, one: usize, other: usize) -> Result<()> {
        network::set_blocked(&self.switch, "delete", &[(one, other), (other, one)])
    }

    /// Loses only what one sends to the other.
    ///
    /// # Errors
    /// When `nft` fails.
    pub fn block_one_way(&self, from: usize, to: usize) -> Result<()> {
        network::set_blocked(&self.switch, "add", &[(from, to)])
    }

    /// The host vanishes without a word: it loses network and power at once.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn power_off(&self, host: usize) -> Result<()> {
        self.cut(host)?;
        self.hosts[host].end();
        Ok(())
    }

    /// Limits the rate of a host's interface, in each direction.
    ///
    /// # Errors
    /// When `tc` fails.
    pub fn limit_rate(&self, host: usize, mbit_per_s: u32) -> Result<()> {
        network::limit_rate(&self.switch, &self.hosts[host], mbit_per_s)
    }

    /// Starts the ssh server of each host, on port 22. `ssh NAME` and `ssh ADDRESS` work from each
    /// host to each then, without a question; `-F` [`ssh_config`] says how.
    ///
    /// # Errors
    /// Without root, or when one does not come up: with its log.
    pub fn start_sshd(&self) -> Result<()> {
        let all: Vec<usize> = (0..self.len()).collect();
        self.start_sshd_on(&all)
    }

    /// The same on some hosts only.
    ///
    /// # Errors
    /// As [`Hosts::start_sshd`].
    pub fn start_sshd_on(&self, hosts: &[usize]) -> Result<()> {
        hosts.iter().try_for_each(|host| sshd::start(&self.hosts[*host]))?;
        hosts.iter().try_for_each(|host| sshd::await_answer(&self.hosts[*host], self.options))
    }

    /// Waits until no host has a process but those of the harness.
    ///
    /// # Errors
    /// When some are still there after a generous time: with their command lines.
    pub fn await_idle(&self) -> Result<()> {
        let end = Instant::now() + GUARD;
        loop {
            let left: Vec<(&Host, Vec<Pid>)> = self
                .iter()
                .map(|host| (host, host.processes()))
                .filter(|(_, left)| !left.is_empty())
                .collect();
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                let mut text = String::new();
                for (host, pids) in left {
                    for pid in pids {
                        let _ = writeln!(text, "{}: {}", host.name, processes::command_line(pid));
                    }
                }
                return Err(Failed(format!("processes are left on hosts\n{text}")));
            }
            std::thread::yield_now();
        }
    }
}

impl std::ops::Index<usize> for Hosts {
    type Output = Host;

    fn index(&self, number: usize) -> &Host {
        &self.hosts[number]
    }
}

/// The hosts file of one host.
fn etc_hosts(names: &[&str], own: usize, options: Options) -> String {
    let mut text = String::from("127.0.0.1 localhost\n");
    if options.ipv6 {
        text.push_str("::1 localhost ip6-localhost\n");
    }
    for (number, name) in names.iter().enumerate() {
        if number == own && options.own_name_is_loopback {
            let _ = writeln!(text, "127.0.1.1 {name}");
            continue;
        }
        if options.ipv4 {
            let _ = writeln!(text, "{} {name}", network::ipv4(number));
        }
        if options.ipv6 {
            let _ = writeln!(text, "{} {name}", network::ipv6(number));
        }
    }
    text
}

impl Host {
    fn new(name: &'static str, number: usize, files: PathBuf) -> Result<Host> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .env(world::ROLE, world::FIRST_OF_HOST)
            .env(world::HOST_NAME, name)
            .env(world::HOST_FILES, files)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut first = on_a_thread(|| {
            namespaces::found()?;
            command.spawn()
        })?;
        let mut line = String::new();
        if let Some(stdout) = first.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let handle = Process::open(Pid::try_from(first.id()).unwrap_or_default())?;
        let namespace = namespace_of(handle.pid).unwrap_or_default();
        let place = Place { first: Arc::new(handle) };
        let (first, sshd) = (Mutex::new(first), Mutex::new(None));
        let host = Host { name, number, place, namespace, first, sshd };
        if line.is_empty() {
            return Err(Failed(format!("host {name} did not come up")));
        }
        Ok(host)
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its IPv4 address, which it has unless the options say otherwise.
    pub fn ipv4(&self) -> Ipv4Addr {
        network::ipv4(self.number)
    }

    /// Its IPv6 address, likewise.
    pub fn ipv6(&self) -> Ipv6Addr {
        network::ipv6(self.number)
    }

    /// Both.
    pub fn addresses(&self) -> [IpAddr; 2] {
        [self.ipv4().into(), self.ipv6().into()]
    }

    /// Where its processes live, for [`crate::Job::on`].
    pub fn place(&self) -> Place {
        self.place.clone()
    }

    /// Runs `what` on a thread that has the host's network, name, mounts and System V IPC, but the
    /// caller's process numbers. Sockets that it makes stay in that network.
    pub fn inside<T: Send>(&self, what: impl FnOnce() -> T + Send) -> Result<T> {
        on_a_thread(|| {
            namespaces::enter(&self.place.first, Depth::Place)?;
            Ok(what())
        })
    }

    /// Starts a process on the host.
    ///
    /// # Errors
    /// When the host has ended, or the program cannot be started.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.place.spawn(command)
    }

    /// Runs a command on the host, demands success and returns what it wrote to stdout.
    ///
    /// # Errors
    /// With what it wrote to stderr.
    pub fn output(&self, command: &mut Command) -> Result<String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.spawn(command).map_err(|error| {
            Failed(format!("cannot start {command:?} on {}: {error}", self.name))
        })?;
        let output = child.wait_with_output()?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(stdout);
        }
        let (status, name) = (output.status, self.name);
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(Failed(format!("{command:?} on {name} ended with {status}\n{stdout}{stderr}")))
    }

    /// Its processes, other than those that make it a host with an ssh server. Zombies count not.
    pub fn processes(&self) -> Vec<Pid> {
        let mut harness = vec![self.place.first.pid];
        let sshd = self.sshd.lock().unwrap_or_else(PoisonError::into_inner);
        harness.extend(sshd.as_ref().and_then(|sshd| Pid::try_from(sshd.id()).ok()));
        let mut found = processes::all();
        found.retain(|pid| {
            !harness.contains(pid)
                && namespace_of(*pid).as_ref() == Some(&self.namespace)
                // A zombie has no command line.
                && std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
        });
        found
    }

    /// Ends the host with all its processes.
    fn end(&self) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        // When it has ended already, that is what is wanted. The kernel kills the others with it.
        let _ = first.kill();
        if let Some(mut sshd) = self.sshd.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = sshd.wait();
        }
        let end = Instant::now() + GUARD;
        while !self.processes().is_empty() && Instant::now() < end {
            std::thread::yield_now();
        }
        // The first one is not gone before each of the others has been waited for, which a test
        // may do later or never. So this does not wait for it.
        let _ = first.try_wait();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
    }
}

impl Place {
    /// Starts a process there, in a session of its own as after a login.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let first = &self.first;
        on_a_thread(|| {
            namespaces::enter(first, Depth::Processes)?;
            namespaces::in_session_of_its_own(command).spawn()
        })
        .map_err(|failed| io::Error::other(failed.0))
    }
}

/// The namespace in which a process has its number.
fn namespace_of(pid: Pid) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Runs `what` on a thread of its own, which may go elsewhere and is not seen again.
fn on_a_thread<T: Send>(what: impl FnOnce() -> io::Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| match scope.spawn(what).join() {
        Ok(result) => Ok(result?),
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
