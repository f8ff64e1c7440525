//! Groups of ranks, which collectives run on (GASPI 17.1, chapter 6).
//!
//! [`GroupId::ALL`] is the group of all ranks; it exists from the start. Another group is made in
//! three steps, by each of its members: [`Runtime::group_create`](crate::Runtime::group_create)
//! gives an id, [`group_add`](crate::Runtime::group_add) adds each member, and
//! [`group_commit`](crate::Runtime::group_commit) waits until all members have committed the same
//! list. The members need not have the same id for it. Groups are at most
//! [`Config::group_max`](crate::Config).
//!
//! A group that lost a member to a death or an error is used up: make a new one of the ranks that
//! live.
//!
//! # Errors
//! [`Error::InvalidGroup`](crate::Error::InvalidGroup) if the group does not exist or is not in the
//! state that the call needs, [`Error::Mismatch`](crate::Error::Mismatch) if members commit
//! different lists, and [`Error::ActiveCollective`](crate::Error::ActiveCollective) if a group is
//! deleted while another thread is in one of its collectives.
//!
//! # Example
//! ```
//! use gaspi::{Config, GroupId, Job, PendingInit, Timeout};
//!
//! let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
//! let group = rt.group_create()?;
//! rt.group_add(group, rt.rank())?;
//! rt.group_commit(group, Timeout::Millis(10_000))?;
//! assert_eq!(rt.group_ranks(group)?, [rt.rank()]);
//! rt.barrier(group, Timeout::Millis(10_000))?;
//! rt.group_delete(group)?;
//! assert_eq!(rt.group_size(GroupId::ALL)?, rt.size());
//! # Ok::<(), gaspi::Error>(())
//! ```

#[doc(inline)]
pub use gaspi_core::GroupId;
