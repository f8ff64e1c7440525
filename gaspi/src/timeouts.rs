//! How long a call may take: the argument `timeout` of the procedures of GASPI 17.1.
//!
//! Every procedure that can wait takes a [`Timeout`]: [`Timeout::Test`] tries once and never waits,
//! [`Timeout::Millis`] waits at most so many milliseconds, [`Timeout::Block`] has no limit. A
//! [`Duration`](std::time::Duration) converts into one. A call ends by its timeout whatever the
//! other ranks do.
//!
//! # Errors
//! A call whose time is over fails with [`Error::Timeout`](crate::Error::Timeout), which says what
//! was waited for. Nothing is lost: the same call with the same arguments continues.
//!
//! # Example
//! ```
//! use std::time::Duration;
//!
//! use gaspi::{Config, GroupId, Init, Job, NotificationId, PendingInit, SegmentId, Timeout};
//!
//! let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
//! let segment = SegmentId(0);
//! rt.segment_create(segment, 64, GroupId::ALL, Timeout::Block, Init::Zeroed)?;
//! let limit = Timeout::from(Duration::from_millis(5));
//! let arrived = loop {
//!     match rt.notify_waitsome(segment, 0, 1, limit) {
//!         Err(error) if error.is_timeout() => {
//!             // Something useful meanwhile; here, what the loop waits for.
//!             let queue = gaspi::QueueId(0);
//!             rt.notify(rt.rank(), segment, NotificationId(0), 1, queue, Timeout::Block)?;
//!         }
//!         other => break other?,
//!     }
//! };
//! assert_eq!(arrived, Some(NotificationId(0)));
//! # Ok::<(), gaspi::Error>(())
//! ```

#[doc(inline)]
pub use gaspi_core::Timeout;
