//! Sums of a step, once other tensors of the bucket have been submitted for the next one.

use super::*;
use gaspi_collectives::algorithms::Algorithm;
use gaspi_core::Error;
use ranks::Nodes;

/// Two tensors of one bucket.
const COUNTS: [usize; 2] = [300, 70];
const WIRES: [Option<DataType>; 2] = [None, Some(DataType::F16)];

fn one_bucket(rt: &Runtime, wire: Option<DataType>) -> Fusion<'_> {
    let fusion = create(rt, &floats(&COUNTS), &Options { wire, ..Options::default() });
    assert_eq!(fusion.buckets(), 1);
    fusion
}

fn submit_step(fusion: &Fusion<'_>, me: usize, tensor: usize, step: usize) {
    submit(fusion, tensor, &contribution(me, tensor, step, COUNTS[tensor]));
}

fn expected(tensor: usize, step: usize) -> Vec<f32> {
    sum(2, tensor, step, COUNTS[tensor])
}

/// What lies between tensors is summed with them: it holds nothing that costs time or traps.
fn what_lies_between_tensors_is_zero() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let between = |start: *const u8| {
            // Up to the place of the next tensor, which is aligned to 16 floats.
            let all = read(start, COUNTS[0].next_multiple_of(16));
            all[COUNTS[0]..].iter().map(|element| element.to_bits()).collect::<Vec<u32>>()
        };
        for _ in 0..3 {
            // Memory of the arena is used again once all have freed it.
            let former = create(rt, &floats(&[5000]), &Options::default());
            submit(&former, 0, &[f32::NAN; 5000]);
            assert!(wait(&former, 0, 5000).iter().all(|element| element.is_nan()));
            let lent = former.result(0, LIMIT).expect("a result");
            submit(&former, 0, &[f32::NAN; 5000]);
            wait(&former, 0, 5000);
            former.release(0, lent).expect("it was lent");
            drop(former);
            rt.barrier(ALL, LIMIT).expect("barrier");
            let fusion = one_bucket(rt, None);
            let first = fusion.tensor_ptr(0).expect("a place");
            let padding = between(first);
            assert_eq!(padding, vec![0; padding.len()]);
            for step in 0..2 {
                (0..2).for_each(|tensor| submit_step(&fusion, me, tensor, step));
                assert_eq!(wait(&fusion, 1, COUNTS[1]), expected(1, step));
                // The second step works in other memory.
                let lent = fusion.result(0, LIMIT).expect("a result");
                assert_eq!(lent == first.cast_const(), step == 0);
                assert_eq!(between(lent), padding);
            }
        }
    });
}

/// With results of the last step lent or not, the next step works in other memory or the same.
fn a_sum_stays_while_others_are_submitted_again() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        for (wire, lends) in WIRES.into_iter().flat_map(|wire| [(wire, false), (wire, true)]) {
            let fusion = one_bucket(rt, wire);
            let mut lent = None;
            for step in 0..6 {
                (0..2).for_each(|tensor| submit_step(&fusion, me, tensor, step));
                assert_eq!(wait(&fusion, 1, COUNTS[1]), expected(1, step));
                if lends {
                    // Released a step later, so that the memories take turns.
                    let former = lent.replace(fusion.result(1, LIMIT).expect("a result"));
                    if let Some(former) = former {
                        assert_eq!(read(former, COUNTS[1]), expected(1, step - 1));
                        fusion.release(1, former).expect("it was lent");
                    }
                }
                // The next step begins with one of the two.
                submit_step(&fusion, me, 1, step + 1);
                assert_eq!(wait(&fusion, 0, COUNTS[0]), expected(0, step));
                let result = fusion.result(0, LIMIT).expect("a result");
                assert_eq!(read(result, COUNTS[0]), expected(0, step), "{wire:?}, {lends}");
                submit_step(&fusion, me, 0, step + 1);
                assert_eq!(wait(&fusion, 0, COUNTS[0]), expected(0, step + 1));
                assert_eq!(wait(&fusion, 1, COUNTS[1]), expected(1, step + 1));
                // What is lent has not changed.
                assert_eq!(read(result, COUNTS[0]), expected(0, step), "{wire:?}, {lends}");
                fusion.release(0, result).expect("it was lent");
                fusion.release(0, result).expect_err("it was lent once");
                // One more, so that each turn begins a step.
                for tensor in 0..2 {
                    submit_step(&fusion, me, tensor, step + 2);
                }
                wait(&fusion, 0, COUNTS[0]);
            }
        }
    });
}

