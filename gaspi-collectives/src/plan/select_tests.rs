//! The selection serves every shape, is the same for all members, and obeys requests.

use super::*;
use crate::steps::Step;

fn shape(size: u32, count: u64, nodes: u32) -> Shape {
    Shape {
        me: 0,
        size,
        count,
        counts: Vec::new(),
        sends: Vec::new(),
        receives: Vec::new(),
        element_bytes: 4,
        root: size / 2,
        nodes: (0..size).map(|member| member * nodes / size).collect(),
        message_bytes: 64 << 10,
        slots: 4,
        stage_bytes: 64 << 10,
        shares_cores: false,
        one_machine: false,
        agreed: false,
    }
}

fn shapes() -> impl Iterator<Item = Shape> {
    let sizes = [1, 2, 3, 4, 17, 64, 200];
    let counts = [0, 1, 2, 10, 11, 1000, 1 << 12, 1 << 20];
    let of_size = move |size: u32| {
        let of_count = move |count| [1, 2].map(|nodes| shape(size, count, nodes.min(size)));
        counts.into_iter().flat_map(of_count)
    };
    sizes.into_iter().flat_map(of_size)
}

#[test]
fn the_choice_serves_every_shape_and_is_the_same_everywhere() {
    for shape in shapes() {
        for collective in Collective::ALL {
            let chosen = choose(collective, &shape, None).unwrap();
            let last = Shape { me: shape.size - 1, ..shape.clone() };
            assert_eq!(choose(collective, &last, None), Ok(chosen));
            assert!(chosen.steps(collective, &last).is_some(), "{chosen} {collective} {shape:?}");
            let reach = choose_where(collective, &shape, |algorithm| !algorithm.requires_reach());
            assert!(!reach.unwrap().requires_reach());
            if collective.reduces() {
                let keeps = |algorithm: Algorithm| algorithm.keeps_order(collective, &shape);
                assert!(keeps(choose_where(collective, &shape, keeps).unwrap()));
            }
        }
    }
}

#[test]
fn blocks_that_differ_are_served() {
    let counts = vec![5, 0, 100_000, 1];
    let blocks = Shape { counts: counts.clone(), ..shape(4, 0, 2) };
    let exchange = Shape { sends: counts.clone(), receives: counts, ..shape(4, 0, 1) };
    for collective in [Collective::Allgather, Collective::Gather, Collective::Scatter] {
        assert!(choose(collective, &blocks, None).unwrap().fits(collective, &blocks));
    }
    assert_eq!(choose(Collective::Alltoall, &exchange, None), Ok(Algorithm::Pairwise));
    let refused = choose(Collective::Alltoall, &exchange, Some(Algorithm::SingleCopy));
    assert!(matches!(refused, Err(Unserved::Amount(Algorithm::SingleCopy, _))));
}

#[test]
fn what_is_asked_for_is_used_or_refused_with_the_reason() {
    for shape in shapes() {
        for collective in Collective::ALL {
            for algorithm in Algorithm::ALL {
                let fits = algorithm.fits(collective, &shape);
                let chosen = choose(collective, &shape, Some(algorithm));
                assert_eq!(chosen.is_ok(), fits);
                let steps = if shape.count < 1 << 20 {
                    algorithm.steps(collective, &shape)
                } else {
                    continue;
                };
                assert_eq!(steps.is_some(), fits, "{algorithm} {collective} {shape:?}");
                assert!(fits || algorithm.serves(collective) || steps.is_none());
            }
        }
    }
    let small = shape(4, 1, 2);
    let why = |algorithm| match choose(Collective::Barrier, &small, Some(algorithm)) {
        Err(why) => why.to_string(),
        Ok(chosen) => panic!("{chosen}"),
    };
    assert_eq!(why(Algorithm::Inline), "algorithm inline needs all members on one node");
    let ring = why(Algorithm::Ring);
    let begins = "algorithm ring does not serve barrier; there are inline, ";
    assert!(ring.starts_with(begins), "{ring}");
    let long = Shape { element_bytes: 1 << 20, ..small };
    assert_eq!(
        choose(Collective::Broadcast, &long, None).unwrap_err().to_string(),
        "an element of 1048576 bytes does not fit into a message"
    );
}

#[test]
fn names_are_read_as_they_are_written() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
    }
    let unknown = "quick".parse::<Algorithm>().unwrap_err().to_string();
    assert!(
        unknown.starts_with("no algorithm is called \"quick\"; there are inline, "),
        "{unknown}"
    );
}

#[test]
fn who_shares_cores_arrives_once_for_more_data() {
    use Collective::{Allgather, Allreduce, Alltoall, Broadcast, Gather, Reduce};
    for (collective, members, kib, staged) in [
        (Allreduce, 4, 16, true),
        (Allreduce, 4, 32, false),
        (Allreduce, 64, 4, true),
        (Allreduce, 64, 8, false),
        (Reduce, 32, 32, true),
        (Broadcast, 32, 64, true),
        (Broadcast, 4, 128, false),
        (Gather, 16, 128, true),
        (Allgather, 16, 64, true),
        (Alltoall, 4, 32, true),
        (Alltoall, 16, 32, false),
    ] {
        // Of all-reduce, reduce and broadcast a contribution, else all blocks.
        let blocks = if matches!(collective, Gather | Allgather | Alltoall) { members } else { 1 };
        let count = kib * KIB / u64::from(blocks);
        let apart = Shape { element_bytes: 1, ..shape(members, count, 1) };
        let what = format!("{collective} of {kib} KiB, {members} members");
        assert_eq!(choose(collective, &apart, None), Ok(Algorithm::SingleCopy), "{what}");
        let sharing = Shape { shares_cores: true, ..apart };
        let expected = if staged { Algorithm::CopyInCopyOut } else { Algorithm::SingleCopy };
        assert_eq!(choose(collective, &sharing, None), Ok(expected), "{what}");
    }
}

