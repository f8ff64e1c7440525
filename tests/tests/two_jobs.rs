//! Jobs beside each other on one machine do not meet.

use std::path::PathBuf;
use std::time::Duration;

use gaspi_tests::{Job, Result};

fn victim() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_victim"))
}

fn run_stop(ranks: u32, operation: &str) -> Result<Job> {
    // The scenario without anybody who stops a rank: a second of checked rounds.
    let job = Job::launched(ranks, &victim())?.args(["stop", operation, "0"]);
    Ok(job.limit(Duration::from_secs(60)))
}

#[test]
fn two_jobs_run_at_once() -> Result<()> {
    let first = run_stop(3, "allreduce")?.start()?;
    let second = run_stop(2, "write")?.start()?;
    first.lines("ready ", 3)?;
    second.lines("ready ", 2)?;
    let (first, second) = (first.wait()?.success()?, second.wait()?.success()?);
    assert_eq!(first.stdout.matches("finished ").count(), 3, "{}", first.stdout);
    assert_eq!(second.stdout.matches("finished ").count(), 2, "{}", second.stdout);
    Ok(())
}

#[test]
fn killing_one_job_does_not_touch_the_other() -> Result<()> {
    let doomed = Job::launched(3, &victim())?.args(["wait", "none", "0"]).start()?;
    let other = run_stop(2, "barrier")?.start()?;
    doomed.lines("ready ", 3)?;
    other.lines("ready ", 2)?;
    doomed.kill_all();
    let doomed = doomed.wait()?;
    assert!(doomed.left.is_empty(), "{:?}", doomed.left);
    let other = other.wait()?.success()?;
    assert_eq!(other.stdout.matches("finished ").count(), 2, "{}", other.stdout);
    Ok(())
}

#[test]
fn many_short_jobs_start_and_end() -> Result<()> {
    let jobs: Result<Vec<_>> = (0..8).map(|_| run_stop(2, "idle")?.start()).collect();
    for job in jobs? {
        job.wait()?.success()?;
    }
    Ok(())
}
