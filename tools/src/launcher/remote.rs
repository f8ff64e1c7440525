//! Another machine of the job, as gaspi_run sees it: what connects both, and what the agent at the
//! other end has said. That is ssh as a child with its pipes, or a socket by which an agent has
//! called back that a [`Starter`] has started, or another program than ssh.

use crate::agent;
use crate::assignment::Assignment;
use crate::callback::Liveness;
use crate::channel::Channel;
use crate::process::Ending;
use crate::protocol::{self, Down, Up};
use crate::refusal::{EXIT_HOST, Refusal};
use crate::shell_process::{ShellProcess, not_started};
use crate::ssh_liveness::Silence;
use crate::starter::Starter;
use gaspi_core::bootstrap::{Encrypted, Invitation, RelayId};
use gaspi_tools::remote_agent::{Opened, Opening, Tool};
use gaspi_tools::remote_shell::RemoteShell;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long ssh may take to end after its output has.
const LINGER: Duration = Duration::from_secs(2);

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// ssh has been started, or what starts agents on several hosts.
    Reaching,
    /// The program is not there and is being carried over.
    Carrying,
    /// The agent has spoken; it has its plan or waits for that.
    Up,
    /// It could start its ranks.
    Ready,
    /// It was told to start them.
    Started,
    /// All its ranks have ended and their output is here.
    Done,
    /// It is not there any more.
    Lost,
}

impl Step {
    /// A text for the user who waits.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Step::Reaching => "the agent is being started",
            Step::Carrying => "gaspi_run is being carried over",
            Step::Up => "the agent is up",
            Step::Ready => "ready",
            Step::Started => "started",
            Step::Done => "done",
            Step::Lost => "lost",
        }
    }
}

/// What happened there.
#[derive(Debug)]
pub(crate) enum News {
    /// The agent answers.
    Up,
    /// It said this.
    Said(Up),
    /// It has gone, for this reason; [`Step::Lost`] from now on.
    Lost(String),
}

/// What connects both.
#[derive(Debug)]
enum Way {
    /// The pipes of a child. What the agent says begins behind the opening.
    Shell { process: ShellProcess, opening: Option<Opening>, back: Back },
    /// Nothing yet: the agent is to call back.
    Invited,
    /// Nothing yet: a remote shell of its own is to be started, when others have done their work.
    Queued,
    /// The socket by which it has called.
    Called(Liveness),
}

/// Whether an agent with pipes may call back instead.
#[derive(Debug)]
enum Back {
    No,
    /// It gets this invitation first.
    ToBeInvited(Box<Invitation>),
    Invited,
}

/// How a remote shell is started: how long its silent machine is waited for, and which signals were
/// blocked before.
pub(crate) type How = (Duration, libc::sigset_t);

/// Another machine.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) name: String,
    pub(crate) ranks: Vec<u32>,
    /// Of the meeting, once there is something to do.
    pub(crate) link: Option<RelayId>,
    pub(crate) step: Step,
    /// What tells its machine from others, if that is known.
    pub(crate) machine: Option<String>,
    /// Bytes of output for which the agent has not been given thanks.
    pub(crate) owed: u32,
    /// What there is to do, until it is handed out; nothing if it is only asked whether it answers.
    pub(crate) plan: Option<Assignment>,
    way: Way,
    channel: Channel,
    silence: Silence,
    /// When a connection without output counts as lost, though ssh has not ended.
    linger_until: Option<Instant>,
    /// Something has happened that [`Remote::hear`] looks at.
    has_news: bool,
}

impl Remote {
    /// A machine whose agent is to call back.
    pub(crate) fn invite(plan: Assignment, only_ping: bool, patience: Duration) -> Remote {
        Remote {
            name: plan.host.clone(),
            ranks: plan.ranks.clone(),
            link: None,
            step: Step::Reaching,
            machine: None,
            owed: 0,
            plan: (!only_ping).then_some(plan),
            way: Way::Invited,
            channel: Channel::closed(),
            silence: Silence::new(patience),
            linger_until: None,
            has_news: false,
        }
    }

    /// It is to get a remote shell of its own, by [`Remote::reach`].
    pub(crate) fn queue(&mut self) {
        self.way = Way::Queued;
    }

    /// Whether a remote shell of its own has been started, and its agent has not spoken yet.
    pub(crate) fn is_being_reached(&self) -> bool {
        let is_silent = matches!(self.step, Step::Reaching | Step::Carrying);
        matches!(self.way, Way::Shell { .. }) && is_silent
    }