#[test]
fn few_that_share_a_machine_but_no_memory_are_served_by_the_root_itself() {
    for (size, nodes, expected) in [
        (4, 4, Algorithm::Linear),
        (8, 8, Algorithm::Linear),
        (9, 9, Algorithm::DoubleTree),
        (4, 2, Algorithm::DoubleTree),
    ] {
        let apart = shape(size, 1 << 20, nodes);
        assert_eq!(choose(Collective::Broadcast, &apart, None), Ok(Algorithm::DoubleTree));
        let beside = Shape { one_machine: true, ..apart };
        assert_eq!(choose(Collective::Broadcast, &beside, None), Ok(expected), "{size} {nodes}");
    }
}

#[test]
fn any_number_that_shares_cores_goes_along_a_tree() {
    for size in 3..=140 {
        let most = if size < 8 { FEW_MESSAGES } else { FEW_MESSAGES_OF_MANY };
        for (bytes, expected) in [(4, true), (most, true), (most + 4, false)] {
            let apart = shape(size, bytes / 4, size);
            let sharing = Shape { shares_cores: true, ..apart.clone() };
            for collective in [C::Allreduce, C::Barrier] {
                let goes = |shape| choose(collective, shape, None) == Ok(A::KnomialTree);
                let what = format!("{collective} of {bytes} bytes, {size} members");
                assert!(!goes(&apart), "{what}");
                assert_eq!(goes(&sharing), expected || collective == C::Barrier, "{what}");
            }
        }
    }
}

/// What a table with other rows would do to the bits of a result.
#[test]
fn cores_choose_no_other_order_in_the_stable_mode() {
    let planted = [
        row(C::Allreduce, A::CopyInCopyOut, OneNode, 1, STAGED),
        beside(8, C::Allreduce, A::HalvingDoubling),
        row(C::Allreduce, A::Ring, Any, 1, ALL),
    ];
    let first = |mode, shape: &Shape| first_in(mode, &planted, C::Allreduce, shape, |_| true);
    let alone = shape(4, 1 << 10, 1);
    let sharing = Shape { shares_cores: true, ..alone.clone() };
    assert_eq!(first(Mode::Fast, &alone), Ok(A::Ring));
    assert_eq!(first(Mode::Fast, &sharing), Ok(A::CopyInCopyOut));
    for shape in [&alone, &sharing] {
        assert_eq!(first(Mode::Stable, shape), Ok(A::Ring), "{shape:?}");
    }
    let apart = shape(4, 1 << 10, 4);
    let beside = Shape { one_machine: true, ..apart.clone() };
    assert_eq!(first(Mode::Fast, &beside), Ok(A::HalvingDoubling));
    assert_eq!(first(Mode::Stable, &beside), Ok(A::Ring));
    // Where nothing is combined, nothing has to be the same.
    for mode in Mode::ALL {
        assert_eq!(choose_in(mode, C::Broadcast, &beside, |_| true), Ok(A::Linear));
    }
}

#[test]
fn cores_choose_among_those_of_one_order_in_the_stable_mode() {
    let alone = shape(4, 1 << 10, 1);
    let sharing = Shape { shares_cores: true, ..alone.clone() };
    let stable = |shape: &Shape| choose_in(Mode::Stable, C::Allreduce, shape, |_| true);
    assert_eq!(stable(&alone), Ok(A::SingleCopy));
    assert_eq!(stable(&sharing), Ok(A::CopyInCopyOut));
}

/// The messages of a barrier between nodes, from and to their first members' nodes.
fn between_nodes(shape: &Shape) -> Vec<(u32, u32)> {
    let node = |member: u32| shape.nodes[member as usize];
    let of_member = |me: u32| {
        let shape = Shape { me, ..shape.clone() };
        let steps = meeting(&shape).unwrap().steps(Collective::Barrier, &shape).unwrap();
        let to = |step: Step| if let Step::Send { to, .. } = step { Some(to) } else { None };
        let sends: Vec<u32> = steps.into_iter().filter_map(to).collect();
        sends.into_iter().map(move |to| (node(me), node(to))).filter(|(from, to)| from != to)
    };
    let mut all: Vec<(u32, u32)> = (0..shape.size).flat_map(of_member).collect();
    all.sort_unstable();
    all
}

#[test]
fn barriers_send_the_messages_of_the_standard_between_nodes() {
    for nodes in 2..=70 {
        for each in [1, 2, 5] {
            for shares_cores in [false, true] {
                // Members of a node are no neighbours.
                let members = (0..nodes * each).map(|member| member % nodes).collect();
                let shape = Shape { nodes: members, shares_cores, ..shape(nodes * each, 0, 1) };
                let n = nodes as usize;
                let pattern = Pattern::of(n, || shares_cores);
                let of_node = |node: usize| {
                    let outgoing = pattern.schedule(n, node).outgoing;
                    let to: Vec<usize> =
                        outgoing.iter().flat_map(|next| next.to.to_vec()).collect();
                    to.into_iter().map(move |to| (node as u32, to as u32))
                };
                let mut standard: Vec<(u32, u32)> = (0..n).flat_map(of_node).collect();
                standard.sort_unstable();
                assert_eq!(between_nodes(&shape), standard, "{nodes} nodes of {each}");
                let most = match pattern {
                    Pattern::Tree => 2 * (n - 1),
                    Pattern::Dissemination => n * n.next_power_of_two().ilog2() as usize,
                };
                assert_eq!(standard.len(), most);
                let chosen = choose(Collective::Barrier, &shape, None).unwrap();
                assert_eq!(Ok(chosen), meeting(&shape), "there are no lines");
            }
        }
    }
}
