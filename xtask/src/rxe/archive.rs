//! An archive that the kernel unpacks as its first file system: cpio in the format "newc".

use std::collections::BTreeSet;
use std::path::Path;

use crate::Result;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

/// An archive in the making. All files may be executed.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    names: BTreeSet<String>,
}

impl Archive {
    /// Adds a file, and the directories above it. A file of the same name is kept as it is.
    pub(super) fn add(&mut self, name: &str, content: &[u8]) {
        for (end, _) in name.match_indices('/') {
            self.entry(&name[..end], DIRECTORY, &[]);
        }
        self.entry(name, FILE, content);
    }

    /// Adds a file of this machine.
    pub(super) fn copy(&mut self, name: &str, from: &Path) -> Result<()> {
        let content = std::fs::read(from)
            .map_err(|error| format!("cannot read {}: {error}", from.display()))?;
        self.add(name, &content);
        Ok(())
    }

    /// The finished archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        if !self.names.insert(name.to_owned()) {
            return;
        }
        self.entries += 1;
        let length = content.len() as u32;
        // Inode, mode, owner, group, links, time, length, four device numbers, length of the name,
        // no checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn headers_have_110_bytes_and_everything_is_aligned() {
        let mut archive = Archive::default();
        archive.add("a/b", b"text!");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let at = |what: &str| text.find(what).expect(what);
        assert_eq!(text.matches("070701").count(), 3);
        assert_eq!(at("a\0"), 110);
        assert_eq!(at("a/b\0"), 112 + 110);
        assert_eq!(at("text!"), 112 + 116);
        assert_eq!(at("TRAILER!!!\0"), 112 + 116 + 8 + 110);
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn a_name_is_there_once() {
        let mut archive = Archive::default();
        archive.add("lib/a", b"1");
        archive.add("lib/b", b"2");
        archive.add("lib/a", b"3");
        let bytes = archive.finish();
        // The directory, two files and the trailer.
        assert_eq!(String::from_utf8_lossy(&bytes).matches("070701").count(), 4);
    }
}
