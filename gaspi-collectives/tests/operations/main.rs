//! Collective operations over every kind of link, against a naive oracle.

#[macro_use]
#[path = "../../../gaspi-core/tests/ranks/mod.rs"]
mod ranks;

mod counted;
mod oracle;
mod product;
mod repeated;

use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::{Blocks, Combination, DataType, Operation, Request};
use gaspi_collectives::{Prepared, Started, prepare_raw, run, start_raw};
use gaspi_core::{GroupId, Init, Rank, Runtime, SegmentId};
use oracle::{Case, encode_all};
use ranks::{LIMIT, Nodes};

fn main() -> std::process::ExitCode {
    ranks::run_tests([tests(), counted::tests(), product::tests(), repeated::tests()])
}

/// The segment in which buffers lie, where they lie in one.
const S0: SegmentId = SegmentId(0);
const SEGMENT_BYTES: u64 = 8 << 20;
/// Elements of a large operation.
const MANY: usize = 40_003;

/// Where the buffers of a case lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    Private,
    /// Not aligned to anything.
    Odd,
    Segment,
}

/// Input and output of one rank for one case.
struct Buffers {
    memory: Memory,
    bytes: Vec<u8>,
    base: *mut u8,
    /// In bytes.
    input: usize,
    output: usize,
    output_len: usize,
}

impl Buffers {
    fn new(rt: &Runtime, case: &Case, memory: Memory) -> Buffers {
        let (me, n) = (rt.rank().index(), rt.size() as usize);
        let element = case.ty.bytes() as usize;
        let input_len = case.input_len(me, n) * element;
        let output_len = case.output(me, n).len() * element;
        let shift = if memory == Memory::Odd { 3 } else { 0 };
        let (input, output) = match (case.in_place, case.collective) {
            (false, _) => (shift, shift + input_len + 64),
            (true, Collective::Allgather | Collective::Gather) if output_len > 0 => {
                (shift + case.begin(me) * element, shift)
            }
            (true, Collective::Scatter | Collective::ReduceScatter) if input_len > 0 => {
                (shift, shift + case.begin(me) * element)
            }
            (true, _) => (shift, shift),
        };
        let len = (input + input_len).max(output + output_len) + 64;
        let mut bytes = Vec::new();
        let base = if memory == Memory::Segment {
            rt.segment_ptr(S0).expect("segment")
        } else {
            bytes = vec![0; len];
            bytes.as_mut_ptr()
        };
        assert!(len as u64 <= SEGMENT_BYTES, "{case:?} does not fit");
        let mut buffers = Buffers { memory, bytes, base, input, output, output_len };
        buffers.fill(rt, case);
        buffers
    }

    /// Writes the input, and something else where the output comes.
    fn fill(&mut self, rt: &Runtime, case: &Case) {
        let me = rt.rank().index();
        let len = case.input_len(me, rt.size() as usize) * case.ty.bytes() as usize;
        let mut input = vec![0; len];
        encode_all(case.ty, (0..).map(|i| case.input(me, i)), &mut input);
        self.write(rt, self.output, &vec![0xAA; self.output_len]);
        self.write(rt, self.input, &input);
    }

    fn write(&mut self, rt: &Runtime, at: usize, from: &[u8]) {
        if self.memory == Memory::Segment {
            rt.segment_write(S0, at as u64, from).expect("inside");
        } else {
            self.bytes[at..at + from.len()].copy_from_slice(from);
        }
    }

    fn read(&self, rt: &Runtime, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if self.memory == Memory::Segment {
            rt.segment_read(S0, at as u64, &mut bytes).expect("inside");
        } else {
            bytes.copy_from_slice(&self.bytes[at..at + len]);
        }
        bytes
    }

    fn request(&self, case: &Case, algorithm: Option<Algorithm>, me: usize, n: usize) -> Request {
        let packed = |counts: Vec<u64>| Blocks { counts, displacements: Vec::new() };
        let blocks = if case.uneven {
            let row = |f: &dyn Fn(usize) -> usize| packed((0..n).map(|m| f(m) as u64).collect());
            vec![row(&|to| case.exchanged(me, to)), row(&|from| case.exchanged(from, me))]
        } else if case.counts.is_empty() {
            Vec::new()
        } else {
            vec![packed(case.counts.iter().map(|count| *count as u64).collect())]
        };
        Request {
            collective: case.collective,
            send: self.base.wrapping_add(self.input),
            receive: self.base.wrapping_add(self.output),
            count: case.count as u64,
            blocks,
            combination: Combination::BuiltIn(case.ty, case.op),
            root: Rank(case.root as u16),
            algorithm,
            mode: None,
            background: false,
        }
    }

