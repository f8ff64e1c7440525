//! Arrival slots: one cache line for each rank of a group, written by one and read by all.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;

use criterion::{BenchmarkId, Criterion};
use gaspi_core::sync::arrival_slot::{ArrivalSlot, PAYLOAD_WORDS, Poll};

/// Members whose slots a rank looks at.
const MEMBERS: [usize; 3] = [2, 8, 64];

fn slot() -> ArrivalSlot<AtomicU64> {
    ArrivalSlot {
        sequence: AtomicU64::new(0),
        signature: AtomicU64::new(0),
        payload: [const { AtomicU64::new(0) }; PAYLOAD_WORDS],
    }
}

pub(crate) fn measure(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("arrival_slot");
    group.bench_function("publish", |bencher| {
        let (slot, mut sequence) = (slot(), 0);
        bencher.iter(|| {
            sequence += 1;
            black_box(&slot).publish(sequence, 7, &[sequence; PAYLOAD_WORDS]);
        });
    });
    for members in MEMBERS {
        let slots: Vec<_> = (0..members).map(|_| slot()).collect();
        for slot in &slots {
            slot.publish(1, 7, &[1; PAYLOAD_WORDS]);
        }
        group.bench_function(BenchmarkId::new("poll and read", members), |bencher| {
            bencher.iter(|| {
                let arrived = black_box(&slots).iter().filter(|slot| slot.poll(1) != Poll::Missing);
                arrived.map(|slot| slot.payload()[0]).sum::<u64>()
            });
        });
    }
    group.finish();
}
