//! News of ends in jobs of very many ranks, message by message: the same in each run.
//!
//! Those that stay, n of them, are connected as a tree. Each says each end once on each connection,
//! so that e ends are 2 (n - 1) e messages. A connection that is made brings what was told before,
//! each way. Each rank looks at each end once. A rank has as many connections as a power of two has
//! bits, twice where it speaks for its host, and hears each end once from each.

use super::played::{Counted, DEAD_AFTER, HOP, Job};
use super::*;

/// Bytes of the news of an end, and of what comes before that of one that leaves.
const END: usize = 3;
const STEP: usize = 33;

/// How many messages the news of these ends are, where others were told before.
fn messages(staying: usize, ends: usize, made: usize, before: usize) -> usize {
    2 * (staying - 1) * ends + 2 * made * before
}

fn hops(count: u32) -> Duration {
    HOP * count
}

/// Those of these numbers that have ended so.
pub(super) fn all(ranks: impl IntoIterator<Item = u16>, end: End) -> Vec<(Rank, End)> {
    ranks.into_iter().map(|rank| (Rank(rank), end)).collect()
}

/// All that stay know of these ends, and of no others, and are connected as a tree.
pub(super) fn check(job: &Job, ends: &[(Rank, End)], named: &str) {
    let deaf: Vec<Rank> = job.living().filter(|of| !job.knows(*of, ends)).collect();
    assert!(deaf.is_empty(), "{named}: {} are wrong, {:?} first", deaf.len(), deaf.first());
    assert_eq!(job.connections(), job.living().count() - 1, "{named}");
}

/// A job whose ranks die one after another, or several at once.
struct Dying {
    job: Job,
    dead: Vec<u16>,
}

impl Dying {
    fn start(size: usize, per_host: usize) -> Dying {
        let mut job = Job::start(size, per_host);
        let began = Counted { made: size - 1, ..Counted::default() };
        assert_eq!(job.play(), began);
        check(&job, &[], "at the start");
        Dying { job, dead: Vec::new() }
    }

    /// These die: all others are told, by so many messages to one of them at most, make so many
    /// connections in place of others, after so many that were refused, and know after this time.
    fn die(&mut self, ranks: &[u16], [most, made, refused]: [usize; 3], until: Duration) {
        ranks.iter().for_each(|rank| self.job.kill(Rank(*rank)));
        let (counted, before) = (self.job.play(), self.dead.len());
        self.dead.extend_from_slice(ranks);
        self.dead.sort_unstable();
        check(&self.job, &all(self.dead.iter().copied(), End::Died), "");
        let staying = self.job.living().count();
        let messages = messages(staying, ranks.len(), made, before);
        let (bytes, looks) = (END * messages, staying * ranks.len());
        let expected = Counted { messages, bytes, most, made, refused, until, looks };
        assert_eq!(counted, expected, "{ranks:?}");
    }
}

#[test]
fn deaths_among_10_000_ranks_on_100_hosts() {
    let mut dying = Dying::start(10_000, 100);
    // The last one; one that speaks for its host; the first of all; ranks that are each other's
    // neighbours, on one host and between hosts, of which two have nobody else.
    dying.die(&[9_999], [14, 0, 0], hops(16));
    dying.die(&[5_000], [16, 8, 3], hops(17));
    dying.die(&[0], [39, 13, 14], hops(14));
    dying.die(&[1, 2, 3, 4, 100, 200, 400, 6_400], [143, 45, 56], AGAIN + hops(26));
}

#[test]
fn deaths_among_10_000_hosts() {
    let mut dying = Dying::start(10_000, 1);
    dying.die(&[9_999], [14, 0, 1], hops(23));
    dying.die(&[5_000], [14, 3, 7], hops(19));
    dying.die(&[0], [39, 13, 28], hops(15));
}

/// Nobody is connected with the third rank but the second, which dies with it: it is dead once it
/// has refused connections for half a second.
#[test]
fn a_death_that_nobody_sees_is_found() {
    let mut dying = Dying::start(1_000, 1);
    dying.die(&[2, 3], [20, 0, 4], REPLACED + NEWS_LIMIT + AGAIN + hops(18));
}

/// All ranks of a host end at once: it falls silent, or each of its processes is killed, of which
/// other hosts see that of its first one only. The others refuse connections, and are dead half a
/// second later. That the first one is missed takes its parent some time; its children connect at
/// once, if there are any.
fn end_host(size: usize, per_host: u16, host: u16, is_silent: bool) -> Counted {
    let ranks = host * per_host..(host + 1) * per_host;
    let mut job = Job::start(size, per_host.into());
    job.play();
    match is_silent {
        true => job.cut(host.into()),
        false => ranks.clone().for_each(|rank| job.kill(Rank(rank))),
    }
    let counted = job.play();
    check(&job, &all(ranks, End::Died), "");
    counted
}

/// A host vanishes when nobody has a connection with it as yet, or just when the only rank ends
/// that has one: whoever should have one notices, though it never gets an answer.
#[test]
fn hosts_that_vanish_while_nobody_watches_them() {
    // The last host has no others below it in the tree.
    for (size, per_host, host, watcher) in [(100, 10, 9, 80), (8, 1, 7, 6), (3, 1, 1, 0)] {
        let ranks = host * per_host..(host + 1) * per_host;
        let mut job = Job::start(size, per_host.into());
        job.cut(host.into());
        let counted = job.play();
        check(&job, &all(ranks.clone(), End::Died), "");
        let until = GRACE + DEAD_AFTER;
        assert!(counted.until < until + hops(20), "{counted:?} among {size}");

        let mut job = Job::start(size, per_host.into());
        job.play();
        job.kill(Rank(watcher));
        job.cut(host.into());
        let counted = job.play();
        check(&job, &all([watcher].into_iter().chain(ranks), End::Died), "");
        let until = REPLACED + NEWS_LIMIT + DEAD_AFTER + AGAIN;
        assert!(counted.until < until + hops(40), "{counted:?} among {size}");
    }
}

