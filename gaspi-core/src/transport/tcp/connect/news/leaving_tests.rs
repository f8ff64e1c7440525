//! Ranks that leave one after another, while the news of it are on their way: those that stay hear
//! of all, and take nobody for dead; and those that leave wait for nobody for long.

use super::played::{HOP, Job};
use super::scale_tests::{all, check};
use super::*;
use crate::fuzzed::Seed;
use std::collections::BTreeSet;

/// The times within which they leave: of five messages, and longer ones.
const WITHIN: [Duration; 3] =
    [Duration::from_micros(100), Duration::from_millis(1), Duration::from_millis(10)];

/// How long each may take: less than before one that ends connections is tried again and again.
const SOON: Duration = Duration::from_millis(40);

/// How long it may take until those that stay know all. Two ranks of which the one tells of the
/// other may be found one after the other.
const LATEST: Duration = Duration::from_secs(2);

/// Who leaves when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Each a number of ranks behind the one before.
    Regular,
    Random,
    /// And some of what is said takes longer.
    Uneven,
}

const ORDERS: [Order; 3] = [Order::Regular, Order::Random, Order::Uneven];

/// Who dies meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dying {
    Nobody,
    /// Up to four, now and then all of a host that do not stay.
    Some,
}

impl Dying {
    fn choose(self, seed: &mut Seed, size: u64, per_host: u64) -> BTreeSet<u64> {
        if self == Dying::Nobody {
            return BTreeSet::new();
        }
        let mut all: BTreeSet<u64> = (0..=seed.below(4)).map(|_| seed.below(size)).collect();
        if seed.below(4) == 0 {
            let first = seed.below(size) / per_host * per_host;
            all.extend(first..size.min(first + per_host));
        }
        all
    }
}

/// A job of this number, of so many ranks at most, of which up to four stay. How many of those that
/// leave are taken for dead, since all that had heard them have died.
fn play(number: u64, most: u64, within: Duration, order: Order, dying: Dying) -> usize {
    let mut seed = Seed::of(number);
    let size = 8 + seed.below(most - 7);
    let per_host = [1, 1, 2, 5, 10, 16][seed.below(6) as usize];
    let stay: BTreeSet<u64> = (0..=seed.below(4)).map(|_| seed.below(size)).collect();
    let step = [1, 3, 7, 113, size - 1][seed.below(5) as usize];
    let mut job = Job::start(size as usize, per_host);
    job.play();
    let die = dying.choose(&mut seed, size, per_host as u64);
    for rank in (0..size).filter(|rank| !stay.contains(rank)) {
        let at = if order == Order::Regular { rank * step % size } else { seed.below(size) };
        let (time, of) = (within * at as u32 / size as u32, Rank(rank as u16));
        match die.contains(&rank) {
            true => job.kill_after(time, of),
            false => job.leave_after(time, of),
        }
    }
    if order == Order::Uneven {
        job.delay_by(seed);
    }
    let counted = job.play();
    let named = format!("job {number} of {size} ranks, {order:?} within {within:?}");
    let longest = job.leaving().iter().max().copied().unwrap_or_default();
    assert!(longest < SOON, "{named}: one takes {longest:?} to leave");
    assert!(counted.until < LATEST, "{named}: {counted:?}");
    let first = job.living().next().expect("some stay");
    let ended = (0..size).filter(|rank| !stay.contains(rank));
    let (dead, left): (Vec<_>, Vec<_>) = ended.partition(|rank| die.contains(rank));
    let named_dead = |rank: &&u64| job.takes_for_dead(first, Rank(**rank as u16));
    let mistaken: Vec<u64> = left.iter().filter(named_dead).copied().collect();
    let unheard = mistaken.iter().find(|rank| !job.is_heard_by_the_dead(Rank(**rank as u16)));
    assert_eq!(unheard, None, "{named}: one is taken for dead");
    let left = left.into_iter().filter(|rank| !mistaken.contains(rank));
    let mut ends = all(left.map(|rank| rank as u16), End::Left);
    ends.extend(all(dead.iter().chain(&mistaken).map(|rank| *rank as u16), End::Died));
    ends.sort_unstable_by_key(|(rank, _)| *rank);
    check(&job, &ends, &named);
    mistaken.len()
}

/// How many jobs are played, and of how many ranks at most.
fn jobs() -> (u64, u64) {
    match std::env::var_os("GASPI_TEST_FULL") {
        Some(_) => (100, 300),
        None => (40, 60),
    }
}

#[test]
fn those_that_stay_hear_of_all_that_leave_one_after_another() {
    let (jobs, most) = jobs();
    for (within, order) in WITHIN.into_iter().flat_map(|time| ORDERS.map(|order| (time, order))) {
        for number in 0..jobs {
            assert_eq!(play(number, most, within, order, Dying::Nobody), 0);
        }
    }
}

/// A rank that leaves may be heard by one rank only. If that dies before it has told others, nobody
/// knows; most ranks are heard by one that lives.
#[test]
fn those_that_stay_hear_of_deaths_while_others_leave() {
    let (jobs, most) = jobs();
    let (mut played, mut mistaken) = (0, 0);
    for (within, order) in WITHIN.into_iter().flat_map(|time| ORDERS.map(|order| (time, order))) {
        for number in 0..jobs {
            played += 1;
            mistaken += play(number, most, within, order, Dying::Some);
        }
    }
    assert!(mistaken * 20 < played, "{mistaken} in {played} jobs");
}

/// Some that stay have to find each other among very many that refuse connections, or one that
/// leaves one that stays.
#[test]
fn those_that_stay_are_found_among_many_that_have_left() {
    let [early, late, _] = WITHIN;
    for (number, within) in [(127, early), (145, early), (294, late)] {
        play(number, 300, within, Order::Random, Dying::Nobody);
    }
}

/// Where nobody stays the last one tries all of whom it has not heard, once.
#[test]
fn where_all_leave_one_after_another_nobody_waits_long() {
    for (size, per_host) in [(300, 1), (300, 10)] {
        let mut seed = Seed::of(size);
        let mut job = Job::start(size as usize, per_host);
        job.play();
        for rank in 0..size as u16 {
            job.leave_after(HOP * 5 * seed.below(size) as u32 / size as u32, Rank(rank));
        }
        let counted = job.play();
        let longest = job.leaving().iter().max().expect("all leave");
        assert!(*longest < SOON, "one of {size} takes {longest:?}");
        assert!(counted.refused < 2 * size as usize, "{counted:?}");
    }
}
