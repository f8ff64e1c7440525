//! The environment variables that describe a job, parsed once and strictly.
//!
//! GASPI_RANK, GASPI_NRANKS, GASPI_SOCKET and GASPI_MFILE are what launchers of existing jobs set;
//! gaspi_run adds GASPI_JOB_ID and GASPI_MEETING, and GASPI_HOSTS and GASPI_HOST where there are
//! several machines. In a job by hand the machine file tells which ranks are where, and
//! GASPI_MEETING can name the place where machines meet. Whatever contradicts itself is an error
//! that names the variables and the remedy.

use super::addresses::Audience;
use super::machines::{self, ThisMachine};
use super::{HubPlace, Job, MeetingPlace, Transport, system};
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::socket;
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Ranks of the largest job: rank numbers have 16 bits.
pub const RANKS_MAX: u32 = 65535;
/// Bytes of the longest job id.
const ID_MAX: usize = 255;
/// What makes a process a rank of a job; a program that has none of them is a job of one rank.
const OF_A_JOB: [&str; 9] = [
    "GASPI_RANK",
    "GASPI_NRANKS",
    "GASPI_SOCKET",
    "GASPI_MFILE",
    "GASPI_MEETING",
    "GASPI_JOB_ID",
    "GASPI_HOSTS",
    "GASPI_HOST",
    "GASPI_BIND",
];

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
        (Some(_), None) => {
            return incomplete(get, &["GASPI_RANK"], &["GASPI_NRANKS (the number of ranks)"]);
        }
        (None, Some(_)) => {
            return incomplete(get, &["GASPI_NRANKS"], &["GASPI_RANK (the number of this rank)"]);
        }
        (None, None) => {
            let present = set(get, &["GASPI_SOCKET", "GASPI_MFILE", "GASPI_MEETING"]);
            if !present.is_empty() {
                return incomplete(get, &present, &["GASPI_RANK", "GASPI_NRANKS"]);
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
    let meeting = text(get, "GASPI_MEETING")?;
    let file = get("GASPI_MFILE").map(PathBuf::from);
    let named = meeting.as_deref().and_then(|place| place.strip_prefix("tcp:"));
    let mut job = match (&meeting, named) {
        (Some(name), None) => launched(get, name, rank, size)?,
        _ => by_hand(get, named, file.as_deref(), (rank, size), machine)?,
    };
    if let Some(local) = number(get, "GASPI_SOCKET")? {
        job.local_rank = match u16::try_from(local) {
            Ok(local) if u32::from(local) < size => local,
            _ => {
                return wrong(format!(
                    "GASPI_SOCKET (the number of the rank on its machine) is {local}, but the job \
                     has {size} ranks"
                ));
            }
        };
    }
    job.transport = transport(get)?;
    Ok(job)
}

/// A rank that gaspi_run, or its agent, has started on this machine.
fn launched(get: Lookup<'_>, name: &str, rank: Rank, size: u32) -> Result<Job> {
    let Some(id) = text(get, "GASPI_JOB_ID")? else {
        return incomplete(get, &["GASPI_MEETING"], &["GASPI_JOB_ID"]);
    };
    // The launcher has checked the machine file, and it may be gone by now.
    let own = text(get, "GASPI_HOST")?.unwrap_or_else(system::host_name);
    let hosts = vec![own; size as usize];
    let spans_hosts = number(get, "GASPI_HOSTS")?.is_some_and(|hosts| hosts > 1);
    let place = MeetingPlace::Launcher(name.to_owned());
    Ok(Job { id, place, hosts, spans_hosts, ..Job::of(rank, size) })
}

/// A rank that was started by hand, in a job of one machine or of several.
fn by_hand(
    get: Lookup<'_>,
    named: Option<&str>,
    file: Option<&Path>,
    (rank, size): (Rank, u32),
    machine: &dyn Fn() -> ThisMachine,
) -> Result<Job> {
    let id = text(get, "GASPI_JOB_ID")?;
    let layout = match file {
        Some(file) => Some(layout(file, rank, size, &machine())?),
        None => None,
    };
    let (host, port) = match (named, &layout) {
        (Some(named), _) => hub(named).map(|(host, port)| (host, Some(port)))?,
        (None, Some(layout)) if layout.spans => (layout.hosts[0].clone(), None),
        // All on this machine.
        _ => {
            let (id, place) = agreed_place(id, file, size)?;
            return Ok(Job { id, place, ..Job::of(rank, size) });
        }
    };
    let (hosts, local_rank) = match layout {
        Some(layout) => (layout.hosts, layout.local_rank),
        // Only the machine of this rank is known.
        None => {
            let mut hosts = vec![String::new(); size as usize];
            hosts[rank.index()] = system::host_name();
            (hosts, rank.0)
        }
    };
    let mut shared = id.clone().unwrap_or_default();
    if id.is_none() {
        shared = format!("{}:{}", host, port.unwrap_or(0));
        hosts.iter().filter(|_| file.is_some()).for_each(|host| shared += &format!(" {host}"));
    }
    let name = agreed_name(format!("hosts {size} {}", shared.to_lowercase()).as_bytes());
    let id = id.unwrap_or_else(|| by_hand_id(&name));
    let (here, audience) = (machine().is(&host), Audience::OtherHosts);
    let hub = HubPlace { host, port, here, audience, key: None };
    let place = MeetingPlace::Hosts { name, hub };
    Ok(Job { id, place, hosts, local_rank, spans_hosts: true, ..Job::of(rank, size) })
}

/// HOST:PORT of GASPI_MEETING=tcp:HOST:PORT.
fn hub(named: &str) -> Result<(String, u16)> {
    let parts = named.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
    match parts {
        Some((host, Ok(port))) if !host.is_empty() && port > 0 => Ok((host.to_owned(), port)),
        _ => wrong(format!(
            "GASPI_MEETING is \"tcp:{named}\"; write tcp:HOST:PORT, the machine of one of the ranks \
             and a free port there"
        )),
    }
}

/// Those of `names` that are set, empty ones too.
fn set<'a>(get: Lookup<'_>, names: &[&'a str]) -> Vec<&'a str> {
    names.iter().copied().filter(|name| get(name).is_some()).collect()
}

/// Says what is missing, and how a program that a rank has started becomes a job of its own.
fn incomplete<T>(get: Lookup<'_>, present: &[&str], absent: &[&str]) -> Result<T> {
    let list = |names: &[&str]| match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    };
    let is = |names: &[&str]| if names.len() == 1 { "is" } else { "are" };
    let unset: String = set(get, &OF_A_JOB).iter().map(|name| format!("-u {name} ")).collect();
    wrong(format!(
        "{} {} set but {} {} not; set all of them, or start the program with gaspi_run, or make \
         it a job of one rank: env {unset}PROGRAM",
        list(present),
        is(present),
        list(absent),
        is(absent)
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

/// Where the ranks of a job by hand are.
struct Layout {
    /// By rank.
    hosts: Vec<String>,
    /// Whether there are other machines than this one.
    spans: bool,
    /// The number of this rank on this machine.
    local_rank: u16,
}

/// Reads the machine file. It has to have enough lines, and this rank has to be on this machine.
fn layout(path: &Path, rank: Rank, size: u32, machine: &ThisMachine) -> Result<Layout> {
    let mut hosts = machines::read(path)?;
    if hosts.len() < size as usize {
        return wrong(format!(
            "machine file {} (GASPI_MFILE) names {} hosts, but GASPI_NRANKS is {size}; line r is \
             the host of rank r",
            path.display(),
            hosts.len()
        ));
    }
    hosts.truncate(size as usize);
    let own = &hosts[rank.index()];
    if !machine.is(own) {
        return wrong(format!(
            "machine file {} puts this rank on {own:?}, and this machine is {:?}; start {rank} \
             there, or give the machine's name or an address of one of its interfaces",
            path.display(),
            machine.name()
        ));
    }
    // The resolver may take its time: it is asked until one other machine is known.
    let mut spans = false;
    let mut here: HashMap<String, bool> = HashMap::from([(own.to_lowercase(), true)]);
    let mut local = Vec::with_capacity(hosts.len());
    for host in &hosts {
        let is_here = *here.entry(host.to_lowercase()).or_insert_with(|| {
            let plainly = machine.is_plainly(host);
            plainly.unwrap_or_else(|| !spans && machine.is(host))
        });
        spans |= !is_here;
        local.push(is_here);
    }
    if let Some(host) = hosts.iter().find(|host| spans && machines::is_loopback(host)) {
        return wrong(format!(
            "machine file {} names {host:?} beside other machines, and each machine takes that for \
             itself; write the machine's name or an address of one of its interfaces",
            path.display()
        ));
    }
    let local_rank = local[..rank.index()].iter().filter(|here| **here).count() as u16;
    Ok(Layout { spans, local_rank, hosts })
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
    let id = id.unwrap_or_else(|| by_hand_id(&name));
    Ok((id, MeetingPlace::Agreed(name)))
}

/// The id of a job that has none.
fn by_hand_id(name: &str) -> String {
    format!("by-hand-{}", &name[name.len() - 8..])
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

    fn job_of(variables: &[(&str, &str)]) -> Result<Job> {
        let map: HashMap<&str, OsString> =
            variables.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
        describe(&|name| map.get(name).cloned(), &ThisMachine::look_up)
    }

    fn refusal(variables: &[(&str, &str)]) -> String {
        match job_of(variables).expect_err("accepted") {
            Error::Environment { reason } => reason,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn nothing_is_a_job_of_one() {
        let job = job_of(&[]).expect("job");
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
    fn what_is_missing_is_told_with_the_command_that_helps() {
        let left = [("GASPI_MEETING", "m"), ("GASPI_JOB_ID", "x"), ("GASPI_BIND", "none")];
        assert_eq!(
            refusal(&left),
            "GASPI_MEETING is set but GASPI_RANK and GASPI_NRANKS are not; set all of them, or \
             start the program with gaspi_run, or make it a job of one rank: env -u GASPI_MEETING \
             -u GASPI_JOB_ID -u GASPI_BIND PROGRAM"
        );
        let text = refusal(&[("GASPI_SOCKET", "0"), ("GASPI_MFILE", "f"), ("GASPI_MEETING", "")]);
        let begin = "GASPI_SOCKET, GASPI_MFILE and GASPI_MEETING are set but GASPI_RANK and";
        assert!(text.starts_with(begin), "{text}");
        let text = refusal(&[("GASPI_RANK", "0"), ("GASPI_MEETING", "m")]);
        assert!(text.starts_with("GASPI_RANK is set but GASPI_NRANKS (the number"), "{text}");
        assert!(text.contains(") is not; "), "{text}");
        assert!(text.ends_with(": env -u GASPI_RANK -u GASPI_MEETING PROGRAM"), "{text}");
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
        let found = job_of(&by_hand).expect("job");
        assert_eq!((found.rank, found.size, found.local_rank), (Rank(1), 2, 1));
        assert!(!found.spans_hosts);
        let other = [("GASPI_RANK", "0"), ("GASPI_NRANKS", "2"), ("GASPI_MFILE", &*name)];
        assert_eq!(job_of(&other).expect("job").place, found.place);
        std::fs::remove_file(&path).expect("remove");
    }

    #[test]
    fn jobs_by_hand_meet_by_id_file_or_size() {
        let by = |size: &str, id: Option<&str>| {
            let mut variables = vec![("GASPI_RANK", "0"), ("GASPI_NRANKS", size)];
            variables.extend(id.map(|id| ("GASPI_JOB_ID", id)));
            job_of(&variables).expect("job").place
        };
        assert_eq!(by("2", None), by("2", None));
        assert_ne!(by("2", None), by("3", None));
        assert_ne!(by("2", Some("a")), by("2", Some("b")));
        assert_eq!(by("2", Some("a")), by("3", Some("a")));
    }

    /// The job of `rank` among those on `hosts`, on the machine that `own` means.
    fn over_hosts(hosts: &[&str], own: &str, rank: &str, more: &[(&str, &str)]) -> Result<Job> {
        let path = std::env::temp_dir().join(format!(
            "gaspi-hosts-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::write(&path, hosts.join("\n")).expect("file");
        let (name, size) = (path.to_string_lossy().into_owned(), hosts.len().to_string());
        let mut variables =
            vec![("GASPI_RANK", rank), ("GASPI_NRANKS", &size), ("GASPI_MFILE", &name)];
        variables.extend(more);
        let map: HashMap<&str, OsString> =
            variables.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
        let machine = || ThisMachine::called("node", &[own.parse().expect("address")]);
        let found = describe(&|name| map.get(name).cloned(), &machine);
        std::fs::remove_file(&path).expect("remove");
        found
    }

    #[test]
    fn machines_of_a_job_by_hand_agree_where_they_meet() {
        let hosts = ["192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.2"];
        let found: Vec<Job> = hosts
            .iter()
            .zip(["0", "1", "2", "3"])
            .map(|(own, rank)| over_hosts(&hosts, own, rank, &[]).expect("job"))
            .collect();
        let place = |job: &Job| match &job.place {
            MeetingPlace::Hosts { name, hub } => (name.clone(), hub.clone()),
            other => panic!("{other:?}"),
        };
        for (job, local) in found.iter().zip([0, 0, 1, 1]) {
            assert!(job.spans_hosts && job.hosts == hosts);
            assert_eq!((job.local_rank, &job.id), (local, &found[0].id));
            assert_eq!(place(job).0, place(&found[0]).0);
            assert_eq!((place(job).1.host.as_str(), place(job).1.port), ("192.0.2.1", None));
        }
        assert!(place(&found[2]).1.here && !place(&found[3]).1.here);
        // Another job on the same machines.
        let other = over_hosts(&hosts, hosts[0], "0", &[("GASPI_JOB_ID", "x")]).expect("job");
        assert_ne!(place(&other).0, place(&found[0]).0);
        assert_eq!(other.id, "x");
        let socket = [("GASPI_SOCKET", "3")];
        assert_eq!(over_hosts(&hosts, hosts[1], "3", &socket).expect("job").local_rank, 3);
        let error = over_hosts(&["localhost", "192.0.2.2", "192.0.2.3"], "192.0.2.2", "1", &[]);
        let text = error.expect_err("two machines take it for themselves").to_string();
        assert!(text.contains("\"localhost\" beside other machines"), "{text}");
    }

    #[test]
    fn the_place_of_the_meeting_can_be_named() {
        let named = [("GASPI_MEETING", "tcp:[2001:db8::2]:4711")];
        let job = over_hosts(&["192.0.2.1", "192.0.2.2"], "192.0.2.2", "1", &named).expect("job");
        let MeetingPlace::Hosts { hub, .. } = &job.place else { panic!("{job:?}") };
        assert_eq!((hub.host.as_str(), hub.port, hub.here), ("[2001:db8::2]", Some(4711), false));
        // Without a machine file, and here.
        let alone = |meeting| {
            job_of(&[("GASPI_RANK", "1"), ("GASPI_NRANKS", "2"), ("GASPI_MEETING", meeting)])
        };
        let found = alone("tcp:localhost:4711").expect("job");
        let MeetingPlace::Hosts { hub, .. } = &found.place else { panic!("{found:?}") };
        assert!(hub.here && found.spans_hosts);
        for wrong in ["tcp:", "tcp:host", "tcp:host:", "tcp::7", "tcp:host:0", "tcp:host:65536"] {
            let text = alone(wrong).expect_err(wrong).to_string();
            assert!(text.contains("write tcp:HOST:PORT"), "{text}");
        }
    }

    #[test]
    fn a_launcher_says_how_many_machines_there_are() {
        let launched = |hosts: &str| {
            job_of(&[
                ("GASPI_RANK", "1"),
                ("GASPI_NRANKS", "2"),
                ("GASPI_MEETING", "gaspi-x"),
                ("GASPI_JOB_ID", "x"),
                ("GASPI_HOSTS", hosts),
                ("GASPI_HOST", "nodeb"),
            ])
            .expect("job")
        };
        assert!(launched("2").spans_hosts && !launched("1").spans_hosts);
        assert_eq!(launched("2").hosts[1], "nodeb");
    }
}
