//! Becoming a job: starting itself under gaspi_run, and binding ranks to cores.

use crate::arguments::{Bind, Plain};
use crate::failure::{Failure, Result};
use crate::system;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Set by gaspi_run.
const RANK: &str = "GASPI_RANK";
/// The number of a rank on its machine, as launchers call it. Those that start others of them,
/// whose variables the ranks inherit, come first.
const LOCAL_RANKS: [&str; 5] = [
    "GASPI_SOCKET",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "LOCAL_RANK",
    "SLURM_LOCALID",
];

/// Which rank of how many a process is; the number may be known to the process manager only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Task {
    rank: usize,
    ranks: Option<usize>,
}

/// What this process is in the job of a launcher.
///
/// The shell of a batch system is often a job of one rank, in which a person starts others.
fn task() -> Result<Option<Task>> {
    let named = gaspi_core::Job::named_by_environment();
    let named = named.map_err(|error| Failure::usage(error.to_string()))?;
    let own = named.filter(|(_, ranks)| *ranks != Some(1) || std::env::var_os(RANK).is_some());
    Ok(own.map(|(rank, ranks)| Task {
        rank: usize::from(rank.0),
        ranks: ranks.map(|ranks| ranks as usize),
    }))
}

/// What this process is, once [`check`] has passed.
fn known() -> Option<Task> {
    task().ok().flatten()
}

/// Refuses an environment that does not say clearly which rank this is.
pub(crate) fn check() -> Result<()> {
    task().map(drop)
}

/// Whether this process is a rank of a job already.
pub(crate) fn is_rank() -> bool {
    known().is_some()
}

/// Whether this process is rank 0 or none.
pub(crate) fn is_first() -> bool {
    known().is_none_or(|task| task.rank == 0)
}

/// Ranks of the job that this process belongs to or starts, if that is known before it joins.
pub(crate) fn ranks(plain: &Plain) -> Option<usize> {
    match known() {
        Some(task) => task.ranks,
        None => Some(plain.ranks.map_or(1, |ranks| ranks as usize)),
    }
}

/// Says in front of a failure which rank it belongs to.
pub(crate) fn of_rank(failure: Failure) -> Failure {
    match known() {
        Some(task) if !failure.message.is_empty() => failure.within(&format!("rank {}", task.rank)),
        _ => failure,
    }
}

/// The launcher: the one beside this program, else the one that PATH has.
pub(crate) fn launcher() -> PathBuf {
    let own = std::env::current_exe().and_then(std::fs::canonicalize).ok();
    let beside = own.and_then(|own| Some(own.parent()?.join("gaspi_run")));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| "gaspi_run".into())
}

/// The command that starts this program with these arguments as `ranks` ranks.
pub(crate) fn command(
    ranks: u32,
    bind: Option<Bind>,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Command> {
    let mut options = vec!["--kill-on-failure"];
    if let Some(bind) = bind {
        options.extend(["--bind", bind.name()]);
    }
    command_with(&options, ranks, arguments)
}

/// The same with these options of the launcher.
pub(crate) fn command_with(
    options: &[&str],
    ranks: u32,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Command> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::run(format!("cannot find this program's own file: {error}")))?;
    let mut command = Command::new(launcher());
    command.arg("-n").arg(ranks.to_string()).args(options).arg(own).args(arguments);
    Ok(command)
}

/// The same for a job on this host, also in an allocation of a batch system, which ends when this
/// process does.
pub(crate) fn here(
    options: &[&str],
    ranks: u32,
    bind: Option<Bind>,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Command> {
    let mut options = [&["--here"], options].concat();
    options.extend(bind.iter().flat_map(|bind| ["--bind", bind.name()]));
    let mut command = command_with(&options, ranks, arguments)?;
    system::end_with_caller(&mut command);
    Ok(command)
}

/// Starts this program again as the ranks of a job if -n asks for it; then it does not return.
pub(crate) fn start_if_asked(plain: &Plain) -> Result<()> {
    let Some(ranks) = plain.ranks.filter(|_| !is_rank()) else { return Ok(()) };
    let mut command = command(ranks, plain.bind, std::env::args_os().skip(1))?;
    let error = command.exec();
    Err(Failure::run(format!(
        "cannot start {}: {error}; gaspi_run has to be beside gaspi-bench or in PATH",
        launcher().display()
    )))
}

/// A rank has the -n that started it on its command line.
pub(crate) fn check_ranks(plain: &Plain, actual: usize) -> Result<()> {
    match plain.ranks.filter(|ranks| is_rank() && *ranks as usize != actual) {
        None => Ok(()),
        Some(ranks) => Err(Failure::usage(format!(
            "-n {ranks} was given to a rank of a job of {actual}; leave it out where a launcher \
             starts the ranks"
        ))),
    }
}

/// Binds this process to the core of its rank, unless the launcher did, and returns the cores
/// that it could use before.
pub(crate) fn bind(choice: Option<Bind>) -> Result<Vec<usize>> {
    let own = system::cores();
    if own.len() <= 1 || matches!(choice, Some(Bind::None | Bind::Numa)) {
        return Ok(own);
    }
    let number = known().map_or(0, |task| local_rank(task.rank, |name| std::env::var(name).ok()));
    let core = own[number % own.len()];
    system::bind(&[core])
        .map_err(|error| Failure::run(format!("cannot bind this rank to core {core}: {error}")))?;
    Ok(own)
}

/// The number of a rank on its machine. If no launcher tells it, all may be on one.
fn local_rank(rank: usize, variable: impl Fn(&str) -> Option<String>) -> usize {
    LOCAL_RANKS.into_iter().find_map(|name| variable(name)?.parse().ok()).unwrap_or(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_launcher_tells_the_number_on_the_machine() {
        for (set, number) in [
            (&[("GASPI_SOCKET", "3")][..], 3),
            (&[("MPI_LOCALRANKID", "1")], 1),
            // Of a daemon that mpirun has had srun start.
            (&[("OMPI_COMM_WORLD_LOCAL_RANK", "2"), ("SLURM_LOCALID", "0")], 2),
            (&[("LOCAL_RANK", "4"), ("SLURM_LOCALID", "0")], 4),
            (&[("SLURM_LOCALID", "6")], 6),
            (&[], 7),
        ] {
            let variable = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(local_rank(7, variable), number, "{set:?}");
        }
    }
}
