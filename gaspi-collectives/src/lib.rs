//! Collective operations that move user data, over the groups of gaspi-core.
//!
//! - [`allreduce()`], [`allreduce_slice`], [`allreduce_in_place`] and [`allreduce_user`] are the
//!   all-reduces of the standard (GASPI 17.1, 11.3).
//! - Algorithms are data: [`schedule`] says what they are made of, the files `allreduce_*` each
//!   hold one, [`executor`] runs them, [`checker`] proves them.
//!
//! Invariant: algorithms know no pointers, the executor knows no algorithm, nothing here knows a
//! transport. `unsafe` is in [`kernel`] and where the public functions take pointers.

pub mod algorithms;
mod allreduce;
mod allreduce_line;
mod allreduce_sliced;
mod allreduce_staged;
mod apart;
pub mod checker;
pub mod choice;
mod datatype;
mod engine;
pub mod executor;
mod fingerprint;
pub mod kernel;
mod notice;
mod once;
mod operation;
mod port;
mod print;
pub mod proof;
mod request;
pub mod schedule;
mod station;
pub mod steps;
mod task;
mod user;
mod whereabouts;

pub use allreduce::{allreduce, allreduce_in_place, allreduce_slice, allreduce_user};
pub use allreduce_line::Line;
pub use allreduce_sliced::Sliced;
pub use allreduce_staged::Staged;
pub use datatype::{DataType, Element, Operation};
pub use fingerprint::describe;
pub use half::{bf16, f16};
pub use operation::{Handle, exists, free, prepare, restart, run, run_swiftly, start, test, wait};
pub use request::{Blocks, Combination, Reduce, Reducer, Request};
pub use station::Brief;
pub use user::{ReductionFailed, UserReduce, UserReduction};
