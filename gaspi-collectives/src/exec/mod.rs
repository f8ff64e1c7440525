//! Execution of plans: tasks that run steps, and executors that run tasks over a channel.

mod abort;
pub(crate) mod active;
mod arithmetic;
pub(crate) mod blocking;
mod buffer_location;
pub(crate) mod buffers;
mod cancel;
mod chunks;
pub(crate) mod completion;
pub(crate) mod counters;
pub(crate) mod executor;
mod fast_path;
pub mod listed;
mod member_memory;
mod notice;
pub(crate) mod pack;
mod peer_access;
mod posted;
mod recent;
pub(crate) mod single_phase;
mod substrate;
pub(crate) mod task;
pub(crate) mod turns;
mod wait;