fn a_result_is_released_by_its_tensor_as_often_as_it_was_lent() {
    ranks::run(2, |rt| {
        for wire in WIRES {
            let fusion = one_bucket(rt, wire);
            (0..2).for_each(|tensor| submit_step(&fusion, rt.rank().index(), tensor, 0));
            let result = |tensor| fusion.result(tensor, LIMIT).expect("a result");
            let (first, again, other) = (result(0), result(0), result(1));
            assert_eq!(first, again);
            fusion.release(1, first).expect_err("this is of the other tensor");
            fusion.release(0, other).expect_err("so is this");
            fusion.release(0, first.wrapping_add(4)).expect_err("nothing lent begins there");
            for tensor in [0, 0, 1] {
                let lent = [first, other][tensor];
                fusion.release(tensor, lent).expect("it was lent");
            }
            fusion.release(0, first).expect_err("it was lent twice");
            fusion.release(1, other).expect_err("it was lent once");
        }
    });
}

fn sums_come_back_to_their_places_once_all_is_released() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let fusion = one_bucket(rt, None);
        let place = fusion.tensor_ptr(0).expect("a place").cast_const();
        let step = |step: usize| {
            (0..2).for_each(|tensor| submit_step(&fusion, me, tensor, step));
            let result = fusion.result(0, LIMIT).expect("a result");
            assert_eq!(read(result, COUNTS[0]), expected(0, step));
            result
        };
        let (first, second) = (step(0), step(1));
        assert_eq!(first, place);
        assert_ne!(second, place);
        assert_eq!(read(place, COUNTS[0]), expected(0, 0));
        fusion.release(0, first).expect("it was lent");
        // The other memory is lent still; the first one is free.
        let third = step(2);
        assert_eq!(third, place);
        assert_eq!(read(second, COUNTS[0]), expected(0, 1));
        fusion.release(0, second).expect("it was lent");
        fusion.release(0, third).expect("it was lent");
        step(3);
        assert_eq!(read(place, COUNTS[0]), expected(0, 3));
    });
}

fn a_place_serves_for_the_first_contribution_only() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        for wire in WIRES {
            let options = Options { contributions: 2, wire, ..Options::default() };
            let fusion = create(rt, &floats(&COUNTS[..1]), &options);
            let place = fusion.tensor_ptr(0).expect("a place");
            let data = contribution(me, 0, 0, COUNTS[0]);
            // SAFETY: the place of the tensor, before it is submitted.
            unsafe { place.cast::<f32>().copy_from_nonoverlapping(data.as_ptr(), data.len()) };
            // SAFETY: so is this.
            let in_place = || unsafe { fusion.submit(0, place, 1.0) };
            in_place().expect("submitted");
            match wire {
                None => {
                    let error = in_place().expect_err("it would be added to itself");
                    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
                    assert!(error.to_string().contains("tensor 0"), "{error}");
                    submit_step(&fusion, me, 0, 0);
                }
                // The place is not what travels.
                Some(_) => in_place().expect("submitted"),
            }
            let twice: Vec<f32> = expected(0, 0).into_iter().map(|sum| sum * 2.0).collect();
            assert_eq!(wait(&fusion, 0, COUNTS[0]), twice, "{wire:?}");
        }
    });
}

/// The last tensor starts the all-reduce of a bucket; each of the others tells of its end as well,
/// also one that has been submitted again.
fn each_tensor_of_a_bucket_tells_of_its_end() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let fusion = create(rt, &floats(&[40, 300, 7]), &Options::default());
        assert_eq!(fusion.buckets(), 1);
        // SAFETY: nothing is written.
        let ended = |tensor| unsafe { fusion.test(tensor, std::ptr::null_mut()) };
        for step in 0..5 {
            let hand = |tensor: usize, count| {
                submit(&fusion, tensor, &contribution(me, tensor, step, count));
            };
            hand(1, 300);
            hand(0, 40);
            for tensor in [0, 1] {
                assert_eq!(ended(tensor), Ok(false), "tensor 2 of step {step} is missing");
            }
            assert_eq!(ended(2), Ok(step > 0), "that of the step before");
            hand(2, 7);
            while !ended(2 - step % 3).expect("no error") {
                std::thread::yield_now();
            }
            for (tensor, count) in [40, 300, 7].into_iter().enumerate() {
                assert_eq!(ended(tensor), Ok(true), "tensor {tensor} of step {step}");
                assert_eq!(wait(&fusion, tensor, count), sum(2, tensor, step, count));
            }
        }
    });
}

