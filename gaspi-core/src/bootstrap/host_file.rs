//! Host files: one host per line; line r is the host of rank r. The user's documents call them
//! machine files.
//!
//! Spaces around a name, blank lines, comments from `#` on, Windows line ends and a missing final
//! newline are all fine.

use crate::error::{Error, Result};
use std::path::Path;

/// Bytes of the largest machine file that is read.
const FILE_MAX: u64 = 64 << 20;

/// The hosts of a machine file, by rank.
///
/// # Errors
/// [`Error::Environment`] if it cannot be read or is empty.
pub fn read(path: &Path) -> Result<Vec<String>> {
    let wrong = |reason: String| Error::Environment {
        reason: format!("machine file {}: {reason}", path.display()),
    };
    let about = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if about.is_dir() {
        return Err(wrong("it is a directory; name a file with one host per line".to_owned()));
    }
    if about.len() > FILE_MAX {
        return Err(wrong(format!("{} bytes cannot be a list of hosts", about.len())));
    }
    let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let hosts = parse(&text);
    if hosts.is_empty() {
        return Err(wrong(
            "it names no host; write one host per line, line r for rank r".to_owned(),
        ));
    }
    Ok(hosts)
}

/// The hosts in the text of a machine file.
pub fn parse(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let text = text.trim_start_matches('\u{feff}');
    let names = text.split(['\n', '\r']).map(|line| line.split('#').next().unwrap_or("").trim());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_file() {
        let expected = ["a", "b.example.org", "10.0.0.1", "::1"];
        for text in [
            "a\nb.example.org\n10.0.0.1\n::1\n",
            "a\r\nb.example.org\r\n10.0.0.1\r\n::1",
            "\u{feff}# hosts\n\n  a\t\n\tb.example.org # second\n10.0.0.1\n\n::1",
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text:?}");
        }
        assert!(parse(b"\n\r\n # nothing\n").is_empty());
        assert_eq!(parse(b"\xff\n").len(), 1);
    }

    #[test]
    fn files_that_are_none() {
        let missing = read(Path::new("/nonexistent/hosts")).expect_err("missing").to_string();
        assert!(missing.contains("/nonexistent/hosts"), "{missing}");
        let directory = read(Path::new("/")).expect_err("directory").to_string();
        assert!(directory.contains("directory"), "{directory}");
        let empty = read(Path::new("/dev/null")).expect_err("empty").to_string();
        assert!(empty.contains("names no host"), "{empty}");
    }
}
