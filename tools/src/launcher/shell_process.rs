//! The remote shell that connects gaspi_run with another machine: a child process, the messages
//! that it prints, and how it ended. What goes through its pipes is the matter of a
//! [`Channel`](crate::channel::Channel).

use crate::process::{Ending, Process};
use gaspi_core::os::limits;
use gaspi_tools::remote_agent;
use gaspi_tools::remote_shell::RemoteShell;
use gaspi_tools::signals;
use gaspi_tools::system;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Bytes of its messages that are kept: the last ones.
const MESSAGES_MAX: usize = 8 << 10;

/// A child that is ssh or another remote shell, until it has been waited for and beyond.
#[derive(Debug)]
pub(crate) struct ShellProcess {
    /// The program, for messages.
    program: OsString,
    /// The signal that ends it.
    end_signal: i32,
    process: Process,
    ending: Option<Ending>,
    /// Its standard error; `None` once that is not read any more.
    errors: Option<File>,
    messages: Vec<u8>,
}

impl ShellProcess {
    /// Starts `command` of `shell`. `mask` are the signals that were blocked before. Returns the
    /// child's standard output and standard input too.
    pub(crate) fn start(
        shell: &RemoteShell,
        mut command: Command,
        mask: libc::sigset_t,
    ) -> io::Result<(ShellProcess, OwnedFd, OwnedFd)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (parent, end_signal) = (std::process::id() as i32, shell.end_signal());
        // SAFETY: only async-signal-safe calls between fork and exec.
        unsafe { command.pre_exec(move || prepare(parent, end_signal, &mask)) };
        let mut child = command.spawn()?;
        let process = Process::of_child(child.id() as i32)?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("no pipes"));
        };
        let errors = child.stderr.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        if let Some(errors) = &errors {
            system::set_nonblocking(errors.as_fd())?;
        }
        let program = shell.program().to_owned();
        let end_signal = shell.end_signal();
        let shell = ShellProcess {
            program,
            end_signal,
            process,
            ending: None,
            errors,
            messages: Vec::new(),
        };
        Ok((shell, OwnedFd::from(from), OwnedFd::from(to)))
    }

    /// Its number, also when it has ended.
    pub(crate) fn pid(&self) -> i32 {
        self.process.pid
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ending.is_some()
    }

    /// It has ended, if this is its process.
    pub(crate) fn ended(&mut self, pid: i32, ending: Ending) -> bool {
        let is_it = self.ending.is_none() && self.process.pid == pid;
        if is_it {
            self.ending = Some(ending);
        }
        is_it
    }

    pub(crate) fn kill(&self) {
        if self.ending.is_none() {
            self.process.signal(self.end_signal);
        }
    }

    /// Where its messages come from.
    pub(crate) fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.errors.as_ref().map(|errors| errors.as_fd())
    }

    /// Takes in the messages that have come.
    pub(crate) fn read_messages(&mut self) {
        let mut buffer = [0; 4096];
        while let Some(errors) = &mut self.errors {
            match errors.read(&mut buffer) {
                Ok(0) => self.errors = None,
                Ok(count) => {
                    self.messages.extend_from_slice(&buffer[..count]);
                    let excess = self.messages.len().saturating_sub(MESSAGES_MAX);
                    self.messages.drain(..excess);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.errors = None,
            }
        }
    }

    /// What it said so far is no reason for what may come.
    pub(crate) fn forget_messages(&mut self) {
        self.messages.clear();
    }

    /// Its messages are not read any more.
    pub(crate) fn close_messages(&mut self) {
        self.errors = None;
    }

    /// What it printed last, if it printed anything.
    pub(crate) fn words(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.messages);
        let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
        Some(format!("{}: {last}", self.program.display()))
    }

    /// Why it has gone, in its own words.
    pub(crate) fn farewell(&self) -> String {
        let how = match self.ending {
            Some(Ending::Exited(status)) => format!("ended with exit status {status}"),
            Some(Ending::Killed { signal, .. }) => {
                format!("was killed by signal {signal} ({})", signals::name(signal))
            }
            _ => "closed the connection".to_owned(),
        };
        remote_agent::farewell(&self.program, &how, &self.messages)
    }
}

/// Why a remote shell could not be started.
pub(crate) fn not_started(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => limits::no_process(),
        _ => error.to_string(),
    }
}

/// In the new process, before it becomes the remote shell.
fn prepare(parent: i32, end_signal: i32, mask: &libc::sigset_t) -> std::io::Result<()> {
    // SAFETY: an integer option.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, end_signal, 0, 0, 0) };
    // SAFETY: no arguments.
    if unsafe { libc::getppid() } != parent {
        // SAFETY: does not return.
        unsafe { libc::_exit(1) };
    }
    // What is typed at the terminal reaches the ranks as signals; the connection has to survive it.
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTSTP] {
        // SAFETY: a disposition without a handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // SAFETY: the set was filled in by the kernel.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
    Ok(())
}
