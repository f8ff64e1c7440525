//! Starting a rank and reaping what ends.
//!
//! A rank is tied to gaspi_run, or to its agent on another machine, from before it exists: between
//! fork and exec it asks the kernel to be killed when its parent dies. Its parent is a subreaper,
//! so processes that a rank leaves behind become its children and can be ended with the job.

use crate::assignment::{Assignment, Command};
use crate::binding::{self, Share};
use crate::environment::{OF_THE_JOB, is_of_an_outer_launcher};
use crate::files::Files;
use crate::refusal::{EXIT_HOST, EXIT_LAUNCHER, Refusal};
use gaspi_core::os::limits;
use gaspi_tools::system;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

/// Signals that end programs.
pub(crate) const ENDING: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It exited with this status.
    Exited(i32),
    /// This signal killed it.
    Killed { signal: i32, core: bool },
    /// Its machine cannot be reached any more.
    Lost,
}

impl Ending {
    pub(crate) fn failed(self) -> bool {
        self != Ending::Exited(0)
    }

    /// The status that a shell would report.
    pub(crate) fn status(self) -> u8 {
        match self {
            Ending::Exited(status) => status as u8,
            Ending::Killed { signal, .. } => (128 + signal) as u8,
            Ending::Lost => EXIT_HOST,
        }
    }
}

/// The process of a rank.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pidfd: OwnedFd,
}

/// A rank that has just been started, with our ends of its pipes.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) process: Process,
    /// If it was to be a pipe.
    pub(crate) stdin: Option<File>,
    pub(crate) stdout: Option<File>,
    pub(crate) stderr: Option<File>,
}

/// What all ranks get, whatever they run.
#[derive(Debug)]
pub(crate) struct Setting {
    /// The meeting on this machine.
    pub(crate) meeting: String,
    /// To be restored in the ranks.
    pub(crate) signal_mask: libc::sigset_t,
    /// To be restored in the ranks.
    pub(crate) descriptors: libc::rlimit,
}

/// Where a rank runs.
#[derive(Debug)]
pub(crate) struct Cores<'a> {
    pub(crate) share: &'a Share,
    /// The NUMA nodes of its memory; empty for any.
    pub(crate) memory: &'a [usize],
}

