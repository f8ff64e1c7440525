//! Messages of operations over many nodes, counted by rank: exactly those of the algorithm that
//! the table chooses.

use super::ranks::run_jobs;
use super::*;
use gaspi_core::{Config, Job};

const NODES: usize = 64;
/// Short: a word for each rank.
const COUNT: usize = 2;
/// The first call of a kind and group takes another path than later ones.
const CALLS: usize = 3;
const ROOT: usize = 5;

/// A job of nodes with so many ranks each, whose numbers are scattered over the nodes.
fn job_of(nodes: usize, id: &str, rank: Rank, size: u32) -> Job {
    Job::in_process(id, rank, size).on_node((rank.index() % nodes) as u64)
}

fn messages(rt: &Runtime) -> u64 {
    let is_it = |number: &u32| {
        Runtime::statistic_info(*number).expect("one").name == "NumberOfCollectiveMessages"
    };
    let number = (0..rt.statistic_num()).find(is_it).expect("a counter of that name");
    rt.statistic_get(number, 0).expect("counter")
}

/// Carries operations out on all ranks, checks what they give, and counts: by rank the messages of
/// each call of each operation.
fn counted(nodes: usize, size: usize, operations: &[Collective]) -> Vec<Vec<[u64; CALLS]>> {
    let job = |id: &str, rank| job_of(nodes, id, rank, size as u32);
    run_jobs(size as u32, &Config::default(), job, |rt| {
        let of_call = |collective| {
            let before = messages(&rt);
            let case = Case { root: ROOT, ..case(collective, COUNT) };
            carry_out(&rt, &case, None, Memory::Private);
            messages(&rt) - before
        };
        let of_all = |collective: &Collective| [(); CALLS].map(|()| of_call(*collective));
        let counts = operations.iter().map(of_all).collect();
        rt.term(LIMIT).expect("term");
        counts
    })
}

/// Each call of an operation, the `nth` one, takes so many messages of each rank.
fn assert_counted(
    found: &[Vec<[u64; CALLS]>],
    nth: usize,
    what: &str,
    expected: impl Fn(usize) -> u64,
) {
    for (rank, of_rank) in found.iter().enumerate() {
        let expected = expected(rank);
        assert_eq!(of_rank[nth], [expected; CALLS], "{what}, rank {rank}");
    }
}

/// The number of members that a member passes data on to along a binomial tree, from its place
/// behind the root: as many as its number has zeroes at its end.
fn children(place: usize, size: usize) -> u64 {
    let below = |bit: &u32| place.is_multiple_of(2 << bit) && place + (1 << bit) < size;
    (0..size.next_power_of_two().ilog2()).filter(below).count() as u64
}

fn few_messages_over_64_nodes() {
    use Collective::{Allgather, Allreduce, Barrier, Broadcast, Reduce};
    let rounds = u64::from(NODES.ilog2());
    let found = counted(NODES, NODES, &[Barrier, Allreduce, Broadcast, Allgather, Reduce]);
    assert_counted(&found, 0, "a barrier", |_| rounds);
    assert_counted(&found, 1, "an all-reduce", |_| rounds);
    let place = |rank: usize| (rank + NODES - ROOT) % NODES;
    assert_counted(&found, 2, "a broadcast", |rank| children(place(rank), NODES));
    // Blocks that go round the end of the output are two messages.
    let around = |rank| (0..rounds).filter(|round| rank + (1 << round) > NODES).count() as u64;
    assert_counted(&found, 3, "an all-gather", |rank| rounds + around(rank));
    assert_counted(&found, 4, "a reduce", |rank| u64::from(rank != ROOT));
    let all = |nth: usize| found.iter().map(|of_rank| of_rank[nth][0]).sum::<u64>();
    let n = NODES as u64;
    let expected = [n * rounds, n * rounds, n - 1, n * rounds + n - 1 - rounds, n - 1];
    assert_eq!([0, 1, 2, 3, 4].map(all), expected);
}

/// The first member of each node alone talks to others, and to those of its node.
fn few_messages_between_nodes_of_several_ranks() {
    let is_full = std::env::var_os("GASPI_TEST_FULL").is_some();
    let many: &[(usize, usize)] = if is_full { &[(64, 2), (64, 5)] } else { &[] };
    for (nodes, each) in [&[(16, 2), (16, 3), (8, 5)], many].concat() {
        use Collective::{Allreduce, Barrier, Broadcast};
        let rounds = u64::from(nodes.ilog2());
        let found = counted(nodes, nodes * each, &[Barrier, Allreduce, Broadcast]);
        // Within a node all others tell the first one, which tells them along a tree.
        let steps = |rank: usize| {
            let place = rank / nodes;
            let first = if place == 0 { rounds } else { 1 };
            first + children(place, each)
        };
        assert_counted(&found, 0, &format!("a barrier of {nodes} times {each}"), steps);
        assert_counted(&found, 1, &format!("an all-reduce of {nodes} times {each}"), steps);
        let all: u64 = found.iter().map(|of_rank| of_rank[2][0]).sum();
        assert_eq!(all, (nodes * each) as u64 - 1, "each but the root is sent it once");
    }
}

tests! {
    TCP:
        few_messages_over_64_nodes,
        few_messages_between_nodes_of_several_ranks;
}
