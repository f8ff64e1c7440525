//! Lists of tensors, orders, threads and options that a seed draws, and every combination of what
//! tensors and buffers can be told. Sums are compared with those that are worked out here: exactly
//! where all numbers are small integers, else within a bound that counts roundings.

use super::*;
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::fusion::Order;
use gaspi_collectives::{Mode, Operation, bf16, f16};
use gaspi_core::{Init, SegmentId};

/// Where a program lets its data and results lie if they lie in a segment: results in the first
/// part, data of each thread that submits in one of the others.
const SEGMENT: SegmentId = SegmentId(5);
const SEGMENT_PART: usize = 64 << 10;
/// Most threads that submit.
const THREADS_MAX: usize = 4;
/// Most elements of a tensor.
const COUNT_MAX: usize = 6000;
const STEPS: usize = 3;
/// More ranks contribute once, and smaller numbers.
const FEW: usize = 8;

/// Where data comes from, and where a sum is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    Private,
    /// Private, not aligned to anything.
    Odd,
    Segment,
    /// The tensor's own place. For sums: they are looked at there.
    Place,
    /// For sums: lent, and released a step later.
    Lent,
}

const MEMORIES: [Memory; 5] =
    [Memory::Private, Memory::Odd, Memory::Segment, Memory::Place, Memory::Lent];

/// What numbers the tensors hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Numbers {
    /// So small that all sums are exact in each type.
    Integers,
    /// With fractions that are rounded in each type of floats.
    Fractions,
}

/// A fused buffer and its use, as all ranks draw it.
#[derive(Clone, Debug)]
struct Case {
    seed: usize,
    ranks: usize,
    tensors: Vec<Tensor>,
    options: Options,
    numbers: Numbers,
    /// How many threads of each rank submit, each some of the tensors.
    threads: usize,
    /// The memory of all tensors; none if each rank draws it for each tensor and step.
    memory: Option<Memory>,
    /// How often each rank contributes, and by what it scales: none if it is drawn.
    contributions: Option<u32>,
    scale: Option<f64>,
}