/// What all are told then, beside what depends on where the host is.
fn of_host(per_host: usize, [most, made, refused]: [usize; 3], until: Duration) -> Counted {
    let messages = messages(99 * per_host, per_host, made, 0);
    let (bytes, looks) = (END * messages, 99 * per_host * per_host);
    Counted { messages, bytes, most, made, refused, until, looks }
}

#[test]
fn whole_hosts_of_10_ranks() {
    let at_once = AGAIN + NEWS_LIMIT;
    let cases = [
        (0, [110, 6], 8, 147, at_once + hops(31)),
        (1, [110, 0], 9, 20, REPLACED + at_once + hops(32)),
        (4, [120, 2], 9, 53, at_once + hops(33)),
        (99, [110, 0], 12, 20, REPLACED + at_once + hops(35)),
    ];
    for (host, [most, made], far, refused, until) in cases {
        let silent = of_host(10, [most, made, 0], DEAD_AFTER + hops(far));
        assert_eq!(end_host(1_000, 10, host, true), silent, "host {host}");
        let killed = of_host(10, [most, made, refused], until);
        assert_eq!(end_host(1_000, 10, host, false), killed, "host {host}");
    }
}

/// With GASPI_TEST_FULL only: there are two million messages.
#[test]
fn whole_hosts_of_100_ranks() {
    if std::env::var_os("GASPI_TEST_FULL").is_some() {
        let silent = of_host(100, [1_500, 2, 0], DEAD_AFTER + hops(12));
        assert_eq!(end_host(10_000, 100, 4, true), silent);
        let killed = of_host(100, [1_500, 2, 503], AGAIN + NEWS_LIMIT + hops(213));
        assert_eq!(end_host(10_000, 100, 4, false), killed);
    }
}

#[test]
fn ranks_that_leave_10_000() {
    let mut job = Job::start(10_000, 100);
    job.play();
    job.leave(Rank(5_000));
    let counted = job.play();
    check(&job, &all([5_000], End::Left), "");
    // Its neighbours hear it from itself, and say so.
    let (news, own) = (messages(9_999, 1, 0, 0), 9);
    assert_eq!(counted.messages, 2 * news + 3 * own);
    assert_eq!(counted.bytes, (STEP + END) * news + (STEP + 2) * own);
    assert_eq!(counted.looks, 10_000);
}

/// Each that leaves says so to its neighbours, and what it has heard to its parent: for each rank
/// some messages for each rank that is above it. So the first of all hears of all, and tells one
/// that stays, wherever that is, by one connection. That one has tried its parent meanwhile.
#[test]
fn those_that_stay_hear_of_all_that_leave_at_once() {
    let cases: [(usize, usize, &[u16], _, _, _); 7] = [
        (1_000, 10, &[0], 39_003, [0, 0], 140),
        (1_000, 10, &[999], 41_327, [2, 1], 300),
        (1_000, 10, &[500, 777], 45_759, [3, 512], 70_580),
        (300, 10, &[299], 11_939, [2, 1], 280),
        (300, 1, &[77], 6_236, [3, 3], 180),
        (1_000, 1, &[999], 23_958, [3, 1], 360),
        (10_000, 100, &[9_999], 3_097_021, [2, 1], 360),
    ];
    for (size, per_host, stay, messages, [made, refused], until_us) in cases {
        let mut job = Job::start(size, per_host);
        job.play();
        let leave = (0..size as u16).filter(|rank| !stay.contains(rank));
        leave.clone().for_each(|rank| job.leave(Rank(rank)));
        let counted = job.play();
        check(&job, &all(leave, End::Left), "");
        let found = (counted.messages, [counted.made, counted.refused], counted.until);
        let expected = (messages, [made, refused], Duration::from_micros(until_us));
        assert_eq!(found, expected, "{stay:?} of {size}");
    }
}

/// A rank leaves while it connects to another one, or this leaves: it stays until that is done.
/// Other orders are in `leaving_tests`.
#[test]
fn those_that_stay_hear_of_some_that_leave_one_after_another() {
    let cases = [
        (300, 10, 299, 7, 1),
        (300, 10, 150, 113, 7),
        (300, 10, 150, 7, 3),
        (300, 10, 150, 113, 3),
        (200, 5, 56, 7, 5),
        (100, 1, 99, 113, 10),
    ];
    for (size, per_host, stays, step, apart_us) in cases {
        let mut job = Job::start(size, per_host);
        job.play();
        let leave = (0..size as u16).filter(|rank| *rank != stays);
        for rank in leave.clone() {
            let at_us = rank as u64 * step % size as u64 * apart_us;
            job.leave_after(Duration::from_micros(at_us), Rank(rank));
        }
        job.play();
        check(&job, &all(leave, End::Left), "");
    }
}

/// With GASPI_TEST_FULL only: it takes some seconds without optimisation.
#[test]
fn deaths_among_65_535_ranks() {
    if std::env::var_os("GASPI_TEST_FULL").is_some() {
        let mut dying = Dying::start(65_535, 64);
        dying.die(&[65_534], [16, 0, 0], hops(25));
        dying.die(&[32_768], [30, 15, 19], hops(18));
        dying.die(&[0], [45, 15, 20], hops(17));
    }
}
