//! Reductions by functions of the program.

use super::{ALL, call, ranks, ranks_below, serves};
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::{
    Combination, Reduce, Reducer, ReductionFailed, Request, prepare_raw, start_raw,
};
use gaspi_core::{Error, Rank, Runtime};
use std::sync::Arc;

const SIZE: u32 = 5;

/// Bytes in and out.
struct Bytes {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Bytes {
    fn request(&mut self, collective: Collective, count: u64, reducer: &Reducer) -> Request {
        Request {
            collective,
            send: self.input.as_ptr(),
            receive: self.output.as_mut_ptr(),
            count,
            blocks: Vec::new(),
            combination: Combination::User(reducer.clone()),
            root: Rank(2),
            algorithm: None,
            mode: None,
            background: false,
        }
    }
}

fn reducer(element_bytes: u32, ordered: bool, reduce: Arc<Reduce>) -> Reducer {
    Reducer { reduce, element_bytes, ordered, background: false }
}

/// Sums of bytes, element by element, whatever their size.
fn add() -> Arc<Reduce> {
    Arc::new(|one, two, to, count| {
        assert_eq!(one.len() as u64 % count.max(1), 0);
        assert_eq!(one.as_ptr().align_offset(16), 0);
        for ((one, two), to) in one.iter().zip(two).zip(to) {
            *to = one.wrapping_add(*two);
        }
        Ok(())
    })
}

/// A matrix of two rows, row by row.
type Matrix = [u64; 4];

fn times(a: Matrix, b: Matrix) -> Matrix {
    let cell = |row: usize, column: usize| {
        a[2 * row].wrapping_mul(b[column]).wrapping_add(a[2 * row + 1].wrapping_mul(b[2 + column]))
    };
    [cell(0, 0), cell(0, 1), cell(1, 0), cell(1, 1)]
}

fn matrix(rank: Rank, index: usize) -> Matrix {
    let value = |nth: u64| u64::from(rank.0) * 31 + index as u64 * 7 + nth * nth + 1;
    [value(0), value(1), value(2), value(3)]
}

fn matrix_of(bytes: &[u8]) -> Matrix {
    std::array::from_fn(|nth| {
        u64::from_ne_bytes(bytes[8 * nth..8 * nth + 8].try_into().expect("8 bytes"))
    })
}

fn bytes_of(matrix: Matrix) -> impl Iterator<Item = u8> {
    matrix.into_iter().flat_map(u64::to_ne_bytes)
}

/// Products, for which the order counts.
fn multiply() -> Arc<Reduce> {
    Arc::new(|one, two, to, _| {
        let all = one.chunks_exact(32).zip(two.chunks_exact(32)).zip(to.chunks_exact_mut(32));
        for ((one, two), to) in all {
            let product: Vec<u8> = bytes_of(times(matrix_of(one), matrix_of(two))).collect();
            to.copy_from_slice(&product);
        }
        Ok(())
    })
}

fn elements_of_any_size() {
    for (bytes, count) in [(1, 1000), (3, 7), (7, 40_000), (24, 1001), (4096, 90), (65_536, 5)] {
        ranks::run(SIZE, |rt| {
            let len = bytes * count;
            let input: Vec<u8> = (0..len).map(|i| (i * 3 + rt.rank().index() * 5) as u8).collect();
            let mut memory = Bytes { input, output: vec![0; len] };
            let reducer = reducer(bytes as u32, false, add());
            let request = memory.request(Collective::Allreduce, count as u64, &reducer);
            call(rt, ALL, &request, ranks::LIMIT).expect("allreduce");
            let expected = |i: usize| {
                (0..SIZE as usize).fold(0u8, |sum, rank| sum.wrapping_add((i * 3 + rank * 5) as u8))
            };
            for (i, found) in memory.output.iter().enumerate() {
                assert_eq!(*found, expected(i), "byte {i} of elements of {bytes}");
            }
        });
    }
}

fn elements_that_are_too_large_are_refused() {
    ranks::run(2, |rt| {
        let mut memory = Bytes { input: vec![0; 1 << 20], output: vec![0; 1 << 20] };
        let large = reducer(1 << 20, false, add());
        let outcome =
            call(rt, ALL, &memory.request(Collective::Allreduce, 1, &large), ranks::LIMIT);
        let Err(error) = outcome else { panic!("{outcome:?}") };
        assert!(error.to_string().contains("1048576 bytes"), "{error}");
        let none = reducer(0, false, add());
        let outcome = call(rt, ALL, &memory.request(Collective::Allreduce, 1, &none), ranks::LIMIT);
        assert!(matches!(outcome, Err(Error::Size { .. })), "{outcome:?}");
        super::sum_of_all(rt, ALL, 10);
    });
}

fn product(rt: &Runtime, count: usize) -> Vec<u8> {
    let one = |index| {
        let all = ranks_below(rt.size()).map(|rank| matrix(rank, index));
        all.reduce(times).expect("ranks")
    };
    (0..count).flat_map(|index| bytes_of(one(index))).collect()
}

fn ordered_ones_are_combined_in_the_order_of_the_ranks() {
    const COUNT: usize = 20_000;
    ranks::run(SIZE, |rt| {
        let reducer = reducer(32, true, multiply());
        let expected = product(rt, COUNT);
        let input: Vec<u8> =
            (0..COUNT).flat_map(|index| bytes_of(matrix(rt.rank(), index))).collect();
        let mut served = 0;
        for algorithm in Algorithm::ALL.into_iter().map(Some).chain([None]) {
            let collectives =
                [Collective::Allreduce, Collective::Reduce, Collective::ReduceScatter];
            for collective in collectives {
                if algorithm.is_some_and(|a| !serves(a, collective, SIZE)) {
                    continue;
                }
                let mut memory = Bytes { input: input.clone(), output: vec![0; input.len()] };
                let block = collective == Collective::ReduceScatter;
                let count = if block { COUNT / SIZE as usize } else { COUNT };
                let mut request = memory.request(collective, count as u64, &reducer);
                request.algorithm = algorithm;
                match call(rt, ALL, &request, ranks::LIMIT) {
                    Ok(()) => served += 1,
                    // One that would combine in another order, on all ranks alike.
                    Err(Error::Unsupported { .. }) if algorithm.is_some() => continue,
                    Err(error) => panic!("{collective}, {algorithm:?}: {error}"),
                }
                let begin = if block { rt.rank().index() * count * 32 } else { 0 };
                if collective != Collective::Reduce || rt.rank() == Rank(2) {
                    let right = memory.output[..count * 32] == expected[begin..][..count * 32];
                    assert!(right, "{collective}, {algorithm:?}");
                }
            }
        }
        assert!(served >= 6, "{served}");
    });
}

fn they_can_be_started_and_waited_for_in_any_order() {
    ranks::run(3, |rt| {
        let reducer = reducer(8, false, add());
        let new = || Bytes { input: vec![1; 8000], output: vec![0; 8000] };
        let mut memory: Vec<Bytes> = (0..4).map(|_| new()).collect();
        let (mut once, mut prepared) = (Vec::new(), Vec::new());
        for (index, memory) in memory.iter_mut().enumerate() {
            let request = memory.request(Collective::Allreduce, 1000, &reducer);
            if index < 2 {
                // SAFETY: the buffers live until it has ended.
                let started = unsafe { start_raw(rt, ALL, &request, ranks::LIMIT) };
                once.push(started.expect("start"));
            } else {
                // SAFETY: the buffers live until it has been dropped.
                let new = unsafe { prepare_raw(rt, ALL, &request, ranks::LIMIT) };
                prepared.push(new.expect("prepare"));
            }
        }
        let again = prepared.iter_mut().map(|prepared| prepared.start().expect("start"));
        let mut started: Vec<_> = once.into_iter().chain(again).collect();
        let order = [[1, 0, 3, 2], [3, 2, 1, 0], [2, 1, 0, 3]][rt.rank().index()];
        for index in order {
            started[index].wait(ranks::LIMIT).expect("wait");
        }
        drop(started);
        assert!(memory.iter().all(|memory| memory.output.iter().all(|byte| *byte == 3)));
    });
}

fn a_function_that_fails_on_one_rank_fails_for_all_and_the_group_lives() {
    // What that rank contributes cannot be combined, by nobody or by that rank only.
    for (culprit, alone) in [(0, false), (2, false), (1, true), (4, true)] {
        let culprit = Rank(culprit);
        ranks::run(SIZE, |rt| {
            let own = rt.rank();
            let reduce = move |one: &[u8], two: &[u8], _: &mut [u8], _| {
                let sees = one[0] == 7 || two[0] == 7;
                let fails = if alone { own == culprit } else { sees };
                if fails { Err(ReductionFailed) } else { Ok(()) }
            };
            let reducer = reducer(8, false, Arc::new(reduce));
            let mut served = 0;
            for (collective, algorithm) in [Collective::Allreduce, Collective::Reduce]
                .into_iter()
                .flat_map(|c| Algorithm::ALL.iter().map(move |a| (c, Some(*a))).chain([(c, None)]))
            {
                let input = vec![if own == culprit { 7 } else { 1 }; 800];
                let mut memory = Bytes { input, output: vec![0xAA; 800] };
                let mut request = memory.request(collective, 100, &reducer);
                request.root = Rank(1);
                request.algorithm = algorithm;
                let what = format!("{collective} by {algorithm:?}, {own}, {culprit} {alone}");
                let outcome = call(rt, ALL, &request, ranks::LIMIT);
                if matches!(outcome, Err(Error::Unsupported { .. })) {
                    continue;
                }
                // A rank may have nothing to combine.
                let may_succeed = alone && outcome.is_ok();
                served += u32::from(!may_succeed);
                let told = matches!(outcome, Err(Error::Reduction { .. }));
                assert!(told || may_succeed, "{what}: {outcome:?}");
                let all = sum_of(rt, told);
                assert!([0, u64::from(SIZE)].contains(&all), "{what}: {all} ranks are told");
                let untouched = memory.output.iter().all(|byte| *byte == 0xAA);
                assert!(collective == Collective::Reduce || !told || untouched, "{what}");
            }
            assert!(served >= 6, "{served}");
        });
    }
}

/// How many ranks say yes.
fn sum_of(rt: &Runtime, yes: bool) -> u64 {
    let (own, mut all) = ([u64::from(yes)], [0]);
    let (op, limit) = (gaspi_collectives::Operation::Sum, ranks::LIMIT);
    gaspi_collectives::allreduce_slice(rt, &own, &mut all, op, ALL, limit).expect("allreduce");
    all[0]
}

tests! {
    DEVICES:
        elements_of_any_size,
        elements_that_are_too_large_are_refused,
        ordered_ones_are_combined_in_the_order_of_the_ranks,
        they_can_be_started_and_waited_for_in_any_order,
        a_function_that_fails_on_one_rank_fails_for_all_and_the_group_lives;
}
