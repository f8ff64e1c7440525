//! The programs that ranks run, and where the unpacked launchers lie.

use std::path::PathBuf;
use std::sync::OnceLock;

use gaspi_tests::{Linkage, Result, c_compiler, link, root};
use tempfile::TempDir;

use crate::failed;

/// A directory that `cargo xtask test --only launchers` has made, with Debian packages unpacked.
const UNPACKED: &str = "GASPI_TEST_LAUNCHERS";

/// The unpacked packages.
pub(crate) fn unpacked() -> Result<PathBuf> {
    let directory = std::env::var_os(UNPACKED).map(PathBuf::from);
    directory.ok_or_else(|| {
        failed(format!(
            "{UNPACKED} names no directory; `cargo xtask test --only launchers` makes it"
        ))
    })
}

/// Where its libraries lie.
pub(crate) fn libraries() -> Result<PathBuf> {
    Ok(unpacked()?.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH)))
}

/// LD_LIBRARY_PATH for whatever is unpacked.
pub(crate) fn library_path() -> Result<String> {
    let libraries = libraries()?;
    let folders = ["", "openmpi/lib", "pmix2/lib", "slurm-wlm"];
    let paths: Vec<String> =
        folders.iter().map(|folder| libraries.join(folder).display().to_string()).collect();
    Ok(paths.join(":"))
}

/// With which MPI the program is linked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MpiLibrary {
    None,
    Mpich,
    Open,
}

/// tests/launchers/meet.c, compiled once.
pub(crate) fn meet(mpi: MpiLibrary) -> Result<PathBuf> {
    static FOLDER: OnceLock<std::result::Result<TempDir, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| TempDir::new().map_err(|error| error.to_string()));
    let folder = folder.as_ref().map_err(|text| failed(text.as_str()))?;
    let program = folder.path().join(format!("meet-{mpi:?}"));
    if program.is_file() {
        return Ok(program);
    }
    let mut command = c_compiler(false);
    command.arg("-I").arg(root().join("include")).arg(root().join("tests/launchers/meet.c"));
    let library = match mpi {
        MpiLibrary::None => None,
        MpiLibrary::Mpich => Some("libmpich.so.12"),
        MpiLibrary::Open => Some("libmpi.so.40"),
    };
    if let Some(library) = library {
        // What the library itself needs is found at run time.
        command.args(["-DWITH_MPI", "-Wl,--allow-shlib-undefined"]);
        command.arg(libraries()?.join(library));
    }
    link(&mut command, &program, Linkage::Shared)?;
    Ok(program)
}
