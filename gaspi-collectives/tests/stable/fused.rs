//! Fused buffers of several tensors in the stable mode: lists and options that a seed draws. Their
//! bits depend on nothing else: not on where data and sums lie, who submits what first, by how many
//! threads, in the background or not, or how often this rank has done so before.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use super::*;

/// Lists for each number of ranks.
const LISTS: usize = 3;
const STEPS: usize = 3;
const THREADS: usize = 2;
/// Most bytes of a tensor.
const BYTES_MAX: usize = 20_000 * 8;

/// What all ranks declare.
#[derive(Clone, Debug)]
struct List {
    seed: usize,
    tensors: Vec<Tensor>,
    options: Options,
}

fn one_of<T: Clone>(random: &mut Random, things: &[T]) -> T {
    things[random.below(things.len())].clone()
}

impl List {
    fn drawn(seed: usize) -> List {
        let random = &mut Random(seed as u64 * 7919 + 3);
        let tensor = |random: &mut Random| {
            use DataType::{Bf16, F16, F32, F64};
            let ty = one_of(random, &[F32, F32, F32, F32, F64, F16, Bf16]);
            let limit = one_of(random, &[3, 40, 40, 700, 700, 4000, 20_000]);
            Tensor { count: 1 + random.below(limit) as u64, ty }
        };
        let tensors = 2 + random.below(12);
        let tensors = (0..tensors).map(|_| tensor(random)).collect();
        let options = Options {
            operation: one_of(random, &[Operation::Sum, Operation::Average]),
            threshold: one_of(random, &[200, 8 << 10, 32 << 10, 1 << 20]),
            limit: one_of(random, &[None, None, Some(20_000)]),
            wire: one_of(random, &[None, None, Some(DataType::F16), Some(DataType::Bf16)]),
            mode: Some(Mode::Stable),
            ..Options::default()
        };
        List { seed, tensors, options }
    }

    /// Stands for the contributions to a tensor, which differ from those to others by the ranks
    /// that they are drawn for.
    fn case(&self, tensor: usize) -> Case {
        let Tensor { count, ty } = self.tensors[tensor];
        let (collective, op) = (Collective::Allreduce, self.options.operation);
        Case { collective, ty, op, count: count as usize, root: 0 }
    }

    fn contribution(&self, tensor: usize, rank: usize) -> Vec<u8> {
        contribution(&self.case(tensor), drawn_for(tensor, rank), 1)
    }

    /// What ranks of one host make of it, where that is known.
    fn expected(&self, tensor: usize, ranks: usize) -> Option<Vec<u8>> {
        let case = self.case(tensor);
        let order: Vec<usize> = (0..ranks).map(|rank| drawn_for(tensor, rank)).collect();
        let travels_as_it_is = self.options.wire.is_none() || case.ty != DataType::F32;
        travels_as_it_is.then(|| one_behind_the_other(&case, &order, 0)).flatten()
    }
}

fn drawn_for(tensor: usize, rank: usize) -> usize {
    rank + 16 * tensor
}

/// Which ranks share a host, a seed, a number of ranks, and a tensor.
type Key = (&'static str, usize, usize, usize);

/// The sums that were found first, of all layouts that this process tries.
static KNOWN: LazyLock<Mutex<HashMap<Key, Vec<u8>>>> = LazyLock::new(Mutex::default);

/// Which ranks of a layout share a host, as a name.
fn spread(nodes: Nodes) -> &'static str {
    match nodes {
        Nodes::One => "one",
        Nodes::Each | Nodes::Twin | Nodes::Verbs => "each",
        Nodes::Pairs | Nodes::Faulty | Nodes::VerbsPairs => "pairs",
        Nodes::Several => "several",
    }
}

/// A rank in the steps of a list.
struct Steps<'a> {
    rt: &'a Runtime,
    list: &'a List,
    fusion: Fusion<'a>,
    random: Random,
}