/// Before that its place holds what the program has put there.
fn a_sum_that_travels_otherwise_comes_to_its_place_when_it_is_asked_for() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let fusion = one_bucket(rt, Some(DataType::F16));
        let place = fusion.tensor_ptr(0).expect("a place");
        for step in 0..3 {
            let own = contribution(me, 0, step, COUNTS[0]);
            // SAFETY: the tensor's own place, which is not under way.
            unsafe { place.cast::<f32>().copy_from_nonoverlapping(own.as_ptr(), own.len()) };
            // SAFETY: so is this.
            unsafe { fusion.submit(0, place, 1.0) }.expect("submitted");
            submit_step(&fusion, me, 1, step);
            // SAFETY: nothing is written.
            unsafe { fusion.wait(0, std::ptr::null_mut(), LIMIT) }.expect("ended");
            assert_eq!(read(place, COUNTS[0]), own);
            // SAFETY: the tensor's own place.
            unsafe { fusion.wait(0, place, LIMIT) }.expect("ended");
            assert_eq!(read(place, COUNTS[0]), expected(0, step));
        }
    });
}

fn counter(rt: &Runtime, name: &str) -> u64 {
    let is_it = |number: &u32| Runtime::statistic_info(*number).expect("one").name == name;
    let number = (0..rt.statistic_num()).find(is_it).expect("a counter of that name");
    rt.statistic_get(number, 0).expect("counter")
}

/// A ring of n ranks takes 2 (n - 1) messages of each. Half of those that come are copied out of
/// their slots, and within a node all of them into slots.
fn messages_and_copies_of_a_step_are_counted() {
    ranks::run(3, |rt| {
        let me = rt.rank().index();
        let options = Options { algorithm: Some(Algorithm::Ring), ..Options::default() };
        let fusion = create(rt, &floats(&[COUNTS[0]]), &options);
        let mut steps = Vec::new();
        for step in 0..4 {
            let counts = || {
                ["NumberOfCollectiveMessages", "BytesCopiedByCollectives"]
                    .map(|name| counter(rt, name))
            };
            let before = counts();
            submit(&fusion, 0, &contribution(me, 0, step, COUNTS[0]));
            assert_eq!(wait(&fusion, 0, COUNTS[0]), sum(3, 0, step, COUNTS[0]));
            let after = counts();
            let [messages, copied] = [0, 1].map(|at| after[at] - before[at]);
            assert_eq!(messages, 4, "step {step}");
            assert!(
                copied <= 4 * (COUNTS[0] * size_of::<f32>()) as u64,
                "step {step}: {copied} bytes"
            );
            steps.push(copied);
        }
        if Nodes::of_this_test() == Nodes::One {
            assert!(steps.iter().all(|copied| *copied == steps[0] && *copied > 0), "{steps:?}");
        }
    });
}

/// Whether tensor 0 refuses to write its sum there.
fn assert_refused(fusion: &Fusion<'_>, result: *const u8) {
    let result = result.cast_mut();
    let overlap = |error: Error| {
        assert!(matches!(error, Error::Size { .. }), "{error}");
        let text = "the result of tensor 0 overlaps the memory of the fused buffer";
        assert!(error.to_string().contains(text), "{error}");
    };
    // SAFETY: the fused buffer is as long as its tensors; nothing is to be written.
    overlap(unsafe { fusion.wait(0, result, LIMIT) }.expect_err("it overlaps"));
    // SAFETY: the same.
    overlap(unsafe { fusion.test(0, result) }.expect_err("it overlaps"));
}

/// Else a sum would overwrite a tensor that is being reduced.
fn no_sum_is_written_over_other_tensors() {
    ranks::run(2, |rt| WIRES.into_iter().for_each(|wire| try_to_overwrite_tensors(rt, wire)));
}

