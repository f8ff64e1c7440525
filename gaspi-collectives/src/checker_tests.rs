//! All schedules proved, and the checker proved by faults planted in them.

use super::*;
use crate::schedule::Allreduce;
use crate::schedule::LINE_BYTES;
use crate::{Line, Sliced, Staged};

const ELEMENT_BYTES: u64 = 8;

fn shape(size: u32, count: u64, stage_elements: u64) -> Shape {
    let stage_bytes = stage_elements * ELEMENT_BYTES;
    Shape { me: 0, size, count, element_bytes: ELEMENT_BYTES, stage_bytes }
}

fn programs<S: Schedule>(shape: Shape, schedule: impl Fn(Shape) -> S) -> Vec<Vec<Step>> {
    (0..shape.size).map(|me| steps(&schedule(Shape { me, ..shape }))).collect()
}

/// Proves a schedule in place and out of place, and that it counts its arrivals right.
fn prove<S: Schedule>(shape: Shape, schedule: impl Fn(Shape) -> S) {
    let programs = programs(shape, &schedule);
    for in_place in [false, true] {
        let claim = Claim { shape, in_place, in_order: true, calls: 3 };
        if let Err(fault) = check_allreduce(claim, &programs) {
            panic!("{claim:?}: {fault}");
        }
    }
    let schedule = schedule(shape);
    let mut arrivals = 0;
    for (index, step) in programs[0].iter().enumerate() {
        assert_eq!(schedule.arrivals_before(index as u64), arrivals, "{shape:?}, step {index}");
        arrivals += u64::from(matches!(step, Step::Arrive(_)));
    }
    for behind in 0..3 {
        let index = programs[0].len() as u64 + behind;
        assert_eq!(schedule.step(index), Step::Done);
        assert_eq!(schedule.arrivals_before(index), arrivals);
    }
}

#[test]
fn line_is_right_for_all_sizes() {
    for size in 1..=64 {
        for count in [1, 2, 5, 6] {
            prove(shape(size, count, 4), Line::new);
        }
    }
    for size in 127..=130 {
        prove(shape(size, 6, 4), Line::new);
    }
}

#[test]
fn staged_is_right_for_all_sizes() {
    for size in 1..=64 {
        for (count, stage) in [(1, 1), (1, 7), (7, 7), (8, 7), (5, 1), (23, 4)] {
            prove(shape(size, count, stage), Staged::new);
            prove(shape(size, count, stage), Staged::with_status);
        }
    }
    for size in 127..=130 {
        prove(shape(size, 5, 2), Staged::new);
        prove(shape(size, 5, 2), Staged::with_status);
    }
}

#[test]
fn sliced_is_right_for_all_sizes() {
    for size in 1..=64 {
        let members = u64::from(size);
        for slice in [1, 3] {
            let chunk = slice * members;
            for count in [1, chunk - 1, chunk, chunk + 1, 4 * members + 2] {
                if count > 0 {
                    // One element too many for a slice more does no harm.
                    let shape = shape(size, count, slice * (members + 1) + 1);
                    prove(shape, |shape| Sliced::new(shape).unwrap());
                }
            }
        }
    }
    for size in 127..=130 {
        let shape = shape(size, 2 * u64::from(size) + 1, u64::from(size) + 1);
        prove(shape, |shape| Sliced::new(shape).unwrap());
    }
}

#[test]
fn different_algorithms_follow_each_other() {
    // What one schedule leaves behind does not depend on its name: calls of a program are made of
    // any steps, as long as the data comes out right. Staged before and after line, as one call.
    for size in [2, 3, 8] {
        let shape = shape(size, 6, 4);
        let programs: Vec<Vec<Step>> = (0..size)
            .map(|me| {
                let shape = Shape { me, ..shape };
                let mut all = steps(&Staged::new(shape));
                all.extend([Step::Arrive(Payload::Nothing), Step::Await]);
                all.extend(steps(&Staged::with_status(shape)).into_iter().map(flipped));
                all
            })
            .collect();
        let claim = Claim { shape, in_place: false, in_order: true, calls: 3 };
        check_allreduce(claim, &programs).unwrap();
    }
}

#[test]
fn the_choice_is_the_same_everywhere_and_never_asks_too_much() {
    for size in [1, 2, 3, 4, 17, 64, 3000] {
        for count in [1, 6, 7, 255, 2048, 2049, 1 << 20, 1 << 31] {
            let shape = shape(size, count, 2048);
            let chosen = Allreduce::choose(shape);
            let other = Allreduce::choose(Shape { me: size - 1, ..shape });
            if count >= 1 << 20 && (4..2048).contains(&size) {
                assert!(matches!(chosen, Allreduce::Sliced(_)));
            }
            assert_eq!(std::mem::discriminant(&chosen), std::mem::discriminant(&other));
            match chosen {
                Allreduce::Line(_) => assert!(count * ELEMENT_BYTES <= LINE_BYTES),
                Allreduce::Staged(_) => assert!(count * ELEMENT_BYTES > LINE_BYTES),
                Allreduce::Sliced(_) => assert!(count > 6 && (4..2048).contains(&size)),
            }
        }
    }
}

