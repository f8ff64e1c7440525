//! Messages that the receiver takes in when it is ready (GASPI 17.1, chapter 9).
//!
//! [`Runtime::passive_send`](crate::Runtime::passive_send) sends bytes of a segment to a rank and
//! returns when they were taken. [`Runtime::passive_receive`](crate::Runtime::passive_receive)
//! takes a message of any rank into a segment and says whose it was. Neither needs to know an
//! address in the memory of the other. A message has at most
//! [`Config::passive_transfer_size_max`](crate::Config) bytes. A call that timed out is continued
//! by the same call; [`passive_queue_purge`](crate::Runtime::passive_queue_purge) takes back sends
//! that timed out.
//!
//! # Errors
//! [`Error::Timeout`](crate::Error::Timeout), [`Error::CommSize`](crate::Error::CommSize) if the
//! message is too long, and [`Error::RankDied`](crate::Error::RankDied) or
//! [`Error::RankLeft`](crate::Error::RankLeft) if nobody will receive it.
//!
//! # Example
//! ```
//! use gaspi::{Config, GroupId, Init, Job, PendingInit, SegmentId, Timeout};
//!
//! let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
//! let segment = SegmentId(0);
//! rt.segment_create(segment, 128, GroupId::ALL, Timeout::Block, Init::Zeroed)?;
//! rt.segment_write(segment, 0, b"job 17")?;
//! std::thread::scope(|scope| {
//!     let send = scope.spawn(|| rt.passive_send(segment, 0, rt.rank(), 6, Timeout::Block));
//!     assert_eq!(rt.passive_receive(segment, 64, 64, Timeout::Block)?, rt.rank());
//!     send.join().expect("the sender panicked")
//! })?;
//! let mut text = [0; 6];
//! rt.segment_read(segment, 64, &mut text)?;
//! assert_eq!(&text, b"job 17");
//! # Ok::<(), gaspi::Error>(())
//! ```
