//! Handing an open file to other processes of this machine over a Unix socket.
//!
//! /proc/PID/fd would need the right to trace the owner. A process of the same user lacks it where
//! the owner is not dumpable (its program is not readable, or it has changed its user or
//! capabilities), where a security module forbids it, and in another PID namespace.

use crate::failure::{Failure, Result};
use crate::job::Job;
use crate::system;
use gaspi_core::os::socket::{self, Piece};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

const WHAT: &str = "handing over the memory that ranks share";
/// Between looks at whether all ranks live.
const NAP: Duration = Duration::from_millis(20);

/// A listening socket that hands out a file.
#[derive(Debug)]
pub(crate) struct FileServer {
    listener: OwnedFd,
    /// Tells others where.
    pub(crate) number: u64,
}

/// The abstract name of a server.
fn name(number: u64) -> String {
    format!("gaspi-bench-{number:016x}")
}

fn failed(error: &io::Error) -> Failure {
    Failure::run(format!("{WHAT}: {error}"))
}

/// Sends the file, beside a byte, over a connection that nothing else is sent over yet.
pub(crate) fn send(to: BorrowedFd<'_>, file: &File) -> io::Result<()> {
    let mut byte = 0u8;
    let piece = Piece { pointer: &raw mut byte, len: 1 };
    let empty = Piece { pointer: std::ptr::null_mut(), len: 0 };
    // SAFETY: the byte lives on this stack, and the other piece is empty.
    unsafe { socket::send(to, [piece, empty], &[file.as_fd()]) }.map(drop)
}

/// A file that was sent; none yet if there is nothing.
fn receive(from: BorrowedFd<'_>) -> io::Result<Option<File>> {
    let mut byte = 0u8;
    let mut found = Vec::new();
    let piece = Piece { pointer: &raw mut byte, len: 1 };
    // SAFETY: the byte lives on this stack.
    match unsafe { socket::receive(from, piece, &mut found) } {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
        Ok(_) => match found.pop() {
            Some(file) => Ok(Some(File::from(file))),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        },
    }
}

impl FileServer {
    /// Opens one.
    pub(crate) fn open() -> Result<FileServer> {
        let number = system::random().map_err(|error| failed(&error))?;
        let listener = socket::listen(&name(number)).map_err(|error| failed(&error))?;
        Ok(FileServer { listener, number })
    }

    /// Gives the file to `count` processes of this user.
    pub(crate) fn give(&self, job: &Job, file: &File, count: usize) -> Result<()> {
        let mut patience = job.patience(WHAT);
        let mut given = 0;
        while given < count {
            let found = socket::accept(self.listener.as_fd()).map_err(|error| failed(&error))?;
            let Some(connection) = found else {
                patience.check(job)?;
                system::await_readable(self.listener.as_raw_fd(), NAP);
                continue;
            };
            let who = socket::credentials(connection.as_fd()).map_err(|error| failed(&error))?;
            if who.uid == socket::own_uid() {
                send(connection.as_fd(), file).map_err(|error| failed(&error))?;
                given += 1;
            }
        }
        Ok(())
    }
}

/// Receives the file from the server of this number.
pub(crate) fn take(job: &Job, number: u64) -> Result<File> {
    let mut patience = job.patience(WHAT);
    let connection = loop {
        match socket::connect(&name(number)) {
            Ok(connection) => break connection,
            // More ranks wait than the kernel queues.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                patience.check(job)?;
                system::yield_now();
            }
            Err(error) => return Err(failed(&error)),
        }
    };
    loop {
        if let Some(file) = receive(connection.as_fd()).map_err(|error| failed(&error))? {
            return Ok(file);
        }
        patience.check(job)?;
        system::await_readable(connection.as_raw_fd(), NAP);
    }
}
