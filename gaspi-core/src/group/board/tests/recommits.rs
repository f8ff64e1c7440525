//! Commits of other lists under an id, one after the other without a step between, and ranks that
//! leave meanwhile.

use super::*;
use crate::policy::knomial_tree::KnomialTree;

/// Messages of a commit by leaders: within nodes to the leader and back, and between nodes.
fn by_leaders(nodes: usize, each: usize) -> usize {
    let rounds = nodes.next_power_of_two().trailing_zeros() as usize;
    2 * nodes * (each - 1) + nodes * rounds
}

/// Each list has members that are in the one before, and others; nobody has met.
#[test]
fn other_lists_under_an_id_cost_as_much_as_the_same() {
    for (nodes, each) in [(1, 64), (4, 16), (16, 5), (64, 1)] {
        for is_tree in [false, true] {
            let n = nodes * each;
            let of_ranks = (0..n).map(|rank| (rank % nodes) as u32).collect();
            let lists: Vec<Arc<[Rank]>> = vec![
                ranks(0..n),
                ranks(0..n * 2 / 3),
                ranks(n / 3..n),
                ranks((0..n).filter(|rank| rank % 2 == 0)),
                ranks(0..n),
                ranks(0..2),
                ranks(1..n),
            ];
            let count = lists.len();
            let mut script = Script::new(Job::new(of_ranks, is_tree), lists);
            let what = format!("{nodes} nodes of {each}, tree {is_tree}");
            script.run(&mut Random(7), usize::MAX, &what);
            let (posted, most) = (script.job.posted, count * by_leaders(nodes, each));
            assert!(posted <= most, "{what}: {posted} messages, not {most}");
        }
    }
}

/// Ranks leave at random once they have begun their last commit, whoever passes on what.
#[test]
fn all_agree_on_commits_of_ranks_that_leave() {
    let mut left = 0;
    for seed in 0..400 {
        let mut random = Random(seed);
        let n = 2 + random.below(7);
        let nodes: Vec<u32> = (0..n).map(|_| random.below(4) as u32).collect();
        let job = Job::new(nodes.clone(), random.below(2) == 0);
        let lists = some_lists(&mut random, n);
        let patience = [30, 3000][random.below(2)];
        let what = format!("seed {seed}, nodes {nodes:?}, patience {patience}");
        let mut script = Script::new(job, lists);
        script.leaves = (0..n).map(|_| random.below(3) == 0).collect();
        script.run(&mut random, patience, &what);
        left += script.job.has_left.iter().filter(|has_left| **has_left).count();
    }
    assert!(left > 400, "{left}");
}

/// It has begun, and passes on nothing. Those collect that it would have told.
#[test]
fn one_that_has_left_costs_some_questions_of_those_that_await_its_message() {
    for (nodes, each) in [(1, 64), (4, 16), (16, 5), (64, 1)] {
        for (is_tree, leaver) in [(false, 0), (true, 0), (false, 1), (true, 2)] {
            let n = nodes * each;
            let of_ranks: Vec<u32> = (0..n).map(|rank| (rank % nodes) as u32).collect();
            let what = format!("{nodes} nodes of {each}, tree {is_tree}, {leaver} leaves");
            let (mut job, mut random) = (Job::new(of_ranks, is_tree), Random(5));
            let whole = ranks(0..n);
            job.begin(leaver, &whole);
            job.leave(leaver);
            let others = || (0..n).filter(|me| *me != leaver);
            others().for_each(|me| job.begin(me, &whole));
            let mut ends = vec![None; n];
            for _ in 0..4 {
                while job.deliver(&mut random) {}
                for me in others() {
                    if ends[me].is_none() {
                        ends[me] = job.end(me);
                    }
                    if ends[me].is_none() {
                        job.look_for_left(me);
                    }
                }
            }
            let agreed = Some(End::Agreed(FIRST_INCARNATION));
            assert!(others().all(|me| ends[me] == agreed), "{what}: {ends:?}");
            // Each of those that it would have told asks all others, and is answered.
            let tells = match is_tree {
                true => 1 + KnomialTree::of(nodes).children(leaver % nodes).count(),
                false => nodes.next_power_of_two().trailing_zeros() as usize,
            };
            let receivers = if leaver < nodes { tells + each.min(16) + each / 16 } else { 0 };
            let most = by_leaders(nodes, each) + 2 * n * receivers;
            assert!(job.posted <= most, "{what}: {} messages, not {most}", job.posted);
        }
    }
}

/// It has committed the next list too, and what its leader tells of it comes late.
#[test]
fn who_has_gone_on_and_left_tells_of_its_commits_before() {
    for has_committed in [false, true] {
        let (mut job, mut random) = (Job::new(vec![0, 0, 1, 1, 2], false), Random(1));
        (0..4).for_each(|me| job.begin(me, &ranks(0..4)));
        // From one leader to the other.
        let mut late = VecDeque::new();
        while job.under_way.values().any(|messages| !messages.is_empty()) {
            late.extend(job.under_way.remove(&(0, 2)).unwrap_or_default());
            job.deliver(&mut random);
        }
        job.expect_agreed(&[0, 1]);
        let next: Arc<[Rank]> = [1, 4].map(Rank).into();
        job.begin(1, &next);
        if has_committed {
            job.begin(4, &next);
            while job.deliver(&mut random) {}
            job.expect_agreed(&[1, 4]);
        }
        job.leave(1);
        while job.deliver(&mut random) {}
        // Its list makes the others send theirs.
        job.expect_agreed(&[2, 3]);
        job.under_way.insert((0, 2), late);
        while job.deliver(&mut random) {}
        if !has_committed {
            // It counts for the next list too.
            job.begin(4, &next);
            job.expect_agreed(&[4]);
        }
    }
}

/// It goes on with others, again and again, without a step, while one has not heard of the first.
#[test]
fn the_list_of_a_commit_long_ago_is_sent_before_it_is_forgotten() {
    let n = 43;
    let nodes = (0..n).map(|rank| if rank == 2 { 1 } else { rank }).collect();
    let (mut job, mut random) = (Job::new(nodes, false), Random(1));
    (0..3).for_each(|me| job.begin(me, &ranks(0..3)));
    while job.under_way.values().any(|messages| !messages.is_empty()) {
        job.under_way.remove(&(1, 2));
        job.deliver(&mut random);
    }
    job.expect_agreed(&[0, 1]);
    for other in 3..n as usize {
        let next: Arc<[Rank]> = [0, other].map(|rank| Rank(rank as u16)).into();
        job.begin(0, &next);
        job.begin(other, &next);
        while job.deliver(&mut random) {}
        job.expect_agreed(&[0, other]);
        // Of the first commit nothing is lost from here on.
        assert!(job.boards[2].own[GROUP.index()].attempt.is_some());
    }
    job.expect_agreed(&[2]);
}
