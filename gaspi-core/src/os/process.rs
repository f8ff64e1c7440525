//! Other processes: telling them apart, watching them end, ending them. By pidfd where there is
//! one: it cannot be mistaken for a later process of the same number.
//!
//! Invariant: a process that cannot be seen has not ended. Only the kernel's word counts: a pidfd
//! that is readable, a number of this pid namespace that nobody has, a zombie. That a file in /proc
//! cannot be read says nothing: descriptors may have run out, or /proc may hide the process.
//!
//! Masks of signals and `_exit` are made by hand: rustix leaves both to the C library.

use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::ffi::CStr;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// What can be seen of another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It runs, or is stopped.
    Running,
    /// It has ended for certain, whether or not somebody has waited for it.
    Ended,
    /// Nothing is known, for this reason.
    Unknown(String),
}

/// The fields of /proc/PID/stat that tell whether a process lives, and which one it is.
struct Stat {
    /// The main thread has ended.
    zombie: bool,
    parent: i32,
    threads: u64,
    start_time: u64,
}

/// Forks between the process that asked first and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Runs in the child of a fork.
extern "C" fn forked() {
    // Relaxed: the child has one thread.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A number that a forked child has another one of. Only forks of the C library are counted.
pub fn forks() -> u32 {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        // SAFETY: the handler changes an atomic, and is part of what is never unloaded.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        if failed != 0 {
            log::warn!(
                "pthread_atfork failed; forked children must not use what is their parent's"
            );
        }
    });
    known_forks()
}

/// The same, once it has been asked for.
#[inline]
pub fn known_forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// `name` is a number, or "self".
fn stat(name: &str) -> io::Result<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{name}/stat"))?;
    parse(&text).ok_or_else(|| io::Error::other("/proc/PID/stat is not understood"))
}

fn parse(stat: &str) -> Option<Stat> {
    // The name, field 2, may hold anything; it ends with the last parenthesis.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let threads = fields.nth(15)?.parse().ok()?;
    let start_time = fields.nth(1)?.parse().ok()?;
    Some(Stat { zombie, parent, threads, start_time })
}

/// When the process was started, in clock ticks since boot: with the pid it names one process.
/// `None` where it cannot be seen.
pub fn start_time(pid: i32) -> Option<u64> {
    stat(&pid.to_string()).ok().map(|stat| stat.start_time)
}

/// The same for this process, also where /proc is that of another pid namespace.
pub fn own_start_time() -> Option<u64> {
    stat("self").ok().map(|stat| stat.start_time)
}

/// The process that has started this one, the one that has started that, and so on, as far as /proc
/// shows them.
pub fn ancestors() -> impl Iterator<Item = i32> {
    let parent = |name: &str| stat(name).ok().map(|stat| stat.parent).filter(|pid| *pid > 0);
    std::iter::successors(parent("self"), move |pid| parent(&pid.to_string()))
}

/// A process for which there is no pidfd, to be looked at again and again.
#[derive(Debug, Clone, Copy)]
pub struct Watched {
    pid: i32,
    /// 0 where it is not known.
    started: u64,
    /// /proc has shown it with this start time: from then on another one there is a later process.
    met: bool,
}

impl Watched {
    /// The process `pid` of this pid namespace, which was started at `started` (0: not known).
    pub fn new(pid: i32, started: u64) -> Watched {
        Watched { pid, started, met: false }
    }

    /// What can be seen of it now.
    pub fn look(&mut self) -> Seen {
        // Takes neither a descriptor nor /proc.
        let found = pid_of(self.pid).map(rustix::process::test_kill_process);
        if found == Some(Err(Errno::SRCH)) {
            return Seen::Ended;
        }
        match stat(&self.pid.to_string()) {
            Ok(stat) => self.judge(&stat),
            Err(error) => Seen::Unknown(format!("/proc/{}/stat: {error}", self.pid)),
        }
    }

    fn judge(&mut self, stat: &Stat) -> Seen {
        let same = self.started == 0 || stat.start_time == self.started;
        self.met |= same && self.started != 0;
        match same {
            // A main thread may end before others.
            true if stat.zombie && stat.threads <= 1 => Seen::Ended,
            true => Seen::Running,
            false if self.met => Seen::Ended,
            // Another time namespace, or the /proc of another pid namespace.
            false => Seen::Unknown(format!(
                "/proc/{}/stat shows a process that was started at another time",
                self.pid
            )),
        }
    }
}

/// The kernel's numbers of processes are positive.
fn pid_of(number: i32) -> Option<Pid> {
    Pid::from_raw(number.max(0))
}

