//! Jobs over hosts whose ranks are started one by one, as any launcher would.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gaspi_tests::hosts::{Host, Hosts, Options};
use gaspi_tests::victims::Killed;
use gaspi_tests::{Job, Outcome, Result, Running, Seed, base_seed};
use libtest_mimic::Trial;
use tempfile::{NamedTempFile, TempPath};

use crate::faults::DEATH_KNOWN_WITHIN;
use crate::job::{rounds, victim};
use crate::{ONLY_IPV6, PLAIN, TRAPPED, expect, root_trial, trial};

/// Rounds of the jobs that are left alone.
const ROUNDS: &str = "60";
/// Ten times the 3 s for which a silent host is waited for here.
pub(crate) const SILENCE_KNOWN_WITHIN: Duration = Duration::from_secs(30);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("by-hand/one-host", || rounds_on(&[0, 0, 0], PLAIN, NAME)),
        trial("by-hand/two-hosts", || rounds_on(&[0, 1], PLAIN, NAME)),
        trial("by-hand/mixed-links", || rounds_on(&[0, 1, 0, 1, 1], PLAIN, NAME)),
        trial("by-hand/four-hosts", || rounds_on(&[3, 1, 2, 0, 1, 0], PLAIN, NAME)),
        trial("by-hand/ipv4-addresses", || rounds_on(&[1, 0, 0], PLAIN, IPV4)),
        trial("by-hand/ipv6-addresses", || rounds_on(&[0, 1], PLAIN, IPV6)),
        trial("by-hand/only-ipv6", || rounds_on(&[0, 1, 1], ONLY_IPV6, NAME)),
        trial("by-hand/equal-addresses-and-own-name", || rounds_on(&[0, 1, 2], TRAPPED, NAME)),
        trial("by-hand/another-key", another_key),
        trial("by-hand/death-far-from-all-connections", unconnected_death),
        root_trial("by-hand/vanished-host-far-from-all-connections", unconnected_host),
        root_trial("by-hand/host-that-vanishes-before-it-is-told-of-a-death", untold_host),
        root_trial("by-hand/meeting-whose-host-vanishes", meeting_vanishes),
        root_trial("by-hand/guest-of-a-meeting-that-vanishes", guest_vanishes),
        root_trial("by-hand/link-that-goes-down-before-a-death-is-told", untold_link),
    ]
}

/// Ten times the 5 s for which the other host of a meeting may be silent.
const MEETING_ENDS_WITHIN: Duration = Duration::from_secs(50);

/// How the machine file names a host.
type Naming = fn(&Host) -> String;
const NAME: Naming = |host| host.name().to_owned();
const IPV4: Naming = |host| host.ipv4().to_string();
const IPV6: Naming = |host| host.ipv6().to_string();

/// How the ranks of a job are started.
pub(crate) struct Start<'a> {
    hosts: &'a Hosts,
    /// The host of each rank.
    places: &'a [usize],
    naming: Naming,
    program: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl<'a> Start<'a> {
    pub(crate) fn new(
        hosts: &'a Hosts,
        places: &'a [usize],
        program: PathBuf,
        arguments: &[&str],
    ) -> Start<'a> {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Start { hosts, places, naming: NAME, program, arguments, variables: Vec::new() }
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Start<'a> {
        self.variables.push((name, value.into()));
        self
    }

    /// The machine file, which has to exist until all ranks have joined.
    fn machine_file(&self) -> Result<TempPath> {
        let mut file = NamedTempFile::new()?;
        for place in self.places {
            writeln!(file, "{}", (self.naming)(&self.hosts[*place]))?;
        }
        Ok(file.into_temp_path())
    }

    /// One rank that is not started yet.
    fn rank(&self, rank: usize, machine_file: &Path) -> Job {
        let place = self.places[rank];
        let local = self.places[..rank].iter().filter(|other| **other == place).count();
        let mut job = Job::plain(&self.program)
            .args(&self.arguments)
            .env("GASPI_RANK", rank.to_string())
            .env("GASPI_NRANKS", self.places.len().to_string())
            .env("GASPI_SOCKET", local.to_string())
            .env("GASPI_MFILE", machine_file)
            .limit(Duration::from_secs(90));
        for (name, value) in &self.variables {
            job = job.env(name, value);
        }
        job.on(&self.hosts[place])
    }

    pub(crate) fn start(&self) -> Result<ByHand> {
        let machine_file = self.machine_file()?;
        let ranks = 0..self.places.len();
        let ranks: Result<Vec<Running>> =
            ranks.map(|rank| self.rank(rank, &machine_file).start()).collect();
        Ok(ByHand { ranks: ranks?, _machine_file: machine_file })
    }
}

