//! Queues, which requests are posted to and waited for on (GASPI 17.1, 8.2.3 and 8.5).
//!
//! [`Config::queue_num`](crate::Config) queues exist from the start, numbered from 0;
//! [`Runtime::queue_create`](crate::Runtime::queue_create) makes more, up to [`QUEUE_MAX`]. A queue
//! holds [`Config::queue_size_max`](crate::Config) requests until
//! [`Runtime::wait`](crate::Runtime::wait) has waited for them. Requests of one queue to one rank
//! take effect in their order as far as notifications tell: a notification is visible after all
//! earlier writes of its queue.
//!
//! # Errors
//! [`Error::InvalidQueue`](crate::Error::InvalidQueue) if there is no such queue,
//! [`Error::QueueFull`](crate::Error::QueueFull) from what posts, and
//! [`Error::RequestFailed`](crate::Error::RequestFailed) from `wait`. Repeat `wait` until it
//! succeeds, or forget the requests by [`queue_purge`](crate::Runtime::queue_purge).
//!
//! # Example
//! ```
//! use gaspi::{Config, Error, GroupId, Init, Job, NotificationId, PendingInit, SegmentId, Timeout};
//!
//! let config = Config { queue_size_max: 2, ..Config::default() };
//! let rt = PendingInit::new(Job::single(), config)?.wait(Timeout::Block)?;
//! let segment = SegmentId(0);
//! rt.segment_create(segment, 64, GroupId::ALL, Timeout::Block, Init::Zeroed)?;
//! let queue = rt.queue_create(Timeout::Block)?;
//! for id in [1, 2, 3].map(NotificationId) {
//!     let post = || rt.notify(rt.rank(), segment, id, 1, queue, Timeout::Block);
//!     match post() {
//!         Err(Error::QueueFull { .. }) => {
//!             rt.wait(queue, Timeout::Block)?;
//!             post()?;
//!         }
//!         posted => posted?,
//!     }
//! }
//! assert_eq!(rt.queue_size(queue)?, 1);
//! rt.queue_delete(queue)?;
//! # Ok::<(), gaspi::Error>(())
//! ```

#[doc(inline)]
pub use gaspi_core::{QUEUE_MAX, QueueId};
