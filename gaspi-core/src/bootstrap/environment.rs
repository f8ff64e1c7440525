//! The environment variables that describe a job, parsed once and strictly.
//!
//! GASPI_RANK, GASPI_NRANKS, GASPI_SOCKET and GASPI_MFILE are what launchers of existing jobs set;
//! gaspi_run adds GASPI_JOB_ID and GASPI_MEETING, and GASPI_HOSTS and GASPI_HOST where there are several
//! machines. Whatever contradicts itself is an error that names
//! the variables and the remedy.

use super::machines::{self, ThisMachine};
use super::{Job, MeetingPlace, Transport, system};
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::socket;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Ranks of the largest job: rank numbers have 16 bits.
pub const RANKS_MAX: u32 = 65535;
/// Bytes of the longest job id.
const ID_MAX: usize = 255;

impl Job {
    /// The job that the environment of this process describes; a job of one rank if it describes
    /// none.
    ///
    /// # Errors
    /// [`Error::Environment`] if the variables are incomplete, no numbers, or contradict each other
    /// or the machine file.
    pub fn from_environment() -> Result<Job> {
        describe(&|name| std::env::var_os(name), &ThisMachine::look_up)
    }
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

fn wrong<T>(reason: String) -> Result<T> {
    Err(Error::Environment { reason })
}

/// The job as the variables that `get` finds describe it.
fn describe(get: Lookup<'_>, machine: &dyn Fn() -> ThisMachine) -> Result<Job> {
    let rank = number(get, "GASPI_RANK")?;
    let size = number(get, "GASPI_NRANKS")?;
    let (rank, size) = match (rank, size) {
        (Some(rank), Some(size)) => (rank, size),
        (Some(_), None) => return incomplete("GASPI_RANK", "GASPI_NRANKS (the number of ranks)"),
        (None, Some(_)) => {
            return incomplete("GASPI_NRANKS", "GASPI_RANK (the number of this rank)");
        }
        (None, None) => {
            for name in ["GASPI_SOCKET", "GASPI_MFILE", "GASPI_MEETING"] {
                if get(name).is_some() {
                    return incomplete(name, "GASPI_RANK and GASPI_NRANKS");
                }
            }
            return Ok(Job::single());
        }
    };
    if size == 0 || size > u64::from(RANKS_MAX) {
        return wrong(format!("GASPI_NRANKS is {size}; a job has 1 to {RANKS_MAX} ranks"));
    }
    if rank >= size {
        return wrong(format!(
            "GASPI_RANK is {rank}, but GASPI_NRANKS is {size}: ranks are 0 to {}",
            size - 1
        ));
    }
    let (rank, size) = (Rank(rank as u16), size as u32);
    let launched = text(get, "GASPI_MEETING")?;
    let file = get("GASPI_MFILE");
    // A launcher has checked it, and it may be gone by now.
    if let (Some(file), None) = (&file, &launched) {
        check_file(Path::new(file), rank, size, machine)?;
    }
    let local_rank = match number(get, "GASPI_SOCKET")? {
        // So far all ranks are on one machine.
        None => rank.0,
        Some(local) => match u16::try_from(local) {
            Ok(local) if u32::from(local) < size => local,
            _ => {
                return wrong(format!(
                    "GASPI_SOCKET (the number of the rank on its machine) is {local}, but the job \
                     has {size} ranks"
                ));
            }
        },
    };
    let id = text(get, "GASPI_JOB_ID")?;
    let (id, place) = match (launched, id) {
        (Some(_), None) => return incomplete("GASPI_MEETING", "GASPI_JOB_ID"),
        (Some(name), Some(id)) => (id, MeetingPlace::Launcher(name)),
        (None, id) => agreed_place(id, file.as_deref().map(Path::new), size)?,
    };
    // A launcher tells what this machine is called and how many there are.
    let own = text(get, "GASPI_HOST")?.unwrap_or_else(system::host_name);
    let hosts = vec![own; size as usize];
    let spans_hosts = number(get, "GASPI_HOSTS")?.is_some_and(|hosts| hosts > 1);
    let transport = transport(get)?;
    Ok(Job { id, rank, size, local_rank, hosts, transport, spans_hosts, node: None, place })
}

fn incomplete<T>(present: &str, absent: &str) -> Result<T> {
    wrong(format!(
        "{present} is set but {absent} is not; set both, or none for a job of one rank, or start \
         the program with gaspi_run"
    ))
}

/// A variable that has to be a decimal number.
fn number(get: Lookup<'_>, name: &str) -> Result<Option<u64>> {
    let Some(value) = get(name) else { return Ok(None) };
    let text = value.to_string_lossy();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(number) if digits => Ok(Some(number)),
        _ => wrong(format!("{name} is {text:?}, which is not a number")),
    }
}

