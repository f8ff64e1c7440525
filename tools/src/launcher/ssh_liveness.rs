//! Whether the machine at the other end of the ssh connection still answers.
//!
//! sshd sends no probes. Without them a machine that vanished looks silent until the kernel gives
//! up sending, a quarter of an hour later. So the agent sends something every second, and ssh
//! probes a silent connection. /proc/net/tcp shows whether the kernel sends in vain. A stopped or
//! starved process is not taken for dead: its machine still acknowledges, or announces a full
//! window.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// The state of a connection in which bytes travel.
const ESTABLISHED: &str = "01";
/// The timer of bytes that are sent again, and that of questions whether bytes may be sent: about a
/// full window, or since there is no way to the other machine.
const SENT_AGAIN: &str = "01";
const ASKED: &str = "04";

/// The TCP connection that ssh came by.
#[derive(Debug)]
pub(crate) struct SshLiveness {
    /// As in /proc: local and remote address; `None` if it is not known.
    ends: Option<(String, String)>,
    /// How long a silent machine is waited for.
    patience: Duration,
    /// Since when bytes are being sent again.
    since: Option<Instant>,
}

impl SshLiveness {
    /// From what sshd says in the environment.
    pub(crate) fn find() -> SshLiveness {
        let connection = std::env::var("SSH_CONNECTION").ok();
        let ends = connection.as_deref().and_then(ends);
        let patience = Duration::from_secs(crate::plan::DEAD_AFTER);
        SshLiveness { ends, patience, since: None }
    }

    /// How long a silent machine is waited for.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Whether the other machine has not answered for that long.
    pub(crate) fn is_cut(&mut self) -> bool {
        let Some((local, remote)) = &self.ends else { return false };
        let unanswered = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().any(|file| {
            let table = fs::read_to_string(file).unwrap_or_default();
            table.lines().any(|line| is_unanswered(line, local, remote))
        });
        if !unanswered {
            self.since = None;
            return false;
        }
        self.since.get_or_insert_with(Instant::now).elapsed() >= self.patience
    }
}

/// The other side of the connection, as gaspi_run sees it: the socket of an ssh that it has
/// started, or of its own, by which an agent has called back.
#[derive(Debug)]
pub(crate) struct Silence {
    /// How long a silent machine is waited for.
    patience: Duration,
    /// When something came from there last.
    heard: Instant,
    /// When to look at the socket next, and since when bytes are being sent again.
    look: Instant,
    since: Option<Instant>,
}

/// How long before the patience ends the socket is looked at, how often, and how long it has to
/// send again and again.
const EARLY: Duration = Duration::from_millis(1500);
const BETWEEN: Duration = Duration::from_millis(200);
const AGAIN: Duration = Duration::from_millis(800);

impl Silence {
    pub(crate) fn new(patience: Duration) -> Silence {
        let heard = Instant::now();
        Silence { patience, heard, look: heard + patience - EARLY.min(patience), since: None }
    }

    /// Something has come.
    pub(crate) fn note_heard(&mut self) {
        *self = Silence::new(self.patience);
    }

    /// When to ask next.
    pub(crate) fn deadline(&self) -> Instant {
        self.look
    }

    /// Whether the machine has not answered for that long, over a connection that
    /// `is_unanswered`.
    pub(crate) fn is_cut(&mut self, is_unanswered: impl FnOnce() -> bool) -> bool {
        let now = Instant::now();
        if now < self.look {
            return false;
        }
        self.look = now + BETWEEN;
        if !is_unanswered() {
            self.since = None;
            return false;
        }
        let again = now - *self.since.get_or_insert(now);
        again >= AGAIN && now - self.heard >= self.patience
    }

    /// For how long nothing has come.
    pub(crate) fn words(&self) -> String {
        let seconds = self.heard.elapsed().as_secs();
        format!("its machine has not answered for {seconds} s")
    }
}

/// Whether the machine that the process `ssh` is connected with does not answer. One that has no
/// connection of its own, since it goes through another process, is not judged.
pub(crate) fn is_process_unanswered(ssh: i32) -> bool {
    socket_of(ssh).is_some_and(|socket| is_socket_unanswered(ssh, socket))
}

/// The inodes of the sockets of a process by its descriptors, the one that was opened first in
/// front: the connection, for ssh, before those that it forwards.
fn sockets(pid: i32) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let inode = |entry: fs::DirEntry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        let link = fs::read_link(entry.path()).ok()?;
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some((number, inode))
    };
    let mut found: Vec<(u32, u64)> = entries.flatten().filter_map(inode).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, inode)| inode).collect()
}

/// The lines of the kernel's tables of TCP connections where this process lives.
fn table(pid: i32) -> String {
    let read = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    read("tcp") + &read("tcp6")
}

/// The TCP socket of a process that it opened first.
fn socket_of(pid: i32) -> Option<u64> {
    let table = table(pid);
    sockets(pid).into_iter().find(|inode| line_of(&table, *inode).is_some())
}

/// The line of an established connection.
fn line_of(table: &str, inode: u64) -> Option<&str> {
    let inode = inode.to_string();
    table.lines().find(|line| {
        let mut words = line.split_whitespace();
        words.nth(3) == Some(ESTABLISHED) && words.nth(5) == Some(&inode)
    })
}

fn is_socket_unanswered(pid: i32, inode: u64) -> bool {
    let table = table(pid);
    let Some(line) = line_of(&table, inode) else { return false };
    let mut words = line.split_whitespace().skip(1);
    let (Some(local), Some(remote)) = (words.next(), words.next()) else { return false };
    is_unanswered(line, local, remote)
}

