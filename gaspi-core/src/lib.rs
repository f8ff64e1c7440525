//! One rank of one GASPI job: segments, one-sided communication, notifications, queues, groups,
//! passive messages, atomics, and the transports below them.
//!
//! A [`Runtime`] is one rank, an ordinary value; it is `Send` and `Sync`, and every procedure takes
//! `&self`, so threads share it by reference. There is no global state: several ranks can live in
//! one process, one per thread, which is how tests run ([`Job::in_process`]). Sections cited are
//! those of the GASPI standard 17.1.
//!
//! ```
//! use gaspi_core::{
//!     Config, Init, Job, NotificationId, PendingInit, QueueId, SegmentId, Timeout, Transfer,
//! };
//!
//! # fn main() -> gaspi_core::Result<()> {
//! // Without a launcher this is a job of one rank.
//! let rank = PendingInit::new(Job::from_environment()?, Config::default())?.wait(Timeout::Block)?;
//! let (segment, queue) = (SegmentId(0), QueueId(0));
//! rank.segment_create(segment, 4096, gaspi_core::GroupId::ALL, Timeout::Block, Init::Zeroed)?;
//! rank.segment_write(segment, 0, b"hello")?;
//! let transfer = Transfer {
//!     local: segment,
//!     local_offset: 0,
//!     rank: rank.rank(),
//!     remote: segment,
//!     remote_offset: 1024,
//!     size: 5,
//! };
//! rank.write_notify(&transfer, NotificationId(7), 1, queue, Timeout::Block)?;
//! let first = rank.notify_waitsome(segment, 0, 16, Timeout::Block)?;
//! assert_eq!(first, Some(NotificationId(7)));
//! let mut text = [0; 5];
//! rank.segment_read(segment, 1024, &mut text)?;
//! assert_eq!(&text, b"hello");
//! rank.term(Timeout::Block)?;
//! # Ok(())
//! # }
//! ```

mod atomic;
#[doc(hidden)]
pub mod benched;
mod callback;
mod calls;
mod channel;
pub mod config;
mod control;
mod error;
mod fast_path;
#[cfg(test)]
mod fuzzed;
#[cfg(fuzzing)]
pub mod fuzzing;
mod group;
mod ids;
mod notification;
mod observer;
mod one_sided;
mod passive;
mod policy;
mod process;
mod progress;
mod queue;
mod ranks;
mod remote_arrivals;
mod resend;
mod runtime;
mod segment;
mod segments;
mod state;
mod statistics;
mod timeout;
mod transport;
mod view;
mod wait;

pub mod bootstrap;
pub mod diagnostics;
pub mod os;
pub mod sync;
pub mod wire;

pub use bootstrap::{Job, TestMachine, TestProxy, Transport};
#[doc(hidden)]
pub use callback::{may_wait, outside_callback};
pub use channel::{
    ArenaMemory, Channel, ChannelSpec, DataSpec, DeviceBuffer, Head, Lifetime, Location, Mapped,
    Reached, SharedData, StatusRead, ZERO_COPY_BYTES,
};
pub use config::{Config, DeviceChoice, GidChoice, MessageCarrier, Network, QUEUE_MAX};
pub use config::{RdmaParams, Topology, WriteEnd};
pub use control::{
    CHUNKS_MAX, CallKey, CallKind, GroupCall, NUMBER_SHIFT, PeerSlice, describe_call,
};
pub use error::{Error, Result};
pub use fast_path::FastPath;
pub use ids::{GroupId, NotificationId, QueueId, Rank, SegmentId};
pub use observer::{Life, Observer, Wait};
pub use one_sided::{Transfer, TransferList};
#[doc(hidden)]
pub use policy::{knomial_tree, schedule};
#[doc(hidden)]
pub use runtime::Extension;
pub use runtime::{PendingInit, Runtime};
pub use segment::Init;
pub use state::State;
pub use statistics::CounterInfo;
pub use timeout::{Deadline, Timeout};
pub use transport::Link;
pub use transport::shm::job_label::labelled_job;
pub use transport::shm::pairs::Pairs;
#[cfg(feature = "test-transports")]
#[doc(hidden)]
pub use transport::twin;
#[doc(hidden)]
pub use transport::verbs::rdma_checks;
pub use view::View;
#[doc(hidden)]
pub use wait::LongWait;
pub use wire::shared_layout::{STAGE_BYTES, SharedLayout};
