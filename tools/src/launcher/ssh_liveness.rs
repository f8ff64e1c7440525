//! Whether the machine at the other end of the ssh connection still answers.
//!
//! sshd sends no probes. Without them a machine that vanished looks silent until the kernel gives
//! up sending, a quarter of an hour later. So the agent sends something every second, and ssh
//! probes a silent connection. /proc/net/tcp shows whether the kernel sends in vain. A stopped or
//! starved process is not taken for dead: its machine still acknowledges, or announces a full
//! window.
//!
//! Invariant: **no outage that has ended makes a machine lost** unless it lasted for nearly as long
//! as a silent machine is waited for. The kernel asks ever more rarely, so that its question after
//! the outage may be late.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// The state of a connection in which bytes travel.
const ESTABLISHED: &str = "01";
/// The timer of bytes that are sent again, and that of questions whether bytes may be sent: about a
/// full window, or since there is no way to the other machine.
const SENT_AGAIN: &str = "01";
const ASKED: &str = "04";

/// How long a question needs to be without an answer.
const CHANCE: Duration = Duration::from_millis(400);
/// How old such a question may be when a machine counts as lost, unless it has been silent for
/// twice as long as it is waited for.
const RECENT: Duration = Duration::from_millis(1500);

/// Questions of the kernel that are not answered, as looks at the connection show them.
#[derive(Debug, Default)]
struct Questions {
    open: Option<Open>,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    since: Instant,
    count: u32,
    /// When a look has shown one more; what the first one has shown may be old.
    asked: Option<Instant>,
    /// The same of the last one that could have been answered by now.
    in_vain: Option<Instant>,
}

impl Questions {
    /// A look shows that so many are open.
    fn note(&mut self, count: Option<u32>, now: Instant) {
        let Some(count) = count else {
            self.open = None;
            return;
        };
        // Fewer are those of another silence.
        let same = self.open.filter(|open| open.count <= count);
        let mut open = same.unwrap_or(Open { since: now, count, asked: None, in_vain: None });
        if open.asked.is_some_and(|at| now - at >= CHANCE) {
            open.in_vain = open.asked;
        }
        if open.count < count {
            (open.count, open.asked) = (count, Some(now));
        }
        self.open = Some(open);
    }

    /// Since when questions are open.
    fn since(&self) -> Option<Instant> {
        self.open.map(|open| open.since)
    }

    /// Whether the machine is lost, which has been silent since then.
    fn is_lost(&self, silent_since: Instant, patience: Duration, now: Instant) -> bool {
        let Some(open) = self.open else { return false };
        let silent = now.saturating_duration_since(silent_since);
        let is_recent = open.in_vain.is_some_and(|at| now - at <= RECENT);
        silent >= patience && is_recent || silent >= 2 * patience
    }
}

/// The TCP connection that ssh came by.
#[derive(Debug)]
pub(crate) struct SshLiveness {
    /// As in /proc: local and remote address; `None` if it is not known.
    ends: Option<(String, String)>,
    /// How long a silent machine is waited for.
    patience: Duration,
    questions: Questions,
}

impl SshLiveness {
    /// From what sshd says in the environment.
    pub(crate) fn find() -> SshLiveness {
        let connection = std::env::var("SSH_CONNECTION").ok();
        let ends = connection.as_deref().and_then(ends);
        let patience = Duration::from_secs(crate::plan::DEAD_AFTER);
        SshLiveness { ends, patience, questions: Questions::default() }
    }

    /// How long a silent machine is waited for.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Whether the other machine has not answered for that long.
    pub(crate) fn is_cut(&mut self) -> bool {
        let Some((local, remote)) = &self.ends else { return false };
        let open = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().find_map(|file| {
            let table = fs::read_to_string(file).unwrap_or_default();
            table.lines().find_map(|line| open_questions(line, local, remote))
        });
        let now = Instant::now();
        self.questions.note(open, now);
        let since = self.questions.since();
        since.is_some_and(|since| self.questions.is_lost(since, self.patience, now))
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
    /// When to look at the socket next.
    look: Instant,
    /// What looks at the socket of an ssh have shown.
    questions: Questions,
    /// Since when looks at an own socket have shown that it sends again and again.
    since: Option<Instant>,
}

/// How long nothing comes before the socket is looked at, how often that is done at first, how
/// often later, and how long before the patience ends that is.
const QUIET: Duration = Duration::from_millis(1500);
const SELDOM: Duration = Duration::from_secs(1);
const OFTEN: Duration = Duration::from_millis(200);
const EARLY: Duration = Duration::from_millis(1500);
/// How long an own socket has to send again and again.
const AGAIN: Duration = Duration::from_millis(800);

impl Silence {
    pub(crate) fn new(patience: Duration) -> Silence {
        let heard = Instant::now();
        let look = heard + QUIET.min(patience.saturating_sub(EARLY));
        Silence { patience, heard, look, questions: Questions::default(), since: None }
    }

