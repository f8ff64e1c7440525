//! A rank's connection to its launcher after the exchange.

use super::local_connection::LocalConnection;
use super::message::Message;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::socket::{self, Piece};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A rank's connection to its launcher, open for as long as the rank is in the job. Dropping it
/// says that the rank has left, unless its thread panics.
#[derive(Debug)]
pub struct Membership {
    /// With the process that made it: a forked child must not end its parent's membership.
    launcher: Option<(LocalConnection, u32)>,
}

/// What a member hears from its launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LauncherEvent {
    /// The process of a rank has ended, and it had not left the job.
    Died {
        /// The rank.
        rank: Rank,
        /// As in "signal 9".
        how: String,
    },
    /// The launcher itself has ended.
    LauncherEnded,
}

impl Membership {
    pub(super) fn none() -> Membership {
        Membership { launcher: None }
    }

    pub(super) fn new(connection: LocalConnection) -> Membership {
        Membership { launcher: Some((connection, std::process::id())) }
    }

    /// The connection, if a launcher serves the job: it becomes readable when there is an event.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.launcher.as_ref().map(|(connection, _)| connection.as_fd())
    }

    /// The next event that has come; the last is the launcher's end, again and again.
    pub fn next_event(&mut self) -> Option<LauncherEvent> {
        let (connection, _) = self.launcher.as_mut()?;
        loop {
            match connection.next() {
                Ok(Some(Message::Died { rank, how })) => {
                    return Some(LauncherEvent::Died { rank, how });
                }
                Ok(Some(_)) => {}
                Ok(None) if connection.fill() => {}
                Ok(None) if connection.ended() => return Some(LauncherEvent::LauncherEnded),
                Ok(None) => return None,
                // The launcher of this job does not send nonsense: this is not it any more.
                Err(_) => return Some(LauncherEvent::LauncherEnded),
            }
        }
    }

    /// Asks the launcher to end the process of `rank` at once (SIGKILL).
    ///
    /// # Errors
    /// No launcher serves this job, or it has ended.
    pub fn request_kill(&self, rank: Rank) -> Result<()> {
        let call = format!("asking the launcher to kill {rank}");
        let Some((connection, _)) = &self.launcher else {
            let reason = "the job was started without gaspi_run".to_owned();
            return Err(Error::System { call, reason });
        };
        let frame = Message::Kill(rank).encode();
        let pieces = [Piece::of(&frame), Piece::of(&[])];
        // SAFETY: the frame lives across the call.
        match unsafe { socket::send(connection.as_fd(), pieces, &[]) } {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::os(call, &error)),
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some((connection, owner)) = &mut self.launcher
            && *owner == std::process::id()
        {
            if !std::thread::panicking() {
                let leave: Arc<[u8]> = Message::Leave.encode().into();
                connection.queue(leave, Vec::new());
                connection.flush();
            }
            // Forked children may hold copies: closing alone would not end the connection.
            socket::shut_down(connection.as_fd());
        }
    }
}
