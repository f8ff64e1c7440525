//! Writing and reading the memory of other ranks (GASPI 17.1, 8.2 and 8.4).
//!
//! A [`Transfer`] names a range of a segment of this rank and one of a segment of another rank, in
//! bytes. [`Runtime::write`](crate::Runtime::write) and [`read`](crate::Runtime::read) post it to a
//! [queue](crate::queues) and return at once; the other rank does nothing for it.
//! [`Runtime::wait`](crate::Runtime::wait) on the queue returns when local memory may be reused and
//! read data is there. [`write_notify`](crate::Runtime::write_notify) adds a
//! [notification](crate::notifications), which the target sees after the data. The `_list`
//! procedures post several transfers with one rank at once: a [`TransferList`].
//!
//! A transfer has at most [`Config::transfer_size_max`](crate::Config) bytes.
//!
//! # Errors
//! Wrong arguments are refused when the request is posted: the errors name segment, offset and
//! size. [`Error::QueueFull`](crate::Error::QueueFull) asks to wait on the queue first. What fails
//! later, such as the death of the target, is reported by `wait` as
//! [`Error::RequestFailed`](crate::Error::RequestFailed).
//!
//! # Example
//! ```
//! use gaspi::{
//!     Config, GroupId, Init, Job, PendingInit, QueueId, SegmentId, Timeout, Transfer,
//! };
//!
//! let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
//! let (segment, queue) = (SegmentId(0), QueueId(0));
//! rt.segment_create(segment, 4096, GroupId::ALL, Timeout::Block, Init::Zeroed)?;
//! rt.segment_write(segment, 0, b"hello")?;
//! let transfer = Transfer {
//!     local: segment,
//!     local_offset: 0,
//!     // With more ranks this would be another one.
//!     rank: rt.rank(),
//!     remote: segment,
//!     remote_offset: 1024,
//!     size: 5,
//! };
//! rt.write(&transfer, queue, Timeout::Block)?;
//! rt.wait(queue, Timeout::Block)?;
//! let mut text = [0; 5];
//! rt.segment_read(segment, 1024, &mut text)?;
//! assert_eq!(&text, b"hello");
//! # Ok::<(), gaspi::Error>(())
//! ```

#[doc(inline)]
pub use gaspi_core::{Transfer, TransferList};
