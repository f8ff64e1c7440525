//! mpiexec.hydra of MPICH, which speaks PMI-1, and mpirun of Open MPI, which speaks PMIx.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use gaspi_tests::hosts::{Hosts, Options};
use gaspi_tests::{Job, Result, gaspi_run};
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::programs::{MpiLibrary, library_path, meet, unpacked};
use crate::{expect_met, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for launcher in [Launcher::Hydra, Launcher::OpenMpi] {
        let mut add = |name: &str, run: fn(Launcher) -> Result<()>| {
            trials.push(trial(&format!("{}/{name}", launcher.name()), move || run(launcher)));
        };
        add("one-host-and-again", one_host);
        add("two-hosts-and-again", two_hosts);
        add("mpi-before", |launcher| with_mpi(launcher, "MGgm"));
        add("mpi-within", |launcher| with_mpi(launcher, "GMmg"));
        add("mpi-after", |launcher| with_mpi(launcher, "GgMm"));
        add("the-log-says-why", the_log_says_why);
        add("ranks-that-stay-away", ranks_that_stay_away);
        add("gaspi-run-within", gaspi_run_within);
        add("single", single);
    }
    trials.push(trial("hydra/mpi-finalised", mpi_finalised));
    trials.push(trial("open-mpi/library-that-is-none", library_that_is_none));
    trials.push(trial("open-mpi/server-that-is-gone", server_that_is_gone));
    trials
}

#[derive(Clone, Copy)]
enum Launcher {
    Hydra,
    OpenMpi,
}

impl Launcher {
    fn name(self) -> &'static str {
        match self {
            Launcher::Hydra => "hydra",
            Launcher::OpenMpi => "open-mpi",
        }
    }

    /// The key by which GASPI_LOG and GASPI_LAUNCHER know it.
    fn protocol(self) -> &'static str {
        match self {
            Launcher::Hydra => "pmi",
            Launcher::OpenMpi => "pmix",
        }
    }

    fn mpi(self) -> MpiLibrary {
        match self {
            Launcher::Hydra => MpiLibrary::Mpich,
            Launcher::OpenMpi => MpiLibrary::Open,
        }
    }

    /// The launcher with so many ranks on these hosts; the program and its arguments follow.
    fn job(self, hosts: &Hosts, list: &str, ranks: usize, files: &TempDir) -> Result<Job> {
        let program = unpacked()?.join("usr/bin").join(match self {
            Launcher::Hydra => "mpiexec.hydra",
            Launcher::OpenMpi => "mpirun.openmpi",
        });
        let shell = remote_shell(files)?.display().to_string();
        let ranks = ranks.to_string();
        let mut job = Job::plain(&program).on(&hosts[0]);
        for (name, value) in variables()? {
            job = job.env(name, value);
        }
        Ok(match self {
            Launcher::Hydra => job.args([
                "-launcher",
                "ssh",
                "-launcher-exec",
                &shell,
                "-hosts",
                list,
                "-n",
                &ranks,
            ]),
            Launcher::OpenMpi => {
                let names = "LD_LIBRARY_PATH,OPAL_PREFIX,GASPI_LOG,GASPI_PMIX_LIB,GASPI_LAUNCHER";
                let exported = names.split(',').flat_map(|name| ["-x", name]);
                let job = job.args(["--allow-run-as-root", "--mca", "plm_rsh_agent", &shell]);
                job.args(exported).args(["-H", list, "-n", &ranks])
            }
        })
    }
}

/// What unpacked launchers need on each host.
fn variables() -> Result<Vec<(&'static str, String)>> {
    let prefix = unpacked()?.join("usr").display().to_string();
    Ok(vec![("LD_LIBRARY_PATH", library_path()?), ("OPAL_PREFIX", prefix)])
}

/// An ssh that hands on the variables, since nothing of it is installed on the other host.
fn remote_shell(files: &TempDir) -> Result<PathBuf> {
    let path = files.path().join("remote-shell");
    let mut exports = String::new();
    for (name, value) in variables()? {
        let _ = write!(exports, "export {name}={value}; ");
    }
    let text = format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n\
         exec ssh \"$host\" \"{exports}$*\"\n"
    );
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn one_host(launcher: Launcher) -> Result<()> {
    let (hosts, files) = (Hosts::new(1, Options::default())?, TempDir::new()?);
    let job = launcher.job(&hosts, "ant:4", 4, &files)?.arg(meet(MpiLibrary::None)?).arg("GgGg");
    expect_met(job.run()?, 4, 2)
}

fn two_hosts(launcher: Launcher) -> Result<()> {
    let (hosts, files) = (Hosts::new(2, Options::default())?, TempDir::new()?);
    hosts.start_sshd()?;
    let job =
        launcher.job(&hosts, "ant:2,bee:2", 4, &files)?.arg(meet(MpiLibrary::None)?).arg("GgGg");
    expect_met(job.run()?, 4, 2)
}

