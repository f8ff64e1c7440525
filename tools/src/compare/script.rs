//! Programs that tests put in the place of real ones.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes a shell script. It is written by another process: a descriptor of this one, inherited by
/// whatever another test starts at the moment, would keep the kernel from executing it.
pub(crate) fn write(path: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let written = writeln!(shell.stdin.take().unwrap(), "#!/bin/sh\n{text}");
    assert!(written.is_ok() && shell.wait().unwrap().success());
}
