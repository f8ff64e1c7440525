//! Standard input of rank 0, where it runs on another machine: a window of bytes is on the way at a
//! time, so that a rank that does not read costs a bounded buffer.

use crate::protocol::{Down, PIECE_MAX};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes that may be on the way.
pub(crate) const WINDOW: usize = 256 << 10;

/// Our standard input.
#[derive(Debug)]
pub(crate) struct Input {
    stdin: io::Stdin,
    /// Bytes that may still be sent.
    window: usize,
    /// It is a terminal that belongs to another job of the shell, until that changes.
    paused: bool,
    ended: bool,
}

impl Input {
    pub(crate) fn new() -> Input {
        Input { stdin: io::stdin(), window: WINDOW, paused: false, ended: false }
    }

    /// To be read from, if it makes sense now.
    pub(crate) fn readable(&self) -> Option<BorrowedFd<'_>> {
        (!self.ended && !self.paused && self.window > 0).then(|| self.stdin.as_fd())
    }

    /// Reads once; what is to be said to the agent.
    pub(crate) fn read(&mut self) -> Option<Down> {
        let mut buffer = vec![0; PIECE_MAX.min(self.window)];
        // Past the buffer of `Stdin`, which nothing else uses here.
        let copy = self.stdin.as_fd().try_clone_to_owned().map(std::fs::File::from);
        match copy.and_then(|mut file| file.read(&mut buffer)) {
            Ok(0) => {
                self.ended = true;
                Some(Down::InputEnd)
            }
            Ok(count) => {
                buffer.truncate(count);
                self.window -= count;
                Some(Down::Input(buffer))
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => None,
                // Another process group owns the terminal: gaspi_run is in the background.
                Some(libc::EIO) => {
                    self.paused = true;
                    None
                }
                _ => {
                    self.ended = true;
                    Some(Down::InputEnd)
                }
            },
        }
    }

    /// The rank has taken so much.
    pub(crate) fn taken(&mut self, count: u32) {
        self.window = (self.window + count as usize).min(WINDOW);
    }

    /// gaspi_run was continued, perhaps in the foreground.
    pub(crate) fn resume(&mut self) {
        self.paused = false;
    }

    /// It has no reader any more.
    pub(crate) fn close(&mut self) {
        self.ended = true;
    }
}