/// The step with the other parity in all its places.
fn flipped(step: Step) -> Step {
    let flip_span = |span: Span| match span.place {
        Place::Scratch { member, parity } => {
            Span { place: Place::Scratch { member, parity: 1 - parity }, ..span }
        }
        _ => span,
    };
    match step {
        Step::Copy { dst, src } => Step::Copy { dst: flip_span(dst), src: flip_span(src) },
        Step::Reduce { dst, srcs } => {
            let place = match srcs.place {
                SourcePlace::Scratch { parity, offset } => {
                    SourcePlace::Scratch { parity: 1 - parity, offset }
                }
                SourcePlace::Line => SourcePlace::Line,
            };
            Step::Reduce { dst: flip_span(dst), srcs: Sources { place, ..srcs } }
        }
        other => other,
    }
}

fn is_empty(step: &Step) -> bool {
    match step {
        Step::Copy { dst, .. } | Step::Reduce { dst, .. } => dst.bytes == 0,
        _ => false,
    }
}

fn synchronises(step: &Step) -> bool {
    matches!(step, Step::Arrive(_) | Step::Await)
}

/// Steps that wait for nobody: fetching the own slice may as well happen before the await.
fn reads_only_own(step: &Step, me: u32) -> bool {
    match step {
        Step::Copy { src, .. } => match src.place {
            Place::Input(member) | Place::Output(member) => member == me,
            Place::Scratch { member, .. } => member == me,
        },
        _ => false,
    }
}

/// Wrong versions of one step.
fn wrong(step: Step, size: u32) -> Vec<(&'static str, Step)> {
    let mut all = Vec::new();
    if flipped(step) != step {
        all.push(("wrong parity", flipped(step)));
    }
    let later = |span: Span| Span { offset: span.offset + ELEMENT_BYTES, ..span };
    let shorter = |span: Span| Span { bytes: span.bytes - ELEMENT_BYTES, ..span };
    match step {
        Step::Copy { dst, src } => {
            all.push(("source shifted", Step::Copy { dst, src: later(src) }));
            all.push(("target shifted", Step::Copy { dst: later(dst), src }));
            all.push(("shortened", Step::Copy { dst: shorter(dst), src: shorter(src) }));
            if let Place::Scratch { member, parity } = src.place {
                let place = Place::Scratch { member: (member + 1) % size, parity };
                let src = Span { place, ..src };
                all.push(("source of another", Step::Copy { dst, src }));
            }
        }
        Step::Reduce { dst, srcs } => {
            let with = |srcs| Step::Reduce { dst, srcs };
            all.push(("last member left out", with(Sources { end: srcs.end - 1, ..srcs })));
            all.push(("first member left out", with(Sources { first: srcs.first + 1, ..srcs })));
            all.push(("target shifted", Step::Reduce { dst: later(dst), srcs }));
            all.push(("shortened", Step::Reduce { dst: shorter(dst), srcs }));
            if let SourcePlace::Scratch { parity, offset } = srcs.place {
                let place = SourcePlace::Scratch { parity, offset: offset + ELEMENT_BYTES };
                all.push(("sources shifted", with(Sources { place, ..srcs })));
            }
        }
        Step::Arrive(Payload::Data(span)) => {
            all.push(("payload shifted", Step::Arrive(Payload::Data(later(span)))));
            all.push(("payload shortened", Step::Arrive(Payload::Data(shorter(span)))));
            all.push(("payload forgotten", Step::Arrive(Payload::Nothing)));
        }
        _ => {}
    }
    all
}

/// Plants each fault in each step of each member; the checker has to find them all.
fn plant_faults<S: Schedule>(shape: Shape, schedule: impl Fn(Shape) -> S) {
    let right: Vec<Vec<Step>> = programs(shape, schedule)
        .into_iter()
        .map(|steps| steps.into_iter().filter(|step| !is_empty(step)).collect())
        .collect();
    let claim = Claim { shape, in_place: false, in_order: true, calls: 3 };
    check_allreduce(claim, &right).unwrap();
    let mut planted = 0;
    let mut found = |what: &str, member: usize, index: usize, change: &dyn Fn(&mut Vec<Step>)| {
        let mut programs = right.clone();
        change(&mut programs[member]);
        let step = right[member][index];
        let result = check_allreduce(claim, &programs);
        assert!(result.is_err(), "{what} not found: member {member}, step {index}: {step:?}");
        planted += 1;
    };
    for (member, program) in right.iter().enumerate() {
        for (index, step) in program.iter().copied().enumerate() {
            if step == Step::Check {
                continue;
            }
            found("dropped", member, index, &|steps| {
                steps.remove(index);
            });
            for (what, wrong) in wrong(step, shape.size) {
                found(what, member, index, &|steps| steps[index] = wrong);
            }
            if synchronises(&step) {
                found("doubled", member, index, &|steps| steps.insert(index, step));
            }
            let next = program.get(index + 1);
            let matters = next.is_some_and(|next| {
                let awaits_own = step == Step::Await && reads_only_own(next, member as u32);
                *next != Step::Check && (synchronises(&step) || synchronises(next)) && !awaits_own
            });
            if matters {
                found("swapped", member, index, &|steps| steps.swap(index, index + 1));
            }
        }
    }
    assert!(planted > 20, "only {planted} faults were planted");
}