/// Mixes numbers to one that looks random.
fn mixed(numbers: &[usize]) -> usize {
    let mix = |mixed: u64, number: &usize| {
        let mixed = (mixed ^ *number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    };
    (numbers.iter().fold(0x1234_5678, mix) >> 8) as usize
}

/// A number in a type as a number of f64, which has all those that are used here.
fn rounded(ty: DataType, value: f64) -> f64 {
    match ty {
        DataType::F16 => f16::from_f64(value).to_f64(),
        DataType::Bf16 => bf16::from_f64(value).to_f64(),
        DataType::F32 => f64::from(value as f32),
        _ => value,
    }
}

fn encoded(ty: DataType, values: impl Iterator<Item = f64>) -> Vec<u8> {
    let encode = |value: f64| match ty {
        DataType::F16 => f16::from_f64(value).to_ne_bytes().to_vec(),
        DataType::Bf16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
        DataType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DataType::F64 => value.to_ne_bytes().to_vec(),
        // Negative numbers are complements of two in each length.
        _ => (value as i64).to_le_bytes()[..ty.bytes() as usize].to_vec(),
    };
    values.flat_map(encode).collect()
}

fn decoded(ty: DataType, bytes: &[u8]) -> Vec<f64> {
    let decode = |bytes: &[u8]| match ty {
        DataType::F16 => f16::from_ne_bytes(bytes.try_into().expect("2")).to_f64(),
        DataType::Bf16 => bf16::from_ne_bytes(bytes.try_into().expect("2")).to_f64(),
        DataType::F32 => f64::from(f32::from_ne_bytes(bytes.try_into().expect("4"))),
        DataType::F64 => f64::from_ne_bytes(bytes.try_into().expect("8")),
        _ => {
            let is_negative = is_signed(ty) && bytes.last().is_some_and(|last| last >> 7 == 1);
            let mut long = [if is_negative { 0xff } else { 0 }; 8];
            long[..bytes.len()].copy_from_slice(bytes);
            i64::from_le_bytes(long) as f64
        }
    };
    bytes.chunks_exact(ty.bytes() as usize).map(decode).collect()
}

fn is_signed(ty: DataType) -> bool {
    !matches!(ty, DataType::U8 | DataType::U16 | DataType::U32 | DataType::U64)
}

/// Half the distance between two numbers of a type, relative to them.
fn rounding(ty: DataType) -> f64 {
    match ty {
        DataType::F16 => 1.0 / 2048.0,
        DataType::Bf16 => 1.0 / 256.0,
        DataType::F32 => f64::from(f32::EPSILON) / 2.0,
        _ => f64::EPSILON / 2.0,
    }
}

impl Case {
    /// How often a rank submits each tensor in a step.
    fn contributions(&self, rank: usize) -> usize {
        match self.contributions {
            Some(contributions) => contributions as usize,
            None if self.ranks > FEW => 1,
            None => 1 + mixed(&[self.seed, rank, 17]) % 3,
        }
    }

    fn options(&self, rank: usize) -> Options {
        let contributions = self.contributions(rank) as u32;
        Options { contributions, ..self.options.clone() }
    }

    /// The type in which a tensor travels.
    fn wire(&self, ty: DataType) -> DataType {
        self.options.wire.filter(|_| ty == DataType::F32).unwrap_or(ty)
    }

    fn is_exact(&self, ty: DataType) -> bool {
        self.numbers == Numbers::Integers || ty.is_integer()
    }

    /// What a contribution is scaled by. Ranks, tensors and turns differ.
    fn scale(&self, rank: usize, (tensor, step, turn): (usize, usize, usize)) -> f64 {
        let ty = self.tensors[tensor].ty;
        if let Some(scale) = self.scale {
            return if ty.is_integer() { scale.trunc().max(1.0) } else { scale };
        }
        let draw = mixed(&[self.seed, rank, tensor, step, turn, 23]);
        match (ty, self.is_exact(ty)) {
            (ty, _) if ty.is_integer() && !is_signed(ty) => [1.0, 1.0, 2.0][draw % 3],
            (ty, _) if ty.is_integer() => [1.0, 1.0, 2.0, -1.0, -2.0][draw % 5],
            (_, true) => [1.0, 1.0, 0.5, -1.0][draw % 4],
            (_, false) => [1.0, 0.37, -1.7][draw % 3],
        }
    }

    /// An element that a rank contributes, before it is scaled.
    fn element(&self, rank: usize, (tensor, step, turn): (usize, usize, usize), at: usize) -> f64 {
        let ty = self.tensors[tensor].ty;
        let mixed = rank * 7 + tensor * 3 + step * 11 + turn * 5 + at + at / 61;
        if !self.is_exact(ty) {
            return rounded(ty, (mixed % 101) as f64 * 0.0137 - 0.6);
        }
        // Three contributions of eight ranks, times two, or those of 48 fit into a byte; halves of
        // what is not doubled are numbers of bf16.
        match ty {
            _ if self.ranks > FEW && is_signed(ty) => (mixed % 3) as f64 - 1.0,
            _ if self.ranks > FEW => (mixed % 3) as f64,
            DataType::I8 => (mixed % 5) as f64 - 2.0,
            _ if is_signed(ty) => (mixed % 11) as f64 - 5.0,
            _ => (mixed % 6) as f64,
        }
    }

    fn data(&self, rank: usize, of: (usize, usize, usize)) -> Vec<u8> {
        let Tensor { count, ty } = self.tensors[of.0];
        encoded(ty, (0..count as usize).map(|at| self.element(rank, of, at)))
    }

    /// The element that all ranks get, and by how much it may be off.
    fn expected(&self, (tensor, step): (usize, usize), at: usize) -> (f64, f64) {
        let (ty, operation) = (self.tensors[tensor].ty, self.options.operation);
        let wire = self.wire(ty);
        let all = (0..self.ranks)
            .flat_map(|rank| (0..self.contributions(rank)).map(move |turn| (rank, turn)));
        let all = all.map(|(rank, turn)| {
            let of = (tensor, step, turn);
            // Scales of floats are rounded to f32, but for f64.
            let scale = if ty == DataType::F64 { ty } else { DataType::F32 };
            self.element(rank, of, at) * rounded(scale, self.scale(rank, of))
        });
        let all: Vec<f64> = all.collect();
        let magnitude: f64 = all.iter().map(|value| value.abs()).sum();
        let combined = all.into_iter().reduce(|one, other| match operation {
            Operation::Min => one.min(other),
            Operation::Max => one.max(other),
            _ => one + other,
        });
        let combined = combined.expect("each rank contributes");
        let n = self.ranks as f64;
        let found = match operation {
            Operation::Average if ty.is_integer() => (combined / n).trunc(),
            Operation::Average if self.is_exact(ty) => {
                rounded(wire, rounded_quotient(wire, combined, n))
            }
            Operation::Average => combined / n,
            _ => combined,
        };
        if self.is_exact(ty) {
            return (found, 0.0);
        }
        let magnitude = if operation == Operation::Average { magnitude / n } else { magnitude };
        // Each rank scales and adds its own, then all are rounded, added and divided.
        let own = 2 * (0..self.ranks).map(|rank| self.contributions(rank)).max().unwrap_or(1);
        let bound = own as f64 * rounding(ty) + (n + 2.0) * rounding(wire);
        (found, magnitude * bound)
    }

    fn check(&self, (tensor, step): (usize, usize), found: &[u8], what: &str) {
        let found = decoded(self.tensors[tensor].ty, found);
        for (at, found) in found.into_iter().enumerate() {
            let (expected, bound) = self.expected((tensor, step), at);
            assert!(
                (found - expected).abs() <= bound,
                "{what}, step {step}, tensor {tensor}, element {at}: {found}, not {expected} \
                 within {bound}; GASPI_TEST_SEED={}, {self:?}",
                self.seed
            );
        }
    }
}

/// A quotient as it is computed in a type: halves are divided as f32.
fn rounded_quotient(ty: DataType, value: f64, divisor: f64) -> f64 {
    match ty {
        DataType::F64 => value / divisor,
        _ => f64::from(value as f32 / divisor as f32),
    }
}

/// A sum that is lent: the tensor, where, and what lies there.
type Lent = (usize, *const u8, Vec<u8>);

/// A rank and its fused buffer.
struct Worker<'a> {
    case: &'a Case,
    rt: &'a Runtime,
    fusion: Fusion<'a>,
    me: usize,
    random: Random,
    /// In this step, and in the one before.
    lent: Vec<Lent>,
    former: Vec<Lent>,
}

