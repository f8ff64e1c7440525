//! What gaspi_run does over a real ssh: hosts in any notation, what it carries, how jobs end.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use gaspi_tests::hosts::{Host, Hosts, Options};
use gaspi_tests::victims::Killed;
use gaspi_tests::{Process, Result, Running, Seed, base_seed};
use libtest_mimic::Trial;
use tempfile::{NamedTempFile, TempDir};

use crate::called_back::gate;
use crate::faults::{DEATH_KNOWN_WITHIN, hosts_of};
use crate::job::{expect_finished, hosts, launch, list, rounds, start, victim};
use crate::{ONLY_IPV6, TRAPPED, expect, failed, root_trial};

/// What gaspi_run ends with when a host could not be reached or was lost.
pub(crate) const HOST_LOST: i32 = 255;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        root_trial("ssh/two-hosts", || {
            rounds_on(&hosts(2, Options::default())?, &["--hosts", "ant:2,bee:2"], 4)
        }),
        root_trial("ssh/other-hosts-only", || {
            rounds_on(&hosts(3, Options::default())?, &["--hosts", "bee,cow:2"], 3)
        }),
        root_trial("ssh/only-ipv6", || {
            rounds_on(&hosts(2, ONLY_IPV6)?, &["--hosts", "[fd77::1],[fd77::2]:2"], 3)
        }),
        root_trial("ssh/equal-addresses-and-own-name", || {
            rounds_on(&hosts(3, TRAPPED)?, &["--hosts", "ant,bee,cow"], 3)
        }),
        root_trial("ssh/machine-file-in-any-order", machine_file),
        root_trial("ssh/one-host-in-several-spellings", || {
            let list = "bee,[fd77::2],10.77.0.2,bee,ant,cow,10.77.0.3";
            rounds_on(&hosts(3, Options::default())?, &["--hosts", list], 7)
        }),
        root_trial("ssh/32-ranks-on-4-hosts", || {
            let hosts = hosts(4, Options::default())?;
            let list = ["--hosts", "ant:8,bee:8,cow:8,dog:8"];
            let job = start(&hosts, &list, &rounds(), &["1"])?;
            expect_finished(job.wait()?, 32)?;
            hosts.await_idle()
        }),
        root_trial("ssh/what-is-carried", carried),
        root_trial("ssh/status", status),
        root_trial("ssh/host-that-nobody-knows", || unreachable("nobody", "resolve")),
        root_trial("ssh/host-without-server", || unreachable("cow", "refused")),
        root_trial("ssh/host-that-is-silent", silent_host),
        root_trial("ssh/killed-launcher", || killed("gaspi_run", &[0, 1, 1, 2])),
        root_trial("ssh/killed-agent", || killed("--agent", &[0, 1, 1, 2])),
        root_trial("ssh/killed-ssh", || killed("ssh", &[0, 1, 1, 2])),
        root_trial("ssh/killed-rank", killed_rank),
        root_trial("ssh/kill-on-failure", kill_on_failure),
        root_trial("ssh/launcher-that-vanishes", || launcher_vanishes(&[1, 1, 2], None)),
        root_trial("ssh/agents-whose-links-go-down", links_go_down),
        root_trial("ssh/host-that-vanishes", vanish),
        root_trial("ssh/server-that-has-to-wait", starved_server),
        root_trial("ssh/outage-that-ends-in-time", outage),
    ]
}

fn rounds_on(hosts: &Hosts, options: &[&str], ranks: usize) -> Result<()> {
    let outcome = start(hosts, options, &rounds(), &["60"])?.wait()?;
    expect_finished(outcome, ranks)?;
    hosts.await_idle()
}

fn machine_file() -> Result<()> {
    let hosts = hosts(3, Options::default())?;
    let mut file = NamedTempFile::new()?;
    let (ipv4, ipv6) = (hosts[1].ipv4(), hosts[2].ipv6());
    write!(file, "{ipv4}\n# nothing\n{ipv6}\nant\n\nbee\r\nant\ncow")?;
    let script = "echo rank $GASPI_RANK of $GASPI_NRANKS, the ${GASPI_SOCKET}th on $(hostname)";
    let list = ["-m", &file.path().display().to_string()];
    let outcome = start(&hosts, &list, Path::new("sh"), &["-c", script])?.wait()?.success()?;
    let places = [("bee", 0), ("cow", 0), ("ant", 0), ("bee", 1), ("ant", 1), ("cow", 1)];
    for (rank, (name, local)) in places.into_iter().enumerate() {
        outcome.clone().says(&format!("rank {rank} of 6, the {local}th on {name}"))?;
    }
    hosts.await_idle()
}

