//! Agents that one program starts on all hosts, or one each, and that call gaspi_run back: over a
//! network, with hosts that vanish. The programs take the arguments of srun or blaunch, and work by
//! ssh, which they run as a child: no socket of theirs shows that a host is gone.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gaspi_tests::hosts::{Hosts, Options, ssh_config};
use gaspi_tests::victims::Killed;
use gaspi_tests::{Job, Process, Result};
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::job::{expect_finished, hosts, launch, rounds, victim};
use crate::launched::{HOST_LOST, LINGERS, lose_launcher, with_line};
use crate::{GUARD, TRAPPED, expect, failed, root_trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        root_trial("srun/two-hosts", || {
            rounds_on(Options::default(), &["--hosts", "ant:2,bee:2,cow"], 5)
        }),
        root_trial("srun/equal-addresses-and-own-name", || {
            rounds_on(TRAPPED, &["--hosts", "bee,cow:2"], 3)
        }),
        root_trial("srun/no-way-back", no_way_back),
        root_trial("ssh/tree", tree),
        root_trial("ssh/tree-without-its-ssh", without_ssh),
        root_trial("srun/host-that-vanishes", || vanish(&Program::srun()?)),
        root_trial("blaunch/rounds", by_blaunch),
        root_trial("blaunch/host-that-vanishes", || vanish(&Program::blaunch()?)),
        root_trial("blaunch/host-that-vanishes-ends-the-job", vanish_and_end),
        root_trial("blaunch/no-way-back", blaunch_without_way_back),
        root_trial("blaunch/launcher-that-vanishes", || {
            let (hosts, blaunch) = (hosts(3, Options::default())?, Program::blaunch()?);
            let job = blaunch.job(&hosts, &["--hosts", "bee:2,cow"], Path::new("sh"), &LINGERS)?;
            lose_launcher(&hosts, job.start()?, 3, || hosts.cut(0))
        }),
        root_trial("srun/launcher-that-vanishes", launcher_vanishes),
        root_trial("srun/launcher-that-is-stopped", stopped),
    ]
}

/// Lines of each rank, which are more bytes than all that is on the way may be.
const LINES: usize = 500_000;

/// What comes in goes to a file if it is for several; the words of the command go by another one,
/// since ssh takes a line.
const SRUN: &str = r#"#!/bin/sh
many=
while [ $# -gt 0 ]; do
  case $1 in --nodelist=*) hosts=${1#*=} ;; --input=all) many=1 ;; -*) ;; *) break ;; esac
  shift
done
words=$(mktemp @DIRECTORY@/words.XXXXXX)
printf '%s\0' "$@" > "$words"
line() { echo "SLURMD_NODENAME=$1 xargs -0 -a $words env"; }
echo "$hosts" >> @DIRECTORY@/calls
if [ -z "$many" ]; then exec ssh -T -F @CONFIG@ "$hosts" "$(line "$hosts")"; fi
input=$(mktemp @DIRECTORY@/input.XXXXXX)
cat > "$input"
for host in $(echo "$hosts" | tr , ' '); do
  ssh -T -F @CONFIG@ "$host" "$(line "$host")" < "$input" & children="$children $!"
done
trap 'kill $children' TERM
wait
"#;

const BLAUNCH: &str = r#"#!/bin/sh
host=$1; shift
echo "$host" >> @DIRECTORY@/calls
setpriv --pdeathsig KILL ssh -T -F @CONFIG@ "$host" "$*"
exit $?
"#;

/// Such a program.
struct Program {
    directory: TempDir,
    name: &'static str,
}

impl Program {
    fn srun() -> Result<Program> {
        Program::new("srun", SRUN)
    }

    fn blaunch() -> Result<Program> {
        Program::new("blaunch", BLAUNCH)
    }

    fn new(name: &'static str, text: &str) -> Result<Program> {
        let directory = TempDir::new()?;
        let text = text
            .replace("@DIRECTORY@", &directory.path().display().to_string())
            .replace("@CONFIG@", &ssh_config()?.display().to_string());
        let path = directory.path().join(name);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(Program { directory, name })
    }

    /// gaspi_run on the first host, with this program and these options.
    fn job(&self, hosts: &Hosts, options: &[&str], program: &Path, rest: &[&str]) -> Result<Job> {
        let path = self.directory.path().join(self.name).display().to_string();
        let options = [&["--ssh", &path], options].concat();
        Ok(launch(hosts, 0, &options, program, rest)?.env("GASPI_LOG", "info"))
    }

    /// The hosts that it was called for, a line for each call.
    fn calls(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.directory.path().join("calls"))?)
    }
}

