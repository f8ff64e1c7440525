//! Machines whose agents call back: they are invited through a remote shell that starts many at
//! once, or by other machines in a tree, and let in as they call. A machine from which nobody can
//! call is reached by a remote shell of its own.
//!
//! Where each has one of its own that is not ssh, its agent calls back too if it can, and speaks by
//! the pipes otherwise: the end of a machine is seen by a connection alone.

use super::Running;
use crate::assignment::Assignment;
use crate::channel::Channel;
use crate::info;
use crate::plan::Way;
use crate::process::Ending;
use crate::protocol::{Down, Errand};
use crate::refusal::{EXIT_HOST, Refusal};
use crate::remote::{Remote, Step};
use crate::shell_process::not_started;
use crate::starter::{Missed, Starter};
use gaspi_core::bootstrap::{Callback, Callbacks, Encrypted, Invitation};
use gaspi_tools::system::Watch;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

/// Hosts of one remote shell, whose command line names them all.
const HOSTS_MAX: usize = 1024;
/// Remote shells for one machine each that are started here and have not reached it, at once.
/// Others wait for their turn.
const AT_ONCE: usize = 64;

/// Machines that another one is to start.
#[derive(Debug)]
struct Entrusted {
    /// The number of that one.
    parent: usize,
    numbers: Vec<u32>,
    /// Those of them that it could not start.
    missed: Vec<u32>,
}

/// Remote shells that start agents, and where those call.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// Until all have called, or can be reached otherwise only.
    callbacks: Option<Callbacks>,
    starters: Vec<Starter>,
    /// Machines that others are to start, by number: none has been asked to.
    waiting: Range<u32>,
    /// What machines were asked to start.
    errands: Vec<Entrusted>,
    /// Machines that wait for a remote shell of their own.
    queue: VecDeque<usize>,
    /// Machines whose agents could not call, by number.
    cut_off: Vec<usize>,
    /// An agent has called.
    is_reachable: bool,
}

impl Callers {
    /// Begins to listen, if that is of use for so many machines.
    pub(super) fn listen(way: &Way, machines: usize) -> Callers {
        if machines == 0 || !way.is_by_starters(machines) && !way.invites_each() {
            return Callers::default();
        }
        match Callbacks::listen() {
            Ok(callbacks) => Callers { callbacks: Some(callbacks), ..Callers::default() },
            Err(error) => {
                info::tell(&format!("other hosts cannot call back: {error}"));
                Callers::default()
            }
        }
    }

    /// Starts agents on all of these machines, which are numbered as they stand; false if there is
    /// no way back, or each machine gets a remote shell of its own from the start.
    pub(super) fn start(
        &mut self,
        way: &Way,
        plans: &[Assignment],
        mask: libc::sigset_t,
    ) -> Result<bool, Refusal> {
        let callbacks = self.callbacks.as_ref().filter(|_| way.is_by_starters(plans.len()));
        let Some(callbacks) = callbacks else { return Ok(false) };
        let number = |(at, plan): (usize, &Assignment)| (at as u32, plan.host.clone());
        let hosts: Vec<(u32, String)> = plans.iter().enumerate().map(number).collect();
        let program = way.shell.program().display();
        let (first, each) = match way.tree.filter(|_| !way.shell.starts_many()) {
            Some(width) => (hosts.len().min(width), 1),
            None => (hosts.len(), HOSTS_MAX),
        };
        self.waiting = first as u32..hosts.len() as u32;
        for hosts in hosts[..first].chunks(each) {
            let names: Vec<&str> = hosts.iter().map(|(_, name)| name.as_str()).collect();
            let names = names.join(", ");
            info::tell(&format!("one {program} starts gaspi_run on {names}, to call back"));
            let invitation = callbacks.invitation(hosts.to_vec());
            let starter = Starter::start(&way.shell, &way.tool, &invitation, mask);
            self.starters.push(starter.map_err(|error| Refusal {
                status: EXIT_HOST,
                message: format!("starting {program}: {}", not_started(&error)),
            })?);
        }
        Ok(true)
    }