/// Environment, working directory and standard input are the same as on the launcher's host.
fn carried() -> Result<()> {
    let hosts = hosts(2, Options::default())?;
    let script = "echo $GASPI_RANK $(hostname) $PWD \"$CARRIED\" $LD_LIBRARY_PATH; \
                  if [ $GASPI_RANK = 0 ]; then tr a-z A-Z; fi";
    let outcome = launch(&hosts, 0, &["--hosts", "bee,ant"], Path::new("sh"), &["-c", script])?
        .env("CARRIED", "one  'two' $three")
        .env("LD_LIBRARY_PATH", "/opt/somewhere")
        .directory(Path::new("/usr/share"))
        .input("said to rank 0\n")
        .run()?
        .success()?;
    for (rank, host) in ["bee", "ant"].into_iter().enumerate() {
        let expected = format!("{rank} {host} /usr/share one  'two' $three /opt/somewhere");
        outcome.clone().says(&expected)?;
    }
    outcome.says("SAID TO RANK 0")?;
    hosts.await_idle()
}

fn status() -> Result<()> {
    let hosts = hosts(2, Options::default())?;
    let script = "exit $((3 * GASPI_RANK))";
    let job = start(&hosts, &["--hosts", "ant,bee"], Path::new("sh"), &["-c", script])?;
    job.wait()?.code(3)?;
    let job = start(&hosts, &["--hosts", "ant,bee"], Path::new("/no/such/program"), &[])?;
    job.wait()?.code(127)?.says("/no/such/program")?;
    hosts.await_idle()
}

/// One host of several cannot be reached: it is named with ssh's own words, and nothing starts.
fn unreachable(name: &str, words: &str) -> Result<()> {
    let hosts = Hosts::new(3, Options::default())?;
    hosts.start_sshd_on(&[0, 1])?;
    let list = format!("ant,bee,{name}");
    let job = start(&hosts, &["--hosts", &list], Path::new("echo"), &["started"])?;
    let outcome = job.wait()?.code(HOST_LOST)?.says(name)?.says(words)?;
    expect(!outcome.stdout.contains("started"), outcome.failure("a rank was started").0)?;
    hosts.await_idle()
}

fn silent_host() -> Result<()> {
    let hosts = hosts(3, Options::default())?;
    hosts.block(0, 2)?;
    let options = ["--hosts", "ant,bee,cow", "--ssh-option", "-oConnectTimeout=1"];
    let job = start(&hosts, &options, Path::new("echo"), &["started"])?;
    let outcome = job.wait()?.code(HOST_LOST)?.says("cow")?.says("timed out")?;
    expect(!outcome.stdout.contains("started"), outcome.failure("a rank was started").0)?;
    hosts.await_idle()
}

/// The processes of a job whose command lines have this word.
fn with_word(hosts: &Hosts, word: &str) -> Vec<Process> {
    with_line(hosts, |line| {
        let mut words = line.split('\0');
        words.any(|found| found == word || found.ends_with(&format!("/{word}")))
    })
}

pub(crate) fn with_line(hosts: &Hosts, is_one: impl Fn(&str) -> bool) -> Vec<Process> {
    let pids = hosts.iter().flat_map(|host| host.processes());
    let is_one = |pid: &i32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        is_one(&line.unwrap_or_default())
    };
    pids.filter(is_one).filter_map(|pid| Process::open(pid).ok()).collect()
}

/// The ssh server of a host does nothing for longer than a silent host is waited for: its kernel
/// answers, so the host lives.
fn starved_server() -> Result<()> {
    let hosts = hosts(2, Options::default())?;
    let script = "echo ready $GASPI_RANK; sleep 9";
    let job = start(&hosts, &["--hosts", "bee,ant"], Path::new("sh"), &["-c", script])?;
    job.lines("ready ", 2)?;
    let servers = with_line(&hosts, |line| line.starts_with("sshd: "));
    expect(!servers.is_empty(), "no server of a session was found")?;
    servers.iter().try_for_each(|server| server.signal(libc::SIGSTOP))?;
    // The time in question: GASPI_DEAD_AFTER and then some.
    std::thread::sleep(Duration::from_secs(7));
    let running = !with_word(&hosts, "--agent").is_empty();
    servers.iter().try_for_each(|server| server.signal(libc::SIGCONT))?;
    expect(running, "the agent of a host that lives was given up")?;
    let outcome = job.wait()?.code(0)?;
    expect(!outcome.stderr.contains("lost"), outcome.failure("a host that lives was lost").0)?;
    hosts.await_idle()
}

/// Whichever process of the launcher is killed, with `--kill-on-failure`: the job ends on all
/// hosts, and nothing is left.
pub(crate) fn killed(word: &str, places: &[usize]) -> Result<()> {
    let hosts = hosts_of(places)?;
    // A rank need not be in touch with others to be ended.
    let script = "echo ready $GASPI_RANK; sleep 1000";
    let options = ["--kill-on-failure", "--hosts", &list(&hosts, places)];
    let job = start(&hosts, &options, Path::new("sh"), &["-c", script])?;
    job.lines("ready ", places.len())?;
    let found = with_word(&hosts, word);
    let process = found.first().ok_or_else(|| failed(format!("no process of {word}")))?;
    process.signal(libc::SIGKILL)?;
    let outcome = job.wait()?;
    expect(!outcome.status.success(), outcome.failure("it was to fail").0)?;
    if word != "gaspi_run" {
        let lost = |host: &Host| outcome.stderr.contains(&format!("host {} was lost", host.name()));
        expect(hosts.iter().skip(1).any(lost), outcome.failure("it was to name the host").0)?;
    }
    hosts.await_idle()
}