/// Makes processes whose parents end children of this process.
pub(crate) fn adopt_orphans() {
    // SAFETY: an integer option; a kernel without it leaves orphans to init.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// Signals act as they do by default, whatever ssh or a shell before it ignored.
pub(crate) fn reset_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGTSTP] {
        // SAFETY: a disposition without a handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Starts the rank with this number on this machine, with files or pipes of ours as its output. The
/// standard input is that of rank 0.
pub(crate) fn start(
    plan: &Assignment,
    setting: &Setting,
    cores: &Cores<'_>,
    local: usize,
    files: Option<Files>,
    input: Stdio,
) -> Result<Started, Refusal> {
    let rank = plan.ranks[local];
    let command = plan.command(rank);
    // Under gdb rank 0 has the terminal to itself.
    let terminal = plan.debug && rank == 0;
    let mut spawn = std::process::Command::new(&command.program);
    spawn.args(&command.arguments);
    spawn.stdin(if rank == 0 { input } else { Stdio::null() });
    match files {
        _ if terminal => {}
        Some(files) => {
            spawn.stdout(files.stdout).stderr(files.stderr);
        }
        None => {
            spawn.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
    }
    if plan.debug && rank != 0 {
        // What is typed at the debugger (Ctrl-C) is not for the others.
        spawn.process_group(0);
    }
    set_environment(&mut spawn, plan, setting, cores.share, local);
    let masks = (cores.share.mask(), binding::bits(cores.memory));
    let (mask, limit) = (setting.signal_mask, setting.descriptors);
    let parent = std::process::id() as i32;
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe { spawn.pre_exec(move || prepare(parent, &mask, limit, &masks)) };
    let mut child = spawn.spawn().map_err(|error| refusal(command, rank, &error))?;
    let pid = child.id() as i32;
    let stdin = child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    let stdout = child.stdout.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    let stderr = child.stderr.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    let process = Process::of_child(pid).map_err(|error| {
        // It was started but cannot be looked after: it ends with gaspi_run.
        Refusal::launcher(format!("rank {rank}: pidfd_open: {error}"))
    })?;
    Ok(Started { process, stdin, stdout, stderr })
}

/// What a rank finds in its environment.
fn set_environment(
    spawn: &mut std::process::Command,
    plan: &Assignment,
    setting: &Setting,
    share: &Share,
    local: usize,
) {
    if let Some(environment) = &plan.environment {
        spawn.env_clear().envs(environment.variables.iter().map(|(name, value)| (name, value)));
    }
    // What is inherited speaks of another job.
    OF_THE_JOB.iter().for_each(|name| {
        spawn.env_remove(name);
    });
    // Elsewhere gaspi_run has left it out before.
    std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| is_of_an_outer_launcher(name))
        .for_each(|name| {
            spawn.env_remove(name);
        });
    for variable in &plan.variables {
        spawn.env(&variable.name, variable.value(local));
    }
    spawn.env("GASPI_RANK", plan.ranks[local].to_string());
    spawn.env("GASPI_NRANKS", plan.size.to_string());
    spawn.env("GASPI_SOCKET", local.to_string());
    spawn.env("GASPI_JOB_ID", &plan.job);
    spawn.env("GASPI_MEETING", &setting.meeting);
    spawn.env("GASPI_BIND", share.variable());
    if let Some(file) = &plan.machine_file {
        spawn.env("GASPI_MFILE", file);
    }
    if plan.machines > 1 {
        spawn.env("GASPI_HOSTS", plan.machines.to_string()).env("GASPI_HOST", &plan.host);
    }
    if plan.numa {
        spawn.env("GASPI_SET_NUMA_SOCKET", "1");
    }
}

/// In the new process, before it becomes the rank's program.
fn prepare(
    parent: i32,
    mask: &libc::sigset_t,
    limit: libc::rlimit,
    (cores, memory): &(Vec<u64>, Vec<u64>),
) -> io::Result<()> {
    // SAFETY: an integer option.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
    // SAFETY: no arguments.
    if unsafe { libc::getppid() } != parent {
        // gaspi_run died before the kernel was told.
        // SAFETY: does not return.
        unsafe { libc::_exit(EXIT_ORPHAN) };
    }
    // That cores or nodes were taken away meanwhile is no reason not to start: the system then puts
    // the rank where it may run.
    let _ = binding::set(cores);
    let _ = binding::set_memory(memory);
    system::set_descriptor_limit(limit);
    // SAFETY: the set was filled in by the kernel.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
    Ok(())
}

const EXIT_ORPHAN: i32 = 125;

/// Why a rank could not be started, as a text and as a status.
fn refusal(command: &Command, rank: u32, error: &io::Error) -> Refusal {
    let name = command.program.display();
    let (status, reason) = match error.raw_os_error() {
        Some(libc::ENOENT) => (
            127,
            "the program, or the interpreter that its first line names, does not exist".into(),
        ),
        Some(libc::EACCES) => (126, "permission denied; is it executable?".into()),
        Some(libc::ENOEXEC | libc::EISDIR | libc::ELIBBAD) => (126, error.to_string()),
        Some(libc::E2BIG) => (126, "arguments and environment are too long".into()),
        Some(libc::EAGAIN) => {
            (EXIT_LAUNCHER, format!("{}; or start fewer ranks", limits::no_process()))
        }
        Some(libc::EMFILE | libc::ENFILE) => (
            EXIT_LAUNCHER,
            "no more files may be opened; raise the limit with ulimit -n, or start fewer ranks"
                .into(),
        ),
        Some(libc::ENOMEM) => (EXIT_LAUNCHER, "not enough memory".into()),
        _ => (EXIT_LAUNCHER, error.to_string()),
    };
    Refusal { status, message: format!("starting rank {rank} ({name}): {reason}") }
}

/// A pidfd of a child that has not been reaped.
fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a signal through a pidfd. That the process has ended does not matter.
pub(crate) fn signal(pidfd: &OwnedFd, signal: i32) {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open and the signal information may be null.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, info, 0) };
}

impl Process {
    /// A child that has not been reaped.
    pub(crate) fn of_child(pid: i32) -> io::Result<Process> {
        Ok(Process { pid, pidfd: open(pid)? })
    }

    pub(crate) fn signal(&self, number: i32) {
        signal(&self.pidfd, number);
    }

    /// It is readable once the process has ended.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// A child that has ended and was not reaped, a rank or an adopted orphan. Of several it is the one
/// that was started first.
pub(crate) fn any_ended() -> Option<i32> {
    wait(libc::P_ALL, 0, libc::WNOWAIT).map(|(pid, _)| pid)
}

/// Reaps a child, if it has ended.
pub(crate) fn reap_one(pid: i32) -> Option<(i32, Ending)> {
    wait(libc::P_PID, pid as libc::id_t, 0)
}

/// The next child that has ended, reaped.
pub(crate) fn reap() -> Option<(i32, Ending)> {
    wait(libc::P_ALL, 0, 0)
}

fn wait(kind: libc::idtype_t, id: libc::id_t, further: i32) -> Option<(i32, Ending)> {
    // SAFETY: all zeroes is a valid record.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | further;
    // SAFETY: writes the record that it is given.
    if unsafe { libc::waitid(kind, id, &raw mut info, flags) } != 0 {
        return None;
    }
    // SAFETY: a record of a child has these fields; if none ended they are zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    let ending = match info.si_code {
        _ if pid == 0 => return None,
        libc::CLD_EXITED => Ending::Exited(status),
        code => Ending::Killed { signal: status, core: code == libc::CLD_DUMPED },
    };
    Some((pid, ending))
}

/// Kills unknown children: what ended ranks left behind. True if there were any.
pub(crate) fn kill_orphans(is_known: impl Fn(i32) -> bool) -> bool {
    let file = format!("/proc/self/task/{}/children", std::process::id());
    let children = std::fs::read_to_string(file).unwrap_or_default();
    let mut any = false;
    for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        // A child that was not reaped keeps its number, so this is the one that was listed.
        if !is_known(pid)
            && let Ok(pidfd) = open(pid)
        {
            signal(&pidfd, libc::SIGKILL);
            any = true;
        }
    }
    any
}
