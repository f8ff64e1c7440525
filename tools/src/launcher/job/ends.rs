//! How ranks and the job end: signals, limits of time, and what is done at the end.

use super::shutdown::GRACE;
use super::{FORWARDED, Running, SHOW};
use crate::process::{self, ENDING, Ending};
use crate::protocol::Down;
use crate::refusal::{EXIT_TIMEOUT, Refusal};
use crate::remote::Remote;
use crate::report::End;
use crate::topology::as_list;
use crate::{hang, local_ranks};
use gaspi_tools::signals::{self, Arrival};
use gaspi_tools::system::{self, Watch};
use std::time::{Duration, Instant};

/// How long ssh may take to end once there is nothing more to say.
const PART: Duration = Duration::from_secs(3);

impl Running {
    pub(super) fn take_signals(&mut self) {
        while let Some(arrival) = self.signals.read() {
            match arrival.signal {
                libc::SIGCHLD => self.reap(),
                SHOW if self.startup.has_begun() => self.show_calls(None),
                SHOW => self.tell_missing(),
                signal if FORWARDED.contains(&signal) => self.forward(arrival),
                _ => {}
            }
        }
    }

    fn forward(&mut self, arrival: Arrival) {
        if arrival.signal == libc::SIGCONT
            && let Some(input) = &mut self.input
        {
            input.resume();
        }
        if self.plan.debug && arrival.from_terminal {
            // Meant for the debugger.
            return;
        }
        let ends = ENDING.contains(&arrival.signal);
        if ends && !self.startup.has_begun() {
            let (name, missing) = (signals::name(arrival.signal), self.missing());
            let message = format!("{name} came while waiting for {missing}");
            self.failure.get_or_insert(Refusal { status: 128 + arrival.signal as u8, message });
            return;
        }
        if ends && self.records.all_have_ended() {
            // Only output is left. A reader that does not read it is not waited for.
            return self.sever();
        }
        if self.shutdown.note_signal(arrival.signal, ends) {
            self.printer.say("gaspi_run: second interrupt: killing all ranks\n");
        }
        if self.shutdown.is_forced() {
            self.signal_all(libc::SIGKILL);
            return;
        }
        // The terminal reaches the processes of this machine only.
        self.tell_agents(&Down::Signal(arrival.signal));
        if !arrival.from_terminal {
            self.local_ranks.signal_all(arrival.signal);
        }
        if ends {
            // A stopped rank would not see it.
            self.tell_agents(&Down::Signal(libc::SIGCONT));
            if !arrival.from_terminal {
                self.local_ranks.signal_all(libc::SIGCONT);
            }
        }
    }

    /// Why no further rank is to be started: a signal has come that ends programs. One of the
    /// terminal misses ranks that are not there yet.
    pub(super) fn interrupted(&self) -> Option<Refusal> {
        // What is typed at a debugger is meant for that.
        let signal = self.signals.pending(&ENDING).filter(|_| !self.plan.debug)?;
        let message = format!("{} came while ranks were being started", signals::name(signal));
        Some(Refusal { status: 128 + signal as u8, message })
    }

    fn tell_agents(&mut self, frame: &Down) {
        self.remotes.iter_mut().for_each(|remote| remote.say(frame));
    }

    pub(super) fn signal_all(&mut self, signal: i32) {
        self.local_ranks.signal_all(signal);
        self.tell_agents(&Down::Signal(signal));
    }

    /// Records all processes that have ended.
    fn reap(&mut self) {
        while let Some((pid, ending)) = self.local_ranks.reap() {
            let is_shell = self.remotes.iter_mut().any(|remote| remote.ended(pid, ending));
            if is_shell || self.callers.ended(pid, ending) {
                continue;
            }
            // Not a rank: something that a rank left behind.
            let Some(rank) = self.local_ranks.ended(pid, ending) else { continue };
            // What it said in the meeting comes before its end.
            self.serve();
            local_ranks::tell(&mut self.host, rank, ending);
            self.note_end(rank, pid, ending);
        }
    }

    pub(super) fn note_end(&mut self, rank: u32, pid: i32, ending: Ending) {
        let rank = rank as usize;
        let ordered = self.shutdown.is_ordered();
        let after = self.startup.age();
        self.records.note_end(End { rank, pid, ending, ordered, after });
        let ends = self.shutdown.is_ordered() || self.shutdown.is_forced();
        let hopeless = self.plan.needed.is_some_and(|needed| self.records.hopeful() < needed);
        if !ending.failed() || !hopeless || ends || self.records.all_have_ended() {
            return;
        }
        if self.shutdown.has_begun() {
            // The others have got the same signal of the user, and may be about to end.
            self.shutdown.await_rest(rank);
        } else {
            self.end_for(rank);
        }
    }

    /// Ends the job since this rank has failed.
    fn end_for(&mut self, rank: usize) {
        let option = match self.plan.needed {
            Some(needed) if self.plan.may_lose => format!("--min-ranks {needed}"),
            _ => "--kill-on-failure".to_owned(),
        };
        self.end_job(&format!("rank {rank} failed: ending the job ({option})"));
    }

