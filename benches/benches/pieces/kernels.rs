//! Sums of elements: the loops that reductions spend their time in.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use gaspi_collectives::kernel::{self, Source, Target};
use gaspi_collectives::{DataType, Operation};

/// Bytes of an operand: in the first cache, in the second, and in memory.
const SIZES: [usize; 3] = [4 << 10, 256 << 10, 16 << 20];

pub(crate) fn measure(criterion: &mut Criterion) {
    let mut group =
        criterion.benchmark_group(format!("kernel/sum ({})", kernel::instruction_set()));
    for ty in [DataType::F32, DataType::F64, DataType::Bf16] {
        for size in SIZES {
            let source = vec![0u8; size];
            let mut target = vec![0u8; size];
            group.throughput(Throughput::Bytes(size as u64));
            group.bench_function(BenchmarkId::new(ty.to_string(), size), |bencher| {
                bencher.iter(|| {
                    let source = Source::of(black_box(&source));
                    let target = Target::of(black_box(&mut target));
                    kernel::accumulate(Operation::Sum, ty, target, &[source]);
                });
            });
        }
    }
    group.finish();
}
