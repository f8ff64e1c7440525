//! Counters of what this rank has done (GASPI 17.1, 14.1).
//!
//! Counters are numbered from 0 to [`Runtime::statistic_num`](crate::Runtime::statistic_num) - 1.
//! [`Runtime::statistic_info`](crate::Runtime::statistic_info) gives name, meaning and unit of
//! each; some are counted for each other rank, which is then the argument of
//! [`statistic_get`](crate::Runtime::statistic_get). Counters run always and are local;
//! [`statistic_reset`](crate::Runtime::statistic_reset) sets one to 0.
//!
//! # Errors
//! [`Error::Number`](crate::Error::Number) if there is no such counter,
//! [`Error::InvalidRank`](crate::Error::InvalidRank) for the argument of one that takes a rank.
//!
//! # Example
//! ```
//! use gaspi::{Config, GroupId, Job, PendingInit, Runtime, Timeout};
//!
//! let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
//! rt.barrier(GroupId::ALL, Timeout::Block)?;
//! for counter in 0..rt.statistic_num() {
//!     let info = Runtime::statistic_info(counter).expect("a number below statistic_num");
//!     let value = rt.statistic_get(counter, 0)?;
//!     println!("{}: {value} ({})", info.name, info.description);
//!     rt.statistic_reset(counter)?;
//! }
//! # Ok::<(), gaspi::Error>(())
//! ```

#[doc(inline)]
pub use gaspi_core::CounterInfo;
