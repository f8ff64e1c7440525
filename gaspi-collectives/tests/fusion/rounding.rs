//! Tensors of f32 that travel in 16 bits: each rank rounds what it contributes once.

use super::*;
use gaspi_collectives::Operation;

/// Several blocks of the conversion with a rest, and a few.
const COUNTS: [usize; 2] = [2500, 3];
const WIRES: [(DataType, f64); 2] = [(DataType::F16, 1.0 / 2048.0), (DataType::Bf16, 1.0 / 256.0)];

/// Numbers that 16 bits do not have, of one sign: what is lost adds up.
fn inexact(rank: usize, tensor: usize, turn: usize, index: usize) -> f32 {
    ((rank * 31 + tensor * 7 + turn * 13 + index) % 101) as f32 * 0.0137 + 0.1
}

/// What `n` ranks contribute to an element in `contributions` turns.
fn sum_of_all(n: usize, contributions: usize, tensor: usize, index: usize) -> f64 {
    let turns = (0..n).flat_map(|rank| (0..contributions).map(move |turn| (rank, turn)));
    turns.map(|(rank, turn)| f64::from(inexact(rank, tensor, turn, index))).sum()
}

fn submit_scaled(fusion: &Fusion<'_>, tensor: usize, data: *const f32, scale: f64) {
    // SAFETY: as many elements as the tensor has.
    unsafe { fusion.submit(tensor, data.cast(), scale) }.expect("submitted");
}

/// A step in which each second contribution comes from the tensor's own place.
fn submit_all(fusion: &Fusion<'_>, me: usize, contributions: usize, scale: f64) {
    for turn in 0..contributions {
        for (tensor, count) in COUNTS.into_iter().enumerate() {
            let data: Vec<f32> = (0..count).map(|index| inexact(me, tensor, turn, index)).collect();
            let from = if turn % 2 == 0 {
                data.as_ptr()
            } else {
                let place = fusion.tensor_ptr(tensor).expect("a place").cast::<f32>();
                // SAFETY: the place of the tensor, which is not under way.
                unsafe { place.copy_from_nonoverlapping(data.as_ptr(), count) };
                place.cast_const()
            };
            submit_scaled(fusion, tensor, from, scale);
        }
    }
}

/// The error does not grow with the number of contributions.
fn contributions_are_rounded_once() {
    for n in ranks::sizes(&[2, 3, 5]) {
        ranks::run(n, |rt| {
            let (me, n) = (rt.rank().index(), rt.size() as usize);
            for (wire, rounding) in WIRES {
                for (contributions, scale) in
                    [1, 4, 100].into_iter().flat_map(|k| [(k, 1.0), (k, 0.37)])
                {
                    let options = Options { wire: Some(wire), contributions, ..Options::default() };
                    let fusion = create(rt, &floats(&COUNTS), &options);
                    let k = contributions as usize;
                    // f32 rounds as well, and the scale.
                    let bound = n as f64 * rounding + (k + 2) as f64 * f64::from(f32::EPSILON);
                    for step in 0..2 {
                        submit_all(&fusion, me, k, scale);
                        for (tensor, count) in COUNTS.into_iter().enumerate() {
                            let found = wait(&fusion, tensor, count);
                            for (index, found) in found.into_iter().enumerate() {
                                let exact = scale * sum_of_all(n, k, tensor, index);
                                let error = (f64::from(found) - exact).abs();
                                assert!(
                                    error <= bound * exact,
                                    "{wire}, {k} times {scale}, step {step}, {tensor}[{index}]: \
                                     {found}, not {exact}"
                                );
                            }
                        }
                    }
                }
            }
        });
    }
}

/// Added up in bf16 they would come to a halt at 256.
fn many_equal_contributions_do_not_stagnate() {
    ranks::run(2, |rt| {
        let (n, contributions) = (rt.size() as f32, 512);
        let operations = [(Operation::Sum, 512.0 * n), (Operation::Average, 512.0)];
        for ((wire, _), (operation, expected)) in
            WIRES.into_iter().flat_map(|wire| operations.map(|operation| (wire, operation)))
        {
            let wire = Some(wire);
            let options = Options { operation, wire, contributions, ..Options::default() };
            let fusion = create(rt, &floats(&COUNTS), &options);
            for _ in 0..contributions {
                COUNTS.into_iter().enumerate().for_each(|(t, count)| {
                    submit(&fusion, t, &vec![1.0; count]);
                });
            }
            for (tensor, count) in COUNTS.into_iter().enumerate() {
                let found = wait(&fusion, tensor, count);
                assert_eq!(found, vec![expected; count], "{operation} in {wire:?}");
            }
        }
    });
}

/// The same number in all elements of all tensors.
fn submit_everywhere(fusion: &Fusion<'_>, number: f32) {
    for (tensor, count) in COUNTS.into_iter().enumerate() {
        submit(fusion, tensor, &vec![number; count]);
    }
}

/// Threads that submit the same tensor add to the same sum.
fn threads_contribute_to_the_same_tensors() {
    const THREADS: usize = 4;
    const TURNS: usize = 3;
    ranks::run(2, |rt| {
        let n = rt.size() as usize;
        for (wire, _) in WIRES {
            let contributions = (THREADS * TURNS) as u32;
            let options = Options { wire: Some(wire), contributions, ..Options::default() };
            let fusion = create(rt, &floats(&COUNTS), &options);
            for step in 1..10 {
                ranks::scope(|scope| {
                    for thread in 0..THREADS {
                        let fusion = &fusion;
                        scope.spawn(move || {
                            for turn in 0..TURNS {
                                let one = (thread + turn * step) as f32;
                                submit_everywhere(fusion, one);
                            }
                        });
                    }
                });
                // Three of each thread's number, and each turn's of each thread.
                let expected = (n * (TURNS * 6 + THREADS * 3 * step)) as f32;
                for (tensor, count) in COUNTS.into_iter().enumerate() {
                    let lent = fusion.result(tensor, LIMIT).expect("a result");
                    assert_eq!(read(lent, count), vec![expected; count], "{wire}, step {step}");
                    fusion.release(tensor, lent).expect("it was lent");
                }
            }
        }
    });
}

fn the_least_and_the_largest_contributions_count() {
    ranks::run(3, |rt| {
        let (me, n) = (rt.rank().index(), rt.size() as usize);
        for (operation, best) in
            [(Operation::Min, f32::min as fn(f32, f32) -> f32), (Operation::Max, f32::max)]
        {
            let wire = Some(DataType::F16);
            let options = Options { operation, contributions: 3, wire, ..Options::default() };
            let fusion = create(rt, &floats(&COUNTS), &options);
            for (tensor, count) in COUNTS.into_iter().enumerate() {
                (0..3).for_each(|turn| {
                    submit(&fusion, tensor, &contribution(me, tensor, turn, count));
                });
            }
            for (tensor, count) in COUNTS.into_iter().enumerate() {
                let all = |index| {
                    let turns = |rank| (0..3).map(move |turn| value(rank, tensor, turn, index));
                    (0..n).flat_map(turns).reduce(best).expect("several")
                };
                let expected: Vec<f32> = (0..count).map(all).collect();
                assert_eq!(wait(&fusion, tensor, count), expected, "{operation}");
            }
        }
    });
}

tests! {
    DEVICES:
        contributions_are_rounded_once,
        many_equal_contributions_do_not_stagnate,
        threads_contribute_to_the_same_tensors,
        the_least_and_the_largest_contributions_count;
}
