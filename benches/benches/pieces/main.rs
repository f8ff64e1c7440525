//! Benchmarks of single pieces, in one process and without a launcher. What ranks do together is
//! measured by gaspi-bench.
//!
//! `cargo bench -p gaspi-benches -- kernel` runs those with `kernel` in their names; behind `--`,
//! `--test` runs each once, and `--save-baseline` and `--baseline` compare.

mod arrival_slots;
mod codec;
mod fast_paths;
mod kernels;
mod plans;

use criterion::Criterion;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    kernels::measure(&mut criterion);
    codec::measure(&mut criterion);
    plans::measure(&mut criterion);
    fast_paths::measure(&mut criterion);
    arrival_slots::measure(&mut criterion);
    criterion.final_summary();
}
