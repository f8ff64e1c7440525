//! Sums of all ranks, whatever the order.

use super::*;
use gaspi_collectives::Operation;
use gaspi_collectives::algorithms::Algorithm;
use gaspi_collectives::fusion::Order;
use gaspi_core::Timeout;

const COUNTS: [usize; 9] = [94, 17, 0, 2, 81, 3000, 1, 40_000, 9];

/// How a program uses a fused buffer.
#[derive(Clone, Copy, Debug)]
enum Use {
    /// Private memory, copied out.
    Copied,
    /// The tensor's own place.
    InPlace,
    /// Private memory, results lent.
    Lent,
}

fn run_steps(rt: &Runtime, options: &Options, usage: Use, steps: usize) {
    let (me, n) = (rt.rank().index(), rt.size() as usize);
    let fusion = create(rt, &floats(&COUNTS), options);
    let mut random = Random(me as u64 + 1);
    let average = if options.operation == Operation::Average { n as f32 } else { 1.0 };
    for step in 0..steps {
        for tensor in random.order(COUNTS.len()) {
            let data = contribution(me, tensor, step, COUNTS[tensor]);
            let Use::InPlace = usage else {
                submit(&fusion, tensor, &data);
                continue;
            };
            let place = fusion.tensor_ptr(tensor).expect("a place");
            assert_eq!(place as usize % 64, 0);
            // SAFETY: the place of the tensor, which has been waited for in the step before.
            unsafe { place.cast::<f32>().copy_from_nonoverlapping(data.as_ptr(), data.len()) };
            // SAFETY: so is this.
            unsafe { fusion.submit(tensor, place, 1.0) }.expect("submitted");
        }
        for tensor in random.order(COUNTS.len()) {
            let found = match usage {
                Use::Copied => wait(&fusion, tensor, COUNTS[tensor]),
                Use::InPlace | Use::Lent => {
                    let lent = fusion.result(tensor, LIMIT).expect("a result");
                    if let (Use::InPlace, None) = (usage, options.wire) {
                        assert_eq!(lent, fusion.tensor_ptr(tensor).expect("a place").cast_const());
                    }
                    let found = read(lent, COUNTS[tensor]);
                    fusion.release(tensor, lent).expect("it was lent");
                    found
                }
            };
            let expected = sum(n, tensor, step, COUNTS[tensor]);
            let expected: Vec<f32> = expected.into_iter().map(|sum| sum / average).collect();
            assert_eq!(found, expected, "tensor {tensor}, step {step}, {usage:?}");
        }
    }
}

fn tensors_are_summed_in_any_order() {
    for n in ranks::sizes(&[1, 2, 3, 5]) {
        ranks::run(n, |rt| {
            for (turn, threshold) in [0, 100, 1000, 32 << 10, 1 << 20].into_iter().enumerate() {
                let order = [Order::Declared, Order::Reverse][turn % 2];
                let options = Options {
                    threshold,
                    order,
                    background: turn % 2 == 0,
                    limit: (turn == 3).then_some(13_000),
                    ..Options::default()
                };
                let usage = [Use::Copied, Use::InPlace, Use::Lent][turn % 3];
                run_steps(rt, &options, usage, 4);
            }
        });
    }
}

/// Buckets longer than their stages too.
fn each_algorithm_serves() {
    for n in [2, 3] {
        ranks::run(n, |rt| {
            for algorithm in [Algorithm::SlicedCopy, Algorithm::CopyInCopyOut, Algorithm::Ring] {
                for threshold in [0, 1 << 20] {
                    let algorithm = Some(algorithm);
                    let options = Options { algorithm, threshold, ..Options::default() };
                    run_steps(rt, &options, Use::Copied, 2);
                }
            }
        });
    }
}

fn an_average_is_the_sum_by_the_number_of_ranks() {
    ranks::run(4, |rt| {
        let options = Options { operation: Operation::Average, ..Options::default() };
        run_steps(rt, &options, Use::Copied, 3);
    });
}