    /// What has to be waited for.
    pub(super) fn watches(&self) -> impl Iterator<Item = Watch<'_>> {
        let callbacks = self.callbacks.iter().flat_map(Callbacks::watches);
        let watch = |(fd, room)| if room { Watch::room(fd) } else { Watch::input(fd) };
        let heard = self.starters.iter().flat_map(Starter::readable).map(Watch::input);
        let written = self.starters.iter().filter_map(Starter::writable).map(Watch::room);
        callbacks.map(watch).chain(heard).chain(written)
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

    /// Ends the remote shell that has started an agent on the machine with this number, which is
    /// lost, and on no other one.
    pub(super) fn let_go(&self, number: usize) {
        self.starters.iter().filter(|s| s.is_only_of(number as u32)).for_each(Starter::kill);
    }

    /// For the agent of a machine that gets a remote shell of its own. If nobody has called and
    /// some could not, no further one has to try.
    fn invitation(&self, way: &Way, number: usize, name: &str) -> Option<Invitation> {
        let is_in_vain = match self.is_reachable {
            true => self.cut_off.contains(&number),
            false => !self.cut_off.is_empty(),
        };
        let callbacks = self.callbacks.as_ref().filter(|_| way.invites_each() && !is_in_vain)?;
        Some(callbacks.invitation(vec![(number as u32, name.to_owned())]))
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
        let starters = self.callers.starters.iter_mut();
        let mut missed: Vec<Missed> = starters.flat_map(Starter::hear).collect();
        missed.extend(self.left_over());
        missed.into_iter().for_each(|missed| self.reach_alone(missed));
        if !self.remotes.iter().any(Remote::may_call) {
            self.callers.callbacks = None;
        }
    }

    /// An agent that knows the key says to run on the machine with this number.
    fn let_in(&mut self, number: usize, connection: Encrypted) {
        let Some(way) = &self.plan.way else { return };
        let reason = match self.remotes.get_mut(number) {
            None => format!("there is no host with the number {number}"),
            Some(remote) if !remote.may_call() => {
                format!("host {} has an agent already, or is not waited for", remote.name)
            }
            Some(remote) => match remote.called(number as u32, connection, way.patience) {
                Ok(starter) => {
                    if starter.is_some() {
                        info::tell(&format!("host {}: its agent has called back", remote.name));
                    }
                    self.callers.is_reachable = true;
                    self.callers.starters.extend(starter);
                    return;
                }
                Err(error) => return info::tell(&format!("host {}: {error}", remote.name)),
            },
        };
        info::tell(&format!("an agent that has called was sent away: {reason}"));
        if let Ok(mut channel) = Channel::over(connection) {
            channel.say(&Down::Refused(reason));
            channel.flush();
        }
    }

    /// An agent that was to call speaks by the pipes of what has started it.
    pub(super) fn has_no_way_back(&mut self, number: usize, reason: &str) {
        let name = &self.remotes[number].name;
        info::tell(&format!("host {name}: its agent cannot call back: {reason}"));
        self.callers.cut_off.push(number);
    }

    /// Nobody will call from this machine: it gets a remote shell of its own.
    fn reach_alone(&mut self, missed: Missed) {
        let number = missed.number as usize;
        let Some(remote) = self.remotes.get(number).filter(|r| r.is_invited()) else { return };
        info::tell(&format!("host {}: {}; it is tried by itself", remote.name, missed.reason));
        if missed.is_cut_off {
            self.callers.cut_off.push(number);
        }
        self.queue(number);
    }

    /// Has the machine with this number wait for a remote shell of its own.
    pub(super) fn queue(&mut self, number: usize) {
        self.remotes[number].queue();
        self.callers.queue.push_back(number);
    }

