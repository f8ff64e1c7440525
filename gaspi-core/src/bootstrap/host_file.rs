//! Host files: one host per line; line r is the host of rank r. The user's documents call them
//! machine files. A line `host slots=4` or `host:4` stands for four lines.
//!
//! Spaces around a name, blank lines, comments from `#` on, Windows line ends and a missing final
//! newline are all fine.

use crate::error::{Error, Result};
use std::fmt;
use std::path::Path;

/// Bytes of the largest machine file that is read.
const FILE_MAX: u64 = 64 << 20;
/// Slots of one line.
const COUNT_MAX: u32 = 65535;
const NO_HOST: &str = "no host is before the number of slots";
/// Slots of all lines.
const SLOTS_MAX: usize = 1 << 20;

/// What is wrong with a line of a machine file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// The first line is 1.
    pub line: usize,
    /// In words, with the text of the line.
    pub reason: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

/// The hosts of a machine file, by rank.
///
/// # Errors
/// [`Error::Environment`] if it cannot be read or is empty; `FILE:LINE: reason` if a line is wrong.
pub fn read(path: &Path) -> Result<Vec<String>> {
    read_checked(path, &|_| Ok(()))
}

/// The same; `check` says of each host why it cannot be one.
///
/// # Errors
/// As [`read`], and what `check` says.
pub fn read_checked(
    path: &Path,
    check: &dyn Fn(&str) -> std::result::Result<(), String>,
) -> Result<Vec<String>> {
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
    let hosts = expand(&text, check).map_err(|BadLine { line, reason }| Error::Environment {
        reason: format!("machine file {}:{line}: {reason}", path.display()),
    })?;
    if hosts.is_empty() {
        return Err(wrong(
            "it names no host; write one host per line, line r for rank r".to_owned(),
        ));
    }
    Ok(hosts)
}

/// The hosts in the text of a machine file, each as often as its line says.
///
/// # Errors
/// What is wrong with a line.
pub fn parse(text: &[u8]) -> std::result::Result<Vec<String>, BadLine> {
    expand(text, &|_| Ok(()))
}

fn expand(
    text: &[u8],
    check: &dyn Fn(&str) -> std::result::Result<(), String>,
) -> std::result::Result<Vec<String>, BadLine> {
    let mut hosts = Vec::new();
    for found in lines(text) {
        let (line, (host, slots)) = found?;
        let checked = if hosts.len() + slots as usize > SLOTS_MAX {
            Err(format!("it has more than {SLOTS_MAX} slots"))
        } else {
            check(&host)
        };
        checked.map_err(|reason| BadLine { line, reason })?;
        hosts.extend(std::iter::repeat_n(host, slots as usize));
    }
    Ok(hosts)
}

/// The lines of a machine file: a host, and its number of slots.
///
/// # Errors
/// What is wrong with a line.
pub fn slots(text: &[u8]) -> std::result::Result<Vec<(String, u32)>, BadLine> {
    lines(text).map(|found| found.map(|(_, entry)| entry)).collect()
}

type Line = (usize, (String, u32));

/// The lines that name a host, with their numbers. A carriage return alone ends one, too, but is
/// not counted, as editors and compilers do not.
fn lines(text: &[u8]) -> impl Iterator<Item = std::result::Result<Line, BadLine>> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let numbered = (1..).zip(text.split(|byte| *byte == b'\n'));
    let parts = numbered.flat_map(|(number, line)| {
        line.split(|byte| *byte == b'\r').map(move |part| (number, part))
    });
    parts.filter_map(|(line, part)| {
        let part = part.split(|byte| *byte == b'#').next().unwrap_or_default();
        let found = match str::from_utf8(part) {
            Ok(text) if text.trim().is_empty() => return None,
            Ok(text) => entry(text.trim()),
            // ssh, the resolver and terminals would each make something else of it.
            Err(_) => Err(format!("\"{}\" is no UTF-8", part.trim_ascii().escape_ascii())),
        };
        Some(match found {
            Ok(entry) => Ok((line, entry)),
            Err(reason) => Err(BadLine { line, reason }),
        })
    })
}

/// `host`, `host:4` or `host slots=4`. Other words of the files of Open MPI mean nothing here.
fn entry(line: &str) -> std::result::Result<(String, u32), String> {
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let (host, count) = split(first).map_err(|reason| format!("{line:?}: {reason}"))?;
    let mut count = count.map(str::to_owned);
    for word in words {
        match word.split_once('=') {
            Some(("slots", slots)) if count.is_none() => count = Some(slots.to_owned()),
            Some(("max_slots" | "max-slots", _)) => {}
            _ => return Err(format!("{line:?}: behind the host comes slots=N, or nothing")),
        }
    }
    match count.as_deref().map_or(Ok(1), str::parse::<u32>) {
        Ok(count @ 1..=COUNT_MAX) => Ok((host.to_owned(), count)),
        _ => Err(format!("{line:?}: the number of slots of a host is 1 to {COUNT_MAX}")),
    }
}