    /// Ends the job if a rank has failed and others do not end by a signal of the user.
    pub(super) fn end_rest(&mut self) {
        let fatal = self.shutdown.take_rest_due();
        if let Some(rank) = fatal.filter(|_| !self.records.all_have_ended()) {
            self.end_for(rank);
        }
    }

    /// The time that the job was given is over.
    pub(super) fn time_out(&mut self) {
        let limit = hang::duration(self.plan.timeout.unwrap_or_default());
        if !self.startup.has_begun() {
            let missing = self.missing();
            let message = format!("waited {limit} (--timeout) for {missing}");
            self.failure = Some(Refusal { status: EXIT_TIMEOUT, message });
            return;
        }
        let ranks = self.records.running();
        // What ends the job already has its own limit.
        if self.shutdown.is_ordered() || ranks.is_empty() {
            return;
        }
        self.shutdown.time_limit.exceed();
        let verb = if ranks.len() == 1 { "rank" } else { "ranks" };
        let ranks = as_list(&ranks);
        self.show_calls(Some(format!(
            "{verb} {ranks} still running after {limit} (--timeout): ending the job"
        )));
    }

    pub(super) fn end_job(&mut self, why: &str) {
        self.shutdown.order();
        self.printer.say(&format!("gaspi_run: {why}\n"));
        self.signal_all(libc::SIGTERM);
        // A stopped rank would not see it.
        self.signal_all(libc::SIGCONT);
    }

    /// Ends what was started when the rest cannot be.
    pub(super) fn abandon(&mut self, refusal: Refusal) -> Refusal {
        self.callers.give_up(&self.remotes);
        self.remotes.iter_mut().for_each(Remote::leave);
        let mut others = self.connections();
        self.local_ranks.abandon(&self.signals, &mut others);
        self.wait_for(others);
        self.write_out();
        refusal
    }

    /// The processes of ssh that run, and those that have started several agents.
    pub(super) fn connections(&self) -> Vec<i32> {
        self.remotes.iter().filter_map(Remote::pid).chain(self.callers.processes()).collect()
    }

    /// Ends what ranks left behind, if the job was ended, and the connections to other machines.
    pub(super) fn part(&mut self) {
        let orphans = self.shutdown.has_begun();
        self.remotes.iter_mut().for_each(|remote| remote.part(orphans));
        let mut others = self.connections();
        if orphans {
            self.local_ranks.end_orphans(&self.signals, &mut others);
        }
        self.wait_for(others);
    }

    /// Waits until ssh has ended, and agents that have called are gone: then the other machine has
    /// no process of the job any more.
    fn wait_for(&mut self, mut connections: Vec<i32>) {
        let deadline = Instant::now() + PART;
        let mut killed = false;
        loop {
            while self.signals.read().is_some() {}
            while let Some((pid, _)) = process::reap() {
                connections.retain(|known| *known != pid);
            }
            let called = self.remotes.iter_mut().filter(|remote| remote.is_on_the_line());
            called.for_each(Remote::await_end);
            let left = deadline.saturating_duration_since(Instant::now());
            let all_gone = !self.remotes.iter().any(Remote::is_on_the_line);
            if connections.is_empty() && (all_gone || left.is_zero()) || killed && left.is_zero() {
                return;
            }
            if left.is_zero() {
                killed = true;
                let is_one =
                    |r: &&Remote| r.process().is_some_and(|pid| connections.contains(&pid));
                self.remotes.iter().filter(is_one).for_each(Remote::kill);
                self.callers.kill(&connections);
            }
            let called = self.remotes.iter().filter(|remote| remote.is_on_the_line());
            let fds = called.flat_map(Remote::readable).chain([self.signals.as_fd()]);
            let watches: Vec<Watch<'_>> = fds.map(Watch::input).collect();
            // What was killed ends at once.
            system::wait(&watches, Some(if killed { GRACE } else { left }));
        }
    }

    /// Waits for the readers of our output; any signal that ends programs gives up on them, and so
    /// does the end of the time that the job was given.
    pub(super) fn write_out(&mut self) {
        self.shutdown.time_limit.grant(GRACE);
        loop {
            self.printer.flush();
            let room = self.printer.writable().map(Watch::room);
            let signals = Watch::input(self.signals.as_fd());
            let watches: Vec<Watch<'_>> = std::iter::once(signals).chain(room).collect();
            if watches.len() == 1 {
                return;
            }
            let left = self
                .shutdown
                .time_limit
                .at()
                .map(|at| at.saturating_duration_since(Instant::now()));
            system::wait(&watches, left);
            if left.is_some_and(|left| left.is_zero()) {
                self.shutdown.time_limit.exceed();
                return;
            }
            while let Some(arrival) = self.signals.read() {
                let ignored = [libc::SIGCHLD, libc::SIGCONT, SHOW, libc::SIGWINCH, libc::SIGTTIN];
                if !ignored.contains(&arrival.signal) {
                    return;
                }
            }
        }
    }
}
