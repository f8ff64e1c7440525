//! Ranks that are killed while the launcher that started them lets the others run on: with
//! SIGKILL, by gaspi_proc_kill, and all of them by gaspi_cleanup.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gaspi_tests::hosts::Hosts;
use gaspi_tests::{Job, Outcome, Process, Result, Running, gaspi_run};

use crate::failed;
use crate::programs::{MpiLibrary, meet};

/// Ranks of such a job, two on each of two hosts, and the one that dies.
pub(crate) const RANKS: usize = 4;
const DIES: usize = 3;
/// Ten times the second within which all know of a death.
pub(crate) const KNOWN: Duration = Duration::from_secs(10);

/// A guard for what takes a moment.
const GUARD: Duration = Duration::from_secs(20);

/// The processes of a program, whichever rank they are.
fn processes(hosts: &Hosts, program: &Path) -> Vec<i32> {
    let program = program.display().to_string();
    let is_it = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).next() == Some(program.as_bytes())
    };
    hosts.iter().flat_map(|host| host.processes()).filter(is_it).collect()
}

/// The one in whose environment the variable has this value.
fn process(processes: &[i32], entry: &str) -> Result<Process> {
    let is_it = |pid: &&i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|found| found == entry.as_bytes())
    };
    match processes.iter().filter(is_it).collect::<Vec<_>>()[..] {
        [pid] => Ok(Process::open(*pid)?),
        _ => Err(failed(format!("not one of the processes {processes:?} has {entry}"))),
    }
}

/// Runs a job of four ranks on two hosts, of which the last one is killed with SIGKILL: all others
/// hear of it in time, by rank and host, go on together and leave. The launcher tells each rank
/// its number in this variable.
pub(crate) fn expect_known(hosts: &Hosts, job: Job, variable: &str) -> Result<()> {
    let program = meet(MpiLibrary::None)?;
    let name = program.display();
    let script = format!("if [ ${variable} = {DIES} ]; then exec {name} GP; fi; exec {name} GWLg");
    let job = job.args(["sh", "-c", &script]).start()?;
    job.lines("heard", RANKS)?;
    let process = process(&processes(hosts, &program), &format!("{variable}={DIES}"))?;
    process.signal(libc::SIGKILL)?;
    let died = Instant::now();
    let host = hosts[DIES / 2].name();
    job.lines(&format!("rank {DIES} has died on {host}"), RANKS - 1)?;
    let took = died.elapsed();
    job.lines(&format!("met the {} that live", RANKS - 1), RANKS - 1)?;
    let outcome = end(hosts, &program, job)?;
    if took > KNOWN {
        return Err(outcome.failure(&format!("the others knew after {took:?}")));
    }
    if outcome.stderr.contains(" gave ") {
        return Err(outcome.failure("those that live were to leave in good order"));
    }
    Ok(())
}

/// Waits until no rank is left, and ends the launcher: mpirun of Open MPI 4 goes on waiting for a
/// rank that was killed.
fn end(hosts: &Hosts, program: &Path, job: Running) -> Result<Outcome> {
    let since = Instant::now();
    while !processes(hosts, program).is_empty() {
        if since.elapsed() > GUARD {
            return Err(failed("ranks are left"));
        }
        std::thread::yield_now();
    }
    // It may have ended meanwhile.
    let _ = Process::open(job.pid()).and_then(|launcher| launcher.signal(libc::SIGTERM));
    job.wait()
}

/// Runs such a job, of which rank 0 ends rank 1 by gaspi_proc_kill: all others hear of it, go on
/// together and leave.
pub(crate) fn expect_killed(hosts: &Hosts, job: Job, variable: &str) -> Result<()> {
    let program = meet(MpiLibrary::None)?;
    let name = program.display();
    let script = format!(
        "case ${variable} in 0) exec {name} GKWLg;; 1) exec {name} GP;; *) exec {name} GWLg;; esac"
    );
    let job = job.args(["sh", "-c", &script]).start()?;
    job.lines(&format!("rank 1 has died on {}", hosts[0].name()), RANKS - 1)?;
    job.lines(&format!("met the {} that live", RANKS - 1), RANKS - 1)?;
    let outcome = end(hosts, &program, job)?;
    match outcome.stderr.contains(" gave ") {
        false => Ok(()),
        true => Err(outcome.failure("those that live were to leave in good order")),
    }
}

/// Runs such a job until gaspi_cleanup has found all of its ranks and ended them.
pub(crate) fn expect_cleaned_up(hosts: &Hosts, job: Job) -> Result<()> {
    let program = meet(MpiLibrary::None)?;
    let own = format!("CLEANED_UP=launched-{}", job_number());
    let script = format!("export {own}; exec {} GP", program.display());
    let job = job.args(["sh", "-c", &script]).start()?;
    job.lines("heard", RANKS)?;
    let tool = gaspi_run()?.with_file_name("gaspi_cleanup");
    let cleanup = |option: &str| Job::plain(&tool).args([option, "--with", &own]).run();
    let listed = cleanup("--check")?.success()?.stdout;
    for rank in 0..RANKS {
        let found = format!(" rank {rank}: started without gaspi_run: ");
        assert_eq!(listed.matches(&found).count(), 1, "{found}: {listed}");
    }
    let ended = cleanup("--all")?.success()?.stdout;
    assert!(ended.contains("ended by SIGTERM"), "{ended}");
    end(hosts, &program, job).map(drop)
}

/// Another one for each job of this process.
fn job_number() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only uniqueness counts.
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
