//! Jobs that other launchers start: the real hydra of MPICH and Intel MPI, mpirun and prterun of
//! Open MPI, and Slurm, on hosts that are namespaces; others by what they set.

mod deaths;
mod programs;
mod recorded;
mod servers;
mod slurm;

use std::path::Path;
use std::process::{Command, ExitCode};

use gaspi_tests::hosts::{Host, enter_world};
use gaspi_tests::{Failed, Outcome, Result, build_directory, run_trials};
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    enter_world();
    let mut arguments = Arguments::from_args();
    // One at a time: each keeps all cores busy.
    arguments.test_threads.get_or_insert(1);
    run_trials(arguments, build_directory().map(|_| trials()))
}

fn trials() -> Vec<Trial> {
    let mut trials = servers::trials();
    trials.extend(slurm::trials());
    trials.extend(recorded::trials());
    trials
}

fn trial(name: &str, run: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, move || run().map_err(Into::into))
}

fn failed(what: impl Into<String>) -> Failed {
    Failed(what.into())
}

/// Mounts something for one host only.
fn mount(host: &Host, arguments: &[&str], at: &Path) -> Result<()> {
    host.inside(|| {
        let status = Command::new("mount").args(arguments).arg(at).status()?;
        if status.success() { Ok(()) } else { Err(failed("mount failed")) }
    })?
}

/// Demands success, and `times` as many lines as a job of so many ranks has.
fn expect_met(outcome: Outcome, ranks: usize, times: usize) -> Result<()> {
    let outcome = outcome.success()?;
    let lines = outcome.stdout.lines().filter_map(|line| line.find("rank ").map(|at| &line[at..]));
    let mut lines: Vec<&str> = lines.collect();
    lines.sort_unstable();
    let line = |rank| format!("rank {rank} of {ranks} heard {}", (rank + ranks - 1) % ranks);
    let mut expected: Vec<String> = (0..ranks).flat_map(|rank| vec![line(rank); times]).collect();
    expected.sort_unstable();
    if lines == expected {
        return Ok(());
    }
    Err(outcome.failure(&format!("the lines are not those of {ranks} ranks")))
}