fn try_to_overwrite_tensors(rt: &Runtime, wire: Option<DataType>) {
    let me = rt.rank().index();
    let fusion = one_bucket(rt, wire);
    let place = fusion.tensor_ptr(0).expect("a place");
    let other = fusion.tensor_ptr(1).expect("a place");
    let refused = |result: *mut u8| assert_refused(&fusion, result);
    let wrong = [
        other,
        place.wrapping_add(4),
        place.wrapping_sub(4 * COUNTS[0] - 1),
        other.wrapping_add(4 * COUNTS[1] - 1),
    ];
    for step in 0..3 {
        submit_step(&fusion, me, 0, step);
        // Before the step can end, and behind its end.
        wrong.into_iter().for_each(refused);
        let own = contribution(me, 1, step, COUNTS[1]);
        // SAFETY: the place of the tensor, which has not been submitted in this step.
        unsafe { other.cast::<f32>().copy_from_nonoverlapping(own.as_ptr(), own.len()) };
        wrong.into_iter().for_each(refused);
        // SAFETY: the tensor's own place.
        unsafe { fusion.submit(1, other, 1.0) }.expect("submitted");
        wait(&fusion, 0, COUNTS[0]);
        wrong.into_iter().for_each(refused);
        // A sum that travels otherwise comes when it is asked for.
        let there = if wire.is_none() { expected(1, step) } else { own };
        assert_eq!(read(other, COUNTS[1]), there, "{wire:?}");
        // SAFETY: the tensor's own place, which is not under way.
        unsafe { fusion.wait(0, place, LIMIT) }.expect("the sum lies there");
        assert_eq!(read(place, COUNTS[0]), expected(0, step));
    }
    // The sum of a step in other memory comes to the tensor's own place, too.
    let lent = fusion.result(1, LIMIT).expect("a result");
    (0..2).for_each(|tensor| submit_step(&fusion, me, tensor, 3));
    // SAFETY: the tensor's own place, which is not under way.
    unsafe { fusion.wait(0, place, LIMIT) }.expect("the sum is copied");
    assert_eq!(read(place, COUNTS[0]), expected(0, 3));
    assert_eq!(read(lent, COUNTS[1]), expected(1, 2));
    fusion.release(1, lent).expect("it was lent");
}

/// It would change, or a step that is reduced there.
fn no_sum_is_written_over_other_memory_that_is_or_was_lent() {
    ranks::run(2, |rt| WIRES.into_iter().for_each(|wire| try_to_overwrite_results(rt, wire)));
}

fn try_to_overwrite_results(rt: &Runtime, wire: Option<DataType>) {
    let me = rt.rank().index();
    let fusion = one_bucket(rt, wire);
    let submit_all = |step| (0..2).for_each(|tensor| submit_step(&fusion, me, tensor, step));
    let lend = || [0, 1].map(|tensor| fusion.result(tensor, LIMIT).expect("a result"));
    let release = |lent: [*const u8; 2]| {
        (0..2).for_each(|tensor| fusion.release(tensor, lent[tensor]).expect("it was lent"));
    };
    let holds = |lent: [*const u8; 2], step| {
        (0..2).for_each(|nth| assert_eq!(read(lent[nth], COUNTS[nth]), expected(nth, step)));
    };
    submit_all(0);
    let first = lend();
    submit_all(1);
    let second = lend();
    for result in [second[0], second[1], first[1], second[1].wrapping_add(4 * COUNTS[1] - 1)] {
        assert_refused(&fusion, result);
    }
    holds(first, 0);
    holds(second, 1);
    // The next step works there again.
    release(second);
    submit_step(&fusion, me, 1, 2);
    second.into_iter().for_each(|result| assert_refused(&fusion, result));
    submit_step(&fusion, me, 0, 2);
    holds(lend(), 2);
    holds(first, 0);
    release(first);
    // A sum that is copied when it is lent, since the next step has begun in its memory.
    submit_all(3);
    wait(&fusion, 0, COUNTS[0]);
    submit_step(&fusion, me, 1, 4);
    let copied = fusion.result(0, LIMIT).expect("a result");
    assert_refused(&fusion, copied);
    assert_refused(&fusion, copied.wrapping_add(4 * COUNTS[0] - 1));
    assert_eq!(read(copied, COUNTS[0]), expected(0, 3));
    fusion.release(0, copied).expect("it was lent");
    submit_step(&fusion, me, 0, 4);
    assert_eq!(wait(&fusion, 0, COUNTS[0]), expected(0, 4));
    assert_eq!(wait(&fusion, 1, COUNTS[1]), expected(1, 4));
}

tests! {
    DEVICES:
        what_lies_between_tensors_is_zero,
        a_sum_stays_while_others_are_submitted_again,
        a_result_is_released_by_its_tensor_as_often_as_it_was_lent,
        sums_come_back_to_their_places_once_all_is_released,
        a_sum_that_travels_otherwise_comes_to_its_place_when_it_is_asked_for,
        a_place_serves_for_the_first_contribution_only,
        each_tensor_of_a_bucket_tells_of_its_end,
        no_sum_is_written_over_other_tensors,
        no_sum_is_written_over_other_memory_that_is_or_was_lent,
        messages_and_copies_of_a_step_are_counted;
}
