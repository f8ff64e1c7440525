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
        let given_up = |number| Missed { number, reason: reason.clone() };
        missed.extend(self.hosts.iter().map(|(number, _)| given_up(*number)));
        missed
    }

    /// What it printed last, for why an agent has gone.
    pub(crate) fn words(&self) -> Option<String> {
        self.process.words()
    }

    /// Takes in what has come out of it.
    fn take(&mut self, bytes: &[u8]) -> Vec<Missed> {
        let mut missed = Vec::new();
        for byte in bytes {
            if *byte != b'\n' {
                if self.line.len() < LINE_MAX {
                    self.line.push(*byte);
                }
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = String::from_utf8_lossy(&line);
            let Some((host, reason)) = remote_agent::absent(&line) else { continue };
            let is_it = |(_, name): &(u32, String)| {
                // One that starts a single agent need not tell it its host.
                host.is_empty() && self.hosts.len() == 1 || name.eq_ignore_ascii_case(host)
            };
            let found = self.hosts.iter().position(is_it);
            if let Some(at) = found {
                let (number, _) = self.hosts.remove(at);
                missed.push(Missed { number, reason: reason.to_owned() });
            }
        }
        missed
    }
}