/// GASPI_TRANSPORT.
fn transport(get: Lookup<'_>) -> Result<Transport> {
    match text(get, "GASPI_TRANSPORT")?.as_deref() {
        None | Some("auto") => Ok(Transport::Auto),
        Some("shm") => Ok(Transport::SharedMemory),
        Some("tcp") => Ok(Transport::Tcp),
        Some(other) => wrong(format!("GASPI_TRANSPORT is {other:?}; it can be auto, shm or tcp")),
    }
}

/// A variable that has to be a short text.
fn text(get: Lookup<'_>, name: &str) -> Result<Option<String>> {
    let Some(value) = get(name) else { return Ok(None) };
    match value.to_str() {
        Some(text) if !text.is_empty() && text.len() <= ID_MAX => Ok(Some(text.to_owned())),
        _ => wrong(format!("{name} has to be a text of 1 to {ID_MAX} bytes")),
    }
}

/// Checks that the machine file has enough lines and that all of them are this machine.
fn check_file(path: &Path, rank: Rank, size: u32, machine: &dyn Fn() -> ThisMachine) -> Result<()> {
    let hosts = machines::read(path)?;
    if hosts.len() < size as usize {
        return wrong(format!(
            "machine file {} (GASPI_MFILE) names {} hosts, but GASPI_NRANKS is {size}; line r is \
             the host of rank r",
            path.display(),
            hosts.len()
        ));
    }
    let machine = machine();
    // Each distinct name is resolved once.
    let mut known: Vec<&str> = Vec::new();
    for (line, host) in hosts[..size as usize].iter().enumerate() {
        if known.contains(&host.as_str()) {
            continue;
        }
        if !machine.is(host) {
            let who =
                if line == rank.index() { "this rank".to_owned() } else { format!("rank {line}") };
            return wrong(format!(
                "machine file {} puts {who} on {host:?}, and this machine is {:?}; ranks on \
                 other hosts are not available in this version",
                path.display(),
                machine.name()
            ));
        }
        known.push(host);
    }
    Ok(())
}

/// Where the ranks of a job started by hand meet: a name made from what all of them share.
fn agreed_place(
    id: Option<String>,
    file: Option<&Path>,
    size: u32,
) -> Result<(String, MeetingPlace)> {
    let mut shared = Vec::new();
    if let Some(id) = &id {
        shared.extend_from_slice(b"id ");
        shared.extend_from_slice(id.as_bytes());
    } else if let Some(file) = file {
        let resolved = std::fs::canonicalize(file)
            .and_then(|path| Ok((std::fs::metadata(&path)?.ino(), path)));
        let (inode, path) = match resolved {
            Ok(found) => found,
            Err(error) => return wrong(format!("machine file {}: {error}", file.display())),
        };
        shared.extend_from_slice(format!("file {inode} ").as_bytes());
        shared.extend_from_slice(path.as_os_str().as_bytes());
    } else {
        shared.extend_from_slice(format!("ranks {size}").as_bytes());
    }
    let name = agreed_name(&shared);
    let id = id.unwrap_or_else(|| format!("by-hand-{}", &name[name.len() - 8..]));
    Ok((id, MeetingPlace::Agreed(name)))
}