    /// Something has come.
    pub(crate) fn note_heard(&mut self) {
        *self = Silence::new(self.patience);
    }

    /// When to ask next.
    pub(crate) fn deadline(&self) -> Instant {
        self.look
    }

    /// Whether it is time to look, which is so once.
    fn take_look_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.look;
        if is_due {
            let often = self.heard + self.patience.saturating_sub(EARLY);
            self.look = (now + SELDOM).min(often).max(now + OFTEN);
        }
        is_due
    }

    /// Whether the machine has not answered for that long over the connection of the process `ssh`.
    /// One that has none of its own, since it goes through another process, is not judged.
    pub(crate) fn is_cut_from(&mut self, ssh: i32) -> bool {
        let now = Instant::now();
        if !self.take_look_due(now) {
            return false;
        }
        let open = socket_of(ssh).and_then(|socket| open_questions_of(ssh, socket));
        self.is_lost(open, now)
    }

    /// What a look says that has shown so many open questions. Those have come since the look
    /// before; the agent may have been silent for longer, as a stopped one is.
    fn is_lost(&mut self, open: Option<u32>, now: Instant) -> bool {
        self.questions.note(open, now);
        let Some(since) = self.questions.since() else { return false };
        let silent_since = since.checked_sub(QUIET).unwrap_or(since).max(self.heard);
        self.questions.is_lost(silent_since, self.patience, now)
    }

