//! A job whose processes were started by hand, on one machine or on several: GASPI_RANK and
//! GASPI_NRANKS, the host file of GASPI_MFILE, and GASPI_MEETING=tcp:HOST:PORT for the hub.

use super::{Launcher, Task, gaspi_run, own_host_only, rank_and_size};
use crate::bootstrap::addresses::Audience;
use crate::bootstrap::host_file;
use crate::bootstrap::job::{HubLocation, Job, ServerLocation, derived_name, hosts_by_rank};
use crate::bootstrap::this_machine::{self, ThisMachine};
use crate::bootstrap::variables::{Variables, wrong};
use crate::error::Result;
use crate::ids::Rank;
use crate::timeout::Deadline;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(super) struct ByHand;

impl Launcher for ByHand {
    fn name(&self) -> &'static str {
        gaspi_run::NAME
    }

    fn variables(&self) -> &'static [&'static str] {
        &[
            "GASPI_RANK",
            "GASPI_NRANKS",
            "GASPI_SOCKET",
            "GASPI_MFILE",
            "GASPI_MEETING",
            "GASPI_JOB_ID",
        ]
    }

    fn task(&self, variables: &Variables<'_>) -> Result<Option<Task>> {
        rank_and_size(variables)
    }

    fn job(&self, variables: &Variables<'_>, task: Task, _: Deadline) -> Result<Job> {
        let job = task.job();
        let (rank, size) = (job.rank, job.size);
        let hub = variables.text("GASPI_MEETING")?;
        let named = hub.as_deref().and_then(|place| place.strip_prefix("tcp:"));
        let file = variables.raw("GASPI_MFILE").map(PathBuf::from);
        let file = file.as_deref();
        let id = variables.text("GASPI_JOB_ID")?;
        let layout = match file {
            Some(file) => Some(layout(file, rank, size, &variables.machine())?),
            None => None,
        };
        let (host, port) = match (named, &layout) {
            (Some(named), _) => host_and_port(named).map(|(host, port)| (host, Some(port)))?,
            (None, Some(layout)) if layout.spans => (layout.hosts[0].clone(), None),
            // All on this machine.
            _ => {
                let (id, server) = common_server(id, file, size)?;
                return Ok(Job { id, server, ..job });
            }
        };
        let (hosts, local_rank) = match layout {
            Some(layout) => (hosts_by_rank(layout.hosts), layout.local_rank),
            // Only the machine of this rank is known.
            None => (own_host_only(rank, size), rank.0),
        };
        let mut known = id.clone().unwrap_or_default();
        if id.is_none() {
            known = format!("{}:{}", host, port.unwrap_or(0));
            hosts.iter().filter(|_| file.is_some()).for_each(|host| known += &format!(" {host}"));
        }
        let name = derived_name(format!("hosts {size} {}", known.to_lowercase()).as_bytes());
        let id = id.unwrap_or_else(|| by_hand_id(&name));
        let (here, audience) = (variables.machine().is(&host), Audience::OtherHosts);
        let hub = HubLocation {
            host,
            port,
            here,
            audience,
            key: None,
            munge: false,
            addresses: Vec::new(),
        };
        let server = ServerLocation::OverHosts { name, hub };
        Ok(Job { id, server, hosts, local_rank, spans_hosts: true, ..job })
    }
}

/// HOST:PORT of GASPI_MEETING=tcp:HOST:PORT.
pub(super) fn host_and_port(named: &str) -> Result<(String, u16)> {
    let parts = named.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
    match parts {
        Some((host, Ok(port))) if !host.is_empty() && port > 0 => Ok((host.to_owned(), port)),
        _ => wrong(format!(
            "GASPI_MEETING is \"tcp:{named}\"; write tcp:HOST:PORT, the machine of one of the \
             ranks and a free port there"
        )),
    }
}

/// That the name of gaspi_run's socket, without "tcp:" in front, is not HOST:PORT.
///
/// # Errors
/// [`Error::Environment`].
pub(super) fn check_is_no_address(name: &str) -> Result<()> {
    match name.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => wrong(format!(
            "GASPI_MEETING is \"{name}\"; in a job that is started by hand write tcp:{name}, \
             since without tcp: in front it names a socket of gaspi_run"
        )),
        _ => Ok(()),
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

/// Reads the host file. It has to have enough lines, and this rank has to be on this machine.
fn layout(path: &Path, rank: Rank, size: u32, machine: &ThisMachine) -> Result<Layout> {
    let mut hosts = host_file::read(path)?;
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
    if let Some(host) = hosts.iter().find(|host| spans && this_machine::is_loopback(host)) {
        return wrong(format!(
            "machine file {} names {host:?} beside other machines, and each machine takes that for \
             itself; write the machine's name or an address of one of its interfaces",
            path.display()
        ));
    }
    let local_rank = local[..rank.index()].iter().filter(|here| **here).count() as u16;
    Ok(Layout { spans, local_rank, hosts })
}

/// The id of a job on one machine, and its exchange server: a name made from what all ranks share.
fn common_server(
    id: Option<String>,
    file: Option<&Path>,
    size: u32,
) -> Result<(String, ServerLocation)> {
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
    let name = derived_name(&shared);
    let id = id.unwrap_or_else(|| by_hand_id(&name));
    Ok((id, ServerLocation::FirstRank(name)))
}

/// The id of a job that has none.
pub(super) fn by_hand_id(name: &str) -> String {
    format!("by-hand-{}", &name[name.len() - 8..])
}
