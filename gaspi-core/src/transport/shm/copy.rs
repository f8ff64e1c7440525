//! Copies between this process and another one of the same node, without its help.

use crate::ids::Rank;
use crate::os::{cross_memory, process};
use crate::ranks::Ranks;
use crate::transport::shm::area::liveness;
use std::io;
use std::sync::OnceLock;

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To the peer.
    Write,
    /// From the peer.
    Read,
}

/// Why nothing was copied, or not all.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// The peer has left or died.
    Gone,
    /// The kernel does not allow it.
    Forbidden,
    /// The range does not exist there, or not any more.
    Failed(io::Error),
}

/// Copies `len` bytes between `own` memory and `address` of the process `pid` of `rank`.
///
/// # Errors
/// See [`CopyError`]. Where the process may have ended that has been looked into.
///
/// # Safety
/// The own range is readable or writable, as the direction asks.
pub(crate) unsafe fn copy_across(
    ranks: &Ranks,
    rank: Rank,
    direction: Direction,
    (pid, address): (i32, u64),
    own: *mut u8,
    len: usize,
) -> Result<(), CopyError> {
    // The number may serve another process once the peer has ended.
    let known = ranks.processes.find(rank.index()).and_then(OnceLock::get);
    if known.is_some_and(process::has_ended) {
        ranks.note_end(rank);
    }
    if ranks.liveness(rank) != liveness::JOINED {
        return Err(CopyError::Gone);
    }
    // SAFETY: as the caller says; the kernel checks the other range.
    let copied = unsafe {
        match direction {
            Direction::Write => cross_memory::write(pid, address, own, len),
            Direction::Read => cross_memory::read(pid, address, own, len),
        }
    };
    copied.map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => CopyError::Forbidden,
        Some(libc::ESRCH) => {
            ranks.may_have_ended(rank);
            CopyError::Failed(error)
        }
        _ => CopyError::Failed(error),
    })
}