    /// The same over an own connection that `is_unanswered`.
    pub(crate) fn is_cut(&mut self, is_unanswered: impl FnOnce() -> bool) -> bool {
        let now = Instant::now();
        if !self.take_look_due(now) {
            return false;
        }
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

fn open_questions_of(pid: i32, inode: u64) -> Option<u32> {
    let table = table(pid);
    let line = line_of(&table, inode)?;
    let mut words = line.split_whitespace().skip(1);
    open_questions(line, words.next()?, words.next()?)
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

/// If this line of /proc/net/tcp is the connection, and the other machine does not answer: how
/// often the same bytes were sent again, or could not be sent. Questions about a full window are
/// answered, so that no more than one is open.
fn open_questions(line: &str, local: &str, remote: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let mut next = || words.next().unwrap_or_default();
    let ends = matches(next(), local) && matches(next(), remote);
    let (state, _queues, timer, again, _user, asked) =
        (next(), next(), next(), next(), next(), next());
    let open = match timer.split(':').next() {
        Some(SENT_AGAIN) => u32::from_str_radix(again, 16).ok().filter(|again| *again > 0),
        Some(ASKED) => asked.parse().ok().filter(|asked| *asked > 1),
        _ => None,
    };
    open.filter(|_| ends && state == ESTABLISHED)
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
        assert_eq!(open_questions(&line("01", "0000000A", 0), &local, &remote), Some(10));
        // The link of this machine is down, so that nothing is on its way.
        assert_eq!(open_questions(&line("04", "00000000", 6), &local, &remote), Some(6));
        // On its way for the first time; a window that is full; another connection.
        assert_eq!(open_questions(&line("01", "00000000", 0), &local, &remote), None);
        assert_eq!(open_questions(&line("04", "00000003", 1), &local, &remote), None);
        assert_eq!(open_questions(&line("01", "00000004", 0), &remote, &local), None);
        let (local, remote) = ends("fd77::1 51234 fd77::2 22").expect("ends");
        assert_eq!(local, "000077FD000000000000000002000000:0016");
        assert!(remote.ends_with(":C822"));
        assert!(matches("0000000000000000FFFF000002004D0A:0016", "02004D0A:0016"));
        assert!(ends("").is_none() && ends("UNKNOWN 65535 UNKNOWN 65535").is_none());
    }

    /// After how many ms a machine is lost that is waited for with 5 s, though questions are asked
    /// at these times, of which all before `answers` are in vain; looks are so many ms apart.
    fn lost_after(asked: &[u64], answers: Option<u64>, apart: u64) -> Option<u64> {
        let (start, patience) = (Instant::now(), Duration::from_secs(5));
        let mut questions = Questions::default();
        let looks = (0..30_000).step_by(apart as usize);
        let mut looks = looks.skip(1).map(|at| (at, start + Duration::from_millis(at)));
        let is_answered =
            |now| answers.is_some_and(|from| asked.iter().any(|at| *at >= from && *at <= now));
        let lost = looks.find(|(at, now)| {
            let open = asked.iter().filter(|asked| *asked <= at).count() as u32;
            questions.note((open > 0 && !is_answered(*at)).then_some(open), *now);
            questions.is_lost(start, patience, *now)
        });
        lost.map(|(at, _)| at)
    }

    #[test]
    fn a_machine_is_lost_when_a_late_question_is_not_answered() {
        // As the kernel sends bytes again.
        let again = [200, 600, 1400, 3000, 6200, 12_600];
        for apart in [200, 1000] {
            let lost = lost_after(&again, None, apart).expect("lost");
            assert!((6600..=8000).contains(&lost), "{lost}");
            // An outage of 3.1 s and one of 6.1 s, which the question after it ends.
            assert_eq!(lost_after(&again, Some(3100), apart), None);
            assert_eq!(lost_after(&again, Some(6100), apart), None);
            // Asked every second.
            let each_second: Vec<u64> = (1..30).map(|second| second * 1000 - 100).collect();
            let lost = lost_after(&each_second, None, apart).expect("lost");
            assert!((5000..6500).contains(&lost), "{lost}");
            // Nothing is asked any more.
            assert_eq!(lost_after(&again[..4], None, apart), Some(10_000));
        }
    }

    #[test]
    fn an_agent_that_is_silent_for_long_makes_no_short_outage_a_long_one() {
        let patience = Duration::from_secs(5);
        let mut silence = Silence::new(patience);
        let at = |ms| silence.heard + Duration::from_millis(ms);
        let looks: Vec<Instant> = (0..200).map(|look| at(1500 + 200 * look)).collect();
        let outage = at(20_000);
        let mut lost = looks.into_iter().filter(|now| {
            // Asked each second, from the outage on.
            let open = now.checked_duration_since(outage).map(|since| 1 + since.as_secs() as u32);
            silence.is_lost(open, *now)
        });
        let after = lost.next().expect("lost") - outage;
        assert!((patience - QUIET..patience + RECENT).contains(&after), "{after:?}");
    }

    #[test]
    fn looks_are_rare_at_first() {
        let mut silence = Silence::new(Duration::from_secs(5));
        let (heard, mut looks) = (silence.heard, Vec::new());
        for ms in 0..4000 {
            if silence.take_look_due(heard + Duration::from_millis(ms)) {
                looks.push(ms);
            }
        }
        assert_eq!(looks, [1500, 2500, 3500, 3700, 3900]);
    }

    #[test]
    fn fewer_questions_belong_to_another_silence() {
        let mut questions = Questions::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for (count, ms) in [(4, 0), (5, 1000), (1, 2000), (1, 3000)] {
            questions.note(Some(count), at(ms));
        }
        assert_eq!(questions.since(), Some(at(2000)));
        assert!(!questions.is_lost(at(0), Duration::from_secs(2), at(3000)));
        questions.note(None, at(4000));
        assert!(questions.since().is_none());
        assert!(!questions.is_lost(at(0), Duration::ZERO, at(4000)));
    }

    #[test]
    fn a_connection_that_answers_is_not_cut() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listener");
        let address = listener.local_addr().expect("address");
        let client = std::net::TcpStream::connect(address).expect("client");
        let other = client.local_addr().expect("address");
        let ends = Some((spelled(address), spelled(other)));
        let (patience, questions) = (Duration::ZERO, Questions::default());
        let mut ssh_liveness = SshLiveness { ends, patience, questions };
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
        assert_eq!(open_questions_of(own, inode), None);
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        assert_eq!(socket_of(sleeper.id() as i32), None);
        // However long it is silent.
        let mut silence = Silence::new(Duration::ZERO);
        assert!(!silence.is_cut_from(sleeper.id() as i32));
        silence.note_heard();
        assert!(!silence.is_cut_from(own));
        sleeper.kill().and_then(|()| sleeper.wait()).expect("its end");
        drop(client);
    }
}
