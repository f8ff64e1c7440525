//! Whether the machine at the other end of the ssh connection still answers.
//!
//! sshd does not ask: a machine that vanished looks like one that is silent until the kernel gives up
//! sending, a quarter of an hour later. The agent says something every second, and the kernel tells
//! everybody in /proc/net/tcp whether it has to send that again and again. A gaspi_run that is stopped
//! is not taken for gone: its machine goes on acknowledging, or says that its window is full.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// The state of a connection in which bytes travel.
const ESTABLISHED: &str = "01";
/// The timer of bytes that are sent again.
const SENT_AGAIN: &str = "01";

/// The TCP connection that ssh came by.
#[derive(Debug)]
pub(crate) struct Lifeline {
    /// As in /proc: local and remote address; `None` if it is not known.
    ends: Option<(String, String)>,
    /// How long a silent machine is waited for.
    patience: Duration,
    /// Since when bytes are being sent again.
    since: Option<Instant>,
}

impl Lifeline {
    /// From what sshd says in the environment.
    pub(crate) fn find() -> Lifeline {
        let connection = std::env::var("SSH_CONNECTION").ok();
        let ends = connection.as_deref().and_then(ends);
        let patience = Duration::from_secs(crate::plan::DEAD_AFTER);
        Lifeline { ends, patience, since: None }
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

/// Whether this line of /proc/net/tcp is the connection, with bytes that have to be sent again.
fn is_unanswered(line: &str, local: &str, remote: &str) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let mut is = |expected: &dyn Fn(&str) -> bool| words.next().is_some_and(expected);
    let ends = is(&|word| matches(word, local)) && is(&|word| matches(word, remote));
    ends && is(&|state| state == ESTABLISHED)
        && is(&|_queues| true)
        && is(&|timer| timer.starts_with(SENT_AGAIN))
        && is(&|again| u32::from_str_radix(again, 16).is_ok_and(|again| again > 0))
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
        let line = |timer: &str, again: &str| {
            format!(
                "   3: 02004D0A:0016 01004D0A:C822 01 0000003C:00000000 {timer}:000000A3 {again}     0        0 99 1"
            )
        };
        assert!(is_unanswered(&line("01", "00000004"), &local, &remote));
        // On its way for the first time; a window that is full; another connection.
        assert!(!is_unanswered(&line("01", "00000000"), &local, &remote));
        assert!(!is_unanswered(&line("04", "00000003"), &local, &remote));
        assert!(!is_unanswered(&line("01", "00000004"), &remote, &local));
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
        let mut lifeline = Lifeline { ends, patience: Duration::ZERO, since: None };
        assert!(!lifeline.is_cut());
        let table = fs::read_to_string("/proc/self/net/tcp").expect("table");
        let (local, remote) = lifeline.ends.expect("ends");
        // The spelling is the kernel's.
        assert!(
            table.lines().any(|line| line.contains(&format!("{local} {remote} 01"))),
            "{table}"
        );
    }
}
