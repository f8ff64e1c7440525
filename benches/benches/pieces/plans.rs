//! Planning a collective: the choice of its algorithm, and the steps of one member.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion};
use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::plan::select;
use gaspi_collectives::steps::Shape;

/// Members of a group.
const MEMBERS: [u32; 3] = [8, 64, 1024];
/// Members of a node, where there are several.
const OF_NODE: u32 = 8;
/// Elements of 4 bytes: a small operation, and a large one.
const COUNTS: [u64; 2] = [16, 1 << 20];

fn shape(size: u32, count: u64, of_node: u32) -> Shape {
    Shape {
        me: size / 2,
        size,
        count,
        counts: Vec::new(),
        sends: Vec::new(),
        receives: Vec::new(),
        element_bytes: 4,
        root: 0,
        nodes: (0..size).map(|member| member / of_node).collect(),
        message_bytes: 64 << 10,
        slots: 4,
        stage_bytes: 16 << 10,
        shares_cores: false,
        one_machine: false,
        agreed: false,
    }
}

pub(crate) fn measure(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    for collective in [Collective::Allreduce, Collective::Broadcast, Collective::Alltoall] {
        for (place, of_node) in [("node", u32::MAX), ("nodes", OF_NODE), ("apart", 1)] {
            for (size, count) in MEMBERS.into_iter().flat_map(|n| COUNTS.map(|count| (n, count))) {
                let shape = shape(size, count, of_node);
                let name = format!("{collective}/{place}/{}", 4 * count);
                group.bench_function(BenchmarkId::new(name, size), |bencher| {
                    bencher.iter(|| plan(collective, black_box(&shape)));
                });
            }
        }
    }
    group.finish();
}

/// The steps that it takes.
fn plan(collective: Collective, shape: &Shape) -> usize {
    let algorithm = select::choose(collective, shape, None).expect("an algorithm serves");
    algorithm.steps(collective, shape).expect("it serves the shape").len()
}
