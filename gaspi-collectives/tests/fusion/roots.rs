//! Short buckets of ranks that share cores are reduced along a tree, whose root sends most: each
//! rank is it in turn. Messages of each rank are counted.

use super::*;
use gaspi_collectives::algorithms::Algorithm;
use gaspi_core::TestMachine;
use gaspi_core::knomial_tree::KnomialTree;

/// A machine whose ranks share a core.
const ONE_CORE: TestMachine =
    TestMachine { cores: Some(1), without_cross_memory: false, networks: None };
const COUNT: usize = 300;
const STEPS: usize = 3;

fn messages(rt: &Runtime) -> u64 {
    let name = "NumberOfCollectiveMessages";
    let is_it = |number: &u32| Runtime::statistic_info(*number).expect("one").name == name;
    let number = (0..rt.statistic_num()).find(is_it).expect("a counter of that name");
    rt.statistic_get(number, 0).expect("counter")
}

/// The messages of each rank in each step of a fused buffer of so many buckets.
fn counted(ranks: u32, buckets: usize, algorithm: Option<Algorithm>) -> Vec<[u64; STEPS]> {
    ranks::run_on_machine(ranks, ONE_CORE, |rt| {
        let me = rt.rank().index();
        let options = Options { threshold: 0, algorithm, ..Options::default() };
        let fusion = create(rt, &floats(&vec![COUNT; buckets]), &options);
        let mut random = Random(me as u64);
        let mut step = 0;
        [(); STEPS].map(|()| {
            let before = messages(rt);
            for tensor in random.order(buckets) {
                submit(&fusion, tensor, &contribution(me, tensor, step, COUNT));
            }
            for tensor in random.order(buckets) {
                let expected = sum(ranks as usize, tensor, step, COUNT);
                assert_eq!(wait(&fusion, tensor, COUNT), expected, "{tensor} of step {step}");
            }
            step += 1;
            messages(rt) - before
        })
    })
}

/// What a rank sends along the trees of so many buckets: to its parent, and to its children.
fn along_trees(ranks: usize, buckets: usize, rank: usize) -> u64 {
    let of_bucket = |bucket: usize| {
        let tree = KnomialTree::with_root(ranks, bucket % ranks);
        u64::from(tree.parent(rank).is_some()) + tree.children(rank).count() as u64
    };
    (0..buckets).map(of_bucket).sum()
}

fn each_rank_is_the_root_of_a_bucket_in_turn() {
    for (ranks, buckets) in [(3, 6), (4, 8), (4, 21), (7, 7), (8, 16), (17, 17), (24, 24)] {
        let found = counted(ranks, buckets, None);
        let ranks = ranks as usize;
        for (rank, of_rank) in found.iter().enumerate() {
            let expected = along_trees(ranks, buckets, rank);
            assert_eq!(*of_rank, [expected; STEPS], "rank {rank} of {ranks}, {buckets} buckets");
        }
        // A star: of as many buckets for each rank all send as much.
        if ranks <= 16 && buckets.is_multiple_of(ranks) {
            let of_each = 2 * (ranks - 1) * buckets / ranks;
            assert!(found.iter().all(|of_rank| of_rank[0] == of_each as u64), "{found:?}");
        }
        // Fewer than from one root.
        let of_one = (buckets * KnomialTree::of(ranks).children(0).count()) as u64;
        assert!(found.iter().all(|of_rank| of_rank[0] < of_one), "{ranks} ranks: {found:?}");
    }
}

/// Other algorithms have no root to take in turn.
fn doubling_sends_as_much_from_each_rank() {
    let found = counted(4, 5, Some(Algorithm::RecursiveDoubling));
    assert!(found.iter().flatten().all(|messages| *messages == 2 * 5), "{found:?}");
}

tests! {
    TCP: each_rank_is_the_root_of_a_bucket_in_turn, doubling_sends_as_much_from_each_rank;
}
