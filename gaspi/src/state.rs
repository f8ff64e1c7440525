//! Which ranks have failed (GASPI 17.1, 5.5).
//!
//! Each rank has its own view of the others: a rank is [`Healthy`](State::Healthy) until a request
//! to it failed or its death was noticed, then it is [`Corrupt`](State::Corrupt).
//! [`Runtime::state`](crate::Runtime::state) looks at one rank,
//! [`Runtime::state_vector`](crate::Runtime::state_vector) at all. Both are local and tell what has
//! been seen so far. A rank whose path was repaired becomes healthy by
//! [`Runtime::connect`](crate::Runtime::connect); a death is final.
//!
//! # Errors
//! [`Error::InvalidRank`](crate::Error::InvalidRank) for a rank that does not exist.
//!
//! # Example
//! ```
//! use gaspi::state::State;
//! use gaspi::{Config, Job, PendingInit, Timeout};
//!
//! let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
//! assert_eq!(rt.state(rt.rank())?, State::Healthy);
//! let mut corrupt = Vec::new();
//! rt.state_vector(|rank, state| {
//!     if state == State::Corrupt {
//!         corrupt.push(rank);
//!     }
//! });
//! assert!(corrupt.is_empty());
//! # Ok::<(), gaspi::Error>(())
//! ```

#[doc(inline)]
pub use gaspi_core::State;