/// The ranks of a job.
pub(crate) struct ByHand {
    pub(crate) ranks: Vec<Running>,
    _machine_file: TempPath,
}

impl ByHand {
    /// Waits for all ranks.
    pub(crate) fn wait(self) -> Result<Vec<Outcome>> {
        self.ranks.into_iter().map(Running::wait).collect()
    }

    /// Waits for all ranks of a job of `rounds`, and demands that they did as many.
    fn finish(self) -> Result<()> {
        let mut counts = Vec::new();
        for (rank, outcome) in self.wait()?.into_iter().enumerate() {
            let outcome = outcome.success()?.says(&format!("finished {rank} "))?;
            counts.push(outcome.stdout.trim_end().rsplit(' ').next().map(str::to_owned));
        }
        counts.dedup();
        expect(counts.len() == 1, format!("the ranks did {counts:?} rounds"))
    }
}

fn rounds_on(places: &[usize], options: Options, naming: Naming) -> Result<()> {
    let count = places.iter().max().map_or(0, |last| last + 1);
    let hosts = Hosts::new(count, options)?;
    Start { naming, ..Start::new(&hosts, places, rounds(), &[ROUNDS]) }.start()?.finish()?;
    hosts.await_idle()
}

/// A process with another key is none of the job; nobody is harmed but itself.
fn another_key() -> Result<()> {
    let hosts = Hosts::new(2, PLAIN)?;
    let mut keys = Vec::new();
    for byte in [b'1', b'2'] {
        // Temporary files belong to their user alone, as key files have to.
        let mut key = NamedTempFile::new()?;
        key.write_all(&[byte; 64])?;
        keys.push(key.into_temp_path());
    }
    let [one, other] = [&keys[0], &keys[1]].map(|key| key.display().to_string());
    let right = Start::new(&hosts, &[0, 1], rounds(), &[ROUNDS]).env("GASPI_KEY_FILE", one);
    let wrong = Start::new(&hosts, &[0, 1], rounds(), &[ROUNDS]).env("GASPI_KEY_FILE", other);
    let machine_file = right.machine_file()?;
    let first = right.rank(0, &machine_file).start()?;
    let refused = wrong.rank(1, &machine_file).start()?.wait()?;
    expect(!refused.status.success(), "a rank with another key joined")?;
    refused.says("key")?;
    let second = right.rank(1, &machine_file).start()?;
    second.wait()?.success()?.says("finished 1 ")?;
    first.wait()?.success()?.says("finished 0 ").map(drop)
}

/// Ranks that are not connected with each other, when all have joined; this one will die.
fn unconnected(hosts: &Hosts, places: &[usize], of: usize, patience: &str) -> Result<ByHand> {
    hearing(hosts, places, ["idle", &of.to_string()], patience)
}

/// Ranks that hear of a death, when all have joined and done what is said here first.
pub(crate) fn hearing(
    hosts: &Hosts,
    places: &[usize],
    [first, of]: [&str; 2],
    patience: &str,
) -> Result<ByHand> {
    let arguments = ["hear", first, of];
    let job = Start::new(hosts, places, victim(), &arguments).env("GASPI_DEAD_AFTER", patience);
    let job = job.start()?;
    for rank in &job.ranks {
        rank.lines("ready ", 1)?;
    }
    Ok(job)
}

impl ByHand {
    /// Demands that all survive but `gone` and knew of it in time.
    pub(crate) fn expect_survivors(
        self,
        killed: &Killed,
        gone: &[usize],
        limit: Duration,
    ) -> Result<()> {
        let all = self.ranks.into_iter().enumerate();
        for (rank, running) in all.filter(|(rank, _)| !gone.contains(rank)) {
            killed.expect_survivor(&running.wait()?, rank, limit)?;
        }
        Ok(())
    }
}