fn halves_on_the_way_are_f32_before_and_after() {
    // Sums of these are integers below 256, which bf16 has exactly.
    ranks::run(3, |rt| {
        for wire in [DataType::F16, DataType::Bf16] {
            let options = Options { wire: Some(wire), ..Options::default() };
            for usage in [Use::Copied, Use::InPlace, Use::Lent] {
                run_steps(rt, &options, usage, 3);
            }
        }
    });
}

fn minimum_and_maximum() {
    ranks::run(3, |rt| {
        for (operation, best) in
            [(Operation::Min, f32::min as fn(f32, f32) -> f32), (Operation::Max, f32::max)]
        {
            let options = Options { operation, contributions: 2, ..Options::default() };
            let fusion = create(rt, &floats(&[100, 5]), &options);
            for (tensor, count) in [(1, 5), (0, 100)] {
                for step in [0, 1] {
                    submit(&fusion, tensor, &contribution(rt.rank().index(), tensor, step, count));
                }
            }
            for (tensor, count) in [(0, 100), (1, 5)] {
                let all = |index| {
                    let of_rank = |r| best(value(r, tensor, 0, index), value(r, tensor, 1, index));
                    (0..3).map(of_rank).reduce(best).expect("three")
                };
                let expected: Vec<f32> = (0..count).map(all).collect();
                assert_eq!(wait(&fusion, tensor, count), expected, "{operation}");
            }
        }
    });
}

/// Ranks may contribute more or less often than others, and scale what they hand over.
fn contributions_are_added_up_and_scaled() {
    ranks::run(3, |rt| {
        let me = rt.rank().index();
        let contributions = me as u32 + 1;
        let options = Options { contributions, ..Options::default() };
        let fusion = create(rt, &floats(&[1000, 3]), &options);
        for _ in 0..5 {
            for turn in 0..contributions as usize {
                for (tensor, count) in [(0, 1000), (1, 3)] {
                    let data = contribution(me, tensor, turn, count);
                    // SAFETY: as many elements as the tensor has.
                    unsafe { fusion.submit(tensor, data.as_ptr().cast(), 0.5) }.expect("submitted");
                }
            }
            for (tensor, count) in [(1, 3), (0, 1000)] {
                let all = |index: usize| {
                    (0..3)
                        .flat_map(|r| (0..=r).map(move |turn| 0.5 * value(r, tensor, turn, index)))
                        .sum::<f32>()
                };
                let expected: Vec<f32> = (0..count).map(all).collect();
                assert_eq!(wait(&fusion, tensor, count), expected);
            }
        }
    });
}

fn all_types_travel() {
    ranks::run(2, |rt| {
        let tensors: Vec<Tensor> =
            DataType::ALL.into_iter().map(|ty| Tensor { count: 333, ty }).collect();
        let fusion = create(rt, &tensors, &Options::default());
        assert_eq!(fusion.buckets(), tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            // Zero and zero is zero in each type.
            let mut data = vec![0u8; 333 * tensor.ty.bytes() as usize];
            // SAFETY: as many bytes as the tensor has.
            unsafe { fusion.submit(index, data.as_ptr(), 1.0) }.expect("submitted");
            data.fill(0xff);
            // SAFETY: the same.
            unsafe { fusion.wait(index, data.as_mut_ptr(), LIMIT) }.expect("ended");
            assert!(data.iter().all(|byte| *byte == 0), "{}", tensor.ty);
        }
    });
}

