//! Jobs beside each other on one machine do not meet.

use std::path::PathBuf;
use std::time::Duration;

use gaspi_tests::{Job, Result};

fn victim() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_victim"))
}

fn run_stop(ranks: u32, operation: &str) -> Result<Job> {
    // The scenario in which no rank is stopped: a second of checked rounds.
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

/// Takes the rank away and starts $1, then again by the command that the message names.
const CHILD: &str = r#"
unset GASPI_RANK GASPI_NRANKS
said=$("$1" stop barrier 0 2>&1) && exit 9
echo "$said"
command=${said##*job of one rank: }
eval "${command%PROGRAM*} \"\$1\" stop barrier 0""#;

#[test]
fn a_program_that_a_rank_starts_becomes_a_job_of_its_own_as_the_message_says() -> Result<()> {
    let job = Job::launched(2, "sh".as_ref())?.args(["-c", CHILD, "sh"]).arg(victim());
    let outcome = job.limit(Duration::from_secs(60)).run()?.success()?;
    let text = "GASPI_MEETING are set but GASPI_RANK and GASPI_NRANKS are not";
    assert_eq!(outcome.stdout.matches(text).count(), 2, "{}", outcome.stdout);
    // Each is rank 0 of a job without others.
    for line in ["ready 0", "finished "] {
        assert_eq!(outcome.stdout.matches(line).count(), 2, "{}", outcome.stdout);
    }
    // With everything that a rank has, it is enough too.
    let all = "env -u GASPI_RANK -u GASPI_NRANKS -u GASPI_SOCKET -u GASPI_MFILE -u GASPI_MEETING";
    let text = format!("{all} \"$1\" stop barrier 0");
    let job = Job::launched(2, "sh".as_ref())?.args(["-c", &text, "sh"]).arg(victim());
    let outcome = job.limit(Duration::from_secs(60)).run()?.success()?;
    assert_eq!(outcome.stdout.matches("ready 0").count(), 2, "{}", outcome.stdout);
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
