//! Compiling test programs as a user would.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::built::{library_directory, root};
use crate::program::Product;
use crate::{Failed, Result};

/// How a program finds the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linkage {
    /// libgaspi.so of the release build, found again at run time.
    Shared,
    /// libgaspi.a.
    Static,
}

/// Compiles one C or C++ source against `include/` and the release build; warnings are errors.
///
/// # Errors
/// What the compiler says.
pub fn make(
    source: &Path,
    to: &Path,
    is_cxx: bool,
    product: Product,
    linkage: Linkage,
) -> Result<()> {
    let mut command = c_compiler(is_cxx);
    command.arg("-I").arg(root().join("include"));
    match product {
        Product::Program => {}
        Product::Nothing => {
            command.arg("-fsyntax-only").arg(source);
            return run_compiler(&mut command).map(drop);
        }
        Product::SharedLibrary => {
            command.args(["-shared", "-fPIC"]);
        }
    }
    link(command.arg(source), to, linkage)
}

/// The C or C++ compiler with the flags of all test programs.
pub fn c_compiler(is_cxx: bool) -> Command {
    let mut command = Command::new(if is_cxx { "c++" } else { "cc" });
    command.arg(if is_cxx { "-std=c++17" } else { "-std=c11" });
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-pedantic", "-Werror", "-pthread"]);
    command
}

/// Compiles Fortran modules and sources, in this order.
///
/// # Errors
/// What the compiler says.
pub fn fortran(modules: &[PathBuf], source: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("gfortran");
    command.args(["-std=f2018", "-O1", "-g", "-Wall", "-Wextra"]);
    // Module files of programs that compile at the same time must not meet.
    let directory = to.with_extension("modules");
    std::fs::create_dir_all(&directory)?;
    command.arg("-J").arg(directory);
    link(command.args(modules).arg(source), to, Linkage::Shared)
}

/// Has a command that names sources link them with the library.
///
/// # Errors
/// What the compiler says.
pub fn link(command: &mut Command, to: &Path, linkage: Linkage) -> Result<()> {
    let library = library_directory()?;
    command.arg("-o").arg(to);
    match linkage {
        Linkage::Shared => {
            command.arg("-L").arg(&library).arg("-lgaspi");
            command.arg(format!("-Wl,-rpath,{}", library.display()));
        }
        Linkage::Static => {
            command.arg(library.join("libgaspi.a"));
            command.args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-ldl"]);
        }
    }
    command.arg("-lm");
    run_compiler(command).map(drop)
}

/// Runs a compiler or another program of a build and returns its output.
///
/// # Errors
/// What it said when it failed.
pub fn run_compiler(command: &mut Command) -> Result<String> {
    let output =
        command.output().map_err(|error| Failed(format!("cannot start {command:?}: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(Failed(format!("{command:?} ended with {}\n{text}{stderr}", output.status)))
}
