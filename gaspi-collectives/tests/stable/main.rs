//! The stable mode: equal bits wherever memory lies, whatever the cores, whoever comes first, and
//! however it is called, over every kind of link.
//!
//! That plans combine in the same order is proved (`plan/stable_tests.rs`); here it is tried, with
//! what carries plans out.

#[macro_use]
#[path = "../../../gaspi-core/tests/ranks/mod.rs"]
mod ranks;

mod bits;
mod environment;
mod fused;
mod transports;
mod trees;

use std::sync::atomic::{AtomicUsize, Ordering};

use bits::{Bits, Case, contribution, one_behind_the_other};
use environment::Environment;
use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::fusion::{Fusion, Options, Tensor};
use gaspi_collectives::{Combination, DataType, Mode, Operation, Request};
use gaspi_collectives::{prepare_raw, run, start_raw};
use gaspi_core::{GroupId, Init, Rank, Runtime, SegmentId, TestMachine};
use ranks::{LIMIT, Nodes};

fn main() -> std::process::ExitCode {
    ranks::run_tests([tests(), fused::tests(), transports::tests(), trees::tests()])
}

const ALL: GroupId = GroupId::ALL;
const S0: SegmentId = SegmentId(0);
const SEGMENT_BYTES: u64 = 20 << 20;

/// Where the buffers of a rank lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    Segment,
    Private,
    /// Not aligned to anything.
    Odd,
}

/// How an operation is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Waiting,
    Started,
    Prepared,
    Fused,
}

/// What bits may not depend on, in one call.
#[derive(Clone, Debug)]
struct Circumstances {
    /// By rank, again and again.
    memory: [Memory; 3],
    in_place: bool,
    form: Form,
    background: bool,
    /// The order in which the ranks begin.
    order: Vec<usize>,
}

/// Numbers that look random: the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn circumstances(&mut self, ranks: usize) -> Circumstances {
        let kinds = [Memory::Segment, Memory::Private, Memory::Odd];
        let all = kinds[self.below(3)];
        let mixed = self.below(3) == 0;
        let mut order: Vec<usize> = (0..ranks).collect();
        for last in (1..ranks).rev() {
            order.swap(last, self.below(last + 1));
        }
        // Making ways takes longest.
        let form = match self.below(12) {
            0..6 => Form::Waiting,
            6..9 => Form::Started,
            9 => Form::Prepared,
            _ => Form::Fused,
        };
        Circumstances {
            memory: if mixed { kinds } else { [all; 3] },
            in_place: self.below(2) == 1,
            form,
            background: self.below(2) == 1,
            order,
        }
    }
}

/// Lets ranks begin in an order.
#[derive(Default)]
struct Turns(AtomicUsize);

