//! All algorithms proved, alone and one after the other.
//!
//! `GASPI_TEST_FULL=1` proves them for more members: 1..=257, 1000, 1024.

use super::*;
use crate::algorithms::Algorithm;
use crate::steps::{Carry, Kind, Members, Place, Span, Spread};

#[path = "faults_tests.rs"]
mod faults;

/// Elements of the shapes are as long as a cache line, so that slices may have any length; those
/// for lines have to be shorter.
const ELEMENT_BYTES: u64 = 64;

/// A shape of that many members on one node, with messages of two elements and a stage of three.
fn shape(size: u32, count: u64) -> Shape {
    Shape {
        me: 0,
        size,
        count,
        counts: Vec::new(),
        sends: Vec::new(),
        receives: Vec::new(),
        element_bytes: ELEMENT_BYTES,
        root: 0,
        nodes: vec![0; size as usize],
        message_bytes: 2 * ELEMENT_BYTES,
        slots: 1,
        stage_bytes: 3 * ELEMENT_BYTES,
        shares_cores: false,
        one_machine: false,
        agreed: false,
    }
}

/// The same with elements of 8 bytes, six of which fit into a line.
fn short(shape: &Shape) -> Shape {
    Shape {
        element_bytes: 8,
        message_bytes: shape.message_bytes / 8,
        stage_bytes: shape.stage_bytes / 8,
        ..shape.clone()
    }
}

/// The call of an algorithm, if it serves the shape.
fn call(algorithm: Algorithm, collective: Collective, shape: &Shape) -> Option<Call> {
    call_of(
        algorithm,
        collective,
        (0..shape.size).map(|me| Shape { me, ..shape.clone() }).collect(),
    )
}

fn call_of(algorithm: Algorithm, collective: Collective, shapes: Vec<Shape>) -> Option<Call> {
    let programs: Vec<_> = shapes.iter().map(|shape| algorithm.steps(collective, shape)).collect();
    for (program, shape) in programs.iter().zip(&shapes) {
        assert_eq!(program.is_some(), algorithm.fits(collective, shape), "{algorithm} {shape:?}");
        assert_eq!(program.is_some(), programs[0].is_some(), "{algorithm} {shape:?}");
    }
    let programs = programs.into_iter().collect::<Option<Vec<_>>>()?;
    let in_order = collective.reduces() && algorithm.keeps_order(collective, &shapes[0]);
    let agrees = !shapes[0].agreed && algorithm.agrees(collective, &shapes[0]);
    Some(Call { collective, shapes, programs, in_place: false, in_order, agrees })
}

/// The call three times: in place between out of place.
fn thrice(call: &Call) -> [Call; 3] {
    [call.clone(), Call { in_place: true, ..call.clone() }, call.clone()]
}

/// Proves an algorithm for a shape that it serves.
fn check(algorithm: Algorithm, collective: Collective, shape: &Shape) -> bool {
    let shape = if algorithm == Algorithm::Inline { short(shape) } else { shape.clone() };
    let agreed = Shape { agreed: true, ..shape.clone() };
    let variants =
        if algorithm.agrees(collective, &shape) { vec![agreed, shape] } else { vec![shape] };
    for shape in variants {
        let Some(call) = call(algorithm, collective, &shape) else { return false };
        if let Err(fault) = prove(&thrice(&call), shape.slots) {
            panic!("{algorithm} {collective} {shape:?}: {fault}");
        }
    }
    true
}

fn is_full() -> bool {
    std::env::var_os("GASPI_TEST_FULL").is_some_and(|value| value == "1")
}

fn sizes() -> Vec<u32> {
    if is_full() {
        return (1..=257).chain([1000, 1024]).collect();
    }
    (1..=64).chain(127..=130).collect()
}

/// What there is to prove for that many members: all of it for few, a part that changes with the
/// number for many.
fn shapes(algorithm: Algorithm, collective: Collective, size: u32) -> Vec<Shape> {
    let members = u64::from(size);
    let blocks = !matches!(
        collective,
        Collective::Allreduce | Collective::Reduce | Collective::Broadcast | Collective::Barrier
    );
    let may_differ = collective != Collective::Alltoall;
    let counts = match collective {
        Collective::Barrier => vec![0],
        _ if blocks => vec![1, 5, 0, 2],
        _ => vec![1, 2 * members + 1, members - 1, members, 0, 5 * members + 3, 4],
    };
    let roots: Vec<u32> = match size {
        _ if !collective.is_rooted() && !algorithm.has_any_root(collective) => vec![0],
        1..=9 => (0..size).collect(),
        _ => vec![0, 1, size / 2, size - 1],
    };
    let stages = [3, members + 2, 3 * members + 1, 7];
    let mut shapes = Vec::new();
    for (i, count) in counts.iter().enumerate() {
        for (j, root) in roots.iter().enumerate() {
            for (k, stage) in stages.iter().enumerate() {
                let plain = shape(size, *count);
                let messages = 1 + (i + j + k) as u64 % 3;
                shapes.push(Shape {
                    root: *root,
                    stage_bytes: stage * ELEMENT_BYTES,
                    shares_cores: false,
                    message_bytes: messages * ELEMENT_BYTES,
                    counts: if blocks && may_differ && (i + k) % 4 == 3 {
                        (0..members).map(|member| (member * 7 + count) % 4).collect()
                    } else {
                        Vec::new()
                    },
                    ..plain
                });
            }
        }
    }
    let wanted = match size {
        1..=9 => shapes.len(),
        10..=64 => 3,
        127..=130 => 2,
        _ => 1,
    };
    // The part begins elsewhere for each number of members and goes through all of them.
    let len = shapes.len();
    let (first, stride) = (size as usize * 5, (len / 2).max(1) | 1);
    (0..wanted.min(len)).map(|i| shapes[(first + i * stride) % len].clone()).collect()
}

