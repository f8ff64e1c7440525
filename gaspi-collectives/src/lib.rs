//! Collective operations that move user data, over the groups of gaspi-core.
//!
//! - [`run`], [`start`] and [`prepare`] are the operations of gaspi_collectives.h, over a channel
//!   of the group. What they start and prepare are values: [`Started`] and [`Prepared`].
//! - [`allreduce()`], [`allreduce_slice`], [`allreduce_in_place`] and [`allreduce_user`] are the
//!   all-reduces of the standard (GASPI 17.1, 11.3 and 11.4), over the lines and stages of the
//!   group itself.
//! - Algorithms are data: [`steps`] defines what they consist of, [`algorithms`] has a file for
//!   each, [`plan`] selects one, a task runs it over a channel or a group, and [`proof`] proves
//!   them.
//!
//! The modules form layers, of which each imports lower ones only: `datatype` and `steps`,
//! `algorithms` and `kernel`, `request` and `signature`, `plan`, `exec`, `engine`, the procedures.
//!
//! Invariant: algorithms know no pointers, the task knows no algorithm, nothing here knows a
//! transport. `unsafe` is in [`kernel`], where memory of programs is taken in, and where contexts
//! are found without a lock.

pub mod algorithms;
mod broadcast_list;
mod checked_request;
mod collective;
mod datatype;
mod engine;
mod exec;
pub mod fusion;
#[doc(hidden)]
pub mod handles;
pub mod kernel;
mod mode;
mod operations;
mod owned;
pub mod plan;
mod procedures;
pub mod proof;
mod request;
mod signature;
mod standard_allreduce;
pub mod steps;
mod user_reduction;

pub use broadcast_list::{BroadcastList, Piece, run_broadcast_list};
pub use datatype::{DataType, Element, Operation};
#[doc(hidden)]
pub use engine::check_environment;
#[doc(hidden)]
pub use exec::listed;
pub use half::{bf16, f16};
pub use mode::{Mode, UnknownMode};
pub use owned::{
    NotStarted, Operand, Prepared, Scope, Started, TypedRequest, prepare, prepare_raw, scope,
    start, start_broadcast_list_raw, start_raw,
};
pub use procedures::{run, try_run_fast};
pub use request::{Blocks, Combination, Reduce, Reducer, Request, SimpleRequest};
pub use standard_allreduce::{allreduce, allreduce_in_place, allreduce_slice, allreduce_user};
pub use user_reduction::{ReductionFailed, UserReduce};