/// A thread of a rank that submits.
struct Submitter<'a> {
    case: &'a Case,
    fusion: &'a Fusion<'a>,
    me: usize,
    random: Random,
    segment: *mut u8,
    /// Tensors whose sums are lent.
    lent: &'a [usize],
}

/// A part of the segment.
fn part_of_segment(rt: &Runtime, part: usize) -> *mut u8 {
    rt.segment_ptr(SEGMENT).expect("the segment").wrapping_add(part * SEGMENT_PART)
}

impl Case {
    /// Where something of a tensor lies. What is written to its place would change what is lent.
    fn memory(&self, random: &mut Random, is_lent: bool) -> Memory {
        let drawn = MEMORIES[random.below(MEMORIES.len())];
        let memory = self.memory.unwrap_or(drawn);
        if is_lent && memory == Memory::Place { Memory::Private } else { memory }
    }
}

fn write(to: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller's memory, which is as long as any tensor.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

fn read_bytes(from: *const u8, bytes: usize) -> Vec<u8> {
    // SAFETY: the place of a tensor of so many bytes, or memory that is longer.
    (0..bytes).map(|at| unsafe { from.add(at).read() }).collect()
}

impl Submitter<'_> {
    fn submit(&mut self, tensor: usize, step: usize, turn: usize) {
        let of = (tensor, step, turn);
        let data = self.case.data(self.me, of);
        let Tensor { ty, count } = self.case.tensors[tensor];
        let (ty_is_wire, is_first) = (self.case.wire(ty) == ty, turn == 0);
        let mut moved = vec![0u8; data.len() + 3];
        let from = match self.case.memory(&mut self.random, self.lent.contains(&tensor)) {
            Memory::Segment => self.segment,
            // It holds what was submitted before.
            Memory::Place if is_first || !ty_is_wire => {
                self.fusion.tensor_ptr(tensor).expect("a place")
            }
            Memory::Odd => moved[3..].as_mut_ptr(),
            _ => moved.as_mut_ptr(),
        };
        if count > 0 {
            write(from, &data);
        }
        let scale = self.case.scale(self.me, of);
        // SAFETY: as many elements as the tensor has.
        let submitted = unsafe { self.fusion.submit(tensor, from, scale) };
        submitted.unwrap_or_else(|error| panic!("{error}: {of:?} of {:?}", self.case));
    }

    /// Some tensors of a step, all contributions to them, in an order of this thread's.
    fn submit_all(&mut self, tensors: &[usize], step: usize) {
        let contributions = self.case.contributions(self.me);
        let mut turns = vec![0; tensors.len()];
        for nth in self.random.order(tensors.len() * contributions) {
            let nth = nth % tensors.len();
            self.submit(tensors[nth], step, turns[nth]);
            turns[nth] += 1;
            if self.random.below(8) == 0 {
                // SAFETY: nothing is written.
                let tested = unsafe { self.fusion.test(tensors[nth], std::ptr::null_mut()) };
                tested.expect("no failure");
            }
        }
    }
}

