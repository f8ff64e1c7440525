//! A remote shell that starts agents which then call back: srun of Slurm on several hosts, others
//! on one. Its standard input hands each agent its invitation; what they say goes over their own
//! connections.

use crate::agent;
use crate::channel::Channel;
use crate::process::Ending;
use crate::shell_process::ShellProcess;
use gaspi_core::bootstrap::Invitation;
use gaspi_tools::remote_agent::{self, Tool};
use gaspi_tools::remote_shell::RemoteShell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long agents have to call back, before their hosts are tried one by one.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of a line that may mean something.
const LINE_MAX: usize = 4096;

/// A host that will not call back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Missed {
    /// The number that it was invited by.
    pub(crate) number: u32,
    pub(crate) reason: String,
    /// Its agent has tried to call, in vain.
    pub(crate) is_cut_off: bool,
}

/// One for several hosts.
#[derive(Debug)]
pub(crate) struct Starter {
    process: ShellProcess,
    channel: Channel,
    /// Of its output: the line that has not ended yet.
    line: Vec<u8>,
    /// The hosts that it starts agents on, by number and name, but for those that cannot call.
    hosts: Vec<(u32, String)>,
    /// When those that have not called by then are given up, once.
    until: Option<Instant>,
}

impl Starter {
    /// Starts it. `mask` are the signals that were blocked before.
    pub(crate) fn start(
        shell: &RemoteShell,
        tool: &Tool,
        invitation: &Invitation,
        mask: libc::sigset_t,
    ) -> io::Result<Starter> {
        let names: Vec<&str> = invitation.hosts.iter().map(|(_, name)| name.as_str()).collect();
        let arguments = [agent::AGENT, agent::CALL_BACK].map(OsStr::new);
        let command = shell.command_for_many(&names, tool, &arguments);
        let (process, from, to) = ShellProcess::start(shell, command, mask)?;
        let mut channel = Channel::new(from, to)?;
        channel.queue(&invitation.encode());
        let (hosts, until) = (invitation.hosts.clone(), Some(Instant::now() + PATIENCE));
        Ok(Starter { process, channel, line: Vec::new(), hosts, until })
    }

    /// A remote shell that has started the agent of one host, which has called back.
    pub(crate) fn of(process: ShellProcess, channel: Channel, host: (u32, String)) -> Starter {
        Starter { process, channel, line: Vec::new(), hosts: vec![host], until: None }
    }

    /// Its process, while it runs.
    pub(crate) fn pid(&self) -> Option<i32> {
        (!self.process.has_ended()).then_some(self.process.pid())
    }

    /// It has ended, if this is its process.
    pub(crate) fn ended(&mut self, pid: i32, ending: Ending) -> bool {
        self.process.ended(pid, ending)
    }

    /// Ends it, and the agents that it has started.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    /// Whether it has started an agent on the host with this number.
    pub(crate) fn is_of(&self, number: u32) -> bool {
        self.hosts.iter().any(|(known, _)| *known == number)
    }

    /// Whether it has started an agent there only.
    pub(crate) fn is_only_of(&self, number: u32) -> bool {
        self.hosts.len() == 1 && self.is_of(number)
    }

