//! The processes of a job: found by a mark in their environment, shown with all their stacks,
//! signalled through pidfds so that a reused number is never hit.

use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

/// A process number.
pub type Pid = i32;

/// Name of the variable that carries the mark of a job.
pub(crate) const MARK: &str = "GASPI_TEST_MARK";

/// A handle on one process that stays with it even if its number is used again.
#[derive(Debug)]
pub struct Process {
    /// The number.
    pub pid: Pid,
    pub(crate) handle: OwnedFd,
}

impl Process {
    /// Opens the process.
    ///
    /// # Errors
    /// When it is gone.
    pub fn open(pid: Pid) -> io::Result<Process> {
        // SAFETY: no memory is passed.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made this descriptor and nobody else has it.
        let handle = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
        Ok(Process { pid, handle })
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let (handle, nothing) = (self.handle.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
        // SAFETY: a null siginfo is allowed and means that of kill().
        let result =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, handle, signal, nothing, 0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Whether all its threads are stopped.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn is_stopped(&self) -> io::Result<bool> {
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let state = std::fs::read_to_string(thread?.path().join("stat"))?;
            // Behind the name, which may contain anything.
            let behind = state.rsplit_once(") ").map(|(_, behind)| behind);
            match behind.and_then(|behind| behind.chars().next()) {
                Some('T') => {}
                Some('Z' | 'X') => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// Microseconds of CLOCK_MONOTONIC, which all processes of a machine share.
pub fn monotonic_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// All living processes whose environment contains `entry`, lowest number first. Zombies have no
/// environment and are not found.
pub(crate) fn with_environment(entries: &[String]) -> Vec<Pid> {
    let mut found = all();
    found.retain(|pid| {
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else {
            return false;
        };
        let variables: Vec<&[u8]> = environment.split(|byte| *byte == 0).collect();
        entries.iter().all(|entry| variables.contains(&entry.as_bytes()))
    });
    found
}

/// All processes that the caller sees, lowest number first.
pub(crate) fn all() -> Vec<Pid> {
    let Ok(proc) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found: Vec<Pid> =
        proc.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    found.sort_unstable();
    found
}

/// What a process was started with, for people.
pub(crate) fn command_line(pid: Pid) -> String {
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("process {pid}: {}", command.replace('\0', " "))
}

/// Processes whose stacks are shown: gdb takes a second for each.
const SHOWN: usize = 32;

/// What each of the processes is doing, by gdb where there is one, else what the kernel tells; of
/// many processes some, from the first to the last.
pub(crate) fn stacks(pids: &[Pid]) -> String {
    let mut text = String::new();
    let every = pids.len().div_ceil(SHOWN).max(1);
    if every > 1 {
        let _ = writeln!(text, "--- one of each {every} of {} processes", pids.len());
    }
    for pid in pids.iter().step_by(every) {
        let _ = writeln!(text, "--- {}", command_line(*pid));
        let gdb = Command::new("timeout")
            .args(["-k", "2", "20", "gdb", "-nx", "-batch", "-p", &pid.to_string()])
            .args(["-ex", "set pagination off", "-ex", "thread apply all bt 24"])
            .stdin(Stdio::null())
            .output();
        match gdb {
            Ok(output) if output.status.success() && !output.stdout.is_empty() => {
                text.push_str(&String::from_utf8_lossy(&output.stdout));
            }
            _ => text.push_str(&kernel_states(*pid)),
        }
    }
    text
}

fn kernel_states(pid: Pid) -> String {
    let mut text = String::new();
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return "it has ended\n".into();
    };
    for thread in threads.flatten() {
        let read = |name: &str| std::fs::read_to_string(thread.path().join(name));
        let _ = writeln!(
            text,
            "thread {} {:?} wchan {:?} syscall {:?}\n{}",
            thread.file_name().to_string_lossy(),
            read("comm").unwrap_or_default().trim(),
            read("wchan").unwrap_or_default(),
            read("syscall").unwrap_or_default().trim(),
            read("stack").unwrap_or_default(),
        );
    }
    text
}

/// Kills all processes that carry the mark, again and again until none is left: one that is being
/// killed may just have started another.
pub(crate) fn kill_marked(mark: &str) {
    let entry = [format!("{MARK}={mark}")];
    loop {
        let pids = with_environment(&entry);
        if pids.is_empty() {
            return;
        }
        for process in pids.iter().filter_map(|pid| Process::open(*pid).ok()) {
            // One that ended meanwhile is what we want.
            let _ = process.signal(libc::SIGKILL);
        }
        std::thread::yield_now();
    }
}
