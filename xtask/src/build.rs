//! The release build: the library in both forms and the tools.

use crate::{Result, process, unknown, workspace};

/// The tools that are built and installed, as far as the workspace has them.
const TOOLS: [&str; 4] = ["gaspi_run", "gaspi-bench", "gaspi_logger", "gaspi_cleanup"];

/// The tools that the release build has made.
pub(crate) fn tools() -> Vec<&'static str> {
    TOOLS.into_iter().filter(|tool| workspace::release().join(tool).is_file()).collect()
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if let Some(argument) = arguments.first() {
        return Err(unknown(argument));
    }
    release()?;
    let directory = workspace::release();
    println!("{}", directory.display());
    for name in ["libgaspi.so", "libgaspi.a"].into_iter().chain(tools()) {
        if let Ok(file) = std::fs::metadata(directory.join(name)) {
            println!("  {:>8} KiB  {name}", file.len() / 1024);
        }
    }
    Ok(())
}

/// Builds libgaspi and the tools, and gives the library the name that the loader looks for.
pub(crate) fn release() -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--release", "-p", "gaspi-ffi", "-p", "gaspi-tools"]);
    process::run(&mut cargo)?;
    let directory = workspace::release();
    // Programs record the soname; without this link `-Ltarget/release -lgaspi` would link but not
    // run.
    link("libgaspi.so", &directory.join("libgaspi.so.1"))
}

/// Builds the program that shows what the Rust interface costs as users build it.
pub(crate) fn submits() -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--release", "--quiet", "-p", "gaspi-ffi", "-p", "gaspi-tools"]);
    cargo.args(["--features", "gaspi-tools/submits", "--bin", "submits"]);
    process::run(&mut cargo)
}

/// Makes or replaces the symbolic link `at`.
pub(crate) fn link(to: &str, at: &std::path::Path) -> Result<()> {
    if std::fs::read_link(at).is_ok_and(|old| old.as_os_str() == to) {
        return Ok(());
    }
    match std::fs::remove_file(at) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("cannot replace {}: {error}", at.display()));
        }
        _ => {}
    }
    std::os::unix::fs::symlink(to, at)
        .map_err(|error| format!("cannot make the link {}: {error}", at.display()))
}
