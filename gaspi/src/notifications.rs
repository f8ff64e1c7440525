//! Notifications: how a rank learns that data has arrived (GASPI 17.1, 8.3 and 8.4).
//!
//! Each segment has [`Config::notification_num`](crate::Config) notifications, numbered from 0. A
//! notification is a 32-bit value; 0 means that it is not set.
//! [`Runtime::notify`](crate::Runtime::notify) sets one of another rank's segment. It is visible
//! after all earlier writes of the same queue to that rank.
//! [`notify_waitsome`](crate::Runtime::notify_waitsome) waits until one of a range is set and
//! returns its id; [`notify_reset`](crate::Runtime::notify_reset) takes the value and clears it in
//! one step, so that exactly one of several threads gets it.
//!
//! # Errors
//! [`Error::NotificationRange`](crate::Error::NotificationRange) for ids that do not exist,
//! [`Error::NotificationValue`](crate::Error::NotificationValue) for the value 0, and
//! [`Error::Timeout`](crate::Error::Timeout) if none was set in time.
//!
//! # Example
//! ```
//! use gaspi::{
//!     Config, GroupId, Init, Job, NotificationId, PendingInit, QueueId, SegmentId, Timeout,
//! };
//!
//! let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
//! let (segment, queue) = (SegmentId(0), QueueId(0));
//! rt.segment_create(segment, 4096, GroupId::ALL, Timeout::Block, Init::Zeroed)?;
//!
//! // One look, without waiting: nothing is set yet.
//! let none = rt.notify_waitsome(segment, 0, 16, Timeout::Test).expect_err("none is set");
//! assert!(none.is_timeout());
//!
//! rt.notify(rt.rank(), segment, NotificationId(7), 42, queue, Timeout::Block)?;
//! let first = rt.notify_waitsome(segment, 0, 16, Timeout::Block)?;
//! assert_eq!(first, Some(NotificationId(7)));
//! assert_eq!(rt.notify_reset(segment, NotificationId(7))?, 42);
//! # Ok::<(), gaspi::Error>(())
//! ```

#[doc(inline)]
pub use gaspi_core::NotificationId;
