//! The network between hosts: one switch, a cable to each host, what the switch loses, rates.

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::{GUARD, Host, Hosts};
use crate::{Failed, Result};

/// The interface of each host.
const INTERFACE: &str = "eth0";

/// Frames between these ports are lost.
const RULES: &str = "
table bridge switch {
    set blocked { type ifname . ifname; }
    chain forward {
        type filter hook forward priority 0;
        iifname . oifname @blocked drop
    }
}";

pub(super) fn ipv4(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number as u8 + 1)
}

pub(super) fn ipv6(number: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number as u16 + 1)
}

/// The switch's end of a host's cable.
fn port(number: usize) -> String {
    format!("port{number}")
}

/// Lays the cables and gives addresses.
pub(super) fn connect(hosts: &Hosts) -> Result<()> {
    let mut switch = String::from(
        "link add switch type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         link set switch up\n",
    );
    for host in hosts.iter() {
        prepare_ipv6(host, hosts.options.ipv6)?;
        let (port, pid) = (port(host.number), host.place.first.pid);
        switch.push_str(&format!(
            "link add {port} type veth peer name {INTERFACE} netns {pid}\n\
             link set {port} master switch up\n"
        ));
    }
    run(&hosts.switch, &["ip", "-batch", "-"], &switch)?;
    run(&hosts.switch, &["nft", "-f", "-"], RULES)?;
    for host in hosts.iter() {
        run(host, &["ip", "-batch", "-"], &interfaces(host, hosts))?;
    }
    hosts.iter().try_for_each(|host| await_cable(&hosts.switch, host.number))
}

/// Addresses of IPv6 are usable at once: duplicate address detection is off.
fn prepare_ipv6(host: &Host, wanted: bool) -> Result<()> {
    host.inside(|| {
        for interface in ["default", "all"] {
            let settings = format!("/proc/sys/net/ipv6/conf/{interface}");
            std::fs::write(format!("{settings}/accept_dad"), "0")?;
            if !wanted {
                std::fs::write(format!("{settings}/disable_ipv6"), "1")?;
            }
        }
        Ok(())
    })?
}

/// What `ip` does on a host.
fn interfaces(host: &Host, hosts: &Hosts) -> String {
    let mut text = String::from("link set lo up\n");
    if hosts.options.ipv4 {
        text.push_str(&format!("addr add {}/24 dev {INTERFACE}\n", host.ipv4()));
    }
    if hosts.options.ipv6 {
        text.push_str(&format!("addr add {}/64 dev {INTERFACE} nodad\n", host.ipv6()));
    }
    text.push_str(&format!("link set {INTERFACE} up\n"));
    if hosts.options.docker {
        // With a container behind it, so that it counts as connected.
        text.push_str(
            "link add docker0 type bridge\n\
             link add container type veth peer name veth0\n\
             link set container master docker0 up\n\
             link set veth0 up\n\
             addr add 172.17.0.1/16 dev docker0\n\
             link set docker0 up\n",
        );
    }
    text
}

pub(super) fn set_cable(switch: &Host, number: usize, plugged: bool) -> Result<()> {
    let state = if plugged { "up" } else { "down" };
    run(switch, &["ip", "link", "set", &port(number), state], "")?;
    if plugged { await_cable(switch, number) } else { Ok(()) }
}

pub(super) fn take_down(host: &Host) -> Result<()> {
    run(host, &["ip", "link", "set", INTERFACE, "down"], "")
}

/// Waits until the switch forwards what comes from a host, which takes the kernel a moment.
fn await_cable(switch: &Host, number: usize) -> Result<()> {
    const FORWARDING: &str = "3";
    let file = format!("/sys/class/net/{}/brport/state", port(number));
    switch.inside(|| {
        let end = Instant::now() + GUARD;
        loop {
            let state = std::fs::read_to_string(&file)?;
            if state.trim() == FORWARDING {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Failed(format!("the switch leaves {file} at {state}")));
            }
            std::thread::yield_now();
        }
    })?
}

pub(super) fn set_blocked(switch: &Host, verb: &str, pairs: &[(usize, usize)]) -> Result<()> {
    let pairs: Vec<String> =
        pairs.iter().map(|(from, to)| format!("\"{}\" . \"{}\"", port(*from), port(*to))).collect();
    let text = format!("{verb} element bridge switch blocked {{ {} }}\n", pairs.join(", "));
    run(switch, &["nft", "-f", "-"], &text)
}

/// A token bucket at each end of the cable. It holds 10 ms, and never less than a large frame with
/// segments yet to be cut.
pub(super) fn limit_rate(switch: &Host, host: &Host, mbit_per_s: u32) -> Result<()> {
    let rate = format!("{mbit_per_s}mbit");
    let burst = (u64::from(mbit_per_s) * 1_000_000 / 8 / 100).max(128 << 10).to_string();
    let port = port(host.number);
    for (place, interface) in [(switch, port.as_str()), (host, INTERFACE)] {
        let command = ["tc", "qdisc", "replace", "dev", interface, "root", "tbf"];
        let bucket = ["rate", &rate, "burst", &burst, "latency", "50ms"];
        run(place, &[&command[..], &bucket[..]].concat(), "")?;
    }
    Ok(())
}

/// Runs a program of the network in the network of `host`, with the caller's process numbers.
fn run(host: &Host, command: &[&str], input: &str) -> Result<()> {
    host.inside(|| {
        let mut child = Command::new(command[0])
            .args(&command[1..])
            .env("PATH", search_path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Failed(format!("cannot start {}: {error}", command[0])))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let (what, name) = (command.join(" "), host.name);
        Err(Failed(format!("{what} on {name} ended with {}\n{said}{input}", output.status)))
    })?
}

/// Where these programs are, which is not in the path of an ordinary user.
fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/sbin:/sbin")
}
