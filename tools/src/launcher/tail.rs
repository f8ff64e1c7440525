//! The last lines that each rank wrote: kept as they pass, or read from its file.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes that are kept of a line, and read of a file for each line.
const LINE_MAX: usize = 1 << 10;

/// The last lines of one stream.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<Vec<u8>>,
    /// The last one has not ended.
    open: bool,
}

impl Tail {
    /// Takes in what was written, and keeps `count` lines.
    pub(crate) fn push(&mut self, bytes: &[u8], count: usize) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !self.open {
                self.lines.push_back(Vec::new());
            }
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            self.open = text.len() == piece.len();
            if let Some(line) = self.lines.back_mut() {
                let room = LINE_MAX.saturating_sub(line.len());
                line.extend_from_slice(&text[..text.len().min(room)]);
            }
        }
        while self.lines.len() > count {
            self.lines.pop_front();
        }
    }

    /// The last lines of a file; none if it cannot be read.
    pub(crate) fn of_file(path: &Path, count: usize) -> Tail {
        let mut tail = Tail::default();
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(path)?;
            let part = (count * LINE_MAX) as u64;
            let start = file.metadata()?.len().saturating_sub(part);
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = Vec::new();
            file.take(part).read_to_end(&mut bytes)?;
            if start > 0 {
                // The first line is a part of one.
                let end = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                bytes.drain(..end);
            }
            Ok(bytes)
        };
        tail.push(&read().unwrap_or_default(), count);
        tail
    }

    /// Each line with a mark before it, fit for a terminal; empty if there is none.
    pub(crate) fn quoted(&self) -> String {
        let line = |line: &Vec<u8>| {
            let text = String::from_utf8_lossy(line);
            let safe = text.chars().map(|c| if c.is_control() && c != '\t' { '?' } else { c });
            format!("  | {}\n", safe.collect::<String>())
        };
        self.lines.iter().map(line).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_stay() {
        let mut tail = Tail::default();
        for piece in ["one\ntw", "o\n\nfo", "ur\x1b[1m"] {
            tail.push(piece.as_bytes(), 3);
        }
        assert_eq!(tail.quoted(), "  | two\n  | \n  | four?[1m\n");
        tail.push(&[b'x'; 5000], 3);
        assert!(tail.quoted().len() < 1100);
        assert_eq!(Tail::default().quoted(), "");
    }

    #[test]
    fn a_file_is_read_from_its_end() {
        let file = tempfile::NamedTempFile::new().expect("file");
        let lines: String = (0..5000).map(|number| format!("line {number}\n")).collect();
        std::fs::write(file.path(), lines).expect("written");
        let tail = Tail::of_file(file.path(), 2);
        assert_eq!(tail.quoted(), "  | line 4998\n  | line 4999\n");
        assert_eq!(Tail::of_file(Path::new("/does/not/exist"), 2).len(), 0);
    }
}