/// Members on nodes: all on one, each on its own, some neighbours together, or dealt out.
fn nodes(size: u32, layout: u32) -> Vec<u32> {
    let node = |member: u32| match layout % 6 {
        0 => 0,
        1 => member,
        2 => member / 3,
        3 => member % 3,
        4 => [0, 1, 1, 0, 2, 1][member as usize % 6],
        _ => member / 8,
    };
    (0..size).map(node).collect()
}

/// Proves an algorithm for all operations that it serves.
fn check_all(algorithm: Algorithm) {
    for collective in Collective::ALL {
        let mut proofs = 0;
        for size in sizes() {
            for (turn, mut shape) in shapes(algorithm, collective, size).into_iter().enumerate() {
                if !algorithm.requires_one_node() {
                    shape.nodes = nodes(size, turn as u32 + size);
                } else if algorithm == Algorithm::CopyInCopyOut && size > 16 {
                    // Everybody reads everything of everybody: a few stages of little show as much.
                    shape.count = shape.count.min(16);
                }
                proofs += u32::from(check(algorithm, collective, &shape));
            }
        }
        assert_eq!(proofs > 0, algorithm.serves(collective), "{algorithm} {collective}");
    }
}

macro_rules! proofs {
    ($($name:ident: $algorithm:ident,)*) => {
        $(#[test]
        fn $name() {
            check_all(Algorithm::$algorithm);
        })*

        #[test]
        fn every_algorithm_is_proved() {
            let proved = [$(Algorithm::$algorithm),*];
            assert_eq!(proved, Algorithm::ALL);
        }
    };
}

proofs! {
    inline_is_right: Inline,
    copy_in_copy_out_is_right: CopyInCopyOut,
    sliced_copy_is_right: SlicedCopy,
    single_copy_is_right: SingleCopy,
    ring_is_right: Ring,
    recursive_doubling_is_right: RecursiveDoubling,
    halving_doubling_is_right: HalvingDoubling,
    reduce_scatter_allgather_is_right: ReduceScatterAllgather,
    binomial_tree_is_right: BinomialTree,
    double_tree_is_right: DoubleTree,
    pairwise_is_right: Pairwise,
    dissemination_is_right: Dissemination,
    linear_is_right: Linear,
    hierarchical_is_right: Hierarchical,
    knomial_tree_is_right: KnomialTree,
}

/// All-reduces of any length with any member at the root, one behind the other.
#[test]
fn any_member_is_the_root_of_a_tree() {
    for size in (1..=20).chain([31, 33, 64, 65, 70]) {
        for agreed in [false, true] {
            let of_root = |root: u32| {
                let count = u64::from(root % 6);
                let shape = Shape { root, agreed, ..shape(size, count) };
                call(Algorithm::KnomialTree, Collective::Allreduce, &shape).expect("it serves")
            };
            let calls: Vec<Call> = (0..size).map(of_root).collect();
            for calls in calls.chunks(if is_full() { 70 } else { 20 }) {
                if let Err(fault) = prove(calls, 1) {
                    panic!("{size} members, agreed {agreed}: {fault}");
                }
            }
        }
    }
}

/// Where all members are known to agree, partial results lie in the output: too early otherwise.
#[test]
fn outputs_that_are_written_too_early_are_found() {
    for algorithm in
        [Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling, Algorithm::KnomialTree]
    {
        let agreed = Shape { agreed: true, ..shape(4, 8) };
        let call = call(algorithm, Collective::Allreduce, &agreed).unwrap();
        assert_eq!(prove(std::slice::from_ref(&call), 1), Ok(()));
        let fault = prove(&[Call { agrees: true, ..call }], 1).unwrap_err();
        assert!(fault.what.starts_with("writes its output, but"), "{algorithm}: {fault}");
    }
}