    /// Starts remote shells for machines whose turn it is.
    pub(super) fn reach_next(&mut self) {
        if self.callers.queue.is_empty() || self.failure.is_some() {
            return;
        }
        let Some(way) = &self.plan.way else { return };
        let under_way = self.remotes.iter().filter(|remote| remote.is_being_reached()).count();
        let how = (way.patience, self.signals.before);
        let mut room = AT_ONCE.saturating_sub(under_way);
        while room > 0 {
            let Some(number) = self.callers.queue.pop_front() else { return };
            let remote = &mut self.remotes[number];
            let invitation = self.callers.invitation(way, number, &remote.name);
            if !remote.is_queued() {
                // Its agent has called after all.
                continue;
            }
            if let Err(refusal) = remote.reach(&way.shell, &way.tool, how, invitation) {
                self.failure.get_or_insert(refusal);
                return;
            }
            room -= 1;
        }
    }

    /// Has the machine with this number start some of those that wait, if its agent has called.
    pub(super) fn send_on_errand(&mut self, number: usize) {
        let (Some(way), remote) = (&self.plan.way, &mut self.remotes[number]) else { return };
        let Some(width) = way.tree.filter(|_| remote.has_called()) else { return };
        let numbers: Vec<u32> = self.callers.waiting.by_ref().take(width).collect();
        if numbers.is_empty() {
            return;
        }
        let name = |number: &u32| (*number, self.remotes[*number as usize].name.clone());
        let hosts: Vec<(u32, String)> = numbers.iter().map(name).collect();
        let names: Vec<&str> = hosts.iter().map(|(_, name)| name.as_str()).collect();
        let (parent, names) = (&self.remotes[number].name, names.join(", "));
        info::tell(&format!("host {parent} starts gaspi_run on {names}, to call back"));
        let shell = way.shell.to_words();
        self.remotes[number].say(&Down::Reach(Errand { shell, hosts }));
        self.callers.errands.push(Entrusted { parent: number, numbers, missed: Vec::new() });
    }

    /// A machine says that nobody will call from one that it was to start. If it could start none,
    /// hosts do not reach one another, and those that wait for a parent are reached from here.
    pub(super) fn is_missed(&mut self, by: usize, number: u32, reason: &str) {
        let mut errands = self.callers.errands.iter_mut();
        let is_it = |errand: &&mut Entrusted| errand.parent == by;
        let Some(errand) = errands.find(is_it).filter(|e| e.numbers.contains(&number)) else {
            return;
        };
        // One that has called is not missed, whatever its parent knows.
        if !self.remotes.get(number as usize).is_some_and(Remote::is_invited) {
            return;
        }
        errand.missed.push(number);
        let (parent, all) = (&self.remotes[by].name, errand.missed.len() == errand.numbers.len());
        let why = format!("host {parent} has reached none of the hosts that it was to start");
        let reason = format!("from host {parent}: {reason}");
        self.reach_alone(Missed { number, reason, is_cut_off: false });
        if all {
            let rest: Vec<u32> = self.callers.waiting.by_ref().collect();
            for number in rest {
                self.reach_alone(Missed { number, reason: why.clone(), is_cut_off: false });
            }
        }
    }

    /// Machines that nobody will start any more: those that were to do so are gone, or there is
    /// none that could be asked.
    fn left_over(&mut self) -> Vec<Missed> {
        let (remotes, callers) = (&self.remotes, &mut self.callers);
        let mut missed = Vec::new();
        let missing = |number, reason: &String| {
            let reason = reason.clone();
            Missed { number, reason, is_cut_off: false }
        };
        callers.errands.retain(|errand| {
            let parent = &remotes[errand.parent];
            let is_gone = parent.step == Step::Lost;
            if is_gone {
                let reason = format!("host {}, which was to start it, is gone", parent.name);
                missed.extend(errand.numbers.iter().map(|number| missing(*number, &reason)));
            }
            !is_gone
        });
        let waits = |number: usize| callers.waiting.contains(&(number as u32));
        // Those only that call can start others.
        let comes = |(number, remote): (usize, &Remote)| {
            let can_start = remote.is_invited() || remote.has_called();
            can_start && remote.step == Step::Reaching && !waits(number)
        };
        if !callers.waiting.is_empty() && !remotes.iter().enumerate().any(comes) {
            let reason = "no host can start it".to_owned();
            let alone = callers.waiting.by_ref();
            missed.extend(alone.map(|number| missing(number, &reason)));
        }
        missed
    }
}
