//! A network card for tests: a shared library with libibverbs's interface, which a program loads in
//! place of libibverbs.so.1.
//!
//! Cards lie in memory of the process. Ranks that are threads each open a card of their own; ranks
//! that are processes meet by sockets in the directory that GASPI_MOCK_DIR names. [`options`] says
//! how unkind a fabric is, and what its cards refuse. [`control`] is the C interface by which tests
//! plan faults and count; [`MockCard`] is its Rust side.
//!
//! The model (`model`) has no threads, clocks or C types. What is between it and C is `abi`.

#[allow(clippy::missing_safety_doc, reason = "the manual pages of rdma-core have the contracts")]
pub mod abi;
pub mod control;
mod loaded;
mod model;
pub mod options;

pub use loaded::{Fabric, MockCard};
pub use options::{Behaviour, Limits, Options, Traits};