/// Numbers that look random, the same for a seed.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[test]
fn all_to_all_v_is_right() {
    for size in (1..=17).chain([31, 64]) {
        let mut seed = u64::from(size);
        let table: Vec<Vec<u64>> =
            (0..size).map(|_| (0..size).map(|_| next(&mut seed) % 6).collect()).collect();
        let of = |me: u32| Shape {
            me,
            sends: table[me as usize].clone(),
            receives: table.iter().map(|row| row[me as usize]).collect(),
            ..shape(size, 0)
        };
        let shapes: Vec<Shape> = (0..size).map(of).collect();
        for algorithm in [Algorithm::Pairwise, Algorithm::Linear] {
            let call = call_of(algorithm, Collective::Alltoall, shapes.clone()).unwrap();
            if let Err(fault) = prove(&[call.clone(), call], 1) {
                panic!("{algorithm}, {size} members: {fault}");
            }
        }
        let fits = |a: &Algorithm| a.fits(Collective::Alltoall, &shapes[0]);
        assert_eq!(Algorithm::ALL.iter().filter(|a| fits(a)).count(), 2);
    }
}

#[test]
fn different_operations_follow_each_other() {
    for seed in 0..if is_full() { 3000 } else { 300 } {
        let mut random = seed;
        let size = 1 + (next(&mut random) % 9) as u32;
        let mut calls = Vec::new();
        while calls.len() < 6 {
            let algorithm = Algorithm::ALL[next(&mut random) as usize % Algorithm::ALL.len()];
            let collective = Collective::ALL[next(&mut random) as usize % Collective::ALL.len()];
            let shape = Shape {
                root: next(&mut random) as u32 % size,
                message_bytes: (1 + next(&mut random) % 3) * ELEMENT_BYTES,
                stage_bytes: 12 * ELEMENT_BYTES,
                shares_cores: false,
                ..shape(size, next(&mut random) % 12)
            };
            let in_place = next(&mut random).is_multiple_of(2);
            let call = call(algorithm, collective, &short(&shape));
            calls.extend(call.map(|call| Call { in_place, ..call }));
        }
        for slots in [1, 2, 1000] {
            if let Err(fault) = prove(&calls, slots) {
                let names: Vec<_> = calls.iter().map(|call| call.collective.name()).collect();
                panic!("seed {seed}, {slots} slots, {names:?}: {fault}");
            }
        }
    }
}

/// Members lag behind each other along a chain by as many pieces as there are slots.
#[test]
fn a_chain_goes_on_with_any_number_of_slots() {
    for size in (1..=17).chain([31, 40]) {
        for slots in [1, 2, 3, 5, 8, 1000] {
            let shape = Shape { slots, ..shape(size, 5 * u64::from(size).min(9) + 3) };
            check(Algorithm::Linear, Collective::Allreduce, &shape);
        }
    }
}

#[test]
fn slices_are_aligned_and_balanced() {
    // Elements that are shorter than a cache line, or do not divide one.
    for element_bytes in [1, 4, 8, 24] {
        for size in [1, 2, 3, 5, 8] {
            for count in [0, 1, 7, 63, 64, 65, 1000] {
                let message_bytes = 15 * element_bytes;
                let shape = Shape { element_bytes, message_bytes, ..shape(size, count) };
                for algorithm in [Algorithm::SingleCopy, Algorithm::Ring, Algorithm::CopyInCopyOut]
                {
                    check(algorithm, Collective::Allreduce, &shape);
                }
            }
        }
    }
}

/// Rings take long data in parts, whose slices have half a MiB.
#[test]
fn long_data_goes_round_in_parts() {
    for size in [1, 2, 3, 5] {
        for parts in 1..=3 {
            let elements = u64::from(size * parts * 4);
            for count in [elements - 1, elements, elements + 1] {
                let element_bytes = 128 << 10;
                let message_bytes = 3 * element_bytes;
                let shape = Shape { element_bytes, message_bytes, ..shape(size, count) };
                check(Algorithm::Ring, Collective::Allreduce, &shape);
            }
        }
    }
    let sum_of_slice = |bytes: u64| {
        let shape = Shape { element_bytes: 64, message_bytes: 1 << 20, ..shape(4, bytes / 64) };
        let steps = Algorithm::Ring.steps(Collective::Allreduce, &shape).expect("it serves");
        steps.iter().map(|step| if let Step::Finish { span } = step { span.bytes } else { 0 }).max()
    };
    assert_eq!(sum_of_slice(2 << 20), Some(512 << 10));
    assert_eq!(sum_of_slice(64 << 20), Some(512 << 10));
}

#[test]
fn steps_are_few_for_much() {
    let much = Shape {
        element_bytes: 4,
        message_bytes: 64 << 10,
        stage_bytes: 64 << 10,
        shares_cores: false,
        ..shape(4, 1 << 30)
    };
    for collective in Collective::ALL {
        let blocks = !matches!(
            collective,
            Collective::Allreduce | Collective::Reduce | Collective::Broadcast
        );
        let count = if blocks { much.count / 4 } else { much.count };
        for algorithm in Algorithm::ALL {
            let steps = algorithm.steps(collective, &Shape { count, ..much.clone() });
            let steps = steps.map_or(0, |steps| steps.len());
            assert!(steps <= 700_000, "{algorithm} {collective}: {steps} steps");
        }
    }
}