impl<'a> Worker<'a> {
    fn new(rt: &'a Runtime, case: &'a Case) -> Worker<'a> {
        let me = rt.rank().index();
        let fusion = create(rt, &case.tensors, &case.options(me));
        let random = Random(mixed(&[case.seed, me, 5]) as u64);
        Worker { case, rt, fusion, me, random, lent: Vec::new(), former: Vec::new() }
    }

    /// Submits all tensors of a step, by as many threads as the case has.
    fn submit_all(&mut self, step: usize) {
        let Worker { case, rt, ref fusion, me, .. } = *self;
        let lent: Vec<usize> = self.former.iter().map(|(tensor, ..)| *tensor).collect();
        let lent = &lent[..];
        let thread_of = |tensor: usize| mixed(&[case.seed, me, step, tensor]) % case.threads;
        let seed = self.random.below(usize::MAX >> 33);
        let run = move |thread: usize| {
            let tensors = (0..case.tensors.len()).filter(|tensor| thread_of(*tensor) == thread);
            let random = Random(mixed(&[seed, thread]) as u64);
            let segment = part_of_segment(rt, 1 + thread);
            let mut submitter = Submitter { case, fusion, me, random, segment, lent };
            submitter.submit_all(&tensors.collect::<Vec<usize>>(), step);
        };
        ranks::scope(|scope| {
            for thread in 1..case.threads {
                scope.spawn(move || run(thread));
            }
            run(0);
        });
    }

    /// The sum of a tensor, in whatever memory.
    fn take(&mut self, tensor: usize) -> Vec<u8> {
        let Tensor { ty, count } = self.case.tensors[tensor];
        let bytes = count as usize * ty.bytes() as usize;
        let mut moved = vec![0xa5u8; bytes + 3];
        let is_lent = self.lent.iter().chain(&self.former).any(|(lent, ..)| *lent == tensor);
        let memory = self.case.memory(&mut self.random, is_lent);
        let is_plain = self.case.wire(ty) == ty;
        if memory == Memory::Lent {
            let lent = self.fusion.result(tensor, LIMIT).expect("a result");
            let sum = read_bytes(lent, bytes);
            self.lent.push((tensor, lent, sum.clone()));
            return sum;
        }
        let to = match memory {
            Memory::Segment => part_of_segment(self.rt, 0),
            Memory::Place => self.fusion.tensor_ptr(tensor).expect("a place"),
            Memory::Odd => moved[3..].as_mut_ptr(),
            _ => moved.as_mut_ptr(),
        };
        // Where nothing was lent when the step began, it comes to its place by itself.
        let is_there = memory == Memory::Place && is_plain && self.former.is_empty();
        let result = if is_there { std::ptr::null_mut() } else { to };
        // SAFETY: as many elements as the tensor has.
        unsafe { self.fusion.wait(tensor, result, LIMIT) }.expect("ended");
        read_bytes(to, bytes)
    }

    /// All tensors, in an order of this rank's; their sums in another one. Returns a number that
    /// stands for all their bits.
    fn step(&mut self, step: usize) -> usize {
        let tensors = self.case.tensors.len();
        self.former = std::mem::take(&mut self.lent);
        self.submit_all(step);
        let mut bits = 0;
        for tensor in self.random.order(tensors) {
            let sum = self.take(tensor);
            self.case.check((tensor, step), &sum, &format!("rank {}", self.me));
            let of_sum = sum.iter().fold(tensor, |bits, byte| mixed(&[bits, usize::from(*byte)]));
            bits ^= of_sum;
        }
        for (tensor, lent, sum) in std::mem::take(&mut self.former) {
            assert!(
                read_bytes(lent, sum.len()) == sum,
                "what is lent of tensor {tensor} has changed in step {step}: {:?}",
                self.case
            );
            self.fusion.release(tensor, lent).expect("it was lent");
        }
        bits
    }
}

