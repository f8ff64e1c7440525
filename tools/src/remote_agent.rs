//! Running one of these tools on another machine, through ssh or another
//! [remote shell](crate::remote_shell).
//!
//! The other machine needs only sshd and a shell. The tool is run from the path that it has here or
//! from PATH, if it is installed there in the same version. Otherwise its bytes are copied through
//! ssh's standard input to a private temporary file, which is deleted at the end. Output of login
//! scripts is skipped. This module does no input or output: [`Opening`] parses what ssh printed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

/// Bytes that login scripts may print before a tool starts.
const NOISE_MAX: usize = 1 << 20;
/// Lines of ssh's messages that are shown, the last ones.
const LINES_MAX: usize = 12;
/// Says that the tool runs from here on.
const RUN: &[u8] = b"@gaspi run@\n";
/// Asks for the tool's bytes.
const CARRY: &[u8] = b"@gaspi carry@\n";
/// Begins a line that says where a tool could not do its work, and why.
const ABSENT: &str = "@gaspi absent@ ";
/// The reason in such a line of [`SCRIPT`].
pub const NOT_INSTALLED: &str = "it is not installed there";
/// What a shell that cannot start a process does not say.
const PROCESS_LIMIT: &str = "no more processes may be started there (ulimit -u, or the control \
                             group's pids.max)";
/// The variable in which srun tells a process how Slurm calls its host.
const SLURM_HOST: &str = "SLURMD_NODENAME";
/// The first argument of a tool that was carried over.
const CARRIED: &str = "--carried";

/// What finds or takes in the tool on the other machine, as one line of POSIX sh. The line lies
/// between single quotes and is read by the user's shell first, which may be csh or fish: so it has
/// no quotes of that kind, no backslash, no exclamation mark. Arguments: path, what `--version`
/// says, bytes or 0 if it cannot be carried over, then those of the tool.
const SCRIPT: &str = concat!(
    "p=$1 v=$2 n=$3; shift 3; ",
    "for q in \"$p\" \"$(command -v \"${p##*/}\")\"; do ",
    "if [ -n \"$q\" ] && [ -x \"$q\" ] && [ \"$(\"$q\" --version 2>/dev/null)\" = \"$v\" ]; ",
    "then echo \"@gaspi run@\"; exec \"$q\" \"$@\"; fi; done; ",
    "[ \"$n\" -gt 0 ] || { echo \"@gaspi absent@ $SLURMD_NODENAME it is not installed there\"; ",
    "exit 127; }; ",
    "umask 077; d=; t=; w=; c() { rm -f \"$t\"; }; trap c 0; trap \"exit 129\" 1 2 13 15; ",
    // A directory may be full, or mounted so that nothing in it can be written or executed.
    "for b in \"${TMPDIR:-/tmp}\" /var/tmp /dev/shm \"$HOME\"; do ",
    "e=$(mktemp \"$b/gaspi.XXXXXXXXXX\" 2>&1) && { t=$e; ",
    "e=$(head -c \"$n\" /dev/zero 2>&1 >\"$t\") && ",
    "e=$({ echo \"exit 0\" >\"$t\" && chmod 700 \"$t\" && \"$t\"; } 2>&1) && { d=1; break; }; ",
    "rm -f \"$t\"; t=; }; w=\"$w; $b: ${e##*: }\"; done; ",
    "[ -n \"$d\" ] || { echo \"${p##*/} is not installed there, and no directory for temporary ",
    "files takes it and lets it be executed (${w#; }); install it or set TMPDIR\" >&2; ",
    "exit 126; }; ",
    "echo \"@gaspi carry@\"; e=$(head -c \"$n\" 2>&1 >\"$t\"); ",
    "[ \"$(wc -c <\"$t\")\" -eq \"$n\" ] || { ",
    "[ -z \"$e\" ] || echo \"$t: ${e##*: }\" >&2; exit 125; }; ",
    "echo \"@gaspi run@\"; exec \"$t\" --carried \"$@\""
);

/// A tool of this project as it is installed here.
#[derive(Debug)]
pub struct Tool {
    path: PathBuf,
    /// What it says to `--version`.
    version: String,
    bytes: u64,
}

impl Tool {
    /// The running program, whose name is `name`.
    ///
    /// # Errors
    /// Its file cannot be found any more.
    pub fn own(name: &str) -> io::Result<Tool> {
        let path = std::env::current_exe()?;
        let bytes = std::fs::metadata(&path)?.len();
        Ok(Tool { path, version: format!("{name} {}", env!("CARGO_PKG_VERSION")), bytes })
    }