impl Steps<'_> {
    fn me(&self) -> usize {
        self.rt.rank().index()
    }

    /// Where a thread lets a tensor lie if it lies in a segment.
    fn of_segment(&self, thread: usize) -> *mut u8 {
        self.rt.segment_ptr(S0).expect("a segment").wrapping_add(thread * BYTES_MAX)
    }

    /// Submits tensors in some order, each from some kind of memory.
    fn submit(&self, thread: usize, tensors: &[usize], mut random: Random) {
        for tensor in tensors {
            let data = self.list.contribution(*tensor, self.me());
            let mut private = vec![0; data.len() + 3];
            let ty = self.list.tensors[*tensor].ty;
            let from = match random.below(4) {
                0 => private.as_mut_ptr(),
                1 => private[3..].as_mut_ptr(),
                2 if self.list.options.wire.is_none() || ty != DataType::F32 => {
                    self.fusion.tensor_ptr(*tensor).expect("a place")
                }
                _ => self.of_segment(thread),
            };
            // SAFETY: as many bytes as the tensor has, which are this thread's.
            unsafe { from.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
            // SAFETY: there they are.
            unsafe { self.fusion.submit(*tensor, from, 1.0) }.expect("submit");
        }
    }

    fn step(&mut self) {
        let tensors = self.list.tensors.len();
        let mut order: Vec<usize> = (0..tensors).collect();
        for last in (1..tensors).rev() {
            order.swap(last, self.random.below(last + 1));
        }
        let threads = 1 + self.random.below(THREADS);
        let seed = self.random.below(1 << 30);
        ranks::scope(|scope| {
            for (thread, part) in order.chunks(tensors.div_ceil(threads)).enumerate() {
                let steps = &*self;
                scope.spawn(move || {
                    // Some compute as programs do that flush small numbers.
                    let flushes = (seed + thread + steps.me()).is_multiple_of(3);
                    let environment = flushes.then(Environment::flushing);
                    steps.submit(thread, part, Random((seed + thread) as u64));
                    drop(environment);
                });
            }
        });
        let first = self.random.below(tensors);
        (0..tensors).for_each(|nth| self.compare((first + nth) % tensors));
    }

    /// Takes the sum of a tensor, which is that of all who have had it before.
    fn compare(&mut self, tensor: usize) {
        let bytes = self.list.contribution(tensor, self.me()).len();
        let mut found = vec![0; bytes];
        if self.random.below(2) == 0 {
            let lent = self.fusion.result(tensor, LIMIT).expect("a result");
            // SAFETY: as many bytes as the tensor has.
            unsafe { found.as_mut_ptr().copy_from_nonoverlapping(lent, bytes) };
            self.fusion.release(tensor, lent).expect("it was lent");
        } else {
            // SAFETY: as many bytes as the tensor has.
            unsafe { self.fusion.wait(tensor, found.as_mut_ptr(), LIMIT) }.expect("wait");
        }
        let (ranks, nodes) = (self.rt.size() as usize, Nodes::of_this_test());
        let key = (spread(nodes), self.list.seed, ranks, tensor);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.entry(key).or_insert_with(|| found.clone());
        let differs = before.iter().zip(&found).position(|(one, other)| one != other);
        assert!(
            before.len() == bytes && differs.is_none(),
            "{nodes:?}, {} of {ranks}: byte {differs:?} of tensor {tensor} is another one than \
             before: {:?}",
            self.rt.rank(),
            self.list
        );
        drop(known);
        if nodes == Nodes::One
            && let Some(expected) = self.list.expected(tensor, ranks)
        {
            assert!(found == expected, "tensor {tensor} of {ranks} ranks: {:?}", self.list);
        }
    }
}

/// Tries all lists on so many ranks of the layout of this thread, on a machine.
pub(super) fn try_lists(size: u32, machine: TestMachine, seed: usize) {
    ranks::run_on_machine(size, machine, |rt| {
        let bytes = (THREADS * BYTES_MAX) as u64;
        rt.segment_create(S0, bytes, ALL, LIMIT, Init::Zeroed).expect("create");
        for nth in 0..LISTS {
            let list = List::drawn(nth * 9 + size as usize);
            let me = rt.rank().index();
            let background = (nth + seed).is_multiple_of(2);
            let options = Options { background, ..list.options.clone() };
            let made = Fusion::create(rt, &list.tensors, ALL, &options, LIMIT);
            let (fusion, random) = (made.expect("create"), Random((seed * 31 + me) as u64));
            let mut steps = Steps { rt, list: &list, fusion, random };
            (0..STEPS).for_each(|_| steps.step());
        }
    });
}

fn bits_of_fused_buffers_depend_on_nothing_else() {
    let sizes =
        if Nodes::of_this_test() == Nodes::Several { vec![6, 18] } else { (1..=8).collect() };
    for size in sizes {
        // Cores and what the kernel allows do not matter.
        let machines = if size <= 4 || is_full() { &MACHINES[..] } else { &MACHINES[1..2] };
        for (seed, machine) in machines.iter().enumerate() {
            try_lists(size, *machine, seed);
        }
    }
}

tests! {
    DEVICES: bits_of_fused_buffers_depend_on_nothing_else;
    SEVERAL: bits_of_fused_buffers_depend_on_nothing_else;
}
