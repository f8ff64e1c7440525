//! Layouts in which the same ranks share a host, and others carry the messages: sockets, devices,
//! sockets with delays. Operations and fused buffers have the same bits in all of them.

use super::*;

/// Every so manieth of the cases.
const PART_OF_CASES: usize = 5;

fn all_sizes() -> Vec<u32> {
    (1..=8).collect()
}

/// Tries the same by one transport after the other. What is found first is kept, and compared with
/// what comes later.
fn compared_between(layouts: &[Nodes]) {
    let own = Nodes::of_this_test();
    for size in all_sizes() {
        let cases = cases(size as usize);
        let cases: Vec<Case> = cases.into_iter().step_by(PART_OF_CASES).collect();
        for (seed, nodes) in layouts.iter().enumerate() {
            // The ranks of this thread are spread so, and talk so.
            nodes.enter();
            try_cases(*nodes, size, (17 + seed, MACHINES[1]), &cases);
            fused::try_lists(size, MACHINES[seed % 2], 17 + seed);
        }
    }
    own.enter();
}

fn bits_of_ranks_on_hosts_of_their_own_are_those_of_each_transport() {
    compared_between(&[Nodes::Each, Nodes::Verbs]);
}

fn bits_of_pairs_are_those_of_each_transport() {
    compared_between(&[Nodes::Pairs, Nodes::Faulty, Nodes::VerbsPairs]);
}

tests! {
    VERBS: bits_of_ranks_on_hosts_of_their_own_are_those_of_each_transport;
    VERBS_PAIRS: bits_of_pairs_are_those_of_each_transport;
}
