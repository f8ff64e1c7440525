//! The stable mode, proved: whatever a plan depends on that bits may not depend on, the plan and
//! its fallback combine the same contributions in the same order, and round as often.
//!
//! `GASPI_TEST_FULL=1` proves it for more members and lengths.

use std::collections::HashSet;
use std::rc::Rc;

use super::agreement::depends_on_all;
use super::*;
use crate::algorithms::Grouping;
use crate::proof::{Call, combinations, prove};

const REDUCTIONS: [Collective; 3] =
    [Collective::Allreduce, Collective::Reduce, Collective::ReduceScatter];

/// The limits of the table, and what fits into a line, in bytes.
const LIMITS: [u64; 9] =
    [48, 3 << 9, 8 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1024 << 10, 4096 << 10];

fn is_full() -> bool {
    std::env::var_os("GASPI_TEST_FULL").is_some_and(|value| value == "1")
}

/// Members on nodes: all on one, each on its own, two and two that are no neighbours, uneven.
fn nodes(size: u32) -> [Vec<u32>; 4] {
    let of = |node: &dyn Fn(u32) -> u32| (0..size).map(node).collect();
    [of(&|_| 0), of(&|member| member), of(&|member| member % 2), of(&|member| member.min(2))]
}

/// Shapes of a length that differ in what bits may not depend on: cores, the machine, and the room
/// that the channel of a group, of a prepared operation and of a bucket have.
fn variants(whole: &Shape) -> Vec<Shape> {
    let element = whole.element_bytes;
    let mut shapes = Vec::new();
    for (shares_cores, one_machine) in [(false, false), (true, false), (false, true), (true, true)]
    {
        let most = element.max(512 << 10);
        for (message_bytes, stage_bytes) in
            [(element, 0), (3 * element, element), (most, 64 << 10), (most, (64 << 10) + 64)]
        {
            let shape = whole.clone();
            shapes.push(Shape { message_bytes, stage_bytes, shares_cores, one_machine, ..shape });
        }
    }
    shapes
}

/// An operation, as all members ask for it.
fn key(collective: Collective, shape: &Shape, user: Option<bool>) -> PlanKey {
    PlanKey {
        collective,
        count: shape.count,
        element_bytes: shape.element_bytes,
        root: Rank(shape.root as u16),
        algorithm: None,
        mode: Mode::Stable,
        user,
        counts: shape.counts.clone(),
        receives: Vec::new(),
        part_of_long: false,
    }
}

/// The calls that members may carry out for a key: those of their plans and of the fallback.
fn calls(key: &PlanKey, shape: &Shape) -> Vec<Call> {
    let shapes: Vec<Shape> = (0..shape.size).map(|me| Shape { me, ..shape.clone() }).collect();
    let plans: Vec<Arc<Plan>> =
        shapes.iter().map(|shape| key.plan(shape, None).expect("it is served")).collect();
    let agreed = shapes.iter().map(|shape| key.plan_among_agreed(shape, None).expect("as well"));
    let agreed: Vec<Arc<Plan>> = agreed.collect();
    let fallback =
        |plan: &Arc<Plan>| plan.fallback.as_ref().map(|fallback| &fallback.plan).cloned();
    let fallbacks: Option<Vec<Arc<Plan>>> = plans.iter().map(fallback).collect();
    let call = |plans: Vec<Arc<Plan>>, agrees: bool| Call {
        collective: key.collective,
        shapes: shapes.clone(),
        programs: plans.iter().map(|plan| plan.steps.clone()).collect(),
        in_place: false,
        in_order: key.user == Some(true),
        agrees,
    };
    let agrees = |plans: &[Arc<Plan>]| depends_on_all(key.collective) && !plans[0].buffers_output;
    let (of_plans, of_agreed) = (agrees(&plans), call(agreed, false));
    let of_fallbacks = fallbacks.map(|plans| {
        let agrees = agrees(&plans);
        call(plans, agrees)
    });
    [Some(call(plans, of_plans)), Some(of_agreed), of_fallbacks].into_iter().flatten().collect()
}

/// Proves that all members combine alike in all variants of a shape.
fn check(collective: Collective, shape: &Shape, user: Option<bool>) {
    let mut expected: Option<Vec<Vec<Rc<str>>>> = None;
    let mut seen = HashSet::new();
    for variant in variants(shape) {
        let key = key(collective, &variant, user);
        for call in calls(&key, &variant) {
            // Equal steps need one proof.
            if !seen.insert(call.programs.clone()) {
                continue;
            }
            let found = combinations(&call, 1)
                .unwrap_or_else(|fault| panic!("{collective} {variant:?}: {fault}"));
            let in_place = Call { in_place: true, ..call };
            if let Err(fault) = prove(&[in_place], 1) {
                panic!("{collective} in place {variant:?}: {fault}");
            }
            let expected = expected.get_or_insert_with(|| found.clone());
            assert_eq!(found, *expected, "{collective} {variant:?}");
        }
    }
}

/// A shape of about so many bytes in few elements: what the table looks at are bytes.
fn shape(size: u32, bytes: u64, nodes: &[u32]) -> Shape {
    let element_bytes = if bytes <= 64 { 8 } else { (bytes / 24).next_multiple_of(64) };
    Shape {
        me: 0,
        size,
        count: bytes / element_bytes,
        counts: Vec::new(),
        sends: Vec::new(),
        receives: Vec::new(),
        element_bytes,
        root: 0,
        nodes: nodes.to_vec(),
        message_bytes: 0,
        slots: 1,
        stage_bytes: 0,
        shares_cores: false,
        one_machine: false,
        agreed: false,
    }
}

