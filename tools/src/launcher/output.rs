//! The ranks' output, by whole lines.
//!
//! A line comes out in one piece, however many ranks write. A line that is longer than the buffer
//! is passed on in parts; if another rank speaks in between, a newline is put in, so that a single
//! writer's bytes are never changed.
//!
//! A line that is drawn anew behind carriage returns, such as a progress bar, comes out as it is
//! written. One rank at a time draws: others' bars would cost a line each time they change, so they
//! wait for the end of their line, or until the one that draws has ended its own or stands still.

use gaspi_tools::system::{self, Identity, Watch};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// After how long another line that is drawn anew takes the place of one that stands still.
const STANDS_STILL: Duration = Duration::from_secs(1);
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
    /// That line ends in a carriage return so far.
    returned: bool,
    /// When something came last.
    last: Instant,
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
        let (open, returned, last) = (None, false, Instant::now());
        let (closed, failure) = (false, None);
        Ok(Sink { fd, identity, waiting, written, open, returned, last, closed, failure })
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
        self.last = Instant::now();
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            if self.open.is_none() {
                self.waiting.extend_from_slice(label.as_bytes());
            }
            let goes_on = self.open.is_some() && self.returned;
            self.put_labelled(label, line, goes_on);
            self.returned = line.ends_with(b"\r");
            self.open = if line.ends_with(b"\n") { None } else { Some(writer) };
        }
    }

    /// A part of one line, behind a carriage return if it `returned`. What is drawn behind one gets
    /// the label again, as it stands where the label was.
    fn put_labelled(&mut self, label: &str, line: &[u8], mut returned: bool) {
        if label.is_empty() {
            self.waiting.extend_from_slice(line);
            return;
        }
        for part in line.split_inclusive(|byte| *byte == b'\r') {
            if returned && !matches!(part, [b'\r' | b'\n', ..]) {
                self.waiting.extend_from_slice(label.as_bytes());
            }
            self.waiting.extend_from_slice(part);
            returned = true;
        }
    }

    /// Whether this writer may draw its line anew at `now` without costing a line of another one
    /// that does so.
    fn may_redraw(&self, writer: Writer, now: Instant) -> bool {
        self.open.is_none_or(|open| open == writer)
            || now.saturating_duration_since(self.last) >= STANDS_STILL
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
    /// Something but a newline came behind a carriage return of this line.
    redrawn: bool,
}

impl Lines {
    pub(crate) fn new(stream: usize, label: String) -> Lines {
        Lines { writer: Writer::Stream(stream), label, rest: Vec::new(), redrawn: false }
    }

    /// Takes in bytes and passes on the lines that they finish.
    pub(crate) fn push(&mut self, bytes: &[u8], sink: &mut Sink) {
        let finished = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (lines, rest) = bytes.split_at(finished);
        if !lines.is_empty() {
            self.redrawn = false;
            if self.rest.is_empty() {
                sink.put(self.writer, &self.label, lines);
            } else {
                self.rest.extend_from_slice(lines);
                self.finish(sink);
            }
        }
        let looked_at = self.rest.len().saturating_sub(1);
        self.rest.extend_from_slice(rest);
        self.redrawn |=
            self.rest[looked_at..].windows(2).any(|pair| pair[0] == b'\r' && pair[1] != b'\n');
        if self.rest.len() > LINE_MAX {
            self.finish(sink);
        } else if self.redrawn && sink.may_redraw(self.writer, Instant::now()) {
            // A newline may follow the last carriage return.
            let kept = if self.rest.ends_with(b"\r") { 1 } else { 0 };
            let end = self.rest.len() - kept;
            sink.put(self.writer, &self.label, &self.rest[..end]);
            self.rest.drain(..end);
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
    fn a_line_that_is_drawn_anew_comes_at_once_with_its_label() {
        let (mut sink, mut lines) = (sink(), Lines::new(1, "[1] ".into()));
        lines.push(b"\r 10%", &mut sink);
        assert_eq!(text(&sink), "[1] \r[1]  10%");
        lines.push(b"\r", &mut sink);
        lines.push(b" 20%\r 3", &mut sink);
        lines.push(b"0%\r", &mut sink);
        assert_eq!(text(&sink), "[1] \r[1]  10%\r[1]  20%\r[1]  30%");
        lines.push(b"\ndone\r", &mut sink);
        // It may be a line end of Windows, which is not taken apart.
        assert!(text(&sink).ends_with("30%\r\n"), "{}", text(&sink));
        lines.push(b"\nbar\r", &mut sink);
        assert!(text(&sink).ends_with("30%\r\n[1] done\r\n"), "{}", text(&sink));
        lines.push(b"bar 2\r", &mut sink);
        assert!(text(&sink).ends_with("\n[1] bar\r[1] bar 2"), "{}", text(&sink));
    }

    #[test]
    fn one_at_a_time_draws() {
        let (mut sink, mut one, mut two) =
            (sink(), Lines::new(1, String::new()), Lines::new(2, String::new()));
        one.push(b"\r1", &mut sink);
        two.push(b"\ra", &mut sink);
        one.push(b"\r2", &mut sink);
        assert_eq!(text(&sink), "\r1\r2");
        // Whole lines are not held up.
        two.push(b"\rb\n", &mut sink);
        one.push(b"\r3", &mut sink);
        two.push(b"\rc", &mut sink);
        assert_eq!(text(&sink), "\r1\r2\n\ra\rb\n\r3");
        sink.last = sink.last.checked_sub(STANDS_STILL).expect("a second ago");
        two.push(b"\rd", &mut sink);
        assert_eq!(text(&sink), "\r1\r2\n\ra\rb\n\r3\n\rc\rd");
        one.push(b"\r4", &mut sink);
        two.push(b"\n", &mut sink);
        one.push(b"\r5", &mut sink);
        assert!(text(&sink).ends_with("\n\rc\rd\n\r4\r5"), "{}", text(&sink));
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
