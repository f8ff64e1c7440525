//! Machines whose agents call back: they are invited through a remote shell that starts many at
//! once, and let in as they call. A machine from which nobody can call is reached by a remote shell
//! of its own.

use super::Running;
use crate::assignment::Assignment;
use crate::channel::Channel;
use crate::info;
use crate::plan::Way;
use crate::process::Ending;
use crate::protocol::Down;
use crate::refusal::{EXIT_HOST, Refusal};
use crate::remote::Remote;
use crate::starter::{Missed, Starter};
use gaspi_core::bootstrap::{Callback, Callbacks};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Hosts of one remote shell, whose command line names them all.
const HOSTS_MAX: usize = 1024;

/// Remote shells that start many agents, and where those call.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// Until all have called, or can be reached otherwise only.
    callbacks: Option<Callbacks>,
    starters: Vec<Starter>,
}

impl Callers {
    /// Begins to listen, if that is of use.
    pub(super) fn listen(way: &Way) -> Callers {
        if !way.shell.starts_many() {
            return Callers::default();
        }
        match Callbacks::listen() {
            Ok(callbacks) => Callers { callbacks: Some(callbacks), starters: Vec::new() },
            Err(error) => {
                info::tell(&format!("other hosts cannot call back: {error}"));
                Callers::default()
            }
        }
    }

    /// Starts agents on all of these machines, which are numbered as they stand; false if there is
    /// no way back.
    pub(super) fn start(
        &mut self,
        way: &Way,
        plans: &[Assignment],
        mask: libc::sigset_t,
    ) -> Result<bool, Refusal> {
        let Some(callbacks) = &self.callbacks else { return Ok(false) };
        let number = |(at, plan): (usize, &Assignment)| (at as u32, plan.host.clone());
        let hosts: Vec<(u32, String)> = plans.iter().enumerate().map(number).collect();
        for hosts in hosts.chunks(HOSTS_MAX) {
            let program = way.shell.program().display();
            let names: Vec<&str> = hosts.iter().map(|(_, name)| name.as_str()).collect();
            let names = names.join(", ");
            info::tell(&format!("one {program} starts gaspi_run on {names}, to call back"));
            let invitation = callbacks.invitation(hosts.to_vec());
            let starter = Starter::start(&way.shell, &way.tool, &invitation, mask);
            self.starters.push(starter.map_err(|error| Refusal {
                status: EXIT_HOST,
                message: format!("starting {program}: {error}"),
            })?);
        }
        Ok(true)
    }

    /// What has to be waited for: to be read from or, with `true`, written to.
    pub(super) fn watches(&self) -> impl Iterator<Item = (std::os::fd::BorrowedFd<'_>, bool)> {
        let callbacks = self.callbacks.iter().flat_map(Callbacks::watches);
        let heard = self.starters.iter().flat_map(Starter::readable).map(|fd| (fd, false));
        callbacks
            .chain(heard)
            .chain(self.starters.iter().filter_map(|s| Some((s.writable()?, true))))
    }

    /// When there is something to do, though nothing has come.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let callbacks = self.callbacks.iter().filter_map(Callbacks::deadline);
        callbacks.chain(self.starters.iter().filter_map(Starter::deadline)).min()
    }

    /// A remote shell has ended, if this is its process.
    pub(super) fn ended(&mut self, pid: i32, ending: Ending) -> bool {
        self.starters.iter_mut().any(|starter| starter.ended(pid, ending))
    }

    /// The remote shells that run.
    pub(super) fn processes(&self) -> impl Iterator<Item = i32> {
        self.starters.iter().filter_map(Starter::pid)
    }

    /// Ends the remote shells with these processes.
    pub(super) fn kill(&self, processes: &[i32]) {
        let is_one = |starter: &&Starter| starter.pid().is_some_and(|pid| processes.contains(&pid));
        self.starters.iter().filter(is_one).for_each(Starter::kill);
    }

    /// Ends the remote shells that have started agents which are still to call.
    pub(super) fn give_up(&mut self, remotes: &[Remote]) {
        self.callbacks = None;
        for (number, _) in remotes.iter().enumerate().filter(|(_, remote)| remote.is_invited()) {
            self.starters.iter().filter(|s| s.is_of(number as u32)).for_each(Starter::kill);
        }
    }

    /// What the remote shell that has started the agent with this number printed last.
    pub(super) fn words(&self, number: usize) -> Option<String> {
        self.starters.iter().find(|starter| starter.is_of(number as u32))?.words()
    }
}

impl Running {
    /// Lets in agents that call, and reaches machines by themselves from which nobody will.
    pub(super) fn serve_callers(&mut self) {
        let called = self.callers.callbacks.as_mut().map(Callbacks::serve).unwrap_or_default();
        for call in called {
            match call {
                Callback::Came { host, connection } => self.let_in(host as usize, connection),
                Callback::Refused { from, reason } => {
                    info::tell(&format!("a connection from {from} was refused: {reason}"));
                }
            }
        }
        let missed: Vec<Missed> =
            self.callers.starters.iter_mut().flat_map(Starter::hear).collect();
        missed.into_iter().for_each(|missed| self.reach_alone(missed));
        if !self.remotes.iter().any(Remote::is_invited) {
            self.callers.callbacks = None;
        }
    }

    /// An agent that knows the key says to run on the machine with this number.
    fn let_in(&mut self, number: usize, connection: OwnedFd) {
        let Some(way) = &self.plan.way else { return };
        let reason = match self.remotes.get_mut(number) {
            None => format!("there is no host with the number {number}"),
            Some(remote) if !remote.is_invited() => {
                format!("host {} has an agent already, or is not waited for", remote.name)
            }
            Some(remote) => match remote.called(connection, way.patience) {
                Ok(()) => return,
                Err(error) => return info::tell(&format!("host {}: {error}", remote.name)),
            },
        };
        info::tell(&format!("an agent that has called was sent away: {reason}"));
        if let Ok(mut channel) = Channel::over(connection) {
            channel.say(&Down::Refused(reason));
            channel.flush();
        }
    }

    /// Nobody will call from this machine: it gets a remote shell of its own.
    fn reach_alone(&mut self, missed: Missed) {
        let Some(remote) = self.remotes.get_mut(missed.number as usize) else { return };
        let Some(way) = self.plan.way.as_ref().filter(|_| remote.is_invited()) else { return };
        info::tell(&format!("host {}: {}; it is tried by itself", remote.name, missed.reason));
        let how = (way.patience, self.signals.before);
        if let Err(refusal) = remote.reach(&way.shell, &way.tool, how) {
            self.failure.get_or_insert(refusal);
        }
    }
}