    /// How far it is, for the user who waits.
    pub(crate) fn words(&self) -> &'static str {
        match self.way {
            Way::Queued => "it waits for its turn",
            _ => self.step.words(),
        }
    }

    /// Starts a remote shell for this machine alone, whose agent calls back if it is invited and
    /// can.
    pub(crate) fn reach(
        &mut self,
        shell: &RemoteShell,
        tool: &Tool,
        (patience, mask): How,
        invitation: Option<Invitation>,
    ) -> Result<(), Refusal> {
        let mut arguments = vec![OsStr::new(agent::AGENT)];
        arguments.extend(invitation.as_ref().map(|_| OsStr::new(agent::MAY_CALL_BACK)));
        let command = shell.command(&self.name, tool, &arguments);
        let failed = |error: std::io::Error| {
            let (program, reason) = (shell.program().display(), not_started(&error));
            let message = format!("host {}: starting {program}: {reason}", self.name);
            Refusal { status: EXIT_HOST, message }
        };
        let (process, from, to) = ShellProcess::start(shell, command, mask).map_err(failed)?;
        self.channel = Channel::new(from, to).map_err(failed)?;
        let back = invitation.map_or(Back::No, |it| Back::ToBeInvited(Box::new(it)));
        self.way = Way::Shell { process, opening: Some(Opening::default()), back };
        self.silence = Silence::new(patience);
        Ok(())
    }

    /// Whether its agent is to call back and has not done so.
    pub(crate) fn is_invited(&self) -> bool {
        matches!(self.way, Way::Invited) && self.step == Step::Reaching
    }

    /// Whether it waits for a remote shell of its own.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.way, Way::Queued) && self.step == Step::Reaching
    }

    /// Whether its agent is let in if it calls: one that was late may come while its machine waits.
    pub(crate) fn may_call(&self) -> bool {
        let has_pipes = matches!(&self.way, Way::Shell { back, .. } if !matches!(back, Back::No));
        self.is_invited() || self.is_queued() || has_pipes && self.is_being_reached()
    }

    /// Its agent, with this number, has called by this connection. Returns what has started it, if
    /// that was a remote shell of its own.
    pub(crate) fn called(
        &mut self,
        number: u32,
        connection: Encrypted,
        patience: Duration,
    ) -> std::io::Result<Option<Starter>> {
        let liveness = Liveness::new(&connection.fd, patience)?;
        let pipes = std::mem::replace(&mut self.channel, Channel::over(connection)?);
        let way = std::mem::replace(&mut self.way, Way::Called(liveness));
        self.silence = Silence::new(patience);
        self.linger_until = None;
        self.has_news = true;
        Ok(match way {
            Way::Shell { process, .. } => {
                Some(Starter::of(process, pipes, (number, self.name.clone())))
            }
            Way::Invited | Way::Queued | Way::Called(_) => None,
        })
    }

    /// Whether its agent has called.
    pub(crate) fn has_called(&self) -> bool {
        matches!(self.way, Way::Called(_))
    }

    /// Whether it is still there then.
    pub(crate) fn is_on_the_line(&self) -> bool {
        self.has_called() && !self.channel.ended()
    }

    /// Hears nothing but the end of an agent that has called.
    pub(crate) fn await_end(&mut self) {
        self.channel.fill();
        self.channel.take_bytes();
    }

    fn shell(&self) -> Option<&ShellProcess> {
        match &self.way {
            Way::Shell { process, .. } => Some(process),
            Way::Invited | Way::Queued | Way::Called(_) => None,
        }
    }

    /// The process that connects with it, while it runs.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.shell().filter(|shell| !shell.has_ended()).map(ShellProcess::pid)
    }

    /// The process that connects with it, also when it has ended.
    pub(crate) fn process(&self) -> Option<i32> {
        self.shell().map(ShellProcess::pid)
    }

    /// Tells the agent what there is to do, in a job of so many machines.
    pub(crate) fn assign(&mut self, link: RelayId, machines: u32) {
        self.link = Some(link);
        if let Some(plan) = self.plan.take() {
            self.channel.say(&Down::Plan(Box::new(Assignment { machines, ..plan })));
        }
    }

    /// Sends the agent away, whose machine has another one or is this one, and returns what it was
    /// to do.
    pub(crate) fn dismiss(&mut self) -> Option<Assignment> {
        let plan = self.plan.take()?;
        self.ranks.clear();
        self.leave();
        Some(plan)
    }

    /// Tells the agent to start its ranks.
    pub(crate) fn begin(&mut self) {
        if self.step == Step::Ready {
            self.step = Step::Started;
            self.channel.say(&Down::Start);
        }
    }

    /// Whether there is nothing to expect any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.step, Step::Done | Step::Lost)
    }

    /// Whether there is a meeting there to be told of others.
    pub(crate) fn takes_part(&self) -> bool {
        matches!(self.step, Step::Ready | Step::Started | Step::Done)
    }

    /// What has to be waited for.
    pub(crate) fn readable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let messages = self.shell().and_then(ShellProcess::readable);
        self.channel.readable().into_iter().chain(messages)
    }

    /// To be written to, where something waits for that.
    pub(crate) fn writable(&self) -> Option<BorrowedFd<'_>> {
        self.channel.writable()
    }

    /// When [`Remote::hear`] has something to do, though nothing has come.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let look = self.is_watched().then(|| self.silence.deadline());
        self.linger_until.filter(|_| !self.is_over()).into_iter().chain(look).min()
    }

    /// Whether the agent is there, which says something every second.
    fn is_watched(&self) -> bool {
        let speaks = match &self.way {
            Way::Shell { process, opening, .. } => opening.is_none() && !process.has_ended(),
            Way::Invited | Way::Queued => false,
            Way::Called(_) => true,
        };
        speaks && !self.is_over()
    }

    /// Says something to the agent, once there is one.
    pub(crate) fn say(&mut self, frame: &Down) {
        if !matches!(self.step, Step::Reaching | Step::Carrying | Step::Lost) {
            self.channel.say(frame);
        }
    }

    /// The agent is needed no more: it ends, if it is told what its ranks left behind too, and ssh
    /// follows.
    pub(crate) fn part(&mut self, orphans: bool) {
        self.say(&Down::Part(orphans));
        self.channel.flush();
        self.channel.close();
    }

    /// Writes what there is room for.
    pub(crate) fn flush(&mut self) {
        self.channel.flush();
    }

    /// ssh has ended, if this is its process.
    pub(crate) fn ended(&mut self, pid: i32, ending: Ending) -> bool {
        let is_it = match &mut self.way {
            Way::Shell { process, .. } => process.ended(pid, ending),
            Way::Invited | Way::Queued | Way::Called(_) => false,
        };
        self.has_news |= is_it;
        is_it
    }

    /// Closes the connection: an agent that has not said that all is done ends its ranks and
    /// itself, and ssh follows.
    pub(crate) fn leave(&mut self) {
        if matches!(self.step, Step::Reaching | Step::Carrying) {
            // It may hang, and there is nothing that would have to end first.
            self.kill();
        }
        match &mut self.way {
            Way::Shell { process, .. } => {
                self.channel.hang_up();
                process.close_messages();
            }
            // Its end is heard.
            Way::Invited | Way::Queued | Way::Called(_) => self.channel.close(),
        }
        if self.step != Step::Done {
            self.step = Step::Lost;
        }
    }

    /// Ends ssh, if it is by ssh that both are connected.
    pub(crate) fn kill(&self) {
        if let Some(shell) = self.shell() {
            shell.kill();
        }
    }

    /// What [`Remote::readable`] named can be read from.
    pub(crate) fn note_readable(&mut self) {
        self.has_news = true;
    }

    /// Takes in what has come, if something has happened. It costs nothing where nothing has, so
    /// that all machines can be asked for each thing that happens to one of them.
    pub(crate) fn hear(&mut self, tool: &Tool) -> Vec<News> {
        let mut news = Vec::new();
        let is_due = || self.deadline().is_some_and(|deadline| deadline <= Instant::now());
        if !self.has_news && !is_due() {
            return news;
        }
        self.has_news = false;
        if self.step == Step::Lost {
            if self.is_on_the_line() {
                self.await_end();
            }
            return news;
        }
        if let Way::Shell { process, .. } = &mut self.way {
            process.read_messages();
        }
        if self.channel.fill() > 0 {
            self.silence.note_heard();
        }
        let mut wrong = self.open(tool).err();
        while self.is_open() && wrong.is_none() {
            match self.channel.next::<Up>() {
                Ok(Some(frame)) => match self.take(frame) {
                    Ok(found) => news.push(found),
                    Err(reason) => wrong = Some(reason),
                },
                Ok(None) => break,
                Err(reason) => wrong = Some(format!("it was not understood: {reason}")),
            }
        }
        if let Some(reason) = wrong.or_else(|| self.end()) {
            news.push(self.lose(reason));
        }
        news
    }

    /// Whether what comes are frames.
    fn is_open(&self) -> bool {
        match &self.way {
            Way::Shell { opening, .. } => opening.is_none(),
            Way::Invited | Way::Queued => false,
            Way::Called(_) => true,
        }
    }

    /// Why nothing can come any more, if that is so.
    fn end(&mut self) -> Option<String> {
        if self.is_gone() {
            let shell = self.shell().map(ShellProcess::farewell);
            let why = shell.or_else(|| self.channel.wrong());
            return Some(why.unwrap_or_else(|| "its agent has closed the connection".to_owned()));
        }
        if !self.is_watched() {
            return None;
        }
        let is_cut = match &self.way {
            Way::Shell { process, .. } => self.silence.is_cut_from(process.pid()),
            Way::Called(liveness) => self.silence.is_cut(|| liveness.is_cut()),
            Way::Invited | Way::Queued => false,
        };
        is_cut.then(|| self.silence.words())
    }

    fn take(&mut self, frame: Up) -> Result<News, String> {
        match (&frame, self.step) {
            (Up::Hello { version, machine }, Step::Reaching | Step::Carrying) => {
                if *version != protocol::VERSION {
                    return Err(format!(
                        "its gaspi_run speaks version {version} of the protocol, this one version \
                         {}; install one version on all hosts",
                        protocol::VERSION
                    ));
                }
                self.step = Step::Up;
                self.machine.clone_from(machine);
                return Ok(News::Up);
            }
            (_, Step::Reaching | Step::Carrying) => {
                return Err("it did not introduce itself".to_owned());
            }
            (Up::Ready, Step::Up) => self.step = Step::Ready,
            (Up::Started { rank, .. } | Up::Ended { rank, .. }, _) => self.check(*rank)?,
            (Up::Output { rank, bytes, .. }, _) => {
                self.check(*rank)?;
                self.owed += bytes.len() as u32;
            }
            (Up::Done, _) => self.step = Step::Done,
            _ => {}
        }
        Ok(News::Said(frame))
    }

    fn check(&self, rank: u32) -> Result<(), String> {
        match self.ranks.binary_search(&rank) {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("it spoke of rank {rank}, which is not there")),
        }
    }

    /// Looks for the beginning of what the agent says.
    fn open(&mut self, tool: &Tool) -> Result<(), String> {
        let Way::Shell { process, opening: place, back } = &mut self.way else { return Ok(()) };
        let Some(opening) = place else { return Ok(()) };
        loop {
            match opening.feed(&self.channel.take_bytes()) {
                Opened::NotYet => return Ok(()),
                Opened::Carry if self.step == Step::Reaching => {
                    self.step = Step::Carrying;
                    let bytes =
                        tool.read().map_err(|error| format!("carrying gaspi_run: {error}"))?;
                    self.channel.queue(&bytes);
                }
                Opened::Runs(rest) => {
                    self.channel.put_back(rest);
                    *place = None;
                    process.forget_messages();
                    if let Back::ToBeInvited(invitation) = back {
                        self.channel.queue(&invitation.encode());
                        *back = Back::Invited;
                    }
                    return Ok(());
                }
                Opened::Carry | Opened::Noise => {
                    return Err("login scripts there print without end".to_owned());
                }
            }
        }
    }

    /// Whether nothing can come any more. What ssh left in the background (a master connection) may
    /// hold its pipes open.
    fn is_gone(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        match &self.way {
            Way::Shell { process, .. } if process.has_ended() => return true,
            Way::Shell { .. } if self.channel.ended() => {}
            Way::Called(_) => return self.channel.ended(),
            Way::Shell { .. } | Way::Invited | Way::Queued => return false,
        }
        let until = *self.linger_until.get_or_insert_with(|| Instant::now() + LINGER);
        Instant::now() >= until
    }

    fn lose(&mut self, reason: String) -> News {
        self.step = Step::Lost;
        self.channel.hang_up();
        if let Way::Shell { process, .. } = &mut self.way {
            // Nobody reads them any more.
            process.close_messages();
        }
        self.kill();
        News::Lost(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::VERSION;

    #[test]
    fn an_agent_of_another_version_is_refused_with_both() {
        let greeted = |version| {
            let plan = Assignment { host: "bee".to_owned(), ..crate::protocol::tests::plan() };
            let mut remote = Remote::invite(plan, false, Duration::from_secs(5));
            let said = remote.take(Up::Hello { version, machine: None });
            (said.map(|news| matches!(news, News::Up)), remote.step)
        };
        assert_eq!(greeted(VERSION), (Ok(true), Step::Up));
        for other in [VERSION - 1, VERSION + 1] {
            let (refused, step) = greeted(other);
            let text = refused.expect_err("let in");
            assert!(text.contains(&format!("speaks version {other} of the protocol")), "{text}");
            assert!(text.contains(&format!("this one version {VERSION};")), "{text}");
            assert_eq!(step, Step::Reaching);
        }
    }
}
