//! What a job can be configured to (GASPI 17.1, 5.2).
//!
//! A [`Config`] is handed to [`PendingInit::new`](crate::PendingInit::new) and cannot change
//! afterwards; [`Runtime::config`](crate::Runtime::config) shows it. Its fields say how many
//! segments, groups, queues and notifications there may be, and how large transfers are; the unit
//! and the range of each are written at the field. All ranks need the same values, except for
//! `logger`, `net_info` and `rdma`.
//!
//! # Errors
//! [`Error::Config`](crate::Error::Config) names a field that is out of its range,
//! [`Error::ConfigMismatch`](crate::Error::ConfigMismatch) one that differs between two ranks.
//!
//! # Example
//! ```
//! use gaspi::configuration::Topology;
//! use gaspi::{Config, Error, Job, PendingInit, Timeout};
//!
//! // Connections are made on first use.
//! let config = Config { topology: Topology::Dynamic, queue_num: 2, ..Config::default() };
//! let rt = PendingInit::new(Job::single(), config)?.wait(Timeout::Block)?;
//! assert_eq!(rt.queue_num(), 2);
//!
//! let wrong = Config { queue_num: 0, ..Config::default() };
//! assert!(matches!(wrong.check(), Err(Error::Config { field: "queue_num", .. })));
//! # Ok::<(), gaspi::Error>(())
//! ```

#[doc(inline)]
pub use gaspi_core::{Config, Network, RdmaParams, Topology};
