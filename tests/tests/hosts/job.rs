//! A job over hosts under gaspi_run, which reaches the other hosts by a real ssh.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gaspi_tests::hosts::{Hosts, Options};
use gaspi_tests::{Job, Outcome, Result, Running};
use tempfile::{NamedTempFile, TempPath};

/// Hosts with ssh servers.
pub(crate) fn hosts(count: usize, options: Options) -> Result<Hosts> {
    let hosts = Hosts::new(count, options)?;
    hosts.start_sshd()?;
    Ok(hosts)
}

/// The program that checks every operation.
pub(crate) fn rounds() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_rounds"))
}

/// The program whose ranks suffer.
pub(crate) fn victim() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_victim"))
}

/// gaspi_run with these options on a host.
pub(crate) fn launch(
    hosts: &Hosts,
    on: usize,
    options: &[&str],
    program: &Path,
    arguments: &[&str],
) -> Result<Job> {
    let job = Job::launcher()?.args(options).arg(program).args(arguments);
    Ok(job.limit(Duration::from_secs(90)).on(&hosts[on]))
}

/// The same on the first host, started.
pub(crate) fn start(
    hosts: &Hosts,
    options: &[&str],
    program: &Path,
    arguments: &[&str],
) -> Result<Running> {
    launch(hosts, 0, options, program, arguments)?.start()
}

/// For `--hosts`: the host of each rank.
pub(crate) fn list(hosts: &Hosts, places: &[usize]) -> String {
    let names: Vec<&str> = places.iter().map(|place| hosts[*place].name()).collect();
    names.join(",")
}

/// Demands success, and that so many ranks say that they finished, all after as many rounds.
pub(crate) fn expect_finished(outcome: Outcome, ranks: usize) -> Result<()> {
    let outcome = outcome.success()?;
    let finished = outcome.stdout.lines().filter(|line| line.starts_with("finished "));
    let mut rounds: Vec<&str> = finished.filter_map(|line| line.splitn(3, ' ').nth(2)).collect();
    let count = rounds.len();
    rounds.dedup();
    if count == ranks && rounds.len() == 1 {
        return Ok(());
    }
    Err(outcome.failure(&format!("{count} of {ranks} ranks finished, with {rounds:?}")))
}

/// A job of `rounds` that goes on until it is told.
pub(crate) struct Rounds {
    pub(crate) job: Running,
    ranks: usize,
    go_on: TempPath,
}

impl Rounds {
    /// Starts rank r on host `places[r]`, and gaspi_run on host `on`.
    pub(crate) fn start(
        hosts: &Hosts,
        on: usize,
        places: &[usize],
        variables: &[(&str, &str)],
    ) -> Result<Rounds> {
        let go_on = NamedTempFile::new()?.into_temp_path();
        let file = go_on.display().to_string();
        let options = ["--hosts", &list(hosts, places)];
        let mut job = launch(hosts, on, &options, &rounds(), &["while", &file])?;
        for (name, value) in variables {
            job = job.env(name, *value);
        }
        let job = job.start()?;
        job.lines("ready ", places.len())?;
        Ok(Rounds { job, ranks: places.len(), go_on })
    }

    /// Waits until rank 0 has told `more` times from now on how far it is.
    pub(crate) fn go_on(&self, more: usize) -> Result<()> {
        let so_far = self.job.lines("round ", 0)?.len();
        self.job.lines("round ", so_far + more).map(drop)
    }

    /// Lets the job end, and demands that all went well.
    pub(crate) fn finish(self) -> Result<()> {
        self.go_on.close()?;
        expect_finished(self.job.wait()?, self.ranks)
    }
}