/// Host and number of an entry such as `a:2` or `[fd00::1]:2`. An address of IPv6 that is not in
/// brackets has no number.
///
/// # Errors
/// Something else than a number is behind a bracket, or nothing is before the number.
pub fn split(entry: &str) -> std::result::Result<(&str, Option<&str>), String> {
    if let Some(end) = entry.rfind(']') {
        let (host, rest) = entry.split_at(end + 1);
        if host == "[]" {
            return Err(NO_HOST.to_owned());
        }
        return match rest.strip_prefix(':') {
            Some(count) => Ok((host, Some(count))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err("expected ':' and a number behind the bracket".to_owned()),
        };
    }
    match entry.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Ok((entry, None)),
        Some(("", _)) => Err(NO_HOST.to_owned()),
        Some((host, count)) => Ok((host, Some(count))),
        None => Ok((entry, None)),
    }
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
            assert_eq!(parse(text.as_bytes()).expect(text), expected, "{text:?}");
        }
        assert!(parse(b"\n\r\n # nothing\n").expect("nothing").is_empty());
        // What is no UTF-8 may stand in a comment.
        assert_eq!(parse(b"a # \xff\n").expect("a name").len(), 1);
    }

    #[test]
    fn slots_stand_for_lines() {
        for text in [
            "a slots=2\nb:1\n[fd00::1]:2\nfd00::2\n",
            "a:2\nb slots=1 max_slots=8 # two\n[fd00::1] slots=2\nfd00::2 max-slots=1",
        ] {
            let hosts = parse(text.as_bytes()).expect(text);
            assert_eq!(hosts, ["a", "a", "b", "[fd00::1]", "[fd00::1]", "fd00::2"], "{text}");
        }
        for (text, why) in [
            ("a slots=0", "1 to 65535"),
            ("a:0", "1 to 65535"),
            ("a:x", "1 to 65535"),
            ("a:", "1 to 65535"),
            (":8", "no host is before"),
            ("[]:8", "no host is before"),
            ("a slots=99999999999", "1 to 65535"),
            ("a b", "slots=N"),
            ("a:2 slots=2", "slots=N"),
            ("[::1]x", "behind the bracket"),
        ] {
            let error = parse(text.as_bytes()).expect_err(text).to_string();
            assert!(error.contains(why) && error.contains(&format!("{text:?}")), "{error}");
        }
        let many = "a slots=65535\n".repeat(17);
        let error = parse(many.as_bytes()).expect_err("too many");
        assert!(error.reason.contains("more than 1048576 slots"), "{error}");
        assert_eq!(error.line, 17);
        let lines = "a\n".repeat(1_000_000);
        assert_eq!(parse(lines.as_bytes()).expect("lines").len(), 1_000_000);
    }

    #[test]
    fn errors_tell_the_number_of_the_line() {
        for (text, number, why) in [
            (&b"a b"[..], 1, "\"a b\": behind the host"),
            (b"# hosts\n\na\nb:0 # none\n", 4, "\"b:0\": the number of slots"),
            (b"a\r\n\r\nb:0\r\n", 3, "\"b:0\""),
            (b"\xef\xbb\xbfa\n\tb\xe4r\x1b[2J # Umlaut\n", 2, "\"b\\xe4r\\x1b[2J\" is no UTF-8"),
        ] {
            let error = parse(text).expect_err("accepted");
            assert!(error.line == number && error.reason.contains(why), "{text:?}: {error}");
            assert_eq!(slots(text), Err(error));
        }
    }

    #[test]
    fn mutated_files_end_in_hosts_or_an_error() {
        let sample = b"ant slots=4 max_slots=8 # one\r\n[fd00::1]:2\nbee:3\n";
        crate::fuzzed::run("machine file", 64 << 20, |seed| {
            let mut bytes = sample.to_vec();
            seed.mutate(&mut bytes);
            if let Ok(hosts) = parse(&bytes) {
                assert!(hosts.iter().all(|host| !host.contains(char::is_whitespace)));
            }
        });
    }

    #[test]
    fn files_that_are_none() {
        let missing = read(Path::new("/nonexistent/hosts")).expect_err("missing").to_string();
        assert!(missing.contains("/nonexistent/hosts"), "{missing}");
        let directory = read(Path::new("/")).expect_err("directory").to_string();
        assert!(directory.contains("directory"), "{directory}");
        let empty = read(Path::new("/dev/null")).expect_err("empty").to_string();
        assert!(empty.contains("names no host"), "{empty}");
        let file = std::env::temp_dir().join(format!("gaspi-hosts-{}", std::process::id()));
        std::fs::write(&file, "a\nb\n").expect("written");
        let check = |host: &str| if host == "b" { Err("no b".to_owned()) } else { Ok(()) };
        let checked = read_checked(&file, &check).map_err(|error| error.to_string());
        std::fs::remove_file(&file).expect("removed");
        let expected = format!("environment: machine file {}:2: no b", file.display());
        assert_eq!(checked, Err(expected));
    }
}