    /// What has to be waited for.
    pub(crate) fn readable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.channel.readable().into_iter().chain(self.process.readable())
    }

    /// To be written to, where something waits for that.
    pub(crate) fn writable(&self) -> Option<BorrowedFd<'_>> {
        self.channel.writable()
    }

    /// When [`Starter::hear`] has something to do, though nothing has come.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Goes on, and says which hosts will not call back any more. Those that have called already
    /// may be among them, if it has ended.
    pub(crate) fn hear(&mut self) -> Vec<Missed> {
        self.channel.flush();
        if !self.channel.pending() {
            // Agents need no more of it.
            self.channel.close();
        }
        self.process.read_messages();
        self.channel.fill();
        let bytes = self.channel.take_bytes();
        let mut missed = self.take(&bytes);
        let Some(until) = self.until else { return missed };
        let reason = if self.process.has_ended() {
            self.process.farewell()
        } else if Instant::now() >= until {
            format!("it has not called back for {} s", PATIENCE.as_secs())
        } else {
            return missed;
        };
        self.until = None;
        let given_up = |number| Missed { number, reason: reason.clone(), is_cut_off: false };
        missed.extend(self.hosts.iter().map(|(number, _)| given_up(*number)));
        missed
    }

    /// What it printed last, for why an agent has gone.
    pub(crate) fn words(&self) -> Option<String> {
        self.process.words()
    }

    /// Takes in what has come out of it.
    fn take(&mut self, bytes: &[u8]) -> Vec<Missed> {
        take_lines(&mut self.line, &mut self.hosts, bytes)
    }
}

/// Takes in bytes behind those of a `line` that has not ended, and takes from `hosts` those of
/// which a line says that their agent cannot do its work.
fn take_lines(line: &mut Vec<u8>, hosts: &mut Vec<(u32, String)>, bytes: &[u8]) -> Vec<Missed> {
    let mut missed = Vec::new();
    for byte in bytes {
        if *byte != b'\n' {
            if line.len() < LINE_MAX {
                line.push(*byte);
            }
            continue;
        }
        let whole = std::mem::take(line);
        let whole = String::from_utf8_lossy(&whole);
        let Some((host, reason)) = remote_agent::absent(&whole) else { continue };
        let is_it = |(_, name): &(u32, String)| {
            // One that starts a single agent need not tell it its host.
            host.is_empty() && hosts.len() == 1 || name.eq_ignore_ascii_case(host)
        };
        if let Some(at) = hosts.iter().position(is_it) {
            let (number, _) = hosts.remove(at);
            let is_cut_off = reason != remote_agent::NOT_INSTALLED;
            missed.push(Missed { number, reason: reason.to_owned(), is_cut_off });
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Vec<(u32, String)> {
        vec![(3, "n07".to_owned()), (5, "n09".to_owned())]
    }

    #[test]
    fn lines_name_hosts_that_cannot_call() {
        let (mut line, mut left) = (Vec::new(), hosts());
        assert_eq!(take_lines(&mut line, &mut left, b"Welcome!\n@gaspi absent@ N0"), []);
        let missed = take_lines(&mut line, &mut left, b"9 no way\n@gaspi absent@ n08 who\n");
        let no_way = Missed { number: 5, reason: "no way".to_owned(), is_cut_off: true };
        assert_eq!(missed, [no_way]);
        assert_eq!(left, hosts()[..1]);
        // A line without an end is kept as far as one may mean something.
        assert_eq!(take_lines(&mut line, &mut left, &[b'x'; 3 * LINE_MAX]), []);
        assert_eq!(line.len(), LINE_MAX);
        // The only one need not be named.
        let rest = b"\n@gaspi absent@  it is not installed there\n";
        let missed = take_lines(&mut line, &mut left, rest);
        assert_eq!((missed.len(), left.len()), (1, 0));
        // It may be able to call once it is carried there.
        assert!(!missed[0].is_cut_off);
    }

    #[test]
    fn mutated_lines_give_up_no_host_twice() {
        let good = [
            b"@gaspi absent@ n07 it is not installed there\nn\n@gaspi absent@ n09 no\n".to_vec(),
            b"@gaspi absent@  it is not\n@gaspi absent@ n07 it is not\n".to_vec(),
        ];
        crate::mutated::mutated(&good, |bytes| {
            let (mut line, mut left) = (Vec::new(), hosts());
            let missed = take_lines(&mut line, &mut left, bytes);
            let mut all: Vec<u32> = left.iter().map(|(number, _)| *number).collect();
            all.extend(missed.iter().map(|missed| missed.number));
            all.sort_unstable();
            assert_eq!(all, [3, 5]);
        });
    }
}
