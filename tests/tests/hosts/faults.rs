//! Faults of jobs over hosts: ranks are killed and stopped, links cut, hosts powered off.
//!
//! Random choices come from a seed in the name of the test; `GASPI_TEST_SEED=N` starts elsewhere,
//! and the long tier runs more of them.

use std::time::{Duration, Instant};

use gaspi_tests::hosts::Hosts;
use gaspi_tests::victims::{DIE, Enduring, Killed, STOP, Stopped, random_moment};
use gaspi_tests::{Job, Result, Running, Seed, Shape, base_seed, is_full};
use libtest_mimic::Trial;

use crate::job::{Rounds, hosts, launch, list, victim};
use crate::{PLAIN, root_trial};

/// Ten times the second within which survivors have to know that a process died.
pub(crate) const DEATH_KNOWN_WITHIN: Duration = Duration::from_secs(10);
/// How long a silent host is waited for, in tests that do not take the default of 5 s: the least
/// that can be set.
pub(crate) const PATIENCE_S: u64 = 3;

/// The hosts of the ranks of a job.
const PLACES: [&[usize]; 4] = [&[0, 1], &[1, 0, 1], &[0, 1, 0, 1], &[0, 1, 2, 3, 0]];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let first = base_seed();
    let seeds = if is_full() { 10 } else { 1 };
    for seed in first..first + seeds {
        for operation in DIE {
            let name = format!("faults/kill/{operation}/seed-{seed}");
            trials.push(root_trial(&name, move || kill(operation, seed, None)));
        }
        for operation in STOP {
            let name = format!("faults/stop/{operation}/seed-{seed}");
            trials.push(root_trial(&name, move || stop(operation, seed, None)));
        }
        for (name, cable) in [("cut", true), ("silence", false)] {
            let name = format!("faults/{name}-and-back/seed-{seed}");
            trials.push(root_trial(&name, move || interrupted(cable, seed, None)));
        }
    }
    trials.push(root_trial("faults/long-stop", long_stop));
    trials.push(root_trial("faults/host-that-vanishes", || vanish(&[0, 0, 1, 2], 1, None)));
    trials.push(root_trial("faults/host-that-vanishes-with-less-patience", || {
        vanish(&[0, 0, 1, 2], 1, Some(PATIENCE_S))
    }));
    trials.push(root_trial("faults/parted-for-good", parted));
    trials
}

/// The host of each rank, which is one of the choices above without a shape, and the rank that
/// suffers.
fn choose(seed: &mut Seed, shape: Option<Shape>) -> (Vec<usize>, usize) {
    let places = match shape {
        Some(shape) => shape.places(seed),
        None => PLACES[seed.below(PLACES.len() as u64) as usize].to_vec(),
    };
    let of = seed.below(places.len() as u64) as usize;
    (places, of)
}

pub(crate) fn hosts_of(places: &[usize]) -> Result<Hosts> {
    hosts(places.iter().max().map_or(0, |last| last + 1), PLAIN)
}

/// A job of the victim program.
fn job(
    hosts: &Hosts,
    places: &[usize],
    arguments: &[&str],
    patience_s: Option<u64>,
) -> Result<Job> {
    let job = launch(hosts, 0, &["--hosts", &list(hosts, places)], &victim(), arguments)?;
    Ok(match patience_s {
        Some(patience) => job.env("GASPI_DEAD_AFTER", patience.to_string()),
        None => job,
    })
}

/// One of which these ranks will die, when all are ready.
fn doomed(
    hosts: &Hosts,
    places: &[usize],
    (operation, of): (&str, &[usize]),
    patience_s: Option<u64>,
) -> Result<Running> {
    let of: Vec<String> = of.iter().map(ToString::to_string).collect();
    let job = job(hosts, places, &["die", operation, &of.join(",")], patience_s)?.start()?;
    job.lines("ready ", places.len())?;
    Ok(job)
}

pub(crate) fn kill(operation: &str, seed: u64, shape: Option<Shape>) -> Result<()> {
    let mut seed = Seed::new(seed ^ u64::from(operation.bytes().map(u32::from).sum::<u32>()));
    let (places, of) = choose(&mut seed, shape);
    let hosts = hosts_of(&places)?;
    let job = doomed(&hosts, &places, (operation, &[of]), None)?;
    let killed = Killed::kill(&job, of, &mut seed)?;
    killed.expect_survivors(&job.wait()?, places.len(), DEATH_KNOWN_WITHIN)?;
    hosts.await_idle()
}