/// An abstract socket name that everybody of this user derives from the same bytes. It has to stay
/// the same from one version of the library to the next, so the hash is fixed: FNV-1a.
pub(crate) fn agreed_name(shared: &[u8]) -> String {
    let hash = |start: u64| {
        shared
            .iter()
            .fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    let (one, two) = (hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142));
    format!("gaspi-{}-{one:016x}{two:016x}", socket::own_uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn job(variables: &[(&str, &str)]) -> Result<Job> {
        let map: HashMap<&str, OsString> =
            variables.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
        describe(&|name| map.get(name).cloned(), &ThisMachine::look_up)
    }

    fn refusal(variables: &[(&str, &str)]) -> String {
        match job(variables).expect_err("accepted") {
            Error::Environment { reason } => reason,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn nothing_is_a_job_of_one() {
        let job = job(&[]).expect("job");
        assert_eq!((job.rank, job.size, job.place), (Rank(0), 1, MeetingPlace::Nowhere));
    }

    #[test]
    fn contradictions_are_named() {
        type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);
        let cases: &[Case<'_>] = &[
            (&[("GASPI_RANK", "0")], &["GASPI_RANK", "GASPI_NRANKS"]),
            (&[("GASPI_NRANKS", "2")], &["GASPI_NRANKS", "GASPI_RANK"]),
            (&[("GASPI_MFILE", "/x")], &["GASPI_MFILE", "GASPI_RANK"]),
            (&[("GASPI_SOCKET", "0")], &["GASPI_SOCKET"]),
            (&[("GASPI_RANK", "x"), ("GASPI_NRANKS", "2")], &["GASPI_RANK", "\"x\""]),
            (&[("GASPI_RANK", ""), ("GASPI_NRANKS", "2")], &["GASPI_RANK"]),
            (&[("GASPI_RANK", "+1"), ("GASPI_NRANKS", "2")], &["not a number"]),
            (&[("GASPI_RANK", "-1"), ("GASPI_NRANKS", "2")], &["not a number"]),
            (&[("GASPI_RANK", "2"), ("GASPI_NRANKS", "2")], &["ranks are 0 to 1"]),
            (&[("GASPI_RANK", "0"), ("GASPI_NRANKS", "0")], &["1 to 65535"]),
            (&[("GASPI_RANK", "0"), ("GASPI_NRANKS", "65536")], &["1 to 65535"]),
            (&[("GASPI_RANK", "0"), ("GASPI_NRANKS", "99999999999999999999")], &["not a number"]),
            (
                &[("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), ("GASPI_SOCKET", "one")],
                &["GASPI_SOCKET"],
            ),
            (
                &[("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), ("GASPI_SOCKET", "2")],
                &["GASPI_SOCKET"],
            ),
            (
                &[("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), ("GASPI_MEETING", "m")],
                &["GASPI_JOB_ID"],
            ),
            (
                &[("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), ("GASPI_MFILE", "/nonexistent")],
                &["/nonexistent"],
            ),
        ];
        for (variables, words) in cases {
            let text = refusal(variables);
            assert!(words.iter().all(|word| text.contains(word)), "{variables:?}: {text}");
        }
    }

    #[test]
    fn the_machine_file_is_checked() {
        let path = std::env::temp_dir().join(format!("gaspi-mfile-{}", std::process::id()));
        let name = path.to_string_lossy().into_owned();
        let by_hand = [("GASPI_RANK", "1"), ("GASPI_NRANKS", "2"), ("GASPI_MFILE", &*name)];
        std::fs::write(&path, "localhost\n").expect("file");
        assert!(refusal(&by_hand).contains("names 1 hosts"));
        std::fs::write(&path, "localhost\r\n192.0.2.77").expect("file");
        let text = refusal(&by_hand);
        assert!(text.contains("puts this rank on \"192.0.2.77\""), "{text}");
        std::fs::write(&path, "LOCALHOST\r\n\r\n127.0.0.1").expect("file");
        let found = job(&by_hand).expect("job");
        assert_eq!((found.rank, found.size, found.local_rank), (Rank(1), 2, 1));
        let other = [("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), ("GASPI_MFILE", &*name)];
        assert_eq!(job(&other).expect("job").place, found.place);
        std::fs::remove_file(&path).expect("remove");
    }

    #[test]
    fn jobs_by_hand_meet_by_id_file_or_size() {
        let by = |size: &str, id: Option<&str>| {
            let mut variables = vec![("GASPI_RANK", "0"), ("GASPI_NRANKS", size)];
            variables.extend(id.map(|id| ("GASPI_JOB_ID", id)));
            job(&variables).expect("job").place
        };
        assert_eq!(by("2", None), by("2", None));
        assert_ne!(by("2", None), by("3", None));
        assert_ne!(by("2", Some("a")), by("2", Some("b")));
        assert_eq!(by("2", Some("a")), by("3", Some("a")));
    }
}
