//! The processes of this user's jobs: found by their environment, or by what a rank shows of its
//! job in its mappings, whatever has started it; ended through pidfds.
//!
//! Invariant: a process is signalled only through a pidfd that was opened before it was looked at
//! for the last time, so a number that was given to another process is never hit.

use gaspi_core::os::process;
use gaspi_tools::system::{self, Watch};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Characters of a command that are shown.
const COMMAND_MAX: usize = 80;

/// The process that looks after a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keeper {
    /// Its gaspi_run, which runs.
    Launcher,
    /// A gaspi_run that has gone.
    Nobody,
    /// It was started without gaspi_run, by hand or by another launcher: this cannot be known.
    Unknown,
}

/// What a process shows of its job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) job: String,
    pub(crate) rank: u32,
    /// The name of the socket at which its gaspi_run listens, if that has started it.
    meeting: Option<String>,
}

/// A process of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub(crate) place: Place,
    pub(crate) pid: i32,
    pub(crate) keeper: Keeper,
    pub(crate) command: String,
}

/// The processes of this user's jobs on this machine, by job and rank, which were started with all
/// of these `variables`; this process and those that it was started by are not among them.
pub(crate) fn find(variables: &[OsString]) -> Vec<Member> {
    let (own, user) = (ancestors(), effective_user());
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        (entry.metadata().ok()?.uid() == user && !own.contains(&pid)).then_some(pid)
    });
    let mut members: Vec<Member> = pids
        .filter_map(|pid| {
            let environment = environment(pid)?;
            let place = place_of(pid)?;
            if !variables.iter().all(|variable| has(&environment, variable.as_bytes())) {
                return None;
            }
            let keeper = keeper(pid, place.meeting.as_deref());
            Some(Member { pid, keeper, command: command(pid), place })
        })
        .collect();
    members.sort_unstable();
    members
}

/// This process and those that it was started by.
fn ancestors() -> HashSet<i32> {
    process::ancestors().chain([std::process::id() as i32]).collect()
}

fn effective_user() -> u32 {
    // SAFETY: no arguments, no failure.
    unsafe { libc::geteuid() }
}

/// What the process shows; `None` if it is not part of a job. By its environment first, which
/// children of ranks have too.
fn place_of(pid: i32) -> Option<Place> {
    place(&environment(pid)?).or_else(|| {
        let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
        let (job, rank) = gaspi_core::labelled_job(&String::from_utf8_lossy(&maps))?;
        Some(Place { job, rank, meeting: None })
    })
}

/// The environment that the process was started with.
fn environment(pid: i32) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/environ")).ok()
}

/// Whether an environment has this variable: NAME with any value, or NAME=VALUE.
fn has(environment: &[u8], variable: &[u8]) -> bool {
    let any_value = !variable.contains(&b'=');
    environment.split(|byte| *byte == 0).any(|entry| {
        entry.strip_prefix(variable).is_some_and(|rest| {
            if any_value { rest.first() == Some(&b'=') } else { rest.is_empty() }
        })
    })
}

/// What an environment says. The job's id alone, which somebody may have set in a shell, does not
/// make a process part of it.
fn place(environment: &[u8]) -> Option<Place> {
    let value = |name: &str| {
        let find = |entry: &[u8]| {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        environment.split(|byte| *byte == 0).find_map(find)
    };
    let rank = value("GASPI_RANK")?.parse().ok()?;
    value("GASPI_NRANKS")?;
    let job = value("GASPI_JOB_ID").filter(|job| !job.is_empty())?;
    // Where the hosts of a job by hand meet is no name of a socket.
    let meeting = value("GASPI_MEETING").filter(|meeting| !meeting.starts_with("tcp:"));
    Some(Place { job, rank, meeting })
}

/// Finds what looks after the job of a process. Its gaspi_run listens for as long as it runs, in
/// the network namespace of the process.
fn keeper(pid: i32, meeting: Option<&str>) -> Keeper {
    let Some(meeting) = meeting else { return Keeper::Unknown };
    let name = format!("@{meeting}");
    let sockets = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    let listens = sockets.lines().any(|line| line.split_whitespace().last() == Some(&name));
    if listens { Keeper::Launcher } else { Keeper::Nobody }
}

/// What the process runs, fit for one line.
fn command(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let text = words.collect::<Vec<_>>().join(" ");
    let shown = text.trim_end().chars().map(|c| if c.is_control() { '?' } else { c });
    let shown: String = shown.take(COMMAND_MAX).collect();
    if shown.is_empty() {
        let name = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm"));
        return format!("[{}]", name.unwrap_or_default().trim());
    }
    shown
}

/// What became of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// SIGTERM sufficed.
    Ended,
    /// It took SIGKILL.
    Killed,
    /// It had ended before it was signalled.
    Gone,
    /// SIGKILL did not end it in time: it hangs in the kernel.
    Stays,
    /// It could not be signalled.
    Refused,
}

