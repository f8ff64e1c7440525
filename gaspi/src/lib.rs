//! One-sided communication between the processes of a parallel program (GASPI 17.1).
//!
//! A program runs as a job of ranks, usually one per core, started by `gaspi_run -n 4 PROGRAM`. A
//! rank makes *segments*, pieces of memory that other ranks may write and read without its doing
//! anything. A write carries a *notification* that tells the target when its data is there. On top
//! of that come atomics, passive messages, groups, and collectives.
//!
//! - Everything of one rank hangs on a [`Runtime`]: an ordinary value, `Send` and `Sync`, shared by
//!   reference between threads. There is no global state, so tests can run ranks as threads
//!   ([`Job::in_process`]).
//! - Every procedure that can wait takes a [`Timeout`] and ends by it, whatever the other ranks do.
//!   After [`Error::Timeout`] the same call continues where it was.
//! - The death of a rank is an error of the calls that need it; it names the rank, and all else
//!   goes on.
//!
//! # Chapters
//! Each module is a chapter of the standard, with an example:
//!
//! | module | holds |
//! |---|---|
//! | [`process`] | joining a job, leaving it, the other ranks |
//! | [`configuration`] | how much of everything there may be |
//! | [`timeouts`], [`errors`] | how long calls take, and how they fail |
//! | [`groups`] | ranks that act together |
//! | [`segments`] | memory that other ranks may write and read |
//! | [`one_sided`] | writes and reads |
//! | [`notifications`] | how a rank learns that data has arrived |
//! | [`queues`] | what requests are posted to and waited for on |
//! | [`passive`] | messages that the receiver takes in when it is ready |
//! | [`atomics`] | fetch-and-add, compare-and-swap |
//! | [`collectives`] | barrier, reductions and the like |
//! | [`state`] | which ranks have failed |
//! | [`statistics`] | counters |
//!
//! What nearly every program uses is at the root too.
//!
//! # Example
//! Two ranks, as threads; under gaspi_run each would be a process and would ask
//! [`Job::from_environment`] who it is.
//!
//! ```
//! use gaspi::collectives::{Operation, allreduce_slice};
//! use gaspi::{
//!     Config, GroupId, Init, Job, PendingInit, NotificationId, QueueId, Rank, SegmentId, Timeout,
//!     Transfer,
//! };
//!
//! fn rank_main(job: Job) -> gaspi::Result<f64> {
//!     let rt = PendingInit::new(job, Config::default())?.wait(Timeout::Block)?;
//!     let (segment, queue) = (SegmentId(0), QueueId(0));
//!     rt.segment_create(segment, 4096, GroupId::ALL, Timeout::Block, Init::Zeroed)?;
//!
//!     // Put this rank's number into the other rank's memory, and tell it so.
//!     rt.segment_write(segment, 0, &rt.rank().0.to_ne_bytes())?;
//!     let other = Rank(1 - rt.rank().0);
//!     let transfer = Transfer {
//!         local: segment,
//!         local_offset: 0,
//!         rank: other,
//!         remote: segment,
//!         remote_offset: 1024,
//!         size: 2,
//!     };
//!     rt.write_notify(&transfer, NotificationId(0), 1, queue, Timeout::Block)?;
//!
//!     // Wait for the other's number.
//!     rt.notify_waitsome(segment, 0, 1, Timeout::Block)?;
//!     rt.notify_reset(segment, NotificationId(0))?;
//!     let mut number = [0; 2];
//!     rt.segment_read(segment, 1024, &mut number)?;
//!     assert_eq!(Rank(u16::from_ne_bytes(number)), other);
//!
//!     // Add something up over all ranks.
//!     let mut sum = [0.0];
//!     allreduce_slice(&rt, &[1.5], &mut sum, Operation::Sum, GroupId::ALL, Timeout::Block)?;
//!     rt.wait(queue, Timeout::Block)?;
//!     rt.term(Timeout::Millis(1000))?;
//!     Ok(sum[0])
//! }
//!
//! let ranks = [0, 1].map(|rank| {
//!     let job = Job::in_process("example", Rank(rank), 2);
//!     std::thread::spawn(move || rank_main(job))
//! });
//! for rank in ranks {
//!     assert_eq!(rank.join().expect("a rank panicked")?, 3.0);
//! }
//! # Ok::<(), gaspi::Error>(())
//! ```

pub mod atomics;
pub mod collectives;
pub mod configuration;
pub mod errors;
pub mod groups;
pub mod notifications;
pub mod one_sided;
pub mod passive;
pub mod process;
pub mod queues;
pub mod segments;
pub mod state;
pub mod statistics;
pub mod timeouts;

#[doc(no_inline)]
pub use gaspi_core::{
    Config, Error, GroupId, Init, Job, NotificationId, PendingInit, QueueId, Rank, Result, Runtime,
    SegmentId, Timeout, Transfer,
};

/// Has the examples of the guide compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/collectives.md")]
struct Guide;
