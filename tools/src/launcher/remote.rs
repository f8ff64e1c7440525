//! Another machine of the job, as gaspi_run sees it: ssh as a child, its pipes, and what the agent
//! at their other end has said.

use crate::assignment::Assignment;
use crate::channel::Channel;
use crate::process::Ending;
use crate::protocol::{self, Down, Up};
use crate::refusal::{EXIT_HOST, Refusal};
use crate::shell_process::ShellProcess;
use crate::ssh_liveness::Silence;
use gaspi_core::bootstrap::RelayId;
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
    /// ssh has been started.
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
    shell: ShellProcess,
    /// Through its pipes.
    channel: Channel,
    opening: Option<Opening>,
    silence: Silence,
    /// When a connection without output counts as lost, though ssh has not ended.
    linger_until: Option<Instant>,
}

impl Remote {
    /// Starts the remote shell. `mask` are the signals that were blocked before; a machine that is
    /// silent is waited for with `patience`.
    pub(crate) fn start(
        shell: &RemoteShell,
        tool: &Tool,
        plan: Assignment,
        only_ping: bool,
        (patience, mask): (Duration, libc::sigset_t),
    ) -> Result<Remote, Refusal> {
        let command = shell.command(&plan.host, tool, &[OsStr::new("--agent")]);
        let failed = |error: std::io::Error| Refusal {
            status: EXIT_HOST,
            message: format!("host {}: starting {}: {error}", plan.host, shell.program().display()),
        };
        let (process, from, to) = ShellProcess::start(shell, command, mask).map_err(failed)?;
        let channel = Channel::new(from, to).map_err(failed)?;
        Ok(Remote {
            name: plan.host.clone(),
            ranks: plan.ranks.clone(),
            link: None,
            step: Step::Reaching,
            machine: None,
            owed: 0,
            plan: (!only_ping).then_some(plan),
            shell: process,
            channel,
            opening: Some(Opening::default()),
            silence: Silence::new(patience),
            linger_until: None,
        })
    }

    /// The process that connects with it, while it runs.
    pub(crate) fn pid(&self) -> Option<i32> {
        (!self.shell.has_ended()).then_some(self.shell.pid())
    }

    /// The process that connects with it, also when it has ended.
    pub(crate) fn process(&self) -> i32 {
        self.shell.pid()
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
        self.channel.readable().into_iter().chain(self.shell.readable())
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
        self.opening.is_none() && !self.is_over() && !self.shell.has_ended()
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
        self.shell.ended(pid, ending)
    }

    /// Closes the connection: an agent that has not said that all is done ends its ranks and
    /// itself, and ssh follows.
    pub(crate) fn leave(&mut self) {
        if matches!(self.step, Step::Reaching | Step::Carrying) {
            // It may hang, and there is nothing that would have to end first.
            self.kill();
        }
        self.channel.hang_up();
        self.shell.close_messages();
        if self.step != Step::Done {
            self.step = Step::Lost;
        }
    }

    /// Ends ssh.
    pub(crate) fn kill(&self) {
        self.shell.kill();
    }

    /// Takes in what has come.
    pub(crate) fn hear(&mut self, tool: &Tool) -> Vec<News> {
        let mut news = Vec::new();
        if self.step == Step::Lost {
            return news;
        }
        self.shell.read_messages();
        if self.channel.fill() > 0 {
            self.silence.note_heard();
        }
        let mut wrong = None;
        if self.opening.is_some() {
            wrong = self.open(tool).err();
        }
        while self.opening.is_none() && wrong.is_none() {
            match self.channel.next::<Up>() {
                Ok(Some(frame)) => match self.take(frame) {
                    Ok(found) => news.push(found),
                    Err(reason) => wrong = Some(reason),
                },
                Ok(None) => break,
                Err(reason) => wrong = Some(format!("it was not understood: {reason}")),
            }
        }
        if let Some(reason) = wrong {
            news.push(self.lose(reason));
        } else if self.is_gone() {
            let reason = self.shell.farewell();
            news.push(self.lose(reason));
        } else if self.is_watched() && self.silence.is_cut(self.shell.pid()) {
            let reason = self.silence.words();
            news.push(self.lose(reason));
        }
        news
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
        let Some(opening) = &mut self.opening else { return Ok(()) };
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
                    self.opening = None;
                    self.shell.forget_messages();
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
        if self.shell.has_ended() {
            return true;
        }
        if !self.channel.ended() {
            return false;
        }
        let until = *self.linger_until.get_or_insert_with(|| Instant::now() + LINGER);
        Instant::now() >= until
    }

    fn lose(&mut self, reason: String) -> News {
        self.step = Step::Lost;
        self.channel.hang_up();
        self.kill();
        News::Lost(reason)
    }
}