/// Runs cases on so many ranks, all of which get the same bits.
fn run_cases(n: u32, cases: &[Case]) {
    let bits = ranks::run(n, |rt| {
        let bytes = (1 + THREADS_MAX) * SEGMENT_PART;
        rt.segment_alloc(SEGMENT, bytes as u64, Init::Zeroed).expect("a segment");
        let bits = cases.iter().map(|case| {
            let mut worker = Worker::new(rt, case);
            (0..STEPS).map(|step| worker.step(step)).collect()
        });
        bits.collect::<Vec<Vec<usize>>>()
    });
    for (rank, of_rank) in bits.iter().enumerate() {
        for (case, (found, first)) in cases.iter().zip(of_rank.iter().zip(&bits[0])) {
            assert!(found == first, "rank {rank} has other bits than rank 0: {case:?}");
        }
    }
}

fn is_full() -> bool {
    std::env::var_os("GASPI_TEST_FULL").is_some()
}

/// What this run draws from.
fn first_seed() -> usize {
    std::env::var("GASPI_TEST_SEED").map_or(1, |text| text.parse().expect("a number"))
}

/// Algorithms of all-reduces that serve any layout, which fused buffers may ask for.
fn algorithms() -> Vec<Option<Algorithm>> {
    let serves = |algorithm: &Algorithm| {
        algorithm.serves(Collective::Allreduce) && !algorithm.requires_one_node()
    };
    let named = Algorithm::ALL.into_iter().filter(serves).map(Some);
    // Most often the library chooses.
    named.clone().map(|_| None).chain(named).collect()
}

/// One of some things.
fn one_of<T: Clone>(random: &mut Random, things: &[T]) -> T {
    things[random.below(things.len())].clone()
}

