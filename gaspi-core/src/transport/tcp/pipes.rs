//! The pipe by way of which a rank hands large payloads to sockets: one connection at a time uses
//! it.
//!
//! There is one for all connections, since all pipes of a user share an allowance. A connection
//! keeps it while its socket has no room for what is in it; the others have their payloads copied
//! meanwhile.

use crate::os::socket::Piece;
use crate::os::splice::Pipe;
use crate::sync::{Mutex, MutexGuard};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

#[derive(Debug, Default)]
enum PipeState {
    /// Nobody has needed it yet.
    #[default]
    Unmade,
    Free(Pipe),
    InUse,
    /// It does not serve here.
    Refused,
}

/// The pipe of a rank.
#[derive(Debug, Default)]
pub(crate) struct Pipes(Mutex<PipeState>);

impl Pipes {
    fn state(&self) -> MutexGuard<'_, PipeState> {
        self.0.lock()
    }

    /// The pipe, empty, unless somebody else has it or there is none.
    pub(super) fn acquire(self: &Arc<Pipes>) -> Option<PipeGuard> {
        let mut state = self.state();
        let pipe = match std::mem::replace(&mut *state, PipeState::InUse) {
            PipeState::Free(pipe) => pipe,
            PipeState::Unmade => match Pipe::new() {
                Ok(pipe) => pipe,
                Err(error) => {
                    *state = PipeState::Refused;
                    say(&error);
                    return None;
                }
            },
            other => {
                *state = other;
                return None;
            }
        };
        Some(PipeGuard { pipe: Some(pipe), of: Arc::clone(self) })
    }
}

fn say(error: &io::Error) {
    log::info!(
        "sending to other nodes: {error}, so that large payloads are copied into the kernel; allow \
         pipes of 64 KiB and more (fs.pipe-user-pages-soft), vmsplice and splice"
    );
}

/// The pipe while a connection has it.
#[derive(Debug)]
pub(super) struct PipeGuard {
    /// Until it is given back.
    pipe: Option<Pipe>,
    of: Arc<Pipes>,
}

impl PipeGuard {
    /// It does not serve, and will not.
    pub(super) fn refuse(mut self, error: &io::Error) {
        self.pipe = None;
        *self.of.state() = PipeState::Refused;
        say(error);
    }

    /// Puts as much of a piece in as there is room for, if nothing is in it; see [`Pipe::fill`].
    ///
    /// # Safety
    /// The piece is readable.
    pub(super) unsafe fn fill(&mut self, piece: Piece) -> io::Result<()> {
        match &mut self.pipe {
            // SAFETY: the caller vouches for the piece.
            Some(pipe) if pipe.held() == 0 => unsafe { pipe.fill(piece) }.map(|_| ()),
            _ => Ok(()),
        }
    }

    /// See [`Pipe::drain`].
    pub(super) fn drain(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.pipe.as_mut().map_or(Ok(0), |pipe| pipe.drain(fd))
    }

    /// Whether something is in it.
    pub(super) fn is_used(&self) -> bool {
        self.pipe.as_ref().is_some_and(|pipe| pipe.held() > 0)
    }
}

impl Drop for PipeGuard {
    fn drop(&mut self) {
        let Some(pipe) = self.pipe.take() else { return };
        // What is left in it belongs to a connection that has broken.
        let next = if pipe.held() == 0 { PipeState::Free(pipe) } else { PipeState::Unmade };
        *self.of.state() = next;
    }
}
