//! PMIx: mpirun and prterun of Open MPI, `srun --mpi=pmix`. Its library, libpmix.so.2, is loaded at
//! run time.

use super::session::{self, Identity, ProcessManager};
use super::{Launcher, SINGLE, Task, slurm};
use crate::bootstrap::job::{Job, RANKS_MAX};
use crate::bootstrap::variables::{Variables, wrong};
use crate::error::Result;
use crate::ids::Rank;
use crate::os::mpi::{self, Mpi};
use crate::os::pmix;
use crate::timeout::Deadline;
use std::ffi::OsString;
use std::path::PathBuf;

pub(super) struct Pmix;

/// What tells who this process is.
const SERVER: &str = "the PMIx server of this host";
/// The key of what rank 0 publishes.
const KEY: &str = "gaspi.contact";
/// Bytes that a server of any version relays.
const VALUE_MAX: usize = 4096;

impl Launcher for Pmix {
    fn name(&self) -> &'static str {
        "pmix"
    }

    fn variables(&self) -> &'static [&'static str] {
        &["PMIX_RANK", "PMIX_NAMESPACE", "PMIX_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]
    }

    fn task(&self, variables: &Variables<'_>) -> Result<Option<Task>> {
        let rank = variables.number("PMIX_RANK")?;
        let (rank, namespace) = (rank, variables.raw("PMIX_NAMESPACE").is_some());
        let rank = match (rank, namespace) {
            (None, false) => return without_pmix(variables),
            (Some(rank), true) => rank,
            (rank, _) => {
                let (set, absent) = match rank {
                    Some(_) => ("PMIX_RANK", "PMIX_NAMESPACE"),
                    None => ("PMIX_NAMESPACE", "PMIX_RANK"),
                };
                return wrong(format!(
                    "{set} is set but {absent} is not; start the ranks by mpirun, prterun or srun \
                     --mpi=pmix, which set both, or with gaspi_run, or set GASPI_LAUNCHER=single \
                     for a job of one rank"
                ));
            }
        };
        // Only Open MPI tells the size this way; else the library does.
        match variables.number("OMPI_COMM_WORLD_SIZE")? {
            Some(size) => Task::new(("PMIX_RANK", rank), ("OMPI_COMM_WORLD_SIZE", size)).map(Some),
            None if rank < u64::from(RANKS_MAX) => {
                Ok(Some(Task { rank: Rank(rank as u16), size: None, size_by: None }))
            }
            None => wrong(format!("PMIX_RANK is {rank}; a job has 1 to {RANKS_MAX} ranks")),
        }
    }

    fn job(&self, variables: &Variables<'_>, task: Task, deadline: Deadline) -> Result<Job> {
        let files = files(variables);
        session::of_process((SERVER, deadline), move || open(&files, task))
            .map(|session| session.job())
    }

    fn runs_within(&self, other: &str, variables: &Variables<'_>) -> bool {
        // mpirun has srun start its daemons, whose variables the ranks inherit.
        let namespace = variables.raw("PMIX_NAMESPACE").unwrap_or_default();
        other == slurm::Slurm.name() && !namespace.to_string_lossy().starts_with("slurm.")
    }
}

/// No rank of PMIx, unless Open MPI tells of several ranks, which meet by PMIx only.
fn without_pmix(variables: &Variables<'_>) -> Result<Option<Task>> {
    let is_set = |name| variables.raw(name).is_some();
    // Where PMI_FD is set the library of Open MPI itself may have set these, and PMI-1 will do.
    if !is_set("OMPI_COMM_WORLD_RANK") || is_set("PMI_FD") {
        return Ok(None);
    }
    match variables.number("OMPI_COMM_WORLD_SIZE")? {
        Some(size @ 2..) => wrong(format!(
            "OMPI_COMM_WORLD_SIZE is {size}, but PMIX_RANK and PMIX_NAMESPACE are not set, so the \
             ranks cannot meet; start them by mpirun or prterun, which set all, or with \
             gaspi_run, or set GASPI_LAUNCHER=single for a job of one rank"
        )),
        _ => Ok(None),
    }
}

