//! One host of several has no room on its disks, or may not write there.

use std::path::{Path, PathBuf};
use std::process::Command;

use gaspi_tests::hosts::{Host, Hosts, Options};
use gaspi_tests::{Result, gaspi_run};
use libtest_mimic::Trial;

use crate::job::{expect_finished, hosts, rounds, start};
use crate::launched::HOST_LOST;
use crate::{expect, root_trial};

/// What gaspi_run ends with when it could not do its own work.
const LAUNCHER_FAILED: i32 = 125;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        root_trial("disks/nothing-is-written-where-all-is-installed", installed),
        root_trial("disks/room-is-looked-for", room_is_looked_for),
        root_trial("disks/no-room-at-all", no_room),
        root_trial("disks/no-room-for-output", no_room_for_output),
    ]
}

fn mount(host: &Host, arguments: &[&str], place: &Path) -> Result<()> {
    host.inside(|| {
        let status = Command::new("mount").args(arguments).arg(place).status()?;
        expect(status.success(), format!("mount {arguments:?} {}: {status}", place.display()))
    })?
}

/// What lies in a directory stays as it is.
fn make_read_only(host: &Host, place: &Path) -> Result<()> {
    mount(host, &["--bind", &place.display().to_string()], place)?;
    mount(host, &["-o", "remount,bind,ro"], place)
}

/// There is a page of room, which is enough for a few bytes.
fn fill(host: &Host, place: &Path) -> Result<()> {
    mount(host, &["-t", "tmpfs", "-o", "size=4k", "none"], place)
}

/// gaspi_run has to be carried to the host.
fn uninstall(host: &Host) -> Result<()> {
    mount(host, &["--bind", "/dev/null"], &gaspi_run()?)
}

/// The home directory of a login, which has no room but for what ssh keeps there.
fn fill_home(host: &Host) -> Result<String> {
    let home = host.output(Command::new("ssh").args([host.name(), "echo $HOME"]))?;
    let home = PathBuf::from(home.trim());
    let (keys, aside) = (home.join(".ssh"), Path::new("/mnt"));
    mount(host, &["--bind", &keys.display().to_string()], aside)?;
    fill(host, &home)?;
    host.inside(|| std::fs::create_dir(&keys))??;
    mount(host, &["--bind", "/mnt"], &keys)?;
    Ok(home.display().to_string())
}

/// Neither gaspi_run nor its agents nor ranks need a disk.
fn installed() -> Result<()> {
    let hosts = hosts(2, Options::default())?;
    for host in hosts.iter() {
        fill(host, Path::new("/dev/shm"))?;
        fill(host, Path::new("/var/tmp"))?;
        make_read_only(host, Path::new("/tmp"))?;
        fill_home(host)?;
    }
    let job = start(&hosts, &["--hosts", "ant:2,bee:2"], &rounds(), &["1"])?;
    expect_finished(job.wait()?, 4)?;
    hosts.await_idle()
}

/// A directory that takes a few bytes only is none for gaspi_run.
fn room_is_looked_for() -> Result<()> {
    let hosts = hosts(2, Options::default())?;
    uninstall(&hosts[1])?;
    make_read_only(&hosts[1], Path::new("/tmp"))?;
    fill(&hosts[1], Path::new("/var/tmp"))?;
    let script = "readlink /proc/$PPID/exe";
    let job = start(&hosts, &["--hosts", "ant,bee"], Path::new("sh"), &["-c", script])?;
    job.wait()?.success()?.says("/dev/shm/gaspi.")?;
    hosts.await_idle()
}

/// One error that names the host and each place; nothing is started, and nothing stays.
fn no_room() -> Result<()> {
    let hosts = hosts(3, Options::default())?;
    let bee = &hosts[1];
    let home = fill_home(bee)?;
    uninstall(bee)?;
    make_read_only(bee, Path::new("/tmp"))?;
    fill(bee, Path::new("/var/tmp"))?;
    fill(bee, Path::new("/dev/shm"))?;
    let job = start(&hosts, &["--hosts", "ant,bee,cow"], Path::new("echo"), &["started"])?;
    let outcome = job.wait()?.code(HOST_LOST)?;
    let full = "No space left on device";
    let denied = "Read-only file system";
    for (place, reason) in [("/tmp", denied), ("/var/tmp", full), ("/dev/shm", full), (&home, full)]
    {
        if !outcome.stderr.contains(&format!("{place}: {reason}")) {
            return Err(outcome.failure(&format!("it was to say why {place} is none")));
        }
    }
    let begins = outcome.stderr.starts_with("gaspi_run: host bee: ");
    let is_one = begins && outcome.stderr.lines().count() == 1;
    expect(is_one, outcome.failure("it was to be one line, of the host").0)?;
    expect(!outcome.stdout.contains("started"), outcome.failure("a rank was started").0)?;
    expect_no_files(bee)?;
    hosts.await_idle()
}

fn expect_no_files(host: &Host) -> Result<()> {
    let mut find = Command::new("find");
    let found = host.output(find.args(["/var/tmp", "/dev/shm", "-name", "gaspi.*"]))?;
    expect(found.is_empty(), format!("files are left:\n{found}"))
}

/// gaspi_run writes the files of ranks on other hosts: that some cannot be written is an error.
fn no_room_for_output() -> Result<()> {
    let hosts: Hosts = hosts(2, Options::default())?;
    fill(&hosts[0], Path::new("/var/tmp"))?;
    let options = ["--output-dir", "/var/tmp/out", "--hosts", "ant,bee"];
    let script = "if [ $GASPI_RANK = 1 ]; then seq 100000; fi";
    let job = start(&hosts, &options, Path::new("sh"), &["-c", script])?;
    let outcome = job.wait()?.code(LAUNCHER_FAILED)?;
    let line = "gaspi_run: --output-dir: /var/tmp/out/rank-1.out: No space left on device";
    let is_one = outcome.stderr.starts_with(line) && outcome.stderr.lines().count() == 1;
    expect(is_one, outcome.failure("it was to say once what cannot be written").0)?;
    hosts.await_idle()
}
