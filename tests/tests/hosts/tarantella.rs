//! The command `tarantella` with a host file, over a real ssh: a script of plain Python, and, where
//! GASPI_TEST_TRAINING names an environment with TensorFlow, the training of an example.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gaspi_tests::hosts::{Hosts, Options};
use gaspi_tests::{Job, Result, build_directory};
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::job::hosts;
use crate::{expect, root_trial};

/// Names an environment of Python in which the wheel and TensorFlow are installed.
const ENVIRONMENT: &str = "GASPI_TEST_TRAINING";
/// An end by SIGTERM.
const TERMINATED: i32 = 143;
/// A host could not be reached.
const HOST_LOST: i32 = 255;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        root_trial("tarantella/host-file", host_file),
        root_trial("tarantella/hosts-are-asked-for-devices", asked),
        root_trial("tarantella/cleanup-on-all-hosts", cleanup),
        root_trial("tarantella/host-that-nobody-knows", unreachable),
    ];
    if let Some(environment) = std::env::var_os(ENVIRONMENT) {
        let environment = PathBuf::from(environment);
        trials.push(root_trial("training/two-hosts", move || training(&environment)));
    }
    trials
}

/// A script of the checkout.
fn checkout(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// A directory with a host file and a script, which all hosts see.
fn folder(host_file: &str, script: &str) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    std::fs::File::create(folder.path().join("hosts"))?.write_all(host_file.as_bytes())?;
    std::fs::File::create(folder.path().join("script.py"))?.write_all(script.as_bytes())?;
    Ok(folder)
}

/// The command on the first host, in this folder.
fn command(hosts: &Hosts, folder: &Path, arguments: &[&str]) -> Result<Job> {
    let job = Job::plain(Path::new("python3")).arg(checkout("python/tarantella_cli.py"));
    let job = job.args(arguments).env("GASPI_TOOLS", build_directory()?).directory(folder);
    Ok(job.limit(Duration::from_secs(90)).on(&hosts[0]))
}

const SHOW: &str = "import os, socket, sys\n\
    rank, host = os.environ['GASPI_RANK'], socket.gethostname()\n\
    print('rank', rank, 'on', host, sys.argv[1:], os.getcwd())\n";

fn host_file() -> Result<()> {
    let hosts = hosts(3, Options::default())?;
    let folder = folder("bee # first\n\ncow\n", SHOW)?;
    let options = ["--hostfile", "hosts", "--n-per-node=2", "-n", "3", "--no-gpu"];
    let arguments = [&options[..], &["--", "script.py", "a b", "-n"]].concat();
    let outcome = command(&hosts, folder.path(), &arguments)?.run()?.success()?;
    for (rank, host) in ["bee", "bee", "cow"].into_iter().enumerate() {
        let place = folder.path().display();
        outcome.clone().says(&format!("rank {rank} on {host} ['a b', '-n'] {place}"))?;
    }
    expect(!outcome.stdout.contains("rank 3"), "there is a fourth rank")?;
    hosts.await_idle()
}

fn asked() -> Result<()> {
    let hosts = hosts(2, Options::default())?;
    let folder = folder("bee\nant\n", SHOW)?;
    let outcome =
        command(&hosts, folder.path(), &["-m", "hosts", "script.py"])?.run()?.success()?;
    let outcome = outcome.says("no GPU was found on bee, ant: one rank on the CPU")?;
    outcome.says("rank 0 on bee")?.says("rank 1 on ant")?;
    hosts.await_idle()
}

fn cleanup() -> Result<()> {
    let hosts = hosts(2, Options::default())?;
    let script = "import time\nprint('here', flush=True)\ntime.sleep(1000)\n";
    let folder = folder("ant\nbee\n", script)?;
    let options = ["--hostfile", "hosts", "--no-gpu", "script.py"];
    let job = command(&hosts, folder.path(), &options)?.start()?;
    job.lines("here", 2)?;
    let other = ["--cleanup", "--hostfile=hosts", "--", "other.py"];
    command(&hosts, folder.path(), &other)?.run()?.success()?;
    let options = ["--cleanup", "--hostfile=hosts", "--", "script.py"];
    command(&hosts, folder.path(), &options)?.run()?.success()?.says("ended by SIGTERM")?;
    job.wait()?.code(TERMINATED)?;
    hosts.await_idle()
}

fn unreachable() -> Result<()> {
    let hosts = hosts(2, Options::default())?;
    let folder = folder("ant\nnobody\n", SHOW)?;
    let options = ["--hostfile", "hosts", "--no-gpu", "script.py"];
    let outcome = command(&hosts, folder.path(), &options)?.run()?.code(HOST_LOST)?;
    let outcome = outcome.says("nobody")?.says("resolve")?;
    expect(!outcome.stdout.contains("rank"), "a rank was started")?;
    hosts.await_idle()
}

/// LeNet-5 on two hosts, by what a user has installed.
fn training(environment: &Path) -> Result<()> {
    let hosts = hosts(2, Options::default())?;
    let folder = folder("bee\nant\n", "")?;
    let job = Job::plain(&environment.join("bin/tarantella"));
    let job = job.args(["--hostfile", "hosts", "--no-gpu", "--n-per-node", "1", "--"]);
    let job = job.arg(checkout("python/examples/lenet5_digits.py")).arg("--quick");
    let job = job.directory(folder.path()).limit(Duration::from_secs(600)).on(&hosts[0]);
    job.run()?.success()?.says("2 ranks: loss")?;
    hosts.await_idle()
}
