//! The operating system: memory, futexes, sockets with descriptors, processes, affinity.
//!
//! Nearly every system call of the crate is made here (others: `sync::membarrier`,
//! `bootstrap::system`, advice about the memory of channels); callers get safe functions and errors
//! in words.
//!
//! rustix makes the calls where that takes `unsafe` away, by the functions of the C library: tests
//! and tools put theirs in their place. What is made by hand says why at the head of its file.

pub mod affinity;
#[doc(hidden)]
pub mod cancel;
pub(crate) mod clock;
pub mod cross_memory;
pub mod event;
pub mod futex;
pub mod interfaces;
pub mod limits;
pub mod memory;
pub(crate) mod mpi;
pub(crate) mod munge;
pub(crate) mod pages;
pub(crate) mod pmix;
pub mod process;
pub mod sealed;
pub mod socket;
pub mod splice;
pub mod tcp;
pub(crate) mod temporary;
