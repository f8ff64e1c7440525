//! Decisions about time, as pure values: when to poll, to acknowledge, to hold back, to sleep; whom
//! to watch and to tell; and what a rank needs.
//!
//! Each file is one decision, or data that decisions are made of. Its struct takes what happened,
//! when, and under which load, and gives what to do. None of them reads a clock, a socket or an
//! atomic, so their tests run in virtual time. Each constant states what was measured for it;
//! docs/performance.md has the measurements. No flag outside of this folder decides such a thing.

pub(crate) mod acknowledge;
pub(crate) mod busy_poll;
pub(crate) mod coalesce;
pub(crate) mod focus;
pub mod knomial_tree;
pub(crate) mod needs;
pub(crate) mod owner;
pub(crate) mod pair_failures;
pub(crate) mod rank_tree;
pub(crate) mod retry;
pub mod schedule;
pub(crate) mod sleep_limit;
pub(crate) mod spin;
pub(crate) mod watching;