/// Ends all of them: SIGTERM, and SIGKILL after `grace`, which may take as long again; SIGKILL at
/// once if `kill`. In the order of `members`.
pub(crate) fn end(members: &[Member], grace: Duration, kill: bool) -> Vec<Outcome> {
    let first = if kill { libc::SIGKILL } else { libc::SIGTERM };
    let mut outcomes = vec![Outcome::Gone; members.len()];
    let mut left: Vec<(usize, OwnedFd)> = Vec::new();
    for (index, member) in members.iter().enumerate() {
        match process::open(member.pid, 0) {
            Ok(Some(pidfd)) if place_of(member.pid).as_ref() == Some(&member.place) => {
                if process::signal(&pidfd, first) {
                    // A stopped process would not see it.
                    process::signal(&pidfd, libc::SIGCONT);
                    left.push((index, pidfd));
                } else if !process::has_ended(&pidfd) {
                    outcomes[index] = Outcome::Refused;
                }
            }
            Ok(_) => {}
            Err(_) => outcomes[index] = Outcome::Refused,
        }
    }
    let steps = [(Outcome::Ended, libc::SIGKILL), (Outcome::Killed, 0)];
    for (outcome, signal) in steps.into_iter().skip(usize::from(kill)) {
        let deadline = Instant::now() + grace;
        loop {
            left.retain(|(index, pidfd)| {
                let ended = process::has_ended(pidfd);
                if ended {
                    outcomes[*index] = outcome;
                }
                !ended
            });
            let time = deadline.saturating_duration_since(Instant::now());
            if left.is_empty() || time.is_zero() {
                break;
            }
            let watches = left.iter().map(|(_, pidfd)| Watch::input(pidfd.as_fd()));
            system::wait(&watches.collect::<Vec<_>>(), Some(time));
        }
        if signal != 0 {
            left.iter().for_each(|(_, pidfd)| {
                process::signal(pidfd, signal);
            });
        }
    }
    for (index, _) in left {
        outcomes[index] = Outcome::Stays;
    }
    outcomes
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// This process as a rank of a job.
    pub(crate) fn member(job: &str, keeper: Keeper) -> Member {
        let place = Place { job: job.to_owned(), rank: 0, meeting: None };
        Member { place, pid: std::process::id() as i32, keeper, command: String::new() }
    }

    #[test]
    fn environments() {
        let found =
            place(b"A=1\0GASPI_RANK=3\0GASPI_NRANKS=4\0GASPI_JOB_ID=x y\0GASPI_MEETING=m\0");
        let expected = Place { job: "x y".into(), rank: 3, meeting: Some("m".into()) };
        assert_eq!(found, Some(expected));
        for meeting in ["", "\0GASPI_MEETING=tcp:ant:4711", "\0GASPI_MEETING=tcp:[::1]:4711\0"] {
            let text = format!("GASPI_JOB_ID=x\0GASPI_RANK=0\0GASPI_NRANKS=1{meeting}");
            let by_hand = place(text.as_bytes());
            assert_eq!(by_hand.map(|place| place.meeting), Some(None), "{meeting}");
        }
        for text in [
            &b""[..],
            b"GASPI_JOB_ID=x\0",
            b"GASPI_RANK=0\0GASPI_NRANKS=1\0",
            b"GASPI_JOB_ID=\0GASPI_RANK=0\0GASPI_NRANKS=1\0",
            b"MY_GASPI_JOB_ID=x\0GASPI_RANK=0\0GASPI_NRANKS=1\0",
            b"GASPI_JOB_ID=x\0GASPI_RANK=one\0GASPI_NRANKS=1\0",
        ] {
            assert_eq!(place(text), None, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn variables_are_matched_whole() {
        let environment = b"A=1\0AB=2\0C=\0";
        for (variable, expected) in
            [("A", true), ("A=1", true), ("A=", false), ("A=12", false), ("B", false), ("C=", true)]
        {
            assert_eq!(has(environment, variable.as_bytes()), expected, "{variable}");
        }
    }

    #[test]
    fn own_ancestors() {
        let own = ancestors();
        let parent = std::os::unix::process::parent_id() as i32;
        assert!(own.contains(&(std::process::id() as i32)) && own.contains(&parent), "{own:?}");
    }

    #[test]
    fn a_number_that_another_process_has_now_is_not_signalled() {
        // As if this process had got the number of a rank that has ended meanwhile.
        let stale = member("gone", Keeper::Nobody);
        assert_eq!(end(&[stale], Duration::from_secs(3), false), [Outcome::Gone]);
    }
}
