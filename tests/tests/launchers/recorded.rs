//! Launchers that are not here: ranks are started with the variables that these set.

use gaspi_tests::hosts::{Host, Hosts, Options};
use gaspi_tests::{Job, Result, Running, gaspi_run};
use libtest_mimic::Trial;
use std::os::unix::process::ExitStatusExt;
use std::time::Instant;
use tempfile::TempDir;

use crate::deaths::KNOWN;
use crate::programs::{MpiLibrary, meet, silent_munge, slow_pmix};
use crate::{expect_met, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("torchrun/two-hosts-and-again", torchrun),
        trial("torchrun/master-port-is-taken", master_port),
        trial("torchrun/rank-that-dies", death),
        trial("torchrun/rank-that-is-killed", kill),
        trial("torchrun/cleanup", cleanup),
        trial("kubernetes/name-that-resolves-late", kubernetes),
        trial("half-an-environment", half),
        trial("pmix/server-that-answers-late", late_server),
        trial("slurm/munged-that-does-not-answer", silent_daemon),
    ]
}

fn start(host: &Host, variables: &[(&str, String)], letters: &str) -> Result<Running> {
    let mut job = Job::plain(&meet(MpiLibrary::None)?).arg(letters).on(host);
    for (name, value) in variables {
        job = job.env(name, value.clone());
    }
    job.start()
}

/// Demands that each rank succeeds, as the one of all lines.
fn all_met(ranks: Vec<Running>, times: usize) -> Result<()> {
    let size = ranks.len();
    let mut all = None;
    for rank in ranks {
        let outcome = rank.wait()?.success()?;
        let all = all.get_or_insert_with(|| outcome.clone());
        if all.stdout != outcome.stdout {
            all.stdout.push_str(&outcome.stdout);
        }
    }
    all.map_or(Ok(()), |all| expect_met(all, size, times))
}

/// As torchrun 2.9 sets them with two nodes of two.
fn torchrun_rank(hosts: &Hosts, rank: usize, restarts: u32) -> Vec<(&'static str, String)> {
    vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", "4".to_owned()),
        ("LOCAL_RANK", (rank % 2).to_string()),
        ("LOCAL_WORLD_SIZE", "2".to_owned()),
        ("GROUP_RANK", (rank / 2).to_string()),
        ("ROLE_RANK", rank.to_string()),
        ("ROLE_NAME", "default".to_owned()),
        ("MASTER_ADDR", hosts[0].name().to_owned()),
        ("MASTER_PORT", "29500".to_owned()),
        ("TORCHELASTIC_RUN_ID", "none".to_owned()),
        ("TORCHELASTIC_RESTART_COUNT", restarts.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", "3".to_owned()),
    ]
}

/// An agent counts the failures of its own ranks only.
fn torchrun() -> Result<()> {
    let hosts = Hosts::new(2, Options::default())?;
    for restarts in [[0, 0], [1, 0]] {
        let variables = |rank: usize| torchrun_rank(&hosts, rank, restarts[rank / 2]);
        let ranks: Result<Vec<Running>> =
            (0..4).map(|rank| start(&hosts[rank / 2], &variables(rank), "GgGg")).collect();
        all_met(ranks?, 2)?;
    }
    hosts.await_idle()
}

