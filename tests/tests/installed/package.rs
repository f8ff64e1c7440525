//! The Debian package, unpacked instead of installed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use gaspi_tests::{Result, run_compiler};

use crate::{Verdict, builds, fresh, layouts, variable};

/// The examples build with CMake and run against what is in the package.
pub(crate) fn examples(scratch: &Path) -> Verdict {
    let tree = unpacked(&scratch.join("package"))?;
    builds::cmake(&tree.join("usr"), &scratch.join("package-examples"))?;
    let libdir = format!("lib/{}", output("cc", &["-print-multiarch"])?);
    builds::compile_and_run(&tree.join("usr"), &libdir, &scratch.join("hello-package"))?;
    builds::bench(&tree.join("usr"))
}

/// What dpkg is told is right.
pub(crate) fn control(scratch: &Path) -> Verdict {
    let package = PathBuf::from(variable("GASPI_TEST_PACKAGE")?);
    let about = output("dpkg-deb", &["-f", &package.display().to_string()])?;
    let architecture = output("dpkg", &["--print-architecture"])?;
    let name = format!("gaspi_{}-1_{architecture}.deb", env!("CARGO_PKG_VERSION"));
    if package.file_name() != Some(name.as_ref()) {
        return Err(format!("the package is {}, expected {name}", package.display()).into());
    }
    for field in [
        "Package: gaspi",
        &format!("Version: {}-1", env!("CARGO_PKG_VERSION")),
        &format!("Architecture: {architecture}"),
        // The oldest C library whose symbols suffice; not having to compute it would be "libc6,".
        "Depends: libc6 (>= 2.",
        "libgcc-s1 (>= ",
        "Installed-Size: ",
        "Maintainer: ",
        "Description: ",
    ] {
        if !about.contains(field) {
            return Err(format!("no {field:?} in\n{about}").into());
        }
    }
    let directory = fresh(&scratch.join("control"))?;
    let mut unpack = Command::new("dpkg-deb");
    run_compiler(unpack.arg("-R").arg(&package).arg(directory.join("all")))?;
    let triggers = std::fs::read_to_string(directory.join("all/DEBIAN/triggers"))?;
    if triggers != "activate-noawait ldconfig\n" {
        return Err(format!("triggers are {triggers:?}").into());
    }
    sums(&directory.join("all"))?;
    let listing = output("dpkg-deb", &["-c", &package.display().to_string()])?;
    for line in listing.lines() {
        let is_writable = !line.starts_with('l') && line[5..10].contains('w');
        if is_writable || !line.contains(" root/root ") {
            return Err(format!("not root's alone to change: {line}").into());
        }
    }
    Ok(())
}

/// Every file has its sum, and the sums are right.
fn sums(tree: &Path) -> Verdict {
    let sums = tree.join("DEBIAN/md5sums");
    run_compiler(Command::new("md5sum").arg("--quiet").arg("-c").arg(&sums).current_dir(tree))?;
    let text = std::fs::read_to_string(sums)?;
    let named: BTreeSet<PathBuf> = text
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(_, name)| PathBuf::from(name))
        .collect();
    let there: BTreeSet<PathBuf> = layouts::files(tree)?
        .into_iter()
        .filter(|name| !name.starts_with("DEBIAN") && !tree.join(name).is_symlink())
        .collect();
    if named != there {
        let odd: Vec<_> = named.symmetric_difference(&there).collect();
        return Err(format!("md5sums and files differ: {odd:?}").into());
    }
    if there.iter().any(|name| name.ends_with("installed.txt")) {
        return Err("the list of `cargo xtask install` is in the package".into());
    }
    Ok(())
}

/// The same sources give the same package.
pub(crate) fn reproducible(scratch: &Path) -> Verdict {
    let package = PathBuf::from(variable("GASPI_TEST_PACKAGE")?);
    let directory = fresh(&scratch.join("package-again"))?;
    let mut again = Command::new(variable("GASPI_TEST_XTASK")?);
    run_compiler(again.arg("package").arg("--to").arg(&directory))?;
    let again = directory.join(package.file_name().unwrap_or_default());
    if std::fs::read(&again)? != std::fs::read(&package)? {
        return Err(format!("{} differs from {}", again.display(), package.display()).into());
    }
    Ok(())
}

/// Manual pages are compressed, links among them included.
pub(crate) fn manual(scratch: &Path) -> Verdict {
    let man = unpacked(&scratch.join("package-manual"))?.join("usr/share/man");
    for (page, text) in [
        ("man1/gaspi_run.1.gz", ".TH \"gaspi_run\" 1"),
        ("man3/gaspi_write_notify.3.gz", ".TH \"gaspi_write_notify\" 3"),
        ("man3/pgaspi_write_notify.3.gz", ".so man3/gaspi_write_notify.3"),
        ("man7/gaspi.7.gz", ".TH \"gaspi\" 7"),
    ] {
        let found = output("gzip", &["-dc", &man.join(page).display().to_string()])?;
        if !found.starts_with(text) {
            return Err(format!("{page} does not begin with {text:?}").into());
        }
    }
    Ok(())
}

fn unpacked(to: &Path) -> Result<PathBuf> {
    fresh(to)?;
    let package = variable("GASPI_TEST_PACKAGE")?;
    run_compiler(Command::new("dpkg-deb").arg("-x").arg(package).arg(to))?;
    Ok(to.to_path_buf())
}

fn output(program: &str, arguments: &[&str]) -> Result<String> {
    Ok(run_compiler(Command::new(program).args(arguments))?.trim_end().to_owned())
}
