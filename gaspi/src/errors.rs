//! What can go wrong: the return values of GASPI 17.1, with reasons (13.3).
//!
//! Every procedure returns a [`Result`]. An [`Error`] has one variant for each cause that a program
//! may want to tell apart; its text names the rank and the object, and the remedy if there is one.
//! Two variants are ordinary outcomes: after [`Error::Timeout`] the same call continues, after
//! [`Error::QueueFull`] a wait on the queue makes room. [`Error::RankDied`] and
//! [`Error::RankLeft`] name a rank that is gone; what does not need that rank goes on. Variants may
//! be added, so a `match` needs an arm for the rest.
//!
//! # Example
//! ```
//! use gaspi::{Config, Error, Job, PendingInit, SegmentId, Timeout};
//!
//! let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
//! let none = SegmentId(9);
//! match rt.segment_delete(none) {
//!     Err(Error::InvalidSegment { segment, reason }) => {
//!         assert_eq!(segment, none);
//!         println!("{segment}: {reason}");
//!     }
//!     other => panic!("{other:?}"),
//! }
//! let error = rt.notify_waitsome(none, 0, 1, Timeout::Test).expect_err("no such segment");
//! assert!(!error.is_timeout());
//! # Ok::<(), gaspi::Error>(())
//! ```

#[doc(inline)]
pub use gaspi_core::{Error, Result};
