//! One-sided communication between the processes of a parallel program.

pub use gaspi_collectives as collectives;
pub use gaspi_core::*;