impl Case {
    /// All of it, from a seed.
    fn drawn(seed: usize, ranks: usize) -> Case {
        let mut random = Random(mixed(&[seed, ranks]) as u64);
        let random = &mut random;
        let tensor = |random: &mut Random| {
            let limit = one_of(random, &[1, 2, 20, 20, 400, 400, COUNT_MAX]);
            let others = DataType::ALL[random.below(DataType::ALL.len())];
            let ty = one_of(random, &[DataType::F32, DataType::F32, DataType::F32, others]);
            Tensor { count: random.below(limit) as u64, ty }
        };
        let tensors = 1 + random.below(20);
        let tensors = (0..tensors).map(|_| tensor(random)).collect();
        use Operation::{Average, Max, Min, Sum};
        let options = Options {
            operation: one_of(random, &[Sum, Sum, Sum, Average, Average, Min, Max]),
            order: one_of(random, &[Order::Declared, Order::Reverse]),
            threshold: one_of(random, &[0, 64, 1000, 32 << 10, 1 << 20]),
            limit: one_of(random, &[None, None, Some(500), Some(13_000)]),
            wire: one_of(random, &[None, None, Some(DataType::F16), Some(DataType::Bf16)]),
            algorithm: one_of(random, &algorithms()),
            mode: one_of(random, &[None, Some(Mode::Fast), Some(Mode::Stable)]),
            background: random.below(2) == 0,
            ..Options::default()
        };
        let numbers = one_of(random, &[Numbers::Integers, Numbers::Fractions]);
        let threads = 1 + random.below(THREADS_MAX);
        let (memory, contributions, scale) = (None, None, None);
        Case { seed, ranks, tensors, options, numbers, threads, memory, contributions, scale }
    }
}

fn lists_orders_and_options_of_a_seed() {
    let first = first_seed();
    let few = 2 + mixed(&[first]) as u32 % 4;
    let usual = if is_full() { (1..=8).collect() } else { vec![1, few, 6, 7, 8] };
    for n in ranks::sizes(&usual) {
        let seeds = first..first + if is_full() && n as usize <= FEW { 25 } else { 3 };
        let cases: Vec<Case> = seeds.map(|seed| Case::drawn(seed, n as usize)).collect();
        run_cases(n, &cases);
    }
}

/// Tensors of each kind of type, of odd lengths and without elements, for so many ranks.
fn combinations(ranks: usize) -> Vec<Case> {
    let tensors = [
        (301, DataType::F32),
        (0, DataType::F32),
        (7, DataType::F32),
        (45, DataType::F16),
        (33, DataType::Bf16),
        (21, DataType::F64),
        (13, DataType::I8),
        (1, DataType::U64),
        (0, DataType::I32),
    ];
    let tensors = tensors.map(|(count, ty)| Tensor { count, ty }).to_vec();
    let mut all = Vec::new();
    for operation in [Operation::Sum, Operation::Average, Operation::Min, Operation::Max] {
        for wire in [None, Some(DataType::F16), Some(DataType::Bf16)] {
            for mode in [None, Some(Mode::Fast), Some(Mode::Stable)] {
                for memory in MEMORIES {
                    for contributions in [1, 3] {
                        for scale in [1.0, 0.37, 2.0] {
                            for background in [true, false] {
                                let options = Options {
                                    operation,
                                    wire,
                                    mode,
                                    background,
                                    ..Options::default()
                                };
                                all.push(Case {
                                    seed: first_seed(),
                                    ranks,
                                    tensors: tensors.clone(),
                                    options,
                                    numbers: Numbers::Fractions,
                                    threads: 1,
                                    memory: Some(memory),
                                    contributions: Some(contributions),
                                    scale: Some(scale),
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    all
}

/// All of them in the long tier, otherwise one of some that a seed draws.
fn each_combination_of_what_can_be_told() {
    const ONE_OF: usize = 60;
    /// Those of a job, which is to end soon.
    const OF_A_JOB: usize = 100;
    for n in [3, 8] {
        let mut cases = combinations(n as usize);
        let mut nth = 0;
        cases.retain(|case| {
            nth += 1;
            is_full() || mixed(&[case.seed, nth, n as usize]).is_multiple_of(ONE_OF)
        });
        cases.chunks(OF_A_JOB).for_each(|cases| run_cases(n, cases));
    }
}

tests! {
    DEVICES:
        lists_orders_and_options_of_a_seed,
        each_combination_of_what_can_be_told;
    SEVERAL:
        lists_orders_and_options_of_a_seed;
}
