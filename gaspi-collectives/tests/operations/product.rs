//! Every operation by every algorithm on every type by every way to combine: all of it in the long
//! tier, otherwise what a seed draws, which a failure prints.

use super::{Memory, can, carry_out, case, on_all_sizes};
use crate::oracle::Case;
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::{DataType, Operation};
use gaspi_core::Runtime;

/// In lines, staged, and in several messages.
const COUNTS: [usize; 3] = [1, 6, 777];
/// Otherwise one case of so many is drawn.
const ONE_OF: u64 = 40;

/// All cases for so many ranks, the same on each of them. Roots, memory, and whether input and
/// output share it change from one to the next.
fn cases(n: usize) -> Vec<(Case, Option<Algorithm>, Memory)> {
    let mut all = Vec::new();
    for collective in Collective::ALL {
        let ways = if collective.reduces() { &Operation::ALL[..] } else { &[Operation::Sum] };
        for algorithm in Algorithm::ALL.into_iter().map(Some).chain([None]) {
            for ty in DataType::ALL {
                for op in ways.iter().copied().filter(|op| op.is_defined_for(ty)) {
                    for count in COUNTS {
                        let turn = all.len();
                        let (root, in_place) = (turn % n, turn / 3 % 2 == 1);
                        let case = Case { ty, op, root, in_place, ..case(collective, count) };
                        let memory = [Memory::Segment, Memory::Private, Memory::Odd][turn % 3];
                        if algorithm.is_none_or(|algorithm| can(algorithm, &case, n)) {
                            all.push((case, algorithm, memory));
                        }
                    }
                }
            }
        }
    }
    all
}

/// Numbers that look random, the same for a seed.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

fn every_operation_by_every_algorithm_on_every_type() {
    let full = std::env::var_os("GASPI_TEST_FULL").is_some();
    let first = std::env::var("GASPI_TEST_SEED").map_or(1, |text| text.parse().expect("a number"));
    println!("GASPI_TEST_SEED={first}");
    on_all_sizes(|rt: &Runtime| {
        let mut seed = first;
        for (case, algorithm, memory) in cases(rt.size() as usize) {
            if full || next(&mut seed).is_multiple_of(ONE_OF) {
                carry_out(rt, &case, algorithm, memory);
            }
        }
    });
}

tests! {
    DEVICES:
        every_operation_by_every_algorithm_on_every_type;
}
