//! The other machines of a job: reaching them, what they say, and losing them.

use super::Running;
use super::callers::Callers;
use crate::local_ranks::Piece;
use crate::process::Ending;
use crate::protocol::Up;
use crate::refusal::{EXIT_HOST, Refusal};
use crate::remote::{News, Remote, Step};
use crate::topology::as_list;
use gaspi_core::Rank;
use gaspi_core::bootstrap::StartStage;
use std::time::{Duration, Instant};

/// How long machines may take to get ready, once the last of them is being reached.
const READY_MAX: Duration = Duration::from_secs(60);

impl Running {
    /// Starts ssh for all other machines and waits until each of them can start its ranks. If one
    /// cannot, nothing is left of the others.
    pub(super) fn reach(&mut self) -> Result<(), Refusal> {
        let mut deadline = Instant::now() + READY_MAX;
        if let Err(refusal) = self.start_agents() {
            return Err(self.abandon(refusal));
        }
        while self.failure.is_none() && self.remotes.iter().any(|r| self.is_awaited(r)) {
            let shells = self.shells();
            self.turn();
            if let Err(refusal) = self.hand_out() {
                self.failure.get_or_insert(refusal);
            }
            if self.shells() > shells {
                deadline = Instant::now() + READY_MAX;
            }
            if Instant::now() >= deadline {
                let missing = self.missing();
                let message = format!("not all hosts were ready after 60 s: {missing}");
                self.failure.get_or_insert(Refusal { status: EXIT_HOST, message });
            }
        }
        self.startup.cancel_report();
        let lost = self.remotes.iter().filter(|remote| remote.step == Step::Lost).count();
        if self.plan.ping && lost > 0 {
            let message = format!("{lost} of {} hosts do not answer", self.plan.own.machines);
            self.failure.get_or_insert(Refusal { status: EXIT_HOST, message });
        }
        match self.failure.take() {
            None => Ok(()),
            Some(refusal) => Err(self.abandon(refusal)),
        }
    }

    /// Machines that have got a remote shell of their own so far.
    fn shells(&self) -> usize {
        self.remotes.iter().filter(|remote| remote.process().is_some()).count()
    }

    /// Starts what reaches all other machines.
    fn start_agents(&mut self) -> Result<(), Refusal> {
        let Some(way) = &self.plan.way else { return Ok(()) };
        let plans = std::mem::take(&mut self.plan.others);
        let only_ping = self.plan.only_ping;
        self.callers = Callers::listen(way, plans.len());
        let are_invited = self.callers.start(way, &plans, self.signals.before)?;
        for plan in plans {
            let ranks: Vec<Rank> = plan.ranks.iter().map(|rank| Rank(*rank as u16)).collect();
            self.host.stage(&ranks, StartStage::Reaching);
            self.remotes.push(Remote::invite(plan, only_ping, way.patience));
        }
        if !are_invited {
            (0..self.remotes.len()).for_each(|number| self.queue(number));
            self.reach_next();
        }
        self.startup.schedule_report();
        Ok(())
    }

    /// Whether the machine has not come as far as it has to before ranks are started.
    fn is_awaited(&self, remote: &Remote) -> bool {
        match remote.step {
            Step::Reaching | Step::Carrying => true,
            Step::Up => !self.plan.only_ping,
            _ => false,
        }
    }

    /// The machines that are awaited, with their ranks, and how far they are.
    pub(super) fn missing(&self) -> String {
        let describe = |remote: &Remote| {
            let ranks: Vec<usize> = remote.ranks.iter().map(|rank| *rank as usize).collect();
            let verb = if ranks.len() == 1 { "rank" } else { "ranks" };
            format!("{verb} {} on host {}: {}", as_list(&ranks), remote.name, remote.words())
        };
        // The others wait for those that have not answered.
        let is_silent = |remote: &&Remote| matches!(remote.step, Step::Reaching | Step::Carrying);
        let all_answer = !self.remotes.iter().any(|remote| is_silent(&remote));
        let awaited = self.remotes.iter().filter(|remote| self.is_awaited(remote));
        let awaited = awaited.filter(|remote| all_answer || is_silent(remote));
        awaited.map(describe).collect::<Vec<_>>().join("; ")
    }

