//! The program that ranks run, for each library: one loop, and a part that calls the library.

use super::rivals::Side;
use crate::failure::{Failure, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The loop.
pub(crate) const BURST: &str = include_str!("ranks/burst.c");
/// What both halves agree on.
pub(crate) const LIBRARY: &str = include_str!("ranks/library.h");

const FILES: [(&str, &str); 5] = [
    ("burst.c", BURST),
    ("library.h", LIBRARY),
    ("gaspi.c", include_str!("ranks/gaspi.c")),
    ("mpi.c", include_str!("ranks/mpi.c")),
    ("oneccl.cpp", include_str!("ranks/oneccl.cpp")),
];

/// Writes the sources below `root` and compiles them for one side.
pub(crate) fn compile(side: &Side, root: &Path) -> Result<PathBuf> {
    for (name, text) in FILES {
        let file = root.join(name);
        fs::write(&file, text)
            .map_err(|error| Failure::run(format!("cannot write {}: {error}", file.display())))?;
    }
    let program = root.join(format!("{}-burst", side.name()));
    let mut command = side.compile(root, &program);
    let output = command.output().map_err(|error| {
        let compiler = command.get_program().to_string_lossy();
        Failure::run(format!(
            "{compiler}: {error}; a C compiler is needed (Debian: apt-get install gcc libc6-dev)"
        ))
    })?;
    if output.status.success() {
        return Ok(program);
    }
    let text = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(Failure::run(format!("compiling for {}:\n{text}", side.title())))
}