/// The program uses MPI, too, over the same connection to the process manager.
fn with_mpi(launcher: Launcher, letters: &str) -> Result<()> {
    let (hosts, files) = (Hosts::new(2, Options::default())?, TempDir::new()?);
    hosts.start_sshd()?;
    let program = meet(launcher.mpi())?;
    let job = launcher.job(&hosts, "ant:1,bee:1", 2, &files)?.arg(program).arg(letters);
    expect_met(job.run()?, 2, 1)
}

fn the_log_says_why(launcher: Launcher) -> Result<()> {
    let (hosts, files) = (Hosts::new(1, Options::default())?, TempDir::new()?);
    let job = launcher.job(&hosts, "ant:2", 2, &files)?.env("GASPI_LOG", "info");
    let outcome = job.arg(meet(MpiLibrary::None)?).arg("Gg").run()?.success()?;
    let why = format!("proc_init: launcher {}, by PMI", launcher.protocol());
    outcome.says(&why)?.says("rank 1 of 2 of job").map(drop)
}

/// A rank that never calls proc_init: a call with a timeout says what it waits for, in time.
fn ranks_that_stay_away(launcher: Launcher) -> Result<()> {
    let (hosts, files) = (Hosts::new(2, Options::default())?, TempDir::new()?);
    hosts.start_sshd()?;
    let program = env!("CARGO_BIN_EXE_alone");
    let script = format!("[ \"${{PMI_RANK:-$PMIX_RANK}}\" = 1 ] || exec {program}");
    let job = launcher.job(&hosts, "ant:1,bee:1", 2, &files)?.args(["sh", "-c", &script]);
    // How it ends is up to the launcher.
    job.run()?.says("timed out: all 2 ranks of job").map(drop)
}

/// gaspi_run sets all anew for its own ranks.
fn gaspi_run_within(launcher: Launcher) -> Result<()> {
    let (hosts, files) = (Hosts::new(1, Options::default())?, TempDir::new()?);
    let job = launcher.job(&hosts, "ant:1", 1, &files)?.arg(gaspi_run()?);
    expect_met(job.args(["--here", "-n", "3"]).arg(meet(MpiLibrary::None)?).arg("Gg").run()?, 3, 1)
}

fn single(launcher: Launcher) -> Result<()> {
    let (hosts, files) = (Hosts::new(1, Options::default())?, TempDir::new()?);
    let job = launcher.job(&hosts, "ant:1", 1, &files)?.env("GASPI_LAUNCHER", "single");
    expect_met(job.arg(meet(MpiLibrary::None)?).arg("GgGg").run()?, 1, 2)
}

fn mpi_finalised() -> Result<()> {
    let (hosts, files) = (Hosts::new(1, Options::default())?, TempDir::new()?);
    let job =
        Launcher::Hydra.job(&hosts, "ant:1", 1, &files)?.arg(meet(MpiLibrary::Mpich)?).arg("MmG");
    job.run()?.code(7)?.says("was left by MPI_Finalize").map(drop)
}

/// Never a job of one rank.
fn library_that_is_none() -> Result<()> {
    for (library, why) in [
        ("/nonexistent/libpmix.so.2", "/nonexistent/libpmix.so.2: "),
        ("libc.so.6", "libc.so.6 lacks PMIx_Init"),
    ] {
        let (hosts, files) = (Hosts::new(1, Options::default())?, TempDir::new()?);
        let job = Launcher::OpenMpi.job(&hosts, "ant:2", 2, &files)?;
        let job = job.env("GASPI_PMIX_LIB", library).arg(meet(MpiLibrary::None)?).arg("Gg");
        job.run()?.code(7)?.says(why)?.says("GASPI_PMIX_LIB")?.says("gaspi_run")?;
    }
    Ok(())
}

/// The variables of a job that has ended.
fn server_that_is_gone() -> Result<()> {
    let hosts = Hosts::new(1, Options::default())?;
    let mut job = Job::plain(&meet(MpiLibrary::None)?).arg("Gg").on(&hosts[0]);
    for (name, value) in variables()? {
        job = job.env(name, value);
    }
    for (name, value) in [
        ("PMIX_RANK", "0"),
        ("PMIX_NAMESPACE", "1689190401"),
        ("PMIX_SERVER_URI41", "1689190400.0;tcp4://127.0.0.1:9"),
        ("PMIX_SERVER_URI4", "1689190400.0;tcp4://127.0.0.1:9"),
        ("PMIX_SERVER_URI3", "1689190400.0;tcp4://127.0.0.1:9"),
        ("PMIX_SERVER_URI2", "1689190400.0;tcp4://127.0.0.1:9"),
    ] {
        job = job.env(name, value);
    }
    job.run()?.code(7)?.says("PMIx_Init of libpmix.so.2 failed")?.says("gaspi_run").map(drop)
}