/// Two ranks on this many hosts, each of which does what the letters behind a common start say.
fn two_ranks(
    hosts: &Hosts,
    letters: [&str; 2],
    more: &[(&'static str, String)],
) -> Result<[Running; 2]> {
    let sizes = [("WORLD_SIZE", 2), ("LOCAL_WORLD_SIZE", 2 / hosts.len())];
    let rank = |rank: usize| {
        let mut variables = torchrun_rank(hosts, rank, 0);
        for (name, value) in &mut variables {
            if let Some((_, size)) = sizes.iter().find(|(changed, _)| changed == name) {
                *value = size.to_string();
            }
        }
        variables.extend_from_slice(more);
        start(&hosts[rank % hosts.len()], &variables, letters[rank])
    };
    Ok([rank(0)?, rank(1)?])
}

/// Without gaspi_run a death is known in time too: on the same host and on another one.
fn death() -> Result<()> {
    for count in [1, 2] {
        let hosts = Hosts::new(count, Options::default())?;
        let [lives, dies] = two_ranks(&hosts, ["GW", "GD"], &[])?;
        let outcome = dies.wait()?;
        assert_eq!(outcome.status.signal(), Some(libc::SIGKILL), "{}", outcome.stderr);
        let died = Instant::now();
        let outcome = lives.wait()?.success()?.says("rank 1")?;
        assert!(died.elapsed() < KNOWN, "{:?}: {}", died.elapsed(), outcome.stdout);
    }
    Ok(())
}

/// gaspi_proc_kill without gaspi_run: the library of the other rank obeys.
fn kill() -> Result<()> {
    for count in [1, 2] {
        let hosts = Hosts::new(count, Options::default())?;
        let [kills, ends] = two_ranks(&hosts, ["GK", "GW"], &[])?;
        kills.wait()?.success()?;
        ends.wait()?.code(255)?;
    }
    Ok(())
}

/// gaspi_cleanup finds ranks whose environment has nothing of GASPI.
fn cleanup() -> Result<()> {
    let hosts = Hosts::new(1, Options::default())?;
    let own = format!("cleanup-{}", std::process::id());
    let ranks = two_ranks(&hosts, ["GP", "GP"], &[("CLEANED_UP", own.clone())])?;
    ranks[0].lines("rank 0 of 2", 1)?;
    ranks[1].lines("rank 1 of 2", 1)?;
    let with = format!("CLEANED_UP={own}");
    let tool = gaspi_run()?.with_file_name("gaspi_cleanup");
    let cleanup = |option: &str| Job::plain(&tool).args([option, "--with", &with]).run();
    let listed = cleanup("--check")?.success()?.stdout;
    for (rank, process) in ranks.iter().enumerate() {
        let line = format!("pid {} rank {rank}: started without gaspi_run: ", process.pid());
        assert_eq!(listed.matches(&line).count(), 1, "{line}: {listed}");
    }
    let jobs: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert!(jobs.len() == 2 && jobs[0] == jobs[1], "one job: {listed}");
    let ended = cleanup("--all")?.success()?.stdout;
    assert_eq!(ended.matches("ended by SIGTERM").count(), 2, "{ended}");
    for rank in ranks {
        assert_eq!(rank.wait()?.status.signal(), Some(libc::SIGTERM));
    }
    Ok(())
}

/// torchrun's own store listens there.
fn master_port() -> Result<()> {
    let hosts = Hosts::new(2, Options::default())?;
    let _store = hosts[0].inside(|| std::net::TcpListener::bind("0.0.0.0:29500"))??;
    let ranks: Result<Vec<Running>> =
        (0..4).map(|rank| start(&hosts[rank / 2], &torchrun_rank(&hosts, rank, 0), "Gg")).collect();
    all_met(ranks?, 1)
}

/// A pod's name is known only after the others have begun to ask for it.
fn kubernetes() -> Result<()> {
    let hosts = Hosts::new(2, Options::default())?;
    let pod = |index: usize| {
        vec![
            ("JOB_COMPLETION_INDEX", index.to_string()),
            ("GASPI_NRANKS", "2".to_owned()),
            ("GASPI_MEETING", "tcp:heat-0.heat:4711".to_owned()),
            ("GASPI_LOG", "debug".to_owned()),
        ]
    };
    let second = start(&hosts[1], &pod(1), "GgGg")?;
    second.complains("looking up heat-0.heat")?;
    let first = start(&hosts[0], &pod(0), "GgGg")?;
    let address = hosts[0].ipv4();
    let line = format!("echo {address} heat-0.heat >> /etc/hosts");
    hosts[1].output(std::process::Command::new("sh").args(["-c", &line]))?;
    all_met(vec![first, second], 2)
}

/// Never a job of one rank.
fn half() -> Result<()> {
    let hosts = Hosts::new(1, Options::default())?;
    for (variables, why) in [
        (&[("PMI_RANK", "0"), ("PMI_SIZE", "4")][..], "but not PMI_FD"),
        (&[("PMI_RANK", "0"), ("PMI_SIZE", "4"), ("PMI_FD", "1000")], "PMI_FD=1000 cannot be used"),
        (&[("PMI_RANK", "0"), ("PMI_SIZE", "4"), ("PMI_FD", "0")], "it is no socket"),
        (&[("PMIX_RANK", "0")], "PMIX_RANK is set but PMIX_NAMESPACE is not"),
        (&[("RANK", "0"), ("WORLD_SIZE", "4")], "but not MASTER_ADDR"),
        (&[("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1"), ("SLURM_NTASKS", "4")], "SLURM_JOB_ID"),
        (&[("JOB_COMPLETION_INDEX", "1"), ("GASPI_NRANKS", "4")], "GASPI_MEETING does not say"),
    ] {
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let outcome = start(&hosts[0], &variables, "Gg")?.wait()?.code(7)?;
        outcome.says(why)?;
    }
    Ok(())
}

/// proc_init ends by its timeout while PMIx_Init waits, and the next one goes on with it.
fn late_server() -> Result<()> {
    let (hosts, files) = (Hosts::new(1, Options::default())?, TempDir::new()?);
    let answers = files.path().join("answers").display().to_string();
    let variables = [
        ("PMIX_RANK", "0".to_owned()),
        ("PMIX_NAMESPACE", "stub".to_owned()),
        ("GASPI_PMIX_LIB", slow_pmix()?.display().to_string()),
        ("PMIX_STUB_ANSWERS", answers),
    ];
    let outcome = start(&hosts[0], &variables, "TTAGg")?.wait()?.success()?;
    let waits = "the PMIx server of this host to tell the place of this process in its job";
    assert_eq!(outcome.stdout.matches(waits).count(), 2, "{}", outcome.stdout);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.last(), Some(&"rank 0 of 1 heard 0"), "{}", outcome.stdout);
    Ok(())
}

/// proc_init ends by its timeout while munge is waited for, and the next one by an error that names
/// it: on the host of the meeting and on the other one.
fn silent_daemon() -> Result<()> {
    let hosts = Hosts::new(2, Options::default())?;
    let list = format!("{},{}", hosts[0].name(), hosts[1].name());
    let rank = |rank: usize| {
        let variables = [
            ("SLURM_JOB_ID", "77".to_owned()),
            ("SLURM_STEP_ID", "0".to_owned()),
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_LOCALID", "0".to_owned()),
            ("SLURM_STEP_NUM_TASKS", "2".to_owned()),
            ("SLURM_STEP_NUM_NODES", "2".to_owned()),
            ("SLURM_STEP_NODELIST", list.clone()),
            ("SLURMD_NODENAME", hosts[rank].name().to_owned()),
            ("XDG_CONFIG_HOME", "/nonexistent".to_owned()),
            ("LD_LIBRARY_PATH", silent_munge()?.display().to_string()),
        ];
        start(&hosts[rank], &variables, "TF")
    };
    for rank in [rank(0)?, rank(1)?] {
        let outcome = rank.wait()?.success()?;
        let lines: Vec<&str> = outcome.stdout.lines().collect();
        let named = lines.iter().filter(|line| line.contains("munged does not answer")).count();
        assert_eq!((lines.len(), named), (2, 2), "{}", outcome.stdout);
    }
    Ok(())
}