/// Where the library may be: as the user says, where the loader finds it, beside the launcher,
/// where the launcher itself has it.
fn files(variables: &Variables<'_>) -> Vec<OsString> {
    let set = |name: &str| variables.raw(name).filter(|value| !value.is_empty());
    if let Some(named) = set("GASPI_PMIX_LIB") {
        return vec![named];
    }
    let prefixes = ["PMIX_INSTALL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX", "OPAL_PREFIX"];
    let beside = prefixes.into_iter().filter_map(set);
    let beside = beside.map(|prefix| PathBuf::from(prefix).join("lib").join(pmix::FILE).into());
    std::iter::once(pmix::FILE.into()).chain(beside).chain(pmix::of_launcher()).collect()
}

/// What keeps Open MPI 5 and this library from having PMIx one after the other, if there is
/// something. Before MPI_Init others must not have initialised PMIx: then MPI does not ask it who
/// this process is. MPI_Finalize ends it, and a second life of libpmix 5.0 ends in corrupt memory.
fn conflict(mpi: Mpi, description: Option<&str>) -> Option<Conflict> {
    let version = description.and_then(mpi::open_mpi_version)?;
    match mpi {
        Mpi::Loaded if version >= 5 => Some(Conflict::Later),
        Mpi::Finalised if version >= 5 => Some(Conflict::Earlier),
        _ => None,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Conflict {
    /// MPI_Init will fail, if it is called.
    Later,
    /// MPI_Finalize was called.
    Earlier,
}

/// Connects to the server of this machine, and asks who this is.
fn open(files: &[OsString], task: Task) -> Result<(Identity, Box<dyn ProcessManager>)> {
    let refuse = |reason: String| {
        wrong(format!(
            "this process was started by PMIx (PMIX_RANK, PMIX_NAMESPACE), but {reason}; install \
             the PMIx library of the launcher or name it in GASPI_PMIX_LIB, or start the job with \
             gaspi_run, or set GASPI_LAUNCHER=single for a job of one rank"
        ))
    };
    match conflict(Mpi::look_up(), mpi::description().as_deref()) {
        Some(Conflict::Earlier) => {
            return wrong(
                "MPI_Finalize of Open MPI 5 has ended PMIx in this process, and PMIx cannot begin \
                 again; call gaspi_proc_init before MPI_Finalize, or start the job with gaspi_run"
                    .to_owned(),
            );
        }
        // It is shown by default: MPI itself says nothing that leads to the reason.
        Some(Conflict::Later) if task.rank == Rank(0) => log::error!(
            "proc_init: the program has Open MPI 5, whose MPI_Init fails (\"local rank\") if it \
             is still to come; call it before gaspi_proc_init, or start the job with gaspi_run"
        ),
        Some(Conflict::Later) | None => {}
    }
    let library = match pmix::Pmix::load(files) {
        Ok(library) => library,
        Err(reason) => return refuse(reason),
    };
    let own = match library.init() {
        Ok(own) => own,
        Err(reason) => return refuse(reason),
    };
    let size = match library.number(&own.job(), "pmix.job.size") {
        Ok(size) => size,
        Err(reason) => return refuse(reason),
    };
    let told =
        Task::new(("the rank that PMIx tells", own.rank().into()), ("the size of the job", size))?;
    let Task { rank, size: Some(size), .. } = told else {
        return refuse("it does not tell the size of the job".to_owned());
    };
    match contradiction(told, task) {
        Some(Contradiction::WithOther(words)) => return wrong(words),
        Some(Contradiction::WithItself(reason)) => return refuse(reason),
        None => {}
    }
    // A server that does not tell these costs connections that are not needed, no more.
    let local_size = library.number(&own.job(), "pmix.local.size").unwrap_or(0);
    let local_rank = library.number(&own, "pmix.lrank").ok();
    let identity = Identity {
        id: format!("pmix-{}", own.namespace()),
        rank,
        size,
        local_rank: local_rank.and_then(|local| u16::try_from(local).ok()).unwrap_or(rank.0),
        one_machine: local_size == u64::from(size),
    };
    Ok((identity, Box::new(Manager { library, own })))
}

/// How what the library tells differs from what variables say, in words.
#[derive(Debug, PartialEq, Eq)]
enum Contradiction {
    /// Those of PMIx.
    WithItself(String),
    /// Those of another launcher.
    WithOther(String),
}

/// Whether `told` by the library differs from the task that was found in the environment.
fn contradiction(told: Task, task: Task) -> Option<Contradiction> {
    let has_same_rank = told.rank == task.rank;
    if has_same_rank && task.size.is_none_or(|size| told.size == Some(size)) {
        return None;
    }
    Some(match task.size_by.filter(|_| has_same_rank) {
        Some(other) => Contradiction::WithOther(format!(
            "two launchers contradict each other: by {pmix}, whose library was asked, this is {}, \
             by the variables of {other} it is {}; set GASPI_LAUNCHER to {pmix}, {other} or \
             {SINGLE}, or unset the variables of the other one",
            told.says(),
            Task { size_by: None, ..task }.says(),
            pmix = Pmix.name(),
        )),
        None => Contradiction::WithItself(format!(
            "its library says {}, and the environment {}",
            told.says(),
            task.says()
        )),
    })
}

struct Manager {
    library: pmix::Pmix,
    own: pmix::Process,
}

impl ProcessManager for Manager {
    fn name(&self) -> String {
        format!("the PMIx server of job {}", self.own.namespace())
    }

    fn value_max(&self) -> usize {
        VALUE_MAX
    }

    fn publish(&mut self, value: &str) -> std::result::Result<(), String> {
        self.library.publish(KEY, value)
    }

    fn fence(&mut self) -> std::result::Result<(), String> {
        self.library.fence()
    }

    fn read(&mut self) -> std::result::Result<String, String> {
        self.library.text(&self.own.of_rank(0), KEY)
    }

    fn close(&mut self) {
        self.library.finalize();
    }
}

#[cfg(test)]
mod tests {
    use super::{Conflict, Contradiction, Mpi, Rank, Task, conflict, contradiction};

    #[test]
    fn a_size_by_another_launcher_is_compared_with_that_of_the_library() {
        let told = Task { rank: Rank(0), size: Some(4), size_by: None };
        assert_eq!(contradiction(told, told), None);
        assert_eq!(contradiction(told, Task { size: None, ..told }), None);
        let other = Task { size: Some(3), size_by: Some("torchrun"), ..told };
        let Some(Contradiction::WithOther(words)) = contradiction(told, other) else {
            panic!("rank 0 would wait for others that have ended");
        };
        let expected = "by pmix, whose library was asked, this is rank 0 of 4, by the variables \
                        of torchrun it is rank 0 of 3; set GASPI_LAUNCHER to pmix, torchrun or \
                        single";
        assert!(words.contains(expected), "{words}");
        let own = Task { size: Some(3), ..told };
        let words = "its library says rank 0 of 4, and the environment rank 0 of 3".to_owned();
        assert_eq!(contradiction(told, own), Some(Contradiction::WithItself(words)));
        let agreeing = Task { size: Some(4), size_by: Some("torchrun"), ..told };
        assert_eq!(contradiction(told, agreeing), None);
        let words = "its library says rank 0 of 4, and the environment rank 1 of 4 (the size by \
                     torchrun)";
        assert_eq!(
            contradiction(told, Task { rank: Rank(1), ..agreeing }),
            Some(Contradiction::WithItself(words.to_owned()))
        );
    }

    #[test]
    fn open_mpi_5_has_to_come_first_and_to_go_last() {
        let five = Some("Open MPI v5.0.11, package: x");
        assert_eq!(conflict(Mpi::Loaded, five), Some(Conflict::Later));
        assert_eq!(conflict(Mpi::Initialised, five), None);
        assert_eq!(conflict(Mpi::Finalised, five), Some(Conflict::Earlier));
        for other in [Some("Open MPI v4.1.4, package: x"), Some("MPICH Version:      4.0.2"), None]
        {
            for mpi in [Mpi::Absent, Mpi::Loaded, Mpi::Initialised, Mpi::Finalised] {
                assert_eq!(conflict(mpi, other), None);
            }
        }
    }
}
