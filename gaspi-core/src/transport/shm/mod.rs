//! Shared memory: what the ranks of one node map together.
//!
//! [`area`] is the memory file of the node, with control pages, arrival slots and staging. Puts
//! and gets within a node complete in the caller; what the peer's library has to do travels as
//! frames over a socket of the node. [`wakeup`] wakes
//! ranks that sleep on their sockets. By [`job_label`] tools find the processes of a job.

pub(crate) mod area;
pub(crate) mod copy;
pub(crate) mod job_label;
pub(crate) mod pairs;
pub(crate) mod wakeup;
