//! Signals as something to read, and their names.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its number.
    pub signal: i32,
    /// Sent by the kernel, so by the terminal, which sends it to every process in the foreground:
    /// the ranks have it already.
    pub from_terminal: bool,
}

/// Signals of this process, to be read instead of interrupting.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    /// What was blocked before, to be restored in child processes.
    pub before: libc::sigset_t,
}

impl Signals {
    /// Blocks these signals. Those that are ignored (nohup, a job in the background of a script)
    /// stay so. From here on the process can wait for its children. To be called while it has one
    /// thread.
    ///
    /// # Errors
    /// Descriptors ran out.
    pub fn take(signals: impl IntoIterator<Item = i32>) -> io::Result<Signals> {
        keep_children();
        let mut set = MaybeUninit::uninit();
        // SAFETY: initialises the set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: initialised by the line before.
        let mut set = unsafe { set.assume_init() };
        // The kernel keeps a signal that is blocked, though it is ignored.
        for signal in signals.into_iter().filter(|signal| !is_ignored(*signal)) {
            // SAFETY: the set is initialised; a number that is no signal changes nothing.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        let mut before = set;
        // SAFETY: both sets live on this stack.
        if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: makes a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(Signals { fd: unsafe { OwnedFd::from_raw_fd(fd) }, before })
    }

    /// Readable when a signal has come.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The first of these signals that has come and was not read.
    pub fn pending(&self, signals: &[i32]) -> Option<i32> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: fills in the set.
        if unsafe { libc::sigpending(set.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: filled in above.
        let set: libc::sigset_t = unsafe { set.assume_init() };
        // SAFETY: the set is initialised.
        let is_pending = |signal: &i32| unsafe { libc::sigismember(&raw const set, *signal) } == 1;
        signals.iter().copied().find(is_pending)
    }

    /// The next signal that has come.
    pub fn read(&self) -> Option<Arrival> {
        // SAFETY: all zeroes is a valid record.
        let mut record: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let len = size_of::<libc::signalfd_siginfo>();
        // SAFETY: writes at most one record.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut record).cast(), len) };
        (usize::try_from(got) == Ok(len)).then_some(Arrival {
            signal: record.ssi_signo as i32,
            // A hangup goes to the leader of the session alone.
            from_terminal: record.ssi_code == libc::SI_KERNEL
                && record.ssi_signo != libc::SIGHUP as u32,
        })
    }
}

/// Makes children wait to be reaped. Who has started this process may ignore SIGCHLD, which is
/// inherited: then the kernel reaps them, tells nobody, and their exit status is lost.
pub fn keep_children() {
    // SAFETY: a disposition without a handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: all zeroes is a valid record.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: changes nothing and writes the record that it is given.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// "SIGKILL" for 9.
pub fn name(signal: i32) -> String {
    const NAMES: [&str; 32] = [
        "0", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV",
        "USR2", "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU",
        "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(signal).ok().and_then(|index| NAMES.get(index)) {
        Some(name) => format!("SIG{name}"),
        None => format!("SIGRTMIN+{}", signal - libc::SIGRTMIN()),
    }
}
