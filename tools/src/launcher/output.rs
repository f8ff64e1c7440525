//! The ranks' output, by whole lines.
//!
//! A line comes out in one piece, however many ranks write. A line that is longer than the buffer
//! is passed on in parts; if another rank speaks in between, a newline is put in, so that a single
//! writer's bytes are never changed.

use gaspi_tools::system::{self, Identity, Watch};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of an unfinished line that are kept back.
const LINE_MAX: usize = 1 << 20;
/// Bytes waiting for a slow reader from which on the ranks' pipes are left alone.
const WAITING_MAX: usize = 1 << 20;
/// What a pipe that is ready for writing takes without blocking (PIPE_BUF).
const PIECE: usize = 4096;

/// The source of output: a rank's stream, or gaspi_run itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    Launcher,
    Stream(usize),
}

/// Our standard output or error.
#[derive(Debug)]
pub(crate) struct Sink {
    fd: OwnedFd,
    identity: Option<Identity>,
    waiting: Vec<u8>,
    written: usize,
    /// Whose line is not finished yet.
    open: Option<Writer>,
    /// It cannot be written any more: what comes is read and dropped.
    closed: bool,
    /// Why, until somebody has asked.
    failure: Option<io::Error>,
}

impl Sink {
    /// For a copy of standard output or error.
    pub(crate) fn new(fd: BorrowedFd<'_>) -> io::Result<Sink> {
        let identity = system::identity(fd);
        let fd = fd.try_clone_to_owned()?;
        let (waiting, written) = (Vec::new(), 0);
        Ok(Sink { fd, identity, waiting, written, open: None, closed: false, failure: None })
    }

    /// Whether both lead to the same file, terminal or pipe.
    pub(crate) fn same(&self, other: BorrowedFd<'_>) -> bool {
        self.identity.is_some() && self.identity == system::identity(other)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.fd.is_terminal()
    }

    /// Whether there is something that waits to be written.
    pub(crate) fn pending(&self) -> bool {
        self.written < self.waiting.len()
    }

    /// Whether more should be taken in.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() - self.written < WAITING_MAX
    }

    /// Takes in whole lines, or the part of a long one.
    pub(crate) fn put(&mut self, writer: Writer, label: &str, text: &[u8]) {
        if self.closed || text.is_empty() {
            return;
        }
        if self.open.is_some_and(|open| open != writer) {
            self.waiting.push(b'\n');
            self.open = None;
        }
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            if self.open.is_none() {
                self.waiting.extend_from_slice(label.as_bytes());
            }
            self.waiting.extend_from_slice(line);
            self.open = if line.ends_with(b"\n") { None } else { Some(writer) };
        }
    }

    /// Writes what can be written without blocking.
    pub(crate) fn flush(&mut self) {
        let regular = self.identity.is_some_and(|identity| identity.regular);
        while self.pending() && (regular || system::ready(Watch::room(self.fd.as_fd()))) {
            let piece = &self.waiting[self.written..];
            let piece = if regular { piece } else { &piece[..piece.len().min(PIECE)] };
            match system::write(self.fd.as_fd(), piece) {
                Ok(written) => self.written += written,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => break,
                    _ => self.drop_all(error),
                },
            }
        }
        if !self.pending() {
            self.waiting.clear();
            self.written = 0;
        } else if self.written > WAITING_MAX {
            self.waiting.drain(..self.written);
            self.written = 0;
        }
    }

    /// Why nothing can be written any more, once.
    pub(crate) fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// Gives up on the reader, or on a full disk.
    fn drop_all(&mut self, failure: io::Error) {
        self.closed = true;
        self.failure = Some(failure);
        self.waiting.clear();
        self.written = 0;
    }
}

/// The unfinished line of one stream.
#[derive(Debug)]
pub(crate) struct Lines {
    writer: Writer,
    label: String,
    rest: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(stream: usize, label: String) -> Lines {
        Lines { writer: Writer::Stream(stream), label, rest: Vec::new() }
    }

    /// Takes in bytes and passes on the lines that they finish.
    pub(crate) fn push(&mut self, bytes: &[u8], sink: &mut Sink) {
        let finished = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (lines, rest) = bytes.split_at(finished);
        if !lines.is_empty() {
            if self.rest.is_empty() {
                sink.put(self.writer, &self.label, lines);
            } else {
                self.rest.extend_from_slice(lines);
                self.finish(sink);
            }
        }
        self.rest.extend_from_slice(rest);
        if self.rest.len() > LINE_MAX {
            self.finish(sink);
        }
    }

    /// Whether a line has begun and not ended.
    pub(crate) fn unfinished(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Passes on what is there, though its line is not finished.
    pub(crate) fn finish(&mut self, sink: &mut Sink) {
        sink.put(self.writer, &self.label, &self.rest);
        self.rest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink() -> Sink {
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        Sink::new(null.as_fd()).expect("sink")
    }

    fn text(sink: &Sink) -> String {
        String::from_utf8_lossy(&sink.waiting).into_owned()
    }

    #[test]
    fn lines_of_two_streams_stay_whole() {
        let (mut sink, mut one, mut two) =
            (sink(), Lines::new(1, "[1] ".into()), Lines::new(2, "[2] ".into()));
        one.push(b"half ", &mut sink);
        two.push(b"a\nb\nc", &mut sink);
        one.push(b"and half\n", &mut sink);
        two.finish(&mut sink);
        one.push(b"end\n", &mut sink);
        assert_eq!(text(&sink), "[2] a\n[2] b\n[1] half and half\n[2] c\n[1] end\n");
    }

    #[test]
    fn a_single_writers_bytes_are_not_changed() {
        let (mut sink, mut lines) = (sink(), Lines::new(0, String::new()));
        let long = vec![b'x'; 3 * LINE_MAX + 17];
        for part in long.chunks(50_000) {
            lines.push(part, &mut sink);
        }
        lines.push(b"\n\n\r\nlast", &mut sink);
        lines.finish(&mut sink);
        assert_eq!(sink.waiting.len(), long.len() + 8);
        assert!(sink.waiting.ends_with(b"x\n\n\r\nlast"));
    }

    #[test]
    fn the_launcher_starts_on_a_line_of_its_own() {
        let (mut sink, mut lines) = (sink(), Lines::new(0, String::new()));
        lines.push(b"prompt> ", &mut sink);
        lines.finish(&mut sink);
        sink.put(Writer::Launcher, "", b"gaspi_run: note\n");
        assert_eq!(text(&sink), "prompt> \ngaspi_run: note\n");
    }
}
