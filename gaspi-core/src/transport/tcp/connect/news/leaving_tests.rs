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

/// How long each may take. One may find another one that accepts a connection, but ends before it
/// has proved who it is, and tries twice then.
const SOON: Duration = Duration::from_millis(150);

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

/// A job of this number, of so many ranks at most, of which up to four stay.
fn play(number: u64, most: u64, within: Duration, order: Order) {
    let mut seed = Seed::of(number);
    let size = 8 + seed.below(most - 7);
    let per_host = [1, 1, 2, 5, 10, 16][seed.below(6) as usize];
    let stay: BTreeSet<u64> = (0..=seed.below(4)).map(|_| seed.below(size)).collect();
    let step = [1, 3, 7, 113, size - 1][seed.below(5) as usize];
    let mut job = Job::start(size as usize, per_host);
    job.play();
    let leave = (0..size).filter(|rank| !stay.contains(rank));
    for rank in leave.clone() {
        let at = if order == Order::Regular { rank * step % size } else { seed.below(size) };
        job.leave_after(within * at as u32 / size as u32, Rank(rank as u16));
    }
    if order == Order::Uneven {
        job.delay_by(seed);
    }
    job.play();
    let named = format!("job {number} of {size} ranks, {order:?} within {within:?}");
    let longest = job.leaving().iter().max().expect("some leave");
    assert!(*longest < SOON, "{named}: one takes {longest:?} to leave");
    check(&job, &all(leave.map(|rank| rank as u16), End::Left), &named);
}

#[test]
fn those_that_stay_hear_of_all_that_leave_one_after_another() {
    let (jobs, most) = match std::env::var_os("GASPI_TEST_FULL") {
        Some(_) => (100, 300),
        None => (40, 60),
    };
    for (within, order) in WITHIN.into_iter().flat_map(|time| ORDERS.map(|order| (time, order))) {
        (0..jobs).for_each(|number| play(number, most, within, order));
    }
}

/// Some that stay have to find each other among very many that refuse connections, or one that
/// leaves one that stays.
#[test]
fn those_that_stay_are_found_among_many_that_have_left() {
    let [early, late, _] = WITHIN;
    for (number, within) in [(127, early), (145, early), (294, late)] {
        play(number, 300, within, Order::Random);
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