pub(crate) fn stop(operation: &str, seed: u64, shape: Option<Shape>) -> Result<()> {
    let mut seed = Seed::new(seed);
    let (places, of) = choose(&mut seed, shape);
    let hosts = hosts_of(&places)?;
    let job =
        Enduring::start(job(&hosts, &places, &[], None)?, places.len(), ["stop", operation], of)?;
    job.stop_and_continue(of, &mut seed)?;
    job.finish()
}

/// A process that is stopped for longer than a silent host is waited for is not dead: its kernel
/// answers.
fn long_stop() -> Result<()> {
    let places = [0, 1, 1];
    let hosts = hosts_of(&places)?;
    let job = job(&hosts, &places, &[], Some(PATIENCE_S))?;
    let job = Enduring::start(job, places.len(), ["stop", "write"], 1)?;
    let process = job.rank(1)?;
    let stopped = Stopped::stop(&process)?;
    std::thread::sleep(Duration::from_secs(2 * PATIENCE_S));
    drop(stopped);
    job.finish()
}

/// A connection that is interrupted for less than a silent host is waited for goes on as if nothing
/// had been; not a byte is lost or comes twice.
pub(crate) fn interrupted(cable: bool, seed: u64, shape: Option<Shape>) -> Result<()> {
    let mut seed = Seed::new(seed);
    let places = shape.map_or_else(|| vec![1, 0, 1, 0], |shape| shape.places(&mut seed));
    let hosts = hosts_of(&places)?;
    // Rank 0 is on another host than gaspi_run: what it tells shows that ssh is through again too.
    let (gone, on) = (places[0], 1 - places[0]);
    let job = Rounds::start(&hosts, on, &places, &[])?;
    // Over many hosts a round takes long.
    for _ in 0..if shape.is_some() { 1 } else { 3 } {
        job.go_on(2)?;
        random_moment(&mut seed, Duration::from_millis(20));
        if cable {
            hosts.cut(gone)?
        } else {
            hosts.block(on, gone)?
        }
        random_moment(&mut seed, Duration::from_millis(1500));
        if cable { hosts.restore(gone)? } else { hosts.unblock(on, gone)? }
    }
    job.go_on(2)?;
    job.finish()
}

/// A host that vanishes without a word, with all its ranks, is given up after the time that was
/// set.
pub(crate) fn vanish(places: &[usize], gone: usize, patience_s: Option<u64>) -> Result<()> {
    let hosts = hosts_of(places)?;
    let ranks: Vec<usize> = (0..places.len()).filter(|rank| places[*rank] == gone).collect();
    let job = doomed(&hosts, places, ("allreduce", &ranks), patience_s)?;
    let vanished = Killed::now(&ranks);
    hosts.power_off(gone)?;
    let limit = Duration::from_secs(10 * patience_s.unwrap_or(5));
    let outcome = job.wait()?;
    vanished.expect_survivors(&outcome, places.len(), limit)?;
    outcome.says(&format!("host {} was lost", hosts[gone].name()))?;
    hosts.await_idle()
}

/// Two hosts that do not find each other again, while gaspi_run on a third one reaches both: all
/// ranks end with an error that names the dead.
fn parted() -> Result<()> {
    let hosts = hosts(3, PLAIN)?;
    let patience = PATIENCE_S.to_string();
    let job = Rounds::start(&hosts, 2, &[0, 1, 0, 1], &[("GASPI_DEAD_AFTER", &patience)])?;
    job.go_on(1)?;
    hosts.block(0, 1)?;
    let start = Instant::now();
    let outcome = job.job.wait()?;
    let took = start.elapsed();
    if took > Duration::from_secs(10 * PATIENCE_S) {
        return Err(outcome.failure(&format!("that took {took:?}")));
    }
    for rank in 0..4 {
        let other = (rank + 1) % 2;
        let begin = format!("FAILED on rank {rank}: ");
        let error = outcome.stderr.lines().find(|line| line.contains(&begin));
        let text = error.and_then(|line| line.split(&begin).nth(1)).unwrap_or_default();
        let names = [format!("rank {other}"), format!("rank {}", other + 2)];
        let is_named = names.iter().any(|name| text.contains(name));
        if !is_named {
            return Err(outcome.failure(&format!("rank {rank} was to name who is gone")));
        }
    }
    hosts.await_idle()
}