impl Turns {
    /// Waits until all ranks before this one have begun the call with that number.
    fn await_own(&self, call: usize, order: &[usize], me: usize) {
        let place = order.iter().position(|rank| *rank == me).expect("one of them");
        while self.0.load(Ordering::Acquire) != call * order.len() + place {
            ranks::pause();
        }
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Memory of a rank, until a call has ended.
struct Buffers {
    private: Vec<u8>,
    base: *mut u8,
    output: usize,
}

impl Buffers {
    fn new(rt: &Runtime, case: &Case, around: &Circumstances) -> Buffers {
        let (me, ranks) = (rt.rank().index(), rt.size() as usize);
        let input = contribution(case, me, ranks);
        let output = match (around.in_place, case.collective) {
            (false, _) => input.len() + 64,
            (true, Collective::ReduceScatter) => me * case.output_bytes(me),
            (true, _) => 0,
        };
        let len = input.len().max(output + case.output_bytes(me)) + 64;
        let mut private = Vec::new();
        let base = match around.memory[me % 3] {
            Memory::Segment => rt.segment_ptr(S0).expect("a segment"),
            kind => {
                private = vec![0xAA; len];
                let shift = if kind == Memory::Odd { 3 } else { 0 };
                private.as_mut_ptr().wrapping_add(shift)
            }
        };
        assert!(len as u64 <= SEGMENT_BYTES, "{case:?} does not fit");
        // SAFETY: inside of the segment, or of the vector, and nobody else's.
        unsafe { base.copy_from_nonoverlapping(input.as_ptr(), input.len()) };
        Buffers { private, base, output }
    }

    fn request(&self, case: &Case, background: bool) -> Request {
        Request {
            collective: case.collective,
            send: self.base,
            receive: self.base.wrapping_add(self.output),
            count: case.count as u64,
            blocks: Vec::new(),
            combination: Combination::BuiltIn(case.ty, case.op),
            root: Rank(case.root as u16),
            algorithm: None,
            mode: Some(Mode::Stable),
            background,
        }
    }

    fn result(self, case: &Case, me: usize) -> Vec<u8> {
        let len = case.output_bytes(me);
        let mut result = vec![0; len];
        // SAFETY: inside of the segment, or of the vector; the operation has ended.
        unsafe { result.as_mut_ptr().copy_from_nonoverlapping(self.base.add(self.output), len) };
        drop(self.private);
        result
    }
}

/// Whether a fused buffer does the same.
fn is_fused(case: &Case) -> bool {
    let operations = [Operation::Sum, Operation::Average, Operation::Min, Operation::Max];
    case.collective == Collective::Allreduce && operations.contains(&case.op) && case.count > 0
}

/// One call, and its result. `begin` waits until it is this rank's turn.
fn call(rt: &Runtime, case: &Case, around: &Circumstances, begin: impl Fn()) -> Vec<u8> {
    let me = rt.rank().index();
    let buffers = Buffers::new(rt, case, around);
    let request = buffers.request(case, around.background);
    match around.form {
        Form::Fused if is_fused(case) => {
            let tensors = [Tensor { count: case.count as u64, ty: case.ty }];
            let (operation, mode) = (case.op, Some(Mode::Stable));
            let background = around.background;
            let options = Options { operation, mode, background, ..Options::default() };
            let fusion = Fusion::create(rt, &tensors, ALL, &options, LIMIT).expect("create");
            begin();
            // SAFETY: as many elements as the tensor has.
            unsafe { fusion.submit(0, request.send, 1.0) }.expect("submit");
            // SAFETY: so many are there for the result, too.
            unsafe { fusion.wait(0, request.receive, LIMIT) }.expect("wait");
        }
        Form::Waiting | Form::Fused => {
            begin();
            // SAFETY: the buffers live until the operation has ended.
            unsafe { run(rt, ALL, &request, LIMIT) }.expect("run");
        }
        Form::Started => {
            begin();
            // SAFETY: the buffers live until the operation has ended.
            let started = unsafe { start_raw(rt, ALL, &request, LIMIT) };
            started.expect("start").wait(LIMIT).expect("wait");
        }
        Form::Prepared => {
            // SAFETY: the buffers live until the operation has ended.
            let prepared = unsafe { prepare_raw(rt, ALL, &request, LIMIT) };
            let mut prepared = prepared.expect("prepare");
            begin();
            prepared.start().expect("start").wait(LIMIT).expect("wait");
        }
    }
    buffers.result(case, me)
}

const REDUCTIONS: [Collective; 3] =
    [Collective::Allreduce, Collective::Reduce, Collective::ReduceScatter];

/// Around every limit of the table, and of what carries plans out, in bytes.
const LIMITS: [usize; 11] = [
    8,
    48,
    3 << 9,
    8 << 10,
    12 << 10,
    16 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1024 << 10,
];

fn is_full() -> bool {
    std::env::var_os("GASPI_TEST_FULL").is_some_and(|value| value == "1")
}

/// All types by all operations on little data, and sums of the types that are rounded around all
/// limits.
fn cases(ranks: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    // The order of integers does not matter: they are tried for few ranks.
    let is_tried = |ty: &DataType| !ty.is_integer() || is_full() || ranks == 3;
    for ty in DataType::ALL.into_iter().filter(is_tried) {
        for op in Operation::ALL.into_iter().filter(|op| op.is_defined_for(ty)) {
            for collective in REDUCTIONS {
                cases.push(Case { collective, ty, op, count: 37, root: ranks - 1 });
            }
        }
    }
    let most = if is_full() || ranks <= 3 { 1024 << 10 } else { 64 << 10 };
    let types = [DataType::F32, DataType::F16, DataType::F64, DataType::Bf16];
    for (turn, limit) in LIMITS.into_iter().filter(|limit| *limit <= most).enumerate() {
        for collective in REDUCTIONS {
            for more in [0, 1] {
                let ty = types[(turn + more + collective as usize) % 4];
                let op = [Operation::Average, Operation::Sum][(turn + more) % 2];
                let bytes = match collective {
                    Collective::ReduceScatter => limit / ranks,
                    _ => limit,
                };
                let count = bytes / ty.bytes() as usize + more;
                cases.push(Case { collective, ty, op, count, root: turn % ranks });
                let half = types[1 + 2 * (turn % 2)];
                let count = bytes / half.bytes() as usize + more;
                cases.push(Case { collective, ty: half, op, count, root: turn % ranks });
            }
        }
    }
    cases
}

/// Machines as the library may find them.
const MACHINES: [TestMachine; 4] = [
    TestMachine { cores: Some(1), without_cross_memory: false, networks: None },
    TestMachine { cores: Some(64), without_cross_memory: true, networks: None },
    TestMachine { cores: Some(64), without_cross_memory: false, networks: None },
    TestMachine { cores: Some(1), without_cross_memory: true, networks: None },
];

fn sizes() -> Vec<u32> {
    match (is_full(), Nodes::of_this_test()) {
        (true, _) => (1..=8).collect(),
        (false, Nodes::One) => vec![1, 2, 3, 4, 8],
        _ => vec![2, 3, 5],
    }
}

/// What the bits of a layout may depend on: which ranks share a host. Kept as long as the program
/// runs, so that layouts that spread ranks alike have to have the same.
fn known_bits(nodes: Nodes) -> &'static Bits {
    use std::sync::LazyLock;
    static ONE: LazyLock<Bits> = LazyLock::new(Bits::default);
    static EACH: LazyLock<Bits> = LazyLock::new(Bits::default);
    static PAIRS: LazyLock<Bits> = LazyLock::new(Bits::default);
    static SEVERAL: LazyLock<Bits> = LazyLock::new(Bits::default);
    match nodes {
        Nodes::One => &ONE,
        Nodes::Each | Nodes::Twin | Nodes::Verbs => &EACH,
        Nodes::Pairs | Nodes::Faulty | Nodes::VerbsPairs => &PAIRS,
        Nodes::Several => &SEVERAL,
    }
}

/// Runs all cases on all machines, each under circumstances of its own.
fn bits_depend_on_nothing_else() {
    let nodes = Nodes::of_this_test();
    for size in sizes() {
        let ranks = size as usize;
        let cases = cases(ranks);
        // Many ranks that do not share cores, on a machine of few, take long.
        let all = nodes == Nodes::One && (size < 5 || is_full());
        let machines = if all { &MACHINES[..] } else { &MACHINES[..2] };
        for (seed, machine) in machines.iter().enumerate() {
            try_cases(nodes, size, (seed, *machine), &cases);
        }
    }
}

/// Runs cases on a machine, each under circumstances that a seed draws.
fn try_cases(nodes: Nodes, size: u32, (seed, machine): (usize, TestMachine), cases: &[Case]) {
    let (ranks, turns) = (size as usize, Turns::default());
    ranks::run_on_machine(size, machine, |rt| {
        rt.segment_create(S0, SEGMENT_BYTES, ALL, LIMIT, Init::Zeroed).expect("create");
        let me = rt.rank().index();
        let mut random = Random(seed as u64 * 31 + u64::from(size));
        for (number, case) in cases.iter().enumerate() {
            let around = random.circumstances(ranks);
            // Some ranks compute as programs do that flush small numbers.
            let flushes = random.below(4) + me == 3;
            let environment = flushes.then(Environment::flushing);
            let begin = || turns.await_own(number, &around.order, me);
            let found = call(rt, case, &around, begin);
            drop(environment);
            known_bits(nodes)
                .compare(case, (me, ranks), &found)
                .unwrap_or_else(|what| panic!("{what}: {nodes:?} {machine:?} {around:?}"));
            let order: Vec<usize> = (0..ranks).collect();
            if nodes == Nodes::One
                && let Some(expected) = one_behind_the_other(case, &order, me)
            {
                assert!(found == expected, "rank {me}, {case:?}: {machine:?} {around:?}");
            }
        }
    });
}

/// An all-reduce that adds contributions as they come is found by the same comparison.
fn a_dependence_on_the_order_of_arrival_is_found() {
    let bits = Bits::default();
    let case = Case {
        collective: Collective::Allreduce,
        ty: DataType::F32,
        op: Operation::Sum,
        count: 37,
        root: 0,
    };
    let mut random = Random(7);
    let compared = (0..4).map(|_| {
        let around = random.circumstances(4);
        let turns = Turns::default();
        let came = std::sync::Mutex::new(Vec::new());
        let results = ranks::run(4, |rt| {
            let me = rt.rank().index();
            turns.await_own(0, &around.order, me);
            came.lock().expect("nobody panics").push(me);
            rt.barrier(ALL, LIMIT).expect("barrier");
            let order = came.lock().expect("nobody panics").clone();
            one_behind_the_other(&case, &order, me).expect("floats")
        });
        results.iter().enumerate().try_for_each(|(me, found)| bits.compare(&case, (me, 4), found))
    });
    let differences = compared.filter(Result::is_err).count();
    assert!(differences > 0, "four orders of arrival, and always the same bits");
}

tests! {
    DEVICES: bits_depend_on_nothing_else;
    SHM: a_dependence_on_the_order_of_arrival_is_found;
}