/// A descriptor for the process `pid` of this pid namespace. `None` if the kernel says that there
/// is no such process; with a time of start (0: not known) also if it is another one.
///
/// # Errors
/// Descriptors ran out, the kernel has or gives no pidfds, or it cannot be seen when it was
/// started.
pub fn open(pid: i32, started: u64) -> Result<Option<OwnedFd>> {
    let opened = pid_of(pid).ok_or(Errno::INVAL);
    let fd = match opened.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty())) {
        Ok(fd) => fd,
        Err(Errno::SRCH) => return Ok(None),
        Err(error) => return Err(Error::os(format!("pidfd_open({pid})"), &error.into())),
    };
    if started == 0 {
        return Ok(Some(fd));
    }
    // The number may have been given to another process before the descriptor was opened.
    match stat(&pid.to_string()) {
        Ok(stat) => Ok((stat.start_time == started).then_some(fd)),
        Err(_) if has_ended(&fd) => Ok(None),
        Err(error) => Err(Error::os(format!("reading /proc/{pid}/stat"), &error)),
    }
}

/// Opens the memory file `name` that is descriptor `number` of the process `pid`. `None` if that is
/// closed or another file by now, or the process has ended.
///
/// # Errors
/// The kernel does not allow it: the process is of another user, or was made undumpable.
pub fn open_memory_of(pid: i32, number: u32, name: &CStr) -> io::Result<Option<OwnedFd>> {
    let path = format!("/proc/{pid}/fd/{number}");
    // Not to open what may be a device.
    let is_it = |found: &Path| {
        let name_of = found.as_os_str().as_bytes().strip_prefix(b"/memfd:");
        name_of.is_some_and(|found| found.starts_with(name.to_bytes()))
    };
    let open = || std::fs::OpenOptions::new().read(true).write(true).open(&path);
    let opened = match std::fs::read_link(&path) {
        Ok(found) if is_it(&found) => open(),
        Ok(_) => return Ok(None),
        Err(error) => Err(error),
    };
    let gone = [libc::ENOENT, libc::ESRCH, libc::ENXIO];
    match opened {
        Ok(file) => Ok(Some(file.into())),
        Err(error) if error.raw_os_error().is_some_and(|number| gone.contains(&number)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A number that two processes have in common if each may open files by the other's descriptors:
/// the same user, group and pid namespace, of which there is a /proc. 0 if none may open those of
/// this process.
pub fn descriptor_domain() -> u64 {
    let dumpable = rustix::process::dumpable_behavior();
    if !matches!(dumpable, Ok(rustix::process::DumpableBehavior::Dumpable)) {
        return 0;
    }
    // /proc shows this process under the number by which others know it.
    let seen = std::fs::read_link("/proc/self");
    if !seen.is_ok_and(|seen| seen.as_os_str() == std::process::id().to_string().as_str()) {
        return 0;
    }
    let Ok(namespace) = rustix::fs::stat("/proc/self/ns/pid") else { return 0 };
    let user = u64::from(rustix::process::geteuid().as_raw());
    let group = u64::from(rustix::process::getegid().as_raw());
    let mut hash = std::hash::DefaultHasher::new();
    (namespace.st_dev, namespace.st_ino, user, group).hash(&mut hash);
    hash.finish().max(1)
}

/// Whether the process has ended.
pub fn has_ended(pidfd: &OwnedFd) -> bool {
    const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&AT_ONCE)) == Ok(1)
}

/// Sends `signal`; false if the process has ended or may not be signalled.
pub fn signal(pidfd: &OwnedFd, signal: i32) -> bool {
    // Those without a name are real-time signals, which nobody sends.
    let signal = Signal::from_named_raw(signal);
    signal.is_some_and(|signal| rustix::process::pidfd_send_signal(pidfd, signal).is_ok())
}

/// Ends this process at once, without running destructors or exit handlers.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit does not return.
    unsafe { libc::_exit(status) }
}

/// Whether process `pid` runs a program that maps no file whose path begins so. Not while it ends:
/// then it maps nothing. `None` where that cannot be seen.
pub(crate) fn maps_nothing_of(pid: i32, path: &str) -> Option<bool> {
    let maps = BufReader::new(File::open(format!("/proc/{pid}/maps")).ok()?);
    let mut any = false;
    for line in maps.split(b'\n') {
        // Paths are of any bytes.
        let line = line.ok()?;
        let mapped = line.iter().position(|byte| *byte == b'/').map(|at| &line[at..]);
        if mapped.is_some_and(|mapped| mapped.starts_with(path.as_bytes())) {
            return Some(false);
        }
        any = true;
    }
    Some(any)
}

/// The name of this machine.
pub fn host_name() -> String {
    let mut buffer = [0u8; 256];
    // SAFETY: writes at most the given length; the last byte stays zero.
    let failed = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) } != 0;
    let len = buffer.iter().position(|byte| *byte == 0).unwrap_or(0);
    if failed || len == 0 {
        return "localhost".to_owned();
    }
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

/// Runs `start` with all signals blocked, so that a thread made there never gets one.
pub fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: all zeroes is a valid set, which sigfillset then fills.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: writes the set that it is given.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both sets live on this stack.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let result = start();
    // SAFETY: restores the mask of this thread.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