    /// The bytes of the program, for where it is not installed.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let bytes = std::fs::read(&self.path)?;
        if bytes.len() as u64 == self.bytes {
            return Ok(bytes);
        }
        let reason = format!("{} has changed while it runs", self.path.display());
        Err(io::Error::other(reason))
    }

    /// What runs it with `arguments`, as a program with its arguments.
    pub(crate) fn words(&self, arguments: &[&OsStr], absent: Absent) -> Vec<OsString> {
        let bytes = match absent {
            Absent::Carried => self.bytes,
            Absent::Told => 0,
        };
        let mut words: Vec<OsString> = ["sh", "-c", SCRIPT, "gaspi"].map(OsString::from).into();
        words.push(self.path.clone().into());
        words.extend([self.version.clone().into(), bytes.to_string().into()]);
        words.extend(arguments.iter().map(|word| (*word).to_owned()));
        words
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What is done where a tool is not installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    /// Its bytes are asked for.
    Carried,
    /// A line says so.
    Told,
}

/// How whatever has started this process calls its host, if it has told.
pub fn own_host() -> Option<String> {
    std::env::var(SLURM_HOST).ok().filter(|name| !name.is_empty())
}

/// The line by which a tool that was started on many hosts says that it cannot do its work.
pub fn absent_line(reason: &str) -> String {
    let reason = reason.replace('\n', " ");
    format!("{ABSENT}{} {reason}\n", own_host().unwrap_or_default())
}

/// The host and the reason, if this is such a line.
pub fn absent(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix(ABSENT)?.trim_end().split_once(' ')
}

/// What came out of ssh before the tool itself speaks.
#[derive(Debug, Default)]
pub struct Opening {
    seen: Vec<u8>,
}

/// What an [`Opening`] has come to.
#[derive(Debug, PartialEq, Eq)]
pub enum Opened {
    /// Nothing that can be told yet.
    NotYet,
    /// The tool is not there: write its bytes, then go on.
    Carry,
    /// It runs; these were its first words.
    Runs(Vec<u8>),
    /// Only noise.
    Noise,
}

impl Opening {
    /// Takes in what came out of ssh.
    pub fn feed(&mut self, bytes: &[u8]) -> Opened {
        self.seen.extend_from_slice(bytes);
        let find = |mark: &[u8]| self.seen.windows(mark.len()).position(|part| part == mark);
        if let Some(at) = find(RUN) {
            return Opened::Runs(self.seen.split_off(at + RUN.len()));
        }
        if let Some(at) = find(CARRY) {
            self.seen.drain(..at + CARRY.len());
            return Opened::Carry;
        }
        if self.seen.len() > NOISE_MAX { Opened::Noise } else { Opened::NotYet }
    }
}

/// What became of ssh, in its own words: `how` is a phrase such as "ended with exit status 255",
/// `words` what it wrote to standard error.
pub fn farewell(program: &OsStr, how: &str, words: &[u8]) -> String {
    let text = String::from_utf8_lossy(words);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let program = program.display();
    // In the words of dash and bash.
    let is_full = lines.iter().any(|line| line.ends_with("Cannot fork") || line.contains("fork: "));
    let how = match is_full {
        true => format!("{how}, since {PROCESS_LIMIT}"),
        false => how.to_owned(),
    };
    match &lines[lines.len().saturating_sub(LINES_MAX)..] {
        [] => format!("{program} {how}"),
        [line] => format!("{program} {how}: {line}"),
        last => format!("{program} {how}:\n  {}", last.join("\n  ")),
    }
}

/// The arguments of this program. If it was carried here, its file is deleted.
pub fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|argument| argument == CARRIED) {
        arguments.remove(1);
        if let Ok(path) = std::env::current_exe() {
            // If it stays, it is a file of this user in a directory for temporary ones.
            let _ = std::fs::remove_file(path);
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_survives_every_shell() {
        for letter in ['\'', '\\', '!', '\n'] {
            assert!(!SCRIPT.contains(letter), "{letter:?}");
        }
    }

    #[test]
    fn the_host_is_told_where_a_tool_is_absent() {
        let line = format!("{ABSENT}${SLURM_HOST} {NOT_INSTALLED}");
        assert!(SCRIPT.contains(&line), "{line}");
        let line = absent_line("no way\nback");
        assert_eq!(absent(&line), Some((own_host().unwrap_or_default().as_str(), "no way back")));
        assert_eq!(absent("@gaspi absent@ n07 it is not\n"), Some(("n07", "it is not")));
        for other in ["", "@gaspi run@", "@gaspi absent@", "@gaspi absent@ n07"] {
            assert_eq!(absent(other), None);
        }
    }

    #[test]
    fn noise_is_skipped() {
        let mut opening = Opening::default();
        assert_eq!(opening.feed(b"Welcome!\n@gaspi ru"), Opened::NotYet);
        assert_eq!(opening.feed(b"n@\nhello"), Opened::Runs(b"hello".to_vec()));
        let mut opening = Opening::default();
        assert_eq!(opening.feed(b"x@gaspi carry@\n"), Opened::Carry);
        assert_eq!(opening.feed(b"@gaspi run@\n"), Opened::Runs(Vec::new()));
        assert_eq!(Opening::default().feed(&vec![b'x'; NOISE_MAX + 1]), Opened::Noise);
    }
}