/// All hear of a death with which no connection of theirs ends, though no launcher tells it: of a
/// rank that is alone on its host, of the first one of all, and of one among others.
fn unconnected_death() -> Result<()> {
    let places = [0, 0, 1, 1, 2, 3];
    let mut seed = Seed::new(base_seed());
    for of in [5, 0, 2, 3] {
        let hosts = Hosts::new(4, PLAIN)?;
        let job = unconnected(&hosts, &places, of, "5")?;
        let killed = Killed::kill(&job.ranks[of], of, &mut seed)?;
        job.expect_survivors(&killed, &[of], DEATH_KNOWN_WITHIN)?;
        hosts.await_idle()?;
    }
    Ok(())
}

/// The same of a host that vanishes.
fn unconnected_host() -> Result<()> {
    let hosts = Hosts::new(4, PLAIN)?;
    let job = unconnected(&hosts, &[0, 0, 1, 1, 2, 3], 5, "3")?;
    let killed = Killed::now(&[5]);
    hosts.power_off(3)?;
    job.expect_survivors(&killed, &[5], SILENCE_KNOWN_WITHIN)
}

/// The same where something is said to it that it never acknowledges: that another rank has died.
fn untold_host() -> Result<()> {
    let hosts = Hosts::new(4, PLAIN)?;
    let job = unconnected(&hosts, &[0, 0, 1, 1, 2, 3], 5, "3")?;
    let killed = Killed::now(&[5]);
    hosts.power_off(3)?;
    // Rank 4 alone is connected with rank 5, and hears of this death before it misses that.
    job.ranks[3].rank(3)?.signal(libc::SIGKILL)?;
    job.expect_survivors(&killed, &[3, 5], SILENCE_KNOWN_WITHIN)
}

/// A rank whose own link is down when it is to tell another host of a death notices that too.
fn untold_link() -> Result<()> {
    let hosts = Hosts::new(2, PLAIN)?;
    let job = unconnected(&hosts, &[0, 1, 1], 0, "3")?;
    let killed = Killed::now(&[0]);
    hosts.take_down(1)?;
    job.ranks[2].rank(2)?.signal(libc::SIGKILL)?;
    job.expect_survivors(&killed, &[0, 2], SILENCE_KNOWN_WITHIN)
}

/// Four ranks on three hosts, of which the first two have met.
fn two_have_met(hosts: &Hosts) -> Result<(Start<'_>, TempPath, [Running; 2])> {
    let start = Start::new(hosts, &[0, 1, 1, 2], victim(), &["meet", "-", "0"]);
    let machine_file = start.machine_file()?;
    let first = start.rank(0, &machine_file).start()?;
    first.lines("to join job", 1)?;
    let second = start.rank(1, &machine_file).start()?;
    // Which the first one has told it.
    second.lines("to join job", 1)?;
    Ok((start, machine_file, [first, second]))
}

fn expect_end(rank: usize, job: Running, text: &str) -> Result<()> {
    let begin = Instant::now();
    let outcome = job.wait()?;
    let (took, ended) = (begin.elapsed(), outcome.status.success());
    expect(!ended && took < MEETING_ENDS_WITHIN, format!("rank {rank} joined, or took {took:?}"))?;
    outcome.says(text).map(drop)
}

/// The host of the meeting vanishes, and is told only then that another rank has come: those who
/// wait for it hear of that.
fn meeting_vanishes() -> Result<()> {
    let hosts = Hosts::new(3, PLAIN)?;
    let (start, machine_file, [_first, second]) = two_have_met(&hosts)?;
    hosts.power_off(0)?;
    let third = start.rank(2, &machine_file).start()?;
    for (rank, job) in [(1, second), (2, third)] {
        expect_end(rank, job, "the connection to the host of the meeting on ")?;
    }
    Ok(())
}

/// A host whose rank has come vanishes while others are awaited, and is reminded of them: those
/// who wait with it hear of that.
fn guest_vanishes() -> Result<()> {
    let hosts = Hosts::new(3, PLAIN)?;
    let (_start, _machine_file, [first, _second]) = two_have_met(&hosts)?;
    hosts.power_off(1)?;
    expect_end(0, first, "rank 1 (process ")
}