/// The machine of gaspi_run is gone without a word: sshd would not notice for a quarter of an hour.
pub(crate) fn launcher_vanishes(places: &[usize], patience_s: Option<u64>) -> Result<()> {
    let hosts = hosts_of(places)?;
    let list = ["--hosts", &list(&hosts, places)];
    let mut job = launch(&hosts, 0, &list, Path::new("sh"), &LINGERS)?;
    if let Some(patience) = patience_s {
        job = job.env("GASPI_DEAD_AFTER", patience.to_string());
    }
    lose_launcher(&hosts, job.start()?, places.len(), || hosts.cut(0))
}

/// The links of the agents' hosts go down there: nothing that they send is ever on its way.
fn links_go_down() -> Result<()> {
    let hosts = hosts(3, Options::default())?;
    let job = start(&hosts, &["--hosts", "bee:2,cow"], Path::new("sh"), &LINGERS)?;
    lose_launcher(&hosts, job, 3, || [1, 2].into_iter().try_for_each(|host| hosts.take_down(host)))
}

/// Arguments of a shell that does not end by itself, with a process of its own.
pub(crate) const LINGERS: [&str; 2] =
    ["-c", "echo ready $GASPI_RANK; sleep 1000 & exec sleep 1000"];

/// The host of gaspi_run, the first one, is cut off from the others, whose ranks linger: the agents
/// there end themselves and all that they started.
pub(crate) fn lose_launcher(
    hosts: &Hosts,
    job: Running,
    ranks: usize,
    cut: impl FnOnce() -> Result<()>,
) -> Result<()> {
    job.lines("ready ", ranks)?;
    cut()?;
    let end = Instant::now() + Duration::from_secs(60);
    while ["sleep", "--agent"].iter().any(|word| !with_word(hosts, word).is_empty()) {
        expect(Instant::now() < end, "agents or ranks are left")?;
        std::thread::sleep(Duration::from_millis(20));
    }
    let outcome = job.wait()?.code(HOST_LOST)?;
    for host in hosts.iter().skip(1) {
        outcome.clone().says(&format!("host {} was lost", host.name()))?;
    }
    // sshd itself waits on for the machine that vanished, so the hosts are not idle.
    Ok(())
}

/// An outage ends before a silent host counts as lost, but what the kernels send again comes only
/// after that: neither gaspi_run nor the agent takes the other's host for lost.
fn outage() -> Result<()> {
    let (hosts, files) = (hosts(2, Options::default())?, TempDir::new()?);
    let gate = gate(&files)?;
    let script = format!("exec 3<> {}; echo ready; read line <&3; echo went on", gate.display());
    let job = launch(&hosts, 0, &["--hosts", "ant,bee"], Path::new("sh"), &["-c", &script])?;
    let job = job.env("GASPI_DEAD_AFTER", "10").start()?;
    job.lines("ready", 2)?;
    hosts.block(0, 1)?;
    // The time in question: bytes are sent again after 6.2 s and 12.6 s.
    std::thread::sleep(Duration::from_secs(8));
    hosts.unblock(0, 1)?;
    std::fs::OpenOptions::new().write(true).open(&gate)?.write_all(b"go\ngo\n")?;
    let outcome = job.wait()?.success()?;
    let ends = outcome.stdout.matches("went on").count();
    expect(ends == 2, outcome.failure("two ranks were to go on").0)?;
    hosts.await_idle()
}

fn killed_rank() -> Result<()> {
    let hosts = hosts(3, Options::default())?;
    let list = ["--hosts", "ant:2,bee:2,cow"];
    let job = start(&hosts, &list, &victim(), &["die", "allreduce", "3"])?;
    job.lines("ready ", 5)?;
    let killed = Killed::kill(&job, 3, &mut Seed::new(base_seed()))?;
    let outcome = job.wait()?;
    killed.expect_survivors(&outcome, 5, DEATH_KNOWN_WITHIN)?;
    outcome.says("rank 3")?.says("bee")?;
    hosts.await_idle()
}

fn kill_on_failure() -> Result<()> {
    let hosts = hosts(2, Options::default())?;
    let script = "if [ $GASPI_RANK = 2 ]; then exit 7; fi; sleep 1000";
    let options = ["--kill-on-failure", "--hosts", "ant:2,bee:2"];
    let job = start(&hosts, &options, Path::new("sh"), &["-c", script])?;
    job.wait()?.code(7)?;
    hosts.await_idle()
}

fn vanish() -> Result<()> {
    let hosts = hosts(3, Options::default())?;
    let list = ["--hosts", "ant,bee,cow:2"];
    let job = start(&hosts, &list, &victim(), &["die", "barrier", "1"])?;
    job.lines("ready ", 4)?;
    let vanished = Killed::now(&[1]);
    hosts.power_off(1)?;
    let outcome = job.wait()?;
    // Ten times the 5 s for which a silent host is waited for.
    vanished.expect_survivors(&outcome, 4, Duration::from_secs(50))?;
    // By the kernel's word: ssh itself waits for longer.
    outcome.says("host bee was lost: its machine has not answered")?;
    hosts.await_idle()
}
