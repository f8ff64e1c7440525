//! The programs that ranks run, and where the unpacked launchers lie.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gaspi_tests::{Linkage, Result, c_compiler, link, root, run_compiler};
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

/// Where what is compiled lies.
fn folder() -> Result<&'static Path> {
    static FOLDER: OnceLock<std::result::Result<TempDir, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| TempDir::new().map_err(|error| error.to_string()));
    folder.as_ref().map(TempDir::path).map_err(|text| failed(text.as_str()))
}

/// tests/launchers/slow_pmix.c, a library.
pub(crate) fn slow_pmix() -> Result<PathBuf> {
    let library = folder()?.join("libpmix-slow.so");
    let mut command = c_compiler(false);
    command.args(["-shared", "-fPIC"]).arg(root().join("tests/launchers/slow_pmix.c"));
    run_compiler(command.arg("-o").arg(&library))?;
    Ok(library)
}

/// tests/launchers/meet.c, compiled once.
pub(crate) fn meet(mpi: MpiLibrary) -> Result<PathBuf> {
    let program = folder()?.join(format!("meet-{mpi:?}"));
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
