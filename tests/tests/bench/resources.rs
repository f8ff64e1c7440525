//! gaspi-bench under launchers, on fewer cores than the machine has, and ended from outside.

use crate::{FEW, TCP, alone, bench, demand, launched, number, objects, rows};
use gaspi_tests::{Failed, Job, Result};
use std::path::Path;
use std::time::{Duration, Instant};

/// Ranks as torchrun starts them on one host.
fn by_torchrun(ranks: u32, arguments: &[&str]) -> Result<Job> {
    let script = format!(
        "export WORLD_SIZE={ranks} LOCAL_WORLD_SIZE={ranks} GROUP_RANK=0 MASTER_ADDR=localhost \
         MASTER_PORT=29500 TORCHELASTIC_RUN_ID=bench-$$ TORCHELASTIC_RESTART_COUNT=0\n\
         for rank in $(seq 0 $((WORLD_SIZE - 1))); do\n  RANK=$rank LOCAL_RANK=$rank \"$@\" &\n\
         done\nwait"
    );
    let job = Job::plain(Path::new("/bin/sh")).args(["-c", &script, "sh"]);
    Ok(job.arg(bench()?).args(arguments))
}

#[test]
fn other_launchers_start_ranks() -> Result<()> {
    let job = by_torchrun(2, &["write-lat", "-s", "8", "--json"])?.args(FEW);
    let rows = objects(&job.run()?.success()?)?;
    assert_eq!(rows.len(), 2, "{rows:?}");
    demand(rows[0]["ranks"] == 2 && rows[0]["errors"] == 0, "two ranks", &rows[0])?;
    let outcome = by_torchrun(2, &["barrier", "-n", "3"])?.run()?.says("a rank of a job of 2")?;
    // Once for all ranks.
    assert_eq!(outcome.stderr.matches("a rank of a job of 2").count(), 1, "{}", outcome.stderr);
    by_torchrun(2, &["scale"])?.run()?.says("run it without a launcher")?;
    // The shell of a batch system is no rank.
    let shell = alone(&["barrier", "-n", "2", "--json"])?.args(FEW);
    let shell = shell.env("RANK", "0").env("WORLD_SIZE", "1");
    let rows = objects(&shell.run()?.success()?)?;
    demand(rows[0]["ranks"] == 2, "a job within the shell", &rows[0])
}

#[test]
fn ranks_that_were_given_one_core_share_it() -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let core = list.and_then(|list| list.trim().split([',', '-']).next()).unwrap_or("0");
    for bind in ["core", "none"] {
        let on_one = |more: &[&str]| -> Result<Job> {
            let job = Job::plain(Path::new("taskset")).args(["-c", core]).arg(bench()?);
            Ok(job.args(["barrier", "-n", "3", "--bind", bind]).args(more).args(FEW))
        };
        let rows = objects(&on_one(&["--json"])?.run()?.success()?)?;
        demand(rows[0]["limit"] == "3 x yield switch", "its limit", &rows[0])?;
        on_one(&TCP)?.run()?.success()?;
        let outcome = on_one(&[])?.run()?.success()?;
        let said = outcome.stdout.contains("# cores     1 usable core; rank 0 on core ");
        assert!(said, "{}", outcome.stdout);
    }
    Ok(())
}

#[test]
fn writes_beside_uneven_blocks_are_the_same_on_all_ranks() -> Result<()> {
    for operation in ["alltoallv", "allgatherv"] {
        let arguments = [&[operation, "--point-to-point", "-s", "120K"][..], &FEW].concat();
        let rows = rows(3, &arguments)?;
        demand(number(&rows[0], "of_limit")? > 0.0, "a share of writes", &rows[0])?;
    }
    Ok(())
}

#[test]
fn a_rank_without_peers_has_talked_to_all() -> Result<()> {
    let arguments = ["init", "--no-cycles", "--peers", "-n", "1"];
    let rows = objects(&launched(1, &arguments)?.arg("--json").run()?.success()?)?;
    let row = rows.iter().find(|row| row["variant"] == "private, peers talked to");
    let row = row.ok_or_else(|| Failed(format!("no such row: {rows:?}")))?;
    demand(number(row, "resident_bytes")? > 4096.0, "no program has less", row)?;
    alone(&["init", "-n", "32768", "--peers"])?.run()?.code(2)?.says("-n 32767 at most")?;
    Ok(())
}

#[test]
fn jobs_end_with_the_command_that_started_them() -> Result<()> {
    for arguments in [&["scale", "-n", "2"][..], &["init", "-n", "2"]] {
        let job = alone(arguments)?.limit(Duration::from_secs(40)).start()?;
        // It cannot come to its end by itself.
        job.rank(1)?.signal(libc::SIGSTOP)?;
        let own = job.processes().into_iter().find(|process| process.pid == job.pid());
        own.ok_or_else(|| Failed("it has ended".into()))?.signal(libc::SIGTERM)?;
        let end = Instant::now() + Duration::from_secs(20);
        while !job.processes().is_empty() {
            assert!(Instant::now() < end, "{arguments:?}: processes are left");
            std::thread::yield_now();
        }
    }
    Ok(())
}