/// Local and remote address of "client port server port", as /proc spells them.
fn ends(connection: &str) -> Option<(String, String)> {
    let mut words = connection.split_whitespace();
    let mut end = || {
        let address: IpAddr = words.next()?.split('%').next()?.parse().ok()?;
        Some(SocketAddr::new(address, words.next()?.parse().ok()?))
    };
    let (client, server) = (end()?, end()?);
    Some((spelled(server), spelled(client)))
}

/// An address as /proc spells it: 32-bit words of the machine's byte order.
fn spelled(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).map(|four| [four[0], four[1], four[2], four[3]]);
    let text: String = words.map(|four| format!("{:08X}", u32::from_ne_bytes(four))).collect();
    format!("{text}:{:04X}", address.port())
}

/// Whether this line of /proc/net/tcp is the connection, with bytes that have to be sent again, or
/// that cannot be sent though it was tried more than once. Questions about a full window are
/// answered, so that no more than one is open.
fn is_unanswered(line: &str, local: &str, remote: &str) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let mut next = || words.next().unwrap_or_default();
    let ends = matches(next(), local) && matches(next(), remote);
    let (state, _queues, timer, again, _user, asked) =
        (next(), next(), next(), next(), next(), next());
    let (again, asked) = (u32::from_str_radix(again, 16), asked.parse::<u32>());
    let unanswered = match timer.split(':').next() {
        Some(SENT_AGAIN) => again.is_ok_and(|again| again > 0),
        Some(ASKED) => asked.is_ok_and(|asked| asked > 1),
        _ => false,
    };
    ends && state == ESTABLISHED && unanswered
}

/// A listener for IPv6 has connections of IPv4 in its own spelling.
fn matches(word: &str, address: &str) -> bool {
    let mapped = format!("{:08X}{:08X}{:08X}", 0, 0, u32::from_ne_bytes([0, 0, 0xff, 0xff]));
    word == address || word.strip_prefix(&mapped).is_some_and(|rest| rest == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let (local, remote) = ends("10.77.0.1 51234 10.77.0.2 22").expect("ends");
        assert_eq!((local.as_str(), remote.as_str()), ("02004D0A:0016", "01004D0A:C822"));
        let line = |timer: &str, again: &str, asked: u32| {
            format!(
                "   3: 02004D0A:0016 01004D0A:C822 01 0000003C:00000000 {timer}:000000A3 {again} \
                 \x20   0        {asked} 99 1"
            )
        };
        assert!(is_unanswered(&line("01", "00000004", 0), &local, &remote));
        // The link of this machine is down, so that nothing is on its way.
        assert!(is_unanswered(&line("04", "00000000", 6), &local, &remote));
        // On its way for the first time; a window that is full; another connection.
        assert!(!is_unanswered(&line("01", "00000000", 0), &local, &remote));
        assert!(!is_unanswered(&line("04", "00000003", 1), &local, &remote));
        assert!(!is_unanswered(&line("01", "00000004", 0), &remote, &local));
        let (local, remote) = ends("fd77::1 51234 fd77::2 22").expect("ends");
        assert_eq!(local, "000077FD000000000000000002000000:0016");
        assert!(remote.ends_with(":C822"));
        assert!(matches("0000000000000000FFFF000002004D0A:0016", "02004D0A:0016"));
        assert!(ends("").is_none() && ends("UNKNOWN 65535 UNKNOWN 65535").is_none());
    }

    #[test]
    fn a_connection_that_answers_is_not_cut() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listener");
        let address = listener.local_addr().expect("address");
        let client = std::net::TcpStream::connect(address).expect("client");
        let other = client.local_addr().expect("address");
        let ends = Some((spelled(address), spelled(other)));
        let mut ssh_liveness = SshLiveness { ends, patience: Duration::ZERO, since: None };
        assert!(!ssh_liveness.is_cut());
        let table = fs::read_to_string("/proc/self/net/tcp").expect("table");
        let (local, remote) = ssh_liveness.ends.expect("ends");
        // The spelling is the kernel's.
        assert!(
            table.lines().any(|line| line.contains(&format!("{local} {remote} 01"))),
            "{table}"
        );
    }

    #[test]
    fn the_connection_of_a_process_is_found_and_judged_by_its_socket_alone() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listener");
        let client = std::net::TcpStream::connect(listener.local_addr().expect("address"));
        let client = client.expect("client");
        // Other sockets of this process may be older; a process without any is not judged.
        let own = std::process::id() as i32;
        let table = table(own);
        let port = client.local_addr().expect("address").port();
        let mine = |inode: &u64| {
            line_of(&table, *inode).is_some_and(|line| line.contains(&format!(":{port:04X} 0")))
        };
        let inode = sockets(own).into_iter().find(mine).expect("its line");
        assert!(!is_socket_unanswered(own, inode));
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        assert_eq!(socket_of(sleeper.id() as i32), None);
        // However long it is silent.
        let mut silence = Silence::new(Duration::ZERO);
        let sleeper_pid = sleeper.id() as i32;
        assert!(!silence.is_cut(|| is_process_unanswered(sleeper_pid)));
        assert!(!silence.is_cut(|| is_process_unanswered(own)));
        sleeper.kill().and_then(|()| sleeper.wait()).expect("its end");
        drop(client);
    }
}
