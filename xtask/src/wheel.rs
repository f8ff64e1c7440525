//! `cargo xtask wheel`: the Python package with the library, the operators for TensorFlow and the
//! tools, as one wheel. `python/build_backend.py` builds it, as it does for `pip install ./python`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, process, python, unknown, workspace};

/// What builds for an older C library than that of this machine, and judges the result.
const TOOLS: [&str; 3] = ["ziglang", "cargo-zigbuild", "auditwheel"];
/// The variable by which the backend is told to use them.
const GLIBC: &str = "GASPI_WHEEL_GLIBC";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (mut directory, mut glibc) = (workspace::target().join("wheel"), None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--to" => directory = PathBuf::from(value()?),
            "--glibc" => glibc = Some(value()?.clone()),
            _ => return Err(unknown(argument)),
        }
    }
    let python = python::find(&["3.13", "3.12", "3.11", "3.10", "3.9"])?;
    let file = match glibc {
        None => build(&python, &directory)?,
        Some(glibc) => {
            let tools = python::environment("wheel-tools", &python, &TOOLS)?;
            let python = tools.join("bin/python");
            let mut backend = backend(&python, &directory);
            let file = built(backend.env(GLIBC, glibc))?;
            process::run(Command::new(tools.join("bin/auditwheel")).arg("show").arg(&file))?;
            file
        }
    };
    let size = std::fs::metadata(&file).map_or(0, |file| file.len() / 1024);
    println!("{} ({size} KiB); pip install {0} installs it", file.display());
    Ok(())
}

/// Builds the wheel for this machine into `directory`, and returns its path.
pub(crate) fn build(python: &Path, directory: &Path) -> Result<PathBuf> {
    built(&mut backend(python, directory))
}

fn backend(python: &Path, directory: &Path) -> Command {
    let mut command = Command::new(python);
    command.arg(workspace::root().join("python/build_backend.py")).arg(directory);
    command.current_dir(workspace::root()).env_remove(GLIBC);
    if let Some(cargo) = std::env::var_os("CARGO") {
        command.env("CARGO", cargo);
    }
    command
}

fn built(backend: &mut Command) -> Result<PathBuf> {
    let output = process::output(backend)?;
    let name = output.lines().last().ok_or("the backend names no wheel")?;
    Ok(workspace::root().join(name))
}