    /// Says which machines are not ready.
    pub(super) fn tell_missing(&mut self) {
        if !self.startup.has_begun() {
            let missing = self.missing();
            self.printer.say(&format!("gaspi_run: waiting for {missing}\n"));
            self.startup.schedule_report();
        }
    }

    /// Takes in what the other machines say.
    pub(super) fn hear(&mut self) {
        for index in 0..self.remotes.len() {
            let Some(way) = &self.plan.way else { return };
            for news in self.remotes[index].hear(&way.tool) {
                match news {
                    News::Up => {
                        self.is_up(index);
                        self.send_on_errand(index);
                    }
                    News::Said(frame) => self.take_frame(index, frame),
                    News::Lost(reason) => self.lose(index, &reason),
                }
            }
        }
    }

    fn is_up(&mut self, index: usize) {
        let remote = &self.remotes[index];
        let ranks: Vec<Rank> = remote.ranks.iter().map(|rank| Rank(*rank as u16)).collect();
        self.host.stage(&ranks, StartStage::AgentUp);
        if self.plan.ping {
            self.printer.say(&format!("gaspi_run: {} answers\n", remote.name));
        }
    }

    fn take_frame(&mut self, index: usize, frame: Up) {
        match frame {
            Up::Failed { status, message } => {
                let name = &self.remotes[index].name;
                let message = format!("host {name}: {message}");
                self.failure.get_or_insert(Refusal { status, message });
            }
            Up::Started { rank, pid, place } => self.note_start(rank, pid, &place),
            Up::Output { rank, stream, bytes } => {
                self.printer.take(Piece { rank, stream, bytes: &bytes });
            }
            Up::Ended { rank, pid, ending } => self.note_end(rank, pid, ending),
            Up::InputTaken(count) => {
                if let Some(input) = &mut self.input {
                    input.taken(count);
                }
            }
            Up::InputClosed => {
                if let Some(input) = &mut self.input {
                    input.close();
                }
            }
            Up::Notice(text) => {
                let name = &self.remotes[index].name;
                self.printer.say(&format!("gaspi_run: host {name}: {text}\n"));
            }
            Up::Rows(rows) => self.take_rows(rows),
            Up::Missed { number, reason } => self.is_missed(index, number, &reason),
            Up::NoWayBack(reason) => self.has_no_way_back(index, &reason),
            Up::Meeting(bytes) => {
                let Some(link) = self.remotes[index].link else { return };
                if let Err(error) = self.host.feed(link, &bytes) {
                    self.remotes[index].leave();
                    self.lose(index, &error.to_string());
                }
            }
            Up::Hello { .. } | Up::Ready | Up::Alive | Up::Done => {}
        }
    }

    /// A machine is not there any more.
    pub(super) fn lose(&mut self, index: usize, reason: &str) {
        let remote = &self.remotes[index];
        let name = remote.name.clone();
        let words = self.callers.words(index).filter(|_| remote.has_called());
        let words = words.map(|words| format!("{reason} ({words})"));
        let reason = words.as_deref().unwrap_or(reason);
        self.callers.let_go(index);
        if !self.startup.has_begun() {
            if self.plan.ping {
                // The others are asked too.
                self.printer.say(&format!("gaspi_run: {name} does not answer: {reason}\n"));
                return;
            }
            let message = format!("host {name}: {reason}");
            self.failure.get_or_insert(Refusal { status: EXIT_HOST, message });
            return;
        }
        let (link, ranks) = (remote.link, remote.ranks.clone());
        // What ranks wrote last comes behind their ends, and Done behind that.
        let had_ended = ranks.iter().all(|rank| self.records.has_ended(*rank as usize));
        if had_ended && remote.step != Step::Done {
            self.printer.note_loss();
        }
        self.printer.say(&format!("gaspi_run: host {name} was lost: {reason}\n"));
        if let Some(link) = link {
            self.host.cut(link, &format!("the connection to host {name} was lost"));
        }
        for rank in ranks {
            if !self.records.has_ended(rank as usize) {
                self.note_end(rank, self.records.pid(rank as usize), Ending::Lost);
            }
        }
    }

    /// Gives up machines that do not do what they are told.
    pub(super) fn sever(&mut self) {
        for index in 0..self.remotes.len() {
            if !self.remotes[index].is_over() {
                self.remotes[index].leave();
                self.lose(index, "its agent does not answer; the connection was closed");
            }
        }
    }
}