#[test]
fn faults_in_line_are_found() {
    plant_faults(shape(3, 5, 4), Line::new);
}

#[test]
fn faults_in_staged_are_found() {
    for (size, count) in [(2, 4), (3, 13)] {
        plant_faults(shape(size, count, 4), Staged::new);
        plant_faults(shape(size, count, 4), Staged::with_status);
    }
}

#[test]
fn faults_in_sliced_are_found() {
    for (size, count) in [(2, 8), (4, 40)] {
        let shape = shape(size, count, 2 * (u64::from(size) + 1));
        plant_faults(shape, |shape| Sliced::new(shape).unwrap());
    }
}

#[test]
fn reading_after_the_next_arrival_is_found() {
    // Every member reduces a chunk only after it has arrived with the next one: all contents are
    // still right in this order of the ranks, but a faster member may overwrite them.
    let shape = shape(3, 16, 4);
    let late = |steps: Vec<Step>| {
        let mut steps = steps;
        // copy, arrive, await, reduce | copy, arrive, await, ...: the first reduce behind the
        // second arrive.
        let reduce = steps.remove(3);
        steps.insert(5, reduce);
        steps
    };
    let mut programs = programs(shape, Staged::new);
    programs[1] = late(programs[1].clone());
    let claim = Claim { shape, in_place: false, in_order: true, calls: 1 };
    let fault = check_allreduce(claim, &programs).unwrap_err();
    assert!(fault.what.contains("may still be reading"), "{fault}");
}

#[test]
fn a_single_stage_is_found() {
    let shape = shape(3, 16, 4);
    let mut programs = programs(shape, Staged::new);
    for steps in &mut programs {
        for step in steps.iter_mut() {
            let even = match step {
                Step::Copy { dst, .. } => {
                    matches!(dst.place, Place::Scratch { parity: 0, .. })
                }
                Step::Reduce { srcs, .. } => {
                    matches!(srcs.place, SourcePlace::Scratch { parity: 0, .. })
                }
                _ => true,
            };
            if !even {
                *step = flipped(*step);
            }
        }
    }
    let claim = Claim { shape, in_place: false, in_order: true, calls: 1 };
    let fault = check_allreduce(claim, &programs).unwrap_err();
    // Which side of the race notices depends on who runs first.
    assert!(fault.what.contains("may still be"), "{fault}");
}

#[test]
fn writing_output_before_all_input_is_staged_is_found_in_place_only() {
    let shape = shape(2, 8, 4);
    let mut programs = programs(shape, Staged::new);
    for steps in &mut programs {
        // The first result goes to the second half, whose input is not staged yet.
        for index in [3, 7] {
            if let Step::Reduce { dst, .. } = &mut steps[index] {
                dst.offset = 4 * ELEMENT_BYTES - dst.offset;
            }
        }
    }
    let claim = Claim { shape, in_place: true, in_order: true, calls: 1 };
    let fault = check_allreduce(claim, &programs).unwrap_err();
    assert!(fault.what.contains("twice"), "{fault}");
}

#[test]
fn a_rank_that_waits_for_ever_is_found() {
    let shape = shape(2, 4, 4);
    let mut programs = programs(shape, Staged::new);
    programs[1].clear();
    let claim = Claim { shape, in_place: false, in_order: true, calls: 1 };
    let fault = check_allreduce(claim, &programs).unwrap_err();
    assert!(fault.to_string().starts_with("member 1, call 0"), "{fault}");
    programs[1] = vec![Step::Await];
    let fault = check_allreduce(claim, &programs).unwrap_err();
    assert!(fault.what.contains("awaits without an arrival"), "{fault}");
}

#[test]
fn the_order_of_the_ranks_is_asked_for_or_not() {
    let mut runs = Vec::new();
    for more in [(2, 3), (0, 0), (1, 1)] {
        append(&mut runs, &[more]).unwrap();
    }
    assert_eq!(runs, [(2, 3), (0, 1)]);
    assert_eq!(sorted(&runs), [(0, 3)]);
    assert!(append(&mut runs, &[(1, 1)]).unwrap_err().contains("1 twice"));
}
