//! Segments: memory that other ranks may write and read (GASPI 17.1, chapter 7).
//!
//! [`Runtime::segment_create`](crate::Runtime::segment_create) allocates a segment and makes it
//! known to all ranks of a group. [`segment_alloc`](crate::Runtime::segment_alloc) and
//! [`segment_register`](crate::Runtime::segment_register) do the two steps one by one.
//! [`segment_bind`](crate::Runtime::segment_bind) and
//! [`segment_use`](crate::Runtime::segment_use) take memory of the program instead. Each rank has
//! its own ids, from 0 to [`Config::segment_max`](crate::Config) - 1. Sizes and offsets are bytes;
//! the sizes of a segment may differ between ranks.
//!
//! Other ranks may write at any time, so safe code copies:
//! [`segment_write`](crate::Runtime::segment_write) and
//! [`segment_read`](crate::Runtime::segment_read) move bytes, a [`View`] moves elements. A
//! notification or a barrier tells when the bytes are stable.
//!
//! # Errors
//! [`Error::InvalidSegment`](crate::Error::InvalidSegment) if the id is in use, unknown or out of
//! range, [`Error::SegmentSize`](crate::Error::SegmentSize),
//! [`Error::Memory`](crate::Error::Memory) with the limit that was hit, and
//! [`Error::LocalOffset`](crate::Error::LocalOffset) or
//! [`Error::CommSize`](crate::Error::CommSize) for ranges outside of the segment.
//!
//! # Example
//! ```
//! use gaspi::{Config, GroupId, Init, Job, PendingInit, SegmentId, Timeout};
//!
//! let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
//! let field = SegmentId(0);
//! rt.segment_create(field, 1024, GroupId::ALL, Timeout::Block, Init::Zeroed)?;
//! let view = rt.view::<f64>(field)?;
//! view.write(10, &[1.5, 2.5])?;
//! assert_eq!((view.len(), view.get(11)?), (128, 2.5));
//! let mut bytes = [0; 8];
//! rt.segment_read(field, 80, &mut bytes)?;
//! assert_eq!(f64::from_ne_bytes(bytes), 1.5);
//! rt.segment_delete(field)?;
//! # Ok::<(), gaspi::Error>(())
//! ```

#[doc(inline)]
pub use gaspi_core::{Init, SegmentId, View};
