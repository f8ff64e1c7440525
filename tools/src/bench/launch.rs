//! Becoming a job: starting itself under gaspi_run, and binding ranks to cores.

use crate::arguments::{Bind, Plain};
use crate::failure::{Failure, Result};
use crate::system;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Set by the launcher.
const RANK: &str = "GASPI_RANK";
const RANKS: &str = "GASPI_NRANKS";
/// The number of a rank on its machine.
const LOCAL_RANK: &str = "GASPI_SOCKET";

/// Whether this process is a rank of a job already.
pub(crate) fn is_rank() -> bool {
    std::env::var_os(RANK).is_some()
}

/// Whether this process is rank 0 or none.
pub(crate) fn is_first() -> bool {
    std::env::var(RANK).map_or(true, |rank| rank == "0")
}

/// Ranks of the job that this process belongs to or starts.
pub(crate) fn ranks(plain: &Plain) -> usize {
    if is_rank() {
        return std::env::var(RANKS).ok().and_then(|ranks| ranks.parse().ok()).unwrap_or(1);
    }
    plain.ranks.map_or(1, |ranks| ranks as usize)
}

/// Says in front of a failure which rank it belongs to.
pub(crate) fn of_rank(failure: Failure) -> Failure {
    match std::env::var(RANK) {
        Ok(rank) if !failure.message.is_empty() => failure.within(&format!("rank {rank}")),
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

/// Starts this program again as the ranks of a job if -n asks for it; then it does not return.
pub(crate) fn start_if_asked(plain: &Plain) -> Result<()> {
    let Some(ranks) = plain.ranks else { return Ok(()) };
    if is_rank() {
        return check_ranks(ranks);
    }
    let mut command = command(ranks, plain.bind, std::env::args_os().skip(1))?;
    let error = command.exec();
    Err(Failure::run(format!(
        "cannot start {}: {error}; gaspi_run has to be beside gaspi-bench or in PATH",
        launcher().display()
    )))
}

/// A rank has the -n that started it on its command line.
fn check_ranks(ranks: u32) -> Result<()> {
    let actual = std::env::var(RANKS).unwrap_or_default();
    if actual == ranks.to_string() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "-n {ranks} was given to a rank of a job of {actual}; leave it out under gaspi_run"
    )))
}

/// Binds this process to the core of its rank, unless the launcher did, and returns the cores
/// that the ranks may use together.
pub(crate) fn bind(choice: Option<Bind>) -> Result<Vec<usize>> {
    let own = system::cores();
    if own.len() <= 1 {
        return Ok(system::all_cores());
    }
    if matches!(choice, Some(Bind::None | Bind::Numa)) {
        return Ok(own);
    }
    let number = std::env::var(LOCAL_RANK).or_else(|_| std::env::var(RANK)).unwrap_or_default();
    let number: usize = number.parse().unwrap_or(0);
    let core = own[number % own.len()];
    system::bind(&[core])
        .map_err(|error| Failure::run(format!("cannot bind this rank to core {core}: {error}")))?;
    Ok(own)
}
