//! Where `cargo xtask install` puts things, over an older installation too, and `uninstall`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gaspi_tests::{Failed, Result, run_compiler};

use crate::{Verdict, builds, fresh, variable};

/// Nothing is left after `uninstall`, the prefix included.
pub(crate) fn uninstall(scratch: &Path) -> Verdict {
    let directory = fresh(&scratch.join("uninstall"))?;
    let prefix = directory.join("new/prefix");
    xtask("install", &prefix, &[])?;
    expect_link(&prefix.join("lib64"), "lib")?;
    readable(&prefix)?;
    xtask("uninstall", &prefix, &[])?;
    expect(files(&directory)?.as_slice(), &[], "after uninstall")?;
    if prefix.exists() {
        return Err(format!("{} is still there", prefix.display()).into());
    }
    let again = xtask("uninstall", &prefix, &[]);
    if !again.is_err_and(|reason| reason.0.contains("nothing is known to be installed")) {
        return Err("uninstalling twice does not say that there is nothing".into());
    }
    Ok(())
}

/// Another layout replaces the former one, what others put there stays, and programs run.
pub(crate) fn replaced(scratch: &Path) -> Verdict {
    let prefix = fresh(&scratch.join("replaced"))?;
    std::fs::create_dir(prefix.join("lib"))?;
    std::fs::write(prefix.join("lib/other.txt"), "of somebody else")?;
    xtask("install", &prefix, &[])?;
    let before = files(&prefix)?.len();
    xtask("install", &prefix, &["--libdir", "lib64"])?;
    if prefix.join("lib64").is_symlink() || !prefix.join("lib64/libgaspi.so.1").exists() {
        return Err("lib64 is not a directory with the libraries".into());
    }
    builds::compile_and_run(&prefix, "lib64", &scratch.join("hello-lib64"))?;
    // The link lib64 is gone, the rest has moved.
    let after = files(&prefix)?.len();
    if after + 1 != before {
        return Err(format!("{before} files became {after}").into());
    }
    xtask("install", &prefix, &["--libdir", "lib/some-triplet"])?;
    builds::compile_and_run(&prefix, "lib/some-triplet", &scratch.join("hello-triplet"))?;
    xtask("uninstall", &prefix, &[])?;
    expect(&files(&prefix)?, &["lib/other.txt"], "after uninstall")
}

/// A lib64 of somebody else stays as it is.
pub(crate) fn foreign_lib64(scratch: &Path) -> Verdict {
    let prefix = fresh(&scratch.join("foreign"))?;
    std::fs::create_dir(prefix.join("lib64"))?;
    let said = xtask("install", &prefix, &[])?;
    if !said.contains("--libdir lib64") {
        return Err(format!("nothing says what to do about lib64:\n{said}").into());
    }
    xtask("uninstall", &prefix, &[])?;
    if !prefix.join("lib64").is_dir() {
        return Err("lib64 of somebody else is gone".into());
    }
    Ok(())
}

/// Mistakes are told before anything is built or written.
pub(crate) fn mistakes(scratch: &Path) -> Verdict {
    let prefix = fresh(&scratch.join("mistakes"))?;
    for (prefix, arguments, word) in [
        (Path::new("relative"), &[][..], "absolute"),
        (&prefix, &["--libdir", "/usr/lib64"], "below the prefix"),
        (&prefix, &["--libdir", "../lib64"], "below the prefix"),
        (&prefix, &["--libdir"], "needs a directory"),
    ] {
        let said = xtask("install", prefix, arguments);
        if !said.as_ref().is_err_and(|reason| reason.0.contains(word)) {
            return Err(format!("{arguments:?} does not say {word:?}: {said:?}").into());
        }
    }
    expect(&files(&prefix)?, &[], "after refused installations")
}

fn xtask(command: &str, prefix: &Path, arguments: &[&str]) -> Result<String> {
    // What it makes is for everybody, even if the person is careful.
    let mut careful = Command::new("sh");
    careful.args(["-c", "umask 077; exec \"$@\"", "sh"]).arg(variable("GASPI_TEST_XTASK")?);
    careful.arg(command).arg("--prefix").arg(prefix).args(arguments);
    run_compiler(&mut careful)
}

/// All that is not a directory below `directory`, relative to it, sorted.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_path_buf()];
    while let Some(next) = waiting.pop() {
        for entry in std::fs::read_dir(&next)? {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() {
                waiting.push(path);
            } else {
                found.push(path.strip_prefix(directory).unwrap_or(&path).to_path_buf());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn expect(found: &[PathBuf], expected: &[&str], when: &str) -> Verdict {
    if found.iter().map(PathBuf::as_path).eq(expected.iter().map(Path::new)) {
        return Ok(());
    }
    Err(Failed(format!("{when} there are {found:?}, expected {expected:?}")).into())
}

/// Everybody may read what is installed, and enter its directories.
fn readable(prefix: &Path) -> Verdict {
    for file in files(prefix)? {
        let file = prefix.join(file);
        let directory = file.parent().unwrap_or(prefix).metadata()?.mode();
        if file.metadata()?.mode() & 0o444 != 0o444 || directory & 0o555 != 0o555 {
            return Err(format!("not everybody can read {}", file.display()).into());
        }
    }
    Ok(())
}

fn expect_link(at: &Path, to: &str) -> Verdict {
    match std::fs::read_link(at) {
        Ok(found) if found == Path::new(to) => Ok(()),
        other => Err(format!("{} should lead to {to}: {other:?}", at.display()).into()),
    }
}
