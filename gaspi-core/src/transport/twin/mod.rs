//! A network in one process and in virtual time: the transport of tests that want each run to be
//! another one, and the same again by its seed.
//!
//! Each rank is on a node of its own. Its threads are threads of the test; one of all runs at a
//! time, until it waits in the library, pauses or ends, and the seed says which one goes on. What
//! ranks send to each other arrives later, by the seed: in order within a queue, or within
//! messages, and in any order otherwise. Time passes when no thread can go on, to the next arrival
//! or the end of a wait. There are no sockets, no progress thread and no clock: what arrives is
//! handled by whichever thread comes to wait.
//!
//! A rank that dies takes a part of what it has sent along; the others hear of it later.

mod port;
mod schedule;

pub(crate) use port::Port;
pub use schedule::{Entered, Network, Ticket, now, pause};