fn check_all(collective: Collective) {
    let sizes: &[u32] = if is_full() { &[1, 2, 3, 4, 5, 6, 7, 8, 13] } else { &[1, 2, 3, 4, 5] };
    for size in sizes.iter().copied() {
        let sharing = select::staged_sharing(collective, u64::from(size));
        let lengths = LIMITS.into_iter().chain([sharing]);
        for (nodes, limit) in nodes(size).iter().flat_map(|nodes| {
            let nodes = nodes.clone();
            lengths.clone().map(move |limit| (nodes.clone(), limit))
        }) {
            let at = shape(size, limit, &nodes);
            let count = match collective {
                // The table looks at all blocks.
                Collective::ReduceScatter => at.count / u64::from(size),
                _ => at.count,
            };
            for count in [count, count + 1] {
                let root = if collective.is_rooted() { (size - 1).min(count as u32) } else { 0 };
                let shape = Shape { count, root, ..at.clone() };
                check(collective, &shape, None);
                if is_full() || size == 4 {
                    check(collective, &shape, Some(false));
                    check(collective, &shape, Some(true));
                }
            }
        }
    }
}

#[test]
fn all_reduces_are_stable() {
    check_all(Collective::Allreduce);
}

#[test]
fn reductions_to_a_root_are_stable() {
    check_all(Collective::Reduce);
}

#[test]
fn reduce_scatters_are_stable() {
    check_all(Collective::ReduceScatter);
}

/// Of an algorithm that was asked for, by a member or by the environment.
fn combined_by(
    algorithm: Algorithm,
    collective: Collective,
    shape: &Shape,
) -> Option<Vec<Vec<Rc<str>>>> {
    let shapes: Vec<Shape> = (0..shape.size).map(|me| Shape { me, ..shape.clone() }).collect();
    let programs = shapes.iter().map(|shape| algorithm.steps(collective, shape));
    let programs = programs.collect::<Option<Vec<_>>>()?;
    let call =
        Call { collective, shapes, programs, in_place: false, in_order: false, agrees: false };
    Some(combinations(&call, 1).unwrap_or_else(|fault| panic!("{algorithm} {shape:?}: {fault}")))
}

/// What the stable mode may exchange.
#[test]
fn algorithms_of_one_grouping_combine_alike_and_so_does_each_in_all_channels() {
    for collective in REDUCTIONS {
        for size in (1..=7).chain([65]) {
            for nodes in nodes(size).into_iter().take(if size < 9 { 4 } else { 1 }) {
                let mut known: Vec<(Grouping, Vec<Vec<Rc<str>>>)> = Vec::new();
                let whole = Shape { count: 5, ..shape(size, 40, &nodes) };
                for shape in variants(&whole) {
                    for algorithm in Algorithm::ALL {
                        let Some(found) = combined_by(algorithm, collective, &shape) else {
                            continue;
                        };
                        let grouping = algorithm.grouping();
                        match known.iter().find(|(other, _)| *other == grouping) {
                            None => known.push((grouping, found)),
                            Some((_, expected)) => {
                                assert_eq!(found, *expected, "{algorithm} {collective} {shape:?}");
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Each subtree stands for what doubling combines as well, also where members are folded, and
/// whichever is the root: the same operands on the same side.
#[test]
fn a_tree_of_any_number_of_members_and_any_root_combines_as_doubling() {
    for size in (1..=40).chain([63, 65, 100, 127, 130]) {
        let nodes: Vec<u32> = (0..size).collect();
        let whole = Shape { message_bytes: 16, ..shape(size, 24, &nodes) };
        let of = |algorithm, root| {
            combined_by(algorithm, Collective::Allreduce, &Shape { root, ..whole.clone() })
        };
        let doubled = of(Algorithm::RecursiveDoubling, 0);
        assert!(doubled.is_some(), "{size} members");
        let is_tried = |root: &u32| size <= 24 || is_full() || root.is_multiple_of(7);
        for root in (0..size).filter(is_tried) {
            assert!(of(Algorithm::KnomialTree, root) == doubled, "{root} of {size} members");
        }
    }
}

/// That the comparison sees what it is for: another order, and halves that are rounded more often.
#[test]
fn another_order_and_another_rounding_are_told_apart() {
    let of = |algorithm, collective, size| {
        let shape =
            Shape { message_bytes: 64, stage_bytes: 64, ..shape(size, 8, &vec![0; size as usize]) };
        let found = combined_by(algorithm, collective, &shape).expect("it serves");
        found[0][0].to_string()
    };
    use Collective::{Allreduce, Reduce};
    assert_eq!(of(Algorithm::SingleCopy, Reduce, 3), "(0 1 2) finished");
    assert_eq!(of(Algorithm::Linear, Reduce, 3), "((0 1) 2) finished");
    assert_eq!(of(Algorithm::RecursiveDoubling, Allreduce, 4), "((0 1) (2 3)) finished");
    assert_eq!(of(Algorithm::Ring, Allreduce, 4), "(((0 1) 2) 3) finished");
    // Beyond what a pass takes.
    let many = of(Algorithm::CopyInCopyOut, Reduce, 65);
    assert!(many.starts_with("((((") && many.ends_with(" 63) 64) finished"), "{many}");
}
