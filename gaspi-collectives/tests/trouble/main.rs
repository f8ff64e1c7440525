//! Collective operations when something is wrong: ranks that do not agree, are late, leave or die;
//! handles and arguments misused; functions of the program that fail.

#[macro_use]
#[path = "../../../gaspi-core/tests/ranks/mod.rs"]
mod ranks;

mod background;
mod bad_input;
mod deaths;
mod devices;
mod groups;
mod handles;
mod late;
mod lingering;
mod lists;
mod many;
mod mismatch;
mod owned;
mod reducers;
mod repeated;
mod woken;

use std::time::{Duration, Instant};

use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::{Combination, DataType, Operation, Request, run};
use gaspi_core::{GroupId, Rank, Result, Runtime, Timeout};
use ranks::{LIMIT, Nodes};

fn main() -> std::process::ExitCode {
    ranks::run_tests([
        background::tests(),
        bad_input::tests(),
        deaths::tests(),
        devices::tests(),
        groups::tests(),
        handles::tests(),
        late::tests(),
        lingering::tests(),
        lists::tests(),
        many::tests(),
        mismatch::tests(),
        owned::tests(),
        reducers::tests(),
        repeated::tests(),
        woken::tests(),
    ])
}

const ALL: GroupId = GroupId::ALL;

/// Long enough for what is reported at once, with ten times the time that it may take.
const SOON: Duration = Duration::from_secs(10);

/// Buffers of one rank: elements u64, input and output apart.
struct Memory {
    input: Vec<u64>,
    output: Vec<u64>,
}

/// What no operation writes.
const UNTOUCHED: u64 = 0xAAAA_AAAA_AAAA_AAAA;

impl Memory {
    /// Room for `elements` in and out; the input is that of [`value`].
    fn new(rank: Rank, elements: usize) -> Memory {
        let input = (0..elements).map(|index| value(rank, index)).collect();
        Memory { input, output: vec![UNTOUCHED; elements] }
    }

    /// Whether the output has nothing but what this rank has put there itself.
    fn has_nothing_of_others(&self) -> bool {
        let own = |(found, own): (&u64, &u64)| *found == UNTOUCHED || found == own;
        self.output.iter().zip(&self.input).all(own)
    }

    /// A sum over u64.
    fn request(&mut self, collective: Collective, count: u64) -> Request {
        Request {
            collective,
            send: self.input.as_ptr().cast(),
            receive: self.output.as_mut_ptr().cast(),
            count,
            blocks: Vec::new(),
            combination: Combination::BuiltIn(DataType::U64, Operation::Sum),
            root: Rank(0),
            algorithm: None,
            mode: None,
            background: false,
        }
    }
}

/// An element of a rank's input.
fn value(rank: Rank, index: usize) -> u64 {
    u64::from(rank.0) * 1000 + index as u64 % 97
}

/// The same element of the sum over ranks.
fn sum(ranks: impl IntoIterator<Item = Rank>, index: usize) -> u64 {
    ranks.into_iter().map(|rank| value(rank, index)).sum()
}

fn ranks_below(size: u32) -> impl Iterator<Item = Rank> + Clone {
    (0..size as u16).map(Rank)
}

/// [`run`], of buffers that outlive it.
fn call(rt: &Runtime, group: GroupId, request: &Request, timeout: Timeout) -> Result<()> {
    // SAFETY: the tests keep buffers until the operation has ended, or the job.
    unsafe { run(rt, group, request, timeout) }
}

/// An all-reduce that has to succeed, and its result.
fn sum_of_all(rt: &Runtime, group: GroupId, count: usize) {
    let mut memory = Memory::new(rt.rank(), count);
    let request = memory.request(Collective::Allreduce, count as u64);
    call(rt, group, &request, LIMIT).expect("allreduce");
    let members = rt.group_ranks(group).expect("members");
    check_sum(&memory.output, &members);
}

fn check_sum(output: &[u64], members: &[Rank]) {
    for (index, found) in output.iter().enumerate() {
        assert_eq!(*found, sum(members.iter().copied(), index), "element {index}");
    }
}

/// A counter of this rank, by its name.
fn counter(rt: &Runtime, name: &str) -> u64 {
    let is_it = |number: &u32| Runtime::statistic_info(*number).expect("one").name == name;
    let number = (0..rt.statistic_num()).find(is_it).expect("a counter of that name");
    rt.statistic_get(number, 0).expect("counter")
}

/// Commits a group of these ranks, on all of them.
fn group_of(rt: &Runtime, ranks: impl IntoIterator<Item = Rank>) -> GroupId {
    let group = rt.group_create().expect("group_create");
    ranks.into_iter().for_each(|rank| rt.group_add(group, rank).expect("group_add"));
    rt.group_commit(group, LIMIT).expect("group_commit");
    group
}

/// Whether an algorithm serves an operation over the links of this run.
fn serves(algorithm: Algorithm, collective: Collective, size: u32) -> bool {
    let one_node = size == 1 || Nodes::of_this_test() == Nodes::One;
    algorithm.serves(collective)
        && (one_node || !algorithm.requires_one_node())
        && algorithm != Algorithm::Inline
}

/// Numbers by a seed: the same ones in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        // xorshift64*, whose upper half is good enough here.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// Repeats `attempt` until it gives something, or fails the test.
fn within<T>(limit: Duration, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(begin.elapsed() < limit, "{what} has not happened within {limit:?}");
        std::thread::yield_now();
    }
}