    fn check(&self, rt: &Runtime, case: &Case, what: &str) {
        let (me, n) = (rt.rank().index(), rt.size() as usize);
        let mut expected = vec![0; self.output_len];
        encode_all(case.ty, case.output(me, n).into_iter(), &mut expected);
        let found = self.read(rt, self.output, self.output_len);
        if found != expected {
            let element = case.ty.bytes() as usize;
            let wrong = found.iter().zip(&expected).position(|(a, b)| a != b).expect("differs");
            panic!("{what}: rank {me} of {n}, {case:?}: element {} is wrong", wrong / element);
        }
        if !case.in_place {
            let len = case.input_len(me, n) * case.ty.bytes() as usize;
            let mut input = vec![0; len];
            encode_all(case.ty, (0..).map(|i| case.input(me, i)), &mut input);
            assert_eq!(self.read(rt, self.input, len), input, "{what}: {case:?}: input is changed");
        }
    }
}

/// Runs a case and checks what it gives.
fn carry_out(rt: &Runtime, case: &Case, algorithm: Option<Algorithm>, memory: Memory) {
    let (me, n) = (rt.rank().index(), rt.size() as usize);
    let buffers = Buffers::new(rt, case, memory);
    let request = buffers.request(case, algorithm, me, n);
    let what = match algorithm {
        Some(algorithm) => format!("{algorithm}, {memory:?}"),
        None => format!("{memory:?}"),
    };
    // SAFETY: the buffers live until the operation has ended.
    let outcome = unsafe { run(rt, GroupId::ALL, &request, LIMIT) };
    outcome.unwrap_or_else(|error| panic!("{what}: {case:?}: {error}"));
    buffers.check(rt, case, &what);
}

fn case(collective: Collective, count: usize) -> Case {
    let (ty, op) = (DataType::F32, Operation::Sum);
    let (counts, uneven) = (Vec::new(), false);
    Case { collective, ty, op, count, counts, uneven, root: 0, in_place: false }
}

/// Whether an algorithm can be used here for a case.
fn can(algorithm: Algorithm, case: &Case, n: usize) -> bool {
    let one_node = n == 1 || Nodes::of_this_test() == Nodes::One;
    // Everything has to fit into lines of 48 bytes.
    let bytes = case.count * n * case.ty.bytes() as usize;
    algorithm.serves(case.collective)
        && (one_node || !algorithm.requires_one_node())
        && (algorithm != Algorithm::Inline || bytes <= 48 && case.counts.is_empty())
        && (!case.uneven || [Algorithm::Pairwise, Algorithm::Linear].contains(&algorithm))
}

const SIZES: [u32; 6] = [1, 2, 3, 4, 5, 8];

fn on_all_sizes(body: impl Fn(&Runtime) + Sync) {
    for size in ranks::sizes(&SIZES) {
        ranks::run(size, |rt| {
            rt.segment_create(S0, SEGMENT_BYTES, GroupId::ALL, LIMIT, Init::Zeroed)
                .expect("create");
            body(rt);
        });
    }
}

fn every_operation_by_every_algorithm() {
    on_all_sizes(|rt| {
        let n = rt.size() as usize;
        for collective in Collective::ALL {
            let choices = Algorithm::ALL.into_iter().map(Some).chain([None]);
            for (turn, algorithm) in choices.enumerate() {
                for (index, count) in [0, 1, 7, 1000, MANY].into_iter().enumerate() {
                    // Blocks of all members fit into a segment.
                    let count = count.min(8 * MANY / n);
                    for ty in [DataType::F32, DataType::U64] {
                        let case = Case {
                            ty,
                            root: (turn + index) % n,
                            in_place: (turn + index) % 2 == 1,
                            ..case(collective, count)
                        };
                        let memory =
                            [Memory::Segment, Memory::Private, Memory::Odd][(turn + index) % 3];
                        if algorithm.is_none_or(|algorithm| can(algorithm, &case, n)) {
                            carry_out(rt, &case, algorithm, memory);
                        }
                    }
                }
            }
        }
    });
}

