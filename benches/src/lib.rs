//! Nothing: this package has its benchmarks only. `cargo bench -p gaspi-benches` runs them.
