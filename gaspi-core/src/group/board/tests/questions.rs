//! What members ask that have waited for long.

use super::*;

impl Job {
    /// Delivers all messages, also those of ranks whose commits fail meanwhile: all do.
    fn expect_failed(&mut self, random: &mut Random, what: &str) {
        let mut ends: Vec<Option<End>> = vec![None; self.boards.len()];
        // An error of one ends the commits of others.
        for _ in 0..ends.len() {
            while self.deliver(random) {}
            for (me, end) in ends.iter_mut().enumerate().filter(|(_, end)| end.is_none()) {
                *end = self.end(me);
            }
        }
        let failed = |end: &Option<End>| matches!(end, Some(End::Failed(_)));
        assert!(ends.iter().all(failed), "{what}: {ends:?}");
    }
}

/// All but one have waited for long before that one begins, and each at another time.
#[test]
fn who_is_late_costs_each_some_questions() {
    for (nodes, each) in [(1, 64), (4, 16), (16, 5), (64, 1)] {
        for (seed, is_tree) in [(1, false), (2, true)] {
            let (n, mut random) = (nodes * each, Random(seed));
            let nodes: Vec<u32> = (0..n).map(|rank| (rank % nodes) as u32).collect();
            let what = format!("nodes {nodes:?}, tree {is_tree}");
            let mut job = Job::new(nodes, is_tree);
            let (whole, late) = (ranks(0..n), random.below(n));
            let mut posted = 0;
            for me in (0..n).filter(|me| *me != late) {
                job.begin(me, &whole);
            }
            for _ in 0..3 {
                (0..n).filter(|me| *me != late).for_each(|me| job.ask(me));
                while job.deliver(&mut random) {
                    posted += 1;
                }
            }
            assert!((0..n).all(|me| job.end(me).is_none()), "{what}: one has not begun");
            job.begin(late, &whole);
            while job.deliver(&mut random) {
                posted += 1;
            }
            for me in 0..n {
                assert_eq!(job.end(me), Some(End::Agreed(FIRST_INCARNATION)), "{what}: {me}");
            }
            // Each has asked three times, those of at most six messages.
            assert!(posted <= 24 * n, "{what}: {posted} messages");
        }
    }
}

/// Two lists without their leaders' common members: those who ask are in one of them only.
#[test]
fn lists_are_compared_though_none_of_their_members_asks_one_of_the_other() {
    for seed in 0..50 {
        let (mut job, mut random) = (Job::new(vec![0; 8], false), Random(seed));
        let one: Arc<[Rank]> = [0, 2, 3, 4, 5, 6, 7].map(Rank).into();
        let other = ranks(1..8);
        for me in 0..8 {
            job.begin(me, if [1, 5, 6, 7].contains(&me) { &other } else { &one });
        }
        for _ in 0..3 {
            (0..8).for_each(|me| job.ask(me));
            while job.deliver(&mut random) {}
        }
        job.expect_failed(&mut random, &format!("seed {seed}"));
    }
}

/// Those who ask have begun, and have asked, before all that could tell them of each other.
#[test]
fn lists_are_compared_by_who_was_asked_about_another_one_by_another_rank() {
    let (mut job, mut random) = (Job::new(vec![0; 8], false), Random(1));
    let one: Arc<[Rank]> = [0, 2, 3, 4, 5].map(Rank).into();
    let other: Arc<[Rank]> = [1, 2, 3, 6, 7].map(Rank).into();
    job.begin(0, &one);
    job.begin(1, &other);
    job.ask(0);
    job.ask(1);
    while job.deliver(&mut random) {}
    for me in 2..8 {
        job.begin(me, if [2, 4, 5].contains(&me) { &one } else { &other });
    }
    while job.deliver(&mut random) {}
    for _ in 0..2 {
        (0..2).for_each(|me| job.ask(me));
        while job.deliver(&mut random) {}
    }
    job.expect_failed(&mut random, "lists differ");
}

/// A commit went to all; the answers in the next one send its lists again.
#[test]
fn what_is_sent_again_of_a_commit_that_has_ended_makes_nobody_tell_all() {
    let (mut job, mut random) = (Job::new(vec![0; 20], false), Random(1));
    let (whole, all) = (ranks(0..20), 0..20);
    all.clone().for_each(|me| job.begin(me, &whole));
    job.tell_all(3);
    while job.deliver(&mut random) {}
    job.expect_agreed(&all.clone().collect::<Vec<_>>());
    all.clone().for_each(|me| job.boards[me].all_know(GROUP, FIRST_INCARNATION));
    all.clone().skip(1).for_each(|me| job.begin(me, &whole));
    all.clone().for_each(|me| job.ask(me));
    while job.deliver(&mut random) {}
    let told_all = |me: &usize| {
        let attempt = job.boards[*me].own[GROUP.index()].attempt.as_ref();
        attempt.expect("one is under way").told_all
    };
    assert_eq!(all.clone().skip(1).filter(told_all).count(), 0);
    job.begin(0, &whole);
    while job.deliver(&mut random) {}
    job.expect_agreed(&all.collect::<Vec<_>>());
}

/// A member has tried once, and computes: only handlers of messages pass on what others ask.
#[test]
fn who_has_not_waited_for_long_asks_once_it_is_asked() {
    let (mut job, mut random) = (Job::new((0..8).collect(), true), Random(1));
    (0..7).for_each(|me| job.begin(me, &ranks(0..8)));
    // The first one waits for the fifth, that one for the seventh, and that for the last.
    job.begin(7, &ranks(1..8));
    job.ask(0);
    job.expect_failed(&mut random, "lists differ");
}

/// The others have all asked before it begins, and ask no more.
#[test]
fn who_was_asked_compares_its_list_once_it_begins() {
    let mut compared = 0;
    for seed in 0..500 {
        let mut random = Random(seed);
        let n = 5 + random.below(8);
        let (nodes, odd) = (1 + random.below(n), random.below(n));
        let of_ranks: Vec<u32> = (0..n).map(|rank| (rank % nodes) as u32).collect();
        let mut job = Job::new(of_ranks, random.below(2) == 0);
        let others = || (0..n).filter(|me| *me != odd);
        others().for_each(|me| job.begin(me, &ranks(0..n)));
        others().for_each(|me| job.ask(me));
        while job.deliver(&mut random) {}
        let is_in: Vec<bool> = (0..n).map(|me| me == odd || random.below(2) == 0).collect();
        let list = ranks((0..n).filter(|rank| is_in[*rank]));
        let asks = |rank: &Rank| {
            let announced = job.boards[odd].announced.get(&(GROUP, *rank));
            announced.is_some_and(|announced| announced.asked.is_some())
        };
        if list.len() == n || !list.iter().any(asks) {
            continue;
        }
        compared += 1;
        job.begin(odd, &list);
        let what = format!("seed {seed}, {nodes} nodes, {odd}: {list:?}");
        job.expect_failed(&mut random, &what);
    }
    assert!(compared > 100, "{compared}");
}
