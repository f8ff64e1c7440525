//! Messages of operations over many nodes, counted by rank: exactly those of the algorithm that
//! the table chooses.

use super::ranks::run_jobs;
use super::*;
use gaspi_core::knomial_tree::KnomialTree;
use gaspi_core::{Config, Job, TestMachine};

const NODES: usize = 64;
/// Short: a word for each rank.
const COUNT: usize = 2;
/// The first call of a kind and group takes another path than later ones.
const CALLS: usize = 3;
const ROOT: usize = 5;

const fn cores(count: u32) -> TestMachine {
    TestMachine { cores: Some(count), without_cross_memory: false, networks: None }
}

/// A machine on which each rank of any job has a core, and one on which all share theirs.
const MANY_CORES: TestMachine = cores(512);
const ONE_CORE: TestMachine = cores(1);

fn counter(rt: &Runtime, name: &str) -> u64 {
    let is_it = |number: &u32| Runtime::statistic_info(*number).expect("one").name == name;
    let number = (0..rt.statistic_num()).find(is_it).expect("a counter of that name");
    rt.statistic_get(number, 0).expect("counter")
}

fn messages(rt: &Runtime) -> u64 {
    counter(rt, "NumberOfCollectiveMessages")
}

/// Carries operations out on all ranks, checks what they give, and counts: by rank the messages of
/// each call of each operation. The numbers of ranks are scattered over the nodes.
fn counted(
    machine: TestMachine,
    nodes: usize,
    size: usize,
    operations: &[Collective],
) -> Vec<Vec<[u64; CALLS]>> {
    let job = |id: &str, rank: Rank| {
        let node = (rank.index() % nodes) as u64;
        Job::in_process(id, rank, size as u32).on_node(node).on_machine(machine)
    };
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

/// The messages of a place within a node in a barrier, where all tell the first one, which tells
/// them.
fn within_node(place: usize, size: usize) -> u64 {
    u64::from(place > 0) + children(place, size)
}

/// The messages of a place of a k-nomial tree along which all tell each other.
fn tree(place: usize, size: usize) -> u64 {
    u64::from(place > 0) + KnomialTree::of(size).children(place).count() as u64
}

fn few_messages_over_64_nodes() {
    use Collective::{Allgather, Allreduce, Barrier, Broadcast, Reduce};
    let rounds = u64::from(NODES.ilog2());
    let operations = [Barrier, Allreduce, Broadcast, Allgather, Reduce];
    let found = counted(MANY_CORES, NODES, NODES, &operations);
    assert_counted(&found, 0, "a barrier", |_| rounds);
    assert_counted(&found, 1, "an all-reduce", |_| rounds);
    let place = |rank: usize| (rank + NODES - ROOT) % NODES;
    assert_counted(&found, 2, "a broadcast", |rank| children(place(rank), NODES));
    // Blocks that go round the end of the output are two messages.
    let around = |rank| (0..rounds).filter(|round| rank + 1 < 1 << round).count() as u64;
    assert_counted(&found, 3, "an all-gather", |rank| rounds + around(rank));
    assert_counted(&found, 4, "a reduce", |rank| u64::from(rank != ROOT));
    let all = |nth: usize| found.iter().map(|of_rank| of_rank[nth][0]).sum::<u64>();
    let n = NODES as u64;
    let expected = [n * rounds, n * rounds, n - 1, n * rounds + n - 1 - rounds, n - 1];
    assert_eq!([0, 1, 2, 3, 4].map(all), expected);
}

/// Where they share cores, two along each edge of a tree, whatever their number.
fn few_messages_along_a_tree() {
    for nodes in [NODES, 3, 16, 17, 24, 35] {
        let found = counted(ONE_CORE, nodes, nodes, &[Collective::Barrier, Collective::Allreduce]);
        for (nth, what) in [(0, "a barrier"), (1, "an all-reduce")] {
            assert_counted(&found, nth, &format!("{what} of {nodes}"), |rank| tree(rank, nodes));
        }
    }
}

/// The first member of each node alone talks to others, and to those of its node.
fn few_messages_between_nodes_of_several_ranks() {
    let is_full = std::env::var_os("GASPI_TEST_FULL").is_some();
    let many: &[(usize, usize)] = if is_full { &[(64, 2), (64, 5)] } else { &[] };
    for (nodes, each) in [&[(16, 2), (16, 3), (8, 5)], many].concat() {
        use Collective::{Allreduce, Barrier, Broadcast};
        let rounds = u64::from(nodes.ilog2());
        let size = nodes * each;
        let found = counted(MANY_CORES, nodes, size, &[Barrier, Allreduce, Broadcast]);
        // Within a node all others tell the first one, which tells them along a tree.
        let steps = |rank: usize| {
            let place = rank / nodes;
            let first = if place == 0 { rounds } else { 1 };
            first + children(place, each)
        };
        assert_counted(&found, 0, &format!("a barrier of {nodes} times {each}"), steps);
        assert_counted(&found, 1, &format!("an all-reduce of {nodes} times {each}"), steps);
        let all: u64 = found.iter().map(|of_rank| of_rank[2][0]).sum();
        assert_eq!(all, size as u64 - 1, "each but the root is sent it once");
        let found = counted(ONE_CORE, nodes, size, &[Barrier]);
        let steps = |rank: usize| {
            let (node, place) = (rank % nodes, rank / nodes);
            within_node(place, each) + if place == 0 { tree(node, nodes) } else { 0 }
        };
        assert_counted(&found, 0, "a barrier along a tree of nodes", steps);
    }
}

/// Jobs whose ranks are spread over nodes by a seed, one, two or five on each.
struct Drawn {
    machine: TestMachine,
    /// The node of each rank.
    nodes: Vec<usize>,
}

impl Drawn {
    fn new(seed: usize) -> Drawn {
        let mut state = seed as u64;
        let mut below = |limit: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        let count = 2 + below(8);
        let mut nodes: Vec<usize> =
            (0..count).flat_map(|node| vec![node; [1, 2, 5][below(3)]]).collect();
        for last in (1..nodes.len()).rev() {
            nodes.swap(last, below(last + 1));
        }
        Drawn { machine: [MANY_CORES, ONE_CORE][seed % 2], nodes }
    }

    /// The messages of a barrier of gaspi-collectives within a node.
    fn within(&self, rank: usize) -> u64 {
        let beside = |of: &usize| self.nodes[*of] == self.nodes[rank];
        let place = (0..rank).filter(beside).count();
        within_node(place, (0..self.nodes.len()).filter(beside).count())
    }
}

/// Messages to other nodes, by rank: those of a barrier of the standard, and of one of
/// gaspi-collectives. Ranks that are late for once, on a busy machine, tell all that they have
/// arrived: so it is tried some times, until both are the same.
fn of_both_barriers(drawn: &Drawn) -> (Vec<u64>, Vec<u64>) {
    const TRIES: usize = 60;
    let job = |id: &str, rank: Rank| {
        let node = drawn.nodes[rank.index()] as u64;
        Job::in_process(id, rank, drawn.nodes.len() as u32).on_node(node).on_machine(drawn.machine)
    };
    let barrier = case(Collective::Barrier, 0);
    let counts = run_jobs(drawn.nodes.len() as u32, &Config::default(), job, |rt| {
        // Whoever ends it knows that all have sent their messages of steps before it.
        let meet = || carry_out(&rt, &barrier, None, Memory::Private);
        let of_standard = |_| {
            meet();
            let before = counter(&rt, "NumberOfGroupMessages");
            (0..CALLS).for_each(|_| rt.barrier(GroupId::ALL, LIMIT).expect("barrier"));
            meet();
            counter(&rt, "NumberOfGroupMessages") - before
        };
        let of_standard: Vec<u64> = (0..TRIES).map(of_standard).collect();
        let before = messages(&rt);
        (0..CALLS).for_each(|_| meet());
        let all = messages(&rt) - before;
        rt.term(LIMIT).expect("term");
        (of_standard, all - CALLS as u64 * drawn.within(rt.rank().index()))
    });
    let of_ours: Vec<u64> = counts.iter().map(|(_, of_ours)| *of_ours).collect();
    let of_try = |nth: usize| counts.iter().map(|(tries, _)| tries[nth]).collect::<Vec<u64>>();
    let found = (0..TRIES).map(of_try).find(|of_standard| *of_standard == of_ours);
    (found.unwrap_or_else(|| of_try(TRIES - 1)), of_ours)
}

fn both_barriers_send_the_same_messages_between_nodes() {
    let is_full = std::env::var_os("GASPI_TEST_FULL").is_some();
    for seed in 0..if is_full { 60 } else { 12 } {
        let drawn = Drawn::new(seed);
        let (of_standard, of_ours) = of_both_barriers(&drawn);
        let Drawn { machine, nodes } = drawn;
        assert_eq!(of_standard, of_ours, "seed {seed}, nodes {nodes:?}, {:?} cores", machine.cores);
    }
}

tests! {
    TCP:
        both_barriers_send_the_same_messages_between_nodes,
        few_messages_over_64_nodes,
        few_messages_along_a_tree,
        few_messages_between_nodes_of_several_ranks;
}
