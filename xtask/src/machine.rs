//! Which programs the tests use beside cargo, which Debian package has them, and installing them.

use std::process::Command;

use crate::{Result, process, workspace};

/// A program that some stage of the tests needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tool {
    /// C compiler.
    Cc,
    /// C++ compiler.
    Cxx,
    /// ar, ld, nm, objcopy, objdump, readelf and strip.
    Binutils,
    /// Fortran compiler.
    Fortran,
    /// Memory checker.
    Valgrind,
    /// Debugger; without it the watchdog shows less.
    Gdb,
    /// What asks the .pc files.
    PkgConfig,
    /// kill as a program, by which tests of the launcher send signals.
    Kill,
    /// What asks the CMake package.
    Cmake,
    /// What CMake builds with.
    Make,
    /// What packs and unpacks Debian packages.
    Dpkg,
    /// ip and tc, which make networks.
    Ip,
    /// What has a switch lose frames.
    Nft,
    /// ssh and ssh-keygen.
    Ssh,
    /// Python with what makes environments.
    Python,
}

impl Tool {
    pub(crate) const ALL: [Tool; 15] = [
        Tool::Cc,
        Tool::Cxx,
        Tool::Binutils,
        Tool::Fortran,
        Tool::Valgrind,
        Tool::Gdb,
        Tool::PkgConfig,
        Tool::Kill,
        Tool::Cmake,
        Tool::Make,
        Tool::Dpkg,
        Tool::Ip,
        Tool::Nft,
        Tool::Ssh,
        Tool::Python,
    ];

    /// Its program, and the Debian packages that have it.
    fn program_and_packages(self) -> (&'static str, &'static str) {
        match self {
            Tool::Cc => ("cc", "gcc libc6-dev"),
            Tool::Cxx => ("c++", "g++"),
            Tool::Binutils => ("objcopy", "binutils"),
            Tool::Fortran => ("gfortran", "gfortran"),
            Tool::Valgrind => ("valgrind", "valgrind"),
            Tool::Gdb => ("gdb", "gdb"),
            Tool::PkgConfig => ("pkg-config", "pkg-config"),
            Tool::Kill => ("kill", "procps"),
            Tool::Cmake => ("cmake", "cmake"),
            Tool::Make => ("make", "make"),
            Tool::Dpkg => ("dpkg-deb", "dpkg"),
            Tool::Ip => ("ip", "iproute2"),
            Tool::Nft => ("nft", "nftables"),
            Tool::Ssh => ("ssh", "openssh-client"),
            Tool::Python => ("python3", "python3 python3-venv"),
        }
    }

    /// Whether it is in the search path, or where only root's search path leads.
    pub(crate) fn is_there(self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let (program, _) = self.program_and_packages();
        if self == Tool::Python {
            // Debian has the program without the module.
            return crate::python::of_version("3.11").is_some();
        }
        let roots = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
        std::env::split_paths(&path).chain(roots).any(|directory| directory.join(program).is_file())
    }
}

/// The tools that are not there.
pub(crate) fn missing() -> Vec<Tool> {
    Tool::ALL.into_iter().filter(|tool| !tool.is_there()).collect()
}

/// The Debian packages of `tools`.
pub(crate) fn packages(tools: &[Tool], separator: &str) -> String {
    let packages: Vec<&str> = tools.iter().map(|tool| tool.program_and_packages().1).collect();
    packages.join(separator)
}

/// The one line that installs `tools`, also where no lists of packages are, as in containers.
pub(crate) fn apt_line(tools: &[Tool]) -> String {
    let packages = packages(tools, " ");
    format!("apt-get update && apt-get install -y --no-install-recommends {packages}")
}

/// Installs `tools`, once, after one `apt-get update`.
pub(crate) fn install(tools: &[Tool]) -> Result<()> {
    println!("installing: {}", apt_line(tools));
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq");
        command
    };
    process::run(apt().arg("update"))?;
    let packages = packages(tools, " ");
    process::run(apt().args(["install", "-y", "--no-install-recommends"]).args(packages.split(' ')))
}

/// What a run of all stages leaves below the target directory of a fresh clone, in MiB, with some
/// to spare: without debug information of variables and incremental builds 8 GiB, with them 21.
const ROOM_MIB: u64 = 12 << 10;

/// Whether the disk has room for a run of all stages.
///
/// # Errors
/// What is missing.
pub(crate) fn check_room() -> Result<()> {
    let target = workspace::target();
    workspace::make_directory(&target)?;
    let number = |command: &mut Command| {
        let output = process::output(command).ok()?;
        output.split_whitespace().find_map(|word| word.parse::<u64>().ok())
    };
    let free = number(Command::new("df").args(["-B1M", "--output=avail"]).arg(&target));
    let used = number(Command::new("du").args(["-sm"]).arg(&target));
    let (Some(free), Some(used)) = (free, used) else { return Ok(()) };
    if free + used >= ROOM_MIB {
        return Ok(());
    }
    Err(format!(
        "all stages need {} GiB of disk for {}, where {} GiB are free beside {} GiB of former \
         runs; make room, set CARGO_TARGET_DIR to another disk, or run some stages with --only",
        ROOM_MIB >> 10,
        target.display(),
        free >> 10,
        used >> 10
    ))
}

/// Whether the standard library for 64-bit Arm is there to check against.
pub(crate) fn has_aarch64() -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    process::output(Command::new(rustc).args(["--print", "sysroot"])).is_ok_and(|sysroot| {
        std::path::Path::new(sysroot.trim())
            .join("lib/rustlib/aarch64-unknown-linux-gnu/lib")
            .is_dir()
    })
}
