//! Encoding and decoding: frames between libraries; messages of the exchange at start, and what it
//! makes of the cards of all ranks.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion};
use gaspi_core::benched::{CardsSample, FrameSample, MessageSample};

pub(crate) fn measure(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec/frame");
    for sample in FrameSample::all() {
        let mut bytes = Vec::new();
        sample.append_to(&mut bytes);
        group.bench_function(BenchmarkId::new("encode", sample.name()), |bencher| {
            bencher.iter(|| {
                bytes.clear();
                black_box(&sample).append_to(&mut bytes);
            });
        });
        group.bench_function(BenchmarkId::new("decode", sample.name()), |bencher| {
            bencher.iter(|| FrameSample::decode(black_box(&bytes)));
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("codec/message");
    for sample in MessageSample::all() {
        let bytes = sample.encode();
        group.bench_function(BenchmarkId::new("encode", sample.name()), |bencher| {
            bencher.iter(|| black_box(&sample).encode());
        });
        group.bench_function(BenchmarkId::new("decode", sample.name()), |bencher| {
            bencher.iter(|| MessageSample::decode(black_box(&bytes)));
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("codec/cards");
    for ranks in [64, 10_000] {
        let sample = CardsSample::of(ranks);
        let image = sample.encode();
        group.bench_function(BenchmarkId::new("encode", ranks), |bencher| {
            bencher.iter(|| black_box(&sample).encode());
        });
        group.bench_function(BenchmarkId::new("check", ranks), |bencher| {
            bencher.iter(|| CardsSample::check(black_box(&image)));
        });
    }
    group.finish();
}