fn rounds_on(options: Options, list: &[&str], ranks: usize) -> Result<()> {
    let (hosts, srun) = (hosts(3, options)?, Program::srun()?);
    let outcome = srun.job(&hosts, list, &rounds(), &["60"])?.run()?;
    expect_finished(outcome, ranks)?;
    expect(srun.calls()? == "bee,cow\n", format!("it was called for {}", srun.calls()?))?;
    hosts.await_idle()
}

/// Each host that was started starts one more, by a real ssh.
fn tree() -> Result<()> {
    let hosts = hosts(4, Options::default())?;
    let options = ["--tree=1", "--hosts", "ant,bee:2,cow,dog"];
    let job = launch(&hosts, 0, &options, &rounds(), &["60"])?.env("GASPI_LOG", "info");
    let outcome = job.run()?;
    let outcome = outcome.says("one ssh starts gaspi_run on bee, to call back")?;
    let outcome = outcome.says("host bee starts gaspi_run on cow, to call back")?;
    let outcome = outcome.says("host cow starts gaspi_run on dog, to call back")?;
    let alone = outcome.stderr.contains("tried by itself");
    expect(!alone, outcome.failure("a host did not call back").0)?;
    expect_finished(outcome, 5)?;
    hosts.await_idle()
}

/// Agents that have called go on without the ssh that has started them.
fn without_ssh() -> Result<()> {
    let (hosts, files) = (hosts(3, Options::default())?, TempDir::new()?);
    let gate = gate(&files)?;
    let script = format!("exec 3<> {}; echo ready; read line <&3; hostname", gate.display());
    let options = ["--tree=1", "--hosts", "bee,cow"];
    let job = launch(&hosts, 0, &options, Path::new("sh"), &["-c", &script])?.start()?;
    job.lines("ready", 2)?;
    let shells = || with_line(&hosts, |line| line.starts_with("ssh\0"));
    let found = shells();
    expect(found.len() == 2, format!("{} of 2 ssh were found", found.len()))?;
    found.iter().try_for_each(|shell| shell.signal(libc::SIGKILL))?;
    let end = Instant::now() + GUARD;
    while !shells().is_empty() {
        expect(Instant::now() < end, "an ssh is left")?;
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::OpenOptions::new().write(true).open(&gate)?.write_all(b"go\ngo\n")?;
    job.wait()?.success()?.says("bee")?.says("cow")?;
    hosts.await_idle()
}

/// A FIFO at which ranks wait.
pub(crate) fn gate(directory: &TempDir) -> Result<PathBuf> {
    let gate = directory.path().join("gate");
    let made = Command::new("mkfifo").arg(&gate).status()?;
    expect(made.success(), "mkfifo failed")?;
    Ok(gate)
}

/// The only address that gaspi_run may offer leads nowhere: each host is reached by itself.
fn no_way_back() -> Result<()> {
    let (hosts, srun) = (hosts(3, TRAPPED)?, Program::srun()?);
    let script = "echo rank $GASPI_RANK on $(hostname)";
    let job = srun.job(&hosts, &["--hosts", "bee,cow"], Path::new("sh"), &["-c", script])?;
    let outcome = job.env("GASPI_SUBNET", "172.17.0.0/16").run()?.success()?;
    let outcome = outcome.says("rank 0 on bee")?.says("rank 1 on cow")?;
    outcome.says("host bee: 172.17.0.1:")?.says("it is tried by itself")?;
    let mut calls: Vec<String> = srun.calls()?.lines().map(str::to_owned).collect();
    calls.sort_unstable();
    expect(calls == ["bee", "bee,cow", "cow"], format!("it was called for {calls:?}"))?;
    hosts.await_idle()
}

/// gaspi_run itself notices that a host is gone, without a word of the program.
fn vanish(by: &Program) -> Result<()> {
    let hosts = hosts(3, Options::default())?;
    let list = ["--hosts", "ant,bee,cow:2"];
    let job = by.job(&hosts, &list, &victim(), &["die", "barrier", "1"])?.start()?;
    job.lines("ready ", 4)?;
    let vanished = Killed::now(&[1]);
    hosts.power_off(1)?;
    let outcome = job.wait()?;
    // Ten times the 5 s for which a silent host is waited for.
    vanished.expect_survivors(&outcome, 4, Duration::from_secs(50))?;
    outcome.says("host bee was lost: its machine has not answered")?;
    hosts.await_idle()
}

/// Agents of a program for one host each.
fn by_blaunch() -> Result<()> {
    let (hosts, blaunch) = (hosts(3, TRAPPED)?, Program::blaunch()?);
    let job = blaunch.job(&hosts, &["--hosts", "ant:2,bee:2,cow"], &rounds(), &["5"])?;
    let outcome = job.run()?;
    for host in ["bee", "cow"] {
        outcome.clone().says(&format!("host {host}: its agent has called back"))?;
    }
    expect_finished(outcome, 5)?;
    expect(blaunch.calls()?.lines().count() == 2, "it was not called once for each host")?;
    hosts.await_idle()
}

/// Ranks that are not in touch with others are ended when a host is gone.
fn vanish_and_end() -> Result<()> {
    let (hosts, blaunch) = (hosts(3, Options::default())?, Program::blaunch()?);
    let options = ["--kill-on-failure", "--hosts", "ant,bee,cow"];
    let job = blaunch.job(&hosts, &options, Path::new("sh"), &LINGERS)?;
    let job = job.env("GASPI_DEAD_AFTER", "3").start()?;
    job.lines("ready ", 3)?;
    let start = Instant::now();
    hosts.power_off(1)?;
    let outcome = job.wait()?.code(HOST_LOST)?;
    // Ten times as long as a silent host is waited for.
    expect(start.elapsed() < Duration::from_secs(30), outcome.failure("that took long").0)?;
    let outcome = outcome.says("host bee was lost: its machine has not answered for ")?;
    outcome.says("rank 1 failed: ending the job (--kill-on-failure)")?;
    hosts.await_idle()
}

/// What a host sends to begin a connection is lost.
const LOSES_SYN: &str = "
table inet back {
    chain out {
        type filter hook output priority 0;
        oifname eth0 tcp flags & (syn | ack) == syn drop
    }
}";

/// What other hosts send to begin a connection is lost: their agents speak by the pipes after a
/// short time.
fn blaunch_without_way_back() -> Result<()> {
    let (hosts, blaunch) = (hosts(3, Options::default())?, Program::blaunch()?);
    for host in hosts.iter().skip(1) {
        host.output(Command::new("nft").arg(LOSES_SYN))?;
    }
    let script = "echo rank $GASPI_RANK on $(hostname)";
    let job = blaunch.job(&hosts, &["--hosts", "ant,bee,cow"], Path::new("sh"), &["-c", script])?;
    let start = Instant::now();
    let outcome = job.run()?.success()?;
    // Ten times as long as agents try.
    expect(start.elapsed() < Duration::from_secs(30), outcome.failure("that took long").0)?;
    for (rank, host) in ["ant", "bee", "cow"].into_iter().enumerate() {
        outcome.clone().says(&format!("rank {rank} on {host}"))?;
    }
    for host in ["bee", "cow"] {
        outcome.clone().says(&format!("host {host}: its agent cannot call back: "))?;
    }
    expect(blaunch.calls()?.lines().count() == 2, "it was not called once for each host")?;
    hosts.await_idle()
}

/// The machine of gaspi_run is gone without a word, and srun with it.
fn launcher_vanishes() -> Result<()> {
    let (hosts, srun) = (hosts(3, Options::default())?, Program::srun()?);
    let job = srun.job(&hosts, &["--hosts", "bee:2,cow"], Path::new("sh"), &LINGERS)?;
    lose_launcher(&hosts, job.start()?, 3, || hosts.cut(0))
}

/// The processes of gaspi_run itself, or those of its agents.
fn tools(hosts: &Hosts, agents: bool) -> Vec<Process> {
    with_line(hosts, |line| {
        let program = line.split('\0').next().unwrap_or_default();
        program.ends_with("/gaspi_run") && line.contains("--agent") == agents
    })
}

/// gaspi_run does not read for longer than a silent machine is waited for, and the windows of its
/// connections are full: its kernel answers, so nothing ends.
fn stopped() -> Result<()> {
    let (hosts, srun) = (hosts(3, Options::default())?, Program::srun()?);
    let gate = gate(&srun.directory)?;
    let script = format!("exec 3<> {}; echo ready; read line <&3; seq {LINES}", gate.display());
    let job = srun.job(&hosts, &["--hosts", "bee,cow"], Path::new("sh"), &["-c", &script])?;
    let job = job.env("GASPI_DEAD_AFTER", "3").start()?;
    job.lines("ready", 2)?;
    let launcher = tools(&hosts, false);
    let [launcher] = &launcher[..] else { return Err(failed("not one gaspi_run was found")) };
    launcher.signal(libc::SIGSTOP)?;
    std::fs::OpenOptions::new().write(true).open(&gate)?.write_all(b"go\ngo\n")?;
    // The time in question: the kernel asks for room after pauses that double. After some 6 s it is
    // silent for longer than that.
    std::thread::sleep(Duration::from_secs(11));
    let agents = tools(&hosts, true).len();
    launcher.signal(libc::SIGCONT)?;
    expect(agents == 2, format!("{agents} of 2 agents are left"))?;
    let outcome = job.wait()?.success()?;
    let lines = outcome.stdout.lines().count();
    expect(lines == 2 * (LINES + 1), format!("{lines} lines came"))?;
    hosts.await_idle()
}