fn every_type_by_every_operation() {
    ranks::run(3, |rt| {
        rt.segment_create(S0, SEGMENT_BYTES, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
        for ty in DataType::ALL {
            for op in Operation::ALL.into_iter().filter(|op| op.is_defined_for(ty)) {
                for collective in
                    [Collective::Allreduce, Collective::Reduce, Collective::ReduceScatter]
                {
                    for (count, memory) in [(5, Memory::Odd), (3001, Memory::Segment)] {
                        carry_out(rt, &Case { ty, op, ..case(collective, count) }, None, memory);
                    }
                }
            }
        }
    });
}

fn blocks_that_differ() {
    on_all_sizes(|rt| {
        let n = rt.size() as usize;
        let counts: Vec<usize> = (0..n).map(|m| (m * 1237) % 4001 * (m % 3)).collect();
        for algorithm in Algorithm::ALL.into_iter().map(Some).chain([None]) {
            for in_place in [false, true] {
                let gather =
                    Case { counts: counts.clone(), in_place, ..case(Collective::Allgather, 0) };
                if algorithm.is_none_or(|algorithm| can(algorithm, &gather, n)) {
                    carry_out(rt, &gather, algorithm, Memory::Private);
                }
            }
            for count in [0, 3, 9001] {
                let exchange = Case { uneven: true, ..case(Collective::Alltoall, count) };
                if algorithm.is_none_or(|algorithm| can(algorithm, &exchange, n)) {
                    carry_out(rt, &exchange, algorithm, Memory::Segment);
                }
            }
        }
    });
}

fn large_counts() {
    ranks::run(2, |rt| {
        rt.segment_create(S0, SEGMENT_BYTES, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
        for collective in Collective::ALL {
            for memory in [Memory::Segment, Memory::Private] {
                carry_out(rt, &case(collective, 400_001), None, memory);
            }
        }
    });
}

fn prepared_operations_overlap_in_any_order() {
    ranks::run(4, |rt| {
        let (me, n) = (rt.rank().index(), rt.size() as usize);
        let cases: Vec<Case> = (0..6)
            .map(|i| Case {
                root: i % n,
                ..case([Collective::Allreduce, Collective::Broadcast][i % 2], 10 + i * 5000)
            })
            .collect();
        let mut all: Vec<Buffers> =
            cases.iter().map(|case| Buffers::new(rt, case, Memory::Private)).collect();
        let mut prepared: Vec<Prepared<'_>> = cases
            .iter()
            .zip(&all)
            .map(|(case, buffers)| {
                let request = buffers.request(case, None, me, n);
                // SAFETY: the buffers live until all have been dropped.
                unsafe { prepare_raw(rt, GroupId::ALL, &request, LIMIT) }.expect("prepare")
            })
            .collect();
        for round in 0..20 {
            for (case, buffers) in cases.iter().zip(&mut all) {
                buffers.fill(rt, case);
            }
            let order = |turn: usize| (turn * 5 + me + round) % cases.len();
            let mut idle: Vec<_> = prepared.iter_mut().map(Some).collect();
            let mut started: Vec<Option<Started<'_>>> = cases.iter().map(|_| None).collect();
            for index in (0..cases.len()).map(order).chain(0..cases.len()) {
                if let Some(idle) = idle[index].take() {
                    started[index] = Some(idle.start().expect("start"));
                }
            }
            for turn in (0..cases.len()).rev() {
                let index = (turn + me) % cases.len();
                let mut started = started[index].take().expect("it was started");
                if started.test().expect("test").is_none() {
                    started.wait(LIMIT).expect("wait");
                }
            }
            for (case, buffers) in cases.iter().zip(&all) {
                buffers.check(rt, case, "prepared");
            }
        }
    });
}

fn many_operations_of_a_group_at_once() {
    ranks::run(3, |rt| {
        let (me, n) = (rt.rank().index(), rt.size() as usize);
        let cases: Vec<Case> = (0..10).map(|i| case(Collective::ALL[i % 8], i * 700)).collect();
        let all: Vec<Buffers> =
            cases.iter().map(|case| Buffers::new(rt, case, Memory::Private)).collect();
        let mut started = Vec::new();
        for (index, (case, buffers)) in cases.iter().zip(&all).enumerate() {
            let mut request = buffers.request(case, None, me, n);
            request.background = index % 2 == 0;
            // SAFETY: the buffers live until all have ended.
            started.push(unsafe { start_raw(rt, GroupId::ALL, &request, LIMIT) }.expect("start"));
        }
        for mut started in started.into_iter().rev() {
            started.wait(LIMIT).expect("wait");
            started.wait(LIMIT).expect("it has ended");
        }
        for (case, buffers) in cases.iter().zip(&all) {
            buffers.check(rt, case, "started");
        }
    });
}

tests! {
    DEVICES:
        every_operation_by_every_algorithm,
        every_type_by_every_operation,
        blocks_that_differ,
        large_counts,
        prepared_operations_overlap_in_any_order,
        many_operations_of_a_group_at_once;
    SEVERAL:
        every_operation_by_every_algorithm,
        blocks_that_differ;
}
