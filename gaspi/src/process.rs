//! Joining a job, leaving it, and the other ranks (GASPI 17.1, chapter 5).
//!
//! A [`Job`] says which rank this process is. [`Job::from_environment`] asks the launcher
//! (`gaspi_run`, or a host file and variables by hand); [`Job::single`] is a job of one rank;
//! [`Job::in_process`] makes ranks of threads, for tests. [`PendingInit`] is a rank that is about
//! to join: its `wait` returns the [`Runtime`] once all ranks have met. After a timeout the same
//! value can wait again.
//!
//! Ranks are numbered from 0. [`Runtime::ping`] asks whether the library of a rank answers,
//! [`Runtime::connect`] and [`Runtime::disconnect`] open and close connections ahead of time, and
//! [`Runtime::kill`] ends the process of a rank. [`Runtime::term`] leaves the job; it is local, and
//! the other ranks go on. A dropped `Runtime` leaves without waiting.
//!
//! # Errors
//! Joining fails with [`Error::Environment`](crate::Error::Environment) if the variables make no
//! sense, [`Error::Meeting`](crate::Error::Meeting) if the ranks cannot meet, and
//! [`Error::ConfigMismatch`](crate::Error::ConfigMismatch) if they were configured differently.
//! After `term` every procedure fails with [`Error::NotInitialised`](crate::Error::NotInitialised).
//!
//! # Example
//! ```
//! use gaspi::process::Link;
//! use gaspi::{Config, Error, Job, PendingInit, Rank, Timeout};
//!
//! let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Millis(10_000))?;
//! assert_eq!((rt.rank(), rt.size()), (Rank(0), 1));
//! rt.ping(Rank(0), Timeout::Millis(1000))?;
//! assert_eq!(rt.link(Rank(0))?, Link::Own);
//! assert!(matches!(rt.link(Rank(1)), Err(Error::InvalidRank { .. })));
//! rt.term(Timeout::Millis(1000))?;
//! # Ok::<(), gaspi::Error>(())
//! ```

#[doc(inline)]
pub use gaspi_core::{DeviceChoice, GidChoice, Job, Link, MessageCarrier, PendingInit, Rank};
pub use gaspi_core::{Runtime, Transport, WriteEnd};
