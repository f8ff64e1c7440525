//! libgaspi: GASPI's C names over `gaspi-core` and `gaspi-collectives`.
//!
//! What the procedures do is told by the headers in `include/`; here is no logic beyond checking
//! pointers, converting, and the one global of the project, the current runtime (`process.rs`).
//! `procedures!` makes `gaspi_x` and `pgaspi_x` of one definition and stops panics at the boundary.
//!
//! Invariant: exported are `gaspi_*` and `pgaspi_*`, nothing else.
//! Invariant: before `proc_init`, after `proc_term` and in a forked child no procedure touches more
//! than its own statics.

#[macro_use]
mod macros;

mod atomics;
mod clock;
mod coll;
mod collectives;
mod config;
mod environment;
mod error;
mod getters;
mod groups;
mod lifecycle;
mod logging;
mod one_sided;
mod passive;
mod pointers;
mod printf;
mod process;
mod queues;
mod runtime;
mod segments;
mod statistics;
mod switch;
mod threads;
mod topology;
mod types;

#[cfg(test)]
mod prototypes;
