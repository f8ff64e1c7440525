//! Pythons of the machine, and environments of them below the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, process, workspace};

/// Lists what an environment was made of; it is written last.
const LIST: &str = "packages";
/// Tells version and whether environments can be made.
const ABOUT: &str = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])";

/// A Python of the first of these versions that there is, able to make environments.
pub(crate) fn find(versions: &[&str]) -> Result<PathBuf> {
    versions.iter().find_map(|version| of_version(version)).ok_or_else(|| {
        format!(
            "there is no Python {} that can make environments; install one, with its module venv \
             (apt-get install python3 python3-venv)",
            versions.join(" or ")
        )
    })
}

/// A Python of this version, if there is one.
pub(crate) fn of_version(version: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named = [format!("python{version}"), "python3".to_owned()];
    let mut places: Vec<PathBuf> = std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/bin")])
        .flat_map(|directory| named.clone().map(|name| directory.join(name)))
        .collect();
    // Where pyenv keeps them.
    let home = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv")));
    if let Some(home) = home {
        places.extend(
            workspace::entries(&home.join("versions"))
                .unwrap_or_default()
                .into_iter()
                .map(|directory| directory.join("bin/python3")),
        );
    }
    places.into_iter().find(|place| {
        let mut ask = Command::new(place);
        let said = |text: String| text.trim() == version;
        place.is_file() && process::output(ask.args(["-c", ABOUT])).is_ok_and(said)
    })
}

/// An environment with these packages; kept for the next run.
pub(crate) fn environment(name: &str, python: &Path, packages: &[&str]) -> Result<PathBuf> {
    let directory = workspace::target().join("training").join(name);
    let list = format!("{}\n{}\n", python.display(), packages.join("\n"));
    if std::fs::read_to_string(directory.join(LIST)).is_ok_and(|found| found == list) {
        return Ok(directory);
    }
    println!("making the environment {} of {}", directory.display(), packages.join(" "));
    workspace::remove(&directory)?;
    process::output(Command::new(python).args(["-m", "venv"]).arg(&directory))?;
    if !packages.is_empty() {
        pip(&directory, packages).map_err(|reason| {
            format!("the environment {name} cannot be made: {reason}\npackages come from PyPI")
        })?;
    }
    workspace::write(&directory.join(LIST), &list)?;
    Ok(directory)
}

/// `pip install` in an environment.
pub(crate) fn pip(environment: &Path, arguments: &[&str]) -> Result<()> {
    let mut pip = Command::new(environment.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    process::output(pip.args(arguments)).map(drop)
}