fn lent_results_stay_as_they_are() {
    ranks::run(3, |rt| {
        let (me, counts) = (rt.rank().index(), [500, 7, 20_000]);
        for wire in [None, Some(DataType::Bf16)] {
            let options = Options { wire, ..Options::default() };
            let fusion = create(rt, &floats(&counts), &options);
            let mut lent = Vec::new();
            for step in 0..6 {
                for (tensor, count) in counts.into_iter().enumerate() {
                    submit(&fusion, tensor, &contribution(me, tensor, step, count));
                }
                for tensor in 0..counts.len() {
                    // Ranks keep results of other steps.
                    let result = fusion.result(tensor, LIMIT).expect("a result");
                    if (step + tensor + me) % 3 == 0 {
                        fusion.release(tensor, result).expect("it was lent");
                    } else {
                        lent.push((tensor, step, result));
                    }
                }
                for (tensor, step, result) in &lent {
                    let expected = sum(3, *tensor, *step, counts[*tensor]);
                    assert_eq!(read(*result, counts[*tensor]), expected, "{tensor} of {step}");
                }
            }
            let places = lent.len();
            for (tensor, _, result) in lent {
                fusion.release(tensor, result).expect("it was lent");
                fusion.release(tensor, std::ptr::null()).expect_err("nothing lies there");
            }
            assert!(places > 6);
        }
    });
}

fn threads_submit_and_wait() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let counts: Vec<usize> = (0..64).map(|tensor| 1 + tensor * 37 % 900).collect();
        let options = Options { threshold: 4000, ..Options::default() };
        let fusion = create(rt, &floats(&counts), &options);
        ranks::scope(|scope| {
            for thread in 0..4 {
                let (fusion, counts) = (&fusion, &counts);
                scope.spawn(move || {
                    for step in 0..20 {
                        let own = (0..64).filter(|tensor| tensor % 4 == thread);
                        for tensor in own.clone() {
                            submit(fusion, tensor, &contribution(me, tensor, step, counts[tensor]));
                        }
                        for tensor in own {
                            let found = wait(fusion, tensor, counts[tensor]);
                            assert_eq!(found, sum(2, tensor, step, counts[tensor]));
                        }
                    }
                });
            }
        });
    });
}

fn a_thousand_buckets() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let counts = vec![64; 1000];
        let options = Options { threshold: 0, ..Options::default() };
        let fusion = create(rt, &floats(&counts), &options);
        assert_eq!(fusion.buckets(), 1000);
        let mut random = Random(me as u64);
        for step in 0..3 {
            for tensor in random.order(1000) {
                submit(&fusion, tensor, &contribution(me, tensor, step, 64));
            }
            for tensor in random.order(1000) {
                assert_eq!(wait(&fusion, tensor, 64), sum(2, tensor, step, 64));
            }
        }
    });
}

fn fused_buffers_come_and_go() {
    ranks::run(3, |rt| {
        for round in 0..60 {
            let counts = [3000 + round, 5];
            let one = create(rt, &floats(&counts), &Options::default());
            let other = create(rt, &floats(&[10]), &Options::default());
            let me = rt.rank().index();
            submit(&other, 0, &contribution(me, 0, round, 10));
            for (tensor, count) in counts.into_iter().enumerate() {
                submit(&one, tensor, &contribution(me, tensor, round, count));
            }
            assert_eq!(wait(&one, 0, counts[0]), sum(3, 0, round, counts[0]));
            assert_eq!(wait(&other, 0, 10), sum(3, 0, round, 10));
        }
        let limit = Timeout::Test;
        let fusion = create(rt, &floats(&[1]), &Options::default());
        // SAFETY: nothing is written.
        let error =
            unsafe { fusion.wait(0, std::ptr::null_mut(), limit) }.expect_err("nothing came");
        assert!(error.is_timeout(), "{error}");
    });
}

tests! {
    DEVICES:
        tensors_are_summed_in_any_order,
        an_average_is_the_sum_by_the_number_of_ranks,
        halves_on_the_way_are_f32_before_and_after,
        minimum_and_maximum,
        contributions_are_added_up_and_scaled,
        all_types_travel,
        lent_results_stay_as_they_are,
        threads_submit_and_wait,
        a_thousand_buckets,
        fused_buffers_come_and_go;
    SHM:
        each_algorithm_serves;
    SEVERAL:
        tensors_are_summed_in_any_order;
}
