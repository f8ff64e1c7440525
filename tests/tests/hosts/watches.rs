//! Who notices that a host is gone: few connections on which the kernel asks, of ranks that may die
//! with it, or be stopped.

use std::fs;
use std::time::{Duration, Instant};

use gaspi_tests::Result;
use gaspi_tests::hosts::Hosts;
use gaspi_tests::victims::{Killed, Stopped};
use libtest_mimic::Trial;

use crate::by_hand::{ByHand, SILENCE_KNOWN_WITHIN, hearing};
use crate::{PLAIN, expect, failed, root_trial, trial};

/// How many connections between two hosts ask: two ranks of each watch the other one.
const WATCHES_MAX: usize = 4;
/// What leaves it to the other side to watch does so for a second.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// Two hosts of six ranks.
const PLACES: [usize; 12] = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1];
const OF_THE_OTHER: [usize; 6] = [6, 7, 8, 9, 10, 11];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("watches/few-between-hosts-all-of-whose-ranks-are-connected", few),
        root_trial("watches/host-that-vanishes-when-those-die-that-watch-it", watchers_die),
        root_trial("watches/host-that-vanishes-while-one-that-watches-it-is-stopped", stopped),
        root_trial("watches/host-that-vanishes-when-its-only-neighbour-dies", neighbour_dies),
    ]
}

/// Established connections, of the host of a rank, on which its kernel asks by time.
fn watches_beside(job: &ByHand, rank: usize) -> Result<usize> {
    let pid = job.ranks[rank].rank(rank as u16)?.pid;
    let asks = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(3) == Some(&"01") && fields.get(5).is_some_and(|timer| timer.starts_with("02:"))
    };
    let mut count = 0;
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}"))?;
        count += text.lines().filter(asks).count();
    }
    Ok(count)
}

/// Two hosts, all of whose ranks are connected with all, and the last rank is missed.
fn connected(hosts: &Hosts) -> Result<ByHand> {
    hearing(hosts, &PLACES, ["connect", "11"], "3")
}

fn few() -> Result<()> {
    let hosts = Hosts::new(2, PLAIN)?;
    let job = connected(&hosts)?;
    let begin = Instant::now();
    while begin.elapsed() < SETTLED_AFTER {
        let found = watches_beside(&job, 5)?;
        let right = (1..=WATCHES_MAX).contains(&found);
        expect(right, format!("{found} connections watch the other host"))?;
    }
    // Those that watch end: others take their places, and no more.
    let victims = [0, 1, 2];
    for victim in victims {
        job.ranks[victim].rank(victim as u16)?.signal(libc::SIGKILL)?;
    }
    let mut most = 0;
    let begin = Instant::now();
    while begin.elapsed() < SETTLED_AFTER {
        most = most.max(watches_beside(&job, 5)?);
    }
    expect(most <= 2 * WATCHES_MAX, format!("{most} connections watch the other host"))?;
    expect(watches_beside(&job, 5)? > 0, "nobody watches the other host any more")?;
    let killed = Killed::now(&[11]);
    job.ranks[11].rank(11)?.signal(libc::SIGKILL)?;
    job.expect_survivors(&killed, &[0, 1, 2, 11], SILENCE_KNOWN_WITHIN)?;
    hosts.await_idle()
}

/// Most ranks of a host die just when the other host vanishes.
fn watchers_die() -> Result<()> {
    let hosts = Hosts::new(2, PLAIN)?;
    let job = connected(&hosts)?;
    let killed = Killed::now(&OF_THE_OTHER);
    hosts.power_off(1)?;
    let gone = [0, 1, 2, 3];
    for victim in gone {
        job.ranks[victim].rank(victim as u16)?.signal(libc::SIGKILL)?;
    }
    let all: Vec<usize> = gone.into_iter().chain(OF_THE_OTHER).collect();
    job.expect_survivors(&killed, &all, SILENCE_KNOWN_WITHIN)
}

/// The first rank of a host, which speaks for it, is stopped: the others notice.
fn stopped() -> Result<()> {
    let hosts = Hosts::new(2, PLAIN)?;
    let job = connected(&hosts)?;
    let first = job.ranks[0].rank(0)?;
    let stopped = Stopped::stop(&first)?;
    let killed = Killed::now(&OF_THE_OTHER);
    hosts.power_off(1)?;
    for rank in &job.ranks[1..6] {
        rank.lines("knows ", 1)?;
    }
    drop(stopped);
    job.expect_survivors(&killed, &OF_THE_OTHER, SILENCE_KNOWN_WITHIN)
}

/// No rank has connections but those by which news of ends come. The only rank that has one with a
/// host dies just when that vanishes, alone on its own host or not.
fn neighbour_dies() -> Result<()> {
    for places in [&[0, 0, 1, 1, 2, 3][..], &[0, 0, 1, 1, 2, 2, 3]] {
        let hosts = Hosts::new(4, PLAIN)?;
        let last = places.len() - 1;
        let job = hearing(&hosts, places, ["idle", &last.to_string()], "3")?;
        let killed = Killed::now(&[last]);
        hosts.power_off(3)?;
        job.ranks[4].rank(4)?.signal(libc::SIGKILL)?;
        let missed = job.expect_survivors(&killed, &[4, last], SILENCE_KNOWN_WITHIN);
        missed.map_err(|error| failed(format!("{places:?}: {error}")))?;
    }
    Ok(())
}
