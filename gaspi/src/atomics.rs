//! Atomic operations on the memory of other ranks (GASPI 17.1, chapter 10).
//!
//! [`Runtime::atomic_fetch_add`](crate::Runtime::atomic_fetch_add) and
//! [`atomic_compare_swap`](crate::Runtime::atomic_compare_swap) work on 8 bytes of a segment, at an
//! offset that is a multiple of 8, and return the former value. They are atomic towards each other,
//! whichever ranks call them. They return when the operation is done, so they need no queue.
//!
//! # Errors
//! [`Error::Unaligned`](crate::Error::Unaligned) and
//! [`Error::RemoteOffset`](crate::Error::RemoteOffset) for a wrong offset,
//! [`Error::RankDied`](crate::Error::RankDied), and [`Error::Timeout`](crate::Error::Timeout).
//!
//! # Example
//! ```
//! use gaspi::{Config, GroupId, Init, Job, PendingInit, SegmentId, Timeout};
//!
//! let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
//! let counter = SegmentId(0);
//! rt.segment_create(counter, 8, GroupId::ALL, Timeout::Block, Init::Zeroed)?;
//! assert_eq!(rt.atomic_fetch_add(counter, 0, rt.rank(), 5, Timeout::Block)?, 0);
//! // Becomes 9 only if it is 5.
//! assert_eq!(rt.atomic_compare_swap(counter, 0, rt.rank(), 5, 9, Timeout::Block)?, 5);
//! assert_eq!(rt.view::<u64>(counter)?.get(0)?, 9);
//! # Ok::<(), gaspi::Error>(())
//! ```
